"""Open a standalone ZooKeeper server: read its files, and create the driver that can then listen on a port."""

from __future__ import annotations

import os
import platform
import socket
import sys
from pathlib import Path
from typing import Any, NamedTuple

from metaq.coordination.standalone.jute import Malformed
from metaq.coordination.standalone.server import ServerSettings, StandaloneServer
from metaq.protocol.errors import StoreError

from ..store.files import REAL_FILES, Files
from .driver import ServerDriver, moment
from .log_files import LogFiles

__all__ = ["ServerPlace", "open_server"]


class ServerPlace(NamedTuple):
    """The settings of a server. directory: where its files are. None means that the server keeps its data in memory
    only.
    """

    directory: Path | None
    host: str
    port: int
    tick_time_ms: int
    max_session_timeout_ms: int


def open_server(place: ServerPlace, reactor: Any, files: Files = REAL_FILES) -> ServerDriver:
    """Read the server's files, and return a driver for the server. Call its method `listen` next. Raises OSError,
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
        port=place.port,
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
