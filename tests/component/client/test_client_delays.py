"""Delayed sends and cancellations of a producer, against a broker in memory."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from metaq import Producer, ProducerConfig, TopicPartition
from metaq.protocol.errors import ConfigError, LocalProtocolError, MessageNotFound, RequestRefused
from tests.component.client.harness import address
from tests.speaking import speaking
from tests.waiting import eventually

HOUR = timedelta(hours=1)


TOPICS = {"t": 2}


def direct(broker, protocol="auto"):
    return Producer.direct(address(broker), broker_id=0, partitions=TOPICS, config=speaking(protocol, ProducerConfig()))


@pytest.fixture
def producer(broker, protocol):
    with direct(broker, protocol) as producer:
        yield producer


@pytest.fixture
def framed(broker):
    with direct(broker) as producer:
        yield producer


def test_a_result_says_when_the_message_is_due(broker, producer):
    due = datetime.now(UTC) + HOUR
    result = producer.send("t", b"a", deliver_at=due)
    assert result.pending
    assert timedelta(0) <= result.due - due < timedelta(milliseconds=1)
    before = datetime.now(UTC)
    later = producer.send("t", b"b", delay=90)
    assert timedelta(seconds=89.9) < later.due - before < timedelta(seconds=95)
    assert producer.send("t", b"now").due is None
    assert [broker.bodies("t", number) for number in (0, 1)].count([b"now"]) == 1


def test_a_message_comes_when_it_is_due(broker, framed):
    framed.send("t", b"a", delay=0.05, partition=TopicPartition("t", 0, 1))
    eventually(lambda: len(broker.bodies("t", 1)) == 1)
    assert broker.bodies("t", 1)[0].endswith(b"a")


def test_all_of_a_batch_wait_and_each_can_be_cancelled(broker, framed):
    results = framed.send_batch("t", [b"%d" % number for number in range(30)], delay=60)
    assert len(results) == len({each.message_id for each in results}) == 30
    assert all(each.offset == -1 and each.due == results[0].due for each in results)
    assert framed.cancel(results[7])
    assert results[7].message_id not in {each.id for each in broker.delays.waiting}
    assert len(broker.delays.waiting) == 29
    with pytest.raises(MessageNotFound):
        framed.cancel(results[7])


def test_delayed_and_ordinary_messages_of_one_partition_never_share_a_batch(broker, framed):
    """Gathered while a request is under way."""
    where = TopicPartition("t", 0, 0)
    futures = []
    for number in range(200):
        options = ({}, {"delay": 60 + number}, {"deliver_at": datetime.now(UTC) + HOUR})[number % 3]
        futures.append((number, framed.send_async("t", b"%d" % number, partition=where, **options)))
    results = {number: future.result(10) for number, future in futures}
    assert len(broker.bodies("t", 0)) == 67
    waiting = {each.id: each for each in broker.delays.waiting}
    assert len(waiting) == 133
    for number, result in results.items():
        if number % 3:
            each = waiting[result.message_id]
            assert each.body.endswith(b"%d" % number)
            assert result.due == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=each.due)
        else:
            assert result.due is None


def test_produce_tells_what_send_would_return(framed):
    told = []
    done = threading.Event()

    def report(error, result):
        told.append((error, result))
        done.set()

    framed.produce("t", b"a", delay=30, on_delivery=report)
    assert done.wait(10)
    ((error, result),) = told
    assert error is None
    assert framed.cancel(result)


def test_a_broker_that_keeps_no_messages_is_named(broker, framed):
    broker.takes_delays = False
    with pytest.raises(RequestRefused, match=r"keeps no messages .*delays/1.* update it"):
        framed.send("t", b"a", delay=1)
    assert framed.send("t", b"a").due is None
    futures = [framed.send_async("t", b"%d" % number, **({"delay": 1} if number % 2 else {})) for number in range(40)]
    for number, future in enumerate(futures):
        if number % 2:
            assert isinstance(future.exception(10), RequestRefused)
        else:
            assert future.result(10).due is None


@pytest.mark.parametrize(
    ("options", "error", "what"),
    [
        ({"delay": -1}, LocalProtocolError, "not 0 or more"),
        ({"delay": float("nan")}, LocalProtocolError, "not 0 or more"),
        ({"delay": 367 * 86400}, LocalProtocolError, "366 days"),
        ({"delay": "1"}, TypeError, "no number"),
        ({"delay": True}, TypeError, "no number"),
        ({"deliver_at": datetime(2030, 1, 1)}, LocalProtocolError, "no time zone"),
        ({"deliver_at": datetime(2999, 1, 1, tzinfo=UTC)}, LocalProtocolError, "366 days"),
        ({"deliver_at": 17}, TypeError, "no datetime"),
        ({"deliver_at": datetime(1, 1, 1, tzinfo=UTC)}, LocalProtocolError, "lies before all messages.*leave it out"),
        ({"deliver_at": datetime(1970, 1, 1, tzinfo=UTC), "ttl": 5}, LocalProtocolError, "lies before all messages"),
        ({"deliver_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 1}, LocalProtocolError, "both"),
    ],
)
def test_a_wrong_time_is_refused_before_anything_is_sent(broker, framed, options, error, what):
    payloads: list[Any] = [b"a", b"a", b"a", [b"a"]]
    for send, payload in zip(
        (framed.send, framed.send_async, framed.produce, framed.send_batch), payloads, strict=True
    ):
        with pytest.raises(error, match=what):
            send("t", payload, **options)
    assert broker.sends == 0


def test_a_delay_in_a_transaction_is_refused_and_both_are_named(framed):
    with framed.transaction() as tx:
        tx.send("t", b"x", partition=TopicPartition("t", 0, 0))
        with pytest.raises(LocalProtocolError, match=r"delay=5 in a transaction"):
            tx.send("t", b"a", delay=5)
        tx.rollback()


def test_what_was_not_delayed_cannot_be_cancelled(framed):
    with pytest.raises(ConfigError, match="deliver_at or delay"):
        framed.cancel(framed.send("t", b"a"))


def test_a_test_may_have_everything_delivered_at_once(broker, framed):
    framed.send("t", b"later", delay=3600, partition=TopicPartition("t", 0, 0))
    framed.send("t", b"sooner", delay=60, partition=TopicPartition("t", 0, 0))
    broker.deliver_delayed()
    assert [body[-6:] for body in broker.bodies("t", 0)] == [b"sooner", b"\x02later"]
