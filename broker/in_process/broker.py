"""A real broker inside another program's process, for tests. All brokers of the process run on the thread of the
standalone ZooKeeper's reactor (standalone/reactor_thread.py).

A broker is the same as in a process of its own, except for what belongs to the process: it handles no signals, leaves
the heap, the garbage collector, the limits and the logging of the process alone, and does not sync its files.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy.ma  # noqa: F401 - else the first np.unique loads it on the reactor thread
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from metaq.protocol.delays import due_ms
from metaq.protocol.errors import ConfigError, CoordinationError

from ..assembly.broker import WorkerThreads
from ..configuration.server_ini import read_config
from ..configuration.settings import BrokerOptions
from ..configuration.sources import ConfigFiles
from ..main import OneBroker
from ..runtime.threads import DaemonThreads, DiskThread
from ..standalone.reactor_thread import call, shared_reactor
from .files import UnsyncedFiles
from .reactor import OwnReactor

__all__ = ["BrokerSettings", "InProcessBroker"]

T = TypeVar("T")

_MAX_CONNECTIONS = 1024
_WORKER_THREADS = 4
_START_SECONDS = 30.0
_FAILURES = {
    "disk full": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "I/O error": OSError(errno.EIO, os.strerror(errno.EIO)),
}

_NO_TOPICS = {"no-topics-yet": {"acceptPublish": "false", "acceptSubscribe": "false"}}
"""server.ini must have a topic. This one is not registered in ZooKeeper."""

BrokerSettings = Mapping[str, object]
"""Keys of server.ini and their values."""


class InProcessBroker:
    """One broker. A test calls the methods on its own threads, one call at a time; never on the reactor's thread."""

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        broker_id: int = 0,
        *,
        settings: BrokerSettings | None = None,
        topics: Mapping[str, BrokerSettings] | None = None,
    ) -> None:
        """directory: for server.ini and the data; the broker creates it. zookeeper: ZooKeeper's connect string.
        settings: keys of [system] that differ from those of `_ini`. topics: for each topic the keys of its section.
        """
        self.broker_id = broker_id
        self.directory = directory
        self._zookeeper = zookeeper
        self._settings = dict(settings or {})
        self._topics = {name: dict(keys) for name, keys in (topics or {}).items()}
        self._holder = socket.socket()  # bound, never listening: keeps the port while the broker is down
        self._holder.bind(("127.0.0.1", 0))
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port: int = self._holder.getsockname()[1]
        self._ahead = 0.0
        self._life: _Life | None = None

    @property
    def address(self) -> str:
        """The broker's address, `host:port`."""
        return f"127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the broker runs, even if it is paused."""
        return self._life is not None

    @property
    def connections(self) -> int:
        """The number of connections of clients that are open now."""
        life = self._running("connections")
        return call(life.reactor, lambda: life.one.broker.connections)

    @property
    def waiting_delayed(self) -> int:
        """The number of delayed messages that the broker has not delivered yet; 0 if it does not run."""
        life = self._life
        return 0 if life is None else call(life.reactor, lambda: len(life.one.broker.delays))

    @property
    def next_delayed(self) -> timedelta | None:
        """How long it takes, by the broker's clock, until the next delayed message is due: 0 if one is due now. None if
        no message waits.
        """
        life = self._life
        if life is None:
            return None
        firsts = call(life.reactor, lambda: [each.table.first for each in life.one.broker.delays.contents()])
        dues = [due_ms(first) for first in firsts if first is not None]
        return timedelta(seconds=max(0.0, min(dues) / 1000 - life.now())) if dues else None

    def start(self) -> None:
        """Start the broker, or start it again with the same data and the same port after `stop` or `kill`. Do nothing
        if it runs. Returns when the broker is registered in ZooKeeper. Raises MetaqError if the broker cannot start.
        """
        if self._life is None:
            self.begin()
            self.await_serving()

    def begin(self) -> None:
        """Begin to start the broker, which must not run. `await_serving` waits until it is registered. Raises
        MetaqError if the broker cannot start.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "server.ini").write_text(self._ini())
        life = _Life(str(self.directory / "server.ini"), self._ahead)
        try:
            call(life.reactor, life.begin)
        except BaseException:
            life.end()
            raise
        self._life = life

    def await_serving(self) -> None:
        """Wait until the broker is registered in ZooKeeper. Raises MetaqError if it cannot start."""
        try:
            self._running("await_serving").await_serving()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop the broker as SIGTERM does: it leaves ZooKeeper and completes its files. Do nothing if it does not
        run.
        """
        life, self._life = self._life, None
        if life is not None:
            life.stop()

    def kill(self) -> None:
        """End the broker as SIGKILL does: its memory is lost, its files stay as they are, its connections are reset.
        Its ZooKeeper session ends at once; a real one would end after its timeout. Do nothing if it does not run.
        """
        life, self._life = self._life, None
        if life is not None:
            life.kill()

    def close(self) -> None:
        """Stop the broker, and give its port back."""
        self.stop()
        self._holder.close()

    def advance(self, ahead: timedelta) -> None:
        """Move the broker's clock into the future, and do what is due then. Also possible while it does not run."""
        self._ahead += ahead.total_seconds()
        if self._life is not None:
            self._life.advance(ahead.total_seconds())

    def pause(self) -> None:
        """Let the broker answer nothing until `resume`. Its connections and its ZooKeeper session stay."""
        life = self._running("pause")
        call(life.reactor, life.own.pause)

    def resume(self) -> None:
        """Let the broker go on after `pause`."""
        life = self._running("resume")
        call(life.reactor, life.own.resume)

    def drop_connections(self) -> None:
        """Reset all connections of clients. They can connect again at once."""
        life = self._running("drop_connections")
        call(life.reactor, life.drop_connections)

    def fail_writes(self, reason: str = "disk full") -> None:
        """Let every write to the broker's files fail, until `allow_writes`. reason: "disk full" or "I/O error"."""
        if reason not in _FAILURES:
            raise ConfigError("reason", reason, f"choose one of {', '.join(map(repr, _FAILURES))}")
        self._running("fail_writes").files.failure = _FAILURES[reason]

    def allow_writes(self) -> None:
        """Let the broker write its files again after `fail_writes`."""
        self._running("allow_writes").files.failure = None

    def add_topic(self, name: str, settings: BrokerSettings) -> None:
        """Add a topic's section to server.ini; a running broker loads it. Returns when clients can find the topic in
        ZooKeeper. Raises ConfigError, CoordinationError.
        """
        self._topics[name] = dict(settings)
        life = self._life
        if life is not None:
            (self.directory / "server.ini").write_text(self._ini())
            report = life.result(lambda: life.one.broker.reload_config())
            if report.warnings:
                raise CoordinationError("; ".join(report.warnings))

    def _running(self, what: str) -> _Life:
        if self._life is None:
            raise ConfigError(what, f"broker {self.broker_id}", "does not run: call start() first")
        return self._life

    def _ini(self) -> str:
        system: dict[str, object] = {
            "brokerId": self.broker_id,
            "hostName": "127.0.0.1",
            "serverPort": self.port,
            "numPartitions": 1,
            "dataPath": self.directory / "data",
            "unflushThreshold": 1000,
            "unflushInterval": 10000,
            "maxSegmentSize": 16 << 20,
            "maxTransferSize": 1 << 20,
        }
        zookeeper: dict[str, object] = {
            "zk.zkConnect": self._zookeeper,
            "zk.zkSessionTimeoutMs": 30_000,
            "zk.zkConnectionTimeoutMs": int(_START_SECONDS * 1000),
            "zk.zkSyncTimeMs": 0,  # when it stops, clients get no time to move
        }
        sections: dict[str, BrokerSettings] = {"system": system | self._settings, "zookeeper": zookeeper}
        topics = self._topics or _NO_TOPICS
        sections |= {f"topic={name}": keys for name, keys in topics.items()}
        return "".join(
            f"[{section}]\n" + "".join(f"{key}={value}\n" for key, value in keys.items())
            for section, keys in sections.items()
        )


