"""What a producer's transactions share, on one broker, for XA and with check-back. It comes with the first of them, for
most producers send none, and what it loads takes a sixth of the time in which one is imported."""

from __future__ import annotations

from collections.abc import Callable

from ..runtime.timers import TimeLeft
from ..settings.config import ProducerConfig
from ..transport.metadata import Metadata
from ..transport.pool import ConnectionPool
from .checking import Checker
from .driver import Driver
from .ending import Ender
from .halves import HalfTransactions
from .packing import Packer
from .routing import Router
from .transaction import Transactional

__all__ = ["Transacting"]


class Transacting:
    """Of one producer. calls: for transactions on one broker, and XA. halves: those with check-back. Any thread; it has
    no thread and no connection before the first use."""

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
        """check_pool: makes the one for questions of brokers."""
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
        """End what is under way; what is begun behind this is refused. Idempotent."""
        self.calls.closed = True
        self.halves.close(left.part(0.2))
        self.halves.checker.close(left.seconds)
