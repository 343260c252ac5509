"""Run the comparison (`python -m bench`), write bench/RESULTS.md and bench/results.json, and name the missed bars."""

from __future__ import annotations

import signal
import sys
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from .compare import HIDDEN, Plan
from .environment import environment
from .javapeer import JavaUnavailable
from .measured import OtherMachine, Results
from .names import OURS, OURS_SET_OF_ONE, REPLICATED, SYSTEMS, two_replicas
from .processes import ProcessFailed
from .report import failed, missed
from .scenarios import REPLICA_SCENARIOS, SCENARIOS, Scenario
from .session import Session, touch_free_memory
from .special import SPECIALS, SpecialFailed, run_special

HERE = Path(__file__).parent
NAMES = [*(scenario.name for scenario in SCENARIOS), *SPECIALS]


def _say(line: str) -> None:
    click.echo(line, err=True)


def _require_extra() -> None:
    missing = [name for name in ("aiokafka", "confluent_kafka", "kafka", "matplotlib") if find_spec(name) is None]
    if missing:
        sys.exit(f"bench: {', '.join(missing)} missing: pip install -e '.[bench]'")


def chosen(
    names: Collection[str], systems: Sequence[str], replicas: Collection[str], node: bool
) -> tuple[list[Scenario], list[str]]:
    """Return the scenarios and systems to measure. Without --replicas and --node the scenarios are unchanged."""
    if {*replicas} == {"1"} and not node:
        return [each for each in SCENARIOS if each.name in names], [*systems]
    able = [each for each in systems if each in REPLICATED]
    taking_part = [two_replicas(each) for each in able] if "2" in replicas else []
    taking_part += [OURS_SET_OF_ONE] if node and OURS in able else []
    taking_part += able if "1" in replicas else []
    return [each for name, each in REPLICA_SCENARIOS.items() if name in names], taking_part


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=Plan.rounds, show_default=True, help="Measured, a scenario.")
@click.option(
    "--seconds", type=click.FloatRange(0.1), default=Plan.seconds, show_default=True, help="Length of a measured run."
)
@click.option(
    "--warm-up",
    type=click.FloatRange(0.1),
    default=Plan.warm_up_seconds,
    show_default=True,
    help="Seconds of the run before those.",
)
@click.option(
    "--backlog",
    type=click.IntRange(HIDDEN + 1),
    default=Plan.backlog,
    show_default=True,
    help="Messages to consume, once for each broker.",
)
@click.option(
    "--latency-seconds",
    type=click.FloatRange(0.1),
    default=Plan.latency_seconds,
    show_default=True,
    help="Length of a measured latency run.",
)
@click.option(
    "--scenario",
    "names",
    type=click.Choice(NAMES),
    multiple=True,
    help=f"Only this one; may be repeated. Default: all but {' and '.join(SPECIALS)}, which take long.",
)
@click.option(
    "--system", "systems", type=click.Choice(list(SYSTEMS)), multiple=True, help="Only this one; may be repeated."
)
@click.option(
    "--replicas",
    type=click.Choice(["1", "2"]),
    multiple=True,
    default=["1"],
    show_default=True,
    help="Nodes that have each message; 1 and 2 may both be given, and take turns then. 2: only ours and Kafka's.",
)
@click.option("--node", is_flag=True, help="Measure ours also as a broker set of one node.")
@click.option(
    "--merge", is_flag=True, help="Keep the other scenarios of results.json, of the same machine and versions."
)
@click.option("--cold-memory", is_flag=True, help="Do not touch free memory first.")
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
    latency_seconds: float,
    names: tuple[str, ...],
    systems: tuple[str, ...],
    replicas: tuple[str, ...],
    node: bool,
    merge: bool,
    cold_memory: bool,
    zk: str | None,
    directory: Path | None,
    output: Path,
) -> None:
    """Compare metaq with Java metaq 1.4.6.2, Kafka and RocketMQ on this machine. Exit code 1 when a bar is missed.

    With --replicas 2 or --node only metaq and Kafka take part, in scenarios named `replicas-…` in the results. The
    results are written after each scenario. With --merge they are added to the existing results.
    """
    _require_extra()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the child processes end, too
    plan = Plan(rounds, seconds, warm_up, backlog, latency_seconds)
    wanted = names or tuple(scenario.name for scenario in SCENARIOS)
    scenarios, taking_part = chosen(wanted, [SYSTEMS[key] for key in systems or SYSTEMS], {*replicas}, node)
    try:
        results = Results.read(output / "results.json", environment()) if merge else Results(environment())
        session = Session(
            scenarios=scenarios,
            systems=taking_part,
            plan=plan,
            results=results,
            output=output,
            log=_say,
            zk=zk,
            directory=directory,
        )
        if not cold_memory:
            touch_free_memory(_say)
        session.run()
        for special in (SPECIALS[name] for name in SPECIALS if name in wanted):
            results.put(run_special(special, directory, _say))
        click.echo(session.publish())
    except (JavaUnavailable, OtherMachine, ProcessFailed, SpecialFailed) as error:
        sys.exit(f"bench: {error}")
    lines = [*(f"missed: {line}" for line in missed(results)), *(f"failed: {line}" for line in failed(results))]
    for line in lines:
        click.echo(line)
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
