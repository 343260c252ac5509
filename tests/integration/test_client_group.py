"""Consumers as members of a group, on a real ZooKeeper and real brokers: who owns what, and how fast that changes."""

import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest
from kazoo.exceptions import NoNodeError, NotEmptyError

from metaq import Consumer, ConsumerConfig, TopicPartition
from metaq.coordination.brokers.cluster_view import ClusterView
from tests.integration.background import Repeating
from tests.integration.client_cluster import (
    SESSION_SECONDS,
    SHORT_SESSION_SECONDS,
    MemberProcess,
    read,
    read_until_quiet,
)
from tests.integration.coordination_helpers import end_on_server, session_at, tree
from tests.waiting import DEADLINE, assert_within, eventually

TOPICS = {"t": 4}
CONFIG = ConsumerConfig(session_timeout_seconds=SESSION_SECONDS, auto_commit_seconds=0.1)


def member(brokers, group="g", config=CONFIG, **arguments):
    return Consumer(brokers.connect, group=group, topics=["t"], config=config, **arguments)


class Polling(Repeating):
    """Polls a consumer on a thread of its own and keeps what it gave."""

    def __init__(self, consumer):
        super().__init__(lambda _: self.messages.extend(consumer.poll(timeout=0.05)), 0.0)
        self.consumer, self.messages = consumer, []

    def __exit__(self, *_):
        super().end()
        self.consumer.commit()  # what the last poll() returned has been dealt with
        self.consumer.close()
        assert self.errors == []


def polling(consumer):
    found = Polling(consumer)
    found.start()
    return found


def owns(consumer, count):
    return lambda: len(consumer.assignment()) == count


def test_partitions_are_shared_when_a_member_joins_and_taken_over_within_a_second_when_it_closes(brokers, producer):
    with Polling(member(brokers)) as first:
        eventually(owns(first.consumer, 4), 10, "owning everything")

        def join_and_leave() -> float:
            second = polling(member(brokers))
            eventually(lambda: owns(first.consumer, 2)() and owns(second.consumer, 2)(), 5, "sharing")
            assert not set(first.consumer.assignment()) & set(second.consumer.assignment())
            started = time.monotonic()
            second.__exit__()
            eventually(owns(first.consumer, 4), 1, "the take-over")
            return time.monotonic() - started

        assert_within(1.0, join_and_leave)
        producer.send_batch("t", [b"x"], partition=TopicPartition("t", 0, 3))
        eventually(lambda: first.messages, 1, "reading what was taken over")


def test_a_killed_member_is_replaced_within_the_session_timeout_and_two_seconds(brokers, producer):
    with Polling(member(brokers)) as survivor:

        def kill_one() -> float:
            killed = MemberProcess(brokers.connect, "g", "t", SHORT_SESSION_SECONDS)
            lost = killed.wait_until_it_owns(2, "t")
            survivor.messages.clear()
            killed.kill()
            started = time.monotonic()
            for partition in lost:
                producer.send("t", b"%d" % partition.partition, partition=partition)
            wanted = {b"%d" % partition.partition for partition in lost}
            eventually(lambda: wanted <= {message.payload for message in survivor.messages}, 4, "the take-over")
            return time.monotonic() - started

        assert_within(SHORT_SESSION_SECONDS + 2, kill_one)


def test_no_message_is_lost_and_none_repeated_by_orderly_rebalances(brokers, producer):
    """Members join and leave while 4,000 messages flow; each is handed out exactly once, in order per partition."""
    members = [polling(member(brokers))]
    eventually(owns(members[0].consumer, 4), 10)
    for part in range(8):
        for number in range(part * 500, part * 500 + 500):
            producer.send_async("t", b"%d" % number)
        producer.flush()
        if part in (1, 3):
            members.append(polling(member(brokers)))
        if part == 5:
            members[0].__exit__()
    total = lambda: sum(len(each.messages) for each in members)  # noqa: E731
    eventually(lambda: total() >= 4000, 20, "reading everything")
    for each in members[1:]:
        each.__exit__()
    counted = Counter(message.payload for each in members for message in each.messages)
    assert set(counted) == {b"%d" % number for number in range(4000)}
    assert [payload for payload, times in counted.items() if times > 1] == []
    for each in members:
        by_partition: dict[TopicPartition, list[int]] = {}
        for message in each.messages:
            by_partition.setdefault(message.partition, []).append(message.offset)
        assert all(offsets == sorted(offsets) for offsets in by_partition.values())


