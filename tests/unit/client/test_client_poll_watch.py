"""Whether anybody polls a member of a group, and what follows if nobody does."""

from collections.abc import Callable
from typing import Any

import pytest

from metaq.client.config import IDLE_WARNING_SECONDS
from metaq.client.consumer.watches import PollWatch
from metaq.client.consumer_config import ConsumerConfig
from metaq.protocol.errors import ConfigError
from tests.raising import raising


class Member:
    """What a GroupMember does for the watch."""

    def __init__(self):
        self.owned: dict[str, object] = {"0-0": None, "0-1": None}
        self.stepped_out = False
        self.calls: list[str] = []

    def step_out(self):
        self.stepped_out = True
        self.calls.append("out")

    def come_back(self):
        self.stepped_out = False
        self.calls.append("back")


class World:
    """A watch whose timers the test runs: `passes` lets time go by."""

    def __init__(self, limit: float | None = None):
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.member = Member()
        self.watch = PollWatch("g", "g_me", limit, lambda: self.now)
        member, timers = self.member, self
        checked: tuple[Any, Any] = (member, timers)
        self.watch.begin(*checked)

    def call_later(self, seconds, action):
        self.timers.append((self.now + seconds, action))

    def passes(self, seconds):
        end = self.now + seconds
        while self.timers and min(self.timers, key=lambda each: each[0])[0] <= end:
            due = min(self.timers, key=lambda each: each[0])
            self.timers.remove(due)
            self.now = due[0]
            due[1]()
        self.now = end

    def poll(self, waits=0.0):
        self.watch.attend()
        self.watch.wait(lambda: self.passes(waits))
        self.watch.attend()


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_member_that_nobody_polls_is_told_once_with_its_name_the_time_and_what_to_do(caplog):
    world = World()
    world.passes(IDLE_WARNING_SECONDS - 1)
    assert warnings(caplog) == []
    world.passes(10 * IDLE_WARNING_SECONDS)
    (warning,) = warnings(caplog)
    assert "group g: nobody has polled g_me for 300 s" in warning
    assert "2 partitions" in warning
    assert "poll" in warning
    assert "close" in warning
    assert "max_poll_interval_seconds" in warning
    assert world.member.calls == []  # unless it is asked for, everything is kept


def test_each_time_without_a_poll_is_told(caplog):
    world = World()
    for _ in range(3):
        world.passes(2 * IDLE_WARNING_SECONDS)
        world.poll()
    assert len(warnings(caplog)) == 3


def test_who_polls_in_time_hears_nothing(caplog):
    world = World(limit=2.0)
    for _ in range(1000):
        world.passes(1.9)
        world.poll()
    assert warnings(caplog) == []
    assert world.member.calls == []
    assert len(world.timers) == 1  # and nothing piles up


def test_a_poll_that_waits_for_long_is_no_time_without_a_poll(caplog):
    world = World(limit=2.0)
    world.poll(waits=1000.0)
    world.passes(1.9)
    assert warnings(caplog) == []
    assert world.member.calls == []


def test_a_wait_that_an_exception_ends_is_over():
    world = World(limit=2.0)

    with pytest.raises(KeyboardInterrupt):
        world.watch.wait(raising(KeyboardInterrupt))
    world.passes(4.0)
    assert world.member.calls == ["out"]


def test_a_member_without_partitions_keeps_nobody_waiting(caplog):
    world = World()
    world.member.owned = {}
    world.passes(10 * IDLE_WARNING_SECONDS)
    assert warnings(caplog) == []


def test_after_the_limit_the_member_steps_out_once_and_the_next_poll_brings_it_back(caplog):
    world = World(limit=2.0)
    world.passes(1.9)
    assert world.member.calls == []
    world.passes(0.2)
    assert world.member.calls == ["out"]
    (warning,) = warnings(caplog)
    assert "group g: nobody has polled g_me for 2 s (max_poll_interval_seconds=2)" in warning
    assert "2 partitions" in warning
    world.passes(1000.0)
    assert world.member.calls == ["out"]
    world.poll()
    assert world.member.calls == ["out", "back"]
    world.passes(3.0)
    assert world.member.calls == ["out", "back", "out"]


def test_with_a_long_limit_the_warning_comes_first(caplog):
    world = World(limit=2 * IDLE_WARNING_SECONDS)
    world.passes(IDLE_WARNING_SECONDS + 1)
    assert (len(warnings(caplog)), world.member.calls) == (1, [])
    world.passes(IDLE_WARNING_SECONDS)
    assert (len(warnings(caplog)), world.member.calls) == (2, ["out"])


def test_a_handler_that_does_not_return_counts_as_kafka_counts_it(caplog):
    """The thread in run() goes on; what the handler has does not."""
    world = World(limit=2.0)
    world.watch.works("worker 1")
    world.watch.works("worker 2")
    for _ in range(30):
        world.passes(0.1)
        world.watch.attend()
        world.watch.works("worker 2")  # returns and gets the next message
    assert world.member.calls == ["out"]
    world.watch.attend()
    assert world.member.calls == ["out"]  # it hangs still
    world.watch.rests("worker 1")
    world.watch.attend()
    assert world.member.calls == ["out", "back"]
    (warning,) = warnings(caplog)
    assert "a handler" in warning


def test_a_handler_that_has_nothing_to_do_is_not_waited_for(caplog):
    world = World(limit=2.0)
    world.watch.works("worker 1")
    world.watch.rests("worker 1")
    for _ in range(30):
        world.passes(1.0)
        world.watch.attend()
    assert world.member.calls == []


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_the_limit_is_a_number_above_0(seconds):
    with pytest.raises(ConfigError, match="max_poll_interval_seconds"):
        ConsumerConfig(max_poll_interval_seconds=seconds)


def test_there_is_no_limit_by_default():
    assert ConsumerConfig().max_poll_interval_seconds is None
