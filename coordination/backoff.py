"""Pauses between tries: exponential with jitter, so that the members of a cluster do not try again in step."""

from __future__ import annotations

import random

__all__ = ["Backoff"]


class Backoff:
    """Seconds to wait before the next try: a random share (half to all) of a ceiling that doubles up to `longest`."""

    def __init__(self, shortest: float = 0.1, longest: float = 5.0, rng: random.Random | None = None) -> None:
        self._shortest = shortest
        self._longest = longest
        self._rng = rng or random.Random()
        self._ceiling = shortest

    def next(self) -> float:
        """Seconds to wait now."""
        ceiling = self._ceiling
        self._ceiling = min(2 * ceiling, self._longest)
        return self._rng.uniform(ceiling / 2, ceiling)

    def reset(self) -> None:
        """Begin again with the shortest pause: the last try succeeded."""
        self._ceiling = self._shortest
