"""Every future of a producer ends in time: at its deadline, at the close, while a topic is away, and in callbacks."""

import gc
import itertools
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

import pytest

from metaq import LocalMessageStore, OrderedProducer, Producer, ProducerConfig, SendResult, TopicPartition
from metaq.client.producer.futures import SendFuture
from metaq.client.transport.metadata import TopicView
from metaq.protocol.errors import ClientError, NoPartition, RequestTimedOut
from metaq.protocol.statuses import ResponseCode
from metaq.testing import FakeCluster
from tests.child import refusal
from tests.component.client.harness import FAST, assert_raises_within, is_send
from tests.waiting import DEADLINE, assert_within, eventually

TOPICS = {"t": 2}
THERE = TopicPartition("t", 0, 1)
places = pytest.mark.parametrize("place", [{}, {"key": "k"}, {"partition": THERE}], ids=["any", "by key", "named"])


# --- a topic that is away ---------------------------------------------------------------------------------------------


@places
def test_an_asynchronous_send_does_not_wait_for_a_topic_that_is_away(broker, cluster, framed, place):
    for partition in range(2):
        framed.send("t", b"before", partition=TopicPartition("t", 0, partition))
    cluster.unregister(broker)
    futures: list[Future[SendResult]] = []

    def attempt() -> float:
        started = time.monotonic()
        futures.append(framed.send_async("t", b"%d" % len(futures), timeout=DEADLINE, **place))
        return time.monotonic() - started

    assert_within(0.1, attempt)
    futures += [framed.send_async("t", b"%d" % number, timeout=DEADLINE, **place) for number in range(1, 20)]
    assert not any(future.done() for future in futures)
    cluster.register(broker)
    results = [future.result(DEADLINE) for future in futures]
    if place:
        assert results == sorted(results)


class HalfBack(FakeCluster):
    """Its brokers may be registered without their topics, as one that has just come back is for a moment."""

    has_topics = True

    def view(self, topic: str) -> TopicView:
        view = super().view(topic)
        return view if self.has_topics else view._replace(partitions=())


@places
def test_a_broker_that_is_registered_before_its_topics_takes_what_it_took_before(broker, place):
    cluster = HalfBack([broker])
    with Producer(metadata=cluster, config=FAST) as producer:
        producer.send("t", b"before", **place)
        cluster.has_topics = False
        assert producer.send_async("t", b"after", timeout=DEADLINE, **place).result(DEADLINE).partition.broker == 0


@places
def test_what_waits_for_a_topic_that_stays_away_ends_at_its_deadline(broker, cluster, framed, place):
    framed.send("t", b"before")
    cluster.unregister(broker)

    def attempt() -> float:
        started = time.monotonic()
        futures = [framed.send_async("t", b"", timeout=0.3, **place) for _ in range(3)]
        assert {type(future.exception(DEADLINE)) for future in futures} == {NoPartition}
        return time.monotonic() - started

    assert_within(1.0, attempt)
    with pytest.raises(NoPartition, match="came back before"):
        framed.send("t", b"", timeout=0.1, **place)
    assert framed._core.buffered_bytes <= 21 + 30  # of blocked callers alone


def test_what_waits_for_a_topic_takes_no_more_room_than_is_allowed(broker, cluster):
    with Producer(metadata=cluster, config=ProducerConfig(max_buffered_bytes=3000)) as producer:
        producer.send("t", b"before")
        cluster.unregister(broker)
        futures = [producer.send_async("t", bytes(1000), timeout=DEADLINE) for _ in range(2)]
        with pytest.raises(RequestTimedOut, match="max_buffered_bytes"):
            producer.send_async("t", bytes(1000), timeout=0.05)
        cluster.register(broker)
        assert not wait(futures, DEADLINE).not_done


# --- deadlines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [0, 3])
def test_a_future_ends_at_its_deadline_also_behind_a_request_under_way(broker, framed, behind):
    framed.send("t", b"", partition=THERE)
    broker.silent = True
    for _ in range(behind):
        framed.send_async("t", b"", partition=THERE)  # 30 seconds

    def attempt() -> float:
        started = time.monotonic()
        future = framed.send_async("t", b"", partition=THERE, timeout=0.3)
        assert isinstance(future.exception(DEADLINE), RequestTimedOut)
        return time.monotonic() - started

    assert_within(5.0, attempt, tries=1)  # the request under way may take 10 seconds
    framed.close(0.0)


