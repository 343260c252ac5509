"""From a batch of one partition to requests, and from their answers to results; both protocols."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from metaq.protocol.errors import BrokerUnavailable, MetaqError, NoPartition, RemoteProtocolError
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.record import Buffer
from metaq.protocol.remoting import SendBatchRequest
from metaq.protocol.statuses import RequestCode, Status
from metaq.protocol.text import Result, encode_put, parse_put_result

from ..config import ConnectionConfig
from ..connection import Connection, Endpoint, Reply
from ..metadata import Metadata
from ..pool import ConnectionPool
from ..replies import frame_error, is_success, text_error
from ..reply_reader import SentReply
from ..values import SendResult, TopicPartition
from .batching import Accumulator
from .outgoing import Outgoing, encode_batch, finish_batch
from .templates import SendHeaders

__all__ = ["Sender"]

OnFinished = Callable[[Accumulator, list[Outgoing]], None]
OnFailed = Callable[[Accumulator, list[Outgoing], MetaqError], None]


class Sender:
    """Sends one partition's batch as one request (frames) or pipelined puts (text). Any thread.

    Exactly one of `on_finished` and `on_failed` follows each `transmit`, on the reading thread of the connection or on
    the caller's own.
    """

    def __init__(
        self,
        metadata: Metadata,
        pool: ConnectionPool,
        config: ConnectionConfig,
        on_finished: OnFinished,
        on_failed: OnFailed,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metadata = metadata
        self._pool = pool
        self._request_timeout = config.request_timeout_seconds
        self._on_finished = on_finished
        self._on_failed = on_failed
        self._clock = clock
        self._headers = SendHeaders()

    def transmit(self, accumulator: Accumulator, batch: list[Outgoing], caller: Outgoing | None = None) -> None:
        """Send `batch`. caller: the message whose thread this is and which is going to drive the connection."""
        now = self._clock()
        last = batch[0].deadline if len(batch) == 1 else max(outgoing.deadline for outgoing in batch)
        deadline = min(now + self._request_timeout, last)
        try:
            connection = self._connection(accumulator.partition, deadline - now)
            accumulator.connection = connection
            background = (len(batch) > 1 or batch[0] is not caller) and any(
                each.driver is not connection and each is not caller for each in batch
            )
            if connection.speaks_frames:
                self._send_frame(connection, accumulator, batch, deadline, background)
            else:
                _TextBatch(accumulator, batch, connection.endpoint, self._on_finished, self._on_failed).send(
                    connection, deadline, background
                )
        except MetaqError as error:
            self._on_failed(accumulator, batch, error)

    def _connection(self, partition: TopicPartition, timeout: float) -> Connection:
        endpoint = self._metadata.view(partition.topic).endpoints.get(partition.broker)
        if endpoint is None:
            raise NoPartition(f"topic {partition.topic!r}: broker {partition.broker} is not registered any more")
        return self._pool.connection(endpoint, timeout)

    # --- frames -----------------------------------------------------------------------------------------------------

    def _send_frame(
        self, connection: Connection, accumulator: Accumulator, batch: list[Outgoing], deadline: float, background: bool
    ) -> None:
        partition, opaque, first = accumulator.partition, connection.new_opaque(), batch[0]
        frame: Sequence[Buffer]
        if len(batch) == 1 and type(first) is Outgoing:
            body = first.body
            frame = self._headers.encode(opaque, partition, first.flag, first.checksum, len(body)), body
        else:
            frame = _batch(partition, batch, opaque)
        on_done = partial(self._frame_answered, accumulator, batch, connection.endpoint)
        connection.submit_built(opaque, frame, on_done, deadline, background)

    def _frame_answered(
        self,
        accumulator: Accumulator,
        batch: list[Outgoing],
        endpoint: Endpoint,
        reply: Reply | None,
        error: MetaqError | None,
    ) -> None:
        partition = accumulator.partition
        if type(reply) is SentReply:
            if partition.partition < 0:
                partition = partition._replace(partition=reply.partition)  # the broker chose it
            if len(batch) == 1:
                batch[0].succeed_native(reply.message_id, partition, reply.offset)
            else:
                finish_batch(batch, reply.message_id, partition, reply.offset)
            self._on_finished(accumulator, batch)
        else:
            self._on_failed(accumulator, batch, error or _refusal(reply, partition, endpoint))


def _refusal(reply: Reply | None, partition: TopicPartition, endpoint: Endpoint) -> MetaqError:
    if isinstance(reply, Frame) and not is_success(reply):
        return frame_error(reply, partition, endpoint)
    return BrokerUnavailable(f"{endpoint} answered a send with something else: {reply!r}")


def _batch(partition: TopicPartition, batch: list[Outgoing], opaque: int) -> Sequence[Buffer]:
    body = encode_batch(batch)
    records = sum(outgoing.count for outgoing in batch)
    request = SendBatchRequest(partition.topic, partition.partition, records)
    return encode_frame(RequestCode.SEND_BATCH, opaque, request.to_ext(), sum(map(len, body))), *body


# --- text -------------------------------------------------------------------------------------------------------------


class _TextBatch:
    """Pipelined puts of one partition, answered one by one.

    A Java broker may append pipelined puts in another order (wire.md §5); messages with a key therefore go one at a
    time (`Accumulator.take`).
    """

    def __init__(
        self,
        accumulator: Accumulator,
        batch: list[Outgoing],
        endpoint: Endpoint,
        on_finished: OnFinished,
        on_failed: OnFailed,
    ) -> None:
        self._accumulator = accumulator
        self._partition = accumulator.partition
        self._batch = batch
        self._endpoint = endpoint
        self._on_finished = on_finished
        self._on_failed = on_failed
        self._records = [record for outgoing in batch for record in outgoing.records()]
        self._results: list[SendResult | None] = [None] * len(self._records)
        self._missing = len(self._records)
        self._error: MetaqError | None = None
        self._lock = threading.Lock()

    def send(self, connection: Connection, deadline: float, background: bool) -> None:
        builds = [partial(self._put, *record) for record in self._records]
        handlers = [partial(self._answered, index) for index in range(len(builds))]
        connection.submit_all(builds, handlers, deadline, background=background)

    def _put(self, flag: int, checksum: int, body: Buffer, opaque: int) -> Sequence[Buffer]:
        topic, partition = self._partition.topic, self._partition.partition
        return (encode_put(topic, partition, flag, checksum, opaque, bytes(body)),)

    def _answered(self, index: int, reply: Reply | None, error: MetaqError | None) -> None:
        """Any order; the last one ends the batch."""
        with self._lock:  # the reader, and a sender that finds the connection broken
            self._note(index, reply, error)
            self._missing -= 1
            last = not self._missing
        if last:
            self._finish()

    def _note(self, index: int, reply: Reply | None, error: MetaqError | None) -> None:
        if isinstance(reply, Result) and reply.code == Status.SUCCESS:
            try:
                message_id, number, offset = parse_put_result(reply.text)
            except RemoteProtocolError as wrong:
                self._error = BrokerUnavailable(f"{self._endpoint} answered a put with something else: {wrong}")
            else:
                self._results[index] = SendResult(message_id, self._partition._replace(partition=number), offset)
        elif isinstance(reply, Result):
            self._error = text_error(reply, self._partition, self._endpoint)
        else:
            self._error = error or BrokerUnavailable(f"{self._endpoint} answered a put with data")

    def _finish(self) -> None:
        position = 0
        failed: list[Outgoing] = []
        for outgoing in self._batch:
            count = sum(1 for _ in outgoing.records())
            results = self._results[position : position + count]
            position += count
            put = [result for result in results if result is not None]
            if len(put) == count:
                outgoing.succeed_text(put)
            else:
                outgoing.keep(results)
                failed.append(outgoing)
        if self._error is None:
            self._on_finished(self._accumulator, self._batch)
        else:
            self._on_failed(self._accumulator, self._batch, self._error)
