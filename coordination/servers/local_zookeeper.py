"""Base classes for the ZooKeeper servers that metaq starts on this machine for development and tests. They manage a
server's directory and port, and start and stop the server.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from metaq.protocol.errors import ConfigError, CoordinationUnavailable, DirectoryInUse

from ..records.payloads import host_and_port
from ..runtime.home import make_private_directory
from .free_ports import ready_port
from .server_tls import ServerTls

__all__ = ["APACHE_DIRECTORY", "STANDALONE_DIRECTORY", "LocalZooKeeper", "ZooKeeperProcess", "four_letter_word"]

APACHE_DIRECTORY = "data/version-2"
"""The path, relative to `data_dir`, of the directory with the files of Apache's ZooKeeper server."""

STANDALONE_DIRECTORY = "standalone"
"""The path, relative to `data_dir`, of the directory with the files of metaq's own ZooKeeper server."""

_POLL = 0.03


class LocalZooKeeper(ABC):
    """A ZooKeeper server on this machine that can be started and stopped. Two threads must not use an object of this
    class at the same time.

    data_dir: the server's directory, created if it is missing. port: the server's port. If port is 0, the object
    chooses a free port at the first start, and uses the same port at later starts. tick_time_ms: length of a tick,
    ZooKeeper's unit of time, in milliseconds. max_session_timeout_ms: in milliseconds. Whatever session timeout a
    client requests, the server grants at least 2 ticks and at most max_session_timeout_ms.

    tls: the settings of the secure port; None means that there is none. secure_port: the secure port, chosen as `port`
    is. If it is None, `port` itself is the secure port, and there is no port without TLS.
    """

    def __init__(
        self,
        data_dir: Path | str,
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        tick_time_ms: int = 500,
        max_session_timeout_ms: int = 60_000,
        tls: ServerTls | None = None,
        secure_port: int | None = None,
    ) -> None:
        if tls is None and secure_port is not None:
            raise ConfigError("secure_port", secure_port, "name the certificate and the key of this port, too")
        self.data_dir = Path(data_dir)
        self.port = port
        self.tls = tls
        self.secure_port = secure_port
        self.host = host
        self._tick_time_ms = tick_time_ms
        self._max_session_timeout_ms = max_session_timeout_ms
        self._lock_file: IO[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def connect_string(self) -> str:
        """The connect string for clients of this server, `host:port`. If the object chooses the port itself, the
        property can be read only after start().
        """
        return host_and_port(self.host, self.port)

    @property
    def secure_string(self) -> str:
        """The connect string for clients that use TLS. The server must have a secure port."""
        return host_and_port(self.host, self.port if self.secure_port is None else self.secure_port)

    @property
    def log(self) -> Path:
        """The path of the server's log file. Only a server in a child process writes this file."""
        return self.data_dir / "zookeeper.log"

    @abstractmethod
    def start(self, timeout: float = 30.0) -> None:
        """Start the server, and return when it serves clients."""

    @abstractmethod
    def stop(self, timeout: float = 10.0) -> None:
        """Stop the server. Do nothing if it does not run."""

    def _ready_ports(self) -> None:
        """Choose the ports, and check the certificate of the secure port. Raises ConfigError if a port is in use, or if
        the certificate cannot be used.
        """
        self.port = ready_port("port", self.port, self.host)
        if self.secure_port is not None:
            self.secure_port = ready_port("secure_port", self.secure_port, self.host)
        if self.tls is not None:
            self.tls.check()

    def _take_directory(self) -> None:
        """Lock the server's directory, because two servers with the same directory would destroy each other's
        transaction log. Raises ConfigError if the directory cannot be written, and DirectoryInUse if another server has
        locked it.
        """
        try:
            make_private_directory(self.data_dir)
            lock = open(self.data_dir / "embedded.lock", "a", opener=_for_owner)  # noqa: SIM115  # until the stop
        except OSError as error:
            raise ConfigError(
                "data_dir", self.data_dir, f"{error.strerror}: choose a directory that can be written"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise DirectoryInUse(
                f"data_dir={self.data_dir}: in use by another ZooKeeper: stop it or choose another directory"
            ) from error
        self._lock_file = lock

    def _refuse_apache(self) -> None:
        """Raise ConfigError if `data_dir` contains files of Apache's ZooKeeper server. metaq's own (standalone) server
        calls this method before it uses `data_dir`.
        """
        self._refuse(APACHE_DIRECTORY, "Apache's ZooKeeper", "it: --zookeeper apache:DIR")

    def _refuse(self, directory: str, whose: str, which: str) -> None:
        """Raise ConfigError if `directory`, below `data_dir`, contains files of another kind of ZooKeeper server.
        Without this check, the server to be started would ignore these files, and start without their data.
        """
        found = self.data_dir / directory
        if found.is_dir() and any(found.iterdir()):
            remedy = f"it holds the data of {whose} ({directory}): go on with {which}, or choose another directory"
            raise ConfigError("data_dir", self.data_dir, remedy)

    def _leave_directory(self) -> None:
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None


class ZooKeeperProcess(LocalZooKeeper):
    """A ZooKeeper server in a child process. The child process ends when this process ends, on Linux even if this
    process is killed.
    """

    _process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether the server process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The pid of the server process, or None before the process is started."""
        return self._process.pid if self._process else None

    def start(self, timeout: float = 30.0) -> None:
        """Start the server, and return when it serves clients. Raises the errors of `launch` and
        `wait_until_serving`.
        """
        self.launch()
        self.wait_until_serving(timeout)

    @abstractmethod
    def launch(self) -> None:
        """Start the server process, and return without waiting until the server serves clients."""

    def wait_until_serving(self, timeout: float = 30.0) -> None:
        """Wait until the server that `launch` has started serves clients. Raises CoordinationUnavailable if the server
        process ends, or if the server does not serve clients within `timeout` seconds. In both cases the server is
        stopped.
        """
        deadline = time.monotonic() + timeout
        try:
            while not self._serves():
                if not self.running:
                    last_words = f"{self._last_words()} (log: {self.log})"
                    raise CoordinationUnavailable(f"ZooKeeper ended at its start: {last_words}")
                if time.monotonic() >= deadline:
                    where = f"ZooKeeper at {self.connect_string}"
                    raise CoordinationUnavailable(f"{where} does not serve yet: see {self.log}")
                time.sleep(_POLL)
        except BaseException:
            self.stop()
            raise

    def stop(self, timeout: float = 10.0) -> None:
        """Stop the server process by SIGTERM. If it is still running after `timeout` seconds, stop it by SIGKILL. Do
        nothing if the server is not running.
        """
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._leave_directory()

    def _serves(self) -> bool:
        """Return whether the server serves clients. A server whose only port is secure may refuse connections without a
        client certificate; it serves clients as soon as the port is open.
        """
        if self.tls is not None and self.secure_port is None:
            return self.tls.is_shown_at(self.host, self.port)
        return _serves(self.host, self.port)

    def _run(self, command: list[str]) -> None:
        self._process = _start_bound(command, self.log)

    def _last_words(self) -> str:
        with self.log.open(encoding="utf-8", errors="replace") as lines:
            said = deque((line.strip() for line in lines if line.strip()), maxlen=1)
        return said[0] if said else "it said nothing"


def _for_owner(path: str, flags: int) -> int:
    """Open a file; if it is created, only its owner may read it."""
    return os.open(path, flags, 0o600)


def four_letter_word(host: str, port: int, word: bytes, timeout: float = 1.0) -> str:
    """Send `srvr`, `mntr` or `ruok` to a server, and return its answer. The timeout (in seconds) is counted separately
    for connecting, for sending and for each receive. Raises OSError if the server cannot be reached or does not answer
    in time.
    """
    with socket.create_connection((host, port), timeout=timeout) as connection:
        connection.sendall(word)
        return b"".join(iter(lambda: connection.recv(4096), b"")).decode("utf-8", "replace")


def _serves(host: str, port: int) -> bool:
    """Return whether the server serves clients, that is, whether it answers the request `srvr` with its statistics.
    Before the server has loaded its database, it answers only that it does not serve.
    """
    try:
        return "Mode:" in four_letter_word(host, port, b"srvr")
    except OSError:
        return False


def _start_bound(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start `command` as a process that ends when this process ends. Its output is appended to `log`.

    The kernel ends such a child when the thread that started the child ends, even if this thread's process continues.
    So a separate thread starts the child, and lives until the child has ended.
    """
    run_bound = str(Path(__file__).with_name("run_bound.py"))
    bound = [sys.executable, "-I", "-S", run_bound, str(os.getpid()), str(int(signal.SIGTERM)), *command]
    started: list[subprocess.Popen[bytes]] = []
    failures: list[OSError] = []
    ready = threading.Event()

    def start_and_wait() -> None:
        try:
            with open(log, "ab", opener=_for_owner) as output:
                # The child has its own session, so Ctrl-C in a terminal reaches only this process, which stops the
                # server last.
                started.append(
                    subprocess.Popen(
                        bound,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                        umask=0o077,  # the server's files are for their owner alone
                    )
                )
        except OSError as error:
            failures.append(error)
        ready.set()
        for process in started:
            process.wait()

    threading.Thread(target=start_and_wait, name="metaq zookeeper", daemon=True).start()
    ready.wait()
    if failures:
        raise failures[0]
    return started[0]
