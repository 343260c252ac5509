"""How the broker's log is written."""

from __future__ import annotations

import logging

from metaq.protocol.printable import printable

__all__ = ["LogFormat"]


class LogFormat(logging.Formatter):
    """A line has names that clients have chosen, and is read on a terminal: without what that would obey."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))
