"""Which numbered write of each producer a partition has stored last, so that a repeated one is stored once.

A producer numbers its writes for a partition, always upwards, and has one of them under way. So the last one is all
that is to be remembered:

    number higher than the last     it is stored, and is the last from then on
    the last one's                  nothing is stored; it is answered as the first was, once that is safe
    lower                           a copy that came late, for which nobody waits: refused (StaleSequence)
    of a producer that is unknown   it is stored, unless it says that it is a repetition and its first transmission may
                                    be among what was forgotten for want of room: refused (SendInDoubt)

There is room for so many producers and partitions (tuning.MAX_SEQUENCES). Those of the address that has most go first,
so that nobody makes others forgotten. How young the youngest of the forgotten ones is, is remembered, in the logs too.

What is remembered is derived from the store's internal logs (store/sequence_rows.py), so it is as durable as the
messages. A row lies in front of its messages; it counts if they are there: if the message at its first byte has its id.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from math import inf
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from metaq.protocol.errors import CorruptRecord, MetaqError, SendInDoubt, StaleSequence, StoreError
from metaq.protocol.message_id import EPOCH_MS, TIME_SHIFT
from metaq.protocol.record import HEADER, Buffer

from .. import tuning
from ..memory.compaction import Compaction
from ..memory.sequence_rows import (
    DELAYED_ROW,
    FORGOTTEN,
    ROW_BYTES,
    SequenceRow,
    encode_head,
    encode_row,
    first_bytes,
    first_id_of,
    internal_record,
    pending_log,
)
from ..memory.topics import SEQUENCES_TOPIC
from ..runtime.reactor import ReactorTime
from ..runtime.slices import SlicedWork
from ..store.partition_log import PartitionLog
from ..store.store import Append, Store
from .last_rows import READ_BYTES, LastRows

__all__ = ["NumberedWrite", "SendingPeer", "Sequences"]

_log = logging.getLogger(__name__)


class SendingPeer(Protocol):
    """Who sends: a connection."""

    @property
    def host(self) -> str:
        """Its address."""


class _Address(dict["_Key", None]):
    """The producers and partitions that are remembered of one address, in the order in which they came.

    host: "" for all those that were read from the logs.
    """

    __slots__ = ("host",)

    def __init__(self, host: str) -> None:
        super().__init__()
        self.host = host


class _Stored(NamedTuple):
    """What is remembered of a producer's last write to a partition. [base, end): byte offsets."""

    sequence: int
    base: int
    end: int
    first_id: int
    records: int
    pending_id: int
    address: _Address


_Key = tuple[int, PartitionLog]
_new_tuple = tuple.__new__


class NumberedWrite(Append):
    """A write that may have a number. producer, sequence: 0 = it has none.

    first_id: of its messages; of a repeated one, after `Sequences.admit`, the first one's, as are `base` and `end`.
    """

    producer = 0
    sequence = 0
    first_id = 0
    records = 0
    delayed_for: PartitionLog | None = None
    """The partition of messages that wait for their time: `log` is where they lie until then."""
    pending_id = 0
    """Of the first of them; 0 if it is not known, as that of a repeated one may be."""
    repeat_ms = -1
    """How long ago the producer sent it first, milliseconds; -1: it is not sent again."""
    before: _Stored | None = None
    """What was the last one when this was admitted."""


W = TypeVar("W", bound=NumberedWrite)


