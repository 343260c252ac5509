"""Reads that may wait for the disk (cold reads). Cold reads run in worker threads of their own, so that other work does
not wait for them. If cold reads of several consumer groups wait, the threads serve the groups in turn.

Data in the page cache are read at once, on the reactor thread. When a consumer needs data that are not in the page
cache, worker threads read the partition sequentially for this consumer (store/sequential.py), until the consumer has
reached the end of the partition.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred, succeed

from metaq.protocol.record import Buffer

from .. import tuning
from ..runtime.pace import Pace
from ..runtime.reactor import ReactorTime
from ..store import tuning as store_tuning
from ..store.damage import Damaged, Soundness
from ..store.files import CachedOnly, Files, NotCached
from ..store.partition_log import PartitionLog
from ..store.sequential import SequentialReader
from ..store.worker_turns import RunInThread, Turns

__all__ = ["ColdReads", "Examinations"]


T = TypeVar("T")


class _Reader:
    """A consumer group that reads data of one partition that are not in the page cache. `start`, `end`: byte offsets of
    the group's last read.
    """

    __slots__ = ("busy", "end", "reader", "start")

    def __init__(self, reader: SequentialReader) -> None:
        self.reader = reader
        self.start = self.end = -1
        self.busy = False

    def continues(self, offset: int) -> bool:
        return self.start <= offset <= self.end and not self.reader.is_ahead_cached


class ColdReads:
    """Performs the cold reads of a broker. Used only on the reactor thread."""

    def __init__(
        self,
        run_in_thread: RunInThread,
        files: Files,
        cached_only: CachedOnly,
        reactor: ReactorTime,
        pace: Pace,
    ) -> None:
        """run_in_thread: runs a function in a thread that does nothing but cold reads. Syncs of files have other
        threads, and need not wait for cold reads.
        """
        self._files = files
        self.cached_only = cached_only
        self._pace = pace
        self._turns = Turns(run_in_thread, tuning.MAX_COLD_READS, pause=pace.pause, call_later=reactor.callLater)
        self._readers: OrderedDict[tuple[PartitionLog, str], _Reader] = OrderedDict()

    def read(self, log: PartitionLog, group: str, offset: int, max_bytes: int) -> Buffer | Deferred[bytes]:
        """Read data of the log as `Segments.read` does. If the data are in the page cache, return them; otherwise
        return a Deferred of them. Raises or fails with the errors of `Segments.read`.
        """
        known = self._readers.get((log, group)) if self._readers else None
        if known is None or not known.continues(offset) or log.visible_end - offset <= store_tuning.HOT_TAIL_BYTES:
            data = log.segments.read(offset, max_bytes)
            if data is not None:
                if known is not None:
                    del self._readers[log, group]
                return data
        if known is not None and known.busy:  # for another reader of the group; only one can be continued
            return self.run(group, partial(log.segments.snapshot().read, offset, max_bytes))
        return self._read_on(known, log, group, offset, max_bytes)

    def _read_on(
        self, known: _Reader | None, log: PartitionLog, group: str, offset: int, max_bytes: int
    ) -> Deferred[bytes]:
        if known is None or not known.continues(offset):
            known = _Reader(SequentialReader(self._files))
            self._readers[log, group] = known
            if len(self._readers) > tuning.MAX_COLD_READERS:
                self._readers.popitem(last=False)
        self._readers.move_to_end((log, group))
        known.busy = True
        share = tuning.COLD_WINDOWS_BYTES // len(self._readers)
        window = max(tuning.MIN_COLD_WINDOW_BYTES, min(store_tuning.MAX_WINDOW_BYTES, share))
        read = partial(known.reader.read, log.segments.snapshot(), offset, max_bytes, window)
        return self.run(group, read, partial(_moved, known, offset))

    def run(
        self, group: str, function: Callable[[], T], before: Callable[[T | BaseException], None] = lambda result: None
    ) -> Deferred[T]:
        """Run a function, which reads cold data, in a worker thread, as soon as a thread is free and the group's turn
        has come. The Deferred gets the function's result.

        before: called with the result or the error just before the Deferred fires.
        """
        deferred: Deferred[T] = Deferred()

        def done(result: Any) -> None:
            self._pace.spend(len(result) if isinstance(result, bytes) else 0)
            before(result)
            if isinstance(result, BaseException):
                deferred.errback(result)
            else:
                deferred.callback(result)

        self._turns.run(group, function, done)
        return deferred

    def look_up(self, question: Callable[[], T], group: str = "") -> T | Deferred[T]:
        """Return the result of the function `question`, which reads index files. If these files are not in the page
        cache, return a Deferred of the result.

        If a piece of the index files is not in the page cache, a worker thread loads it, and `question` is called again
        from its beginning; so `question` must have no side effects.
        """
        loaded: dict[tuple[str, int], int] = {}

        def ask(_: object = None) -> T | Deferred[T]:
            try:
                # a piece is dropped from the cache again and again, because memory is short
                if loaded and max(loaded.values()) > tuning.LOOK_UP_MAX_LOADS:
                    return question()
                with self.cached_only:
                    return question()
            except NotCached as missing:
                loaded[missing.place] = loaded.get(missing.place, 0) + 1
                return self.run(group, missing.load).addCallback(ask)

        return ask()


def _moved(reader: _Reader, offset: int, result: bytes | BaseException) -> None:
    reader.busy = False
    if isinstance(result, bytes):
        reader.start, reader.end = offset, offset + len(result)


class Examinations:
    """Finds out what is at an offset of a partition where a reader has found no record: for example damage, or the
    middle of a record. Worker threads examine the bytes there; if several readers ask about the same offset at the same
    time, it is examined once.

    Used only on the reactor thread. Damage that is found is passed to the log, which remembers and reports it
    (`Segments.report_damage`).
    """

    def __init__(self, cold_reads: ColdReads) -> None:
        self._cold_reads = cold_reads
        self._examined: dict[tuple[PartitionLog, int], list[Deferred[Soundness | BaseException]]] = {}

    def examine(
        self, log: PartitionLog, group: str, offset: int, question: Callable[[], Soundness] | None = None
    ) -> Deferred[Soundness | BaseException]:
        """Find out what is at `offset`, which is before the visible end: the beginning of a record, a byte inside a
        record, or damage. The Deferred gets the result. If an error prevents the examination, the Deferred does not
        fail, but gets the error as its value. If the same offset is already being examined, the caller gets the result
        of this examination.

        question: the function that makes the examination, which is the result of log.lookup.examination(offset), or
            None if the caller does not have it.
        """
        deferred: Deferred[Soundness | BaseException] = Deferred()
        waiting = self._examined.setdefault((log, offset), [])
        waiting.append(deferred)
        if len(waiting) == 1:
            asked: Deferred[Callable[[], Soundness]]
            if question is None:
                look_up: Callable[[], Any] = partial(
                    self._cold_reads.look_up, partial(log.lookup.examination, offset), group
                )
                asked = maybeDeferred(look_up)
            else:
                asked = succeed(question)
            found: Deferred[Any] = asked.addCallback(partial(self._cold_reads.run, group))
            found.addErrback(lambda failure: failure.value).addCallback(partial(self._answer, log, offset))
        return deferred

    def _answer(self, log: PartitionLog, offset: int, place: Soundness | BaseException) -> None:
        if isinstance(place, Damaged):
            log.segments.report_damage(place)
        for waiting in self._examined.pop((log, offset)):
            waiting.callback(place)
