"""Messages found by id and by key, and read again from there, over two real brokers and their restarts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from metaq import AtKey, AtMessage, Consumer, Last, Producer, SendResult, TopicPartition
from metaq.client.questions.cluster import Cluster
from metaq.coordination.servers.local_zookeeper import ZooKeeperProcess
from metaq.protocol.errors import MessageNotFound
from tests.integration.cli_helpers import Operator
from tests.integration.client_cluster import Brokers, read, running_brokers
from tests.waiting import eventually

SEGMENT_BYTES = 60_000
MESSAGES = 600
CHOSEN = 401
"""The message that some consumers begin at; no earlier one was stored in the same millisecond."""
PLACES = [TopicPartition("orders", broker, partition) for broker in (0, 1) for partition in (0, 1)]


def begin_a_millisecond() -> None:
    """Wait until the wall clock, by which brokers store, shows another millisecond than now."""
    now = time.time_ns() // 1_000_000
    eventually(lambda: time.time_ns() // 1_000_000 > now, what="another millisecond")


class Scene:
    """Two brokers with some closed segments in each partition; message n has the keys `order-n` and `mod-<n % 50>`."""

    def __init__(self, brokers: Brokers, directory: Path) -> None:
        self.brokers = brokers
        self.directory = directory
        self.sent: list[SendResult] = []
        with Producer(brokers.connect) as producer:
            for number in range(MESSAGES):
                if number == CHOSEN:
                    begin_a_millisecond()
                place = PLACES[number // 2 % 4]
                keys = [f"order-{number}", f"mod-{number % 50}"]
                self.sent.append(
                    producer.send("orders", b"%d " % number + b"x" * 1000, keys=keys, tag="t", partition=place)
                )

    def key_files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.directory.glob("broker-*/data/orders-*/*.keys")}

    def complete(self) -> bool:
        """Whether each closed segment has its key file."""
        segments = {path.with_suffix(".keys") for path in self.directory.glob("broker-*/data/orders-*/*.meta")}
        growing = {max(each for each in segments if each.parent == parent) for parent in {s.parent for s in segments}}
        return segments - growing == self.key_files().keys() and all(self.key_files().values())

    def check(self) -> None:
        """Some messages by id, some by key, with clients of their own."""
        with Cluster(self.brokers.connect) as cluster:
            finder = cluster.finder()
            for number in (0, 1, 299, MESSAGES - 1):
                sent = self.sent[number]
                message = finder.view_message("orders", sent.message_id).message
                assert (message.id, message.partition, message.offset) == sent[:3]
                assert message.payload.startswith(b"%d " % number)
                assert finder.query_message("orders", f"order-{number}").messages == [message]
            found = finder.query_message("orders", "mod-7", 5)
            assert [message.id for message in found.messages] == self.newest(7)[:5]
            assert (found.unsearched_bytes, found.more) == (0, True)
            assert len(finder.query_message("orders", "mod-7", 100).messages) == MESSAGES // 50
            assert finder.query_message("orders", "order").found == []
            with pytest.raises(MessageNotFound):
                finder.view_message("orders", 4711)

    def last(self, count: int) -> set[int]:
        """Ids of the last `count` messages of each partition."""
        return {
            result.message_id
            for place in PLACES
            for result in [each for each in self.sent if each.partition == place][-count:]
        }

    def newest(self, remainder: int) -> list[int]:
        return [self.sent[number].message_id for number in range(MESSAGES) if number % 50 == remainder][::-1]


@pytest.fixture(scope="module")
def scene(zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("brokers")
    chroot = f"{zookeeper.connect_string}/found"
    with running_brokers(chroot, directory, {"orders": 2}, 2, SEGMENT_BYTES) as brokers:
        yield Scene(brokers, directory)


def test_messages_are_found_at_once_and_when_their_segments_have_key_files(scene: Scene) -> None:
    scene.check()
    eventually(scene.complete, 20, "a key file for each closed segment")
    scene.check()


def test_key_files_that_are_missing_or_torn_are_made_again_while_the_broker_serves(scene: Scene) -> None:
    eventually(scene.complete, 20, "a key file for each closed segment")
    before = scene.key_files()
    scene.brokers.running[0].stop()
    scene.brokers.running[1].kill()
    for number, path in enumerate(sorted(before)):
        if number % 3 == 0:
            path.unlink()
        elif number % 3 == 1:
            path.write_bytes(before[path][: len(before[path]) // 2])
    for broker_id in (0, 1):
        scene.brokers.start(broker_id)
    scene.check()
    eventually(lambda: scene.key_files().items() >= before.items(), 30, "key files as they were")
    scene.check()


def test_a_consumer_looks_messages_up_and_begins_at_one(scene: Scene) -> None:
    sent = scene.sent[CHOSEN]
    after = {result.message_id for result in scene.sent[CHOSEN:]}
    with Consumer(
        scene.brokers.connect, group="by-id", topics=["orders"], start=AtMessage(sent.message_id)
    ) as consumer:
        assert consumer.view_message("orders", sent.message_id).payload.startswith(b"%d " % CHOSEN)
        moment = consumer.view_message("orders", sent.message_id).timestamp
        assert [each.id for each in consumer.query_message("orders", "mod-1", 2).messages] == scene.newest(1)[:2]
        assert {message.id for message in read(consumer, len(after))} == after
    with Consumer(scene.brokers.connect, group="by-key", topics=["orders"], start=AtKey(f"order-{CHOSEN}")) as consumer:
        assert {message.id for message in read(consumer, len(after))} == after
        eventually(lambda: len(consumer.assignment()) == 4, 10)
        place = sent.partition
        mine = [result.message_id for result in scene.sent if result.partition == place]
        for to, first in (
            (AtMessage(mine[30]), 30),
            (AtKey(f"order-{CHOSEN}"), mine.index(sent.message_id)),
            (Last(7), len(mine) - 7),
            (moment or datetime.now(UTC), mine.index(sent.message_id)),
        ):
            consumer.seek(place, to)
            position = consumer.position(place)
            assert [message.id for message in consumer.fetch(place, position)][:1] == [mine[first]]
    with Consumer(scene.brokers.connect, group="last", topics=["orders"], start=Last(3)) as consumer:
        assert {message.id for message in read(consumer, 12)} == scene.last(3)
    with pytest.raises(MessageNotFound):
        Consumer(scene.brokers.connect, group="none", topics=["orders"], start=AtKey("nobody"))


def test_the_command_line_finds_and_reads_from_there(scene: Scene) -> None:
    operator = Operator(scene.brokers.connect)
    sent = scene.sent[123]
    found = operator.json("find", "--topic", "orders", "--key", "order-123")
    assert [(each["id"], each["partition"], each["offset"]) for each in found["messages"]] == [
        (sent.message_id, str(sent.partition), sent.offset)
    ]
    assert (found["unsearched_bytes"], found["more"]) == (0, False)
    assert operator.json("find", "--topic", "orders", "--id", str(sent.message_id)) == found
    table = operator.ran("find", "--topic", "orders", "--key", "mod-3", "--count", "2")
    assert table.code == 0
    assert str(scene.newest(3)[0]) in table.out
    assert "there are more" in table.err
    assert "no message with the key 'x'" in operator.refused("find", "--topic", "orders", "--key", "x")
    assert "no message with the id 1" in operator.refused("find", "--topic", "orders", "--id", "1")

    partition = ("--topic", "orders", "--partition", str(sent.partition))
    for start in (f"id:{sent.message_id}", "key:order-123", str(sent.offset)):
        ran = operator.ran("consume", *partition, "--from", start, "--count", "1", "--json")
        assert json.loads(ran.out)["id"] == sent.message_id, ran.err
    mine = [result for result in scene.sent if result.partition == sent.partition]
    ran = operator.ran("consume", *partition, "--from", "-4", "--format", r"%i\n")
    assert ran.out.split() == [str(result.message_id) for result in mine[-4:]]
    joined = ("--group", "cli", "--from", "-1", "--count", "4", "--timeout", "120", "--format", r"%i\n")
    ran = operator.ran("consume", "--topic", "orders", *joined)
    assert set(map(int, ran.out.split())) == scene.last(1)
    rows = operator.json("groups", "seek", "cli", "--topic", "orders", "--to", "key:order-123")["partitions"]
    assert {row["partition"]: row["offset"] for row in rows}[str(sent.partition)] == sent.offset
