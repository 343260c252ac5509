"""Transactions on one broker, and the code that they share with XA transactions. The shared code sends the verbs of
transactions (such as commit), and the messages of a transaction, in both protocols. A transaction key in each request
says which transaction it belongs to.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.runtime.local_address import local_address
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import (
    AccessRefused,
    BrokerUnavailable,
    ClientError,
    CommitIncomplete,
    CommitUnknown,
    CompressionUnknown,
    CoordinationError,
    MetaqError,
    NoPartition,
    NotLeader,
    RemoteProtocolError,
    RequestRefused,
    RequestTimedOut,
    TransactionLost,
    XaRefused,
)
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.limits import MAX_TX_BATCH_RECORDS
from metaq.protocol.message_id import message_id_list
from metaq.protocol.record import Buffer
from metaq.protocol.refusals import frame_error, is_success, transaction_refusal
from metaq.protocol.sends import CopiedReply, SendRequest, SentReply
from metaq.protocol.statuses import RequestCode, Status
from metaq.protocol.text import Result, encode_put, encode_transaction
from metaq.protocol.transaction_requests import TransactionOutcomeReply, TransactionOutcomeRequest, TransactionRequest
from metaq.protocol.transactions import TransactionType, XaCode

from ..questions.asking import LEADER_SECONDS, ask
from ..records.message import Message
from ..records.results import SendResult, TopicPartition
from ..runtime.durations import Duration, check_timeout
from ..settings.config import ProducerConfig
from ..transport.connection import Connection
from ..transport.metadata import Metadata
from ..transport.pool import ConnectionPool
from .building import SendOptions, build_batch, build_message, list_of
from .codec import batch_frame, put_result
from .delays import refuse_delay
from .futures import refuse_in_callback
from .outgoing import Outgoing, OutgoingBatch
from .packing import Packer
from .routing import Router
from .typed import TypedSends

if TYPE_CHECKING:
    from ..serializers.base import Serializer

__all__ = ["Transaction", "TransactionSends", "Transactional"]

T = TypeVar("T")

log = get_log(__name__)
_sessions = itertools.count(1)
PENDING_OFFSET = -1


class Transactional:
    """Sends the requests of a producer's transactions, and holds the state that these transactions share. Any thread
    may call the methods. A method blocks until the broker has answered.

    session: the name that identifies this producer at the brokers. The name has the same format as in 1.x:
    `<address>-<start in ms>-<process id>.<number>`.
    """

    def __init__(
        self,
        metadata: Metadata,
        pool: ConnectionPool,
        router: Router,
        config: ProducerConfig,
        clock: Callable[[], float],
        last_partition: Callable[[str], TopicPartition | None],
    ) -> None:
        """last_partition: a function that takes a topic, and returns the partition to which the producer last sent a
        message of this topic outside of transactions. The function returns None if the producer sent none.
        """
        self.metadata = metadata
        self.router = router
        self.config = config
        self.packer = Packer.of(config)
        self.clock = clock
        # The process id complements 1.x's counter, so that two processes cannot share a name.
        self.session = f"{local_address()}-{int(time.time() * 1000)}-{os.getpid()}.{next(_sessions)}"
        self.closed = False
        self.sent_to: set[str] = set()
        """Names of the topics to which this producer has sent in transactions. A topic is added when a transaction has
        found a broker for it.
        """
        self._last_partition = last_partition
        self.follow = pool.follow
        self._pool = pool
        self._numbers = itertools.count(1)

    def has_sent_to(self, topic: str) -> bool:
        """Return whether this producer has sent messages to the topic before, in transactions or outside. If it has,
        but no broker publishes the topic now, waiting may help, because a broker may only be restarting.
        """
        return topic in self.sent_to or self._last_partition(topic) is not None

    def new_local_key(self) -> str:
        """Return a new transaction key for a local (not XA) transaction, which ends when its connection ends."""
        return f"TX:{self.session}:{next(self._numbers)}"

    def connect(self, topic: str, broker: int, timeout: float) -> Connection:
        """Return the connection to the broker with the id `broker`. The broker's address is taken from the metadata
        view of `topic`.

        Raises NoPartition, BrokerUnavailable, and ClientError if the producer is closed.
        """
        refuse_in_callback("a transaction")
        if self.closed:
            raise ClientError("this producer is closed")
        endpoint = self.metadata.view(topic).endpoints.get(broker)
        if endpoint is None:
            raise NoPartition(f"broker {broker} is not registered any more")
        return self._pool.connection(endpoint, timeout)

    def deadline(self, timeout: Duration | None) -> float:
        """Return the deadline, in monotonic seconds, of a send that begins now. timeout: the time limit of the send in
        seconds; None means the configured limit.
        """
        return self.clock() + (self.config.delivery_timeout_seconds if timeout is None else check_timeout(timeout))

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
        """Send the verb `kind`, and return the text of the broker's answer. Over the text protocol, a broker does not
        answer the verb END; then the result is "".

        Raises TransactionRefused (XaRefused if the refusal has an XA code), RequestTimedOut, BrokerUnavailable.
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
        if reply.code == Status.FORBIDDEN:
            raise AccessRefused(f"{connection.endpoint}: {reply.text}")
        if reply.code != Status.SUCCESS:
            raise transaction_refusal(reply.text)
        return reply.text

    def outcome(self, connection: Connection, tx_key: str, first_id: int, broker: int) -> bool:
        """Ask the broker whether a local (not XA) transaction is committed, and return the answer; it will not change
        later. first_id: id of the transaction's first message.

        Raises NotLeader, RequestTimedOut, BrokerUnavailable. Raises TransactionRefused if the broker does not know the
        transaction any more. Raises XaRefused with XAER_RMFAIL if this leader does not know the transaction. Raises
        RequestRefused if the broker's version is too old for this question.
        """
        ext = TransactionOutcomeRequest(tx_key, first_id).to_ext()
        asked = TopicPartition("", broker, -1)
        frame = ask(connection, RequestCode.TRANSACTION_OUTCOME, ext, asked, self._wait(None))
        return TransactionOutcomeReply.from_ext(frame.ext).committed

    def is_set(self, broker: int) -> bool:
        """Return whether the broker consists of several nodes (a broker set), so that after a failure another node can
        become its leader. Return False if ZooKeeper cannot be read.
        """
        try:
            return self.metadata.is_set(broker)
        except CoordinationError as error:
            log.info("whether broker %d is a set is not known: %s", broker, error)
            return False

    # --- messages ---------------------------------------------------------------------------------------------------

    def put(
        self, connection: Connection, tx_key: str, partition: TopicPartition, outgoing: Outgoing
    ) -> Sequence[SendResult]:
        """Put the messages of `outgoing` into the transaction, in order, and return their results, which have no
        offset.

        Raises TransactionRefused and the errors of other refusals, RequestTimedOut, BrokerUnavailable.
        """
        refuse_in_callback("a transaction")
        if self.packer is not None and not connection.knows_compressed:
            raise CompressionUnknown(connection.endpoint)
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
            if type(outgoing) is not Outgoing:
                return batch_frame(opaque, partition, [outgoing], tx_key)
            ext = SendRequest(partition.topic, partition.partition, outgoing.flag, outgoing.checksum, tx_key).to_ext()
            return encode_frame(RequestCode.SEND, opaque, ext, len(outgoing.body)), outgoing.body

        reply = connection.call(build, self._wait(outgoing.deadline))
        if isinstance(reply, Frame) and not is_success(reply):
            raise frame_error(reply, partition, connection.endpoint)
        sent = CopiedReply.from_ext(reply.ext) if isinstance(reply, Frame) else reply
        # Otherwise the broker has ignored the transaction key.
        if not isinstance(sent, SentReply | CopiedReply) or sent.offset != PENDING_OFFSET:
            raise RemoteProtocolError(f"{connection.endpoint} stored a message outside of its transaction: {reply!r}")
        ids = message_id_list(sent.message_id, outgoing.count)
        return [SendResult(identity, partition, PENDING_OFFSET, sent.replicas or None) for identity in ids]

    def _put_texts(
        self, connection: Connection, tx_key: str, partition: TopicPartition, outgoing: Outgoing
    ) -> Sequence[SendResult]:
        """Do the same as `put`, by commands of the text protocol. Each command is sent only after the answer to the
        previous command, because a Java broker may execute commands that arrive together in any order.
        """
        results = []
        for record in outgoing.records():
            reply = connection.call(partial(_put_line, partition, record, tx_key), self._wait(outgoing.deadline))
            try:
                result = put_result(reply, partition, connection.endpoint)
            except RequestRefused as error:
                assert isinstance(reply, Result)
                raise transaction_refusal(reply.text) from error
            results.append(SendResult(result.message_id, partition, PENDING_OFFSET))
        return results

    def _wait(self, deadline: float | None) -> float:
        limit = self.config.connection.request_timeout_seconds
        return limit if deadline is None else min(limit, max(0.001, deadline - self.clock()))


