"""Print tables and progress bars on a terminal, with the library rich. This is a separate module because loading rich
takes a third of the time of a short command.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

__all__ = ["console", "print_fitting", "progress"]

_GAP, _NARROW_GAP = 3, 1
"""Number of blanks between two columns of a table. The second number is used if the terminal is too narrow for the
first.
"""
_FOLDED_WIDTH = 9
"""Minimum width in characters of a column whose text is folded."""

_PIPE_COLUMNS = 200
_ANY_WIDTH = 1_000_000
"""Width in characters of a table for a file or a pipe. The width is so large that no line is wrapped."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """rich calls this method when it has caught a BrokenPipeError. Raise the error again, so that app.py sets the
        exit code; otherwise rich would end the program with the exit code 1.
        """
        raise  # called in the handler of the BrokenPipeError


def console(stream: IO[str] | None = None, pipe_columns: int = _PIPE_COLUMNS) -> Console:
    """Return a rich console that writes to `stream` (default stdout), as wide as the terminal. If the stream is not a
    terminal, the console writes plain text and is `pipe_columns` characters wide.
    """
    target = stream or sys.stdout
    return _Console(file=target, width=None if target.isatty() else pipe_columns, highlight=False)


def print_fitting(
    columns: Sequence[str], texts: Sequence[Sequence[str]], numeric: Sequence[bool], widths: Sequence[int]
) -> None:
    """Print a table on stdout, with `columns` as its head and `texts` as its rows. The table is not wider than the
    terminal. If the terminal is too narrow for the columns, print each row as a table of names and values instead.
    numeric: for each column, whether it is right-aligned and not folded. widths: the length of the longest text in each
    column.
    """
    narrowest = [width if right else min(width, _FOLDED_WIDTH) for width, right in zip(widths, numeric, strict=True)]
    target = console(pipe_columns=_ANY_WIDTH)
    for gap in (_GAP, _NARROW_GAP):
        if sum(narrowest) + gap * len(columns) <= target.width:
            target.print(_table(columns, texts, numeric, narrowest, gap))
            return
    for row in texts:
        target.print(_table(("NAME", "VALUE"), list(zip(columns, row, strict=True)), (False, False), (0, 0), _GAP))


def _table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    numeric: Sequence[bool],
    narrowest: Sequence[int],
    gap: int,
) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", padding=(0, 1) if gap == _GAP else (0, 0))
    for column, right, width in zip(columns, numeric, narrowest, strict=True):
        table.add_column(
            column, justify="right" if right else "left", overflow="fold", no_wrap=right, min_width=width or None
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def progress(*columns: ProgressColumn) -> Progress:
    """Return a progress line, which is shown on stderr if stderr is a terminal. The line is removed when the progress
    ends.
    """
    from rich.progress import Progress  # not for tables

    return Progress(*columns, console=console(sys.stderr), transient=True, disable=not sys.stderr.isatty())
