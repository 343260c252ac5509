"""The command `metaq check`: report the content of a data directory, which a Java broker or one of metaq's own brokers
has written. The command changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

from metaq.broker.inspection import (
    DirectoryReport,
    Level,
    Options,
    data_directories_near,
    inspect_directory,
    is_data_directory,
)
from metaq.protocol.errors import ConfigError

from .options import json_option
from .output import byte_size, counted, echo, print_json
from .tables import print_table
from .terminal import progress

__all__ = ["check"]


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR")
@click.option("--fast", is_flag=True, help="Check only the end of each partition, as a start does.")
@click.option(
    "--log-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="dataLogPath, if the transaction log is not below DIR.",
)
@click.option(
    "--max-transfer-size",
    type=click.IntRange(1),
    default=1 << 20,
    show_default=True,
    metavar="BYTES",
    help="maxTransferSize of the brokers: larger records are reported.",
)
@click.option(
    "--java-processors",
    type=click.IntRange(1),
    help="Processors of the machine of a Java broker that will open DIR.  [default: those of this machine]",
)
@json_option
def check(
    directory: Path,
    fast: bool,
    log_dir: Path | None,
    max_transfer_size: int,
    java_processors: int | None,
    as_json: bool,
) -> int:
    """Report the content of DIR, a broker's dataPath, and verify every checksum. The command changes nothing. Its exit
    code is 1 if it finds damage.

    A broker that uses DIR need not be stopped; data that it writes while the command runs is not checked.

    \b
    Example
      metaq check /data/meta
      metaq check /data/meta --fast --json
    """
    _require_data(directory)
    options = Options(fast, max_transfer_size)
    if java_processors is not None:
        options = Options(fast, max_transfer_size, java_processors)
    with _progress() as (total, advance):
        report = inspect_directory(directory, options, log_path=log_dir, total=total, advance=advance)
    if as_json:
        print_json(_as_json(report))
    else:
        _print(report)
    return 1 if report.damaged else 0


def _require_data(directory: Path) -> None:
    """Raise ConfigError if the directory has no data of a broker. Without this check, a user who names a wrong
    directory by mistake would get the report that nothing is damaged.
    """
    if is_data_directory(directory):
        return
    near = data_directories_near(directory)
    remedy = "name the dataPath of its server.ini" + (f", perhaps {' or '.join(map(str, near))}" if near else "")
    raise ConfigError("DIR", directory, f"has no partition of a broker: {remedy}")


@contextmanager
def _progress() -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """Show a progress bar on stderr if stderr is a terminal. Yield two functions. Call the first function with the
    total number of bytes to check. Call the second function after each step with the number of bytes that this step has
    checked.
    """
    columns = (TextColumn("checking"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with progress(*columns) as bar:
        task = bar.add_task("")
        yield (
            lambda count: bar.update(task, total=count),
            lambda count: bar.advance(task, count),
        )


def _as_json(report: DirectoryReport) -> dict[str, object]:
    transactions = report.transactions
    return {
        "directory": report.path,
        "in_use": report.in_use,
        "damaged": report.damaged,
        "partitions": [
            {
                **{name: value for name, value in asdict(each).items() if name not in ("findings", "bad")},
                "bad": [{"start": bad.start, "end": bad.end, "kind": bad.kind.value} for bad in each.bad],
            }
            for each in report.partitions
        ],
        "journal": {name: value for name, value in asdict(report.journal).items() if name != "findings"},
        "transactions": transactions
        and {
            **{name: value for name, value in asdict(transactions).items() if name not in ("findings", "pending")},
            "pending": [asdict(each) for each in transactions.pending.values()],
        },
        "findings": [found._asdict() for found in report.all_findings],
    }


_USE = {True: "in use by a broker", False: "not in use", None: "perhaps in use: its lock cannot be read"}


def _print(report: DirectoryReport) -> None:
    echo(f"{report.path}: {counted(len(report.partitions), 'partition')}, {_USE[report.in_use]}")
    columns = ("PARTITION", "SEGMENTS", "FIRST", "END", "BYTES", "RECORDS", "CHECKED", "INDEX", "ARCHIVED")
    print_table(
        columns,
        [
            (
                each.name,
                each.segments,
                each.first_offset,
                each.end_offset,
                each.bytes,
                each.records,
                each.checked_bytes,
                ", ".join(f"{count} {state}" for state, count in each.index.items()),
                each.archives,
            )
            for each in report.partitions
        ],
    )
    _print_transactions(report)
    for found in report.all_findings:
        echo(f"{found.level}: {found.place}: {found.text}")
    worst = sum(found.level is Level.DAMAGE for found in report.all_findings)
    echo(f"{_extent(report)} checked: {f'{worst} damaged' if worst else 'nothing is damaged'}")


def _extent(report: DirectoryReport) -> str:
    """Return a text that tells how much data was checked. If not all data was checked, the text also tells the total
    amount.
    """
    read = sum(each.checked_bytes for each in report.partitions)
    total = sum(each.bytes for each in report.partitions)
    return f"{byte_size(read)} of {byte_size(total)}" if read < total else byte_size(read)


def _print_transactions(report: DirectoryReport) -> None:
    found = report.transactions
    if found is None:
        return
    prepared = sum(each.prepared for each in found.pending.values())
    echo(
        f"transaction log: {len(found.files)} files, {sum(file.entries for file in found.files)} records, "
        f"{found.committed} committed, {found.rolled_back} rolled back, {prepared} prepared, "
        f"{len(found.pending) - prepared} open"
    )
