"""`metaq.Admin` on real brokers: what it says, what it changes, and what it refuses."""

import dataclasses
import json
from collections.abc import Iterator

import pytest

from metaq import Admin, TopicPartition
from metaq.broker.standalone.in_process import InProcessZooKeeper
from metaq.cli.app import run
from metaq.protocol.delays import Cancelled
from metaq.protocol.errors import BrokerUnavailable, ClientError, ConfigError, InvalidName, NoPartition
from metaq.testing import Cluster


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[InProcessZooKeeper]:
    with InProcessZooKeeper() as server:
        yield server


@pytest.fixture
def cluster(zookeeper: InProcessZooKeeper) -> Iterator[Cluster]:
    with Cluster({"t": 2}, brokers=2, zookeeper=zookeeper) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.zookeeper) as admin:
        yield admin


HOME = TopicPartition("t", 0, 1)


def test_topics_are_listed_and_described(cluster, admin):
    cluster.producer().send_batch("t", [b"a", b"b"], partition=HOME)
    assert [dataclasses.astuple(each) for each in admin.topics.list()] == [("t", 4, 2)]
    described = admin.topics.describe("t")
    assert [str(each.partition) for each in described.partitions] == ["0-0", "0-1", "1-0", "1-1"]
    assert [each.bounds.messages for each in described.partitions] == [0, 2, 0, 0]
    described.check_complete()
    with pytest.raises(dataclasses.FrozenInstanceError):
        described.topic = "other"
    with pytest.raises(NoPartition, match="did you mean 't'"):
        admin.topics.describe("tt")


def test_brokers_are_listed_and_described_and_gone_ones_are_told(cluster, admin):
    cluster.brokers[1].kill()
    first, gone = admin.brokers.list()
    assert (first.broker, first.role, first.topics, first.partitions) == (0, "master", 1, 2)
    assert first.version
    assert dataclasses.astuple(gone) == (1, "gone", *[None] * 6)
    described = admin.brokers.describe(0)
    assert (described.protocol, described.address) == ("frames", f"meta://{first.address}")
    assert "uptime" in described.figures
    with pytest.raises(BrokerUnavailable):
        admin.brokers.describe(1)


def test_an_answer_says_what_it_lacks_and_a_broker_that_comes_back_is_asked_again(cluster, admin):
    cluster.producer().send("t", b"a", partition=HOME)
    admin.groups.seek("g", "t", "earliest", new=True)
    cluster.brokers[0].kill()
    found = admin.groups.describe("g")
    assert found.unanswered.absent == (0,)
    with pytest.raises(BrokerUnavailable, match="t 0-1"):
        found.check_complete()
    moved = admin.groups.seek("g", "t", "latest", dry_run=True)
    assert (moved.left_out, [each.partition.broker for each in moved.partitions]) == (["0-0", "0-1"], [1, 1])
    with pytest.raises(BrokerUnavailable, match="stay as they are"):
        moved.check_complete()
    cluster.brokers[0].start()
    again = admin.groups.seek("g", "t", "latest", partitions=["0-1"])  # its address was unknown
    again.check_complete()
    assert [each.before for each in again.partitions] == [0]
    assert again.partitions[0].offset > 0


def test_a_groups_offsets_are_moved_copied_skipped_and_removed(cluster, admin):
    cluster.producer().send_batch("t", [b"a", b"b"], partition=HOME)
    with pytest.raises(ClientError, match="new=True"):
        admin.groups.seek("g", "t", "earliest")
    (moved,) = admin.groups.seek("g", "t", "earliest", partitions=[HOME], new=True).partitions
    assert (moved.before, moved.offset) == (None, 0)
    (group,) = admin.groups.list()
    assert dataclasses.astuple(group) == ("g", 0, ["t"])
    lags = {each.partition: each.lag_messages for each in admin.groups.describe("g").partitions}
    assert lags[HOME] == 2

    copied = admin.offsets.copy("t", 0, 1, range(1, 2), dry_run=True)
    assert [(each.target, each.copied) for each in copied] == [(TopicPartition("t", 1, 0), True)]
    assert [each.partition for each in admin.offsets.list(group="g")] == [HOME]
    assert admin.offsets.copy("t", 0, 1, range(1, 2)) == copied
    assert [each.copied for each in admin.offsets.copy("t", 0, 1, range(1, 2))] == [False]

    skipped = admin.offsets.skip("g", "t", partitions=["0-1"])
    assert [each.before for each in skipped.partitions] == [0]
    assert {each.partition: each.lag_messages for each in admin.groups.describe("g").partitions}[HOME] == 0

    assert admin.groups.delete("g", dry_run=True) == admin.groups.delete("g")
    assert admin.groups.list() == []


def test_what_a_member_would_overwrite_is_refused(cluster, admin):
    member = cluster.consumer(group="live", topics=["t"])
    member.poll(timeout=5)
    for call in (
        lambda: admin.groups.seek("live", "t", "earliest"),
        lambda: admin.groups.delete("live"),
        lambda: admin.offsets.skip("live", "t"),
    ):
        with pytest.raises(ClientError, match=r"stop (them|these consumers) first"):
            call()


@pytest.mark.parametrize(
    ("given", "error"), [(["0-x"], InvalidName), ([TopicPartition("other", 0, 1)], ConfigError), (["7-7"], NoPartition)]
)
def test_a_partition_that_is_none_is_refused_before_anything_changes(admin, given, error):
    with pytest.raises(error):
        admin.groups.seek("g", "t", "earliest", partitions=given, new=True)
    assert admin.groups.list() == []


def test_delayed_messages_are_counted_listed_and_cancelled(cluster, admin):
    producer = cluster.producer()
    first, second = (
        producer.send("t", payload, delay=seconds, partition=HOME) for payload, seconds in ((b"b", 7200), (b"a", 3600))
    )
    assert [dataclasses.astuple(each) for each in admin.delayed.count(topic="t").topics] == [("t", 2, 0, None)]
    listed = admin.delayed.list(limit=5)
    assert [(each.partition, each.message.id) for each in listed.messages] == [
        (HOME, second.message_id),
        (HOME, first.message_id),
    ]
    assert admin.delayed.cancel(HOME, [first.message_id], dry_run=True) == {first.message_id: Cancelled.CANCELLED}
    assert admin.delayed.cancel(HOME, [first.message_id, 4]) == {
        first.message_id: Cancelled.CANCELLED,
        4: Cancelled.LATE,
    }
    assert [each.count for each in admin.delayed.count().topics] == [1]


def test_dead_letters_are_those_of_the_same_cluster(cluster, admin):
    with admin.dead_letters("g") as letters:
        assert letters.count() == 0


def test_the_command_prints_what_admin_returns(cluster, admin, capsys):
    cluster.producer().send("t", b"a", partition=HOME)
    assert run(["--zk", cluster.zookeeper, "groups", "seek", "g", "--new", "-t", "t", "--to", "earliest"]) == 0
    assert [each.offset for each in admin.offsets.list(group="g")] == [0, 0, 0, 0]
    capsys.readouterr()
    assert run(["--zk", cluster.zookeeper, "groups", "describe", "g", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["partitions"]
    said = admin.groups.describe("g").partitions
    assert [(each["partition"], each["lag_messages"]) for each in printed] == [
        (str(each.partition), each.lag_messages) for each in said
    ]
