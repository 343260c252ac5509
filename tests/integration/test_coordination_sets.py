"""Broker sets on a real ZooKeeper: presence, views, and who wins when several want the same."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import pytest

from metaq.client.questions.cluster import Cluster
from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.coordination.brokers.registration import (
    SUCCESSOR_SECONDS,
    BrokerAddress,
    BrokerRegistration,
    TopicRegistration,
)
from metaq.coordination.records.payloads import format_broker_url
from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.session.znodes import create_ephemeral, delete, set_data
from metaq.coordination.sets.broker_set import BrokerSet, SetMaster, SetNode, SetState, SetView
from metaq.coordination.sets.set_admin import forget_set, write_state
from metaq.coordination.sets.set_view import read_set, read_sets, set_ids, watch_set
from metaq.protocol.errors import ConfigError, CoordinationError, CoordinationUnavailable, SessionLost
from tests.integration.background import Repeating
from tests.integration.cli_helpers import Operator
from tests.integration.coordination_helpers import deaf, expire, session_at, wait_for
from tests.integration.gate import Gate
from tests.waiting import DEADLINE

SET = 0
ROUNDS = 50


@dataclass
class Node:
    """A node of the set with a session of its own, and the views that it was told."""

    session: ZkSession
    set: BrokerSet
    views: list[SetView] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.set.node.name

    def state(self, epoch: int, *in_sync: str) -> SetState:
        """With this node as the leader."""
        return SetState(epoch, self.name, dict.fromkeys(in_sync or (self.name,), "x"))

    def lead(self, epoch: int, *in_sync: str) -> int:
        """Take over whatever the set is like; return the new version."""
        view = self.set.read()
        version = self.set.take_over(self.state(epoch, *in_sync), view.version, view.master)
        assert version is not None
        return version

    def sees(self, condition: Callable[[SetView], object], what: str) -> SetView:
        wait_for(lambda: self.views and condition(self.views[-1]), what)
        return self.views[-1]


Start = Callable[..., Node]


@pytest.fixture
def start(chroot: str) -> Iterator[Start]:
    """`start(name)` starts a node of the set."""
    with ExitStack() as stack:

        def start(name: str, instance: str = "", session: ZkSession | None = None) -> Node:
            node = SetNode(name, format_broker_url("127.0.0.1", 8100 + ord(name[0])).decode(), "here", instance or name)
            session = session or stack.enter_context(session_at(chroot))
            views: list[SetView] = []
            part = BrokerSet(session, SET, node, views.append, backoff=Backoff(0.01, 0.1))
            part.start()
            stack.callback(part.close)
            return Node(session, part, views)

        yield start


# --- presence ---------------------------------------------------------------------------------------------------------


def test_a_node_that_starts_sees_itself_in_a_set_without_a_state(start: Start):
    a = start("a")
    view = a.sees(lambda view: view.nodes, "the first view")
    assert (view.state, view.master) == (None, None)
    assert view.nodes == {"a": a.set.node}
    assert (a.set.present, a.set.session_id) == (True, a.session.session_id)


def test_nodes_see_one_another_come_and_go(start: Start):
    a = start("a")
    b = start("b")
    a.sees(lambda view: set(view.nodes) == {"a", "b"}, "the node that came")
    b.sees(lambda view: set(view.nodes) == {"a", "b"}, "the node that was there")
    b.set.close()
    a.sees(lambda view: set(view.nodes) == {"a"}, "the node that left")


def test_an_older_state_on_a_new_session_is_revoked(start: Start):
    a = start("a")
    a.lead(1)
    before = a.sees(lambda view: view.state, "the state")
    a.set._newest += 1_000  # as if ZooKeeper had lost so many transactions
    expire(a.session)
    found = a.sees(lambda view: view.era, "the older state")
    assert before.state is not None
    assert (found.state, found.set_back, found.era) == (before.state.revoked(), False, 1)
    assert found.order > (0, a.set._newest + 1_000)
    assert a.set.change(a.state(5), found.version) is not None
    assert a.sees(lambda view: view.state == a.state(5), "what was written").order > found.order


def test_an_older_state_by_which_a_node_was_elected_since_is_told_until_somebody_writes(start: Start, chroot: str):
    a = start("a")
    a.lead(1)
    a.sees(lambda view: view.state, "the state")
    with session_at(chroot) as other:
        view = read_set(other, SET)
        a.set._newest += 1_000
        assert write_state(other, SET, a.state(2), view)
    expire(a.session)
    found = a.sees(lambda view: view.set_back, "the older state")
    assert (found.state, found.era) == (a.state(2), 1)
    assert a.set.change(a.state(5), found.version) is not None
    assert a.sees(lambda view: not view.set_back, "what was written").order > found.order


def test_a_former_session_must_show_an_older_state_for_the_time_of_a_session_before_it_is_believed(start: Start):
    a = start("a")
    a.lead(1)
    seen = a.sees(lambda view: view.state, "the state")
    now = 100.0
    a.set._clock = lambda: now
    a.set._newest += 1_000
    with pytest.raises(CoordinationError, match="a server of ZooKeeper shows an old state of broker set"):
        a.set._look()
    now += a.session.session_timeout - 0.1
    with pytest.raises(CoordinationError):
        a.set._look()
    now += 0.1
    a.set._look()
    assert seen.state is not None
    found = a.sees(lambda view: view.era and view.state and view.state.is_revoked, "the older state, revoked")
    assert found.state == seen.state.revoked()


def test_two_processes_of_one_name_are_told_apart_and_the_second_one_does_not_start(
    start: Start, monkeypatch: pytest.MonkeyPatch
):
    first = start("a", "first")
    monkeypatch.setattr("metaq.coordination.session.presence._STALE_MARGIN", -8.0)  # 2 s rather than 12
    with pytest.raises(
        ConfigError, match=r"node=a: in use by meta://127\.0\.0\.1:8197, instance first .*instance second"
    ):
        start("a", "second")
    assert first.set.read().nodes == {"a": first.set.node}


def test_a_node_replaces_the_znode_of_its_former_life_at_once(start: Start):
    former = start("a", "x")
    with deaf(former.session):
        again = start("a", "x")
        path = again.session.paths.set_node(SET, "a")
        node = again.session.nodes.get(path)
        assert node is not None
        assert node.owner == again.session.session_id


def test_a_node_is_present_again_after_its_session_expired_and_is_told_the_set_as_it_is(start: Start):
    a, b = start("a"), start("b")
    a.lead(1, "a", "b")
    b.sees(lambda view: view.state and view.master, "the leader")
    before = b.set.session_id
    with deaf(b.session):
        expire(b.session)
        version = a.set.change(a.state(1, "a"), a.set.read().version)
        with pytest.raises(SessionLost):
            b.set.change(b.state(2), version or 0)
    b.sees(lambda view: view.version == version and "b" in view.nodes, "the set as it is")
    assert b.set.session_id == b.session.session_id != before
    a.sees(lambda view: "b" in view.nodes, "the node that is back")


def test_a_node_deleted_by_hand_appears_again(start: Start):
    a, b = start("a"), start("b")
    b.session.nodes.write(b.session.session_id, [delete(b.session.paths.set_node(SET, "a"))])
    wait_for(lambda: "a" in b.set.read().nodes, "the node again")
    assert a.set.present


def test_a_node_whose_name_another_process_took_meanwhile_sees_that_and_leaves_it_alone(start: Start):
    a, b = start("a", "mine"), start("b")
    path = b.session.paths.set_node(SET, "a")
    payload = b'{"url":"meta://127.0.0.1:1","zone":"","instance":"another"}'
    assert (
        b.session.nodes.write_atomically(b.session.session_id, [delete(path), create_ephemeral(path, payload)]) is None
    )
    view = a.sees(lambda view: view.nodes["a"].instance == "another", "the other process")
    wait_for(lambda: not a.set.present, "it to know")
    assert view.nodes["a"].url == "meta://127.0.0.1:1"


# --- views ------------------------------------------------------------------------------------------------------------


def test_views_never_go_back_while_a_leader_changes_the_state_quickly(start: Start):
    a, b = start("a"), start("b")
    version = a.lead(1)
    for number in range(100):
        after = a.set.change(a.state(1, "a", f"n{number}"), version)
        assert after == version + 1
        version = after
    b.sees(lambda view: view.version == version, "the last state")
    versions = [view.version for view in b.views]
    assert versions == sorted(versions)
    assert len(versions) > 3


def test_a_view_older_than_one_before_is_not_told(start: Start, monkeypatch: pytest.MonkeyPatch):
    """As a server that lags behind would show it."""
    a = start("a")
    a.lead(1)
    current = a.sees(lambda view: view.state, "the state")
    old = replace(current, version=0, zxid=current.zxid - 1)
    given = threading.Event()

    def lagging(*_: object) -> SetView:
        if given.is_set():
            return replace(current, version=current.version + 5, zxid=current.zxid + 1)
        given.set()
        return old

    monkeypatch.setattr("metaq.coordination.sets.broker_set.read_set", lagging)
    a.session.nodes.ensure([a.session.paths.set_node(SET, "passer-by")])
    a.sees(lambda view: view.version == current.version + 5, "a newer one")
    assert old not in a.views


def test_a_view_is_told_anew_after_a_reconnection(start: Start):
    a = start("a")
    a.sees(lambda view: view.nodes, "the first view")
    told = len(a.views)
    a.session.zk.interrupt()
    wait_for(lambda: len(a.views) > told, "the view again")
    assert a.views[-1] == a.views[told - 1]


def test_a_damaged_state_is_an_error_and_is_followed_again_when_it_is_corrected(start: Start):
    a = start("a")
    path, nodes, session_id = a.session.paths.broker_set(SET), a.session.nodes, a.session.session_id
    nodes.write(session_id, [set_data(path, b"nonsense")])
    with pytest.raises(CoordinationError, match=f"{path} holds"):
        a.set.read()
    nodes.write(session_id, [set_data(path, b"")])
    assert a.set.create(a.state(1))
    a.sees(lambda view: view.state == a.state(1), "the state")


def test_a_set_is_read_and_watched_by_others_with_one_watch(start: Start, session: ZkSession):
    a, b = start("a"), start("b")
    a.lead(4, "a", "b")
    assert set_ids(session) == [SET]
    view = read_set(session, SET)
    assert read_sets(session) == {SET: view}
    assert {name: (node.address, node.zone) for name, node in view.nodes.items()} == {
        "a": (("127.0.0.1", 8197), "here"),
        "b": (("127.0.0.1", 8198), "here"),
    }
    views: list[tuple[int, SetView]] = []
    watcher = watch_set(session, SET, lambda broker_id, view: views.append((broker_id, view)))
    wait_for(lambda: views == [(SET, view)], "the first view")
    a.set.change(a.state(4, "a"), view.version)
    wait_for(lambda: len(views) == 2, "the change")
    assert views[1][1].role("b") == "out of sync"
    watcher.close()
    assert b.set.present


# --- changes ----------------------------------------------------------------------------------------------------------


def test_a_set_gets_its_first_state_once_which_is_changed_only_in_the_version_that_was_read(start: Start):
    a, b = start("a"), start("b")
    assert a.set.create(a.state(1))
    assert not b.set.create(b.state(1))
    assert b.set.read().state == a.state(1)
    version = a.set.read().version
    changed = a.set.change(a.state(1, "a", "b"), version)
    assert changed == version + 1
    assert b.set.change(b.state(2), version) is None
    assert b.set.change(b.state(2), -1) is None
    assert (b.set.read().state, b.set.read().version) == (a.state(1, "a", "b"), changed)
    assert b.set.change(b.state(2), changed) == changed + 1


def test_one_of_two_nodes_that_stand_at_once_wins_each_time(start: Start):
    """Also with a master to replace: the loser neither deletes the winner's nor leaves one of its own."""
    nodes = [start("a"), start("b")]
    with ThreadPoolExecutor(2) as pool:
        for epoch in range(1, ROUNDS + 1):
            view = nodes[0].set.read()
            together = threading.Barrier(2)

            def stand(
                node: Node, epoch: int = epoch, view: SetView = view, together: threading.Barrier = together
            ) -> int | None:
                together.wait(DEADLINE)
                return node.set.take_over(node.state(epoch, "a", "b"), view.version, view.master)

            results = list(pool.map(stand, nodes))
            winner = nodes[0] if results[0] else nodes[1]
            assert sorted(results, key=lambda each: each or 0) == [None, view.version + 1]
            after = nodes[0].set.read()
            assert after.state == winner.state(epoch, "a", "b")
            assert after.master == SetMaster(winner.set.node.url, winner.set.session_id, 1)


