"""Serve `put` and SEND. All puts that arrive in one read of a connection are stored together, and are answered in the
order in which they arrived. Also serve `sync`, with which a synchronous master sends a copy of a message to its slave.

broker/writing/taking.py decides how the messages are stored. A run is a sequence of puts whose fields are kept in
columns (protocol/put_run.py), so that they can be stored all at once. The benchmark for runs is `python -m bench
--system mixed --scenario pipelined`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from twisted.internet.defer import Deferred, ensureDeferred

from metaq.protocol.errors import MessageTooLarge, MetaqError, SyncFailed
from metaq.protocol.flags import meant_of
from metaq.protocol.frames import Frame
from metaq.protocol.limits import MAX_BODY_BYTES, MAX_RECORD_BODY_BYTES
from metaq.protocol.put_run import PutRun
from metaq.protocol.record import HEADER_BYTES
from metaq.protocol.sends import SendRequest, encode_sent_reply
from metaq.protocol.statuses import Status
from metaq.protocol.text import Put, Sync, TooLargePut, encode_put_result, encode_result

from .. import tuning
from ..reading.answers import Answer, Bytes, Work, error_frame, error_result, put_failure
from ..runtime.pending_puts import PUT_OVERHEAD_BYTES
from ..store.partition_log import PartitionLog
from ..writing.sequences import SendingPeer
from ..writing.taking import ASKS, PutBatch, Puts, TakenRun, plain_logs, take_copy
from ..writing.write import Number
from ..writing.writing import Writing

__all__ = ["PutAnswers", "PutGroup", "answer_one_by_one", "answer_run", "answer_sync"]


class _Send:
    """A decoded SEND frame, with the same attributes as a `put`."""

    __slots__ = ("body", "checksum", "flag", "number", "one_way", "opaque", "partition", "topic")

    def __init__(self, frame: Frame) -> None:
        """Raises RemoteProtocolError, MessageTooLarge."""
        request = SendRequest.from_ext(frame.ext)
        if len(frame.body) > MAX_RECORD_BODY_BYTES:
            raise MessageTooLarge(len(frame.body), MAX_RECORD_BODY_BYTES)
        self.topic, self.partition = request.topic, request.partition
        self.flag, self.checksum = request.flag, request.checksum
        self.number: Number | None = None
        if request.sequence:
            self.number = Number(request.producer, request.sequence, 1, request.repeat_ms)
        self.opaque = frame.opaque
        self.body = frame.body
        self.one_way = frame.is_one_way


PutOrSend = Put | _Send


class PutAnswers:
    """Encodes the answers to refused puts: in the text protocol for a `put`, as a frame for a SEND."""

    def __init__(self, writing: Writing, url: Callable[[], str]) -> None:
        """url: returns this broker's URL, as registered in ZooKeeper."""
        self._writing = writing
        self._url = url

    def refused(self, put: PutOrSend | TooLargePut, partition: int, error: MetaqError) -> bytes:
        """Count a put as failed because it could not be stored or made safe, and return the answer to the put.
        partition: the number of the put's partition; if the client has not named a partition, the one that the broker
        has chosen.
        """
        self._writing.refused(put.topic, error)
        if isinstance(put, _Send):
            return b"" if put.one_way else error_frame(put.opaque, error)
        if self._writing.slave is not None:  # 1.x's synchronous master writes the text without a prefix
            return error_result(put.opaque, error)
        return encode_result(error.status, put_failure(self._url(), put.topic, partition, error), put.opaque)

    def refused_copy(self, sync: Sync, error: MetaqError) -> bytes:
        """Count a message from a synchronous master that could not be stored or made safe, and return its answer."""
        self._writing.refused(sync.topic, error)
        text = put_failure(self._url(), sync.topic, sync.partition, error, capital=True)
        return encode_result(error.status, text, sync.opaque)

    def too_large(self, put: TooLargePut) -> bytes:
        """Return the refusal of a put that is too large; its body was dropped while it was received."""
        self._writing.metrics.put(put.topic, 1, 0)
        return self.refused(put, put.partition, MessageTooLarge(put.body_bytes, MAX_BODY_BYTES))

    def lost(self, log: PartitionLog, error: MetaqError) -> MetaqError:
        """Return the error that the client gets for a failed write. If this broker is a synchronous master, the error
        is a SyncFailed that names this master by its URL, as in 1.x.
        """
        if self._writing.slave is None:
            return error
        return SyncFailed("master", self._url(), log.topic, log.partition)


