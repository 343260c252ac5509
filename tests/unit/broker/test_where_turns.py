"""How long filters by content work in one turn of the reactor, and who waits for the next one."""

import pytest

from metaq.broker import tuning
from metaq.broker.reading.selecting import TurnTime, slice_of
from metaq.protocol.where import Where
from tests.unit.broker.test_turns import WorkClock, iteration


@pytest.fixture
def reactor():
    return WorkClock()


def waiting(time):
    turn = time.turn()
    assert turn is not None
    return turn


def work(reactor, time, seconds):
    deadline = time.deadline()
    reactor.work(seconds)
    time.used_until(deadline)


def test_a_turn_has_one_slice_behind_its_time_at_most_however_many_pulls_want_one(reactor):
    time, judged = TurnTime(reactor), []

    def judge(name):
        if (turn := time.turn()) is not None:
            turn.addCallback(lambda _: judge(name))
            return
        judged.append(name)
        work(reactor, time, tuning.WHERE_TURN_SECONDS * 0.7)

    for name in range(5):
        judge(name)
    assert judged == [0, 1]
    iteration(reactor)
    assert judged == [0, 1, 2, 3]
    iteration(reactor)
    assert judged == [0, 1, 2, 3, 4]


def test_who_comes_later_stands_behind_those_who_wait(reactor):
    time, order = TurnTime(reactor), []
    assert time.turn() is None
    work(reactor, time, 1.0)

    def judge(name):
        order.append(name)
        work(reactor, time, 1.0)

    for name in ("waiting", "too"):
        waiting(time).addCallback(lambda _, name=name: judge(name))
    iteration(reactor)
    waiting(time).addCallback(lambda _: order.append("late"))
    assert order == ["waiting"]
    iteration(reactor)
    iteration(reactor)
    assert order == ["waiting", "too", "late"]


def test_what_a_pull_does_beside_judging_counts_too(reactor):
    time, served = TurnTime(reactor), []
    work(reactor, time, 1.0)
    for name in range(3):

        def serve(_, name=name):
            served.append(name)
            reactor.work(tuning.WHERE_TURN_SECONDS)

        waiting(time).addCallback(serve)
    iteration(reactor)
    assert served == [0]


@pytest.mark.parametrize("pattern", ["%x_y%", "%abc%", "%" + "a%" * 1000, "%" + "b_" * 500 + "%"])
def test_a_slice_has_so_many_bytes_that_its_steps_are_bounded(pattern):
    where = Where(f"a LIKE '{pattern}' OR b LIKE '{pattern}'")
    assert 0 < where.searched * slice_of(where).size <= tuning.WHERE_SLICE_STEPS


def test_a_filter_without_like_has_slices_of_a_whole_step():
    assert slice_of(Where("a = 1")) == (tuning.WHERE_SLICE_RECORDS, tuning.WHERE_STEP_BYTES)
