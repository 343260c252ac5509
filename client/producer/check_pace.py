"""How fast a producer asks one broker for half messages to check: a core without I/O and without a clock."""

from __future__ import annotations

from collections.abc import Callable
from random import random

from metaq.coordination.runtime.backoff import Backoff

from . import tuning

__all__ = ["CheckPace"]


class CheckPace:
    """The pace of one thread. limit: how many half messages to request at once. It is 1 until the duration of a check
    is known, because a broker treats a producer that asks too rarely as gone."""

    def __init__(self, random: Callable[[], float] = random) -> None:
        """random: a number in [0, 1)."""
        self.limit = 1
        self._backoff = Backoff(*tuning.CHECK_PAUSE_SECONDS, random)
        self._told = ""

    def answered(self, each: float) -> None:
        """Note that the broker has answered. each: the seconds that each check took, 0.0 if there was nothing to
        check."""
        if each:
            self.limit = max(1, min(tuning.CHECK_HALVES, int(tuning.CHECK_TURN_SECONDS / each)))
        self._backoff.reset()
        self._told = ""

    def failed(self) -> float:
        """Return the seconds to wait until the broker is asked again."""
        return self._backoff.next()

    def is_news(self, reason: str) -> bool:
        """Whether the reason of a failure differs from the last one, so that it is worth a warning."""
        told, self._told = self._told, reason
        return told != reason
