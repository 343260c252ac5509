"""What is due at once for those who ask for half messages is done in turns; no change costs more if there are many."""

from __future__ import annotations

import random

from twisted.internet.defer import Deferred

from metaq.broker.halves.groups import _MOVED_ENTRIES, Groups, Poll, _Entries


def test_entries_come_in_their_order_and_none_costs_much() -> None:
    rng = random.Random(7)
    entries: _Entries[tuple[float, int]] = _Entries()
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
    assert max(looks) <= _MOVED_ENTRIES
    found = [entries.pop() for _ in range(len(entries))]
    assert found == sorted(found)
    assert [each for each in found if current[each[1]] == each[0]] == sorted((at, item) for item, at in current.items())


def test_polls_that_end_at_once_end_in_turns() -> None:
    groups: Groups[None] = Groups(3, 10.0, 1.0)
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
