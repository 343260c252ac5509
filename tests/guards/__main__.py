"""Find out which test fails when a guard of the product is removed: a fence, a sync, an order of writes, an input
check.

    python -m tests.guards list [WORD …]                 the guards whose names or texts have all these words
    python -m tests.guards marks                         record which unit and component tests reach which guards
    python -m tests.guards run [--keep] [--in FILE …] GUARD …
                                                         remove each guard, run the tests that reach it until one fails
    python -m tests.guards fill --number N --seed S [WORD …]
                                                         the same for guards drawn at random, as new rows of the table
    python -m tests.guards check --number N --seed S     check rows drawn at random: does the test still find the guard?

The table is guards.tsv in this directory: the guard, the first test that fails without it, the seconds that this took,
and, if no unit or component test fails, `nobody` and the reason. A test may be deleted if another test finds all of its
guards.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from .runs import Found, Reached, find, first_failure, make_marks, read_marks
from .sites import Site, product_sites

__all__ = ["NOBODY", "TABLE", "Row", "drawn", "main", "read_table", "write_table"]

TABLE = Path(__file__).with_name("guards.tsv")
NOBODY = "nobody"


class Row(NamedTuple):
    """A row of the table."""

    guard: str
    test: str
    seconds: str
    reason: str = ""


def read_table(path: Path = TABLE) -> dict[str, Row]:
    """Return the rows by guard."""
    lines = path.read_text("utf-8").splitlines()[1:] if path.exists() else []
    return {row.guard: row for row in (Row(*line.split("\t")) for line in lines)}


def write_table(rows: Iterable[Row], path: Path = TABLE) -> None:
    """Write the rows in the order of the guards' names."""
    lines = ["\t".join(row).rstrip("\t") for row in (Row("guard", "test", "seconds", "reason"), *sorted(rows))]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def drawn(sites: Iterable[Site], number: int, seed: int) -> list[Site]:
    """Return `number` sites drawn at random; each kind of guard in each part of the product has the same
    probability."""
    rng = random.Random(seed)
    groups: defaultdict[str, list[Site]] = defaultdict(list)
    for site in sites:
        folders = site.name.partition(":")[0].split("/")[:-1]
        groups[f"{'/'.join(folders[:2])} {site.kind}"].append(site)
    for group in groups.values():
        rng.shuffle(group)
    result: list[Site] = []
    while groups and len(result) < number:
        chosen = rng.choice(list(groups))
        result.append(groups[chosen].pop())
        if not groups[chosen]:
            del groups[chosen]
    return result


def _row(guard: str, found: Found) -> Row:
    if found.test is None:
        return Row(guard, NOBODY, f"{found.seconds:.0f}", f"? of {found.tried} tests that go there")
    return Row(guard, found.test, f"{found.seconds:.0f}")


def _try(guards: Sequence[str], reached: Reached, jobs: int, paths: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the row of each guard when it is known."""

    def one(guard: str) -> Row | None:
        try:
            return _row(guard, find(guard, reached, paths))
        except RuntimeError as error:
            print(f"{guard}: {error}", file=sys.stderr, flush=True)
            return None

    with ThreadPoolExecutor(jobs) as pool:
        for row in pool.map(one, guards):
            if row is not None:
                print(*row, sep="\t", flush=True)
                yield row


def _keep(row: Row) -> None:
    write_table((read_table() | {row.guard: row}).values())


def _check(number: int, seed: int, jobs: int) -> int:
    rows = read_table()
    gone = sorted(rows.keys() - {site.name for site in product_sites()})
    for guard in gone:
        print(f"{guard}: no such guard: find the row of its function, and run or remove it")
    found = [row for guard, row in rows.items() if row.test != NOBODY and guard not in gone]
    chosen = random.Random(seed).sample(found, min(number, len(found)))
    if failed := first_failure([row.test for row in chosen]):
        print(f"{failed} fails, or is no more, with all guards in place")
        return 1
    with ThreadPoolExecutor(jobs) as pool:
        failures = list(pool.map(lambda row: first_failure([row.test], row.guard), chosen))
    missed = [row for row, failure in zip(chosen, failures, strict=True) if failure is None]
    for row in missed:
        print(f"{row.guard}: {row.test} passes without it")
    print(f"{len(chosen) - len(missed)} of {len(chosen)} guards found, {len(gone)} gone; seed {seed}")
    return 1 if missed or gone else 0


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.guards", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs of pytest at once")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("marks")
    listing = commands.add_parser("list")
    run = commands.add_parser("run")
    run.add_argument("guards", nargs="+")
    run.add_argument("--keep", action="store_true", help="as a row of the table")
    run.add_argument("--in", dest="paths", action="append", default=[], help="a file of tests, new ones for example")
    fill = commands.add_parser("fill")
    check = commands.add_parser("check")
    for each in (fill, check):
        each.add_argument("--number", type=int, default=12)
        each.add_argument("--seed", type=int, default=1)
    for each in (listing, fill):
        each.add_argument("words", nargs="*")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run the command. The exit code is 1 if a row of the table is not true any more, or if `run` finds a guard without
    which no test fails."""
    options = _arguments(arguments)
    if options.command == "marks":
        make_marks(options.jobs)
        return 0
    if options.command == "check":
        return _check(options.number, options.seed, options.jobs)
    if options.command == "run":
        reached = Reached({}, {}) if options.paths else read_marks()
        rows = []
        for row in _try(options.guards, reached, options.jobs, options.paths):
            rows.append(row)
            if options.keep:
                _keep(row)
        return 1 if len(rows) < len(options.guards) or any(row.test == NOBODY for row in rows) else 0
    sites = [site for site in product_sites() if all(word in f"{site.name} {site.text}" for word in options.words)]
    if options.command == "list":
        for site in sites:
            print(f"{site.name}\t{site.line}\t{site.text}")
        return 0
    known = read_table()
    new = drawn((site for site in sites if site.name not in known), options.number, options.seed)
    for row in _try([site.name for site in new], read_marks(), options.jobs):
        _keep(row)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
