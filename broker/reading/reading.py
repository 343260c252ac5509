"""The means with which `get` and PULL read: logs, cold reads, filters, and the limits of answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, fail

from metaq.protocol.errors import FiltersBusy
from metaq.protocol.limits import MAX_PULL_BYTES

from ..configuration.server_ini import BrokerConfig
from ..filters.filter_table import FilterTable
from ..filters.remembered_places import RememberedPlaces
from ..partitions.counters import Metrics
from ..partitions.partitions import Partitions
from ..runtime.account import Account
from ..runtime.reactor import ReactorTime
from .cold_reads import ColdReads, Examinations
from .selecting import TurnTime

__all__ = ["MAX_FILTER_CALLS", "Reading"]

MAX_FILTER_CALLS = 256
"""How many requests may wait for users' filters. More are refused, so that a hanging filter costs no memory."""

T = TypeVar("T")

InThread = Callable[[Callable[[], Any]], Deferred[Any]]
"""Calls a function in a worker thread and gives its result."""


class Reading:
    """Shared by all readers of a broker. Lives on the reactor thread."""

    def __init__(
        self,
        partitions: Partitions,
        cold_reads: ColdReads,
        filters: FilterTable,
        in_filter_thread: InThread,
        metrics: Metrics,
        reactor: ReactorTime,
        config: BrokerConfig,
        account: Account,
        url: Callable[[], str],
    ) -> None:
        """in_filter_thread: runs users' filters. url: this broker's, as registered in ZooKeeper."""
        self.partitions = partitions
        self.cold_reads = cold_reads
        self.examinations = Examinations(cold_reads)
        self.filters = filters
        """Replaced when the configuration is read again."""
        self.places = RememberedPlaces()
        self.metrics = metrics
        self.where_time = TurnTime(reactor)
        self.seconds = reactor.seconds
        self.max_transfer_bytes = config.max_transfer_size
        """The most data of one answer."""
        self.moves_past_end = config.move_consumers_past_end
        """Whether a `get` beyond the end is answered with the end."""
        self.url = url
        self._account = account
        self._in_filter_thread = in_filter_thread
        self._filter_calls = 0

    @property
    def max_answer_bytes(self) -> int:
        """The most data of one answer: less while consumers at the asking address take too little of their answers."""
        return self._answer_bytes(self.max_transfer_bytes)

    @property
    def max_pull_bytes(self) -> int:
        """The same for a PULL; bulk readers may ask for more."""
        return self._answer_bytes(max(self.max_transfer_bytes, MAX_PULL_BYTES))

    def _answer_bytes(self, limit: int) -> int:
        return self._account.unsent.data_bytes(self._account.asker, limit)

    def why_no_answer(self, size: int, address: str) -> str | None:
        """Return why this address gets no answer of so many bytes now; None if it gets one."""
        return self._account.unsent.why_not(address, size)

    def in_filter_thread(self, function: Callable[[], T]) -> Deferred[T]:
        """Run a function that calls a filter, and give its result. Fails with FiltersBusy when too many wait
        already."""
        if self._filter_calls >= MAX_FILTER_CALLS:
            return fail(FiltersBusy(f"{self._filter_calls} requests wait for their filters"))
        self._filter_calls += 1
        return self._in_filter_thread(function).addBoth(self._filtered)

    def _filtered(self, result: Any) -> Any:
        self._filter_calls -= 1
        return result
