"""Outcomes of transactions that gather while one request is under way."""

import threading
import time

import pytest

from metaq.client.producer import ending
from metaq.client.producer.ending import Ender
from metaq.client.values import TopicPartition
from metaq.protocol.errors import BrokerUnavailable, RequestTimedOut
from metaq.protocol.halves import EndHalfReply, HalfOutcome

COMMIT = HalfOutcome.COMMITTED
PLACE = TopicPartition("t", 0, 0)
SECONDS = 10.0


class Broker:
    """Answers when it is let go; keeps the ids of each request."""

    endpoint = "b:1"

    def __init__(self) -> None:
        self.requests: list[list[int]] = []
        self.free = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)
        self.error: BaseException | None = None

    def end_many(self, connection, partition, outcomes, timeout):
        self.requests.append([half_id for half_id, _ in outcomes])
        self.begun.release()
        assert self.free.acquire(timeout=SECONDS)
        if self.error is not None:
            raise self.error
        return [EndHalfReply(outcome, half_id * 10, 0) for half_id, outcome in outcomes]

    def end_one(self, connection, partition, half_id, outcome, timeout):
        return self.end_many(connection, partition, [(half_id, outcome)], timeout)[0]


@pytest.fixture
def broker(monkeypatch):
    broker = Broker()
    monkeypatch.setattr(ending, "end_half", broker.end_one)
    monkeypatch.setattr(ending, "end_halves", broker.end_many)
    return broker


class Threads:
    """Threads that tell outcomes, and what they were answered."""

    def __init__(self, broker: Broker):
        self.broker = broker
        self.ender = Ender(time.monotonic)
        self.answers: dict[int, object] = {}
        self.threads: list[threading.Thread] = []

    def begin(self, half_id: int, seconds: float = SECONDS, place: TopicPartition = PLACE) -> None:
        def run() -> None:
            try:
                reply = self.ender.end(self.broker, place, half_id, COMMIT, seconds)  # type: ignore[arg-type]
                self.answers[half_id] = reply.message_id
            except BaseException as error:
                self.answers[half_id] = type(error)

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def gather(self, *ids: int) -> None:
        """The first one's request is under way, the others wait for the next one."""
        self.begin(ids[0])
        assert self.broker.begun.acquire(timeout=SECONDS)
        for number, half_id in enumerate(ids[1:], 1):
            self.begin(half_id)
            self.until_waiting(number)

    @property
    def waiting(self):
        return next(iter(self.ender._gathered.values()), [])

    def until_waiting(self, number: int) -> None:
        end = time.monotonic() + SECONDS
        while len(self.waiting) != number:
            assert time.monotonic() < end
            threading.Event().wait(0.001)

    def join(self) -> dict[int, object]:
        for _ in self.threads:
            self.broker.free.release()
        for thread in self.threads:
            thread.join(SECONDS)
        assert not self.ender._gathered
        return self.answers


@pytest.fixture
def threads(broker):
    return Threads(broker)


def test_one_at_a_time_is_sent_by_itself(broker, threads):
    for half_id in (1, 2):
        broker.free.release()
        threads.begin(half_id)
        threads.threads[-1].join(SECONDS)
    assert threads.join() == {1: 10, 2: 20}
    assert broker.requests == [[1], [2]]


def test_what_comes_while_a_request_is_under_way_goes_together_in_the_next_one(broker, threads):
    threads.gather(1, 2, 3, 4)
    assert threads.join() == {1: 10, 2: 20, 3: 30, 4: 40}
    assert broker.requests == [[1], [2, 3, 4]]


def test_a_request_has_no_more_than_its_limit(broker, threads, monkeypatch):
    monkeypatch.setattr(ending, "MAX_ENDED_HALVES", 2)
    threads.gather(1, 2, 3, 4)
    assert threads.join() == {1: 10, 2: 20, 3: 30, 4: 40}
    assert broker.requests == [[1], [2, 3], [4]]


def test_other_partitions_do_not_wait(broker, threads):
    threads.gather(1)
    threads.begin(2, place=TopicPartition("t", 0, 1))
    assert broker.begun.acquire(timeout=SECONDS)
    assert threads.join() == {1: 10, 2: 20}


def test_a_refusal_is_told_to_all_of_its_request_and_the_others_go_on(broker, threads, monkeypatch):
    monkeypatch.setattr(ending, "MAX_ENDED_HALVES", 2)
    threads.gather(1, 2, 3, 4)
    broker.free.release()
    assert broker.begun.acquire(timeout=SECONDS)  # 2 and 3 are under way
    threads.threads[0].join(SECONDS)
    broker.error = BrokerUnavailable("gone")
    broker.free.release()
    assert broker.begun.acquire(timeout=SECONDS)  # 4
    for thread in threads.threads[1:3]:
        thread.join(SECONDS)
    broker.error = None
    assert threads.join() == {1: 10, 2: BrokerUnavailable, 3: BrokerUnavailable, 4: 40}


def test_an_interrupted_request_leaves_nobody_waiting(broker, threads):
    threads.gather(1, 2, 3)
    broker.error = KeyboardInterrupt()
    broker.free.release()
    threads.threads[0].join(SECONDS)
    assert broker.begun.acquire(timeout=SECONDS)
    broker.free.release()
    for thread in threads.threads[1:]:
        thread.join(SECONDS)
    assert threads.join() == {1: KeyboardInterrupt, 2: KeyboardInterrupt, 3: RequestTimedOut}


def test_who_waits_too_long_leaves(broker, threads):
    threads.gather(1)
    threads.begin(2, seconds=0.01)
    threads.threads[1].join(SECONDS)
    assert threads.join() == {1: 10, 2: RequestTimedOut}
    assert broker.requests == [[1]]


def test_an_interrupted_thread_hands_on_what_it_was_to_send(broker, threads, monkeypatch):
    park = ending._Outcome.park_until_done

    def interrupted(self, deadline, clock):
        park(self, deadline, clock)
        if self.half_id == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(ending._Outcome, "park_until_done", interrupted)
    threads.gather(1, 2, 3)
    assert threads.join() == {1: 10, 2: KeyboardInterrupt, 3: 30}
    assert broker.requests == [[1], [3]]
