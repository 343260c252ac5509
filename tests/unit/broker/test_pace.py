"""The rate of cold reads: unlimited while nothing suffers, halved while something does, never below its least."""

import pytest

from metaq.broker.pace import MIN_BYTES_PER_SECOND, Pace, processor_wait_seconds

MIB = 1 << 20


class Machine:
    """Clocks and counters set by hand."""

    def __init__(self):
        self.now = self.used = self.waited = 0.0
        self.written = 0
        self.pace = Pace(
            lambda: self.now,
            lambda: self.written,
            process_seconds=lambda: self.used,
            wait_seconds=lambda: self.waited,
        )

    def pass_by(self, seconds=0.1, *, used=0.0, waited=0.0, written=0):
        self.now += seconds
        self.used += used
        self.waited += waited
        self.written += written
        return self.pace.pause()


@pytest.fixture
def machine():
    return Machine()


def test_an_idle_broker_reads_as_fast_as_it_can(machine):
    for _ in range(50):
        machine.pace.spend(50 * MIB, 0.05)
        assert machine.pass_by(used=0.05) == 0


@pytest.mark.parametrize("harm", [{"used": 0.09}, {"waited": 0.02}])
def test_it_is_held_back_step_by_step_while_others_suffer_and_let_go_afterwards(machine, harm):
    rates = []
    for _ in range(8):
        machine.pace.spend(50 * MIB, 0.0)
        machine.pass_by(**harm)
        rates.append(machine.pace.bytes_per_second)
    assert rates[0] <= 250 * MIB
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == MIN_BYTES_PER_SECOND
    assert machine.pass_by(0) > 0
    for _ in range(40):
        machine.pass_by()
    assert machine.pace.bytes_per_second > 1 << 32


def test_a_pause_is_as_long_as_the_rate_asks_for(machine):
    for _ in range(10):
        machine.pass_by(waited=0.05)
    machine.pass_by(0.05)
    machine.pace.spend(MIB + MIN_BYTES_PER_SECOND // 100, 0.0)
    assert machine.pass_by(0) == pytest.approx(0.01)
    assert machine.pass_by(0.01) == 0


def test_readers_get_twice_what_is_written_so_that_they_catch_up(machine):
    for _ in range(10):
        machine.pace.spend(100 * MIB, 0.0)
        machine.pass_by(used=0.1, written=20 * MIB)
    assert machine.pace.bytes_per_second == pytest.approx(400 * MIB)


def test_the_kernel_says_how_long_a_thread_waited():
    before = processor_wait_seconds()
    assert 0 <= before <= processor_wait_seconds()
