"""Settings of the transactions (server.ini, storage.md §9)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["FlushTxLog", "TransactionConfig"]


class FlushTxLog(IntEnum):
    """flushTxLogAtCommit: when the transaction log is synced."""

    NEVER = 0
    """Left to the operating system: a crash of the machine may take back what was answered."""
    AT_COMMIT = 1
    """Before a prepare, commit or rollback is answered."""
    EVERY_SECOND = 2


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """log_path: dataLogPath; the log is in its folder `transactions`."""

    log_path: str
    flush: FlushTxLog
    max_checkpoints: int
    checkpoint_interval_ms: int
    max_timeout_seconds: int
    """Longer timeouts of transactions are cut to this."""
    max_timeouts: int
    """Transactions with a timeout that may be open at once."""
