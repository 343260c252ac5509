"""Process the records in requests: determine the kind of each record, and handle it accordingly. The records of a
request are not processed one by one, but all together, in arrays (columns) with one item for each record.

A decoder (requests/put.py, requests/send.py, requests/transaction.py) passes the contents of a request to this module.
The decoder gets back `Write` objects with the results, or the errors of refused records, and encodes these for the
answer to the client.

    plain               stored in its partition
    delayed, half       DELAYED_FLAG: the message waits in an internal log; `metaq.half` makes it a half message
    compressed          COMPRESSED_FLAG: its payload must be in the compression's format, its topic must accept this
    numbered            stored once (sequences.py)
    repeated            numbered and already stored: the answer names the stored message's place
    in a transaction    plain or compressed; a commit stores it (transactions/)

`Puts` processes single puts. `TakenRun` processes the columns of a run: many puts that came together and that are all
plain. `TakenParts` processes complete records that clients have encoded. `take_copy` processes a message from a
synchronous master.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import sub
from typing import Generic, NamedTuple, Protocol, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt

from metaq.protocol.compression import check_packed
from metaq.protocol.errors import (
    ChecksumMismatch,
    CompressionNotAccepted,
    DelayRefused,
    MetaqError,
    PartitionClosed,
    RemoteProtocolError,
    TransactionRefused,
)
from metaq.protocol.half_messages import is_half
from metaq.protocol.message_id import message_id_list, message_ids_from
from metaq.protocol.put_run import PutRun
from metaq.protocol.record import (
    COMPRESSED_FLAG,
    DELAYED_FLAG,
    HEADER_BYTES,
    Buffer,
    checksum,
    checksums,
    headers_at,
    own_body,
)
from metaq.protocol.text import NO_CHECKSUM, Sync

from .. import tuning
from ..delays.delays import Delays, Pended
from ..delays.deliverer import Delayed
from ..memory.sequence_rows import row_bits
from ..partitions.partitions import ANY
from ..store.batch import StampedRecords, encode_puts, stamp_in_slices, stamp_puts
from ..store.index import UNIT_BYTES
from ..store.partition_log import PartitionLog
from .sequences import SendingPeer
from .write import Number, Write
from .writing import Writing

__all__ = [
    "ASKS",
    "AskedParts",
    "AskedPut",
    "PutBatch",
    "Puts",
    "TakenParts",
    "TakenRun",
    "check_in_transaction",
    "plain_logs",
    "take_batch",
    "take_copy",
    "take_many",
]

W = TypeVar("W", bound=Write)

ASKS = DELAYED_FLAG | COMPRESSED_FLAG
"""The bits of a message's flag with which a client asks the broker to do more than store the message."""


# --- kinds ------------------------------------------------------------------------------------------------------------


def check_in_transaction(writing: Writing, topic: str, puts: Sequence[tuple[int, int, Buffer]], meant: int) -> None:
    """Check whether messages may be added to a transaction. puts: the flag, checksum and body of each message. meant:
    the flag bits that are instructions for the broker. A client of 1.x may use the same bits for its own purposes; for
    such a client they are not in `meant`. Raises TransactionRefused, DelayRefused, CompressionNotAccepted,
    PayloadUnreadable.
    """
    if not writing.takes_all_kinds:
        raise TransactionRefused("a broker in synchronous replication has no transactions: send without one")
    if meant & DELAYED_FLAG:
        raise DelayRefused("a delayed message cannot be in a transaction: send it outside, or without a delay")
    for flag, _, body in puts:
        if flag & COMPRESSED_FLAG:
            _check_packed(writing, topic, flag, body, meant)


def _check_packed(writing: Writing, topic: str, flag: int, body: Buffer, meant: int = COMPRESSED_FLAG) -> None:
    """Check a record whose flag has the bit COMPRESSED_FLAG. meant: the flag bits that the client uses as requests to
    the broker. If `meant` lacks COMPRESSED_FLAG, the bit is ignored in a topic that accepts no compressed messages.
    Raises CompressionNotAccepted, PayloadUnreadable.
    """
    if writing.partitions.takes_compressed(topic):
        check_packed(body, flag)
    elif meant & COMPRESSED_FLAG:
        raise CompressionNotAccepted(topic)


def _keeper(writing: Writing, flag: int, body: Buffer) -> Delays:
    """Return the object that keeps a record with DELAYED_FLAG until it is delivered: `halves` for a half message,
    otherwise `delays`.
    """
    return writing.halves if is_half(flag, body) else writing.delays


