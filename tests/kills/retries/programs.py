"""The processes that are killed: `python -m tests.kills.retries.programs JSON`, see Task.

    acked     number                a message of the producer was acknowledged
    call      number, attempt       a handler got it
    done      number                the handler returns
    redriven  name                  of a dead letter

A message's payload is `number failures`: the handler fails on that many first attempts.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from metaq import Consumer, ConsumerConfig, DeadLetters, Message, Producer, Retry
from metaq.errors import MetaqError
from tests.kills.journal import Journal
from tests.kills.programs import LifeTask, begin_program

from .checkers import ATTEMPTS, PAUSE, payload_of

__all__ = ["GROUP", "SESSION_SECONDS", "TOPIC", "Task"]

TOPIC, GROUP = "t", "g"
RETRY = Retry(attempts=ATTEMPTS, first=PAUSE, factor=1.0, most=PAUSE, jitter=0)
SESSION_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(LifeTask):
    """The arguments. first: number of the first message that is sent."""

    program: str
    connect: str
    first: int = 0


def produce(task: Task, journal: Journal) -> None:
    """Send messages, and record the acknowledged ones."""
    with Producer(task.connect) as producer:
        for number in itertools.count(task.first):
            try:
                producer.send(TOPIC, payload_of(number))
            except MetaqError as error:  # the message may or may not be stored; continue with the next one
                logging.warning("%d: %s", number, error)
            else:
                journal.write("acked", number)
            time.sleep(0.005)


def consume(task: Task, journal: Journal) -> None:
    """Handle messages as their payloads say. Each call is recorded before it, each success after it."""

    def handle(message: Message) -> None:
        number, failures = map(int, message.payload.split())
        journal.write("call", number, message.attempts)
        if message.attempts <= failures:
            raise ValueError(f"attempt {message.attempts} at {number}")
        journal.write("done", number)

    config = ConsumerConfig(
        session_timeout_seconds=SESSION_SECONDS, auto_commit_seconds=0.2, retry_step_seconds=0.1, retry_max_seconds=0.5
    )
    with Consumer(task.connect, group=GROUP, topics=[TOPIC], config=config) as consumer:
        consumer.run(handle, retry=RETRY, threads=2)


def redrive(task: Task, journal: Journal) -> None:
    """Send all dead letters again."""
    with DeadLetters(task.connect, group=GROUP) as letters:
        for each in letters.redrive(letters.read()):
            journal.write("redriven", each.letter.name)


PROGRAMS: Mapping[str, Callable[[Task, Journal], None]] = {"produce": produce, "consume": consume, "redrive": redrive}

if __name__ == "__main__":
    told = Task.told()
    begin_program()
    PROGRAMS[told.program](told, Journal(Path(told.journal)))
