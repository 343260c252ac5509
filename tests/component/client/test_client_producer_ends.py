"""Every future of a producer ends in time: at its deadline, at the close, while a topic is away, and in callbacks."""

import gc
import itertools
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from metaq import LocalMessageStore, OrderedProducer, Producer, ProducerConfig, SendResult, TopicPartition
from metaq.client.metadata import TopicView
from metaq.client.producer.futures import SendFuture
from metaq.protocol.errors import ClientError, NoPartition, RequestTimedOut
from metaq.protocol.frames import Frame
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.testing import FakeBroker, FakeCluster
from tests.waiting import DEADLINE, assert_within, eventually

TOPICS = {"t": 2}
FAST = ProducerConfig(retry_min_seconds=0.001, retry_max_seconds=0.01)
THERE = TopicPartition("t", 0, 1)
PLACES: list[dict[str, Any]] = [{}, {"key": "k"}, {"partition": THERE}]


def is_send(request: object) -> bool:
    return isinstance(request, Frame) and request.code in (
        RequestCode.SEND,
        RequestCode.SEND_BATCH,
        RequestCode.SEND_MANY,
    )


# --- a topic that is away ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_an_asynchronous_send_does_not_wait_for_a_topic_that_is_away(
    broker, cluster, framed, place: dict[str, Any]
) -> None:
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


@pytest.mark.parametrize("place", PLACES)
def test_a_broker_that_is_registered_before_its_topics_takes_what_it_took_before(
    broker: FakeBroker, place: dict[str, Any]
) -> None:
    cluster = HalfBack([broker])
    with Producer(metadata=cluster, config=FAST) as producer:
        producer.send("t", b"before", **place)
        cluster.has_topics = False
        assert producer.send_async("t", b"after", timeout=DEADLINE, **place).result(DEADLINE).partition.broker == 0


@pytest.mark.parametrize("place", PLACES)
def test_what_waits_for_a_topic_that_stays_away_ends_at_its_deadline(
    broker, cluster, framed, place: dict[str, Any]
) -> None:
    framed.send("t", b"before")
    cluster.unregister(broker)

    def attempt() -> float:
        started = time.monotonic()
        futures = [framed.send_async("t", b"", timeout=0.3, **place) for _ in range(3)]
        for future in futures:
            assert isinstance(future.exception(DEADLINE), NoPartition)
        return time.monotonic() - started

    assert_within(1.0, attempt)
    with pytest.raises(NoPartition, match="came back before"):
        framed.send("t", b"", timeout=0.1, **place)
    assert framed._core.buffered_bytes <= 21 + 30  # of blocked callers alone


def test_what_waits_for_a_topic_takes_no_more_room_than_is_allowed(broker: FakeBroker) -> None:
    cluster = FakeCluster([broker])
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
def test_a_future_ends_at_its_deadline_also_behind_a_request_under_way(broker, framed, behind: int) -> None:
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


def blocked(producer: Producer) -> None:
    with pytest.raises(RequestTimedOut):
        producer.send("t", b"", key="k", timeout=0.3)


def test_a_future_ends_at_its_deadline_while_a_retry_waits(broker: FakeBroker) -> None:
    patient = ProducerConfig(retry_min_seconds=60, retry_max_seconds=60)
    broker.refuse = lambda request: ResponseCode.SYSTEM_BUSY if is_send(request) else None
    with Producer(metadata=FakeCluster([broker]), config=patient) as producer:
        calls: list[Callable[[], object]] = [
            lambda: producer.send_async("t", b"", key="k", timeout=0.3).exception(DEADLINE),
            lambda: producer.send_batch_async("t", [b""], key="k", timeout=0.3).exception(DEADLINE),
            lambda: blocked(producer),
        ]
        for call in calls:

            def attempt(call: Callable[[], object] = call) -> float:
                started = time.monotonic()
                call()
                return time.monotonic() - started

            assert_within(1.0, attempt)
        producer.close(0.0)


def test_an_answer_after_the_deadline_changes_nothing() -> None:
    future: SendFuture[int] = SendFuture()
    ended: list[object] = []
    future.add_done_callback(ended.append)
    future.set_exception(RequestTimedOut("late"))
    future.set_result(1)
    assert ended == [future]
    assert isinstance(future.exception(), RequestTimedOut)


