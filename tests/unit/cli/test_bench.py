"""The pieces of `metaq bench` that need no cluster."""

import threading
from collections.abc import Generator
from concurrent.futures import Future
from random import Random

import pyarrow
import pytest

from metaq.cli.bench import steps
from metaq.cli.bench_jobs import (
    JOIN_SECONDS,
    LATE_SECONDS,
    ArrowReader,
    Backlog,
    MessageReader,
    Reader,
    Stamps,
    send_batches,
    send_pipelined,
    send_single,
)
from metaq.cli.bench_measure import Durations, Limit, Run, Tally, measure
from metaq.client.records.message import Message
from metaq.client.records.results import TopicPartition
from metaq.protocol.errors import RequestTimedOut
from tests.raising import raising
from tests.waiting import DEADLINE

PLACE = TopicPartition("trades", 0, 0)


class Clock:
    """Nanoseconds that pass only when the test says so."""

    def __init__(self):
        self.now = 1_000

    def __call__(self):
        return self.now

    def pass_seconds(self, seconds):
        self.now += int(seconds * 1e9)


def a_run(count=None, seconds=None, clock=None):
    return Run(Limit(count, seconds), threading.Event(), clock or Clock())


def message(offset, payload=b"abc"):
    return Message(PLACE, offset, 1, 0, payload)


class Polled:
    """A reader that returns what it is given, poll by poll, and then nothing, a second later each time."""

    def __init__(self, clock, messages):
        self.clock = clock
        self.messages = list(messages)

    def poll(self, max_messages=500, timeout=1.0):
        self.clock.pass_seconds(1)
        taken, self.messages = self.messages[:max_messages], self.messages[max_messages:]
        return taken


def readers(*pairs) -> Generator[tuple[Reader, int | None], None, None]:
    for polled, end in pairs:
        yield MessageReader(polled), end


# --- times ----------------------------------------------------------------------------------------------------------


def test_percentiles_are_those_of_the_sorted_times_and_at_most_a_256th_too_high():
    random = Random(5)
    values = sorted(int(random.lognormvariate(13, 2)) + 1 for _ in range(50_000))
    times = Durations()
    for value in values:
        times.add(value)
    shown = times.percentiles_ms()
    for name, rank in (("p50", 25_000), ("p90", 45_000), ("p99", 49_500), ("p99.9", 49_950)):
        exact = values[rank - 1] / 1e6
        assert exact <= shown[name] <= exact * (1 + 1 / 256) + 1e-6, name
    assert shown["max"] == values[-1] / 1e6


def test_a_single_time_is_every_percentile():
    times = Durations()
    times.add(1_234_567)
    assert set(times.percentiles_ms().values()) == {1.234567}


def test_merged_times_are_those_of_both():
    one, other = Durations(), Durations()
    for value in range(1, 101):
        (one if value % 2 else other).add(value * 1_000_000)
    one.merge(other)
    assert one.percentiles_ms()["p50"] == pytest.approx(50, rel=1 / 256)
    assert one.percentiles_ms()["max"] == 100.0


def test_without_times_there_are_no_percentiles():
    assert Durations().percentiles_ms() == {}


# --- the end of a run -----------------------------------------------------------------------------------------------


def test_a_run_takes_exactly_the_count_whatever_the_size_of_a_batch():
    run = a_run(count=1001)
    assert [run.take(500), run.take(500), run.take(500), run.take(500)] == [500, 500, 1, 0]


def test_a_run_ends_with_its_time_or_when_it_is_stopped():
    clock = Clock()
    run = a_run(seconds=2, clock=clock)
    clock.pass_seconds(1.9)
    assert run.take() == 1
    clock.pass_seconds(0.1)
    assert run.take() == 0
    other = a_run()
    assert other.take() == 1
    other.stop.set()
    assert other.take() == 0


def test_all_threads_of_a_run_are_added_up():
    def job(tally):
        while taken := run.take(10):
            tally.messages += taken
            tally.times.add(5)

    run = a_run(count=1_005)
    messages, _, times = measure("", run, [job, job, job])
    assert messages == 1_005
    assert times.percentiles_ms()["max"] == 5 / 1e6


def test_the_first_failure_stops_the_other_threads_and_is_raised():
    def go_on(tally):
        assert run.stop.wait(DEADLINE)

    run = a_run()
    with pytest.raises(RequestTimedOut, match="no answer"):
        measure("", run, [go_on, raising(RequestTimedOut("no answer"))])


# --- where messages go ----------------------------------------------------------------------------------------------


class Sender:
    """A producer that keeps what its calls were given."""

    def __init__(self):
        self.calls = []

    def send(self, topic, payload, **place):
        self.calls.append(place)

    def send_async(self, topic, payload, **place):
        self.calls.append(place)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def send_batch_async(self, topic, payloads, **place):
        return self.send_async(topic, b"", **place, messages=len(payloads))


