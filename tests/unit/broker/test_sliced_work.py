"""Works of one kind: one after the other, a slice of time in each step of the reactor."""

from collections.abc import Iterator

import pytest
from twisted.internet.task import Clock

from metaq.broker.runtime.slices import SlicedWork
from metaq.broker.tuning import WORK_SLICE_SECONDS
from tests.unit.broker.test_turns import iteration


class Works:
    def __init__(self) -> None:
        self.reactor = Clock()
        self.slices = SlicedWork(self.reactor)
        self.done: list[str] = []

    def work(self, name: str, items: int) -> Iterator[None]:
        for number in range(items):
            self.done.append(f"{name}{number}")
            self.reactor.rightNow += WORK_SLICE_SECONDS / 2
            if self.slices.is_over:
                yield


def test_a_work_is_done_in_slices_and_the_next_one_follows_it() -> None:
    works = Works()
    works.slices.add(works.work("a", 3))
    works.slices.add(works.work("b", 2))
    assert works.done == ["a0", "a1"]
    assert works.slices
    iteration(works.reactor)
    assert works.done == ["a0", "a1", "a2", "b0"]
    iteration(works.reactor)
    assert works.done == ["a0", "a1", "a2", "b0", "b1"]
    assert not works.slices
    works.slices.add(works.work("c", 1))
    assert works.done[-1] == "c0"


def test_a_work_that_fails_does_not_keep_the_next_one_from_being_done() -> None:
    works = Works()

    def failing() -> Iterator[None]:
        yield
        raise ValueError("broken")

    works.slices.add(failing())
    works.slices.add(works.work("b", 1))
    with pytest.raises(ValueError, match="broken"):
        iteration(works.reactor)
    iteration(works.reactor)
    assert works.done == ["b0"]


def test_all_is_done_at_once_at_the_end_and_dropped_things_never() -> None:
    works = Works()
    works.slices.add(works.work("a", 5))
    works.slices.finish()
    assert works.done == [f"a{number}" for number in range(5)]
    works.slices.add(works.work("b", 5))
    works.slices.clear()
    iteration(works.reactor)
    assert "b4" not in works.done
