"""Keep in memory the newest rows about writes with sequence numbers. A row describes one write of a producer to a
partition. The rows are in the store's internal logs; this module reads the rows that are added to these logs.

A follower reads the logs once a second. So when it is elected as leader, it has to read only the rows of the last
second, and not a log of many megabytes. This matters because no producer can send while the new leader reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from metaq.protocol.message_id import EPOCH_MS, TIME_SHIFT

from ..memory.reading import LogReader
from ..memory.sequence_rows import FORGOTTEN, RowTable, SequenceRow, read_tables
from ..store.partition_log import PartitionLog

__all__ = ["LastRows"]

READ_BYTES = 2 << 20
"""Number of bytes of an internal log that a follower reads at once. If each producer waits for the answer to a send
before it sends again, so many bytes contain 24,000 rows, and reading them takes some 25 ms.
"""

_RowKey = tuple[int, str, int]
"""The key of a row: the producer's id, the topic and the partition."""


class LastRows(LogReader):
    """The last two rows of each pair of producer and partition in one internal log. Two rows are kept because a row is
    appended before the write that it describes. If the write of the last row was not stored, the row before the last
    one counts.

    forgotten_ms: a time in Unix milliseconds. Pairs whose last write was at this time or earlier may have been
    forgotten because there were too many pairs. `forgotten_ms` is 0 if no pair was forgotten.
    """

    def __init__(self, log: PartitionLog, most: int) -> None:
        """most: maximum number of pairs of producer and partition. Up to 2 × `most` pairs are kept in memory. When
        there are more, pairs whose rows are no longer in the log are dropped. If more than 2 × `most` pairs remain, the
        older ones are dropped, so that `most` pairs remain.
        """
        super().__init__(log)
        self.forgotten_ms = 0
        self._most = most
        self._read_from = log.first_offset
        self._found: dict[_RowKey, Sequence[SequenceRow]] = {}

    @property
    def _is_full(self) -> bool:
        return len(self._found) > 2 * self._most

    @property
    def _is_other(self) -> bool:
        """Whether the whole log must be read again. This is necessary in the cases that LogReader names. It is also
        necessary if too many pairs of producer and partition are in memory and the log's oldest rows were removed after
        the log was last read from its beginning. In this case, reading the log again leaves out the pairs of the
        removed rows.
        """
        return super()._is_other or (self._is_full and self._read_from < self.log.first_offset)

    def _clear(self) -> None:
        self._read_from = self._read_to
        self._found.clear()

    def _read(self, most: int | None) -> None:
        """Read the next rows of the log. most: number of bytes to read, or None for all."""
        if self._is_full:
            self._forget_oldest()
        for table in read_tables(self.log.segments.snapshot(), self._read_to, most):
            self._take(table)
            self._read_to = table.end

    def _forget_oldest(self) -> None:
        """Drop the older pairs of producer and partition from memory, so that `most` pairs remain. Called when reading
        the whole log again would not reduce their number, because the log still contains the rows of all pairs.
        """
        order = sorted(self._found.items(), key=lambda item: item[1][-1].first_id)
        self.forgotten_ms = max(self.forgotten_ms, order[-self._most - 1][1][-1].time_ms)
        self._found = dict(order[-self._most :])

    def _take(self, table: RowTable) -> None:
        found = self._found
        forgotten = table.rows["first_id"][table.rows["producer"] == FORGOTTEN]
        if forgotten.size:
            self.forgotten_ms = max(self.forgotten_ms, (int(forgotten.max()) >> TIME_SHIFT) + EPOCH_MS)
        for before, last in _last_two(table):
            row = table.row(last)
            key = row.producer, row.topic, row.partition
            if not row.records:
                found.pop(key, None)
            elif before is None:
                found[key] = (*found.get(key, ())[-1:], row)
            else:
                former = table.row(before)
                found[key] = (former, row) if former.records else (row,)

    def items(self) -> Iterator[tuple[_RowKey, Sequence[SequenceRow]]]:
        """Yield each key together with its last one or two rows; the older row comes first."""
        return iter(self._found.items())


def _last_two(table: RowTable) -> list[tuple[int | None, int]]:
    """Return a pair of row numbers for each combination of producer, topic and partition in the table: the numbers of
    its last two rows. The first number is None if the table has only one row for this combination. The pairs are sorted
    by the second number.
    """
    if not table.rows.size:
        return []
    # compare topics by name, because a topic's number differs between records that name different topics
    numbers = {name: number for number, name in enumerate(table.names)}
    topics = np.array([numbers[name] for name in table.names])[table.topics]
    columns = table.rows["partition"].astype(np.int64), topics, table.rows["producer"].astype(np.uint64)
    order = np.lexsort(columns)
    differs = np.zeros(len(order), bool)
    differs[0] = True
    for column in columns:
        ordered = column[order]
        differs[1:] |= ordered[1:] != ordered[:-1]
    lasts = np.flatnonzero(np.append(differs[1:], True))
    found = [(None if differs[each] else int(order[each - 1]), int(order[each])) for each in lasts]
    return sorted(found, key=lambda pair: pair[1])
