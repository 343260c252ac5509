"""Threads that send until SIGTERM. Every send is recorded when it ends, with the time at which it began.

    ack       begun, message, partition, offset, id
    fail      begun, message, topic, error                  it may or may not be stored

A message is "<producer>/<key>/<number> xxx…".
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from metaq import Producer, ProducerConfig, SendResult, TopicPartition
from metaq.protocol.errors import MetaqError
from tests.kills.journal import Journal, clock
from tests.kills.programs import begin_program

from .facts import Name
from .member import partition_text

__all__ = ["READY", "Load", "Pipeline", "Sender", "Way", "fixed", "run_senders", "sequential"]

READY = "sends"
"""The log line that the process sends."""
_MOST_BYTES = 600


@dataclass(frozen=True, slots=True)
class Load:
    """The load. per_second: calls of each thread, about. send_seconds: the timeout of a send."""

    seed: int
    per_second: float
    send_seconds: float


class Sender:
    """The sender of one thread's messages."""

    def __init__(self, load: Load, producer: Producer, name: str, journal: Journal, stopping: threading.Event) -> None:
        self.rng = random.Random(f"{load.seed} {name}")
        self.producer = producer
        self.journal = journal
        self.send_seconds = load.send_seconds
        self._per_second = load.per_second
        self._name = name
        self._stopping = stopping
        self._number = 0

    def go_on(self) -> bool:
        """Pause; return False at the end."""
        return not self._stopping.wait(self.rng.expovariate(self._per_second))

    def next(self, key: str) -> tuple[Name, bytes]:
        self._number += 1
        name = Name(self._name, key, self._number)
        return name, f"{name} ".encode() + b"x" * self.rng.randrange(_MOST_BYTES)

    def send(self, topic: str, key: str = "-", partition: TopicPartition | None = None) -> None:
        """Send one message and wait for it. key: only part of its name, not the key of the send."""
        name, payload = self.next(key)
        begun = clock()
        try:
            result = self.producer.send(topic, payload, partition=partition, tag=name.tag, timeout=self.send_seconds)
        except MetaqError as error:
            self.failed(begun, name, topic, error)
        else:
            self.acknowledged(begun, name, result)

    def acknowledged(self, begun: float, name: Name, result: SendResult) -> None:
        self.journal.write("ack", begun, str(name), partition_text(result.partition), result.offset, result.message_id)

    def failed(self, begun: float, name: Name, topic: str, error: BaseException) -> None:
        self.journal.write("fail", begun, str(name), topic, f"{type(error).__name__}: {error}")

    def ended(self, begun: float, name: Name, topic: str, future: Future[SendResult]) -> None:
        error = future.exception()
        if error is None:
            self.acknowledged(begun, name, future.result())
        else:
            self.failed(begun, name, topic, error)


Way = Callable[[Sender], None]
"""Sends until go_on() returns False."""


class Pipeline:
    """Sends that nobody waits for; at most `most` are unanswered."""

    def __init__(self, sender: Sender, most: int) -> None:
        self._sender = sender
        self._most = most
        self._room = threading.Semaphore(most)

    def send(self, topic: str, key: str | None) -> None:
        """Send a message with this key, which is also part of its name."""
        sender = self._sender
        self._room.acquire()
        name, payload = sender.next(key or "-")
        begun = clock()

        def ended(future: Future[SendResult]) -> None:
            self._room.release()
            sender.ended(begun, name, topic, future)

        try:
            future = sender.producer.send_async(topic, payload, key=key, tag=name.tag, timeout=sender.send_seconds)
        except MetaqError as error:
            self._room.release()
            sender.failed(begun, name, topic, error)
        else:
            future.add_done_callback(ended)

    def finish(self) -> None:
        """Wait until all sends are answered."""
        for _ in range(self._most):
            self._room.acquire()


def sequential(sender: Sender, topics: Sequence[str]) -> None:
    """Send messages, and wait for each."""
    while sender.go_on():
        sender.send(sender.rng.choice(topics))


def fixed(sender: Sender, topics: Sequence[str], brokers: int, partitions: int) -> None:
    """Send messages to one partition, and wait for each. partitions: of each topic and broker."""
    while sender.go_on():
        topic, broker = sender.rng.choice(topics), sender.rng.randrange(brokers)
        partition = TopicPartition(topic, broker, sender.rng.randrange(partitions))
        sender.send(topic, f"{topic}-{partition}", partition)


def run_senders(
    connect: str, journal: Path, load: Load, waiting: Mapping[str, Way], under_way: Mapping[str, Way]
) -> None:
    """Run a thread for each way, named like its messages. The ways in `waiting` share one producer, the others another
    one."""
    stopping = begin_program()
    notes = Journal(journal)
    config = ProducerConfig(start_timeout_seconds=60.0)
    with Producer(connect, config=config) as first, Producer(connect, config=config) as second:
        threads = [
            threading.Thread(target=way, args=(Sender(load, producer, name, notes, stopping),))
            for producer, ways in ((first, waiting), (second, under_way))
            for name, way in ways.items()
        ]
        notes.write("started")
        logging.info(READY)
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    notes.write("left")
