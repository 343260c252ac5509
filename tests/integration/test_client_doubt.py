"""A consumer that for a while cannot know whether its partitions are still its own hands out nothing, and afterwards
everything that it has fetched meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from metaq import Consumer, Producer, TopicPartition
from tests.integration.client_cluster import Brokers, running_brokers
from tests.waiting import eventually

MESSAGES = 200
PARTITIONS = [TopicPartition("t", broker, number) for broker in (0, 1) for number in (0, 1)]


@pytest.fixture
def brokers(chroot: str, tmp_path: Path) -> Iterator[Brokers]:
    with running_brokers(chroot, tmp_path, {"t": 2}, count=2) as brokers:
        yield brokers


def poll(consumer: Consumer, timeout: float) -> list[bytes]:
    return [message.payload for message in consumer.poll(timeout=timeout)]


def poll_one(consumer: Consumer, timeout: float) -> list[bytes]:
    return [message.payload for message in consumer.poll(1, timeout)]


def poll_arrow(consumer: Consumer, timeout: float) -> list[bytes]:
    return [bytes(each) for each in consumer.poll_arrow(timeout=timeout)["payload"].to_pylist()]


@pytest.mark.parametrize("take", [poll, poll_one, poll_arrow])
def test_what_was_fetched_during_a_doubt_comes_after_it(
    chroot: str, brokers: Brokers, take: Callable[[Consumer, float], list[bytes]]
) -> None:
    with Producer(chroot) as producer, Consumer(chroot, group=take.__name__, topics=["t"], start="latest") as consumer:
        eventually(lambda: take(consumer, 0.1) or len(consumer.assignment()) == len(PARTITIONS), what="the assignment")
        states = consumer._core.owned.values()
        eventually(lambda: take(consumer, 0.1) or all(state.opened for state in states), what="the first positions")
        doubt = threading.Event()
        doubt.set()
        sure = consumer._watch.may_have_lost_everything
        consumer._watch.may_have_lost_everything = lambda: doubt.is_set() or sure()  # type: ignore[method-assign]
        sent = [b"%d" % number for number in range(MESSAGES)]
        for number, payload in enumerate(sent):
            producer.send("t", payload, partition=PARTITIONS[number % len(PARTITIONS)])
            if number % 10 == 0:
                assert take(consumer, 0.01) == []
        eventually(
            lambda: take(consumer, 0.05) or all(state.buffered_bytes for state in states), what="data of each partition"
        )
        threading.Timer(0.3, doubt.clear).start()
        found: list[bytes] = []
        while len(found) < MESSAGES:
            got = take(consumer, 20)
            assert got, f"{MESSAGES - len(found)} messages stay in the buffers"
            found += got
        assert sorted(found) == sorted(sent)
