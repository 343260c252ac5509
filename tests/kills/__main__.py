"""Kill brokers, members and producers, and check what survives.

Examples:
  python -m tests.kills --minutes 10                     all scenarios in turn, another seed in each round
  python -m tests.kills retries delays --runs 5          some scenarios, so many rounds
  python -m tests.kills retries --seed 7 --kills 100     one run of one, with options of its own: retries --help
"""

from __future__ import annotations

import argparse
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from .campaign import Campaign, Result, write_result
from .scenarios import SCENARIOS


def main(arguments: Sequence[str]) -> int:
    names = list(takewhile(lambda word: not word.startswith("-"), arguments))
    parser = argparse.ArgumentParser(
        prog=" ".join(["python -m tests.kills", *names]),
        usage=None if names else "%(prog)s [SCENARIO ...] [options]",
        description=__doc__,
        epilog=f"scenarios: {', '.join(SCENARIOS)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if unknown := set(names) - SCENARIOS.keys():
        parser.error(f"there is no scenario {', '.join(sorted(unknown))}: {', '.join(SCENARIOS)}")
    parser.add_argument("--seed", type=int, default=1, help="of the first run; default: 1")
    parser.add_argument("--minutes", type=float, help="begin no round of runs later; the first one comes in any case")
    parser.add_argument("--runs", type=int, help="rounds of runs")
    parser.add_argument("--directory", type=Path, help="for results, which are kept and not made again, and for files")
    parser.add_argument("--keep", action="store_true", help="keep the files of good runs, too")
    own = SCENARIOS[names[0]].add_options(parser) if len(names) == 1 else []
    options = parser.parse_args(arguments[len(names) :])
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))
    is_one = len(names) == 1 and options.minutes is None and options.runs is None
    begin = getattr(SCENARIOS[names[0]].load(), "begin", None) if is_one else None
    if begin is not None:  # it may start this program anew
        begin(["tests.kills", *arguments], getattr(options, "plain", False))
    directory = options.directory or Path(tempfile.mkdtemp(prefix="metaq-kills-"))
    directory.mkdir(parents=True, exist_ok=True)
    own_values = {name: getattr(options, name) for name in own if getattr(options, name) != parser.get_default(name)}
    if is_one:
        return _one(names[0], options, directory, own_values)
    campaign = Campaign(names or list(SCENARIOS), directory, own_values, options.keep)
    campaign.run(options.seed, options.minutes, options.runs)
    print(f"\n{campaign.table()}")
    return int(campaign.has_failed)


def _one(name: str, options: argparse.Namespace, directory: Path, own: dict[str, object]) -> int:
    """Run one scenario in this process."""
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # ZooKeeper goes and comes back
    files = directory / f"{name}-{options.seed}"
    shutil.rmtree(files, ignore_errors=True)  # files of an interrupted run
    files.mkdir()
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{name}, seed {options.seed}: {text}", file=sys.stderr, flush=True)

    outcome = SCENARIOS[name].load().run(files, options.seed, say, **own)
    result = Result.of(name, options.seed, own, outcome, time.monotonic() - began)
    write_result(directory, result)
    print(result, flush=True)
    if outcome.problems:
        (files / "problems.txt").write_text("\n".join(map(str, outcome.problems)))
        print(f"{outcome.explanation}\nfiles: {files}\nagain: {result.again}".lstrip(), flush=True)
        return 1
    if not options.keep:
        shutil.rmtree(files)
        if not options.directory:
            shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
