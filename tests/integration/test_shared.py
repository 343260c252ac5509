"""Shared consumers beside a real broker: many members on one partition, urgent messages, leases, restarts."""

import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import pytest

from metaq import DeadLetters, Retry, SharedConfig, SharedConsumer, SharedMessage
from metaq.errors import ConfigError, SharedRefused
from metaq.serializers import Json
from tests.integration.client_cluster import Running, leased
from tests.waiting import eventually

TOPICS = {"jobs": 1, "many": 3}


def member(brokers, **options) -> SharedConsumer:
    if "lease_seconds" in options:
        options["config"] = SharedConfig(lease_seconds=options.pop("lease_seconds"))
    return SharedConsumer(brokers.connect, **{"group": "g", "topics": ["jobs"]} | options)


def test_sixteen_members_of_one_partition_share_its_messages_and_each_is_worked_on_once(brokers, producer):
    sent = [b"%d" % number for number in range(400)]
    producer.send_batch("jobs", sent)
    seen: list[tuple[bytes, str]] = []

    def work(name, message):
        time.sleep(0.002)
        seen.append((message.payload, name))

    consumers = [member(brokers, config=SharedConfig(prefetch=4)) for _ in range(16)]
    with ExitStack() as working:
        for each in consumers:
            working.enter_context(Running(each, partial(work, each.member)))
        eventually(lambda: len(seen) >= len(sent), what="all messages")
        for each in consumers:
            each.flush()
        assert sum(each.counts[0] for each in consumers) == len(sent)
    assert sorted(payload for payload, _ in seen) == sorted(sent)
    assert len({name for _, name in seen}) > 8


def test_a_member_that_ends_without_a_word_leaves_its_messages_to_others_when_its_lease_ends(brokers, producer):
    producer.send_batch("jobs", [b"a", b"b"])
    with member(brokers, lease_seconds=1.0) as first:
        mine = leased(first, 2)
        first.ack(mine[0])
        first.flush()
    with member(brokers, lease_seconds=5.0) as second:
        (again,) = leased(second, 1)
        assert (again.payload, again.attempts) == (mine[1].payload, 1)
        second.ack(again)
        second.flush()
        assert second.poll(1.5) == []


RETRY = Retry(attempts=3, first=0.05, factor=1, jitter=0)


def test_what_fails_comes_again_then_is_a_dead_letter_and_comes_once_more_when_that_is_redriven(brokers, producer):
    producer.send("many", b"poison", key="k", properties={"n": 1})
    producer.send("many", b"good")
    handled, is_mended = [], False

    def handle(message: SharedMessage):
        place = (message.topic, message.keys, dict(message.properties)) if message.payload == b"poison" else None
        handled.append((message.payload, message.attempts, place))
        if message.payload == b"poison" and not is_mended:
            raise ValueError("it cannot be read")

    consumer = member(brokers, topics=["many"])
    with Running(consumer, handle, threads=2, retry=RETRY), DeadLetters(brokers.connect, group="g") as letters:
        eventually(letters.count, what="a dead letter")
        (letter,) = letters.read()
        cause = "ValueError: it cannot be read"
        assert (letter.original.payload, letter.attempts, letter.cause) == (b"poison", 3, cause)
        place = ("many", ("k",), {"n": 1})
        assert sorted(handled) == [(b"good", 1, None), *((b"poison", number, place) for number in (1, 2, 3))]
        eventually(lambda: consumer.counts[0] == 2, what="that both are done")
        is_mended = True
        handled.clear()
        assert len(list(letters.redrive([letter], to="group"))) == 1
        eventually(lambda: handled, what="the redriven message")
        assert handled == [(b"poison", 1, place)]
        eventually(lambda: consumer.counts[0] == 3, what="that it is done")
        assert letters.count() == 0


DIES = """
import os, sys
from metaq import SharedConfig, SharedConsumer

def handle(message):
    if message.payload == b"deadly":
        os._exit(9)
    os.write(1, message.payload + b"\\n")

SharedConsumer(sys.argv[1], group="g", topics=["jobs"], config=SharedConfig(lease_seconds=1.0)).run(handle, threads=4)
"""


def test_a_message_whose_members_die_of_it_is_a_dead_letter_alone_and_says_so(brokers, producer):
    sent = {b"%d" % number for number in range(40)}
    producer.send_batch("jobs", [*sorted(sent)[:5], b"deadly", *sorted(sent)[5:]])
    died = subprocess.run([sys.executable, "-c", DIES, brokers.connect], stdout=subprocess.PIPE, timeout=60)
    assert died.returncode == 9
    handled = set(died.stdout.split())
    attempts: list[int] = []
    while len(attempts) < 2:
        with member(brokers, lease_seconds=0.3) as consumer:
            while (message := leased(consumer, 1)[0]).payload != b"deadly":
                assert message.attempts == 1
                handled.add(message.payload)
                consumer.ack(message)
            attempts.append(message.attempts)
    assert attempts == [1, 2]  # those in which it was alone
    with (
        Running(member(brokers), lambda message: handled.add(message.payload), retry=replace(RETRY, attempts=2)),
        DeadLetters(brokers.connect, group="g") as letters,
    ):
        eventually(letters.count, what="a dead letter")
        eventually(lambda: handled == sent, what="all others")
        (letter,) = letters.read()
        assert (letter.original.payload, letter.attempts) == (b"deadly", 2)
        assert "let their leases run out" in letter.cause


