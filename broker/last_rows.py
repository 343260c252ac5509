"""What the internal logs of a store say of numbered writes, read on as they grow.

A node that follows reads them once a second, so that one that is elected has a second's rows to read and not a log of
many megabytes: nobody can send while it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .store.partition_log import PartitionLog
from .store.sequence_rows import SequenceRow, read_rows

__all__ = ["LastRows"]

READ_BYTES = 1 << 20
"""At once while nobody waits: 12,000 rows of producers that wait for each send, some 25 ms."""

_RowKey = tuple[int, str, int]
"""Producer, topic, partition."""


class LastRows:
    """Of each producer and partition the last two rows of one log: the last may be of a write that did not happen.

    Reactor thread. A log whose end was cut, or that has lost rows which were not read, is read again.
    """

    def __init__(self, log: PartitionLog, most: int) -> None:
        """most: producers and partitions; with twice as many, those go that the log says nothing of any more."""
        self._log = log
        self._most = most
        self._renewals = log.renewals
        self._read_to = 0
        self._found: dict[_RowKey, Sequence[SequenceRow]] = {}

    def read_on(self, most_bytes: int | None = None) -> None:
        """Read what has come, to the log's end, or about `most_bytes`. Raises StoreError."""
        log = self._log
        if log.renewals != self._renewals or self._read_to < log.first_offset or len(self._found) > 2 * self._most:
            self._renewals = log.renewals
            self._read_to = log.first_offset
            self._found.clear()
        snapshot, begun, found = log.segments.snapshot(), self._read_to, self._found
        for end, rows in read_rows(snapshot, begun):
            for row in rows:
                key = row.producer, row.topic, row.partition
                if row.records:
                    found[key] = (*found.get(key, ())[-1:], row)
                else:
                    found.pop(key, None)
            self._read_to = end
            if most_bytes is not None and end - begun >= most_bytes:
                break

    def items(self) -> Iterator[tuple[_RowKey, Sequence[SequenceRow]]]:
        """In the order in which they were written."""
        return iter(self._found.items())
