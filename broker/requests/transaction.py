"""`transaction` and puts with a transaction key, TRANSACTION and SEND, SEND_BATCH with `txKey`.

`connection` is whatever stands for the connection that a request came on: local transactions belong to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from metaq.protocol.errors import MetaqError, RemoteProtocolError, TransactionRefused
from metaq.protocol.frames import Frame
from metaq.protocol.limits import MAX_TX_BATCH_RECORDS
from metaq.protocol.record import HEADER, HEADER_BYTES, Buffer
from metaq.protocol.remoting import CompleteTransactionRequest, TransactionRequest
from metaq.protocol.sends import SendBatchRequest, SendReply, SendRequest, split_batch
from metaq.protocol.statuses import Status
from metaq.protocol.text import Put, Transaction, TransactionType, encode_result
from metaq.protocol.transactions import NULL_KEY, XaVote

from ..broker import Broker
from .admin import answer_json
from .answers import Answer, Bytes, answer_frame

__all__ = [
    "answer_complete_transaction",
    "answer_prepared_transactions",
    "answer_send_batch_in_transaction",
    "answer_send_in_transaction",
    "answer_transaction",
    "answer_transaction_frame",
    "answer_transactional_put",
]

_UNSUPPORTED = {
    TransactionType.BEGIN: "beginTransaction",
    TransactionType.PREPARE: "prepareTransaction",
    TransactionType.COMMIT_ONE_PHASE: "commitTransaction",
    TransactionType.COMMIT_TWO_PHASE: "commitTransaction",
    TransactionType.ROLLBACK: "rollbackTransaction",
    TransactionType.FORGET: "forgetTransaction",
    TransactionType.RECOVER: "getPreparedTransactions",
}
"""What a broker in synchronous replication answers with `Unsupported` before it, as in 1.x."""

T = TypeVar("T")


# --- verbs ------------------------------------------------------------------------------------------------------------


def answer_transaction(broker: Broker, command: Transaction, connection: object) -> Answer:
    """END is never answered (wire.md §4). Raises TransactionRefused, also later."""
    if command.type is TransactionType.END:
        return None
    request = TransactionRequest(
        command.key, command.type.name, command.session, command.timeout or 0, command.qualifier or ""
    )
    text = _perform(broker, request, connection)
    return _then(text, lambda text: encode_result(Status.SUCCESS, text, command.opaque))


def answer_transaction_frame(broker: Broker, frame: Frame, connection: object) -> Answer:
    """The same; the body is the text, and END is answered. Raises RemoteProtocolError, TransactionRefused."""

    def encode(text: str) -> Bytes:
        body = text.encode("utf-8")
        parts: list[Buffer] = [answer_frame(frame.opaque, {}, body=len(body)), body]
        return parts

    return _then(_perform(broker, TransactionRequest.from_ext(frame.ext), connection), encode)


def _perform(broker: Broker, request: TransactionRequest, connection: object) -> str | Deferred[str]:
    """What 1.x's answer to this verb says."""
    transactions, key = broker.transactions, request.tx_key
    kind = TransactionType[request.type]
    if not broker.has_transactions and kind in _UNSUPPORTED:
        raise TransactionRefused(f"Unsupported {_UNSUPPORTED[kind]}")
    match kind:
        case TransactionType.BEGIN:
            transactions.begin(connection, key, request.timeout_seconds)
        case TransactionType.PREPARE:
            return _then(transactions.prepare(connection, key), _vote)
        case TransactionType.COMMIT_ONE_PHASE:
            return _then(transactions.commit(connection, key, one_phase=True), _nothing)
        case TransactionType.COMMIT_TWO_PHASE:
            return _then(transactions.commit(connection, key, one_phase=False), _nothing)
        case TransactionType.ROLLBACK:
            return _then(transactions.rollback(connection, key), _nothing)
        case TransactionType.FORGET:
            return _then(transactions.forget(key), _nothing)
        case TransactionType.RECOVER:
            return "\r\n".join(transactions.recover(request.qualifier or None))
        case TransactionType.END:
            pass
    return ""