def test_callbacks_are_called_while_polling_with_what_changes(brokers, producer):
    heard = []
    thread = threading.get_ident()

    def note(kind):
        return lambda partitions: heard.append((kind, list(map(str, partitions)), threading.get_ident()))

    first = member(brokers, on_assigned=note("assigned"), on_revoked=note("revoked"))
    eventually(lambda: first.poll(timeout=0.05) or heard, 10)
    with Polling(member(brokers)):
        eventually(lambda: first.poll(timeout=0.05) or len(heard) == 2, 10)
    eventually(lambda: first.poll(timeout=0.05) or len(heard) == 3, 10)
    assert heard == [
        ("assigned", ["0-0", "0-1", "0-2", "0-3"], thread),
        ("revoked", heard[1][1], thread),
        ("assigned", heard[1][1], thread),
    ]
    assert len(heard[1][1]) == 2
    first.close()


class Stalling:
    """Takes messages in one of four ways, on a thread of its own, and stalls with the first until `go` is set."""

    def __init__(self, consumer, way):
        self.consumer, self.seen = consumer, set()
        self.go, self.stop, self.stalls = threading.Event(), threading.Event(), threading.Event()
        self.thread = threading.Thread(target=getattr(self, way))
        self.thread.start()

    def take(self, payload):
        self.seen.add(payload)
        self.stalls.set()
        assert self.go.wait(DEADLINE)

    def poll(self):
        while not self.stop.is_set():
            for message in self.consumer.poll(timeout=0.05):
                self.take(message.payload)

    def poll_arrow(self):
        while not self.stop.is_set():
            for payload in self.consumer.poll_arrow(timeout=0.05)["payload"].to_pylist():
                self.take(payload)

    def iterate(self):
        for message in self.consumer:
            self.take(message.payload)

    def run(self):
        self.consumer.run(lambda message: self.take(message.payload))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.go.set()
        self.stop.set()
        self.consumer.close()
        self.thread.join(DEADLINE)


@pytest.mark.parametrize("way", ["poll", "poll_arrow", "iterate", "run"])
def test_a_member_that_nobody_polls_leaves_its_partitions_to_others_and_takes_part_again(
    brokers, producer, caplog, way
):
    config = replace(CONFIG, max_poll_interval_seconds=1.0)

    numbers = count()

    def send(word):
        for partition in range(4):
            producer.send("t", b"%s %d" % (word, next(numbers)), partition=TopicPartition("t", 0, partition))
        return True

    with Polling(member(brokers)) as other:
        eventually(owns(other.consumer, 4), what="owning everything")
        consumer = Consumer(brokers.connect, group="g", topics=["t"], config=config)
        with Stalling(consumer, way) as stalling:
            # again and again: on a busy machine a second passes between two polls now and then
            eventually(lambda: send(b"first") and stalling.stalls.wait(0.1), what="a message in work")
            eventually(owns(other.consumer, 4), what="the take-over")
            assert consumer.assignment() == []
            (in_work,) = stalling.seen
            eventually(lambda: in_work in {each.payload for each in other.messages}, what="what it had in work")
            stalling.go.set()
            eventually(lambda: owns(consumer, 2)() and owns(other.consumer, 2)(), what="sharing again")
            eventually(lambda: send(b"last") and any(b"last" in each for each in stalling.seen), what="its share")
    told = [record.getMessage() for record in caplog.records if "max_poll_interval_seconds=1" in record.getMessage()]
    assert len(told) >= 1
    assert f"group g: {'a handler of' if way == 'run' else 'nobody has polled'} {consumer.consumer_id}" in told[0]


