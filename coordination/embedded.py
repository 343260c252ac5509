"""ZooKeeper's own server, from the jars that PySpark ships, as a child process: for development and tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from metaq.protocol.errors import ConfigError

from .local_zookeeper import STANDALONE_DIRECTORY, ZooKeeperProcess
from .ports import ready_port

__all__ = ["MIN_JAVA", "QUICK_JVM_OPTIONS", "EmbeddedZooKeeper", "find_jars", "find_java"]

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

MIN_JAVA = 17
"""What PySpark 4 needs; ZooKeeper's server alone would do with less."""

_REMEDY = f"Java {MIN_JAVA} or newer is needed: apt-get install openjdk-17-jre-headless, or point JAVA_HOME to one"
_VERSION = re.compile(r'"(?:1\.)?([0-9]+)')


class EmbeddedZooKeeper(ZooKeeperProcess):
    """start() it, use connect_string, stop() it. One thread at a time.

    data_dir: holds zoo.cfg (written at each start), zookeeper.log and ZooKeeper's data.
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
        super().__init__(data_dir, port, host, tick_time_ms=tick_time_ms, max_session_timeout_ms=max_session_timeout_ms)
        self._heap_mb = heap_mb

    def start(self, timeout: float = 30.0) -> None:
        """Start the server and return once it serves.

        Raises ConfigError (no Java or an old one, no PySpark, port in use, data directory not writable or of the
        standalone ZooKeeper), DirectoryInUse, CoordinationUnavailable (it ended, or does not serve within `timeout`
        seconds).
        """
        java, jars = find_java(), find_jars(_JARS)
        self._take_directory()
        try:
            self._refuse(STANDALONE_DIRECTORY, "the standalone ZooKeeper", "that one")
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
            self._run(command, timeout)
        except BaseException:
            self.stop()
            raise

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
