"""A broker's nodes, from its registration to its end, as others see them (zookeeper.md §3)."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from metaq.coordination.brokers import registration as registration_module
from metaq.coordination.brokers.cluster_view import BrokerNodes, ClusterView, TopicReplica
from metaq.coordination.brokers.registration import BrokerAddress, BrokerRegistration, TopicRegistration
from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.session.zk_session import SessionEvent, ZkSession
from metaq.protocol.errors import ConfigError, CoordinationError, SessionLost
from tests.integration.background import Repeating
from tests.integration.coordination_helpers import deaf, expire, hear_all, session_at, tree, wait_for
from tests.waiting import DEADLINE, assert_within

MASTER = BrokerAddress(0, None, "127.0.0.1", 8123)
SLAVE = BrokerAddress(0, 1, "127.0.0.1", 8124)
SUCCESSOR = BrokerAddress(0, None, "127.0.0.1", 9999)
ORDERS = TopicRegistration("orders", 3)
EVENTS = TopicRegistration("events", 12)


@pytest.fixture
def other(chroot: str) -> Iterator[ZkSession]:
    """An observer's, or another broker's."""
    with session_at(chroot) as session:
        yield session


@pytest.fixture
def view(other: ZkSession) -> ClusterView:
    return ClusterView(other)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the log says of nodes that were deleted."""
    return lambda: [record.getMessage() for record in caplog.records if "deleted" in record.getMessage()]


def registration(session: ZkSession, address: BrokerAddress = MASTER) -> BrokerRegistration:
    return BrokerRegistration(session, address, 1929209308, backoff=Backoff(0.01, 0.1))


def ephemerals(session: ZkSession) -> dict[str, bytes | None]:
    return {path: data for path, (data, ephemeral) in tree(session.zk).items() if ephemeral}


# --- registering ------------------------------------------------------------------------------------------------------


def test_the_nodes_are_created_in_the_order_of_1x_by_zxid(session: ZkSession, other: ZkSession):
    registration(session).register([ORDERS, EVENTS])
    paths = session.paths
    expected = [paths.master(0), paths.broker(0), paths.master_config_checksum(0)]
    for topic in ("orders", "events"):
        expected += [
            paths.topic_broker(topic, "0-m"),
            paths.topic_pub_broker(topic, "0-m"),
            paths.topic_sub_broker(topic, "0-m"),
        ]
    zxids = [other.zk.get(path)[1].mzxid for path in expected]
    assert zxids == sorted(zxids)
    assert len(set(zxids[:4])) == 4  # the broker's own nodes one by one, then the topics


def test_a_registered_broker_is_seen_with_its_address_and_partitions(session: ZkSession, view: ClusterView):
    registration(session).register([ORDERS, TopicRegistration("events", 2)])
    assert view.brokers() == {0: BrokerNodes(MASTER)}
    assert view.topics() == view.live_topics() == ["events", "orders"]
    assert view.topic_partitions("orders") == [(0, 0), (0, 1), (0, 2)]
    assert view.topic_partitions("events", publish=False) == [(0, 0), (0, 1)]
    assert view.topic_partitions("missing") == []
    assert view.topic_partitions_many(["events", "missing", "orders"]) == [
        [(0, 0), (0, 1)],
        [],
        [(0, 0), (0, 1), (0, 2)],
    ]


def test_producers_see_numeric_order_and_consumers_that_of_strings(
    session: ZkSession, other: ZkSession, view: ClusterView
):
    registration(session, BrokerAddress(10, None, "127.0.0.1", 1)).register([ORDERS])
    registration(other, BrokerAddress(2, None, "127.0.0.1", 2)).register([EVENTS, TopicRegistration("orders", 11)])
    numeric = [(2, number) for number in range(11)] + [(10, number) for number in range(3)]
    assert view.topic_partitions("orders") == numeric
    assert view.consumer_partitions("orders") == (
        ["10-0", "10-1", "10-2", "2-0", "2-1", "2-10"] + [f"2-{number}" for number in range(2, 10)]
    )


