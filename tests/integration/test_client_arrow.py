"""Consuming as Arrow record batches from our broker and from the Java one."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from metaq import Consumer, ConsumerConfig, Message, Producer, TopicPartition
from metaq.protocol.errors import CorruptRecord
from tests.waiting import DEADLINE

TOPICS = {"t": 1}
PARTITION = TopicPartition("t", 0, 0)


def read_batches(consumer: Consumer, rows: int) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in batches) < rows:
        batches.append(consumer.poll_arrow(max_messages=700, timeout=DEADLINE))
        assert 0 < batches[-1].num_rows <= 700
    return pa.Table.from_batches(batches)


def test_batches_have_what_the_messages_have_in_order(server: Any, chroot: str) -> None:
    payloads = [b"%d" % number * (number % 50) for number in range(3000)]
    with Producer(chroot) as producer:
        for start in range(0, 3000, 500):
            producer.send_batch("t", payloads[start : start + 500], partition=PARTITION)
        producer.send("t", b"last", tag="x", keys=["k"], partition=PARTITION)
    with Consumer(chroot, group="arrow", topics=["t"]) as consumer:
        table = read_batches(consumer, 3001)
        consumer.commit()
    assert sorted(table["payload"].to_pylist()) == sorted([*payloads, b"last"])
    assert table["tag"].to_pylist() == [None] * 3000 + ["x"]
    assert table["keys"].to_pylist()[-1] == ["k"]
    with Consumer(chroot, group="messages", topics=["t"]) as consumer:
        messages: list[Message] = []
        while len(messages) < 3001:
            messages += consumer.poll(timeout=DEADLINE)
    assert table["payload"].to_pylist() == [message.payload for message in messages]
    assert table["offset"].to_pylist() == [message.offset for message in messages]
    assert table["id"].to_pylist() == [message.id for message in messages]


def test_what_was_handed_out_as_arrow_counts_as_consumed(server: Any, chroot: str) -> None:
    with Producer(chroot) as producer:
        producer.send_batch("t", [b"%d" % number for number in range(100)], partition=PARTITION)
        with Consumer(chroot, group="g", topics=["t"]) as consumer:
            assert read_batches(consumer, 100).num_rows == 100
        producer.send("t", b"next", partition=PARTITION)
        with Consumer(chroot, group="g", topics=["t"]) as consumer:
            assert read_batches(consumer, 1)["payload"].to_pylist() == [b"next"]


@pytest.mark.parametrize("server", ["ours"], indirect=True)
def test_a_damaged_byte_on_the_disk_shows_where_checksums_are_checked(server: Any, chroot: str, tmp_path: Path) -> None:
    with Producer(chroot) as producer:
        producer.send_batch("t", [b"good"] * 30, partition=PARTITION)
    (segment,) = (tmp_path / "broker-0" / "data" / "t-0").glob("*.meta")
    with segment.open("r+b") as file:
        file.seek(20 * 24 + 23)
        file.write(b"x")
    with Consumer(chroot, group="unchecked", topics=["t"]) as consumer:
        assert read_batches(consumer, 30)["payload"].to_pylist() == [b"good"] * 20 + [b"goox"] + [b"good"] * 9
    with Consumer(chroot, group="checked", topics=["t"], config=ConsumerConfig(check_crcs=True)) as consumer:
        assert read_batches(consumer, 20)["payload"].to_pylist() == [b"good"] * 20
        with pytest.raises(CorruptRecord) as caught:
            read_batches(consumer, 1)
        assert caught.value.position == 480
