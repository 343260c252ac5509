"""Waiting for many partitions at once: what one turn of the broker appended to hundreds of them is answered once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from metaq.protocol.errors import MetaqError

from .flush import call_safely
from .journal import Journal
from .partition_log import PartitionLog

__all__ = ["AllVisibleCallback", "when_all_visible"]

AllVisibleCallback = Callable[[Sequence[MetaqError | None]], None]
"""callback(for each log None if its data is visible, else why it will not be)."""


def when_all_visible(journal: Journal, ends: Sequence[tuple[PartitionLog, int]], callback: AllVisibleCallback) -> None:
    """Call back once when each log is visible up to its `end`, or has failed; at once if all are. Owning thread.

    Nothing is registered in a log that the journal takes care of: the group under way answers for all of them.
    """
    if all(log.visible_end >= end for log, end in ends):
        callback([None] * len(ends))
    else:
        journal.when_settled(partial(_ask, ends, callback))


def _ask(ends: Sequence[tuple[PartitionLog, int]], callback: AllVisibleCallback) -> None:
    """The journal has done what it can; what is still not visible waits for its own file's sync, or has failed."""
    errors: list[MetaqError | None] = [None] * len(ends)
    left = {number for number, (log, end) in enumerate(ends) if log.visible_end < end}
    if not left:
        callback(errors)
        return

    def answered(number: int, error: MetaqError | None) -> None:
        errors[number] = error
        left.discard(number)
        if not left:
            call_safely(callback, errors)

    for number in sorted(left):
        log, end = ends[number]
        log.when_visible(end, partial(answered, number))
