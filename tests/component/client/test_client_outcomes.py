"""What each message ends with is decided once, told once, and kept from nobody by what another one's call-back does."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from metaq import Producer
from metaq.protocol.errors import DeliveryFailed, RequestTimedOut
from metaq.testing import FakeBroker, FakeCluster
from tests.component.client.harness import FAST, is_send
from tests.raising import raising
from tests.speaking import speaking
from tests.waiting import DEADLINE, eventually

TOPICS = {"t": 1, "many": 4}


class Held:
    """A broker whose answers to sends wait for `go_on`."""

    def __init__(self, broker: FakeBroker) -> None:
        self.go_on = threading.Event()
        broker.refuse = lambda request: self.go_on.wait(DEADLINE) and None if is_send(request) else None


@pytest.mark.parametrize("options", [{}, {"key": "k"}])
def test_an_answer_that_comes_while_the_deadline_is_told_tells_nobody_and_flush_waits_for_the_telling(broker, options):
    telling, go_on = threading.Event(), threading.Event()
    told: list[tuple[Exception | None, object]] = []

    def on_delivery(error: Exception | None, result: object) -> None:
        told.append((error, result))
        telling.set()
        assert go_on.wait(DEADLINE)

    with Producer(metadata=FakeCluster([broker])) as producer:
        producer.send("t", b"before")
        held = Held(broker)
        producer.produce("t", b"x", on_delivery=on_delivery, timeout=0.3, **options)
        assert telling.wait(DEADLINE)
        held.go_on.set()
        eventually(producer._core.is_empty)
        with pytest.raises(RequestTimedOut):
            producer.flush(0.05)
        go_on.set()
        producer.flush(DEADLINE)
    ((error, result),) = told
    assert isinstance(error, RequestTimedOut)
    assert result is None


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("how", ["send_async", "send_batch_async", "produce", "produce with a key"])
def test_a_call_back_that_raises_anything_harms_no_other_message(broker, framed, kind, how):
    called: list[object] = []

    def leave(*outcome: object) -> None:
        called.append(outcome)
        raise kind("in a call-back")

    framed.send("t", b"before")
    held = Held(broker)
    futures: list[Future[Any]] = []
    for _ in range(50):
        if how == "send_async":
            futures.append(framed.send_async("t", b"x"))
        elif how == "send_batch_async":
            futures.append(framed.send_batch_async("t", [b"x", b"y"]))
        else:
            framed.produce("t", b"x", on_delivery=leave, key="k" if "key" in how else None)
    for future in futures:
        future.add_done_callback(leave)
    held.go_on.set()
    framed.flush(DEADLINE)
    assert [future.exception(0.0) for future in futures] == [None] * len(futures)
    eventually(lambda: len(called) == 50)


def test_an_error_in_telling_one_message_keeps_no_other_untold(broker, framed):
    called: list[object] = []

    def fail(error: object, _result: object) -> None:
        called.append(error)
        raise ValueError("in a call-back")

    framed.send("t", b"before")
    held = Held(broker)
    log, fail_too = logging.getLogger("metaq.client.producer.outgoing"), raising(ValueError("in a log's filter"))
    log.addFilter(fail_too)
    try:
        for _ in range(10):
            framed.produce("t", b"x", on_delivery=fail, timeout=0.2, key="k")
        eventually(lambda: len(called) == 10)
    finally:
        log.removeFilter(fail_too)
        held.go_on.set()
    framed.flush(DEADLINE)
    assert len(called) == 10


def test_a_request_that_cannot_be_made_holds_up_no_other_and_is_tried_again(broker, monkeypatch):
    with Producer(metadata=FakeCluster([broker]), linger_ms=100, config=speaking("text", FAST)) as producer:
        codec = producer._driver._sender._codec
        failed: list[Any] = []
        make = codec.requests

        def requests(turns: Any, connection: Any, now: float) -> Any:
            if not failed:
                failed.append(turns)
                raise ValueError("a defect")
            return make(turns, connection, now)

        monkeypatch.setattr(codec, "requests", requests)
        futures = [producer.send_async("many", b"x") for _ in range(3)]
        futures += [producer.send_async("many", b"x", key=str(number)) for number in range(9)]
        assert [future.exception(DEADLINE) for future in futures] == [None] * len(futures)
        assert failed
        producer.flush(DEADLINE)


def test_a_call_back_of_what_the_close_gives_up_is_waited_for_and_keeps_nothing_from_the_others(broker):
    told: list[int] = []
    blocks, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def report(number: int) -> Callable[[object, object], None]:
        def on_delivery(_error: object, _result: object) -> None:
            if not number:
                blocks.set()
                assert go_on.wait(DEADLINE)
            told.append(number)

        return on_delivery

    producer = Producer(metadata=FakeCluster([broker]))
    producer.send("t", b"before")
    broker.silent = True
    for number in range(3):
        producer.produce("t", b"x", on_delivery=report(number))
    producer.produce("t", b"x")
    failures: list[DeliveryFailed] = []

    def close() -> None:
        try:
            producer.close(0.1)
        except DeliveryFailed as error:
            failures.append(error)
        closed.set()

    threading.Thread(target=close).start()
    try:
        assert blocks.wait(DEADLINE)
        assert not closed.wait(2.0)  # 1.1 is the bound of everything else
    finally:
        go_on.set()
    assert closed.wait(DEADLINE)
    assert sorted(told) == [0, 1, 2]
    assert len(failures) == 1  # the one without a call-back is counted


def test_a_call_back_that_blocks_on_a_reader_thread_does_not_hold_up_the_close(broker: FakeBroker) -> None:
    blocks, go_on = threading.Semaphore(0), threading.Event()

    def block(_error: object, _result: object) -> None:
        blocks.release()
        go_on.wait(DEADLINE)

    with FakeBroker({"t": 1}, broker_id=1) as other:
        producer = Producer(metadata=FakeCluster([broker, other]))
        for partition in producer.partitions("t"):
            producer.produce("t", b"x", partition=partition, on_delivery=block)
        assert all(blocks.acquire(timeout=DEADLINE) for _ in range(2))
        started = time.monotonic()
        try:
            producer.close(0.2)
            assert time.monotonic() - started < 3.0  # 1.2 by its promise
        finally:
            go_on.set()


@pytest.mark.timeout(method="thread")  # the other one uses the signal
def test_what_a_signal_handler_raises_while_a_request_is_sent_reaches_the_caller_and_the_message_is_stored(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SoftLimit(Exception):
        """As that of a web worker."""

    before = signal.signal(signal.SIGALRM, raising(SoftLimit))
    try:
        with Producer(metadata=FakeCluster([broker]), config=FAST) as producer:
            producer.send("t", b"before")
            sender = producer._driver._sender
            connect = sender._connection

            def interrupted(*arguments: Any) -> Any:
                monkeypatch.setattr(sender, "_connection", connect)
                signal.raise_signal(signal.SIGALRM)

            monkeypatch.setattr(sender, "_connection", interrupted)
            with pytest.raises(SoftLimit):
                producer.send_async("t", b"x")
            producer.flush(DEADLINE)
            assert broker.bodies("t", 0) == [b"before", b"x"]
    finally:
        signal.signal(signal.SIGALRM, before)
