"""The asyncio client on real brokers: what it sends and reads while brokers die, and while its tasks are cancelled."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from metaq import Consumer as ThreadConsumer
from metaq import ConsumerConfig, Producer, aio
from tests.integration.client_cluster import SESSION_SECONDS, Brokers
from tests.integration.set_nodes import SetNodes
from tests.waiting import DEADLINE

TOPICS = {"t": 4}
CONFIG = ConsumerConfig(session_timeout_seconds=SESSION_SECONDS, auto_commit_seconds=0.1)


class Load:
    """Tasks send numbered messages, some tasks are cancelled meanwhile, and the only member of a group reads them."""

    def __init__(self, connect: str) -> None:
        self.acknowledged: set[bytes] = set()
        self.received: Counter[bytes] = Counter()
        self.cancelled = 0
        self._producer = aio.Producer(connect)
        self._consumer = aio.Consumer(connect, group="g", topics=["t"], config=CONFIG)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._producer, self._consumer, asyncio.timeout(DEADLINE):
            reading = asyncio.create_task(self._read())
            sending = asyncio.create_task(self._send())
            yield
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await self._producer.flush(DEADLINE)
            await self.until(lambda: self.acknowledged <= self.received.keys())
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():
                await asyncio.sleep(0.01)

    async def _send(self) -> None:
        chance, number = random.Random(1), 0
        async with asyncio.TaskGroup() as group:
            while True:
                task = group.create_task(self._send_one(b"%d" % number, f"k{number % 7}" if number % 2 else None))
                if chance.random() < 0.1:
                    asyncio.get_running_loop().call_later(chance.random() * 0.005, task.cancel)
                number += 1
                await asyncio.sleep(0.001)

    async def _send_one(self, payload: bytes, key: str | None) -> None:
        try:
            await self._producer.send("t", payload, key=key, timeout=DEADLINE)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.acknowledged.add(payload)

    async def _read(self) -> None:
        while True:
            for message in await self._consumer.poll(timeout=0.1):
                self.received[bytes(message.payload)] += 1


def _check(load: Load, connect: str) -> None:
    """Every message is stored at most once, and each acknowledged one was read."""
    assert load.cancelled > 10
    assert load.acknowledged <= load.received.keys()
    with ThreadConsumer(connect, group="check", topics=["t"], config=CONFIG) as consumer:
        stored: Counter[bytes] = Counter()
        while stored.total() < len(load.received):
            stored.update(bytes(each.payload) for each in consumer.poll(timeout=DEADLINE))
        stored.update(bytes(each.payload) for each in consumer.poll(timeout=0.5))
    assert stored.keys() >= load.received.keys()
    assert max(stored.values()) == 1


def test_sends_and_reads_survive_a_killed_broker_and_cancelled_tasks(brokers: Brokers) -> None:
    brokers.start(1)
    load = Load(brokers.connect)

    async def main() -> None:
        async with load.running():
            await load.until(lambda: len(load.received) > 300)
            brokers.running[0].kill()
            before = len(load.acknowledged)
            await load.until(lambda: len(load.acknowledged) > before + 200)
            await asyncio.to_thread(brokers.start, 0)
            before = len(load.acknowledged)
            await load.until(lambda: len(load.acknowledged) > before + 200)

    asyncio.run(main())
    _check(load, brokers.connect)


def test_sends_and_reads_follow_the_leader_of_a_broker_set(nodes: SetNodes) -> None:
    load = Load(nodes.connect)

    async def main() -> None:
        async with load.running():
            await load.until(lambda: len(load.received) > 200)
            nodes.nodes[nodes.leader].kill()
            before = len(load.acknowledged)
            await load.until(lambda: len(load.acknowledged) > before + 200)

    asyncio.run(main())
    _check(load, nodes.connect)


def test_members_with_threads_and_on_a_loop_lose_and_repeat_nothing_as_they_come_and_go(
    brokers: Brokers, producer: Producer
) -> None:
    received: list[bytes] = []

    async def read(stop: threading.Event) -> None:
        async with aio.Consumer(brokers.connect, group="g", topics=["t"], config=CONFIG) as consumer:
            while not stop.is_set():
                received.extend(bytes(each.payload) for each in await consumer.poll(timeout=0.05))

    def read_on_a_thread(stop: threading.Event) -> None:
        with ThreadConsumer(brokers.connect, group="g", topics=["t"], config=CONFIG) as consumer:
            while not stop.is_set():
                received.extend(bytes(each.payload) for each in consumer.poll(timeout=0.05))

    async def main() -> None:
        first, last = threading.Event(), threading.Event()
        async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
            group.create_task(read(first))
            for number in range(600):
                if number == 150:
                    group.create_task(asyncio.to_thread(read_on_a_thread, last))
                if number == 300:
                    group.create_task(read(last))
                if number == 450:
                    first.set()
                producer.send_async("t", b"%d" % number, key=str(number))
                await asyncio.sleep(0.005)
            while len(received) < 600:
                await asyncio.sleep(0.01)
            last.set()

    asyncio.run(main())
    assert sorted(map(int, received)) == list(range(600))
