"""Run a broker, from reading server.ini to a clean stop. `OneBroker` is the broker, and `BrokerProcess` is the process
around it, with its signals and limits. `in_process/` runs a `OneBroker` without a process of its own.
"""

from __future__ import annotations

import logging
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import numpy.ma  # noqa: F401 - else the first np.unique loads it, in 14 ms of a request
from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.internet.task import deferLater
from twisted.logger import STDLibLogObserver, globalLogBeginner
from twisted.python.failure import Failure

from metaq.protocol.errors import MetaqError

from . import tuning
from .access.audit import Audit, AuditFile
from .access.logins import load_scramp
from .assembly.broker import Broker, WorkerThreads
from .assembly.kinds import KINDS
from .assembly.reload import Reloader
from .assembly.server import SessionFactory, listen, listen_further, warn_if_open
from .assembly.verbs import make_gate
from .configuration.server_ini import read_config
from .configuration.settings import BrokerConfig, BrokerOptions, TopicConfig
from .configuration.sources import ConfigFiles
from .filters.filter_table import load_filters
from .partitions.move_table import MoveTable
from .replication.plugins import NO_PLUGINS, Plugins, read_plugins
from .replication.roles import Roles, check_roles, config_for
from .requests.gate import Gate
from .runtime.dialing import Dialer
from .runtime.heap import collect_later, give_back_spare, keep_for_good, set_up_heap
from .runtime.log_format import LogFormat
from .runtime.reactor import measures_elapsed_time, serves_few_at_once
from .runtime.schedule import Schedule
from .runtime.scheduled_calls import ScheduledCalls, repeat
from .runtime.threads import DaemonThreads, DiskThread, run_in_pool
from .store.directories import what_others_may
from .store.files import REAL_FILES, Files
from .store.retention import RemovedSegment
from .store.store import Store, TopicStoreConfig
from .store.worker_turns import RunInThread

if TYPE_CHECKING:
    from metaq.coordination.records.payloads import ListenerAddress
    from metaq.coordination.runtime.certificates import CertificateFiles
    from metaq.coordination.runtime.zookeeper_login import ZooKeeperLogin
    from metaq.coordination.session.zk_session import ZkSession

    from .configuration.security_ini import Security
    from .http.ports import HttpPorts
    from .moving.moves import BrokerMoves
    from .network.tls import Certificates
    from .partitions.registration import Registration

__all__ = ["BrokerProcess", "OneBroker", "run"]

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.25
_SPACE_CHECK_SECONDS = 1.0
_MEMORY_SECONDS = 1.0
_SIZE_CHECK_SECONDS = 10.0  # for this long a topic may be larger than its policy allows plus one segment
_HEAP_SECONDS = 10.0
_CERTIFICATE_SECONDS = 2.0
_AUDIT_SECONDS = 1.0
_WORKER_THREADS = 20  # syncs of several partitions at the same time
FILTER_THREADS = 4
_CLOSE_SECONDS = 2.0
"""When the broker stops, it waits at most this many seconds until the clients have received their last answers; then
the process ends even if connections are still open.
"""
_DESCRIPTORS_FOR_OTHERS = 64


def run(
    ini_path: str,
    *,
    filters_path: str | None = None,
    plugins: Mapping[str, str] | None = None,
    listen_on: str = "",
    options: BrokerOptions = BrokerOptions(),  # noqa: B008
) -> int:
    """Run a broker until SIGTERM or SIGINT arrives; print one line as soon as the broker serves clients. Return the
    process's exit code.

    On SIGHUP the broker reads its configuration files again. To stop, the broker first unregisters from ZooKeeper.
    Clients then need time to connect to other brokers; so the broker continues to serve them for as many milliseconds
    as zkSyncTimeMs in server.ini says. A second SIGTERM or SIGINT ends this waiting time at once. This function must be
    called by the main thread.

    filters_path: the file that maps Java's filter classes to Python callables; by default filters.ini in the directory
    of server.ini. plugins: the -F options of metaq 1.x, plugin name -> properties file (replication/plugins.py).
    listen_on: a numeric address; by default all IPv4 addresses.
    """
    # Every file and directory that this process creates is for its owner alone from its first moment, whichever part of
    # the broker or library creates it. A chmod afterwards would leave a moment in which others can open it.
    os.umask(0o077)
    set_up_heap()
    collect_later()
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(LogFormat())
    logging.basicConfig(level=logging.INFO, handlers=[shown])
    logging.getLogger("twisted").setLevel(logging.WARNING)
    logging.getLogger("metaq.kazoo").setLevel(logging.ERROR)  # logs each attempt to connect; the session logs enough
    globalLogBeginner.beginLoggingTo([cast(Any, STDLibLogObserver("twisted"))], redirectStandardIO=False)
    try:
        files = ConfigFiles(ini_path, filters_path)
        config = _with_options(read_config(ini_path, filters_path, listen_on), options)
        chosen = read_plugins(plugins or {})
        check_roles(chosen, config)
        config = config_for(chosen, config)
        from twisted.internet import reactor  # the import installs the reactor: only when a broker really runs

        reactor = serves_few_at_once(measures_elapsed_time(reactor), tuning.MOST_EVENTS)
        one = OneBroker(config, reactor, files=files, plugins=chosen, options=options)
        return BrokerProcess(one, reactor).run()
    except MetaqError as error:
        print(f"metaq broker: {error}", file=sys.stderr)
        return 1


