"""Members of a consumer group: who is there, who owns what, and what an expiry takes away."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest

from metaq.coordination.brokers.cluster_view import BrokerNodes, ClusterView
from metaq.coordination.brokers.registration import BrokerAddress, BrokerRegistration, TopicRegistration
from metaq.coordination.groups.assignment import range_assignment
from metaq.coordination.groups.membership import GroupMembership, remove_group
from metaq.coordination.offsets.offset_store import Offset, ZooKeeperOffsetStore
from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.session.zk_session import SessionEvent, ZkSession
from metaq.coordination.session.znodes import create_ephemeral
from metaq.protocol.errors import (
    ClientError,
    ConfigError,
    CoordinationError,
    CoordinationUnavailable,
    InvalidName,
    SessionLost,
)
from tests.integration.coordination_helpers import deaf, expire, hear_all, session_at, wait_for
from tests.raising import raising
from tests.waiting import DEADLINE

BROKER = BrokerAddress(0, None, "127.0.0.1", 8123)


class Member:
    """A consumer with a session of its own, which counts its notifications."""

    def __init__(
        self,
        session: ZkSession,
        consumer: str | None = None,
        topics: tuple[str, ...] = ("t",),
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.session = session
        self._on_change = on_change
        self.changes = 0
        self.threads: set[str] = set()
        self.membership = GroupMembership(session, "g", consumer, topics, self._changed, backoff=Backoff(0.01, 0.1))

    def _changed(self) -> None:
        self.changes += 1
        self.threads.add(threading.current_thread().name)
        self._on_change()

    def joined(self) -> "Member":
        self.membership.join()
        return self

    def mine(self) -> list[str]:
        """What the strategy gives to this member now."""
        snapshot = self.membership.snapshot()
        return range_assignment(self.membership.consumer_id, snapshot.consumers["t"], snapshot.partitions["t"])


@pytest.fixture
def sessions(chroot: str) -> Iterator[list[ZkSession]]:
    with ExitStack() as stack:
        yield [stack.enter_context(session_at(chroot)) for _ in range(3)]


@pytest.fixture
def broker(sessions: list[ZkSession]) -> BrokerRegistration:
    """Twelve partitions of topic t; the third session is the broker's."""
    registration = BrokerRegistration(sessions[2], BROKER)
    registration.register([TopicRegistration("t", 12)])
    return registration


@pytest.fixture
def view(sessions: list[ZkSession]) -> ClusterView:
    return ClusterView(sessions[2])


# --- membership -------------------------------------------------------------------------------------------------------


def test_a_member_registers_its_topics_and_leaves_nothing_behind(sessions: list[ZkSession], view: ClusterView):
    member = Member(sessions[0], "c1", ("orders", "events", "orders")).joined().membership
    assert member.consumer_id == "g_c1"
    assert view.consumers("g") == {"g_c1": ["orders", "events"]}
    assert view.groups() == ["g"]
    assert member.claim("orders", "0-0")
    member.leave()
    member.leave()
    assert view.consumers("g") == {}
    assert view.owners("g", "orders") == {}
    assert member.session_id == 0


def test_members_see_each_other_and_share_the_partitions_as_java_does(sessions, broker):
    first, second = Member(sessions[0], "c1").joined(), Member(sessions[1], "c2").joined()
    wait_for(lambda: first.membership.snapshot().consumers == {"t": ("g_c1", "g_c2")}, "the news of the second")
    assert first.membership.snapshot() == second.membership.snapshot()
    assert first.membership.snapshot().brokers == {0: BrokerNodes(BROKER)}
    # the second vector of golden/assignment.json with 12 partitions
    assert first.mine() == ["0-0", "0-1", "0-10", "0-11", "0-2", "0-3"]
    assert second.mine() == ["0-4", "0-5", "0-6", "0-7", "0-8", "0-9"]


def test_a_consumer_of_other_topics_is_in_the_group_but_not_among_the_consumers_of_mine(sessions, broker):
    first, second = Member(sessions[0], "c1").joined(), Member(sessions[1], "c2", ("u", "t")).joined()
    Member(sessions[2], "c3", ("u",)).joined()
    wait_for(
        lambda: second.membership.snapshot().consumers == {"u": ("g_c2", "g_c3"), "t": ("g_c1", "g_c2")}, "the third"
    )
    wait_for(lambda: first.membership.snapshot().consumers == {"t": ("g_c1", "g_c2")}, "the second")


