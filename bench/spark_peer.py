"""Compare metaq's Spark source and sink with those of Kafka: `python -m bench.spark_peer`. Writes SPARK.md and
spark.json.

metaq's source and sink run in the Spark of this Python environment. Spark's Kafka source is not published for every
version of Spark, so it runs in a separate environment, which pip makes in build/spark-peer. Maven gets its jars
(bench/java/spark/pom.xml).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import click

from .environment import environment
from .javapeer import JavaUnavailable
from .maven import build, java_class_path
from .measured import Measured, Results
from .names import KAFKA, OURS
from .peers import PROJECT, peer_versions
from .processes import ProcessFailed, Worker
from .scenarios import Stage, Topic
from .spark_memory import RESULT, paragraph
from .systems import start_stage

__all__ = ["SCENARIOS", "SparkScenario", "markdown", "missed"]

HERE = Path(__file__).parent
PEER = "spark-sql-kafka"
MESSAGE_BYTES = 1024
BATCH = 500
HEAP = "2g"
"""Heap size of the JVM of each of the two Sparks."""


@dataclass(frozen=True, slots=True)
class SparkScenario:
    """One command of bench/spark_worker.py on its own topic; bar: the least allowed ratio of metaq's rate to the peer's
    rate.
    """

    name: str
    title: str
    verb: str
    partitions: int
    bar: float = 2.0


SCENARIOS = (
    SparkScenario("spark-read-1", "reading, one partition", "read", 1),
    SparkScenario("spark-read-8", "reading, eight partitions", "read", 8),
    SparkScenario("spark-write", "writing, one partition", "write", 1),
)


def _say(line: str) -> None:
    click.echo(line, err=True)


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Measured rounds a scenario.")
@click.option("--warm-ups", type=click.IntRange(0), default=3, show_default=True, help="Unmeasured runs before those.")
@click.option("--rows", type=click.IntRange(BATCH), default=2_000_000, show_default=True, help="Rows that a run reads.")
@click.option("--written", type=click.IntRange(1), default=500_000, show_default=True, help="Rows that a run writes.")
@click.option(
    "--scenario", "names", type=click.Choice([each.name for each in SCENARIOS]), multiple=True, help="Only this one."
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path, exists=True, resolve_path=True),
    help="For data and logs; default: a temporary one.",
)
@click.option(
    "--output", type=click.Path(path_type=Path, exists=True), default=HERE, help="Where SPARK.md and spark.json go."
)
def main(
    rounds: int,
    warm_ups: int,
    rows: int,
    written: int,
    names: tuple[str, ...],
    directory: Path | None,
    output: Path,
) -> None:
    """Read and write topics with Spark, local[2]; metaq and Kafka take turns. The exit code is 1 if a bar is missed."""
    scenarios = [each for each in SCENARIOS if not names or each.name in names]
    rows -= rows % BATCH
    with tempfile.TemporaryDirectory(prefix="metaq-spark-bench-", dir=directory) as data:
        try:
            with _sparks(scenarios, rows, Path(data)) as sparks:
                measured = [_measure(each, sparks, rounds, warm_ups, rows, written) for each in scenarios]
        except (JavaUnavailable, ProcessFailed) as error:
            sys.exit(f"bench: {error}")
    page = markdown(measured, rounds)
    if (memory := output / RESULT).exists():
        page += "\n".join(["", *paragraph(json.loads(memory.read_text("utf-8"))), ""])
    (output / "SPARK.md").write_text(page, "utf-8")
    Results(_environment(), {each.scenario: each for each in measured}).write(output / "spark.json")
    click.echo(page)
    lines = missed(measured)
    for line in lines:
        click.echo(f"missed: {line}")
    sys.exit(1 if lines else 0)


# --- what is started --------------------------------------------------------------------------------------------------


@contextmanager
def _sparks(scenarios: list[SparkScenario], rows: int, directory: Path) -> Iterator[dict[str, Worker]]:
    """Start both brokers, fill their topics, and yield a Spark process for each of them."""
    python, jars = _peer_environment()
    topics = {each.name: Topic(each.partitions) for each in scenarios}
    with ExitStack() as stack:
        stage = Stage("spark", "Spark", topics)
        running = stack.enter_context(start_stage(stage, topics, (OURS, KAFKA), directory, None, _say))
        if running.failures:
            raise ProcessFailed("; ".join(running.failures.values()), directory)
        for system in running.systems.values():
            for each in scenarios:
                if each.verb == "read":
                    _say(f"filling {each.name} of the {system.name} broker with {rows:,} messages")
                    system.generator.call("send_batch", each.name, BATCH, rows, MESSAGE_BYTES)
        script = str(HERE / "spark_worker.py")
        ours = [sys.executable, script, "metaq", running.brokers[OURS].address, HEAP]
        peer = [str(python), script, "kafka", running.brokers[KAFKA].address, HEAP, jars]
        yield {
            OURS: stack.enter_context(Worker(ours, directory / "spark-ours.log", HERE.parent)),
            PEER: stack.enter_context(Worker(peer, directory / "spark-kafka.log", directory)),
        }


def _peer_environment() -> tuple[Path, str]:
    """Make the environment with the peer's version of Spark. Return the path of its Python, and the class path of
    Spark's Kafka source.
    """
    build(PROJECT, "the benchmark's peers")
    home = HERE.parent / "build" / "spark-peer"
    python, wanted = home / "bin" / "python", f"pyspark=={peer_versions(['spark'])['spark']}"
    stamp = home / "installed"
    if not (stamp.exists() and stamp.read_text() == wanted):
        _say(f"installing {wanted} below {home}")
        for command in ([sys.executable, "-m", "venv", str(home)], [str(python), "-m", "pip", "install", "-q", wanted]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise JavaUnavailable(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        stamp.write_text(wanted)
    return python, java_class_path(PROJECT / "spark")


# --- measuring --------------------------------------------------------------------------------------------------------


def _measure(
    scenario: SparkScenario, sparks: dict[str, Worker], rounds: int, warm_ups: int, rows: int, written: int
) -> Measured:
    """Measure one scenario. First each system warms up, because a JVM needs some runs until its hot code is compiled.
    Then the two systems take turns.
    """
    words = (scenario.verb, scenario.name, rows if scenario.verb == "read" else written, MESSAGE_BYTES)
    for name, spark in sparks.items():
        for number in range(warm_ups):
            _say(f"{scenario.name} warm-up {number + 1}: {name} {spark.call(*words)['rate']:,.0f}/s")
    measured = Measured(scenario.name)
    for number in range(rounds):
        for name in sparks if number % 2 == 0 else reversed(sparks):
            answer = sparks[name].call(*words)
            measured.add(name, answer)
            _say(f"{scenario.name} round {number + 1}: {name} {answer['rate']:,.0f}/s")
    return measured


# --- saying -----------------------------------------------------------------------------------------------------------


def _environment() -> dict[str, str]:
    peer = peer_versions(["spark"])["spark"]
    return {**environment(), "pyspark of ours": version("pyspark"), f"{PEER} and its pyspark": peer}


def markdown(measured: list[Measured], rounds: int) -> str:
    """Return the page bench/SPARK.md."""
    titles = {each.name: each for each in SCENARIOS}
    lines = [
        "# Topics in Spark: metaq beside Spark's Kafka source",
        "",
        f"Made by `python -m bench.spark_peer`: {MESSAGE_BYTES}-byte values, Spark with `local[2]` beside the brokers,",
        "asynchronous flush; every column of every row is brought to Spark, each value looked at, planning included.",
        f"Rows a second: medians of {rounds} rounds in which the two take turns, and the median of the rounds' ratios.",
        "",
        *(f"- {name}: {value}" for name, value in _environment().items()),
        "",
        f"| scenario | metaq | {PEER} | ratio | bar |",
        "|---|---:|---:|---:|---:|",
    ]
    for each in measured:
        figures = [each.median(name) or 0.0 for name in (OURS, PEER)]
        scenario = titles[each.scenario]
        cells = [f"{figure:,.0f}" for figure in figures]
        cells += [f"{each.ratio(OURS, PEER) or 0.0:.2f}×", f"≥ {scenario.bar}×"]
        lines.append(f"| {scenario.title} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def missed(measured: list[Measured]) -> list[str]:
    """Return one line for each missed bar."""
    bars = {each.name: each.bar for each in SCENARIOS}
    found = []
    for each in measured:
        ratio = each.ratio(OURS, PEER)
        if ratio is not None and ratio < bars[each.scenario]:
            found.append(f"{each.scenario}: {ratio:.2f} of {PEER}'s rate, the bar is {bars[each.scenario]}")
    return found


if __name__ == "__main__":
    main()
