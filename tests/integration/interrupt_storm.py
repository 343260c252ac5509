"""A main thread that sends and polls while an interval timer's handler raises in it, thousands of times.

Run by test_interrupt_storm.py, and by hand: `python -m tests.integration.interrupt_storm <interrupts>`.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections import Counter
from functools import partial
from queue import Empty, SimpleQueue
from random import Random
from typing import Any

from metaq import Producer, ProducerConfig
from metaq.client.config import ConnectionConfig
from metaq.client.connection import open_connection
from metaq.client.testing import FakeBroker, FakeCluster
from metaq.protocol.errors import BrokerUnavailable, MetaqError
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.statuses import RequestCode

_PATIENCE = 20.0


class Limit(Exception):
    """What a web worker's time limit raises."""


class Storm:
    """Calls something on the main thread, and interrupts it once at a random time of each call."""

    def __init__(self, seed: int = 1) -> None:
        self.interrupts = 0
        self._random = Random(seed)
        self._armed = False
        signal.signal(signal.SIGALRM, self._strike)

    def _strike(self, _number: int, _frame: object) -> None:
        if self._armed:
            self._armed = False
            self.interrupts += 1
            raise Limit

    def call(self, action: Any, within: float) -> bool:
        """Whether it was interrupted."""
        try:
            self._armed = True
            signal.setitimer(signal.ITIMER_REAL, self._random.uniform(0.00001, within))
            action()
            self._armed = False
        except Limit:
            return True
        finally:
            self._armed = False
        return False


def storm_of_calls(interrupts: int) -> dict[str, int]:
    """Blocking calls, and futures of another thread, on one connection at a time."""
    seen: Counter[str] = Counter()
    with FakeBroker({"t": 1}) as broker:
        connection = open_connection(broker.endpoint, ConnectionConfig())
        lock, stop = threading.Lock(), threading.Event()

        def ask(opaque: int) -> tuple[bytes]:
            return (encode_frame(RequestCode.STATS, opaque, {"item": "x"}),)

        def others() -> None:
            while not stop.is_set():
                with lock:
                    here = connection
                done: SimpleQueue[object] = SimpleQueue()  # an Event may be interrupted with its lock held

                def answered(reply: object, _error: object, done: SimpleQueue[object] = done) -> None:
                    done.put(reply)

                here.submit(ask, answered, time.monotonic() + 30)
                try:
                    done.get(timeout=_PATIENCE)
                    seen["futures"] += 1
                except Empty:
                    seen["futures lost"] += 1
                try:
                    assert isinstance(here.call(ask, _PATIENCE), Frame)
                    seen["calls of others"] += 1
                except BrokerUnavailable:
                    seen["calls of others ended with their connection"] += 1
                except MetaqError:
                    seen["calls of others lost"] += 1

        thread = threading.Thread(target=others)
        thread.start()
        storm = Storm()
        while storm.interrupts < interrupts:
            try:
                if not storm.call(partial(connection.call, ask, _PATIENCE), 0.0006):
                    seen["calls"] += 1
            except BrokerUnavailable:
                seen["calls that found the connection ended"] += 1
            except MetaqError:
                seen["calls lost"] += 1
            if connection.closed:
                seen["connections ended"] += 1
                with lock:
                    connection = open_connection(broker.endpoint, ConnectionConfig())
        stop.set()
        thread.join()
        connection.close()
    seen["interrupts"] = storm.interrupts
    return dict(seen)


def storm_of_sends(interrupts: int) -> dict[str, int]:
    """send() of a producer, with futures of another thread."""
    seen: Counter[str] = Counter()
    config = ProducerConfig(retry_min_seconds=0.001, retry_max_seconds=0.01)
    with FakeBroker({"t": 4}) as broker, Producer(metadata=FakeCluster([broker]), config=config) as producer:
        stop = threading.Event()

        def others() -> None:
            while not stop.is_set():
                try:
                    producer.send_async("t", b"other", timeout=_PATIENCE).result(_PATIENCE + 5)
                    seen["futures"] += 1
                except (MetaqError, TimeoutError) as error:
                    print(f"a future was lost: {error!r}", file=sys.stderr)
                    seen["futures lost"] += 1

        thread = threading.Thread(target=others)
        thread.start()
        storm = Storm()
        while storm.interrupts < interrupts and not seen["futures lost"]:
            try:
                if not storm.call(lambda: producer.send("t", b"x", timeout=_PATIENCE), 0.0008):
                    seen["sends"] += 1
            except MetaqError as error:
                print(f"a send was lost: {error!r}", file=sys.stderr)
                seen["sends lost"] += 1
        stop.set()
        thread.join()
    seen["interrupts"] = storm.interrupts
    return dict(seen)


if __name__ == "__main__":
    count = int(sys.argv[1])
    for run in (storm_of_calls, storm_of_sends) if len(sys.argv) == 2 else (storm_of_sends,):
        print(run.__name__, json.dumps(run(count), sort_keys=True), flush=True)
