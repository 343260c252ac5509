"""The process with the producers: `python -m tests.history.sender JSON`, see Task; it ends at SIGTERM.

Four threads send: one waits for each message (`sequential`), one for each to a fixed partition (`fixed`), one sends
with keys and does not wait (`keyed`), one keeps some futures (`futures`). sending.py describes their journal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from metaq import SendResult
from metaq.protocol.errors import MetaqError
from tests.kills.journal import clock
from tests.kills.programs import ProgramTask

from .sending import Load, Pipeline, Sender, Way, fixed, run_senders, sequential

__all__ = ["Task"]

KEYS = 6
_SEND_SECONDS = 15.0
_UNDER_WAY = 200
_HELD = 20
_BURST = (1, 1, 5)


@dataclass(frozen=True, slots=True)
class Task(ProgramTask):
    """The work of the process. partitions: of each topic and broker. per_second: messages of each thread, about. ways:
    of the threads; else all four."""

    connect: str
    topics: Sequence[str]
    brokers: int
    partitions: int
    seed: int
    journal: str
    per_second: float
    ways: Sequence[str] = ("sequential", "fixed", "keyed", "futures")


def _keyed(sender: Sender, topics: Sequence[str]) -> None:
    pipeline = Pipeline(sender, _UNDER_WAY)
    while sender.go_on():
        number = sender.rng.randrange(KEYS)
        for _ in range(sender.rng.choice(_BURST)):
            pipeline.send(topics[number % len(topics)], f"k{number}")
    pipeline.finish()


def _futures(sender: Sender, topics: Sequence[str]) -> None:
    held: deque[tuple[Callable[[Future[SendResult]], None], Future[SendResult]]] = deque()
    while sender.go_on():
        name, payload = sender.next("-")
        topic, begun = sender.rng.choice(topics), clock()
        try:
            future = sender.producer.send_async(topic, payload, tag=name.tag, timeout=_SEND_SECONDS)
        except MetaqError as error:
            sender.failed(begun, name, topic, error)
        else:
            held.append((partial(sender.ended, begun, name, topic), future))
        if len(held) > _HELD:
            _wait_for(held)
    _wait_for(held)


def _wait_for(held: deque[tuple[Callable[[Future[SendResult]], None], Future[SendResult]]]) -> None:
    while held:
        ended, future = held.popleft()
        ended(future)


def main(task: Task) -> None:
    waiting: dict[str, Way] = {
        "sequential": partial(sequential, topics=task.topics),
        "fixed": partial(fixed, topics=task.topics, brokers=task.brokers, partitions=task.partitions),
    }
    under_way: dict[str, Way] = {
        "keyed": partial(_keyed, topics=task.topics),
        "futures": partial(_futures, topics=task.topics),
    }
    first, second = ({name: ways[name] for name in ways if name in task.ways} for ways in (waiting, under_way))
    run_senders(task.connect, Path(task.journal), Load(task.seed, task.per_second, _SEND_SECONDS), first, second)


if __name__ == "__main__":
    main(Task.told())
