"""`python -m tests.soak mixed --minutes 5 --seed 1`: a long run by hand; its exit code is 0 if the promise held."""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import click

from metaq.coordination.embedded import EmbeddedZooKeeper

from .mixed import mixed
from .report import as_json, table
from .rolling import rolling

TICK_MS = 100
"""ZooKeeper ends a session at most this long after its time."""


@click.group()
def main() -> None:
    """Long runs with crashes, judged by the checker."""


@main.command("mixed")
@click.option("--minutes", type=float, default=5.0, show_default=True, help="How long processes are killed.")
@click.option("--seed", type=int, default=None, help="Of the schedule; printed. Default: another one each time.")
@click.option("--freeze", is_flag=True, help="Also stop our processes for longer than their ZooKeeper sessions.")
@click.option("--zookeeper", is_flag=True, help="Also restart ZooKeeper.")
@click.option("--directory", type=click.Path(path_type=Path), default=None, help="Keeps logs, journals and data.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=None, help="Write the verdict here.")
def run_mixed(
    minutes: float, seed: int | None, freeze: bool, zookeeper: bool, directory: Path | None, json_file: Path | None
) -> None:
    """2 + 1 brokers, 2 + 2 consumers, 1 + 1 producers of ours and of Java; kills and restarts."""
    seed = random.SystemRandom().randrange(1 << 16) if seed is None else seed
    directory = _directory(directory)
    click.echo(f"mixed soak: {minutes:g} minutes, seed {seed}, everything in {directory}")
    with EmbeddedZooKeeper(directory / "zookeeper", tick_time_ms=TICK_MS) as server:
        tally = mixed(
            directory, server.connect_string, minutes * 60, seed, click.echo, freeze, server if zookeeper else None
        )
    outcome = tally.outcome
    click.echo(", ".join(f"{blow}: {times}" for blow, times in tally.blows.items()))
    click.echo(
        f"{outcome.seconds:.0f} s, refused starts of a killed Java broker: {tally.refused_starts}, "
        f"looks that ZooKeeper missed: {outcome.missed_looks}\n"
    )
    click.echo(table(outcome.history, outcome.verdict))
    if json_file:
        json_file.write_text(as_json(outcome.verdict))
    sys.exit(0 if outcome.verdict.ok else 1)


@main.command("rolling")
@click.option("--brokers", type=int, default=3, show_default=True)
@click.option("--directory", type=click.Path(path_type=Path), default=None, help="Keeps logs, journals and data.")
def run_rolling(brokers: int, directory: Path | None) -> None:
    """A cluster moves from Java to ours and back, broker by broker, under a Java producer and two Java consumers."""
    directory = _directory(directory)
    with EmbeddedZooKeeper(directory / "zookeeper", tick_time_ms=TICK_MS) as server:
        rolled = rolling(directory, server.connect_string, brokers, click.echo)
    click.echo(f"{rolled.outcome.seconds:.0f} s, failed sends of the Java producer: {rolled.failed_sends}\n")
    click.echo(table(rolled.outcome.history, rolled.outcome.verdict))
    sys.exit(0 if rolled.outcome.verdict.ok else 1)


def _directory(given: Path | None) -> Path:
    directory = given or Path(tempfile.mkdtemp(prefix="metaq-soak-"))
    (directory / "zookeeper").mkdir(parents=True)
    return directory


if __name__ == "__main__":
    main()
