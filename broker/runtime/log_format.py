"""The format of the lines in the broker's log."""

from __future__ import annotations

import logging

from metaq.protocol.printable import printable

__all__ = ["LogFormat"]


class LogFormat(logging.Formatter):
    """A log format that removes control characters. Log lines contain names that clients have chosen, and control
    characters in a name could control an operator's terminal. If a log record has several lines, for example a
    traceback, all lines except the first are indented. So a name with line ends, which a client has chosen, cannot look
    like a log record of its own.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record)).replace("\n", "\n  ")