def test_a_node_does_not_take_over_while_there_is_a_master_that_it_was_not_told_to_delete(start: Start):
    a, b = start("a"), start("b")
    version = a.lead(1, "a", "b")
    assert b.set.take_over(b.state(2), version, None) is None
    view = b.set.read()
    assert (view.state, view.version) == (a.state(1, "a", "b"), version)
    assert view.master
    assert view.master.owner == a.set.session_id


def test_a_master_that_came_after_the_view_is_not_deleted(start: Start, session: ZkSession):
    """Neither that of a later leader of the set, nor one of a broker that is no set."""
    a, b = start("a"), start("b")
    a.lead(1, "a", "b")
    stale = b.set.read()
    a.lead(2, "a", "b")
    assert b.set.take_over(b.state(3), stale.version, stale.master) is None
    view = b.set.read()
    path = session.paths.master(SET)
    foreign = [delete(path), create_ephemeral(path, b"meta://elsewhere:1")]
    assert session.nodes.write_atomically(session.session_id, foreign) is None
    assert b.set.take_over(b.state(3), view.version, view.master) is None
    after = b.set.read()
    assert after.master == SetMaster("meta://elsewhere:1", session.session_id, 0)
    assert after.state == a.state(2, "a", "b")
    assert b.set.take_over(b.state(3), after.version, after.master) == after.version + 1


