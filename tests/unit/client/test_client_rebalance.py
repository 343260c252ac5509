"""The rebalance state machine: its table, and the member that carries it out, with a group in memory."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metaq.client.connection import Endpoint
from metaq.client.consumer.beginnings import Beginnings
from metaq.client.consumer.core import ConsumerCore
from metaq.client.consumer.cursor import Ask
from metaq.client.consumer.group_member import GroupMember
from metaq.client.consumer.offset_commit import OffsetCommitter, StartPosition, committer_for
from metaq.client.consumer.rebalance import TABLE, Action, Event, State, next_state
from metaq.client.consumer_config import ConsumerConfig
from metaq.client.questions.partitions import max_offset
from metaq.client.values import TopicPartition
from metaq.coordination.brokers import BrokerAddress, BrokerNodes
from metaq.coordination.group_view import GroupSnapshot
from metaq.coordination.offset_store import Offset
from metaq.protocol.errors import CoordinationUnavailable, LocalProtocolError, SessionLost
from tests.raising import raising
from tests.waiting import DEADLINE

# --- the table --------------------------------------------------------------------------------------------------------


def run(*events):
    """The states that a new member goes through."""
    state, path = State.NEW, []
    for event in events:
        state, _ = next_state(state, event)
        path.append(state.name)
    return path


def test_the_first_member_of_a_group_joins_and_claims():
    assert run(Event.STARTED, Event.JOINED, Event.GAINS, Event.CLAIMED) == ["JOINING", "PLANNING", "CLAIMING", "STABLE"]


def test_a_member_that_must_hand_over_drains_commits_and_releases_before_it_claims():
    path = run(
        Event.STARTED,
        Event.JOINED,
        Event.SETTLED,
        Event.CHANGED,
        Event.LOSSES,
        Event.DRAINED,
        Event.RELEASED,
        Event.CLAIMED,
    )
    assert path[3:] == ["PLANNING", "DRAINING", "RELEASING", "CLAIMING", "STABLE"]
    assert next_state(State.DRAINING, Event.DRAINED)[1] == (Action.RELEASE,)


@pytest.mark.parametrize("state", [State.PLANNING, State.RELEASING, State.CLAIMING])
def test_a_failed_try_is_followed_by_a_pause_and_another(state):
    later, actions = next_state(state, Event.FAILED)
    assert (later, actions) == (State.PLAN_LATER, (Action.PAUSE,))
    assert next_state(later, Event.PAUSE_OVER) == (State.PLANNING, (Action.PLAN,))


@pytest.mark.parametrize("state", [State.PLANNING, State.DRAINING, State.RELEASING, State.CLAIMING])
def test_a_change_during_a_try_is_remembered(state):
    assert next_state(state, Event.CHANGED) == (state, (Action.NOTE_CHANGE,))


@pytest.mark.parametrize("state", [State.STABLE, State.PLAN_LATER, State.JOIN_LATER, State.DRAINING])
def test_a_member_that_nobody_polls_steps_out_from_wherever_it_rests_and_joins_again_with_the_next_poll(state):
    assert next_state(state, Event.IDLE) == (State.STEPPING_OUT, (Action.STEP_OUT,))
    assert next_state(State.STEPPING_OUT, Event.STEPPED_OUT) == (State.AWAY, ())
    assert next_state(State.AWAY, Event.CHANGED) == (State.AWAY, ())
    assert next_state(State.AWAY, Event.POLLED) == (State.JOINING, (Action.JOIN,))


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", [Event.IDLE, Event.POLLED])
def test_that_nobody_polls_or_somebody_does_can_be_heard_of_at_any_time(state, event):
    next_state(state, event)


def test_stepping_out_is_tried_again_until_it_succeeds_or_somebody_polls():
    assert next_state(State.STEPPING_OUT, Event.FAILED) == (State.STEP_OUT_LATER, (Action.PAUSE,))
    assert next_state(State.STEP_OUT_LATER, Event.PAUSE_OVER) == (State.STEPPING_OUT, (Action.STEP_OUT,))
    assert next_state(State.STEP_OUT_LATER, Event.POLLED) == (State.JOINING, (Action.JOIN,))


@pytest.mark.parametrize("state", [each for each in State if each not in (State.LEAVING, State.LEFT)])
def test_closing_is_possible_at_any_time(state):
    assert next_state(state, Event.CLOSE) == (State.LEAVING, (Action.LEAVE,))


def test_a_lost_session_means_joining_again():
    assert next_state(State.CLAIMING, Event.SESSION_LOST) == (State.DISCONNECTED, (Action.ABANDON,))
    assert next_state(State.DISCONNECTED, Event.CHANGED) == (State.JOINING, (Action.JOIN,))


def test_a_pair_that_cannot_happen_raises():
    undefined = [(state, event) for state in State for event in Event if (state, event) not in TABLE]
    assert len(undefined) > 50
    for state, event in undefined:
        with pytest.raises(LocalProtocolError, match=f"{state.name}.*{event.name}"):
            next_state(state, event)


def test_no_state_but_the_last_is_a_dead_end():
    for state in State:
        leads = {to for (at, _), (to, _) in TABLE.items() if at is state and to is not state}
        assert leads or state is State.LEFT


# --- a member, with its group in memory -------------------------------------------------------------------------------


class MemoryMembership:
    """What coordination.group.GroupMembership promises, for one member; others are names in `members`."""

    def __init__(self, *partitions):
        self.group, self.consumer_id = "g", "g_me"
        self.session_id = 1
        self.last_session_id = 1
        self.is_connected = True
        self.session_timeout, self.set_backs, self.connections, self.seen_zxid = 10.0, 0, 1, 0
        self.members = ["g_me"]
        self.partitions = list(partitions)
        self.owners = {}
        self.brokers: dict[int, BrokerNodes] = {}
        self.failures = []
        self.claim_failures = []
        self.release_failures = []
        self.lost_answers = []  # of step_out: the server has done it
        self.when_free = lambda: None  # others claim now
        self.held = set()
        self.left = False
        self.out = False

    @property
    def connection(self):
        return self.connections if self.is_connected else None

    def _fail(self):
        if self.failures:
            raise self.failures.pop(0)

    def join(self):
        self._fail()

    def leave(self):
        self.left = True
        self.owners = {name: owner for name, owner in self.owners.items() if owner != "g_me"}

    def step_out(self):
        if self.lost_answers:
            self._leave_group()
            raise self.lost_answers.pop(0)
        if self.release_failures:
            raise self.release_failures.pop(0)
        self._leave_group()

    def _leave_group(self):
        self.out = True
        self.when_free()
        self.owners = {name: owner for name, owner in self.owners.items() if owner != "g_me"}

    def rejoin(self):
        self._fail()
        self.out = False

    def snapshot(self):
        self._fail()
        members = [each for each in self.members if not (self.out and each == "g_me")]
        return GroupSnapshot({"t": tuple(members)}, {"t": tuple(self.partitions)}, self.brokers)

    def claim_many(self, wanted):
        self._fail()
        granted = {each for each in wanted if self.owners.get(each[1], "g_me") == "g_me"}
        self.owners.update({name: "g_me" for _, name in granted})
        self.held |= granted
        if self.claim_failures:
            raise self.claim_failures.pop(0)  # the server has done it, and its answer is lost
        return granted

    def release_many(self, given):
        if self.release_failures:
            raise self.release_failures.pop(0)
        given = set(given)
        for _, name in given:
            if self.owners.get(name) == "g_me":
                del self.owners[name]
        self.held -= given

    def hold_again(self, partitions):
        self.held |= {each for each in partitions if self.owners.get(each[1]) == "g_me"}

    def owner(self, topic, partition):
        return self.owners.get(partition)


class MemoryStore:
    def __init__(self):
        self.offsets = {}
        self.is_elsewhere = False
        self.written_later = set()  # since the session of those that lost theirs
        self.failures = []
        self.log = []

    def load_many(self, group, names):
        return [self.offsets.get(name) for name in names]

    def changed_since(self, group, names, zxid):
        return [self.is_elsewhere or (name in self.written_later and zxid < 1 << 62) for name in names]

    def commit(self, group, offsets, fence):
        if self.failures:
            raise self.failures.pop(0)
        self.log.append((fence, dict(offsets)))
        self.offsets.update(offsets)


FROM_THE_BEGINNING = StartPosition(0)
CONFIG = ConsumerConfig()


def told(notice):
    """The user's callback has returned for all of it."""
    notice.done(notice.partitions)


