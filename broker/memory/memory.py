"""A broker's memory of one kind of message: tables made from the kind's internal logs.

`assembly/kinds.py` has one row for each kind. The broker, its node of a set, `stats`, `/metrics`, moves of partitions
and `metaq check` iterate over those rows and know no kind. CONTRIBUTING.md says how to add one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from ..runtime.reactor import ReactorTime
from ..store.partition_log import PartitionLog
from ..store.store import Append, Store
from .compaction import Compaction
from .figures import Lines, Metrics
from .reading import LogReader
from .records import internal_record, record_id_at

__all__ = ["Memory"]

R = TypeVar("R", bound=LogReader)


class Memory(ABC, Generic[R]):
    """The memory of one kind. Reactor thread. A single broker leads from the start; a set's node follows until it
    leads."""

    topic: str
    """The internal topic, `/delayed`."""
    name: str
    """What the kind is called in the broker's log: `delayed messages`."""
    item: str | None = None
    """The item of `stats` that shows `lines`; None: there is none."""
    followed: int
    """How much of a log is read at once while nobody waits, in the units of `LogReader.read_on`."""

    def __init__(self, store: Store, clock: Callable[[], float], reactor: ReactorTime) -> None:
        """store: open. clock: seconds since 1970."""
        self.enabled = False
        """Whether this node leads: it serves, and writes."""
        self.store = store
        self._clock = clock
        self._logs: dict[PartitionLog, R] = {}
        self._compaction = Compaction(store, self, reactor)

    # --- what is stored -----------------------------------------------------------------------------------------------

    @abstractmethod
    def _reader(self, log: PartitionLog) -> R:
        """Return the empty table of one log."""

    @staticmethod
    @abstractmethod
    def check_record(record: bytes) -> None:
        """Raise StoreError if a broker could not read this whole record, whose checksum is right. `metaq check` calls
        it."""

    def _of(self, log: PartitionLog) -> R:
        """Return the table of one log."""
        found = self._logs.get(log)
        if found is None:
            found = self._logs[log] = self._reader(log)
        return found

    def now_ms(self) -> int:
        """Return the time by the wall clock, Unix ms."""
        return int(self._clock() * 1000)

    def _write(self, log: PartitionLog, body: bytes) -> None:
        """Append a record for which nobody waits. Raises StoreError."""
        data, unit = internal_record(body, record_id_at(self._clock() * 1000), log.end_offset)
        append = Append(log, (data,), unit)
        self.store.append_many((append,))
        if append.error is not None:
            raise append.error

    # --- leading and following ----------------------------------------------------------------------------------------

    def read_ahead(self) -> None:
        """Read the logs while nobody waits, because this node may soon have to lead. Raises StoreError."""
        for log in self.store.internal_logs(self.topic):
            self._of(log).read_on()

    def lead(self) -> None:
        """Read the logs to their ends, then serve and write. Raises StoreError."""
        self.read_ahead()
        self.enabled = True

    def follow(self) -> None:
        """Stop serving and writing, because another node leads; read what that node writes."""
        if self.enabled:
            self.enabled = False
            self._compaction.clear()
            self._stop()

    def _stop(self) -> None:
        """Drop what only a leader has."""

    def tick(self) -> None:
        """Keep the logs short, or read what the leader has written. To be called about once a second."""
        if self.enabled:
            self._compaction.tick()
            return
        for log in self.store.followed_internal_logs(self.topic):
            self._of(log).read_on(self.followed)

    # --- keeping the logs short (compaction.py) -----------------------------------------------------------------------

    @abstractmethod
    def most_bytes(self, log: PartitionLog) -> int:
        """Return the log's maximum length."""

    def needed_from(self, log: PartitionLog) -> int:
        """Return the byte offset before which nothing counts, although nothing was written anew."""
        return log.first_offset

    async def write_anew(self, log: PartitionLog) -> int:
        """Append what counts of the log's first part, in turns. Return the byte offset before which nothing counts once
        that is on the disk. Raises OSError, StoreError."""
        log.roll()
        start = log.end_offset
        for body in self._state(log):
            self._write(log, body)
            await self._compaction.pause()
        return start

    def _state(self, log: PartitionLog) -> Iterator[bytes]:
        """Yield the bodies of records that say all that is known. Others are served in between and may write, so each
        body has what is known when it is yielded."""
        raise NotImplementedError(f"{type(self).__name__} writes nothing anew in this way")

    # --- what is shown, and asked -------------------------------------------------------------------------------------

    def lines(self) -> Lines:
        """Yield the lines of `stats <item>`. Raises NotLeader."""
        yield from ()

    def metrics(self) -> Metrics:
        """Yield the metrics of `/metrics`."""
        yield from ()

    def left_behind(self, topic: str, partitions: Sequence[int]) -> str | None:
        """Return why these partitions cannot move to another broker yet; None if they can. What is kept stays on this
        broker. No client can begin anything new for these partitions any more (Partitions.is_leaving)."""
        return None