def test_a_leader_that_resigns_deletes_its_master_and_changes_the_state_at_once(start: Start):
    a, b = start("a"), start("b")
    version = a.lead(1, "a", "b")
    resigned = SetState(1, "", {"a": "x", "b": "x"}, "b")
    assert b.set.release(resigned, version) is None
    assert a.set.release(resigned, version - 1) is None
    assert a.set.release(resigned, version) == version + 1
    view = b.sees(lambda view: view.state == resigned, "the resignation")
    assert view.master is None
    assert a.set.release(resigned, version + 1) is None


def test_a_change_whose_outcome_is_unknown_is_an_error_and_a_read_tells(chroot: str, start: Start):
    hosts, _, path = chroot.partition("/")
    with Gate(hosts) as gate, session_at(f"{gate.address}/{path}", 4.0) as session:
        a, b = start("a", session=session), start("b")
        version = a.lead(1, "a", "b")
        gate.silence()
        with pytest.raises((CoordinationUnavailable, SessionLost)):
            a.set.change(a.state(1, "a"), version)
        assert b.set.read().state in (a.state(1, "a", "b"), a.state(1, "a"))
        wait_for(lambda: b.set.read().master is None, "the end of the session")
        assert b.lead(2) == b.set.read().version


# --- the leader's registration ----------------------------------------------------------------------------------------