class TransactionSends(ABC):
    """The methods that send messages in a transaction."""

    def __init__(self, calls: Transactional) -> None:
        self._calls = calls

    def send(
        self,
        topic: str,
        payload: Buffer,
        *,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> SendResult:
        """Put one message into the transaction. The arguments have the same meaning as in Producer.send. The result's
        offset is -1, because the message gets its offset at the commit.
        """
        refuse_delay(options)
        return self._put(build_message(topic, payload, self._calls.deadline(timeout), options, self._calls.packer))[0]

    def send_batch(
        self,
        topic: str,
        payloads: Iterable[Buffer | Message],
        *,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> Sequence[SendResult]:
        """Put many messages of one partition into the transaction. They are sent in requests of up to 1,024 messages,
        or one by one over the text protocol.

        The arguments have the same meaning as in Producer.send_batch.
        """
        items = list_of(payloads)
        if not items:
            return []
        refuse_delay(options)
        return self._put(build_batch(topic, items, self._calls.deadline(timeout), options, self._calls.packer))

    def typed(self, serializer: Serializer[T]) -> TypedSends[T]:
        """Return a wrapper that sends values in this transaction, as Producer.typed does for a producer."""
        return TypedSends(self, serializer)

    @abstractmethod
    def _put(self, outgoing: Outgoing) -> Sequence[SendResult]: ...


def _put_line(partition: TopicPartition, record: tuple[int, int, Buffer], tx_key: str, opaque: int) -> Sequence[Buffer]:
    flag, checksum, body = record
    return (encode_put(partition.topic, partition.partition, flag, checksum, opaque, bytes(body), tx_key),)


class _State(Enum):
    NEW = "has no message yet"
    OPEN = "is open"
    FAILED = "can only be rolled back, because a message could not be sent in it"
    COMMITTED = "is committed"
    UNKNOWN = "was sent its commit, and its state is unknown"
    ROLLED_BACK = "is rolled back"


class Transaction(TransactionSends):
    """A transaction that Producer.transaction() returns. Use it as a context manager. The end of the block commits the
    transaction; an exception in the block rolls it back.

    The partition of the first message is chosen as for a send outside of transactions, and the partition's broker
    becomes the broker of the transaction. All other messages can be sent only to partitions of that broker. If the
    connection to the broker ends before the commit, the broker discards the transaction. If several threads send
    messages in the transaction, the sends are executed one after the other.

    If `send` or `send_batch` raises NoPartition (the topic has no partition on this transaction's broker),
    LocalProtocolError or TypeError, nothing was sent, and the transaction continues. After any other error only a
    rollback is possible: TransactionLost (the connection ended, or no answer came in time), TransactionRefused (for
    example, because the transaction's timeout is over) and other refusals.
    """

    def __init__(self, calls: Transactional, timeout_seconds: int, owner: object = None) -> None:
        """owner: an object (the producer) that must not be garbage collected, and thereby closed, while this
        transaction is used.
        """
        super().__init__(calls)
        self._owner = owner
        self.key = calls.new_local_key()
        """The transaction's name at the broker, `TX:<session>:<number>`."""
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._state = _State.NEW
        self._connection: Connection | None = None
        self._broker = -1
        self._topic = ""
        self._first_id = 0
        """Id of the transaction's first message."""

    def commit(self) -> None:
        """Commit the transaction, which makes its messages visible to consumers. If the transaction has no message, no
        request is sent.

        While the leader of a broker set hands the leadership over to another node, the leader refuses the commit, and
        the transaction stays open. If the hand-over fails and the same node goes on leading, this method sends the
        commit to it again, for at most 10 s.

        Raises TransactionLost if the connection ended before the commit, if a send had failed, or if another node leads
        the broker set now; then no message becomes visible. Raises TransactionRefused if the broker has rolled the
        transaction back, for example after its timeout. Raises CommitUnknown if the answer was lost, or the broker does
        not know the outcome. Raises CommitIncomplete if the transaction is committed, but not all messages are visible
        yet. Raises ClientError if the transaction is already over.

        If the answer of a broker set's leader is lost, this method asks the broker set for the outcome of the
        transaction, and gives up after 10 s. The broker set knows the outcome, unless so many transactions were
        committed afterwards that the outcome was removed from its log.
        """
        with self._lock:
            if self._state is _State.FAILED:
                self._roll_back()
                raise TransactionLost(f"transaction {self.key} was rolled back, because a message could not be sent")
            connection = self._usable()
            if connection is None:
                self._state = _State.COMMITTED
                return
            self._state = _State.UNKNOWN
            try:
                self._commit_on(connection)
            except TransactionLost:
                self._state = _State.ROLLED_BACK
                raise
            except (BrokerUnavailable, RequestTimedOut) as error:
                self._settle(connection, error)
                return
            except MetaqError as error:
                if isinstance(error, XaRefused) and error.xa_code == XaCode.XAER_RMFAIL:
                    self._settle(connection, error)
                    return
                if isinstance(error, XaRefused) and error.xa_code == XaCode.XA_HEURCOM:
                    self._state = _State.COMMITTED
                    raise CommitIncomplete(f"transaction {self.key}: {error.reason}") from error
                self._state = _State.ROLLED_BACK
                raise
            self._state = _State.COMMITTED

    def rollback(self) -> None:
        """Roll the transaction back, which discards its messages. Raises TransactionRefused, RequestTimedOut,
        BrokerUnavailable, and ClientError if a commit was sent or the transaction is already over. If the connection is
        lost, metaq's own broker discards the messages at once, and a Java broker discards them after the transaction's
        timeout.
        """
        with self._lock:
            if self._state in (_State.COMMITTED, _State.UNKNOWN, _State.ROLLED_BACK):
                raise ClientError(f"transaction {self.key} {self._state.value}")
            self._roll_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._state not in (_State.NEW, _State.OPEN, _State.FAILED):
            return
        if kind is None:
            self.commit()
            return
        try:
            self.rollback()
        except MetaqError as failure:  # the exception of the `with` block tells more
            log.warning("transaction %s could not be rolled back: %s", self.key, failure)

    def _unknown(self, error: MetaqError) -> CommitUnknown:
        return CommitUnknown(f"transaction {self.key} may be committed or not: {error}")

    # --- with the lock held -----------------------------------------------------------------------------------------

    def _commit_on(self, connection: Connection) -> None:
        """Send the commit. If the node refuses it during a hand-over, and then goes on leading, send it to the node
        again. Raises TransactionLost and the errors of Transactional.verb.
        """
        give_up = self._calls.clock() + LEADER_SECONDS
        while True:
            try:
                self._calls.verb(connection, TransactionType.COMMIT_ONE_PHASE, self.key)
            except NotLeader as error:
                self._wait_until_leading(connection, error, give_up)
            else:
                return

    def _settle(self, connection: Connection, lost: MetaqError) -> None:
        """The answer to a commit was lost: ask the broker set whether the transaction was committed. Return normally if
        it was. Raises CommitUnknown, TransactionLost, CommitIncomplete.
        """
        calls = self._calls
        if not connection.speaks_frames or not calls.is_set(self._broker):
            raise self._unknown(lost) from lost
        try:
            committed = self._asked_for_outcome(calls.clock() + LEADER_SECONDS)
        except MetaqError as error:
            if isinstance(error, XaRefused) and error.xa_code == XaCode.XA_HEURCOM:
                self._state = _State.COMMITTED
                raise CommitIncomplete(f"transaction {self.key}: {error.reason}") from error
            log.info("the outcome of transaction %s is not known: %s", self.key, error)
            raise self._unknown(lost) from error
        if not committed:
            self._state = _State.ROLLED_BACK
            raise TransactionLost(f"transaction {self.key} is rolled back: {lost}") from lost
        self._state = _State.COMMITTED

    def _asked_for_outcome(self, give_up: float) -> bool:
        """Ask the leader of the broker set for the outcome, again and again until there is an answer. Return whether
        the transaction was committed. If there is no answer until `give_up` (monotonic seconds), raise the error of the
        last attempt.
        """
        calls = self._calls
        backoff = Backoff(0.02, 0.5)
        while True:
            try:
                connection = calls.connect(self._topic, self._broker, give_up - calls.clock())
                return calls.outcome(connection, self.key, self._first_id, self._broker)
            except (BrokerUnavailable, RequestTimedOut, NoPartition, NotLeader, XaRefused) as error:
                if isinstance(error, XaRefused) and error.xa_code != XaCode.XAER_RMFAIL:
                    raise
                follows, pause = calls.follow(error), backoff.next()
                pause = pause if follows is None else follows
                if calls.clock() + pause >= give_up:
                    raise
                time.sleep(pause)

    def _wait_until_leading(self, connection: Connection, refusal: NotLeader, give_up: float) -> None:
        """After the leader has refused a commit because of a hand-over, wait until the same node accepts requests as
        the leader again; the transaction is then still open there. The method asks the node for its role, instead of
        sending the commit again and again. The reason: if the answer to this question is lost, the transaction is
        certainly not committed, but if the answer to a commit is lost, the outcome of the transaction is unknown.
        Raises TransactionLost if the node no longer leads, because then it has discarded the transaction.
        """
        from ..questions.admin import set_status

        calls = self._calls
        pause = calls.follow(refusal) or 0.0
        backoff = Backoff(0.01, 0.2)
        try:
            while not refusal.url and calls.clock() + pause < give_up:
                time.sleep(pause)
                role = set_status(connection)["role"]
                if role == "leader":
                    return
                if role != "handing-over":
                    break
                pause = backoff.next()
        except MetaqError as error:
            log.info("%s does not say whether it leads: %s", connection.endpoint, error)
        try:
            self._roll_back()
        except MetaqError as error:  # then the end of the connection, or the timeout, ends the transaction
            log.info("transaction %s could not be rolled back: %s", self.key, error)
        raise TransactionLost(f"transaction {self.key} is rolled back: {refusal}") from refusal

    def _put(self, outgoing: Outgoing) -> Sequence[SendResult]:
        with self._lock:
            while True:
                is_first = self._usable() is None
                if is_first:
                    partition = self._begin(outgoing)
                else:
                    partition = self._calls.router.route_in_transaction(outgoing, self._broker)
                connection = self._connection
                assert connection is not None
                self._state = _State.FAILED  # stays so after any error
                try:
                    results = self._calls.put(connection, self.key, partition, outgoing)
                except (BrokerUnavailable, RequestTimedOut, NotLeader) as error:
                    if is_first and isinstance(error, NotLeader) and self._follows(error, outgoing):
                        continue
                    raise TransactionLost(f"transaction {self.key} is lost: {error}") from error
                self._state = _State.OPEN
                if is_first:
                    self._topic, self._first_id = partition.topic, results[0].message_id
                return results

    def _follows(self, error: NotLeader, outgoing: Outgoing) -> bool:
        """Called if a node has refused to begin the transaction because another node leads (`error`): wait if
        necessary, and return whether the caller can try again at the new leader. A new attempt is possible until the
        deadline of the first message (`outgoing`). It is safe, because no message was put into the transaction yet.
        """
        pause = self._calls.follow(error)
        if pause is None or self._calls.clock() + pause >= outgoing.deadline:
            return False
        time.sleep(pause)
        self._state, self._connection = _State.NEW, None
        return True

    def _usable(self) -> Connection | None:
        """Return the transaction's connection, or None if no message was sent yet. Raises ClientError if the
        transaction is over, TransactionLost if it was lost.
        """
        if self._state not in (_State.NEW, _State.OPEN):
            error = TransactionLost if self._state is _State.FAILED else ClientError
            raise error(f"transaction {self.key} {self._state.value}")
        if self._connection is not None and self._connection.closed:
            self._state = _State.ROLLED_BACK
            raise TransactionLost(f"transaction {self.key} is lost: {self._connection.failure}")
        return self._connection

    def _begin(self, outgoing: Outgoing) -> TopicPartition:
        """Begin the transaction on the broker of the first message's partition, or on another broker if that broker
        cannot be reached. Return the partition for the first message.
        """
        calls, config = self._calls, self._calls.config
        backoff = Backoff(config.retry_min_seconds, config.retry_max_seconds)
        while True:
            partition = None
            try:
                partition = calls.router.route_in_transaction(outgoing, None)
                calls.sent_to.add(outgoing.topic)
                connection = calls.connect(partition.topic, partition.broker, outgoing.deadline - calls.clock())
                calls.verb(
                    connection,
                    TransactionType.BEGIN,
                    self.key,
                    timeout_seconds=self._timeout_seconds,
                    deadline=outgoing.deadline,
                )
            except (BrokerUnavailable, RequestTimedOut, NotLeader, NoPartition) as error:
                # If no partition was found, no broker offers the topic, for example while a broker set has no leader.
                # Like a send, this method then waits if messages were sent to the topic before.
                if partition is None and not (calls.has_sent_to(outgoing.topic) and calls.router.is_away(outgoing)):
                    raise
                follows = calls.follow(error)
                pause = backoff.next() if follows is None else follows
                if calls.clock() + pause >= outgoing.deadline:
                    raise
                if follows is None and partition is not None:
                    calls.router.avoid(partition, error, pause)
                time.sleep(pause)
                continue
            self._connection, self._broker = connection, partition.broker
            return partition

    def _roll_back(self) -> None:
        self._state = _State.ROLLED_BACK
        if self._connection is not None and not self._connection.closed:
            try:
                self._calls.verb(self._connection, TransactionType.ROLLBACK, self.key)
            except NotLeader as error:
                log.debug("transaction %s was dropped with the leadership: %s", self.key, error)
