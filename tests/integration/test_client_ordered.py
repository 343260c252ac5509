"""The ordered producer on ours and on the Java broker: one is away for a while, and nothing is lost or out of order."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.javapeer import JavaBroker
from metaq import Consumer, LocalMessageStore, OrderedProducer, SendResult, TopicPartition
from tests.integration.client_cluster import read_until_quiet, running_brokers
from tests.integration.java_peers import require_java
from tests.waiting import DEADLINE, eventually

PARTITIONS = (TopicPartition("t", 0, 0), TopicPartition("t", 0, 1))


class Broker(NamedTuple):
    """answers_all: it answers the puts under way when it stops. (Java does not: those would be stored twice.)"""

    stop: Callable[[], object]
    start: Callable[[], object]
    answers_all: bool


@contextmanager
def java_broker(chroot: str, directory: Path) -> Iterator[Broker]:
    require_java()
    running = [JavaBroker(directory / "java", chroot, {"t": 2}, {"unflushThreshold": 1})]

    def start() -> None:
        running.append(JavaBroker(directory / "java", chroot, {"t": 2}, {"unflushThreshold": 1}, running[0].port))

    try:
        yield Broker(lambda: running[-1].close(), start, answers_all=False)
    finally:
        running[-1].close()


@contextmanager
def our_broker(chroot: str, directory: Path) -> Iterator[Broker]:
    with running_brokers(chroot, directory, {"t": 2}) as brokers:
        yield Broker(lambda: brokers.running[0].stop(), brokers.start, answers_all=True)


class Sender(threading.Thread):
    """Sends to both partitions in turn until it is told to stop."""

    def __init__(self, producer: OrderedProducer) -> None:
        super().__init__(name="sender")
        self._producer = producer
        self.results: list[SendResult] = []
        self.enough = threading.Event()
        self.sending = threading.Lock()

    def run(self) -> None:
        for number in itertools.count():
            if self.enough.wait(0.005):
                return
            payload = b"%d" % (number // 2)
            with self.sending:
                self.results.append(
                    self._producer.send("t", payload, partition=PARTITIONS[number % 2], timeout=DEADLINE)
                )

    def wait_for(self, pending: bool) -> None:
        """Until the last ten results are all of this kind."""
        eventually(
            lambda: not self.is_alive() or [each.pending for each in self.results[-10:]] == 10 * [pending],
            60,
            "results that are pending" if pending else "results that are not pending",
        )
        assert self.is_alive(), "the sender ended with an error"


@pytest.mark.parametrize("cluster", [our_broker, java_broker], ids=["ours", "java"])
def test_a_broker_that_is_away_gets_its_messages_in_order_and_once(
    cluster: Callable[[str, Path], AbstractContextManager[Broker]], chroot: str, tmp_path: Path
) -> None:
    with cluster(chroot, tmp_path) as broker:
        store = LocalMessageStore(tmp_path / "local.db")
        with OrderedProducer(chroot, partitions={"t": {0: 2}}, store=store) as producer:
            sender = Sender(producer)
            sender.start()
            try:
                sender.wait_for(pending=False)
                with contextlib.nullcontext() if broker.answers_all else sender.sending:
                    broker.stop()
                sender.wait_for(pending=True)
                broker.start()
                sender.wait_for(pending=False)
            finally:
                sender.enough.set()
                sender.join(2 * DEADLINE)
            assert producer.flush(DEADLINE)
            assert producer.failures == {}
        count = len(sender.results)
        with Consumer(chroot, group="g", topics=["t"], start="earliest") as consumer:
            messages = read_until_quiet(consumer, count)
        for index, partition in enumerate(PARTITIONS):
            found = [int(message.payload) for message in messages if message.partition == partition]
            assert found == list(range(len(range(index, count, 2))))
