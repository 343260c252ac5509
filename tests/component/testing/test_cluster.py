"""Real brokers in the process: their clock, their faults, and what tests ask of them."""

import os
import threading
from collections.abc import Iterator

import pytest

from metaq import Consumer, Producer, Retry
from metaq.broker.standalone.in_process import InProcessZooKeeper
from metaq.protocol.errors import ConfigError
from metaq.testing import Cluster
from tests.waiting import DEADLINE, eventually


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[InProcessZooKeeper]:
    with InProcessZooKeeper() as server:
        yield server


@pytest.fixture
def cluster(zookeeper) -> Iterator[Cluster]:
    with Cluster({"t": 2}, zookeeper=zookeeper) as cluster:
        yield cluster


def owned(member: Consumer) -> int:
    """The number of a member's partitions; the member hands over those that it loses."""
    member.poll(timeout=0.01)
    return len(member.assignment())


def payloads(cluster: Cluster) -> list[bytes]:
    return sorted(message.payload for message in cluster.sent("t"))


def test_what_was_sent_is_shown_as_messages_and_a_wrong_expectation_says_what_is_there(cluster):
    cluster.producer().send("t", b"hello", key="k", tag="a", properties={"n": 1})
    (found,) = cluster.assert_sent("t", "hello", key="k", tag="a", properties={"n": 1}, count=1)
    assert (found.payload, found.keys) == (b"hello", ("k",))
    cluster.assert_sent("t", key="other", count=0)
    with pytest.raises(AssertionError, match=r"key='x': at least 1, found: 0\n.*\(1\):\n.*payload=b'hello', key='k'"):
        cluster.assert_sent("t", key="x", timeout=0)


def test_a_delayed_message_comes_when_the_clock_has_moved(cluster):
    cluster.producer().send("t", b"later", delay=7200)
    cluster.advance(hours=1, minutes=59)
    assert not cluster.sent("t")
    cluster.advance(minutes=2)
    cluster.assert_sent("t", b"later", count=1)
    with pytest.raises(ConfigError):
        cluster.advance(hours=-1)


def test_a_lease_ends_when_the_clock_has_moved_and_connections_stay(cluster):
    cluster.producer().send("t", b"x")
    member = cluster.shared(group="g", topics=["t"])
    (first,) = member.poll(timeout=DEADLINE)
    assert not member.poll(timeout=0.1)
    connections = cluster.broker.connections
    cluster.advance(hours=1)
    (again,) = member.poll(timeout=DEADLINE)
    assert again.id == first.id
    assert cluster.broker.connections >= connections


def test_retention_removes_old_segments_when_the_clock_has_moved(zookeeper):
    topics = {"t": {"numPartitions": 1, "deletePolicy": "delete,1"}}
    with Cluster(topics, settings={"maxSegmentSize": 4096}, zookeeper=zookeeper) as cluster:
        producer = cluster.producer()
        cluster.advance(hours=1)  # what is written from now on is as new as the broker's clock says
        for number in range(8):
            producer.send("t", bytes([number]) * 2000)
        assert len(cluster.sent("t")) == 8
        cluster.advance(days=1)
        eventually(lambda: len(cluster.sent("t")) < 8)


def test_failed_messages_come_again_without_waiting_until_they_are_dead(cluster):
    seen = []

    def handler(message):
        seen.append((message.payload, message.attempts))
        if message.payload == b"bad" or message.attempts == 1:
            raise ValueError("not now")

    producer = cluster.producer()
    producer.send("t", b"flaky")
    producer.send("t", b"bad")
    retry = Retry(attempts=3, first=3600, jitter=0)
    assert cluster.handle_all(handler, group="g", topics=["t"], retry=retry) == 5
    assert sorted(seen) == [(b"bad", 1), (b"bad", 2), (b"bad", 3), (b"flaky", 1), (b"flaky", 2)]
    assert [each.payload for each in cluster.dead_letters("g")] == [b"bad"]
    assert cluster.handle_all(handler, group="g", topics=["t"]) == 0


def test_a_killed_broker_comes_back_with_its_data(cluster):
    producer = cluster.producer()
    producer.send("t", b"1")
    cluster.broker.kill()
    assert not cluster.broker.running
    cluster.broker.start()
    producer.send("t", b"2")
    cluster.broker.drop_connections()
    producer.send("t", b"3")
    cluster.broker.stop()
    cluster.broker.start()
    assert payloads(cluster) == [b"1", b"2", b"3"]


def test_a_paused_broker_answers_when_it_is_resumed(cluster):
    producer = cluster.producer()
    producer.send("t", b"1")
    cluster.broker.pause()
    sending = producer.send_async("t", b"2")
    with pytest.raises(TimeoutError):
        sending.result(0.2)
    cluster.broker.resume()
    sending.result(DEADLINE)
    assert payloads(cluster) == [b"1", b"2"]


def test_a_full_disk_refuses_messages_until_there_is_room(cluster):
    producer = cluster.producer()
    producer.send("t", b"1")
    cluster.broker.fail_writes("disk full")
    sending = producer.send_async("t", b"2")
    with pytest.raises(TimeoutError):
        sending.result(0.2)
    cluster.broker.allow_writes()
    sending.result(DEADLINE)
    with pytest.raises(ConfigError, match="disk full"):
        cluster.broker.fail_writes("rust")


def test_a_group_shares_the_partitions_of_two_brokers_and_takes_over_from_a_member(zookeeper):
    with Cluster({"t": 1}, brokers=2, zookeeper=zookeeper) as cluster:
        members = [cluster.consumer(group="g", topics=["t"]) for _ in range(2)]
        eventually(lambda: [owned(member) for member in members] == [1, 1])
        assert {each.broker for member in members for each in member.assignment()} == {0, 1}
        members.pop().close()
        eventually(lambda: owned(members[0]) == 2)


def test_a_forked_child_uses_the_brokers_of_its_parent(cluster):
    child = os.fork()
    if not child:
        status = 1
        try:
            with Producer(cluster.zookeeper) as producer:
                producer.send("t", b"child")
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    cluster.assert_sent("t", b"child", count=1)


def test_a_stopped_cluster_leaves_no_thread_and_no_file(zookeeper):
    with Cluster({"t": 1}, zookeeper=zookeeper):  # what is made once for the process
        pass
    before = set(threading.enumerate())
    with Cluster({"t": 1}, zookeeper=zookeeper) as cluster:
        cluster.producer().send("t", b"x")
        directory = cluster.broker.directory.parent
        cluster.broker.kill()
        cluster.broker.start()
    assert not directory.exists()
    eventually(lambda: set(threading.enumerate()) <= before)
