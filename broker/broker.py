"""What all requests of one broker share; handed to every handler."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar

from twisted.internet.defer import Deferred, fail

from metaq.protocol.errors import ConfigError, FiltersBusy, MetaqError
from metaq.protocol.limits import MAX_PULL_BYTES
from metaq.protocol.record import Buffer
from metaq.version import __version__

from .configuration.config import DEFAULT_MAX_PENDING_PUT_BYTES, BrokerConfig, TopicConfig
from .configuration.reload_plan import ReloadReport
from .filters.places import Places
from .filters.table import FilterTable
from .message_ids import MessageIds
from .metrics import Metrics
from .network.long_poll import ParkedPulls
from .network.pending_puts import PendingPuts
from .partitions import Partitions
from .replication.status import ReplicationStatus
from .requests.cold_reads import ColdReads, Examinations
from .requests.searches import Searches
from .runtime.pace import Pace
from .runtime.reactor import ReactorTime
from .store.flush import RunInThread
from .store.partition_log import PartitionLog
from .store.store import Store
from .transactions.log import TransactionLog
from .transactions.transactions import Transactions

__all__ = ["AdminFrom", "Broker"]

AdminFrom = Literal["loopback", "any"]
"""Where admin requests are taken from: this machine, or every address that reaches the port."""

T = TypeVar("T")


class Reloads(Protocol):
    """What handlers ask of reload.Reloader."""

    def reload(self) -> Deferred[ReloadReport]:
        """Read server.ini again. Fails with ConfigError; nothing has changed then."""


class SyncSlaveLink(Protocol):
    """What handlers ask of a synchronous master's way to its slave (replication/sync_master.py)."""

    def check(self) -> None:
        """Raise SlaveDisconnected if there is no connection."""

    def replicate(
        self, log: PartitionLog, puts: Sequence[tuple[int, int, Buffer]], ids: Sequence[int], done: SyncDone
    ) -> None:
        """Have the slave store (flag, checksum, body) with these ids, in order; `done` when all are answered."""


SyncDone = Callable[[Sequence[MetaqError | None]], None]
"""done(per message: None if the slave has it, else why not)."""


class Replication(Protocol):
    """What handlers may ask of replication/."""

    def status(self) -> ReplicationStatus: ...
    def restart(self) -> None: ...


MAX_UNSENT_BYTES = 64 << 20
"""Answers waiting in full transports above which further ones are small: a thousand stalled consumers cost 130 MB."""

SCARCE_ANSWER_BYTES = 64 << 10
"""Data of an answer then; one record may be larger."""

MAX_FILTER_CALLS = 256
"""Requests that may wait for users' filters; further ones are refused, so that a hanging filter costs no memory."""


