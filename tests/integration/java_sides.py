"""The same application, written against the Java client, on the real Java broker and on ours.

A module of such tests names its TOPICS (and perhaps SYSTEM, further keys of server.ini) and takes the fixture `side`,
which runs each test twice: one broker of each kind and one Java client a module. Tests keep to topics of their own.
"""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.javapeer import JavaBroker, JavaClient
from bench.processes import ProcessFailed, Server, free_port
from bench.server_ini import Topics, server_ini
from tests.integration.coordination_helpers import make_chroot
from tests.waiting import DEADLINE, eventually

KINDS = ("java", "ours")
ON_DISK_WHEN_ANSWERED = {"unflushThreshold": 0}

Fields = dict[str, Any]


class OurBroker(Server):
    """Our broker, started as JavaBroker is, from the same server.ini."""

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
        config = directory / "conf" / "ours" / "server.ini"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(server_ini(self.port, zk_connect, topics, {"dataPath": self.data, **(system or {})}))
        command = [sys.executable, "-m", "metaq.broker", str(config)]
        super().__init__(command, directory / "broker.log", "metaq broker", directory)


Broker = JavaBroker | OurBroker
BROKERS: Mapping[str, type[JavaBroker] | type[OurBroker]] = {"java": JavaBroker, "ours": OurBroker}


class Application(JavaClient):
    """An application of the Java client: its commands with bytes instead of base64, and waits with a deadline."""

    def producer(self, name: str, topic: str | None = None, **options: object) -> str:
        """Make a producer (again: only publish the topic); options as in metaq.peer.Producers. Its name."""
        self.call("producer", name, *_words({} if topic is None else {"topic": topic}), *_words(options))
        return name

    def send(self, producer: str, topic: str, data: bytes, attribute: str | None = None) -> Fields:
        """What an application sees of one send: success, id, partition, offset, reason."""
        return self.call("send", producer, topic, encoded(data), *(() if attribute is None else (attribute,)))

    def send_all(self, producer: str, topic: str, *data: bytes) -> list[Fields]:
        """Send one after the other; every one must succeed."""
        results = [self.send(producer, topic, each) for each in data]
        assert all(result["success"] for result in results), results
        return results

    def subscribe(self, name: str, topics: str, **options: object) -> None:
        """A consumer; its group is its name unless given. Options as in metaq.peer.Members."""
        self.call("subscribe", name, topics, *_words(options))

    def taken(self, name: str, count: int) -> list[Fields]:
        """At least `count` messages as they came, or fewer when the deadline has passed."""
        messages: list[Fields] = []
        deadline = time.monotonic() + DEADLINE
        while len(messages) < count and time.monotonic() < deadline:
            messages += decoded(self.call("taken", name)["messages"])
            time.sleep(0.02)
        return messages

    def payloads(self, name: str, count: int) -> list[bytes]:
        return [message["data"] for message in self.taken(name, count)]

    def browsed(self, topic: str) -> list[bytes]:
        """What all partitions of a topic hold, one after the other."""
        return [message["data"] for message in decoded(self.call("browse", topic, 1 << 20)["messages"])]

    def unsubscribe(self, name: str) -> list[bytes]:
        """Shut the consumer down; what came in meanwhile."""
        return [message["data"] for message in decoded(self.call("unsubscribe", name)["messages"])]


@dataclass
class Side:
    """One kind of broker, running, and an application connected to its cluster."""

    kind: str
    connect: str
    directory: Path
    broker: Broker
    app: Application
    topics: Topics
    system: Mapping[str, object]

    @property
    def is_java(self) -> bool:
        return self.kind == "java"

    def browsed(self, topic: str) -> list[bytes]:
        return self.app.browsed(topic)

    def becomes(self, topic: str, expected: list[bytes]) -> None:
        """With 1.x what a commit wrote is readable a moment after its answer, with ours before it."""
        eventually(lambda: len(self.browsed(topic)) >= len(expected), what=f"{expected} in {topic}")
        assert self.browsed(topic) == expected

    def restart(self, end: Callable[[Broker], None]) -> None:
        """End the broker (Broker.close is a clean stop, Broker.kill a crash) and start it again where it was."""
        end(self.broker)
        self.start_again()

    def start_again(self) -> None:
        """Start the broker at its port on its data.

        After a crash 1.x does not start until the ZooKeeper session of its predecessor is over (semantics.md §9).
        """
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                self.broker = BROKERS[self.kind](
                    self.directory, self.connect, self.topics, self.system, self.broker.port
                )
                return
            except ProcessFailed as failed:
                if not self.is_java or "NodeExists" not in str(failed) or time.monotonic() > deadline:
                    raise


@contextmanager
def running_side(
    kind: str, connect: str, directory: Path, topics: Topics, system: Mapping[str, object] | None = None
) -> Iterator[Side]:
    """A broker of that kind ("java" or "ours") and an application; both are gone at the end."""
    settings = {**ON_DISK_WHEN_ANSWERED, **(system or {})}
    make_chroot(connect)
    directory.mkdir(exist_ok=True)
    broker = BROKERS[kind](directory, connect, topics, settings)
    app = Application(connect, directory / "client.log")
    side = Side(kind, connect, directory, broker, app, topics, settings)
    try:
        yield side
    finally:
        side.app.close()
        side.broker.kill()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def decoded(messages: list[Fields]) -> list[Fields]:
    return [{**message, "data": base64.b64decode(message["data"])} for message in messages]


def _words(options: Mapping[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in options.items()]
