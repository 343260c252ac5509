"""Requests and replies through real brokers: many at once, a handler that serves, and brokers that die in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from metaq import Consumer, ConsumerConfig, Message, Producer, ProducerConfig
from metaq.client.questions.cluster import Cluster
from metaq.serializers import Json
from tests.integration.background import Repeating
from tests.integration.client_cluster import Brokers, Running
from tests.speaking import speaking
from tests.waiting import DEADLINE, eventually

TOPICS = {"ask": 2, "%REPLY%": 1}


@contextmanager
def serving(connect: str, answer: Callable[[Producer, Message], object]) -> Iterator[Consumer]:
    """As docs/client.md shows it."""
    config = ConsumerConfig(retry_step_seconds=0.1, retry_max_seconds=0.5)
    consumer = Consumer(connect, group="servers", topics=["ask"], config=config)
    with (
        Producer(connect, config=ProducerConfig(delivery_timeout_seconds=5.0)) as producer,
        Running(consumer, lambda request: answer(producer, request), max_retries=None, threads=2),
    ):
        eventually(lambda: len(consumer.assignment()) >= 1)
        yield consumer


def upper(producer: Producer, request: Message) -> None:
    producer.reply(request, request.payload.upper())


def results(futures: list[Future[Message]]) -> list[bytes]:
    return [future.result(DEADLINE).payload for future in futures]


def test_a_thousand_requests_are_under_way_and_each_gets_its_reply(brokers: Brokers) -> None:
    with serving(brokers.connect, upper), Producer(brokers.connect) as producer:
        futures = [producer.request("ask", b"r%d" % number, timeout=DEADLINE) for number in range(1000)]
        assert results(futures) == [b"R%d" % number for number in range(1000)]
        begun = time.monotonic()
        for number in range(20):
            producer.request("ask", b"%d" % number, timeout=DEADLINE).result()
        assert (time.monotonic() - begun) / 20 < 0.5  # long polling: no pause of a poll is on the way
        assert producer.late_replies == 0
        with Cluster(brokers.connect) as cluster:
            assert cluster.view.groups() == ["servers"]  # a requester leaves no trace in ZooKeeper


@pytest.mark.parametrize("protocol", ["auto", "text"])
def test_values_are_asked_and_answered(brokers: Brokers, protocol: str) -> None:
    def add(producer: Producer, request: Message) -> None:
        producer.typed(Json()).reply(request, {"sum": sum(request.decode(Json()))})

    with (
        serving(brokers.connect, add),
        Producer(brokers.connect, config=speaking(protocol, ProducerConfig())) as producer,
    ):
        reply = producer.typed(Json()).request("ask", [1, 2, 3], timeout=DEADLINE).result()
        assert reply.decode(Json()) == {"sum": 6}


def test_requests_survive_a_broker_that_is_killed_and_comes_back(brokers: Brokers) -> None:
    futures = list[Future[Message]]()
    with serving(brokers.connect, upper), Producer(brokers.connect) as producer:

        def ask(number: int) -> None:
            futures.append(producer.request("ask", b"n%d" % number, timeout=DEADLINE))

        producer.request("ask", b"first", timeout=DEADLINE).result()
        with Repeating(ask) as asking:
            for _ in range(2):
                asking.wait_for(50)
                brokers.running[0].kill()
                brokers.start(0)
            asking.wait_for(50)
        assert asking.errors == []
        assert results(futures) == [b"N%d" % number for number in range(len(futures))]
