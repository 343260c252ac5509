"""Encode a flight's requests, and decode the answers about its messages, in both protocols. No I/O.

A flight is a group of messages that are sent to a broker together. A driver (client/producer/sending.py) builds the
requests of a flight and sends them. Each request has one opaque (the number that links an answer to its request) for
each answer that the broker will send to it (`answers`). The driver passes every answer to `read`. A turn consists of a
request's messages for one partition. When it is known which turns of the request the broker has stored, `read` returns
a Landing. The driver first reports this outcome to the core; then it calls the Landing's `give`, which gives the
messages their results.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from metaq.protocol.arrays import np
from metaq.protocol.delays import pending_ids
from metaq.protocol.errors import CompressionUnknown, MetaqError, RemoteProtocolError, RequestRefused
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.limits import DELAYS_MARK, HALVES_MARK
from metaq.protocol.message_id import message_id_list
from metaq.protocol.record import Buffer
from metaq.protocol.refusals import frame_error, is_success, text_error
from metaq.protocol.sends import (
    CopiedReply,
    PartRows,
    SendBatchRequest,
    SendHeaders,
    SendManyRequest,
    SendRequest,
    SentReply,
    decode_replicas,
    decode_rows,
    encode_parts,
)
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from metaq.protocol.text import Result, encode_put, parse_put_result

from ..records.results import SendResult, TopicPartition
from ..runtime.waiting import Waiter
from ..transport.connection import Endpoint, Reply
from . import tuning
from .delays import due_at
from .outgoing import Outgoing, OutgoingBatch, joined
from .queues import FailedTurn, PartitionQueue, Turn

__all__ = [
    "FlightCodec",
    "FlightRequest",
    "Landing",
    "batch_frame",
    "encode_batch",
    "give_results",
    "no_halves",
    "put_result",
]


class Landing(NamedTuple):
    """The outcome of a request's turns. A turn consists of a request's messages for one partition. stored, failed: the
    turns that the broker has stored, and the turns that have failed. give: a function that gives the messages of stored
    turns their results. The function returns the messages for which a thread is blocked, so that the caller can wake
    these threads together.
    """

    stored: Sequence[Turn]
    failed: Sequence[FailedTurn]
    give: Callable[[], list[Waiter]] = list


class FlightRequest(Protocol):
    """A request that contains one or more turns of a flight. A turn consists of a request's messages for one
    partition.
    """

    turns: Sequence[Turn]
    counted: bool
    """Whether the request contains a producer's sequence number for each of its turns, so that it can be repeated
    without storing messages twice.
    """

    @property
    def answers(self) -> int:
        """The number of answers that the broker sends to this request. The request needs as many opaques as answers."""

    def encode(self, opaques: Sequence[int]) -> Sequence[Buffer]:
        """Encode the request."""

    def result_alone(self, reply: Reply | None) -> object:
        """If the request has a single message and `reply` acknowledges it, return the result of this message; otherwise
        return None.
        """

    def read(self, index: int, reply: Reply | None, error: MetaqError | None) -> Landing | None:
        """Decode the broker's answer number `index` (counted from 0) to this request, or process the error that came
        instead of this answer. Return the outcome of the request's turns, or None as long as other answers to this
        request are missing. A second call with the same answer does no harm.
        """


class Speaks(Protocol):
    """The attributes of a Connection that tell which forms of requests its broker understands."""

    endpoint: Endpoint
    speaks_frames: bool
    takes_many: bool
    takes_sequences: bool


class Able(Protocol):
    """The attributes of a Connection that tell which messages its broker accepts."""

    endpoint: Endpoint
    peer_version: str
    knows_compressed: bool
    takes_delays: bool
    takes_halves: bool


class FlightCodec:
    """Encodes the requests for the flights of one producer."""

    def __init__(self, producer: int = 0, packs: bool = False) -> None:
        """producer: the producer's id, or 0 if its requests have no sequence numbers. packs: whether the producer
        compresses payloads.
        """
        self._producer = producer
        self._packs = packs
        self._headers = SendHeaders()
        self._counted = SendHeaders(producer)

    def check(self, broker: Able) -> None:
        """Raise CompressionUnknown if the producer compresses payloads and this broker does not understand
        compression.
        """
        if self._packs and not broker.knows_compressed:
            raise CompressionUnknown(broker.endpoint)

    def refused(self, turns: Sequence[Turn], broker: Able) -> Sequence[FailedTurn]:
        """Return, each with an error, the turns (a turn is the messages of one partition in a request) that the broker
        cannot accept: turns with delayed or half messages, if the broker does not support such messages.
        """
        if broker.takes_delays and broker.takes_halves:
            return ()
        refused: list[FailedTurn] = []
        for turn in turns:
            timing = turn.batch[0].timing
            if timing.is_half and not broker.takes_halves:
                refused.append((turn, no_halves(broker)))
            elif timing and not timing.is_half and not broker.takes_delays:
                refused.append((turn, _no_delays(broker)))
        return refused

    def requests(self, turns: Sequence[Turn], broker: Speaks, now: float) -> Sequence[FlightRequest]:
        """Return the requests for these turns. A turn is the messages of one partition. There are several requests if
        the broker does not accept several turns in one frame. There are also several if only some turns can have
        sequence numbers; a turn cannot have one if the broker shall choose its partition.
        now: the present time in monotonic seconds.
        """
        if len(turns) > 1 and not broker.takes_many:
            return [request for turn in turns for request in self.requests([turn], broker, now)]
        if broker.speaks_frames:
            if not (self._producer and broker.takes_sequences):
                return (FrameRequest(turns, broker.endpoint, self._headers),)
            if min([queue.partition[2] for queue, _ in turns]) >= 0:
                return (FrameRequest(turns, broker.endpoint, self._counted, self._producer, now),)
            counted = [turn for turn in turns if turn[0].partition[2] >= 0]
            others = [turn for turn in turns if turn[0].partition[2] < 0]
            without = FrameRequest(others, broker.endpoint, self._headers)
            if not counted:
                return (without,)
            return (without, FrameRequest(counted, broker.endpoint, self._counted, self._producer, now))
        return (PutRequests(turns, broker.endpoint),)


class FrameRequest:
    """A request that is one frame: SEND or SEND_BATCH for the messages of one partition (a turn), SEND_MANY for the
    messages of several partitions.
    """

    __slots__ = ("_endpoint", "_headers", "_now", "_producer", "counted", "turns")

    answers = 1

    def __init__(
        self,
        turns: Sequence[Turn],
        endpoint: Endpoint,
        headers: SendHeaders,
        producer: int = 0,
        now: float = 0.0,
    ) -> None:
        """now: the present time in monotonic seconds; only needed for a request with sequence numbers."""
        self.turns = turns
        self._now = now
        self.counted = producer > 0
        self._producer = producer
        self._endpoint = endpoint
        self._headers = headers

    def encode(self, opaques: Sequence[int]) -> Sequence[Buffer]:
        opaque = opaques[0]
        if len(self.turns) > 1:
            return _encode_many(opaque, self.turns, self._producer, self._now)
        queue, batch = self.turns[0]
        partition, first = queue.partition, batch[0]
        repeat_ms = -1 if queue.repeat is None or not self._producer else _age_ms(queue, self._now)
        if len(batch) == 1 and first.is_single:
            ((flag, checksum, body),) = first.records()
            if repeat_ms >= 0:
                return _repeated_frame(
                    opaque, partition, (flag, checksum), body, self._producer, queue.sequence, repeat_ms
                )
            return self._headers.encode(opaque, partition, flag, checksum, len(body), queue.sequence), body
        return batch_frame(opaque, partition, batch, None, self._producer, queue.sequence, repeat_ms)

    def result_alone(self, reply: Reply | None) -> object:
        if type(reply) is not SentReply or len(self.turns) > 1 or len(batch := self.turns[0].batch) > 1:
            return None
        partition = _chosen(self.turns[0].queue.partition, reply.partition)
        return batch[0].native_result(reply.message_id, partition, reply.offset, reply.replicas or None)

    def read(self, index: int, reply: Reply | None, error: MetaqError | None) -> Landing | None:
        if error is None:
            try:
                return self._landing(*self._rows(reply), reply)
            except MetaqError as wrong:
                error = wrong
        return Landing((), [(turn, error) for turn in self.turns])

    def _rows(self, reply: Reply | None) -> tuple[PartRows, Sequence[int]]:
        """Return two lists, each with one entry for each part (turn) of the request. The first list has the outcomes of
        the parts. The second list has the numbers of replicas that have the parts' messages; 0 means that the number is
        unknown.

        Raises MetaqError if the whole frame was refused, or if the answer cannot be decoded. After an answer that
        cannot be decoded, the frame must never be sent again, because the broker may have stored its messages.
        """
        turns = self.turns
        if type(reply) is SentReply and len(turns) == 1:
            return PartRows([reply.message_id], [reply.offset], [reply.partition], [0]), [reply.replicas]
        if not isinstance(reply, Frame):
            raise _unreadable(self._endpoint, repr(reply))
        if not is_success(reply):
            raise frame_error(reply, turns[0].queue.partition, self._endpoint)
        try:
            if len(turns) > 1:
                return decode_rows(reply.body, len(turns)), decode_replicas(reply.body, len(turns))
            sent = CopiedReply.from_ext(reply.ext)  # only a newer broker sends this; parse_sent_reply knows all others
        except RemoteProtocolError as wrong:
            raise _unreadable(self._endpoint, wrong) from wrong
        return PartRows([sent.message_id], [sent.offset], [sent.partition], [0]), [sent.replicas]

    def _landing(self, rows: PartRows, replicas: Sequence[int], reply: Reply | None) -> Landing:
        turns = self.turns
        if not any(rows.codes):
            return Landing(turns, (), partial(self._give, rows, replicas))
        assert isinstance(reply, Frame)
        stored: list[Turn] = []
        failed: list[FailedTurn] = []
        for turn, code in zip(turns, rows.codes, strict=True):
            if code:
                refused = reply._replace(code=code)
                failed.append((turn, frame_error(refused, turn.queue.partition, self._endpoint)))
            else:
                stored.append(turn)
        return Landing(stored, failed, partial(self._give, rows, replicas))

    def _give(self, rows: PartRows, replicas: Sequence[int]) -> list[Waiter]:
        parked: list[Waiter] = []
        for (queue, batch), first_id, offset, number, code, nodes in zip(self.turns, *rows, replicas, strict=True):
            if not code:
                give_results(batch, first_id, _chosen(queue.partition, number), offset, nodes or None, parked)
        return parked


class PutRequests:
    """The messages of one partition (a turn), sent as pipelined puts of the text protocol to a broker that does not
    speak the framed protocol. The broker answers each put separately.

    A Java broker may append pipelined puts in another order (wire.md §5), so messages with a key are sent one at a time
    (`PartitionQueue.take`).
    """

    counted = False

    def __init__(self, turns: Sequence[Turn], endpoint: Endpoint) -> None:
        self.turns = turns
        self._partition = turns[0].queue.partition
        self._endpoint = endpoint
        self._records = [record for outgoing in turns[0].batch for record in outgoing.records()]
        self.answers = len(self._records)
        self._results: list[SendResult | None] = [None] * self.answers
        self._missing = set(range(self.answers))
        self._error: MetaqError | None = None
        self._has_landed = False
        self._lock = threading.Lock()

    def encode(self, opaques: Sequence[int]) -> Sequence[Buffer]:
        topic, number = self._partition.topic, self._partition.partition
        return [
            encode_put(topic, number, flag, checksum, opaque, bytes(body))
            for opaque, (flag, checksum, body) in zip(opaques, self._records, strict=True)
        ]

    def result_alone(self, reply: Reply | None) -> object:
        if self.answers > 1 or not (outgoing := self.turns[0].batch[0]).is_single:
            return None
        try:
            return outgoing.native_result(*put_result(reply, self._partition, self._endpoint)[:3])
        except MetaqError:
            return None

    def read(self, index: int, reply: Reply | None, error: MetaqError | None) -> Landing | None:
        with self._lock:  # against the reader and the thread that ends the connection
            if index in self._missing:
                if error is None:
                    try:
                        result = put_result(reply, self._partition, self._endpoint)
                        if self.turns[0].batch[0].timing:
                            result = result._replace(due=due_at(result.message_id))
                        self._results[index] = result
                    except MetaqError as wrong:
                        error = wrong
                self._error = error or self._error
                self._missing.discard(index)
            if self._missing or self._has_landed:
                return None
            self._give_all()
            failed = () if self._error is None else [(self.turns[0], self._error)]
            self._has_landed = True
            return Landing(() if failed else self.turns, failed)

    def _give_all(self) -> None:
        position = 0
        for outgoing in self.turns[0].batch:
            count = sum(1 for _ in outgoing.records())
            results = self._results[position : position + count]
            position += count
            put = [result for result in results if result is not None]
            if len(put) == count:
                outgoing.succeed_text(put)
            else:
                outgoing.keep(results)


def put_result(reply: Reply | None, partition: TopicPartition, endpoint: Endpoint) -> SendResult:
    """Return the result of a put of the text protocol. If the broker has refused the put, raise the error that the
    reply states. Raises RemoteProtocolError if the reply cannot be the answer to a put.
    """
    if not isinstance(reply, Result):
        raise _unreadable(endpoint, repr(reply))
    if reply.code != Status.SUCCESS:
        raise text_error(reply, partition, endpoint)
    try:
        message_id, number, offset = parse_put_result(reply.text)
    except RemoteProtocolError as wrong:
        raise _unreadable(endpoint, wrong) from wrong
    return SendResult(message_id, partition._replace(partition=number), offset)


def no_halves(broker: Able) -> RequestRefused:
    """Return the error for a half message that cannot be sent, because this broker does not support transactions with
    check-back.
    """
    return RequestRefused(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        f"{broker.endpoint} keeps no half messages (its version, {broker.peer_version!r}, does not say "
        f"{HALVES_MARK}, or protocol='text' was chosen): update it, or send without send_in_transaction()",
    )


def _no_delays(broker: Able) -> RequestRefused:
    return RequestRefused(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        f"{broker.endpoint} keeps no messages until their time (its version, {broker.peer_version!r}, does not "
        f"say {DELAYS_MARK}): update it, or send without deliver_at and delay",
    )


def _unreadable(endpoint: Endpoint, why: object) -> RemoteProtocolError:
    """Return the error for an answer that cannot be decoded. The error is not retriable, because the broker may have
    stored the message, and each further try might store it again.
    """
    return RemoteProtocolError(
        f"{endpoint} answered a send with something else ({why}): it may or may not be stored, and is not sent again"
    )


def _age_ms(queue: PartitionQueue, now: float) -> int:
    """Called when a request for the partition of `queue` is repeated: return the milliseconds since the request was
    first sent, rounded up.
    """
    return max(0, math.ceil((now - queue.sent_at) * 1000))


def _repeated_frame(
    opaque: int,
    partition: TopicPartition,
    record: tuple[int, int],
    body: Buffer,
    producer: int,
    sequence: int,
    repeat_ms: int,
) -> Sequence[Buffer]:
    """Return the SEND frame for a message that was sent before and is repeated. record: the message's flag and
    checksum.
    """
    ext = SendRequest(partition.topic, partition.partition, *record, None, producer, sequence, repeat_ms).to_ext()
    return encode_frame(RequestCode.SEND, opaque, ext, len(body)), body


def batch_frame(
    opaque: int,
    partition: TopicPartition,
    batch: Sequence[Outgoing],
    tx_key: str | None = None,
    producer: int = 0,
    sequence: int = 0,
    repeat_ms: int = -1,
) -> Sequence[Buffer]:
    """Return a SEND_BATCH frame with the messages of `batch`. producer: the producer's id; 0 means that the frame has
    no sequence number. repeat_ms: milliseconds since the batch was first sent; -1 means that it was not sent before.
    """
    body = encode_batch(batch)
    records = sum(outgoing.count for outgoing in batch)
    number = (producer, sequence, repeat_ms) if producer else ()
    ext = SendBatchRequest(partition.topic, partition.partition, records, tx_key, *number).to_ext()
    return encode_frame(RequestCode.SEND_BATCH, opaque, ext, sum(map(len, body))), *body


def encode_batch(batch: Sequence[Outgoing]) -> list[Buffer]:
    """Encode the body of a SEND_BATCH: count × u32 record sizes, then the records as stored, with message id 0."""
    first = batch[0]
    if len(batch) == 1 and isinstance(first, OutgoingBatch) and first.count > tuning.FEW:
        first.seal()
        return [first.sizes.astype(">u4").tobytes(), *first.encoded()]
    sizes: list[int] = []
    parts: list[Buffer] = []
    for outgoing in batch:
        outgoing.encode_into(sizes, parts)
    return [np.array(sizes, dtype=">u4").tobytes(), *joined(parts, sum(sizes))]


def _encode_many(opaque: int, turns: Sequence[Turn], producer: int, now: float) -> Sequence[Buffer]:
    """Return a SEND_MANY frame. Each turn, which contains the messages of one partition, becomes one part of the
    frame.
    """
    topics: dict[str, int] = {}
    table: list[tuple[int, int, int]] = []
    sizes: list[int] = []
    parts: list[Buffer] = []
    for queue, batch in turns:
        before, partition = len(sizes), queue.partition
        for outgoing in batch:
            outgoing.encode_into(sizes, parts)
        table.append((topics.setdefault(partition.topic, len(topics)), partition.partition, len(sizes) - before))
    sequences = [queue.sequence for queue, _ in turns] if producer else ()
    body = [encode_parts(table, sizes, sequences), *joined(parts, sum(sizes))]
    again = [queue.repeat is not None for queue, _ in turns] if producer else ()
    repeats: tuple[int, frozenset[int]] | tuple[()] = ()
    if any(again):
        ages = [_age_ms(queue, now) for queue, _ in turns if queue.repeat is not None]
        repeats = max(ages), frozenset(np.flatnonzero(again).tolist())
    ext = SendManyRequest(tuple(topics), len(table), len(sizes), producer, *repeats).to_ext()
    return encode_frame(RequestCode.SEND_MANY, opaque, ext, sum(map(len, body))), *body


def give_results(
    batch: Sequence[Outgoing],
    first_id: int,
    partition: TopicPartition,
    offset: int,
    replicas: int | None,
    parked: list[Waiter],
) -> None:
    """Give each message of `batch` its result. The ids count up from `first_id`, and the records are adjacent in the
    log from `offset` on. Delayed and half messages have no offset yet: then `offset` is -1, and each result has the
    offset -1.

    Messages for which a thread is blocked are added to `parked`, so that the caller can wake these threads together.
    """
    ids = [first_id]
    if len(batch) > 1 and batch[0].timing:
        ids = pending_ids(first_id, [wait for outgoing in batch for wait in outgoing.waits()])
    elif len(batch) > 1:
        ids = message_id_list(first_id, sum([outgoing.count for outgoing in batch]))
    position = 0
    for outgoing in batch:
        result = outgoing.native_result(ids[position], partition, offset, replicas)
        if outgoing.mailbox is None:
            outgoing.succeed(result)
        elif not outgoing.done:
            outgoing.result = result
            parked.append(outgoing)
        position += outgoing.count
        if offset >= 0:
            offset += outgoing.size


def _chosen(partition: TopicPartition, number: int) -> TopicPartition:
    """Return the partition in which the broker has stored the messages. partition: the partition in the request.
    number: the partition number in the broker's answer; it counts only if the request has named no partition, so that
    the broker has chosen one.
    """
    return partition if partition.partition >= 0 else partition._replace(partition=number)
