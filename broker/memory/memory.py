"""A broker's memory of one kind of message, such as delayed messages. A memory consists of tables that are built from
the kind's internal logs.

The table in `assembly/kinds.py` lists all kinds. The code of the broker, of broker sets, of `stats` and `/metrics`, of
moves of partitions, and of `metaq check` goes through this table, and treats all kinds alike. CONTRIBUTING.md says how
to add a kind.
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
    """The memory of one kind of message. Used only on the reactor thread. On a single broker, `lead` is called at the
    start. On a node of a broker set, the memory serves no requests and only reads the records that the leader has
    written, until this node becomes the leader and `lead` is called.
    """

    topic: str
    """The kind's internal topic, such as `/delayed`."""
    name: str
    """The name of the kind in log lines of the broker, such as `delayed messages`."""
    item: str | None = None
    """The item of `stats` that shows `lines`, or None if there is no such item."""
    followed: int
    """The argument `most` that a follower passes to `LogReader.read_on`: about how much of an internal log is read at
    once.
    """

    def __init__(self, store: Store, clock: Callable[[], float], reactor: ReactorTime) -> None:
        """store: an open store. clock: returns seconds since 1970."""
        self.enabled = False
        """Whether this broker leads (a single broker always leads). Only while this is True, the memory serves requests
        and writes to its logs.
        """
        self.store = store
        self._clock = clock
        self._logs: dict[PartitionLog, R] = {}
        self._compaction = Compaction(store, self, reactor)

    # --- what is stored -----------------------------------------------------------------------------------------------

    @abstractmethod
    def _reader(self, log: PartitionLog) -> R:
        """Create an empty table for one internal log, and return it."""

    @staticmethod
    @abstractmethod
    def check_record(record: bytes) -> None:
        """Check a record of an internal log: raise StoreError if a broker could not read it. The caller, `metaq check`,
        has already found that the record is whole and has the right checksum.
        """

    def _of(self, log: PartitionLog) -> R:
        """Return the table of one internal log; create the table if it does not exist."""
        found = self._logs.get(log)
        if found is None:
            found = self._logs[log] = self._reader(log)
        return found

    def now_ms(self) -> int:
        """Return the wall-clock time in Unix ms."""
        return int(self._clock() * 1000)

    def _write(self, log: PartitionLog, body: bytes) -> None:
        """Append a record with this body to an internal log, without waiting until the record is safe. Raises
        StoreError.
        """
        data, unit = internal_record(body, record_id_at(self._clock() * 1000), log.end_offset)
        append = Append(log, (data,), unit)
        self.store.append_many((append,))
        if append.error is not None:
            raise append.error

    # --- leading and following ----------------------------------------------------------------------------------------

    def read_ahead(self) -> None:
        """Read the internal logs to their present ends. This method is called before `lead`, so that `lead` has less to
        read. Raises StoreError.
        """
        for log in self.store.internal_logs(self.topic):
            self._of(log).read_on()

    def lead(self) -> None:
        """Begin to lead: read the internal logs to their ends, and serve requests and write from then on. Raises
        StoreError.
        """
        self.read_ahead()
        self.enabled = True

    def follow(self) -> None:
        """Stop serving requests and writing records, because another node leads. From now on, `tick` reads the records
        that the leader has written to the internal logs.
        """
        if self.enabled:
            self.enabled = False
            self._compaction.clear()
            self._stop()

    def _stop(self) -> None:
        """Drop the state that only a leader needs; called when this node stops leading."""

    def tick(self) -> None:
        """As a leader, keep the internal logs short; as a follower, read the records that the leader has written.
        Called about once a second.
        """
        if self.enabled:
            self._compaction.tick()
            return
        for log in self.store.followed_internal_logs(self.topic):
            self._of(log).read_on(self.followed)

    # --- keeping the logs short (compaction.py) -----------------------------------------------------------------------

    @abstractmethod
    def most_bytes(self, log: PartitionLog) -> int:
        """Return the length in bytes above which the log is compacted."""

    def needed_from(self, log: PartitionLog) -> int:
        """Return the byte offset before which no record in the log is needed. Segments before this offset can be
        dropped at once.
        """
        return log.first_offset

    async def write_anew(self, log: PartitionLog) -> int:
        """Append the needed content of the log to its end again, with pauses in which the reactor can do other work.
        (Compaction demands this only for the log's oldest part; this method does it for the whole log.) Return the byte
        offset before which no record is needed any more as soon as the appended records are on the disk. Raises
        OSError, StoreError.
        """
        log.roll()
        start = log.end_offset
        for body in self._state(log):
            self._write(log, body)
            await self._compaction.pause()
        return start

    def _state(self, log: PartitionLog) -> Iterator[bytes]:
        """Yield the bodies of new records, which contain everything that this memory has read from the log and still
        needs. Between two bodies, other requests can be served and can change the memory; so each body must be made
        only when it is yielded.
        """
        raise NotImplementedError(f"{type(self).__name__} writes nothing anew in this way")

    # --- what is shown, and asked -------------------------------------------------------------------------------------

    def lines(self) -> Lines:
        """Yield the lines of `stats <item>`. Raises NotLeader if this node stops leading while it makes lines that only
        a leader has.
        """
        yield from ()

    def metrics(self) -> Metrics:
        """Yield this kind's metrics for `/metrics`."""
        yield from ()

    def left_behind(self, topic: str, partitions: Sequence[int]) -> str | None:
        """Return why these partitions cannot be moved to another broker yet, or None if they can. While this memory has
        entries about a partition (for example delayed messages), the partition cannot be moved, because the entries
        would stay on this broker. When this method is called, the broker already accepts no new messages of this kind
        for these partitions (Partitions.is_leaving); so the entries become fewer and finally disappear.
        """
        return None
