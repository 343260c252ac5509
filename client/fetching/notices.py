"""What a consumer's user has to hear of its partitions: which it has got, and which it gives up or has lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from metaq.coordination.interrupts import is_interrupt

from ..records.values import TopicPartition

__all__ = ["Notice", "Notices", "OnPartitions"]

OnPartitions = Callable[[list[TopicPartition]], None]


class Notice:
    """Partitions that were assigned, or that are revoked. left: those that the user has not been told of.

    told: called with what the user was told of, behind the user's callback and on its thread; it may be repeated.
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
        """The user was told of these."""
        self.left = [each for each in self.left if each not in partitions]
        self._told(partitions)


class Notices:
    """Any thread puts, the polling thread tells. waiting: not empty while there is something to tell. on_assigned,
    on_revoked: the user's callbacks.

    A notice stays until the user's callback has returned, or raised what is its own. So one whose telling was
    interrupted (interrupts.py) is told again.
    """

    def __init__(self) -> None:
        self.waiting: deque[Notice] = deque()
        self.on_assigned: OnPartitions | None = None
        self.on_revoked: OnPartitions | None = None

    def put(self, notice: Notice) -> None:
        self.waiting.append(notice)

    def tell(self, is_busy: Callable[[TopicPartition], bool] = lambda _: False) -> None:
        """Call the user's callbacks, of each partition in order. Raises what they raise.

        is_busy: whether a handler still works for a former claim of a partition that is revoked. It is told later, and
        so is what follows for the same partition; others do not wait for it.
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
