"""Settings of the transactions (server.ini, storage.md §9)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["FlushTxLog", "TransactionConfig"]


class FlushTxLog(IntEnum):
    """flushTxLogAtCommit: when the transaction log is synced."""

    NEVER = 0
    """When the operating system does it: a crash of the machine may lose answered requests."""
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
    """The maximum timeout of a transaction; longer ones are cut to this."""
    max_timeouts: int
    """How many transactions with a timeout may be open at once."""
