"""SEND_BATCH and SEND_MANY: records that a client has encoded, for one partition or for many, in one frame."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from metaq.protocol.errors import ChecksumMismatch, MetaqError, RemoteProtocolError
from metaq.protocol.frames import Frame
from metaq.protocol.message_id import message_ids_from
from metaq.protocol.record import COMPRESSED_FLAG, DELAYED_FLAG, HEADER_BYTES, Buffer, headers_at
from metaq.protocol.refusals import response_code
from metaq.protocol.sends import (
    Parts,
    SendBatchRequest,
    SendManyReply,
    SendManyRequest,
    encode_replicas,
    encode_rows,
    encode_sent_reply,
    split_batch,
    split_many,
)
from metaq.protocol.statuses import ResponseCode

from .. import tuning
from ..delays.delays import Delays
from ..partitions.partitions import ANY
from ..reading.answers import Bytes, Work, answer_frame
from ..runtime.reactor import ReactorTime
from ..store.batch import StampedRecords, stamp_in_slices
from ..store.index import UNIT_BYTES
from ..store.partition_log import PartitionLog
from ..writing.sequences import SendingPeer
from ..writing.writing import Write, Writing

__all__ = ["answer_send_batch", "answer_send_many"]


def answer_send_batch(writing: Writing, frame: Frame, caller: SendingPeer | None) -> Work:
    """Store all records or none. Raises RemoteProtocolError, ChecksumMismatch, and as a refused put."""
    request = SendBatchRequest.from_ext(frame.ext)
    topic, asked, count = request.topic, request.partition, request.records
    if request.sequence and asked == ANY:
        raise RemoteProtocolError("a send with a sequence names no partition")
    sizes, records = split_batch(frame.body, count)
    writing.metrics.put(topic, count, len(records) - count * HEADER_BYTES)
    try:
        partition = writing.partitions.choose(topic) if asked == ANY else asked
        log = writing.log(topic, partition, asked)
        first_id = writing.message_ids.next(count)
        stamped = yield from stamp_in_slices(records, sizes, message_ids_from(first_id, count))
        if not stamped.intact.all():
            raise ChecksumMismatch
        for refusal in _refused_packed(writing, stamped, [topic], np.zeros(count, np.intp)):
            if refusal is not None:
                raise refusal[1]
            yield
        log = writing.log(topic, partition, asked)  # others may have been served meanwhile
        write = None
        if stamped.flags & DELAYED_FLAG:
            keeper = _keeper(writing, stamped, 0)
            pending_log = writing.log_for_delayed(topic, partition, asked, keeper)
            write = yield from _pended(writing, keeper, pending_log, stamped, 0, count)
            writing.log_for_delayed(topic, partition, asked, keeper)
    except MetaqError as error:
        number = request.producer, request.sequence, request.repeat_ms
        if (before := _stored_before(writing, topic, asked, *number)) is None:
            writing.refused(topic, error, count)
            raise
        write = before
        waiting = writing.append(())
    else:
        if write is None:
            units = stamped.units
            units["offset"] += log.end_offset
            write = Write(log, (stamped.data,), units.view(np.uint8).data)
            write.first_id = first_id
        else:
            assert write.pended is not None
            write.units = write.pended.units(write.log.end_offset)
        if request.sequence:
            writing.number(write, request.producer, request.sequence, count)
            write.repeat_ms = request.repeat_ms
            waiting = writing.append(writing.numbered((write,), caller))
        else:
            waiting = writing.append((write,))

    def encode() -> Bytes:
        if (error := write.failure) is not None:
            writing.refused(topic, error, count)
            raise error
        place = write.answered_id, write.partition, write.answered_offset
        return encode_sent_reply(frame.opaque, *place, write.replicas)

    return writing.answer(waiting, encode)


def _refused_packed(
    writing: Writing, stamped: StampedRecords, topics: Sequence[str], numbers: npt.NDArray[np.intp]
) -> Iterator[tuple[int, MetaqError] | None]:
    """Yield the topic's number and the error for each refused record with COMPRESSED_FLAG, and now and then None, when
    others may be served. numbers: the topic's number for each record."""
    if not stamped.flags & COMPRESSED_FLAG:
        return
    data, starts, ends, *_ = stamped
    flags = headers_at(data, starts)["flag"]
    chosen = np.flatnonzero(flags & COMPRESSED_FLAG)
    columns = numbers[chosen].tolist(), flags[chosen].tolist(), _Bodies(data, starts[chosen], ends[chosen])
    for place, (number, flag, body) in enumerate(zip(*columns, strict=True), 1):
        try:
            writing.check_packed(topics[number], flag, body)
        except MetaqError as error:
            yield number, error
        if not place % tuning.PACKED_SLICE_RECORDS:
            yield None


