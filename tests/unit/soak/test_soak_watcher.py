"""Looks at a group become claims, commits and spans without owner."""

from __future__ import annotations

from collections.abc import Mapping

from tests.soak.facts import Claim, Committed, Window
from tests.soak.watcher import GroupLog, Look, Node, without_owner

P = "0-0"


def owned(consumer: str, created: float, claim: int) -> dict[str, Node]:
    return {P: Node(consumer, created, created, claim)}


def look(
    time: float, owners: Mapping[str, Node], offsets: Mapping[str, Node] | None = None, offered: bool = True
) -> Look:
    return Look(time, frozenset([P] if offered else []), owners, offsets or {})


def log_of(*looks: Look) -> GroupLog:
    log = GroupLog()
    for each in looks:
        log.add(each)
    log.finish()
    return log


def test_a_claim_lasts_from_its_node_to_the_last_look_that_saw_it() -> None:
    a, b = owned("a", 0.5, 7), owned("b", 3.5, 8)
    log = log_of(look(1, a), look(2, a), look(3, {}), look(4, b), look(5, b))
    assert log.claims == [Claim(P, "a", 0.5, 2, gone=3), Claim(P, "b", 3.5, 5)]
    assert log.unowned == {P: [Window(3, 3.5)]}


def test_a_claim_anew_by_the_same_consumer_is_another_claim() -> None:
    log = log_of(look(1, owned("a", 0, 7)), look(2, owned("a", 1.5, 8)))
    assert log.claims == [Claim(P, "a", 0, 1, gone=2), Claim(P, "a", 1.5, 2)]
    assert log.unowned == {}


def test_a_partition_that_no_broker_offers_needs_no_owner() -> None:
    log = log_of(look(1, {}), look(2, {}, offered=False), look(3, {}, offered=False), look(4, {}), look(6, {}))
    assert log.unowned == {P: [Window(1, 2), Window(4, 6)]}


def test_each_commit_is_noted_once_with_the_time_of_its_write() -> None:
    first, second = {P: Node("-77-120", 0, 1.5, 1)}, {P: Node("240", 0, 3.5, 1)}
    log = log_of(look(2, {}, first), look(3, {}, first), look(4, {}, second))
    assert log.commits == [Committed(1.5, P, 120), Committed(3.5, P, 240)]


def test_a_killed_consumer_is_no_owner_although_zookeeper_still_names_it() -> None:
    a, b = owned("a", 0, 7), owned("b", 6.5, 8)
    log = log_of(*(look(time, a) for time in range(1, 6)), look(5.9, {}), look(7, b), look(9, b))
    assert log.unowned == {P: [Window(5.9, 6.5)]}
    assert without_owner(log, {}) == log.unowned
    assert without_owner(log, {"a": 5.5, "b": 8}) == {P: [Window(5.9, 6.5), Window(8, 9)]}
    assert without_owner(log, {"a": 2.5}) == {P: [Window(2.5, 5), Window(5.9, 6.5)]}
    assert without_owner(log_of(look(1, a), look(2, a), look(2.1, {}), look(7, b)), {"a": 1.5}) == {
        P: [Window(1.5, 6.5)]
    }