def test_a_consumer_that_came_again_with_other_topics_under_its_name_is_read_again(sessions, broker):
    first = Member(sessions[0], "c1", ("t", "u")).joined().membership
    second = Member(sessions[1], "c2", ("t",)).joined().membership
    wait_for(lambda: first.snapshot().consumers == {"t": ("g_c1", "g_c2"), "u": ("g_c1",)}, "the second")
    with deaf(sessions[0]):  # the watch shows the same names before and after
        second.leave()
        Member(sessions[1], "c2", ("u",)).joined()
    wait_for(lambda: first.snapshot().consumers == {"t": ("g_c1",), "u": ("g_c1", "g_c2")}, "its new topics")


def test_a_snapshot_without_a_change_asks_nothing_and_a_new_member_costs_two_requests(sessions, broker):
    member = Member(sessions[0], "c1").joined()
    others = [Member(sessions[1], f"d{number}").joined() for number in range(10)]
    wait_for(lambda: len(member.membership.snapshot().consumers["t"]) == 11, "the others")
    asked: list[object] = []
    real = sessions[0].zk._call

    def count(request: object, result: object) -> bool | None:
        asked.append(request)
        return real(request, result)  # type: ignore[no-any-return]

    sessions[0].zk._call = count
    for _ in range(100):
        member.membership.snapshot()
    assert asked == []
    Member(sessions[1], "d10").joined()
    wait_for(lambda: len(member.membership.snapshot().consumers["t"]) == 12, "the new one")
    assert len(asked) == 2, asked  # the names, with the next watch; its data
    others[0].membership.leave()
    wait_for(lambda: len(member.membership.snapshot().consumers["t"]) == 11, "one less")
    assert len(asked) == 3, asked


def test_a_refused_partition_is_told_of_when_it_is_free(sessions, broker):
    first, second = Member(sessions[0], "c1").joined(), Member(sessions[1], "c2").joined()
    assert first.membership.claim("t", "0-0")
    wait_for(lambda: len(second.membership.snapshot().consumers["t"]) == 2, "both")
    hear_all(second.session)
    told = second.changes
    assert not second.membership.claim("t", "0-0")
    assert not second.membership.claim("t", "0-0")
    first.membership.release("t", "0-0")
    wait_for(lambda: second.changes > told, "the news")
    assert second.membership.claim("t", "0-0")


def test_each_change_of_members_partitions_and_brokers_is_told_on_the_event_thread(sessions, broker):
    seen = []
    member = Member(sessions[0], "c1", on_change=lambda: seen.append(member.membership.snapshot()))
    member.joined()
    second = Member(sessions[1], "c2").membership
    slave = BrokerRegistration(sessions[1], BrokerAddress(0, 0, "127.0.0.1", 8124))
    for action, shows in (
        (second.join, lambda: seen[-1].consumers["t"] == ("g_c1", "g_c2")),
        (second.leave, lambda: seen[-1].consumers["t"] == ("g_c1",)),
        (lambda: broker.add_topic("t", 13), lambda: len(seen[-1].partitions["t"]) == 13),
        (slave.register, lambda: len(seen[-1].brokers[0].slaves) == 1),
        (slave.unregister, lambda: seen[-1].brokers == {0: BrokerNodes(BROKER)}),
        (broker.unregister, lambda: not seen[-1].brokers and not seen[-1].partitions["t"]),
    ):
        action()
        wait_for(partial(lambda shows: seen and shows(), shows), f"news of {action}")
    assert member.threads == {"metaq coordination"}


def test_after_leaving_nothing_is_told(sessions, broker):
    member = Member(sessions[0]).joined()
    wait_for(lambda: member.changes, "the first notification")
    member.membership.leave()
    before = member.changes
    other = Member(sessions[1]).joined()
    wait_for(lambda: other.changes, "a notification of the other member")
    assert member.changes == before


