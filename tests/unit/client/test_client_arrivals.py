"""What a waiting poll() is woken by."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty
from typing import Any, cast

import pytest

from metaq.client.backoff import Backoff
from metaq.client.connection import Connection
from metaq.client.consumer.arrivals import Arrivals
from metaq.client.consumer.partition_state import PartitionState
from metaq.client.values import TopicPartition
from metaq.client.waiting import Waiter


class Driven:
    """A connection: each time it is driven the next of `steps` happens."""

    def __init__(self, *steps: Callable[[Waiter], None]) -> None:
        self.steps = list(steps)

    def drive(self, waiter: Waiter, deadline: float) -> None:
        self.steps.pop(0)(waiter)


def reading(arrivals: Arrivals, *steps: Callable[[Waiter], None]) -> Any:
    return arrivals.get_reading(cast(Connection, Driven(*steps)), deadline=1.0)


@pytest.fixture
def state() -> PartitionState:
    return PartitionState(TopicPartition("t", 0, 0), Backoff(0.1, 1.0))


def test_being_told_late_of_what_was_taken_already_is_no_reason_to_give_up(state):
    arrivals = Arrivals()
    assert reading(arrivals, Waiter.finish, lambda waiter: arrivals.put(state)) is state


def test_it_gives_up_at_the_deadline():
    with pytest.raises(Empty):
        reading(Arrivals(), lambda waiter: None)


def test_what_is_there_already_is_returned_without_reading(state):
    arrivals = Arrivals()
    arrivals.put(state)
    assert reading(arrivals) is state
