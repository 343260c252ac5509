"""Arguments of the public calls: what one value stands for, and what is refused, with option, value and remedy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import pytest

from metaq import (
    Consumer,
    ConsumerConfig,
    OrderedProducer,
    PartitionReader,
    Producer,
    ProducerConfig,
    SharedConsumer,
    TopicPartition,
)
from metaq.client.producer.building import SendOptions, build_body
from metaq.client.producer.outgoing import ASKED, GatheredBatch
from metaq.client.producer.xa import Xid
from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import Endpoint
from metaq.client.transport.metadata import TopicView
from metaq.errors import ConfigError, CoordinationUnavailable, NoPartition, XaError
from metaq.testing import FakeCluster


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("buy", {"buy"}),
        (["buy", "sell"], {"buy", "sell"}),
        ((each for each in ("buy", "sell")), {"buy", "sell"}),
        (None, None),
    ],
)
def test_one_tag_is_one_tag(monkeypatch, tags, expected):
    class Reached(Exception):
        """The constructor took its arguments; what it made of them."""

    def core(group, config, *, tags, **_):
        raise Reached(tags)

    monkeypatch.setattr("metaq.client.consumer.consumer.ConsumerCore", core)
    with pytest.raises(Reached) as reached:
        Consumer(group="g", topics="trades", tags=tags)
    assert reached.value.args == (expected,)


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


# --- sends ------------------------------------------------------------------------------------------------------------

SENDS = ("send", "send_async", "produce", "send_batch", "send_batch_async")


@pytest.fixture
def producer():
    """Nothing listens there: what is refused here is refused before a connection is asked for."""
    with Producer.direct("127.0.0.1:1", partitions={"t": 2}) as producer:
        yield producer


def send(producer: Any, kind: str, topic: Any = "t", **options: Any) -> object:
    return getattr(producer, kind)(topic, [b"x"] if "batch" in kind else b"x", **options)


@pytest.mark.parametrize("kind", SENDS)
@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (
            {"partition": 3},
            TypeError,
            "partition=3 is no TopicPartition but int: take one of Producer.partitions(topic), or write TopicPartition",
        ),
        (
            {"partition": ("t", 0, 1)},
            TypeError,
            "partition=('t', 0, 1) is no TopicPartition but tuple: write TopicPartition(topic='t', broker=0, ",
        ),
        ({"topic": 5}, TypeError, "topic=5 is no text (str) but int: write it as a text, for example '5'"),
        ({"topic": b"t"}, TypeError, "topic=b't' is no text (str) but bytes: decode it, for example b't'.decode()"),
        ({"topic": None}, TypeError, "topic=None is no text (str) but NoneType: give it a name"),
        ({"topic": 5, "key": "k"}, TypeError, "topic=5 is no text"),
        ({"keys": 5}, TypeError, "keys=5 is no list of texts but int: write keys=['5']"),
        ({"timeout": "5"}, TypeError, "timeout='5' is no number of seconds but str: write it as one"),
        ({"timeout": True}, TypeError, "timeout=True is no number of seconds but bool"),
        ({"timeout": -1}, ConfigError, "timeout=-1: choose 0 or more seconds, or leave it out"),
        ({"timeout": math.nan}, ConfigError, "timeout=nan: choose 0 or more seconds"),
    ],
)
def test_a_wrong_argument_of_a_send_is_named_with_a_remedy(producer, kind, wrong, error, words):
    with pytest.raises(error, match=re.escape(words)):
        send(producer, kind, **wrong)


@pytest.mark.parametrize("option", SendOptions.__annotations__)
@pytest.mark.parametrize("others", [{}, {"tag": "a", "key": "k"}])
def test_none_is_as_if_the_option_were_left_out(option, others):
    given: Any = {name: value for name, value in others.items() if name != option}
    named: Any = {**given, option: None}
    assert build_body(b"x", named) == build_body(b"x", given)


@pytest.mark.parametrize("wrong", [{"partition": 3}, {"timeout": "5"}, {"topic": 5}])
@pytest.mark.parametrize("kind", ["send", "send_batch"])
def test_a_transaction_names_a_wrong_argument_as_a_send_does(producer, kind, wrong):
    ((option, value),) = wrong.items()
    with pytest.raises(TypeError, match=re.escape(f"{option}={value!r} is no ")):
        send(producer.transaction(), kind, **wrong)


def test_an_on_delivery_that_cannot_be_called_is_refused(producer):
    for options in ({}, {"key": "k"}, {"partition": TopicPartition("t", -1, 0)}):
        with pytest.raises(TypeError, match="on_delivery=5 is no function but int: name one, or leave it out"):
            send(producer, "produce", on_delivery=5, **options)


def test_a_message_with_such_an_on_delivery_does_not_join_others():
    batch = GatheredBatch("t", "t", 0, b"x", 1.0, ASKED)
    wrong: Any = 5
    with pytest.raises(TypeError, match="on_delivery=5 is no function"):
        batch.put_report(wrong)
    assert list(batch.runs) == [(0, ASKED)]


# --- constructors, and run() ------------------------------------------------------------------------------------------

GROUP: Any = {"connect": "127.0.0.1:1", "group": "g", "topics": "t"}
STORED: Any = {"partitions": {"t": {0: 1}}, "store": None, "metadata": FakeCluster([])}
TAKERS: dict[str, Callable[..., object]] = {
    "a producer": partial(Producer.direct, address="127.0.0.1:1"),
    "an ordered producer": partial(OrderedProducer, **STORED),
    "a consumer": partial(Consumer, **GROUP),
    "a shared consumer": partial(SharedConsumer, **GROUP),
    "a reader": partial(PartitionReader, "127.0.0.1:1", TopicPartition("t", 0, 0)),
    # of consumers that were not begun: enough for what they refuse
    "run": partial(object.__new__(Consumer).run, handler=print),
    "run_batches": partial(object.__new__(Consumer).run_batches, handler=print),
    "a shared consumer's run": partial(object.__new__(SharedConsumer).run, handler=print),
}
RUNS = ("run", "run_batches")
CONSUMERS, ALL_RUNS = ("a consumer", "a shared consumer"), (*RUNS, "a shared consumer's run")


@pytest.mark.parametrize(
    ("taker", "option", "value", "words"),
    [
        pytest.param(taker, option, value, words, id=f"{taker}: {option}{words}")
        for takers, options, value, words in [
            (CONSUMERS, "tags topics", b"buy", "=b'buy': name one text (str), or a list of them"),
            (CONSUMERS, "tags topics", 5, "=5: name one text (str), or a list of them"),
            (CONSUMERS, "tags topics", ["buy", 5], "=['buy', 5]: name one text (str), or a list of them"),
            (CONSUMERS, "tags", "buy || sell", "='buy || sell': tags are compared as they are, so * and || match no"),
            (CONSUMERS, "tags", ["buy", "*"], "='*': tags are compared as they are, so * and || match nothing"),
            (CONSUMERS, "tags", [], "=[]: name at least one, or leave it out"),
            (["a consumer"], "topics", [], "=: name at least one topic"),
            (["a shared consumer"], "topics", [], "=none: name at least one topic"),
            (CONSUMERS, "deserializer", 5, "=5: give it a serializer, such as Json(), or a list of them"),
            (["a producer"], "selector", 5, "=5: make it an object with a method select(topic, partitions, message)"),
            (["a producer"], "selector", min, "=<built-in function min>: make it an object with a method select"),
            (["an ordered producer"], "selector", 0, "=0: make it an object"),
            (["a producer", "an ordered producer"], "config", {}, "={}: make it a ProducerConfig(…), which takes each"),
            (["a producer"], "config", {"linger_ms": 5}, "={'linger_ms': 5}: make it a ProducerConfig"),
            (["a producer"], "config", ConsumerConfig, f"={ConsumerConfig}: make it a ProducerConfig"),
            (["a producer"], "linger_ms", "5", "='5': choose a whole number, 0 or more"),
            (["a producer"], "linger_ms", True, "=True: choose a whole number, 0 or more"),
            (["a producer"], "partitions", {"t": "2"}, "['t']='2': choose a whole number, 1 or more"),
            (["a producer"], "partitions", 5, "=5: name the number of partitions by topic"),
            (["a producer"], "address", 5, "=5: write it as host:port"),
            (["a consumer"], "config", {}, "={}: make it a ConsumerConfig(…), which takes each setting by its name"),
            (["a reader"], "config", {}, "={}: make it a ConsumerConfig"),
            (["a consumer"], "config", ProducerConfig, f"={ProducerConfig}: make it a ConsumerConfig"),
            (["a consumer"], "accept on_assigned on_revoked", 5, "=5: name a function, without calling it"),
            (ALL_RUNS, "handler", 5, "=5: name a function, without calling it"),
            (RUNS, "handler", None, "=None: name a function, without calling it"),
            (RUNS, "on_reject", 5, "=5: name a function, without calling it"),
            (ALL_RUNS, "threads", "2", "='2': choose a whole number, 1 or more"),
            (ALL_RUNS, "threads", 0, "=0: choose 1 or more"),
            (RUNS, "threads", 1025, "=1025: choose at most 1024"),
            (ALL_RUNS, "threads", 1_000_000, "=1000000: choose at most 1024"),
            (RUNS, "max_retries", "2", "='2': choose a whole number, 0 or more"),
            (["a shared consumer's run"], "retry", 5, "=5: give it a Retry"),
        ]
        for taker in takers
        for option in options.split()
    ],
)
def test_a_wrong_argument_is_named_with_a_remedy(taker, option, value, words):
    with pytest.raises(ConfigError, match=re.escape(option + words)):
        TAKERS[taker](**{option: value})


@pytest.mark.parametrize("config", [ConsumerConfig(), ConsumerConfig(broadcast=True)])
@pytest.mark.parametrize("group", [5, b"g", None])
def test_a_group_that_is_no_text_is_refused(config, group):
    with pytest.raises(TypeError, match=re.escape(f"group={group!r} is no text (str) but")):
        Consumer("127.0.0.1:1", group=group, topics="t", config=config)


# --- settings ---------------------------------------------------------------------------------------------------------

NUMBERS = [
    (config, each.name, str(each.type))
    for config in (ProducerConfig, ConsumerConfig, ConnectionConfig)
    for each in fields(config)
    if str(each.type).startswith(("int", "float"))
]


@pytest.mark.parametrize(("config", "option", "kind"), NUMBERS)
def test_a_setting_that_is_no_number_is_refused(config, option, kind):
    wrongs = ["5", b"5", True, math.nan, [5]] + ([1.5, math.inf] if kind == "int" else [])
    for wrong in wrongs + ([] if "None" in kind else [None]):
        with pytest.raises(ConfigError, match=re.escape(f"{option}={wrong!r}: choose ")) as refused:
            config(**{option: wrong})
        assert refused.value.option == option


@pytest.mark.parametrize("config", [ProducerConfig, ConsumerConfig])
def test_settings_of_a_connection_that_are_none_are_refused(config):
    with pytest.raises(ConfigError, match=re.escape("connection={}: make it a ConnectionConfig(…)")):
        config(connection={})


# --- misspelt topics --------------------------------------------------------------------------------------------------


class Registered(FakeCluster):
    """A cluster that publishes these topics; how often somebody asked which they are."""

    def __init__(self, *topics: str) -> None:
        super().__init__()
        self.published, self.asked = topics, 0
        self.failure: Exception | None = None

    def view(self, topic):
        partitions = (TopicPartition(topic, 0, 0),) if topic in self.published else ()
        return TopicView(partitions, {0: Endpoint("127.0.0.1", 1)})

    def topics(self):
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return self.published


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("kind", SENDS)
def test_the_error_for_a_misspelt_topic_names_the_nearest_and_asks_for_it_once(kind, key):
    cluster = Registered("trades", "orders")
    with Producer(metadata=cluster) as producer:
        for _ in range(3):
            with pytest.raises(NoPartition, match=r"topic 'trade' has no partition: .*: did you mean 'trades'\?"):
                send(producer, kind, "trade", key=key)
    assert cluster.asked == 1


@pytest.mark.parametrize("kind", ["send", "send_batch"])
def test_a_transaction_names_the_nearest_topic_too(kind):
    with Producer(metadata=Registered("trades")) as producer, pytest.raises(NoPartition, match="did you mean 'trades'"):
        send(producer.transaction(), kind, "trade")


def test_a_topic_that_a_pattern_takes_is_told_so():
    words = r"the pattern 'log-\*' takes its first message"
    with Producer(metadata=Registered("log-*")) as producer, pytest.raises(NoPartition, match=words):
        producer.send("log-a", b"x")


def test_topics_that_cannot_be_asked_for_leave_the_error_as_it_is():
    cluster = Registered("trades")
    cluster.failure = CoordinationUnavailable("no answer")
    words = r"topic 'trade' has no partition: .*: add \[topic=trade\] to the server.ini"
    with Producer(metadata=cluster) as producer, pytest.raises(NoPartition, match=words):
        producer.send("trade", b"x")
