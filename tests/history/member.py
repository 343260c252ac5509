"""A process with consumers: `python -m tests.history.member JSON`, see Task; it leaves the group at SIGTERM.

It records delivered messages before it asks for more, because asking makes messages count as consumed.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metaq import Consumer, ConsumerConfig, Message, TopicPartition, drop_message
from metaq.protocol.errors import MetaqError
from tests.kills.journal import Journal, clock
from tests.kills.programs import ProgramTask, begin_program

__all__ = ["MODES", "READY", "Task", "partition_text"]

MODES = ("poll", "poll_arrow", "run", "iterate")
POLL_SECONDS = 0.25
READY = "consumes"
"""The log line that a consumer runs."""
_HANDLERS = 2
_CLOSE_SECONDS = 20.0
_BURST_SECONDS = (0.3, 3.0)


@dataclass(frozen=True, slots=True)
class Task(ProgramTask):
    """The work of a process. name: of its journal. consumer_id: in the group, if it is another one.

    lives: number of consumers, one after the other, each for a moment; 0: one that stays. threads: number of concurrent
    consumers. start: the same for all members of the group. tags: those that this member takes; empty: all.
    """

    connect: str
    group: str
    name: str
    topics: Sequence[str]
    mode: str
    seed: int
    directory: str
    session_seconds: float
    strategy: str = "range"
    consumer_id: str = ""
    lives: int = 0
    threads: int = 1
    start: str = "earliest"
    tags: Sequence[str] = ()


def partition_text(partition: TopicPartition) -> str:
    return f"{partition.topic} {partition}"


class _Life:
    """One consumer from its start to its end."""

    def __init__(self, task: Task, name: str, stopping: threading.Event) -> None:
        self._task = task
        self._id = task.consumer_id or name
        self._stopping = stopping
        self._rng = random.Random(f"{task.seed} {name}")
        self._journal = Journal(Path(task.directory) / f"{task.group}.{name}.events")
        self._calls = 0
        self._consumer: list[Consumer] = []
        self._asks = threading.Event()  # set while it asks for the next message of an iteration
        self._lock = threading.Lock()

    def run(self) -> None:
        """Consume until `stopping` is set. Raises MetaqError if it cannot start."""
        rng, task = self._rng, self._task
        commits_itself = task.mode == "poll" and rng.random() < 0.4
        config = ConsumerConfig(
            consumer_id=self._id,
            strategy=task.strategy,
            session_timeout_seconds=task.session_seconds,
            auto_commit_seconds=0.0 if commits_itself else 0.5,
            revoke_wait_seconds=5.0,
            long_poll_ms=2000,
            error_max_seconds=1.0,
            max_buffered_bytes=rng.choice((16 << 10, 4 << 20)),
            fetch_max_bytes=rng.choice((8 << 10, 2 << 20)),
            start_timeout_seconds=60.0,
        )
        with Consumer(
            task.connect,
            group=task.group,
            topics=task.topics,
            config=config,
            start=task.start,
            tags=task.tags or None,
            on_assigned=self._assigned,
            on_revoked=lambda partitions: self._tell("revoked", partitions),
        ) as consumer:
            self._consumer.append(consumer)
            self._journal.write("started", task.mode, commits_itself, task.start, list(task.tags))
            logging.info(READY)
            modes: dict[str, Callable[[Consumer, bool], None]] = {
                "poll": self._poll,
                "poll_arrow": self._poll_arrow,
                "run": self._run,
                "iterate": self._iterate,
            }
            modes[task.mode](consumer, commits_itself)
            self._journal.write("leaving")
        self._journal.write("left")

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        (consumer,) = self._consumer  # nobody polls before this
        positions = [_position(consumer, each) for each in partitions]
        self._journal.write("assigned", [partition_text(each) for each in partitions], positions)

    def _tell(self, kind: str, partitions: Iterable[TopicPartition]) -> None:
        self._journal.write(kind, [partition_text(each) for each in partitions])

    def _poll(self, consumer: Consumer, commits_itself: bool) -> None:
        while not self._stopping.is_set():
            began = clock()
            self._handed(began, consumer.poll(self._rng.choice((1, 20, 500)), POLL_SECONDS))
            self._work()
            if commits_itself and self._rng.random() < 0.2:
                self._commit(consumer)

    def _commit(self, consumer: Consumer) -> None:
        try:
            self._journal.write("committed", consumer.commit())
        except MetaqError as error:  # no session, or another one by now: delivered messages are delivered again
            self._journal.write("refused", str(error))

    def _poll_arrow(self, consumer: Consumer, _commits_itself: bool) -> None:
        while not self._stopping.is_set():
            began = clock()
            batch = consumer.poll_arrow(self._rng.choice((5, 65_536)), POLL_SECONDS)
            rows = batch.select(["topic", "broker", "partition", "offset", "id", "payload"]).to_pylist()
            self._write("handed", began, [_of_row(row) for row in rows])
            self._work()

    def _iterate(self, consumer: Consumer, _commits_itself: bool) -> None:
        threading.Thread(target=self._close_at_the_end, args=(consumer,), daemon=True).start()
        began = clock()
        self._asks.set()
        for message in consumer:
            self._asks.clear()
            self._handed(began, [message])
            if self._rng.random() < 0.02:
                self._work()
            if self._stopping.is_set():
                return
            began = clock()
            self._asks.set()

    def _close_at_the_end(self, consumer: Consumer) -> None:
        """Close the consumer to end an iteration without messages; while it asks for the next one, so that the former
        one counts."""
        self._stopping.wait()
        time.sleep(POLL_SECONDS)
        self._asks.wait()
        consumer.close(_CLOSE_SECONDS)

    def _run(self, consumer: Consumer, _commits_itself: bool) -> None:
        threading.Thread(target=self._stop_at_the_end, args=(consumer,), daemon=True).start()
        consumer.run(self._handle, threads=_HANDLERS, on_reject=drop_message)

    def _stop_at_the_end(self, consumer: Consumer) -> None:
        self._stopping.wait()
        consumer.stop()

    def _handle(self, message: Message) -> None:
        with self._lock:
            self._calls += 1
            number, pause = self._calls, self._rng.choice((0.0, 0.0, 0.0, 0.002))
            if self._rng.random() < 0.005:
                pause = self._rng.uniform(0.5, 4.0)
        self._write("handler", 0.0, [_of_message(message)], number)
        if pause:
            time.sleep(pause)
        self._journal.write("done", number)

    def _work(self) -> None:
        """Work for a moment, as an application does between two calls."""
        chance = self._rng.random()
        if chance < 0.02:
            time.sleep(self._rng.uniform(0.3, 2.0))
        elif chance < 0.5:
            time.sleep(self._rng.uniform(0.0, 0.05))

    def _handed(self, began: float, messages: Iterable[Message]) -> None:
        self._write("handed", began, [_of_message(message) for message in messages])

    def _write(self, kind: str, began: float, messages: Iterable[tuple[str, Any]], *more: object) -> None:
        now = clock()
        by_partition: dict[str, list[Any]] = defaultdict(list)
        for partition, message in messages:
            by_partition[partition].append(message)
        for partition, those in by_partition.items():
            self._journal.write(kind, began, partition, those, *more, at=now)


def _position(consumer: Consumer, partition: TopicPartition) -> int | None:
    try:
        return consumer.position(partition)
    except MetaqError:  # the partition is lost again
        return None


def _of_message(message: Message) -> tuple[str, Any]:
    return partition_text(message.partition), (message.offset, message.id, _name_in(message.payload))


def _of_row(row: dict[str, Any]) -> tuple[str, Any]:
    partition = TopicPartition(row["topic"], row["broker"], row["partition"])
    return partition_text(partition), (row["offset"], row["id"], _name_in(row["payload"]))


def _name_in(payload: bytes) -> str:
    return payload.partition(b" ")[0].decode("ascii")


def _burst(task: Task, thread: int, stopping: threading.Event) -> None:
    rng = random.Random(f"{task.seed} {task.name} {thread}")
    for life in range(task.lives):
        if stopping.is_set():
            return
        ending = threading.Event()
        timer = threading.Timer(rng.uniform(*_BURST_SECONDS), ending.set)
        timer.start()
        _Life(task, f"{task.name}.{thread}.{life}", ending).run()
        timer.cancel()


def main(task: Task) -> None:
    stopping = begin_program()
    if not task.lives:
        _Life(task, task.name, stopping).run()
        return
    threads = [threading.Thread(target=_burst, args=(task, number, stopping)) for number in range(task.threads)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


if __name__ == "__main__":
    main(Task.told())
