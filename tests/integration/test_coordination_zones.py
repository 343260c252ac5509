"""Zones in ZooKeeper: of brokers, of consumers, and what a group has agreed on."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from metaq.coordination.brokers.registration import BrokerAddress, BrokerRegistration, TopicRegistration
from metaq.coordination.groups.group_view import GroupZones
from metaq.coordination.groups.membership import GroupMembership, remove_group
from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.session.znodes import create_ephemeral, create_persistent, delete
from metaq.protocol.errors import ConfigError
from tests.integration.coordination_helpers import expire, session_at, wait_for

TOPIC = TopicRegistration("t", 4)


@pytest.fixture
def sessions(chroot: str) -> Iterator[list[ZkSession]]:
    with ExitStack() as stack:
        yield [stack.enter_context(session_at(chroot)) for _ in range(4)]


def broker(session: ZkSession, broker_id: int, zone: str, port: int = 8123) -> BrokerRegistration:
    address = BrokerAddress(broker_id, None, "127.0.0.1", port + broker_id)
    registration = BrokerRegistration(session, address, zone=zone, backoff=Backoff(0.01, 0.1))
    registration.register([TOPIC])
    return registration


def member(session: ZkSession, name: str, zone: str | None) -> GroupMembership:
    joined = GroupMembership(session, "g", name, ["t"], lambda: None, zone=zone, backoff=Backoff(0.01, 0.1))
    joined.join()
    return joined


def zones(of: GroupMembership) -> GroupZones:
    found = of.snapshot().zones
    assert found is not None
    return found


def test_members_see_the_zones_of_brokers_and_of_each_other(sessions: list[ZkSession]):
    east, west = broker(sessions[0], 0, "east"), broker(sessions[0], 1, "west")
    broker(sessions[0], 2, "")
    first, second = member(sessions[1], "a", "east"), member(sessions[2], "b", "west")
    both = (first, second)
    wait_for(lambda: all(zones(each).members == {"g_a": "east", "g_b": "west"} for each in both), "the members")
    wait_for(lambda: all(zones(each).brokers == {0: "east", 1: "west"} for each in both), "the brokers")
    west.unregister()
    wait_for(lambda: zones(first).brokers == {0: "east"}, "the end of a broker")
    second.leave()
    wait_for(lambda: zones(first).members == {"g_a": "east"}, "the end of a member")
    assert sessions[0].nodes.children(sessions[0].paths.group_zones("g")) == ["g_a"]
    east.unregister()


def test_members_that_do_not_assign_by_zones_have_none_and_are_told_none(sessions: list[ZkSession]):
    by_range, by_zone = member(sessions[1], "a", None), member(sessions[2], "b", "west")
    assert by_range.snapshot().zones is None
    assert by_zone.snapshot().consumers == {"t": ("g_a", "g_b")}
    assert zones(by_zone).members == {"g_b": "west"}


def test_what_a_group_agrees_on_is_changed_by_compare_and_set(sessions: list[ZkSession]):
    first, second = member(sessions[1], "a", "east"), member(sessions[2], "b", "west")
    assert (zones(first).agreed, zones(first).version) == ({}, 0)
    first.agree_on_zones({0: "east"}, 0)
    assert (zones(first).agreed, zones(first).version) == ({0: "east"}, 1)
    second.agree_on_zones({0: "west"}, 0)
    assert (zones(second).agreed, zones(second).version) == ({0: "east"}, 1)
    second.agree_on_zones({0: "west"}, 1)
    wait_for(lambda: zones(first).agreed == {0: "west"}, "the watch")


def test_all_members_are_told_of_what_is_agreed_and_of_a_broker_that_moves(sessions: list[ZkSession]):
    told = threading.Event()
    watching = GroupMembership(sessions[1], "g", "a", ["t"], told.set, zone="east")
    watching.join()
    other = member(sessions[2], "b", "west")
    wait_for(lambda: len(zones(watching).members) == 2, "the other member")
    told.clear()
    other.agree_on_zones({0: "east"}, zones(other).version)
    assert told.wait(10)
    wait_for(lambda: zones(watching).agreed == {0: "east"}, "what was agreed on")
    told.clear()
    broker(sessions[0], 0, "west")
    assert told.wait(10)
    wait_for(lambda: zones(watching).brokers == {0: "west"}, "the broker")


def test_a_member_appears_and_vanishes_together_with_its_zone(sessions: list[ZkSession]):
    """In one transaction: nobody may take it for a member with another strategy."""
    paths, nodes = sessions[0].paths, sessions[0].nodes
    own = [paths.consumer("g", "g_a"), paths.consumer_zone("g", "g_a")]
    joined = member(sessions[1], "a", "east")
    appeared = {stat.czxid for _, stat in filter(None, nodes.get_with_stats(own))}
    assert len(appeared) == 1
    expire(sessions[1])
    wait_for(lambda: joined.session_id, "the next session")
    again = {stat.czxid for _, stat in filter(None, nodes.get_with_stats(own))}
    assert len(again) == 1
    assert again != appeared
    joined.leave()
    assert nodes.get_many(own) == [None, None]


def test_a_consumer_id_in_use_is_refused_whatever_its_strategy(sessions: list[ZkSession], monkeypatch):
    monkeypatch.setattr("metaq.coordination.session.presence._STALE_MARGIN", -9.5)
    for theirs, ours in ((None, "east"), ("east", None), ("east", "west")):
        there = member(sessions[1], "a", theirs)
        with pytest.raises(ConfigError, match="in use by another live consumer"):
            member(sessions[2], "a", ours)
        assert sessions[0].nodes.children(sessions[0].paths.group_zones("g")) == (["g_a"] if theirs else [])
        there.leave()


@pytest.mark.parametrize("deleted", [0, 1, 2])
def test_nodes_of_a_member_that_somebody_deletes_are_made_anew_when_it_joins_again(sessions, deleted: int):
    paths, nodes = sessions[0].paths, sessions[0].nodes
    joined = member(sessions[1], "a", "east")
    own = [paths.consumer("g", "g_a"), paths.consumer_zone("g", "g_a")]
    victims = own if deleted == 2 else [own[deleted]]
    nodes.write(sessions[0].session_id, [delete(path) for path in victims])
    joined.rejoin()
    assert nodes.owned(sessions[1].session_id, own) == own


def test_a_damaged_agreement_counts_as_none_and_is_written_anew(sessions: list[ZkSession]):
    paths, nodes = sessions[0].paths, sessions[0].nodes
    nodes.ensure([paths.groups()])
    group = paths.group_zones("g")
    nodes.ensure([group.rpartition("/")[0]])
    nodes.write(sessions[0].session_id, [create_persistent(group, b"nonsense")])
    joined = member(sessions[1], "a", "east")
    assert zones(joined).agreed == {}
    joined.agree_on_zones({0: "east"}, zones(joined).version)
    assert zones(joined).agreed == {0: "east"}


def test_the_next_leader_of_a_set_brings_its_own_zone_or_none(sessions: list[ZkSession]):
    """The former leader's session lives on."""
    paths, nodes = sessions[0].paths, sessions[0].nodes
    nodes.ensure([paths.broker(0)])
    for number, zone in enumerate(("east", "west", "")):
        session = sessions[number]
        url = f"meta://127.0.0.1:{8123 + number}".encode()
        former = [] if number == 0 else [delete(paths.master(0))]
        nodes_of = session.nodes.write(session.session_id, [*former, create_ephemeral(paths.master(0), url)])
        assert nodes_of == [None] * (len(former) + 1)
        address = BrokerAddress(0, None, "127.0.0.1", 8123 + number)
        BrokerRegistration(session, address, zone=zone, elected=True).register([TOPIC])
        found = nodes.get(paths.broker_zone(0))
        assert found == ((zone.encode(), session.session_id) if zone else None)


