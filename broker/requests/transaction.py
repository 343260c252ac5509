"""Handle the requests of transactions: `transaction` and puts with a transaction key, TRANSACTION, and SEND and
SEND_BATCH with `txKey`.

The argument `connection` identifies the client connection that sent the request. Local transactions belong to a
connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any

from twisted.internet.defer import Deferred

from metaq.protocol.access import AccessOperation, Need, Principal
from metaq.protocol.errors import MetaqError, RemoteProtocolError, TransactionRefused
from metaq.protocol.flags import meant_of
from metaq.protocol.frames import Frame
from metaq.protocol.limits import MAX_TX_BATCH_RECORDS
from metaq.protocol.record import HEADER, HEADER_BYTES, Buffer
from metaq.protocol.sends import SendBatchRequest, SendRequest, send_reply, split_batch
from metaq.protocol.statuses import Status
from metaq.protocol.text import Put, TransactionCommand, TransactionType, encode_put_result, encode_result
from metaq.protocol.transaction_requests import (
    CompleteTransactionRequest,
    PreparedTransactionsRequest,
    TransactionOutcomeReply,
    TransactionOutcomeRequest,
    TransactionRequest,
)
from metaq.protocol.transactions import NULL_KEY, XaVote, is_xa

from ..reading.answers import Answer, Bytes, Work, body_frame, encode_json, reply_frame, then
from ..transactions.transactions import Transactions
from ..writing.taking import check_in_transaction
from ..writing.writing import Writing

__all__ = ["TransactionVerbs"]

_UNSUPPORTED = {
    TransactionType.BEGIN: "beginTransaction",
    TransactionType.PREPARE: "prepareTransaction",
    TransactionType.COMMIT_ONE_PHASE: "commitTransaction",
    TransactionType.COMMIT_TWO_PHASE: "commitTransaction",
    TransactionType.ROLLBACK: "rollbackTransaction",
    TransactionType.FORGET: "forgetTransaction",
    TransactionType.RECOVER: "getPreparedTransactions",
}
"""A broker with synchronous replication supports no transactions. As in 1.x, it answers a transaction command with
`Unsupported` and the word that this dict has for the command.
"""


class TransactionVerbs:
    """Carries out the requests of transactions. Each method may raise TransactionRefused, or its Deferred may fail with
    it.
    """

    def __init__(
        self,
        transactions: Transactions,
        writing: Writing,
        permit: Callable[[Need, Any], None] = lambda need, caller: None,
        permit_owner: Callable[[Principal | None, Any, str], None] = lambda owner, caller, what: None,
    ) -> None:
        """permit(need, caller): raises MetaqError if the caller has no grant for `need`. permit_owner(owner, caller,
        what): raises MetaqError if grants are enforced, the owner of a transaction is known, and the owner is not the
        caller. The error's text names the transaction by `what`.
        """
        self._transactions = transactions
        self._writing = writing
        self._permit = permit
        self._permit_owner = permit_owner

    # --- verbs --------------------------------------------------------------------------------------------------------

    def text(self, command: TransactionCommand, connection: object) -> Answer:
        """Answer the command `transaction`. The broker sends no answer if the command's type is END (wire.md §4)."""
        if command.type is TransactionType.END:
            return None
        request = TransactionRequest(
            command.key, command.type.name, command.session, command.timeout or 0, command.qualifier or ""
        )
        text = self.perform(request, connection)
        return then(text, lambda text: encode_result(Status.SUCCESS, text, command.opaque))

    def perform(self, request: TransactionRequest, connection: object) -> str | Deferred[str]:
        """Perform the request. Return the text of the answer (the same as in 1.x), or a Deferred of this text."""
        transactions, key = self._transactions, request.tx_key
        kind = TransactionType[request.type]
        if not self._writing.takes_all_kinds and kind in _UNSUPPORTED:
            raise TransactionRefused(f"Unsupported {_UNSUPPORTED[kind]}")
        match kind:
            case TransactionType.BEGIN:
                transactions.begin(connection, key, request.timeout_seconds)
            case TransactionType.PREPARE:
                self._check_topics(key, connection)
                return then(transactions.prepare(connection, key), _vote)
            case TransactionType.COMMIT_ONE_PHASE:
                self._check_topics(key, connection)
                return then(transactions.commit(connection, key, one_phase=True), _nothing)
            case TransactionType.COMMIT_TWO_PHASE:
                self._check_topics(key, connection)
                return then(transactions.commit(connection, key, one_phase=False), _nothing)
            case TransactionType.ROLLBACK:
                if key is not None and is_xa(key):  # a local one is its connection's own
                    self._check_topics(key, connection)
                return then(transactions.rollback(connection, key), _nothing)
            case TransactionType.FORGET:
                return then(transactions.forget(key), _nothing)
            case TransactionType.RECOVER:
                return "\r\n".join(transactions.recover(request.qualifier or None))
            case TransactionType.END:
                pass
        return ""

    def _check_topics(self, key: str | None, caller: object) -> None:
        """Check that the caller may send to the topics of an open transaction: it may have lost the grant since it has
        put messages into the transaction, or the XA transaction may be somebody else's.
        """
        for topic in self._transactions.topics(key):
            self._permit(Need(AccessOperation.SEND, topic), caller)

    def outcome(self, request: TransactionOutcomeRequest, caller: object) -> Any:
        """Return the outcome of a local transaction, or a Deferred of it. Also raises NotLeader."""
        self._check_topics(request.tx_key, caller)
        committed = self._transactions.outcome(request.tx_key, request.first_id)
        return then(committed, TransactionOutcomeReply)

    # --- messages -----------------------------------------------------------------------------------------------------

    def put(self, put: Put, connection: object) -> bytes:
        """Add a put to the transaction that it names. Raises the error if the put is refused."""
        puts = [(put.flag, put.checksum, put.body)]
        meant = meant_of(put.flag, put.body)
        first_id = self._put(connection, put.tx_key, put.topic, put.partition, puts, put.opaque, meant)
        return encode_put_result(put.opaque, first_id, put.partition, -1)

    def send(self, frame: Frame, connection: object) -> Bytes:
        """Add a SEND to the transaction that it names. Raises the error if the SEND is refused."""
        sent = SendRequest.from_ext(frame.ext)
        # copied, because the body is a view of everything that was received with it
        puts = [(sent.flag, sent.checksum, bytes(frame.body))]
        return self._put_framed(connection, sent, puts, frame.opaque)

    def send_batch(self, frame: Frame, connection: object) -> Bytes:
        """Add all records of a batch to the transaction that the batch names, or none of them. Raises the error if the
        batch is refused.
        """
        sent = SendBatchRequest.from_ext(frame.ext)
        count = sent.records
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
        return self._put_framed(connection, sent, puts, frame.opaque)

    def _put_framed(
        self,
        connection: object,
        sent: SendRequest | SendBatchRequest,
        puts: Sequence[tuple[int, int, Buffer]],
        opaque: int,
    ) -> Bytes:
        meant = reduce(or_, (flag for flag, _, _ in puts), 0)
        first_id = self._put(connection, sent.tx_key, sent.topic, sent.partition, puts, opaque, meant)
        replicas = 0 if self._writing.copies is None else 1
        return reply_frame(opaque, send_reply(first_id, sent.partition, -1, replicas))

    def _put(
        self,
        connection: object,
        key: str | None,
        topic: str,
        partition: int,
        puts: Sequence[tuple[int, int, Buffer]],
        opaque: int,
        meant: int,
    ) -> int:
        """Add messages to a transaction, and return the id of the first message. meant: the bits in the messages' flags
        with which a client asks the broker for special handling, such as a delay.
        """
        try:
            if key is not None and is_xa(key):  # its beginner could not end it with messages to topics of others
                self._permit_owner(self._transactions.beginner(key), connection, f"the XA transaction {key}")
            check_in_transaction(self._writing, topic, puts, meant)
            return self._transactions.put(connection, key or NULL_KEY, topic, partition, puts, opaque)
        except MetaqError:
            self._writing.metrics.put_refused(topic, len(puts))
            raise

    # --- operators ----------------------------------------------------------------------------------------------------

    def prepared(self, frame: Frame) -> Work:
        """Answer PREPARED_TRANSACTIONS with a JSON list. Raises RemoteProtocolError, NotLeader."""
        request = PreparedTransactionsRequest.from_ext(frame.ext)
        rows = []
        for each in self._transactions.prepared(active=request.active):
            if each is not None:
                rows.append(
                    encode_json(
                        {
                            "key": each.key,
                            "prepared_at_ms": each.prepared_at_ms,
                            "messages": each.messages,
                            "bytes": each.size,
                            "topics": each.topics,
                            "state": each.state,
                        }
                    )
                )
            yield
        return body_frame(frame.opaque, b"[%b]" % b", ".join(rows))

    def complete(self, request: CompleteTransactionRequest) -> Deferred[None] | None:
        """Carry out an operator's decision about a transaction, for example to commit a prepared transaction;
        CompleteTransactionRequest lists the possible actions. Raises TransactionRefused.
        """
        return self._transactions.complete(request.tx_key, request.action)


def _vote(vote: XaVote) -> str:
    return str(int(vote))


def _nothing(_: None) -> str:
    return ""
