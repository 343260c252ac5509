"""A producer of the group `bank`, in a process of its own: `python -m tests.kills.halves.worker JSON`, see Task.

It runs transactions until SIGTERM, and answers the questions about all others; with `answers` it only answers. Its
journal has a line for each transaction whose local work is done: `commit` or `rollback`, and the message, which begins
with the journal's name.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from metaq import Message, Producer, TransactionResult
from metaq.protocol.errors import MetaqError
from tests.kills.journal import Journal, read_journal
from tests.kills.programs import PRODUCER_CONFIG, LifeTask, begin_program

__all__ = ["TOPICS", "Task", "recorded"]

TOPICS = {"loose": 2, "safe": 2}
UNDER_WAY = 32
"""Most transactions that the worker does not wait for."""
CONFIG = replace(PRODUCER_CONFIG, producer_group="bank")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(LifeTask):
    address: str
    seed: int
    answers: bool = False


def recorded(journal: Path) -> dict[str, bool]:
    """Return by message whether its transaction is committed, according to the journal of a worker."""
    return {message: kind == "commit" for kind, _, message in read_journal(journal)}


def check(directory: Path, message: Message) -> bool:
    """Answer with what the worker that began the transaction has in its journal. Whether that worker lives does not
    matter: the answer may be what the journal contains now."""
    payload = message.payload.decode()
    return recorded(directory / f"{payload.split('/')[0]}.journal").get(payload, False)


class Worker:
    def __init__(self, task: Task, stopping: threading.Event) -> None:
        journal = Path(task.journal)
        self.name = journal.stem
        self.stopping = stopping
        self.random = random.Random(task.seed)
        self.journal = Journal(journal)
        self.producer = Producer.direct(task.address, broker_id=0, partitions=TOPICS, config=CONFIG)
        self.producer.check_transactions(lambda message: check(journal.parent, message), list(TOPICS))

    def work(self) -> None:
        count = 0
        under_way: deque[Future[TransactionResult]] = deque()
        while not self.stopping.is_set():
            count += 1
            payload = f"{self.name}/{count}"
            topic = self.random.choice(list(TOPICS))
            try:
                if self.random.random() < 0.1:
                    self.producer.send_in_transaction(topic, payload.encode(), execute=self.execute, check_after=1)
                else:
                    if len(under_way) == UNDER_WAY:
                        under_way.popleft().result()
                    send = self.producer.send_in_transaction_async
                    under_way.append(send(topic, payload.encode(), execute=self.execute, check_after=1))
            except (MetaqError, ArithmeticError) as error:
                print(payload, repr(error), file=sys.stderr, flush=True)
        self.producer.close()

    def answer(self) -> None:
        self.stopping.wait()
        self.producer.close()

    def execute(self, message: Message) -> bool | None:
        """Do local work that ends in one of several ways: done and reported, done and not reported, not done, or with a
        death in between."""
        kind = self.random.random()
        commit = kind < 0.7
        if kind > 0.97:
            raise ArithmeticError("nothing is done, and nobody is told")
        if self.random.random() < 0.01:
            os._exit(1)  # before the work
        self.journal.write("commit" if commit else "rollback", message.payload.decode())
        if self.random.random() < 0.01:
            os._exit(1)  # after the work
        return None if self.random.random() < 0.1 else commit


if __name__ == "__main__":
    told = Task.told()
    worker = Worker(told, begin_program())
    worker.answer() if told.answers else worker.work()
