"""Run the transactions of one broker: the requests of 1.x for transactions (wire.md §4), their guarantees, and the
decisions of operators.

A local transaction (`TX:…`) belongs to the connection that began it, and is rolled back when that connection closes. An
XA transaction (`XID:…`) belongs to no connection, so it stays open when the connection that began it closes. No message
of a transaction is visible before its commit. docs/transactions.md describes the guarantees. commit.py describes the
order of writes. recovery.py describes what a broker does with its transactions at its start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, succeed

from metaq.protocol.access import Principal
from metaq.protocol.errors import ChecksumMismatch, LogReadOnly, MetaqError, TransactionRefused, XaRefused
from metaq.protocol.limits import INT64_MAX
from metaq.protocol.message_id import message_id_list
from metaq.protocol.record import HEADER_BYTES, Buffer, checksum
from metaq.protocol.text import NO_CHECKSUM
from metaq.protocol.transactions import NULL_KEY, XaCode, XaVote, is_xa, qualifier_of

from ..configuration.transaction_settings import TransactionConfig
from ..partitions.counters import Metrics
from ..partitions.message_ids import MessageIds
from ..partitions.partitions import ANY, Partitions
from ..runtime.account import NOBODY, Account
from ..runtime.few_lines import FewLines
from ..runtime.pending_puts import PUT_OVERHEAD_BYTES
from ..runtime.reactor import ReactorTime
from ..runtime.slices import SlicedWork
from ..store.partition_log import PartitionLog
from .changes import LogCopies
from .checkpoints import Heuristic
from .commands import Operation, OperationType, StoredPut
from .log import TransactionLog
from .open_transactions import OpenTransaction, Registry, TransactionState, listed_bytes
from .outcomes import Outcomes, check_first
from .refusals import AFTER_RESTART, bare, decided, ignore_refusal, incomplete, log_failed, refusal

__all__ = ["PreparedTransaction", "Transactions"]

_log = logging.getLogger(__name__)

_UNKNOWN_TIME = 0

MAX_LISTED = 1000
"""Maximum number of open transactions in one list."""

MAX_ACTIVE_BYTES = 3 << 20
"""A request for the list of prepared transactions may ask to include unprepared ones. The rows of unprepared
transactions in the answer have at most this many bytes.
"""


class PreparedTransaction(NamedTuple):
    """A transaction in the list that operators see. The transaction is unprepared, or prepared, or decided by an
    operator. If an operator has decided it, the list shows only its key and its state.
    """

    key: str
    prepared_at_ms: int | None
    """Time of the preparation in Unix milliseconds. It is None if the transaction was prepared before the broker
    started.
    """
    messages: int
    size: int
    """Number of bytes that the transaction's messages will take in the partitions."""
    topics: list[str]
    state: str
    """The state of the transaction: `active`, `prepared`, `heuristic_commit`, `heuristic_rollback` or
    `heuristic_complete`.
    """


