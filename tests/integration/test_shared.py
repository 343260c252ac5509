"""Shared consumers beside a real broker: many members on one partition, urgent messages, leases, restarts."""

import threading
import time
from collections import Counter

import pytest

from metaq import SharedConfig, SharedConsumer, SharedMessage
from metaq.errors import ConfigError, SharedRefused
from tests.waiting import eventually

TOPICS = {"jobs": 1, "many": 3}


def taken(consumer: SharedConsumer, count: int, seconds: float = 30.0) -> list[SharedMessage]:
    """`count` messages, none of them settled."""
    messages: list[SharedMessage] = []
    end = time.monotonic() + seconds
    while len(messages) < count and time.monotonic() < end:
        messages += consumer.poll(0.2, count - len(messages))
    assert len(messages) == count
    return messages


def test_sixteen_members_of_one_partition_share_its_messages_and_each_is_worked_on_once(brokers, producer):
    sent = [b"%d" % number for number in range(400)]
    producer.send_batch("jobs", sent)
    seen: Counter[bytes] = Counter()
    members: Counter[str] = Counter()
    lock = threading.Lock()

    def work(consumer):
        def handle(message):
            time.sleep(0.002)
            with lock:
                seen[message.payload] += 1
                members[consumer.member] += 1

        consumer.run(handle)

    consumers = [
        SharedConsumer(brokers.connect, group="g", topics=["jobs"], config=SharedConfig(prefetch=4)) for _ in range(16)
    ]
    threads = [threading.Thread(target=work, args=(each,), daemon=True) for each in consumers]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: len(seen) == len(sent), what="all messages")
        for consumer in consumers:
            consumer.flush()
        assert sum(consumer.counts[0] for consumer in consumers) == len(sent)
    finally:
        for consumer in consumers:
            consumer.close()
    for thread in threads:
        thread.join(10)
    assert set(seen) == set(sent)
    assert set(seen.values()) == {1}
    assert len(members) > 8


def test_a_member_that_ends_without_a_word_leaves_its_messages_to_others_when_its_lease_ends(brokers, producer):
    producer.send_batch("jobs", [b"a", b"b"])
    with SharedConsumer(brokers.connect, group="g", topics=["jobs"], lease_seconds=1.0) as first:
        mine = taken(first, 2)
        first.ack(mine[0])
        first.flush()
    with SharedConsumer(brokers.connect, group="g", topics=["jobs"], lease_seconds=5.0) as second:
        (again,) = taken(second, 1)
        assert (again.payload, again.attempts) == (mine[1].payload, 2)
        second.ack(again)
        second.flush()
        assert second.poll(1.5) == []


def test_what_fails_comes_again_and_then_goes_to_on_exhausted(brokers, producer):
    producer.send("many", b"poison")
    producer.send("many", b"good")
    handled, exhausted = [], []

    def handle(message: SharedMessage):
        handled.append((message.payload, message.attempts))
        if message.payload == b"poison":
            raise ValueError("it cannot be read")

    consumer = SharedConsumer(
        brokers.connect,
        group="g",
        topics=["many"],
        max_attempts=3,
        on_exhausted=lambda message, error: exhausted.append((message.payload, message.attempts, str(error))),
        config=SharedConfig(retry_step_seconds=0.05),
    )
    thread = threading.Thread(target=consumer.run, args=(handle,), kwargs={"threads": 2}, daemon=True)
    thread.start()
    eventually(lambda: exhausted, what="on_exhausted")
    consumer.flush()
    consumer.close()
    thread.join(10)
    assert sorted(handled) == [(b"good", 1), (b"poison", 1), (b"poison", 2), (b"poison", 3)]
    assert exhausted == [(b"poison", 3, "it cannot be read")]


