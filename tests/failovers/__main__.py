"""Failovers of broker sets under load, by faults that a seed draws, and what is wrong in their histories.

Examples:
  python -m tests.failovers --seed 7 --failovers 5
  python -m tests.failovers --runs 30 --failovers 10 --directory /tmp/failovers

As root it has namespaces of its own and does all kinds of faults; else those of processes and syncs only. With a
directory, runs whose results are there are not done again.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.javapeer import class_path

from .cluster import Shape
from .faults import LEADER_KINDS
from .isolation import can_isolate, enter_isolation, is_isolated
from .report import line, summary, table
from .run import Outcome, run

_MODULE = "tests.failovers"


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--runs", type=int, default=1, help="how many, one after the other")
    parser.add_argument("--failovers", type=int, default=10, help="in each run")
    parser.add_argument("--rolling", action="store_true", help="restart all nodes in turn, --failovers times, instead")
    parser.add_argument("--java", action="store_true", help="with applications of the Java client")
    parser.add_argument("--sets", type=int, default=2)
    parser.add_argument("--nodes", type=int, choices=(2, 3, 4), help="of each set; else 2 and 3 in turn")
    parser.add_argument("--min-in-sync", type=int, help="else 1, and 2 in every other run with three nodes")
    parser.add_argument("--rate", type=float, default=10.0, help="calls a second of each of seven producers")
    parser.add_argument("--transactions", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--kinds", nargs="+", choices=LEADER_KINDS, default=(), help="of faults; else all")
    parser.add_argument("--twice-fails", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--plain", action="store_true", help="no namespaces, even as root")
    parser.add_argument("--directory", type=Path, help="for results, and for the files of runs with problems")
    parser.add_argument("--quiet", action="store_true", help="only a line a run, and the table")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = _arguments(arguments)
    if options.java:
        class_path()  # Maven may have to fetch jars, and there is no way to it from a namespace
    if not options.plain and not is_isolated() and can_isolate():
        enter_isolation(_MODULE, arguments)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    above = options.directory or Path(tempfile.mkdtemp(prefix="metaq-failovers-"))
    above.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = []
    try:
        for seed in range(options.seed, options.seed + options.runs):
            found.append(_one(options, seed, above))
            print(line(found[-1]), flush=True)
    finally:
        print(f"\n{table(found)}", flush=True)
    return int(any(_failures(options, each) for each in found))


def _failures(options: argparse.Namespace, found: dict[str, Any]) -> dict[str, int]:
    return {kind: count for kind, count in found["problems"].items() if options.twice_fails or kind != "twice"}


def _one(options: argparse.Namespace, seed: int, above: Path) -> dict[str, Any]:
    result = above / f"run-{seed}.json"
    if result.exists():
        found: dict[str, Any] = json.loads(result.read_text())
        return found
    directory = above / f"run-{seed}"
    if directory.exists():  # of a run that was interrupted
        shutil.rmtree(directory)
    directory.mkdir()
    nodes = options.nodes or 2 + seed % 2
    least = options.min_in_sync or (2 if nodes > 2 and seed % 4 == 1 else 1)
    shape = Shape(
        options.sets,
        nodes,
        least,
        options.rate,
        options.transactions,
        options.kinds,
        rolling=options.rolling,
        java=options.java,
    )

    def say(text: str) -> None:
        if not options.quiet:
            print(f"seed {seed}: {text}", file=sys.stderr, flush=True)

    say(f"{shape}, in {directory}")
    outcome: Outcome = run(directory, seed, options.failovers, shape, say)
    found = summary(outcome)
    result.write_text(json.dumps(found, indent=1))
    if _failures(options, found):
        (directory / "problems.txt").write_text("\n".join(map(str, outcome.problems)))
    else:
        shutil.rmtree(directory)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
