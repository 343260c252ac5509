"""Whether anybody polls a member of a group, and what follows if nobody does."""

from collections.abc import Callable
from typing import Any

import pytest

from metaq.client.consumer.self_checks import PollWatch
from metaq.client.settings.config import IDLE_WARNING_SECONDS
from metaq.client.settings.consumer_config import ConsumerConfig
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
        checked: tuple[Any, Any] = (self.member, self)
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


LONG = IDLE_WARNING_SECONDS


@pytest.mark.parametrize(
    ("limit", "passes"),
    [
        (None, [(LONG - 1, 0, []), (10 * LONG, 1, [])]),  # unless it is asked for, everything is kept
        (2.0, [(1.9, 0, []), (0.2, 1, ["out"]), (1000.0, 1, ["out"])]),
        (2 * LONG, [(LONG + 1, 1, []), (LONG, 2, ["out"])]),
    ],
    ids=["without a limit", "after the limit", "with a long limit the warning comes first"],
)
def test_a_member_that_nobody_polls_is_told_of_and_steps_out_once(caplog, limit, passes):
    """passes: seconds, and how many warnings and which steps there are by then."""
    world = World(limit)
    for seconds, warned, calls in passes:
        world.passes(seconds)
        assert (len(warnings(caplog)), world.member.calls) == (warned, calls)
    world.poll()
    assert world.member.calls == [*calls, *["back"] * len(calls)]
    world.passes((limit or 0) + 1)
    assert world.member.calls == [*calls, *["back", "out"] * len(calls)]


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (None, ["for 300 s", "2 partitions", "poll", "close", "max_poll_interval_seconds"]),
        (2.0, ["for 2 s (max_poll_interval_seconds=2)", "2 partitions"]),
    ],
)
def test_the_warning_names_the_member_the_time_and_what_to_do(caplog, limit, words):
    World(limit).passes(LONG + 1)
    (warning,) = warnings(caplog)
    assert all(word in warning for word in ["group g: nobody has polled g_me", *words]), warning


def test_each_time_without_a_poll_is_told(caplog):
    world = World()
    for _ in range(3):
        world.passes(2 * LONG)
        world.poll()
    assert len(warnings(caplog)) == 3


def test_who_polls_in_time_hears_nothing_however_long_a_poll_waits(caplog):
    world = World(limit=2.0)
    for _ in range(1000):
        world.passes(1.9)
        world.poll()
    assert len(world.timers) == 1  # and nothing piles up
    world.poll(waits=1000.0)
    world.passes(1.9)
    assert (warnings(caplog), world.member.calls) == ([], [])


def test_a_wait_that_an_exception_ends_is_over():
    world = World(limit=2.0)
    with pytest.raises(KeyboardInterrupt):
        world.watch.wait(raising(KeyboardInterrupt))
    world.passes(4.0)
    assert world.member.calls == ["out"]


def test_a_member_without_partitions_keeps_nobody_waiting(caplog):
    world = World()
    world.member.owned = {}
    world.passes(10 * LONG)
    assert warnings(caplog) == []


def test_a_handler_that_does_not_return_counts_as_kafka_counts_it(caplog):
    """What the handler has does not go on."""
    world = World(limit=2.0)
    world.watch.works("worker 1")
    for _ in range(30):  # the thread in run() goes on, and another handler returns and gets the next message
        world.passes(0.1)
        world.watch.attend()
        world.watch.works("worker 2")
    assert world.member.calls == ["out"]
    world.watch.attend()
    assert world.member.calls == ["out"]  # it hangs still
    world.watch.rests("worker 1")
    world.watch.attend()
    assert world.member.calls == ["out", "back"]
    (warning,) = warnings(caplog)
    assert "a handler" in warning


def test_a_handler_that_has_nothing_to_do_is_not_waited_for():
    world = World(limit=2.0)
    world.watch.works("worker 1")
    world.watch.rests("worker 1")
    for _ in range(30):
        world.passes(1.0)
        world.watch.attend()
    assert world.member.calls == []


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_the_limit_is_a_number_above_0_and_there_is_none_by_default(seconds):
    with pytest.raises(ConfigError, match="max_poll_interval_seconds"):
        ConsumerConfig(max_poll_interval_seconds=seconds)
    assert ConsumerConfig().max_poll_interval_seconds is None
