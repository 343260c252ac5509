"""What is due at once for those who ask for half messages is done in turns; no change costs more if there are many."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from twisted.internet.defer import Deferred

from metaq.broker import tuning
from metaq.broker.assembly import stats
from metaq.broker.halves.producer_groups import _LOOKED_AT, NEVER, Half, Poll, ProducerGroups
from metaq.broker.http.metrics import exposition
from metaq.broker.runtime.timed_entries import MOVED_ENTRIES, TimedEntries
from metaq.protocol.half_messages import CheckHalvesRequest


@pytest.fixture
def groups() -> ProducerGroups[None]:
    return ProducerGroups(3, 10.0, 1.0)


def test_entries_come_in_their_order_and_none_costs_much() -> None:
    rng = random.Random(7)
    entries: TimedEntries[tuple[float, int]] = TimedEntries()
    current: dict[int, float] = {}
    looks = [0]

    def is_current(entry: tuple[float, int]) -> bool:
        looks[-1] += 1
        return current.get(entry[1]) == entry[0]

    for _ in range(20_000):
        item, at = rng.randrange(300), rng.random()
        current[item] = at
        looks.append(0)
        entries.push((at, item), 300, is_current)
        assert len(entries) <= 4 * (300 + 32)
    assert max(looks) <= MOVED_ENTRIES
    found = [entries.pop() for _ in range(len(entries))]
    assert found == sorted(found)
    assert [each for each in found if current[each[1]] == each[0]] == sorted((at, item) for item, at in current.items())


def test_polls_that_end_at_once_end_in_turns(groups: ProducerGroups[None]) -> None:
    polls = [Poll(caller, f"g{caller}", 1, 5.0, Deferred[None]()) for caller in range(100)]
    for poll in polls:
        groups.wait(poll)
    ended: list[Poll[None]] = []
    turns = 0
    while groups.next_at() <= 5.0:
        turns += 1
        most = len(ended) + 8
        groups.turn(5.0, lambda poll, halves: None, ended.append, lambda most=most: len(ended) < most)  # type: ignore[misc]
    assert turns == 13
    assert ended == polls


def halves(groups: ProducerGroups[None], count: int, producer: str = "") -> list[Half]:
    found = [Half(number, "bank", ("t", 0), 0, 0.0, 0, producer) for number in range(count)]
    for half in found:
        groups.add(half, 0.0)
    return found


def test_metrics_have_rows_of_the_largest_groups_in_slices_and_a_sum_of_the_others(harness, monkeypatch):
    monkeypatch.setattr(tuning, "PAGE_GROUPS", 3)
    monkeypatch.setattr(tuning, "HALVES_COUNTED", 5)
    groups = harness.broker.halves._groups
    numbers = iter(range(1000))
    for group in range(20):
        for _ in range(group):
            groups.add(Half(next(numbers), f"g{group}", ("t", 0), 0, 0.0, 0), 0.0)
    assert sum(1 for _ in harness.broker.halves.largest(3)) == 4
    text = "".join(filter(None, exposition(harness.broker)))
    assert [line for line in text.splitlines() if line.startswith("metaq_halves_asked{")] == [
        f'metaq_halves_asked{{group="{group}"}} {count}.0'
        for group, count in (("g17", 17), ("g18", 18), ("g19", 19), ("*", sum(range(17))))
    ]
    monkeypatch.setattr(tuning, "STATS_NAMED", 1)
    lines = [line for line in stats.stats_lines(harness.broker, "halves") if line and line.startswith("group:")]
    assert lines == ["group:g19 asked 19 parked 0 askers 0", f"group:* asked {sum(range(19))} parked 0 askers 0"]


def poll(caller: object, *, limit: int = 10, ends_at: float = NEVER, producer: str = "") -> Poll[None]:
    return Poll(caller, "bank", limit, ends_at, Deferred[None](), None, producer)


def never(*_: object) -> None:
    raise AssertionError


def times(count: int) -> Callable[[], bool]:
    """True so many times less one."""
    answers = iter([True] * (count - 1))
    return lambda: next(answers, False)


def test_half_messages_of_a_silent_producer_go_to_everybody_in_turns(groups: ProducerGroups[None]) -> None:
    of_alice = halves(groups, 1000, "alice")
    moved = [0]
    while moved[-1] < 1000:
        assert groups.next_at() <= 5.0
        groups.turn(5.0, never, never, times(100))
        moved.append(sum(half.lane is not None and half.lane.producer == "" for half in of_alice))
        assert moved[-1] - moved[-2] <= 100
        assert len(moved) < 30
    assert len(groups.take(poll(1, limit=256), 5.0) or ()) == 256


def test_a_producer_that_is_back_keeps_what_has_not_gone(groups: ProducerGroups[None]) -> None:
    of_alice = halves(groups, 1000, "alice")
    groups.turn(5.0, never, never, times(100))
    groups.arrive(poll(1, producer="alice"))
    groups.turn(5.0, never, never)
    assert 850 < sum(half.lane is not None and half.lane.producer == "alice" for half in of_alice) < 1000
    assert len(groups.take(poll(1, limit=256, producer="alice"), 5.0) or ()) == 256


def test_what_is_read_while_its_producer_falls_silent_goes_to_everybody_afterwards(
    groups: ProducerGroups[None],
) -> None:
    halves(groups, 3, "alice")
    taken = groups.take(poll(1, limit=2, producer="alice"), 0.0)
    assert taken is not None
    groups.turn(5.0, never, never)
    for half in taken:
        groups.put_off(half, 6.0)
    assert len(groups.take(poll(2), 6.0) or ()) == 3


def test_a_poll_looks_at_few_entries_at_once_and_goes_on_in_turns(groups: ProducerGroups[None]) -> None:
    count = 4 * _LOOKED_AT
    for half in halves(groups, count)[:-1]:
        groups.discard(half.id)
    asks = poll(1, ends_at=5.0)
    assert groups.take(asks, 5.0) is None
    groups.wait(asks)
    given: list[int] = []
    turns = 0
    while not given:
        turns += 1
        groups.turn(5.0, lambda poll, found: given.extend(half.id for half in found), never, times(2))
        assert turns <= count
    assert (given, turns > 1) == ([count - 1], True)


def test_polls_that_wait_are_given_what_comes_in_turns(groups: ProducerGroups[None]) -> None:
    for caller in range(100):
        groups.wait(poll(caller, limit=1))
    waiting = halves(groups, 100)
    given: list[list[Half]] = []
    turns = 0
    while len(given) < 100:
        turns += 1
        before = len(given)
        assert groups.next_at() <= 0.0
        groups.turn(0.0, lambda poll, found: given.append(found), never, times(8))
        assert len(given) - before <= 8
        assert turns < 100
    assert given == [[half] for half in waiting]


def test_alarms_that_are_out_of_date_are_cleaned_a_few_at_a_time(groups: ProducerGroups[None]) -> None:
    count = 4 * _LOOKED_AT
    for caller in range(count):
        groups.arrive(poll(caller, ends_at=5.0))
        groups.wait(poll(caller, ends_at=5.0))
    for caller in range(count):
        groups.lost(caller, 0.0)
    assert groups.next_at() == 5.0
    assert len(groups._alarms) == count - _LOOKED_AT
    for _ in range(4):
        groups.next_at()
    assert groups.next_at() == NEVER


def test_a_connection_that_asks_by_another_name_is_known_by_that(groups: ProducerGroups[None]) -> None:
    for name in ("alice", "bob"):
        asks = poll(1, producer=name)
        groups.end_poll(1, "bank")
        groups.arrive(asks)
        groups.wait(asks)
    assert groups.lost(1, 0.0) == [asks]
    assert groups.next_at() == 1.0


def test_what_another_node_leads_now_is_forgotten_in_turns(harness, monkeypatch):
    known = harness.broker.halves
    for number in range(40):
        known._groups.add(Half(number, f"g{number}", ("t", 0), 0, 0.0, 0), 0.0)
    answers = [known.checks(CheckHalvesRequest(f"h{number}", 1, 1000), number) for number in range(40)]
    refused = [0]
    for answer in answers:
        answer.addErrback(lambda _: refused.append(refused[-1] + 1))
    monkeypatch.setattr(tuning, "WORK_SLICE_SECONDS", 0.0)
    known.follow()
    assert len(known) == len(known._groups) == 0
    turns = 0
    while known._works:
        turns += 1
        before = refused[-1]
        known._works._go_on()
        assert refused[-1] - before <= 1
    assert refused[-1] == 40
    assert turns > 200  # 80 groups, 40 half messages, callers and alarms
