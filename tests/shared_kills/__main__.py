"""Kills of members and of the broker under load, drawn by a seed, and what is wrong in the histories.

python -m tests.shared_kills --kills 120 --seed 7
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from .run import run

SECTIONS = {"async": "unflushThreshold=1000", "group-commit": "unflushThreshold=0"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.shared_kills", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--flush", choices=SECTIONS, default="async")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="metaq-shared-kills-") as directory:
        found = run(Path(directory), options.seed, options.kills, options.members, SECTIONS[options.flush])
    for problem in found.problems:
        print(problem)
    print(
        f"seed {options.seed}, {options.flush}: {len(found.problems)} problems; {found.sent} sent, {found.handed} "
        f"handed, {found.redelivered} again; kills: broker {found.broker_kills}, members {found.member_kills}; "
        f"{found.seconds:.0f} s"
    )
    return bool(found.problems)


if __name__ == "__main__":
    sys.exit(main())
