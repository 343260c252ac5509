"""ZooKeeper's own server, from the jars that PySpark ships, as a child process: for development and tests."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from metaq.protocol.errors import ConfigError, CoordinationUnavailable, DirectoryInUse

from .ports import ready_port
from .records import host_and_port

__all__ = ["MIN_JAVA", "QUICK_JVM_OPTIONS", "EmbeddedZooKeeper", "find_jars", "find_java", "four_letter_word"]

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
"""Runs a standalone server where the configuration names no others; unlike ZooKeeperServerMain it purges old logs."""

_JARS = (
    "zookeeper-3*.jar",
    "zookeeper-jute-3*.jar",
    "slf4j-api-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "commons-io-*.jar",
    "netty-*4*.Final.jar",
)

QUICK_JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For a JVM that starts sooner, and in which nothing runs hot."""

_JVM_OPTIONS = (
    *QUICK_JVM_OPTIONS,
    "-Dorg.apache.logging.log4j.level=WARN",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Djava.net.preferIPv4Stack=true",
)

_POLL = 0.03

MIN_JAVA = 17
"""What PySpark 4 needs; ZooKeeper's server alone would do with less."""

_REMEDY = f"Java {MIN_JAVA} or newer is needed: apt-get install openjdk-17-jre-headless, or point JAVA_HOME to one"
_VERSION = re.compile(r'"(?:1\.)?([0-9]+)')


class EmbeddedZooKeeper:
    """start() it, use connect_string, stop() it. One thread at a time.

    data_dir: made if missing; holds zoo.cfg (written at each start), zookeeper.log and ZooKeeper's data. port: 0
    chooses a free one, kept over restarts. tick_time_ms, max_session_timeout_ms: sessions are granted at least 2 ticks
    and at most that maximum, whatever they ask for.
    The server ends with this process, even when that is killed (Linux).
    """

    def __init__(
        self,
        data_dir: Path | str,
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        tick_time_ms: int = 500,
        max_session_timeout_ms: int = 60_000,
        heap_mb: int = 256,
    ) -> None:
        self.data_dir = Path(data_dir)
        self.port = port
        self.host = host
        self._tick_time_ms = tick_time_ms
        self._max_session_timeout_ms = max_session_timeout_ms
        self._heap_mb = heap_mb
        self._process: subprocess.Popen[bytes] | None = None
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
        """`host:port`; the port is known after start()."""
        return host_and_port(self.host, self.port)

    @property
    def log(self) -> Path:
        return self.data_dir / "zookeeper.log"

    @property
    def running(self) -> bool:
        """Whether the server process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Of the server process, once it was started."""
        return self._process.pid if self._process else None

    def start(self, timeout: float = 30.0) -> None:
        """Start the server and return once it serves.

        Raises ConfigError (no Java or an old one, no PySpark, port in use, data directory not writable),
        DirectoryInUse, CoordinationUnavailable (it ended, or does not serve within `timeout` seconds).
        """
        java, jars = find_java(), find_jars(_JARS)
        self._take_directory()
        try:
            self.port = ready_port("port", self.port, self.host)
            command = [
                java,
                f"-Xmx{self._heap_mb}m",
                *_JVM_OPTIONS,
                "-cp",
                os.pathsep.join(map(str, jars)),
                _MAIN,
                str(self._write_config()),
            ]
            self._process = _start_bound(command, self.log)
            self._wait_until_serving(time.monotonic() + timeout)
        except BaseException:
            self.stop()
            raise

    def stop(self, timeout: float = 10.0) -> None:
        """Send SIGTERM, and SIGKILL after `timeout` seconds. Does nothing if the server does not run."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    def _take_directory(self) -> None:
        """Two servers on one directory would destroy each other's transaction log; ZooKeeper does not check that."""
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            lock = (self.data_dir / "embedded.lock").open("a")
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

    def _write_config(self) -> Path:
        settings = {
            "dataDir": self.data_dir.resolve() / "data",
            "clientPort": self.port,
            "clientPortAddress": self.host,
            "tickTime": self._tick_time_ms,
            "maxSessionTimeout": self._max_session_timeout_ms,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok,srvr,mntr",
            "autopurge.snapRetainCount": 3,
            "autopurge.purgeInterval": 1,
            "preAllocSize": 4096,  # KiB that the transaction log grows by
        }
        config = self.data_dir / "zoo.cfg"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), "utf-8")
        return config

    def _wait_until_serving(self, deadline: float) -> None:
        while not _serves(self.host, self.port):
            if not self.running:
                raise CoordinationUnavailable(f"ZooKeeper ended at its start: {self._last_words()} (log: {self.log})")
            if time.monotonic() >= deadline:
                raise CoordinationUnavailable(f"ZooKeeper at {self.connect_string} does not serve yet: see {self.log}")
            time.sleep(_POLL)

    def _last_words(self) -> str:
        with self.log.open(encoding="utf-8", errors="replace") as lines:
            said = deque((line.strip() for line in lines if line.strip()), maxlen=1)
        return said[0] if said else "it said nothing"