def test_a_topic_that_is_not_accepted_is_not_registered_for_it(session: ZkSession, view: ClusterView):
    registration(session).register(
        [TopicRegistration("in", 1, subscribe=False), TopicRegistration("out", 1, publish=False)]
    )
    assert (view.topic_partitions("in"), view.consumer_partitions("in")) == ([(0, 0)], [])
    assert (view.topic_partitions("out"), view.consumer_partitions("out")) == ([], ["0-0"])
    assert (view.topics(), view.live_topics()) == (["in", "out"], ["in"])
    assert session.nodes.children(session.paths.topic("out")) == ["0-m"]


def test_a_topic_may_come_later_and_change(session: ZkSession, view: ClusterView):
    broker = registration(session)
    broker.add_topic("early", 1)
    assert view.topics() == []
    broker.register()
    assert view.topic_partitions("early") == [(0, 0)]
    broker.add_topic("late", 2)
    assert view.topic_partitions("late") == [(0, 0), (0, 1)]
    changes: list[str] = []
    view.watch_topic("late", changes.append)
    wait_for(lambda: changes, "the first look")
    broker.add_topic("late", 3)
    wait_for(lambda: len(changes) > 1, "a change of the children, because data is not watched")
    assert len(view.topic_partitions("late")) == 3
    broker.add_topic("late", 3, publish=False)
    assert view.topic_partitions("late") == []
    assert len(view.consumer_partitions("late")) == 3


def test_a_new_checksum_is_published_by_masters(session: ZkSession, other: ZkSession):
    broker, slave = registration(session), registration(other, SLAVE)
    broker.register()
    slave.register()
    broker.update(-1)
    slave.update(5)
    path = session.paths.master_config_checksum(0)
    assert session.nodes.get(path) == (b"4294967295", session.session_id)


def test_a_changed_topic_is_made_anew_at_one_moment(session: ZkSession, other: ZkSession):
    broker = registration(session)
    broker.register([ORDERS, EVENTS])
    paths = [of("orders") for of in (session.paths.topic, session.paths.topic_pub, session.paths.topic_sub)]
    before = [other.zk.exists(path) for path in paths]
    broker.update(7, [TopicRegistration("orders", 5)])
    after = [other.zk.exists(path) for path in paths]
    # pzxid: the transaction that last changed the children; a deletion and a creation are two changes
    assert len({stat.pzxid for stat in after}) == 1
    assert [new.cversion - old.cversion for old, new in zip(before, after, strict=True)] == [2] * 3


def test_what_a_reload_changed_while_the_session_ended_is_published_with_the_next(session: ZkSession, other: ZkSession):
    broker = registration(session)
    broker.register([ORDERS])
    with deaf(session):
        expire(session)
        with pytest.raises(SessionLost):
            broker.update(7, [TopicRegistration("orders", 5), EVENTS])
    path = session.paths.master_config_checksum(0)
    wait_for(lambda: (other.nodes.get(path) or ("", 0))[0] == b"7", "the new checksum")
    wait_for(lambda: len(ClusterView(other).topic_partitions("orders")) == 5, "the new count")
    wait_for(lambda: len(ClusterView(other).topic_partitions("events")) == EVENTS.partitions, "the new topic")


def test_a_slave_registers_itself_and_its_topics_only(session: ZkSession, other: ZkSession, view: ClusterView):
    registration(session, SLAVE).register([ORDERS])
    assert set(session.nodes.children(session.paths.broker(0))) == {"slave1"}
    assert view.brokers() == {0: BrokerNodes(None, (SLAVE,))}
    assert view.topic_partitions("orders") == []
    assert view.consumer_partitions("orders") == ["0-0", "0-1", "0-2"]
    registration(other).register([ORDERS])
    assert view.brokers() == {0: BrokerNodes(MASTER, (SLAVE,))}
    assert view.replicas("orders", publish=False) == [TopicReplica(0, None, 3), TopicReplica(0, 1, 3)]
    assert view.consumer_partitions("orders") == ["0-0", "0-1", "0-2"]


def test_a_broker_with_many_topics_registers_and_unregisters_in_seconds(session: ZkSession, view: ClusterView):
    broker = registration(session)
    topics = [TopicRegistration(f"topic-{number:04}", 1) for number in range(700)]

    def attempt() -> float:
        started = time.monotonic()
        broker.register(topics)
        broker.unregister()
        return time.monotonic() - started

    assert_within(15, attempt)
    assert len(view.topics()) == 700
    assert ephemerals(session) == {}


