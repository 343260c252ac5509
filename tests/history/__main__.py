"""Histories of consumer groups under faults that a seed draws, and what is wrong in them.

Examples:
  python -m tests.history --seed 7 --seconds 120
  python -m tests.history --seeds 50 --first 1 --seconds 60
"""

from __future__ import annotations

import argparse
import logging
import pickle
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .cluster import Shape
from .report import explain, line, table
from .run import Outcome, run


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.history", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="one run, of this seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many runs, one after the other")
    parser.add_argument("--first", type=int, default=1, help="seed of the first of them")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults come; then the run is drained")
    parser.add_argument("--brokers", type=int, choices=(1, 2, 3), help="instead of a number drawn by the seed")
    parser.add_argument("--rate", type=float, help="messages a second of each of four producers; else the seed says it")
    parser.add_argument("--directory", type=Path, help="for the files of the runs; those of good runs are removed")
    parser.add_argument("--keep", action="store_true", help="keep the files of good runs, too")
    parser.add_argument("--quiet", action="store_true", help="only a line a run")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = _arguments(arguments)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # ZooKeeper goes and comes
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    above = options.directory or Path(tempfile.mkdtemp(prefix="metaq-history-"))
    outcomes: list[Outcome] = []
    try:
        for seed in seeds:
            outcomes.append(_one(options, seed, above / f"seed-{seed}"))
            print(line(outcomes[-1]), flush=True)
            if outcomes[-1].problems:
                print(explain(outcomes[-1], above / f"seed-{seed}"), flush=True)
    finally:
        print(f"\n{table(outcomes)}", flush=True)
    if not options.directory and not any(above.iterdir()):
        above.rmdir()
    return int(any(outcome.problems for outcome in outcomes))


def _one(options: argparse.Namespace, seed: int, directory: Path) -> Outcome:
    directory.mkdir(parents=True)
    drawn = Shape.drawn(seed)
    shape = Shape(options.brokers or drawn.brokers, drawn.groups, options.rate or drawn.per_second)

    def say(text: str) -> None:
        if not options.quiet:
            print(f"seed {seed}: {text}", file=sys.stderr, flush=True)

    say(f"{shape.brokers} brokers, {shape.groups}, in {directory}")
    outcome = run(directory, seed, options.seconds, shape, say)
    if outcome.problems or options.keep:
        (directory / "outcome.pickle").write_bytes(pickle.dumps(outcome))
    else:
        shutil.rmtree(directory)
    return outcome


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
