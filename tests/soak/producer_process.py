"""One Python producer of a run: ZOOKEEPER TOPIC NAME JOURNAL PAUSE_SECONDS; runs until SIGTERM.

It sends "NAME number", one after the other, and writes down each one that was acknowledged. The client tries a send
again by itself, so that a message may be stored twice; one that was never acknowledged is not sent anew.
"""

from __future__ import annotations

import itertools
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from metaq import Producer
from metaq.protocol.errors import MetaqError

READY = "producing"
SEND_SECONDS = 20.0
"""Longer than any broker of a run is away."""


def main(arguments: Sequence[str]) -> None:
    """Say READY, send."""
    zookeeper, topic, name, journal, pause = arguments
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    with Path(journal).open("ab", buffering=0) as lines, Producer(zookeeper) as producer:
        print(READY, flush=True)
        for number in itertools.count():
            if stopping:
                break
            try:
                result = producer.send(topic, f"{name} {number}".encode(), timeout=SEND_SECONDS)
            except MetaqError as error:
                print(f"{name} {number}: {error}", flush=True)
            else:
                lines.write(f"{name} {number} {result.partition} {result.offset}\n".encode())
            time.sleep(float(pause))


if __name__ == "__main__":
    main(sys.argv[1:])
