"""Lines of the log about what clients do: the first ones of a time as they are, the others as one sum."""

from __future__ import annotations

import logging

from .reactor import ReactorTime

__all__ = ["PERIOD_LINES", "PERIOD_SECONDS", "FewLines"]

PERIOD_SECONDS = 30
PERIOD_LINES = 20
"""So many are written in this time: an operator sees the cause, and one client cannot fill the disk with the log."""


class FewLines:
    """One kind of lines. Reactor thread."""

    def __init__(self, log: logging.Logger, what: str, reactor: ReactorTime) -> None:
        """what: what the sum counts, as in `33 more connections closed`."""
        self._log = log
        self._what = what
        self._reactor = reactor
        self._written = 0
        self._counted = 0
        self._last = ""

    def info(self, line: str) -> None:
        """Write this line; or count it, if this period has had its lines."""
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