def test_a_configured_id_in_use_is_waited_for_until_the_other_has_gone(sessions, view):
    first, second = Member(sessions[0], "c1").joined(), Member(sessions[1], "c1")
    started = time.monotonic()
    threading.Timer(0.5, first.membership.leave).start()
    second.membership.join()
    assert time.monotonic() - started > 0.3
    node = sessions[2].nodes.get(sessions[2].paths.consumer("g", "g_c1"))
    assert node is not None
    assert node.owner == second.session.session_id


def test_a_configured_id_that_stays_in_use_is_refused(sessions, chroot):
    Member(sessions[0], "c1").joined()
    with session_at(chroot, timeout=3.0) as session, pytest.raises(ConfigError, match="consumer_id=g_c1: in use"):
        Member(session, "c1").membership.join()


def test_leaving_ends_the_wait_for_a_configured_id(sessions):
    Member(sessions[0], "c1").joined()
    second = Member(sessions[1], "c1")
    threading.Timer(0.2, second.membership.leave).start()
    with pytest.raises(CoordinationError, match="left while it waited"):
        second.membership.join()


@pytest.mark.parametrize("owners_too", [False, True], ids=["its own", "those of what it owns, too"])
def test_a_member_whose_nodes_were_removed_says_so_and_joins_again_with_what_it_owns(sessions, view, owners_too):
    member = Member(sessions[0], "c1").joined()
    assert member.membership.claim("t", "0-0")
    if owners_too:
        sessions[2].zk.delete(sessions[2].paths.owner("g", "t", "0-0"))
    sessions[2].zk.delete(sessions[2].paths.consumer("g", "g_c1"))
    wait_for(lambda: not _is_registered(member), "the news")
    wait_for(lambda: view.consumers("g") == {"g_c1": ["t"]}, "its node")
    wait_for(lambda: _is_registered(member), "the news that it is back")
    wait_for(lambda: view.owners("g", "t") == {"0-0": "g_c1"}, "its owner node")
    assert member.membership.held == {("t", "0-0")}


def test_late_news_of_the_session_on_which_it_joined_is_no_reason_to_join_again(sessions, caplog):
    member = Member(sessions[0], "c1").joined().membership
    member._presence._session_changed(SessionEvent.CONNECTED)
    member._presence._task.close(DEADLINE)
    assert caplog.text == ""


def _is_registered(member: Member) -> bool:
    try:
        member.membership.snapshot()
    except SessionLost:
        return False
    return True


# --- claims -----------------------------------------------------------------------------------------------------------


def test_a_partition_has_one_owner(sessions, broker, view):
    first, second = Member(sessions[0], "c1").joined().membership, Member(sessions[1], "c2").joined().membership
    assert first.claim("t", "0-0")
    assert first.claim("t", "0-0")  # still
    assert not second.claim("t", "0-0")
    assert second.owner("t", "0-0") == "g_c1"
    second.release("t", "0-0")  # not hers: nothing happens
    assert view.owners("g", "t") == {"0-0": "g_c1"}
    first.release("t", "0-0")
    assert second.owner("t", "0-0") is None
    assert second.claim("t", "0-0")
    assert first.held == frozenset()
    assert second.held == {("t", "0-0")}


def test_many_claims_are_one_pipeline_and_each_is_granted_or_not(sessions, broker, view):
    first, second = Member(sessions[0], "c1").joined().membership, Member(sessions[1], "c2").joined().membership
    everything = [("t", f"0-{number}") for number in range(12)]
    assert first.claim_many(everything[:3]) == set(everything[:3])
    assert second.claim_many(everything) == set(everything[3:])
    assert second.held == set(everything[3:])
    second.release_many(everything)
    assert view.owners("g", "t") == {"0-0": "g_c1", "0-1": "g_c1", "0-2": "g_c1"}
    assert second.held == frozenset()


def test_an_owner_node_of_our_name_and_another_session_is_not_ours(sessions, broker):
    member = Member(sessions[0], "c1").joined().membership
    path = sessions[1].paths.owner("g", "t", "0-0")
    sessions[1].nodes.write(sessions[1].session_id, [create_ephemeral(path, b"g_c1")])
    assert not member.claim("t", "0-0")
    member.release("t", "0-0")
    assert member.owner("t", "0-0") == "g_c1"


