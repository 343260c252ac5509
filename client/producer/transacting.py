"""The part of a producer that handles the producer's transactions: transactions on one broker, XA transactions, and
transactions with check-back. A producer creates the object and imports its modules only for its first transaction,
because most producers use no transactions, and these imports would take a sixth of a producer's import time.
"""

from __future__ import annotations

from collections.abc import Callable

from ..runtime.timers import TimeLeft
from ..settings.config import ProducerConfig
from ..transport.metadata import Metadata
from ..transport.pool import ConnectionPool
from .check_back import HalfTransactions
from .checking_halves import Checker
from .driver import Driver
from .ending_halves import Ender
from .packing import Packer
from .routing import Router
from .transaction import Transactional

__all__ = ["Transacting"]


class Transacting:
    """Handles the transactions of one producer. calls: the object for transactions on one broker and XA transactions.
    halves: the object for transactions with check-back. Any thread may use a Transacting object. It starts its threads
    and opens its connections only when they are first needed.
    """

    def __init__(
        self,
        config: ProducerConfig,
        metadata: Metadata,
        pool: ConnectionPool,
        router: Router,
        driver: Driver,
        packer: Packer | None,
        check_pool: Callable[[], ConnectionPool],
        clock: Callable[[], float],
    ) -> None:
        """check_pool: a function that creates the connection pool for the requests that wait for brokers' questions
        about outcomes.
        """
        self.calls = Transactional(metadata, pool, router, config, clock, driver.core.partition_of)
        self.halves = HalfTransactions(
            driver,
            Checker(metadata, check_pool, config, clock),
            Ender(self.calls.connect, pool.follow, config.connection.request_timeout_seconds, clock),
            config.producer_group,
            config.transaction_threads,
            packer,
            clock,
        )

    def close(self, left: TimeLeft) -> None:
        """End running transactions, and refuse new transactions. Further calls do nothing."""
        self.calls.closed = True
        self.halves.close(left.part(0.2))
        self.halves.checker.close(left.seconds)
