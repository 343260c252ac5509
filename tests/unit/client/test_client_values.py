"""Partitions, send results, messages, back-off: plain values."""

from typing import Any, cast

import numpy as np
import pytest

from metaq import errors
from metaq.client.records.message import Message
from metaq.client.records.results import BatchResults, SendResult, TopicPartition
from metaq.client.settings.config import ConnectionConfig, ProducerConfig
from metaq.client.settings.consumer_config import ConsumerConfig
from metaq.protocol.message_id import EPOCH_MS, counter_at, message_id, message_ids_from
from metaq.protocol.record import encode_attributes, encode_body

HERE = TopicPartition("trades", 0, 3)


def test_a_partition_is_written_and_read_as_broker_dash_partition():
    assert (str(HERE), {TopicPartition.parse("trades", "0-3"), TopicPartition("trades", 0, 3)}) == ("0-3", {HERE})


@pytest.mark.parametrize("text", ["", "3", "0-", "-3", "-1-0", "0-3-1", "a-b", "3-m", "0-²"])
def test_what_is_no_partition_is_refused_with_an_example(text):
    with pytest.raises(errors.InvalidName, match="0-3"):
        TopicPartition.parse("trades", text)


def test_batch_results_follow_from_the_first_id_and_the_record_sizes():
    first = message_id(counter_at(EPOCH_MS + 5) + 4094, 7)  # the counter runs into the next millisecond
    results = BatchResults(first, HERE, 1000, np.array([25, 30, 21], dtype=np.int64))
    ids = message_ids_from(first, 3).tolist()
    assert list(results) == [SendResult(*each) for each in zip(ids, [HERE] * 3, (1000, 1025, 1055), strict=True)]
    assert results[-1] == results[2] == results[1:][1]
    assert len(set(ids)) == len(results) == 3
    with pytest.raises(IndexError):
        results[3]


def make_message(identity=1, **attributes):
    flag, raw = encode_attributes(**attributes)
    return Message(HERE, 100, identity, flag, bytes(encode_body(b"payload", flag, raw)))


def test_a_message_gives_what_its_producer_set_and_is_its_body_without_that():
    message = make_message(tag="buy", keys=["a", "b"], properties={"h": "1"}, attribute="old")
    assert (message.topic, message.partition, message.payload) == ("trades", HERE, b"payload")
    assert (message.tag, message.keys, message.properties, message.attribute) == ("buy", ("a", "b"), {"h": "1"}, "old")
    assert message.next_offset == 100 + 20 + len(message.body)
    bare = make_message()
    assert bare.payload is bare.body
    assert (bare.tag, bare.attribute, bare.keys, dict(bare.properties)) == (None, None, (), {})


def test_the_time_of_a_message_is_in_its_id_unless_a_java_broker_made_it():
    ours = make_message(message_id(counter_at(1_700_000_000_123), 1))
    assert ours.timestamp_ms == 1_700_000_000_123
    assert ours.timestamp is not None
    assert ours.timestamp.isoformat(timespec="milliseconds") == "2023-11-14T22:13:20.123+00:00"
    java = make_message(-5468915445367046144)
    assert (java.timestamp_ms, java.timestamp) == (None, None)


ANYWHERE: Any = "anywhere"


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: ProducerConfig(linger_ms=-1), "linger_ms"),
        (lambda: ProducerConfig(max_batch_bytes=1 << 24), "max_batch_bytes"),
        (lambda: ProducerConfig(max_buffered_bytes=0), "max_buffered_bytes"),
        (lambda: ConsumerConfig(long_poll_ms=60_001), "long_poll_ms"),
        (lambda: ConsumerConfig(auto_commit_seconds=-1), "auto_commit_seconds"),
        (lambda: ConnectionConfig(connect_timeout_seconds=0), "connect_timeout_seconds"),
        (lambda: ConnectionConfig(reconnect_min_seconds=3), "reconnect_min_seconds"),
        (lambda: ProducerConfig(retry_max_seconds=0.001), "retry_min_seconds"),
        (lambda: ConsumerConfig(error_min_seconds=6), "error_min_seconds"),
        (lambda: ConsumerConfig(rebalance_min_seconds=1), "rebalance_min_seconds"),
        (lambda: ConsumerConfig(retry_step_seconds=6), "retry_step_seconds"),
        (lambda: ConsumerConfig(text_idle_step_ms=501), "text_idle_step_ms"),
        (lambda: ConsumerConfig(read_from=ANYWHERE), "read_from"),
        (lambda: ConnectionConfig(protocol=cast(Any, "http")), "protocol"),
    ],
)
def test_a_wrong_setting_is_refused_by_name_with_a_remedy(make, option):
    with pytest.raises(errors.ConfigError, match=f"{option}=.*choose") as caught:
        make()
    assert caught.value.option == option
