"""Cut the power of real traces, and damage files at rest, thousands of times; `make cuts` does it.

Examples:
  python -m tests.power --cuts 2000 --flips 0 --seed 1
  python -m tests.power --only tx --only mixed --cuts 500
  python -m tests.power --only tx --case 1.8 --keep /tmp/files
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .campaign import cutting, flipping, repeat_cut, repeat_flip, run, scratch_directory
from .flips import DIRECTORIES
from .shim import is_loaded, restart_with_shim
from .workloads import WORKLOADS

_SHOWN = 3


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.power", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*WORKLOADS, *DIRECTORIES]
    parser.add_argument("--cuts", type=int, default=2000, help="starts after power cuts, of all workloads together")
    parser.add_argument("--flips", type=int, default=500, help="changes at rest in each directory; 0: every byte")
    parser.add_argument("--seed", type=int, default=1, help="of the first traces")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help=f"one of {', '.join(names)}; may be repeated"
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--only-cuts", action="store_const", const=list(WORKLOADS), dest="only", help="all cuts, no flips"
    )
    kinds.add_argument("--only-flips", action="store_const", const=list(DIRECTORIES), dest="only", help="the reverse")
    parser.add_argument("--case", help="one cut or change to repeat, as the list of failures names it; with --only")
    parser.add_argument("--traces", type=Path, help="with --case: the traces that were kept of a failure of a process")
    parser.add_argument("--keep", type=Path, help="with --case: keep the files in this directory")
    parser.add_argument("--all", action="store_true", help=f"show every failure, not the first {_SHOWN} of each kind")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = _arguments(arguments)
    if not is_loaded():
        restart_with_shim("tests.power", arguments)
    names = options.only or [*WORKLOADS, *DIRECTORIES]
    if options.case:
        return _repeat(names[0], options.case, options.keep, options.traces)
    workloads = [WORKLOADS[name] for name in names if name in WORKLOADS]
    tasks = cutting(workloads, options.cuts, options.seed) if workloads else []
    tasks += flipping([name for name in names if name in DIRECTORIES], options.flips, options.seed, options.jobs)
    results = run(tasks, options.jobs)
    print(results.table(names))
    shown: Counter[tuple[str, str]] = Counter()
    for failure in results.failed:
        shown[failure.workload, failure.column] += 1
        if options.all or shown[failure.workload, failure.column] <= _SHOWN:
            again = f"python -m tests.power --only {failure.workload} --case '{failure.where}'"
            print(f"\n{again}: {failure.kind}: {failure.text}")
    return int(bool(results.failed))


def _repeat(name: str, case: str, keep: Path | None, traces: Path | None) -> int:
    logging.basicConfig(level=logging.INFO)
    with scratch_directory() as scratch:
        directory = keep or scratch
        if name in WORKLOADS:
            failures = repeat_cut(WORKLOADS[name], case, directory, traces)
        else:
            failures = repeat_flip(name, case, directory)
    for failure in failures:
        print(f"{failure.where}: {failure.kind}: {failure.text}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
