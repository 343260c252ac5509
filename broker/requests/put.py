"""`put` and SEND: the puts that one read brought, appended once per partition and answered in their order; and `sync`.

`PutGroup` takes single puts. `answer_run` takes the columns of a run (protocol/put_run.py), and handles all its puts at
once; its benchmark: `python -m bench --system mixed --scenario pipelined`. `answer_sync` stores the copies that a
synchronous master sends to its slave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from twisted.internet.defer import Deferred, ensureDeferred

from metaq.protocol.errors import ChecksumMismatch, MessageTooLarge, MetaqError, RemoteProtocolError, SyncFailed
from metaq.protocol.flags import meant_of
from metaq.protocol.frames import Frame
from metaq.protocol.limits import MAX_BODY_BYTES, MAX_RECORD_BODY_BYTES
from metaq.protocol.message_id import message_id_list, message_ids_from
from metaq.protocol.put_run import PutRun
from metaq.protocol.record import COMPRESSED_FLAG, DELAYED_FLAG, HEADER_BYTES, Buffer, checksum, checksums
from metaq.protocol.sends import SendRequest, encode_sent_reply
from metaq.protocol.statuses import Status
from metaq.protocol.text import NO_CHECKSUM, Put, Sync, TooLargePut, encode_put_result, encode_result

from .. import tuning
from ..delays.delays import Delays
from ..partitions.partitions import ANY
from ..reading.answers import Answer, Bytes, Work, error_frame, error_result, put_failure
from ..runtime.pending_puts import PUT_OVERHEAD_BYTES
from ..store.batch import StampedRecords, encode_puts, stamp_puts
from ..store.index import UNIT_BYTES
from ..store.partition_log import PartitionLog
from ..writing.sequences import SendingPeer
from ..writing.writing import Write, Writing

__all__ = ["PutAnswers", "PutGroup", "answer_one_by_one", "answer_run", "answer_sync"]


_ASKS = DELAYED_FLAG | COMPRESSED_FLAG
"""Flags that ask more of the broker than to store the message."""


class _Send:
    """A SEND frame as a put."""

    __slots__ = (
        "body",
        "checksum",
        "flag",
        "one_way",
        "opaque",
        "partition",
        "producer",
        "repeat_ms",
        "sequence",
        "topic",
    )

    def __init__(self, request: SendRequest, frame: Frame) -> None:
        self.topic, self.partition = request.topic, request.partition
        self.flag, self.checksum = request.flag, request.checksum
        self.producer, self.sequence, self.repeat_ms = request.producer, request.sequence, request.repeat_ms
        self.opaque = frame.opaque
        self.body = frame.body
        self.one_way = frame.is_one_way


PutOrSend = Put | _Send


class PutAnswers:
    """The encoder of refused puts: each is answered in its own protocol."""

    def __init__(self, writing: Writing, url: Callable[[], str]) -> None:
        """url: this broker's, as registered in ZooKeeper."""
        self._writing = writing
        self._url = url

    def refused(self, put: PutOrSend | TooLargePut, partition: int, error: MetaqError) -> bytes:
        """Count a put that is not stored or not safe, and return its answer. partition: the chosen one if the client
        left the choice to the broker."""
        self._writing.refused(put.topic, error)
        if isinstance(put, _Send):
            return b"" if put.one_way else error_frame(put.opaque, error)
        if self._writing.slave is not None:  # 1.x's synchronous master writes the text without a prefix
            return error_result(put.opaque, error)
        return encode_result(error.status, put_failure(self._url(), put.topic, partition, error), put.opaque)

    def refused_copy(self, sync: Sync, error: MetaqError) -> bytes:
        """Count a synchronous master's message that is not stored or not safe, and return its answer."""
        self._writing.refused(sync.topic, error)
        text = put_failure(self._url(), sync.topic, sync.partition, error, capital=True)
        return encode_result(error.status, text, sync.opaque)

    def too_large(self, put: TooLargePut) -> bytes:
        """Refuse a put whose body was dropped as it came."""
        self._writing.metrics.put(put.topic, 1, 0)
        return self.refused(put, put.partition, MessageTooLarge(put.body_bytes, MAX_BODY_BYTES))

    def lost(self, log: PartitionLog, error: MetaqError) -> MetaqError:
        """Return the client's error for a failed write: 1.x's synchronous master names itself."""
        if self._writing.slave is None:
            return error
        return SyncFailed("master", self._url(), log.topic, log.partition)