def test_a_zone_that_somebody_deletes_is_registered_again(sessions: list[ZkSession]):
    registration = broker(sessions[0], 0, "east")
    path = sessions[1].paths.broker_zone(0)
    sessions[1].nodes.write(sessions[1].session_id, [delete(path)])
    registration._presence.again()  # as the look every minute does
    wait_for(lambda: sessions[1].nodes.get(path), "the zone")
    registration.unregister()
    assert sessions[1].nodes.get(path) is None


def test_an_agreement_that_somebody_deletes_is_made_anew_and_overwrites_nothing(sessions: list[ZkSession]):
    joined, path = member(sessions[1], "a", "east"), sessions[0].paths.group_zones("g")
    joined.agree_on_zones({0: "east"}, 0)
    victims = [sessions[0].paths.consumer_zone("g", "g_a"), path]
    assert sessions[0].nodes.write_atomically(sessions[0].session_id, [delete(each) for each in victims]) is None
    wait_for(lambda: zones(joined).version == -1, "its end")
    written = create_persistent(path, b'{"0":"west"}')
    sessions[0].nodes.write(sessions[0].session_id, [written])
    joined.agree_on_zones({0: "east"}, -1)
    assert zones(joined).agreed == {0: "west"}
    sessions[0].nodes.write(sessions[0].session_id, [delete(path)])
    wait_for(lambda: zones(joined).version == -1, "its end")
    joined.agree_on_zones({0: "east"}, 5)
    assert (zones(joined).agreed, zones(joined).version) == ({}, 0)


def test_a_group_is_removed_with_its_zones(sessions: list[ZkSession]):
    joined = member(sessions[1], "a", "east")
    joined.agree_on_zones({0: "east"}, 0)
    joined.leave()
    remove_group(sessions[0], "g")
    assert sessions[0].nodes.children(sessions[0].paths.groups()) == []


def test_what_a_watch_has_read_before_is_no_news(sessions: list[ZkSession]):
    joined = member(sessions[1], "a", "east")
    path = sessions[1].paths.group_zones("g")
    joined.agree_on_zones({0: "east"}, 0)
    (late,) = sessions[1].nodes.get_with_stats([path])
    assert late is not None
    joined.agree_on_zones({0: "west"}, 1)
    joined._view._agreement_is(*late)
    assert (zones(joined).agreed, zones(joined).version) == ({0: "west"}, 2)
