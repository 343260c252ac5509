"""Our load generator: `python -m bench.worker <zkConnect>`, the counterpart of metaq.peer.Peer, with the same commands.

Reads commands from standard input, one a line, and answers each with one line of JSON. Sizes are bytes of a message's
data, timeouts seconds. Any failed send fails the command.
"""

from __future__ import annotations

import itertools
import json
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from metaq import Consumer, Producer

Answer = dict[str, Any]

LATENCY_TIMEOUT_SECONDS = 60.0
STAMP = struct.Struct(">iq")  # number of the message, monotonic nanoseconds of its send call


def rate(count: int, nanoseconds: int) -> Answer:
    """How a measured number of messages is reported."""
    return {"count": count, "seconds": nanoseconds / 1e9, "rate": count * 1e9 / nanoseconds}


class Generator:
    """The commands; one producer for all of them, a new consumer for each that receives."""

    def __init__(self, zk_connect: str) -> None:
        self._zk_connect = zk_connect
        self._producer = Producer(zk_connect)

    def close(self) -> None:
        """Close the producer."""
        self._producer.close()

    def send_blocking(self, topic: str, threads: int, count: int, size: int) -> Answer:
        """Every thread waits for each of its sends."""
        data = bytes(size)
        numbers = itertools.count()

        def sender() -> None:
            while next(numbers) < count:
                self._producer.send(topic, data)

        start = time.perf_counter_ns()
        with ThreadPoolExecutor(threads) as pool:
            running = [pool.submit(sender) for _ in range(threads)]
        elapsed = time.perf_counter_ns() - start
        for each in running:
            each.result()
        return rate(count, elapsed)

    def send_async(self, topic: str, window: int, count: int, size: int) -> Answer:
        """One thread, at most `window` sends without an answer."""
        data = bytes(size)
        send = self._producer.send_async
        unanswered: deque[Future[Any]] = deque()
        start = time.perf_counter_ns()
        for _ in range(count):
            if len(unanswered) == window:
                unanswered.popleft().result()
            unanswered.append(send(topic, data))
        for future in unanswered:
            future.result()
        return rate(count, time.perf_counter_ns() - start)

    def send_batch(self, topic: str, batch: int, count: int, size: int) -> Answer:
        """One thread, each frame with `batch` messages is waited for."""
        payloads = [bytes(size)] * batch
        start = time.perf_counter_ns()
        for _ in range(count // batch):
            self._producer.send_batch(topic, payloads)
        return rate(count // batch * batch, time.perf_counter_ns() - start)

    def consume(self, topic: str, group: str, count: int, timeout: int) -> Answer:
        """The rate from the first messages to the last; joining the group is not measured."""
        deadline = time.monotonic() + timeout
        with Consumer(self._zk_connect, group=group, topics=[topic], start="earliest") as consumer:
            first = 0
            while not first:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"nothing received in {timeout} s")
                first = len(consumer.poll(max_messages=1, timeout=1.0))
            start = time.perf_counter_ns()
            seen = first
            while seen < count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"received {seen} of {count} in {timeout} s")
                seen += len(consumer.poll(max_messages=1000, timeout=1.0))
            return rate(seen - first, time.perf_counter_ns() - start)

    def latency(self, topic: str, group: str, per_second: int, warm_up: int, count: int, size: int) -> Answer:
        """From the send call to the poll that returns the message, both here; percentiles of the last `count` in ms."""
        with Consumer(self._zk_connect, group=group, topics=[topic], start="earliest") as consumer:
            nanoseconds = [0] * (warm_up + count)
            with ThreadPoolExecutor(1) as pool:
                receiving = pool.submit(self._receive_stamps, consumer, nanoseconds)
                self._send_stamps(topic, per_second, warm_up + count, size)
                receiving.result()
        ordered = sorted(nanoseconds[warm_up:])
        return {
            "count": count,
            "p50_ms": ordered[count // 2] / 1e6,
            "p99_ms": ordered[count * 99 // 100] / 1e6,
            "max_ms": ordered[-1] / 1e6,
        }

    def _send_stamps(self, topic: str, per_second: int, count: int, size: int) -> None:
        failed = threading.Event()

        def note(future: Future[Any]) -> None:
            if future.exception() is not None:
                failed.set()

        padding = bytes(size - STAMP.size)
        start = time.perf_counter_ns()
        for number in range(count):
            early = start + number * 1_000_000_000 // per_second - time.perf_counter_ns()
            if early > 0:
                time.sleep(early / 1e9)
            stamp = STAMP.pack(number, time.perf_counter_ns())
            self._producer.send_async(topic, stamp + padding).add_done_callback(note)
        if failed.is_set():
            raise RuntimeError("a send failed")

    @staticmethod
    def _receive_stamps(consumer: Consumer, nanoseconds: list[int]) -> None:
        deadline = time.monotonic() + LATENCY_TIMEOUT_SECONDS
        missing = len(nanoseconds)
        while missing:
            messages = consumer.poll(max_messages=500, timeout=1.0)
            now = time.perf_counter_ns()
            for message in messages:
                number, sent = STAMP.unpack_from(message.payload)
                nanoseconds[number] = now - sent
            missing -= len(messages)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{missing} messages missing after {LATENCY_TIMEOUT_SECONDS:.0f} s")


def answer(generator: Generator, line: str) -> Answer:
    """Run one line's command; its numbers are passed as int. A failure is an answer with the key "error"."""
    name, *words = line.split()
    commands: dict[str, Callable[..., Answer]] = {
        command.__name__: command
        for command in (
            generator.send_blocking,
            generator.send_async,
            generator.send_batch,
            generator.consume,
            generator.latency,
        )
    }
    if name not in commands:
        return {"error": f"unknown command {name!r}, known are {sorted(commands)}"}
    try:
        return commands[name](*(int(word) if word.isdigit() else word for word in words))
    except Exception as error:  # the driver decides what a failed command means; it gets the type and the text
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Answer standard input's lines until it ends."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m bench.worker <zkConnect>")
    generator = Generator(sys.argv[1])
    try:
        for line in sys.stdin:
            print(json.dumps(answer(generator, line)), flush=True)
    finally:
        generator.close()


if __name__ == "__main__":
    main()
