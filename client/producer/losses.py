"""Messages that could not be delivered, and whose senders left nobody to tell: they are counted, and told later."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

__all__ = ["Losses"]


class Losses:
    """Counts by topic and reason. Any thread."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def note(self, topic: str, reason: Exception, count: int) -> None:
        """So many messages were lost."""
        with self._counting:
            self._counts[topic, str(reason)] += count

    def report(self, topic: str, error: Exception | None, _result: object) -> None:
        """What one message ended with."""
        if error is not None:
            self.note(topic, error, 1)

    def take(self) -> Mapping[tuple[str, str], int]:
        """What was noted since the last call."""
        with self._counting:
            counts, self._counts = self._counts, Counter()
        return counts
