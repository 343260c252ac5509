"""Calls of a shared consumer that an interrupt ends, as Ctrl-C or a web worker's time limit does: no other thread of it
waits for ever then, and no message is lost."""

from __future__ import annotations

import threading
import time
from functools import partial
from random import Random

import pytest

from metaq import Producer, SharedConfig, SharedConsumer, SharedMessage
from tests.integration.alarms import Alarm, Limit, interrupted_behind
from tests.integration.client_cluster import Brokers
from tests.waiting import DEADLINE, eventually

COUNT = 1000


def flushes(consumer: SharedConsumer) -> bool:
    """Whether another thread gets through: it waits for the driver, and for answers."""
    flushing = threading.Thread(target=consumer.flush, args=(DEADLINE,), daemon=True)
    flushing.start()
    flushing.join(8.0)
    return not flushing.is_alive()


@pytest.fixture
def sent(brokers: Brokers) -> set[bytes]:
    sent = {b"%d" % number for number in range(COUNT)}
    with Producer(brokers.connect) as producer:
        producer.send_batch("t", sorted(sent))
    return sent


def test_wherever_a_call_is_interrupted_it_stops_nobody_and_loses_nothing(brokers: Brokers, sent: set[bytes]) -> None:
    seen: set[bytes] = set()
    with SharedConsumer(brokers.connect, group="g", topics=["t"], config=SharedConfig(lease_seconds=2.0)) as consumer:

        def poll() -> None:
            for message in consumer.poll(0.5, max_messages=2):
                seen.add(message.payload)
                consumer.extend(message)
                consumer.ack(message)

        def release() -> None:
            for message in consumer.poll(0.5, max_messages=1):
                consumer.release(message)

        for call in (poll, release, partial(consumer.flush, 5.0)):
            passed = 0
            while interrupted_behind(call, passed):
                assert flushes(consumer), (call, passed)
                passed += 1
            assert passed > 5
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end and seen != sent:
            for message in consumer.poll(0.2, max_messages=100):
                seen.add(message.payload)
                consumer.ack(message)
        assert seen == sent
        consumer.flush(DEADLINE)
        began = time.monotonic()
    assert time.monotonic() - began < 4.0


def test_a_run_that_is_interrupted_ends_its_threads_and_may_be_called_again(brokers: Brokers, sent: set[bytes]) -> None:
    random, interrupted = Random(2), 0
    seen: set[bytes] = set()
    before = threading.active_count()

    def handle(message: SharedMessage) -> None:
        seen.add(message.payload)

    with SharedConsumer(brokers.connect, group="g", topics=["t"], config=SharedConfig(lease_seconds=1.0)) as consumer:
        with Alarm() as alarm:
            for _ in range(20):
                try:
                    interrupted += alarm.interrupts(lambda: consumer.run(handle, threads=2), random.random() * 0.2)
                except Limit:  # behind the first one
                    interrupted += 1
                assert flushes(consumer)
        assert interrupted == 20
        running = threading.Thread(target=consumer.run, args=(handle,), daemon=True)
        running.start()
        eventually(lambda: seen == sent, what="all messages")
        consumer.stop()
        running.join(DEADLINE)
        assert not running.is_alive()
    eventually(lambda: threading.active_count() <= before, what="the end of its threads")
