"""Fill a data directory with the broker's own store, then end this process by SIGKILL: `python -m
bench.startup_fill`.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from metaq.broker.assembly.kinds import KINDS
from metaq.broker.store.batch import stamp_puts
from metaq.broker.store.store import Store, TopicStoreConfig
from metaq.protocol.record import HEADER_BYTES, checksum

__all__ = ["REBUILT_TOPIC", "TOPIC", "fill"]

TOPIC = "many"
REBUILT_TOPIC = "closed"
"""Name of a topic with one partition that has many closed segments."""
CLOSED_SEGMENT_BYTES = 64 << 20

_FIRST_ID = 1 << 60
_WORKERS = 16
_BATCH_BYTES = 256 << 10
_TICK_EVERY = 64
"""Number of partitions that are written between two ticks of the store. At some hundred MB/s this makes about four
ticks a second.
"""


class _Threads:
    """Worker threads. The results of their functions wait in a queue until the owning thread calls deliver()."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Callable[[Any], None], Any]] = queue.SimpleQueue()
        for _ in range(_WORKERS):
            threading.Thread(target=self._run, daemon=True).start()

    def __call__(self, function: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._work.put((function, done))

    def _run(self) -> None:
        while True:
            function, done = self._work.get()
            try:
                result = function()
            except BaseException as error:
                result = error
            self._done.put((done, result))

    def deliver(self) -> None:
        while not self._done.empty():
            done, result = self._done.get()
            done(result)


def fill(
    data_path: str, partitions: int, total_bytes: int, body_bytes: int, *, closed_bytes: int, durable: bool
) -> None:
    """Append the same number of whole records to each partition, in batches of up to 256 KiB. The store is not closed
    afterwards.

    closed_bytes: bytes for the partition of REBUILT_TOPIC, which is filled first. durable: flush like a broker that
    acknowledges a message only when it is on the disk.
    """
    threads = _Threads()
    threshold = 0 if durable else 1000
    wide, closed = (TopicStoreConfig(size, threshold, 10_000, None) for size in (1 << 30, CLOSED_SEGMENT_BYTES))
    store = Store(
        [data_path], lambda topic: closed if topic == REBUILT_TOPIC else wide, kinds=KINDS, run_in_thread=threads
    )
    store.open()
    for topic, count, size in ((REBUILT_TOPIC, 1, closed_bytes), (TOPIC, partitions, total_bytes)):
        _append(store, threads, topic, count, size // count, body_bytes)


def _append(store: Store, threads: _Threads, topic: str, partitions: int, bytes_each: int, body_bytes: int) -> None:
    body = os.urandom(body_bytes)
    record_bytes = HEADER_BYTES + body_bytes
    left = bytes_each // record_bytes
    next_id = _FIRST_ID
    while left:
        count = min(left, max(1, _BATCH_BYTES // record_bytes))
        left -= count
        flags, checksums = np.zeros(count, np.int64), np.full(count, checksum(body))
        for partition in range(partitions):
            log = store.get_or_create(topic, partition)
            ids = np.arange(next_id, next_id + count, dtype=np.int64)
            next_id += count
            stamped = stamp_puts(flags, checksums, [body] * count, ids)
            stamped.units["offset"] += log.end_offset
            log.append((stamped.data,), stamped.units.tobytes())
            if not partition % _TICK_EVERY:
                store.tick()
                threads.deliver()


if __name__ == "__main__":
    fill(sys.argv[1], *map(int, sys.argv[2:5]), closed_bytes=int(sys.argv[5]), durable=sys.argv[6] == "durable")
    os.kill(os.getpid(), signal.SIGKILL)
