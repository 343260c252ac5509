"""Repeat one power cut, or one change at rest, as the failures of `python -m tests.kills power` name it.

Example:
  python -m tests.power --only tx --case 1.8 --keep /tmp/files
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.kills.scratch import scratch_directory

from .campaign import repeat_cut, repeat_flip
from .flips import DIRECTORIES
from .shim import is_loaded, restart_with_shim
from .workloads import WORKLOADS


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.power", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", required=True, choices=[*WORKLOADS, *DIRECTORIES], metavar="NAME")
    parser.add_argument("--case", required=True, help="the cut or change, as the list of failures names it")
    parser.add_argument("--traces", type=Path, help="the traces that were kept of a failure of a process")
    parser.add_argument("--keep", type=Path, help="keep the files in this directory")
    options = parser.parse_args(arguments)
    if not is_loaded():
        restart_with_shim("tests.power", arguments)
    logging.basicConfig(level=logging.INFO)
    with scratch_directory() as scratch:
        directory = options.keep or scratch
        if options.only in WORKLOADS:
            failures = repeat_cut(WORKLOADS[options.only], options.case, directory, options.traces)
        else:
            failures = repeat_flip(options.only, options.case, directory)
    for failure in failures:
        print(f"{failure.where}: {failure.kind}: {failure.text}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
