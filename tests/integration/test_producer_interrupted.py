"""Each call of a producer interrupted wherever it can be: whatever its caller gets, no other thread waits for ever for
what the interrupted one was about to do, and close() ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from metaq import Consumer, Message, Producer, ProducerConfig
from metaq.errors import MetaqError
from tests.integration.alarms import interrupted_behind
from tests.integration.client_cluster import Brokers, Running

SECONDS = 4.0


def send(producer: Producer) -> object:
    return producer.send("t", b"x", timeout=SECONDS)


def cancel(producer: Producer) -> None:
    assert producer.cancel(producer.send("t", b"x", delay=100.0, timeout=SECONDS), timeout=SECONDS)


def transact(producer: Producer) -> None:
    done = producer.send_in_transaction(
        "t", b"x", execute=lambda message: True, check=lambda message: True, timeout=SECONDS
    )
    assert done.sent is not None, done


def request(producer: Producer) -> None:
    assert producer.request("t", b"x", timeout=SECONDS).result(SECONDS).payload == b"y"


@contextmanager
def answering(brokers: Brokers) -> Iterator[None]:
    with Producer(brokers.connect) as producer:

        def reply(message: Message) -> None:
            if message.asks_reply:
                producer.reply(message, b"y")

        with Running(Consumer(brokers.connect, group="g", topics=["t"]), reply):
            yield


def on_another_thread(call: Callable[[Producer], object], producer: Producer) -> str:
    """What the same call comes to there."""
    outcome = list[str]()

    def act() -> None:
        try:
            call(producer)
            outcome.append("")
        except BaseException as error:
            outcome.append(repr(error))

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(3 * SECONDS)
    return outcome[0] if outcome else "it does not return"


@pytest.mark.parametrize("call", [send, cancel, transact, request])
def test_wherever_a_call_is_interrupted_it_stops_nobody(brokers: Brokers, call: Callable[[Producer], object]) -> None:
    config = ProducerConfig(producer_group="p")
    with answering(brokers), Producer(brokers.connect, config=config) as producer:
        call(producer)
        passed, failed = 0, list[tuple[int, str]]()
        while True:
            try:
                if not interrupted_behind(lambda: call(producer), passed):
                    break
            except MetaqError as error:
                failed.append((passed, repr(error)))
            if trouble := on_another_thread(call, producer):
                failed.append((passed, trouble))
                if len(failed) > 3:
                    break
            passed += 1
        assert failed == []
        assert passed > 20
        began = time.monotonic()
    assert time.monotonic() - began < 5.0
