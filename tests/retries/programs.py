"""The processes that are killed: `python -m tests.retries.programs produce|consume|redrive CONNECT FILE …`."""

from __future__ import annotations

import itertools
import logging
import sys
import time
from pathlib import Path

from metaq import Consumer, ConsumerConfig, DeadLetters, Message, Producer, Retry
from metaq.errors import MetaqError

from .facts import ATTEMPTS, PAUSE, Note, payload_of

TOPIC, GROUP = "t", "g"
RETRY = Retry(attempts=ATTEMPTS, first=PAUSE, factor=1.0, most=PAUSE, jitter=0)
SESSION_SECONDS = 2.0


def produce(connect: str, path: Path, first: int) -> None:
    """Send messages, from the number `first` on, and note those that are acknowledged."""
    note = Note(path)
    with Producer(connect) as producer:
        for number in itertools.count(first):
            try:
                producer.send(TOPIC, payload_of(number))
            except MetaqError as error:  # whether it is stored is not known; the next one may be
                logging.warning("%d: %s", number, error)
            else:
                note.write(number)
            time.sleep(0.005)


def consume(connect: str, path: Path) -> None:
    """Handle messages as they say, and note each call before, and each success behind it."""
    note = Note(path)

    def handle(message: Message) -> None:
        number, failures = map(int, message.payload.split())
        note.write("call", number, message.attempts, time.time())
        if message.attempts <= failures:
            raise ValueError(f"attempt {message.attempts} at {number}")
        note.write("done", number)

    config = ConsumerConfig(
        session_timeout_seconds=SESSION_SECONDS, auto_commit_seconds=0.2, retry_step_seconds=0.1, retry_max_seconds=0.5
    )
    with Consumer(connect, group=GROUP, topics=[TOPIC], config=config) as consumer:
        consumer.run(handle, retry=RETRY, threads=2)


def redrive(connect: str, path: Path) -> None:
    """Send all dead letters again, and note each."""
    note = Note(path)
    with DeadLetters(connect, group=GROUP) as letters:
        for each in letters.redrive(letters.read()):
            note.write(each.letter.name)


def main(words: list[str]) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    what, connect, path = words[0], words[1], Path(words[2])
    if what == "produce":
        produce(connect, path, int(words[3]))
    elif what == "consume":
        consume(connect, path)
    elif what == "redrive":
        redrive(connect, path)
    else:
        raise SystemExit(f"there is no program {what!r}")


if __name__ == "__main__":
    main(sys.argv[1:])