class World:
    """One member whose events the test feeds; nothing runs by itself."""

    def __init__(self, *partitions, wants_notice=False, start=FROM_THE_BEGINNING, config=CONFIG):
        self.now = 0.0
        self.membership = MemoryMembership(*partitions)
        self.store = MemoryStore()
        membership, store = cast(Any, self.membership), cast(Any, self.store)
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.opened: list[tuple[str, Any]] = []
        self.asked_last: dict[str, Any] = {}
        self.woken = 0
        self.idle = False
        self.core = ConsumerCore("g", config)
        fetcher: Any = SimpleNamespace(
            serve_soon=lambda: None, wake=self.wake, brokers_are=lambda masters, others: None
        )
        timers: Any = SimpleNamespace(call_later=lambda seconds, action: self.timers.append((seconds, action)))
        self.looks: list[dict[str, list[str]]] = []  # the partitions that each plan knew
        self.sets: list[int] = []  # ids of broker sets
        view: Any = SimpleNamespace(set_ids=lambda: self.sets)
        self.committer = OffsetCommitter(store, "g", lambda: membership.connection)
        self.member = GroupMember(
            membership,
            self.committer,
            self.core,
            fetcher,
            timers,
            view,
            lambda: self.idle,
            lambda: self.now,
        )
        self.member._start = start
        missing_topics: Any = SimpleNamespace(
            look=lambda partitions: self.looks.append({each: list(names) for each, names in partitions.items()})
        )
        self.member._missing_topics = missing_topics
        if wants_notice:
            self.core.notices.on_revoked = lambda partitions: None
        claim, patched = self.core.claim, cast(Any, self.core)

        def noted(partitions, begins, *rest, **named):
            self.opened += zip(map(str, partitions), begins, strict=True)
            return claim(partitions, begins, *rest, **named)

        patched.claim = noted

    def wake(self):
        self.woken += 1

    def requests(self, now=0.0):
        """What is asked now; also by partition in `asked_last`."""
        owned = self.core.owned.values()
        found = [request for cursor in owned if (request := cursor.next_request(now)) is not None]
        self.asked_last = {str(each.cursor.partition): each for each in found}
        return found

    def record(self, requests):
        """As Beginnings does."""
        self.core.recorded(self.committer.record(requests))

    def beginnings(self):
        fetcher: Any = SimpleNamespace(go_on=lambda requests, pause=0.0: None)
        return Beginnings(self.committer, self.core, fetcher, self.member._timers, lambda: self.now)

    def run_timers(self):
        timers, self.timers[:] = list(self.timers), []
        for _, action in timers:
            action()

    def asked(self):
        """The partitions that may need a request."""
        return [str(cursor.partition) for cursor in iter(self.core.next_wanting, None)]

    def cursor(self, name):
        return self.core.owned[TopicPartition.parse("t", name)]

    def join(self):
        self.member.take(Event.STARTED)
        return self

    def start(self):
        """It is committed where the partitions begin; the store's log says what came after that."""
        self.join()
        known = [each for each in self.core.owned.values() if each.opened and not each.recorded]
        self.record([request for each in known if (request := each.next_request(0.0)) is not None])
        self.store.log.clear()
        return self

    def queued(self):
        """Let the member take what its actions and the polling thread posted."""
        while not self.member._events.empty():
            self.member.take(self.member._events.get())

    def state(self) -> State:
        return self.member.state

    def owned(self):
        return [str(partition) for partition in sorted(self.core.owned)]

    def consume(self, name, offset, identity=5):
        self.cursor(name).handed_out(offset, identity)
        self.cursor(name).acknowledge()


def test_a_lone_member_owns_everything_from_the_start_offset():
    world = World("0-0", "0-1").start()
    assert world.state() is State.STABLE
    assert world.owned() == ["0-0", "0-1"]
    assert world.opened == [("0-0", 0), ("0-1", 0)]


def test_a_stored_offset_wins_over_the_start():
    world = World("0-0")
    world.store.offsets["t", "0-0"] = Offset(9, 555)
    world.start()
    assert world.opened == [("0-0", 555)]
    assert world.cursor("0-0").last_id == 9  # what a commit of a stretch without messages writes
    assert world.committer.commit(world.core.owned.values()) == 0  # nothing changed yet


def test_each_plan_looks_for_missing_topics():
    world = World().start()
    world.membership.partitions = ["0-0"]
    world.member.take(Event.CHANGED)
    assert world.looks == [{"t": []}, {"t": ["0-0"]}]


def test_when_another_joins_its_share_is_committed_and_then_released():
    world = World("0-0", "0-1").start()
    world.consume("0-1", 77)
    world.membership.members = ["g_me", "g_other"]
    world.member.take(Event.CHANGED)
    assert world.state() is State.STABLE
    assert world.owned() == ["0-0"]
    assert world.membership.owners == {"0-0": "g_me"}
    assert world.store.log == [(1, {("t", "0-1"): Offset(5, 77)})]


LATEST = StartPosition(lambda connection, partition: 40)


def test_where_a_partition_begins_is_committed_before_the_user_hears_of_it_and_before_it_is_read():
    """A later member begins there, too: "latest" is another place by then."""
    world = World("0-0", "0-1", start=LATEST).join()
    assert [each.ask for each in world.requests()] == [Ask.BEGIN, Ask.BEGIN]
    for name in ("0-0", "0-1"):
        world.core.found(world.asked_last[name], 40, 0.0)
    records = world.requests()
    assert [(each.ask, each.offset) for each in records] == [(Ask.RECORD, 40), (Ask.RECORD, 40)]
    assert not world.core.notices.waiting
    world.record(records)
    assert world.store.log == [(1, {("t", "0-0"): Offset(-1, 40), ("t", "0-1"): Offset(-1, 40)})]  # one write
    assert [str(each) for each in world.core.notices.waiting.popleft().partitions] == ["0-0", "0-1"]
    assert [(each.ask, each.offset) for each in world.requests()] == [(Ask.PULL, 40), (Ask.PULL, 40)]
    assert world.committer.commit(world.core.owned.values()) == 0


