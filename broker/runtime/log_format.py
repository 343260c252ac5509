"""The format of the broker's log."""

from __future__ import annotations

import logging

from metaq.protocol.printable import printable

__all__ = ["LogFormat"]


class LogFormat(logging.Formatter):
    """A log format that removes control characters, because log lines contain names that clients have chosen and a
    terminal would obey such characters. Text after a line's end, such as a traceback, is indented, so that no text of a
    client begins a log line.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record)).replace("\n", "\n  ")