# --- what others see meanwhile ----------------------------------------------------------------------------------------


def test_nobody_sees_a_topic_without_its_broker(session: ZkSession, other: ZkSession):
    topics = [TopicRegistration(f"t{number}", 2) for number in range(20)]
    view = ClusterView(other)
    sightings: list[int] = []
    orphans: list[int] = []

    def node() -> int | None:
        """The transaction that made the topic's node: each registration makes a new one."""
        stat = other.zk.exists(other.paths.topic_sub_broker("last", "0-m"))
        return None if stat is None else int(stat.czxid)

    def look(number: int) -> None:
        if seen := node():
            sightings.append(number)
            # the topic was there before the brokers are read: it must have one, unless its node has gone meanwhile
            if not view.brokers() and node() == seen:
                orphans.append(number)

    with Repeating(look, 0.0) as watchdog:
        for _ in range(5):
            broker = registration(session)
            broker.register([*topics, TopicRegistration("last", 1)])
            seen = len(sightings)
            wait_for(lambda seen=seen: len(sightings) > seen, "a look at the broker")  # type: ignore[misc]
            broker.unregister()
    assert watchdog.done > 20
    assert (watchdog.errors, orphans) == ([], [])


# --- unregistering ----------------------------------------------------------------------------------------------------


def test_a_clean_stop_removes_all_of_the_brokers_nodes_at_one_moment(session: ZkSession, other: ZkSession):
    broker = registration(session)
    broker.register([ORDERS, EVENTS])
    parents = [session.paths.broker(0), session.paths.topic("orders"), session.paths.topic_sub("events")]
    broker.unregister()
    assert ephemerals(other) == {}
    # pzxid: the transaction that last changed the children
    gone = {other.zk.exists(path).pzxid for path in parents[1:]}
    assert len(gone) == 1
    assert other.zk.exists(parents[0]) is None
    broker.unregister()


def test_the_legacy_node_is_emptied_while_slaves_remain(session: ZkSession, other: ZkSession):
    broker = registration(session)
    broker.register([ORDERS])
    registration(other, SLAVE).register([ORDERS])
    broker.unregister()
    assert session.nodes.get(session.paths.broker(0)) == (b"", 0)
    assert session.nodes.children(session.paths.broker(0)) == ["slave1"]


def test_a_stop_goes_on_although_somebody_removed_a_node(session: ZkSession, other: ZkSession):
    broker = registration(session)
    broker.register([ORDERS, EVENTS])
    other.zk.delete(session.paths.topic_pub_broker("orders", "0-m"))
    broker.unregister()
    assert ephemerals(other) == {}


def test_unregistered_it_stays_so_over_an_expiry(session: ZkSession, other: ZkSession):
    broker = registration(session)
    broker.register([ORDERS])
    broker.unregister()
    expire(session)
    hear_all(session)
    assert ephemerals(other) == {}


def test_a_broker_whose_place_was_taken_leaves_its_successor_alone(session: ZkSession, other: ZkSession):
    broker = registration(session)
    broker.register([ORDERS])
    with deaf(session):
        expire(session)
        registration(other, SUCCESSOR).register([ORDERS])
        before = ephemerals(other)
        with pytest.raises(SessionLost):
            broker.add_topic("more", 1)
        broker.unregister()
        assert ephemerals(other) == before
        assert other.nodes.get(other.paths.broker(0)) == (b"meta://127.0.0.1:9999", 0)


# --- an expired session -----------------------------------------------------------------------------------------------


def test_after_an_expiry_everything_is_registered_again(session, other, told):
    broker = registration(session)
    broker.register([ORDERS])
    broker.add_topic("later", 2, subscribe=False)
    before = ephemerals(other)
    expire(session)
    wait_for(lambda: ephemerals(other) == before and broker.registered, "the same nodes")
    owners = {other.zk.get(path)[1].ephemeralOwner for path in before}
    assert owners == {session.session_id}
    broker._presence.again()
    broker._presence._task.close(DEADLINE)
    assert told() == []


