"""The faults of a seed: the same each time, and each kind as often as the others."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.failovers.faults import FOLLOWER_KINDS, LEADER_KINDS, kinds_for, plan

ALL = list(LEADER_KINDS)


def test_a_seed_says_what_is_done() -> None:
    assert list(plan(7, 20, 2, 3, ALL)) == list(plan(7, 20, 2, 3, ALL))
    assert list(plan(7, 20, 2, 3, ALL)) != list(plan(8, 20, 2, 3, ALL))


@pytest.mark.parametrize("kinds", [ALL, kinds_for(())])
def test_runs_with_seeds_in_a_row_have_each_kind_as_often(kinds: list[str]) -> None:
    seeds = range(1, 1 + 3 * len(kinds))
    found = Counter(fault.kind for seed in seeds for fault in plan(seed, 10, 2, 3, kinds) if fault.of_leader)
    assert found == dict.fromkeys(kinds, 30)


def test_what_needs_namespaces_is_left_out_without_them() -> None:
    assert set(kinds_for(())) == {"kill", "stop", "term", "hand-over", "syncs fail"}
    assert kinds_for(("net", "disk")) == ALL
    found = {fault.kind for fault in plan(1, 100, 1, 3, kinds_for(()))}
    assert found == set(kinds_for(()))


def test_both_sets_and_followers_have_their_share() -> None:
    found = list(plan(3, 200, 2, 3, ALL))
    followers = [fault for fault in found if not fault.of_leader]
    assert {fault.set_id for fault in found} == {0, 1}
    assert len(found) - len(followers) == 200
    assert 20 < len(followers) < 80
    assert {fault.kind for fault in followers} <= set(FOLLOWER_KINDS)
    assert 30 < sum(bool(fault.second) for fault in found) < 90


def test_sets_of_two_keep_a_node_that_nothing_befalls() -> None:
    assert not any(fault.second for fault in plan(3, 100, 2, 2, ALL))
