"""Filters of our broker below the Java client: every second message at full speed, and none lost whatever is killed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from bench.javapeer import JavaClient
from bench.processes import Server
from bench.server_ini import Topics
from metaq import Producer
from tests.integration.background import Repeating
from tests.integration.java_sides import Broker, Side
from tests.kills.journal import Line, read_journal
from tests.waiting import eventually

FILTERS = """
def even(group, message):
    return int(message.payload[-9:]) % 2 == 0
"""
GROUPS = {f"group.{name}": "acme_filters:even" for name in ("original", "fast", "failing", "killed")}
ONE: Topics = {name: {"numPartitions": 1, **GROUPS} for name in ("original", "fast", "failing")}
TOPICS: Topics = {**ONE, "killed": {"numPartitions": 2, **GROUPS}}
BODY_BYTES = 100
JAVA_DEFAULT_MAX_DELAY_MS = 5000  # a pause of half a second after each 301


def body(number: int) -> bytes:
    return b"x" * (BODY_BYTES - 10) + b" %09d" % number


def store(side: Side, topic: str, numbers: range) -> None:
    with Producer(side.connect) as producer:
        for start in range(numbers.start, numbers.stop, 2000):
            producer.send_batch(topic, [body(number) for number in range(start, min(start + 2000, numbers.stop))])


def numbers_of(payloads: list[bytes]) -> list[int]:
    return [int(payload[-9:]) for payload in payloads]


def test_every_second_of_a_thousand_messages_comes_without_a_pause_for_each(ours: Side) -> None:
    """The original's own test has 150 s for them; with a 301 for each rejected message it takes 250 s."""
    store(ours, "original", range(1000))
    ours.app.subscribe("original", "original", max_delay=JAVA_DEFAULT_MAX_DELAY_MS)
    assert numbers_of(ours.app.payloads("original", 500)) == list(range(0, 1000, 2))
    assert ours.app.unsubscribe("original") == []


def test_a_backlog_comes_whole_and_in_order_and_is_committed_to_its_end(ours: Side) -> None:
    count = 100_000
    store(ours, "fast", range(count))
    ours.app.subscribe("fast", "fast", max_delay=JAVA_DEFAULT_MAX_DELAY_MS, commit=100)
    assert numbers_of(ours.app.payloads("fast", count // 2)) == list(range(0, count, 2))
    store(ours, "fast", range(count, count + 10))
    assert numbers_of(ours.app.payloads("fast", 5)) == list(range(count, count + 10, 2))
    ours.app.unsubscribe("fast")
    ours.app.subscribe("again", "fast", group="fast", max_delay=100)
    store(ours, "fast", range(count + 10, count + 20))
    known = numbers_of(ours.app.payloads("again", 1))

    def all_came() -> bool:
        known.extend(numbers_of(ours.app.payloads("again", 0)))
        return known[-1] == count + 18

    with suppress(AssertionError):  # what came instead tells more
        eventually(all_came, 20, "the rest")
    log = (ours.directory / "client.log").read_text("utf-8", "replace")[-3000:]
    assert known[-1] == count + 18, f"{known[-20:]} came; the client's log ends with {log}"
    assert set(known) >= set(range(count + 10, count + 20, 2))
    ours.app.unsubscribe("again")


def test_a_message_that_the_listener_refuses_comes_again_and_costs_no_other(ours: Side) -> None:
    bodies = [(b"throw %09d" if number in (20, 22, 100) else b"%09d") % number for number in range(200)]
    with Producer(ours.connect) as producer:
        producer.send_batch("failing", bodies)
    ours.app.subscribe("failing", "failing", max_delay=100, times=3)
    accepted = list(range(0, 200, 2))
    for failing in (100, 22, 20):
        accepted[failing // 2 : failing // 2] = [failing] * 3
    assert numbers_of(ours.app.payloads("failing", len(accepted))) == accepted
    ours.app.unsubscribe("failing")


ENDS = [pytest.param("stopped", Server.close, id="stopped"), pytest.param("killed", Server.kill, id="killed")]


@pytest.mark.parametrize(("name", "end"), ENDS)
def test_nothing_is_lost_while_broker_and_consumers_are_killed(
    ours: Side, tmp_path: Path, name: str, end: Callable[[Broker], None]
) -> None:
    """The consumer's connection goes with the broker, and its offset counts only what it got."""
    first = 0 if name == "stopped" else 500_000_000
    store(ours, "killed", range(first, first + 60_000))  # the first consumer is far behind
    acknowledged = list(range(first, first + 60_000))

    def send(step: int) -> None:
        batch = range(first + 60_000 + 500 * step, first + 60_500 + 500 * step)
        producer.send_batch("killed", [body(each) for each in batch])
        acknowledged.extend(batch)

    files = [tmp_path / f"received-{member}.txt" for member in ("c0", "c1", "last")]

    def lines() -> list[Line]:
        return [line for file in files for line in read_journal(file)]

    def await_more(what: str) -> None:
        before = len(lines())
        eventually(lambda: len(lines()) > before + 2000, 60, what)

    # what fails in it, while the broker is away, is not known to have been taken
    with Producer(ours.connect) as producer, Repeating(send, 0.05):
        for number in range(2):
            consumer = JavaClient(ours.connect, tmp_path / f"consumer{number}.log")
            try:
                consumer.call("follow", "killed", "killed", f"c{number}", files[number])
                await_more("messages")
                ours.restart(end)
                await_more("messages after the restart")
            finally:
                consumer.kill()
    last = JavaClient(ours.connect, tmp_path / "last.log")
    try:
        last.call("follow", "killed", "killed", "last", files[2])
        accepted = {number for number in acknowledged if number % 2 == 0}
        eventually(lambda: accepted <= set(delivered(lines())), 60, "every accepted message")
    finally:
        last.kill()
    numbers = delivered(lines())
    assert len(accepted) > 35_000
    assert not [number for number in numbers if number % 2], "a rejected message was delivered"
    for partition in ("killed 0-0", "killed 0-1"):
        firsts = list(dict.fromkeys(delivered(lines(), partition)))
        mine = [number for number in firsts if number in accepted]
        assert mine == sorted(mine), "messages were delivered out of order"


def delivered(lines: list[Line], partition: str | None = None) -> list[int]:
    return [int(text.split()[1]) for _, _, where, _, text in lines if partition in (None, where)]
