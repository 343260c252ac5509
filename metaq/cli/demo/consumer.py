"""One consumer process of the demo: a member of the group that writes down what it gets.

It works at a limited rate, as one with real work per message would, so that joins and crashes fall in mid-stream.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from metaq import Consumer, ConsumerConfig, Message

from .delivery import History, empty_history

__all__ = ["main"]

POLL_MESSAGES = 500
POLL_SECONDS = 0.25
COMMIT_SECONDS = 1.0


class Throttle:
    """Keeps work to at most `rate` messages a second, counted from the last time there was nothing to do."""

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds_each = 1.0 / rate
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    def worked(self, messages: int) -> None:
        """Return when `messages` more would be done at the rate."""
        now = self._clock()
        self._free_at = max(self._free_at, now - self._seconds_each) + messages * self._seconds_each
        if self._free_at > now:
            self._sleep(self._free_at - now)


def history_of(messages: Sequence[Message], time_ns: int) -> History:
    """Rows for messages that were received together."""
    rows = empty_history(len(messages))
    rows["time_ns"] = time_ns
    rows["sequence"] = [json.loads(message.payload)["sequence"] for message in messages]
    rows["offset"] = [message.offset for message in messages]
    rows["broker"] = [message.partition.broker for message in messages]
    rows["partition"] = [message.partition.partition for message in messages]
    return rows


def main(arguments: Sequence[str]) -> None:
    """ZOOKEEPER GROUP TOPIC CONSUMER_ID HISTORY_FILE RATE SESSION_SECONDS; runs until SIGTERM."""
    zookeeper, group, topic, consumer_id, history, rate, session_seconds = arguments
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    config = ConsumerConfig(
        auto_commit_seconds=COMMIT_SECONDS, session_timeout_seconds=float(session_seconds), consumer_id=consumer_id
    )
    throttle = Throttle(float(rate))
    with (
        Path(history).open("ab", buffering=0) as rows,
        Consumer(zookeeper, group=group, topics=[topic], start="earliest", config=config) as consumer,
    ):
        while not stopping:
            receive(consumer, rows, throttle)


def receive(consumer: Consumer, rows: BinaryIO, throttle: Throttle) -> None:
    """One poll: the rows are in the file before the next poll lets their offsets be committed."""
    messages = consumer.poll(max_messages=POLL_MESSAGES, timeout=POLL_SECONDS)
    if messages:
        rows.write(history_of(messages, time.monotonic_ns()).tobytes())
        throttle.worked(len(messages))