class Transactions:
    """The transactions of one broker. Its methods run on the reactor thread. A method for a client's request either
    raises TransactionRefused at once, or returns a Deferred that fails with TransactionRefused.

    The parameter `connection` of the methods is any hashable object; all requests of one connection must pass the same
    object.
    """

    def __init__(
        self,
        config: TransactionConfig,
        log: TransactionLog,
        partitions: Partitions,
        message_ids: MessageIds,
        metrics: Metrics,
        reactor: ReactorTime,
        account: Account,
        now_ms: Callable[[], int],
    ) -> None:
        """now_ms: returns the time of the wall clock in Unix milliseconds."""
        self._log = log
        self._partitions = partitions
        self._message_ids = message_ids
        self._metrics = metrics
        self._account = account
        self._ended_lines = FewLines(_log, "transactions rolled back", reactor)
        self._now_ms = now_ms
        self.refusal: Callable[[], MetaqError | None] = lambda: None
        """A function that returns the reason why clients are not served now, or None if they are served. For example,
        this node of a broker set may not be allowed to lead.
        """
        self.ending: MetaqError | None = None
        """If this is an error, a client that begins a new transaction gets this error, but clients may still finish
        their open transactions. It is None if new transactions may begin.
        """
        self._new_registry = partial(Registry, config, reactor, account, self._expired)
        self._open = self._new_registry()
        self._is_open = False
        self._copies: LogCopies | None = None
        self._outcomes = Outcomes(INT64_MAX, {})
        self._lost = SlicedWork(reactor)  # rollbacks of transactions of closed connections
        self._deciding: set[OpenTransaction] = set()  # an operator's decision on them is being written
        self._unfinished: set[str] = set()  # XA transactions whose commit a broken partition blocks

    # --- life ---------------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """Path of the directory with the files of the transaction log."""
        return self._log.directory

    def lock(self) -> None:
        """Lock the directory of the transaction log, before `open` is called. Raises ConfigError, DirectoryInUse."""
        self._log.lock()

    def open(self, copies: LogCopies | None = None) -> None:
        """Replay the transaction log: repair the partitions, roll back unprepared transactions, and keep prepared ones.
        Blocks.

        copies: the other nodes of the broker set, or None if there are no other nodes. Raises StoreError, ConfigError,
        DirectoryInUse.
        """
        self._unfinished.clear()
        recovered = self._log.open(self._partitions, copies)
        self._is_open = True
        self._copies = copies
        for key in self._log.heuristics:
            self._account.prepared.add(NOBODY, listed_bytes(key))
        self._message_ids.begin_above(recovered.max_message_id)
        first_id = recovered.first_message_id
        known_from = self._message_ids.next(1) if first_id is None else first_id
        self._outcomes = Outcomes(known_from, recovered.local_commits)
        for transaction in recovered.transactions.values():
            if transaction.state is not TransactionState.PREPARED:
                ignore_refusal(self._log_rollback(transaction))
                continue
            transaction.prepared_at_ms = _UNKNOWN_TIME
            decision = self._log.heuristics.get(transaction.key)
            if decision is None:
                self._open.add(transaction)
            else:  # the broker died between the decision and its execution
                ignore_refusal(self._execute(transaction, decision))
        if self._open:
            _log.warning("%d prepared transactions wait for their coordinator", len(self._open))

    def close(self) -> None:
        """Write all queued records and messages to the disk, and close the log. Blocks. No method may be called after
        this.
        """
        self._lost.finish()
        self._open.close()
        if self._is_open:
            self._log.close()
        else:
            self._log.unlock()

    def abandon(self, why: str) -> Deferred[None]:
        """Forget all transactions, as if the broker had died. Called when this node stops leading, because the new
        leader has its own copy of the log and may change the transactions. Each request that waits for an answer fails
        with the reason `why`.

        The returned Deferred fires when the log may be opened again and its files may be changed.
        """
        if not self._is_open:
            return succeed(None)
        self._is_open = False
        for key in self._log.heuristics:
            self._account.prepared.add(NOBODY, -listed_bytes(key))
        self._lost.clear()
        self._open.close()
        self._open = self._new_registry()
        return self._log.abandon(why)

    def when_idle(self, done: Callable[[], None]) -> None:
        """Call `done` when the files of the transaction log contain all changes that were sent to other nodes before
        the call of `when_idle`. The log must be open.
        """
        self._log.when_idle(done)

    @property
    def is_waited_for(self) -> bool:
        """Whether a prepare, commit or rollback waits for its record to be written, or a commit waits for its messages
        to be appended.
        """
        return self._is_open and self._log.is_waited_for

    @property
    def has_active(self) -> bool:
        """Whether an unprepared transaction is open. An unprepared transaction is lost if this node stops leading."""
        return self._open.has_active

    def tick(self) -> None:
        """Do the regular work that is due, such as writing checkpoints. Call this about four times a second."""
        if self._is_open:
            self._log.tick()

    # --- verbs --------------------------------------------------------------------------------------------------------

    def begin(self, connection: object, key: str | None, timeout_seconds: int) -> None:
        """Open a transaction. timeout_seconds: 0 or less means no timeout. If the transaction is open already, nothing
        changes.
        """
        self._check_served()
        if key is None:
            raise TransactionRefused("BEGIN needs the key of a transaction: null is for RECOVER only")
        self._metrics.tx_begin += 1
        if is_xa(key):
            self._metrics.tx_xa_begin += 1
            self._check_decided(key)
        self._check_log(key)
        if self._log.is_recording(key):
            raise refusal(key, f"'{key}' is being committed: begin it when that is answered", XaCode.XAER_DUPID)
        if self.ending is not None and self._open.get(key) is None:
            raise self.ending
        self._open.begin(connection, key, timeout_seconds)

    def put(
        self,
        connection: object,
        key: str,
        topic: str,
        partition: int,
        puts: Iterable[tuple[int, int, Buffer]],
        opaque: int,
    ) -> int:
        """Add messages to a transaction. Return the id of the first message; the ids of the other messages follow it.

        Either all messages are added or none. puts: the flag, checksum (-1 = do not check) and body of each message.
        opaque: the request's opaque value, which is stored in the transaction log. Raises TransactionRefused,
        ChecksumMismatch, TopicNotAccepted, WrongPartition, InvalidName, StoreError, DiskFull.
        """
        transaction = self._find_for_put(connection, key)
        if partition == ANY:
            raise TransactionRefused(f"Invalid partition for transaction command:{partition}")
        log = self._partitions.for_put(topic, partition, chosen=True)  # also a closed partition, as in 1.x
        if log.read_only is not None:
            raise LogReadOnly(log.directory, log.read_only)
        if self._log.failure is not None:
            raise TransactionRefused(self._log.failure)
        if (full := self._log.lacks_room) is not None:
            raise full
        checked = [_checked(*put) for put in puts]
        size = sum(HEADER_BYTES + len(body) for *_, body in checked)
        self._open.make_room(transaction, size + PUT_OVERHEAD_BYTES * len(checked))
        first_id = self._message_ids.next(len(checked))
        ids = message_id_list(first_id, len(checked))
        for message_id, (flag, announced, found, body) in zip(ids, checked, strict=True):
            stored = StoredPut(key, message_id, topic, partition, flag, announced, opaque, body)
            self._log.append_put(transaction, stored)
            transaction.add(log, message_id, flag, found, body)
        self._metrics.put(topic, len(checked), size - len(checked) * HEADER_BYTES)
        return first_id

    def prepare(self, connection: object, key: str | None) -> XaVote | Deferred[XaVote]:
        """Prepare a transaction. Return a Deferred that fires with OK as soon as the prepared transaction is stored so
        that it survives a crash of the broker. If the transaction has no messages, forget it and return READ_ONLY.
        """
        transaction = self._find(connection, key)
        if not transaction.is_xa:
            raise XaRefused(XaCode.XAER_RMERR, "Prepare not implemented on Local Transactions.")
        if transaction.state is TransactionState.PREPARED:
            raise XaRefused(XaCode.XAER_PROTO, "Cannot call prepare now.")
        if not transaction.messages:
            self._open.remove(transaction)
            return XaVote.READ_ONLY
        self._check_log(transaction.key)
        self._open.list_prepared(transaction)
        transaction.state = TransactionState.PREPARED
        self._open.stop_timer(transaction)
        operation = Operation(transaction.key, OperationType.XA_PREPARE, was_prepared=False)
        self._log.append_operation(transaction, operation)
        return self._log.written(transaction.key).addCallback(self._prepared, transaction)

    def commit(self, connection: object, key: str | None, *, one_phase: bool) -> Deferred[None] | None:
        """Commit a transaction. Return None if consumers can already read all messages of the transaction. Otherwise
        return a Deferred that fires when consumers can read them.
        """
        self._metrics.tx_commit += 1
        transaction = self._find(connection, key)
        if transaction.is_xa and not one_phase and transaction.state is not TransactionState.PREPARED:
            reason = "Cannot do 2 phase commit if the transaction has not been prepared."
            raise XaRefused(XaCode.XAER_PROTO, reason)
        return self._commit(transaction)

    def topics(self, key: str | None) -> list[str]:
        """Return the topics of the messages in the open transaction with this key; [] if there is none."""
        transaction = None if key is None else self._open.get(key)
        return [] if transaction is None else transaction.topics

    def beginner(self, key: str | None) -> Principal | None:
        """Return who has begun the open transaction with this key; None if there is none, or if it is unknown."""
        transaction = None if key is None else self._open.get(key)
        return None if transaction is None else transaction.principal

    def rollback(self, connection: object, key: str | None) -> Deferred[None] | None:
        """Roll back a transaction. Return None if it is already certain that no message of the transaction will ever be
        visible. Otherwise return a Deferred that fires when this is certain.
        """
        self._metrics.tx_rollback += 1
        transaction = self._find(connection, key)
        if transaction.messages:
            self._check_log(transaction.key)
        self._open.remove(transaction)
        return self._log_rollback(transaction)

    def recover(self, qualifier: str | None) -> list[str]:
        """Return the keys of the prepared transactions with this qualifier (None = all). Transactions that an operator
        has decided are included.
        """
        self._check_served()
        noted = [key for key in self._log.heuristics if qualifier is None or qualifier_of(key) == qualifier]
        return [transaction.key for transaction in self._open.prepared(qualifier)] + noted

    def forget(self, key: str | None) -> Deferred[None] | None:
        """Delete the record of an operator's decision on this transaction. Return None at once if there is no such
        decision.
        """
        self._check_served()
        if key is None or not is_xa(key):
            raise XaRefused(XaCode.XAER_NOTA, f"{key or NULL_KEY} is not a valid xid")
        return self._forget(key) if key in self._log.heuristics else None

    def outcome(self, key: str, first_id: int) -> bool | Deferred[bool]:
        """Return whether a local transaction is committed. If the outcome is not known yet, return a Deferred that
        fires with the outcome. If the transaction is open, this method rolls it back, so that a commit request that
        arrives later has no effect. first_id: the id of the transaction's first message.

        Raises NotLeader in a broker set if another leader may have been elected. Raises TransactionRefused, possibly
        through the Deferred, if the outcome is unknown, or if the transaction with this key has another first message
        than `first_id`. In these cases nothing is rolled back.
        """
        self._check_served()
        if is_xa(key):
            raise XaRefused(XaCode.XAER_PROTO, f"'{key}' is an XA transaction: ask by RECOVER")
        if self._copies is not None and (obstacle := self._copies.refusal_now()) is not None:
            raise obstacle  # another leader may have committed it
        if (transaction := self._open.get(key)) is not None:
            check_first(key, transaction.first_id, first_id)
            self._give_up(transaction)
            return False
        return self._outcomes.ask(key, first_id)

    def connection_lost(self, connection: object) -> None:
        """Roll back the local transactions of a closed connection. Until they are rolled back, they count towards the
        limits, and no other connection can begin a transaction with one of their keys.
        """
        if lost := self._open.of_connection(connection):
            self._lost.add(self._give_up_lost(lost))

    def _give_up_lost(self, lost: list[OpenTransaction]) -> Iterator[None]:
        while lost:
            transaction = lost.pop()
            if self._open.get(transaction.key) is transaction:
                self._ended_lines.info(f"{transaction.key} is rolled back: its connection is closed")
                self._give_up(transaction)
                if self._lost.is_over:
                    yield

    def holding(self, log: PartitionLog) -> list[str]:
        """Called for a partition that accepts no new messages: return a list of everything that may still append
        messages to it. The list contains the keys of open transactions, and the text `a commit` if a commit still has
        messages to append to this partition. If the transaction log is not open yet, the list contains only a text that
        says so.
        """
        if not self._is_open:
            return ["a transaction log that is not open yet"]
        deciding = [each.key for each in self._deciding if log in each.blocks]
        return self._open.holding(log) + deciding + (["a commit"] if self._log.promised(log) else [])

    # --- operators ----------------------------------------------------------------------------------------------------

    def prepared(self, *, active: bool = False) -> Iterator[PreparedTransaction | None]:
        """Yield all transactions that a RECOVER request would list. The numbers in an item are up to date when the item
        is yielded. Between the transactions, None is yielded from time to time; at each None the caller may do other
        work before it goes on.

        active: whether to yield also up to MAX_LISTED unprepared transactions. The unprepared transactions with the
        most bytes are chosen. Fewer than MAX_LISTED are chosen if their rows would exceed MAX_ACTIVE_BYTES.
        """
        self._check_served()
        chosen, left = list(self._open.prepared()), MAX_ACTIVE_BYTES
        if active:
            for each in (yield from self._open.active_in_slices(MAX_LISTED)):
                if (left := left - listed_bytes(each.key, each.topics)) < 0:
                    break
                chosen.append(each)
                yield None  # each one may have messages for ten thousand topics
        for each in chosen:
            if self._open.get(each.key) is each:
                figures = each.messages, each.size, each.topics, each.state.value
                yield PreparedTransaction(each.key, each.prepared_at_ms or None, *figures)
        for key, decision in list(self._log.heuristics.items()):
            yield PreparedTransaction(key, None, 0, 0, [], f"heuristic_{decision}")

    def complete(self, key: str, action: str) -> Deferred[None] | None:
        """Execute an operator's action (remoting.CompleteTransactionRequest). The action is a decision on a prepared XA
        transaction, `forget` for a decided transaction, or the rollback of an open, unprepared transaction.
        """
        self._check_served()
        if action == "forget":
            if key not in self._log.heuristics:
                raise XaRefused(XaCode.XAER_NOTA, f"there is no decision about '{key}' to forget")
            return self._forget(key)
        open_one = self._open.get(key)
        if open_one is not None and open_one.state is TransactionState.ACTIVE and action == "rollback":
            _log.warning("%s is rolled back by an operator", key)
            self._give_up(open_one)
            return None
        transaction = self._find(None, key)
        if transaction.prepared_at_ms is None:
            reason = f"'{key}' is not prepared: only a prepared transaction can be decided"
            raise XaRefused(XaCode.XAER_PROTO, reason)
        self._check_log(key)
        if action == "commit":
            self._check_partitions(transaction)
        self._open.remove(transaction)  # nobody else may decide it any more
        self._deciding.add(transaction)
        self._account.prepared.add(NOBODY, listed_bytes(key))

        def written(result: Any) -> Any:
            self._deciding.discard(transaction)
            return result

        noted = self._log.set_heuristic(key, action).addBoth(written)
        return noted.addCallback(lambda _: self._execute(transaction, action))

    def _forget(self, key: str) -> Deferred[None]:
        self._account.prepared.add(NOBODY, -listed_bytes(key))
        return self._log.set_heuristic(key, None)

    def _execute(self, transaction: OpenTransaction, decision: Heuristic) -> Deferred[None] | None:
        return self._log_commit(transaction) if decision == "commit" else self._log_rollback(transaction)

    # --- finding ------------------------------------------------------------------------------------------------------

    def _check_served(self) -> None:
        error = self.refusal()
        if error is not None:
            raise error

    def _find(self, connection: object, key: str | None) -> OpenTransaction:
        self._check_served()
        if key is not None and is_xa(key):
            self._check_decided(key)
        return self._open.find(connection, key)

    def _find_for_put(self, connection: object, key: str) -> OpenTransaction:
        try:
            transaction = self._find(connection, key)
        except XaRefused as error:
            raise bare(error) from None
        if transaction.state is TransactionState.PREPARED:
            raise TransactionRefused(f"XA transaction '{key}' has been prepared: it takes no more messages")
        return transaction

    def _check_decided(self, key: str) -> None:
        decision = self._log.heuristics.get(key)
        if decision is not None:
            raise decided(key, decision)
        if key in self._unfinished:
            raise XaRefused(XaCode.XAER_RMFAIL, f"XA transaction '{key}' is committed; {AFTER_RESTART}")

    def _check_log(self, key: str) -> None:
        if self._log.failure is not None:
            raise log_failed(key, self._log.failure)

    # --- ending -------------------------------------------------------------------------------------------------------

    def _prepared(self, _: None, transaction: OpenTransaction) -> XaVote:
        transaction.prepared_at_ms = self._now_ms()
        return XaVote.OK

    def _commit(self, transaction: OpenTransaction) -> Deferred[None] | None:
        if not transaction.messages:
            self._open.remove(transaction)
            return None
        self._check_log(transaction.key)
        try:
            self._check_partitions(transaction)
        except XaRefused:
            if transaction.state is TransactionState.PREPARED:
                raise  # its coordinator may try again after a restart
            self._give_up(transaction)
            raise XaRefused(XaCode.XA_RBOTHER, "STORE COMMIT FAILED: Transaction rolled back.") from None
        self._open.remove(transaction)
        return self._log_commit(transaction)

    def _check_partitions(self, transaction: OpenTransaction) -> None:
        try:
            self._log.check(transaction.blocks)
        except LogReadOnly as error:
            raise XaRefused(XaCode.XAER_RMFAIL, f"{error.directory} takes no writes: {error.cause}") from None

    def _log_commit(self, transaction: OpenTransaction) -> Deferred[None]:
        deferred: Deferred[None] = Deferred()
        key, first_id, outcomes = transaction.key, transaction.first_id, self._outcomes

        def ended(failure: str | None, error: MetaqError | None) -> None:
            refused: XaRefused | None = None
            if failure is not None:  # the commit is decided if the next start finds its record
                refused = XaRefused(XaCode.XAER_RMFAIL, failure)
            elif error is not None:
                if transaction.is_xa:
                    self._unfinished.add(key)
                refused = incomplete(key, error)
            if not transaction.is_xa:
                outcomes.decided(key, first_id, refused)
            if refused is None:
                deferred.callback(None)
            else:
                deferred.errback(refused)

        if not transaction.is_xa:
            outcomes.deciding(key, first_id)
        self._log.commit(transaction, transaction.state is TransactionState.PREPARED, ended)
        return deferred

    def _log_rollback(self, transaction: OpenTransaction) -> Deferred[None] | None:
        transaction.finish()
        if transaction.file is None:
            return None
        kind = OperationType.XA_ROLLBACK if transaction.is_xa else OperationType.LOCAL_ROLLBACK
        self._log.append_operation(transaction, Operation(transaction.key, kind, was_prepared=False))
        self._log.settle(transaction)
        return self._log.written(transaction.key)

    def _expired(self, transaction: OpenTransaction) -> None:
        self._ended_lines.info(f"{transaction.key} is rolled back: its timeout has passed")
        self._give_up(transaction)

    def _give_up(self, transaction: OpenTransaction) -> None:
        """Roll back a transaction although no client has requested it. Nobody waits for the result."""
        self._open.remove(transaction)
        ignore_refusal(self._log_rollback(transaction))


def _checked(flag: int, announced: int, body: Buffer) -> tuple[int, int, int, Buffer]:
    found = checksum(body)
    if announced not in (NO_CHECKSUM, found):
        raise ChecksumMismatch
    return flag, announced, found, body