def test_a_future_ends_at_its_deadline_while_a_retry_waits(broker, cluster):
    broker.refuse = lambda request: ResponseCode.SYSTEM_BUSY if is_send(request) else None
    with Producer(metadata=cluster, config=ProducerConfig(retry_min_seconds=60, retry_max_seconds=60)) as producer:
        calls: list[Callable[[], object]] = [
            lambda: producer.send_async("t", b"", key="k", timeout=0.3).result(DEADLINE),
            lambda: producer.send_batch_async("t", [b""], key="k", timeout=0.3).result(DEADLINE),
            lambda: producer.send("t", b"", key="k", timeout=0.3),
        ]
        for call in calls:
            assert_raises_within(1.0, RequestTimedOut, call)
        producer.close(0.0)


def test_an_answer_after_the_deadline_changes_nothing():
    future: SendFuture[int] = SendFuture()
    ended: list[object] = []
    future.add_done_callback(ended.append)
    future.set_exception(RequestTimedOut("late"))
    future.set_result(1)
    assert ended == [future]
    assert isinstance(future.exception(), RequestTimedOut)


# --- the close --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True], ids=["alone", "with a store"])
def test_every_future_ends_when_a_producer_is_closed_under_load(broker, cluster, stored, tmp_path):
    """Sends, retries and answers go on in other threads while it is closed; some rounds, each a little different."""
    refusals = itertools.cycle([ResponseCode.SYSTEM_BUSY, None, None, ResponseCode.SERVICE_NOT_AVAILABLE])
    broker.refuse = lambda request: next(refusals) if is_send(request) else None
    futures: list[Future[SendResult]] = []

    def send(producer: Producer) -> None:
        with suppress(ClientError):
            while True:
                futures.append(producer.send_async("t", b"x", key=f"k{len(futures) % 5}"))
                futures.append(producer.send_async("t", b"x"))

    for number in range(25):
        store = LocalMessageStore(tmp_path / f"{number}.db") if stored else None
        producer = Producer(metadata=cluster, config=FAST, undelivered=store)
        with ThreadPoolExecutor(2) as pool:
            senders = [pool.submit(send, producer) for _ in range(2)]
            enough = len(futures) + 20 + number
            eventually(lambda enough=enough: len(futures) > enough)  # type: ignore[misc]
            producer.close(timeout=0.001 * number)
            assert not wait(senders, DEADLINE).not_done
    assert not wait(futures, DEADLINE).not_done
    assert all(isinstance(future.exception() or ClientError(), ClientError) for future in futures)


def test_what_a_broker_refuses_during_the_close_ends_with_the_close(broker, cluster, monkeypatch):
    """Not with the broker's error, which another try might have mended."""
    closing = threading.Event()
    broker.refuse = lambda request: (
        closing.wait(DEADLINE) and ResponseCode.SERVICE_NOT_AVAILABLE if is_send(request) else None
    )
    producer = Producer(metadata=cluster, config=FAST)
    future = producer.send_async("t", b"x")
    give_up_the_rest = producer._core.close

    def let_the_answer_come_first() -> Any:
        closing.set()
        future.exception(DEADLINE)
        return give_up_the_rest()

    monkeypatch.setattr(producer._core, "close", let_the_answer_come_first)
    producer.close(0.0)
    with pytest.raises(ClientError, match="closed before this message was acknowledged"):
        future.result(DEADLINE)


# --- the end of who forgets to close ----------------------------------------------------------------------------------


def test_what_a_dropped_producer_has_accepted_is_delivered_and_then_nothing_keeps_it(broker):
    go_on = threading.Event()

    def produce() -> weakref.ref[object]:
        config = ProducerConfig(delivery_timeout_seconds=5.0)  # a look at deadlines keeps the driver until then
        producer = Producer(metadata=FakeCluster([broker]), config=config)
        producer.send("t", b"before", partition=THERE)
        broker.refuse = lambda request: go_on.wait(DEADLINE) and None if is_send(request) else None
        for number in range(100):
            producer.produce("t", b"%d" % number, partition=THERE)
        return weakref.ref(producer._driver)

    driver = produce()
    gc.collect()
    assert driver() is not None
    go_on.set()
    eventually(lambda: broker.bodies("t", 1)[1:] == [b"%d" % number for number in range(100)])
    eventually(lambda: gc.collect() >= 0 and driver() is None)


def test_nothing_keeps_a_producer_that_was_dropped_with_nothing_to_deliver(broker):
    def send() -> weakref.ref[object]:
        producer = Producer(metadata=FakeCluster([broker]))
        producer.send("t", b"x")
        return weakref.ref(producer._driver)

    driver = send()
    eventually(lambda: gc.collect() >= 0 and driver() is None)


# --- callbacks --------------------------------------------------------------------------------------------------------


def said_by(future: Future[Any], call: Callable[[], object]) -> str:
    """The ClientError that `call` raises in a call-back of the future."""
    said: Future[str] = Future()
    future.add_done_callback(lambda _: said.set_result(refusal(call)))
    return said.result(5)