ORDERS = TopicRegistration("orders", 3)


def registration(node: Node) -> BrokerRegistration:
    address = BrokerAddress(SET, None, *node.set.node.address)
    return BrokerRegistration(node.session, address, 7, elected=True, backoff=Backoff(0.01, 0.1))


def leading(node: Node, epoch: int = 1) -> BrokerRegistration:
    """Of the nodes a and b this one leads, with a topic."""
    found = registration(node)
    node.lead(epoch, "a", "b")
    found.register([ORDERS])
    return found


def topic_owners(node: Node) -> set[int]:
    """Sessions of the nodes that show the leader's topics and checksum; 0 for one that is missing."""
    paths = node.session.paths
    wanted = [of("orders", "0-m") for of in (paths.topic_broker, paths.topic_pub_broker, paths.topic_sub_broker)]
    found = node.session.nodes.get_many([*wanted, paths.master_config_checksum(SET)])
    return {each.owner if each else 0 for each in found}


def test_a_node_registers_topics_only_behind_its_election(start: Start):
    a, b = start("a"), start("b")
    node = registration(a)
    with pytest.raises(CoordinationError, match="0-m does not lead its set"):
        node.register([ORDERS])
    b.lead(1)
    with pytest.raises(CoordinationError, match="0-m does not lead its set"):
        node.register([ORDERS])
    assert topic_owners(a) == {0}
    a.lead(2)
    node.register([ORDERS])
    assert node.registered
    assert topic_owners(a) == {a.set.session_id}
    as_1x_writes_them = [(b"meta://127.0.0.1:8197", a.session.session_id), (b"meta://127.0.0.1:8197", 0)]
    paths = a.session.paths
    assert a.session.nodes.get_many([paths.master(SET), paths.broker(SET)]) == as_1x_writes_them


