"""Split a sequence of payloads into batches that each fit into one request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, TypeVar

from metaq.protocol.arrays import np

__all__ = ["MAX_BATCH_PAYLOAD_BYTES", "split_batches"]

MAX_BATCH_PAYLOAD_BYTES = 1 << 20
"""Largest number of payload bytes in a batch. The number is far below the largest size of a request, and so large that
the fixed cost of each request hardly matters.
"""

Item = TypeVar("Item", bound=Sized)


def split_batches(
    payloads: Sequence[Item],
    max_records: int,
    max_bytes: int = MAX_BATCH_PAYLOAD_BYTES,
    size_of: Callable[[Any], int] = len,
) -> Iterator[list[Item]]:
    """Yield `payloads` in order, divided into lists. A list has at most `max_records` payloads, and the sum of their
    bytes is at most `max_bytes`.

    A payload of more than `max_bytes` bytes becomes a list with this payload only. The producer checks whether such a
    payload fits into a message.
    """
    ends = np.cumsum(np.fromiter(map(size_of, payloads), np.int64, len(payloads)))
    start, sent = 0, 0
    while start < len(payloads):
        fitting = int(np.searchsorted(ends, sent + max_bytes, "right"))
        end = max(start + 1, min(start + max_records, fitting))
        yield list(payloads[start:end])
        start, sent = end, int(ends[end - 1])
