"""Limit the number of log lines about clients' actions. In each period of PERIOD_SECONDS, the first lines are written
to the log; further lines are only counted.
"""

from __future__ import annotations

import logging

from .reactor import ReactorTime

__all__ = ["PERIOD_LINES", "PERIOD_SECONDS", "FewLines"]

PERIOD_SECONDS = 30
PERIOD_LINES = 20
"""At most PERIOD_LINES log lines of one kind are written in PERIOD_SECONDS. Without this limit, a client could fill the
disk with log lines; and this many lines are enough to show an operator what happens.
"""


class FewLines:
    """Writes the first log lines of one kind in each period, and counts the others. Used only on the reactor thread."""

    def __init__(self, log: logging.Logger, what: str, reactor: ReactorTime) -> None:
        """what: what the lines are about. If some lines of a period were only counted, one line at the period's end
        tells their number. With `connections closed` as `what`, this line begins, for example, with `33 more
        connections closed`.
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
