"""Assignment strategies: equal to the Java classes, and fair for any input."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.coordination.assignment import (
    Strategy,
    consistent_hash_assignment,
    java_sorted,
    range_assignment,
)

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "golden" / "assignment.json"
VECTORS = json.loads(GOLDEN.read_text("utf-8"))
STRATEGIES: dict[str, Strategy] = {"DEFAULT": range_assignment, "CONSIST": consistent_hash_assignment}

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
groups = st.lists(names, min_size=1, max_size=9, unique=True)
partition_lists = st.lists(st.builds("{}-{}".format, st.integers(0, 12), st.integers(0, 30)), max_size=60, unique=True)
strategies = st.sampled_from(list(STRATEGIES.values()))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['strategy']}: {vector['name']}")
def test_assignment_equals_the_java_classes(vector):
    assign = STRATEGIES[vector["strategy"]]
    assert vector["assignment"]
    for consumer, expected in vector["assignment"].items():
        assert assign(consumer, vector["consumers"], vector["partitions"]) == expected


@pytest.mark.parametrize("vector", VECTORS[::2], ids=lambda vector: vector["name"])
def test_strings_are_sorted_as_java_sorts_them(vector):
    assert java_sorted(vector["consumers"]) == vector["consumers_sorted"]
    assert java_sorted(vector["partitions"]) == vector["partitions_sorted"]


def test_java_sorts_by_utf16_code_units():
    assert java_sorted(["\uff5e", "\U00010000", "b", "a"]) == ["a", "b", "\U00010000", "\uff5e"]


@given(strategies, groups, partition_lists)
def test_each_partition_has_exactly_one_owner(assign: Strategy, consumers: list[str], partitions: list[str]):
    owned = [partition for consumer in consumers for partition in assign(consumer, consumers, partitions)]
    assert sorted(owned) == sorted(partitions)


@given(strategies, groups, partition_lists, st.randoms(use_true_random=False))
def test_all_members_agree_whatever_the_order_in_which_they_read(assign, consumers, partitions, rng):
    shuffled = list(consumers), list(partitions)
    for each in shuffled:
        rng.shuffle(each)
    for consumer in consumers:
        assert assign(consumer, consumers, partitions) == assign(consumer, *shuffled)


@given(groups, partition_lists)
def test_range_shares_differ_by_at_most_one(consumers: list[str], partitions: list[str]):
    sizes = [len(range_assignment(consumer, consumers, partitions)) for consumer in consumers]
    assert max(sizes) - min(sizes) <= 1


@given(groups, partition_lists, st.data())
def test_consistent_hash_moves_only_the_partitions_of_a_consumer_that_leaves(consumers, partitions, data):
    leaving = data.draw(st.sampled_from(consumers))
    staying = [consumer for consumer in consumers if consumer != leaving]
    for consumer in staying:
        before = consistent_hash_assignment(consumer, consumers, partitions)
        assert set(before) <= set(consistent_hash_assignment(consumer, staying, partitions))


@given(strategies, groups, partition_lists)
def test_a_consumer_that_is_not_in_the_group_gets_nothing(assign, consumers, partitions):
    assert assign("not a member, too long", consumers, partitions) == []


@pytest.mark.parametrize("assign", STRATEGIES.values())
def test_an_empty_group_owns_nothing(assign: Strategy):
    assert assign("c", [], ["0-0"]) == []
    assert assign("c", ["c"], []) == []


@given(st.lists(st.one_of(names, st.text(st.characters(max_codepoint=127)))))
def test_names_of_any_kind_are_sorted_by_their_utf_16_code_units(listed: list[str]):
    assert java_sorted(listed) == sorted(listed, key=lambda text: text.encode("utf-16-be"))
