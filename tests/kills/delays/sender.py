"""Producers of delayed messages in a process of its own: `python -m tests.kills.delays.sender JSON`, see Task.

ack        message, Unix ms at which it is due
cancelling message                  from now on it is unknown whether it is delivered
cancelled  message
uncancelled message                 the broker says that it is delivered nevertheless
fail       error
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from metaq import Producer, SendResult, TopicPartition
from metaq.protocol.errors import MetaqError
from tests.kills.journal import Journal
from tests.kills.programs import PRODUCER_CONFIG, LifeTask, begin_program

__all__ = ["LONGEST_SECONDS", "TOPICS", "WAYS", "Task"]

PARTITIONS = 2
TOPICS = ("loose", "safe")
WAYS = ("single", "batched", "gathered")
LONGEST_SECONDS = 2.0
"""Longest delay in seconds; short, so that a life of the broker delivers messages that another one has taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(LifeTask):
    address: str
    seed: int
    ways: Sequence[str] = WAYS


class _Sending(threading.Thread):
    """Thread that sends to a topic in one way until `stopping` is set."""

    def __init__(self, task: Task, topic: str, way: str, journal: Journal, stopping: threading.Event) -> None:
        super().__init__()
        self._topic = topic
        self._way = way
        self._journal = journal
        self._stopping = stopping
        self._random = random.Random(f"{task.seed} {topic} {way}")
        self._prefix = f"{Path(task.journal).stem}/{topic}/{way}"
        self._count = 0
        self._producer = Producer.direct(
            task.address, broker_id=0, partitions=dict.fromkeys(TOPICS, PARTITIONS), config=PRODUCER_CONFIG
        )

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                getattr(self, self._way)()
            except MetaqError as error:
                self._journal.write("fail", repr(error))
            time.sleep(0.002)
        self._producer.close()

    def _payload(self) -> bytes:
        self._count += 1
        return f"{self._prefix}/{self._count}/{'x' * (self._count % 97)}".encode()

    def _when(self) -> dict[str, Any]:
        seconds = self._random.choice((0.0, 0.01, 0.3, LONGEST_SECONDS)) * self._random.random()
        if self._random.random() < 0.5:
            return {"delay": seconds}
        return {"deliver_at": datetime.now(UTC) + timedelta(seconds=seconds)}

    def _acknowledged(self, pairs: Iterable[tuple[bytes, SendResult]]) -> None:
        for payload, result in pairs:
            assert result.due is not None
            self._journal.write("ack", payload.decode(), round(result.due.timestamp() * 1000))

    def single(self) -> None:
        payload = self._payload()
        result = self._producer.send(self._topic, payload, **self._when())
        self._acknowledged([(payload, result)])
        if self._random.random() < 0.2:
            self._journal.write("cancelling", payload.decode())
            done = self._producer.cancel(result)
            self._journal.write("cancelled" if done else "uncancelled", payload.decode())

    def batched(self) -> None:
        payloads = [self._payload() for _ in range(self._random.randrange(1, 60))]
        where = TopicPartition(self._topic, 0, self._count % PARTITIONS)
        results = self._producer.send_batch(self._topic, payloads, partition=where, **self._when())
        self._acknowledged(zip(payloads, results, strict=True))

    def gathered(self) -> None:
        payloads = [self._payload() for _ in range(40)]
        futures = [self._producer.send_async(self._topic, payload, **self._when()) for payload in payloads]
        self._acknowledged((payload, future.result()) for payload, future in zip(payloads, futures, strict=True))


def main(task: Task) -> None:
    stopping = begin_program()
    journal = Journal(Path(task.journal))
    threads = [_Sending(task, topic, way, journal, stopping) for topic in TOPICS for way in task.ways]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


if __name__ == "__main__":
    main(Task.told())
