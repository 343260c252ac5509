"""`python -m tests.delays --kills 100`: exits with 1 if a message is lost, comes twice, early or although cancelled."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from .life import live


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=1.0, help="Between two kills, about.")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        found = live(Path(directory), options.kills, options.seconds, options.seed)
    bad = found.lost, found.twice, found.early, found.came_although_cancelled
    print(
        f"{options.kills} kills of the broker and {found.sender_kills} of processes with producers in "
        f"{time.monotonic() - started:.0f} s: {found.acknowledged} messages acknowledged, "
        f"{found.cancelled} of them cancelled; lost {len(found.lost)}, twice {len(found.twice)}, early "
        f"{len(found.early)}, came although cancelled {len(found.came_although_cancelled)}; failed {len(found.failed)}"
    )
    for each in bad:
        print(*each[:5], sep="\n")
    print(*map(repr, found.failed[:5]), sep="\n")
    return 1 if any(bad) else 0


sys.exit(main())
