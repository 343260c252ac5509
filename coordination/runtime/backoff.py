"""Compute the pauses between repeated attempts. The pauses grow exponentially. They are partly random, so that many
processes do not repeat their attempts at the same moment.
"""

from __future__ import annotations

from collections.abc import Callable
from random import random

__all__ = ["Backoff"]


class Backoff:
    """A series of growing pauses. The constructor's arguments `low` and `high` are numbers of seconds. Pause n, counted
    from 0, is a random number of seconds between one half of P and P, where P is the smaller one of `high` and `low` ×
    2ⁿ. The class is not thread-safe: only one thread at a time may use an object.
    """

    __slots__ = ("_high", "_low", "_random", "tries")

    def __init__(self, low: float = 0.1, high: float = 5.0, random: Callable[[], float] = random) -> None:
        self._low = low
        self._high = high
        self._random = random
        self.tries = 0

    def next(self) -> float:
        """Return the number of seconds to wait before the next attempt."""
        # The shortest pause times 2**40 exceeds every maximum, so the exponent is limited to 40.
        pause = min(self._high, self._low * 2.0 ** min(self.tries, 40))
        self.tries += 1
        return pause * (1.0 - self._random() / 2)

    def reset(self) -> None:
        """Make the next pause the shortest one again. Call this method after a successful attempt."""
        self.tries = 0