# --- the close --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True], ids=["alone", "with a store"])
def test_every_future_ends_when_a_producer_is_closed_under_load(
    broker: FakeBroker, stored: bool, tmp_path: Any
) -> None:
    """Sends, retries and answers go on in other threads while it is closed; some rounds, each a little different."""
    refusals = itertools.cycle([ResponseCode.SYSTEM_BUSY, None, None, ResponseCode.SERVICE_NOT_AVAILABLE])
    broker.refuse = lambda request: next(refusals) if is_send(request) else None
    futures: list[Future[SendResult]] = []

    def send(producer: Producer) -> None:
        try:
            while True:
                futures.append(producer.send_async("t", b"x", key=f"k{len(futures) % 5}"))
                futures.append(producer.send_async("t", b"x"))
        except ClientError:
            return

    for number in range(25):
        store = LocalMessageStore(tmp_path / f"{number}.db") if stored else None
        producer = Producer(metadata=FakeCluster([broker]), config=FAST, undelivered=store)
        with ThreadPoolExecutor(2) as pool:
            senders = [pool.submit(send, producer) for _ in range(2)]
            enough = len(futures) + 20 + number
            eventually(lambda enough=enough: len(futures) > enough)  # type: ignore[misc]
            producer.close(timeout=0.001 * number)
            assert not wait(senders, DEADLINE).not_done
    assert not wait(futures, DEADLINE).not_done
    for future in futures:
        assert isinstance(future.exception() or ClientError(), ClientError)


