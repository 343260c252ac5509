"""The rate of cold reads: unlimited while the loop is in time, halved while it is late, never below its least."""

import pytest
from twisted.internet.task import Clock

from metaq.broker import tuning
from metaq.broker.runtime.pace import Pace, processor_wait_seconds

MIB = 1 << 20


class Loop(Clock):
    """A reactor that comes late to its timers when told to."""

    def __init__(self, **least):
        super().__init__()
        self.written = 0
        self.waited = 0.0
        self.pace = Pace(self, lambda: self.written, lambda: self.waited, **least)

    def work(self, *, late=0.0, waited=0.0, read=0, written=0):
        """A tenth of a second and a little more."""
        for _ in range(11):
            self.pace.pause()
            self.pace.spend(read // 10)
            self.written += written // 10
            self.waited += waited
            self.advance(0.01 + late)
        return self.pace.bytes_per_second


@pytest.fixture
def loop():
    return Loop()


def test_a_broker_that_is_in_time_reads_as_fast_as_it_can(loop):
    for _ in range(20):
        loop.work(read=100 * MIB)
        assert loop.pace.pause() == 0


@pytest.mark.parametrize("harm", [{"late": 0.005}, {"waited": 0.001}])
def test_it_is_held_back_step_by_step_while_the_loop_is_late_and_let_go_afterwards(loop, harm):
    rates = [loop.work(**harm, read=50 * MIB, written=MIB) for _ in range(10)]
    assert rates[0] < 400 * MIB
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == tuning.PACE_MIN_BYTES_PER_SECOND
    for _ in range(120):
        loop.work(read=MIB, written=MIB)
    assert loop.pace.bytes_per_second > 1 << 32


def test_nobody_is_held_back_for_producers_that_do_not_write(loop):
    for _ in range(5):
        loop.work(late=0.01, read=50 * MIB, written=MIB)
    assert loop.pace.bytes_per_second < 400 * MIB
    for _ in range(2):
        loop.work(late=0.01, waited=0.01, read=50 * MIB)
    loop.pace.spend(1 << 30)
    assert loop.pace.pause() < 0.2


def test_a_pause_is_as_long_as_the_rate_asks_for(loop):
    for _ in range(10):
        loop.work(late=0.005, read=50 * MIB, written=MIB)
    loop.advance(1000)
    loop.pace.pause()
    loop.pace.spend(MIB + tuning.PACE_MIN_BYTES_PER_SECOND // 100)
    assert loop.pace.pause() == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("own", "least", "factor"),
    [
        ({}, tuning.PACE_MIN_BYTES_PER_SECOND, tuning.PACE_WRITTEN_FACTOR),
        ({"least": 100 * MIB, "written_factor": 2.0}, 100 * MIB, 2),
    ],
)
def test_a_least_rate_and_a_multiple_of_what_is_written_are_kept(own, least, factor):
    loop = Loop(**own)
    for written, expected in ((MIB, least), (100 * MIB, factor * 500 * MIB)):
        for _ in range(10):
            rate = loop.work(late=0.01, read=50 * MIB, written=written)
        assert rate == pytest.approx(expected, rel=0.1)


def test_it_costs_nothing_when_nobody_reads(loop):
    loop.work(read=MIB)
    loop.advance(1)
    loop.advance(1)
    assert loop.getDelayedCalls() == []


def test_the_kernel_says_how_long_a_thread_waited():
    before = processor_wait_seconds()
    assert 0 <= before <= processor_wait_seconds()
