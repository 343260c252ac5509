"""Consuming as Arrow record batches from our broker and from the Java one."""

from typing import Any

import pyarrow as pa
import pytest

from metaq import Consumer, ConsumerConfig, Message, Producer, TopicPartition
from metaq.protocol.errors import CorruptRecord
from tests.waiting import DEADLINE

TOPICS = {"all": 1, "some": 1, "damaged": 1}
"""A test has one of its own."""


def read_batches(consumer: Consumer, rows: int) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in batches) < rows:
        batches.append(consumer.poll_arrow(max_messages=700, timeout=DEADLINE))
        assert 0 < batches[-1].num_rows <= 700
    return pa.Table.from_batches(batches)


def test_batches_have_what_the_messages_have_in_order(server: Any) -> None:
    payloads = [b"%d" % number * (number % 50) for number in range(3000)]
    with Producer(server.connect) as producer:
        for start in range(0, 3000, 500):
            producer.send_batch("all", payloads[start : start + 500], partition=TopicPartition("all", 0, 0))
        producer.send("all", b"last", tag="x", keys=["k"], partition=TopicPartition("all", 0, 0))
    with Consumer(server.connect, group="arrow", topics=["all"]) as consumer:
        table = read_batches(consumer, 3001)
        consumer.commit()
    assert sorted(table["payload"].to_pylist()) == sorted([*payloads, b"last"])
    assert table["tag"].to_pylist() == [None] * 3000 + ["x"]
    assert table["keys"].to_pylist()[-1] == ["k"]
    with Consumer(server.connect, group="messages", topics=["all"]) as consumer:
        messages: list[Message] = []
        while len(messages) < 3001:
            messages += consumer.poll(timeout=DEADLINE)
    assert table["payload"].to_pylist() == [message.payload for message in messages]
    assert table["offset"].to_pylist() == [message.offset for message in messages]
    assert table["id"].to_pylist() == [message.id for message in messages]


def test_what_was_handed_out_as_arrow_counts_as_consumed(server: Any) -> None:
    with Producer(server.connect) as producer:
        producer.send_batch("some", [b"%d" % number for number in range(100)], partition=TopicPartition("some", 0, 0))
        with Consumer(server.connect, group="g", topics=["some"]) as consumer:
            assert read_batches(consumer, 100).num_rows == 100
        producer.send("some", b"next", partition=TopicPartition("some", 0, 0))
        with Consumer(server.connect, group="g", topics=["some"]) as consumer:
            assert read_batches(consumer, 1)["payload"].to_pylist() == [b"next"]


@pytest.mark.parametrize("server", ["ours"], indirect=True)
def test_a_damaged_byte_on_the_disk_shows_where_checksums_are_checked(server: Any) -> None:
    with Producer(server.connect) as producer:
        producer.send_batch("damaged", [b"good"] * 30, partition=TopicPartition("damaged", 0, 0))
    (segment,) = (server.data / "damaged-0").glob("*.meta")
    with segment.open("r+b") as file:
        file.seek(20 * 24 + 23)
        file.write(b"x")
    with Consumer(server.connect, group="unchecked", topics=["damaged"]) as consumer:
        assert read_batches(consumer, 30)["payload"].to_pylist() == [b"good"] * 20 + [b"goox"] + [b"good"] * 9
    with Consumer(
        server.connect, group="checked", topics=["damaged"], config=ConsumerConfig(check_crcs=True)
    ) as consumer:
        assert read_batches(consumer, 20)["payload"].to_pylist() == [b"good"] * 20
        with pytest.raises(CorruptRecord) as caught:
            read_batches(consumer, 1)
        assert caught.value.position == 480