def test_what_would_wait_in_a_callback_is_refused_at_once(broker, cluster, framed, tmp_path):
    with (
        LocalMessageStore(tmp_path / "ordered.db") as store,
        OrderedProducer(partitions={"t": {0: 2}}, store=store, metadata=cluster) as ordered,
    ):
        pending: Future[SendResult] = SendFuture()
        calls: list[Callable[[], object]] = [
            lambda: framed.send("t", b""),
            lambda: framed.send_batch("t", [b""]),
            lambda: ordered.send("t", b""),
            lambda: framed.transaction().send("t", b""),
            framed.flush,
            framed.close,
            pending.result,
            pending.exception,
        ]
        for call in calls:
            broker.silent = True
            future = framed.send_async("t", b"first")
            threading.Timer(0.01, revive, (broker,)).start()
            assert "callback" in said_by(future, call)
            future.result(DEADLINE)
        sent = framed.send("t", b"after")
        assert broker.bodies("t", sent.partition.partition)[-1] == b"after"


def revive(broker):
    broker.silent = False
    broker.drop_connections()


def test_an_asynchronous_send_in_a_callback_goes_on(framed):
    done = threading.Event()

    def callback(future: Future[SendResult]) -> None:
        framed.send_async("t", b"second").add_done_callback(lambda _: done.set())

    framed.send_async("t", b"first").add_done_callback(callback)
    assert done.wait(DEADLINE)


def test_a_callback_is_refused_to_wait_for_room(cluster):
    with Producer(metadata=cluster, config=ProducerConfig(max_buffered_bytes=1000)) as producer:
        future = producer.send_async("t", bytes(900))
        assert "max_buffered_bytes" in said_by(future, lambda: producer.send_async("t", bytes(900)))


def test_a_callback_that_is_added_to_a_finished_future_may_wait(framed):
    future = framed.send_async("t", b"first")
    future.result(DEADLINE)
    results: list[SendResult] = []
    future.add_done_callback(lambda _: results.append(framed.send("t", b"second")))
    assert len(results) == 1


def test_a_flush_ends_with_the_answer_to_a_blocking_send_of_another_thread(broker, framed):
    go_on = threading.Event()
    framed.send("t", b"first")
    broker.refuse = lambda _: go_on.wait(DEADLINE) and None
    with ThreadPoolExecutor(2) as pool:
        sending = pool.submit(framed.send, "t", b"second")
        eventually(lambda: not framed._core.is_empty())
        flushing = pool.submit(framed.flush, DEADLINE)
        eventually(lambda: framed._driver._freed.waiting)
        go_on.set()
        flushing.result(DEADLINE)
        sending.result(DEADLINE)


# --- signals ----------------------------------------------------------------------------------------------------------


class InterruptedLock:
    """A core's lock, at whose holder a signal comes."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.acquire()
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGUSR1)

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.fixture
def on_signal() -> Iterator[list[Any]]:
    """What is put in there a handler does, and replaces by what that returned or raised."""
    actions: list[Any] = []

    def handler(*_: object) -> None:
        for place, action in enumerate(actions):
            if callable(action):
                try:
                    actions[place] = action()
                except ClientError as error:
                    actions[place] = error

    before = signal.signal(signal.SIGUSR1, handler)
    yield actions
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("call", ["produce", "send", "flush", "ordered"])
def test_who_would_wait_in_a_handler_for_the_call_that_it_interrupted_is_told(
    cluster, framed, on_signal, tmp_path, monkeypatch, call
):
    store = LocalMessageStore(tmp_path / "ordered.db")
    with OrderedProducer(metadata=cluster, partitions={"t": {0: 2}}, store=store) as ordered:
        producer, core = (ordered, ordered._producer._core) if call == "ordered" else (framed, framed._core)
        on_signal += [lambda: producer.close(1.0), lambda: producer.flush(1.0)]
        with monkeypatch.context() as patch:
            patch.setattr(core, "_lock", InterruptedLock(core._lock))
            getattr(producer, {"ordered": "send"}.get(call, call))(*([] if call == "flush" else ["t", b"x"]))
        assert [type(error) for error in on_signal] == [ClientError, ClientError]
        assert call == "ordered" or all("set a flag in the handler" in str(error) for error in on_signal)
        producer.send("t", b"y")  # nothing was closed


def test_a_handler_that_interrupted_none_of_its_calls_may_close_a_producer(cluster, framed, on_signal, monkeypatch):
    with Producer(metadata=cluster) as other:
        future = framed.send_async("t", b"x")
        on_signal += [lambda: framed.flush(DEADLINE), lambda: framed.close(DEADLINE)]
        with monkeypatch.context() as patch:
            patch.setattr(other._core, "_lock", InterruptedLock(other._core._lock))
            other.produce("t", b"x")
        assert on_signal == [None, None]
        assert future.result(0.0)