class _Batch(Write):
    """A group's puts to one partition."""

    ids: Sequence[int] = ()

    def __init__(self, log: PartitionLog) -> None:
        super().__init__(log, (), b"")
        self.dues: list[int] = []  # when each is due, for delayed messages
        self.keeper: Delays | None = None  # of the delayed messages
        self.requests: list[PutOrSend] = []
        self.puts: list[tuple[int, int, Buffer]] = []  # flag, checksum, body


class PutGroup:
    """The puts of one read, in order. Lives until they are answered.

    Puts are checked when they are added, so a refused put does not affect the others. `commit` appends them.
    """

    __slots__ = (
        "_all",
        "_answers",
        "_batches",
        "_begun",
        "_caller",
        "_last",
        "_last_partition",
        "_last_topic",
        "_numbers",
        "_order",
        "_waiting",
        "_writing",
    )

    def __init__(self, writing: Writing, answers: PutAnswers, caller: SendingPeer | None = None) -> None:
        """caller: the sender of the puts; None for a client of a single request."""
        self._writing = writing
        self._answers = answers
        self._caller = caller
        self._all: list[_Batch] = []
        self._batches: dict[PartitionLog, _Batch] = {}  # the last of each partition, if other puts may join it
        self._waiting: dict[tuple[Delays, PartitionLog], _Batch] = {}  # batches of delayed messages
        self._begun = 0  # partitions that get their first messages: their files are made
        self._numbers = False  # whether a batch has a number
        self._order: list[_Batch | bytes] = []  # per put: the batch that has its answer, or the answer
        # most reads bring puts to one partition
        self._last: _Batch | None = None
        self._last_topic = ""
        self._last_partition = ANY

    @property
    def is_full(self) -> bool:
        """Whether more puts would make others wait too long: they belong to another group, in a later turn."""
        return len(self._all) >= tuning.STEP_PARTITIONS or self._begun >= tuning.STEP_NEW_LOGS

    @property
    def held_bytes(self) -> int:
        """The memory that the puts take until they are answered."""
        bodies = sum(len(put.body) for batch in self._all for put in batch.requests)
        return bodies + PUT_OVERHEAD_BYTES * len(self._order)

    def add(self, request: Any) -> None:
        """Check a put, or a SEND frame, and keep it for `commit`."""
        put: PutOrSend | None = request if type(request) is Put else self._decoded(cast(Frame, request))
        if put is None:
            return
        flag, body, partition = put.flag, put.body, put.partition
        asked = flag & _ASKS
        if asked and type(put) is Put:
            asked = meant_of(flag, body)
        try:
            batch = self._last
            if type(put) is _Send and put.sequence:
                batch = self._numbered(put)
            elif asked & DELAYED_FLAG:
                if partition == ANY:
                    partition = self._writing.partitions.choose(put.topic)
                batch = self._delayed(put, partition)
            elif batch is None or partition != self._last_partition or put.topic != self._last_topic:
                if partition == ANY:
                    partition = self._writing.partitions.choose(put.topic)
                batch = self._batch(put, partition)
            found = checksum(body)
            if found != put.checksum != NO_CHECKSUM:
                raise ChecksumMismatch
            if flag & COMPRESSED_FLAG:
                self._writing.check_packed(put.topic, flag, body, asked)
        except MetaqError as error:
            if batch is not None and len(batch.dues) > len(batch.puts):
                batch.dues.pop()
            self._writing.metrics.put(put.topic, 1, len(body))
            if (repeated := self._repeated(put)) is not None:
                self._order.append(repeated)
                return
            self._order.append(self._answers.refused(put, partition, error))
            return
        batch.requests.append(put)
        batch.puts.append((flag, found, body))
        self._order.append(batch)

    def refuse(self, answer: bytes) -> None:
        """Answer a put in its turn without looking at it."""
        self._order.append(answer)

    def _decoded(self, frame: Frame) -> _Send | None:
        """Decode a SEND. Returns None for a malformed one, which is then answered."""
        try:
            request = SendRequest.from_ext(frame.ext)
            if len(frame.body) > MAX_RECORD_BODY_BYTES:
                raise MessageTooLarge(len(frame.body), MAX_RECORD_BODY_BYTES)
        except MetaqError as error:
            self._order.append(b"" if frame.is_one_way else error_frame(frame.opaque, error))
            return None
        return _Send(request, frame)

    def _batch(self, put: PutOrSend, partition: int) -> _Batch:
        log = self._writing.log(put.topic, partition, put.partition)
        batch = self._batches.get(log)
        if batch is None:
            batch = self._batches[log] = _Batch(log)
            self._all.append(batch)
            self._begun += not log.end_offset
        if put.partition != ANY:
            self._last, self._last_topic, self._last_partition = batch, put.topic, partition
        return batch

    def _delayed(self, put: PutOrSend, partition: int) -> _Batch:
        """Return the batch of the partition's delayed messages, with this one's due time."""
        keeper, due = self._writing.due(put.flag, put.body)
        log = self._writing.log_for_delayed(put.topic, partition, put.partition, keeper)
        batch = self._waiting.get((keeper, log))
        if batch is None:
            batch = self._waiting[keeper, log] = _Batch(log)
            batch.keeper = keeper
            self._all.append(batch)
        batch.dues.append(due)
        return batch

    def _numbered(self, put: _Send) -> _Batch:
        """Return a new batch for a numbered send; later puts to its partition stay behind it."""
        if put.partition == ANY:
            raise RemoteProtocolError("a send with a sequence names no partition")
        dues: list[int] = []
        keeper = None
        if put.flag & DELAYED_FLAG:
            keeper, due = self._writing.due(put.flag, put.body)
            dues.append(due)
            log = self._writing.log_for_delayed(put.topic, put.partition, put.partition, keeper)
        else:
            log = self._writing.log(put.topic, put.partition, put.partition)
        self._batches.pop(log, None)
        self._last = None
        self._numbers = True
        batch = _Batch(log)
        batch.producer, batch.sequence, batch.records = put.producer, put.sequence, 1
        batch.repeat_ms = put.repeat_ms
        batch.dues, batch.keeper = dues, keeper
        self._all.append(batch)
        return batch

    def _repeated(self, put: PutOrSend) -> _Batch | None:
        """Return the answering batch of a put that is refused now, and was or may have been stored before."""
        if type(put) is not _Send or not put.sequence:
            return None
        log = self._writing.partitions.stored(put.topic, put.partition)
        if log is None:
            return None
        batch = _Batch(log)
        batch.producer, batch.sequence, batch.repeat_ms = put.producer, put.sequence, put.repeat_ms
        if not self._writing.stored_before(batch):
            return None
        batch.requests.append(put)
        self._all.append(batch)
        return batch

    def commit(self) -> Answer:
        """Append everything, once per partition and number. Give all answers, in the order of the puts, when all are
        known."""
        writing = self._writing
        writes: Iterator[_Batch] = map(self._stamped, [batch for batch in self._all if batch.puts])
        waiting = writing.append(writing.numbered(writes, self._caller) if self._numbers else writes)
        return writing.answer(waiting, self._encoded)

    def _stamped(self, batch: _Batch) -> _Batch:
        """Return the batch with its records made for its partition's present end."""
        self._stamp(batch)
        return batch

    def _stamp(self, batch: _Batch) -> None:
        """Make the batch's records."""
        log, puts = batch.log, batch.puts
        count = len(puts)
        first_id = self._writing.message_ids.next(count)
        batch.first_id = first_id
        batch.ids = (first_id,) if count == 1 else message_id_list(first_id, count)
        if batch.dues:
            self._stamp_delayed(batch)
            return
        batch.data, batch.units = encode_puts(puts, log.segments.end_offset, batch.ids)
        self._writing.metrics.put(log.topic, count, sum(map(len, batch.data)) - count * HEADER_BYTES)

    def _stamp_delayed(self, batch: _Batch) -> None:
        """As `_stamp`."""
        writing, target = self._writing, batch.log
        flags, checksums, bodies = zip(*batch.puts, strict=True)
        assert batch.keeper is not None
        pended = batch.keeper.pend(target, batch.dues, flags, checksums, bodies, batch.ids)
        batch.log, batch.delayed_for, batch.pended = pended.log.log, target, pended
        batch.ids = pended.ids
        batch.pending_id = batch.ids[0]
        if batch.sequence:
            writing.number(batch, batch.producer, batch.sequence, batch.records)
        batch.data, batch.units = pended.buffers, pended.units(batch.log.end_offset)
        writing.metrics.put(target.topic, len(bodies), sum(map(len, bodies)))

    def _encoded(self) -> bytes:
        if len(self._all) == 1:
            (batch,) = self._all
            if len(batch.requests) == len(self._order):  # nothing was refused
                return b"".join(self._encoded_batch(batch))
        answers = {batch: iter(self._encoded_batch(batch)) for batch in self._all if batch.requests}
        return b"".join(each if isinstance(each, bytes) else next(answers[each]) for each in self._order)

    def _encoded_batch(self, batch: _Batch) -> list[bytes]:
        partition = (batch.delayed_for or batch.log).partition
        if batch.error is not None:
            error = self._answers.lost(batch.log, batch.error)
            return [self._answers.refused(put, partition, error) for put in batch.requests]
        offset = batch.base
        if batch.sequence:
            batch.ids = (batch.answered_id,)  # a repeated send gets the first one's
        waits = batch.delayed_for is not None
        encoded = []
        for put, message_id in zip(batch.requests, batch.ids, strict=True):
            if waits:
                offset = -1
            if type(put) is Put:
                encoded.append(encode_put_result(put.opaque, message_id, partition, offset))
            elif cast(_Send, put).one_way:
                encoded.append(b"")
            else:
                encoded.append(encode_sent_reply(put.opaque, message_id, partition, offset, batch.replicas))
            offset += HEADER_BYTES + len(put.body)
        for number, copy_error in enumerate(batch.copy_errors):
            if copy_error is not None:
                encoded[number] = self._answers.refused(batch.requests[number], partition, copy_error)
        return encoded


