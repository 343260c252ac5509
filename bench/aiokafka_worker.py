"""Load generator with aiokafka: `python -m bench.aiokafka_worker <bootstrap>`. It runs the measuring loops of loops.py
as coroutines.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from .kafka_workers import BULK_BATCH_BYTES, BULK_LINGER_MS, POLL_MESSAGES, POLL_SECONDS
from .loops import LATENCY_TIMEOUT_SECONDS, STAMP, Answer, percentiles, rate, serve


class AioGenerator:
    """The commands of the load generator. They share one event loop, which runs only while a command is executed."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._runner = asyncio.Runner()
        self._prompt, self._bulk = self._runner.run(self._start())

    async def _start(self) -> tuple[AIOKafkaProducer, AIOKafkaProducer]:
        prompt = AIOKafkaProducer(bootstrap_servers=self._bootstrap, acks="all")
        bulk = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap, acks="all", linger_ms=BULK_LINGER_MS, max_batch_size=BULK_BATCH_BYTES
        )
        await prompt.start()
        await bulk.start()
        return prompt, bulk

    def close(self) -> None:
        """Close both producers and the event loop."""

        async def stop() -> None:
            await self._prompt.stop()
            await self._bulk.stop()

        self._runner.run(stop())
        self._runner.close()

    def send_blocking(self, topic: str, threads: int, count: int, size: int) -> Answer:
        """Send from `threads` concurrent tasks; each task waits for the acknowledgement of each of its sends."""
        return self._runner.run(self._send_blocking(topic, threads, count, bytes(size)))

    async def _send_blocking(self, topic: str, tasks: int, count: int, data: bytes) -> Answer:
        numbers = itertools.count()

        async def sender() -> None:
            while next(numbers) < count:
                await self._prompt.send_and_wait(topic, data)

        start = time.perf_counter_ns()
        await asyncio.gather(*(sender() for _ in range(tasks)))
        return rate(count, time.perf_counter_ns() - start)

    def send_async(self, topic: str, window: int, count: int, size: int) -> Answer:
        """Send from one task, with at most `window` unanswered sends."""
        return self._runner.run(self._pipeline(self._prompt, topic, window, count, bytes(size)))

    def produce(self, topic: str, count: int, size: int) -> Answer:
        """Raise NotImplementedError: aiokafka has only futures, no call-backs."""
        raise NotImplementedError("the client has no call-back of a send")

    def futures(self, topic: str, count: int, size: int) -> Answer:
        """Send all messages without waiting, then wait for all futures."""
        return self._runner.run(self._pipeline(self._prompt, topic, count, count, bytes(size)))

    def send_batch(self, topic: str, batch: int, count: int, size: int) -> Answer:
        """Send all messages as fast as the client accepts them, then wait for all acknowledgements. The client gathers
        the batches itself.
        """
        whole = count // batch * batch
        return self._runner.run(self._pipeline(self._bulk, topic, whole, whole, bytes(size)))

    async def _pipeline(self, producer: AIOKafkaProducer, topic: str, window: int, count: int, data: bytes) -> Answer:
        unanswered: deque[asyncio.Future[Any]] = deque()
        start = time.perf_counter_ns()
        for _ in range(count):
            if len(unanswered) == window:
                await unanswered.popleft()
            unanswered.append(await producer.send(topic, data))
        for future in unanswered:
            await future
        return rate(count, time.perf_counter_ns() - start)

    @asynccontextmanager
    async def _consumer(self, topic: str, group: str) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=self._bootstrap, group_id=group, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()

    def consume(self, topic: str, group: str, count: int, timeout: int) -> Answer:
        """Consume `count` messages. The rate is measured from the first received messages to the last; joining the
        group is not measured.
        """
        return self._runner.run(self._consume(topic, group, count, timeout))

    def consume_arrow(self, topic: str, group: str, count: int, timeout: int) -> Answer:
        """Raise NotImplementedError: aiokafka does not support Arrow."""
        raise NotImplementedError("the client has no Arrow")

    async def _consume(self, topic: str, group: str, count: int, timeout: int) -> Answer:
        deadline = time.monotonic() + timeout
        first = seen = size = 0
        start = time.perf_counter_ns()
        async with self._consumer(topic, group) as consumer:
            while seen < count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"received {seen} of {count} in {timeout} s")
                messages = await _poll(consumer)
                seen += len(messages)
                size += sum(len(message.value) for message in messages)
                if seen and not first:
                    first, start = seen, time.perf_counter_ns()
            return {**rate(seen - first, time.perf_counter_ns() - start), "bytes": size}

    def latency(self, topic: str, group: str, per_second: int, warm_up: int, count: int, size: int) -> Answer:
        """Measure the latency from the send call to the poll that returns the message. Return percentiles of the last
        `count` messages, in ms.
        """
        return self._runner.run(self._latency(topic, group, per_second, warm_up, count, size))

    async def _latency(self, topic: str, group: str, per_second: int, warm_up: int, count: int, size: int) -> Answer:
        nanoseconds = [0] * (warm_up + count)
        async with self._consumer(topic, group) as consumer, asyncio.timeout(None) as limit:
            receiving = asyncio.create_task(_receive_stamps(consumer, nanoseconds))
            unanswered = await self._send_stamps(topic, per_second, warm_up + count, size)
            limit.reschedule(asyncio.get_running_loop().time() + LATENCY_TIMEOUT_SECONDS)
            await asyncio.gather(receiving, *unanswered)
        return percentiles(nanoseconds[warm_up:])

    async def _send_stamps(self, topic: str, per_second: int, count: int, size: int) -> list[asyncio.Future[Any]]:
        padding = bytes(size - STAMP.size)
        unanswered = []
        start = time.perf_counter_ns()
        for number in range(count):
            early = start + number * 1_000_000_000 // per_second - time.perf_counter_ns()
            await asyncio.sleep(max(0, early) / 1e9)
            stamp = STAMP.pack(number, time.perf_counter_ns())
            unanswered.append(await self._prompt.send(topic, stamp + padding))
        return unanswered


async def _poll(consumer: AIOKafkaConsumer) -> list[Any]:
    polled = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000), max_records=POLL_MESSAGES)
    return [message for messages in polled.values() for message in messages]


async def _receive_stamps(consumer: AIOKafkaConsumer, nanoseconds: list[int]) -> None:
    missing = len(nanoseconds)
    while missing:
        messages = await _poll(consumer)
        now = time.perf_counter_ns()
        for message in messages:
            number, sent = STAMP.unpack_from(message.value)
            nanoseconds[number] = now - sent
        missing -= len(messages)


def main() -> None:
    """Execute the commands from standard input, one per line, until the input ends."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m bench.aiokafka_worker <bootstrap server>")
    generator = AioGenerator(sys.argv[1])
    try:
        serve(generator)
    finally:
        generator.close()


if __name__ == "__main__":
    main()
