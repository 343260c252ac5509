"""The judge of a run finds each anomaly in a history that has it, and none in one that may be."""

from __future__ import annotations

import pytest

from tests.soak.checker import OwnedTwice, judge
from tests.soak.history import Ack, Claim, Commit, Delivery, History, Stored, Window
from tests.soak.report import outcome, table

P = "0-0"


def ack(number: int, offset: int | None = None) -> Ack:
    return Ack("p", number, P, 10 * number if offset is None else offset)


def stored(number: int, offset: int | None = None) -> Stored:
    return Stored(P, 10 * number if offset is None else offset, 1000 + number, "p", number)


def delivery(time: float, number: int, consumer: str = "a", offset: int | None = None) -> Delivery:
    return Delivery(time, consumer, P, 10 * number if offset is None else offset, "p", number)


def claim(consumer: str, begin: float, end: float) -> Claim:
    return Claim(P, consumer, begin, end)


def committed(time: float, number: int) -> Commit:
    return Commit(time, P, 10 * number)


A_THEN_B = [claim("a", 0, 10), claim("b", 10, 20)]


def test_everything_once_and_in_order_is_ok() -> None:
    verdict = judge(History([ack(0), ack(1)], [stored(0), stored(1)], [delivery(1, 0), delivery(12, 1, "b")], A_THEN_B))
    assert verdict.ok
    assert (verdict.acknowledged, verdict.delivered, verdict.duplicated) == (2, 2, 0)


def acks(*numbers: int) -> list[Ack]:
    return list(map(ack, numbers))


def got(text: str) -> list[Delivery]:
    """Of `a1@2.5 b0@3`: to a number 1 at 2.5 s, to b number 0 at 3 s."""
    return [delivery(float(at), int(each[1:]), each[0]) for each, at in (word.split("@") for word in text.split())]


LOG = [stored(0), stored(1), stored(2)]
JUDGED: dict[str, tuple[History, dict[str, list[object]]]] = {
    "an acknowledged message that nobody got": (History(acks(0, 1), LOG[:2], got("a0@1")), {"lost": [ack(1)]}),
    "a record without acknowledgement is stored": (History(acks(0, 2), LOG, got("a0@1 a1@2 a2@3")), {}),
    "a record without acknowledgement is skipped": (
        History(acks(0, 2), LOG, got("a0@1 a2@3")),
        {"undelivered": [stored(1)]},
    ),
    "an acknowledgement that does not name its message's offset": (
        History([ack(0, 30)], LOG[:1], got("a0@1")),
        {"misplaced": [ack(0, 30)]},
    ),
    "what was committed before the claim comes again": (
        History(acks(0), [], got("a0@1 b0@11"), A_THEN_B, [committed(9, 1)]),
        {"illegally_duplicated": [delivery(11, 0, "b")]},
    ),
    "a commit by the former owner after the claim brings messages again": (
        History(acks(1), [], got("a1@1 b1@11"), A_THEN_B, [committed(9, 2), committed(10.5, 1)]),
        {},
    ),
    "one ownership gets a record twice": (
        History(acks(0), [], got("a0@1 a0@2"), [claim("a", 0, 10)]),
        {"illegally_duplicated": [delivery(2, 0)]},
    ),
    "a second ownership of the same consumer gets it again": (
        History(acks(0), [], got("a0@1 a0@2"), [claim("a", 0, 1.2), claim("a", 1.5, 9)]),
        {},
    ),
    "a first delivery behind a later record": (
        History(acks(0, 1, 2), [], got("a0@1 a2@2 b1@12"), A_THEN_B, [committed(3, 1)]),
        {"out_of_order": [delivery(12, 1, "b")]},
    ),
    "going back within one ownership, even among duplicates": (
        History([], [], got("a0@1 a1@2 b1@11 b0@12"), A_THEN_B),
        {"out_of_order": [delivery(12, 0, "b")]},
    ),
    "a producer's numbers do not rise with the offsets": (
        History([ack(0, 10), ack(1, 0)], [], [delivery(1, 1, offset=0), delivery(2, 0, offset=10)]),
        {"out_of_sequence": [ack(1, 0)]},
    ),
    "deliveries to another consumer than the owner": (
        History([], [], got("a0@9 a1@12 a2@13 b3@14"), A_THEN_B),
        {"owned_twice": [OwnedTwice(P, "b", "a", 12, 13, 2)]},
    ),
    "a delivery while ownership is uncertain": (
        History([], [], got("a0@9 b1@10.5"), [claim("a", 0, 8), claim("b", 10, 20)]),
        {},
    ),
}
ANOMALIES = (
    *("lost", "undelivered", "misplaced", "illegally_duplicated", "out_of_order", "out_of_sequence", "owned_twice"),
)


@pytest.mark.parametrize(("history", "anomalies"), JUDGED.values(), ids=JUDGED)
def test_each_anomaly_is_found_and_nothing_else(history: History, anomalies: dict[str, list[object]]) -> None:
    verdict = judge(history)
    assert {each: getattr(verdict, each) for each in ANOMALIES if getattr(verdict, each)} == anomalies
    assert verdict.ok is not bool(anomalies)


