"""A ZooKeeper server for tests that runs in this process. The server starts within milliseconds."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from metaq.coordination.servers.local_zookeeper import STANDALONE_DIRECTORY, LocalZooKeeper
from metaq.coordination.servers.server_tls import ServerTls
from metaq.protocol.errors import ConfigError

from .driver import ServerDriver
from .opening import SecurePlace, ServerPlace, begin, open_server
from .reactor_thread import call, shared_reactor

__all__ = ["InProcessZooKeeper"]


class InProcessZooKeeper(LocalZooKeeper):
    """A ZooKeeper server inside this process. To use it, call start(), connect to connect_string, and call stop(). At
    most one thread at a time may use this object. A single daemon thread runs all such servers of the process. The
    servers write their messages to Python's logging instead of a log file.

    data_dir: the directory of the server's files. If it is None, the data are only in memory and are lost at each
    stop(). tls, secure_port: as in LocalZooKeeper.
    """

    def __init__(
        self,
        data_dir: Path | str | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        tick_time_ms: int = 500,
        max_session_timeout_ms: int = 60_000,
        tls: ServerTls | None = None,
        secure_port: int | None = None,
    ) -> None:
        super().__init__(
            *(data_dir or "", port, host),
            tick_time_ms=tick_time_ms,
            max_session_timeout_ms=max_session_timeout_ms,
            tls=tls,
            secure_port=secure_port,
        )
        self._keeps = data_dir is not None
        self._driver: ServerDriver | None = None
        self._stopped = threading.Event()
        self._reactor: Any = None

    @property
    def running(self) -> bool:
        """Whether the server is running. The server stops by itself if it cannot write its log."""
        return self._driver is not None and self._driver.failure is None

    @property
    def pid(self) -> int | None:
        """The process id of this process from `start` until `stop`. It is None before and afterwards."""
        return os.getpid() if self._driver else None

    def start(self, timeout: float = 30.0) -> None:
        """Start the server. timeout: ignored, because the start is immediate.

        Raises ConfigError if the port is in use, or if the data directory is not writable or belongs to Apache's
        ZooKeeper. Raises DirectoryInUse if another server uses the data directory, StoreError if the files in it are
        damaged.
        """
        directory = None
        if self._keeps:
            self._take_directory()
            directory = self.data_dir / STANDALONE_DIRECTORY
        try:
            if self._keeps:
                self._refuse_apache()
            self._ready_ports()
            self._reactor = shared_reactor()
            place = self._place(directory)
            self._stopped.clear()
            self._driver = call(self._reactor, lambda: _listen(place, self._reactor, self._stopped))
        except OSError as error:
            self.stop()
            raise ConfigError("data_dir", self.data_dir, f"{error}: choose a directory that can be written") from error
        except BaseException:
            self.stop()
            raise

    def _place(self, directory: Path | None) -> ServerPlace:
        secure, plain = None, self.port if self.tls is None or self.secure_port is not None else None
        if self.tls is not None:
            secure = SecurePlace(self.port if self.secure_port is None else self.secure_port, self.tls)
        return ServerPlace(directory, self.host, plain, self._tick_time_ms, self._max_session_timeout_ms, secure)

    def stop(self, timeout: float = 10.0) -> None:
        """Abort all connections and stop the server. Do nothing if it is not running. timeout: ignored."""
        driver, self._driver = self._driver, None
        if driver is not None:
            call(self._reactor, driver.close)
            self._stopped.wait()  # even if it has stopped by itself, it may listen a moment longer
        self._leave_directory()


def _listen(place: ServerPlace, reactor: Any, stopped: threading.Event) -> ServerDriver:
    driver = open_server(place, reactor)
    driver.stopped = stopped.set
    try:
        begin(driver, place, reactor)
    except ConfigError:
        driver.close()
        raise
    return driver
