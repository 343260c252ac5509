"""Explore the protocol of broker sets, or show how it fails without one of its rules.

Examples:
  python -m tests.component.sets --nodes 3 --entries 1 --epochs 2 --deepest 14
  python -m tests.component.sets --nodes 2 --entries 2 --epochs 3 --power
  python -m tests.component.sets --mutants
  python -m tests.component.sets --mutants "hand-over"
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .explore import explore
from .model import Model
from .mutants import MUTANTS


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.component.sets", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=2, choices=(1, 2, 3))
    parser.add_argument("--entries", type=int, default=2, help="most messages in a log")
    parser.add_argument("--epochs", type=int, default=3, help="most epochs, the first one included")
    parser.add_argument("--wire", type=int, default=1, help="most blocks under way to one node")
    parser.add_argument("--power", action="store_true", help="crashes lose what is not synced; topics have ack=disk")
    parser.add_argument("--memory", action="store_true", help="machines restart, too; topics have ack=in-sync")
    parser.add_argument("--outside", default="", help="nodes that are not in-sync at first, such as bc")
    parser.add_argument("--deepest", type=int, help="most steps; without it everything is explored, about 1 GB per 2M")
    parser.add_argument("--mutants", nargs="?", const="", metavar="WORDS", help="the rules with these words, or all")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = _arguments(arguments)
    if options.mutants is not None:
        for mutant in MUTANTS:
            if options.mutants in mutant.without:
                print(f"without the rule: {mutant.without}\n{explore(mutant.model, None, mutant.broken)}\n", flush=True)
        return 0
    model = Model(
        options.nodes,
        options.entries,
        options.epochs,
        wire=options.wire,
        power=options.power,
        memory=options.memory,
        outside=options.outside,
    )
    explored = explore(model, options.deepest)
    print(explored)
    return int(bool(explored.broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