def test_what_a_broker_refuses_during_the_close_ends_with_the_close(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with the broker's error, which another try might have mended."""
    closing = threading.Event()

    def refuse(request: object) -> ResponseCode | None:
        if not is_send(request):
            return None
        closing.wait(DEADLINE)
        return ResponseCode.SERVICE_NOT_AVAILABLE

    broker.refuse = refuse
    producer = Producer(metadata=FakeCluster([broker]), config=FAST)
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


def test_what_a_dropped_producer_has_accepted_is_delivered_and_then_nothing_keeps_it(broker: FakeBroker) -> None:
    go_on = threading.Event()

    def hold(request: object) -> None:
        if is_send(request):
            assert go_on.wait(DEADLINE)

    def produce() -> weakref.ref[object]:
        config = ProducerConfig(delivery_timeout_seconds=5.0)  # a look at deadlines keeps the driver until then
        producer = Producer(metadata=FakeCluster([broker]), config=config)
        producer.send("t", b"before", partition=THERE)
        broker.refuse = hold
        for number in range(100):
            producer.produce("t", b"%d" % number, partition=THERE)
        return weakref.ref(producer._driver)

    driver = produce()
    gc.collect()
    assert driver() is not None
    go_on.set()
    eventually(lambda: broker.bodies("t", 1)[1:] == [b"%d" % number for number in range(100)])
    eventually(lambda: gc.collect() >= 0 and driver() is None)


def test_nothing_keeps_a_producer_that_was_dropped_with_nothing_to_deliver(broker: FakeBroker) -> None:
    def send() -> weakref.ref[object]:
        producer = Producer(metadata=FakeCluster([broker]))
        producer.send("t", b"x")
        return weakref.ref(producer._driver)

    driver = send()
    eventually(lambda: gc.collect() >= 0 and driver() is None)


# --- callbacks --------------------------------------------------------------------------------------------------------


def test_what_would_wait_in_a_callback_is_refused_at_once(broker: FakeBroker, tmp_path: Any) -> None:
    cluster = FakeCluster([broker])
    with (
        LocalMessageStore(tmp_path / "ordered.db") as store,
        Producer(metadata=cluster) as producer,
        OrderedProducer(partitions={"t": {0: 2}}, store=store, metadata=cluster) as ordered,
    ):
        pending: Future[SendResult] = SendFuture()
        calls: list[Callable[[], object]] = [
            lambda: producer.send("t", b""),
            lambda: producer.send_batch("t", [b""]),
            lambda: ordered.send("t", b""),
            lambda: producer.transaction().send("t", b""),
            producer.flush,
            producer.close,
            pending.result,
            pending.exception,
        ]
        for call in calls:
            said: Future[BaseException | None] = Future()

            def callback(
                _: object, call: Callable[[], object] = call, said: Future[BaseException | None] = said
            ) -> None:
                try:
                    call()
                except ClientError as error:
                    said.set_result(error)
                else:
                    said.set_result(None)

            broker.silent = True
            future = producer.send_async("t", b"first")
            future.add_done_callback(callback)
            broker.silent = False
            broker.drop_connections()
            assert "callback" in str(said.result(5))
            future.result(DEADLINE)
        assert producer.send("t", b"after").offset > 0


def test_an_asynchronous_send_in_a_callback_goes_on(broker: FakeBroker) -> None:
    done = threading.Event()
    with Producer(metadata=FakeCluster([broker])) as producer:

        def callback(future: Future[SendResult]) -> None:
            following = producer.send_async("t", b"second")
            following.add_done_callback(lambda _: done.set())

        producer.send_async("t", b"first").add_done_callback(callback)
        assert done.wait(DEADLINE)


def test_a_callback_is_refused_to_wait_for_room(broker: FakeBroker) -> None:
    said: Future[BaseException | None] = Future()
    with Producer(metadata=FakeCluster([broker]), config=ProducerConfig(max_buffered_bytes=1000)) as producer:

        def callback(_: object) -> None:
            try:
                producer.send_async("t", bytes(900))
            except ClientError as error:
                said.set_result(error)

        producer.send_async("t", bytes(900)).add_done_callback(callback)
        assert "max_buffered_bytes" in str(said.result(5))


def test_a_callback_that_is_added_to_a_finished_future_may_wait(framed) -> None:
    future = framed.send_async("t", b"first")
    future.result(DEADLINE)
    results: list[SendResult] = []
    future.add_done_callback(lambda _: results.append(framed.send("t", b"second")))
    assert len(results) == 1


def test_a_flush_ends_with_the_answer_to_a_blocking_send_of_another_thread(broker: FakeBroker) -> None:
    go_on = threading.Event()

    def hold(_request: object) -> None:
        go_on.wait(DEADLINE)

    with Producer(metadata=FakeCluster([broker])) as producer:
        producer.send("t", b"first")
        broker.refuse = hold
        sending = threading.Thread(target=producer.send, args=("t", b"second"))
        sending.start()
        eventually(lambda: not producer._core.is_empty())
        flushing = threading.Thread(target=producer.flush, args=(DEADLINE,))
        flushing.start()
        eventually(lambda: producer._driver._freed.waiting)
        go_on.set()
        flushing.join(DEADLINE)
        assert not flushing.is_alive()
        sending.join(DEADLINE)


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
def on_signal() -> Iterator[list[Callable[[], object]]]:
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


@pytest.mark.parametrize("send", ["produce", "send", "flush"])
def test_who_would_wait_in_a_handler_for_the_call_that_it_interrupted_is_told(
    framed, on_signal: list[Any], monkeypatch: pytest.MonkeyPatch, send: str
) -> None:
    on_signal += [lambda: framed.close(1.0), lambda: framed.flush(1.0)]
    with monkeypatch.context() as patch:
        patch.setattr(framed._core, "_lock", InterruptedLock(framed._core._lock))
        getattr(framed, send)(*([] if send == "flush" else ["t", b"x"]))
    for error in on_signal:
        assert isinstance(error, ClientError)
        assert "set a flag in the handler" in str(error)
    framed.send("t", b"y")  # nothing was closed


def test_who_would_wait_in_a_handler_for_an_ordered_send_is_told(
    broker: FakeBroker, on_signal: list[Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalMessageStore(tmp_path / "ordered.db")
    with OrderedProducer(metadata=FakeCluster([broker]), partitions={"t": {0: 2}}, store=store) as producer:
        on_signal += [lambda: producer.close(1.0), lambda: producer.flush(1.0)]
        core = producer._producer._core
        with monkeypatch.context() as patch:
            patch.setattr(core, "_lock", InterruptedLock(core._lock))
            producer.send("t", b"x")
        assert [type(error) for error in on_signal] == [ClientError, ClientError]


def test_a_handler_that_interrupted_none_of_its_calls_may_close_a_producer(
    broker: FakeBroker, on_signal: list[Any]
) -> None:
    with Producer(metadata=FakeCluster([broker])) as producer, Producer(metadata=FakeCluster([broker])) as other:
        future = producer.send_async("t", b"x")
        on_signal += [lambda: producer.flush(DEADLINE), lambda: producer.close(DEADLINE)]
        other._core._lock = InterruptedLock(other._core._lock)  # type: ignore[assignment]
        other.produce("t", b"x")
        other._core._lock = other._core._lock._lock  # type: ignore[attr-defined]
        assert on_signal == [None, None]
        assert future.result(0.0)
