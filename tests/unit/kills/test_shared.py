"""The checker of histories of shared groups finds each kind of wrong, in histories written by hand."""

from pathlib import Path

import pytest

from tests.kills.journal import read_journal
from tests.kills.shared.checkers import Confirmed, Handed, Released, events_in, judge


def test_a_history_without_fault_has_no_problems() -> None:
    history: list[Handed | Released | Confirmed] = [
        Handed("a", 0, 1, 1.0, 4.0),
        Handed("b", 0, 2, 4.5, 7.5),
        Confirmed("b", 0, 4.6),
        Handed("a", 50, 1, 1.0, 4.0),
        Released("a", 50, 0.3, 1.1),
        Handed("b", 50, 2, 1.5, 4.5),
        Handed("a", 100, 1, 1.0, 4.0),
        Handed("b", 100, 1, 4.5, 7.5),
        Handed("c", 100, 2, 8.5, 11.5),
        Handed("a", 150, 1, 1.0, 4.0),
        Released("a", 150, 0.3, 1.1),  # it came too late: the broker was away
        Handed("b", 150, 1, 4.5, 7.5),
    ]
    assert judge(history, [0, 50]) == []


@pytest.mark.parametrize(
    ("history", "what"),
    [
        ([], "never handed"),
        ([Handed("a", 0, 1, 1.0, 4.0), Handed("b", 0, 2, 1.5, 4.5)], "2.500 s before the lease of a ended"),
        ([Handed("a", 0, 2, 1.0, 4.0), Handed("b", 0, 1, 5.0, 8.0)], "attempt 1 after 2"),
        ([Handed("a", 0, 1, 1.0, 4.0), Handed("b", 0, 3, 5.0, 8.0)], "attempt 3 after 1"),
        ([Handed("a", 0, 1, 1.0, 4.0), Released("a", 0, 0.3, 1.1), Handed("b", 0, 1, 1.9, 4.9)], "attempt 1 after 1"),
        (
            [Handed("a", 0, 1, 1.0, 4.0), Confirmed("a", 0, 1.1), Handed("b", 0, 2, 9.0, 12.0)],
            "after a had acknowledged",
        ),
        ([Handed("a", 0, 1, 1.0, 4.0), Released("a", 0, 0.3, 1.1), Handed("b", 0, 2, 1.2, 4.2)], "too early"),
    ],
)
def test_each_fault_is_found(history: list[Handed | Released | Confirmed], what: str) -> None:
    found = judge(history, [0])
    assert any(what in each.text for each in found), found


def test_the_last_line_of_a_killed_member_may_be_cut(tmp_path: Path) -> None:
    lines = ['["handed",1.0,0,1,4.0]', '["release",1.1,0,0.3]', '["confirmed",1.2,50]', '["handed",1.3,9']
    (tmp_path / "m").write_text("\n".join(lines))
    found = events_in("m", read_journal(tmp_path / "m"))
    assert found == [Handed("m", 0, 1, 1.0, 4.0), Released("m", 0, 0.3, 1.1), Confirmed("m", 50, 1.2)]
