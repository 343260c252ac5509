"""A ZooKeeper in this process, for tests: it starts in milliseconds."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from metaq.coordination.ports import ready_port
from metaq.coordination.records import host_and_port
from metaq.coordination.standalone.server import ServerSettings, StandaloneServer

from .driver import ServerDriver, moment
from .reactor_thread import call, shared_reactor

__all__ = ["InProcessZooKeeper"]


class InProcessZooKeeper:
    """start() it, use connect_string, stop() it. One thread at a time; what serves is a daemon thread of its own, one
    for all servers of the process.

    data_dir: None keeps nothing, not even over stop() and start(). The other arguments are as EmbeddedZooKeeper's.
    """

    def __init__(
        self,
        data_dir: Path | str | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        tick_time_ms: int = 500,
        max_session_timeout_ms: int = 60_000,
    ) -> None:
        self.data_dir = None if data_dir is None else Path(data_dir)
        self.port = port
        self.host = host
        self._tick_time_ms = tick_time_ms
        self._max_session_timeout_ms = max_session_timeout_ms
        self._driver: ServerDriver | None = None
        self._reactor: Any = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def connect_string(self) -> str:
        """`host:port`; the port is known after start()."""
        return host_and_port(self.host, self.port)

    @property
    def running(self) -> bool:
        """Whether it serves."""
        return self._driver is not None

    @property
    def pid(self) -> int | None:
        """Of this process, once it was started."""
        return os.getpid() if self._driver else None

    def start(self, timeout: float = 30.0) -> None:
        """Serve. Raises ConfigError (port in use)."""
        self.port = ready_port("port", self.port, self.host)
        self._reactor = shared_reactor()
        settings = ServerSettings(
            secrets.token_bytes(16),
            self._tick_time_ms,
            self._max_session_timeout_ms,
            keeps=False,
            port=self.port,
        )

        def listen() -> ServerDriver:
            driver = ServerDriver(StandaloneServer(settings, moment()), self._reactor)
            driver.listen(self.host, self.port)
            return driver

        self._driver = call(self._reactor, listen)

    def stop(self, timeout: float = 10.0) -> None:
        """Cut all connections and stop serving. Does nothing if it does not serve."""
        driver, self._driver = self._driver, None
        if driver is not None:
            call(self._reactor, driver.close)
