"""Cutting many payloads into batches that fit one request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["MAX_BATCH_PAYLOAD_BYTES", "split_batches"]

MAX_BATCH_PAYLOAD_BYTES = 1 << 20
"""Most payload bytes of a batch: far below what a frame can carry, and enough to pay for the request."""


def split_batches(
    payloads: Sequence[bytes], max_records: int, max_bytes: int = MAX_BATCH_PAYLOAD_BYTES
) -> Iterator[list[bytes]]:
    """`payloads` in order, in lists of at most `max_records` and `max_bytes` in sum.

    A payload larger than that makes a list of its own: whether it fits a message is the producer's to say.
    """
    batch: list[bytes] = []
    size = 0
    for payload in payloads:
        if batch and (len(batch) == max_records or size + len(payload) > max_bytes):
            yield batch
            batch, size = [], 0
        batch.append(payload)
        size += len(payload)
    if batch:
        yield batch
