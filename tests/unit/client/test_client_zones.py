"""What a group with strategy="zone" agrees on, and what its members read."""

import logging

import pytest

from metaq.client.consumer.zones import ByZone
from metaq.client.consumer_config import ConsumerConfig
from metaq.coordination.assignment import range_assignment
from metaq.coordination.group_view import GroupZones
from metaq.protocol.errors import ConfigError

SETTLE = 10.0
MEMBERS = {"a": "east", "b": "west"}


class Member:
    """`me` in the group of MEMBERS, whose brokers 0 and 1 are registered."""

    def __init__(self, me: str = "a") -> None:
        self.now = 100.0
        self.me = me
        self.by_zone = ByZone("g", SETTLE, lambda: self.now)

    def wants(self, agreed: dict[int, str], brokers: dict[int, str], registered: tuple[int, ...] = (0, 1)):
        return self.by_zone.update(self.me, GroupZones(MEMBERS, agreed, 0, brokers), registered)


def test_brokers_of_which_nothing_is_agreed_count_at_once():
    member = Member("b")
    assert member.wants({}, {0: "east", 1: "west"}) == {0: "east", 1: "west"}
    assert member.wants({0: "east"}, {0: "east", 1: "west"}) == {0: "east", 1: "west"}
    assert member.wants({0: "east"}, {0: "east"}) is None
    assert member.by_zone.ends_in is None


def test_a_broker_that_moved_counts_when_it_has_stayed():
    member = Member()
    agreed, moved = {0: "east", 1: "west"}, {0: "west", 1: "west"}
    assert member.wants(agreed, moved) is None
    assert member.by_zone.ends_in == SETTLE
    member.now += SETTLE - 1
    assert member.wants(agreed, moved) is None
    assert member.by_zone.ends_in == 1
    member.now += 1
    assert member.wants(agreed, moved) == moved
    assert member.by_zone.ends_in is None


def test_a_broker_that_came_back_has_not_moved():
    member = Member()
    agreed, moved = {0: "east"}, {0: "west"}
    assert member.wants(agreed, moved) is None
    member.now += SETTLE - 1
    assert member.wants(agreed, agreed) is None
    assert member.by_zone.ends_in is None
    assert member.wants(agreed, moved) is None
    member.now += SETTLE - 1
    assert member.wants(agreed, moved) is None
    member.now += 1
    assert member.wants(agreed, {0: "north"}) is None
    assert member.by_zone.ends_in == SETTLE


def test_a_broker_that_is_away_stands_where_it_stood():
    member = Member()
    assert member.wants({0: "east"}, {}, registered=(1,)) is None
    member.now += 10 * SETTLE
    assert member.wants({0: "east"}, {}, registered=(1,)) is None
    assert member.by_zone.ends_in is None


def test_a_broker_that_has_no_zone_any_more_is_forgotten_later():
    member = Member()
    assert member.wants({0: "east", 1: "west"}, {1: "west"}) is None
    member.now += SETTLE
    assert member.wants({0: "east", 1: "west"}, {1: "west"}) == {1: "west"}


def test_the_first_member_writes_and_the_others_wait_for_it():
    member = Member("b")
    assert member.wants({0: "east"}, {0: "west"}) is None
    assert member.by_zone.ends_in == 2 * SETTLE
    member.now += SETTLE
    assert member.wants({0: "east"}, {0: "west"}) is None
    member.now += SETTLE
    assert member.wants({0: "east"}, {0: "west"}) == {0: "west"}


def test_a_new_broker_does_not_make_another_one_move_early():
    member = Member()
    assert member.wants({0: "east"}, {0: "west", 1: "west"}) == {0: "east", 1: "west"}


PARTITIONS = ("0-0", "0-1", "0-2", "1-0")


def test_members_share_by_zones():
    zones = GroupZones(MEMBERS, {0: "east", 1: "west"}, 0, {})
    by_zone = ByZone("g", SETTLE)
    assert by_zone.share("a", "t", tuple(MEMBERS), PARTITIONS, zones) == ["0-0", "0-1", "0-2"]
    assert by_zone.share("b", "t", tuple(MEMBERS), PARTITIONS, zones) == ["1-0"]


def test_with_a_member_of_another_strategy_all_share_as_range_and_the_log_names_it(caplog):
    caplog.set_level(logging.INFO)
    by_zone = ByZone("g", SETTLE)
    zones = GroupZones(MEMBERS, {0: "east", 1: "west"}, 0, {})
    mixed = (*MEMBERS, "g_java-1")
    for _ in range(2):
        for me in MEMBERS:
            assert by_zone.share(me, "t", mixed, PARTITIONS, zones) == range_assignment(me, mixed, PARTITIONS)
    assert by_zone.share("a", "other", tuple(MEMBERS), PARTITIONS, zones) == ["0-0", "0-1", "0-2"]
    (told,) = caplog.records
    assert told.levelname == "WARNING"
    assert "g_java-1 reads topic t without strategy='zone'" in told.message
    assert by_zone.share("b", "t", tuple(MEMBERS), PARTITIONS, zones) == ["1-0"]
    assert "topic t is shared by zones again" in caplog.records[-1].message


@pytest.mark.parametrize("strategy", ["zones", "", None])
def test_a_strategy_that_there_is_not_is_refused_with_the_names_of_those_that_there_are(strategy):
    with pytest.raises(ConfigError, match=r"strategy.*choose 'range', 'consist', 'zone' or a function of your own"):
        ConsumerConfig(strategy=strategy)


def test_the_strategy_needs_a_zone():
    with pytest.raises(ConfigError, match="name the zone in which the consumer runs"):
        ConsumerConfig(strategy="zone")
    assert ConsumerConfig(strategy="zone", zone="east", read_from="nearest").zone == "east"