def _keeper(writing: Writing, stamped: StampedRecords, first: int) -> Delays:
    """Return the keeper of the batch that begins with this record, and has a record with DELAYED_FLAG."""
    flag = int(headers_at(stamped.data, stamped.starts[first : first + 1])["flag"][0])
    body = stamped.data[int(stamped.starts[first]) + HEADER_BYTES : int(stamped.ends[first])]
    return writing.keeper(flag, body)


def _pended(
    writing: Writing, keeper: Delays, log: PartitionLog, stamped: StampedRecords, first: int, last: int
) -> Generator[None, None, Write]:
    """Return the Write for the delayed records `first` … `last` - 1, without units. Raises RemoteProtocolError."""
    data, starts, ends, units, *_ = stamped
    headers = headers_at(data, starts[first:last])
    flags = headers["flag"]
    if not (flags & DELAYED_FLAG).all():
        raise RemoteProtocolError("delayed messages and others cannot be in one batch: send two")
    taken = units["id"][first:last].tolist()
    columns = flags.tolist(), headers["checksum"].tolist(), _Bodies(data, starts[first:last], ends[first:last]), taken
    pended = yield from keeper.pend_in_slices(log, *columns)
    return writing.pended(pended, log, taken[0])


class _Bodies(Sequence[Buffer]):
    """The bodies of records, made when they are accessed."""

    def __init__(self, data: memoryview, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
        self._data, self._starts, self._ends = data, starts + HEADER_BYTES, ends

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


def _stored_before(
    writing: Writing, topic: str, partition: int, producer: int, sequence: int, repeat_ms: int
) -> Write | None:
    """Return the write of a refused send if it was stored before, or, with an `error`, if it may have been."""
    if not sequence or (log := writing.partitions.stored(topic, partition)) is None:
        return None
    write = Write(log, (), b"")
    write.producer, write.sequence, write.repeat_ms = producer, sequence, repeat_ms
    return write if writing.stored_before(write) else None


def answer_send_many(writing: Writing, reactor: ReactorTime, frame: Frame, caller: SendingPeer | None) -> Work:
    """Store each part on its own. Raises RemoteProtocolError, with nothing appended, for a body that contradicts its
    header."""
    request = SendManyRequest.from_ext(frame.ext)
    parts = split_many(frame.body, request)
    ids = message_ids_from(writing.message_ids.next(request.records), request.records)
    stamped = yield from stamp_in_slices(parts.records, parts.sizes, ids)
    return (yield from _ManyParts(writing, frame.opaque, request, parts, stamped, caller).work(reactor.seconds))


def _kept(error: MetaqError) -> MetaqError:
    """Return the error without its traceback. The frames in it take 3 KB for each refused part, in a cycle that no
    garbage collection finds once it has survived one."""
    return error.with_traceback(None)


class _ManyParts:
    """One frame's parts. Lives until they are answered."""

    def __init__(
        self,
        writing: Writing,
        opaque: int,
        request: SendManyRequest,
        parts: Parts,
        stamped: StampedRecords,
        caller: SendingPeer | None,
    ) -> None:
        self._writing = writing
        self._opaque = opaque
        self._count = request.parts
        self._producer = request.producer
        self._repeats, self._repeat_ms = frozenset(request.repeats), request.repeat_ms
        self._caller = caller
        self._sequences = parts.sequences if writing.numbers else ()
        self._topics = [request.topics[number] for number in parts.topics]
        self._partitions = parts.partitions
        self._chooses = ANY in parts.partitions
        self._stamped = stamped
        self._ends: npt.NDArray[np.int64] = np.cumsum(parts.counts)  # numbers of records, as in _starts
        self._starts = self._ends - parts.counts
        self._byte_starts = stamped.starts[self._starts]
        self._byte_ends = stamped.ends[self._ends - 1]
        self._damaged = self._damaged_parts()
        self._delayed: Sequence[int] = ()
        self._pended: dict[int, Write] = {}  # of those
        self._packed: dict[int, MetaqError] = {}  # of parts refused for a compressed message
        self._first_ids: list[int] = stamped.units["id"][self._starts].tolist() if self._sequences else []
        self._counts: list[int] = parts.counts.tolist()
        self._next = 0
        self._writes: dict[int, Write] = {}  # by the number of the part
        self._chunk: dict[int, Write] = {}  # the writes of the last chunk
        self._failed: dict[PartitionLog, MetaqError] = {}
        self._errors: dict[int, MetaqError] = {}  # of parts without a write

    def _damaged_parts(self) -> set[int]:
        """Return the parts that have a record with a wrong checksum."""
        if self._stamped.intact.all():
            return set()
        return set(np.searchsorted(self._ends, np.flatnonzero(~self._stamped.intact), "right").tolist())

    def _delayed_parts(self) -> Sequence[int]:
        """Return the parts that have a delayed record."""
        return sorted(self._parts_with(DELAYED_FLAG) - self._damaged - self._packed.keys())

    def _find_packed(self) -> Generator[None, None, None]:
        """Find the parts to refuse for a compressed message."""
        numbers = np.repeat(np.arange(self._count), self._ends - self._starts)
        for refusal in _refused_packed(self._writing, self._stamped, self._topics, numbers):
            if refusal is None:
                yield
            else:
                self._packed.setdefault(refusal[0], _kept(refusal[1]))

    def _parts_with(self, flag: int) -> set[int]:
        """Return the parts that have a record with the flag."""
        if not self._stamped.flags & flag:
            return set()
        flags = headers_at(self._stamped.data, self._stamped.starts)["flag"]
        return set(np.searchsorted(self._ends, np.flatnonzero(flags & flag), "right").tolist())

    def work(self, seconds: Callable[[], float]) -> Work:
        """Append everything, once per part, in slices that share one sync. Then give the answer when it is known."""
        waiting: list[Write] = []
        yield from self._find_packed()
        self._delayed = self._delayed_parts()
        if self._delayed:
            yield from self._pend(seconds)
        while self._next < self._count:
            if self._next:
                yield
            # a slave gets its copies when all is appended; no other puts may come in between
            until = seconds() + tuning.SEND_SLICE_SECONDS if self._writing.slave is None else float("inf")
            waiting += self._writing.append(self._written(seconds, until))
        first_ids = self._stamped.units["id"][self._starts]
        del self._stamped  # an answer that waits for the disk needs no more
        return self._writing.answer(waiting, lambda: self._encoded(first_ids))

    def _pend(self, seconds: Callable[[], float]) -> Generator[None, None, None]:
        """Prepare the parts with delayed records."""
        until = seconds() + tuning.SEND_SLICE_SECONDS
        for number in self._delayed:
            if seconds() >= until:
                yield
                until = seconds() + tuning.SEND_SLICE_SECONDS
            topic, asked = self._topics[number], self._partitions[number]
            first, last = int(self._starts[number]), int(self._ends[number])
            try:
                partition = self._writing.partitions.choose(topic) if asked == ANY else asked
                keeper = _keeper(self._writing, self._stamped, first)
                log = self._writing.log_for_delayed(topic, partition, asked, keeper)
                self._pended[number] = yield from _pended(self._writing, keeper, log, self._stamped, first, last)
            except MetaqError as error:
                self._errors[number] = _kept(error)

    def _written(self, seconds: Callable[[], float], until: float) -> Iterator[Write]:
        """Yield writes to append until the time `until`, and at least one chunk."""
        data = self._stamped.data
        while self._next < self._count:
            first = self._next
            most = tuning.SEND_PARTS if not self._pended else tuning.SEND_WAITING_PARTS
            logs = self._logs(first, min(first + most, self._count), seconds, until)
            last = first + len(logs)
            starts, ends = self._starts[first:last].tolist(), self._ends[first:last].tolist()
            byte_starts, byte_ends = self._byte_starts[first:last], self._byte_ends[first:last]
            sizes = (byte_ends - byte_starts).tolist()
            self._count_puts(first, starts, ends, sizes)
            writes = self._made(first, logs)
            for number in range(first, last) if self._pended else ():
                if (waits := self._pended.get(number)) is not None and waits.pended is not None:
                    sizes[number - first] = waits.pended.size
            bases = self._places(writes, sizes)
            units = self._stamped.units[starts[0] : ends[-1]]
            counts = self._ends[first:last] - self._starts[first:last]
            units["offset"] += np.repeat(np.array([base or 0 for base in bases]) - byte_starts, counts)
            packed = units.view(np.uint8).data
            chunk_start = starts[0]
            places = zip(writes, bases, starts, ends, byte_starts.tolist(), byte_ends.tolist(), strict=True)
            for write, base, start, end, byte_start, byte_end in places:
                if write is not None and base is not None:
                    if write.pended is not None:
                        write.units = write.pended.units(base)
                        yield write
                        continue
                    write.data = (data[byte_start:byte_end],)
                    write.units = packed[(start - chunk_start) * UNIT_BYTES : (end - chunk_start) * UNIT_BYTES]
                    yield write
            self._next = last
            if seconds() >= until:
                return

    def _count_puts(self, first: int, starts: list[int], ends: list[int], sizes: list[int]) -> None:
        asked: dict[str, tuple[int, int]] = {}
        topics = self._topics[first : first + len(sizes)]
        for topic, start, end, size in zip(topics, starts, ends, sizes, strict=True):
            count, body_bytes = asked.get(topic, (0, 0))
            asked[topic] = count + end - start, body_bytes + size - (end - start) * HEADER_BYTES
        for topic, (count, body_bytes) in asked.items():
            self._writing.metrics.put(topic, count, body_bytes)

    def _made(self, first: int, logs: Sequence[PartitionLog | None]) -> list[Write | None]:
        """Return the writes of a chunk's parts, still without data. None: the part is refused or repeated."""
        last = first + len(logs)
        made = [None if log is None else Write(log, (), b"") for log in logs]
        if self._pended:
            made = [
                None if write is None else self._pended.get(number, write) for number, write in enumerate(made, first)
            ]
        if self._sequences:
            columns = self._sequences[first:last], self._first_ids[first:last], self._counts[first:last]
            for write, sequence, first_id, count in zip(made, *columns, strict=True):
                if write is not None:
                    write.first_id = first_id
                    self._writing.number(write, self._producer, sequence, count)
            for number in self._repeats and self._repeats.intersection(range(first, last)):
                if (repeated := made[number - first]) is not None:
                    repeated.repeat_ms = self._repeat_ms
        self._chunk = {number: write for number, write in enumerate(made, first) if write is not None}
        self._writes.update(self._chunk)
        return made

    def _places(self, writes: Sequence[Write | None], sizes: Sequence[int]) -> list[int | None]:
        """Return the byte offset for each of a chunk's writes; several may have the same log. None: the write is not
        appended."""
        if self._sequences:
            asked = [(write, size) for write, size in zip(writes, sizes, strict=True) if write is not None]
            admitted = iter(self._writing.sequences.admit(asked, self._caller))
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
        """Return the logs of the parts `first` … `last` - 1, or of fewer when the time is over: making a log takes a
        third of a millisecond. None: the part is refused."""
        failed = self._failed
        failed.update((write.log, write.error) for write in self._chunk.values() if write.error is not None)
        if not (failed or self._damaged or self._packed or self._chooses or self._delayed):
            logs = self._writing.logs(self._topics[first:last], self._partitions[first:last])
            if logs is not None:
                return logs
        found: list[PartitionLog | None] = []
        for number in range(first, last):
            if found and seconds() >= until:
                break
            try:
                if number in self._damaged:
                    raise ChecksumMismatch
                if number in self._packed:
                    raise self._packed[number]
                if number in self._errors:
                    raise self._errors[number]
                log = self._log(number)
                if (error := failed.get(log)) is not None:  # so are later parts of a refused part's partition
                    raise error
                found.append(log)
            except MetaqError as error:
                if self._is_repeated(number):
                    self._errors.pop(number, None)  # a delayed part may have been refused before
                else:
                    self._errors[number] = _kept(error)
                    self._writing.refused(self._topics[number], error, self._counts[number])
                found.append(None)
        return found

    def _is_repeated(self, number: int) -> bool:
        """Whether a part that is refused now was stored before."""
        if not self._sequences:
            return False
        place = self._topics[number], self._partitions[number]
        repeat_ms = self._repeat_ms if number in self._repeats else -1
        write = _stored_before(self._writing, *place, self._producer, self._sequences[number], repeat_ms)
        if write is not None:
            self._writes[number] = write
        return write is not None

    def _log(self, number: int) -> PartitionLog:
        if (pended := self._pended.get(number)) is not None:
            assert pended.delayed_for is not None
            asked, self._partitions[number] = self._partitions[number], pended.delayed_for.partition
            assert pended.pended is not None
            keeper = pended.pended.owner
            self._writing.log_for_delayed(self._topics[number], self._partitions[number], asked, keeper)
            return pended.log
        topic, asked = self._topics[number], self._partitions[number]
        partition = self._writing.partitions.choose(topic) if asked == ANY else asked
        self._partitions[number] = partition
        return self._writing.log(topic, partition, asked)

    def _encoded(self, first_ids: npt.NDArray[np.int64]) -> Bytes:
        codes = [int(ResponseCode.SUCCESS)] * self._count
        offsets = [0] * self._count
        errors: dict[int, MetaqError] = {}
        for number, write in self._writes.items():
            offsets[number] = write.base
        if self._sequences or self._pended:  # a repeated one's first id; a delayed one's pending id
            for number, write in self._writes.items():
                if write.sequence or write.pending_id:
                    first_ids[number], offsets[number] = write.answered_id, write.answered_offset
        for number, write in self._writes.items():
            if (write.error is not None or write.copy_errors) and (failure := write.failure) is not None:
                errors[number] = failure
        for number, error in errors.items():
            codes[number] = int(response_code(error))
            self._writing.refused(self._topics[number], error, self._counts[number])
        for number, error in self._errors.items():  # these are counted
            codes[number] = int(response_code(error))
        errors.update(self._errors)
        remark = str(errors[min(errors)]) if errors else ""
        rows = encode_rows(first_ids, offsets, self._partitions, codes)
        if self._writing.copies is not None:
            replicas = [0] * self._count
            for number, write in self._writes.items():
                replicas[number] = write.replicas
            rows += encode_replicas(replicas)
        ext = SendManyReply(self._count).to_ext()
        return answer_frame(self._opaque, ext, remark=remark, body=len(rows)) + rows
