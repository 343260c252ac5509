"""The transactions of one broker: 1.x's verbs (wire.md §4), what they promise, and who may use which transaction.

A local transaction (`TX:…`) belongs to the connection that began it and is rolled back when that closes; an XA
transaction (`XID:…`) belongs to the broker. Nothing of a transaction is visible before its commit. docs/transactions.md
has the promises, commit.py the order of writes, recovery.py what happens at the start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from metaq.protocol.errors import ChecksumMismatch, LogReadOnly, MetaqError, TransactionRefused, XaRefused
from metaq.protocol.message_id import message_ids_from
from metaq.protocol.record import HEADER_BYTES, Buffer, checksum
from metaq.protocol.text import NO_CHECKSUM
from metaq.protocol.transactions import NULL_KEY, is_xa, qualifier_of

from ..message_ids import MessageIds
from ..metrics import Metrics
from ..partitions import ANY, Partitions
from ..reactor import ReactorTime
from .checkpoints import Heuristic
from .commands import Operation, OperationType, StoredPut
from .config import TransactionConfig
from .log import TransactionLog
from .redo import encode_operation_record, encode_put_record
from .transaction import State, Transaction

__all__ = ["MAX_OPEN_BYTES", "MAX_OPEN_TRANSACTIONS", "XA_OK", "XA_RDONLY", "PreparedTransaction", "Transactions"]

_log = logging.getLogger(__name__)

MAX_OPEN_TRANSACTIONS = 100_000
"""Transactions that may be open at once; BEGIN is refused then."""

MAX_OPEN_BYTES = 256 << 20
"""Bytes of messages in open transactions, which are held in memory; puts in transactions are refused then."""

XA_OK, XA_RDONLY = 0, 3
"""Answers to PREPARE (JTA's XAResource): prepared; nothing to commit, the transaction is gone."""

# JTA's XAException.errorCode
_XA_HEURHAZ, _XA_HEURCOM, _XA_HEURRB = 8, 7, 6
_XA_RBOTHER = 104
_XAER_RMERR, _XAER_NOTA, _XAER_PROTO, _XAER_RMFAIL = -3, -4, -6, -7

_UNKNOWN_TIME = 0

_HEURISTIC_ERRORS = {
    "commit": (_XA_HEURCOM, "committed"),
    "rollback": (_XA_HEURRB, "rolled back"),
    "complete": (_XA_HEURHAZ, "completed"),
}


class PreparedTransaction(NamedTuple):
    """A transaction in doubt, or one that an operator has decided (then nothing but its key is known)."""

    key: str
    prepared_at_ms: int | None
    """Unix milliseconds; None if it was prepared before the broker started."""
    messages: int
    size: int
    """Bytes in the partitions."""
    topics: list[str]
    state: str
    """`prepared`, `heuristic_commit`, `heuristic_rollback` or `heuristic_complete`."""


class Transactions:
    """Lives on the reactor thread. Verbs raise TransactionRefused at once or through what they return.

    A connection is any object that is the same for all requests of one connection and hashable.
    """

    def __init__(
        self,
        config: TransactionConfig,
        log: TransactionLog,
        partitions: Partitions,
        message_ids: MessageIds,
        metrics: Metrics,
        reactor: ReactorTime,
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._log = log
        self._partitions = partitions
        self._message_ids = message_ids
        self._metrics = metrics
        self._reactor = reactor
        self._now_ms = now_ms
        self._open: dict[str, Transaction] = {}
        self._of_connection: dict[object, dict[str, Transaction]] = {}
        self._unfinished: set[str] = set()  # XA transactions whose commit a broken partition keeps from ending
        self._open_bytes = 0
        self._timeouts = 0

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Replay the log: repair the partitions, roll back what was not prepared, keep what was. Blocks.

        Raises StoreError, ConfigError, DirectoryInUse.
        """
        recovered = self._log.open(self._partitions.for_replay)
        self._message_ids.begin_above(recovered.max_message_id)
        for transaction in recovered.transactions.values():
            if transaction.state is State.PREPARED:
                transaction.prepared_at_ms = _UNKNOWN_TIME
                self._open[transaction.key] = transaction
                self._open_bytes += transaction.size
            else:
                _ignore_refusal(self._log_rollback(transaction))
        for key, decision in self._log.heuristics.items():
            if key in self._open:  # the broker died between the decision and its execution
                _ignore_refusal(self._execute(self._open[key], decision))
        if self._open:
            _log.warning("%d prepared transactions wait for their coordinator: metaq transactions", len(self._open))

    def close(self) -> None:
        """Write everything to the disk, waiting for it. Nothing may follow."""
        for transaction in list(self._open.values()):
            if transaction.timer is not None:
                transaction.timer.cancel()
                transaction.timer = None
        self._log.close()

    def tick(self) -> None:
        """What is due by the clock. To be called about four times a second."""
        self._log.tick()

    # --- verbs --------------------------------------------------------------------------------------------------------

    def begin(self, connection: object, key: str | None, timeout_seconds: int) -> None:
        """timeout_seconds: 0 and less = none. Beginning again changes nothing."""
        if key is None:
            raise TransactionRefused("BEGIN needs the key of a transaction: null is for RECOVER only")
        self._metrics.tx_begin += 1
        if is_xa(key):
            self._metrics.tx_xa_begin += 1
        if self._log.heuristics.get(key) is not None or key in self._unfinished:
            self._find(connection, key)
        found = self._open.get(key)
        if found is not None:
            if found.owner not in (None, connection):
                raise TransactionRefused(f"Local transaction '{key}' has been started on another connection.")
            return
        self._check_room(key, timeout_seconds)
        transaction = self._open[key] = Transaction(key, None if is_xa(key) else connection)
        if not transaction.is_xa:
            self._of_connection.setdefault(connection, {})[key] = transaction
        if timeout_seconds > 0:
            seconds = min(timeout_seconds, self._config.max_timeout_seconds)
            self._timeouts += 1
            transaction.timer = self._reactor.callLater(seconds, self._expired, transaction)

    def put(
        self,
        connection: object,
        key: str,
        topic: str,
        partition: int,
        puts: Iterable[tuple[int, int, Buffer]],
        opaque: int,
    ) -> int:
        """Take messages into a transaction; the id of the first one, the others' follow it.

        puts: flag, checksum (-1 = do not check), body; all or none are taken. opaque: of the request, for the log.
        Raises TransactionRefused, ChecksumMismatch, TopicNotAccepted, WrongPartition, InvalidName, StoreError.
        """
        transaction = self._find_for_put(connection, key)
        if partition == ANY:
            raise TransactionRefused(f"Invalid partition for transaction command:{partition}")
        log = self._partitions.for_put(topic, partition, chosen=True)  # closed ones too, as in 1.x
        if log.read_only is not None:
            raise LogReadOnly(log.directory, log.read_only)
        checked = [_checked(*put) for put in puts]
        size = sum(HEADER_BYTES + len(body) for _, _, _, body in checked)
        if self._open_bytes + size > MAX_OPEN_BYTES:
            raise TransactionRefused(
                f"the open transactions have {self._open_bytes} bytes, at most {MAX_OPEN_BYTES} are kept: commit sooner"
            )
        if self._log.failure is not None:
            raise TransactionRefused(self._log.failure)
        first_id = self._message_ids.next(len(checked))
        ids = [first_id] if len(checked) == 1 else message_ids_from(first_id, len(checked)).tolist()
        for message_id, (flag, announced, found, body) in zip(ids, checked, strict=True):
            put = StoredPut(key, message_id, topic, partition, flag, announced, opaque, body)
            self._log.append(transaction, encode_put_record(put))
            transaction.add(log, message_id, flag, found, body)
        self._open_bytes += size
        self._metrics.put(topic, len(checked), size - len(checked) * HEADER_BYTES)
        return first_id

    def prepare(self, connection: object, key: str | None) -> int | Deferred[int]:
        """XA_OK once the transaction survives a crash, or XA_RDONLY if there is nothing to commit."""
        transaction = self._find(connection, key)
        if not transaction.is_xa:
            raise XaRefused(_XAER_RMERR, "Prepare not implemented on Local Transactions.")
        if transaction.state is State.PREPARED:
            raise XaRefused(_XAER_PROTO, "Cannot call prepare now.")
        if not transaction.messages:
            self._close_transaction(transaction)
            return XA_RDONLY
        self._check_log()
        transaction.state = State.PREPARED
        self._stop_timer(transaction)
        operation = Operation(transaction.key, OperationType.XA_PREPARE, was_prepared=False)
        self._log.append(transaction, encode_operation_record(operation))
        deferred: Deferred[int] = Deferred()
        self._log.when_written(partial(self._prepared, transaction, deferred))
        return deferred

    def commit(self, connection: object, key: str | None, *, one_phase: bool) -> Deferred[None] | None:
        """None, now or later: all messages are there for everybody to read."""
        self._metrics.tx_commit += 1
        transaction = self._find(connection, key)
        if transaction.is_xa and not one_phase and transaction.state is not State.PREPARED:
            raise XaRefused(_XAER_PROTO, "Cannot do 2 phase commit if the transaction has not been prepared.")
        return self._commit(transaction)

    def rollback(self, connection: object, key: str | None) -> Deferred[None] | None:
        """None, now or later: no message will ever be seen."""
        self._metrics.tx_rollback += 1
        return self._rollback(self._find(connection, key))

    def recover(self, qualifier: str | None) -> list[str]:
        """Keys of the prepared transactions with this qualifier (None = all), also of those an operator has decided."""
        keys = [key for key, each in self._open.items() if each.prepared_at_ms is not None]
        keys += self._log.heuristics
        return [key for key in keys if qualifier is None or qualifier_of(key) == qualifier]

    def forget(self, key: str | None) -> Deferred[None] | None:
        """Drop the note of an operator's decision; None for a transaction without one, too."""
        if key is None or not is_xa(key):
            raise XaRefused(_XAER_NOTA, f"{key or NULL_KEY} is not a valid xid")
        if key not in self._log.heuristics:
            return None
        return self._log.set_heuristic(key, None)

    def connection_lost(self, connection: object) -> None:
        """Roll back the local transactions of a connection that is gone."""
        for transaction in list(self._of_connection.get(connection, {}).values()):
            _log.info("%s is rolled back: its connection is closed", transaction.key)
            self._give_up(transaction)

    # --- operators ----------------------------------------------------------------------------------------------------

    def prepared(self) -> list[PreparedTransaction]:
        """Everything that RECOVER would list, with figures."""
        found = [
            PreparedTransaction(key, each.prepared_at_ms or None, each.messages, each.size, each.topics, "prepared")
            for key, each in self._open.items()
            if each.prepared_at_ms is not None
        ]
        return found + [
            PreparedTransaction(key, None, 0, 0, [], f"heuristic_{decision}")
            for key, decision in self._log.heuristics.items()
        ]

    def complete(self, key: str, action: str) -> Deferred[None] | None:
        """An operator's decision on a prepared XA transaction, or `forget` (remoting.CompleteTransactionRequest)."""
        if action == "forget":
            if key not in self._log.heuristics:
                raise XaRefused(_XAER_NOTA, f"there is no decision about '{key}' to forget")
            return self._log.set_heuristic(key, None)
        transaction = self._find(None, key)
        if transaction.prepared_at_ms is None:
            raise XaRefused(_XAER_PROTO, f"'{key}' is not prepared: only a prepared transaction can be decided")
        self._check_log()
        if action == "commit":
            self._check_partitions(transaction)
        self._remove(transaction)  # nobody else may decide it any more
        noted = self._log.set_heuristic(key, action)
        return noted.addCallback(lambda _: self._execute(transaction, action))

    def _execute(self, transaction: Transaction, decision: Heuristic) -> Deferred[None] | None:
        self._remove(transaction)
        return self._log_commit(transaction) if decision == "commit" else self._log_rollback(transaction)

    # --- finding ------------------------------------------------------------------------------------------------------

    def _find(self, connection: object, key: str | None) -> Transaction:
        if key is None or not is_xa(key):
            found = None if key is None else self._of_connection.get(connection, {}).get(key)
            if found is None:
                raise TransactionRefused(f"Local transaction '{key or NULL_KEY}' has not been started.")
            return found
        decision = self._log.heuristics.get(key)
        if decision is not None:
            code, text = _HEURISTIC_ERRORS[decision]
            raise XaRefused(code, f"XA transaction '{key}' has been heuristically {text}.")
        if key in self._unfinished:
            raise XaRefused(_XAER_RMFAIL, f"XA transaction '{key}' is committed; {_AFTER_RESTART}")
        found = self._open.get(key)
        if found is None:
            raise XaRefused(_XAER_NOTA, f"XA transaction '{key}' has not been started.")
        return found

    def _find_for_put(self, connection: object, key: str) -> Transaction:
        try:
            transaction = self._find(connection, key)
        except XaRefused as error:
            raise _bare(error) from None
        if transaction.state is State.PREPARED:
            raise TransactionRefused(f"XA transaction '{key}' has been prepared: it takes no more messages")
        return transaction

    def _check_room(self, key: str, timeout_seconds: int) -> None:
        self._check_log(key)
        if len(self._open) >= MAX_OPEN_TRANSACTIONS:
            raise _refusal(key, f"{MAX_OPEN_TRANSACTIONS} transactions are open already")
        if timeout_seconds > 0 and self._timeouts >= self._config.max_timeouts:
            raise _refusal(
                key,
                f"{self._timeouts} transactions with a timeout are open already: see maxTxTimeoutTimerCapacity",
            )

    def _check_log(self, key: str = "XID") -> None:
        if self._log.failure is not None:
            raise XaRefused(_XAER_RMFAIL, self._log.failure) if is_xa(key) else TransactionRefused(self._log.failure)

    def _check_partitions(self, transaction: Transaction) -> None:
        for log in transaction.blocks:
            if log.read_only is not None:
                raise XaRefused(_XAER_RMFAIL, f"{log.directory} takes no writes: {log.read_only}")

    # --- ending -------------------------------------------------------------------------------------------------------

    def _prepared(self, transaction: Transaction, deferred: Deferred[int], failure: str | None) -> None:
        if failure is not None:
            deferred.errback(XaRefused(_XAER_RMFAIL, failure))
            return
        transaction.prepared_at_ms = self._now_ms()
        deferred.callback(XA_OK)

    def _commit(self, transaction: Transaction) -> Deferred[None] | None:
        if not transaction.messages:
            self._close_transaction(transaction)
            return None
        self._check_log(transaction.key)
        try:
            self._check_partitions(transaction)
        except XaRefused:
            if transaction.state is State.PREPARED:
                raise  # its coordinator may try again after a restart
            self._give_up(transaction)
            raise XaRefused(_XA_RBOTHER, "STORE COMMIT FAILED: Transaction rolled back.") from None
        self._remove(transaction)
        return self._log_commit(transaction)

    def _log_commit(self, transaction: Transaction) -> Deferred[None]:
        deferred: Deferred[None] = Deferred()

        def ended(failure: str | None, error: MetaqError | None) -> None:
            if failure is None and error is None:
                deferred.callback(None)
                return
            if failure is None:
                failure = f"'{transaction.key}' is committed, but {error}; {_AFTER_RESTART}"
                if transaction.is_xa:
                    self._unfinished.add(transaction.key)
            deferred.errback(_refusal(transaction.key, failure, _XAER_RMFAIL))

        self._log.commit(transaction, transaction.state is State.PREPARED, ended)
        return deferred

    def _rollback(self, transaction: Transaction) -> Deferred[None] | None:
        if transaction.messages:
            self._check_log(transaction.key)
        self._remove(transaction)
        return self._log_rollback(transaction)

    def _log_rollback(self, transaction: Transaction) -> Deferred[None] | None:
        transaction.finish()
        if transaction.file is None:
            return None
        kind = OperationType.XA_ROLLBACK if transaction.is_xa else OperationType.LOCAL_ROLLBACK
        self._log.append(transaction, encode_operation_record(Operation(transaction.key, kind, was_prepared=False)))
        self._log.settle(transaction)
        deferred: Deferred[None] = Deferred()

        def written(failure: str | None) -> None:
            if failure is None:
                deferred.callback(None)
            else:
                deferred.errback(_refusal(transaction.key, failure, _XAER_RMFAIL))

        self._log.when_written(written)
        return deferred

    def _give_up(self, transaction: Transaction) -> None:
        """Roll back without anybody waiting for it; a failed log says so itself, and its replay rolls back."""
        self._remove(transaction)
        _ignore_refusal(self._log_rollback(transaction))

    def _expired(self, transaction: Transaction) -> None:
        transaction.timer = None
        self._timeouts -= 1
        _log.info("%s is rolled back: its timeout has come", transaction.key)
        self._give_up(transaction)

    def _close_transaction(self, transaction: Transaction) -> None:
        self._remove(transaction)
        transaction.finish()

    def _remove(self, transaction: Transaction) -> None:
        """Out of everybody's reach; its messages stay with it."""
        if self._open.pop(transaction.key, None) is None:
            return
        self._stop_timer(transaction)
        self._open_bytes -= transaction.size
        if not transaction.is_xa:
            mine = self._of_connection[transaction.owner]
            del mine[transaction.key]
            if not mine:
                del self._of_connection[transaction.owner]

    def _stop_timer(self, transaction: Transaction) -> None:
        if transaction.timer is not None:
            transaction.timer.cancel()
            transaction.timer = None
            self._timeouts -= 1


_AFTER_RESTART = "what is missing is appended when the broker is restarted"


def _ignore_refusal(deferred: Deferred[None] | None) -> None:
    if deferred is not None:
        deferred.addErrback(_trap_refusal)


def _trap_refusal(failure: Failure) -> None:
    failure.trap(TransactionRefused)  # type: ignore[no-untyped-call]


def _checked(flag: int, announced: int, body: Buffer) -> tuple[int, int, int, Buffer]:
    found = checksum(body)
    if announced not in (NO_CHECKSUM, found):
        raise ChecksumMismatch
    return flag, announced, found, body


def _refusal(key: str, reason: str, xa_code: int = _XAER_RMERR) -> TransactionRefused:
    return XaRefused(xa_code, reason) if is_xa(key) else TransactionRefused(reason)


def _bare(error: XaRefused) -> TransactionRefused:
    """A put is refused without the words that only the coordinator's verbs are answered with."""
    refused = TransactionRefused(error.reason)
    refused.xa_code = error.xa_code
    return refused