class BrokerProcess:
    """The process of one broker: its limits, its signals, and the reactor that serves only this broker."""

    def __init__(self, one: OneBroker, reactor: Any) -> None:
        """reactor: Twisted's reactor of this process, which `one` uses, too."""
        self._reactor = reactor
        self._one = one
        one.on_serving = self._tell_serving
        one.on_end = reactor.stop

    def run(self) -> int:
        """Serve until the process is told to stop. Raises MetaqError if the broker cannot start."""
        max_connections = _raise_descriptor_limit()
        self._reactor.suggestThreadPoolSize(_WORKER_THREADS)
        self._one.open(
            WorkerThreads(
                partial(run_in_pool, self._reactor, self._reactor.getThreadPool()),
                DaemonThreads(self._reactor, "filters", FILTER_THREADS),
                DaemonThreads(self._reactor, "cold reads", tuning.MAX_COLD_READS),
            ),
            DiskThread(self._reactor, "journal"),
        )
        try:
            self._one.listen(max_connections)
            self._reactor.callWhenRunning(self._one.start)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._signalled)
            signal.signal(signal.SIGHUP, self._reload_signalled)
            keep_for_good()
            self._reactor.run(installSignalHandlers=False)
        finally:
            self._one.close()
        if self._one.failure is not None:
            raise self._one.failure
        _log.info("stopped: %s", self._one.what_is_unsynced())
        return 0

    def _tell_serving(self) -> None:
        broker = self._one.broker
        print(
            f"metaq broker {broker.config.broker_id} serving {broker.url} (data {', '.join(broker.store.data_paths)})",
            flush=True,
        )

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._reactor.callFromThread(self._one.stop)

    def _reload_signalled(self, number: int, frame: FrameType | None) -> None:
        self._reactor.callFromThread(self._one.reload)