def test_a_late_acknowledgement_of_a_sole_member_counts_although_it_has_the_message_again(brokers, producer):
    producer.send("jobs", b"slow")
    with member(brokers, lease_seconds=0.3) as consumer:
        (message,) = leased(consumer, 1)
        time.sleep(0.6)  # it asks for one more, and gets this one
        consumer.ack(message)
        consumer.flush()
        assert consumer.poll(0.5) == []
        assert consumer.counts == (1, 0)


def test_a_filter_leaves_messages_out_for_the_whole_group_and_for_good(brokers, producer):
    for number in range(500):
        producer.send_async("jobs", b"%d" % number, properties={"n": number})
    producer.flush()
    where = "n >= 240 AND n < 245"
    with member(brokers, where=where) as consumer:
        messages = leased(consumer, 5)
        assert [message.payload for message in messages] == [b"240", b"241", b"242", b"243", b"244"]
        assert consumer.poll(0.3) == []
        consumer.ack(*messages)
        consumer.flush()
        assert consumer.counts == (5, 0)  # the broker left out the others
    with member(brokers) as consumer:
        with pytest.raises(SharedRefused, match=r"with where='n >= 240 AND n < 245'"):
            consumer.poll(60.0)
        with pytest.raises(SharedRefused, match=r"this member .* wants ordered_by_key=False"):
            consumer.run(lambda message: pytest.fail("it is handed out"))
    with member(brokers, group="other") as consumer:
        assert len(leased(consumer, 500)) == 500


def test_tags_and_values_with_a_filter_priorities_retries_and_dead_letters(brokers, producer):
    orders = producer.typed(Json())
    for number in range(300):
        tag = ("buy", "sell", "hold")[number % 3]
        orders.send_async("jobs", {"n": number}, tag=tag, properties={"n": number}, priority=number % 2)
    producer.flush()
    handled: list[tuple[int, int]] = []

    def handle(message: SharedMessage):
        handled.append((message.value["n"], message.attempts))
        if message.value["n"] == 4:
            raise ValueError("not 4")

    wants = {"tags": ["buy", "sell"], "where": "n < 12"}
    consumer = member(brokers, deserializer=Json(), **wants)
    with (
        Running(consumer, handle, retry=replace(RETRY, attempts=2)),
        DeadLetters(brokers.connect, group="g") as letters,
    ):
        eventually(letters.count, what="a dead letter")
        eventually(lambda: len(handled) == 9, what="all messages")
        wanted = [number for number in range(12) if number % 3 != 2]
        assert sorted(handled) == sorted([*((number, 1) for number in wanted), (4, 2)])
        assert [each.original.payload for each in letters.read()] == [b'{"n":4}']
        eventually(lambda: consumer.counts == (8, 0), what="that the broker left out the others")
        handled.clear()
        list(letters.redrive(letters.read(), to="group"))
        eventually(lambda: handled[:1] == [(4, 1)], what="the redriven message")
    with member(brokers, **wants) as other:
        assert other.poll(0.5) == []  # done for the whole group


def test_a_dead_letter_that_has_expired_is_redriven_without_an_end_and_to_its_own_group_alone(brokers, producer):
    producer.send("jobs", b"late", ttl=1.5, properties={"n": 1})
    handled = []

    def handle(message: SharedMessage):
        handled.append((message.payload, dict(message.properties)))
        if len(handled) == 1:
            raise ValueError("not yet")

    consumer = member(brokers)
    with (
        Running(consumer, handle, retry=replace(RETRY, attempts=1)),
        DeadLetters(brokers.connect, group="g") as letters,
        DeadLetters(brokers.connect, group="other") as others,
    ):
        eventually(letters.count, what="a dead letter")
        found = list(letters.read())
        with pytest.raises(ConfigError, match="%DEAD%other"):
            list(others.redrive(found))
        time.sleep(1.5)
        list(letters.redrive(found))
        eventually(lambda: len(handled) == 2, what="the redriven message")
        eventually(lambda: consumer.counts[0] == 2, what="that both are done")
        assert handled == [(b"late", {"n": 1})] * 2


def test_what_has_expired_is_given_to_nobody(brokers, producer):
    producer.send("jobs", b"stale", ttl=0.05)
    time.sleep(0.1)
    producer.send("jobs", b"fresh", ttl=60)
    with member(brokers) as consumer:
        assert [message.payload for message in leased(consumer, 1)] == [b"fresh"]
        assert consumer.poll(0.3) == []


