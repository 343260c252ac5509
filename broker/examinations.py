"""Finding out, for readers, what lies where no record can be read: in worker threads, once for each place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred, succeed

from .cold_reads import ColdReads
from .store.damage import Damaged, Place
from .store.partition_log import PartitionLog

__all__ = ["Examinations"]


class Examinations:
    """Lives on the reactor thread. The log remembers and reports what is damaged (`LogSegments.report_damage`)."""

    def __init__(self, cold_reads: ColdReads) -> None:
        self._cold_reads = cold_reads
        self._examined: dict[tuple[PartitionLog, int], list[Deferred[Place | BaseException]]] = {}

    def examine(
        self, log: PartitionLog, group: str, offset: int, question: Callable[[], Place] | None = None
    ) -> Deferred[Place | BaseException]:
        """What lies at a readable `offset`, or why it cannot be told; never fails. Later askers share the answer.

        question: log.examination(offset), if the caller has it already.
        """
        deferred: Deferred[Place | BaseException] = Deferred()
        waiting = self._examined.setdefault((log, offset), [])
        waiting.append(deferred)
        if len(waiting) == 1:
            asked: Deferred[Callable[[], Place]]
            if question is None:
                look_up: Callable[[], Any] = partial(self._cold_reads.look_up, partial(log.examination, offset), group)
                asked = maybeDeferred(look_up)
            else:
                asked = succeed(question)
            found: Deferred[Any] = asked.addCallback(partial(self._cold_reads.run, group))
            found.addErrback(lambda failure: failure.value).addCallback(partial(self._answer, log, offset))
        return deferred

    def _answer(self, log: PartitionLog, offset: int, place: Place | BaseException) -> None:
        if isinstance(place, Damaged):
            log.report_damage(place)
        for waiting in self._examined.pop((log, offset)):
            waiting.callback(place)