class Sequences(Generic[W]):
    """Lives on the reactor thread.

    `enabled` is False on a node that copies another one's partitions: nothing is looked at and nothing written then.
    `lead` sets it, `follow` takes it back.
    """

    def __init__(
        self,
        store: Store,
        make: Callable[[PartitionLog, Sequence[Buffer], Buffer], W],
        clock: Callable[[], float],
        reactor: ReactorTime,
        for_waiting: Callable[[str, int], PartitionLog | None],
        *,
        enabled: bool = True,
    ) -> None:
        """store: open. make: makes a write of an internal log, to be waited for. clock: seconds since 1970.
        for_waiting: as `Partitions.for_waiting`."""
        self.enabled = False
        self._for_waiting = for_waiting
        self.repeated: list[W] = []
        """Those that `admit` has found to be stored already, since somebody emptied this."""
        self._store = store
        self._make = make
        self._clock = clock
        self._table: dict[_Key, _Stored] = {}
        self._addresses: dict[str, _Address] = {}  # of all in the table, none without any
        self._forgotten_ms = -inf
        """When the youngest of those was stored that were forgotten for want of room: by our clock, Unix ms."""
        self._last_rows: dict[PartitionLog, LastRows] = {}  # by internal log
        self._unsafe: PartitionLog | None = None  # has rows for which answers have to wait
        self._restated: dict[_Key, None] = {}  # the newest row of each says what did not happen
        self._works = SlicedWork(reactor)  # sweeps and compactions
        self._compaction = Compaction(store, SEQUENCES_TOPIC, self._works, self._write_all, self._most_bytes, clock)
        self._next_sweep = 0.0
        self._rebuilt = (0.0, 0.0)
        """When the logs were read, and the time of the newest row that was there; seconds since 1970."""
        if enabled:
            self.lead()

    @property
    def name(self) -> str:
        """As Memory."""
        return "numbered sends"

    def __len__(self) -> int:
        """How many producers and partitions are remembered."""
        return len(self._table)

    # --- writes -------------------------------------------------------------------------------------------------------

    def admit(self, asked: Sequence[tuple[W, int]], sender: SendingPeer | None) -> list[int | None]:
        """Where numbered writes of so many bytes are to be appended, in this order and next: a byte offset for each.
        The rows that have to be in front of them are appended here, one record for each mode of flushing.
        sender: whose writes these are; None: that is not known.

        None: a write is stored already and has the first one's place (`repeated`), or it has its `error`.
        """
        bases: list[int | None] = []
        fresh: list[W] = []
        ends: dict[PartitionLog, int] = {}
        table = self._table
        for write, size in asked:
            log = write.log
            key = write.producer, write.delayed_for or log
            known = table.get(key)
            if known is None:
                if write.repeat_ms >= 0 and self._may_be_forgotten(write):
                    bases.append(None)
                    continue
                if len(table) >= tuning.MAX_SEQUENCES:
                    self._make_room()
                address = self._address(sender)
                address[key] = None
            elif write.sequence <= known[0]:
                self._found(write, known)
                bases.append(None)
                continue
            elif (address := known[6]).host == "":
                address = self._come_from(address, key, sender)
            base = ends.get(log) or log.segments.end_offset
            ends[log] = end = base + size
            write.before, write.base, write.end = known, base, end
            stored = (write.sequence, base, end, write.first_id, write.records, write.pending_id, address)
            table[key] = _new_tuple(_Stored, stored)
            fresh.append(write)
            bases.append(base)
        if fresh and not self._store_rows(fresh):
            return [None if write.error is not None else base for (write, _), base in zip(asked, bases, strict=True)]
        return bases

    def stored_before(self, write: W) -> bool:
        """Whether a write that cannot be appended now has been stored already, or may have been: then it is as `admit`
        leaves it."""
        known = self._table.get((write.producer, write.delayed_for or write.log))
        if known is None:
            return write.repeat_ms >= 0 and self._may_be_forgotten(write)
        if write.sequence != known.sequence:
            return False
        self._found(write, known)
        return True

    def _may_be_forgotten(self, write: W) -> bool:
        """Whether a repeated write of an unknown producer may be stored; then it has its `error`."""
        latest_ms = write.repeat_ms + tuning.REPEAT_LATE_SECONDS * 1000
        if self._forgotten_ms < self._clock() * 1000 - latest_ms:
            return False
        write.error = SendInDoubt(
            f"it is not known whether number {write.sequence} of its producer is stored in topic "
            f"{(write.delayed_for or write.log).topic!r}: the broker has had more producers than it remembers, and has "
            "forgotten this one if it knew it. Look whether the messages are there before you send them again"
        )
        return True

    def _found(self, write: W, known: _Stored) -> None:
        if write.sequence < known.sequence:
            write.error = StaleSequence(write.sequence, known.sequence)
        else:
            write.base, write.end, write.first_id = known.base, known.end, known.first_id
            if known.records & DELAYED_ROW:
                write.delayed_for = write.delayed_for or write.log
                write.log = self._place(known.records, write.log)
                write.pending_id = known.pending_id
            elif write.delayed_for is not None:
                write.log, write.delayed_for = write.delayed_for, None
            self.repeated.append(write)

    def _store_rows(self, admitted: Sequence[W]) -> bool:
        """Append what has to be in front of these. False: that failed for some, which have the `error`."""
        if len(admitted) == 1 and not self._restated:
            return self._store_row(admitted[0])
        modes: dict[bool, list[W]] = {}
        for write in admitted:
            modes.setdefault(write.log.durability.waits, []).append(write)
        done = True
        for waits, writes in modes.items():
            topics: dict[str, int] = {}
            number = topics.setdefault
            rows = [_packed(row, topics) for row in self._take_restated()] if self._restated else []
            rows += [
                encode_row(
                    each.producer,
                    each.sequence,
                    each.base,
                    each.end,
                    each.first_id,
                    each.records,
                    (log := each.delayed_for or each.log).partition,
                    number(log.topic, len(topics)),
                )
                for each in writes
            ]
            done = self._append_rows(waits, topics, b"".join(rows), writes) and done
        return done

    def _store_row(self, write: W) -> bool:
        """The same for one write, of a producer that waits for each of its sends. `blocking-1`."""
        log = write.delayed_for or write.log
        row = encode_row(
            write.producer, write.sequence, write.base, write.end, write.first_id, write.records, log.partition, 0
        )
        return self._append_rows(write.log.durability.waits, (log.topic,), row, (write,))

    def _append_rows(self, waits: bool, topics: Iterable[str], rows: bytes, writes: Sequence[W]) -> bool:
        try:
            internal = self._store.internal_log(SEQUENCES_TOPIC, waits)
            body = encode_head(tuple(topics)) + rows
            data, unit = internal_record(body, writes[0].first_id, internal.segments.end_offset)
            internal.append((data,), unit)
        except MetaqError as error:
            for write in writes:
                write.error = error
            self.not_stored(writes)
            return False
        if waits:
            self._unsafe = internal
        return True

    def take_unsafe(self) -> W | None:
        """What has to be safe before an answer to the writes that were admitted since the last call: their rows. None:
        their partitions have asynchronous flush."""
        internal, self._unsafe = self._unsafe, None
        if internal is None:
            return None
        rows = self._make(internal, (), b"")
        rows.end = internal.end_offset
        return rows

    def not_stored(self, writes: Sequence[W]) -> None:
        """These were admitted, in this order, and have an `error` instead of being appended: they never happened.
        What `admit` has taken for a repetition of one of them gets that error, too."""
        for again in self.repeated:
            for write in writes:
                if _key(again) == _key(write) and again.sequence == write.sequence:
                    again.error, again.base, again.end = write.error, 0, 0
        for write in reversed(writes):  # so that what was before the first of a partition stays
            key = _key(write)
            write.base = write.end = 0
            known = self._table.get(key)
            if known is None or known.sequence != write.sequence:
                continue
            if write.before is None:
                self._drop(key)
            else:
                self._table[key] = write.before._replace(address=known.address)
            self._restated[key] = None

    def _take_restated(self) -> list[_Row]:
        restated, self._restated = self._restated, {}
        return [self._row(key) for key in restated]

    def _row(self, key: _Key) -> _Row:
        producer, log = key
        if producer == FORGOTTEN:
            return (producer, 0, 0, 0, self._id_of(self._forgotten_ms), 0, log)
        known = self._table.get(key)
        return (producer, 0, 0, 0, 0, 0, log) if known is None else (producer, *known[:5], log)

    # --- reading it again ---------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """As Memory."""
        self.enabled = False
        self._compaction.clear()

    def lead(self) -> None:
        """As Memory. Rows of writes that are not in their partitions are taken back, in the log too."""
        self._works.clear()
        self._table.clear()
        self._addresses.clear()
        self._restated.clear()
        forgotten_ms = 0.0
        found: defaultdict[_Key, list[SequenceRow]] = defaultdict(list)
        for log in self._store.internal_logs(SEQUENCES_TOPIC):
            read = self._read_on(log)
            forgotten_ms = max(forgotten_ms, read.forgotten_ms)
            for (producer, topic, number), rows in read.items():
                partition = self._store.find(topic, number)
                if partition is None and any(map(self._waits, rows)):
                    partition = self._for_waiting(topic, number)
                if partition is not None:
                    found[producer, partition] += rows
        newest_ms = max((row.time_ms for rows in found.values() for row in rows), default=0.0)
        newest_ms = max(newest_ms, forgotten_ms)
        self._rebuilt = self._clock(), newest_ms / 1000
        self._forgotten_ms = self._by_our_clock(forgotten_ms) if forgotten_ms else -inf
        oldest_ms = self._oldest_ms()
        address = _Address("")
        known: list[tuple[_Key, _Stored]] = []
        for key, rows in found.items():
            rows.sort(key=lambda row: row.sequence)
            for row in reversed(rows):
                log = self._place(row.records, key[1])
                if (found_id := _is_there(row, log)) is not None:
                    if row.time_ms >= oldest_ms:
                        pending_id = found_id if row.records & DELAYED_ROW else 0
                        known.append((key, _Stored(*row[1:6], pending_id, address)))
                    break
                self._restated[key] = None
        known.sort(key=lambda item: item[1].first_id)
        if (more := len(known) - tuning.MAX_SEQUENCES) > 0:
            self._note_forgotten(known[more - 1][1])
            del known[:more]
        self._table.update(known)
        address.update(dict.fromkeys(self._table))
        if address:
            self._addresses[address.host] = address
        if self._restated:
            self._restate()
        self.enabled = True

    def _waits(self, row: SequenceRow) -> bool:
        """Whether a row tells of messages that came to wait for their time, which need not have a partition yet."""
        return bool(row.records & DELAYED_ROW) and _is_there(row, self._pending_log(row.records)) is not None

    def _pending_log(self, records: int) -> PartitionLog:
        return self._store.internal_log(*pending_log(records))

    def _place(self, records: int, partition: PartitionLog) -> PartitionLog:
        """The log that has what a row tells of: the partition, or that of what waits for its time."""
        return self._pending_log(records) if records & DELAYED_ROW else partition

    def read_ahead(self) -> None:
        """As Memory."""
        for log in self._store.internal_logs(SEQUENCES_TOPIC):
            self._read_on(log)

    def _read_on(self, log: PartitionLog, most_bytes: int | None = None) -> LastRows:
        rows = self._last_rows.get(log)
        if rows is None:
            rows = self._last_rows[log] = LastRows(log, tuning.MAX_SEQUENCES)
        rows.read_on(most_bytes)
        return rows

    def _restate(self) -> None:
        for log in self._store.internal_logs(SEQUENCES_TOPIC):
            rows = self._take_restated()
            data, unit = _record(rows, self._now_id(), log.end_offset)
            append = Append(log, (data,), unit)
            self._store.append_many((append,))
            if append.error is not None:  # those rows go on being found out by their ids
                _log.warning("numbers of sends that were not stored stay in %s: %s", log.directory, append.error)
            self._restated = {(row[0], row[6]): None for row in rows}
        self._restated.clear()

    # --- time passes --------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """As Memory. What nobody has used for long is forgotten."""
        now = self._clock()
        if now >= self._next_sweep:
            self._next_sweep = now + tuning.SEQUENCES_SWEEP_SECONDS
            self._works.add(self._sweep(self._oldest_ms()))
        if self.enabled:
            self._compaction.tick()
        else:
            for log in self._store.followed_internal_logs(SEQUENCES_TOPIC):
                self._read_on(log, READ_BYTES)

    def _sweep(self, oldest_ms: float) -> Iterator[None]:
        """Forget what was used before then."""
        keys = iter(list(self._table))
        while some := tuple(islice(keys, tuning.SEQUENCES_SWEPT)):
            for key in some:
                stored = self._table.get(key)
                if stored is not None and _time_ms(stored) < oldest_ms:
                    self._drop(key)
            if self._works.is_over:
                yield

    def _most_bytes(self, log: PartitionLog) -> int:
        return max(tuning.SEQUENCE_LOG_BYTES, 4 * ROW_BYTES * len(self._table))

    def _write_all(self, log: PartitionLog) -> Iterator[None]:
        keys = [*([(FORGOTTEN, log)] if self._forgotten_ms > -inf else ()), *self._table]
        for first in range(0, len(keys), tuning.SEQUENCE_ROWS):
            rows = [self._row(key) for key in keys[first : first + tuning.SEQUENCE_ROWS]]
            data, unit = _record(rows, self._now_id(), log.end_offset)
            append = Append(log, (data,), unit)
            self._store.append_many((append,))
            if append.error is not None:
                raise append.error
            if self._works.is_over:
                yield

    # --- room ---------------------------------------------------------------------------------------------------------

    def _address(self, sender: SendingPeer | None) -> _Address:
        """Its entries, to which one is going to be added."""
        host = "?" if sender is None else sender.host
        found = self._addresses.get(host)
        if found is None:
            found = self._addresses[host] = _Address(host)
        return found

    def _come_from(self, unknown: _Address, key: _Key, sender: SendingPeer | None) -> _Address:
        """A producer of before the rebuild has sent again: it is known now where it is."""
        self._leave(unknown, key)
        address = self._address(sender)
        address[key] = None
        return address

    def _make_room(self) -> None:
        """Some go, of the address that has most: about those that were used longest ago. If none has many, of all."""
        table = self._table
        come: dict[_Key, Any] = max(self._addresses.values(), key=len)
        if len(come) <= tuning.FEW_SEQUENCES:
            come = table
        most = min(tuning.FORGOTTEN_SEQUENCES, max(1, len(come) // 4))
        oldest = sorted(islice(come, 2 * most), key=lambda key: table[key].first_id)
        self._note_forgotten(table[oldest[most - 1]])
        for key in oldest[:most]:
            self._drop(key)
        for key in oldest[most:]:  # they had come early and were used since
            come[key] = come.pop(key)

    def _note_forgotten(self, stored: _Stored) -> None:
        self._forgotten_ms = max(self._forgotten_ms, self._by_our_clock(_time_ms(stored)))

    def _drop(self, key: _Key) -> None:
        self._leave(self._table.pop(key).address, key)

    def _leave(self, address: _Address, key: _Key) -> None:
        del address[key]
        if not address:
            del self._addresses[address.host]

    def _by_our_clock(self, time_ms: float) -> float:
        """When what is dated by the clock of the node that led before was stored, at the latest."""
        at, newest = self._rebuilt
        return time_ms + (at - newest) * 1000 if time_ms <= newest * 1000 else time_ms

    # --- clocks -------------------------------------------------------------------------------------------------------

    def _oldest_ms(self) -> float:
        """Rows are dated by the clock of the node that led then, which may be far behind ours: what was young when this
        node took over stays for as long as if it had come then."""
        now = self._clock()
        at, newest = self._rebuilt
        if now < at + tuning.SEQUENCE_SECONDS:
            now = min(now, newest)
        return (now - tuning.SEQUENCE_SECONDS) * 1000

    def _now_id(self) -> int:
        return self._id_of(self._clock() * 1000)

    def _id_of(self, time_ms: float) -> int:
        return max(0, int(time_ms) - EPOCH_MS) << TIME_SHIFT


_Row = tuple[int, int, int, int, int, int, PartitionLog]
"""producer, sequence, base, end, first id, records, log."""


def _record(rows: Sequence[_Row], record_id: int, offset: int) -> tuple[bytes, bytes]:
    topics: dict[str, int] = {}
    packed = b"".join([_packed(row, topics) for row in rows])
    return internal_record(encode_head(tuple(topics)) + packed, record_id, offset)


def _packed(row: _Row, topics: dict[str, int]) -> bytes:
    *fields, log = row
    return encode_row(*fields, log.partition, topics.setdefault(log.topic, len(topics)))


def _time_ms(stored: _Stored) -> int:
    return (stored.first_id >> TIME_SHIFT) + EPOCH_MS


def _key(write: NumberedWrite) -> _Key:
    return write.producer, write.delayed_for or write.log


def _is_there(row: SequenceRow, log: PartitionLog) -> int | None:
    """The id of the first record of a row's write if it is in its log, 0 if that cannot be told; None if it is not.
    What retention has taken away is believed to have been."""
    if row.end > log.end_offset:
        return None
    if row.base < log.first_offset:
        return 0
    try:
        begun = log.segments.snapshot().read(row.base, first_bytes(row.records))
    except CorruptRecord:
        return None
    except StoreError as error:
        _log.error("it cannot be told whether a producer's last send is in %s: %s", log.directory, error)
        return 0
    if first_id_of(begun, row.records) != row.first_id:
        return None
    found: int = HEADER.unpack_from(begun)[2]
    return found