# --- runs -------------------------------------------------------------------------------------------------------------


def answer_run(writing: Writing, answers: PutAnswers, run: PutRun, caller: object) -> Work:
    """Answer a run. Few puts, refused, delayed or compressed ones, or a synchronous slave need a PutGroup."""
    few = len(run.bodies) + tuning.RUN_PARTITION_COST * len(set(run.partitions)) < tuning.RUN_LEAST_COST
    alone = not few and any(run.flags) and int(np.bitwise_or.reduce(run.flags)) & _ASKS
    logs = None if few or alone else writing.logs(run.topics, run.partitions)
    if logs is not None and (checksums(run.bodies) == np.array(run.checksums)).all():
        return _Run(writing, answers, run, logs).commit()
    return answer_one_by_one(partial(PutGroup, writing, answers), run, PutGroup.add)


def answer_one_by_one(new_group: Callable[[], PutGroup], run: PutRun, add: Callable[[PutGroup, Put], None]) -> Work:
    """Answer the puts of a run in groups, each group in its own step."""
    committed: list[Answer] = []
    group = new_group()
    for number, put in enumerate(run.puts(), 1):
        if group.is_full or number % tuning.STEP_PUTS == 0:
            committed.append(group.commit())
            yield
            group = new_group()
        add(group, put)
    committed.append(group.commit())
    if len(committed) == 1:
        return committed[0]
    return ensureDeferred(_joined(committed))


