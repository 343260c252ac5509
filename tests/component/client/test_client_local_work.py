"""Threads of a producer that do the local work of its transactions."""

import threading
import time
from functools import partial

import pytest

from metaq.client.producer.local_work import LocalWork
from tests.waiting import eventually


class Work:
    def __init__(self, most):
        self.done: list[int] = []
        self.rests = 0
        self.begun: list[int] = []
        self.go_on = {number: threading.Event() for number in range(10)}
        self.work = LocalWork(most, self.do, self.rest, time.monotonic)

    def do(self, number):
        self.begun.append(number)
        assert self.go_on[number].wait(10)
        self.done.append(number)

    def has_begun(self, count):
        return len(self.begun) == count

    def rest(self):
        self.rests += 1

    def let_go(self, *numbers):
        for number in numbers:
            self.go_on[number].set()


@pytest.fixture
def three():
    work = Work(3)
    yield work
    work.let_go(*range(10))
    work.work.close(10)


def test_as_much_is_done_at_the_same_time_as_there_are_threads(three):
    for number in range(5):
        assert three.work.add(number)
        eventually(partial(three.has_begun, min(number + 1, 3)))
    three.let_go(1)
    eventually(lambda: three.begun == [0, 1, 2, 3])
    three.let_go(*range(10))
    eventually(lambda: sorted(three.done) == [0, 1, 2, 3, 4])
    eventually(lambda: three.rests)


def test_a_thread_that_has_nothing_to_do_is_taken_before_another_one_begins(three):
    three.let_go(*range(10))
    for number in range(5):
        three.work.add(number)
        eventually(partial(three.has_begun, number + 1))
        eventually(lambda: three.work._idle == 1)
    assert len(three.work._threads) == 1


def test_closing_returns_what_was_not_begun_and_waits_for_the_rest():
    work = Work(1)
    work.work.add(0)
    eventually(lambda: work.begun == [0])
    assert [work.work.add(number) for number in (1, 2)] == [True, True]
    closing = threading.Timer(0.05, work.let_go, (0,))
    closing.start()
    assert work.work.close(10) == [1, 2]
    assert work.done == [0]
    assert not work.work.add(4)
