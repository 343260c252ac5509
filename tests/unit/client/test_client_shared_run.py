"""run() of a shared consumer: what becomes of a message on which its handler fails, without a broker."""

from concurrent.futures import Future
from typing import Any

import pytest

from metaq import Retry, SharedMessage, TopicPartition
from metaq.client.consumer.retrying import FailedMessages
from metaq.client.shared import tuning
from metaq.client.shared.consumer import _Run
from metaq.errors import BrokerUnavailable
from metaq.protocol.retries import failure_of

HERE = TopicPartition("jobs", 0, 0)
AWAY = BrokerUnavailable("it is away")


class Consumer:
    """What a run does to its messages, but for acknowledging them."""

    group = "g"

    def __init__(self):
        self.done: list[tuple[str, int]] = []

    def release(self, message, *, delay=0.0):
        self.done.append(("release", message.offset))


class Sender:
    """answers: what a send ends with, in order; then all are stored."""

    def __init__(self, *answers):
        self.answers, self.letters = list(answers), []

    def partitions(self, topic):
        return (TopicPartition(topic, 0, 0),)

    def send_batch_async(self, topic, payloads, *, partition):
        future: Future[list[str]] = Future()
        if self.answers:
            future.set_exception(self.answers.pop(0))
            return future
        (message,) = payloads
        self.letters.append((topic, failure_of(message.flag, message.body)))
        future.set_result(["stored"])
        return future

    def close(self, timeout=10.0):
        pass


def leased(attempts, offset=0):
    message = SharedMessage(HERE, offset, 1, 0, b"poison")
    message.leased_from, message.leased_at, message.attempts = HERE, offset, attempts
    return message


def fail(message):
    raise ValueError("it cannot be read")


def running(sender):
    now = iter(range(1, 100_000))
    failed = FailedMessages(
        Retry(attempts=3, jitter=0), "g", lambda: sender, lambda broker: True, now=lambda: float(next(now))
    )
    consumer: Any = Consumer()
    return _Run(consumer, fail, True, failed), consumer


def test_a_dead_letter_that_no_broker_took_at_first_tells_later_why_the_handler_failed(caplog):
    sender = Sender(AWAY, AWAY)
    run, consumer = running(sender)
    is_done = [run._handle(leased(attempts)) for attempts in (3, 4, 5)]  # each release and lease counts one
    assert is_done == [False, False, True]
    assert consumer.done == [("release", 0), ("release", 0)]
    ((topic, failure),) = sender.letters
    assert topic == "%DEAD%g"
    assert failure.cause.startswith("ValueError: it cannot be read\n")
    assert "in fail" in failure.cause
    assert (failure.attempts, failure.failed_ms) == (3, 1000)
    first, second, last = caplog.records
    assert "no broker has taken a dead letter (it is away) that is to say: ValueError: it cannot" in first.getMessage()
    assert first.exc_info[0] is ValueError
    assert "(it is away) that is to say: ValueError: it cannot be read" in second.getMessage()
    assert "is a dead letter after 3 attempts: ValueError: it cannot be read" in last.getMessage()
    assert not run._unburied


def test_one_whose_last_attempt_was_another_members_says_what_is_known():
    sender = Sender()
    run, consumer = running(sender)
    assert run._handle(leased(4))
    ((_, failure),) = sender.letters
    assert "let their leases run out" in failure.cause
    assert "found no broker for the dead letter" in failure.cause
    assert failure.attempts == 3
    assert consumer.done == []


def test_only_so_many_are_remembered(monkeypatch):
    monkeypatch.setattr(tuning, "UNBURIED", 2)
    sender = Sender(AWAY, AWAY, AWAY)
    run, _ = running(sender)
    for offset in (0, 100, 200):
        run._handle(leased(3, offset))
    for offset in (0, 100, 200):
        run._handle(leased(4, offset))
    causes = [failure.cause for _, failure in sender.letters]
    assert "let their leases run out" in causes[0]
    assert all(cause.startswith("ValueError: it cannot be read") for cause in causes[1:])
    assert len(causes) == 3


@pytest.mark.parametrize("attempts", [1, 2])
def test_before_the_last_attempt_it_comes_again_without_a_letter(attempts, caplog):
    run, consumer = running(Sender())
    run._handle(leased(attempts))
    assert consumer.done == [("release", 0)]
    assert "the handler failed on jobs 0-0 @0" in caplog.text
