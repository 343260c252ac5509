"""Assignment strategies: equal to the Java classes, and fair for any input."""

import json
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.coordination.groups.assignment import (
    Strategy,
    consistent_hash_assignment,
    range_assignment,
    zone_assignment,
)
from metaq.coordination.records.java_order import java_sorted

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "golden" / "assignment.json"
VECTORS = json.loads(GOLDEN.read_text("utf-8"))
STRATEGIES: dict[str, Strategy] = {"DEFAULT": range_assignment, "CONSIST": consistent_hash_assignment}


def in_zones(seed: int) -> Strategy:
    """That by zones, with consumers and brokers somewhere; brokers may be in no zone, and consumers in one without."""

    def assign(consumer: str, consumers: Sequence[str], partitions: Sequence[str]) -> list[str]:
        where = {each: ("east", "west", "north", "south")[crc32(each.encode(), seed) % 4] for each in consumers}
        brokers = {each: ("east", "west", "north")[(seed >> each) % 3] for each in range(13) if seed >> each & 1}
        return zone_assignment(consumer, consumers, partitions, where, brokers)

    return assign


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
groups = st.lists(names, min_size=1, max_size=9, unique=True)
partition_lists = st.lists(st.builds("{}-{}".format, st.integers(0, 12), st.integers(0, 30)), max_size=60, unique=True)
strategies = st.sampled_from(list(STRATEGIES.values())) | st.integers(0, 1 << 32).map(in_zones)
zones = st.sampled_from(["east", "west", "north"])
"""Of brokers; consumers may stand in others, and brokers in none."""
zones_of_brokers = st.dictionaries(st.integers(0, 12), zones)


@st.composite
def zoned_groups(draw: st.DrawFn) -> dict[str, str]:
    return {each: draw(st.one_of(zones, st.just("south"))) for each in draw(groups)}


def by_zone(consumers: dict[str, str], partitions: list[str], brokers: dict[int, str]) -> dict[str, list[str]]:
    """The partitions of each consumer."""
    return {each: zone_assignment(each, list(consumers), partitions, consumers, brokers) for each in consumers}


def zone_of(partition: str, brokers: dict[int, str]) -> str | None:
    return brokers.get(int(partition.split("-")[0]))


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


# --- by zones ---------------------------------------------------------------------------------------------------------


@given(zoned_groups(), partition_lists, zones_of_brokers)
def test_by_zones_each_share_is_sorted(consumers, partitions, brokers):
    assert all(share == java_sorted(share) for share in by_zone(consumers, partitions, brokers).values())


@given(zoned_groups(), partition_lists, zones_of_brokers)
def test_by_zones_only_partitions_of_zones_without_consumers_are_read_across_zones(consumers, partitions, brokers):
    inhabited = set(consumers.values())
    for consumer, share in by_zone(consumers, partitions, brokers).items():
        across = [each for each in share if zone_of(each, brokers) != consumers[consumer]]
        assert [each for each in across if zone_of(each, brokers) in inhabited] == []


@given(zoned_groups(), partition_lists, zones_of_brokers)
def test_by_zones_the_consumers_of_a_zone_share_it_evenly(consumers, partitions, brokers):
    shares = by_zone(consumers, partitions, brokers)
    for zone in set(consumers.values()):
        own = [sum(zone_of(each, brokers) == zone for each in shares[c]) for c in consumers if consumers[c] == zone]
        assert max(own) - min(own) <= 1


@given(zoned_groups(), partition_lists, zones_of_brokers)
def test_by_zones_who_gets_of_the_rest_has_no_more_in_all_than_anybody_else(consumers, partitions, brokers):
    inhabited = set(consumers.values())
    shares = by_zone(consumers, partitions, brokers)
    fewest = min(map(len, shares.values()))
    for share in shares.values():
        if any(zone_of(each, brokers) not in inhabited for each in share):
            assert len(share) <= fewest + 1


@given(groups, partition_lists)
def test_by_zones_a_group_in_one_zone_is_shared_as_range(consumers, partitions):
    everywhere = dict.fromkeys(consumers, "east")
    for brokers in (dict.fromkeys(range(13), "east"), {}):
        shares = by_zone(everywhere, partitions, brokers)
        assert shares == {each: range_assignment(each, consumers, partitions) for each in consumers}


def test_by_zones_partitions_without_neighbours_make_up_for_what_a_zone_lacks():
    consumers = {"a": "east", "b": "west"}
    partitions = [f"0-{each}" for each in range(4)] + [f"1-{each}" for each in range(5)] + ["2-0"]
    assert by_zone(consumers, partitions, {0: "east", 1: "north"}) == {
        "a": ["0-0", "0-1", "0-2", "0-3", "1-0"],
        "b": ["1-1", "1-2", "1-3", "1-4", "2-0"],
    }
