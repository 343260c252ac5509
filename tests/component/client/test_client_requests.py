"""Requests and replies against brokers in memory: matching, deadlines, late and repeated replies, ends, failovers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from metaq.client.browsing.browser import PartitionReader
from metaq.client.producer import Producer
from metaq.client.producer import requesting as requesting_module
from metaq.client.producer.requesting import ReplyTo
from metaq.client.records.message import Message
from metaq.client.records.results import TopicPartition
from metaq.client.settings.config import ProducerConfig
from metaq.errors import ClientError, ConfigError, NoPartition, RequestTimedOut, ValueUnreadable
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.serializers import Json
from metaq.testing import FakeBroker, FakeCluster
from tests.child import refusal
from tests.component.client.harness import address, together
from tests.speaking import speaking
from tests.waiting import DEADLINE, eventually

TOPICS = {"t": 1, "replies": 1}
CONFIG = ProducerConfig(reply_topic="replies")


@pytest.fixture
def producer(framed: Producer) -> Producer:
    return framed


def upper(producer: Producer, request: Message) -> None:
    producer.reply(request, request.payload.upper())


@contextmanager
def serving(
    cluster: FakeCluster, broker: FakeBroker, answer: Callable[[Producer, Message], Any] = upper
) -> Iterator[None]:
    """Answers requests to partition 0-0 of topic t."""
    ended = threading.Event()

    def serve() -> None:
        where = TopicPartition("t", broker.broker_id, 0)
        with Producer(metadata=cluster) as replier, PartitionReader(address(broker), where) as reader:
            while not ended.is_set():
                for request in reader.poll(timeout=0.05):
                    answer(replier, request)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(DEADLINE)
        assert not thread.is_alive()


@pytest.mark.parametrize("protocol", ["auto", "text"])
def test_each_request_gets_its_own_reply(cluster: FakeCluster, broker: FakeBroker, protocol: str) -> None:
    with Producer(metadata=cluster, config=speaking(protocol, CONFIG)) as producer, serving(cluster, broker):
        futures = [producer.request("t", b"r%d" % number, timeout=DEADLINE) for number in range(500)]
        assert [future.result(DEADLINE).payload for future in futures] == [b"R%d" % number for number in range(500)]
    assert producer.late_replies == 0


def test_a_reply_says_what_it_answers_and_a_request_that_it_asks(producer, cluster, broker):
    seen: list[Message] = []

    def answer(replier: Producer, request: Message) -> None:
        seen.append(request)
        upper(replier, request)

    with serving(cluster, broker, answer):
        reply = producer.request("t", b"x", properties={"n": 1}, tag="mine", timeout=DEADLINE).result(DEADLINE)
    (request,) = seen
    assert (request.asks_reply, request.tag, request.properties) == (True, "mine", {"n": 1})
    assert (reply.asks_reply, reply.correlation, reply.properties) == (False, request.correlation, {})


def test_two_requesters_get_their_own_replies_only(cluster: FakeCluster, broker: FakeBroker) -> None:
    with (
        Producer(metadata=cluster, config=CONFIG) as one,
        Producer(metadata=cluster, config=CONFIG) as other,
        serving(cluster, broker),
    ):
        futures = [each.request("t", name, timeout=DEADLINE) for each, name in ((one, b"one"), (other, b"other"))]
        assert [future.result(DEADLINE).payload for future in futures] == [b"ONE", b"OTHER"]
        assert (one.late_replies, other.late_replies) == (0, 0)


def test_a_request_without_a_reply_times_out_and_its_late_reply_is_dropped_and_counted(producer, cluster, broker):
    begun = time.monotonic()
    future = producer.request("t", b"slow", timeout=0.2)
    with pytest.raises(RequestTimedOut, match="no reply to a request to topic 't' came in time"):
        future.result(DEADLINE)
    assert time.monotonic() - begun >= 0.2
    with serving(cluster, broker):
        eventually(lambda: producer.late_replies == 1)
        assert producer.request("t", b"next", timeout=DEADLINE).result(DEADLINE).payload == b"NEXT"


def test_of_a_reply_that_comes_twice_the_first_counts(producer, cluster, broker):
    def twice(replier: Producer, request: Message) -> None:
        replier.reply(request, b"first")
        replier.reply(request, b"second")

    with serving(cluster, broker, twice):
        assert producer.request("t", b"x", timeout=DEADLINE).result(DEADLINE).payload == b"first"
        eventually(lambda: producer.late_replies == 1)


def test_replies_from_before_the_first_request_are_not_read(producer: Producer, broker: FakeBroker) -> None:
    broker.append("replies", 0, *[b"old"] * 100)
    end = broker.log("replies", 0).end
    pulled: list[int] = []

    def note(request: Any) -> None:
        if getattr(request, "code", 0) == RequestCode.PULL:
            pulled.append(int(request.ext["offset"]))

    broker.refuse = note
    producer.request("t", b"x", timeout=0.1)
    eventually(lambda: pulled)
    assert set(pulled) == {end}


def test_close_fails_what_is_pending_with_a_clear_error(producer: Producer) -> None:
    futures = [producer.request("t", b"x", timeout=60) for _ in range(3)]
    begun = time.monotonic()
    producer.close()
    assert time.monotonic() - begun < 5
    for future in futures:
        with pytest.raises(ClientError, match="the producer was closed before the reply came"):
            future.result(0)
    with pytest.raises(ClientError, match="closed"):
        producer.request("t", b"x")


def test_a_producer_that_was_closed_before_its_first_request_begins_nothing(producer: Producer) -> None:
    producer.close()
    with pytest.raises(ClientError, match="closed"):
        producer.request("t", b"x")
    assert producer._requester is None  # whose threads nobody would end


def test_a_request_that_is_refused_ends_with_that_error(producer: Producer, broker: FakeBroker) -> None:
    producer.request("t", b"x", timeout=0.1)
    broker.refuse = lambda request: ResponseCode.MESSAGE_ILLEGAL if getattr(request, "code", 0) in (10, 320) else None
    with pytest.raises(ClientError, match="refused by the test"):
        producer.request("t", b"x", timeout=DEADLINE).result(DEADLINE)


def test_without_a_reply_topic_the_request_says_what_is_missing(cluster: FakeCluster) -> None:
    with (
        Producer(metadata=cluster, config=ProducerConfig(reply_topic="nowhere")) as producer,
        pytest.raises(NoPartition, match=r"topic 'nowhere' has no partition"),
    ):
        producer.request("t", b"x", timeout=1)


def test_a_message_that_is_no_request_cannot_be_answered(producer: Producer) -> None:
    message = Message(TopicPartition("t", 0, 0), 0, 1, 0, b"plain")
    with pytest.raises(ClientError, match=r"asks for no reply: Producer.request\(\) sends messages that do"):
        producer.reply(message, b"x")


@pytest.mark.parametrize("options", [{"tag": "x"}, {"key": "k"}, {"partition": TopicPartition("t", 0, 0)}])
def test_a_reply_goes_where_the_request_says(producer: Producer, broker: FakeBroker, options: Any) -> None:
    producer.request("t", b"x", timeout=0.1)
    with PartitionReader(address(broker), TopicPartition("t", 0, 0)) as reader:
        (request,) = reader.poll(timeout=DEADLINE)
    with pytest.raises(ConfigError, match="leave it out: the request says where its reply goes"):
        producer.reply(request, b"y", **options)


def test_nothing_is_begun_before_the_first_request(producer: Producer) -> None:
    def is_begun() -> bool:
        return "metaq-requests" in [thread.name for thread in threading.enumerate()]

    producer.send("t", b"x")
    assert not is_begun()
    producer.request("t", b"x", timeout=0.1)
    eventually(is_begun)


def test_a_lost_connection_is_survived(producer: Producer, cluster: FakeCluster, broker: FakeBroker) -> None:
    held: list[tuple[Producer, Message]] = []
    with serving(cluster, broker, lambda *both: held.append(both)):
        future = producer.request("t", b"x", timeout=DEADLINE)
        eventually(lambda: held)
        broker.drop_connections()
        ((replier, request),) = held
        replier.reply(request, b"after all")
        assert future.result(DEADLINE).payload == b"after all"


def test_when_its_broker_has_gone_replies_to_new_requests_come_by_another(cluster: FakeCluster) -> None:
    with FakeBroker(TOPICS, 5) as other, FakeBroker({"t": 1}, 7) as third:
        both = FakeCluster([other, third])
        with Producer(metadata=both, config=CONFIG) as producer, FakeBroker(TOPICS, 6) as late:
            producer.request("t", b"x", timeout=0.1)
            assert _home(producer) == TopicPartition("replies", 5, 0)
            both.register(late)
            both.unregister(other)
            with serving(both, third, upper_if_it_can), serving(both, late):
                assert producer.request("t", b"x", timeout=DEADLINE).result(DEADLINE).payload == b"X"
            assert _home(producer) == TopicPartition("replies", 6, 0)


def upper_if_it_can(producer: Producer, request: Message) -> None:
    """The first request's reply has nowhere to go any more."""
    with suppress(NoPartition):
        upper(producer, request)


