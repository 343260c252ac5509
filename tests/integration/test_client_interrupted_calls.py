"""Calls that an interrupt ends: a close() leaves no member behind, poll() and run() no message, run() no thread, and
flush() nothing that is stored again and again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import pytest

from metaq import Consumer, LocalMessageStore, Message, Producer, ProducerConfig, TopicPartition
from metaq.client.questions.cluster import Cluster
from metaq.testing import FakeBroker, FakeCluster
from tests.integration.alarms import Alarm
from tests.integration.client_cluster import Brokers
from tests.waiting import DEADLINE, eventually

ROUNDS = 20


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    with Alarm() as alarm:
        yield alarm


def _owns_all(consumer: Consumer) -> bool:
    return len(consumer.assignment()) == 2


def test_an_interrupted_close_frees_the_partitions(brokers: Brokers, alarm: Alarm) -> None:
    random, interrupted = Random(1), 0
    with Cluster(brokers.connect) as cluster:
        for number in range(ROUNDS):
            group = f"g{number}"
            consumer = Consumer(brokers.connect, group=group, topics=["t"])
            eventually(partial(_owns_all, consumer), what="owning everything")
            interrupted += alarm.interrupts(consumer.close, 1e-5 + random.random() * 0.004)
            consumer.close()
            assert cluster.owners(group, "t") == {}
            assert cluster.members(group) == []
    assert interrupted


def test_the_position_behind_an_interrupted_poll_is_that_of_what_comes_next(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = TopicPartition("t", 0, 0)
    with Producer(brokers.connect) as producer, Consumer(brokers.connect, group="g", topics=["t"]) as consumer:
        eventually(partial(_owns_all, consumer), what="owning everything")
        producer.send_batch("t", [b"a", b"b", b"c"], partition=here)
        take = consumer._core.take

        def interrupted(limit: int) -> list[Message]:
            if take(limit):
                raise KeyboardInterrupt  # what it took does not reach poll()'s caller
            return []

        monkeypatch.setattr(consumer._core, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(timeout=DEADLINE)
        monkeypatch.setattr(consumer._core, "take", take)
        assert consumer.position(here) == 0
        assert consumer.lag()[here].messages == 3
        consumer.seek(here, consumer.position(here))
        assert [message.payload for message in consumer.poll(timeout=DEADLINE)] == [b"a", b"b", b"c"]


def _handlers() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("metaq-handler")]


@pytest.mark.parametrize("options", [{}, {"retry": None}], ids=["default", "in place"])
def test_interrupted_runs_leave_no_thread_and_no_message(
    brokers: Brokers, alarm: Alarm, options: dict[str, None]
) -> None:
    """The second interrupt, and more, meet run()'s own end."""
    random, handled, interrupted = Random(1), list[bytes](), 0
    with (
        Producer(brokers.connect) as producer,
        Consumer(brokers.connect, group="g", topics=["t"]) as consumer,
    ):
        eventually(partial(_owns_all, consumer), what="owning everything")

        def run() -> None:
            consumer.run(lambda message: handled.append(message.payload), threads=2, **options)

        for number in range(ROUNDS):
            sent = [b"%d %d" % (number, each) for each in range(40)]
            producer.send_batch("t", sent)
            begin, every = 0.001 + random.random() * 0.03, 0.0005 + random.random() * 0.002
            interrupted += alarm.interrupts(run, begin, every=every)
        eventually(lambda: not _handlers(), what="the end of the handlers' threads")
        expected = {b"%d %d" % (number, each) for number in range(ROUNDS) for each in range(40)}
        last = threading.Thread(target=run)
        last.start()
        eventually(lambda: set(handled) == expected, what="every message")
        consumer.stop()
        last.join(DEADLINE)
        assert not last.is_alive()
    assert interrupted == ROUNDS


def test_what_interrupted_flushes_stored_is_sent_and_not_again_and_again(tmp_path: Path, alarm: Alarm) -> None:
    config = ProducerConfig(delivery_timeout_seconds=0.3, recover_interval_seconds=0.1)
    random, interrupted, numbers, accepted = Random(1), 0, count(), list[bytes]()
    with FakeBroker({"t": 2}) as broker, LocalMessageStore(tmp_path / "undelivered.db") as store:
        cluster = FakeCluster([broker])
        with Producer(metadata=cluster, undelivered=store, config=config) as producer:
            producer.send("t", b"warm")

            def send() -> None:
                for _ in range(5):
                    payload = b"%d" % next(numbers)
                    producer.send_async("t", payload)
                    accepted.append(payload)
                producer.flush(DEADLINE)

            while interrupted < ROUNDS // 2:
                cluster.unregister(broker)
                interrupted += alarm.interrupts(send, 1e-4 + random.random() * 0.4)
                cluster.register(broker)
            producer.flush(DEADLINE)
            eventually(lambda: not store.count("undelivered t"), what="the end of what is stored")
        arrived = Counter(broker.bodies("t", 0) + broker.bodies("t", 1))
    assert set(arrived) >= set(accepted)
    assert sum(arrived.values()) <= 2 * (next(numbers) + 1)  # each may have been under way when it was stored
