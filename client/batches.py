"""Cutting many payloads into batches that fit one request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, TypeVar

__all__ = ["MAX_BATCH_PAYLOAD_BYTES", "split_batches"]

MAX_BATCH_PAYLOAD_BYTES = 1 << 20
"""Most payload bytes of a batch: far below what a frame can carry, and enough to pay for the request."""

Item = TypeVar("Item", bound=Sized)


def split_batches(
    payloads: Sequence[Item],
    max_records: int,
    max_bytes: int = MAX_BATCH_PAYLOAD_BYTES,
    size_of: Callable[[Any], int] = len,
) -> Iterator[list[Item]]:
    """`payloads` in order, in lists of at most `max_records` and `max_bytes` in sum.

    A payload larger than that makes a list of its own: whether it fits a message is the producer's to say.
    """
    batch: list[Item] = []
    size = 0
    for payload in payloads:
        added = size_of(payload)
        if batch and (len(batch) == max_records or size + added > max_bytes):
            yield batch
            batch, size = [], 0
        batch.append(payload)
        size += added
    if batch:
        yield batch
