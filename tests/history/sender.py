"""The process with the producers: `python -m tests.history.sender JSON`, see Task; it ends at SIGTERM.

Four threads send: one waits for each message (`sequential`), one for each to a fixed partition (`fixed`), one sends
with keys and does not wait (`keyed`), one holds some futures (`futures`). A message is
"<producer>/<key>/<number> xxx…".
"""

from __future__ import annotations

import json
import logging
import random
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path

from metaq import Producer, ProducerConfig, SendResult, TopicPartition
from metaq.protocol.errors import MetaqError

from .facts import Name
from .journal import Journal
from .member import partition_text

__all__ = ["Task"]

KEYS = 6
_SEND_SECONDS = 15.0
_UNDER_WAY = 200
_HELD = 20
_MOST_BYTES = 600


@dataclass(frozen=True, slots=True)
class Task:
    """partitions: of each topic and broker. per_second: messages of each thread, about."""

    connect: str
    topics: Sequence[str]
    brokers: int
    partitions: int
    seed: int
    journal: str
    per_second: float

    def words(self) -> list[str]:
        """Of the command line of the process."""
        return ["-m", "tests.history.sender", json.dumps(asdict(self))]


class _Sender:
    """One thread's messages."""

    def __init__(self, task: Task, producer: Producer, name: str, journal: Journal, stopping: threading.Event) -> None:
        self.rng = random.Random(f"{task.seed} {name}")
        self.task = task
        self.producer = producer
        self._name = name
        self._journal = journal
        self._stopping = stopping
        self._number = 0

    def next(self, key: str) -> tuple[Name, bytes]:
        self._number += 1
        name = Name(self._name, key, self._number)
        return name, f"{name} ".encode() + b"x" * self.rng.randrange(_MOST_BYTES)

    def acknowledged(self, name: Name, result: SendResult) -> None:
        self._journal.write("ack", str(name), partition_text(result.partition), result.offset, result.message_id)

    def failed(self, name: Name, error: BaseException) -> None:
        self._journal.write("fail", str(name), f"{type(error).__name__}: {error}")

    def ended(self, name: Name, future: Future[SendResult]) -> None:
        error = future.exception()
        if error is None:
            self.acknowledged(name, future.result())
        else:
            self.failed(name, error)

    def go_on(self) -> bool:
        """Pause; False at the end."""
        return not self._stopping.wait(self.rng.expovariate(self.task.per_second))


def _sequential(sender: _Sender) -> None:
    while sender.go_on():
        name, payload = sender.next("-")
        try:
            result = sender.producer.send(sender.rng.choice(sender.task.topics), payload, timeout=_SEND_SECONDS)
            sender.acknowledged(name, result)
        except MetaqError as error:
            sender.failed(name, error)


def _fixed(sender: _Sender) -> None:
    task = sender.task
    while sender.go_on():
        topic, broker = sender.rng.choice(task.topics), sender.rng.randrange(task.brokers)
        partition = TopicPartition(topic, broker, sender.rng.randrange(task.partitions))
        name, payload = sender.next(f"{topic}-{partition}")
        try:
            sender.acknowledged(name, sender.producer.send(topic, payload, partition=partition, timeout=_SEND_SECONDS))
        except MetaqError as error:
            sender.failed(name, error)


def _keyed(sender: _Sender) -> None:
    room = threading.Semaphore(_UNDER_WAY)
    while sender.go_on():
        key = f"k{sender.rng.randrange(KEYS)}"
        topic = sender.task.topics[int(key[1:]) % len(sender.task.topics)]
        for _ in range(sender.rng.choice((1, 1, 5))):
            room.acquire()
            name, payload = sender.next(key)

            def ended(future: Future[SendResult], name: Name = name) -> None:
                room.release()
                sender.ended(name, future)

            try:
                future = sender.producer.send_async(topic, payload, key=key, timeout=_SEND_SECONDS)
            except MetaqError as error:
                room.release()
                sender.failed(name, error)
            else:
                future.add_done_callback(ended)
    for _ in range(_UNDER_WAY):
        room.acquire()


def _futures(sender: _Sender) -> None:
    held: deque[tuple[Name, Future[SendResult]]] = deque()
    while sender.go_on():
        name, payload = sender.next("-")
        try:
            topic = sender.rng.choice(sender.task.topics)
            held.append((name, sender.producer.send_async(topic, payload, timeout=_SEND_SECONDS)))
        except MetaqError as error:
            sender.failed(name, error)
        if len(held) > _HELD:
            _wait_for(sender, held)
    _wait_for(sender, held)


def _wait_for(sender: _Sender, held: deque[tuple[Name, Future[SendResult]]]) -> None:
    while held:
        name, future = held.popleft()
        sender.ended(name, future)


_THREADS: dict[str, Callable[[_Sender], None]] = {
    "sequential": _sequential,
    "fixed": _fixed,
    "keyed": _keyed,
    "futures": _futures,
}


def main(task: Task) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(name)s %(message)s", datefmt="%X")
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopping.set())
    journal = Journal(Path(task.journal))
    config = ProducerConfig(start_timeout_seconds=60.0)
    with Producer(task.connect, config=config) as waiting, Producer(task.connect, config=config) as under_way:
        producers = {"sequential": waiting, "fixed": waiting, "keyed": under_way, "futures": under_way}
        threads = [
            threading.Thread(target=send, args=(_Sender(task, producers[name], name, journal, stopping),))
            for name, send in _THREADS.items()
        ]
        journal.write("started")
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    journal.write("left")


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))
