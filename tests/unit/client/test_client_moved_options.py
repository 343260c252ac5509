"""Arguments that became settings work for one more release, and say where they went."""

import re
import warnings
from functools import partial
from typing import Any

import pytest

from metaq import (
    ConnectionConfig,
    ConsumerConfig,
    OrderedProducer,
    Producer,
    ProducerConfig,
    SharedConfig,
    TopicBrowser,
)
from metaq.client.browsing.browser import PartitionReader, browse
from metaq.client.consumer.consumer import Consumer
from metaq.client.records.results import TopicPartition
from metaq.client.settings.moved_options import by_position, with_moved
from metaq.client.shared import SharedConsumer
from metaq.protocol.errors import ConfigError
from metaq.testing import FakeCluster

NO_STORE: Any = None
TEXT = ConnectionConfig(protocol="text")


def told(damage: object) -> None: ...


@pytest.mark.parametrize(
    ("config", "given", "expected", "words"),
    [
        (
            ConsumerConfig(),
            {"protocol": "text"},
            ConsumerConfig(connection=TEXT),
            "ends with the next release: write C(config=ConsumerConfig(connection=ConnectionConfig(protocol=…)))",
        ),
        (ConsumerConfig(), {"on_damaged": told}, ConsumerConfig(on_damaged=told), "ConsumerConfig(on_damaged=…)"),
        (ProducerConfig(), {"protocol": "text"}, ProducerConfig(connection=TEXT), "ProducerConfig(connection="),
        (SharedConfig(), {"lease_seconds": 2}, SharedConfig(lease_seconds=2), "SharedConfig(lease_seconds=…)"),
        (SharedConfig(lease_seconds=2), {"lease_seconds": None}, SharedConfig(lease_seconds=2), "lease_seconds"),
        (SharedConfig(), {"member": "me"}, SharedConfig(member="me"), "SharedConfig(member=…)"),
    ],
)
def test_an_argument_that_moved_is_the_setting_and_the_warning_names_it(config, given, expected, words):
    with pytest.warns(DeprecationWarning, match=re.escape(words)):
        assert with_moved(config, "C", given, *given) == expected


@pytest.mark.parametrize(
    ("former", "found", "words"),
    [
        ((5,), {"max_messages": 5}, "C.poll() takes max_messages by keyword"),
        ((5, 2.0), {"max_messages": 5, "timeout": 2.0}, "write C.poll(max_messages=5, timeout=2.0)"),
    ],
)
def test_an_argument_by_position_is_the_one_that_had_the_place_and_the_warning_names_it(former, found, words):
    with pytest.warns(DeprecationWarning, match=re.escape(words)) as warned:
        assert polled(*former) == found
    assert warned[0].filename == __file__


def polled(*former: object) -> dict[str, Any]:
    return by_position("C.poll", former, "max_messages", "timeout")


def test_more_arguments_by_position_than_ever_are_refused():
    with pytest.raises(TypeError, match="no further positional arguments: 3"):
        polled(1, 2, 3)


def test_nothing_warns_without_such_an_argument():
    config = ConsumerConfig()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert with_moved(config, "C", {}, "protocol") is config


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (partial(Consumer, group="g", topics="t"), {"protocol": "no", "on_damaged": 5}),
        (partial(SharedConsumer, group="g", topics="t", metadata=FakeCluster([])), {"lease_seconds": 0, "member": ""}),
        (partial(Producer, metadata=FakeCluster([])), {"protocol": "no"}),
        (partial(Producer.direct, "127.0.0.1:1"), {"protocol": "no"}),
        (partial(OrderedProducer, partitions={}, store=NO_STORE, metadata=FakeCluster([])), {"protocol": "no"}),
        (partial(TopicBrowser, "h:1", "t"), {"protocol": "no", "on_damaged": 5}),
        (partial(PartitionReader, "h:1", TopicPartition("t", 0, 0)), {"protocol": "no", "on_damaged": 5}),
        (lambda **given: next(browse("h:1", "t", **given)), {"protocol": "no"}),
    ],
    ids=[
        "Consumer",
        "SharedConsumer",
        "Producer",
        "direct",
        "OrderedProducer",
        "TopicBrowser",
        "PartitionReader",
        "browse",
    ],
)
def test_each_former_argument_is_still_taken_and_checked_and_another_is_not(make: Any, arguments: dict[str, Any]):
    for name, wrong in arguments.items():
        with pytest.warns(DeprecationWarning, match=rf"\({name}=…\)"), pytest.raises(ConfigError, match=f"{name}="):
            make(**{name: wrong})
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        make(colour=5)


def test_the_warning_names_the_line_of_the_call():
    with pytest.warns(DeprecationWarning, match="protocol") as warned, Producer.direct("127.0.0.1:1", protocol="text"):
        pass
    with (
        pytest.warns(DeprecationWarning, match="protocol") as also,
        Producer(metadata=FakeCluster([]), protocol="text"),
    ):
        pass
    assert {warned[0].filename, also[0].filename} == {__file__}