@pytest.mark.parametrize(("start", "begin"), [(StartPosition(0), 0), (StartPosition(700), 700)])
def test_a_known_beginning_is_committed_too(start, begin):
    world = World("0-0", start=start).join()
    (request,) = world.requests()
    assert (request.ask, request.offset) == (Ask.RECORD, begin)


def test_what_is_committed_needs_no_beginning_and_always_latest_has_none():
    world = World("0-0")
    world.store.offsets["t", "0-0"] = Offset(9, 555)
    assert [each.ask for each in world.join().requests()] == [Ask.PULL]
    always = World("0-0", start=StartPosition(max_offset, resume=False)).join()
    (begin,) = always.requests()
    always.core.found(begin, 40, 0.0)
    assert [each.ask for each in always.requests()] == [Ask.PULL]


@pytest.mark.parametrize("error", [CoordinationUnavailable("no answer"), ValueError("a user's store")])
def test_a_beginning_that_cannot_be_committed_is_tried_again_and_nothing_is_read_meanwhile(error, caplog):
    world = World("0-0", "0-1").join()
    world.store.failures = [error, error]
    beginnings = world.beginnings()
    for _ in range(2):
        for request in world.requests(now=world.now):
            assert request.ask is Ask.RECORD
            beginnings.put(request)
        world.run_timers()
        assert world.requests(now=world.now) == []
        assert not world.core.notices.waiting
        world.now += 60.0
    assert caplog.text.count("cannot be read before") == 1
    for request in world.requests(now=world.now):
        beginnings.put(request)
    world.run_timers()
    assert len(world.store.log) == 1
    assert [each.ask for each in world.requests(now=world.now)] == [Ask.PULL, Ask.PULL]


def test_a_beginning_is_not_committed_any_more_once_another_member_shall_get_the_partition():
    """It would replace that member's own."""
    world = World("0-0", "0-1", wants_notice=True).join()
    records = world.requests()
    world.membership.members = ["g_me", "g_other"]
    world.member.take(Event.CHANGED)
    world.record(records)
    assert world.store.log == [(1, {("t", "0-0"): Offset(-1, 0)})]
    heard_of = [(each.assigned, [str(one) for one in each.partitions]) for each in world.core.notices.waiting]
    assert heard_of == [(True, ["0-0"])]  # the user has never heard of 0-1


def test_a_partition_that_is_kept_after_all_commits_its_beginning_then():
    world = World("0-0", "0-1").join()
    records = world.requests()
    cursor = world.cursor("0-1")
    cursor.revoke()
    assert [each.cursor for each in world.committer.record(records)] == [world.cursor("0-0")]
    cursor.keep()
    assert not cursor.begin_recorded(records[1])  # of an older generation
    (again,) = world.requests()
    assert (again.ask, again.cursor) == (Ask.RECORD, cursor)


def test_a_seek_before_the_beginning_was_committed_is_committed_instead():
    world = World("0-0", start=LATEST).join()
    world.requests()
    world.cursor("0-0").moved_to(8)
    (record,) = world.requests()
    assert (record.ask, record.offset) == (Ask.RECORD, 8)
    world.record([record])
    assert world.store.offsets == {("t", "0-0"): Offset(-1, 8)}
    assert [(each.ask, each.offset) for each in world.requests()] == [(Ask.PULL, 8)]


def test_messages_in_the_users_hands_are_waited_for_before_the_release():
    world = World("0-0", "0-1").start()
    state = world.cursor("0-1")
    state.handed_out(99, 5)
    world.membership.members = ["g_me", "g_other"]
    world.member.take(Event.CHANGED)
    assert world.state() is State.DRAINING
    assert state.revoking
    assert world.membership.owners == {"0-0": "g_me", "0-1": "g_me"}
    state.acknowledge()  # the next poll() does so …
    assigned, revoked = world.core.notices.waiting.popleft(), world.core.notices.waiting.popleft()
    assert (assigned.assigned, revoked.assigned) == (True, False)
    told(revoked)  # … and lets go
    world.queued()
    assert world.state() is State.STABLE
    assert world.membership.owners == {"0-0": "g_me"}
    assert world.store.offsets["t", "0-1"] == Offset(5, 99)
    assert not state.active


def test_a_user_who_does_not_poll_loses_the_partition_after_the_wait():
    world = World("0-0", "0-1", wants_notice=True).start()
    world.membership.members = ["g_me", "g_other"]
    world.member.take(Event.CHANGED)
    (seconds, expire) = world.timers[-1]
    assert seconds == ConsumerConfig().revoke_wait_seconds
    expire()
    world.queued()
    assert world.owned() == ["0-0"]
    world.core.notices.waiting.popleft()
    told(world.core.notices.waiting.popleft())  # too late: nothing happens
    world.queued()
    assert world.state() is State.STABLE


def test_a_partition_still_held_by_another_is_claimed_when_it_is_free(caplog):
    world = World("0-0", "0-1")
    world.membership.owners = {"0-1": "g_slow"}
    world.start()
    assert world.state() is State.PLAN_LATER
    assert world.owned() == ["0-0"]  # what could be claimed is used meanwhile
    del world.membership.owners["0-1"]
    world.member.changed()  # as the membership tells
    world.queued()
    assert caplog.text == ""  # nothing was wrong
    assert (world.state(), world.owned()) == (State.STABLE, ["0-0", "0-1"])
    assert world.opened == [("0-0", 0), ("0-1", 0)]  # the first was not opened twice


def test_a_partition_that_another_keeps_is_asked_for_again_and_its_holder_named_once(caplog):
    world = World("0-0", "0-1")
    world.membership.owners = {"0-1": "g_slow"}
    world.start()
    for _ in range(3):
        (pause, again) = world.timers[-1]
        world.now += pause
        again()
        world.queued()
    assert caplog.text.count("0-1 is held by g_slow") == 1
    del world.membership.owners["0-1"]
    world.timers[-1][1]()
    world.queued()
    assert (world.state(), world.owned()) == (State.STABLE, ["0-0", "0-1"])


def test_a_pause_that_a_change_has_ended_does_not_end_a_later_one():
    world = World("0-0", "0-1")
    world.membership.owners = {"0-1": "g_slow"}
    world.start()
    (_, first) = world.timers[-1]
    world.member.changed()
    world.queued()
    first()
    assert world.member._events.empty()


def test_a_partition_freed_while_others_are_drained_is_claimed_at_once():
    world = World("0-0", "0-1", wants_notice=True).start()
    world.membership.members = ["g_a", "g_me"]  # 0-1 stays, 0-0 goes …
    world.membership.partitions = ["0-0", "0-1", "0-2", "0-3"]  # … and 0-2, 0-3 are wanted instead of 0-0, 0-1
    world.membership.owners |= {"0-2": "g_slow", "0-3": "g_slow"}
    world.member.take(Event.CHANGED)
    assert world.state() is State.DRAINING
    world.membership.owners = {name: owner for name, owner in world.membership.owners.items() if owner == "g_me"}
    world.member.take(Event.CHANGED)  # both are free now
    real, tries = world.membership.claim_many, []

    def claim_many(wanted):
        tries.append(wanted)
        return set() if len(tries) == 1 else real(wanted)  # what it looked at was older

    world.membership.claim_many = claim_many
    world.core.notices.waiting.popleft()
    told(world.core.notices.waiting.popleft())
    world.queued()
    assert (world.state(), world.owned()) == (State.STABLE, ["0-2", "0-3"])