class PutGroup(Puts[PutOrSend]):
    """The puts that arrived in one read of a connection, in order. The object exists until all of them are answered.
    `commit` appends them to their partitions.
    """

    __slots__ = ("_answers", "_order")

    def __init__(self, writing: Writing, answers: PutAnswers, caller: SendingPeer | None = None) -> None:
        """caller: the sender of the puts, or None for a client that sends a single request."""
        super().__init__(writing, caller)
        self._answers = answers
        self._order: list[PutBatch[PutOrSend] | bytes] = []  # per put: its batch, which has the answer, or the answer

    @property
    def held_bytes(self) -> int:
        """The bytes of memory that the puts take until they are answered."""
        bodies = sum(len(put.body) for batch in self.batches for put in batch.asked)
        return bodies + PUT_OVERHEAD_BYTES * len(self._order)

    def add(self, request: Any) -> None:
        """Check a put or a SEND frame, and keep it for `commit`."""
        number = None
        if type(request) is Put:
            put: PutOrSend = request
            meant = put.flag & ASKS and meant_of(put.flag, put.body)
        else:
            try:
                put = _Send(request)
            except MetaqError as error:
                self._order.append(b"" if request.is_one_way else error_frame(request.opaque, error))
                return
            meant, number = put.flag, put.number
        taken = self.take(put, meant, number)
        self._order.append(self._answers.refused(put, *taken) if isinstance(taken, tuple) else taken)

    def refuse(self, answer: bytes) -> None:
        """Take the place of a put that must not be stored: `answer` is sent where the answer to this put belongs in the
        order of the puts.
        """
        self._order.append(answer)

    def commit(self) -> Answer:
        """Append all puts, with one append for each partition, and a separate append for each SEND with a producer's
        sequence number. Return the answers to all puts, joined in the order of the puts; if they are not all known yet,
        return a Deferred of them.
        """
        return self._writing.answer(self.append(), self._encoded)

    def _encoded(self) -> bytes:
        if len(self.batches) == 1:
            (batch,) = self.batches
            if len(batch.asked) == len(self._order):  # nothing was refused
                return b"".join(self._encoded_batch(batch))
        answers = {batch: iter(self._encoded_batch(batch)) for batch in self.batches if batch.asked}
        return b"".join(each if isinstance(each, bytes) else next(answers[each]) for each in self._order)

    def _encoded_batch(self, batch: PutBatch[PutOrSend]) -> list[bytes]:
        partition = batch.target.partition
        if batch.error is not None:
            error = self._answers.lost(batch.log, batch.error)
            return [self._answers.refused(put, partition, error) for put in batch.asked]
        offset = batch.base
        if batch.number is not None:
            batch.ids = (batch.answered_id,)  # a repeated send gets the id of the first one
        waits = batch.delayed is not None
        encoded = []
        for put, message_id in zip(batch.asked, batch.ids, strict=True):
            if waits:
                offset = -1
            if type(put) is not _Send:
                encoded.append(encode_put_result(put.opaque, message_id, partition, offset))
            elif put.one_way:
                encoded.append(b"")
            else:
                encoded.append(encode_sent_reply(put.opaque, message_id, partition, offset, batch.replicas))
            offset += HEADER_BYTES + len(put.body)
        for number, copy_error in enumerate(batch.copy_errors):
            if copy_error is not None:
                encoded[number] = self._answers.refused(batch.asked[number], partition, copy_error)
        return encoded


# --- runs -------------------------------------------------------------------------------------------------------------


def answer_run(writing: Writing, answers: PutAnswers, run: PutRun, caller: object) -> Work:
    """Store the puts of a run and answer them. If all puts are plain ones, they are stored all at once. If some of them
    need special handling, or if the run is short, all of them are stored with PutGroups.
    """
    if (logs := plain_logs(writing, run)) is None:
        return answer_one_by_one(partial(PutGroup, writing, answers), run, PutGroup.add)
    return _answer_plain(writing, answers, run, TakenRun(writing, run, logs))


def _answer_plain(writing: Writing, answers: PutAnswers, run: PutRun, taken: TakenRun) -> Work:
    waiting = yield from taken.append()
    return writing.answer(waiting, lambda: _encoded_run(answers, run, taken))


def _encoded_run(answers: PutAnswers, run: PutRun, taken: TakenRun) -> bytes:
    columns = run.opaques, taken.ids.tolist(), run.partitions, taken.offsets.tolist()
    encoded = list(map(encode_put_result, *columns))
    if errors := taken.failures():
        for number, (log, put) in enumerate(zip(taken.logs, run.puts(), strict=True)):
            if log in errors:
                encoded[number] = answers.refused(put, put.partition, errors[log])
    return b"".join(encoded)


def answer_one_by_one(new_group: Callable[[], PutGroup], run: PutRun, add: Callable[[PutGroup, Put], None]) -> Work:
    """Divide the puts of a run among PutGroups, and store one group in each slice of the work. One answer contains the
    answers to all puts.
    """
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


# --- copies -----------------------------------------------------------------------------------------------------------

NO_SYNC_HANDLER = "未注册请求处理器，请求处理器类为com.taobao.metamorphosis.network.SyncCommand"
"""The text of metaq 1.x that says that no request handler is registered for the class SyncCommand."""


def answer_sync(writing: Writing, answers: PutAnswers, now_ms: Callable[[], int], sync: Sync, caller: object) -> Answer:
    """Answer `sync`: store a message of a synchronous master with the id that the message already has. A synchronous
    slave accepts `sync`; all other brokers refuse it (wire.md §4).
    """
    if not writing.takes_copies:
        return encode_result(Status.UNAVAILABLE, NO_SYNC_HANDLER, sync.opaque)
    try:
        write = take_copy(writing, sync, now_ms())
    except MetaqError as error:
        return answers.refused_copy(sync, error)

    def encode() -> bytes:
        if write.error is not None:
            return answers.refused_copy(sync, write.error)
        return encode_put_result(sync.opaque, sync.message_id, sync.partition, write.base)

    return writing.answer(writing.append((write,)), encode)
