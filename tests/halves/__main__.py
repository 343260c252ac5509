"""`python -m tests.halves --kills 100`: exits with 1 if a message is lost, comes twice, or was never committed."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from .life import Life


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="Of the broker; at least as many of producers.")
    parser.add_argument("--seconds", type=float, default=1.0, help="Between two kills, about.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pauses", type=float, default=3.0, help="Seconds, at most, of SIGSTOP; 0: none.")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        found = Life(Path(directory), options.seed).live(options.kills, options.seconds, options.pauses)
    print(
        f"{found.broker_kills} kills of the broker, {found.worker_kills} of producers, {found.deaths} that died in "
        f"their local work, in {time.monotonic() - started:.0f} s: {found.committed} transactions committed, "
        f"{found.rolled_back} rolled back; lost {len(found.lost)}, twice {len(found.twice)}, seen and never committed "
        f"{len(found.never_committed)}, not decided {len(found.left)}"
    )
    bad = found.lost, found.twice, found.never_committed, found.left
    for each in bad:
        print(*each[:5], sep="\n")
    return 1 if any(bad) else 0


sys.exit(main())