class _Life:
    """A broker from one start to its end."""

    def __init__(self, ini: str, ahead: float) -> None:
        self.reactor = shared_reactor()
        self.own = own = OwnReactor(self.reactor)
        own.ahead = ahead
        self.files = UnsyncedFiles(self.now, lambda: own.ahead > 0.0)
        files = ConfigFiles(ini)
        self.one = OneBroker(
            read_config(ini),
            own,
            files=files,
            options=BrokerOptions(disk_reserve=0),
            store_files=self.files,
            clock=self.now,
        )
        self._pools = [
            DaemonThreads(own, "disk", _WORKER_THREADS),
            DaemonThreads(own, "filters", 1),
            DaemonThreads(own, "cold reads", 1),
        ]
        self._journal = DiskThread(own, "journal")
        self._serving = threading.Event()
        self._ended = threading.Event()

    def now(self) -> float:
        return time.time() + self.own.ahead

    def begin(self) -> None:
        """Open the data, listen, and begin to register in ZooKeeper. Called on the reactor's thread."""
        self.one.on_serving = self._serving.set
        self.one.on_end = self._has_ended
        disk, filters, cold = self._pools
        self.one.open(WorkerThreads(disk, filters, cold), self._journal)
        try:
            self.one.listen(_MAX_CONNECTIONS)
        except BaseException:
            self.one.close()
            raise
        self.one.start()

    def _has_ended(self) -> None:
        self._ended.set()
        self._serving.set()

    def await_serving(self) -> None:
        if not self._serving.wait(_START_SECONDS):
            raise CoordinationError(f"the broker has not registered in ZooKeeper within {_START_SECONDS:g} s")
        if self.one.failure is not None:
            raise self.one.failure

    def stop(self) -> None:
        def begin() -> None:
            self.own.resume()
            if not self._ended.is_set():
                self.one.stop()

        call(self.reactor, begin)
        self._ended.wait()
        call(self.reactor, self.one.close)
        self.end()

    def kill(self) -> None:
        self.files.abandon()  # first: what the broker still does reaches no file
        call(self.reactor, self._cut_off)
        self.end()  # in a later iteration of the reactor: in the first one the sockets are closed
        self.one.leave_at_once()

    def _cut_off(self) -> None:
        self.own.resume()
        self.one.vanish()

    def end(self) -> None:
        """End all timers and threads of the broker."""
        call(self.reactor, self.own.end)
        self._journal.stop()
        for pool in self._pools:
            if pool.started:
                pool.stop()

    def drop_connections(self) -> None:
        self.one.sessions.abort_all("dropped by the test")

    def advance(self, seconds: float) -> None:
        def move() -> None:
            self.one.sessions.forgive(seconds)
            self.own.advance(seconds)

        call(self.reactor, move)

    def result(self, begin: Callable[[], Deferred[T]]) -> T:
        """Call a function on the reactor's thread, and wait for the result of its Deferred."""
        done = threading.Event()
        results: list[Any] = []

        def fired(result: Any) -> None:
            results.append(result)
            done.set()

        call(self.reactor, lambda: begin().addBoth(fired))
        done.wait()
        if isinstance(results[0], Failure):
            results[0].raiseException()
        found: T = results[0]
        return found
