"""A data directory goes from a Java broker to ours and back: same offsets, same messages; with transactions in
test_transactions_java_directory.py."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from metaq import Message, Producer, TopicPartition
from metaq.cli.direct_read import Wanted, read_topic
from metaq.client.questions.cluster import Cluster
from tests.integration.java_peers import require_java
from tests.kills.journal import read_journal
from tests.soak.members import Group, JavaConsumer
from tests.soak.places import Kind, Place
from tests.waiting import DEADLINE, eventually

TOPIC, PARTITIONS = "t", 3
SEGMENT_BYTES = 2048
OLD_SECONDS = 48 * 3600
SYSTEM = {"maxSegmentSize": SEGMENT_BYTES, "deletePolicy": "delete,24,size=1g", "deleteWhen": "0/1 * * * * ?"}

Log = dict[tuple[str, int], bytes]
"""Payload by partition and offset."""


class Scene:
    """A place with a topic, the group "readers" of one Java consumer, and what must be in the log."""

    def __init__(self, chroot: str, directory: Path, partitions: int) -> None:
        self.chroot = chroot
        self.place = Place(directory / "broker", chroot, {TOPIC: partitions}, system=SYSTEM)
        self._partitions = partitions
        self.log: Log = {}
        self._group = Group(chroot, "readers", TOPIC, directory / "group")
        self._reader = JavaConsumer(self._group, "reader")

    def send(self, prefix: str, each: int) -> None:
        """`each` messages to every partition; the log has them where the broker says."""
        with Producer(self.chroot) as producer:
            for number in range(each):
                payloads = [
                    f"{prefix}-{partition}-{'x' * 50} {number}".encode() for partition in range(self._partitions)
                ]
                sent = [  # together, so that the broker has all partitions to sync at once
                    producer.send_async(TOPIC, payload, partition=TopicPartition(TOPIC, 0, partition))
                    for partition, payload in enumerate(payloads)
                ]
                for payload, future in zip(payloads, sent, strict=True):
                    result = future.result(DEADLINE)
                    self.log[str(result.partition), result.offset] = payload

    def read(self) -> Log:
        """What the broker serves, from the first offset to the end of each partition."""
        with Cluster(self.chroot) as cluster:
            messages: list[Message] = list(read_topic(cluster, Wanted(TOPIC, "earliest")))
        return {(str(message.partition), message.offset): message.payload for message in messages}

    def consume(self, count: int) -> list[bytes]:
        """What the Java consumer gets from the group's committed offsets on; with `count` it commits and leaves."""
        self._reader.start()
        journal = self._reader.journal()
        eventually(lambda: len(list(read_journal(journal))) >= count, 30, f"receiving {count} messages")
        self._reader.stop()
        return [text.encode() for *_, text in read_journal(journal)]

    def close(self) -> None:
        """Leave no process behind, also after a failure half-way."""
        self._reader.kill()
        self.place.kill()

    def segments(self, partition: int) -> list[Path]:
        return sorted((self.place.data / f"{TOPIC}-{partition}").glob("*.meta"))

    def files(self) -> dict[Path, bytes]:
        """The bytes of all segments."""
        return {path: path.read_bytes() for path in self.place.data.glob(f"{TOPIC}-*/*.meta")}

    def damage(self) -> None:
        """What a crash of the machine can do to the last segments: a torn record, zeros, a record cut short."""
        with self.segments(0)[-1].open("ab") as torn:
            torn.write((500).to_bytes(4, "big") + b"torn record")
        with self.segments(1)[-1].open("ab") as zeros:
            zeros.write(bytes(4096))
        cut = self.segments(2)[-1]
        os.truncate(cut, cut.stat().st_size - 3)
        del self.log[max(where for where in self.log if where[0] == "0-2")]


@pytest.fixture
def scene(request: pytest.FixtureRequest, chroot: str, tmp_path: Path) -> Iterator[Scene]:
    """With PARTITIONS partitions, or as many as the test's parameter says."""
    require_java()
    scene = Scene(chroot, tmp_path, getattr(request, "param", PARTITIONS))
    yield scene
    scene.close()


def test_a_crashed_java_brokers_directory_is_taken_over_at_the_same_offsets(scene: Scene) -> None:
    scene.place.start("java")
    scene.send("read", 30)
    assert sorted(scene.consume(90)) == sorted(scene.log.values())
    read_before = set(scene.log)
    scene.send("unread", 2)
    scene.place.kill()
    assert all(len(scene.segments(partition)) > 1 for partition in range(PARTITIONS))
    scene.damage()

    scene.place.start("ours")
    assert scene.read() == scene.log
    unread = [payload for where, payload in scene.log.items() if where not in read_before]
    assert len(unread) == 5
    assert sorted(scene.consume(5)) == sorted(unread)
    scene.send("ours", 1)
    assert scene.read() == scene.log


def test_the_java_broker_opens_the_directory_again_and_serves_everything(scene: Scene) -> None:
    scene.place.start("java")
    scene.send("java", 10)
    read_before = scene.consume(30)
    scene.place.stop()

    scene.place.start("ours")
    scene.send("ours", 60)
    old = scene.segments(1)[0]
    scene.log = {where: payload for where, payload in scene.log.items() if not is_in(where, scene.segments(1))}
    os.utime(old, (time.time() - OLD_SECONDS,) * 2)
    eventually(lambda: not old.exists(), 20, "retention")
    scene.place.stop()
    assert (scene.place.data / ".metaq.lock").exists()
    assert list((scene.place.data / "t-0").glob("*.index"))
    before = scene.files()

    scene.place.start("java")
    scene.send("back", 1)  # a put opens the partitions that 1.4.6.2 leaves out at its start
    assert scene.read() == scene.log
    after = scene.files()
    assert all(after[path].startswith(data) for path, data in before.items())
    unread = [payload for payload in scene.log.values() if payload not in read_before]
    assert sorted(scene.consume(len(unread))) == sorted(unread)


@pytest.mark.parametrize("scene", [12], indirect=True)  # many, so that ours uses its journal
def test_nothing_is_lost_when_each_kind_of_broker_is_killed_in_turn(scene: Scene) -> None:
    kinds: Sequence[Kind] = ("ours", "java", "ours", "java", "ours")
    for turn, kind in enumerate(kinds):
        scene.place.start(kind)
        scene.send(f"turn-{turn}", 7)
        assert scene.read() == scene.log
        scene.place.kill()
    assert list((scene.place.data / "metaqjournal").glob("*.journal"))


def is_in(where: tuple[str, int], segments: list[Path]) -> bool:
    """Whether a record of partition 1 is in the first of the segments."""
    return where[0] == "0-1" and where[1] < int(segments[1].stem)