def test_a_handler_may_work_longer_than_its_lease(brokers, producer):
    producer.send("jobs", b"long")
    done = threading.Event()
    times = []

    def handle(message):
        times.append(message.attempts)
        time.sleep(2.5)
        done.set()

    with (
        SharedConsumer(brokers.connect, group="g", topics=["jobs"], lease_seconds=0.8) as consumer,
        SharedConsumer(brokers.connect, group="g", topics=["jobs"]) as other,
    ):
        thread = threading.Thread(target=consumer.run, args=(handle,), daemon=True)
        thread.start()
        eventually(lambda: times, what="the handler")
        assert other.poll(2.0) == []
        assert done.wait(10)
        eventually(lambda: consumer.counts[0] == 1, what="the acknowledgement")
        assert consumer.counts == (1, 0)
    assert times == [1]


def test_an_urgent_message_passes_thousands_that_wait(brokers, producer):
    for _ in range(10):
        producer.send_batch("jobs", [b"low"] * 1000)
    with SharedConsumer(brokers.connect, group="g", topics=["jobs"], config=SharedConfig(prefetch=0)) as consumer:
        consumer.ack(*taken(consumer, 1))
        producer.send("jobs", b"urgent", priority=9)
        (message,) = taken(consumer, 1)
        assert (message.payload, message.priority) == (b"urgent", 9)


def test_messages_of_a_key_come_one_at_a_time_in_order(brokers, producer):
    for number in range(30):
        producer.send("many", b"%d" % number, key=f"key-{number % 3}")
    seen: dict[str, list[int]] = {}
    busy: Counter[str] = Counter()
    lock = threading.Lock()

    def handle(message):
        (key,) = message.keys
        with lock:
            busy[key] += 1
            assert busy[key] == 1
            seen.setdefault(key, []).append(int(message.payload))
        time.sleep(0.01)
        with lock:
            busy[key] -= 1

    with SharedConsumer(brokers.connect, group="g", topics=["many"], ordered_by_key=True) as consumer:
        thread = threading.Thread(target=consumer.run, args=(handle,), kwargs={"threads": 8}, daemon=True)
        thread.start()
        eventually(lambda: sum(len(each) for each in seen.values()) == 30, what="all messages")
        with SharedConsumer(brokers.connect, group="other", topics=["many"]) as any_order:
            held = any_order.poll(5.0)
            assert held
            with (
                SharedConsumer(brokers.connect, group="other", topics=["many"], ordered_by_key=True) as refused,
                pytest.raises(SharedRefused, match="ordered_by_key"),
            ):
                refused.poll(60.0)
    assert seen == {f"key-{key}": list(range(key, 30, 3)) for key in range(3)}


def test_leases_and_acknowledgements_outlive_kill_9_of_the_broker(brokers, producer):
    producer.send_batch("jobs", [b"%d" % number for number in range(10)])
    with SharedConsumer(brokers.connect, group="g", topics=["jobs"], config=SharedConfig(prefetch=0)) as consumer:
        first = taken(consumer, 4)
        consumer.ack(*first[:2])
        consumer.flush()
        brokers.running[0].kill()
        brokers.start(0)
        consumer.ack(first[2])
        consumer.flush(60)
        rest = taken(consumer, 6)
        assert [int(each.payload) for each in rest] == [4, 5, 6, 7, 8, 9]
        assert {each.attempts for each in rest} == {1}
        consumer.release(first[3])
        (again,) = taken(consumer, 1)
        assert (again.payload, again.attempts) == (first[3].payload, 2)
        consumer.ack(again, *rest)
        consumer.flush()
        assert consumer.counts == (10, 0)


def test_options_that_there_are_not_are_refused_with_what_to_choose(brokers):
    for options, text in (
        ({"start": "middle"}, "earliest"),
        ({"lease_seconds": 0}, "lease_seconds"),
        ({"topics": []}, "topics"),
        ({"max_attempts": 0}, "max_attempts"),
    ):
        with pytest.raises(ConfigError, match=text):
            SharedConsumer(brokers.connect, **{"group": "g", "topics": ["jobs"]} | options)
