"""XA transactions of a producer. The user's transaction coordinator prepares them and then commits them or rolls them
back, if necessary after a restart of the coordinator or the broker.
"""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self

from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import (
    AccessRefused,
    BrokerUnavailable,
    ConfigError,
    MetaqError,
    NoPartition,
    NotLeader,
    QuotaExceeded,
    RequestTimedOut,
    TransactionRefused,
    XaError,
    XaRefused,
)
from metaq.protocol.limits import INT32_MAX, INT32_MIN, check_zookeeper_topic
from metaq.protocol.transactions import TransactionType, XaCode, XaVote, parse_key, qualifier_of

from ..questions.asking import LEADER_SECONDS, following
from ..records.results import SendResult
from ..settings.config import check_text, check_texts
from ..transport.connection import Endpoint
from .outgoing import Outgoing
from .transaction import Transactional, TransactionSends

__all__ = ["Recovered", "XaBranch", "XaResource", "Xid"]

log = get_log(__name__)

_MAX_ID_BYTES = 64
"""Largest length in bytes of gtrid and of bqual, the two parts of an Xid. The X/Open XA standard calls these limits
MAXGTRIDSIZE and MAXBQUALSIZE.
"""
_FORBIDDEN = re.compile(r"[\s:]")


class Xid(NamedTuple):
    """The id of a transaction: the name that the coordinator gave to the global transaction (gtrid), and the name of
    this branch of the transaction (bqual). Each name has at most 64 bytes.
    """

    format_id: int
    gtrid: bytes
    bqual: bytes

    def key(self, qualifier: str) -> str:
        """Return the key that identifies the transaction at brokers. Raises ValueError if this object is no valid
        xid.
        """
        if type(self.format_id) is not int or not INT32_MIN <= self.format_id <= INT32_MAX:
            raise ValueError(f"format_id={self.format_id!r} is no int32: choose a whole number")
        if not isinstance(self.gtrid, bytes) or not isinstance(self.bqual, bytes):
            raise ValueError(f"gtrid={self.gtrid!r} and bqual={self.bqual!r} are bytes: encode them")
        if max(len(self.gtrid), len(self.bqual)) > _MAX_ID_BYTES:
            raise ValueError(
                f"gtrid and bqual are at most {_MAX_ID_BYTES} bytes long, not {len(self.gtrid)} and {len(self.bqual)}"
            )
        return f"XID:{self.format_id}:{self.gtrid.hex()}:{self.bqual.hex()}:{qualifier}"

    @classmethod
    def parse(cls, key: str) -> Xid:
        """Return the Xid of a transaction key made by `key`. Raises RemoteProtocolError, ValueError."""
        _, format_id, gtrid, bqual, _ = (parse_key(key) or "").split(":")
        return cls(int(format_id), bytes.fromhex(gtrid), bytes.fromhex(bqual))


class Recovered(NamedTuple):
    """The result of `recover`: the transactions in doubt, that is, transactions that are prepared, but neither
    committed nor rolled back. It also contains transactions that an operator has committed or rolled back, until
    `forget` is called for them.

    xids: the ids of the transactions, in the order of their brokers. failures: the errors of the brokers that did not
    answer, by broker id. The brokers in `failures` may have further transactions in doubt.
    """

    xids: tuple[Xid, ...]
    failures: Mapping[int, MetaqError]


class _Trouble:
    """Records the failed attempts to send one XA verb (such as prepare or commit). It contains the nodes that have not
    answered although they may have received the verb. It also contains the last refusal by a node that is not the
    leader of the broker set.
    """

    def __init__(self) -> None:
        self.lost: set[Endpoint] = set()
        self.refusal: NotLeader | None = None
        self.asked = Endpoint("", 0)
        """The address of the node to which the verb was sent last."""

    @property
    def happened(self) -> bool:
        return self.refusal is not None or bool(self.lost)

    @property
    def is_settled(self) -> bool:
        """Whether the node that was asked last has answered every attempt to send it the verb, so that it cannot be
        executing the verb now.
        """
        return self.asked not in self.lost


