"""`python -m bench`: run the comparison, write bench/RESULTS.md and bench/results.json, say which bars were missed."""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import click

from .compare import HIDDEN, Plan, latency_topic, measure_latency, measure_rates
from .javapeer import JavaUnavailable
from .plot import write_plots
from .processes import ProcessFailed
from .report import markdown, results, unmet_bars
from .scenarios import SCENARIOS
from .systems import JAVA, MIXED, OURS, PEERS, start_systems

HERE = Path(__file__).parent
SYSTEMS = {"java": JAVA, "ours": OURS, "mixed": MIXED, **{name: name for name in PEERS}}
NAMES = [*(scenario.name for scenario in SCENARIOS), "latency"]


def _say(line: str) -> None:
    click.echo(line, err=True)


def _require_extra() -> None:
    missing = [name for name in ("aiokafka", "confluent_kafka", "kafka", "matplotlib") if find_spec(name) is None]
    if missing:
        sys.exit(f"bench: {', '.join(missing)} missing: pip install -e '.[bench]'")


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Measured rounds a scenario.")
@click.option(
    "--seconds", type=click.FloatRange(0.1), default=3.0, show_default=True, help="Length of a measured send run."
)
@click.option(
    "--warm-up", type=click.FloatRange(0.1), default=6.0, show_default=True, help="Seconds of the run before those."
)
@click.option(
    "--backlog",
    type=click.IntRange(HIDDEN + 1),
    default=400_000,
    show_default=True,
    help="Messages to consume, once for each broker.",
)
@click.option("--scenario", "names", type=click.Choice(NAMES), multiple=True, help="Only this one; may be repeated.")
@click.option(
    "--system", "systems", type=click.Choice(list(SYSTEMS)), multiple=True, help="Only this one; may be repeated."
)
@click.option("--zk", metavar="HOST:PORT", help="Use this ZooKeeper instead of starting one; its root must be empty.")
@click.option(
    "--directory", type=click.Path(path_type=Path, exists=True), help="For data and logs; default: a temporary one."
)
@click.option(
    "--output", type=click.Path(path_type=Path, exists=True), default=HERE, help="Where RESULTS.md and results.json go."
)
def main(
    rounds: int,
    seconds: float,
    warm_up: float,
    backlog: int,
    names: tuple[str, ...],
    systems: tuple[str, ...],
    zk: str | None,
    directory: Path | None,
    output: Path,
) -> None:
    """Compare metaq with Java metaq 1.4.6.2, Kafka and RocketMQ on this machine. Exit code 1 when a bar is missed."""
    _require_extra()
    plan = Plan(rounds, seconds, warm_up, backlog)
    names, chosen = names or tuple(NAMES), [SYSTEMS[key] for key in systems or SYSTEMS]
    topics = {"bench": 1, "backlog": 1}
    topics |= {latency_topic(system, number): 1 for system in range(len(chosen)) for number in range(rounds)}
    with tempfile.TemporaryDirectory(prefix="metaq-bench-", dir=directory) as data:
        try:
            with start_systems(chosen, Path(data), topics, zk) as running:
                scenarios = [scenario for scenario in SCENARIOS if scenario.name in names]
                rates = measure_rates(scenarios, running, plan, _say)
                latency = measure_latency(running, rounds, _say) if "latency" in names else None
        except (JavaUnavailable, ProcessFailed) as error:
            sys.exit(f"bench: {error}")
    plots = write_plots([*rates, *([latency] if latency else [])], output / "plots")
    page = markdown(rates, latency, rounds, [plot.relative_to(output).as_posix() for plot in plots])
    (output / "RESULTS.md").write_text(page, "utf-8")
    (output / "results.json").write_text(json.dumps(results(rates, latency), indent=1) + "\n", "utf-8")
    click.echo(page)
    missed = unmet_bars(rates, latency)
    for line in missed:
        click.echo(f"missed: {line}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