def test_claims_of_random_concurrent_members_never_overlap(sessions, broker, view):
    members = [Member(session, f"c{number}").joined().membership for number, session in enumerate(sessions)]
    partitions = [("t", f"0-{number}") for number in range(12)]
    with ThreadPoolExecutor(len(members)) as together:
        granted = list(together.map(lambda each: each.claim_many(partitions), members))
    assert sum(map(len, granted)) == len(set().union(*granted)) == 12
    assert len(view.owners("g", "t")) == 12


def test_when_a_member_leaves_all_of_it_goes_at_one_moment(sessions, broker):
    member = Member(sessions[0], "c1").joined().membership
    member.claim_many([("t", "0-0"), ("t", "0-1")])
    member.leave()
    paths, zk = sessions[1].paths, sessions[1].zk
    assert zk.exists(paths.owners("g", "t")).pzxid == zk.exists(paths.group_ids("g")).pzxid
    assert zk.get_children(paths.owners("g", "t")) == []


# --- expiry -----------------------------------------------------------------------------------------------------------


def test_after_an_expiry_the_member_joins_again_without_its_partitions(sessions, broker, view):
    member = Member(sessions[0], "c1").joined()
    before = member.membership.session_id
    assert member.membership.claim("t", "0-0")
    expire(member.session)
    wait_for(lambda: member.membership.session_id not in (0, before), "the new membership")
    assert view.consumers("g") == {"g_c1": ["t"]}
    assert view.owners("g", "t") == {}
    assert member.membership.held == frozenset()
    told = member.changes
    Member(sessions[1], "c2").joined()
    wait_for(lambda: member.changes > told, "a notification on the new session")
    assert member.membership.claim("t", "0-0")


def test_between_two_sessions_nothing_can_be_claimed_and_the_member_says_so(sessions, broker):
    member = Member(sessions[0], "c1").joined()
    with deaf(member.session):
        expire(member.session)
        assert member.membership.session_id == 0
        for step in (member.membership.claim, member.membership.release):
            with pytest.raises(SessionLost):
                step("t", "0-0")
    wait_for(lambda: member.membership.session_id, "the new membership")


def test_rejoining_may_be_asked_for(sessions, broker, view):
    member = Member(sessions[0], "c1").joined()
    with deaf(member.session):
        expire(member.session)
        member.membership.rejoin()
        assert member.membership.session_id == member.session.session_id
        assert member.membership.claim("t", "0-0")
    hear_all(member.session)
    assert member.membership.held == {("t", "0-0")}  # which took away nothing of the new session


def test_a_member_that_stepped_out_owns_nothing_and_is_not_in_the_group_until_it_rejoins(sessions, broker, view):
    first, second = Member(sessions[0], "c1").joined(), Member(sessions[1], "c2").joined()
    assert first.membership.claim("t", "0-0")
    first.membership.step_out()
    first.membership.step_out()
    assert (list(view.consumers("g")), view.owners("g", "t")) == (["g_c2"], {})
    assert (first.membership.session_id, first.membership.held) == (0, frozenset())
    wait_for(lambda: len(second.mine()) == 12, "the news of its leaving")
    expire(first.session)
    hear_all(first.session)  # of the new session, on which a member joins again by itself
    first.membership._presence._task.close(DEADLINE)
    assert list(view.consumers("g")) == ["g_c2"]
    first.membership.rejoin()
    assert sorted(view.consumers("g")) == ["g_c1", "g_c2"]
    assert first.membership.claim("t", "0-0")
    wait_for(lambda: len(second.mine()) == 6, "the news of its return")


def test_stepping_out_with_a_session_that_was_replaced_gives_up_nothing_of_the_new_one(sessions, broker, view):
    member = Member(sessions[0], "c1").joined()
    assert member.membership.claim("t", "0-0")
    with deaf(member.session):
        expire(member.session)
        member.membership.step_out()
    assert (view.consumers("g"), view.owners("g", "t")) == ({}, {})
    member.membership.rejoin()
    assert list(view.consumers("g")) == ["g_c1"]


