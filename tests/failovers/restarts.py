"""Rolling restarts of broker sets under load, with applications of the Java client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.javapeer import class_path
from tests.kills.outcome import Outcome, Say

from . import run as of_leaders
from .cluster import Shape
from .report import table

__all__ = ["begin", "run", "table"]


def begin(words: Sequence[str], plain: bool) -> None:
    """As in a run with faults of leaders."""
    class_path()  # Maven may have to fetch jars, and there is no way to it from a namespace
    of_leaders.begin(words, plain)


def run(
    directory: Path,
    seed: int,
    say: Say,
    *,
    restarts: int = 1,
    sets: int = 2,
    nodes: int = 2,
    rate: float = 10.0,
    plain: bool = False,
) -> Outcome:
    """Restart all nodes of broker sets in turn, so many times, by the loop of docs/replication.md, under load.

    nodes: of each set. rate: calls a second of each of seven producers. plain: no namespaces, even as root. Needs the
    Java peers.
    """
    shape = Shape(sets, nodes, 1, rate, True, rolling=True, java=True)
    return of_leaders.observe(directory, seed, restarts, shape, say)
