"""How commands print data: JSON for programs, a table for people; numbers and sizes in one style."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any

import simplejson
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["byte_size", "console", "print_json", "print_table"]

_PIPE_COLUMNS = 200
"""Width of tables that go to a file or pipe: there is no terminal to wrap for."""


def console(stream: IO[str] | None = None, pipe_columns: int = _PIPE_COLUMNS) -> Console:
    """A console on `stream` (default stdout): as wide as the terminal, or `pipe_columns` and plain without one."""
    target = stream or sys.stdout
    return Console(file=target, width=None if target.isatty() else pipe_columns, highlight=False)


def print_json(value: Any) -> None:
    """Print `value` as JSON on stdout, indented, keys in the order given."""
    print(simplejson.dumps(value, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print `rows` under `columns` on stdout; integers are grouped by thousands and set to the right, None is `-`."""
    cells = [list(row) for row in rows]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(cells) and all(_is_number(row[index]) or row[index] is None for row in cells)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(_cell(value)) for value in row))
    console().print(table)


def byte_size(count: float) -> str:
    """`count` bytes in the unit that suits it: 999 B, 1.0 kB, 12.3 MB (powers of 1,000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} B" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if _is_number(value):
        return f"{value:,}"
    return str(value)
