"""The counters that `stats` shows (wire.md §4). Each counter counts the same events as the counter with this name in
metaq 1.x.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["KINDS", "OTHERS", "Counter", "Metrics", "format_number"]

KINDS = ("put", "get", "offset", "get_miss", "put_failed", "message_size")
"""The kinds of realtime counters. They are printed in this order. `message_size` is the sum of the bodies' bytes; every
other counter grows by 1 for each message or request.
"""

OTHERS = "*"
"""Statistics list a limited number of groups or topics by name, and one sum for all others under this name. No real
name contains this character.
"""

RESET_SECONDS = 30 * 60
"""Realtime counters are set to 0 every time this many seconds have passed, as in 1.x."""


def format_number(value: float) -> str:
    """Format a number like Java's `#.##`: with at most two decimals and without trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


class Counter:
    """Counts values: it has the number of the values, and their sum."""

    __slots__ = ("count", "value")

    def __init__(self, count: int = 0, value: int = 0) -> None:
        self.count = count
        self.value = value

    def format(self, seconds: int) -> str:
        """Return the counter's text in a line of `stats`. seconds: time since the counters were reset."""
        per_count = format_number(self.value / self.count) if self.count else "invalid"
        per_second = format_number(self.count / seconds) if seconds else "invalid"
        return (
            f"Count={self.count},Value={self.value},Value/Count={per_count},"
            f"Count/Duration={per_second},Duration={seconds}"
        )


class Metrics:
    """The counters of one broker. Used only on the reactor thread.

    The totals (`cmd_…`) never decrease. Realtime counters exist for topics with stat=true; they start again at 0 on
    `reset` and every RESET_SECONDS. `has_stat` must be fast, because it is called for each batch.
    """

    def __init__(self, has_stat: Callable[[str], bool], seconds: Callable[[], float]) -> None:
        """seconds: returns the time of a monotonic clock."""
        self.cmd_put = 0
        self.put_bytes = 0  # of the bodies of all requested puts
        self.cmd_get = 0
        self.cmd_offset = 0
        self.get_miss = 0
        self.put_failed = 0
        # the following count requests, whether they succeed or not
        self.tx_begin = 0  # of both kinds: local and XA
        self.tx_xa_begin = 0
        self.tx_commit = 0
        self.tx_rollback = 0
        self.damaged_ranges = 0  # found in segments since the start, by readers or by a rebuild of an index
        self.damaged_bytes = 0
        self._has_stat = has_stat
        self._seconds = seconds
        self._started = self._reset_at = seconds()
        self._realtime: dict[str, dict[str, Counter]] = {kind: {} for kind in KINDS}  # by kind, then by topic

    @property
    def uptime_seconds(self) -> int:
        return int(self._seconds() - self._started)

    def put(self, topic: str, count: int, body_bytes: int) -> None:
        """Count `count` puts that clients have requested, whether they succeed or not."""
        self.cmd_put += count
        self.put_bytes += body_bytes
        if self._has_stat(topic):
            self._count("put", topic, count, count)
            self._count("message_size", topic, count, body_bytes)

    def put_refused(self, topic: str, count: int = 1) -> None:
        """Count `count` puts that are answered with status 500. Refusals because of a closed partition are not counted,
        as in 1.x.
        """
        self.put_failed += count
        if self._has_stat(topic):
            self._count("put_failed", topic, count, count)

    def get(self, topic: str) -> None:
        self.cmd_get += 1
        if self._has_stat(topic):
            self._count("get", topic, 1, 1)

    def get_missed(self, topic: str) -> None:
        """Count a get that is answered with status 404 or 301."""
        self.get_miss += 1
        if self._has_stat(topic):
            self._count("get_miss", topic, 1, 1)

    def damaged(self, size: int, new_range: bool) -> None:
        """Count `size` damaged bytes that were found now. new_range: whether the bytes are a damaged range of their
        own; False if they only make a range longer that was counted before.
        """
        self.damaged_ranges += new_range
        self.damaged_bytes += size

    def offset(self, topic: str) -> None:
        self.cmd_offset += 1
        if self._has_stat(topic):
            self._count("offset", topic, 1, 1)

    def reset(self) -> None:
        """Set the realtime counters to 0. The counters of all topics stay in the lists, with the value 0."""
        self._reset_at = self._seconds()
        for topics in self._realtime.values():
            for counter in topics.values():
                counter.count = counter.value = 0

    def realtime(self, kind: str, topic: str | None = None) -> str:
        """Return the text of one realtime counter, for one topic or for all topics together."""
        topics = self._realtime[kind]
        if not topics:
            return "null"
        if topic is None:
            every = topics.values()
            counter = Counter(sum(each.count for each in every), sum(each.value for each in every))
        elif topic in topics:
            counter = topics[topic]
        else:
            return f"Invalid keyTwo:{topic}"
        return counter.format(int(self._seconds() - self._reset_at))

    def _count(self, kind: str, topic: str, count: int, value: int) -> None:
        if self._seconds() - self._reset_at >= RESET_SECONDS:
            self.reset()
        topics = self._realtime[kind]
        counter = topics.get(topic)
        if counter is None:
            counter = topics[topic] = Counter()
        counter.count += count
        counter.value += value
