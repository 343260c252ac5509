"""Users' tests of a handler: retries without pauses, and dead letters, against a broker in memory."""

import pytest

from metaq import Producer, Retry
from metaq.testing import FakeCluster, dead_letters, handle_all
from tests.raising import raising

TOPICS = {"t": 2}


class Handler:
    def __init__(self, **failures):
        self.failures, self.seen = failures, []

    def __call__(self, message):
        name = message.payload.decode()
        self.seen.append((name, message.attempts))
        if message.attempts <= self.failures.get(name, 0):
            raise ValueError(name)


def test_a_handler_gets_what_it_fails_on_until_it_succeeds_or_it_is_dead(broker):
    handler = Handler(flaky=1, bad=9)
    with Producer(metadata=FakeCluster([broker])) as producer:
        sent = producer.send("t", b"flaky", tag="a")
        producer.send("t", b"bad", key="order-7")
        producer.send("t", b"later", delay=3600)
    calls = handle_all(broker, handler, group="g", topics=["t"], retry=Retry(attempts=3))
    assert calls == len(handler.seen) == 6
    assert sorted(handler.seen) == [("bad", 1), ("bad", 2), ("bad", 3), ("flaky", 1), ("flaky", 2), ("later", 1)]
    (dead,) = dead_letters(broker, "g")
    assert (dead.payload, dead.keys, dead.attempts, dead.origin.topic) == (b"bad", ("order-7",), 3, "t")
    assert dead.origin.partition != sent.partition or dead.origin.offset != sent.offset
    assert handle_all(broker, handler, group="g", topics="t", retry=Retry()) == 0
    assert handle_all(broker, Handler(), group="other", topics="t", retry=Retry()) == 3


def test_in_order_a_message_is_tried_again_at_its_place(broker):
    handler = Handler(flaky=2, bad=9)
    broker.append("t", 0, b"flaky", b"bad", b"last")
    handle_all(broker, handler, group="g", topics=["t"], retry=Retry(attempts=3, ordered=True))
    assert handler.seen == [("flaky", 1), ("flaky", 2), ("flaky", 3), ("bad", 1), ("bad", 2), ("bad", 3), ("last", 1)]
    assert [each.payload for each in dead_letters(broker, "g")] == [b"bad"]


def test_what_ends_a_program_ends_the_test(broker):
    broker.append("t", 0, b"1")

    with pytest.raises(SystemExit):
        handle_all(broker, raising(SystemExit(3)), group="g", topics=["t"], retry=Retry())
