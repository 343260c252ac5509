"""What the members of a group agree on or hear of: zones, filters, and broker sets between two leaders."""

import logging

import pytest

from metaq import ConsumerConfig, TopicPartition
from metaq.client.consumer.filters import GroupFilters
from metaq.client.consumer.zones import ByZone
from metaq.client.transport.absences import LEADERLESS_SECONDS, Absences
from metaq.coordination.groups.assignment import range_assignment
from metaq.coordination.groups.group_view import GroupZones
from metaq.coordination.records.payloads import ConsumerFilter
from metaq.protocol.errors import ConfigError

SETTLE = 10.0
IN_ZONES = {"a": "east", "b": "west"}


class Member:
    """`me` in the group of IN_ZONES, whose brokers 0 and 1 are registered."""

    def __init__(self, me: str = "a") -> None:
        self.now = 100.0
        self.me = me
        self.by_zone = ByZone("g", SETTLE)

    def wants(self, agreed: dict[int, str], brokers: dict[int, str], after=0.0, registered: tuple[int, ...] = (0, 1)):
        """What is to be agreed on after so many seconds, and when that may be known otherwise."""
        self.now += after
        found = self.by_zone.update(self.me, GroupZones(IN_ZONES, agreed, 0, brokers), registered, self.now)
        return found, self.by_zone.ends_in


def test_brokers_of_which_nothing_is_agreed_count_at_once():
    member, zones = Member("b"), {0: "east", 1: "west"}
    assert member.wants({}, zones)[0] == zones
    assert member.wants({0: "east"}, zones)[0] == zones
    assert member.wants({0: "east"}, {0: "east"}) == (None, None)


def test_a_broker_that_moved_counts_when_it_has_stayed():
    member, agreed, moved = Member(), {0: "east", 1: "west"}, {0: "west", 1: "west"}
    assert member.wants(agreed, moved) == (None, SETTLE)
    assert member.wants(agreed, moved, SETTLE - 1) == (None, 1)
    assert member.wants(agreed, moved, 1) == (moved, None)


def test_a_broker_that_came_back_has_not_moved():
    member, agreed, moved = Member(), {0: "east"}, {0: "west"}
    assert member.wants(agreed, moved)[0] is None
    assert member.wants(agreed, agreed, SETTLE - 1) == (None, None)
    assert member.wants(agreed, moved)[0] is None
    assert member.wants(agreed, moved, SETTLE - 1)[0] is None
    assert member.wants(agreed, {0: "north"}, 1) == (None, SETTLE)


def test_a_broker_that_is_away_stands_where_it_stood():
    member = Member()
    for after in (0, 10 * SETTLE):
        assert member.wants({0: "east"}, {}, after, registered=(1,)) == (None, None)


def test_a_broker_that_has_no_zone_any_more_is_forgotten_later():
    member, agreed = Member(), {0: "east", 1: "west"}
    assert member.wants(agreed, {1: "west"})[0] is None
    assert member.wants(agreed, {1: "west"}, SETTLE)[0] == {1: "west"}


def test_the_first_member_writes_and_the_others_wait_for_it():
    member = Member("b")
    assert member.wants({0: "east"}, {0: "west"}) == (None, 2 * SETTLE)
    assert member.wants({0: "east"}, {0: "west"}, SETTLE)[0] is None
    assert member.wants({0: "east"}, {0: "west"}, SETTLE)[0] == {0: "west"}


def test_a_new_broker_does_not_make_another_one_move_early():
    assert Member().wants({0: "east"}, {0: "west", 1: "west"})[0] == {0: "east", 1: "west"}


PARTITIONS = ("0-0", "0-1", "0-2", "1-0")
SHARES = {"a": ["0-0", "0-1", "0-2"], "b": ["1-0"]}
AGREED = GroupZones(IN_ZONES, {0: "east", 1: "west"}, 0, {})


def test_with_a_member_of_another_strategy_all_share_as_range_and_the_log_names_it(caplog):
    caplog.set_level(logging.INFO)
    by_zone = ByZone("g", SETTLE)
    mixed = (*IN_ZONES, "g_java-1")
    for me in (*IN_ZONES, *IN_ZONES):
        assert by_zone.share(me, "t", mixed, PARTITIONS, AGREED) == range_assignment(me, mixed, PARTITIONS)
    assert by_zone.share("a", "other", tuple(IN_ZONES), PARTITIONS, AGREED) == SHARES["a"]
    (told,) = caplog.records
    assert told.levelname == "WARNING"
    assert "g_java-1 reads topic t without strategy='zone'" in told.message
    assert by_zone.share("b", "t", tuple(IN_ZONES), PARTITIONS, AGREED) == SHARES["b"]
    assert "topic t is shared by zones again" in caplog.records[-1].message


