"""Arguments of the public calls: what one value stands for, and what is refused, with option, value and remedy."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from metaq import Consumer, Producer, TopicPartition
from metaq.client.producer.xa import Xid
from metaq.errors import ConfigError, NoPartition, XaError
from metaq.testing import FakeCluster


class Reached(Exception):
    """The constructor took its arguments; what it made of them."""


@pytest.fixture
def consumer_tags(monkeypatch):
    """What a Consumer's core gets for its argument `tags`."""

    def core(group, config, *, tags, **_):
        raise Reached(tags)

    monkeypatch.setattr("metaq.client.consumer.consumer.ConsumerCore", core)

    def given(tags):
        with pytest.raises(Reached) as reached:
            Consumer(group="g", topics="trades", tags=tags)
        return reached.value.args[0]

    return given


def test_one_tag_is_one_tag(consumer_tags):
    assert consumer_tags("buy") == {"buy"}
    assert consumer_tags(["buy", "sell"]) == {"buy", "sell"}
    assert consumer_tags(each for each in ("buy", "sell")) == {"buy", "sell"}
    assert consumer_tags(None) is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tags": b"buy"}, "tags=b'buy': name one text (str), or a list of them"),
        ({"tags": 5}, "tags=5: name one text (str), or a list of them"),
        ({"tags": ["buy", 5]}, "tags=['buy', 5]: name one text (str), or a list of them"),
        ({"tags": []}, "tags=[]: name at least one, or leave it out"),
        ({"topics": b"trades"}, "topics=b'trades': name one text (str), or a list of them"),
        ({"topics": 5}, "topics=5: name one text (str), or a list of them"),
        ({"topics": ["trades", 5]}, "topics=['trades', 5]: name one text (str), or a list of them"),
        ({"topics": []}, "topics=: name at least one topic"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(arguments, words):
    with pytest.raises(ConfigError) as refused:
        Consumer(**{"group": "g", "topics": "trades", **arguments})
    assert words in str(refused.value)


def test_a_partition_that_is_not_there_is_refused_with_a_remedy():
    with Producer.direct("127.0.0.1:1", broker_id=7, partitions={"t": 2}) as producer:
        with pytest.raises(NoPartition, match=r"no partition 7-99: .*partitions\('t'\) lists those there are"):
            producer.send("t", b"x", partition=TopicPartition("t", 7, 99))
        with pytest.raises(NoPartition, match=r"no partition 8-0: broker 8 is not registered now: start it"):
            producer.send("t", b"x", partition=TopicPartition("t", 8, 0))


@pytest.mark.parametrize("seconds", [-1, 1.5, "5"])
def test_the_timeout_of_a_transaction_is_a_whole_number_of_seconds(seconds):
    with Producer(metadata=FakeCluster([])) as producer:
        for begin in (producer.transaction, partial(producer.xa, "t")):
            with pytest.raises(ConfigError, match=f"timeout_seconds={seconds}: choose a whole number of seconds"):
                begin(timeout_seconds=seconds)


def test_one_topic_of_an_xa_resource_is_one_topic():
    with Producer(metadata=FakeCluster([])) as producer:
        with pytest.raises(XaError, match=r"publishes all of trades\Z"):
            producer.xa("trades").start(Xid(1, b"g", b"b"))
        wrongs: list[Any] = [b"trades", 5, ["trades", 5]]
        for wrong in wrongs:
            with pytest.raises(ConfigError, match="name one text"):
                producer.xa(wrong)
