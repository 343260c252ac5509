"""The schedule of blows is repeatable and spares nobody."""

from __future__ import annotations

from itertools import islice

from tests.soak.places import SESSION_SECONDS
from tests.soak.schedule import Blow, Way, steps

BROKERS, MEMBERS = ["b0", "b1"], ["m0", "m1", "m2"]


def test_the_same_seed_gives_the_same_steps() -> None:
    assert list(islice(steps(3, BROKERS, MEMBERS), 40)) == list(islice(steps(3, BROKERS, MEMBERS), 40))
    assert list(islice(steps(3, BROKERS, MEMBERS), 40)) != list(islice(steps(4, BROKERS, MEMBERS), 40))


def test_each_round_kills_and_stops_everybody() -> None:
    ways: tuple[Way, ...] = ("kill", "stop")
    everybody = {Blow(victim, way) for victim in BROKERS + MEMBERS for way in ways}
    assert {step.blows[0] for step in islice(steps(1, BROKERS, MEMBERS), 10)} == everybody
    with_frozen = {step.blows[0] for step in islice(steps(1, BROKERS, MEMBERS, ["b0", "m1"]), 12)}
    assert with_frozen == everybody | {Blow("b0", "freeze"), Blow("m1", "freeze")}


def test_what_is_frozen_misses_the_end_of_its_session() -> None:
    frozen = [step for step in islice(steps(1, BROKERS, MEMBERS, MEMBERS), 100) if step.blows[0].way == "freeze"]
    assert frozen
    assert all(step.down > SESSION_SECONDS for step in frozen)


def test_a_step_never_ends_two_brokers_or_two_members() -> None:
    doubles = [step for step in islice(steps(1, BROKERS, MEMBERS), 200) if len(step.blows) == 2]
    assert doubles
    assert all((step.blows[0].victim in BROKERS) != (step.blows[1].victim in BROKERS) for step in doubles)


def test_what_all_need_is_away_for_less_than_a_session_and_alone() -> None:
    outages = [step for step in islice(steps(1, BROKERS, MEMBERS, [], ["zookeeper"]), 100) if "zookeeper" in str(step)]
    assert outages
    assert all(step.down < SESSION_SECONDS and step.blows == [Blow("zookeeper", "stop")] for step in outages)
