"""One Python consumer of a run: ZOOKEEPER GROUP TOPIC CONSUMER_ID JOURNAL SESSION_SECONDS; runs until SIGTERM.

It writes down what poll() returns before it calls poll() again, which is what makes it count as consumed.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from metaq import Consumer, ConsumerConfig, Message

READY = "consuming"
POLL_SECONDS = 0.25
COMMIT_SECONDS = 1.0


def main(arguments: Sequence[str]) -> None:
    """Join, say READY, consume."""
    zookeeper, group, topic, consumer_id, journal, session_seconds = arguments
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    config = ConsumerConfig(
        auto_commit_seconds=COMMIT_SECONDS, session_timeout_seconds=float(session_seconds), consumer_id=consumer_id
    )
    with (
        Path(journal).open("ab", buffering=0) as lines,
        Consumer(zookeeper, group=group, topics=[topic], start="earliest", config=config) as consumer,
    ):
        print(READY, flush=True)
        while not stopping:
            if messages := consumer.poll(timeout=POLL_SECONDS):
                lines.write(b"".join(map(_line, messages)))


def _line(message: Message) -> bytes:
    words = (time.time_ns() // 1000, message.partition, message.id, message.payload.decode("ascii"))
    return (" ".join(map(str, words)) + "\n").encode("ascii")


if __name__ == "__main__":
    main(sys.argv[1:])
