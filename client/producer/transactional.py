"""What local and XA transactions share: verbs and messages with a key, in whichever protocol the broker speaks."""

from __future__ import annotations

import itertools
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Unpack

from metaq.coordination.local_address import local_address
from metaq.protocol.errors import BrokerUnavailable, ClientError, NoPartition, RemoteProtocolError, RequestRefused
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.limits import MAX_TX_BATCH_RECORDS
from metaq.protocol.message_id import message_ids_from
from metaq.protocol.record import Buffer
from metaq.protocol.refusals import frame_error, is_success, text_error, transaction_refusal
from metaq.protocol.remoting import TransactionRequest
from metaq.protocol.sends import SendBatchRequest, SendReply, SendRequest
from metaq.protocol.statuses import RequestCode, Status
from metaq.protocol.text import Result, encode_put, encode_transaction, parse_put_result
from metaq.protocol.transactions import TransactionType

from ..config import ProducerConfig
from ..connection import Connection
from ..message import Message
from ..metadata import Metadata
from ..pool import ConnectionPool
from ..values import SendResult, TopicPartition
from .building import SendOptions, build_batch, build_message
from .futures import refuse_in_callback
from .outgoing import Outgoing, OutgoingBatch, encode_batch
from .routing import Router

__all__ = ["TransactionSends", "Transactional"]

_sessions = itertools.count(1)
PENDING_OFFSET = -1


class Transactional:
    """The part of a producer that its transactions share. Any thread; every method blocks for one round trip a request.

    session: names this producer to brokers, as 1.x does: `<address>-<start in ms>-<number>`.
    """

    def __init__(
        self,
        metadata: Metadata,
        pool: ConnectionPool,
        router: Router,
        config: ProducerConfig,
        clock: Callable[[], float],
    ) -> None:
        self.metadata = metadata
        self.router = router
        self.config = config
        self.clock = clock
        # the process id beside 1.x's counter, so that two processes cannot share a name
        self.session = f"{local_address()}-{int(time.time() * 1000)}-{os.getpid()}.{next(_sessions)}"
        self.closed = False
        self._pool = pool
        self._numbers = itertools.count(1)

    def new_local_key(self) -> str:
        """The key of a new transaction on one connection."""
        return f"TX:{self.session}:{next(self._numbers)}"

    def connect(self, topic: str, broker: int, timeout: float) -> Connection:
        """The connection to `broker` (seen through the view of `topic`).

        Raises NoPartition, BrokerUnavailable, ClientError (the producer is closed).
        """
        refuse_in_callback("a transaction")
        if self.closed:
            raise ClientError("this producer is closed")
        endpoint = self.metadata.view(topic).endpoints.get(broker)
        if endpoint is None:
            raise NoPartition(f"broker {broker} is not registered any more")
        return self._pool.connection(endpoint, timeout)

    def deadline(self, timeout: float | None) -> float:
        """Clock time at which a send with this `timeout` in seconds ends."""
        return self.clock() + (self.config.delivery_timeout_seconds if timeout is None else timeout)

    # --- verbs ------------------------------------------------------------------------------------------------------

    def verb(
        self,
        connection: Connection,
        kind: TransactionType,
        tx_key: str | None,
        *,
        timeout_seconds: int = 0,
        qualifier: str = "",
        deadline: float | None = None,
    ) -> str:
        """Ask for `kind`; the text of the broker's answer ("" for END, which the text protocol does not answer).

        Raises TransactionRefused (XaRefused with a code), RequestTimedOut, BrokerUnavailable.
        """
        refuse_in_callback("a transaction")
        wait = self._wait(deadline)
        if not connection.speaks_frames:
            return self._text_verb(connection, kind, tx_key, timeout_seconds, qualifier, wait)
        request = TransactionRequest(tx_key, kind.value, self.session, timeout_seconds, qualifier)
        reply = connection.call(lambda opaque: (encode_frame(RequestCode.TRANSACTION, opaque, request.to_ext()),), wait)
        if not isinstance(reply, Frame):
            raise RemoteProtocolError(f"{connection.endpoint} answered {kind.value} with something else: {reply!r}")
        if not is_success(reply):
            raise frame_error(reply, TopicPartition("", -1, -1), connection.endpoint)
        return str(reply.body, "utf-8", "replace")

    def _text_verb(
        self,
        connection: Connection,
        kind: TransactionType,
        tx_key: str | None,
        seconds: int,
        qualifier: str,
        wait: float,
    ) -> str:
        encode = partial(encode_transaction, tx_key, self.session, kind, seconds, qualifier)
        if kind is TransactionType.END:
            connection.send_unanswered(encode(connection.new_opaque()), self.clock() + wait)
            return ""
        reply = connection.call(lambda opaque: (encode(opaque),), wait)
        if not isinstance(reply, Result):
            raise RemoteProtocolError(f"{connection.endpoint} answered {kind.value} with something else: {reply!r}")
        if reply.code != Status.SUCCESS:
            raise transaction_refusal(reply.text)
        return reply.text

    # --- messages ---------------------------------------------------------------------------------------------------

    def put(
        self, connection: Connection, tx_key: str, partition: TopicPartition, outgoing: Outgoing
    ) -> Sequence[SendResult]:
        """Put what `outgoing` holds into the transaction, in its order; the results have no offset.

        Raises TransactionRefused and the other refusals, RequestTimedOut, BrokerUnavailable.
        """
        refuse_in_callback("a transaction")
        send = self._put_frame if connection.speaks_frames else self._put_texts
        return send(connection, tx_key, partition, outgoing)

    def _put_frame(
        self, connection: Connection, tx_key: str, partition: TopicPartition, outgoing: Outgoing
    ) -> Sequence[SendResult]:
        if outgoing.count > MAX_TX_BATCH_RECORDS:
            assert isinstance(outgoing, OutgoingBatch)
            pieces = outgoing.pieces(MAX_TX_BATCH_RECORDS)
            return [result for piece in pieces for result in self._put_frame(connection, tx_key, partition, piece)]

        def build(opaque: int) -> Sequence[Buffer]:
            topic, number = partition.topic, partition.partition
            if type(outgoing) is Outgoing:
                body: list[Buffer] = [outgoing.body]
                ext = SendRequest(topic, number, outgoing.flag, outgoing.checksum, tx_key).to_ext()
                return encode_frame(RequestCode.SEND, opaque, ext, len(outgoing.body)), *body
            body = encode_batch([outgoing])
            ext = SendBatchRequest(topic, number, outgoing.count, tx_key).to_ext()
            return encode_frame(RequestCode.SEND_BATCH, opaque, ext, sum(map(len, body))), *body

        reply = connection.call(build, self._wait(outgoing.deadline))
        if not isinstance(reply, Frame):  # with an offset: the broker did not see the key
            raise RemoteProtocolError(f"{connection.endpoint} stored a message outside of its transaction: {reply!r}")
        if not is_success(reply):
            raise frame_error(reply, partition, connection.endpoint)
        first = SendReply.from_ext(reply.ext).message_id
        ids = message_ids_from(first, outgoing.count).tolist()
        return [SendResult(identity, partition, PENDING_OFFSET) for identity in ids]

    def _put_texts(
        self, connection: Connection, tx_key: str, partition: TopicPartition, outgoing: Outgoing
    ) -> Sequence[SendResult]:
        """One after the other, because a Java broker may take pipelined puts in any order."""
        results = []
        for flag, checksum, body in outgoing.records():
            reply = connection.call(
                partial(_put_line, partition, flag, checksum, bytes(body), tx_key), self._wait(outgoing.deadline)
            )
            results.append(SendResult(_put_id(reply, partition, connection), partition, PENDING_OFFSET))
        return results

    def _wait(self, deadline: float | None) -> float:
        limit = self.config.connection.request_timeout_seconds
        return limit if deadline is None else min(limit, max(0.001, deadline - self.clock()))


