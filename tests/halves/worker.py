"""A producer of the group `bank`, in a process of its own that may be killed at any moment.

`python -m tests.halves.worker DIRECTORY NUMBER ADDRESS SEED [answers]`. It does transactions until stdin ends, and
answers for all others; with `answers` it does no more than that. Its books: one line for each transaction whose local
work is done, `<payload> commit` or `<payload> rollback`.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import deque
from concurrent.futures import Future
from pathlib import Path

from metaq import ConnectionConfig, Message, Producer, ProducerConfig, TransactionResult
from metaq.protocol.errors import MetaqError

TOPICS = {"loose": 2, "safe": 2}
UNDER_WAY = 32
"""Transactions that the worker does not wait for."""
CONFIG = ProducerConfig(
    producer_group="bank",
    delivery_timeout_seconds=60.0,
    retry_max_seconds=0.1,
    connection=ConnectionConfig(request_timeout_seconds=3.0, reconnect_max_seconds=0.1),
)


def books_path(directory: Path, number: str) -> Path:
    return directory / f"worker-{number}.books"


def recorded(directory: Path, number: str) -> dict[str, bool]:
    """Payload → whether its transaction is committed, by the books of a worker."""
    path = books_path(directory, number)
    lines = path.read_text().splitlines() if path.exists() else []
    return {payload: word == "commit" for payload, word in (line.split() for line in lines)}


def check(directory: Path, message: Message) -> bool:
    """What the worker that began it has in its books. It does not ask whether that one lives: who is asked may say what
    is in the books now."""
    payload = message.payload.decode()
    return recorded(directory, payload.split("/")[0]).get(payload, False)


class Worker:
    def __init__(self, directory: Path, number: str, address: str, seed: int) -> None:
        self.directory = directory
        self.number = number
        self.random = random.Random(seed)
        self.books = os.open(books_path(directory, number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.producer = Producer.direct(address, broker_id=0, partitions=TOPICS, config=CONFIG)
        self.producer.check_transactions(lambda message: check(directory, message), list(TOPICS))
        self.stopping = threading.Event()
        threading.Thread(target=self._wait_for_end, daemon=True).start()

    def _wait_for_end(self) -> None:
        sys.stdin.read()
        self.stopping.set()

    def work(self) -> None:
        count = 0
        under_way: deque[Future[TransactionResult]] = deque()
        while not self.stopping.is_set():
            count += 1
            payload = f"{self.number}/{count}"
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
        """Local work with an end of any kind: done and told, done and not told, not done, and a death in between."""
        kind = self.random.random()
        commit = kind < 0.7
        if kind > 0.97:
            raise ArithmeticError("nothing is done, and nobody is told")
        if self.random.random() < 0.01:
            os._exit(1)  # before the work
        os.write(self.books, f"{message.payload.decode()} {'commit' if commit else 'rollback'}\n".encode())
        if self.random.random() < 0.01:
            os._exit(1)  # behind it
        return None if self.random.random() < 0.1 else commit


if __name__ == "__main__":
    worker = Worker(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
    worker.answer() if "answers" in sys.argv else worker.work()