def test_what_was_claimed_without_hearing_so_and_is_not_wanted_any_more_is_given_back():
    """As when the member was frozen in the middle of its claim, and the group went on without it."""
    world = World("0-0").start()
    world.membership.partitions = ["0-0", "0-1"]
    world.membership.claim_failures = [CoordinationUnavailable("no answer")]
    world.member.take(Event.CHANGED)
    assert world.state() is State.PLAN_LATER
    assert world.membership.owners == {"0-0": "g_me", "0-1": "g_me"}
    world.membership.members = ["g_me", "g_z"]
    world.member.take(Event.CHANGED)
    world.queued()
    assert (world.state(), world.owned()) == (State.STABLE, ["0-0"])
    assert world.membership.owners == {"0-0": "g_me"}


def test_what_may_have_been_given_up_is_claimed_anew_before_it_goes_on():
    """A release whose answer was lost: another member may have the partition by now."""
    world = World("0-0", "0-1").start()
    before = world.core.owned[TopicPartition("t", 0, 1)]
    world.membership.members = ["g_me", "g_z"]
    world.membership.release_failures = [CoordinationUnavailable("no answer")]
    world.member.take(Event.CHANGED)
    assert (world.state(), world.owned()) == (State.PLAN_LATER, ["0-0"])
    assert not before.active
    world.membership.members = ["g_me"]
    world.membership.owners["0-1"] = "g_z"  # it had been done, and it was quick
    world.member.take(Event.CHANGED)
    assert world.owned() == ["0-0"]
    del world.membership.owners["0-1"]
    world.member.take(Event.CHANGED)
    assert (world.state(), world.owned()) == (State.STABLE, ["0-0", "0-1"])


def test_nothing_is_logged_of_tries_that_fail_while_it_closes(caplog):
    world = World("0-0").start()
    world.membership.failures = [CoordinationUnavailable("closing")]
    world.member._closing = True
    world.member.take(Event.CHANGED)
    assert world.state() is State.PLAN_LATER
    assert caplog.text == ""


def test_it_tries_for_ever_and_keeps_what_it_owns():
    world = World("0-0").start()
    world.membership.failures = [CoordinationUnavailable("no answer") for _ in range(50)]
    world.member.take(Event.CHANGED)
    pauses = []
    for _ in range(50):
        assert world.state() is State.PLAN_LATER
        assert world.owned() == ["0-0"]
        seconds, again = world.timers.pop()
        pauses.append(seconds)
        again()
        world.queued()
    assert world.state() is State.STABLE
    assert max(pauses) <= ConsumerConfig().rebalance_max_seconds


def test_a_failed_registration_is_repeated():
    world = World("0-0")
    world.membership.failures = [CoordinationUnavailable("no answer")]
    world.start()
    assert world.state() is State.JOIN_LATER
    world.timers.pop()[1]()
    world.queued()
    assert world.state() is State.STABLE


def test_a_failed_commit_keeps_the_partition_until_it_succeeds():
    world = World("0-0", "0-1").start()
    world.consume("0-1", 77)
    world.store.failures = [CoordinationUnavailable("no answer")]
    world.membership.members = ["g_me", "g_other"]
    world.member.take(Event.CHANGED)
    assert world.state() is State.PLAN_LATER
    assert world.membership.owners == {"0-0": "g_me", "0-1": "g_me"}
    world.timers.pop()[1]()
    world.queued()
    assert world.owned() == ["0-0"]
    assert world.store.offsets["t", "0-1"] == Offset(5, 77)


def test_a_partition_that_need_not_be_handed_over_after_all_goes_on():
    world = World("0-0", "0-1").start()
    world.consume("0-1", 77)
    world.store.failures = [CoordinationUnavailable("no answer")]
    world.membership.members = ["g_me", "g_other"]
    world.member.take(Event.CHANGED)
    world.membership.members = ["g_me"]
    world.member.take(Event.CHANGED)
    assert (world.state(), world.owned()) == (State.STABLE, ["0-0", "0-1"])
    kept = world.cursor("0-1")
    assert (kept.moves, kept.position, kept.revoking) == (1, 77, False)
    assert "0-1" in world.asked()


def test_a_partition_kept_before_its_first_position_is_known_does_not_begin_at_0():
    """start="latest" asks the broker; until it answers the position is 0 and means nothing."""
    world = World("0-0", "0-1", start=StartPosition(max_offset)).start()
    world.asked()
    world.membership.release_failures = [CoordinationUnavailable("no answer")]
    world.membership.members = ["g_me", "g_other"]
    world.member.take(Event.CHANGED)
    assert world.state() is State.PLAN_LATER
    world.membership.members = ["g_me"]
    world.member.take(Event.CHANGED)
    assert (world.state(), world.owned()) == (State.STABLE, ["0-0", "0-1"])
    kept = world.cursor("0-1")
    assert (kept.moves, kept.opened, kept.revoking) == (0, False, False)
    assert "0-1" in world.asked()  # for where it begins


# --- nobody polls -----------------------------------------------------------------------------------------------------


def idle(*partitions):
    world = World(*partitions).start()
    world.idle = True
    return world


def test_a_member_that_nobody_polls_commits_gives_everything_up_and_leaves_the_group():
    world = idle("0-0", "0-1")
    world.consume("0-1", 77)
    states = list(world.core.owned.values())
    world.member.step_out()
    assert world.member.stepped_out
    world.queued()
    assert (world.state(), world.owned(), world.membership.owners) == (State.AWAY, [], {})
    assert world.membership.out
    assert not world.membership.left
    assert world.store.log == [(1, {("t", "0-1"): Offset(5, 77)})]
    assert not any(state.active for state in states)
    assigned, revoked = world.core.notices.waiting.popleft(), world.core.notices.waiting.popleft()
    assert (assigned.assigned, revoked.assigned) == (True, False)
    assert [str(each) for each in revoked.partitions] == ["0-0", "0-1"]  # heard of with the next poll
    world.member.changed()
    world.queued()
    assert world.state() is State.AWAY


def test_it_takes_part_again_with_the_next_poll_from_what_is_committed_by_then():
    world = idle("0-0", "0-1")
    world.member.step_out()
    world.queued()
    world.store.offsets["t", "0-0"] = Offset(9, 555)  # the other member's
    world.idle = False
    world.member.come_back()
    world.queued()
    assert not world.member.stepped_out
    assert not world.membership.out
    assert (world.state(), world.owned()) == (State.STABLE, ["0-0", "0-1"])
    assert world.opened[2:] == [("0-0", 555), ("0-1", 0)]