def test_the_uncommitted_tail_may_come_again_with_the_next_owner() -> None:
    deliveries = got("a0@1 a1@2 a2@3 b1@11 b2@12 b3@13")
    verdict = judge(History(acks(0, 1, 2, 3), [], deliveries, A_THEN_B, [committed(2.5, 1)]))
    assert verdict.ok
    assert verdict.duplicated == 2


def test_a_message_stored_twice_is_counted_and_ok() -> None:
    deliveries = [delivery(1, 0), delivery(2, 0, offset=10)]
    verdict = judge(History([ack(0, offset=10)], [stored(0), stored(0, offset=10)], deliveries))
    assert verdict.ok
    assert (verdict.stored_twice, verdict.duplicated) == (1, 0)


def test_what_a_java_consumer_fetched_on_is_counted_and_proves_nothing_else() -> None:
    early = delivery(12, 3)  # behind what b is given later, and what b is given again
    spans = {"a": [Window(11.5, 12.5)]}
    deliveries = [delivery(9, 0), early, delivery(13, 1, "b"), delivery(14, 2, "b"), delivery(15, 3, "b")]
    verdict = judge(History([ack(3)], [], deliveries, A_THEN_B, fetched_on=spans))
    assert verdict.ok
    assert (verdict.fetched_on, verdict.delivered, verdict.duplicated) == (1, 5, 0)
    assert judge(History([ack(3)], [], deliveries[:2], A_THEN_B, fetched_on=spans)).ok  # delivered, so it is not lost
    assert not judge(History([], [], deliveries, A_THEN_B, fetched_on={"b": spans["a"]})).ok
    assert not judge(History([], [], deliveries, A_THEN_B, fetched_on={"a": [Window(12.1, 12.5)]})).ok


def test_what_was_fetched_on_in_order_is_not_late_when_it_comes_again() -> None:
    deliveries = [delivery(9, 0), delivery(12, 1), delivery(13, 2, "b"), delivery(14, 1, "c")]
    claims = [claim("a", 0, 10), claim("b", 10, 13.5), claim("c", 13.5, 20)]
    spans = {"a": [Window(11.5, 12.5)]}
    assert judge(History([], [], deliveries, claims, fetched_on=spans)).ok
    assert judge(History([], [], [*deliveries[:1], *deliveries[2:]], claims)).out_of_order == [deliveries[3]]


@pytest.mark.parametrize(
    ("excused", "unexcused"),
    [
        ([], [Window(10, 20)]),
        ([Window(9, 21)], []),
        ([Window(0, 12), Window(11, 15)], [Window(15, 20)]),
        ([Window(14, 30), Window(12, 13)], [Window(10, 12), Window(13, 14)]),
        ([Window(1, 5), Window(25, 30)], [Window(10, 20)]),
    ],
)
def test_time_without_owner_counts_outside_the_excused_spans(excused: list[Window], unexcused: list[Window]) -> None:
    verdict = judge(History(unowned={P: [Window(10, 20)]}, excused=excused))
    assert verdict.unexcused == {P: unexcused}
    assert verdict.ok == (not unexcused)


@pytest.mark.parametrize(
    ("excused", "unexcused"),
    [([Window(0, 99)], [Window(16, 20)]), ([], [Window(10, 16), Window(16, 20)]), ([Window(0, 18)], [Window(16, 20)])],
)
def test_no_excuse_lasts_longer_than_the_patience_of_the_run(excused: list[Window], unexcused: list[Window]) -> None:
    history = History(unowned={P: [Window(10, 20), Window(30, 36)]}, excused=[*excused, Window(30, 36)], patience=6)
    assert judge(history).unexcused == {P: unexcused}


def test_the_table_names_partitions_sums_and_anomalies() -> None:
    history = History(
        [ack(number) for number in range(9)],
        [stored(0)],
        [delivery(1, 0), delivery(12, 0, "b")],
        A_THEN_B,
        unowned={P: [Window(10, 12.5)]},
    )
    text = table(history, judge(history))
    assert [line.split() for line in text.splitlines()[:2]] == [
        ["partition", "stored", "delivered", "again", "claims", "unowned", "s", "longest", "s", "unexcused", "s"],
        ["0-0", "1", "2", "1", "2", "2.5", "2.5", "2.5"],
    ]
    assert "acknowledged 9   delivered 2   lost 8" in text
    assert text.count("\nlost: Ack(") == 5
    assert "lost: … 3 more" in text
    assert "FAILED" in text


def test_each_anomaly_is_a_problem_of_its_kind() -> None:
    history = History([ack(0), ack(1)], unowned={P: [Window(10, 12.5)]})
    found = outcome(history, judge(history), {"moves": 6})
    assert [each.kind for each in found.problems] == ["lost", "lost", "unexcused"]
    assert "number=1" in found.problems[1].text
    assert (found.figures["moves"], found.figures["acknowledged"]) == (6, 2)
