"""Retries and dead letters while brokers, the producer and consumers are killed by SIGKILL, and a redrive then.

Example:
  python -m tests.retries --kills 100 --redrive-kills 30 --directory /tmp/retries
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from .run import run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.retries", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100, help="of each: brokers, the producer, consumers")
    parser.add_argument("--redrive-kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="for all files, which stay; it must not exist")
    options = parser.parse_args()
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary) / "run"
        directory.mkdir(parents=True)
        outcome = run(
            directory, options.kills, options.seed, options.redrive_kills, lambda text: print(text, flush=True)
        )
    print(outcome)
    for each in outcome.problems[:50]:
        print(each)
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