def test_a_handler_may_work_longer_than_its_lease(brokers, producer):
    producer.send("jobs", b"long")
    done = threading.Event()
    times = []

    def handle(message):
        times.append(message.attempts)
        time.sleep(4.5)
        done.set()

    consumer = member(brokers, lease_seconds=2.0)
    with Running(consumer, handle), member(brokers) as other:
        eventually(lambda: times, what="the handler")
        assert other.poll(3.5) == []
        assert done.wait(10)
        eventually(lambda: consumer.counts[0] == 1, what="the acknowledgement")
        assert consumer.counts == (1, 0)
    assert times == [1]


def test_what_a_busy_handler_keeps_waiting_goes_to_others_after_half_of_the_lease_and_is_not_suspect(brokers, producer):
    begun = threading.Event()
    goes_on = threading.Event()
    sent = {b"%d" % number for number in range(6)}
    producer.send_batch("jobs", sorted(sent))

    def handle(message):
        if message.payload == b"1":  # behind a fast one, so that many are leased ahead
            begun.set()
            goes_on.wait(60)

    with Running(member(brokers, lease_seconds=12), handle):
        assert begun.wait(10)
        with member(brokers, lease_seconds=60) as other:  # not before: a member leases ahead as soon as it is there
            start = time.monotonic()
            messages = leased(other, 4)
            assert time.monotonic() - start < 11
            assert {each.payload for each in messages} == sent - {b"0", b"1"}
            assert {(each.attempts, each.is_suspect) for each in messages} == {(1, False)}
            goes_on.set()


def test_what_comes_while_an_idle_member_closes_is_not_left_with_it(brokers, producer):
    """Its lease would be longer than any test waits."""
    sent = None
    for number in range(40):
        with member(brokers, lease_seconds=300) as consumer:
            if sent is not None:
                sent.result(10)
                (message,) = leased(consumer, 1)
                assert (message.payload, message.attempts, message.is_suspect) == (b"%d" % (number - 1), 1, False)
                consumer.ack(message)
                consumer.flush()
            assert consumer.poll(0.05) == []
            sent = producer.send_async("jobs", b"%d" % number)
            time.sleep(number % 5 / 1000)
            start = time.monotonic()
        assert time.monotonic() - start < 5  # it does not wait until the broker's is over


def test_an_urgent_message_passes_thousands_that_wait(brokers, producer):
    for _ in range(10):
        producer.send_batch("jobs", [b"low"] * 1000)
    with member(brokers, config=SharedConfig(prefetch=0)) as consumer:
        consumer.ack(*leased(consumer, 1))
        producer.send("jobs", b"urgent", priority=9)
        (message,) = leased(consumer, 1)
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

    with Running(member(brokers, topics=["many"], ordered_by_key=True), handle, threads=8):
        eventually(lambda: sum(len(each) for each in seen.values()) == 30, what="all messages")
        with member(brokers, group="other", topics=["many"]) as any_order:
            held = any_order.poll(5.0)
            assert held
            with (
                member(brokers, group="other", topics=["many"], ordered_by_key=True) as refused,
                pytest.raises(SharedRefused, match=r"with ordered_by_key=False.* wants ordered_by_key=True"),
            ):
                refused.poll(60.0)
            any_order.ack(*held)
            any_order.flush()
            assert any_order.counts == (len(held), 0)
    assert seen == {f"key-{key}": list(range(key, 30, 3)) for key in range(3)}


def test_leases_and_acknowledgements_outlive_kill_9_of_the_broker(brokers, producer):
    producer.send_batch("jobs", [b"%d" % number for number in range(10)])
    with member(brokers, config=SharedConfig(prefetch=0)) as consumer:
        first = leased(consumer, 4)
        consumer.ack(*first[:2])
        consumer.flush()
        brokers.running[0].kill()
        brokers.start(0)
        consumer.ack(first[2])
        consumer.flush(60)
        rest = leased(consumer, 6)
        assert [int(each.payload) for each in rest] == [4, 5, 6, 7, 8, 9]
        assert {each.attempts for each in rest} == {1}
        consumer.release(first[3])
        (again,) = leased(consumer, 1)
        assert (again.payload, again.attempts) == (first[3].payload, 2)
        consumer.ack(again, *rest)
        consumer.flush()
        assert consumer.counts == (10, 0)


def test_options_that_there_are_not_are_refused_with_what_to_choose(brokers):
    for options, text in (
        ({"start": "middle"}, "earliest"),
        ({"lease_seconds": 0}, "lease_seconds"),
        ({"topics": []}, "topics"),
        ({"where": "n >"}, "where"),
    ):
        with pytest.raises(ConfigError, match=text):
            member(brokers, **options)
    with member(brokers) as consumer:
        for retry, text in (
            (Retry(ordered=True), "ordered_by_key"),
            (Retry(attempts=3, first=8 * 86400.0, most=30 * 86400.0), "604800"),
        ):
            with pytest.raises(ConfigError, match=text):
                consumer.run(print, retry=retry)
