"""Limit the log lines about clients' actions. The first lines of a period are written to the log; further lines are
only counted.
"""

from __future__ import annotations

import logging

from .reactor import ReactorTime

__all__ = ["PERIOD_LINES", "PERIOD_SECONDS", "FewLines"]

PERIOD_SECONDS = 30
PERIOD_LINES = 20
"""At most PERIOD_LINES log lines of one kind are written in PERIOD_SECONDS. This number of lines is enough to show an
operator the cause. The limit prevents a client from filling the disk with log lines.
"""


class FewLines:
    """Writes and counts the log lines of one kind. A FewLines object is used by the reactor thread only."""

    def __init__(self, log: logging.Logger, what: str, reactor: ReactorTime) -> None:
        """what: the words that follow the number of lines that were not written, such as `more connections closed` in
        `33 more connections closed`.
        """
        self._log = log
        self._what = what
        self._reactor = reactor
        self._written = 0
        self._counted = 0
        self._last = ""

    def info(self, line: str) -> None:
        """Write this line, or only count it if PERIOD_LINES lines were already written in this period."""
        if not self._written:
            self._reactor.callLater(PERIOD_SECONDS, self._end)
        if self._written < PERIOD_LINES:
            self._written += 1
            self._log.info("%s", line)
        else:
            self._counted += 1
            self._last = line

    def _end(self) -> None:
        if self._counted:
            self._log.info(
                "%d more %s in %d seconds, the last: %s", self._counted, self._what, PERIOD_SECONDS, self._last
            )
        self._written = self._counted = 0
        self._last = ""
