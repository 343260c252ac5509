"""Queue the calls of a user's callbacks that report assigned, revoked or lost partitions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from metaq.coordination.runtime.interrupts import is_interrupt

from ..records.results import TopicPartition

__all__ = ["Notice", "Notices", "OnPartitions"]

OnPartitions = Callable[[list[TopicPartition]], None]


class Notice:
    """A call of the user's callback that is still to be made, to report that partitions were assigned or are revoked.
    left: the partitions that were not reported to the user yet.

    told: a function that is called with the partitions after the user's callback, on the same thread. The function may
    be called twice for the same partitions.
    """

    def __init__(
        self,
        assigned: bool,
        partitions: Iterable[TopicPartition],
        told: Callable[[Sequence[TopicPartition]], None] = lambda _: None,
    ) -> None:
        self.assigned = assigned
        self.partitions = sorted(partitions)
        self.left: Sequence[TopicPartition] = self.partitions
        self._told = told

    def done(self, partitions: Sequence[TopicPartition]) -> None:
        """Remove these partitions from `left`, because they were reported to the user."""
        self.left = [each for each in self.left if each not in partitions]
        self._told(partitions)


class Notices:
    """The queue of notices. Any thread may add a notice; the polling thread calls the callbacks. waiting: the notices
    that are not reported yet. on_assigned, on_revoked: the user's callbacks.

    A notice stays in the queue until the user's callback has returned, or has raised an exception of its own. If an
    interrupt (interrupts.py) ends the callback, the notice stays, and the callback is called again.
    """

    def __init__(self) -> None:
        self.waiting: deque[Notice] = deque()
        self.on_assigned: OnPartitions | None = None
        self.on_revoked: OnPartitions | None = None

    def put(self, notice: Notice) -> None:
        self.waiting.append(notice)

    def tell(self, is_busy: Callable[[TopicPartition], bool] = lambda _: False) -> None:
        """Call the user's callbacks for the waiting notices. Notices of the same partition are reported in the order in
        which they were queued. Exceptions of the callbacks are raised.

        is_busy: returns whether a handler still works on a partition that is revoked. While a handler works on the
        partition, the notice of its revocation and later notices of the same partition wait. Other notices do not wait.
        """
        busy: set[TopicPartition] = set()
        for notice in list(self.waiting):
            if not notice.assigned:
                busy.update(filter(is_busy, notice.left))
            ready = [each for each in notice.left if each not in busy]
            callback = self.on_assigned if notice.assigned else self.on_revoked
            try:
                if ready and callback is not None:
                    callback(list(ready))
            except BaseException as error:
                if not is_interrupt(error):
                    self._told(notice, ready)
                raise
            self._told(notice, ready)

    def _told(self, notice: Notice, partitions: Sequence[TopicPartition]) -> None:
        notice.done(partitions)
        if not notice.left:
            self.waiting.remove(notice)
