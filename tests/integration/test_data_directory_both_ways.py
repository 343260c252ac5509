"""A data directory goes from a crashed Java broker to ours and back: same offsets, same messages, transactions too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq import Message, Producer, TopicPartition
from metaq.cli.direct_read import read_topic
from metaq.cli.options import Position
from metaq.client.cluster import Cluster
from metaq.coordination.session import ZkSession
from metaq.protocol.record import checksum
from metaq.protocol.text import Result, encode_put
from tests.broker_process import Connection
from tests.integration.java_peers import require_java
from tests.soak.places import Place

TOPIC, PARTITIONS = "t", 3
EACH = 30
SEGMENT_BYTES = 2048
RETENTION_SECONDS = 2
SYSTEM = {
    "maxSegmentSize": SEGMENT_BYTES,
    "deletePolicy": "delete,24",
    "deleteWhen": f"0/{RETENTION_SECONDS} * * * * ?",
}
XID = "XID:1:0a:0b:both-ways"

Log = dict[tuple[str, int], bytes]
"""Payload by partition and offset."""


@pytest.fixture
def place(chroot: str, tmp_path: Path) -> Iterator[Place]:
    require_java()
    with ZkSession(chroot):  # a chroot must exist for Java; our sessions create it
        pass
    place = Place(tmp_path / "broker", chroot, {TOPIC: PARTITIONS}, system=SYSTEM)
    yield place
    place.kill()


def send(chroot: str, prefix: str, count: int = EACH) -> Log:
    """`count` messages to each partition; where the broker says they are."""
    found: Log = {}
    with Producer(chroot) as producer:
        for number in range(count):
            for partition in range(PARTITIONS):
                payload = f"{prefix} {partition} {number} {'x' * 50}".encode()
                result = producer.send(TOPIC, payload, partition=TopicPartition(TOPIC, 0, partition))
                found[str(result.partition), result.offset] = payload
    return found


def read(chroot: str) -> list[Message]:
    with Cluster(chroot) as cluster:
        return list(read_topic(cluster, TOPIC, Position("earliest")))


def log_of(messages: list[Message]) -> Log:
    return {(str(message.partition), message.offset): message.payload for message in messages}


def ask(connection: Connection, words: str) -> Result:
    answer = connection.ask(f"transaction {words} 7\r\n".encode())
    assert isinstance(answer, Result)
    return answer


def prepare(connection: Connection, key: str, payload: bytes) -> None:
    """An XA transaction with one message for partition 0, prepared."""
    assert ask(connection, f"{key} null BEGIN").code == 200
    put = encode_put(TOPIC, 0, 0, checksum(payload), 7, payload)
    line, _, body = put.partition(b"\r\n")
    *words, opaque = line.split(b" ")
    answer = connection.ask(b" ".join((*words, key.encode(), opaque)) + b"\r\n" + body)
    assert answer.code == 200
    assert ask(connection, f"{key} null PREPARE")[:1] == (200,)


def last_segment(place: Place, partition: int) -> Path:
    return max((place.data / f"{TOPIC}-{partition}").glob("*.meta"))


def damage(place: Place, written: Log) -> Log:
    """What a crash of the machine can do to the last segments; the messages that are left."""
    with last_segment(place, 0).open("ab") as torn:
        torn.write((500).to_bytes(4, "big") + b"torn record")
    with last_segment(place, 1).open("ab") as zeros:
        zeros.write(bytes(4096))
    cut = last_segment(place, 2)
    os.truncate(cut, cut.stat().st_size - 3)
    last = max(offset for partition, offset in written if partition == "0-2")
    return {where: payload for where, payload in written.items() if where != ("0-2", last)}
