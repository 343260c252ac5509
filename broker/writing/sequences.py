"""Remember the last write with a sequence number that each partition has stored for each producer, so that a repeated
write is stored only once.

A producer gives its writes to a partition increasing numbers, and has only one write to a partition in progress at a
time. So only its last write can be repeated, and only this write is remembered. A new write is handled according to its
number:

    higher than the last number     the write is stored, and is the last from then on
    the last number                 nothing is stored; the answer is the first one's, once that is safe
    lower                           a late copy, for which nobody waits: refused (StaleSequence)
    of an unknown producer          the write is stored; it is refused (SendInDoubt) if it says that it is a repetition,
                                    and its first transmission may have been forgotten for want of room

The number of pairs of producer and partition is limited (tuning.MAX_SEQUENCES). If there are more, entries (one for
each pair) of the client address with the most entries are forgotten first. So the entries of an address with many
producers do not displace the entries of other addresses. The time of the youngest forgotten entry is remembered in
memory and in the internal logs. If a repeated write was first sent before this time, its entry may have been forgotten,
so nobody knows whether it is stored.

The entries are read from rows in the internal logs (memory/sequence_rows.py), so they are as durable as the messages.
The row that describes a write is appended before the messages of the write. A row contains a byte offset and a message
id. It counts only if its messages are stored, that is, if the message at this offset has this id.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from math import inf
from typing import Any, NamedTuple, Protocol

from metaq.protocol.errors import CorruptRecord, MetaqError, SendInDoubt, StaleSequence, StoreError
from metaq.protocol.message_id import EPOCH_MS, TIME_SHIFT
from metaq.protocol.record import HEADER

from .. import tuning
from ..delays.deliverer import Delayed
from ..memory.memory import Memory
from ..memory.records import internal_record, record_id_at
from ..memory.sequence_rows import (
    DELAYED_ROW,
    FORGOTTEN,
    ROW_BYTES,
    SequenceRow,
    check_rows,
    encode_head,
    encode_row,
    first_bytes,
    first_id_of,
    pending_log,
)
from ..memory.topics import SEQUENCES_TOPIC
from ..runtime.reactor import ReactorTime
from ..runtime.slices import SlicedWork
from ..store.partition_log import PartitionLog
from ..store.store import Store
from .last_rows import READ_BYTES, LastRows
from .write import Number, Write

__all__ = ["SendingPeer", "Sequences", "Stored"]

_log = logging.getLogger(__name__)


class SendingPeer(Protocol):
    """The connection that has sent a write to the broker."""

    @property
    def host(self) -> str:
        """The network address of the client."""


class _Address(dict["_Key", None]):
    """The pairs of producer and partition that are remembered for the producers at one network address, in the order in
    which they were added.

    host: the address. It is "" for all pairs that were read from the logs.
    """

    __slots__ = ("host",)

    def __init__(self, host: str) -> None:
        super().__init__()
        self.host = host


class Stored(NamedTuple):
    """The remembered facts about a producer's last write to a partition. [base, end) is the range of its bytes in the
    log.
    """

    sequence: int
    base: int
    end: int
    first_id: int
    records: int
    pending_id: int
    address: _Address


_Key = tuple[int, PartitionLog]
_new_tuple = tuple.__new__


_Numbered = tuple[Write, Number, PartitionLog]
"""A write, its sequence number, and the log of its target partition (`Write.target`)."""


class Sequences(Memory[LastRows]):
    """Remembers the last write with a sequence number of each producer and partition. Used on the reactor thread only.
    While another node of the broker set leads, this object checks and records no sequence numbers.
    """

    topic = SEQUENCES_TOPIC
    name = "numbered sends"
    followed = READ_BYTES
    check_record = staticmethod(check_rows)

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        reactor: ReactorTime,
        for_waiting: Callable[[str, int], PartitionLog | None],
    ) -> None:
        """store: an open store. clock: returns the time in seconds since 1970. for_waiting: a function that returns the
        log of a partition that will get delayed messages. It returns None if the partition's topic is no longer
        accepted (`Partitions.for_waiting`).
        """
        super().__init__(store, clock, reactor)
        self._for_waiting = for_waiting
        self.repeated: list[Write] = []
        """The repeated writes that `admit` or `stored_before` has found to be stored already. The caller takes them out
        of the list.
        """
        self._table: dict[_Key, Stored] = {}
        self._addresses: dict[str, _Address] = {}  # by host; no entry is empty
        self._forgotten_ms = -inf
        """The time when the youngest forgotten entry was stored, in Unix milliseconds of this node's clock. It is -inf
        if no entry was forgotten. Entries are forgotten when there are too many.
        """
        self._unsafe: PartitionLog | None = None  # this log has rows that must be safe before answers are sent
        self._restated: dict[_Key, None] = {}  # the writes of the newest rows of these did not happen
        self._sweeps = SlicedWork(reactor)
        self._next_sweep = 0.0
        self._rebuilt = (0.0, 0.0)
        """The time when the internal logs were read, and the time in their newest row, both in seconds since 1970."""

    def __len__(self) -> int:
        """The number of remembered pairs of producer and partition."""
        return len(self._table)

    # --- writes -------------------------------------------------------------------------------------------------------

    def admit(self, asked: Sequence[tuple[Write, int]], sender: SendingPeer | None) -> list[int | None]:
        """Check writes with sequence numbers before they are appended, and return for each the byte offset where it
        must be appended. The caller must append the writes next, in the order of `asked`. asked: each write, and its
        size in bytes. sender: the connection that sent them. It is None if the connection is unknown. The rows that
        describe the writes must be appended before the writes. So `admit` appends the rows to the internal logs: one
        record for all writes to topics with group commit, and one for all other writes. The returned offset is None if
        the write has an `error`, or if it is stored already. A write that is stored already gets the offsets where it
        is stored, and is added to `repeated`.
        """
        bases: list[int | None] = []
        fresh: list[_Numbered] = []
        ends: dict[PartitionLog, int] = {}
        table = self._table
        for write, size in asked:
            log, number, delayed = write.log, write.number, write.delayed
            assert number is not None
            target, pending_id = (log, 0) if delayed is None else (delayed.target, delayed.pending_id)
            key = number.producer, target
            known = table.get(key)
            if known is None:
                if number.repeat_ms >= 0 and self._may_be_forgotten(write, number):
                    bases.append(None)
                    continue
                if len(table) >= tuning.MAX_SEQUENCES:
                    self._make_room()
                address = self._address(sender)
                address[key] = None
            elif number.sequence <= known[0]:
                self._found(write, number, known)
                bases.append(None)
                continue
            elif (address := known[6]).host == "":
                address = self._come_from(address, key, sender)
            base = ends.get(log) or log.segments.end_offset
            ends[log] = end = base + size
            number.before, write.base, write.end = known, base, end
            stored = (number.sequence, base, end, write.first_id, number.records, pending_id, address)
            table[key] = _new_tuple(Stored, stored)
            fresh.append((write, number, target))
            bases.append(base)
        if fresh and not self._store_rows(fresh):
            return [None if write.error is not None else base for (write, _), base in zip(asked, bases, strict=True)]
        return bases

    def stored_before(self, write: Write) -> bool:
        """Called if a write with a sequence number cannot be appended now. Return whether the write is stored already
        or may be stored already. If so, the write gets the offsets where it is stored, or the `error` SendInDoubt, as
        in `admit`.
        """
        number = write.number
        assert number is not None
        known = self._table.get((number.producer, write.target))
        if known is None:
            return number.repeat_ms >= 0 and self._may_be_forgotten(write, number)
        if number.sequence != known.sequence:
            return False
        self._found(write, number, known)
        return True

    def _may_be_forgotten(self, write: Write, number: Number) -> bool:
        """Called if a producer that has no entry repeats a write. Return whether the producer may have had an entry
        that was forgotten, so that the write may be stored already. If so, the write gets the `error` SendInDoubt.
        """
        latest_ms = number.repeat_ms + tuning.REPEAT_LATE_SECONDS * 1000
        if self._forgotten_ms < self._clock() * 1000 - latest_ms:
            return False
        write.error = SendInDoubt(
            f"it is not known whether number {number.sequence} of its producer is stored in topic "
            f"{write.target.topic!r}: the broker has had more producers than it remembers, and has "
            "forgotten this one if it knew it. Look whether the messages are there before you send them again"
        )
        return True

    def _found(self, write: Write, number: Number, known: Stored) -> None:
        if number.sequence < known.sequence:
            write.error = StaleSequence(number.sequence, known.sequence)
            return
        write.base, write.end, write.first_id = known.base, known.end, known.first_id
        target, write.delayed = write.target, None
        if known.records & DELAYED_ROW:
            write.delayed = Delayed(target, known.pending_id)
        write.log = self._place(known.records, target)
        self.repeated.append(write)

    def _store_rows(self, admitted: Sequence[_Numbered]) -> bool:
        """Append the rows that describe these writes to the internal logs, before the writes themselves are appended.
        Return False if some rows could not be appended; the error is then the `error` of the writes that these rows
        describe.
        """
        if len(admitted) == 1 and not self._restated:  # a producer that waits for each send (blocking-1)
            ((write, number, target),) = admitted
            place = write.base, write.end, write.first_id
            row = encode_row(number.producer, number.sequence, *place, number.records, target.partition, 0)
            return self._append_rows(write.log.durability.has_group_commit, (target.topic,), row, admitted)
        modes: dict[bool, list[_Numbered]] = {}
        for each in admitted:
            modes.setdefault(each[0].log.durability.has_group_commit, []).append(each)
        done = True
        for group_commit, writes in modes.items():
            topics: dict[str, int] = {}
            topic_number = topics.setdefault
            rows = [_packed(row, topics) for row in self._take_restated()] if self._restated else []
            rows += [
                encode_row(
                    number.producer,
                    number.sequence,
                    write.base,
                    write.end,
                    write.first_id,
                    number.records,
                    target.partition,
                    topic_number(target.topic, len(topics)),
                )
                for write, number, target in writes
            ]
            done = self._append_rows(group_commit, topics, b"".join(rows), writes) and done
        return done

    def _append_rows(
        self, group_commit: bool, topics: Iterable[str], rows: bytes, admitted: Sequence[_Numbered]
    ) -> bool:
        try:
            internal = self.store.internal_log(self.topic, group_commit)
            body = encode_head(tuple(topics)) + rows
            data, unit = internal_record(body, admitted[0][0].first_id, internal.segments.end_offset)
            internal.append((data,), unit)
        except MetaqError as error:
            for write, _, _ in admitted:
                write.error = error
            self.not_stored([write for write, _, _ in admitted])
            return False
        if group_commit:
            self._unsafe = internal
        return True

    def take_unsafe(self) -> Write | None:
        """Return one Write for the rows of all writes that were admitted since the last call. The caller must wait
        until this Write is safe on the disk before it answers the admitted writes. Return None if there is no such row,
        or if the caller need not wait because the partitions have asynchronous flush (puts are answered before a sync).
        """
        internal, self._unsafe = self._unsafe, None
        if internal is None:
            return None
        rows = Write(internal)
        rows.end = internal.end_offset
        return rows

    def not_stored(self, writes: Sequence[Write]) -> None:
        """Undo `admit` for admitted writes that have an `error` and were not appended, so that they count as not
        stored. writes: in the order of `admit`. If `admit` has treated a later write as a repetition of one of these
        writes, the later write gets the same error.
        """
        undone = [(write, number, (number.producer, write.target)) for write in writes if (number := write.number)]
        for again in self.repeated:
            for write, number, key in undone:
                its = again.number
                if its and (its.producer, again.target) == key and its.sequence == number.sequence:
                    again.error, again.base, again.end = write.error, 0, 0
        for write, number, key in reversed(undone):  # so that the state before the first write of a partition remains
            write.base = write.end = 0
            known = self._table.get(key)
            if known is None or known.sequence != number.sequence:
                continue
            if number.before is None:
                self._drop(key)
            else:
                self._table[key] = number.before._replace(address=known.address)
            self._restated[key] = None

    def _take_restated(self) -> list[_Row]:
        restated, self._restated = self._restated, {}
        return [self._row(key) for key in restated]

    def _row(self, key: _Key) -> _Row:
        producer, log = key
        if producer == FORGOTTEN:
            return (producer, 0, 0, 0, record_id_at(self._forgotten_ms), 0, log)
        known = self._table.get(key)
        return (producer, 0, 0, 0, 0, 0, log) if known is None else (producer, *known[:5], log)

    # --- reading it again ---------------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Begin to lead: rebuild the table of last writes from the internal logs (see `Memory.lead`). If the messages
        of a row are not in their partition, the row is revoked: it is not used, and a row that revokes it is appended
        to the internal log.
        """
        self._sweeps.clear()
        self._table.clear()
        self._addresses.clear()
        self._restated.clear()
        forgotten_ms = 0.0
        found: defaultdict[_Key, list[SequenceRow]] = defaultdict(list)
        for log in self.store.internal_logs(self.topic):
            read = self._of(log)
            read.read_on()
            forgotten_ms = max(forgotten_ms, read.forgotten_ms)
            for (producer, topic, number), rows in read.items():
                partition = self.store.find(topic, number)
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
        known: list[tuple[_Key, Stored]] = []
        for key, rows in found.items():
            rows.sort(key=lambda row: row.sequence)
            for row in reversed(rows):
                log = self._place(row.records, key[1])
                if (found_id := _is_there(row, log)) is not None:
                    if row.time_ms >= oldest_ms:
                        pending_id = found_id if row.records & DELAYED_ROW else 0
                        known.append((key, Stored(*row[1:6], pending_id, address)))
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
        """Return whether a row describes delayed messages that are stored in the internal log of delayed messages. The
        partition to which these messages will be delivered need not exist yet.
        """
        return bool(row.records & DELAYED_ROW) and _is_there(row, self._pending_log(row.records)) is not None

    def _pending_log(self, records: int) -> PartitionLog:
        return self.store.internal_log(*pending_log(records))

    def _place(self, records: int, partition: PartitionLog) -> PartitionLog:
        """Return the log that contains the messages of a row: the partition's log, or the internal log of delayed
        messages. records: the value of the row's field `records`.
        """
        return self._pending_log(records) if records & DELAYED_ROW else partition

    def _reader(self, log: PartitionLog) -> LastRows:
        return LastRows(log, tuning.MAX_SEQUENCES)

    def _restate(self) -> None:
        for log in self.store.internal_logs(self.topic):
            rows = self._take_restated()
            try:
                self._write(log, _body(rows))
            except MetaqError as error:  # the ids still show that those rows do not count
                _log.warning("numbers of sends that were not stored stay in %s: %s", log.directory, error)
            self._restated = {(row[0], row[6]): None for row in rows}
        self._restated.clear()

    # --- time passes --------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do the regular work, as in Memory: forget entries that were not used for a long time."""
        now = self._clock()
        if now >= self._next_sweep:
            self._next_sweep = now + tuning.SEQUENCES_SWEEP_SECONDS
            self._sweeps.add(self._sweep(self._oldest_ms()))
        super().tick()

    def _sweep(self, oldest_ms: float) -> Iterator[None]:
        """Forget entries that were last used before `oldest_ms`."""
        keys = iter(list(self._table))
        while some := tuple(islice(keys, tuning.SEQUENCES_SWEPT)):
            for key in some:
                stored = self._table.get(key)
                if stored is not None and _time_ms(stored) < oldest_ms:
                    self._drop(key)
            if self._sweeps.is_over:
                yield

    def most_bytes(self, log: PartitionLog) -> int:
        return max(tuning.SEQUENCE_LOG_BYTES, 4 * ROW_BYTES * len(self._table))

    def _state(self, log: PartitionLog) -> Iterator[bytes]:
        keys = [*([(FORGOTTEN, log)] if self._forgotten_ms > -inf else ()), *self._table]
        for first in range(0, len(keys), tuning.SEQUENCE_ROWS):
            yield _body([self._row(key) for key in keys[first : first + tuning.SEQUENCE_ROWS]])

    # --- room ---------------------------------------------------------------------------------------------------------

    def _address(self, sender: SendingPeer | None) -> _Address:
        """Return the entries of the sender's address; if there are none, create an empty table for them. The caller
        must add an entry to the returned table, because no table may stay empty.
        """
        host = "?" if sender is None else sender.host
        found = self._addresses.get(host)
        if found is None:
            found = self._addresses[host] = _Address(host)
        return found

    def _come_from(self, unknown: _Address, key: _Key, sender: SendingPeer | None) -> _Address:
        """Move the entry `key` from the table `unknown` to the table of the sender's address, and return the latter.
        Entries that were read from the internal logs are in `unknown`, because their addresses are not known until
        their producers send again. Called when the producer of `key` has sent again.
        """
        self._leave(unknown, key)
        address = self._address(sender)
        address[key] = None
        return address

    def _make_room(self) -> None:
        """Forget some entries, roughly the least recently used ones, because there are too many. The entries are taken
        from the client address with the most entries. If no address has many entries, they are taken from all
        addresses.
        """
        table = self._table
        come: dict[_Key, Any] = max(self._addresses.values(), key=len)
        if len(come) <= tuning.FEW_SEQUENCES:
            come = table
        most = min(tuning.FORGOTTEN_SEQUENCES, max(1, len(come) // 4))
        oldest = sorted(islice(come, 2 * most), key=lambda key: table[key].first_id)
        self._note_forgotten(table[oldest[most - 1]])
        for key in oldest[:most]:
            self._drop(key)
        for key in oldest[most:]:  # entries at the beginning that were used since
            come[key] = come.pop(key)

    def _note_forgotten(self, stored: Stored) -> None:
        self._forgotten_ms = max(self._forgotten_ms, self._by_our_clock(_time_ms(stored)))

    def _drop(self, key: _Key) -> None:
        self._leave(self._table.pop(key).address, key)

    def _leave(self, address: _Address, key: _Key) -> None:
        del address[key]
        if not address:
            del self._addresses[address.host]

    def _by_our_clock(self, time_ms: float) -> float:
        """Convert an entry's time from the former leader's clock to this node's clock, in Unix milliseconds. The
        difference of the clocks is not known exactly, so the result is the latest time when the entry can have been
        stored.
        """
        at, newest = self._rebuilt
        return time_ms + (at - newest) * 1000 if time_ms <= newest * 1000 else time_ms

    # --- clocks -------------------------------------------------------------------------------------------------------

    def _oldest_ms(self) -> float:
        """Return a time (Unix milliseconds); entries that were last used before it are too old and may be forgotten.
        Rows may contain times of the former leader's clock, which may be far behind this node's clock. So for
        SEQUENCE_SECONDS after this node began to lead, the age of an entry is measured from the newest time in the
        rows, not from this node's clock.
        """
        now = self._clock()
        at, newest = self._rebuilt
        if now < at + tuning.SEQUENCE_SECONDS:
            now = min(now, newest)
        return (now - tuning.SEQUENCE_SECONDS) * 1000


_Row = tuple[int, int, int, int, int, int, PartitionLog]
"""The fields of a row: producer id, sequence number, base, end, first message id, records, log."""


def _body(rows: Sequence[_Row]) -> bytes:
    topics: dict[str, int] = {}
    packed = b"".join([_packed(row, topics) for row in rows])
    return encode_head(tuple(topics)) + packed


def _packed(row: _Row, topics: dict[str, int]) -> bytes:
    *fields, log = row
    return encode_row(*fields, log.partition, topics.setdefault(log.topic, len(topics)))


def _time_ms(stored: Stored) -> int:
    return (stored.first_id >> TIME_SHIFT) + EPOCH_MS


def _is_there(row: SequenceRow, log: PartitionLog) -> int | None:
    """Check whether the messages of a row are stored in `log`, and return the message id of the first one. Return 0 if
    the id cannot be determined, and None if the messages are not in the log. Messages that retention has removed count
    as stored.
    """
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
