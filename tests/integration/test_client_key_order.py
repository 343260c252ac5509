"""Asynchronous messages with a key keep their order while their broker is killed, away and back."""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from metaq import Message, Producer, ProducerConfig, SendResult, TopicPartition, browse
from metaq.protocol.message_id import counter_at, message_id, store_time_ms
from tests.integration.background import Repeating
from tests.integration.client_cluster import SHORT_SESSION_SECONDS, running_brokers
from tests.waiting import DEADLINE, eventually

KEYS = 40
NOON = 1_700_000_000_000
PATIENT = ProducerConfig(delivery_timeout_seconds=DEADLINE)


class Sent(NamedTuple):
    key: int
    number: int
    future: Future[SendResult]


class KeyedSender(Repeating):
    """Sends numbers, counted per key, without waiting for answers."""

    def __init__(self, producer: Producer) -> None:
        super().__init__(self.send)
        self._producer = producer
        self.sent: list[Sent] = []

    def send(self, step: int) -> None:
        for each in range(20 * step, 20 * step + 20):
            number, key = divmod(each, KEYS)
            future = self._producer.send_async("t", b"%d %d" % (key, number), key=f"key-{key}")
            self.sent.append(Sent(key, number, future))


def disordered_results(sent: list[Sent]) -> list[tuple[Sent, Sent]]:
    """Neighbours of one key that were stored in another order than they were sent."""
    pairs: list[tuple[Sent, Sent]] = []
    for key in range(KEYS):
        mine = [each for each in sent if each.key == key]
        pairs += [(first, second) for first, second in itertools.pairwise(mine) if not _in_order(first, second)]
    return pairs


def _in_order(first: Sent, second: Sent) -> bool:
    one, other = first.future.result(), second.future.result()
    if one.partition == other.partition:
        return one.offset < other.offset
    return (store_time_ms(one.message_id) or 0) <= (store_time_ms(other.message_id) or 0)


def disordered_copies(messages: list[Message]) -> list[tuple[TopicPartition, int, int]]:
    """In each partition the first copies of a key's messages must count up: where they do not."""
    seen: dict[tuple[TopicPartition, int], set[int]] = {}
    wrong = []
    for message in messages:
        key, number = map(int, message.payload.split())
        before = seen.setdefault((message.partition, key), set())
        if number not in before and before and number < max(before):
            wrong.append((message.partition, key, number))
        before.add(number)
    return wrong


def test_the_checkers_reject_what_is_out_of_order() -> None:
    here, there = TopicPartition("t", 0, 0), TopicPartition("t", 1, 0)

    def sent(number: int, partition: TopicPartition, offset: int, ms: int) -> Sent:
        future: Future[SendResult] = Future()
        future.set_result(SendResult(message_id(counter_at(NOON + ms), partition.broker), partition, offset))
        return Sent(0, number, future)

    assert disordered_results([sent(0, here, 40, 1000), sent(1, here, 20, 1001)])
    assert disordered_results([sent(0, here, 0, 1001), sent(1, there, 0, 1000)])
    assert not disordered_results([sent(0, here, 40, 1000), sent(1, there, 0, 1000)])
    stored = [Message(here, 0, 1, 0, b"3 %d" % number) for number in (0, 2, 0, 1)]
    assert disordered_copies(stored) == [(here, 3, 1)]
    assert not disordered_copies(stored[:3])


def test_the_order_of_a_key_holds_while_its_broker_is_killed_away_and_back(chroot: str, tmp_path: Path) -> None:
    with (
        running_brokers(chroot, tmp_path, {"t": 2}, count=2, session_seconds=SHORT_SESSION_SECONDS) as brokers,
        Producer(chroot, config=PATIENT) as producer,
    ):
        with KeyedSender(producer) as sender:
            for victim in (0, 1, 0):
                sender.wait_for(100)
                brokers.running[victim].kill()
                eventually(lambda: len(producer.partitions("t")) == 2, what="the end of the broker's session")
                sender.wait_for(100)
                brokers.start(victim)
                eventually(lambda: len(producer.partitions("t")) == 4, what="the broker's return")
                sender.wait_for(100)
        assert sender.errors == []
        producer.flush(DEADLINE)
        assert [each for each in sender.sent if each.future.exception(0) is not None] == []
        assert disordered_results(sender.sent) == []
        stored = list(browse(chroot, "t"))
        assert {each.future.result().message_id for each in sender.sent} <= {message.id for message in stored}
        assert disordered_copies(stored) == []