def test_an_expired_owner_cannot_commit_over_its_successor(sessions, broker):
    old, new = Member(sessions[0], "c1").joined(), Member(sessions[1], "c2").joined()
    stores = [ZooKeeperOffsetStore(session) for session in sessions]
    assert old.membership.claim("t", "0-0")
    fence = old.membership.session_id
    stores[0].commit("g", {("t", "0-0"): Offset(-5, 100)}, fence)
    expire(old.session)
    assert new.membership.claim("t", "0-0")
    stores[1].commit("g", {("t", "0-0"): Offset(7, 200)}, new.membership.session_id)
    wait_for(lambda: old.membership.session_id, "the comeback of the old owner")
    with pytest.raises(SessionLost):
        stores[0].commit("g", {("t", "0-0"): Offset(6, 150)}, fence)
    with pytest.raises(SessionLost):
        stores[0].commit("g", {("t", "0-0"): Offset(6, 150)}, 0)
    assert stores[2].load("g", "t", "0-0") == Offset(7, 200)


# --- offsets ----------------------------------------------------------------------------------------------------------


def test_offsets_are_stored_as_1x_stores_them(sessions):
    store, reader = ZooKeeperOffsetStore(sessions[0]), sessions[1]
    store.commit("g", {("t", "0-0"): Offset(-5468, 31), ("u", "1-10"): Offset(-1, 0)}, None)
    assert reader.nodes.get(reader.paths.offset("g", "t", "0-0")) == (b"-5468-31", 0)
    assert reader.nodes.get(reader.paths.offset("g", "u", "1-10")) == (b"-1-0", 0)
    store.commit("g", {("t", "0-0"): Offset(8, 40), ("t", "0-1"): Offset(9, 50)}, sessions[0].session_id)
    assert store.load_many("g", [("t", "0-1"), ("t", "0-0"), ("x", "0-0")]) == [Offset(9, 50), Offset(8, 40), None]
    view = ClusterView(reader)
    assert view.committed_topics("g") == ["t", "u"]
    assert view.committed_partitions("g", "t") == ["0-0", "0-1"]


def test_a_damaged_offset_is_an_error_that_names_its_node(sessions):
    path = sessions[1].paths.offset("g", "t", "0-0")
    sessions[1].zk.create(path, b"nonsense", makepath=True)
    with pytest.raises(CoordinationError, match=rf"{path} holds b'nonsense'"):
        ZooKeeperOffsetStore(sessions[0]).load("g", "t", "0-0")


def test_thousands_of_partitions_are_claimed_committed_and_given_up(sessions: list[ZkSession]) -> None:
    first, second = Member(sessions[0]).joined().membership, Member(sessions[1]).joined().membership
    everything = [("t", f"0-{number}") for number in range(2_500)]
    assert second.claim("t", "0-1200")
    assert first.claim_many(everything) == set(everything) - {("t", "0-1200")}
    assert first.owner("t", "0-1200") == second.consumer_id

    store = ZooKeeperOffsetStore(sessions[0])
    offsets = {each: Offset(1, number) for number, each in enumerate(everything)}
    started = time.monotonic()
    store.commit("g", dict(list(offsets.items())[:1_500]), first.session_id)
    assert time.monotonic() - started < 10  # in pipelines
    ZooKeeperOffsetStore(sessions[1]).commit("g", {("t", "0-2000"): Offset(7, 7)}, None)  # a tool
    assert sum(each is not None for each in store.load_many("g", everything)) == 1_501
    sessions[0].zk.delete(sessions[0].paths.offset("g", "t", "0-10"))  # behind the store's back
    store.commit("g", offsets, first.session_id)
    assert ZooKeeperOffsetStore(sessions[1]).load_many("g", everything) == list(offsets.values())

    first.release_many(everything[:1_100])
    assert second.claim_many(everything) == set(everything[:1_100]) | {("t", "0-1200")}
    first.leave()
    assert second.claim_many(everything) == set(everything)
    second.leave()
    remove_group(sessions[1], "g")
    assert ClusterView(sessions[1]).groups() == []


