"""`put` and SEND: the puts that one read brought, appended once per partition and answered together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.internet.defer import Deferred

from metaq.protocol.errors import ChecksumMismatch, MetaqError, SyncFailed
from metaq.protocol.message_id import message_ids_from
from metaq.protocol.record import HEADER_BYTES, Buffer, checksum
from metaq.protocol.sends import SendReply
from metaq.protocol.text import NO_CHECKSUM, Put

from ..broker import Broker
from ..network.pending_puts import PUT_OVERHEAD_BYTES
from ..partitions import ANY
from ..store.batch import encode_puts
from ..store.partition_log import PartitionLog
from .answers import Answer, Bytes, answer_frame
from .safety import when_safe

__all__ = ["PutGroup", "Send"]


class Send:
    """A SEND frame as a put."""

    __slots__ = ("body", "checksum", "flag", "one_way", "opaque", "partition", "topic", "tx_key")

    def __init__(
        self, topic: str, partition: int, flag: int, checksum: int, opaque: int, body: Buffer, one_way: bool
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.flag = flag
        self.checksum = checksum
        self.tx_key = None
        self.opaque = opaque
        self.body = body
        self.one_way = one_way


PutOrSend = Put | Send
Refuse = Callable[[PutOrSend, int, MetaqError], bytes]
"""refuse(put, partition, error) -> the answer; dispatch.py's."""


class _Batch:
    """A group's puts to one partition."""

    __slots__ = ("base", "end", "error", "ids", "log", "puts", "requests", "slave_errors")

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.requests: list[PutOrSend] = []
        self.puts: list[tuple[int, int, Buffer]] = []  # flag, checksum, body
        # set by the append
        self.ids: Sequence[int] = ()
        self.base = self.end = 0
        self.error: MetaqError | None = None
        self.slave_errors: Sequence[MetaqError | None] = ()
        """Of a synchronous master: per put why the slave does not have it; empty without a slave."""


class PutGroup:
    """The puts of one read, in order. Lives until they are answered.

    Puts are checked when they are added, so a refused one has no effect on the others, and appended by `commit`.
    """

    __slots__ = ("_batches", "_body_bytes", "_broker", "_last", "_last_partition", "_last_topic", "_order", "_refuse")

    def __init__(self, broker: Broker, refuse: Refuse) -> None:
        self._broker = broker
        self._refuse = refuse
        self._batches: dict[PartitionLog, _Batch] = {}
        self._order: list[_Batch | bytes] = []  # per put: the batch that has its answer, or the answer
        # most reads bring puts to one partition
        self._last: _Batch | None = None
        self._last_topic = ""
        self._last_partition = ANY
        self._body_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Memory that the puts take until they are answered."""
        return self._body_bytes + PUT_OVERHEAD_BYTES * len(self._order)

    def add(self, put: PutOrSend) -> None:
        """Check a put and keep it for `commit`."""
        body = put.body
        self._body_bytes += len(body)
        partition = put.partition
        try:
            batch = self._last
            if batch is None or partition != self._last_partition or put.topic != self._last_topic:
                if partition == ANY:
                    partition = self._broker.partitions.choose(put.topic)
                batch = self._batch(put, partition)
            found = checksum(body)
            if found != put.checksum != NO_CHECKSUM:
                raise ChecksumMismatch
        except MetaqError as error:
            self._broker.metrics.put(put.topic, 1, len(body))
            self._order.append(self._refuse(put, partition, error))
            return
        batch.requests.append(put)
        batch.puts.append((put.flag, found, body))
        self._order.append(batch)

    def _batch(self, put: PutOrSend, partition: int) -> _Batch:
        chosen = put.partition == ANY
        log = self._broker.partitions.for_put(put.topic, partition, chosen=chosen)
        if self._broker.sync_slave is not None:
            self._broker.sync_slave.check()
        batch = self._batches.get(log)
        if batch is None:
            batch = self._batches[log] = _Batch(log)
        if not chosen:
            self._last, self._last_topic, self._last_partition = batch, put.topic, partition
        return batch

    def commit(self) -> Answer:
        """Append everything, once per partition. All answers, in the order of the puts, when all may be given."""
        batches = [batch for batch in self._batches.values() if batch.puts]
        store = self._broker.store
        errors = store.append_many([self._encoded(batch) for batch in batches])
        for batch, error in zip(batches, errors, strict=True):
            batch.error = error
        if self._broker.sync_slave is None:
            waiting = [batch for batch in batches if batch.error is None and batch.log.visible_end < batch.end]
        else:
            waiting = [batch for batch in batches if batch.error is None]
        return self._answer_when_safe(waiting) if waiting else self._answers()

    def _encoded(self, batch: _Batch) -> tuple[PartitionLog, list[Buffer], bytes]:
        log, puts = batch.log, batch.puts
        count = len(puts)
        first_id = self._broker.message_ids.next(count)
        batch.ids = (first_id,) if count == 1 else message_ids_from(first_id, count).tolist()
        batch.base = log.end_offset
        data, units = encode_puts(puts, batch.base, batch.ids)
        size = sum(map(len, data))
        batch.end = batch.base + size
        self._broker.metrics.put(log.topic, count, size - count * HEADER_BYTES)
        return log, data, units

    def _answer_when_safe(self, waiting: list[_Batch]) -> Deferred[Bytes]:
        def visible(errors: Sequence[MetaqError | None]) -> None:
            for batch, error in zip(waiting, errors, strict=True):
                batch.error = error

        def replicated(batch: _Batch, errors: Sequence[MetaqError | None]) -> None:
            batch.slave_errors = errors

        return when_safe(self._broker, waiting, visible, replicated, self._answers)

    def _answers(self) -> bytes:
        if len(self._batches) == 1:
            (batch,) = self._batches.values()
            if len(batch.requests) == len(self._order):  # nothing was refused
                return b"".join(self._batch_answers(batch))
        answers = {batch: iter(self._batch_answers(batch)) for batch in self._batches.values()}
        return b"".join(each if isinstance(each, bytes) else next(answers[each]) for each in self._order)

    def _batch_answers(self, batch: _Batch) -> list[bytes]:
        partition = batch.log.partition
        if batch.error is not None:
            error = self._failed_here(batch, batch.error)
            return [self._refuse(put, partition, error) for put in batch.requests]
        offset = batch.base
        answers = []
        errors = iter(batch.slave_errors)
        for put, message_id in zip(batch.requests, batch.ids, strict=True):
            error_there = next(errors, None)
            if error_there is not None:
                answers.append(self._refuse(put, partition, error_there))
            elif isinstance(put, Send):
                answers.append(_answer_send(put, SendReply(message_id, partition, offset)))
            else:
                text = b"%d %d %d" % (message_id, partition, offset)
                answers.append(b"result 200 %d %d\r\n%b" % (len(text), put.opaque, text))
            offset += 20 + len(put.body)  # HEADER_BYTES
        return answers

    def _failed_here(self, batch: _Batch, error: MetaqError) -> MetaqError:
        if self._broker.sync_slave is None:
            return error
        return SyncFailed("master", self._broker.url, batch.log.topic, batch.log.partition)


def _answer_send(send: Send, reply: SendReply) -> bytes:
    return b"" if send.one_way else answer_frame(send.opaque, reply.to_ext())