def test_the_next_leader_takes_over_the_topics_and_the_former_one_leaves_them_alone(start: Start):
    """The former leader's session lives on: it was stopped for a while, or handed over."""
    a, b = start("a"), start("b")
    former, present = leading(a), leading(b, 2)
    assert topic_owners(b) == {b.set.session_id}
    wait_for(lambda: not former.registered, "the former leader to know")
    for change in (lambda: former.add_topic("late", 1), lambda: former.update(8, [TopicRegistration("orders", 9)])):
        with pytest.raises(CoordinationError, match="does not lead"):
            change()
    former.unregister()
    assert topic_owners(b) == {b.set.session_id}
    assert b.session.nodes.get(b.session.paths.broker(SET)) == (b.set.node.url.encode(), 0)
    assert ClusterView(b.session).brokers()[SET].master == present.address
    assert present.registered


def test_the_topics_of_a_former_leader_stay_until_its_successor_has_registered_them(start: Start):
    a, b, c = start("a"), start("b"), start("c")
    former, present = leading(a), registration(b)
    view = ClusterView(c.session)
    b.lead(2, "a", "b")
    leaving = threading.Thread(target=former.unregister)
    leaving.start()
    looks_end = time.monotonic() + 0.5
    while time.monotonic() < looks_end:
        assert len(view.topic_partitions("orders")) == 3
        assert view.set_leaders() == {SET: None}
    present.register([ORDERS])
    assert view.set_leaders() == {SET: b.set.session_id}
    leaving.join(DEADLINE)
    assert topic_owners(b) == {b.set.session_id}


def test_a_former_leader_waits_two_seconds_for_a_successor_that_registers_nothing(start: Start):
    a, b = start("a"), start("b")
    former = leading(a)
    b.lead(2, "a", "b")
    begun = time.monotonic()
    former.unregister()
    assert SUCCESSOR_SECONDS <= time.monotonic() - begun < SUCCESSOR_SECONDS + DEADLINE
    assert topic_owners(b) == {0}


def test_topics_of_a_set_are_not_seen_as_complete_before_the_last_one_is_registered(start: Start):
    """Neither while they are registered nor while they are taken back."""
    a, b = start("a"), start("b")
    node = registration(a)
    a.lead(1, "a")
    topics = [TopicRegistration(f"topic-{number:03}", 1) for number in range(200)]
    view = ClusterView(b.session)
    torn: list[int] = []
    whole: list[int] = []

    def look(_step: int) -> None:
        before = view.set_leaders()[SET]
        found = len(view.live_topics())
        if before is not None and view.set_leaders()[SET] == before:
            (whole if found == len(topics) else torn).append(found)

    with Repeating(look, 0.0) as watching:
        node.register(topics)
        wait_for(lambda: whole, "a look at all topics")
        node.unregister()
    assert (watching.errors, torn) == ([], [])


def test_a_cluster_shows_a_sets_topics_only_while_it_has_a_leader(start: Start, chroot: str):
    a, b = start("a"), start("b")
    former, present = leading(a), registration(b)
    with Cluster(chroot, patience_seconds=DEADLINE) as cluster:
        assert len(cluster.readable("orders")) == 3
        former.unregister()  # it has lost its place, and nobody has been elected

        def elect() -> None:
            b.lead(2, "a", "b")
            time.sleep(0.3)
            present.register([ORDERS])

        electing = threading.Timer(0.3, elect)
        electing.start()
        assert len(cluster.partitions("orders")) == 3
        assert cluster.view.brokers()[SET].master == present.address
        electing.join()


def test_a_cluster_gives_up_a_set_that_nobody_leads_and_waits_for_it_again_after_its_next_leader(
    start: Start, chroot: str, caplog: pytest.LogCaptureFixture
):
    a = start("a")
    with Cluster(chroot, patience_seconds=1.0) as cluster:
        begun = time.monotonic()
        assert cluster.readable("orders") == []
        assert time.monotonic() - begun >= 0.7
        begun = time.monotonic()
        assert [cluster.readable("orders") for _ in range(10)] == [[]] * 10
        assert time.monotonic() - begun < 10 * 0.7
        assert caplog.messages.count("broker sets without a leader: 0") == 1  # of the first one: no other has waited
        former = leading(a)
        assert len(cluster.readable("orders")) == 3
        former.unregister()
        begun = time.monotonic()
        assert cluster.readable("orders") == []
        assert time.monotonic() - begun >= 0.7