def _log(writing: Writing, topic: str, partition: int, asked: int, keeper: Delays | None, size: int) -> PartitionLog:
    """Return the log of the records' target partition. keeper: the object that keeps the records if they are delayed,
    otherwise None. size: the bytes of these delayed records; 0 if they are checked later. Raises the errors of
    `Writing.log`; for delayed records also the errors of `Delays.check`, DelayRefused and PartitionClosed.
    """
    log = writing.log(topic, partition, asked)
    if keeper is not None:
        if not writing.takes_all_kinds:
            raise DelayRefused("a broker in synchronous replication keeps no delayed messages: send without a delay")
        if writing.partitions.is_leaving(topic, partition):
            raise PartitionClosed(writing.partitions.broker_id, partition)
        keeper.check(log, size)
    return log


def _owner(pended: Pended | None) -> tuple[Delays | None, int]:
    """Return the object that keeps these delayed records and their size in bytes; (None, 0) if there are none."""
    return (None, 0) if pended is None else (pended.owner, pended.size)


def _wait(write: Write, pended: Pended, target: PartitionLog) -> None:
    """Change a write of delayed records so that it appends them to their internal log instead of the partition. The
    index units are set later. target: the log of the records' target partition.
    """
    write.log, write.data = pended.log.log, pended.buffers
    write.delayed = Delayed(target, pended.ids[0], pended)
    if write.number is not None:
        write.number.records |= row_bits(write.log.topic, write.log.has_group_commit)


def _stored_before(
    writing: Writing, make: Callable[[PartitionLog], W], topic: str, partition: int, number: Number | None
) -> W | None:
    """These records must be refused if they are new. Look up whether an earlier send has stored them already. If they
    are stored, return a write with the offsets where they are stored. If they are not stored, return None. If it cannot
    be determined whether they were stored, the returned write has an `error`. If the stored records are not safe yet,
    the next call of `Writing.append` returns this write among the writes that are not safe yet. make: creates the write
    for a log. number: the sequence number. It is None if the records have none.
    """
    if number is None or not writing.numbers or (log := writing.partitions.stored(topic, partition)) is None:
        return None
    write = make(log)
    write.number = number
    return write if writing.sequences.stored_before(write) else None


def _admitted(writing: Writing, writes: Iterable[W], sender: SendingPeer | None) -> Iterator[W]:
    """Yield the writes that must be appended. If a write has a sequence number, the row about it is appended to the
    internal log before the write is yielded. A repeated write is not yielded: it gets an `error`, or the offsets where
    it was stored for the first time. If the records at these offsets are not safe yet, `Writing.append` returns the
    repeated write among the writes that are not safe yet.
    """
    admit, numbers = writing.sequences.admit, writing.numbers
    for write in writes:
        if not numbers or write.number is None or admit(((write, sum(map(len, write.data))),), sender)[0] is not None:
            yield write


def _kept(error: MetaqError) -> MetaqError:
    """Return the error without its traceback, to save memory. The stack frames in a traceback take 3 KB, and they and
    the connection refer to each other, so only Python's garbage collector can free them. If they survive one
    collection, the usual later collections do not examine them, so their memory would not be freed for a long time.
    """
    return error.with_traceback(None)


# --- single puts ------------------------------------------------------------------------------------------------------