class Broker:
    """The parts of one running broker. Lives on the reactor thread."""

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        *,
        reactor: ReactorTime,
        run_in_thread: RunInThread,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
        on_topic: Callable[[str, TopicConfig], None] | None = None,
        admin_from: AdminFrom = "loopback",
        filters: FilterTable | None = None,
        run_filter: RunInThread | None = None,
        run_cold: RunInThread | None = None,
        max_pending_put_bytes: int = DEFAULT_MAX_PENDING_PUT_BYTES,
    ) -> None:
        """store: open. clock: seconds since 1970. on_topic: called for each topic that has a log, once.

        run_filter: threads for users' filters, which may be slow; run_cold: threads for reads behind the page cache. By
        default those for the disk. max_pending_put_bytes: of puts that wait to be safe (pending_puts.py).
        """
        self.config = config
        self.store = store
        self.reactor = reactor
        self.clock = clock
        self.version = __version__
        self.admin_from = admin_from
        self.port = config.port
        """The port listened on; set by the server if the configured one is 0."""
        self.connections = 0
        self.unsent_bytes = 0
        """Answers that wait in full transports, for consumers that do not take them; kept by the sessions."""
        self.reloader: Reloads | None = None
        """Set by the process that knows the file; without it there is nothing to read again."""
        self.replication: Replication | None = None
        """This broker's part in replication; None for a plain master."""
        self.sync_slave: SyncSlaveLink | None = None
        """For a synchronous master: every put goes there too."""
        self.stores_syncs = False
        """Whether this is a synchronous slave."""
        self.message_ids = MessageIds(config.broker_id, clock, store.max_message_id)
        self.parked = ParkedPulls(reactor)
        self.pending_puts = PendingPuts(max_pending_put_bytes, reactor)
        self.partitions = Partitions(config, store, rng=rng, on_log=self._watch, on_topic=on_topic)
        self.metrics = Metrics(self.partitions.has_stat, reactor.seconds)
        self.cold_reads = ColdReads(
            run_cold or run_in_thread,
            store.files,
            store.cached_only,
            reactor,
            Pace(reactor, lambda: self.metrics.put_bytes),
        )
        self.examinations = Examinations(self.cold_reads)
        for log in store.logs():
            for damaged in log.damage:  # found by a start that was quicker than we are
                self.metrics.damaged(damaged.end - damaged.start, new_range=True)
        self.filters = filters or FilterTable()
        self.places = Places()
        self.transactions = Transactions(
            config.transactions,
            TransactionLog(
                config.transactions,
                store.data_paths,
                run_in_thread=run_in_thread,
                seconds=reactor.seconds,
                now_ms=self.now_ms,
                files=store.files,
            ),
            self.partitions,
            self.message_ids,
            self.metrics,
            reactor,
            self.now_ms,
        )
        """To be opened before anything is served, and closed before the store."""
        self._run_in_thread = run_in_thread
        self._run_filter = run_filter or run_in_thread
        self._filter_calls = 0
        self.searches = Searches(store, self.partitions, self.in_thread)

    def _watch(self, log: PartitionLog) -> None:
        self.parked.watch(log)
        log.on_damage = self._count_damage

    def _count_damage(self, size: int, new_range: bool) -> None:
        self.metrics.damaged(size, new_range)

    @property
    def url(self) -> str:
        """`meta://host:port`, as registered in ZooKeeper."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"meta://{host}:{self.port}"

    def reconfigure(self, config: BrokerConfig, filters: FilterTable) -> None:
        """Go on with another configuration, whose topics and filters alone may differ."""
        self.config = config
        self.filters = filters
        self.partitions.reconfigure(config)
        self.store.reconfigure()

    def reload_config(self) -> Deferred[ReloadReport]:
        """Read server.ini again. Fails with ConfigError; nothing has changed then."""
        if self.reloader is None:
            return fail(ConfigError("server.ini", "none", "this broker has no file to read again"))
        return self.reloader.reload()

    @property
    def max_answer_bytes(self) -> int:
        """Data of one answer: maxTransferSize, less while consumers that do not read hold too much of the memory."""
        return self._answer_bytes(self.config.max_transfer_size)

    @property
    def max_pull_bytes(self) -> int:
        """The same for a PULL, of which bulk readers may ask for more."""
        return self._answer_bytes(max(self.config.max_transfer_size, MAX_PULL_BYTES))

    def _answer_bytes(self, limit: int) -> int:
        return limit if self.unsent_bytes <= MAX_UNSENT_BYTES else min(limit, SCARCE_ANSWER_BYTES)

    @property
    def has_transactions(self) -> bool:
        """False for both sides of synchronous replication, as in 1.x."""
        return self.sync_slave is None and not self.stores_syncs

    def now_ms(self) -> int:
        """Wall clock, Unix milliseconds."""
        return int(self.clock() * 1000)

    def in_thread(self, function: Callable[[], T]) -> Deferred[T]:
        """The result of a function that may wait for the disk."""
        return _deferred(self._run_in_thread, function)

    def in_filter_thread(self, function: Callable[[], T]) -> Deferred[T]:
        """The result of a function that calls a filter. Fails with FiltersBusy when too many wait already."""
        if self._filter_calls >= MAX_FILTER_CALLS:
            return fail(FiltersBusy(f"{self._filter_calls} requests wait for their filters"))
        self._filter_calls += 1
        return _deferred(self._run_filter, function).addBoth(self._filtered)

    def _filtered(self, result: Any) -> Any:
        self._filter_calls -= 1
        return result


def _deferred(run: RunInThread, function: Callable[[], T]) -> Deferred[T]:
    deferred: Deferred[T] = Deferred()

    def done(result: Any) -> None:
        if isinstance(result, BaseException):
            deferred.errback(result)
        else:
            deferred.callback(result)

    run(function, done)
    return deferred
