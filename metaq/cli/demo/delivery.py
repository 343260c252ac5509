"""Check whether every message arrived: compare the sent messages with the histories that the consumers wrote.

The messages carry sequence numbers 0 … sent-1. A consumer appends one row per message to its history, in the order of
arrival, before it can commit the messages. So the history of a consumer that is killed at any moment contains every
message that the consumer has committed. The messages that the killed consumer has not committed must be delivered to
another consumer, and so appear in that consumer's history.

Anomalies, after jepsen's `kafka` checker:

    lost              sent and acknowledged, but in no history
    unexpected        in a history, but never sent
    delivered again   the same record (partition and offset) more than once: at least once allows it after a crash
    stored again      the same sequence number at two offsets: a producer tried again
    out of order      a record's first delivery came after the first delivery of a later record of its partition
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["ROW", "Delivery", "History", "check_delivery", "empty_history", "read_history"]

ROW = np.dtype([("time_ns", "<i8"), ("sequence", "<i8"), ("offset", "<i8"), ("broker", "<i4"), ("partition", "<i4")])
"""Layout of one row of a history. Each row describes one received message. time_ns: when the message was received, by a
clock that all processes of the machine share (CLOCK_MONOTONIC). offset: the message's byte offset.
"""

History = npt.NDArray[np.void]
"""The history of a consumer: an array of rows with the layout ROW."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of the check. All counts are numbers of messages."""

    sent: int
    received: int
    delivered_again: int
    stored_again: int
    lost: int
    unexpected: int
    out_of_order: int
    first_lost: Sequence[int]
    """The lowest lost sequence numbers, at most 10."""

    @property
    def duplicates(self) -> int:
        return self.delivered_again + self.stored_again

    @property
    def ok(self) -> bool:
        """Whether every message was delivered at least once, and in order within each partition. Duplicates are
        allowed.
        """
        return not (self.lost or self.unexpected or self.out_of_order)


def read_history(path: Path) -> History:
    """Read a history from the file `path`. If the consumer crashed while it wrote the last row, the file has only a
    part of this row. The function leaves this partial row out, so the row's message counts as not received.
    """
    data = path.read_bytes()
    whole = len(data) // ROW.itemsize * ROW.itemsize
    return np.frombuffer(data[:whole], dtype=ROW)


def empty_history(rows: int = 0) -> History:
    """Return a history with `rows` rows that contain only zeros, and that the caller can overwrite."""
    return np.zeros(rows, dtype=ROW)


def check_delivery(sent: int, histories: Iterable[History]) -> Delivery:
    """Compare the sent sequence numbers 0 … sent-1 with the histories of all consumers. The cost is O(n log n) for n
    rows in all histories together.
    """
    rows = np.concatenate([empty_history(), *histories])
    rows = rows[np.argsort(rows["time_ns"], kind="stable")]
    expected = rows[(rows["sequence"] >= 0) & (rows["sequence"] < sent)]
    counts = np.bincount(expected["sequence"], minlength=sent)
    missing = np.flatnonzero(counts == 0)
    first = _first_deliveries(expected)
    return Delivery(
        sent=sent,
        received=len(rows),
        delivered_again=len(expected) - len(first),
        stored_again=len(first) - int(np.count_nonzero(counts)),
        lost=len(missing),
        unexpected=len(rows) - len(expected),
        out_of_order=_out_of_order(first),
        first_lost=missing[:10].tolist(),
    )


def _first_deliveries(rows: History) -> History:
    """Return only the row of the first delivery of each record (partition and offset). The rows of the result are in
    the order of time, as in `rows`.
    """
    order = _by_record(rows)
    ordered = rows[order]
    repeated = (
        (ordered["offset"][1:] == ordered["offset"][:-1])
        & (ordered["partition"][1:] == ordered["partition"][:-1])
        & (ordered["broker"][1:] == ordered["broker"][:-1])
    )
    first = np.concatenate([order[:1], order[1:][~repeated]])
    found: History = rows[np.sort(first)]
    return found


def _by_record(rows: History) -> npt.NDArray[np.intp]:
    """Return the indices that sort `rows` by partition and offset. The rows of a record that was delivered several
    times stay in the order of time.
    """
    return np.lexsort((rows["offset"], rows["partition"], rows["broker"]))


def _out_of_order(first: History) -> int:
    """Return how many records arrived out of order: their first delivery came after the first delivery of a later
    record of the same partition. first: the result of `_first_deliveries`.
    """
    late = 0
    places = first["broker"].astype(np.int64) << 32 | first["partition"]
    for place in np.unique(places):
        offsets = first["offset"][places == place]
        late += int(np.count_nonzero(offsets < np.maximum.accumulate(offsets)))
    return late
