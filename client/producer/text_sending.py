"""One partition's batch as pipelined puts of the text protocol, for brokers that do not speak frames."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from metaq.protocol.errors import BrokerUnavailable, MetaqError, RemoteProtocolError
from metaq.protocol.record import Buffer
from metaq.protocol.refusals import text_error
from metaq.protocol.statuses import Status
from metaq.protocol.text import Result, encode_put, parse_put_result

from ..connection import Connection, Endpoint, Exchange, Reply
from ..values import SendResult
from .core import FailedTurn
from .outgoing import Outgoing
from .queues import Flight, Turn

__all__ = ["OnLanded", "OnSettled", "TextBatch"]

OnLanded = Callable[[Flight, Sequence[Turn], Sequence[FailedTurn]], None]
"""These turns of a flight have ended: finished ones, and failed ones."""
OnSettled = Callable[[Flight, Sequence[Turn]], None]
"""The messages of these finished turns of a flight have their results."""


class AnswerTaker(Protocol):
    """What takes the answers: the Sender."""

    on_landed: OnLanded
    on_settled: OnSettled

    def settle_alone(self, flight: Flight, outgoing: Outgoing, result: object) -> bool:
        """The only message of a flight was stored; whether that was all."""

    def take(self, flight: Flight, action: Callable[[], None]) -> None:
        """Take an answer where no interrupt comes."""

    def settle_again(self, flight: Flight, error: MetaqError) -> None:
        """What was acknowledged gets its results."""


class TextBatch:
    """Pipelined puts of one partition, answered one by one.

    A Java broker may append pipelined puts in another order (wire.md §5); messages with a key therefore go one at a
    time (`PartitionQueue.take`).
    """

    def __init__(
        self,
        flight: Flight,
        turn: Turn,
        endpoint: Endpoint,
        sender: AnswerTaker,
    ) -> None:
        self._flight = flight
        self._turn = turn
        self._partition = turn.queue.partition
        self._batch = turn.batch
        self._endpoint = endpoint
        self._sender = sender
        self._records = [record for outgoing in turn.batch for record in outgoing.records()]
        self._results: list[SendResult | None] = [None] * len(self._records)
        self._missing = set(range(len(self._records)))
        self._finished = False
        self._error: MetaqError | None = None
        self._lock = threading.Lock()

    def send(self, connection: Connection, deadline: float, background: bool) -> None:
        topic, number = self._partition.topic, self._partition.partition
        requests: list[Exchange] = []
        puts: list[Buffer] = []
        for index, (flag, checksum, body) in enumerate(self._records):
            opaque = connection.new_opaque()
            requests.append(Exchange(opaque, partial(self._answered, index), deadline, background))
            puts.append(encode_put(topic, number, flag, checksum, opaque, bytes(body)))
        self._flight.request = requests[0]
        connection.send(requests, puts)

    def _answered(self, index: int, reply: Reply | None, error: MetaqError | None) -> None:
        """Any order; the last one ends the batch. Called again after an interrupt."""
        if len(self._records) == 1 and self._sent_alone(reply):
            return
        self._sender.take(self._flight, partial(self._take, index, reply, error))

    def _take(self, index: int, reply: Reply | None, error: MetaqError | None) -> None:
        if self._turn in self._flight.landed:
            if error is not None:
                self._sender.settle_again(self._flight, error)
            return
        with self._lock:  # the reader, and the thread that ends the connection
            if index in self._missing:
                self._note(index, reply, error)
                self._missing.discard(index)
            last = not self._missing
        if last and not self._finished:
            self._finish()
            self._finished = True

    def _sent_alone(self, reply: Reply | None) -> bool:
        """The usual case: one message was stored."""
        outgoing = self._batch[0]
        if type(outgoing) is not Outgoing or not isinstance(reply, Result) or reply.code != Status.SUCCESS:
            return False
        try:
            message_id, number, offset = parse_put_result(reply.text)
        except RemoteProtocolError:
            return False
        result = SendResult(message_id, self._partition._replace(partition=number), offset)
        return self._sender.settle_alone(self._flight, outgoing, result)

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
            self._sender.on_landed(self._flight, (self._turn,), ())
            self._sender.on_settled(self._flight, (self._turn,))
        else:
            self._sender.on_landed(self._flight, (), [(self._turn, self._error)])
