"""Compare the standalone ZooKeeper with Apache's, operation by operation.

Examples:
  python -m tests.zookeeper_fuzz --operations 100000 --seed 1
  python -m tests.zookeeper_fuzz --operations 100000 --seed 1 --pair core --all
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from .campaign import PAIRS, Outcome, campaign


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.zookeeper_fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the next one has the next number")
    parser.add_argument("--length", type=int, default=2000, help="operations of a run")
    parser.add_argument("--pair", choices=PAIRS, default=next(iter(PAIRS)), help="servers that are compared")
    parser.add_argument("--all", action="store_true", help="go on after a difference")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has it ignored
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="metaq-zookeeper-fuzz-", dir=memory_disk()) as directory:
        size = (options.operations, options.length)
        outcome = campaign(Path(directory), options.pair, options.seed, *size, stop=not options.all, tell=_tell)
    seconds = time.monotonic() - began
    print(_summary(outcome, seconds))
    return bool(outcome.differences)


def memory_disk() -> str | None:
    """A directory in memory, if there is one: disks are not what is compared."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _tell(difference: str) -> None:
    print(difference, end="\n\n", flush=True)


def _summary(outcome: Outcome, seconds: float) -> str:
    return (
        f"{outcome.operations} operations, {outcome.runs} runs, {outcome.differences} differences, "
        f"{seconds:.0f} s, {outcome.operations / max(seconds, 0.001):.0f} operations/s"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