def _home(producer: Producer) -> object:
    assert producer._requester is not None
    return producer._requester._home


def test_callbacks_run_and_may_ask_again_but_not_wait(producer, cluster, broker):
    said: list[str] = []
    more: list[Any] = []

    def again(future: Any) -> None:
        more.append(producer.request("t", b"again", timeout=DEADLINE))
        said.append(refusal(lambda: more[0].result(DEADLINE)))

    with serving(cluster, broker):
        producer.request("t", b"x", timeout=DEADLINE).add_done_callback(again)
        eventually(lambda: said)
        assert "callback" in said[0]
        assert more[0].result(DEADLINE).payload == b"AGAIN"


def test_typed_requests_and_replies(producer: Producer, cluster: FakeCluster, broker: FakeBroker) -> None:
    def add(replier: Producer, request: Message) -> None:
        replier.typed(Json()).reply(request, sum(request.decode(Json())))

    with serving(cluster, broker, add):
        futures = [producer.typed(Json()).request("t", [1, number], timeout=DEADLINE) for number in range(3)]
        assert not wait(futures, DEADLINE).not_done
        assert [future.result().value for future in futures] == [1, 2, 3]
        assert futures[0].result().decode(Json()) == 1


def test_a_reply_is_read_by_the_deserializer_of_its_request(producer, cluster, broker):
    class Text:
        content_type = "text/plain"

        def dumps(self, value: str) -> bytes:
            return value.encode()

        def loads(self, payload: bytes) -> str:
            return payload.decode()

    def count(replier: Producer, request: Message) -> None:
        replier.typed(Json()).reply(request, len(request.payload))

    with serving(cluster, broker, count):
        asked = producer.typed(Text()).request("t", "three", timeout=DEADLINE, deserializer=[Text(), Json()])
        plain = producer.request("t", b"four", timeout=DEADLINE, deserializer=Json())
        unread = producer.typed(Text()).request("t", "of another type", timeout=DEADLINE)
        bare = producer.request("t", b"without one", timeout=DEADLINE)
        assert (asked.result().value, plain.result().value) == (5, 4)
        with pytest.raises(ValueUnreadable, match=r"application/json.*text/plain"):
            _ = unread.result().value
        with pytest.raises(ClientError, match=r"has no deserializer"):
            _ = bare.result().value
    with pytest.raises(ConfigError, match=r"deserializer"):
        producer.request("t", b"x", deserializer=Json)


def test_where_a_reply_goes_is_written_and_read() -> None:
    to = ReplyTo(TopicPartition("%REPLY%", 7, 0), "abc")
    assert ReplyTo.parse(str(to)) == to
    assert str(to) == "%REPLY% 7-0 abc"


def test_threads_that_ask_first_at_the_same_time_share_what_reads_the_replies(cluster, broker, monkeypatch):
    """Else the one of the thread that came first would be closed by nobody."""
    both, made = threading.Barrier(2), list[object]()

    class Meeting(requesting_module.Requester):
        def __init__(self, *arguments: Any) -> None:
            with suppress(threading.BrokenBarrierError):
                both.wait(0.3)
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(requesting_module, "Requester", Meeting)
    with Producer(metadata=cluster, config=CONFIG) as producer, serving(cluster, broker):
        replies = together(lambda request: producer.request("t", request).result(DEADLINE).payload, [b"r"] * 2)
    assert replies == [b"R", b"R"]
    assert len(made) == 1
