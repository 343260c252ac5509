"""The schedule of faults, and how a session of another process is ended."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from tests.history.cluster import Shape
from tests.history.faults import KINDS, SET_BACKS, faults, set_backs
from tests.history.member import MODES
from tests.history.sessions import password_of


def test_the_same_seed_gives_the_same_faults_and_another_seed_others() -> None:
    assert list(faults(7, 60.0)) == list(faults(7, 60.0)) != list(faults(8, 60.0))


def test_every_kind_comes_in_a_run_of_a_minute_and_none_after_its_end() -> None:
    for seed in range(1, 21):
        chosen = list(faults(seed, 60.0))
        assert {fault.kind for fault in chosen} == set(KINDS)
        assert all(0.0 < before.at < after.at < 60.0 for before, after in pairwise(chosen))


def test_a_shorter_run_has_the_first_faults_of_a_longer_one() -> None:
    longer = list(faults(3, 90.0))
    shorter = list(faults(3, 20.0))
    assert shorter == longer[: len(shorter)]
    assert shorter


def test_zookeeper_is_set_back_in_about_half_of_the_runs_that_are_long_enough() -> None:
    found = [list(set_backs(seed, 120.0)) for seed in range(1, 101)]
    assert found == [list(set_backs(seed, 120.0)) for seed in range(1, 101)]
    assert 35 < sum(map(len, found)) < 65
    assert max(map(len, found)) == 1
    assert {fault.kind for each in found for fault in each} == set(SET_BACKS)
    assert all(fault.at + fault.seconds < 120.0 for each in found for fault in each)
    assert not any(list(set_backs(seed, 12.0)) for seed in range(1, 101))


def test_each_run_has_consumers_of_every_mode_in_two_groups() -> None:
    brokers: Counter[int] = Counter()
    for seed in range(1, 51):
        shape = Shape.drawn(seed)
        brokers[shape.brokers] += 1
        assert set(shape.groups["g"] + shape.groups["h"]) == set(MODES)
        assert min(map(len, shape.groups.values())) >= 2
    assert set(brokers) == {2, 3}


def test_the_password_of_a_session_is_the_one_that_a_real_server_has_given_with_its_id() -> None:
    assert password_of(0x10001C605C00000).hex() == "b26ef960573f5598e0ed68f1f8d0862f"