def test_after_an_expiry_it_waits_until_a_successor_has_gone(session: ZkSession, other: ZkSession):
    broker, successor = registration(session), registration(other, SUCCESSOR)
    broker.register([ORDERS])
    before = ephemerals(other)
    with deaf(session):
        expire(session)
        successor.register([EVENTS])
    threading.Timer(0.3, successor.unregister).start()
    wait_for(lambda: ephemerals(other) == before, "the comeback")


# --- stale nodes ------------------------------------------------------------------------------------------------------


def test_the_stale_nodes_of_its_own_earlier_life_are_replaced_at_once(session, other, caplog):
    registration(other).register([ORDERS, EVENTS])  # crashed: its session still lives
    before = ephemerals(other)
    started = time.monotonic()
    registration(session).register([ORDERS, EVENTS])
    assert time.monotonic() - started < session.session_timeout
    assert (ephemerals(session), caplog.text) == (before, "")
    other.close()  # the end of the old session takes nothing away
    assert ephemerals(session) == before
    assert {session.zk.get(path)[1].ephemeralOwner for path in before} == {session.session_id}


def test_a_first_registration_is_told_as_such(session: ZkSession, caplog):
    broker = registration(session)
    broker.register([ORDERS])
    broker._presence._session_changed(SessionEvent.CONNECTED)  # late news of the session on which it is registered
    broker._presence._task.close(DEADLINE)
    assert caplog.text == ""


def test_another_brokers_node_is_waited_for(session: ZkSession, other: ZkSession):
    registration(other, SUCCESSOR).register([ORDERS])
    threading.Timer(0.5, other.close).start()  # its session ends
    registration(session).register([ORDERS])
    assert ephemerals(session)[session.paths.master(0)] == b"meta://127.0.0.1:8123"


def test_a_broker_id_in_use_is_refused_with_the_other_brokers_address(chroot: str, other: ZkSession):
    registration(other, BrokerAddress(0, None, "10.1.2.3", 9999)).register()
    with (
        session_at(chroot, timeout=3.0) as session,
        pytest.raises(ConfigError, match=r"brokerId=0: in use by 10\.1\.2\.3:9999 .*choose another id"),
    ):
        registration(session).register([ORDERS])
    assert set(ephemerals(other)) == {other.paths.master(0), other.paths.master_config_checksum(0)}


def test_a_stop_ends_the_wait_for_another_brokers_node(session: ZkSession, other: ZkSession):
    registration(other, SUCCESSOR).register()
    broker = registration(session)
    failed: list[Exception] = []

    def register() -> None:
        try:
            broker.register()
        except CoordinationError as error:
            failed.append(error)

    waiting = threading.Thread(target=register)
    waiting.start()
    started = time.monotonic()
    broker.unregister()
    waiting.join(DEADLINE)
    assert time.monotonic() - started < session.session_timeout / 2
    assert "left while it waited" in str(failed[0])


# --- deleted by others ------------------------------------------------------------------------------------------------


def test_a_broker_whose_root_is_deleted_registers_again_and_says_so(session, other, view, told):
    broker = registration(session)
    broker.register([ORDERS, EVENTS])
    before = tree(other.zk)
    other.zk.delete(session.paths.root, recursive=True)
    wait_for(lambda: told() and broker.registered, "the new registration")
    assert tree(other.zk) == before
    assert view.brokers() == {0: BrokerNodes(MASTER)}
    (line,) = told()
    assert session.paths.master(0) in line
    assert "7 more" in line


def test_a_deleted_chroot_comes_back_with_the_brokers_nodes(session, other, chroot, told):
    broker = registration(session)
    broker.register([ORDERS])
    before = tree(other.zk)
    server, _, path = chroot.partition("/")
    with session_at(server) as outside:
        outside.zk.delete(f"/{path}", recursive=True)
    wait_for(lambda: told() and broker.registered, "the new registration")
    assert tree(other.zk) == before


@pytest.mark.parametrize("address", [MASTER, SLAVE])
def test_a_brokers_own_node_that_is_deleted_comes_back(session, other, told, address):
    broker = registration(session, address)
    broker.register([ORDERS])
    before = ephemerals(other)
    own = session.paths.master(0) if address is MASTER else session.paths.slave(0, 1)
    other.zk.delete(own)
    wait_for(lambda: told() and broker.registered, "the new registration")
    assert ephemerals(other) == before
    assert told()[0].count("/") == own.count("/")