async def _joined(answers: Sequence[Answer]) -> Bytes:
    settled = [await answer if isinstance(answer, Deferred) else answer for answer in answers]
    return b"".join(cast(list[bytes], settled))


class _Run:
    """A run whose puts are good so far. Lives until they are answered."""

    def __init__(self, writing: Writing, answers: PutAnswers, run: PutRun, logs: list[PartitionLog]) -> None:
        """logs: one for each put."""
        self._writing = writing
        self._answers = answers
        self._run = run
        self._logs = logs
        self._ids = message_ids_from(writing.message_ids.next(len(logs)), len(logs))
        self._offsets = np.empty(len(logs), np.int64)
        self._writes: list[Write] = []

    def commit(self) -> Work:
        """Append everything, once per partition; in slices if there are many partitions."""
        self._count()
        logs = list(dict.fromkeys(self._logs))
        numbers = dict(zip(logs, range(len(logs)), strict=True))
        number = np.fromiter(map(numbers.__getitem__, self._logs), np.intp, len(self._logs))
        order = number.argsort(kind="stable")
        counts = np.bincount(number)
        ends = counts.cumsum()  # numbers of records
        waiting: list[Write] = []
        for first in range(0, len(logs), tuning.STEP_PARTITIONS):
            part = slice(first, first + tuning.STEP_PARTITIONS)
            start = int(ends[first] - counts[first])
            if first:
                yield
            writes = self._written(logs[part], order[start : int(ends[part][-1])], counts[part])
            self._writes += writes
            if first:  # others were served meanwhile
                self._refuse(writes)
            waiting += self._writing.append([write for write in writes if write.error is None])
        return self._writing.answer(waiting, self._encoded)

    def _refuse(self, writes: Sequence[Write]) -> None:
        """Give writes an error if their partitions have stopped taking puts."""
        for write in writes:
            try:
                self._writing.log(write.log.topic, write.log.partition, write.log.partition)
            except MetaqError as error:
                write.error = error

    def _count(self) -> None:
        run, count = self._run, self._writing.metrics.put
        topics = set(run.topics)
        if len(topics) == 1:
            count(run.topics[0], len(run.bodies), run.body_bytes)
            return
        for topic in topics:
            sizes = [len(body) for name, body in zip(run.topics, run.bodies, strict=True) if name == topic]
            count(topic, len(sizes), sum(sizes))

    def _written(
        self, logs: Sequence[PartitionLog], order: npt.NDArray[np.intp], counts: npt.NDArray[np.intp]
    ) -> list[Write]:
        """Return the records of each partition, and set each put's offset. order: the puts' numbers, by partition.
        counts: of each partition's puts."""
        ends = counts.cumsum()  # numbers of records
        starts = ends - counts
        stamped = self._stamped(order)
        byte_starts, byte_ends = stamped.starts[starts], stamped.ends[ends - 1]
        stamped.units["offset"] += np.repeat(np.array([log.end_offset for log in logs]) - byte_starts, counts)
        self._offsets[order] = stamped.units["offset"]
        data: Buffer = stamped.data
        if len(data) < tuning.RUN_VIEW_BYTES * len(logs):
            data = bytes(data)
        units = stamped.units.tobytes()
        places = (byte_starts, byte_ends, starts * UNIT_BYTES, ends * UNIT_BYTES)
        return [
            Write(log, (data[start:end],), units[first:last])
            for log, start, end, first, last in zip(logs, *(place.tolist() for place in places), strict=True)
        ]

    def _stamped(self, order: npt.NDArray[np.intp]) -> StampedRecords:
        run = self._run
        bodies = list(map(run.bodies.__getitem__, order.tolist()))
        flags, crcs = np.array(run.flags)[order], np.array(run.checksums)[order]
        return stamp_puts(flags, crcs, bodies, self._ids[order])

    def _encoded(self) -> bytes:
        run = self._run
        columns = run.opaques, self._ids.tolist(), run.partitions, self._offsets.tolist()
        encoded = list(map(encode_put_result, *columns))
        if errors := {write.log: write.error for write in self._writes if write.error is not None}:
            for number, (log, put) in enumerate(zip(self._logs, run.puts(), strict=True)):
                if log in errors:
                    encoded[number] = self._answers.refused(put, put.partition, errors[log])
        return b"".join(encoded)


