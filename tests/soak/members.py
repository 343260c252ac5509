"""Consumers and producers of a run as processes that can be stopped, killed and started again, in Java and in
Python."""

from __future__ import annotations

import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from bench.javapeer import JavaClient
from bench.processes import Server
from tests.history import member, sender, sending
from tests.history.facts import Ack, Delivery, Send, Stored
from tests.history.reading import deliveries_in, sends_in
from tests.kills.children import ROOT
from tests.kills.journal import clock, read_journal

from .facts import Window, fetched_on
from .places import SESSION_SECONDS

__all__ = ["Group", "JavaConsumer", "JavaProducer", "Member", "Producer", "PythonConsumer", "PythonProducer"]


class Group:
    """Values that the members of one run share: ZooKeeper, group and topic, and the directory for journals and logs."""

    def __init__(self, zookeeper: str, name: str, topic: str, directory: Path) -> None:
        self.zookeeper, self.name, self.topic, self.directory = zookeeper, name, topic, directory
        directory.mkdir(parents=True, exist_ok=True)

    def journal(self, consumer_id: str) -> Path:
        """Return the path of a journal, as tests.history.reading expects it."""
        return self.directory / f"{self.name}.{consumer_id}.events"

    def deliveries(self, stored: Mapping[str, Sequence[Stored]]) -> list[Delivery]:
        """Return all deliveries to the group so far, with the consumers' names in ZooKeeper."""
        log = [each for records in stored.values() for each in records]
        paths = {path.stem.replace(".", "_", 1): path for path in sorted(self.directory.glob("*.events"))}
        return [each for name, path in paths.items() for each in deliveries_in(read_journal(path), name, log)]

    def sends(self) -> list[Send]:
        """Return all sends of the producers that have ended so far, in that order."""
        sends = (each for path in sorted(self.directory.glob("*.sends")) for each in sends_in(read_journal(path)))
        return sorted(sends, key=lambda each: each.time)

    def acks(self) -> list[Ack]:
        """Return the acknowledged ones of these sends."""
        return [each.ack for each in self.sends() if each.ack is not None]


class _Process(Protocol):
    @property
    def pid(self) -> int: ...

    def close(self) -> None: ...

    def kill(self) -> None: ...


class Member(ABC):
    """One consumer over its lives; each life has a consumer id and a journal of its own.

    deaths: when it was killed, by consumer id as in ZooKeeper.
    """

    def __init__(self, group: Group, name: str) -> None:
        self.name = name
        self._group = group
        self.deaths: dict[str, float] = {}
        self._lives = 0
        self._process: _Process | None = None

    @property
    def consumer_id(self) -> str:
        """The consumer id of the present life, or of the last one."""
        return f"{self.name}.{self._lives}"

    @property
    def owner(self) -> str:
        """The consumer id as in ZooKeeper."""
        return f"{self._group.name}_{self.consumer_id}"

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Join the group; return once the client says that it has joined. A frozen consumer continues instead."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGCONT)
        else:
            self._lives += 1
            self._process = self._started(self.consumer_id, self._group.directory / f"{self.consumer_id}.log")

    def stop(self) -> None:
        """Leave as a program that ends: received messages are committed, partitions are released."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def freeze(self) -> None:
        """Send SIGSTOP, as if the machine hung; start() lets the process continue."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process = None
            self.deaths[self.owner] = clock()

    def fetched_on(self) -> Mapping[str, Sequence[Window]]:
        """Return when it delivered from partitions that it had given up, by consumer id: never."""
        return {}

    @abstractmethod
    def _started(self, consumer_id: str, log: Path) -> _Process: ...


class PythonConsumer(Member):
    def _started(self, consumer_id: str, log: Path) -> _Process:
        group = self._group
        task = member.Task(
            group.zookeeper,
            group.name,
            consumer_id,
            [group.topic],
            "poll",
            self._lives,
            str(group.directory),
            SESSION_SECONDS,
        )
        return Server([sys.executable, *task.words()], log, member.READY, ROOT)


class JavaConsumer(Member):
    """A Java consumer. session_seconds: of its ZooKeeper session. If it loses the session it continues to fetch until
    it rebalances (zookeeper.md §5)."""

    def __init__(self, group: Group, name: str, session_seconds: float = SESSION_SECONDS) -> None:
        super().__init__(group, name)
        self._session_seconds = session_seconds

    def fetched_on(self) -> Mapping[str, Sequence[Window]]:
        """Return when it delivered from partitions that it had given up, by consumer id; see the function that this
        calls."""
        lives = [f"{self.name}.{life}" for life in range(1, self._lives + 1)]
        logs = {life: self._group.directory / f"{life}.log" for life in lives}
        return {
            f"{self._group.name}_{life}": fetched_on(log.read_text(errors="replace").splitlines())
            for life, log in logs.items()
        }

    def journal(self) -> Path:
        """The journal of the present life, or of the last one."""
        return self._group.journal(self.consumer_id)

    def _started(self, consumer_id: str, log: Path) -> _Process:
        group = self._group
        words = ("follow", group.topic, group.name, consumer_id, group.journal(consumer_id))
        self._client = _told(JavaClient(group.zookeeper, log, self._session_seconds), words)
        return self._client

    def connections(self, url: str) -> int:
        """Return the number of its connections to the broker at `url` (meta://host:port)."""
        return self._client.connections(url)


class Producer(Protocol):
    """A producer that sends until it is closed."""

    def close(self) -> None: ...


class PythonProducer:
    """A producer that waits for each message. per_second: messages, about."""

    def __init__(self, group: Group, seed: int, per_second: float) -> None:
        journal = str(group.directory / "python.sends")
        task = sender.Task(group.zookeeper, [group.topic], 1, 1, seed, journal, per_second, ["sequential"])
        self._process = Server([sys.executable, *task.words()], group.directory / "python.log", sending.READY, ROOT)

    def close(self) -> None:
        self._process.close()


class JavaProducer:
    """A producer with the real Java client. pause: seconds between two sends of a thread. failed: sends that were not
    acknowledged, known once it is closed."""

    def __init__(self, group: Group, pause: float, threads: Sequence[str] = ("java",)) -> None:
        self.failed = 0
        self._threads = threads
        self._journals = [group.directory / f"{name}.sends" for name in threads]
        words = [
            ("attempt", group.topic, name, journal, int(pause * 1000))
            for name, journal in zip(threads, self._journals, strict=True)
        ]
        self._client = _told(JavaClient(group.zookeeper, group.directory / "java.log"), *words)

    def close(self) -> None:
        """Stop sending, wait until every send has its outcome, and end. Raises ProcessFailed if the client died
        before."""
        try:
            for name in self._threads:
                self._client.call("give_up", name)
            sends = (each for journal in self._journals for each in sends_in(read_journal(journal)))
            self.failed = sum(each.ack is None for each in sends)
        finally:
            self._client.close()

    def kill(self) -> None:
        """Send SIGKILL, if it still runs."""
        self._client.kill()


def _told(client: JavaClient, *commands: Sequence[object]) -> JavaClient:
    """Send commands to a client and return it; end it if a command fails."""
    try:
        for words in commands:
            client.call(*words)
    except BaseException:
        client.close()
        raise
    return client
