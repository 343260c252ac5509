"""Consumers and producers of a run as processes that can be stopped, killed and started anew, in Java and in Python."""

from __future__ import annotations

import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from bench.javapeer import JavaClient
from bench.processes import Server

from . import consumer_process, producer_process
from .history import Ack, Delivery, Stored, Window, deliveries, fetched_on, read_acks, read_journal
from .places import SESSION_SECONDS

__all__ = ["Group", "JavaConsumer", "JavaProducer", "Member", "PythonConsumer", "PythonProducer"]

ROOT = Path(__file__).resolve().parents[2]
"""Where `python -m tests.soak...` finds its modules."""


class Group:
    """What the members of one run share: where, which group and topic, and the directory for journals and logs."""

    def __init__(self, zookeeper: str, name: str, topic: str, directory: Path) -> None:
        self.zookeeper, self.name, self.topic, self.directory = zookeeper, name, topic, directory
        directory.mkdir(parents=True, exist_ok=True)

    def journals(self) -> dict[str, Path]:
        """The journal of each consumer id that there was."""
        return {f"{self.name}_{path.stem}": path for path in sorted(self.directory.glob("*.journal"))}

    def deliveries(self, stored: Iterable[Stored]) -> list[Delivery]:
        """Everything that was delivered to the group until now."""
        log = list(stored)
        return [
            delivery
            for consumer, path in self.journals().items()
            for delivery in deliveries(consumer, read_journal(path), log)
        ]

    def acks(self) -> list[Ack]:
        """Everything that was acknowledged to the producers until now."""
        return [ack for path in sorted(self.directory.glob("*.acks")) for ack in read_acks(path)]


class _Process(Protocol):
    @property
    def pid(self) -> int: ...

    def close(self) -> None: ...

    def kill(self) -> None: ...


class Member(ABC):
    """One consumer over its lives; each life has a consumer id and a journal of its own.

    deaths: when it was killed, by consumer id as ZooKeeper has it.
    """

    def __init__(self, group: Group, name: str) -> None:
        self.name = name
        self._group = group
        self.deaths: dict[str, float] = {}
        self._lives = 0
        self._process: _Process | None = None

    @property
    def _id(self) -> str:
        return f"{self.name}.{self._lives}"

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Join the group; returns once the client says that it has. A frozen one goes on."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGCONT)
        else:
            self._lives += 1
            self._process = self._started(self._id, self._group.directory / self._id)

    def stop(self) -> None:
        """Leave as a program that ends: what was received is committed, partitions are released."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def freeze(self) -> None:
        """SIGSTOP: as a machine that hangs; start() lets it go on."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process = None
            self.deaths[f"{self._group.name}_{self._id}"] = time.time()

    def fetched_on(self) -> Mapping[str, Sequence[Window]]:
        """When it delivered from partitions that it had given up, by consumer id: never."""
        return {}

    @abstractmethod
    def _started(self, consumer_id: str, path: Path) -> _Process: ...


class PythonConsumer(Member):
    def _started(self, consumer_id: str, path: Path) -> _Process:
        group = self._group
        words = (group.zookeeper, group.name, group.topic, consumer_id, f"{path}.journal", str(SESSION_SECONDS))
        command = [sys.executable, "-m", consumer_process.__name__, *words]
        return Server(command, Path(f"{path}.log"), consumer_process.READY, ROOT)


class JavaConsumer(Member):
    """session_seconds: its ZooKeeper session's. One that loses it fetches on until it rebalances (zookeeper.md §5)."""

    def __init__(self, group: Group, name: str, session_seconds: float = SESSION_SECONDS) -> None:
        super().__init__(group, name)
        self._session_seconds = session_seconds

    def fetched_on(self) -> Mapping[str, Sequence[Window]]:
        """When it delivered from partitions that it had given up, by consumer id; see the function it calls."""
        lives = [f"{self.name}.{life}" for life in range(1, self._lives + 1)]
        logs = {life: self._group.directory / f"{life}.log" for life in lives}
        return {
            f"{self._group.name}_{life}": fetched_on(log.read_text(errors="replace").splitlines())
            for life, log in logs.items()
        }

    def _started(self, consumer_id: str, path: Path) -> _Process:
        group = self._group
        client = JavaClient(group.zookeeper, Path(f"{path}.log"), self._session_seconds)
        try:
            client.call("follow", group.topic, group.name, consumer_id, f"{path}.journal")
        except BaseException:
            client.close()
            raise
        return client


class PythonProducer:
    """Sends until it is closed. pause: seconds between two sends."""

    def __init__(self, group: Group, name: str, pause: float) -> None:
        words = (group.zookeeper, group.topic, name, str(group.directory / f"{name}.acks"), str(pause))
        command = [sys.executable, "-m", producer_process.__name__, *words]
        self._process = Server(command, group.directory / f"{name}.log", producer_process.READY, ROOT)

    def close(self) -> None:
        self._process.close()


class JavaProducer:
    """Sends until it is closed, with the real Java client. pause: seconds between two sends.

    failed: sends that were not acknowledged, once it is closed.
    """

    def __init__(self, group: Group, name: str, pause: float) -> None:
        self._name = name
        self.failed = 0
        self._client = JavaClient(group.zookeeper, group.directory / f"{name}.log")
        try:
            self._client.call("stream", group.topic, name, group.directory / f"{name}.acks", int(pause * 1000))
        except BaseException:
            self._client.close()
            raise

    def close(self) -> None:
        """Stop sending and end. Raises ProcessFailed if the client died on the way."""
        try:
            counts = self._client.call("unstream", self._name)
            self.failed = counts["tried"] - counts["acknowledged"]
        finally:
            self._client.close()
