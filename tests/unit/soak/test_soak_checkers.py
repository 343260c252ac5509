"""The judge of a run with Java members finds each anomaly in a history that has it, and none in one that may be."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.history.facts import Ack, Delivery, Name, Place, Stored
from tests.history.reading import deliveries_in
from tests.kills.journal import read_journal
from tests.soak.checkers import CHECKERS, OF_GROUPS, history_of, judge
from tests.soak.facts import Claim, Committed, Facts, Window, fetched_on, monotonic
from tests.soak.run import Judged

P = "t 0-0"


def name(number: int) -> Name:
    return Name("java", "-", number)


def ack(number: int, offset: int | None = None) -> Ack:
    offset = 10 * number if offset is None else offset
    return Ack(name(number), P, offset, 1000 + offset)


def log_of(*numbers: int) -> dict[str, list[Stored]]:
    return {P: [Stored(P, 10 * at, 10 * at + 10, 1000 + 10 * at, name(each)) for at, each in enumerate(numbers)]}


def got(text: str) -> list[Delivery]:
    """Of `a1@2.5 b0@3`: to a the second record at 2.5 s, to b the first one at 3 s."""
    found = []
    for word in text.split():
        each, _, at = word.partition("@")
        offset = 10 * int(each[1:])
        found.append(Delivery(float(at), each[0], P, Place(offset, 1000 + offset, name(int(each[1:])))))
    return found


def committed(time: float, number: int) -> Committed:
    return Committed(time, P, 10 * number)


def facts(
    acked: Iterable[int | Ack],
    deliveries: str,
    claims: Sequence[Claim] = (),
    commits: Iterable[Committed] = (),
    stored: int = 0,
    fetched_on: dict[str, list[Window]] | None = None,
) -> Facts:
    """stored: how many records there are; else as many as were delivered."""
    acks = [each if isinstance(each, Ack) else ack(each) for each in acked]
    found = got(deliveries)
    log = log_of(*range(stored or len({each.place.offset for each in found})))
    return Facts("g", acks, log, found, list(claims), list(commits), fetched_on=fetched_on or {})


def kinds(them: Facts) -> list[str]:
    return [each.kind for each in judge(them)]


A_ALONE = [Claim(P, "a", 0, 10)]
A_THEN_B = [*A_ALONE, Claim(P, "b", 10, 20)]

JUDGED: dict[str, tuple[Facts, list[str]]] = {
    "everything once and in order": (facts([0, 1], "a0@1 b1@12", A_THEN_B), []),
    "an acknowledged message that nobody got": (facts([0, 1], "a0@1", stored=2), ["unseen"]),
    "an acknowledged message that is not stored": (facts([0, 1], "a0@1"), ["lost"]),
    "a record without acknowledgement is stored": (facts([0, 2], "a0@1 a1@2 a2@3"), []),
    "a record without acknowledgement is skipped": (facts([0, 2], "a0@1 a2@3", stored=3), ["unseen", "skipped"]),
    "an acknowledgement that does not name its message's offset": (facts([ack(0, 30)], "a0@1"), ["lost"]),
    "a delivery of what is not there": (facts([], "a0@1 a5@2", stored=1), ["false"]),
    "the uncommitted tail comes again with the next owner": (
        facts([0, 1, 2, 3], "a0@1 a1@2 a2@3 b1@11 b2@12 b3@13", A_THEN_B, [committed(2.5, 1)]),
        [],
    ),
    "what was committed before the claim comes again": (
        facts([0], "a0@1 b0@11", A_THEN_B, [committed(9, 1)]),
        ["committed"],
    ),
    "a commit by the former owner after the claim brings messages again": (
        facts([1], "a0@0.5 a1@1 b1@11", A_THEN_B, [committed(9, 2), committed(10.5, 1)]),
        [],
    ),
    "one ownership gets a record twice": (facts([0], "a0@1 a0@2", A_ALONE), ["reordered"]),
    "a second ownership of the same consumer gets it again": (
        facts([0], "a0@1 a0@2", [Claim(P, "a", 0, 1.2), Claim(P, "a", 1.5, 9)]),
        [],
    ),
    "a first delivery behind a later record": (
        facts([0, 1, 2], "a0@1 b2@12 c1@22", [*A_THEN_B, Claim(P, "c", 20, 30)], [committed(3, 1)]),
        ["skipped"],
    ),
    "one ownership passes over a record": (facts([0, 1, 2], "a0@1 a1@2 a2@3 b0@11 b2@12", A_THEN_B), ["skipped"]),
    "going back within one ownership, even among duplicates": (
        facts([], "a0@1 a1@2 b1@11 b0@12", A_THEN_B),
        ["reordered"],
    ),
    "a producer's numbers do not rise with the offsets": (
        Facts("g", [ack(0, 10), ack(1, 0)], log_of(1, 0), [each._replace(member="a") for each in (
            Delivery(1, "a", P, Place(0, 1000, name(1))), Delivery(2, "a", P, Place(10, 1010, name(0)))
        )]),
        ["reordered"],
    ),
    "deliveries to another consumer than the owner": (facts([], "a0@9 a1@12 a2@13 b3@14", A_THEN_B), ["owned twice"]),
    "a delivery while ownership is uncertain": (
        facts([], "a0@9 b1@10.5", [Claim(P, "a", 0, 8), Claim(P, "b", 10, 20)]),
        [],
    ),
    "a claim of the same consumer that no look saw, and another's between": (
        facts([], "a0@1 b1@3 a2@5", [Claim(P, "a", 0, 1.5, gone=2), Claim(P, "b", 2, 3.5, gone=4)]),
        [],
    ),
    "a claim that is not seen to be gone passes over a record": (
        facts([], "a0@1 b1@3 a2@5", [Claim(P, "a", 0, 6), Claim(P, "b", 2, 3.5, gone=4)]),
        ["skipped"],
    ),
    "a record is skipped by a claim that no look saw": (
        facts([], "a0@1 a2@5 b1@7 b2@8", [Claim(P, "a", 0, 1.5, gone=2), Claim(P, "b", 6, 9)]),
        ["skipped"],
    ),
    "a message stored twice": (
        Facts("g", [ack(0, 10)], log_of(0, 0), [
            Delivery(at, "a", P, Place(10 * at, 1000 + 10 * at, name(0))) for at in (0, 1)
        ]),
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("them", "expected"), JUDGED.values(), ids=JUDGED)
def test_each_anomaly_is_found_and_nothing_else(them: Facts, expected: list[str]) -> None:
    assert kinds(them) == expected


def test_every_checker_has_a_history_that_it_rejects() -> None:
    assert {*OF_GROUPS, *CHECKERS} - {"unowned"} == {kind for _, expected in JUDGED.values() for kind in expected}


def test_deliveries_to_another_consumer_are_told_together() -> None:
    (problem,) = judge(JUDGED["deliveries to another consumer than the owner"][0])
    assert problem.text == "g.a was handed 2 messages while b owned it, up to 1.000 s later"
    assert problem.time == 12


@pytest.mark.parametrize(
    ("deliveries", "spans", "expected"),
    [
        pytest.param("a0@9 a3@12 b1@13 b2@14 b3@15", {"a": (11.5, 12.5)}, [], id="what b is given later, and again"),
        pytest.param("a0@9 a3@12", {"a": (11.5, 12.5)}, ["unseen"], id="delivered, so that it is seen itself"),
        pytest.param(
            "a0@9 a3@12 b1@13 b2@14 b3@15", {"b": (11.5, 12.5)}, ["skipped", "skipped", "owned twice"], id="another"
        ),
        pytest.param(
            "a0@9 a3@12 b1@13 b2@14 b3@15", {"a": (12.1, 12.5)}, ["skipped", "skipped", "owned twice"], id="later"
        ),
        pytest.param("a0@9 a1@12 b2@13 b3@14 c1@21 c2@22 c3@23", {"a": (11.5, 12.5)}, [], id="in order, and again"),
        pytest.param("a0@9 b2@13 b3@14 c1@21 c2@22 c3@23", {}, ["skipped"], id="late, and not fetched on"),
    ],
)
def test_what_a_java_consumer_fetched_on_counts_as_handed_and_proves_nothing_else(deliveries, spans, expected):
    windows = {consumer: [Window(*span)] for consumer, span in spans.items()}
    them = facts([3], deliveries, [*A_THEN_B, Claim(P, "c", 20, 30)], stored=4, fetched_on=windows)
    assert kinds(them) == expected
    assert sum(not owner.proves for owner in history_of(them).owners) == ("a" in spans and spans["a"][0] < 12)


@pytest.mark.parametrize(
    ("excused", "unexcused"),
    [
        ([], [(10, 20)]),
        ([(9, 21)], []),
        ([(0, 12), (11, 15)], [(15, 20)]),
        ([(14, 30), (12, 13)], [(10, 12), (13, 14)]),
        ([(1, 5), (25, 30)], [(10, 20)]),
    ],
)
def test_time_without_owner_counts_outside_the_excused_spans(excused, unexcused):
    them = Facts(unowned={P: [Window(10, 20)]}, excused=[Window(*each) for each in excused])
    lengths = [f"nobody of g owned it for {end - begin:.1f} s, which nothing excuses" for begin, end in unexcused]
    assert [(each.kind, each.time, each.text) for each in judge(them)] == [
        ("unowned", begin, text) for (begin, _), text in zip(unexcused, lengths, strict=True)
    ]


@pytest.mark.parametrize(
    ("excused", "begins"), [([Window(0, 99)], [16]), ([], [10, 16]), ([Window(0, 18)], [16])], ids=str
)
def test_no_excuse_lasts_longer_than_the_patience_of_the_run(excused: list[Window], begins: list[float]) -> None:
    unowned = {P: [Window(10, 20), Window(30, 36)]}
    them = Facts(unowned=unowned, excused=[*excused, Window(30, 36)], patience=6)
    assert [each.time for each in judge(them)] == begins


def test_what_came_of_a_run_is_counted_and_explained() -> None:
    them = facts([0, 1], "a0@1 a1@2 b0@11 b1@12", A_THEN_B, [committed(9, 1)])
    them.stored[P].append(Stored(P, 20, 30, 1020, name(1)))
    them.unowned = {P: [Window(10, 12.5)]}
    outcome = Judged(them, judge(them), 0).outcome({"moves": 6})
    assert [each.kind for each in outcome.problems] == ["unseen", "committed", "unowned"]
    figures = {"acknowledged": 2, "delivered": 4, "delivered again": 2, "stored twice": 1, "fetched on": 0, "claims": 2}
    assert outcome.figures == {"moves": 6, **figures, "longest seconds without an owner": 3}
    assert "committed: t 0-0: g.b was handed @0 again, and @10 was committed\n" in outcome.explanation
    assert "-1.000  g.b is assigned it" in outcome.explanation


def test_java_members_tell_ids_whose_offsets_are_in_the_log_and_python_members_tell_both(tmp_path: Path) -> None:
    """A line that a kill has cut is left out."""
    lines = ['["got",1.5,"t 0-0",1010,"java/-/1"]', '["handed",2.5,2.4,"t 0-0",[[20,7,"java/-/2"]]]']
    cut = '["got",3.5,"t 0-0",1010,"java'
    (tmp_path / "journal").write_text("\n".join([*lines, '["got",3.0,"t 0-0",9,"sequential/-/3 xxx"]', cut]))
    found = deliveries_in(read_journal(tmp_path / "journal"), "c", log_of(0, 1)[P])
    assert list(found) == [
        Delivery(1.5, "c", P, Place(10, 1010, name(1))),
        Delivery(2.5, "c", P, Place(20, 7, name(2))),
        Delivery(3.0, "c", P, Place(-1, 9, Name("sequential", "-", 3))),
    ]


def logged(*lines: tuple[int, str]) -> Iterable[str]:
    """Lines as log4j of the Java client writes them, at so many milliseconds of one minute, with a trace between."""
    for at, text in lines:
        yield f"2026-11-22 17:59:{at // 1000:02},{at % 1000:03} WARN ConsumerZooKeeper: {text}"
        yield "\tat com.taobao.metamorphosis.client.consumer.ConsumerZooKeeper"


STOP, COMMIT, START = "Stopping fetch runners", "Comitting all offsets", "Starting fetch runners"
FAILED = "rebalance failed,try #0"
MINUTE = monotonic(time.mktime((2026, 11, 22, 17, 59, 0, 0, 0, -1)))


@pytest.mark.parametrize(
    ("lines", "spans"),
    [
        ([(0, STOP), (1, COMMIT), (2, START)], []),
        ([(2, START), (100, FAILED), (1103, STOP), (1250, COMMIT), (1300, START)], [(0.1, 1.25)]),
        ([(2, START), (100, FAILED), (1100, FAILED), (2103, STOP), (2104, COMMIT)], [(0.1, 2.104)]),
        ([(2, START), (100, FAILED), (1103, f"{STOP},maybe master or slave changed"), (1300, START)], [(0.1, 1.3)]),
        ([(2, START), (50, STOP), (51, COMMIT), (100, FAILED), (1103, STOP), (1104, COMMIT)], []),  # it had stopped
        ([(2, START), (100, FAILED)], [(0.1, math.inf)]),
        ([(100, FAILED)], []),  # it had not begun
    ],
)
def test_a_java_consumer_fetches_on_between_a_try_that_failed_early_and_the_next(lines, spans):
    found = [(begin - MINUTE, end - MINUTE) for begin, end in fetched_on(logged(*lines))]
    assert found == [pytest.approx(span, abs=1e-4) for span in spans]