def test_a_poll_that_comes_before_it_has_stepped_out_keeps_everything():
    world = idle("0-0")
    world.member.step_out()
    world.idle = False
    world.queued()
    assert (world.state(), world.owned(), world.member.stepped_out) == (State.STABLE, ["0-0"], False)
    assert not world.membership.out


def test_a_poll_that_was_heard_of_before_the_idle_time_that_it_ended_leaves_no_member_out_for_ever():
    world = idle("0-0")
    world.member.step_out()
    world.member.come_back()  # and then nobody polls again for so long that it steps out when it gets to it
    world.queued()
    world.member.step_out()
    world.queued()
    assert (world.state(), world.member.stepped_out) == (State.AWAY, True)
    world.idle = False
    world.member.come_back()
    world.queued()
    assert (world.state(), world.member.stepped_out) == (State.STABLE, False)


def test_coming_back_that_an_exception_interrupts_is_made_good_by_the_next_poll():
    world = idle("0-0")
    world.member.step_out()
    world.queued()
    world.idle = False
    real = world.member._events

    world.member._events = cast(Any, SimpleNamespace(put=raising(KeyboardInterrupt)))
    with pytest.raises(KeyboardInterrupt):
        world.member.come_back()
    world.member._events = real
    assert world.member.stepped_out  # so the next poll does it again
    world.member.come_back()
    world.queued()
    assert world.state() is State.STABLE


def test_what_cannot_be_committed_or_released_is_tried_again_until_somebody_polls(caplog):
    world = idle("0-0")
    world.consume("0-0", 77)
    world.store.failures = [CoordinationUnavailable("no answer")]
    world.membership.release_failures = [CoordinationUnavailable("no answer")]
    world.member.step_out()
    for owned in (["0-0"], []):  # what is committed is not owned any more, whether its release is heard of or not
        world.queued()
        assert (world.state(), world.owned()) == (State.STEP_OUT_LATER, owned)
        world.timers.pop()[1]()
    world.queued()
    assert (world.state(), world.store.offsets) == (State.AWAY, {("t", "0-0"): Offset(5, 77)})
    assert caplog.text.count("no answer") == 1


def test_nothing_is_owned_any_more_when_others_may_claim_it():
    world = idle("0-0", "0-1")
    seen = []
    world.membership.when_free = lambda: seen.append(world.owned())
    world.member.step_out()
    world.queued()
    assert seen == [[]]


@pytest.mark.parametrize("how", ["release_failures", "lost_answers"])
def test_a_poll_while_stepping_out_fails_takes_part_again_whether_it_was_done_or_not(how):
    world = idle("0-0")
    world.consume("0-0", 77)
    setattr(world.membership, how, [CoordinationUnavailable("no answer")])
    world.member.step_out()
    world.queued()
    assert world.state() is State.STEP_OUT_LATER
    world.idle = False
    world.member.come_back()
    world.queued()
    assert (world.state(), world.owned(), world.opened[1:]) == (State.STABLE, ["0-0"], [("0-0", 77)])
    assert not world.member.stepped_out


def test_a_session_that_ends_while_it_steps_out_takes_everything_with_it():
    world = idle("0-0")
    world.consume("0-0", 77)
    world.store.failures = [SessionLost("over")]
    world.membership.session_id, real = 1, world.store.commit

    def commit(group, offsets, fence):
        world.membership.session_id = 0
        real(group, offsets, fence)

    world.store.commit = commit
    world.member.step_out()
    world.queued()
    assert (world.state(), world.owned(), world.store.log) == (State.AWAY, [], [])


def test_a_member_that_waits_for_its_user_to_let_go_steps_out_at_once():
    world = idle("0-0", "0-1")
    world.cursor("0-1").handed_out(99, 5)
    world.membership.members = ["g_me", "g_other"]
    world.member.take(Event.CHANGED)
    assert world.state() is State.DRAINING
    world.member.step_out()
    world.queued()
    assert (world.state(), world.owned()) == (State.AWAY, [])
    world.timers[-1][1]()  # the wait is over, and nobody cares
    world.queued()
    assert world.state() is State.AWAY


def test_a_member_that_could_not_come_back_tries_again():
    world = idle("0-0")
    world.member.step_out()
    world.queued()
    world.idle = False
    world.membership.failures = [CoordinationUnavailable("no answer")]
    world.member.come_back()
    world.queued()
    assert world.state() is State.JOIN_LATER
    world.timers.pop()[1]()
    world.queued()
    assert (world.state(), world.owned()) == (State.STABLE, ["0-0"])


def test_closing_while_it_is_away_ends():
    world = idle("0-0")
    world.member.step_out()
    world.queued()
    world.member.take(Event.CLOSE)
    assert world.state() is State.LEFT


# --- lost sessions ----------------------------------------------------------------------------------------------------


def test_a_lost_session_drops_everything_without_a_commit_and_joins_again():
    world = World("0-0").start()
    world.consume("0-0", 77)
    old = world.core.owned[TopicPartition("t", 0, 0)]
    world.membership.session_id = 0
    world.membership.owners = {}
    world.member.take(Event.CHANGED)
    assert world.state() is State.JOIN_LATER
    assert (world.owned(), old.active, world.store.log) == ([], False, [])
    world.membership.session_id = 2
    world.timers.pop()[1]()
    world.queued()
    new = world.core.owned[TopicPartition("t", 0, 0)]
    assert (new is not old, new.fence) == (True, 2)


def test_a_session_that_was_replaced_before_anybody_looked_is_noticed():
    """The membership joins again by itself, perhaps before this member hears of the loss."""
    world = World("0-0").start()
    old = world.core.owned[TopicPartition("t", 0, 0)]
    world.membership.session_id = 2
    world.membership.owners = {}
    world.member.take(Event.CHANGED)
    new = world.core.owned[TopicPartition("t", 0, 0)]
    assert (world.state(), old.active, new.fence) == (State.STABLE, False, 2)


def test_a_member_knows_that_it_holds_nothing_before_its_own_thread_hears_of_a_lost_session():
    world = World("0-0").start()
    assert world.member.holds_its_claims()
    assert world.member.holds_its_claims()  # the second time without looking at each partition
    for session_id in (0, 2):  # gone; replaced by another, on which the membership is registered again already
        world.membership.session_id = session_id
        assert not world.member.holds_its_claims()
    world.membership.owners = {}
    world.member.take(Event.CHANGED)
    assert world.member.holds_its_claims()


def test_a_session_lost_while_committing_is_noticed():
    world = World("0-0", "0-1").start()
    world.consume("0-1", 77)
    world.membership.members = ["g_me", "g_other"]
    world.store.failures = [SessionLost("over")]
    world.membership.session_id, real = 1, world.store.commit

    def commit(group, offsets, fence):
        world.membership.session_id = 0
        real(group, offsets, fence)

    world.store.commit = commit
    world.member.take(Event.CHANGED)
    assert (world.state(), world.owned()) == (State.JOIN_LATER, [])