def _vote(vote: XaVote) -> str:
    return str(int(vote))


def _nothing(_: None) -> str:
    return ""


def _then(result: Any | Deferred[Any], convert: Callable[[Any], T]) -> T | Deferred[T]:
    return result.addCallback(convert) if isinstance(result, Deferred) else convert(result)


# --- messages ---------------------------------------------------------------------------------------------------------


def answer_transactional_put(broker: Broker, put: Put, connection: object) -> bytes:
    """Raises what is wrong with it."""
    key = put.tx_key or NULL_KEY
    first_id = _put(broker, connection, key, put.topic, put.partition, [(put.flag, put.checksum, put.body)], put.opaque)
    return encode_result(Status.SUCCESS, f"{first_id} {put.partition} -1", put.opaque)


def answer_send_in_transaction(broker: Broker, frame: Frame, connection: object) -> Bytes:
    """Raises what is wrong with it."""
    topic, partition, flag, announced, key = SendRequest.from_ext(frame.ext)
    # a copy: the body is a view into all that was received with it
    puts = [(flag, announced, bytes(frame.body))]
    first_id = _put(broker, connection, key or NULL_KEY, topic, partition, puts, frame.opaque)
    return answer_frame(frame.opaque, SendReply(first_id, partition, -1).to_ext())


def answer_send_batch_in_transaction(broker: Broker, frame: Frame, connection: object) -> Bytes:
    """All or nothing. Raises what is wrong with it."""
    topic, partition, count, key = SendBatchRequest.from_ext(frame.ext)
    if count > MAX_TX_BATCH_RECORDS:
        limit = f"at most {MAX_TX_BATCH_RECORDS} messages may be put into a transaction at once"
        raise RemoteProtocolError(f"a batch of {count} messages is too many: {limit}")
    sizes, records = split_batch(frame.body, count)
    puts = []
    start = 0
    for size in sizes.tolist():
        length, announced, _, flag = HEADER.unpack_from(records, start)
        if length != size - HEADER_BYTES or announced < 0:
            raise RemoteProtocolError(f"batch: the record at byte {start} does not have its announced size")
        puts.append((flag, announced, bytes(records[start + HEADER_BYTES : start + size])))
        start += size
    first_id = _put(broker, connection, key or NULL_KEY, topic, partition, puts, frame.opaque)
    return answer_frame(frame.opaque, SendReply(first_id, partition, -1).to_ext())


def _put(
    broker: Broker,
    connection: object,
    key: str,
    topic: str,
    partition: int,
    puts: Sequence[tuple[int, int, Buffer]],
    opaque: int,
) -> int:
    try:
        if not broker.has_transactions:
            raise TransactionRefused("a broker in synchronous replication has no transactions: send without one")
        return broker.transactions.put(connection, key, topic, partition, puts, opaque)
    except MetaqError:
        broker.metrics.put_refused(topic, len(puts))
        raise


# --- operators --------------------------------------------------------------------------------------------------------


def answer_prepared_transactions(broker: Broker, frame: Frame) -> Answer:
    found = [
        {
            "key": each.key,
            "prepared_at_ms": each.prepared_at_ms,
            "messages": each.messages,
            "bytes": each.size,
            "topics": each.topics,
            "state": each.state,
        }
        for each in broker.transactions.prepared()
    ]
    return answer_json(frame, found)


def answer_complete_transaction(broker: Broker, frame: Frame) -> Answer:
    """Raises RemoteProtocolError, TransactionRefused."""
    request = CompleteTransactionRequest.from_ext(frame.ext)
    done = broker.transactions.complete(request.tx_key, request.action)
    return _then(done, lambda _: answer_frame(frame.opaque, {}))
