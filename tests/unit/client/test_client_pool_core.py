"""When a client tries again to reach a broker, and which connections it gives up: no thread, no socket, no clock."""

import pytest

from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import Endpoint
from metaq.client.transport.core import LAST_ANSWERS_SECONDS, LISTENER_SECONDS, Due, Link, PoolCore, proves_nothing
from metaq.client.transport.wire import NoListener
from metaq.protocol.errors import (
    AccessRefused,
    BrokerUnavailable,
    CannotConnect,
    LeaderMoved,
    NotLeader,
    RequestTimedOut,
)

A, B, C = (Endpoint("127.0.0.1", port) for port in (1, 2, 3))
CONFIG = ConnectionConfig(reconnect_min_seconds=1.0, reconnect_max_seconds=4.0)


class Pool(PoolCore[Link[str]]):
    """Its connections are names."""

    def __init__(self) -> None:
        super().__init__(CONFIG, Link, lambda: 0.0)

    def connects(self, endpoint: Endpoint) -> Link[str]:
        link = self.link(endpoint, 0.0)
        assert self.connected(link, str(endpoint))
        return link


@pytest.fixture
def pool() -> Pool:
    return Pool()


def test_a_broker_is_tried_again_after_pauses_that_grow_until_it_is_reached(pool):
    link, now, pauses = pool.link(A, 0.0), 0.0, []
    for _ in range(4):
        assert pool.failed(link, BrokerUnavailable("nobody there"), now)
        assert (pool.down, link.cause) == ({A}, "nobody there")
        pauses.append(link.retry_at - now)
        now = link.retry_at
        assert (pool.due(link, now - 0.1), pool.due(link, now)) == (Due.NOTHING, Due.CONNECT)
        assert pool.look_at(now - 0.1) == now
    assert pauses == [1.0, 2.0, 4.0, 4.0]
    assert pool.connected(link, "new")
    assert (pool.down, link.cause, pool.due(link, now)) == (frozenset(), "", Due.BEAT)
    pool.failed(link, BrokerUnavailable("ended"), now, "new")
    assert link.retry_at == now + 1.0


def test_a_broker_that_refuses_the_login_is_tried_seldom_and_its_refusal_is_told(pool):
    link = pool.link(A, 0.0)
    for now in (0.0, 4.0):
        assert pool.failed(link, AccessRefused("no such user"), now)
        assert (pool.down, link.retry_at) == ({A}, now + 4.0)
        told = pool.why_down(link)
        assert (type(told), str(told)) == (AccessRefused, "no such user")
    pool.failed(link, BrokerUnavailable("gone"), 8.0)
    assert link.retry_at == 9.0
    assert isinstance(pool.why_down(link), BrokerUnavailable)
    pool.failed(link, AccessRefused("no such user"), 9.0)
    pool.connected(link, "new")
    pool.failed(link, BrokerUnavailable("ended"), 10.0, "new")
    assert isinstance(pool.why_down(link), BrokerUnavailable)


def test_a_broker_that_still_lacks_the_listener_after_a_while_has_none(pool):
    """A broker that registers writes its listeners a moment after its own address."""
    link = pool.link(A, 0.0)
    for now, kind in ((1.0, BrokerUnavailable), (2.9, BrokerUnavailable), (1.0 + LISTENER_SECONDS, CannotConnect)):
        pool.failed(link, NoListener("listener=a: no such listener"), now)
        told = pool.why_down(link)
        assert (type(told), told.retriable) == (kind, kind is BrokerUnavailable)
        assert "listener=a: no such listener" in str(told)
    pool.connected(link, "a connection")
    pool.failed(link, BrokerUnavailable("it is restarted"), 9.0, "a connection")
    assert isinstance(pool.why_down(link), BrokerUnavailable), "that it once had no listener says nothing any more"


def test_the_end_of_a_connection_is_news_once_and_that_of_an_earlier_one_is_none(pool):
    link = pool.connects(A)
    assert not pool.failed(link, BrokerUnavailable("ended"), 0.0, "an earlier one")
    assert [pool.failed(link, BrokerUnavailable("ended"), 0.0, link.connection) for _ in range(2)] == [True, False]