@pytest.mark.parametrize("strategy", ["zones", "", None])
def test_a_strategy_that_there_is_not_is_refused_with_the_names_of_those_that_there_are(strategy):
    with pytest.raises(ConfigError, match=r"strategy.*choose 'range', 'consist', 'zone' or a function of your own"):
        ConsumerConfig(strategy=strategy)


def test_the_strategy_needs_a_zone():
    with pytest.raises(ConfigError, match="name the zone in which the consumer runs"):
        ConsumerConfig(strategy="zone")
    assert ConsumerConfig(strategy="zone", zone="east", read_from="nearest").zone == "east"


# --- filters: what one leaves out reaches nobody ----------------------------------------------------------------------

BUY, SELL = {"t": ConsumerFilter(("buy",))}, {"t": ConsumerFilter(("sell",))}
MEMBERS = {"t": ("a", "b"), "%RETRY%g": ("a", "b")}


def test_both_sides_are_warned_once_with_the_remedy(caplog):
    for me in ("a", "b"):
        member = GroupFilters("g")
        for _ in range(3):
            member.look(me, MEMBERS, {"a": BUY, "b": SELL})
    assert [each.levelno for each in caplog.records] == [logging.WARNING] * 2
    first, second = (each.getMessage() for each in caplog.records)
    assert "topic t differently: a takes tags buy, and b takes tags sell" in first
    assert "b takes tags sell, and a takes tags buy" in second
    assert "give all members the same tags and where, or each filter a group of its own" in first


def test_the_same_filters_and_none_at_all_say_nothing(caplog):
    member = GroupFilters("g")
    member.look("a", MEMBERS, {"a": BUY, "b": BUY})
    member.look("a", MEMBERS, {})
    member.look("a", {"t": ("a",)}, {"b": SELL})
    assert caplog.text == ""


@pytest.mark.parametrize("me", ["a", "b"])
def test_a_member_without_a_filter_is_another_one_too(me, caplog):
    GroupFilters("g").look(me, MEMBERS, {"a": {"t": ConsumerFilter(("x", "y"), "v = 1")}})
    assert "tags x, y and of these what has v = 1" in caplog.text
    assert "all messages, or does not say which (Java, an older version)" in caplog.text


def test_a_change_is_told_again_and_so_is_its_end(caplog):
    member = GroupFilters("g")
    member.look("a", MEMBERS, {"a": BUY, "b": SELL})
    member.look("a", {"t": ("a", "b", "c")}, {"a": BUY, "b": SELL, "c": SELL})  # another member, no other filter
    assert len(caplog.records) == 1
    member.look("a", MEMBERS, {"a": BUY})
    assert len(caplog.records) == 2
    with caplog.at_level(logging.INFO, "metaq.client.consumer.filters"):
        member.look("a", MEMBERS, {"a": BUY, "b": BUY})
    assert "all members filter topic t alike again" in caplog.messages[-1]


# --- a broker set between two leaders keeps its partitions for some seconds -------------------------------------------

SET, ALONE = [TopicPartition("t", 0, 0), TopicPartition("t", 0, 1)], [TopicPartition("t", 1, 0)]


class Watched(Absences):
    def keeps(self, owned, there=(), at=0.0):
        """What it keeps then, and for how long yet."""
        return self.kept(self.missing(owned, set(there)), [0], at), self.ends_in


def test_nothing_is_asked_while_nothing_is_missing():
    assert Watched().missing([*SET, *ALONE], {*SET, *ALONE}) == []


def test_a_sets_partitions_are_kept_until_no_leader_has_come_and_a_single_brokers_are_not():
    watched = Watched()
    assert watched.keeps([*SET, *ALONE]) == (SET, LEADERLESS_SECONDS)
    assert watched.keeps(SET, at=1.0) == (SET, LEADERLESS_SECONDS - 1.0)
    assert watched.keeps(SET, at=LEADERLESS_SECONDS) == ([], None)


def test_the_time_begins_anew_once_a_leader_has_registered_the_topic():
    watched = Watched()
    watched.keeps(SET)
    assert watched.keeps(SET, SET, at=LEADERLESS_SECONDS - 1)[0] == []
    assert watched.keeps(SET, at=LEADERLESS_SECONDS + 1)[0] == SET


def test_a_leader_that_has_fewer_partitions_has_no_absence():
    assert Watched().keeps(SET, SET[:1])[0] == []
