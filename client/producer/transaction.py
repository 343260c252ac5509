"""A transaction on one broker: messages that become visible together, or not at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from enum import Enum
from typing import Self

from metaq.coordination.backoff import Backoff
from metaq.coordination.logs import get_log
from metaq.protocol.errors import (
    BrokerUnavailable,
    ClientError,
    CommitUnknown,
    MetaqError,
    RequestTimedOut,
    TransactionLost,
)
from metaq.protocol.transactions import TransactionType

from ..connection import Connection
from ..values import SendResult, TopicPartition
from .outgoing import Outgoing
from .transactional import Transactional, TransactionSends

__all__ = ["Transaction"]

log = get_log(__name__)


class _State(Enum):
    NEW = "has no message yet"
    OPEN = "is open"
    FAILED = "can only be rolled back, because a message could not be sent in it"
    COMMITTED = "is committed"
    UNKNOWN = "was sent its commit, and its state is unknown"
    ROLLED_BACK = "is rolled back"


class Transaction(TransactionSends):
    """Made by Producer.transaction(), used as a context manager: the end of the block commits, an exception rolls back.

    The first message chooses the broker, as any send does; the others can only go to partitions of that broker. The
    transaction lives on one connection: if that ends, it is lost. Sends of several threads take turns.

    `send` and `send_batch` raise NoPartition (none on this transaction's broker), LocalProtocolError and TypeError with
    nothing sent, so that it goes on; TransactionLost (the connection ended, or nothing was answered in time),
    TransactionRefused (it ran into its timeout, for example) and other refusals leave only the rollback.
    """

    def __init__(self, calls: Transactional, timeout_seconds: int) -> None:
        super().__init__(calls)
        self.key = calls.new_local_key()
        """What names it to the broker, `TX:<session>:<number>`."""
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._state = _State.NEW
        self._connection: Connection | None = None
        self._broker = -1

    def commit(self) -> None:
        """Make the messages visible. Without a message there is nothing to do.

        Raises TransactionLost (it ended before, or a send had failed: nothing becomes visible), TransactionRefused (the
        broker rolled it back, after its timeout for example), CommitUnknown (the answer was lost), ClientError (it is
        over already).
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
                self._calls.verb(connection, TransactionType.COMMIT_ONE_PHASE, self.key)
            except (BrokerUnavailable, RequestTimedOut) as error:
                raise CommitUnknown(f"transaction {self.key} is committed, or is not: {error}") from error
            except MetaqError:
                self._state = _State.ROLLED_BACK
                raise
            self._state = _State.COMMITTED

    def rollback(self) -> None:
        """Drop the messages. Raises TransactionRefused, RequestTimedOut, BrokerUnavailable (our broker drops them when
        it loses the connection, a Java broker after the timeout); ClientError (it is committed)."""
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
        except MetaqError as failure:  # the block's own exception tells more
            log.warning("transaction %s could not be rolled back: %s", self.key, failure)

    # --- with the lock held -----------------------------------------------------------------------------------------

    def _put(self, outgoing: Outgoing) -> Sequence[SendResult]:
        with self._lock:
            if self._usable() is None:
                partition = self._begin(outgoing)
            else:
                partition = self._calls.router.route_in_transaction(outgoing, self._broker)
            connection = self._connection
            assert connection is not None
            self._state = _State.FAILED  # whatever goes wrong now
            try:
                results = self._calls.put(connection, self.key, partition, outgoing)
            except (BrokerUnavailable, RequestTimedOut) as error:
                raise TransactionLost(f"transaction {self.key} is lost: {error}") from error
            self._state = _State.OPEN
            return results

    def _usable(self) -> Connection | None:
        """The connection it lives on, None before the first message. Raises ClientError, TransactionLost."""
        if self._state not in (_State.NEW, _State.OPEN):
            error = TransactionLost if self._state is _State.FAILED else ClientError
            raise error(f"transaction {self.key} {self._state.value}")
        if self._connection is not None and self._connection.closed:
            self._state = _State.ROLLED_BACK
            raise TransactionLost(f"transaction {self.key} is lost: {self._connection.failure}")
        return self._connection

    def _begin(self, outgoing: Outgoing) -> TopicPartition:
        """Begin it on the broker of the first message's partition: on another one if that cannot be reached."""
        calls, config = self._calls, self._calls.config
        backoff = Backoff(config.retry_min_seconds, config.retry_max_seconds)
        while True:
            partition = calls.router.route_in_transaction(outgoing, None)
            try:
                connection = calls.connect(partition.topic, partition.broker, outgoing.deadline - calls.clock())
                calls.verb(
                    connection,
                    TransactionType.BEGIN,
                    self.key,
                    timeout_seconds=self._timeout_seconds,
                    deadline=outgoing.deadline,
                )
            except (BrokerUnavailable, RequestTimedOut) as error:
                pause = backoff.next()
                if calls.clock() + pause >= outgoing.deadline:
                    raise
                calls.router.avoid(partition, error, pause)
                time.sleep(pause)
                continue
            self._connection, self._broker = connection, partition.broker
            return partition

    def _roll_back(self) -> None:
        self._state = _State.ROLLED_BACK
        if self._connection is not None and not self._connection.closed:
            self._calls.verb(self._connection, TransactionType.ROLLBACK, self.key)