def test_a_session_lost_while_handing_over_after_a_refused_claim_is_joined_again():
    """What a claim that failed has waited for says nothing about a later try to join."""
    world = World("0-1", "0-2", wants_notice=True).start()
    world.membership.members = ["g_me", "g_z"]
    world.membership.partitions = ["0-0", "0-1", "0-2", "0-3"]  # 0-2 goes, 0-0 is wanted …
    world.membership.owners["0-0"] = "g_slow"
    world.member.take(Event.CHANGED)
    world.member.take(Event.CHANGED)
    real = world.membership.claim_many

    def claim_many(wanted):
        world.membership.members = ["g_a", "g_me"]  # … but refused, and by now 0-1 goes, too
        return real(wanted)

    world.membership.claim_many = claim_many
    world.core.notices.waiting.popleft()
    told(world.core.notices.waiting.popleft())
    world.queued()
    assert (world.state(), world.owned()) == (State.DRAINING, ["0-1"])
    world.member.take(Event.CHANGED)
    world.membership.session_id, world.membership.owners = 0, {}
    world.membership.release_failures = [SessionLost("over")]
    told(world.core.notices.waiting.popleft())
    world.queued()
    assert (world.state(), world.owned()) == (State.JOIN_LATER, [])
    world.membership.session_id = 2
    world.timers.pop()[1]()
    world.queued()
    assert (world.state(), world.owned()) == (State.STABLE, ["0-2", "0-3"])


def test_a_change_that_comes_while_draining_leads_to_another_plan():
    world = World("0-0", "0-1", wants_notice=True).start()
    world.membership.members = ["g_me", "g_other"]
    world.member.take(Event.CHANGED)
    world.membership.partitions = ["0-0", "0-1", "0-2", "0-3"]
    world.member.take(Event.CHANGED)
    assert world.state() is State.DRAINING
    world.core.notices.waiting.popleft()
    told(world.core.notices.waiting.popleft())
    world.queued()
    assert (world.state(), world.owned()) == (State.STABLE, ["0-0", "0-1"])


def test_bursts_of_changes_are_looked_at_once():
    world = World("0-0").start()
    for _ in range(10):
        world.member.changed()
    assert world.member._events.qsize() == 1


def test_leaving_commits_and_takes_everything_back():
    world = World("0-0", "0-1").start()
    world.consume("0-0", 42)
    world.member.take(Event.CLOSE)
    assert world.state() is State.LEFT
    assert world.membership.left
    assert world.membership.owners == {}
    assert world.store.log == [(1, {("t", "0-0"): Offset(5, 42)})]


def test_leaving_without_zookeeper_ends_too(caplog):
    world = World("0-0").start()
    world.consume("0-0", 42)
    world.store.failures = [CoordinationUnavailable("no answer")]
    world.member.take(Event.CLOSE)
    assert world.state() is State.LEFT
    assert "could not leave properly" in caplog.text


def test_a_bug_in_an_action_is_logged_and_tried_again(caplog):
    world = World("0-0").start()
    world.membership.failures = [ZeroDivisionError()]
    world.member.take(Event.CHANGED)
    assert world.state() is State.PLAN_LATER
    assert "ZeroDivisionError" in caplog.text


# --- commits ----------------------------------------------------------------------------------------------------------


def test_only_what_changed_is_committed_and_a_failure_is_made_good():
    world = World("0-0", "0-1").start()
    states = world.core.owned.values()
    world.consume("0-0", 10)
    assert world.committer.commit(states) == 1
    assert world.committer.commit(states) == 0
    world.consume("0-0", 20)
    world.store.failures = [CoordinationUnavailable("no answer")]
    with pytest.raises(CoordinationUnavailable):
        world.committer.commit(states)
    assert world.committer.commit(states) == 1
    assert world.store.log[1:] == [(1, {("t", "0-0"): Offset(5, 20)})]


def test_claims_of_different_sessions_are_committed_on_their_own():
    world = World("0-0", "0-1").start()
    _, second = world.core.owned.values()
    second.fence = 2
    world.consume("0-0", 10)
    world.consume("0-1", 11)
    assert world.committer.commit(world.core.owned.values()) == 2
    assert sorted(fence for fence, _ in world.store.log) == [1, 2]


def test_a_lost_partition_is_not_committed():
    world = World("0-0").start()
    (state,) = world.core.owned.values()
    world.consume("0-0", 10)
    world.core.lose([state])
    assert world.committer.commit([state]) == 0


def test_regular_commits_go_on_after_a_failure(caplog):
    world = World("0-0").start()
    timers = []
    runs = SimpleNamespace(call_later=lambda seconds, action: timers.append((seconds, action)))
    world.committer.commit_regularly(runs, 5, world.core)
    world.consume("0-0", 10)
    world.store.failures = [CoordinationUnavailable("no answer")]
    timers.pop()[1]()
    assert "offsets of group g wait to be committed, every 5 s: no answer" in caplog.text
    timers.pop()[1]()
    assert world.store.offsets == {("t", "0-0"): Offset(5, 10)}
    assert [seconds for seconds, _ in timers] == [5]


# --- where partitions are read, and begin -----------------------------------------------------------------------------


def listening(number, slave_id=None):
    return BrokerAddress(0, slave_id, "host", number)


def ports(world):
    endpoints = [world.member.endpoint_of(TopicPartition("t", 0, number)) for number in range(2)]
    return [endpoint and endpoint.port for endpoint in endpoints]


def test_a_partition_is_read_from_a_slave_while_there_is_no_master():
    world = World("0-0", "0-1")
    world.membership.brokers = {0: BrokerNodes(listening(1), (listening(2, 0), listening(3, 1)))}
    world.start()
    assert ports(world) == [1, 1]
    world.asked()
    world.membership.brokers = {0: BrokerNodes(None, (listening(2, 0), listening(3, 1)))}
    world.member.take(Event.CHANGED)
    assert ports(world) == [2, 3]  # shared out, and steady
    assert world.asked() == ["0-0", "0-1"]
    assert world.member.is_slave(Endpoint("host", 2))
    world.membership.brokers = {0: BrokerNodes(listening(1), (listening(2, 0),))}
    world.member.take(Event.CHANGED)
    assert ports(world) == [1, 1]
    assert world.asked() == ["0-0", "0-1"]
    assert not world.member.is_slave(Endpoint("host", 1))


@pytest.mark.parametrize(
    ("start", "begins"),
    [(StartPosition(7), [100, 7]), (StartPosition(max_offset, resume=False), [max_offset, max_offset])],
)
def test_a_partition_begins_at_what_is_committed_unless_it_shall_always_begin_at_the_end(start, begins):
    world = World("0-0", "0-1", start=start)
    world.store.offsets["t", "0-0"] = Offset(5, 100)
    world.start()
    assert [offset for _, offset in world.opened] == begins


def test_partitions_of_a_broker_set_that_changes_its_leader_are_kept():
    world = World("0-0", "0-1", "1-0").start()
    world.sets = [0]
    world.membership.partitions = []
    world.member.take(Event.CHANGED)
    assert world.owned() == ["0-0", "0-1"]
    cursor = world.cursor("0-0")
    world.membership.partitions = ["0-0", "0-1", "1-0"]
    world.member.take(Event.CHANGED)
    assert world.owned() == ["0-0", "0-1", "1-0"]
    assert world.cursor("0-0") is cursor