def test_a_deleted_topic_comes_back_with_the_next_look_at_all_nodes(session, other, told, monkeypatch):
    monkeypatch.setattr(registration_module, "LOOK_SECONDS", 0.1)
    broker = registration(session)
    broker.register([ORDERS, EVENTS])
    before = ephemerals(other)
    deleted = session.paths.topic_pub_broker("orders", "0-m")
    other.zk.delete(deleted)
    wait_for(told, "the new registration")
    assert ephemerals(other) == before
    assert [line.partition(" (")[2].partition(")")[0] for line in told()] == [deleted]


def test_a_broker_is_not_registered_while_its_node_is_missing(session, other, monkeypatch):
    monkeypatch.setattr(registration_module, "_PAUSE", DEADLINE)
    broker = registration(session)
    assert not broker.registered
    broker.register([ORDERS])
    assert broker.registered
    other.zk.delete(session.paths.master(0))
    wait_for(lambda: not broker.registered, "the missing node")


def test_a_broker_whose_node_another_process_has_taken_does_not_fight_for_it(session, other, told, caplog):
    broker = registration(session)
    broker.register([ORDERS])
    own = session.paths.master(0)
    for url in (b"meta://127.0.0.1:9999", b"meta://127.0.0.1:8123"):  # another broker; this one, started once more
        theirs = other.zk.transaction()
        theirs.delete(own)
        theirs.create(own, url, ephemeral=True)
        theirs.commit()
        wait_for(lambda: not broker.registered, "the loss")
        broker._presence._task.close(DEADLINE)
        assert session.nodes.get(own) == (url, other.session_id)
    assert told() == []
    assert caplog.text.count("another process has taken") == 1


def test_a_broker_registers_again_when_the_process_that_took_its_node_is_gone(session, other, chroot):
    broker = registration(session)
    broker.register([ORDERS])
    before = ephemerals(session)
    with session_at(chroot) as third:
        theirs = third.zk.transaction()
        theirs.delete(session.paths.master(0))
        theirs.create(session.paths.master(0), b"meta://127.0.0.1:9999", ephemeral=True)
        theirs.commit()
        wait_for(lambda: not broker.registered, "the loss")
    wait_for(lambda: broker.registered, "the comeback")
    assert ephemerals(other) == before


def test_nodes_that_are_deleted_again_and_again_are_made_anew_at_a_bounded_rate(session, other, told, monkeypatch):
    monkeypatch.setattr(registration_module, "_PAUSE", 0.5)
    registration(session).register([ORDERS])
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        with suppress(NoNodeError):
            other.zk.delete(session.paths.master(0))
        time.sleep(0.01)
    assert 1 <= len(told()) <= 4


def test_what_is_deleted_after_the_end_stays_deleted(session, other, told, monkeypatch):
    monkeypatch.setattr(registration_module, "_PAUSE", 0.1)
    broker = registration(session)
    broker.register([ORDERS])
    other.zk.delete(session.paths.master(0))
    broker.unregister()
    assert not broker.registered
    time.sleep(0.5)
    assert ephemerals(other) == {}


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tools(chroot: str) -> Iterator[KazooClient]:
    """Somebody who writes what does not belong there."""
    client = KazooClient(chroot)
    client.start()
    yield client
    client.stop()
    client.close()


def test_damaged_entries_are_left_out_and_logged(session, view, tools, caplog):
    registration(session).register([ORDERS])
    paths = session.paths
    tools.ensure_path(paths.broker_ids() + "/no-number")
    tools.create(paths.master(7), b"http://elsewhere", makepath=True)
    tools.create(paths.topic_pub_broker("orders", "7-m"), b'{"numParts":3,"broker":"7-m","more":1}')
    tools.create(paths.topic_pub_broker("orders", "stray"), b"")
    tools.create(paths.topic_pub_broker("orders", "8-m"), b"null")
    assert view.brokers() == {0: BrokerNodes(MASTER)}
    assert view.topic_partitions("orders") == [(0, 0), (0, 1), (0, 2)]
    for damage in ("no-number", "http://elsewhere", "more", "stray"):
        assert damage in caplog.text
