"""How the broker's log is written."""

from __future__ import annotations

import logging

from metaq.protocol.printable import printable

__all__ = ["LogFormat"]


class LogFormat(logging.Formatter):
    """A line has names that clients have chosen, and is read on a terminal: without what that would obey. What is
    behind a line's end, such as a traceback, is indented, so that no text of a client begins a line of the log."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record)).replace("\n", "\n  ")