# --- copies -----------------------------------------------------------------------------------------------------------

NO_SYNC_HANDLER = "未注册请求处理器，请求处理器类为com.taobao.metamorphosis.network.SyncCommand"
"""1.x's own words for: no request handler is registered for the class."""


def answer_sync(writing: Writing, answers: PutAnswers, now_ms: Callable[[], int], sync: Sync, caller: object) -> Answer:
    """Store a synchronous master's message with its id. Only a synchronous slave has this handler (wire.md §4)."""
    if not writing.takes_copies:
        return encode_result(Status.UNAVAILABLE, NO_SYNC_HANDLER, sync.opaque)
    writing.metrics.put(sync.topic, 1, len(sync.body))
    try:
        found = checksum(sync.body)
        if found != sync.checksum != NO_CHECKSUM:
            raise ChecksumMismatch
        log = writing.partitions.for_put(sync.topic, sync.partition)
    except MetaqError as error:
        return answers.refused_copy(sync, error)
    puts = [(sync.flag, found, sync.body)]
    write = Write(log, *encode_puts(puts, log.end_offset, (sync.message_id,), now_ms()))

    def encode() -> bytes:
        if write.error is not None:
            return answers.refused_copy(sync, write.error)
        return encode_put_result(sync.opaque, sync.message_id, sync.partition, write.base)

    return writing.answer(writing.append((write,)), encode)
