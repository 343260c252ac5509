"""Decide how fast a producer asks one broker for half messages to check. This code does no I/O and has no clock."""

from __future__ import annotations

from collections.abc import Callable
from random import random

from metaq.coordination.runtime.backoff import Backoff

from . import tuning

__all__ = ["CheckPace"]


class CheckPace:
    """How many half messages one thread requests from its broker at once, and when. limit: the maximum number of half
    messages per request; it is 1 until the duration of a check is known. The thread checks all messages of an answer
    before it asks again. If an answer contained too many messages, the thread would ask too rarely, and the broker
    would treat the producer as gone.
    """

    def __init__(self, random: Callable[[], float] = random) -> None:
        """random: returns a number in [0, 1)."""
        self.limit = 1
        self._backoff = Backoff(*tuning.CHECK_PAUSE_SECONDS, random)
        self._told = ""

    def answered(self, each: float) -> None:
        """Adapt the limit after an answer of the broker. each: the average seconds that a check took, or 0.0 if there
        was nothing to check.
        """
        if each:
            self.limit = max(1, min(tuning.CHECK_HALVES, int(tuning.CHECK_TURN_SECONDS / each)))
        self._backoff.reset()
        self._told = ""

    def failed(self) -> float:
        """Return the seconds to wait before the broker is asked again, after a request has failed."""
        return self._backoff.next()

    def is_news(self, reason: str) -> bool:
        """Return whether a warning shall be logged for a failed request: it shall, unless the request before it has
        failed for the same reason.
        """
        told, self._told = self._told, reason
        return told != reason
