"""Run Apache's ZooKeeper server as a child process, for development and tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from metaq.protocol.errors import ConfigError

from .records.zookeeper_versions import MIN_VERSION
from .servers.free_ports import ready_port
from .servers.local_zookeeper import STANDALONE_DIRECTORY, ZooKeeperProcess

__all__ = ["MIN_JAVA", "QUICK_JVM_OPTIONS", "EmbeddedZooKeeper", "find_jars", "find_java", "server_jars"]

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
"""The Java class that runs the server. If the configuration names no other servers, this class runs a single server.
The class ZooKeeperServerMain could do the same, but it does not delete old transaction logs.
"""

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
"""Command-line options for a JVM that must start fast and does not run much code."""

_JVM_OPTIONS = (
    *QUICK_JVM_OPTIONS,
    "-Dorg.apache.logging.log4j.level=WARN",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Djava.net.preferIPv4Stack=true",
)

_LOGBACK = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %-5level %logger{0}: %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""

MIN_JAVA = 17
"""The oldest allowed Java version. PySpark 4, whose jars metaq uses, needs this version; ZooKeeper's server alone could
run with an older version of Java.
"""

_REMEDY = f"Java {MIN_JAVA} or newer is needed: apt-get install openjdk-17-jre-headless, or point JAVA_HOME to one"
_SERVER_JAR = re.compile(r"zookeeper-([0-9]+(?:\.[0-9]+)*)\.jar")
_VERSION = re.compile(r'"(?:1\.)?([0-9]+)')


class EmbeddedZooKeeper(ZooKeeperProcess):
    """Apache's ZooKeeper server in a child process. Call start(), use connect_string, then call stop(). Two threads
    must not use an object of this class at the same time.

    data_dir: the directory for zoo.cfg (written at each start), zookeeper.log and ZooKeeper's data. jars: a directory
    with the server's jars, of version MIN_VERSION or later. If jars is None, the server runs with the jars in the
    installed PySpark, whatever their version; metaq's tests use these jars.
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
        jars: Path | None = None,
    ) -> None:
        super().__init__(data_dir, port, host, tick_time_ms=tick_time_ms, max_session_timeout_ms=max_session_timeout_ms)
        self._heap_mb = heap_mb
        self._jars = jars

    def launch(self) -> None:
        """Start the server process. Raises ConfigError if Java or the server's jars are missing or too old, or if the
        port is in use. Also raises ConfigError if the data directory is not writable, or contains the data of metaq's
        own (standalone) ZooKeeper server. Raises DirectoryInUse if another server has locked the data directory.
        """
        java, jars = find_java(), find_jars(_JARS) if self._jars is None else server_jars(self._jars)
        self._take_directory()
        try:
            self._refuse(STANDALONE_DIRECTORY, "the standalone ZooKeeper", "that one: leave out --zookeeper")
            self.port = ready_port("port", self.port, self.host)
            command = [
                java,
                f"-Xmx{self._heap_mb}m",
                *_JVM_OPTIONS,
                f"-Dlogback.configurationFile={self._write_logback()}",
                "-cp",
                os.pathsep.join(map(str, jars)),
                _MAIN,
                str(self._write_config()),
            ]
            self._run(command)
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
            "preAllocSize": 4096,  # in KiB: the transaction log grows by this size
        }
        config = self.data_dir / "zoo.cfg"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), "utf-8")
        return config

    def _write_logback(self) -> Path:
        """Write a configuration file for logback, the logging library in Apache's distribution, and return its path.
        Without this file logback would write all messages of the server to the log, down to its debug messages.
        """
        config = self.data_dir.resolve() / "logback.xml"
        config.write_text(_LOGBACK, "utf-8")
        return config


# --- Java -------------------------------------------------------------------------------------------------------------


def find_java(environment: Mapping[str, str] | None = None) -> str:
    """Return the path of the java program. As in PySpark, this is the program below JAVA_HOME if this variable is set,
    otherwise the first `java` on PATH.

    Raises ConfigError if there is no java program, or if it is older than MIN_JAVA; the error names what was found.
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
    """Return the major version of the java program, 0 if unknown. If possible, read it from Java's `release` file,
    which is faster than starting a JVM.
    """
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
    """Return the paths of PySpark's jars whose names match `patterns`, without importing PySpark. Raises ConfigError if
    a jar is missing.
    """
    spec = find_spec("pyspark")
    remedy = "these jars come with it: pip install 'metaq[spark]'"
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("pyspark", "not installed", remedy)
    directory = Path(next(iter(spec.submodule_search_locations)), "jars")
    jars = [sorted(directory.glob(pattern)) for pattern in patterns]
    missing = [pattern for pattern, found in zip(patterns, jars, strict=True) if not found]
    if missing:
        raise ConfigError("pyspark", directory, f"it has no {', '.join(missing)}: {remedy}")
    return [jar for found in jars for jar in found]


def server_jars(directory: Path) -> list[Path]:
    """Return the paths of the jars in `directory`. Raises ConfigError if it contains no jar of the ZooKeeper server, or
    if this jar is older than MIN_VERSION.
    """
    least = ".".join(map(str, MIN_VERSION))
    found = [_SERVER_JAR.fullmatch(each.name) for each in sorted(directory.glob("zookeeper-*.jar"))]
    versions = [tuple(map(int, each[1].split("."))) for each in found if each]
    if not versions:
        remedy = f"no zookeeper-VERSION.jar is there: name the directory lib of Apache ZooKeeper {least} or later"
        raise ConfigError("--zookeeper", f"apache:{directory}", remedy)
    if min(versions) < MIN_VERSION:
        version = ".".join(map(str, min(versions)))
        remedy = f"{version} lets anybody delete znodes (CVE-2026-79993): {least} or later does not"
        raise ConfigError("--zookeeper", f"apache:{directory}", remedy)
    return sorted(directory.glob("*.jar"))