class TransactionSends(ABC):
    """The sending half of a transaction."""

    def __init__(self, calls: Transactional) -> None:
        self._calls = calls

    def send(
        self,
        topic: str,
        payload: Buffer,
        *,
        timeout: float | None = None,
        **options: Unpack[SendOptions],
    ) -> SendResult:
        """Put one message into the transaction; arguments as for Producer.send. The result's offset is -1."""
        return self._put(build_message(topic, payload, self._calls.deadline(timeout), options))[0]

    def send_batch(
        self,
        topic: str,
        payloads: Iterable[Buffer | Message],
        *,
        timeout: float | None = None,
        **options: Unpack[SendOptions],
    ) -> Sequence[SendResult]:
        """Put many messages of one partition into the transaction, up to 8,192 a frame (text protocol: one by one).

        Arguments as for Producer.send_batch.
        """
        items = list(payloads)
        if not items:
            return []
        return self._put(build_batch(topic, items, self._calls.deadline(timeout), options))

    @abstractmethod
    def _put(self, outgoing: Outgoing) -> Sequence[SendResult]: ...


def _put_line(
    partition: TopicPartition, flag: int, checksum: int, body: bytes, tx_key: str, opaque: int
) -> Sequence[Buffer]:
    return (encode_put(partition.topic, partition.partition, flag, checksum, opaque, body, tx_key),)


def _put_id(reply: object, partition: TopicPartition, connection: Connection) -> int:
    if not isinstance(reply, Result):
        raise BrokerUnavailable(f"{connection.endpoint} answered a put with data")
    if reply.code != Status.SUCCESS:
        error = text_error(reply, partition, connection.endpoint)
        raise transaction_refusal(reply.text) if isinstance(error, RequestRefused) else error
    return parse_put_result(reply.text)[0]
