"""SEND_BATCH and SEND_MANY: store the records of one frame, which the client has encoded. SEND_BATCH is for one
partition, SEND_MANY for many.

broker/writing/taking.py decides how the records are stored.
"""

from __future__ import annotations

from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.frames import Frame
from metaq.protocol.refusals import response_code
from metaq.protocol.sends import (
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

from ..partitions.partitions import ANY
from ..reading.answers import Bytes, Work, answer_frame
from ..runtime.reactor import ReactorTime
from ..writing.sequences import SendingPeer
from ..writing.taking import AskedParts, TakenParts, take_batch, take_many
from ..writing.write import Number
from ..writing.writing import Writing

__all__ = ["answer_send_batch", "answer_send_many"]


def answer_send_batch(writing: Writing, frame: Frame, caller: SendingPeer | None) -> Work:
    """Store all records of the batch or none. Raises RemoteProtocolError, ChecksumMismatch, and the errors of a refused
    put.
    """
    request, opaque = SendBatchRequest.from_ext(frame.ext), frame.opaque
    if request.sequence and request.partition == ANY:
        raise RemoteProtocolError("a send with a sequence names no partition")
    topic, count, number = request.topic, request.records, None
    if request.sequence:
        number = Number(request.producer, request.sequence, count, request.repeat_ms)
    sizes, records = split_batch(frame.body, count)
    write, waiting = yield from take_batch(writing, topic, request.partition, number, (records, sizes), caller)

    def encode() -> Bytes:
        if (error := write.failure) is not None:
            writing.refused(topic, error, count)
            raise error
        place = write.answered_id, write.target.partition, write.answered_offset
        return encode_sent_reply(opaque, *place, write.replicas)

    return writing.answer(waiting, encode)


def answer_send_many(writing: Writing, reactor: ReactorTime, frame: Frame, caller: SendingPeer | None) -> Work:
    """Store the records of a SEND_MANY frame and answer it. The frame consists of parts, each with records for one
    partition; each part is stored or refused independently of the other parts. If the frame's body contradicts the
    frame's header, raise RemoteProtocolError without storing anything.
    """
    request, opaque = SendManyRequest.from_ext(frame.ext), frame.opaque
    parts = split_many(frame.body, request)
    number = request.producer, parts.sequences, request.repeats, request.repeat_ms
    asked = AskedParts(request.topics, parts.topics, parts.partitions, parts.counts.tolist(), *number)
    taken = yield from take_many(writing, asked, (parts.records, parts.sizes), caller, reactor.seconds)
    return writing.answer(taken.waiting, lambda: _encoded_many(writing, opaque, taken))


def _encoded_many(writing: Writing, opaque: int, taken: TakenParts) -> Bytes:
    count = len(taken.partitions)
    codes, replicas = [int(ResponseCode.SUCCESS)] * count, [0] * count
    errors = taken.failures()
    for number, error in errors.items():
        codes[number] = int(response_code(error))
    remark = str(errors[min(errors)]) if errors else ""
    ids, offsets = taken.places()
    rows = encode_rows(ids, offsets, taken.partitions, codes)
    if writing.copies is not None:
        for number, write in taken.writes.items():
            replicas[number] = write.replicas
        rows += encode_replicas(replicas)
    ext = SendManyReply(count).to_ext()
    return answer_frame(opaque, ext, remark=remark, body=len(rows)) + rows
