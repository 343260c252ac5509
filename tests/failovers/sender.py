"""The process with the producers: `python -m tests.failovers.sender JSON`, see Task; it ends at SIGTERM.

Every send is written down when it ends, with the time at which it began. A message is "<producer>/<key>/<number> xxx…".

    ack       begun, message, partition, offset, id
    fail      begun, message, topic, error                  it may or may not be stored
    commit    begun, messages, broker                       a transaction that was acknowledged
    rollback  begun, messages, error                        none of them may be stored
    doubt     begun, messages, error                        all or none of them are stored
"""

from __future__ import annotations

import json
import logging
import random
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from metaq import Producer, ProducerConfig, SendResult, TopicPartition
from metaq.errors import CommitIncomplete, CommitUnknown
from metaq.protocol.errors import MetaqError
from tests.history.facts import Name
from tests.history.journal import Journal, clock
from tests.history.member import partition_text

__all__ = ["LOOSE_TOPIC", "MEANT", "SAFE_TOPICS", "Task"]

SAFE_TOPICS = ("memory", "disk")
LOOSE_TOPIC = "loose"
PARTITIONS = 2
"""Of each safe topic and set."""
KEYS = 8
MEANT = "as it was meant to be"
"""Said of a transaction that was rolled back."""
_SEND_SECONDS = 60.0
_UNDER_WAY = 400
_MOST_BYTES = 600
_BATCH = (2, 40)
_BURST = (1, 1, 2, 20)


@dataclass(frozen=True, slots=True)
class Task:
    """per_second: calls of each thread, about. transactions: whether some are begun."""

    connect: str
    sets: int
    seed: int
    journal: str
    per_second: float
    transactions: bool

    def words(self) -> list[str]:
        """Of the command line of the process."""
        return ["-m", "tests.failovers.sender", json.dumps(asdict(self))]


class _Sender:
    """One thread's messages."""

    def __init__(self, task: Task, producer: Producer, name: str, journal: Journal, stopping: threading.Event) -> None:
        self.rng = random.Random(f"{task.seed} {name}")
        self.task = task
        self.producer = producer
        self.journal = journal
        self._name = name
        self._stopping = stopping
        self._number = 0

    def next(self, key: str) -> tuple[Name, bytes]:
        self._number += 1
        name = Name(self._name, key, self._number)
        return name, f"{name} ".encode() + b"x" * self.rng.randrange(_MOST_BYTES)

    def key(self) -> tuple[str, str]:
        """A key and its topic: always the same one."""
        number = self.rng.randrange(KEYS)
        return f"k{number}", SAFE_TOPICS[number % len(SAFE_TOPICS)]

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

    def go_on(self) -> bool:
        """Pause; False at the end."""
        return not self._stopping.wait(self.rng.expovariate(self.task.per_second))


def _sequential(sender: _Sender) -> None:
    """Waits for each message."""
    while sender.go_on():
        name, payload = sender.next("-")
        topic = sender.rng.choice(SAFE_TOPICS)
        begun = clock()
        try:
            sender.acknowledged(begun, name, sender.producer.send(topic, payload, timeout=_SEND_SECONDS))
        except MetaqError as error:
            sender.failed(begun, name, topic, error)


def _fixed(sender: _Sender) -> None:
    """Waits for each message to one partition."""
    while sender.go_on():
        topic, broker = sender.rng.choice(SAFE_TOPICS), sender.rng.randrange(sender.task.sets)
        partition = TopicPartition(topic, broker, sender.rng.randrange(PARTITIONS))
        name, payload = sender.next(f"{topic}-{partition}")
        begun = clock()
        try:
            result = sender.producer.send(topic, payload, partition=partition, timeout=_SEND_SECONDS)
            sender.acknowledged(begun, name, result)
        except MetaqError as error:
            sender.failed(begun, name, topic, error)


def _pipelined(sender: _Sender, *, loose: bool) -> None:
    """Does not wait; many are under way."""
    room = threading.Semaphore(_UNDER_WAY)
    while sender.go_on():
        key, topic = ("-", LOOSE_TOPIC) if loose else sender.key()
        options = {} if loose else {"key": key}
        for _ in range(sender.rng.choice(_BURST)):
            room.acquire()
            name, payload = sender.next(key)
            begun = clock()

            def ended(future: Future[SendResult], begun: float = begun, name: Name = name, topic: str = topic) -> None:
                room.release()
                sender.ended(begun, name, topic, future)

            try:
                future = sender.producer.send_async(topic, payload, timeout=_SEND_SECONDS, **options)  # type: ignore[arg-type]
            except MetaqError as error:
                room.release()
                sender.failed(begun, name, topic, error)
            else:
                future.add_done_callback(ended)
    for _ in range(_UNDER_WAY):
        room.acquire()


def _batches(sender: _Sender) -> None:
    """Waits for each batch of one key."""
    while sender.go_on():
        key, topic = sender.key()
        messages = [sender.next(key) for _ in range(sender.rng.randrange(*_BATCH))]
        begun = clock()
        try:
            payloads = [payload for _, payload in messages]
            results = sender.producer.send_batch(topic, payloads, key=key, timeout=_SEND_SECONDS)
        except MetaqError as error:
            for name, _ in messages:
                sender.failed(begun, name, topic, error)
        else:
            for (name, _), result in zip(messages, results, strict=True):
                sender.acknowledged(begun, name, result)


def _transactions(sender: _Sender) -> None:
    """Some messages, in both topics, in one transaction; some are rolled back."""
    while sender.go_on():
        begun = clock()
        names: list[str] = []
        give_up = sender.rng.random() < 0.1
        transaction = sender.producer.transaction(timeout_seconds=30)
        outcome, text = "rollback", MEANT
        try:
            for _ in range(sender.rng.randrange(1, 5)):
                name, payload = sender.next("-")
                names.append(str(name))
                transaction.send(sender.rng.choice(SAFE_TOPICS), payload, timeout=_SEND_SECONDS)
            if give_up:
                transaction.rollback()
            else:
                transaction.commit()
                outcome, text = "commit", ""
        except (CommitUnknown, CommitIncomplete) as error:
            outcome, text = "doubt", str(error)
        except MetaqError as error:
            text = f"{type(error).__name__}: {error}"
        sender.journal.write(outcome, begun, names, text)


_THREADS: dict[str, Callable[[_Sender], None]] = {
    "sequential": _sequential,
    "fixed": _fixed,
    "keyed": partial(_pipelined, loose=False),
    "keyed2": partial(_pipelined, loose=False),
    "keyedbatch": _batches,
    "loose": partial(_pipelined, loose=True),
    "transaction": _transactions,
}
"""Those that begin with `keyed` and `fixed` are kept in order (tests.history.checkers)."""


def main(task: Task) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(name)s %(message)s", datefmt="%X")
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopping.set())
    journal = Journal(Path(task.journal))
    config = ProducerConfig(start_timeout_seconds=60.0)
    with Producer(task.connect, config=config) as waiting, Producer(task.connect, config=config) as under_way:
        senders: Sequence[tuple[Callable[[_Sender], None], _Sender]] = [
            (send, _Sender(task, under_way if "keyed" in name else waiting, name, journal, stopping))
            for name, send in _THREADS.items()
            if task.transactions or name != "transaction"
        ]
        threads = [threading.Thread(target=send, args=(sender,)) for send, sender in senders]
        journal.write("started")
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    journal.write("left")


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))