def test_a_leader_whose_session_expired_is_registered_again_only_by_its_next_election(
    start: Start, caplog: pytest.LogCaptureFixture
):
    a, b = start("a"), start("b")
    node = leading(a)
    expire(a.session)
    b.sees(lambda view: view.state and not view.master, "the end of the master")
    seen = a.sees(lambda view: view.state and not view.master and "a" in view.nodes, "the set without its master")
    time.sleep(0.5)  # nothing is to happen
    assert (a.set.read(), topic_owners(b), node.registered) == (seen, {0}, False)
    assert caplog.text.count("no longer leads its set") == 1
    assert "presence of broker 0-m failed" not in caplog.text  # it waits for the election, and does not try
    a.lead(2, "a", "b")
    wait_for(lambda: topic_owners(b) == {a.set.session_id}, "the topics again")
    wait_for(lambda: node.registered, "it to know")


def test_a_master_deleted_by_hand_is_seen_by_all_and_made_again_only_by_an_election(start: Start):
    a, b = start("a"), start("b")
    node = leading(a)
    b.sees(lambda view: view.master, "the master")
    b.session.nodes.write(b.session.session_id, [delete(b.session.paths.master(SET))])
    for each in (a, b):
        each.sees(lambda view: view.state and not view.master, "its end")
    wait_for(lambda: not node.registered, "it to know")
    time.sleep(1.5)  # longer than the pause before nodes are restored
    assert b.set.read().master is None
    assert a.lead(2, "a", "b") == 2
    wait_for(lambda: node.registered, "it to be registered again")


def test_topics_of_an_elected_broker_deleted_by_hand_are_made_again(start: Start):
    a, b = start("a"), start("b")
    leading(a)
    paths = b.session.paths
    checksum = paths.master_config_checksum(SET)  # below the broker's id, so it is missed at once
    b.session.nodes.write(b.session.session_id, [delete(paths.topic_broker("orders", "0-m")), delete(checksum)])
    wait_for(lambda: topic_owners(b) == {a.set.session_id}, "the nodes again")


def test_a_leader_that_unregisters_keeps_its_master_until_it_resigns(start: Start):
    a, b = start("a"), start("b")
    leading(a).unregister()
    assert topic_owners(b) == {0}
    assert b.session.nodes.get(b.session.paths.broker(SET)) == (b"", 0)
    view = b.set.read()
    assert view.master
    assert view.master.owner == a.set.session_id
    assert a.set.release(SetState(1, "", {"a": "x", "b": "x"}), view.version) == view.version + 1


# --- metaq brokers sets -----------------------------------------------------------------------------------------------


def test_an_operator_sees_the_nodes_of_a_set_with_their_roles(start: Start, chroot: str):
    operator = Operator(chroot)
    nothing = operator.refused("brokers", "sets")  # also what an operator sees whose ZooKeeper has lost everything
    assert "has no broker set" in nothing
    assert "`metaq brokers elect ID --unclean --node NODE`" in nothing
    a, b = start("a"), start("b")
    view = a.set.read()
    a.set.take_over(SetState(3, "a", {"a": "x", "gone": "x"}, "b"), view.version, None)
    fields = ("set", "node", "role", "epoch", "zone", "address", "preferred")
    ran = operator.ran("brokers", "sets", "--json")
    assert ran.code == 1  # nothing listens at 8197: how far the others are is unknown, and that is said
    assert "broker set 0: its leader a does not tell how far the others are: " in ran.err
    rows = json.loads(ran.out)
    more = ("lag_bytes", "lag_seconds", "since_ms", "error", "refusing", "under_replicated", "differences")
    assert all(tuple(row) == (*fields, *more) for row in rows)
    assert [tuple(row[field] for field in fields) for row in rows] == [
        (0, "a", "leader", 3, "here", "127.0.0.1:8197", False),
        (0, "b", "out of sync", 3, "here", "127.0.0.1:8198", True),
        (0, "gone", "gone, was in-sync", 3, None, None, False),
    ]
    assert {row["lag_bytes"] for row in rows} == {None}
    table = operator.ran("brokers", "sets")
    header, *lines = [line.split() for line in table.out.splitlines() if line.strip() and line.strip(" ─-")]
    assert header[:7] == ["SET", "NODE", "ROLE", "EPOCH", "ZONE", "ADDRESS", "PREFERRED"]
    assert header[7:] == ["LAG", "BYTES", "LAG", "SINCE", "ERROR"]
    assert lines[0] == ["0", "a", "leader", "3", "here", "127.0.0.1:8197", "no", *"----"]
    assert b.set.present