def expire(consumer):
    """End a consumer's ZooKeeper session on the server, as a long network failure does."""
    end_on_server(consumer._session)


def test_after_a_lost_session_the_consumer_joins_again_and_goes_on(brokers, producer):
    consumer = member(brokers)
    producer.send_batch("t", [b"%d" % number for number in range(10)])
    read(consumer, 10)
    consumer.commit()
    before = {id(state) for state in consumer._core.owned.values()}
    expire(consumer)
    eventually(
        lambda: len(consumer.assignment()) == 4 and not before & set(map(id, consumer._core.owned.values())),
        10,
        "joining and claiming again",
    )
    producer.send("t", b"after")
    eventually(lambda: b"after" in [message.payload for message in consumer.poll(timeout=0.2)], 5)
    consumer.close()


def test_what_was_handed_out_but_not_acknowledged_comes_again(brokers, producer):
    producer.send_batch("t", [b"1", b"2"])
    consumer = member(brokers)
    assert len(read(consumer, 2)) == 2
    consumer.close()
    with member(brokers) as consumer:
        assert len(read(consumer, 2)) == 2


def test_a_message_read_by_iteration_counts_when_the_next_is_asked_for(brokers, producer):
    producer.send_batch("t", [b"1", b"2", b"3"])
    consumer = member(brokers)
    messages = iter(consumer)
    assert [next(messages).payload for _ in range(2)] == [b"1", b"2"]
    consumer.close()
    with member(brokers) as consumer:
        assert [message.payload for message in read_until_quiet(consumer, 2)] == [b"2", b"3"]


def test_close_is_bounded_when_zookeeper_hangs_and_poll_on_another_thread_returns(brokers):
    polling = threading.Event()
    consumer = member(brokers, on_assigned=lambda partitions: polling.set())  # poll() calls it
    results = []
    thread = threading.Thread(target=lambda: results.append(consumer.poll(timeout=2 * DEADLINE)))
    thread.start()
    assert polling.wait(DEADLINE)
    consumer.close()
    thread.join(DEADLINE)
    assert results == [[]]


def test_a_group_goes_on_after_somebody_has_deleted_all_of_zookeepers_nodes(brokers, producer):
    with session_at(brokers.connect) as operator, Polling(member(brokers)) as first, Polling(member(brokers)) as second:
        eventually(lambda: owns(first.consumer, 2)() and owns(second.consumer, 2)(), 10, "sharing")
        for path in sorted(tree(operator.zk), reverse=True):
            with suppress(NoNodeError, NotEmptyError):  # members join again while this goes on
                operator.zk.delete(path)
        eventually(lambda: len(producer.partitions("t")) == 4, 10, "the broker")
        eventually(lambda: len(ClusterView(operator).owners("g", "t")) == 4, 10, "the owners' nodes")
        eventually(lambda: len(ClusterView(operator).consumers("g")) == 2, 10, "the members")
        eventually(lambda: owns(first.consumer, 2)() and owns(second.consumer, 2)(), 10, "sharing again")
        assert not set(first.consumer.assignment()) & set(second.consumer.assignment())
        for number in range(4):
            producer.send("t", b"%d" % number, partition=TopicPartition("t", 0, number))
        eventually(lambda: len({each.payload for each in first.messages + second.messages}) == 4, 10, "the messages")


def test_members_with_different_tags_say_so_and_their_filters_go_with_them(brokers, caplog):
    """What "buy" leaves out of its partitions reaches nobody."""
    with member(brokers, tags="buy") as one:
        eventually(one.assignment, 20, "an assignment")
        with member(brokers, tags="sell") as other:
            eventually(lambda: caplog.text.count("members filter topic t differently") == 2, 20, "a warning of each")
            assert f"{one.consumer_id} takes tags buy, and {other.consumer_id} takes tags sell" in caplog.text
    with session_at(brokers.connect) as session:
        assert session.nodes.children("/meta/consumers/g/filters") == []
