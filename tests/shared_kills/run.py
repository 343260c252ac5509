"""One run: a broker, some members, a producer, and kills."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from metaq import Producer
from metaq.client.config import ConnectionConfig
from metaq.client.connection import Endpoint, open_connection
from metaq.client.metadata import DirectMetadata
from metaq.client.questions.shared import SharedPartition, shared_status
from metaq.protocol.errors import MetaqError
from tests.broker_process import RunningBroker, server_ini
from tests.waiting import eventually

from .checker import Event, parse, problems
from .member import GROUP, TOPIC

__all__ = ["Outcome", "run"]

LEASE_SECONDS = 4.0
RATE = 300.0
BROKER_SHARE = 0.4
"""Of the kills; the others are members'."""


class Outcome(NamedTuple):
    """redelivered: hand-overs behind the first of each message."""

    problems: list[str]
    sent: int
    handed: int
    redelivered: int
    broker_kills: int
    member_kills: int
    seconds: float


class _Members:
    def __init__(self, directory: Path, rng: random.Random) -> None:
        self._directory = directory
        self._rng = rng
        self._number = 0
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, port: int) -> None:
        self._number += 1
        path = self._directory / f"member-{self._number}"
        command = [sys.executable, "-m", "tests.shared_kills.member", str(port), str(path), str(LEASE_SECONDS)]
        with (self._directory / f"member-{self._number}.log").open("wb") as errors:
            self.running.append(subprocess.Popen([*command, str(self._rng.random() * 1e9 // 1)[:-2]], stderr=errors))

    def kill_one(self) -> None:
        victim = self.running.pop(self._rng.randrange(len(self.running)))
        victim.kill()
        victim.wait()

    def kill_all(self) -> None:
        while self.running:
            self.kill_one()

    def events(self) -> list[Event]:
        events: list[Event] = []
        for path in sorted(self._directory.glob("member-*")):
            if path.suffix != ".log":
                with path.open() as lines:
                    events += parse(path.name, lines)
        return events


def run(directory: Path, seed: int, kills: int, members: int = 4, topic: str = "unflushThreshold=1000") -> Outcome:
    """Kill members and the broker so often; what is wrong then. Raises AssertionError if it never comes to rest.

    topic: lines of its section in server.ini."""
    rng = random.Random(seed)
    priorities = random.Random(seed)  # the producer's thread would take the kills' numbers
    is_brokers = [number < kills * BROKER_SHARE for number in range(kills)]
    rng.shuffle(is_brokers)
    began = time.monotonic()
    ini = server_ini(directory / "data", {TOPIC: topic})
    broker = RunningBroker(directory, ini)
    port = broker.port
    ini = ini.replace("serverPort=0", f"serverPort={port}")
    group = _Members(directory, rng)
    sent: list[int] = []
    stop = threading.Event()
    metadata = DirectMetadata(Endpoint("127.0.0.1", port), 0, {TOPIC: 1})

    def send() -> None:
        with Producer(metadata=metadata) as producer:
            number = 0
            while not stop.wait(1 / RATE):
                number += 1
                try:
                    result = producer.send(TOPIC, b"%d" % number, priority=9 if priorities.random() < 0.05 else 0)
                except MetaqError:
                    continue  # nobody promised it
                sent.append(result.offset)

    producing = threading.Thread(target=send)
    try:
        for _ in range(members):
            group.start(port)
        producing.start()
        for is_broker in is_brokers:
            time.sleep(rng.uniform(0.2, 1.0))
            if is_broker:
                broker.kill()
                broker = RunningBroker(directory, ini)
            else:
                group.kill_one()
                group.start(port)
        stop.set()
        producing.join()
        eventually(lambda: _left(port) == (0, 0), what="the last acknowledgement")
    finally:
        stop.set()
        group.kill_all()
        broker.kill()
    events = group.events()
    handed = [event for event in events if hasattr(event, "attempts")]
    return Outcome(
        problems(events, sent),
        len(sent),
        len(handed),
        len(handed) - len({event.offset for event in handed}),
        sum(is_brokers),
        kills - sum(is_brokers),
        time.monotonic() - began,
    )


def _left(port: int) -> tuple[int, int] | None:
    """Messages that are not acknowledged, and leased ones."""
    try:
        connection = open_connection(Endpoint("127.0.0.1", port), ConnectionConfig(), "auto", 5.0)
    except MetaqError:
        return None
    try:
        found: list[SharedPartition] = shared_status(connection, 0, GROUP)
    finally:
        connection.close()
    return (found[0].left, found[0].leased) if found else None
