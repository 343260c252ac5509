"""The settings of transactions in server.ini (storage.md §9)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["FlushTxLog", "TransactionConfig"]


class FlushTxLog(IntEnum):
    """flushTxLogAtCommit: when the transaction log is synced."""

    NEVER = 0
    """The operating system decides when to sync the transaction log. If the machine crashes, the effects of transaction
    requests that were already answered can be lost.
    """
    AT_COMMIT = 1
    """The transaction log is synced before a prepare, commit or rollback is answered."""
    EVERY_SECOND = 2


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """The settings of transactions. log_path: the key dataLogPath; the transaction log is in its subdirectory
    `transactions`.
    """

    log_path: str
    flush: FlushTxLog
    max_checkpoints: int
    checkpoint_interval_ms: int
    max_timeout_seconds: int
    """The maximum timeout of a transaction in seconds. If a client asks for a longer timeout, the broker uses the
    maximum.
    """
    max_timeouts: int
    """The maximum number of transactions with a timeout that are open at the same time."""
