"""Emptying the queues of a local store: in order, one thread a queue, until a message fails."""

import threading

import pytest

from metaq import LocalMessageStore, StoredMessage
from metaq.client.producer.resending import Resender
from metaq.protocol.errors import BrokerUnavailable
from tests.waiting import DEADLINE, eventually

NEVER = 3600.0


@pytest.fixture
def store(tmp_path):
    with LocalMessageStore(tmp_path / "m.db") as store:
        yield store


class Receiver:
    """Takes messages, or does not, and can be stopped in the middle of one."""

    def __init__(self):
        self.taken = []
        self.refused = set()
        self.open = threading.Event()
        self.open.set()
        self.busy = threading.Semaphore(0)
        self.at_once = self.most_at_once = 0

    def __call__(self, message):
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.busy.release()
        assert self.open.wait(DEADLINE)
        self.at_once -= 1
        if message.body in self.refused:
            raise BrokerUnavailable(f"refused {message.body!r}")
        self.taken.append(message.body)


@pytest.fixture
def receiver():
    return Receiver()


@pytest.fixture
def make(store, receiver):
    made = []

    def make(interval=NEVER, owns=lambda queue: queue.startswith("q")):
        made.append(Resender(store, owns, receiver, interval))
        made[-1].begin()
        return made[-1]

    yield make
    receiver.open.set()
    for resender in made:
        resender.close(10)


def fill(store, queue, *bodies):
    store.append(queue, [StoredMessage("t", body) for body in bodies])


def left(store, queue):
    return [message.body for _, message in store.peek(queue, 1000)]


def test_what_an_earlier_process_left_is_sent_at_the_start(store, receiver, make):
    bodies = [b"%d" % number for number in range(250)]
    fill(store, "q1", *bodies)
    fill(store, "others", b"x")
    resender = make()
    assert resender.wait_until_empty("q1", 10)
    assert receiver.taken == bodies
    assert left(store, "others") == [b"x"]


def test_a_message_that_fails_stays_the_first_and_does_not_stop_other_queues(store, receiver, make):
    receiver.refused = {b"2"}
    fill(store, "q1", b"1", b"2", b"3")
    fill(store, "q2", b"a", b"b")
    resender = make()
    eventually(lambda: "q1" in resender.failures and not store.count("q2"))
    assert left(store, "q1") == [b"2", b"3"]
    assert "refused b'2'" in str(resender.failures["q1"])
    assert not resender.wait_until_empty("q1", 0.0)
    receiver.refused.clear()
    resender.trigger("q1")
    eventually(lambda: not store.count("q1") and not resender.failures)
    assert [body for body in receiver.taken if body.isdigit()] == [b"1", b"2", b"3"]


def test_a_failed_queue_is_tried_again_after_the_interval(store, receiver, make):
    receiver.refused = {b"1"}
    fill(store, "q1", b"1")
    resender = make(interval=0.01)
    eventually(lambda: "q1" in resender.failures)
    receiver.refused.clear()
    assert resender.wait_until_empty("q1", 10)


def test_one_thread_at_a_time_empties_a_queue_however_often_it_is_asked_to(store, receiver, make):
    resender = make()
    fill(store, "q1", *(b"%d" % number for number in range(50)))
    for _ in range(50):
        resender.trigger("q1")
        resender.trigger_all()
    assert resender.wait_until_empty("q1", 10)
    assert receiver.taken == [b"%d" % number for number in range(50)]
    assert receiver.most_at_once == 1


def test_a_queue_that_is_asked_for_while_its_thread_ends_is_looked_at_again(store, receiver, make, monkeypatch):
    resender = make()
    nothing_left, go_on = threading.Event(), threading.Event()
    peek = store.peek

    def peek_and_wait(queue, limit):
        rows = peek(queue, limit)
        if not rows and not go_on.is_set():
            nothing_left.set()
            assert go_on.wait(DEADLINE)
        return rows

    monkeypatch.setattr(store, "peek", peek_and_wait)
    resender.trigger("q1")
    assert nothing_left.wait(DEADLINE)
    fill(store, "q1", b"late")
    resender.trigger("q1")
    go_on.set()
    assert resender.wait_until_empty("q1", 10)


def test_closing_ends_after_the_message_under_way_and_keeps_the_rest(store, receiver, make):
    receiver.open.clear()
    fill(store, "q1", b"1", b"2", b"3")
    resender = make()
    assert receiver.busy.acquire(timeout=DEADLINE)
    resender.close(0.0)  # closed, but not waited for
    receiver.open.set()
    resender.close(20)
    assert receiver.taken == [b"1"]
    assert left(store, "q1") == [b"2", b"3"]
    resender.trigger("q1")
    assert receiver.taken == [b"1"]
