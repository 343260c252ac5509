"""Cut the power of real traces, thousands of times: `python -m tests.power --cuts 2000 --seed 1`, or `make proof`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from .campaign import repeat, run, scratch_directory
from .shim import is_loaded, restart_with_shim
from .workloads import WORKLOADS

_SHOWN = 3


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.power", description=__doc__)
    parser.add_argument("--cuts", type=int, default=2000, help="starts after power cuts, of all workloads together")
    parser.add_argument("--seed", type=int, default=1, help="of the first traces")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", action="append", choices=WORKLOADS, metavar="WORKLOAD", help="may be repeated")
    parser.add_argument("--case", help="one cut to repeat, as the table names it; with --only")
    parser.add_argument("--keep", type=Path, help="with --case: keep the files in this directory")
    parser.add_argument("--all", action="store_true", help="show every failure, not the first of each kind")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = _arguments(arguments)
    if not is_loaded():
        restart_with_shim("tests.power", arguments)
    names = options.only or list(WORKLOADS)
    if options.case:
        return _repeat(names[0], options.case, options.keep)
    results = run([WORKLOADS[name] for name in names], options.cuts, options.seed, options.jobs)
    print(results.table(names))
    shown: dict[tuple[str, str], int] = {}
    for failure in results.failed:
        kind = (failure.workload, failure.column)
        shown[kind] = shown.get(kind, 0) + 1
        if options.all or shown[kind] <= _SHOWN:
            print(f"\n--only {failure.workload} --case {failure.where}: {failure.kind}: {failure.text}")
    return int(bool(results.failed))


def _repeat(name: str, case: str, keep: Path | None) -> int:
    logging.basicConfig(level=logging.INFO)
    with scratch_directory() as scratch:
        failures = repeat(WORKLOADS[name], case, keep or scratch)
    for failure in failures:
        print(f"{failure.where}: {failure.kind}: {failure.text}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
