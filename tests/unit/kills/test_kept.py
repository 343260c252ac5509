"""What the judges of delayed messages and of transactions with check-back must find, and what they must accept."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.kills.delays import checkers as delays
from tests.kills.halves.run import judge as judge_halves
from tests.kills.journal import Line
from tests.kills.stored import Stored

DELAYED: list[Line] = [
    *(["ack", 0.0, name, 1000] for name in ("a", "cancelled", "perhaps", "kept")),
    ["cancelling", 0.1, "cancelled"],
    ["cancelled", 0.2, "cancelled"],
    ["cancelling", 0.1, "kept"],
    ["uncancelled", 0.2, "kept"],
    ["cancelling", 0.1, "perhaps"],
    ["fail", 0.3, "Refused()"],
]
DELIVERED = {"a": (1000, 1000), "kept": (1001, 1000), "never acknowledged": (1000, None)}


def delayed(*more: tuple[str, int, int | None], without: Sequence[str] = ()) -> list[str]:
    facts = delays.facts_in(DELAYED)
    assert facts.failed == 1
    found = [Stored(name, *times) for name, times in DELIVERED.items() if name not in without]
    return [each.kind for each in delays.judge(facts, [*found, *(Stored(*each) for each in more)])]


def test_delayed_messages_that_came_once_at_their_time_are_right_and_so_is_one_whose_cancellation_nobody_knows() -> (
    None
):
    assert delayed() == []
    assert delayed(("perhaps", 1000, 1000)) == []


@pytest.mark.parametrize(
    ("more", "without", "kind"),
    [
        ((), ["a"], "lost"),
        ((), ["kept"], "lost"),
        ([("a", 1000, 1000)], (), "twice"),
        ([("perhaps", 999, None)], (), "early"),
        ([("never acknowledged either", 999, 1000)], (), "early"),
        ([("cancelled", 1000, 1000)], (), "came although cancelled"),
    ],
)
def test_delayed_messages_that_did_not_are_found(more, without, kind):
    assert delayed(*more, without=without) == [kind]


BOOKS = {"a": True, "b": True, "c": False}


@pytest.mark.parametrize(
    ("found", "left", "kinds"),
    [
        (["a", "b"], [], []),
        (["a"], [], ["lost"]),
        (["a", "b", "b"], [], ["twice"]),
        (["a", "b", "c"], [], ["never committed"]),
        (["a", "b", "unknown"], [], ["never committed"]),
        (["a", "b"], [7], ["not decided"]),
    ],
)
def test_transactions_are_judged_by_the_books_of_their_producers(found, left, kinds):
    assert [each.kind for each in judge_halves(found, BOOKS, left)] == kinds
