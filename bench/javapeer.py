"""Run the original Java metaq 1.4.6.2 for tests and comparisons: its broker and its client, each in a process of its
own.

Maven builds tests/java once (jars from the central repository); both programs then run straight from its class path.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .maven import JavaUnavailable, build, java_class_path
from .processes import Server, Worker, free_port
from .server_ini import Topics, server_ini

__all__ = ["CUT_OFF_SECONDS", "JavaBroker", "JavaClient", "JavaUnavailable", "broker_command", "class_path"]

CUT_OFF_SECONDS = 20.0
"""Seconds without a connection after which the client has closed its connections permanently (docs/migrating.md). After
that it must be started again.
"""

PROJECT = Path(__file__).resolve().parents[1] / "tests" / "java"

# Java metaq's network and serialization code uses internals of the class library that Java 9 closed
JAVA_OPTIONS = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.io", "java.lang", "java.net", "java.nio", "java.util", "jdk.internal.ref", "sun.nio.ch")
)


def class_path() -> str:
    """Return the class path of the peers. Build the peers first if their sources are newer. Raises JavaUnavailable."""
    build(PROJECT, "the Java metaq peer")
    return java_class_path(PROJECT)


def _java(main: str, *arguments: str, home: Path, options: Sequence[str] = ()) -> list[str]:
    """Return the command line of a Java program. home: the directory that the program uses as the user's home
    directory.
    """
    options = (f"-Duser.home={home}", *options)
    return ["java", *JAVA_OPTIONS, *options, "-cp", class_path(), f"metaq.peer.{main}", *arguments]


def broker_command(config: Path, home: Path) -> list[str]:
    """Return the command line of a Java broker. Its server.ini must be at least two directories deep. home: see
    _java.
    """
    return _java("BrokerMain", str(config), home=home)


class JavaBroker(Server):
    """A running Java broker, registered in ZooKeeper when the constructor returns.

    directory: gets the configuration, the log and, unless `system` names another dataPath, the data; zk_connect:
    connect string whose chroot exists; topics: as for server_ini; system: more keys of server.ini's [system].
    """

    def __init__(
        self,
        directory: Path,
        zk_connect: str,
        topics: Topics,
        system: Mapping[str, object] | None = None,
        port: int | None = None,
    ) -> None:
        self.port = port or free_port()
        self.data = Path(str((system or {}).get("dataPath", directory / "data")))
        config = directory / "conf" / "java" / "server.ini"
        config.parent.mkdir(parents=True, exist_ok=True)
        settings = {"dataPath": self.data, "dashboardHttpPort": free_port(), **(system or {})}
        config.write_text(server_ini(self.port, zk_connect, topics, settings))
        super().__init__(broker_command(config, directory), directory / "broker.log", f"serving {self.port}", directory)


class JavaClient(Worker):
    """A running Java client that is connected to ZooKeeper. Its commands are the commands of metaq.peer.Peer and of the
    classes that Peer lists.

    It stores its local offsets, its recover stores and its ordered producer's messages in the log's directory.
    session_seconds: its zk.zkSessionTimeoutMs, in seconds.
    """

    def __init__(self, zk_connect: str, log: Path, session_seconds: float = 6.0) -> None:
        options = (f"-Dmetaq.peer.sessionTimeoutMs={int(session_seconds * 1000)}",)
        self._command = _java("Peer", zk_connect, home=log.parent, options=options)
        super().__init__(self._command, log, log.parent)

    def restart(self) -> None:
        """End the process and start a new one, which has not joined any group. Each process has its own log."""
        self.close()
        super().__init__(self._command, self.log.with_suffix(".again.log"), self.log.parent)

    def put(self, topic: str, data: bytes, attribute: str | None = None) -> dict[str, Any]:
        """Send one message; return its `id`, `partition` ("broker-partition") and `offset`. The attribute must not
        contain a blank.
        """
        words = (base64.b64encode(data).decode(), *(() if attribute is None else (attribute,)))
        return self.call("put", topic, *words)

    def join(self, topic: str, group: str) -> None:
        """Become a member of the group until leave(). Received messages are kept until received() returns them."""
        self.call("join", topic, group)

    def received(self, group: str) -> list[dict[str, Any]]:
        """Return the messages since the last call, in order: topic, id, partition, attribute, data (bytes)."""
        return [_decoded(message) for message in self.call("received", group)["messages"]]

    def connections(self, url: str) -> int:
        """Return the number of connections to the broker at `url` (meta://host:port) according to the client."""
        return int(self.call("connections", url)["connections"])

    def leave(self, group: str) -> list[dict[str, Any]]:
        """Commit the offsets, release the partitions and leave the group. Return the messages since the last
        received().
        """
        return [_decoded(message) for message in self.call("leave", group)["messages"]]


def _decoded(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "data": base64.b64decode(message["data"])}