def test_partitions_of_a_broker_set_that_stays_without_a_leader_are_lost():
    world = World("0-0").start()
    world.sets = [0]
    world.membership.partitions = []
    world.member.take(Event.CHANGED)
    (seconds, look), *_ = world.timers
    world.now += seconds
    look()
    world.queued()
    assert world.owned() == []


# --- ZooKeeper comes back with less than it had -----------------------------------------------------------------------


def lose_session(world, *, set_back=True):
    """A new session follows; `set_back`: because no server took the former one any more."""
    world.membership.session_id, world.membership.owners, world.membership.held = 2, {}, set()
    world.membership.connections += 1
    world.membership.set_backs += set_back
    world.member.take(Event.CHANGED)
    world.queued()


def at_the_end(world, offset):
    """Every partition is begun where it ends."""
    while (cursor := world.core.next_wanting()) is not None:
        request = cursor.next_request(0.0)
        if request is not None and request.ask is Ask.BEGIN:
            world.core.found(request, offset, 0.0)


def begins(world):
    """Where each partition was begun last; `place`: by the argument `start`."""
    return {name: begin if isinstance(begin, int) else "place" for name, begin in world.opened}


@pytest.mark.parametrize("start", [FROM_THE_BEGINNING, LATEST, StartPosition(max_offset, resume=False)])
def test_behind_an_empty_zookeeper_a_member_goes_on_where_it_was_and_writes_that(start):
    world = World("0-0", "0-1", start=start).start()
    at_the_end(world, 40)
    world.consume("0-0", 77)
    world.committer.commit(world.core.owned.values())
    world.consume("0-0", 90)
    world.store.offsets.clear()
    lose_session(world)
    assert begins(world)["0-0"] == 90
    assert world.store.offsets["t", "0-0"] == Offset(5, 90)
    assert begins(world)["0-1"] == (0 if start is FROM_THE_BEGINNING else 40)  # nothing was consumed of it
    world.consume("0-0", 99)
    world.committer.commit(world.core.owned.values())
    assert world.store.offsets["t", "0-0"] == Offset(5, 99)


def test_what_the_user_had_in_hand_when_the_session_was_lost_counts_once_it_is_done():
    world = World("0-0").start()
    world.consume("0-0", 77)
    cursor = world.cursor("0-0")
    cursor.handed_out(90, 5)
    world.membership.session_id = 0
    world.member.take(Event.CHANGED)
    cursor.acknowledge()  # the next poll
    lose_session(world)
    world.timers.pop()[1]()
    world.queued()
    assert begins(world)["0-0"] == 90


def test_behind_an_older_copy_a_member_goes_on_where_it_was():
    world = World("0-0").start()
    world.consume("0-0", 77)
    world.committer.commit(world.core.owned.values())
    world.store.offsets["t", "0-0"] = Offset(1, 20)
    lose_session(world, set_back=False)  # the copy's server has had more transactions meanwhile: nobody was refused
    assert begins(world)["0-0"] == 77
    assert world.store.offsets["t", "0-0"] == Offset(5, 77)


def test_where_another_member_has_gone_on_counts_whether_it_is_ahead_or_an_operator_has_set_it_back():
    for offset in (500, 20):
        world = World("0-0").start()
        world.consume("0-0", 77)
        world.committer.commit(world.core.owned.values())
        world.store.offsets["t", "0-0"] = Offset(9, offset)
        world.store.written_later.add(("t", "0-0"))
        lose_session(world, set_back=False)
        assert (begins(world)["0-0"], world.store.offsets["t", "0-0"]) == (offset, Offset(9, offset))


def test_behind_a_zookeeper_that_was_set_back_a_place_counts_against_what_a_former_owner_wrote_since():
    """It had hung before, and knows less."""
    world = World("0-0").start()
    world.consume("0-0", 77)
    world.committer.commit(world.core.owned.values())
    world.store.offsets["t", "0-0"] = Offset(1, 20)
    world.store.written_later.add(("t", "0-0"))
    lose_session(world)
    assert (begins(world)["0-0"], world.store.offsets["t", "0-0"]) == (77, Offset(5, 77))


def test_behind_an_older_copy_that_refused_nobody_a_place_counts_against_where_the_former_owner_gave_the_partition_up():
    """It had given it up just before, and has written that again before this member came."""
    world = World("0-0")
    world.store.offsets["t", "0-0"] = handed_over = Offset(1, 20)
    world.start()
    world.consume("0-0", 77)
    world.committer.commit(world.core.owned.values())
    world.store.offsets["t", "0-0"] = handed_over
    world.store.written_later.add(("t", "0-0"))
    lose_session(world, set_back=False)
    assert (begins(world)["0-0"], world.store.offsets["t", "0-0"]) == (77, Offset(5, 77))


@pytest.mark.parametrize(("copy", "written"), [({("t", "0-0"): Offset(1, 20)}, 20), ({}, 77)])
def test_what_was_lost_with_an_earlier_session_than_the_last_is_written_where_nothing_is(copy, written):
    """Another member may have owned it since, and write more than the copy has."""
    world = World("0-0").start()
    world.consume("0-0", 77)
    world.committer.commit(world.core.owned.values())
    world.store.offsets = copy
    world.membership.last_session_id = 9
    lose_session(world)
    assert world.store.offsets["t", "0-0"].offset == written


def test_an_offset_that_is_kept_elsewhere_did_not_go_back_with_zookeeper():
    world = World("0-0").start()
    world.consume("0-0", 77)
    world.store.offsets["t", "0-0"] = Offset(9, 20)
    world.store.is_elsewhere = True
    lose_session(world)
    assert (begins(world)["0-0"], world.store.offsets["t", "0-0"]) == (20, Offset(9, 20))


def test_where_the_user_commits_what_was_not_committed_comes_again():
    world = World("0-0", config=ConsumerConfig(auto_commit_seconds=0.0)).start()
    world.consume("0-0", 77)
    world.committer.commit(world.core.owned.values())
    world.consume("0-0", 90)
    world.store.offsets.clear()
    lose_session(world)
    assert (begins(world)["0-0"], world.store.offsets["t", "0-0"]) == (77, Offset(5, 77))


def test_partitions_of_others_wait_until_these_had_time_to_come_back():
    """They alone know where the group stands in them."""
    world = World("0-0", "0-1")
    world.membership.members = ["g_me", "g_other"]
    world.start()
    assert world.owned() == ["0-0"]
    world.membership.members = ["g_me"]  # the other one has not seen yet that ZooKeeper is back
    lose_session(world)
    assert world.owned() == ["0-0"]
    seconds, look = world.timers[-1]
    assert seconds == 15.0  # the session timeout, and RETURN_SECONDS
    world.store.offsets["t", "0-1"] = Offset(3, 30)  # it is back, and gone again
    world.now += seconds
    look()
    world.queued()
    assert (world.owned(), begins(world)["0-1"]) == (["0-0", "0-1"], 30)


def test_after_an_expiry_without_a_set_back_nobody_waits():
    world = World("0-0", "0-1")
    world.membership.members = ["g_me", "g_other"]
    world.start()
    world.membership.members = ["g_me"]
    lose_session(world, set_back=False)
    assert world.owned() == ["0-0", "0-1"]