def four_letter_word(host: str, port: int, word: bytes, timeout: float = 1.0) -> str:
    """What a server says to `srvr`, `mntr` or `ruok`, within `timeout` seconds at each step. Raises OSError."""
    with socket.create_connection((host, port), timeout=timeout) as connection:
        connection.sendall(word)
        return b"".join(iter(lambda: connection.recv(4096), b"")).decode("utf-8", "replace")


def _serves(host: str, port: int) -> bool:
    """Whether the server answers with its statistics; before its database is loaded it says that it does not serve."""
    try:
        return "Mode:" in four_letter_word(host, port, b"srvr")
    except OSError:
        return False


def _start_bound(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start `command` so that it ends with this process, its output appended to `log`.

    The kernel binds a child to the life of the thread that started it, so one that waits for its end does.
    """
    run_bound = str(Path(__file__).with_name("run_bound.py"))
    bound = [sys.executable, "-I", "-S", run_bound, str(os.getpid()), str(int(signal.SIGTERM)), *command]
    started: list[subprocess.Popen[bytes]] = []
    failures: list[OSError] = []
    ready = threading.Event()

    def start_and_wait() -> None:
        try:
            with log.open("ab") as output:
                # its own session: Ctrl-C in a terminal goes to us alone, and we stop it last
                started.append(
                    subprocess.Popen(
                        bound, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
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


# --- Java -------------------------------------------------------------------------------------------------------------


def find_java(environment: Mapping[str, str] | None = None) -> str:
    """Path of the java program: JAVA_HOME's, as PySpark chooses it, else the first on PATH.

    Raises ConfigError naming what was found when there is none, or it is older than MIN_JAVA.
    """
    environment = os.environ if environment is None else environment
    home = environment.get("JAVA_HOME")
    wanted = str(Path(home, "bin", "java")) if home else "java"
    java = shutil.which(wanted, path=environment.get("PATH", ""))
    if java is None:
        where = f"JAVA_HOME={home}" if home else "PATH"
        raise ConfigError("java", f"none in {where}", _REMEDY)
    version = _java_version(java)
    if version < MIN_JAVA:
        raise ConfigError("java", f"{java} (version {version or 'unknown'})", _REMEDY)
    return java


def _java_version(java: str) -> int:
    """Major version, 0 if it does not say: from the `release` file beside it, which costs no start of a JVM."""
    release = Path(os.path.realpath(java)).parent.parent / "release"
    said = release.read_text("utf-8").partition("JAVA_VERSION=")[2] if release.is_file() else ""
    found = _VERSION.search(said) or _VERSION.search(_ask_java(java))
    return int(found[1]) if found else 0


def _ask_java(java: str) -> str:
    try:
        return subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def find_jars(patterns: Sequence[str]) -> list[Path]:
    """The jars of PySpark that match `patterns`, found without importing it. Raises ConfigError."""
    spec = find_spec("pyspark")
    remedy = (
        "metaq starts ZooKeeper from PySpark's jars: pip install 'metaq[spark]',"
        " or run metaq broker with a ZooKeeper of your own"
    )
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("pyspark", "not installed", remedy)
    directory = Path(next(iter(spec.submodule_search_locations)), "jars")
    jars = [sorted(directory.glob(pattern)) for pattern in patterns]
    missing = [pattern for pattern, found in zip(patterns, jars, strict=True) if not found]
    if missing:
        raise ConfigError("pyspark", directory, f"it has no {', '.join(missing)}: {remedy}")
    return [jar for found in jars for jar in found]
