"""From journals to facts."""

from __future__ import annotations

import math
from pathlib import Path

from tests.history.facts import Ack, Name, Place, Send
from tests.history.reading import member_name, owners_in, seen_in, sends_in
from tests.kills.journal import Journal, read_journal

P, Q = "t 0-0", "t 0-1"


def message(number: int) -> tuple[int, int, str]:
    return (number * 10, 7, f"keyed/k/{number}")


def test_a_line_that_a_kill_has_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "g.a.events"
    journal = Journal(path)
    journal.write("assigned", [P], at=1.0)
    with path.open("ab") as file:
        file.write(b'["handed",2.0,1.')
    assert list(read_journal(path)) == [["assigned", 1.0, [P]]]
    assert list(read_journal(tmp_path / "none")) == []


def test_messages_belong_to_the_ownership_of_their_time() -> None:
    lines = [
        ["assigned", 1.0, [P, Q]],
        ["handed", 1.4, 1.3, P, [message(0), message(1)]],
        ["revoked", 2.0, [P]],
        ["assigned", 3.0, [P]],
        ["handed", 3.4, 3.3, P, [message(1)]],
    ]
    first, other, second = owners_in(lines, "g", "a")
    assert (first.partition, first.begin, first.end) == (P, 1.0, 2.0)
    assert (other.partition, other.end, other.calls) == (Q, math.inf, [])
    assert [call.places for call in first.calls] == [
        [Place(0, 7, Name("keyed", "k", 0)), Place(10, 7, Name("keyed", "k", 1))]
    ]
    assert [(call.began, call.time) for call in second.calls] == [(3.3, 3.4)]


def test_messages_that_nobody_announced_are_an_ownership_of_their_own() -> None:
    (owner,) = owners_in([["handed", 1.4, 1.3, P, [message(0)]]], "g", "a")
    assert not owner.announced


def test_a_handler_ends_with_its_done_and_a_killed_one_never() -> None:
    lines = [
        ["assigned", 1.0, [P, Q]],
        ["handler", 2.0, 0, P, [message(0)], 1],
        ["handler", 2.1, 0, Q, [message(0)], 2],
        ["done", 2.5, 1],
    ]
    here, there = owners_in(lines, "g", "a")
    assert (here.calls[0].done, there.calls[0].done) == (2.5, math.inf)
    assert here.calls_handlers
    assert here.calls[0].began == 1.5


def test_a_handler_that_goes_back_before_a_loss_is_told_belongs_to_the_next_claim() -> None:
    lines = [
        ["assigned", 1.0, [P]],
        ["handler", 2.0, 0, P, [message(1)], 1],
        ["handler", 3.0, 0, P, [message(1)], 2],
        ["revoked", 4.0, [P]],
        ["assigned", 4.1, [P]],
        ["handler", 5.0, 0, P, [message(0)], 3],
        ["handler", 5.1, 0, P, [message(0)], 4],
    ]
    owners = owners_in(lines, "g", "a")
    assert [[call.time for call in owner.calls] for owner in owners] == [[2.0], [3.0], [5.0, 5.1]]
    assert [owner.announced for owner in owners] == [True, False, True]


def test_acknowledgements_and_failures_are_told_apart() -> None:
    lines = [["ack", 1.0, 0.5, "keyed/k/0", P, 30, 9], ["fail", 2.0, 1.5, "keyed/k/1", "t", "too late"]]
    first, second = Name("keyed", "k", 0), Name("keyed", "k", 1)
    failed = Send(1.5, 2.0, second, None, "too late")
    assert list(sends_in(lines)) == [Send(0.5, 1.0, first, Ack(first, P, 30, 9)), failed]


def test_what_a_group_has_seen_comes_from_all_its_members(tmp_path: Path) -> None:
    for file, number in (("g.a.events", 0), ("g.b.1.events", 1), ("h.a.events", 2)):
        Journal(tmp_path / file).write("handed", 1.0, P, [message(number)])
    assert seen_in(tmp_path) == {"g": {(P, 0), (P, 10)}, "h": {(P, 20)}}
    assert member_name(tmp_path / "g.b.1.events") == ("g", "b.1")