def test_a_member_that_cannot_write_where_it_stands_tries_again():
    world = World("0-0").start()
    world.consume("0-0", 77)
    world.store.offsets.clear()
    world.store.failures = [CoordinationUnavailable("away")]
    lose_session(world)
    assert (world.state(), world.owned()) == (State.JOIN_LATER, [])
    world.timers[-1][1]()
    world.queued()
    assert (world.owned(), world.store.offsets["t", "0-0"]) == (["0-0"], Offset(5, 77))


def test_a_session_that_lives_on_in_an_older_copy_makes_good_what_the_copy_lacks():
    world = World("0-0", "0-1", "0-2").start()
    for name in ("0-0", "0-1", "0-2"):
        world.consume(name, 77)
    world.committer.commit(world.core.owned.values())
    world.membership.owners = {"0-1": "g_other"}  # 0-0 was claimed later, and 0-1 belonged to another
    world.store.offsets = {("t", "0-0"): Offset(1, 20), ("t", "0-1"): Offset(1, 20)}
    kept = world.cursor("0-0")
    world.membership.connections += 1
    world.member.take(Event.CHANGED)
    assert world.membership.owners == {"0-0": "g_me", "0-1": "g_other", "0-2": "g_me"}
    assert (world.cursor("0-0") is kept, world.owned()) == (True, ["0-0", "0-2"])
    assert world.store.offsets == {
        ("t", "0-0"): Offset(5, 77),
        ("t", "0-1"): Offset(5, 77),
        ("t", "0-2"): Offset(5, 77),
    }
    world.store.offsets["t", "0-0"] = Offset(1, 20)
    world.member.take(Event.CHANGED)
    assert world.store.offsets["t", "0-0"] == Offset(1, 20)  # once per connection


def give_one_up():
    """A world that has just given 0-1 up, of which 77 is committed, to a member that has not claimed it yet."""
    world = World("0-0", "0-1").start()
    world.consume("0-1", 77)
    world.membership.members = ["g_me", "g_other"]
    world.member.take(Event.CHANGED)
    assert (world.owned(), world.membership.owners) == (["0-0"], {"0-0": "g_me"})
    return world


def test_a_session_that_lives_on_in_an_older_copy_makes_good_what_it_has_just_given_up():
    """Nobody else knows where the group stands there; but who owns it in the copy goes on by itself."""
    for owners in ({}, {"0-1": "g_me"}, {"0-1": "g_other"}):
        world = give_one_up()
        world.store.offsets["t", "0-1"] = Offset(1, 20)
        world.membership.owners |= owners
        world.membership.connections += 1
        world.member.take(Event.CHANGED)
        is_others = owners == {"0-1": "g_other"}
        assert world.store.offsets["t", "0-1"] == (Offset(1, 20) if is_others else Offset(5, 77))
        assert world.membership.owners.get("0-1") == ("g_other" if is_others else None)
        assert world.owned() == ["0-0"]


def test_behind_an_empty_zookeeper_a_member_writes_where_it_stood_in_what_it_has_just_given_up():
    world = give_one_up()
    world.store.offsets.clear()
    lose_session(world)
    assert world.store.offsets["t", "0-1"] == Offset(5, 77)


def test_what_was_given_up_long_ago_is_its_next_owners():
    for lost in (True, False):
        world = give_one_up()
        world.store.offsets["t", "0-1"] = Offset(1, 20)
        world.now += 26.0
        if lost:
            lose_session(world)
        else:
            world.membership.connections += 1
            world.member.take(Event.CHANGED)
        assert world.store.offsets["t", "0-1"] == Offset(1, 20)


def test_an_owner_node_that_an_older_copy_has_again_goes_again():
    """Nobody could claim the partition as long as the session lives."""
    world = give_one_up()
    world.consume("0-0", 99)
    world.committer.commit(world.core.owned.values())
    world.store.offsets["t", "0-0"] = Offset(1, 20)
    world.now += 26.0
    world.membership.owners["0-1"] = "g_me"
    world.membership.connections += 1
    world.member.take(Event.CHANGED)
    assert world.membership.owners == {"0-0": "g_me"}


def test_a_session_that_lives_on_in_an_older_copy_leaves_to_others_what_was_theirs():
    """The copy lacks the session of one who had claimed it since: that one comes back, and knows where it stood."""
    world = World("0-0", "0-1")
    world.membership.members = ["g_me", "g_other"]
    world.start()
    world.consume("0-0", 77)
    world.committer.commit(world.core.owned.values())
    world.store.offsets["t", "0-0"] = Offset(1, 20)
    world.membership.members = ["g_me"]
    world.membership.connections += 1
    world.member.take(Event.CHANGED)
    assert world.owned() == ["0-0"]
    seconds, look = world.timers[-1]
    world.store.offsets["t", "0-1"] = Offset(3, 30)
    world.now += seconds
    look()
    world.queued()
    assert (seconds, world.owned(), begins(world)["0-1"]) == (15.0, ["0-0", "0-1"], 30)


def test_a_commit_that_comes_before_the_look_at_an_older_copy_does_not_hide_it():
    """A timer commits, and it may be the first to reach the copy: it overwrites what would have told of it."""
    world = World("0-0", "0-1")
    world.membership.members = ["g_me", "g_other"]
    world.start()
    world.consume("0-0", 77)
    world.committer.commit(world.core.owned.values())
    world.store.offsets["t", "0-0"] = Offset(1, 20)
    world.membership.members = ["g_me"]
    world.membership.connections += 1
    world.consume("0-0", 90)
    world.committer.commit(world.core.owned.values())
    world.member.take(Event.CHANGED)
    assert (world.owned(), world.store.offsets["t", "0-0"]) == (["0-0"], Offset(5, 90))
    assert world.timers[-1][0] == 15.0


def test_offsets_that_are_kept_elsewhere_wait_for_no_connection(tmp_path):
    world = World("0-0").start()
    world.consume("0-0", 77)
    membership: Any = world.membership
    membership.is_connected = False
    membership.require_owned = lambda offsets, fence: None
    config = ConsumerConfig(broadcast=True, offsets_file=tmp_path / "offsets")
    committer = committer_for(config, cast(Any, None), membership)
    thread = threading.Thread(target=committer.commit, args=(world.core.owned.values(),), daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert committer.load([("t", "0-0")]) == [(77, 5)]


def test_a_commit_that_waited_for_the_older_copy_does_not_hide_it_either():
    world = World("0-0", "0-1")
    world.membership.members = ["g_me", "g_other"]
    world.start()
    world.consume("0-0", 77)
    world.committer.commit(world.core.owned.values())
    world.consume("0-0", 90)
    world.membership.is_connected = False
    load = world.store.load_many

    def load_on_the_next_connection(group, names):
        if not world.membership.is_connected:
            world.membership.is_connected, world.membership.members = True, ["g_me"]
            world.membership.connections += 1
            world.store.offsets["t", "0-0"] = Offset(1, 20)
        return load(group, names)

    cast(Any, world.store).load_many = load_on_the_next_connection
    world.committer.commit(world.core.owned.values())
    world.member.take(Event.CHANGED)
    assert (world.owned(), world.store.offsets["t", "0-0"]) == (["0-0"], Offset(5, 90))
    assert world.timers[-1][0] == 15.0