def test_messages_and_frames_go_to_the_places_in_turn():
    places = [{"key": "a"}, {"key": "b"}]
    for job, calls in (
        (lambda to, run: send_single(to, "t", b"x", run, places), [{"key": "a"}, {"key": "b"}, {"key": "a"}]),
        (lambda to, run: send_pipelined(to, "t", b"x", 2, run, places), [{"key": "a"}, {"key": "b"}, {"key": "a"}]),
        (
            lambda to, run: send_batches(to, "t", b"x", 2, 1, run, places),
            [{"key": "a", "messages": 2}, {"key": "b", "messages": 1}],
        ),
    ):
        sender, tally = Sender(), Tally()
        job(sender, a_run(count=3))(tally)
        assert sender.calls == calls
        assert tally.messages == 3


def test_without_places_the_producer_chooses():
    sender = Sender()
    send_single(sender, "t", b"x", a_run(count=2))(Tally())  # type: ignore[arg-type]
    assert sender.calls == [{}, {}]


# --- reading --------------------------------------------------------------------------------------------------------


def test_a_backlog_is_read_to_its_end_and_the_first_message_only_starts_the_clock():
    clock = Clock()
    run = a_run(clock=clock)
    messages = [message(offset) for offset in range(0, 300, 3)]
    backlog = Backlog(readers((Polled(clock, messages), messages[-1].next_offset)), run)
    tally = Tally()
    backlog.read(tally)
    assert tally.messages == 100
    assert backlog.measured(100) == (99, 1.0)
    assert backlog.payload_bytes == 99 * 3


def test_of_a_backlog_no_more_is_read_than_the_count():
    clock = Clock()
    first, second = (Polled(clock, [message(offset) for offset in range(20)]) for _ in range(2))
    tally = Tally()
    Backlog(readers((first, None), (second, None)), a_run(count=25, clock=clock)).read(tally)
    assert tally.messages == 25
    assert len(second.messages) == 15


def test_a_member_that_gets_nothing_gives_up():
    clock = Clock()
    tally = Tally()
    Backlog(readers((Polled(clock, []), None)), a_run(clock=clock)).read(tally)
    assert tally.messages == 0
    assert clock.now > JOIN_SECONDS * 1e9


class PolledArrow(Polled):
    """The same as record batches."""

    def poll_arrow(self, max_messages=65_536, timeout=1.0):
        messages = self.poll(max_messages)
        return pyarrow.record_batch({"payload": pyarrow.array([each.payload for each in messages], pyarrow.binary())})


def test_a_backlog_is_read_as_arrow_with_the_exact_size_of_the_payloads():
    clock = Clock()
    polled = PolledArrow(clock, [message(offset, b"x" * offset) for offset in range(10)])
    backlog = Backlog(iter([(ArrowReader(polled), None)]), a_run(clock=clock))  # type: ignore[arg-type]
    tally = Tally()
    backlog._read_one(ArrowReader(polled), None, tally)  # type: ignore[arg-type]
    assert tally.messages == 10
    assert backlog.payload_bytes == sum(range(1, 10))


# --- latency --------------------------------------------------------------------------------------------------------


class Loop:
    """A producer and a reader at once: what was sent is polled, behind a message of somebody else."""

    def __init__(self, clock, lost=0):
        self.clock = clock
        self.lost = lost
        self.sent = [b"of somebody else's, long enough to hold a stamp"]

    def send_async(self, topic, payload, partition):
        future: Future[None] = Future()
        future.set_result(None)
        if self.lost:
            self.lost -= 1
        else:
            self.sent.append(payload)
        return future

    def poll(self, max_messages=500, timeout=1.0):
        self.clock.pass_seconds(0.5)
        taken, self.sent = self.sent, []
        return [message(0, payload) for payload in taken]


def test_latency_is_taken_of_the_runs_own_messages():
    clock = Clock()
    loop = Loop(clock)
    stamps = Stamps(a_run(count=5, clock=clock), per_second=1_000_000_000)
    clock.pass_seconds(1)
    stamps.send(loop, PLACE, 100)  # type: ignore[arg-type]
    tally = Tally()
    stamps.receive(loop, tally)
    assert tally.messages == 5
    assert tally.times.percentiles_ms()["max"] == 500.0


def test_a_message_that_does_not_arrive_fails_the_run():
    clock = Clock()
    loop = Loop(clock, lost=1)
    stamps = Stamps(a_run(count=5, clock=clock), per_second=1_000_000_000)
    clock.pass_seconds(1)
    stamps.send(loop, PLACE, 100)  # type: ignore[arg-type]
    with pytest.raises(RequestTimedOut, match=r"1 of 5 messages"):
        stamps.receive(loop, Tally())
    assert clock.now > LATE_SECONDS * 1e9


@pytest.mark.parametrize(
    ("partitions", "expected"), [(1, [1]), (4, [1, 4]), (10, [1, 10]), (1024, [1, 10, 100, 1000, 1024])]
)
def test_partitions_are_added_in_powers_of_ten(partitions, expected):
    assert steps(partitions) == expected
