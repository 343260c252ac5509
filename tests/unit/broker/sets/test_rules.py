"""Rules of broker sets: times, and values that the model (tests/component/sets) never has."""

import pytest

from metaq.broker.sets import rules


@pytest.mark.parametrize("slower", [1.0, 0.95, 0.9])
def test_the_leaders_part_of_a_grant_ends_before_the_promise_if_clocks_differ_by_ten_percent(slower: float):
    """slower: what the leader's clock shows of a second of the follower's."""
    counted = (rules.counted_until(100.0) - 100.0) / slower
    assert counted <= rules.promised_until(7.0) - 7.0 + 1e-9


def test_an_acknowledgement_needs_a_running_grant_of_every_other_node_that_counts():
    granted = {"b": 5.0, "c": 6.0}
    assert rules.may_acknowledge(4.9, granted, {"a", "b", "c"}, "a")
    assert not rules.may_acknowledge(5.0, granted, {"a", "b", "c"}, "a")
    assert rules.may_acknowledge(5.0, granted, {"a", "c"}, "a")
    assert not rules.may_acknowledge(0.0, {}, {"a", "b"}, "a")
    assert rules.may_acknowledge(9.0, {}, {"a"}, "a")


@pytest.mark.parametrize(
    ("forgetful", "master_present", "leader_gone", "stands"),
    [
        ((), False, False, True),
        ((), True, True, True),
        ((), True, False, False),
        ({"b"}, False, True, True),
        ({"a"}, False, True, False),
        ({"a", "c"}, False, True, False),
        ({"a", "b", "c"}, False, True, True),
    ],
)
def test_a_node_stands_without_a_living_master_and_a_forgetful_one_only_if_all_in_sync_are(
    forgetful, master_present, leader_gone, stands
):
    masters = {"master_present": master_present, "leader_gone": leader_gone}
    assert rules.may_stand("a", {"a", "b"}, forgetful=forgetful, promises_run_out=True, **masters) is stands


def test_an_elected_node_keeps_those_in_sync_that_are_present_and_itself():
    assert rules.elected(4, {"a", "b", "c"}, "b", {"c", "d"}) == (5, ("b", "c"))


def test_a_commit_waits_for_a_node_that_has_never_acknowledged():
    assert rules.committed_position(9, {"b": 7}, {"a", "b"}, "a") == 7
    assert rules.committed_position(9, {"b": 12}, {"a", "b"}, "a") == 9
    assert rules.committed_position(9, {"b": 7}, {"a", "b", "c"}, "a") == 0
    assert rules.committed_position(9, {}, {"a"}, "a") == 9


def test_nodes_without_a_common_epoch_have_none():
    assert rules.common_epoch([1, 2, 4], [2, 3]) == 2
    assert rules.common_epoch([1], [2]) is None
    assert rules.common_epoch([], [2]) is None


@pytest.mark.parametrize(
    ("kept", "chosen", "cuts"), [(10, 0, True), (9, 0, False), (9, 2, False), (9, 3, True), (0, 4, True)]
)
def test_a_node_cuts_what_is_committed_only_if_an_operator_chose_another_one_since(kept: int, chosen: int, cuts: bool):
    assert rules.may_cut(kept, told=10, own_epoch=3, chosen=chosen) is cuts
