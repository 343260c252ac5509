"""Open a standalone ZooKeeper server: read its files, create its driver, and let the driver listen on the ports."""

from __future__ import annotations

import os
import platform
import socket
import sys
from pathlib import Path
from typing import Any, NamedTuple

from metaq.coordination.servers.server_tls import ServerTls
from metaq.coordination.standalone.jute import Malformed
from metaq.coordination.standalone.server import ServerSettings, StandaloneServer
from metaq.protocol.errors import StoreError

from ..network.transport import connection_class
from ..store.files import REAL_FILES, Files
from .driver import ServerDriver, moment
from .log_files import LogFiles
from .secure_port import secure_connection_class

__all__ = ["SecurePlace", "ServerPlace", "begin", "open_server"]


class SecurePlace(NamedTuple):
    """The secure port of a server, and its certificate."""

    port: int
    tls: ServerTls


class ServerPlace(NamedTuple):
    """The settings of a server. directory: where its files are. None means that the server keeps its data in memory
    only. port: the port without TLS; None means that the server has none.
    """

    directory: Path | None
    host: str
    port: int | None
    tick_time_ms: int
    max_session_timeout_ms: int
    secure: SecurePlace | None = None


def open_server(place: ServerPlace, reactor: Any, files: Files = REAL_FILES) -> ServerDriver:
    """Read the server's files, and return a driver for the server. Call `begin` with it next. Raises OSError,
    StoreError.
    """
    log = None
    if place.directory is not None:
        log = LogFiles(files, str(place.directory))
        log.load()
    settings = ServerSettings(
        place.tick_time_ms,
        place.max_session_timeout_ms,
        keeps=log is not None,
        port=place.port or 0,
        secure_port=0 if place.secure is None else place.secure.port,
        data_dir=str(place.directory or ""),
        environment=_environment(),
    )
    now = moment()
    server = StandaloneServer(settings, now)
    if log is not None:
        try:
            server.restore(log.take_restored(), log.zxid, now)
        except Malformed as error:
            raise StoreError(f"{place.directory}: {error}: restore it from a copy") from error
    return ServerDriver(server, reactor, log)


def begin(driver: ServerDriver, place: ServerPlace, reactor: Any) -> None:
    """Let the driver accept connections at the ports of `place`. Raises ConfigError if a port is in use, or if the
    certificate of the secure port cannot be used.
    """
    if place.port is not None:
        driver.listen(place.host, place.port, connection_class())
    if place.secure is not None:
        driver.listen(place.host, place.secure.port, secure_connection_class(place.secure.tls, reactor))


def _environment() -> tuple[tuple[str, str], ...]:
    return (
        ("host.name", socket.gethostname()),
        ("python.version", platform.python_version()),
        ("python.executable", sys.executable),
        ("os.name", platform.system()),
        ("os.arch", platform.machine()),
        ("os.version", platform.release()),
        ("user.dir", os.getcwd()),
    )