def test_idle_links_are_looked_at_twice_in_a_second(pool):
    assert pool.look_at(7.0) == 7.5
    pool.connects(A)
    assert pool.look_at(7.0) == 7.5


def test_what_is_not_wanted_any_more_is_neither_connected_nor_down(pool):
    dropped, left = pool.link(A, 0.0), pool.link(B, 0.0)
    pool.failed(dropped, BrokerUnavailable("nobody there"), 0.0)
    pool.drop(dropped)
    newer = pool.link(A, 0.0)
    assert newer is not dropped
    pool.drop(dropped)
    assert pool.found(A, 0.0) is newer
    assert pool.close() == [left, newer]
    for link in (dropped, left, newer):
        assert not pool.connected(link, "late")
        assert not pool.failed(link, BrokerUnavailable("late"), 0.0)
    assert pool.down == frozenset()
    with pytest.raises(BrokerUnavailable, match="this client is closed"):
        pool.link(A, 0.0)


@pytest.mark.parametrize(("seconds", "left", "nothing"), [(0.5, 0.0, True), (0.5, 0.1, False), (1.0, 0.0, False)])
def test_a_try_that_had_no_time_says_nothing_of_the_broker(seconds, left, nothing):
    assert proves_nothing(seconds, left) is nothing


# --- broker sets ------------------------------------------------------------------------------------------------------


def test_only_brokers_that_are_down_and_that_nobody_lists_are_given_up(pool):
    down, master, slave, up = (pool.link(each, 0.0) for each in (A, B, C, Endpoint("127.0.0.1", 4)))
    for link in (down, master, slave):
        pool.failed(link, BrokerUnavailable("nobody there"), 0.0)
    pool.connected(up, "up")
    assert pool.listed({0: B}, [C], 0.0) == ([down], False)
    assert pool.down == {B, C}
    assert [pool.found(link.endpoint, 0.0) for link in (down, master, slave, up)] == [None, master, slave, up]


def test_a_node_that_has_named_the_leader_leads_there_until_the_view_knows_better(pool):
    assert pool.follow(NotLeader(0, str(B), str(A)), 0.0) == 0.0
    leader = pool.connects(A)
    assert leader.endpoint == B
    assert pool.found(A, 0.0) is pool.found(B, 0.0) is leader
    pool.listed({0: A}, (), 0.0)
    pool.listed({0: B}, (), 0.0)
    assert pool.found(A, 0.0) is None
    assert (pool.follow(LeaderMoved(""), 0.0), pool.follow(RequestTimedOut(""), 0.0)) == (0.0, None)


def test_a_former_leader_is_given_up_after_its_last_answers_unless_it_leads_again(pool):
    pool.listed({0: A}, (), 0.0)
    link = pool.connects(A)
    assert pool.listed({}, (), 0.0) == ([], False)  # no leader is known: it may be the same again
    assert pool.listed({0: B}, (), 0.0) == ([], True)
    assert pool.look_at(0.0) == LAST_ANSWERS_SECONDS
    assert (pool.due(link, 0.1), pool.due(link, LAST_ANSWERS_SECONDS)) == (Due.BEAT, Due.GIVE_UP)
    pool.listed({0: A}, (), 0.1)
    assert pool.due(link, 1.0) is Due.BEAT


def test_a_former_leader_that_serves_another_broker_id_keeps_its_connection(pool):
    pool.listed({0: A}, (), 0.0)
    link = pool.connects(A)
    assert pool.listed({0: B, 1: A}, (), 0.0) == ([], False)
    assert pool.due(link, 1.0) is Due.BEAT


def test_a_node_that_was_followed_before_the_view_changed_is_given_up_with_the_former_leader(pool):
    pool.listed({0: A}, (), 0.0)
    pool.follow(NotLeader(0, str(B), str(A)), 0.0)
    followed = pool.connects(A)
    pool.listed({0: C}, (), 0.0)
    assert pool.due(followed, LAST_ANSWERS_SECONDS) is Due.GIVE_UP