def test_a_group_is_removed_with_all_it_has_kept_once_its_members_have_gone(sessions, broker, view, monkeypatch):
    member = Member(sessions[0]).joined()
    member.membership.claim("t", "0-1")
    store = ZooKeeperOffsetStore(sessions[1])
    store.commit("g", {("t", "0-1"): Offset(7, 4096)}, None)
    with pytest.raises(ClientError, match="group 'g' has live members"):
        remove_group(sessions[1], "g")
    with monkeypatch.context() as patched:  # it joins after the look
        children = sessions[1].nodes.children_many

        def without_members(paths):
            hidden = ("/ids", "/owners/t")
            found = zip(paths, children(paths), strict=True)
            return [[] if path.endswith(hidden) else names for path, names in found]

        patched.setattr(sessions[1].nodes, "children_many", without_members)
        with pytest.raises(ClientError, match="group 'g' has live members"):
            remove_group(sessions[1], "g")
    assert store.load("g", "t", "0-1") == Offset(7, 4096)
    member.membership.leave()
    remove_group(sessions[1], "g")
    assert view.groups() == []
    assert store.load("g", "t", "0-1") is None
    Member(sessions[0]).joined().membership.leave()


def test_a_member_may_subscribe_to_a_topic_more_and_all_members_see_it(sessions: list[ZkSession]) -> None:
    """A node of a consumer is read once by other members, so it is made anew, in one step."""
    first, second = Member(sessions[0]).joined(), Member(sessions[1], topics=("t", "more")).joined()
    wait_for(lambda: len(first.membership.snapshot().consumers["t"]) == 2, "both members")
    first.membership.subscribe("more")
    first.membership.subscribe("more")
    me = first.membership.consumer_id
    wait_for(lambda: me in second.membership.snapshot().consumers["more"], "its new topic")
    both = sorted((me, second.membership.consumer_id))
    for member in (first, second):
        seen = member.membership.snapshot
        wait_for(lambda seen=seen: sorted(seen().consumers["more"]) == both, "both with it")  # type: ignore[misc]
        assert sorted(member.membership.snapshot().consumers["t"]) == both
    registration = BrokerRegistration(sessions[2], BROKER)
    registration.register([TopicRegistration("more", 2)])
    wait_for(lambda: first.membership.snapshot().partitions["more"] == ("0-0", "0-1"), "its partitions")
    assert first.membership.claim("more", "0-1")
    registration.unregister()


def test_a_subscription_that_failed_half_way_is_completed_by_the_next_call(
    sessions: list[ZkSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Member(sessions[0]).joined(), Member(sessions[1], topics=("t", "more")).joined()
    me = first.membership.consumer_id
    with monkeypatch.context() as patched:
        lost = raising(CoordinationUnavailable("the connection is lost"))
        patched.setattr(first.membership, "_replace_own_node", lost)
        with pytest.raises(CoordinationUnavailable):
            first.membership.subscribe("more")
    first.membership.subscribe("more")
    for member in (first, second):
        seen = member.membership.snapshot
        wait_for(lambda seen=seen: me in seen().consumers.get("more", ()), "its new topic")  # type: ignore[misc]


def test_a_topic_that_was_subscribed_to_later_stays_with_the_next_session(sessions: list[ZkSession]) -> None:
    first, second = Member(sessions[0]).joined(), Member(sessions[1], topics=("t", "more")).joined()
    first.membership.subscribe("more")
    expire(sessions[0])
    me = first.membership.consumer_id
    wait_for(lambda: first.membership.session_id, "the next session")
    wait_for(lambda: me in second.membership.snapshot().consumers["more"], "its new topic")
    wait_for(lambda: me in first.membership.snapshot().consumers["more"], "its new topic")


def test_a_member_that_subscribes_before_it_joins_or_while_it_is_out_does_so_when_it_registers(
    sessions: list[ZkSession],
) -> None:
    first = Member(sessions[0])
    first.membership.subscribe("more")
    first.joined()
    me = first.membership.consumer_id
    assert first.membership.snapshot().consumers == {"t": (me,), "more": (me,)}
    first.membership.step_out()
    first.membership.subscribe("third")
    first.membership.rejoin()
    wait_for(lambda: me in first.membership.snapshot().consumers["third"], "the third topic")
    with pytest.raises(InvalidName, match="','"):
        first.membership.subscribe("a,b")
