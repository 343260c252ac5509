"""Where the processor time of tests goes: a pytest plugin that writes it down, and the table of it.

    METAQ_TIMES=DIR python -m pytest -p tests.processor_time …    a row for each test, in a file for each worker
    python -m tests.processor_time DIR                            the table of files, those that take most first
    python -m tests.processor_time DIR --write                    keeps what the files of integration tests took, by
                                                                  which they begin (tests/integration/conftest.py)

A process counts with the test at whose end it has ended and was waited for. One that serves several tests, such as the
ZooKeeper or the Spark of a session, counts with the last of them; one that its parent does not wait for counts nowhere.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

__all__ = ["SECONDS", "main", "seconds"]

SECONDS = Path(__file__).parent / "integration" / "seconds.tsv"
"""Files of integration tests, and how long each took, seconds."""

INTEGRATION = Path("tests/integration")


class _Spent(NamedTuple):
    """Seconds: by the wall clock, and of the processor."""

    wall: float
    own: float
    children: float


def _now() -> _Spent:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return _Spent(time.monotonic(), time.process_time(), children.ru_utime + children.ru_stime)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = _now()
    try:
        return (yield)
    finally:
        spent = [after - start for after, start in zip(_now(), before, strict=True)]
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        with (Path(os.environ["METAQ_TIMES"]) / f"{worker}.tsv").open("a") as rows:
            print(item.nodeid, *(f"{each:.3f}" for each in spent), sep="\t", file=rows)


def seconds() -> dict[str, float]:
    """What SECONDS says."""
    rows = (line.split("\t") for line in SECONDS.read_text().splitlines())
    return {name: float(taken) for name, taken in rows}


def _read(directory: Path) -> dict[str, list[_Spent]]:
    """Of each file, what its tests took."""
    files: defaultdict[str, list[_Spent]] = defaultdict(list)
    for path in sorted(directory.glob("*.tsv")):
        for line in path.read_text().splitlines():
            name, *taken = line.split("\t")
            files[name.partition("::")[0]].append(_Spent(*map(float, taken)))
    return files


def main(directory: Path, write: bool) -> None:
    """Print the table, or keep what the integration tests took."""
    files = _read(directory)
    sums = {name: _Spent(*map(sum, zip(*rows, strict=True))) for name, rows in files.items()}
    if write:
        kept = [(path.stem, spent.wall) for name, spent in sums.items() if (path := Path(name)).parent == INTEGRATION]
        SECONDS.write_text("".join(f"{name}\t{wall:.0f}\n" for name, wall in sorted(kept)))
        return
    total = _Spent(*map(sum, zip(*sums.values(), strict=True)))
    print("| file | tests | wall s | own processor s | children's | of all |\n|---|---|---|---|---|---|")
    for name, spent in sorted(sums.items(), key=lambda each: -each[1].own - each[1].children):
        part = (spent.own + spent.children) / (total.own + total.children)
        print(f"| {name} | {len(files[name])} | {' | '.join(f'{each:.1f}' for each in spent)} | {part:.1%} |")
    print(f"| all {len(sums)} | {sum(map(len, files.values()))} | {' | '.join(f'{each:.0f}' for each in total)} | |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--write" in sys.argv[2:])
