"""How much of what is there one micro-batch takes: pure functions, given how to count and where to cut.

Every limit is shared among the partitions in proportion to what waits in each, so none starves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from metaq.client.values import TopicPartition
from metaq.protocol.limits import INT64_MAX

from .read_options import BatchLimits

__all__ = ["After", "Count", "Span", "admit", "shares"]

Span = tuple[int, int]
"""Bytes [start, end) of a partition that wait to be read; both are where messages begin (or the end)."""
Count = Callable[[TopicPartition, Span], int]
"""How many messages lie in a span."""
After = Callable[[TopicPartition, int, int, int], int]
"""(partition, offset, messages, bytes) -> where at most so many messages and bytes lead from there."""


def shares(waiting: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """`limit` shared out in proportion to `waiting`, at most what waits; adds up to the smaller of both sums."""
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    found = {each: limit * size // total for each, size in waiting.items()}
    rest = limit - sum(found.values())
    by_remainder = sorted(waiting, key=lambda each: (-(limit * waiting[each] % total), each))
    for each in by_remainder[:rest]:
        found[each] += 1
    return found


def admit(
    limits: BatchLimits, waiting: Mapping[TopicPartition, Span], count: Count, after: After, *, may_wait: bool
) -> dict[TopicPartition, int] | None:
    """Where the next micro-batch ends in each partition of `waiting`; None if it waits for more messages.

    may_wait: minOffsetsPerTrigger applies (maxTriggerDelay has not passed). If there is anything, a batch has at least
    one message, even one larger than maxBytesPerTrigger.
    """
    spans = {each: span for each, span in waiting.items() if span[0] < span[1]}
    ends = {each: span[1] for each, span in waiting.items()}
    holds_back = may_wait and limits.min_messages is not None
    if limits.max_messages is not None or holds_back:
        counts = {each: count(each, span) for each, span in spans.items()}
        if holds_back and sum(counts.values()) < (limits.min_messages or 0):
            return None
        if limits.max_messages is not None and sum(counts.values()) > limits.max_messages:
            for each, messages in shares(counts, limits.max_messages).items():
                ends[each] = after(each, spans[each][0], messages, INT64_MAX)
    if limits.max_bytes is not None:
        _limit_bytes(limits.max_bytes, {each: (spans[each][0], ends[each]) for each in spans}, ends, after)
    return ends


def _limit_bytes(
    max_bytes: int, spans: Mapping[TopicPartition, Span], ends: dict[TopicPartition, int], after: After
) -> None:
    sizes = {each: end - start for each, (start, end) in spans.items()}
    if sum(sizes.values()) <= max_bytes:
        return
    for each, size in shares(sizes, max_bytes).items():
        ends[each] = after(each, spans[each][0], INT64_MAX, size)
    if all(ends[each] <= start for each, (start, _) in spans.items()):
        largest = max(sizes, key=lambda each: (sizes[each], each))
        ends[largest] = after(largest, spans[largest][0], 1, INT64_MAX)