class AskedPut(Protocol):
    """A put whose request is decoded."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def flag(self) -> int: ...
    @property
    def checksum(self) -> int: ...
    @property
    def body(self) -> Buffer: ...


P = TypeVar("P", bound=AskedPut)


class PutBatch(Write, Generic[P]):
    """Several puts for one partition that are stored with one append. keeper: the object that keeps delayed puts. It is
    None for other puts. dues: the times when delayed puts are due.
    """

    __slots__ = ("asked", "dues", "ids", "keeper", "puts")

    def __init__(self, log: PartitionLog, keeper: Delays | None = None, number: Number | None = None) -> None:
        super().__init__(log)
        self.number = number
        self.keeper = keeper
        self.ids: Sequence[int] = ()
        self.dues: list[int] = []
        self.asked: list[P] = []
        self.puts: list[tuple[int, int, Buffer]] = []  # flag, checksum, body


class Puts(Generic[P]):
    """Accepts single puts one by one, and then appends all of them, with one append per partition. A put with a
    producer's sequence number gets an append of its own.

    `take` checks each put separately, so if it refuses a put, the others are stored nevertheless. `append` appends all
    accepted puts.
    """

    __slots__ = (
        "_batches",
        "_begun",
        "_last",
        "_last_partition",
        "_last_topic",
        "_numbers",
        "_sender",
        "_writing",
        "batches",
    )

    def __init__(self, writing: Writing, sender: SendingPeer | None) -> None:
        """sender: the connection that sends the puts. It is None for a client that sends only one request."""
        self._writing = writing
        self._sender = sender
        self.batches: list[PutBatch[P]] = []
        # the last batch of each partition that more puts may join; the key of delayed messages is their keeper and
        # partition
        self._batches: dict[PartitionLog | tuple[Delays, PartitionLog], PutBatch[P]] = {}
        self._begun = 0  # number of partitions that get their first messages, so that files are created
        self._numbers = False  # whether a batch has a number
        # most reads bring puts to one partition
        self._last: PutBatch[P] | None = None
        self._last_topic = ""
        self._last_partition = ANY

    @property
    def is_full(self) -> bool:
        """Whether the accepted puts go to so many partitions, or need so many new files, that further puts would delay
        other requests for too long. If so, the caller must give further puts to another `Puts` object in a later turn
        of the reactor.
        """
        return len(self.batches) >= tuning.STEP_PARTITIONS or self._begun >= tuning.STEP_NEW_LOGS

    def take(self, put: P, meant: int, number: Number | None) -> PutBatch[P] | tuple[int, MetaqError]:
        """Accept a put: add it to the batch of its partition, and return the batch. If the put is refused, return its
        partition and the error instead of a batch. meant: the flag bits that the client sets as instructions for the
        broker. number: the producer's sequence number. It is None if the put has no sequence number.
        """
        flag, body, partition = put.flag, put.body, put.partition
        batch, due = self._last, 0
        try:
            if (
                meant & DELAYED_FLAG
                or number is not None
                or batch is None
                or partition != self._last_partition
                or put.topic != self._last_topic
            ):
                if partition == ANY:
                    if number is not None:
                        raise RemoteProtocolError("a send with a sequence names no partition")
                    partition = self._writing.partitions.choose(put.topic)
                keeper = None
                if meant & DELAYED_FLAG:
                    own = own_body(body, flag)  # one look through a long property list is enough
                    keeper = _keeper(self._writing, flag, own)
                    due = keeper.due(flag, own)
                batch = self._batch(put, partition, keeper, number)
            found = checksum(body)
            if found != put.checksum != NO_CHECKSUM:
                raise ChecksumMismatch
            if flag & COMPRESSED_FLAG:
                _check_packed(self._writing, put.topic, flag, body, meant)
        except MetaqError as error:
            self._writing.metrics.put(put.topic, 1, len(body))
            before: PutBatch[P] | None = _stored_before(self._writing, PutBatch, put.topic, put.partition, number)
            if before is None:
                return partition, _kept(error)
            self.batches.append(before)
            before.asked.append(put)
            return before
        batch.asked.append(put)
        batch.puts.append((flag, found, body))
        if batch.keeper is not None:
            batch.dues.append(due)
        return batch

    def _batch(self, put: P, partition: int, keeper: Delays | None, number: Number | None) -> PutBatch[P]:
        """Return the batch to which a put must be added; create it if there is none yet. keeper: the object that keeps
        the put if it is delayed, otherwise None. If the put is refused, raise the error.
        """
        key: PartitionLog | tuple[Delays, PartitionLog]
        if keeper is None:
            key = log = self._writing.log(put.topic, partition, put.partition)
        else:
            log = _log(self._writing, put.topic, partition, put.partition, keeper, len(put.body))
            key = keeper, log
        if number is None:
            if (batch := self._batches.get(key)) is None:
                batch = self._batches[key] = PutBatch(log, keeper)
                self.batches.append(batch)
                self._begun += keeper is None and not log.end_offset
            if keeper is None and put.partition != ANY:
                self._last, self._last_topic, self._last_partition = batch, put.topic, partition
            return batch
        self._batches.pop(log, None)  # so that later puts to its partition come after it
        self._last = None
        self._numbers = True
        batch = PutBatch(log, keeper, number)
        self.batches.append(batch)
        return batch

    def append(self) -> list[Write]:
        """Append all accepted puts, with one append per partition and one for each put that has a sequence number.
        Return the writes that are not safe yet.
        """
        batches: Iterator[PutBatch[P]] = map(self._stamped, [batch for batch in self.batches if batch.puts])
        return self._writing.append(_admitted(self._writing, batches, self._sender) if self._numbers else batches)

    def _stamped(self, batch: PutBatch[P]) -> PutBatch[P]:
        """Encode the records of a batch, with index units for the offset where its log ends now, and return the
        batch.
        """
        log, puts, writing = batch.log, batch.puts, self._writing
        count = len(puts)
        batch.first_id = first_id = writing.message_ids.next(count)
        batch.ids = ids = (first_id,) if count == 1 else message_id_list(first_id, count)
        if batch.keeper is None:
            batch.data, batch.units = encode_puts(puts, log.segments.end_offset, ids)
            writing.metrics.put(log.topic, count, sum(map(len, batch.data)) - count * HEADER_BYTES)
            return batch
        flags, found, bodies = zip(*puts, strict=True)
        pended = batch.keeper.pend(log, batch.dues, flags, found, bodies, ids)
        _wait(batch, pended, log)
        batch.ids, batch.units = pended.ids, pended.units(batch.log.end_offset)
        writing.metrics.put(log.topic, count, sum(map(len, bodies)))
        return batch


# --- records that lie back to back ------------------------------------------------------------------------------------


class _Spans(NamedTuple):
    """Where the parts of a sequence of adjacent records begin and end; each part has the records for one partition.
    Beginnings and ends are given as record numbers and as byte positions in the sequence.
    """

    starts: list[int]
    ends: list[int]
    byte_starts: list[int]
    byte_ends: list[int]

    @classmethod
    def of(cls, stamped: StampedRecords, counts: list[int]) -> Self:
        """Return the spans for consecutive parts of `stamped`. counts: the number of records in each part."""
        ends = list(accumulate(counts))
        starts = [0, *ends[:-1]]
        byte_ends = stamped.ends[np.array(ends) - 1].tolist()
        return cls(starts, ends, [0, *byte_ends[:-1]], byte_ends)

    def some(self, first: int, last: int) -> _Spans:
        """Return the spans of the parts `first` … `last` - 1."""
        return _Spans(*[column[first:last] for column in self])

    def records(self, number: int) -> slice:
        """Return the range of record numbers that belong to the part `number`."""
        return slice(self.starts[number], self.ends[number])

    @property
    def sizes(self) -> list[int]:
        """The size of each part in bytes."""
        return list(map(sub, self.byte_ends, self.byte_starts))

    def cut(self, data: Buffer, stamped: StampedRecords, bases: Sequence[int]) -> list[tuple[Buffer, bytes]]:
        """Return the data and the index units of each part. bases: the byte offsets of the parts in their logs."""
        starts, ends, byte_starts, byte_ends = self
        first = starts[0]
        units = stamped.units[first : ends[-1]]
        units["offset"] += np.repeat(np.subtract(bases, byte_starts), np.subtract(ends, starts))
        packed = units.tobytes()
        return [
            (data[byte_start:byte_end], packed[(start - first) * UNIT_BYTES : (end - first) * UNIT_BYTES])
            for start, end, byte_start, byte_end in zip(starts, ends, byte_starts, byte_ends, strict=True)
        ]


class _Bodies(Sequence[Buffer]):
    """The bodies of adjacent records, as a sequence. A body is cut out of the data only when it is accessed, to save
    the work for bodies that nobody needs.
    """

    def __init__(self, stamped: StampedRecords, chosen: slice | npt.NDArray[np.intp]) -> None:
        self._data = stamped.data
        self._starts, self._ends = stamped.starts[chosen] + HEADER_BYTES, stamped.ends[chosen]

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, which: int) -> Buffer: ...
    @overload
    def __getitem__(self, which: slice) -> list[Buffer]: ...
    def __getitem__(self, which: int | slice) -> Buffer | list[Buffer]:
        if isinstance(which, int):
            return self._data[int(self._starts[which]) : int(self._ends[which])]
        return [*map(self._data.__getitem__, map(slice, self._starts[which].tolist(), self._ends[which].tolist()))]


# --- runs -------------------------------------------------------------------------------------------------------------


def plain_logs(writing: Writing, run: PutRun) -> list[PartitionLog] | None:
    """Return, for each put of a run, the log of its partition. Return None if the puts must be processed one by one: if
    they are too few (tuning.RUN_LEAST_COST), if some must be refused, if some are delayed or compressed, or if this
    broker has a synchronous slave.
    """
    if len(run.bodies) + tuning.RUN_PARTITION_COST * len(set(run.partitions)) < tuning.RUN_LEAST_COST:
        return None
    if any(run.flags) and int(np.bitwise_or.reduce(run.flags)) & ASKS:
        return None
    logs = writing.logs(run.topics, run.partitions)
    return logs if logs is None or (checksums(run.bodies) == np.array(run.checksums)).all() else None


class TakenRun:
    """A run: many puts that came together. All its puts are plain (only to be stored), and their checks in `plain_logs`
    have refused none. ids, offsets: the message id and the byte offset of each put.
    """

    def __init__(self, writing: Writing, run: PutRun, logs: list[PartitionLog]) -> None:
        """logs: the log of each put, as `plain_logs` has returned them."""
        self._writing = writing
        self._run = run
        self.logs = logs
        self.ids = message_ids_from(writing.message_ids.next(len(logs)), len(logs))
        self.offsets = np.empty(len(logs), np.int64)
        self._writes: list[Write] = []

    def append(self) -> Generator[None, None, list[Write]]:
        """Append all puts, with one append per partition. If there are many partitions, this is done in slices, and the
        generator yields between them. Return the writes that are not safe yet.
        """
        logs = list(dict.fromkeys(self.logs))
        numbers = dict(zip(logs, range(len(logs)), strict=True))
        number = np.fromiter(map(numbers.__getitem__, self.logs), np.intp, len(self.logs))
        order = number.argsort(kind="stable")
        counts = np.bincount(number)
        ends = counts.cumsum()  # as numbers of records
        waiting: list[Write] = []
        for first in range(0, len(logs), tuning.STEP_PARTITIONS):
            part = slice(first, first + tuning.STEP_PARTITIONS)
            start = int(ends[first] - counts[first])
            if first:
                yield
            writes = self._written(logs[part], order[start : int(ends[part][-1])], counts[part])
            self._writes += writes
            if first:  # other requests were served meanwhile
                self._refuse(writes)
            waiting += self._writing.append([write for write in writes if write.error is None])
        return waiting

    def failures(self) -> dict[PartitionLog, MetaqError]:
        """Return the errors of puts that are not stored or not safe, in a dict with the log of each put's partition as
        the key.
        """
        return {write.log: write.error for write in self._writes if write.error is not None}

    def _refuse(self, writes: Sequence[Write]) -> None:
        """Set the `error` of each write whose partition no longer accepts puts, so that the write is not appended."""
        for write in writes:
            try:
                self._writing.log(write.log.topic, write.log.partition, write.log.partition)
            except MetaqError as error:
                write.error = _kept(error)

    def _written(
        self, logs: Sequence[PartitionLog], order: npt.NDArray[np.intp], counts: npt.NDArray[np.intp]
    ) -> list[Write]:
        """Return one write for each partition, with the records for this partition. Also count the records in the
        metrics, and set the byte offset of each put. order: the numbers of the puts in the run, sorted by partition.
        counts: the number of puts for each partition.
        """
        run = self._run
        bodies = list(map(run.bodies.__getitem__, order.tolist()))
        flags, crcs = np.array(run.flags)[order], np.array(run.checksums)[order]
        stamped = stamp_puts(flags, crcs, bodies, self.ids[order])
        data: Buffer = stamped.data
        if len(data) < tuning.RUN_VIEW_BYTES * len(logs):
            data = bytes(data)
        pieces = _Spans.of(stamped, counts.tolist()).cut(data, stamped, [log.end_offset for log in logs])
        self.offsets[order] = stamped.units["offset"]
        for log, (records, _), count in zip(logs, pieces, counts.tolist(), strict=True):
            self._writing.metrics.put(log.topic, count, len(records) - count * HEADER_BYTES)
        return [Write(log, (records,), units) for log, (records, units) in zip(logs, pieces, strict=True)]


# --- batches ----------------------------------------------------------------------------------------------------------

SizedRecords = tuple[memoryview, npt.NDArray[np.int64]]
"""The bytes of adjacent records, and an array with the size of each record in bytes (header and body)."""


def take_batch(
    writing: Writing, topic: str, asked: int, number: Number | None, records: SizedRecords, sender: SendingPeer | None
) -> Generator[None, None, tuple[Write, list[Write]]]:
    """Store the records of one SEND_BATCH, either all or none. Return the write of the records, and all writes that
    must be safe before the answer. asked: the partition, or ANY if the broker chooses it. If the records are refused,
    raise the error. Raises RemoteProtocolError if the records do not have the stated sizes.
    """
    count = len(records[1])
    writing.metrics.put(topic, count, len(records[0]) - count * HEADER_BYTES)
    try:
        partition = writing.partitions.choose(topic) if asked == ANY else asked
        writing.log(topic, partition, asked)
        first_id = writing.message_ids.next(count)
        stamped = yield from stamp_in_slices(*records, message_ids_from(first_id, count))
        if not stamped.intact.all():
            raise ChecksumMismatch
        pended = None
        if stamped.flags & ASKS:
            flags = headers_at(stamped.data, stamped.starts)["flag"]
            unfit: dict[int, MetaqError] = {}
            yield from _find_packed(writing, stamped, flags, [count], [topic], unfit)
            if unfit:
                raise unfit.pop(0)
            if stamped.flags & DELAYED_FLAG:
                place = topic, partition, asked
                pended = yield from _pend(writing, *place, stamped, flags, slice(0, count))
        log = _log(writing, topic, partition, asked, *_owner(pended))  # others may have been served meanwhile
    except MetaqError as error:
        before = _stored_before(writing, Write, topic, asked, number)
        if before is None:
            writing.refused(topic, error, count)
            raise
        return before, writing.append(())
    write = Write(log)
    write.number, write.first_id = number, first_id
    if pended is None:
        stamped.units["offset"] += log.end_offset
        write.data, write.units = (stamped.data,), stamped.units.view(np.uint8).data
    else:
        _wait(write, pended, log)
        write.units = pended.units(write.log.end_offset)
    return write, writing.append(_admitted(writing, (write,), sender))


def _parts_of(ends: Sequence[int], chosen: npt.NDArray[np.generic]) -> list[int]:
    """Return the numbers of the parts that contain the chosen records. chosen: one item for each record; nonzero means
    that the record is chosen. ends: for each part, the record number after its last record.
    """
    return np.searchsorted(ends, np.flatnonzero(chosen), "right").tolist()  # type: ignore[no-any-return]


def _find_packed(
    writing: Writing,
    stamped: StampedRecords,
    flags: npt.NDArray[np.int32],
    ends: Sequence[int],
    topics: Sequence[str],
    unfit: dict[int, MetaqError],
) -> Generator[None, None, None]:
    """Check the compressed records. If one must be refused, add the number of its part, with the error, to `unfit`.
    ends, topics: for each part, the record number after its last record, and its topic.
    """
    chosen = np.flatnonzero(flags & COMPRESSED_FLAG)
    columns = _parts_of(ends, flags & COMPRESSED_FLAG), flags[chosen].tolist(), _Bodies(stamped, chosen)
    for place, (number, flag, body) in enumerate(zip(*columns, strict=True), 1):
        if number not in unfit:
            try:
                _check_packed(writing, topics[number], flag, body)
            except MetaqError as error:
                unfit[number] = _kept(error)
        if not place % tuning.PACKED_SLICE_RECORDS:
            yield


def _pend(
    writing: Writing,
    topic: str,
    partition: int,
    asked: int,
    stamped: StampedRecords,
    flags: npt.NDArray[np.int32],
    chosen: slice,
) -> Generator[None, None, Pended]:
    """Return the data that must be appended to the internal log for these records. At least one of the records is
    delayed.
    chosen: the numbers of the records in `stamped`. Raises RemoteProtocolError if only some of the records are delayed.
    If the records are refused, raises the error of the refusal.
    """
    data, starts, ends, units, *_ = stamped
    own = flags[chosen]
    first = slice(int(starts[chosen.start]) + HEADER_BYTES, int(ends[chosen.start]))
    keeper = _keeper(writing, int(own[0]), data[first])
    log = _log(writing, topic, partition, asked, keeper, 0)
    if not (own & DELAYED_FLAG).all():
        raise RemoteProtocolError("delayed messages and others cannot be in one batch: send two")
    found = headers_at(data, starts[chosen])["checksum"].tolist()
    columns = own.tolist(), found, _Bodies(stamped, chosen), units["id"][chosen].tolist()
    return (yield from keeper.pend_in_slices(log, *columns))


class AskedParts(NamedTuple):
    """The contents of a SEND_MANY frame, as columns with one item for each part. A part is the records for one
    partition.

    topics: the topic of each part, as index into `names`. partitions: the partition of each part, or ANY if the broker
    chooses it. counts: the number of records in each part. sequences: the sequence number of each part. The column is
    empty if the frame names no producer. repeats: the numbers of the parts that the client has sent before. It sent
    them first `repeat_ms` milliseconds ago.
    """

    names: Sequence[str]
    topics: Sequence[int]
    partitions: Sequence[int]
    counts: list[int]
    producer: int
    sequences: Sequence[int]
    repeats: frozenset[int]
    repeat_ms: int


class TakenParts:
    """The parts of a SEND_MANY frame while they are stored. The records of each part are either all stored or all
    refused.
    """

    def __init__(self, writing: Writing, asked: AskedParts, sender: SendingPeer | None) -> None:
        """sender: the connection that sends the puts. It is None for a client that sends only one request."""
        self._writing = writing
        self._sender = sender
        self._asked = asked
        self._topics = [asked.names[number] for number in asked.topics]
        self._sequences = asked.sequences if writing.numbers else ()
        self._repeats = dict.fromkeys(asked.repeats, asked.repeat_ms)
        self._counts = asked.counts
        self.partitions = list(asked.partitions)
        """For each part of the request (the messages for one partition): the requested partition, or the one that the
        broker has chosen.
        """
        self.waiting: list[Write] = []
        """The writes that are not safe yet."""
        self.writes: dict[int, Write] = {}
        """The write of each part, by part number. Repeated writes are included."""
        self._refused: dict[int, MetaqError] = {}  # the errors of parts without a write
        self._unfit: dict[int, MetaqError] = {}  # the errors of parts that must be refused because of their records
        self._delayed: dict[int, Pended] = {}  # the delayed records of parts that have no write yet
        self._chunk: dict[int, Write] = {}  # the writes of the last chunk
        self._failed: dict[PartitionLog, MetaqError] = {}
        self._first_ids = [0] * len(asked.counts)
        self._next = 0

    # --- the result ---------------------------------------------------------------------------------------------------

    def failures(self) -> dict[int, MetaqError]:
        """Return by part number the errors of parts that are not stored or not safe. Call this only once, because it
        counts the refused messages in the metrics.
        """
        errors: dict[int, MetaqError] = {}
        for number, write in self.writes.items():
            if (write.error is not None or write.copy_errors) and (failure := write.failure) is not None:
                errors[number] = failure
                self._writing.refused(self._topics[number], failure, self._counts[number])
        return errors | self._refused  # `_refused` is counted already

    def places(self) -> tuple[list[int], list[int]]:
        """Return two lists: for each part, the message id of its first record, and the byte offset of its first
        record.
        """
        ids, offsets = self._first_ids, [0] * len(self._counts)
        for number, write in self.writes.items():
            if write.number is None and write.delayed is None:
                offsets[number] = write.base
            else:
                ids[number], offsets[number] = write.answered_id, write.answered_offset
        return ids, offsets

    # --- what each part is --------------------------------------------------------------------------------------------

    def refuse(self, number: int, error: MetaqError) -> None:
        """Refuse a part with `error`, unless an earlier send of the client has stored, or may have stored, the part."""
        if self._sequences:
            its = Number(self._asked.producer, self._sequences[number], 1, self._repeats.get(number, -1))
            write = _stored_before(self._writing, Write, self._topics[number], self._asked.partitions[number], its)
            if write is not None:
                self.writes[number] = write
                return
        self._refused[number] = _kept(error)
        self._writing.refused(self._topics[number], error, self._counts[number])

    def count(self, spans: _Spans, seconds: Callable[[], float]) -> Generator[None, None, None]:
        """Count the records in the metrics as requested puts, whether they will be stored or refused. Each topic is
        counted separately, and a frame may name many topics. So the generator yields after every SEND_SLICE_SECONDS, to
        let other requests be served.
        """
        asked, count_put = self._asked, self._writing.metrics.put
        totals = (np.bincount(asked.topics, each, len(asked.names)).tolist() for each in (asked.counts, spans.sizes))
        until = seconds() + tuning.SEND_SLICE_SECONDS
        for topic, count, size in zip(asked.names, *totals, strict=True):
            if count:
                if seconds() >= until:
                    yield
                    until = seconds() + tuning.SEND_SLICE_SECONDS
                count_put(topic, int(count), int(size - count * HEADER_BYTES))

    def _judge(
        self, stamped: StampedRecords, spans: _Spans, seconds: Callable[[], float]
    ) -> Generator[None, None, None]:
        """Find the parts that must be refused because one of their records is damaged or not allowed. For parts with
        delayed records, prepare the data for the internal log.
        """
        unfit = self._unfit
        unfit |= dict.fromkeys(_parts_of(spans.ends, ~stamped.intact), ChecksumMismatch())
        if not stamped.flags & ASKS:
            return
        flags = headers_at(stamped.data, stamped.starts)["flag"]
        yield from _find_packed(self._writing, stamped, flags, spans.ends, self._topics, unfit)
        until = seconds() + tuning.SEND_SLICE_SECONDS
        for number in sorted({*_parts_of(spans.ends, flags & DELAYED_FLAG)} - unfit.keys()):
            if seconds() >= until:
                yield
                until = seconds() + tuning.SEND_SLICE_SECONDS
            topic, asked, chosen = self._topics[number], self.partitions[number], spans.records(number)
            try:
                partition = self._writing.partitions.choose(topic) if asked == ANY else asked
                self._delayed[number] = yield from _pend(self._writing, topic, partition, asked, stamped, flags, chosen)
            except MetaqError as error:
                unfit[number] = _kept(error)
            else:
                self.partitions[number] = partition

    # --- appending ----------------------------------------------------------------------------------------------------

    def append(
        self, stamped: StampedRecords, spans: _Spans, seconds: Callable[[], float]
    ) -> Generator[None, None, None]:
        """Append all parts, with one append per part. The generator yields between groups of parts, so that other
        requests are served. The appends of all groups are synced together at the end.
        """
        self._first_ids = stamped.units["id"][spans.starts].tolist()
        if stamped.flags & ASKS or not stamped.intact.all():
            yield from self._judge(stamped, spans, seconds)
        while self._next < len(self._counts):
            if self._next:
                yield
            # a slave gets its copies when all parts are appended; until then no other puts may be appended
            until = seconds() + tuning.SEND_SLICE_SECONDS if self._writing.slave is None else float("inf")
            self.waiting += self._writing.append(self._written(stamped, spans, seconds, until))

    def _written(
        self, stamped: StampedRecords, spans: _Spans, seconds: Callable[[], float], until: float
    ) -> Iterator[Write]:
        """Yield writes for the caller to append, and stop when the time `until` has come. At least the writes of one
        chunk (some consecutive parts of the frame) are yielded.
        """
        most = tuning.SEND_PARTS if not self._delayed else tuning.SEND_WAITING_PARTS
        while (first := self._next) < len(self._counts):
            logs = self._logs(first, min(first + most, len(self._counts)), seconds, until)
            some = spans.some(first, first + len(logs))
            sizes = some.sizes
            writes = self._made(first, logs, sizes)
            bases = self._places(writes, sizes)
            pieces = some.cut(stamped.data, stamped, [base or 0 for base in bases])
            for write, base, (data, units) in zip(writes, bases, pieces, strict=True):
                if write is not None and base is not None:
                    if write.delayed is None:
                        write.data, write.units = (data,), units
                    elif write.delayed.pended is not None:
                        write.units = write.delayed.pended.units(base)
                    yield write
            self._next = first + len(logs)
            if self._next < len(self._counts) and seconds() >= until:
                return

    def _made(self, first: int, logs: Sequence[PartitionLog | None], sizes: list[int]) -> list[Write | None]:
        """Return a write for each part of a chunk, or None for a part that is refused or repeated. The data of the
        writes is not set yet. sizes: the number of bytes of each part's records. If a part has delayed records, `_made`
        changes its item in `sizes` to the size of the data for the internal log.
        """
        producer, sequences, repeats, delayed = self._asked.producer, self._sequences, self._repeats, self._delayed
        made: list[Write | None] = []
        chunk: dict[int, Write] = {}
        for number, log in enumerate(logs, first):
            if log is None:
                made.append(None)
                continue
            chunk[number] = write = Write(log)
            made.append(write)
            if sequences:
                write.first_id = self._first_ids[number]
                write.number = Number(producer, sequences[number], self._counts[number], repeats.get(number, -1))
            if delayed and number in delayed:
                pended = delayed.pop(number)  # freed after its append, because the garbage collector looks at each
                _wait(write, pended, log)
                sizes[number - first] = pended.size
        self._chunk = chunk
        self.writes.update(chunk)
        return made

    def _places(self, writes: Sequence[Write | None], sizes: list[int]) -> list[int | None]:
        """Return, for each write of a chunk, the byte offset in the log where its records will begin, or None if the
        write is not appended. If several writes go to the same log, each begins where the one before it ends. sizes:
        the number of bytes of each write's records.
        """
        if self._sequences:
            asked = [(write, size) for write, size in zip(writes, sizes, strict=True) if write is not None]
            admitted = iter(self._writing.sequences.admit(asked, self._sender))
            return [None if write is None else next(admitted) for write in writes]
        bases: list[int | None] = []
        ends: dict[PartitionLog, int] = {}
        for write, size in zip(writes, sizes, strict=True):
            base = None
            if write is not None:
                base = ends.get(write.log) or write.log.segments.end_offset
                ends[write.log] = base + size
            bases.append(base)
        return bases

    def _logs(self, first: int, last: int, seconds: Callable[[], float], until: float) -> Sequence[PartitionLog | None]:
        """Return the log of each of the parts `first` … `last` - 1, or None for a part that is refused or repeated.
        A log that does not exist must be created, which takes a third of a millisecond. So when the time `until` has
        come, return only the logs that were found so far.
        """
        if self._chunk:
            self._failed |= {write.log: write.error for write in self._chunk.values() if write.error is not None}
        if not (self._failed or self._unfit or self._delayed or ANY in self._asked.partitions):
            logs = self._writing.logs(self._topics[first:last], self.partitions[first:last])
            if logs is not None:
                return logs
        found: list[PartitionLog | None] = []
        for number in range(first, last):
            if found and seconds() >= until:
                break
            try:
                if number in self._unfit:
                    raise self._unfit[number]
                found.append(self._log(number))
            except MetaqError as error:
                self.refuse(number, error)
                found.append(None)
        return found

    def _log(self, number: int) -> PartitionLog:
        """Return the log of the partition to which a part's records go. If the part must be refused, raise the
        error.
        """
        topic, asked, partition = self._topics[number], self._asked.partitions[number], self.partitions[number]
        if partition == ANY:
            partition = self.partitions[number] = self._writing.partitions.choose(topic)
        pended = self._delayed.get(number)
        log = _log(self._writing, topic, partition, asked, *_owner(pended))
        error = self._failed.get(log if pended is None else pended.log.log)
        if error is not None:  # later parts for the partition of a refused part are refused, too
            raise error
        return log


def take_many(
    writing: Writing, asked: AskedParts, records: SizedRecords, sender: SendingPeer | None, seconds: Callable[[], float]
) -> Generator[None, None, TakenParts]:
    """Store the parts of a SEND_MANY frame. If one part is refused, the other parts are stored nevertheless. If the
    records do not have the stated sizes, raise RemoteProtocolError and append nothing.
    """
    count = len(records[1])
    stamped = yield from stamp_in_slices(*records, message_ids_from(writing.message_ids.next(count), count))
    taken = TakenParts(writing, asked, sender)
    spans = _Spans.of(stamped, asked.counts)
    yield from taken.count(spans, seconds)
    yield from taken.append(stamped, spans, seconds)
    return taken


# --- copies -----------------------------------------------------------------------------------------------------------


def take_copy(writing: Writing, sync: Sync, now_ms: int) -> Write:
    """Return the write for a message from a synchronous master. If the message is refused, raise the error."""
    writing.metrics.put(sync.topic, 1, len(sync.body))
    found = checksum(sync.body)
    if found != sync.checksum != NO_CHECKSUM:
        raise ChecksumMismatch
    log = writing.partitions.for_put(sync.topic, sync.partition)
    puts = [(sync.flag, found, sync.body)]
    return Write(log, *encode_puts(puts, log.end_offset, (sync.message_id,), now_ms))