def test_an_operator_is_told_of_a_set_without_a_leader_by_the_exit_code(start: Start, chroot: str):
    a = start("a")
    version = a.lead(1)
    assert "no leader" not in Operator(chroot).ran("brokers", "sets").err
    a.set.release(SetState(1, "", {"a": "a"}), version)
    ran = Operator(chroot).ran("brokers", "sets")
    assert ran.code == 1
    assert "no leader in broker set 0" in ran.err
    assert "in-sync" in ran.out


def test_an_operator_looks_at_one_set_however_another_is(start: Start, chroot: str):
    start("a").lead(1)
    with session_at(chroot) as session:
        assert write_state(session, 5, SetState(3, "w", {"w": "w"}), SetView(None, -1))
    operator = Operator(chroot)
    assert [row["node"] for row in json.loads(operator.ran("brokers", "sets", "--json").out)] == ["a", "w"]
    ran = operator.ran("brokers", "sets", "5", "--in-sync", "1")
    assert ran.code == 1
    assert "gone, was leader" in ran.out
    assert "broker set 5 has 0 in-sync nodes, not 1: none; no leader in broker set 5" in ran.err
    ran = operator.ran("brokers", "sets", "0", "--in-sync", "1")
    assert "set 5" not in ran.err
    assert " w " not in ran.out
    assert "is no broker set" in operator.refused("brokers", "sets", "9")


def test_an_operator_has_a_set_forgotten_that_is_given_up_and_no_other(start: Start, chroot: str):
    operator = Operator(chroot)
    a = start("a")
    version = a.lead(3)
    assert "present in broker set 0: a: stop them" in operator.refused("brokers", "forget", "0", "--yes")
    a.set.close()
    assert "registered at meta://127.0.0.1:8197: stop it" in operator.refused("brokers", "forget", "0", "--yes")
    assert a.set.release(SetState(3, "", {"a": "a"}), version) == version + 1
    ran = operator.ran("brokers", "forget", "0")
    assert ran.code == 1
    assert "nothing is done: with --yes ZooKeeper forgets broker set 0 (epoch 3, in sync: a)" in ran.out
    assert operator.ran("brokers", "sets").code == 1
    done = operator.json("brokers", "forget", "0", "--yes")
    assert done == {"set": 0, "done": True, "epoch": 3, "in_sync": ["a"]}
    assert operator.json("brokers", "sets") == []
    assert "is no broker set" in operator.refused("brokers", "forget", "0", "--yes")


def test_an_operator_says_that_a_node_has_left_for_good(start: Start, chroot: str):
    a, operator = start("a"), Operator(chroot)
    a.lead(1, "a", "b")
    forget = ("brokers", "forget", "0", "--yes", "--node")
    assert "b is in sync and may have data that no other node has" in operator.refused(*forget, "b")
    view = a.set.read()
    assert view.state is not None
    assert a.set.change(replace(view.state, in_sync={"a": "a"}), view.version) is not None
    assert "broker set 0 has a, b" in operator.refused(*forget, "c")
    assert "a is present at meta://127.0.0.1:8197: stop it first" in operator.refused(*forget, "a")
    ran = operator.ran("brokers", "sets")
    assert [line.split()[1:3] for line in ran.out.splitlines() if " b " in line] == [["b", "gone"]]
    assert operator.ran("brokers", "forget", "0", "--node", "b").code == 1
    assert operator.json(*forget, "b") == {"set": 0, "node": "b", "done": True}
    now = a.set.read().state
    assert now is not None
    assert (now.members, now.epoch, now.leader) == (("a",), 1, "a")


def test_a_set_that_changes_in_that_moment_is_not_forgotten(start: Start, chroot: str):
    with session_at(chroot) as session:
        assert write_state(session, SET, SetState(3, "", {"a": "a"}), SetView(None, -1))
        before = read_set(session, SET)
        a = start("a")
        assert not forget_set(session, SET, before)  # its node is there
        a.set.close()
        assert write_state(session, SET, SetState(4, "", {"a": "a"}), before)
        assert not forget_set(session, SET, before)
        assert read_set(session, SET).state == SetState(4, "", {"a": "a"})
        assert forget_set(session, SET, read_set(session, SET))
        assert read_sets(session) == {}
