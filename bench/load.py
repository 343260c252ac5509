"""A producer in a process of its own that records when its messages are acknowledged while nodes stop and start.

`python -m bench.load <zkConnect>` reads commands from standard input: `start <topic> <window> <size>`, `stop`, and
`fill <topic> <megabytes> <size>` for a backlog. Times are values of `time.monotonic()`, which all processes of a
machine share.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metaq import Producer

from .processes import Worker

__all__ = ["Gap", "History", "Load", "load"]

ROOT = Path(__file__).resolve().parents[1]
BUCKETS_PER_SECOND = 20
NOTED_GAP_SECONDS = 0.01
BATCH = 500
BATCHES_UNDER_WAY = 4
_RETRY_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Gap:
    """A span of time in which no message was acknowledged."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class History:
    """What one producer recorded: the number of acknowledgements in each bucket of 1 / BUCKETS_PER_SECOND s, the gaps
    between acknowledgements, and the errors.
    """

    def __init__(self, answer: dict[str, Any]) -> None:
        """answer: the process's answer to the command `stop`."""
        self.gaps = [Gap(*each) for each in answer["gaps"]]
        self.errors: list[str] = answer["errors"]
        self._counts = {int(bucket): count for bucket, count in answer["counts"].items()}
        self._buckets = sorted(self._counts)

    def rate(self, begin: float, end: float) -> float:
        """Return the acknowledged messages a second between two times, which are rounded to whole buckets."""
        first, last = round(begin * BUCKETS_PER_SECOND), round(end * BUCKETS_PER_SECOND)
        return self.acknowledged(begin, end) * BUCKETS_PER_SECOND / max(last - first, 1)

    def acknowledged(self, begin: float, end: float) -> int:
        """Return the number of acknowledged messages between two times, which are rounded to whole buckets."""
        first, last = (bisect_left(self._buckets, round(each * BUCKETS_PER_SECOND)) for each in (begin, end))
        return sum(self._counts[bucket] for bucket in self._buckets[first:last])

    def longest_gap(self, begin: float, end: float) -> Gap:
        """Return the longest recorded gap that overlaps the span from `begin` to `end`. If there is none, return a gap
        of NOTED_GAP_SECONDS at `begin`.
        """
        found = [gap for gap in self.gaps if gap.end > begin and gap.begin < end]
        return max(found, key=lambda gap: gap.seconds, default=Gap(begin, begin + NOTED_GAP_SECONDS))

    def gap_at(self, moment: float) -> Gap:
        """Return the recorded gap that contains this moment. If there is none, return a gap of NOTED_GAP_SECONDS."""
        found = [gap for gap in self.gaps if gap.begin <= moment <= gap.end]
        return found[0] if found else Gap(moment, moment + NOTED_GAP_SECONDS)


class Load:
    """Controls the producer's process from another process. Its methods raise ProcessFailed if the producer fails."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def fill(self, topic: str, megabytes: int, size: int) -> dict[str, Any]:
        """Send batches of payloads of `size` bytes; return the number of messages and the seconds taken."""
        return self._worker.call("fill", topic, megabytes, size)

    def start(self, topic: str, window: int, size: int) -> None:
        """Produce as fast as possible until stop(), with `window` messages in flight."""
        self._worker.call("start", topic, window, size)

    def stop(self) -> History:
        """Stop producing, wait until all messages are answered, and return the record."""
        return History(self._worker.call("stop"))


@contextmanager
def load(zk_connect: str, log: Path) -> Iterator[Load]:
    """Start a producer's process, and yield it."""
    with Worker([sys.executable, "-m", "bench.load", zk_connect], log, ROOT) as worker:
        yield Load(worker)


# --- in the process -------------------------------------------------------------------------------------------------


class _Run:
    """A thread that sends continuously. The client's threads record the acknowledgements when they arrive."""

    def __init__(self, producer: Producer, topic: str, window: int, size: int) -> None:
        self._producer = producer
        self._topic = topic
        self._room = threading.Semaphore(window)
        self._window = window
        self._data = os.urandom(size)
        self._lock = threading.Lock()
        self._last = time.monotonic()
        self._gaps: list[tuple[float, float]] = []
        self._counts: Counter[int] = Counter()
        self._errors: list[str] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._stopping:
            self._room.acquire()
            try:
                self._producer.send_async(self._topic, self._data).add_done_callback(self._answered)
            except Exception as error:
                self._failed(error)
                time.sleep(_RETRY_SECONDS)
        for _ in range(self._window):
            self._room.acquire()

    def _answered(self, future: Future[Any]) -> None:
        error = future.exception()
        if error is not None:
            self._failed(error)
            return
        with self._lock:
            now = time.monotonic()
            if now - self._last > NOTED_GAP_SECONDS:
                self._gaps.append((self._last, now))
            self._last = now
            self._counts[int(now * BUCKETS_PER_SECOND)] += 1
        self._room.release()

    def _failed(self, error: BaseException) -> None:
        with self._lock:
            self._errors.append(repr(error))
        self._room.release()

    def stop(self) -> dict[str, Any]:
        self._stopping = True
        self._thread.join()
        return {"gaps": self._gaps, "counts": self._counts, "errors": self._errors}


def _fill(producer: Producer, topic: str, megabytes: int, size: int) -> dict[str, Any]:
    payloads = [os.urandom(size)] * BATCH
    batches = max(1, megabytes * 1_000_000 // (size * BATCH))
    unanswered: deque[Future[Any]] = deque()
    began = time.monotonic()
    for _ in range(batches):
        if len(unanswered) == BATCHES_UNDER_WAY:
            unanswered.popleft().result()
        unanswered.append(producer.send_batch_async(topic, payloads))
    for each in unanswered:
        each.result()
    return {"messages": batches * BATCH, "seconds": time.monotonic() - began}


def main() -> None:
    """Execute the commands from standard input, one per line, until the input ends."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m bench.load <zkConnect>")
    run: _Run | None = None
    with Producer(sys.argv[1]) as producer:
        for line in sys.stdin:
            name, *words = line.split()
            answer: dict[str, Any] = {}
            try:
                if name == "start":
                    run = _Run(producer, words[0], int(words[1]), int(words[2]))
                elif name == "fill":
                    answer = _fill(producer, words[0], int(words[1]), int(words[2]))
                elif name == "stop" and run is not None:
                    answer = run.stop()
                    run = None
                else:
                    answer = {"error": f"cannot {line.strip()!r} now"}
            except Exception as error:  # the driver decides what a failure means
                answer = {"error": repr(error)}
            print(json.dumps(answer), flush=True)
    if run is not None:
        os._exit(1)  # the driver has failed, and the brokers may be gone


if __name__ == "__main__":
    main()