class XaResource:
    """The XA verbs of one producer as methods. Any thread may call them. Each verb blocks until its requests are
    answered.

    A transaction belongs to one broker. `start` chooses this broker among the brokers that accept messages of all
    `topics`, and remembers it. After a restart of the program, `recover` finds out again which broker has the
    transaction. Every verb raises XaError, with the broker's XaCode as `code` if the broker sent one. `code` is
    XAER_RMFAIL if the broker cannot be reached, or does not answer a verb that decides the transaction; then call
    `recover` to find out the outcome. `code` is XA_RBTIMEOUT if the broker does not answer a verb that does not decide
    the transaction; then roll back. `code` is XAER_RMERR for other refusals.

    If the broker is a broker set and its leader fails, the verb is sent again to the new leader, for at most 10 s, even
    if the answer of the old leader was lost. This is safe because the new leader has the log of prepared transactions,
    and knows which of them were completed. The code XA_RBROLLBACK means that the transaction was not prepared yet, and
    was lost when the leader failed. Only if the answer to a one-phase commit (without `prepare`) is lost, the outcome
    stays unknown.
    """

    def __init__(
        self,
        calls: Transactional,
        topics: Iterable[str],
        qualifier: str | None,
        timeout_seconds: int,
        owner: object = None,
    ) -> None:
        """owner: an object (the producer) that must not be garbage collected, and thereby closed, while this resource
        is used. Raises ConfigError, InvalidName.
        """
        self._owner = owner
        self._topics = tuple(map(check_zookeeper_topic, check_texts("topics", topics)))
        if not self._topics:
            raise ConfigError("topics", topics, "name every topic that messages will be sent to")
        self.qualifier = f"XAMessageProducer-{socket.gethostname()}" if qualifier is None else qualifier
        remedy = "choose a text without ':', blanks and line ends"
        check_text("qualifier", self.qualifier, remedy)
        if not self.qualifier or _FORBIDDEN.search(self.qualifier):
            raise ConfigError("qualifier", self.qualifier, remedy)
        self._calls = calls
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._brokers: dict[Xid, int] = {}
        self._begun: set[Xid] = set()
        """Ids of the transactions that this object has begun, except transactions whose one-phase commit has failed."""
        self._prepared: set[Xid] = set()

    def start(self, xid: Xid, *, broker: int | None = None) -> XaBranch:
        """Begin a transaction on the broker with the id `broker`. If `broker` is None, begin it on one of the brokers
        that accept messages of all topics of this object.

        If no broker accepts messages of all these topics now, but messages were sent to all of them before, this method
        waits for such a broker, at most delivery_timeout_seconds.

        Raises XaError, with the code XAER_DUPID if this object has begun the transaction already.
        """
        key = xid.key(self.qualifier)
        if broker is None and xid not in self._brokers:
            broker = self._choose_broker()
        with self._lock:
            if broker is None or xid in self._brokers:
                raise XaError(XaCode.XAER_DUPID, f"{key} was started already")
            self._brokers[xid] = broker
        try:
            self._verb(TransactionType.BEGIN, xid, timeout_seconds=self._timeout_seconds)
        except BaseException:  # an interrupt, too: a broker that has begun the transaction ends it after the timeout
            self._forget_broker(xid)
            raise
        self._begun.add(xid)
        return XaBranch(self, self._calls, xid, key, broker)

    def end(self, xid: Xid) -> None:
        """Declare that no more messages will be sent in the transaction."""
        self._verb(TransactionType.END, xid)

    def prepare(self, xid: Xid) -> XaVote:
        """Prepare the transaction for its commit. The result XaVote.OK means that the transaction is on the broker's
        disk and stays there until it is committed or rolled back, even if the broker fails. The result XaVote.READ_ONLY
        means that the transaction has no message, and is over.
        """
        answer = self._verb(TransactionType.PREPARE, xid)
        try:
            vote = XaVote(int(answer))
        except ValueError:
            raise XaError(XaCode.XAER_RMERR, f"PREPARE was answered with {answer[:80]!r}") from None
        if vote is XaVote.READ_ONLY:
            self._forget_broker(xid)
        else:
            self._prepared.add(xid)
        return vote

    def commit(self, xid: Xid, *, one_phase: bool = False) -> None:
        """Make the transaction's messages visible to consumers. one_phase: true if the transaction was not prepared,
        because metaq is its only resource.

        If the transaction was not begun by this object, this method first searches all brokers for the transaction.
        """
        self._verb(TransactionType.COMMIT_ONE_PHASE if one_phase else TransactionType.COMMIT_TWO_PHASE, xid)
        self._forget_broker(xid)

    def rollback(self, xid: Xid) -> None:
        """Discard the transaction's messages. If this object has not begun the transaction, this method first searches
        all brokers for it, as `commit` does.
        """
        self._verb(TransactionType.ROLLBACK, xid)
        self._forget_broker(xid)

    def forget(self, xid: Xid) -> None:
        """Make the transaction's broker delete its entry about this transaction, which an operator has committed or
        rolled back in place of the coordinator.
        """
        self._verb(TransactionType.FORGET, xid)
        self._forget_broker(xid)

    def recover(self) -> Recovered:
        """Ask every registered broker for the transactions in doubt that have the qualifier of this object. If a broker
        fails, this method does not raise an error, but returns the error in `failures`.
        """
        xids: list[Xid] = []
        failures: dict[int, MetaqError] = {}
        for broker in sorted(self._endpoints()):
            try:
                xids += self._recover_from(broker)
            except MetaqError as error:
                failures[broker] = error
        return Recovered(tuple(xids), failures)

    def recover_from(self, broker: int) -> Sequence[Xid]:
        """Return the transactions in doubt on one broker. Raises XaError: with XAER_RMFAIL if the broker is not
        registered or does not answer, and with XAER_RMERR if it refuses the question.
        """
        with _as_xa_errors(TransactionType.RECOVER):
            return self._recover_from(broker)

    def is_set(self, broker: int) -> bool:
        """Return whether the broker is a broker set. If the broker is a set and a transaction is lost because the
        leader fails, the caller can begin the transaction again at the next leader.
        """
        return self._calls.is_set(broker)

    # --- brokers ----------------------------------------------------------------------------------------------------

    def _endpoints(self) -> Iterable[int]:
        return self._calls.metadata.view(self._topics[0]).endpoints

    def _choose_broker(self) -> int:
        """Return the id of a broker for a new transaction. If no broker that accepts messages of all topics can be
        reached now, but messages were sent to all these topics before, wait for one, because a broker may be
        restarting. Raises XaError.
        """
        calls, config = self._calls, self._calls.config
        give_up = calls.deadline(None)
        backoff = Backoff(config.retry_min_seconds, config.retry_max_seconds)
        while True:
            try:
                return self._reachable_broker()
            except AccessRefused as error:
                raise XaError(XaCode.XAER_RMERR, str(error)) from error
            except QuotaExceeded as error:
                raise XaError(XaCode.XAER_RMFAIL, str(error)) from error
            except (NoPartition, BrokerUnavailable) as error:
                pause = backoff.next()
                if not all(map(calls.has_sent_to, self._topics)) or calls.clock() + pause >= give_up:
                    raise XaError(XaCode.XAER_RMFAIL, str(error)) from error
                time.sleep(pause)

    def _reachable_broker(self) -> int:
        """Return the id of a broker that can be reached and accepts messages of all topics. Raises NoPartition,
        BrokerUnavailable.
        """
        views = [self._calls.metadata.view(topic) for topic in self._topics]
        candidates = set.intersection(*({each.broker for each in view.partitions} for view in views))
        if not candidates:
            raise NoPartition(f"no registered broker publishes all of {', '.join(self._topics)}")
        broker = random.choice(sorted(candidates))
        self._calls.connect(self._topics[0], broker, self._calls.config.connection.connect_timeout_seconds)
        self._calls.sent_to.update(self._topics)
        return broker

    def _recover_from(self, broker: int) -> list[Xid]:
        text = self._ask(broker, TransactionType.RECOVER, None)
        keys = [key for key in text.split("\r\n") if key]
        found = [Xid.parse(key) for key in keys if qualifier_of(key) == self.qualifier]
        with self._lock:
            self._brokers.update(dict.fromkeys(found, broker))
            self._prepared.update(found)
        return found

    def _broker_of(self, xid: Xid) -> int:
        """Return the id of the broker that has the transaction. If no broker says that it has the transaction, raises
        XaError: with XAER_NOTA if all brokers have answered, otherwise with XAER_RMFAIL.
        """
        if xid in self._brokers:
            return self._brokers[xid]
        failures = self.recover().failures
        if xid in self._brokers:
            return self._brokers[xid]
        key = xid.key(self.qualifier)
        if failures:
            causes = "; ".join(map(str, failures.values()))
            raise XaError(XaCode.XAER_RMFAIL, f"{key} is on none of the brokers that answered: {causes}")
        raise XaError(XaCode.XAER_NOTA, f"no broker has {key} prepared")

    def _forget_broker(self, xid: Xid) -> None:
        with self._lock:
            self._brokers.pop(xid, None)
            self._begun.discard(xid)
            self._prepared.discard(xid)

    def _ask(self, broker: int, kind: TransactionType, xid: Xid | None, timeout_seconds: int = 0) -> str:
        """Send a verb to the broker, or to its leader if it is a broker set, and return the text of the answer. Raises
        the errors of Transactional.verb.
        """
        calls = self._calls
        seconds = calls.config.connection.connect_timeout_seconds
        key = None if xid is None else xid.key(self.qualifier)
        trouble = _Trouble()

        def ask() -> str:
            connection = calls.connect(self._topics[0], broker, seconds)
            trouble.asked = connection.endpoint
            try:
                return calls.verb(connection, kind, key, timeout_seconds=timeout_seconds, qualifier=self.qualifier)
            except NotLeader as error:
                trouble.refusal = error
                raise
            except (BrokerUnavailable, RequestTimedOut):
                trouble.lost.add(connection.endpoint)
                raise

        backoff = Backoff(0.05, 0.5)
        give_up: float | None = None
        while True:
            try:
                return following(calls.follow, ask)
            except (XaRefused, BrokerUnavailable, RequestTimedOut, NoPartition) as error:
                if isinstance(error, XaRefused):
                    if xid is None or (error.xa_code != XaCode.XAER_RMFAIL and not trouble.happened):
                        raise
                    if error.xa_code != XaCode.XAER_RMFAIL:
                        return self._explained(broker, kind, xid, trouble, error)
                    trouble.lost.add(trouble.asked)  # a deposed leader also gives this answer
                now, pause = calls.clock(), backoff.next()
                if give_up is None:
                    if not self.is_set(broker):
                        raise
                    give_up = now + LEADER_SECONDS
                if now + pause >= give_up:
                    raise
                time.sleep(pause)

    def _explained(self, broker: int, kind: TransactionType, xid: Xid, trouble: _Trouble, error: XaRefused) -> str:
        """Find out what the refusal of a verb (`error`) means if earlier attempts to send the same verb got no answer.
        If the refusal shows that an earlier attempt has succeeded, return the text that the answer to this attempt
        would have had.

        The leader of a broker set has every prepared transaction that is not completed, but no unprepared transaction
        of an earlier leader. So if the leader does not know a transaction that was prepared, an earlier attempt has
        completed it.

        Raises XaRefused if the refusal shows that the verb was not executed. Raises BrokerUnavailable if it is unknown
        whether the verb was executed.
        """
        unknown = BrokerUnavailable(f"{trouble.refusal or 'an answer was lost'}; {error}")
        if kind is TransactionType.PREPARE and error.xa_code == XaCode.XAER_PROTO and trouble.lost:
            if xid in self._recover_from(broker):
                return str(int(XaVote.OK))
            raise unknown from error
        if error.xa_code != XaCode.XAER_NOTA:
            raise error
        rolled_back = XaRefused(XaCode.XA_RBROLLBACK, f"{error.reason} It is gone with the leader that had it.")
        match kind:
            case TransactionType.PREPARE | TransactionType.END if trouble.is_settled:
                raise rolled_back from error
            case TransactionType.COMMIT_ONE_PHASE if not trouble.lost and xid in self._begun:
                raise rolled_back from error
            case TransactionType.COMMIT_TWO_PHASE if trouble.lost and trouble.is_settled and xid in self._prepared:
                return ""
            case TransactionType.ROLLBACK if trouble.is_settled and (trouble.lost or xid in self._begun):
                return ""
        raise unknown from error

    def _verb(self, kind: TransactionType, xid: Xid, *, timeout_seconds: int = 0) -> str:
        broker = self._broker_of(xid)
        try:
            with _as_xa_errors(kind):
                return self._ask(broker, kind, xid, timeout_seconds)
        except XaError as error:
            if error.code == XaCode.XAER_NOTA:
                self._forget_broker(xid)
            if kind is TransactionType.COMMIT_ONE_PHASE:
                self._begun.discard(xid)
            raise


