"""The objects that `get` and PULL need for reading: logs, cold reads, filters, and the limits of answers."""

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
"""The greatest number of requests that wait for users' filters. Further requests are refused. Without this limit, if a
filter never returned, more and more waiting requests would take memory.
"""

T = TypeVar("T")

InThread = Callable[[Callable[[], Any]], Deferred[Any]]
"""Calls a function in a worker thread; the Deferred gets the function's result."""


class Reading:
    """The objects that all `get` and PULL requests of a broker share. Used only on the reactor thread."""

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
        """in_filter_thread: runs users' filters. url: returns this broker's URL, as registered in ZooKeeper."""
        self.partitions = partitions
        self.cold_reads = cold_reads
        self.examinations = Examinations(cold_reads)
        self.filters = filters
        """The table of users' filters; a reload of the configuration sets a new table."""
        self.places = RememberedPlaces()
        self.metrics = metrics
        self.where_time = TurnTime(reactor)
        self.seconds = reactor.seconds
        self.max_transfer_bytes = config.max_transfer_size
        """The most bytes of data in one answer, according to the configuration."""
        self.moves_past_end = config.move_consumers_past_end
        """Whether a `get` beyond the end of a partition is answered with the partition's end offset; otherwise it is
        answered with status 404.
        """
        self.url = url
        self._account = account
        self._in_filter_thread = in_filter_thread
        self._filter_calls = 0

    @property
    def max_answer_bytes(self) -> int:
        """The most bytes of data in an answer to the present request. The number is smaller than `max_transfer_bytes`
        while many bytes of answers wait because clients at the requesting client's address receive them too slowly.
        """
        return self._answer_bytes(self.max_transfer_bytes)

    @property
    def max_pull_bytes(self) -> int:
        """Like `max_answer_bytes`, but for an answer to a PULL, which may have more data than an answer to `get`."""
        return self._answer_bytes(max(self.max_transfer_bytes, MAX_PULL_BYTES))

    def _answer_bytes(self, limit: int) -> int:
        return self._account.unsent.data_bytes(self._account.asker, limit)

    def why_no_answer(self, size: int, address: str) -> str | None:
        """Return why clients at this address cannot get an answer of this size now, or None if they can."""
        return self._account.unsent.why_not(address, size)

    def in_filter_thread(self, function: Callable[[], T]) -> Deferred[T]:
        """Run a function that calls a user's filter; the Deferred gets its result. Fails with FiltersBusy if too many
        requests already wait for filters.
        """
        if self._filter_calls >= MAX_FILTER_CALLS:
            return fail(FiltersBusy(f"{self._filter_calls} requests wait for their filters"))
        self._filter_calls += 1
        return self._in_filter_thread(function).addBoth(self._filtered)

    def _filtered(self, result: Any) -> Any:
        self._filter_calls -= 1
        return result
