"""The class Broker, which creates the objects that one running broker consists of. For each request type, verbs.py
takes from the Broker the objects that the request's action needs.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from twisted.internet.defer import Deferred, fail

from metaq.protocol.errors import ConfigError
from metaq.version import __version__

from ..access.control import AccessControl
from ..access.logins import Logins
from ..configuration.reload_plan import ReloadReport
from ..configuration.settings import BrokerConfig, BrokerOptions, TopicConfig
from ..delays.delays import Delays
from ..filters.filter_table import FilterTable
from ..halves.halves import Halves
from ..memory.memory import Memory
from ..partitions.counters import Metrics
from ..partitions.message_ids import MessageIds
from ..partitions.partitions import Partitions
from ..reading.cold_reads import ColdReads
from ..reading.long_poll import ParkedPulls
from ..reading.reading import Reading
from ..reading.search import Searches
from ..replication.host import ReplicationPart
from ..replication.status import ReplicationStatus
from ..requests.delayed import Listings
from ..runtime.account import Account
from ..runtime.dialing import Dialer, meta_url
from ..runtime.few_lines import FewLines
from ..runtime.pace import Pace
from ..runtime.pending_puts import PendingPuts
from ..runtime.reactor import ReactorTime
from ..runtime.turns import ConnectionTurns
from ..shared.shared_groups import SharedGroups
from ..store.partition_log import PartitionLog
from ..store.store import Store
from ..store.worker_turns import RunInThread
from ..transactions.log import TransactionLog
from ..transactions.transactions import Transactions
from ..writing.sequences import Sequences
from ..writing.writing import Writing
from .kinds import KINDS

if TYPE_CHECKING:
    from ..moving.moves import BrokerMoves
    from ..network.open_listener import OpenListener
    from ..network.tls import Certificates
    from ..sets.node import SetMember
    from ..sets.status import SetReport

__all__ = ["Broker", "WorkerThreads"]

T = TypeVar("T")
M = TypeVar("M", bound=Memory[Any])


class Reloads(Protocol):
    """Describes the class reload.Reloader. The actions of requests call only its method `reload`."""

    def reload(self) -> Deferred[ReloadReport]:
        """Read server.ini again. If the Deferred fails with ConfigError, no setting has changed."""


class WorkerThreads(NamedTuple):
    """Functions that run a given function in a worker thread, where it may block. disk: uses threads for syncs of files
    and for searches.
    filters: uses threads for users' filters, which can be slow. cold: uses threads for reads of data that are not in
    the page cache. If `filters` or `cold` is None, the threads of `disk` are used. pause(seconds): a worker thread with
    much work calls this function to sleep for a moment, so that other threads can run Python code.
    """

    disk: RunInThread
    filters: RunInThread | None = None
    cold: RunInThread | None = None
    pause: Callable[[float], None] = time.sleep


class Broker:
    """One running broker, with all objects that it consists of. Used only on the reactor thread."""

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        *,
        reactor: ReactorTime,
        threads: WorkerThreads,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
        on_topic: Callable[[str, TopicConfig], None] | None = None,
        filters: FilterTable | None = None,
        options: BrokerOptions = BrokerOptions(),  # noqa: B008
        dialer: Dialer | None = None,
    ) -> None:
        """store: an open store. clock: returns seconds since 1970. on_topic: called once for each topic, when the topic
        gets its first log on this broker.
        dialer: opens the connections to other brokers. If `dialer` is None, these connections do not use TLS.
        """
        alone = config.node is None and options.node is None  # otherwise only the leading node does this
        self.config = config
        self.store = store
        self.reactor = reactor
        self.clock = clock
        self.run_in_thread = threads.disk
        self.version = __version__
        self.dial = (dialer or Dialer(reactor)).dial
        self.admin_from = options.admin_from
        self.port = config.port
        """The number of the port on which the broker listens. If the configured number is 0, the operating system
        chooses a free port, and `listen` (server.py) stores its number here.
        """
        self.connections = 0
        self.listeners: dict[str, OpenListener] = {}
        """The open listeners by name, with the main port; empty if security.ini has no section [listener NAME]."""
        self.reloader: Reloads | None = None
        """The object that reloads server.ini. The broker process sets this attribute if it has read its configuration
        from a file. The attribute is None if the configuration does not come from a file, so that it cannot be
        reloaded.
        """
        self.replication: ReplicationPart | None = None
        """The object that copies messages between this broker and other brokers, or None for a plain master, which does
        not copy.
        """
        self.member: SetMember | None = None
        """The object that makes this broker a node of a broker set, or None for a single broker."""
        self.set_report: SetReport | None = None
        """The object that reports to operators about this node of a broker set, or None for a single broker. If it is
        not None, the attribute `replication` refers to this object, too.
        """
        self.moves: BrokerMoves | None = None
        """The object that moves partitions of this broker to other brokers, or None if the broker registers no topics
        in ZooKeeper or is a slave.
        """
        self.certificates: Certificates | None = None
        """The certificates of this broker's port, or None without TLS."""
        self.registered: Callable[[], bool] | None = None
        """A function that returns whether this broker is registered in ZooKeeper, where clients find it. The attribute
        is None if the broker does not use ZooKeeper.
        """
        self.message_ids = MessageIds(config.broker_id, clock, store.max_message_id)
        self.turns = ConnectionTurns(reactor)
        self.parked = ParkedPulls(reactor)
        self._watch_shared: Callable[[PartitionLog], None] = lambda log: None
        self.account = Account(config.limits, reactor)
        self.pending_puts = PendingPuts(options.max_pending_put_bytes, reactor)
        self.closed_lines = FewLines(logging.getLogger(f"{__package__}.network.session"), "connections closed", reactor)
        """Writes log lines about the connections that the broker closes; the number of lines is limited."""
        self.access = AccessControl(
            config.broker_id,
            config.system.data_path,
            store.files,
            self.now_ms,
            self.in_thread,
            FewLines(logging.getLogger(f"{__package__}.access"), "requests refused", reactor),
            FewLines(logging.getLogger(f"{__package__}.access"), "failed logins", reactor),
        )
        """Decides what users may do."""
        self.logins = Logins(self.access, self.now_ms, reactor.seconds)
        self.partitions = Partitions(
            config, store, rng=rng, on_log=self._watch, on_topic=on_topic, account=self.account
        )
        self.metrics = Metrics(self.partitions.has_stat, reactor.seconds)
        self.cold_reads = ColdReads(
            threads.cold or threads.disk,
            store.files,
            store.cached_only,
            reactor,
            Pace(reactor, lambda: self.metrics.put_bytes),
        )
        self.reading = Reading(
            self.partitions,
            self.cold_reads,
            filters or FilterTable(),
            partial(_deferred, threads.filters or threads.disk),
            self.metrics,
            reactor,
            config,
            self.account,
            lambda: self.url,
        )
        self.options = options
        self.memories: list[Memory[Any]] = []
        """The memories of all kinds of messages. When this broker becomes the leader, it calls `Memory.lead` of each
        memory, in the order of this list.
        """
        for kind in KINDS.values():
            self.memories.append(kind.memory_in(self))
        self.delays, self.halves = self.memory(Delays), self.memory(Halves)
        self.sequences = self.memory(Sequences)
        self.shared = self.memory(SharedGroups)
        self._watch_shared = self.shared.watch
        if alone:
            for memory in self.memories:
                memory.lead()
        for log in store.logs():
            for damaged in log.segments.damage:  # found at the start, before the callback was set
                self.metrics.damaged(damaged.end - damaged.start, new_range=True)
        self.transactions = Transactions(
            config.transactions,
            TransactionLog(
                config.transactions,
                store.data_paths,
                run_in_thread=threads.disk,
                reactor=reactor,
                now_ms=self.now_ms,
                writing=self.writing,
                files=store.files,
            ),
            self.partitions,
            self.message_ids,
            self.metrics,
            reactor,
            self.account,
            self.now_ms,
        )
        """The transactions of the broker. The caller must open this object before the first request is served, and
        close it before it closes the store.
        """
        self.listings = Listings(self.account, reactor, threads.pause)
        self.searches = Searches(store, self.partitions, self.in_thread, config.max_transfer_size, self.account)

    def memory(self, kind: type[M]) -> M:
        """Return this broker's memory that is an object of the class `kind`."""
        return next(each for each in self.memories if type(each) is kind)

    @cached_property
    def writing(self) -> Writing:
        """The object that stores messages. The first access to this property creates the object."""
        sequences = self.memory(Sequences)
        delays, halves = self.memory(Delays), self.memory(Halves)
        return Writing(self.store, self.partitions, self.message_ids, self.metrics, sequences, delays, halves)

    def _watch(self, log: PartitionLog) -> None:
        self.parked.watch(log)
        self._watch_shared(log)
        log.segments.on_damage = self._count_damage

    def _count_damage(self, size: int, new_range: bool) -> None:
        self.metrics.damaged(size, new_range)

    @property
    def url(self) -> str:
        """The broker's address `meta://host:port`, as registered in ZooKeeper."""
        return meta_url(self.config.host, self.port)

    def reconfigure(self, config: BrokerConfig, filters: FilterTable) -> None:
        """Use a new configuration from now on. The new configuration may differ from the old one only in topics and
        filters.
        """
        self.config = config
        self.reading.filters = filters
        self.partitions.reconfigure(config)
        self.store.reconfigure()
        if self.member is not None:
            self.member.reconfigured()

    def check_sections(self, config: BrokerConfig, file: str) -> None:
        """Check the topic sections of `config`, as Partitions.check_sections does. If this broker is a slave or a node
        of a broker set, do nothing: such a broker also gets topics of another broker, which its own server.ini need not
        name.
        """
        if config.node is None and self.partitions.takes_puts and not self.writing.takes_copies:
            self.partitions.check_sections(config, file)

    def reload_config(self) -> Deferred[ReloadReport]:
        """Read server.ini again. If the Deferred fails with ConfigError, no setting has changed."""
        if self.reloader is None:
            return fail(ConfigError("server.ini", "none", "this broker has no file to read again"))
        return self.reloader.reload()

    def replication_status(self) -> ReplicationStatus:
        """Return the present status of replication. If this broker takes no part in replication, return the status of a
        plain master.
        """
        return ReplicationStatus("master") if self.replication is None else self.replication.status()

    def now_ms(self) -> int:
        """Return the wall-clock time in Unix milliseconds."""
        return int(self.clock() * 1000)

    def in_thread(self, function: Callable[[], T]) -> Deferred[T]:
        """Use a worker thread to run a function that may wait for the disk; the Deferred gets the function's result."""
        return _deferred(self.run_in_thread, function)


def _deferred(run: RunInThread, function: Callable[[], T]) -> Deferred[T]:
    deferred: Deferred[T] = Deferred()

    def done(result: Any) -> None:
        if isinstance(result, BaseException):
            deferred.errback(result)
        else:
            deferred.callback(result)

    run(function, done)
    return deferred