class XaBranch(TransactionSends):
    """Sends the messages of one transaction to its broker; `XaResource.start` returns it. Used as a context manager, it
    calls `end` at the end of the `with` block.

    If `send` or `send_batch` raises XaError, the transaction must be rolled back. If they raise NoPartition (the topic
    has no partition on this broker), LocalProtocolError or TypeError, nothing was sent.
    """

    def __init__(self, resource: XaResource, calls: Transactional, xid: Xid, key: str, broker: int) -> None:
        super().__init__(calls)
        self.xid = xid
        self.broker = broker
        """Id of the broker that has the transaction."""
        self._resource = resource
        self._key = key
        self._lock = threading.Lock()
        self._ended = False

    def end(self) -> None:
        """Call XaResource.end, unless this branch has ended already."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._resource.end(self.xid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.end()
        except XaError as failure:
            if kind is None:
                raise
            # the block's own exception tells more
            log.warning("transaction %s could not be ended: %s", self._key, failure)

    def _put(self, outgoing: Outgoing) -> Sequence[SendResult]:
        calls = self._calls
        with self._lock:
            if self._ended:
                raise XaError(XaCode.XAER_PROTO, f"{self._key} was ended already")
            partition = calls.router.route_in_transaction(outgoing, self.broker)
            refused = False

            def put() -> Sequence[SendResult]:
                nonlocal refused
                connection = calls.connect(partition.topic, self.broker, outgoing.deadline - calls.clock())
                try:
                    return calls.put(connection, self._key, partition, outgoing)
                except NotLeader:
                    refused = True
                    raise

            with _as_xa_errors(None):
                try:
                    return following(calls.follow, put)
                except TransactionRefused as error:
                    if not refused:
                        raise
                    raise XaRefused(XaCode.XA_RBROLLBACK, f"{error} It is gone with the leader that had it.") from error


_OUTCOMES = (TransactionType.COMMIT_ONE_PHASE, TransactionType.COMMIT_TWO_PHASE, TransactionType.ROLLBACK)
"""The verbs for which XAER_RMERR means that the transaction is over. If a broker refuses one of them because a grant is
missing, the transaction stays as it is; with XAER_RMFAIL a coordinator repeats the verb until it succeeds.
"""


@contextmanager
def _as_xa_errors(kind: TransactionType | None) -> Iterator[None]:
    """Turn errors of the broker or the connection in the `with` block into XaError. kind: the verb that the block
    sends; None if it sends messages. If the broker does not answer BEGIN, END or messages in time, the error has the
    code XA_RBTIMEOUT. If it does not answer another verb in time, the transaction's state is unknown, and the error has
    the code XAER_RMFAIL.

    (1.x maps every lost answer to XA_RBTIMEOUT, which tells a coordinator that the transaction was rolled back.)
    """
    decides = kind not in (None, TransactionType.BEGIN, TransactionType.END)
    try:
        yield
    except XaRefused as error:
        raise XaError(_known(error.xa_code), str(error)) from error
    except TransactionRefused as error:
        raise XaError(XaCode.XAER_RMERR, str(error)) from error
    except RequestTimedOut as error:
        raise XaError(XaCode.XAER_RMFAIL if decides else XaCode.XA_RBTIMEOUT, str(error)) from error
    except AccessRefused as error:
        raise XaError(XaCode.XAER_RMFAIL if kind in _OUTCOMES else XaCode.XAER_RMERR, str(error)) from error
    except (BrokerUnavailable, NoPartition, NotLeader, QuotaExceeded) as error:
        # a refused verb was not executed; XAER_RMERR would say that the transaction was rolled back
        raise XaError(XaCode.XAER_RMFAIL, str(error)) from error
    except MetaqError as error:
        raise XaError(XaCode.XAER_RMERR, str(error)) from error


def _known(code: int | None) -> int:
    if code is None:
        return XaCode.XAER_RMERR
    return XaCode(code) if code in list(XaCode) else code
