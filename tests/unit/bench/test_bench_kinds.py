"""Our generator's commands for kinds of messages, and those of their members, on doubles."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import ClassVar

import pytest

from bench import kinds
from bench.kinds import Kinds
from bench.loops import Generator, answer
from bench.members import Worked, numbered
from metaq import HalfOutcome


class Sender:
    """A producer that keeps what it is given."""

    def __init__(self, outcome: HalfOutcome = HalfOutcome.COMMITTED):
        self.outcome = outcome
        self.sent: list[tuple[bytes, float | None]] = []
        self.batches: list[list[bytes]] = []

    def send(self, topic, data, *, delay):
        self.sent.append((data, delay))

    def send_async(self, topic, data, *, delay):
        self.send(topic, data, delay=delay)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def send_in_transaction(self, topic, data, *, execute):
        assert execute(None) is True
        self.sent.append((data, None))
        return SimpleNamespace(outcome=self.outcome, cause="the broker is gone")

    def send_in_transaction_async(self, topic, data, *, execute):
        future: Future[object] = Future()
        future.set_result(self.send_in_transaction(topic, data, execute=execute))
        return future

    def send_batch(self, topic, payloads):
        self.batches.append(payloads)


def run(producer: Sender, line: str):
    commands = Kinds("", producer, sleep=lambda _: None).commands  # type: ignore[arg-type]
    return answer(Generator(None), line, commands)  # type: ignore[arg-type]


@pytest.mark.parametrize("line", ["delayed_blocking t 3 100 16 60", "delayed_async t 8 100 16 60"])
def test_delayed_messages_are_all_sent_with_their_delay(line):
    producer = Sender()
    assert run(producer, line)["count"] == 100
    assert producer.sent == [(bytes(16), 60)] * 100


TRANSACTIONS = ["transactions t 2 50 16", "transactions_async t 8 50 16"]


@pytest.mark.parametrize("line", TRANSACTIONS)
def test_transactions_are_counted(line):
    producer = Sender()
    assert run(producer, line)["count"] == len(producer.sent) == 50


@pytest.mark.parametrize("line", TRANSACTIONS)
def test_a_transaction_that_is_not_committed_fails_the_command(line):
    said = run(Sender(HalfOutcome.UNKNOWN), line)
    assert said["error"] == "RuntimeError: the transaction is unknown: the broker is gone"


class FakeMembers:
    """A process whose members have done all of its share of the numbers at once."""

    shares: ClassVar[list[list[int]]] = []

    def __init__(self, *arguments):
        self.arguments = arguments

    def __enter__(self):
        self.share = FakeMembers.shares.pop(0)
        return self

    def __exit__(self, *_):
        self.share = []

    def begin(self):
        assert self.share is not None

    def count(self):
        return len(self.share)

    def end(self):
        return Worked(len(self.share), 10.0 if self.share else 0.0, 12.0 if self.share else 0.0, 3, self.share)


@pytest.fixture
def members(monkeypatch):
    monkeypatch.setattr(kinds, "Members", FakeMembers)
    return FakeMembers


def test_the_rate_of_members_counts_from_the_first_message_to_the_last(members):
    members.shares = [[0, 2, 4], [1, 3, 5], []]
    producer = Sender()
    said = run(producer, "shared t g 6 1 3 1 6 64")
    assert said["rate"] == pytest.approx(3.0)
    assert said["workers"] == 9
    assert said["twice"] == 0
    assert producer.batches == [[numbered(number, 64) for number in range(6)]]


def test_messages_that_come_twice_are_counted_and_a_lost_one_fails_the_command(members):
    members.shares = [[0, 1, 1], [0, 0]]
    assert run(Sender(), "shared t g 1 1 1 1 2 64")["twice"] == 1
    assert "2 messages were sent, 1 came" in run(Sender(), "shared t g 1 1 1 1 2 64")["error"]
