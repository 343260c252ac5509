"""What a waiting poll() is woken by, and what is there when it looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from metaq.client.connection import Connection
from metaq.client.consumer.arrivals import Arrivals
from metaq.client.consumer.partition_state import PartitionState
from metaq.client.values import TopicPartition
from metaq.client.waiting import Waiter
from metaq.coordination.backoff import Backoff


class Driven:
    """A connection: when it is driven, `step` happens."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step
        self.waiters: list[Waiter] = []

    def drive(self, waiter: Waiter, deadline: float) -> None:
        self.waiters.append(waiter)
        self.step()


def new_state(number: int = 0) -> PartitionState:
    return PartitionState(TopicPartition("t", 0, number), Backoff(0.1, 1.0))


@pytest.fixture
def arrivals() -> Arrivals:
    return Arrivals()


def reading(arrivals: Arrivals, step: Callable[[], None] = lambda: None) -> list[bool]:
    """Whether each waiter that has driven was told to come back."""
    driven = Driven(step)
    arrivals.wait_reading(cast(Connection, driven), deadline=1.0)
    return [waiter.done for waiter in driven.waiters]


def test_being_woken_takes_nothing_away(arrivals):
    first, second = new_state(0), new_state(1)
    for state in (first, second, first):
        arrivals.put(state)
        arrivals.wait(0)
        arrivals.listen()
    assert arrivals.first() is first
    arrivals.discard(first)
    assert arrivals.first() is second
    arrivals.discard(second)
    assert arrivals.first() is None


def test_the_others_come_first_when_one_is_passed_over(arrivals):
    first, second = new_state(0), new_state(1)
    arrivals.put(first)
    arrivals.put(second)
    arrivals.pass_over(first)
    assert arrivals.first() is second
    arrivals.discard(first)
    arrivals.pass_over(first)  # it is not there any more
    arrivals.pass_over(second)
    assert arrivals.first() is second


def test_a_thread_that_reads_is_told(arrivals):
    state = new_state()
    assert reading(arrivals, lambda: arrivals.put(state)) == [True]
    assert arrivals.first() is state


def test_what_came_before_listening_does_not_end_a_wait(arrivals):
    arrivals.put(None)
    arrivals.put(new_state())
    arrivals.listen()
    assert reading(arrivals) == [False]


def test_what_came_since_then_does_without_reading(arrivals):
    arrivals.listen()
    arrivals.put(None)
    arrivals.wait(3600)
    arrivals.put(None)
    assert reading(arrivals) == []


def test_a_wait_that_an_exception_ended_leaves_the_bell_in_order(arrivals):
    def interrupted() -> None:
        arrivals.put(new_state())
        arrivals.wait(3600)  # has taken what rang
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reading(arrivals, interrupted)
    arrivals.listen()
    assert reading(arrivals) == [False]
    arrivals.put(None)
    arrivals.wait(3600)