class OneBroker:
    """Creates and runs all objects of one broker. Call `open`, `listen` and `start`; after a `stop` and its `on_end`,
    call `close`. While the reactor runs, all methods are called on its thread.
    """

    def __init__(
        self,
        config: BrokerConfig,
        reactor: Any,
        *,
        files: ConfigFiles | None = None,
        plugins: Plugins = NO_PLUGINS,
        options: BrokerOptions = BrokerOptions(),  # noqa: B008
        rng: random.Random | None = None,
        store_files: Files = REAL_FILES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """reactor: Twisted's reactor for time, descriptors and threads. files: the paths of the files that `config` was
        read from; a reload reads these files again.

        rng: used to choose a partition for each put that does not name one. store_files: the store's access to the file
        system. clock: the wall clock; returns seconds since 1970.
        """
        self._config = config
        self._files = files
        self._plugins = plugins
        self._options = options
        self._reactor = reactor
        self._rng = rng
        self._store_files = store_files
        self._clock = clock
        self._closing = ExitStack()
        self._grace_seconds = config.zookeeper.sync_time_ms / 1000
        self.failure: BaseException | None = None
        """Why the broker could not start, or None."""
        self.on_serving: Callable[[], object] = lambda: None
        """Called when the broker serves clients and is registered in ZooKeeper."""
        self.on_end: Callable[[], object] = lambda: None
        """Called when the broker has left ZooKeeper and has closed its port and its connections."""
        self._stopping = False
        self._hurried = False  # set by a second signal
        self._hurry: Deferred[None] | None = None  # a second signal cancels it
        self._registration: Registration | None = None
        self._serving = False
        self._audit_timers: list[tuple[float, Callable[[], object]]] = []
        self._opened = ""  # the start's report on the data directories

    def open(self, threads: WorkerThreads, journal: RunInThread) -> None:
        """Open the data directories, and create the broker's objects. journal: runs only the journal's work. Raises
        MetaqError; after an error everything is closed again.
        """
        with ExitStack() as opened:
            self._open(threads, journal, opened)
            self._closing = opened.pop_all()

    def _open(self, threads: WorkerThreads, journal: RunInThread, opened: ExitStack) -> None:
        security = None if self._options.security is None else _security(self._options.security)
        self._certificates = None if security is None else _certificates(security)
        if security is not None:
            load_scramp()
        audit_file = None if security is None or security.audit is None else AuditFile(security.audit)
        if audit_file is not None:
            opened.callback(audit_file.close)
        filters = load_filters(self._config)
        store = Store(
            self._config.data_paths,
            self._store_config,
            self._data_path,
            kinds=KINDS,
            run_in_thread=threads.disk,
            run_journal=journal,
            files=self._store_files,
            clock=self._clock,
            disk_reserve=self._options.disk_reserve,
        )
        started = time.monotonic()
        store.open()
        opened.callback(store.close)
        self._opened = _what_opened(store, time.monotonic() - started)
        for warning in map(what_others_may, store.data_paths):
            if warning is not None:
                _log.warning("%s", warning)
        if self._plugins.samsa is not None and self._plugins.samsa.recover_offset:
            from .replication.recover_offsets import recover_offsets  # imports kazoo: only if configured

            recover_offsets(self._config, store, self._zookeeper_tls, self._zookeeper_login)
        self.broker = Broker(
            self._config,
            store,
            reactor=self._reactor,
            threads=threads,
            clock=self._clock,
            rng=self._rng,
            on_topic=self._topic_appeared,
            filters=filters,
            options=self._options,
            dialer=Dialer(self._reactor, None if self._certificates is None else self._certificates.to_brokers),
        )
        self.broker.certificates = self._certificates
        if audit_file is not None:
            self._audit_to(audit_file)
        self._roles = Roles(self._plugins, self.broker, self._config, self._files)
        self.broker.check_sections(self._config, self._files.ini if self._files is not None else "server.ini")
        if self._config.node is None:  # otherwise the node opens it when it leads
            self.broker.transactions.open()
        for kept in self.broker.partitions.kept():
            _log.warning("%s", kept)
        opened.callback(self._close_broker)

    def close(self) -> None:
        """Sync and close the data directories. Blocks until all data are on the disk."""
        self._closing.close()

    def _close_broker(self) -> None:
        if self.broker.access.audit is not None:
            self.broker.access.audit.close()
        self.broker.transactions.close()

    def what_is_unsynced(self) -> str:
        """Return a text for the log that says, after `close`, whether all partitions are synced."""
        unsynced = sum(log.synced_end < log.end_offset for log in self.broker.store.logs())
        return f"partitions not synced: {unsynced}" if unsynced else "all partitions are synced"

    def _audit_to(self, file: AuditFile) -> None:
        audit = self.broker.access.audit = Audit(file.write, self.broker.now_ms, self._reactor.seconds)
        account = self.broker.account
        account.users.on_refused = lambda user, quota, why: audit.quota_refused(user, account.asker, quota, why)
        self._audit_timers = [(_AUDIT_SECONDS, audit.tick), (_AUDIT_SECONDS, file.tick)]

    def listen(self, max_connections: int) -> None:
        """Listen on the broker's port. max_connections: the most connections of clients. Raises ConfigError."""
        self._offer_reload()
        self._gate = gate = make_gate(self.broker)
        self.broker.access.changed = self._access_changed
        self._access_changed()
        if self._config.node is None and not self._roles.registers:
            self.broker.access.see(None)  # without ZooKeeper there are no users
        main = None if self._certificates is None else self._certificates.main_rules
        self.sessions = SessionFactory(self.broker, gate, max_connections, http=self._has_http, main=main)
        if self._roles.registers and self._roles.slave_id is None:  # before listening: see Partitions.use_moves
            self.broker.partitions.use_moves(MoveTable(self._config.broker_id, known=False))
        self._ports = [listen(self.broker, self.sessions, self._reactor, self._certificates)]
        warn_if_open(self.broker, self._certificates)
        if self._certificates is not None:
            self._ports += listen_further(self.broker, self.sessions, self._reactor, self._certificates)
        self._http = self._open_http(gate)

    @property
    def _zookeeper_tls(self) -> CertificateFiles | None:
        return None if self._certificates is None else self._certificates.zookeeper

    @property
    def _zookeeper_login(self) -> ZooKeeperLogin | None:
        return None if self._certificates is None else self._certificates.zookeeper_login

    @property
    def _has_http(self) -> bool:
        return self._config.dashboard_port is not None or self._plugins.gateway_port is not None

    def _open_http(self, gate: Gate) -> HttpPorts | None:
        if not self._has_http:
            return None
        dashboard_port, gateway_port = self._config.dashboard_port, self._plugins.gateway_port
        from .http.ports import HttpPorts  # imports twisted.web: only if configured

        return HttpPorts(
            self.broker,
            gate,
            self._reactor,
            dashboard_port=dashboard_port,
            gateway_port=gateway_port,
            interface=self._config.listen,
            dashboard_interface=self._config.listen if self._options.admin_from == "any" else "127.0.0.1",
            names=self._options.http_names,
            certificates=self._certificates,
            session=lambda: None if self._registration is None else self._registration.session,
        )

    # --- what the store asks ------------------------------------------------------------------------------------------

    def _topic(self, topic: str) -> TopicConfig:
        return self._config.topic(topic) or self._config.system

    def _store_config(self, topic: str) -> TopicStoreConfig:
        config = self._topic(topic)
        return TopicStoreConfig(
            self._config.max_segment_size,
            0 if config.has_group_commit else config.unflush_threshold,
            config.unflush_interval_ms,
            config.delete_policy,
        )

    def _data_path(self, topic: str) -> str:
        return self._topic(topic).data_path

    # --- starting -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the broker's timers, and register it in ZooKeeper; `on_serving` is called when this is done."""
        store = self.broker.store
        self._retention = ScheduledCalls(self._schedules(), self._apply_retention, self._reactor, self._local_time)
        timers: list[tuple[float, Callable[[], object], str]] = [
            (_TICK_SECONDS, store.tick, "the store's timer"),
            (_TICK_SECONDS, self.broker.transactions.tick, "the transactions' timer"),
            (_SPACE_CHECK_SECONDS, store.space.look, "the check of free space"),
            (_SIZE_CHECK_SECONDS, self._apply_size_limits, "the retention by size"),
            (_HEAP_SECONDS, partial(self.broker.in_thread, give_back_spare), "the return of free memory"),
        ]
        if self._certificates is not None:
            timers.append((_CERTIFICATE_SECONDS, self._certificates.look, "the look at certificates"))
        timers += [(_MEMORY_SECONDS, each.tick, f"the memory of {each.name}") for each in self.broker.memories]
        timers += [(seconds, tick, "the audit log") for seconds, tick in self._audit_timers]
        self._timers = [repeat(seconds, function, self._reactor, name) for seconds, function, name in timers]
        ensureDeferred(self._register()).addErrback(self._fail)

    async def _register(self) -> None:
        await self._roles.before_registration()
        if self._config.node is not None:
            await self._join_set(self._config.node)
        elif self._roles.registers:
            from .partitions.registration import Registration  # kazoo: only where there is a ZooKeeper

            registration = Registration(
                self._config,
                self._reactor,
                self._roles.slave_id,
                tls=self._zookeeper_tls,
                listeners=self._published_listeners(),
                login=self._zookeeper_login,
            )
            self._registration, self.broker.registered = registration, lambda: registration.registered
            await registration.connect()
            self._watch_access(registration.session)
            if self._roles.slave_id is None:
                moves = self._make_moves(registration.session, registration)
                await moves.read()
            await registration.start(self.broker.port, self.broker.partitions.served_topics())
            if self.broker.moves is not None:
                self.broker.moves.start()
        self._roles.start(self._registration)
        if not self._stopping:
            self._serving = True
            self.on_serving()
            _log.info("%s", self._opened)

    def _make_moves(self, session: ZkSession, registration: Registration) -> BrokerMoves:
        from .moving.moves import BrokerMoves  # kazoo: only where there is a ZooKeeper

        moves = self.broker.moves = BrokerMoves(self.broker, session, registration)
        return moves

    async def _join_set(self, node: str) -> None:
        """Join the broker set, and take part in its elections. This node registers its topics in ZooKeeper only while
        it is the leader.
        """
        from metaq.coordination.session.zk_session import ZkSession

        from .partitions.registration import Registration
        from .sets.node import SetMember
        from .sets.status import SetReport

        zookeeper = self._config.zookeeper
        seconds = zookeeper.session_timeout_ms / 1000
        session = ZkSession(
            zookeeper.connect, zookeeper.root, seconds, tls=self._zookeeper_tls, login=self._zookeeper_login
        )
        registration = Registration(
            self._config, self._reactor, elected_on=session, listeners=self._published_listeners()
        )
        self._registration, self.broker.registered = registration, lambda: registration.registered
        moves = self._make_moves(session, registration)
        member = SetMember(
            self.broker, node, self._config.zone, session, registration, self._role_changed, before_serving=moves.read
        )
        self.broker.member = member
        self.broker.set_report = self.broker.replication = SetReport(self.broker, member)
        self._role_changed()
        await member.start(zookeeper.connection_timeout_ms / 1000)
        self._watch_access(session)
        self.broker.set_report.start()

    def _published_listeners(self) -> list[ListenerAddress]:
        """Return where clients find the listeners of this broker."""
        if self._certificates is None:
            return []
        host, plain = self._config.host, self._certificates.plain
        addresses = [each.address(host, plain) for each in self.broker.listeners.values()]
        return [each for each in addresses if each is not None]

    def _role_changed(self) -> None:
        member = self.broker.member
        assert member is not None
        serves = member.refusal() is None
        assert self.broker.moves is not None
        if serves:
            self.broker.moves.start()
        else:
            self.broker.moves.stop()
        self._gate.check = None if serves else member.check
        self._gate.check_pull = None if serves else member.check_pull

    def _watch_access(self, session: ZkSession) -> None:
        """Read the users and grants in ZooKeeper now, and again after each change."""
        from metaq.coordination.security.permissions_view import PermissionsView

        see = self.broker.access.see
        PermissionsView(session, lambda read: self._reactor.callFromThread(see, read)).start()

    def _access_changed(self) -> None:
        access = self.broker.access
        self._gate.guard = None if access.is_open else access
        if access.permissions is not None:
            self.broker.account.see(access.permissions)
        self.broker.parked.wake_all()  # whoever waits may not be permitted to wait any more

    def _fail(self, failure: Failure) -> None:
        self.failure = failure.value
        self.stop()

    def _topic_appeared(self, name: str, config: TopicConfig) -> None:
        if self._registration is not None and self._roles.slave_id is None:  # a slave offers its master's topics
            self._registration.add_topic(name, config)

    def _apply_retention(self, schedule: Schedule) -> None:
        self._removed(self.broker.store.apply_retention(partial(self._is_due, schedule)), "age")

    def _apply_size_limits(self) -> None:
        self._removed(self.broker.store.apply_size_limits(), "size")

    def _removed(self, removed: Sequence[RemovedSegment], cause: str) -> None:
        _log_removed(removed, cause)
        if self.broker.member is not None and self.broker.member.leader is not None:
            self.broker.member.leader.dropped({(each.topic, each.partition) for each in removed})

    def _is_due(self, schedule: Schedule, topic: str) -> bool:
        return self._topic(topic).delete_when == schedule

    # --- reading server.ini again -------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Read the configuration files again. If this fails, the log says why, and no setting changes."""
        self.broker.reload_config().addErrback(_log_failed_reload)

    def _offer_reload(self) -> None:
        if self._files is not None:
            read = partial(self.broker.in_thread, self._files.read)
            self.broker.reloader = Reloader(self._files.ini, self.broker, read, self._use, self._publish)

    def _use(self, config: BrokerConfig) -> None:
        self._config = config
        self._retention.replace(self._schedules())

    def _publish(self, config: BrokerConfig, topics: Sequence[str]) -> Deferred[list[str]]:
        if self._registration is None:
            return succeed([])
        served = self.broker.partitions.served_topics()
        return self._registration.update(config.checksum, {name: served[name] for name in topics})

    def _schedules(self) -> list[Schedule]:
        return [self._config.system.delete_when, *(topic.delete_when for topic in self._config.topics.values())]

    def _local_time(self) -> datetime:
        return datetime.fromtimestamp(self._clock())

    # --- stopping -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop serving; `on_end` is called at the end. A second call ends the waiting time for clients at once."""
        if self._stopping:
            self._hurried = True  # even if there is nothing to cancel yet
            if self._hurry is not None:
                self._hurry.cancel()
            return
        self._stopping = True
        if self.failure is None:
            _log.info("stopping")
        ensureDeferred(self._leave()).addErrback(self._log_failed_stop).addBoth(lambda _: self.on_end())

    def leave_at_once(self) -> None:
        """Close the ZooKeeper session, if there is one, without anything else that `stop` does. Not called on the
        reactor's thread, because it waits for ZooKeeper.
        """
        if self._registration is not None:
            self._registration.end()

    def vanish(self) -> None:
        """Close the broker's ports and connections at once, without anything else that `stop` does."""
        self.sessions.abort_all("killed")
        for port in self._ports:
            port.stopListening()  # type: ignore[no-untyped-call]
        if self._http is not None:
            ensureDeferred(self._http.close())

    async def _leave(self) -> None:
        """Stop serving: unregister the broker from ZooKeeper, serve clients for zkSyncTimeMs milliseconds after that,
        then close the port and the connections.
        """
        await self._roles.stop()
        if self.broker.moves is not None:
            self.broker.moves.stop()
        if self.broker.member is not None:
            await self.broker.member.stop()
        elif self._registration is not None:
            await self._registration.stop_serving()
            if self._serving and not self._hurried:
                _log.info("unregistered: serving %g s longer, so that clients can move", self._grace_seconds)
                await self._pause(self._grace_seconds)
        for port in self._ports:
            await port.stopListening()  # type: ignore[no-untyped-call]
        if self._http is not None:
            await self._http.close()
        self.sessions.close_all()
        deadline = self._reactor.seconds() + _CLOSE_SECONDS
        while self.broker.connections and self._reactor.seconds() < deadline:
            await self._pause(0.02)
        self._roles.end()
        self._retention.stop()
        if self.broker.set_report is not None:
            self.broker.set_report.stop()
        for timer in self._timers:
            timer.stop()
        if self.broker.member is not None:
            await self.broker.member.close()
        elif self._registration is not None:
            await self._registration.close()

    async def _pause(self, seconds: float) -> None:
        self._hurry = deferLater(self._reactor, seconds)
        await self._hurry.addErrback(lambda _: None)  # a second signal has cancelled the pause
        self._hurry = None

    @staticmethod
    def _log_failed_stop(failure: Failure) -> None:
        _log.error("the stop did not complete: %s", failure.getErrorMessage())


def _with_options(config: BrokerConfig, options: BrokerOptions) -> BrokerConfig:
    """Return a copy of the configuration in which the command's options `node` and `zone`, if they are given, replace
    the values from the section [replication].
    """
    node = config.node if options.node is None else options.node
    return replace(config, node=node, zone=config.zone if options.zone is None else options.zone)


def _what_opened(store: Store, seconds: float) -> str:
    """Return a log line that says how many partitions and bytes the start found in the data directories, and how many
    bytes it checked.
    """
    checked = sum(report.checked_bytes for report in store.reports)
    size = sum(log.end_offset - log.first_offset for log in store.logs())
    state = f"{checked} bytes that no checkpoint covers were checked" if checked else "nothing had to be checked"
    found = f"partitions: {len(store.reports)}, bytes: {size}"
    return f"opened the data directories in {seconds:.1f} s ({found}): {state}"


def _log_removed(segments: Sequence[RemovedSegment], why: str) -> None:
    for segment in segments:
        _log.info(
            "retention by %s: removed from %s-%d the segment at %d",
            why,
            segment.topic,
            segment.partition,
            segment.first_offset,
        )


def _log_failed_reload(failure: Failure) -> None:
    failure.trap(MetaqError)  # type: ignore[no-untyped-call]  # the reloader has logged it


def _raise_descriptor_limit() -> int:
    """Raise this process's limit of descriptors to the system's maximum. Return how many descriptors connections may
    use. The other descriptors are reserved: half of the limit for the files of the store, and a few for other uses.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 65_536 if hard == resource.RLIM_INFINITY else max(16, hard // 2 - _DESCRIPTORS_FOR_OTHERS)


def _security(path: str) -> Security:
    """Read security.ini. Raises ConfigError."""
    from .configuration.security_ini import read_security  # imports ssl: only if configured

    return read_security(path)


def _certificates(security: Security) -> Certificates:
    """Return the certificates that security.ini names. Raises ConfigError."""
    from .network.tls import Certificates  # imports ssl: only if configured

    return Certificates(security)
