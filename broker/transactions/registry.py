"""The open transactions of one broker: which connection may use which, how many there may be, and their timeouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from metaq.protocol.errors import TransactionRefused
from metaq.protocol.transactions import is_xa, qualifier_of

from ..runtime.reactor import ReactorTime
from .config import TransactionConfig
from .refusals import not_started, refusal
from .transaction import OpenTransaction

__all__ = ["MAX_OPEN_BYTES", "MAX_OPEN_TRANSACTIONS", "Registry"]

MAX_OPEN_TRANSACTIONS = 100_000
"""Transactions that may be open at once; BEGIN is refused then."""

MAX_OPEN_BYTES = 256 << 20
"""Memory of messages in open transactions (OpenTransaction.held_bytes); puts in transactions are refused then."""


class Registry:
    """Lives on the reactor thread."""

    def __init__(
        self, config: TransactionConfig, reactor: ReactorTime, on_expired: Callable[[OpenTransaction], None]
    ) -> None:
        """on_expired: called when a transaction's timeout has come, unless it was removed or prepared before."""
        self._config = config
        self._reactor = reactor
        self._on_expired = on_expired
        self._open: dict[str, OpenTransaction] = {}
        self._of_connection: dict[object, dict[str, OpenTransaction]] = {}
        self._bytes = 0
        self._timeouts = 0

    def __len__(self) -> int:
        return len(self._open)

    def find(self, connection: object, key: str | None) -> OpenTransaction:
        """An open transaction that this connection may use. Raises TransactionRefused."""
        if key is not None and is_xa(key):
            found = self._open.get(key)
        else:
            found = None if key is None else self._of_connection.get(connection, {}).get(key)
        if found is None:
            raise not_started(key)
        return found

    def begin(self, connection: object, key: str, timeout_seconds: int) -> None:
        """Open a transaction, unless it is open already. Raises TransactionRefused."""
        found = self._open.get(key)
        if found is not None:
            if found.owner not in (None, connection):
                raise TransactionRefused(f"Local transaction '{key}' has been started on another connection.")
            return
        if len(self._open) >= MAX_OPEN_TRANSACTIONS:
            raise refusal(key, f"{MAX_OPEN_TRANSACTIONS} transactions are open already")
        if timeout_seconds > 0 and self._timeouts >= self._config.max_timeouts:
            raise refusal(
                key, f"{self._timeouts} transactions with a timeout are open already: see maxTxTimeoutTimerCapacity"
            )
        transaction = OpenTransaction(key, None if is_xa(key) else connection)
        self.add(transaction)
        if timeout_seconds > 0:
            seconds = min(timeout_seconds, self._config.max_timeout_seconds)
            self._timeouts += 1
            transaction.timer = self._reactor.callLater(seconds, self._expired, transaction)

    def add(self, transaction: OpenTransaction) -> None:
        """One that exists already, whatever the limits say."""
        self._open[transaction.key] = transaction
        self._bytes += transaction.held_bytes
        if not transaction.is_xa:
            self._of_connection.setdefault(transaction.owner, {})[transaction.key] = transaction

    def make_room(self, size: int) -> None:
        """Count `size` bytes of memory more for messages. Raises TransactionRefused if that is too much."""
        if self._bytes + size > MAX_OPEN_BYTES:
            raise TransactionRefused(
                f"the open transactions have {self._bytes} bytes, at most {MAX_OPEN_BYTES} are kept: commit sooner"
            )
        self._bytes += size

    def remove(self, transaction: OpenTransaction) -> None:
        """Out of everybody's reach; its messages stay with it. Nothing happens if it is so already."""
        if self._open.get(transaction.key) is not transaction:
            return
        del self._open[transaction.key]
        self.stop_timer(transaction)
        self._bytes -= transaction.held_bytes
        if not transaction.is_xa:
            mine = self._of_connection[transaction.owner]
            del mine[transaction.key]
            if not mine:
                del self._of_connection[transaction.owner]

    def of_connection(self, connection: object) -> list[OpenTransaction]:
        """The local transactions of a connection."""
        return list(self._of_connection.get(connection, {}).values())

    def prepared(self, qualifier: str | None = None) -> Iterable[OpenTransaction]:
        """Those whose preparation is on the disk, with this qualifier or any."""
        for key, transaction in self._open.items():
            if transaction.prepared_at_ms is not None and (qualifier is None or qualifier_of(key) == qualifier):
                yield transaction

    def stop_timer(self, transaction: OpenTransaction) -> None:
        if transaction.timer is not None:
            transaction.timer.cancel()
            transaction.timer = None
            self._timeouts -= 1

    def close(self) -> None:
        """No timeout comes any more."""
        for transaction in self._open.values():
            self.stop_timer(transaction)

    def _expired(self, transaction: OpenTransaction) -> None:
        transaction.timer = None
        self._timeouts -= 1
        self._on_expired(transaction)
