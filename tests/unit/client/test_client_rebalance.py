"""The rebalance state machine: its table, and the member that carries it out, with a group in memory."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metaq import ConsumerConfig, TopicPartition
from metaq.client.consumer.beginnings import Beginnings
from metaq.client.consumer.group_member import GroupMember
from metaq.client.consumer.offset_commit import OffsetCommitter, StartPosition, committer_for
from metaq.client.consumer.rebalance import TABLE, Action, Event, State, next_state
from metaq.client.fetching.core import ConsumerCore
from metaq.client.fetching.cursor import Ask
from metaq.client.questions.partition_bounds import max_offset
from metaq.client.transport.connection import Endpoint
from metaq.coordination.brokers.cluster_view import BrokerAddress, BrokerNodes
from metaq.coordination.groups.group_view import GroupSnapshot
from metaq.coordination.offsets.offset_store import Offset
from metaq.protocol.errors import CoordinationUnavailable, LocalProtocolError, SessionLost
from tests.raising import raising
from tests.waiting import DEADLINE

# --- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "path"),
    [
        ("STARTED JOINED GAINS CLAIMED", "JOINING PLANNING CLAIMING STABLE"),
        (
            "STARTED JOINED SETTLED CHANGED LOSSES DRAINED RELEASED CLAIMED",
            "JOINING PLANNING STABLE PLANNING DRAINING RELEASING CLAIMING STABLE",
        ),
    ],
    ids=["the first of a group joins and claims", "one that hands over drains, commits and releases before it claims"],
)
def test_the_states_that_a_new_member_goes_through(events, path):
    states = [State.NEW]
    for event in events.split():
        states.append(next_state(states[-1], Event[event])[0])
    assert [state.name for state in states[1:]] == path.split()


ALIVE = " ".join(each.name for each in State if each not in (State.LEAVING, State.LEFT))


@pytest.mark.parametrize(
    ("states", "event", "to", "action"),
    [
        ("PLANNING RELEASING CLAIMING", "FAILED", "PLAN_LATER", "PAUSE"),  # a failed try is followed by a pause …
        ("PLAN_LATER", "PAUSE_OVER", "PLANNING", "PLAN"),  # … and another
        ("PLANNING DRAINING RELEASING CLAIMING", "CHANGED", "", "NOTE_CHANGE"),
        ("DRAINING", "DRAINED", "RELEASING", "RELEASE"),
        # a member that nobody polls steps out from wherever it rests, and joins again with the next poll
        ("STABLE PLAN_LATER JOIN_LATER DRAINING", "IDLE", "STEPPING_OUT", "STEP_OUT"),
        ("STEPPING_OUT", "STEPPED_OUT", "AWAY", ""),
        ("AWAY", "CHANGED", "AWAY", ""),
        ("AWAY STEP_OUT_LATER", "POLLED", "JOINING", "JOIN"),
        # stepping out is tried again until it succeeds or somebody polls
        ("STEPPING_OUT", "FAILED", "STEP_OUT_LATER", "PAUSE"),
        ("STEP_OUT_LATER", "PAUSE_OVER", "STEPPING_OUT", "STEP_OUT"),
        (ALIVE, "CLOSE", "LEAVING", "LEAVE"),  # closing is possible at any time
        # a lost session means joining again
        ("CLAIMING", "SESSION_LOST", "DISCONNECTED", "ABANDON"),
        ("DISCONNECTED", "CHANGED", "JOINING", "JOIN"),
    ],
)
def test_what_follows_an_event(states, event, to, action):
    """`to` is left out where the state stays."""
    for state in states.split():
        expected = State[to or state], (Action[action],) if action else ()
        assert next_state(State[state], Event[event]) == expected, state


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", [Event.IDLE, Event.POLLED])
def test_that_nobody_polls_or_somebody_does_can_be_heard_of_at_any_time(state, event):
    next_state(state, event)


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

AWAY = CoordinationUnavailable("no answer")


class MemoryMembership:
    """What coordination.groups.membership.GroupMembership promises, for one member; others are names in `members`."""

    group, consumer_id, session_timeout, seen_zxid = "g", "g_me", 10.0, 0

    def __init__(self, partitions):
        self.session_id = self.last_session_id = self.connections = 1
        self.is_connected, self.set_backs = True, 0
        self.members, self.partitions = ["g_me"], list(partitions)
        self.brokers: dict[int, BrokerNodes] = {}
        self.owners: dict[str, str] = {}
        self.held: set[tuple[str, str]] = set()
        self.failures: list[Exception] = []
        self.claim_failures: list[Exception] = []
        self.release_failures: list[Exception] = []
        self.owner_failures: list[Exception] = []
        self.lost_answers: list[Exception] = []  # of step_out: the server has done it
        self.when_free = lambda: None  # others claim now
        self.left = self.out = False

    @property
    def connection(self):
        return self.connections if self.is_connected else None

    def _fail(self, failures=None):
        if failures := self.failures if failures is None else failures:
            raise failures.pop(0)

    def _give_up(self):
        self.owners = {name: owner for name, owner in self.owners.items() if owner != "g_me"}

    def join(self):
        self._fail()

    def leave(self):
        self.left = True
        self._give_up()

    def step_out(self):
        if not self.lost_answers:
            self._fail(self.release_failures)
        self.out = True
        self.when_free()
        self._give_up()
        self._fail(self.lost_answers)

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
        self._fail(self.claim_failures)  # the server has done it, and its answer is lost
        return granted

    def release_many(self, given):
        self._fail(self.release_failures)
        given = set(given)
        for _, name in given:
            if self.owners.get(name) == "g_me":
                del self.owners[name]
        self.held -= given

    def hold_again(self, partitions):
        self.held |= {each for each in partitions if self.owners.get(each[1]) == "g_me"}

    def owner(self, topic, partition):
        self._fail(self.owner_failures)
        return self.owners.get(partition)


class MemoryStore:
    def __init__(self):
        self.offsets: dict[tuple[str, str], Offset] = {}
        self.is_elsewhere = False
        self.written_later: set[tuple[str, str]] = set()  # since the session of those that lost theirs
        self.failures: list[Exception] = []
        self.log: list[tuple[int, dict]] = []
        self.before_commit = lambda: None

    def load_many(self, group, names):
        return [self.offsets.get(name) for name in names]

    def changed_since(self, group, names, zxid):
        return [self.is_elsewhere or (name in self.written_later and zxid < 1 << 62) for name in names]

    def commit(self, group, offsets, fence):
        self.before_commit()
        if self.failures:
            raise self.failures.pop(0)
        self.log.append((fence, dict(offsets)))
        self.offsets.update(offsets)


FROM_THE_BEGINNING, ALWAYS_LATEST = StartPosition(0), StartPosition(max_offset, resume=False)
LATEST = StartPosition(lambda connection, partition: 40)


class World:
    """One member whose events the test feeds; nothing runs by itself.

    stored: offsets by partition, at the beginning. group: what the membership has otherwise.
    """

    def __init__(self, *partitions, wants_notice=False, start=FROM_THE_BEGINNING, config=None, stored=(), **group):
        self.now = 0.0
        self.membership = MemoryMembership(partitions)
        vars(self.membership).update(group)
        self.store = MemoryStore()
        self.put(dict(stored))
        membership, store = cast(Any, self.membership), cast(Any, self.store)
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.opened: list[tuple[str, Any]] = []
        self.asked_last: dict[str, Any] = {}
        self.idle = False
        self.core = ConsumerCore("g", config or ConsumerConfig())
        fetcher: Any = SimpleNamespace(
            serve_soon=lambda: None, wake=lambda: None, brokers_are=lambda masters, others: None
        )
        timers: Any = SimpleNamespace(call_later=lambda seconds, action: self.timers.append((seconds, action)))
        self.looks: list[dict[str, list[str]]] = []  # the partitions that each plan knew
        self.sets: list[int] = []  # ids of broker sets
        view: Any = SimpleNamespace(set_ids=lambda: self.sets)
        self.committer = OffsetCommitter(store, "g", lambda: membership.connection)
        self.member = GroupMember(
            membership, self.committer, self.core, fetcher, timers, view, lambda: self.idle, lambda: self.now
        )
        self.member._rules.start = start
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

    def put(self, offsets):
        """The store has these, by partition."""
        self.store.offsets.update({("t", name): offset for name, offset in offsets.items()})

    def stored(self, name="0-0"):
        return self.store.offsets.get(("t", name))

    def requests(self):
        """What is asked now; also by partition in `asked_last`."""
        owned = self.core.owned.values()
        found = [request for cursor in owned if (request := cursor.next_request(self.now)) is not None]
        self.asked_last = {str(each.cursor.partition): each for each in found}
        return found

    def asks(self):
        return [(each.ask, each.offset) for each in self.requests()]

    def record(self, requests):
        """As Beginnings does."""
        self.core.recorded(self.committer.record(requests))

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

    def changes(self, **group):
        """The membership is so now, and the member hears of it."""
        vars(self.membership).update(group)
        self.member.take(Event.CHANGED)
        self.queued()

    def steps_out(self):
        self.member.step_out()
        self.queued()

    def polls(self):
        self.idle = False
        self.member.come_back()
        self.queued()

    def lets_go(self):
        """The user's callback has returned for what was revoked first."""
        while (notice := self.core.notices.waiting.popleft()).assigned:
            pass
        notice.done(notice.partitions)
        self.queued()

    def waits(self):
        """The last pause is over; how long it was."""
        seconds, action = self.timers.pop()
        self.now += seconds
        action()
        self.queued()
        return seconds

    def stands(self):
        return self.member.state, [str(partition) for partition in sorted(self.core.owned)]

    def consume(self, name, offset, identity=5):
        self.cursor(name).handed_out(offset, identity)
        self.cursor(name).acknowledge()

    def commit(self, name=None, offset=0):
        """Regularly; `name`: after that has been consumed."""
        if name:
            self.consume(name, offset)
        return self.committer.commit(self.core.owned.values())


BOTH, TWO = ["g_me", "g_other"], ("0-0", "0-1")


def test_a_lone_member_owns_everything_from_what_is_stored_or_the_start_offset():
    world = World(*TWO, stored={"0-0": Offset(9, 555)}).start()
    assert (world.stands(), world.opened) == ((State.STABLE, ["0-0", "0-1"]), [("0-0", 555), ("0-1", 0)])
    assert world.cursor("0-0").last_id == 9  # what a commit of a stretch without messages writes
    assert world.commit() == 0  # nothing changed yet


def test_each_plan_looks_for_missing_topics():
    world = World().start()
    world.changes(partitions=["0-0"])
    assert world.looks == [{"t": []}, {"t": ["0-0"]}]


def test_a_member_that_its_group_does_not_list_keeps_what_it_has_and_plans_again():
    """It would be given nothing, and all others would wait for that."""
    world = World(*TWO).start()
    world.changes(members=["g_other"])
    assert world.stands() == (State.PLAN_LATER, ["0-0", "0-1"])
    world.membership.members = BOTH
    world.waits()
    assert world.stands()[1] == ["0-0"]


def test_where_a_partition_begins_is_committed_before_the_user_hears_of_it_and_before_it_is_read():
    """A later member begins there, too: "latest" is another place by then."""
    world = World(*TWO, start=LATEST).join()
    assert [each.ask for each in world.requests()] == [Ask.BEGIN, Ask.BEGIN]
    for name in TWO:
        world.core.found(world.asked_last[name], 40, 0.0)
    records = world.requests()
    assert [(each.ask, each.offset) for each in records] == [(Ask.RECORD, 40), (Ask.RECORD, 40)]
    assert not world.core.notices.waiting
    world.record(records)
    assert world.store.log == [(1, {("t", "0-0"): Offset(-1, 40), ("t", "0-1"): Offset(-1, 40)})]  # one write
    assert [str(each) for each in world.core.notices.waiting.popleft().partitions] == ["0-0", "0-1"]
    assert (world.asks(), world.commit()) == ([(Ask.PULL, 40), (Ask.PULL, 40)], 0)


@pytest.mark.parametrize("begin", [0, 700])
def test_a_known_beginning_is_committed_too(begin):
    assert World("0-0", start=StartPosition(begin)).join().asks() == [(Ask.RECORD, begin)]


def test_what_is_committed_needs_no_beginning_and_always_latest_has_none():
    assert World("0-0", stored={"0-0": Offset(9, 555)}).join().asks() == [(Ask.PULL, 555)]
    always = World("0-0", start=ALWAYS_LATEST).join()
    (begin,) = always.requests()
    always.core.found(begin, 40, 0.0)
    assert always.asks() == [(Ask.PULL, 40)]


@pytest.mark.parametrize("error", [AWAY, ValueError("a user's store")])
def test_a_beginning_that_cannot_be_committed_is_tried_again_and_nothing_is_read_meanwhile(error, caplog):
    world = World(*TWO).join()
    world.store.failures = [error, error]
    fetcher: Any = SimpleNamespace(go_on=lambda requests, pause=0.0: None)
    beginnings = Beginnings(world.committer, world.core, fetcher, world.member._timers, lambda: world.now)

    def put():
        for request in world.requests():
            assert request.ask is Ask.RECORD
            beginnings.put(request)
        timers, world.timers[:] = list(world.timers), []
        for _, action in timers:
            action()

    for _ in range(2):
        put()
        assert world.requests() == []
        assert not world.core.notices.waiting
        world.now += 60.0
    assert caplog.text.count("cannot be read before") == 1
    put()
    assert (len(world.store.log), world.asks()) == (1, [(Ask.PULL, 0), (Ask.PULL, 0)])


def test_a_beginning_is_not_committed_any_more_once_another_member_shall_get_the_partition():
    """It would replace that member's own."""
    world = World(*TWO, wants_notice=True).join()
    records = world.requests()
    world.changes(members=BOTH)
    world.record(records)
    assert world.store.log == [(1, {("t", "0-0"): Offset(-1, 0)})]
    heard_of = [(each.assigned, [str(one) for one in each.partitions]) for each in world.core.notices.waiting]
    assert heard_of == [(True, ["0-0"])]  # the user has never heard of 0-1


def test_a_partition_that_is_kept_after_all_commits_its_beginning_then():
    world = World(*TWO).join()
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
    assert (world.store.offsets, world.asks()) == ({("t", "0-0"): Offset(-1, 8)}, [(Ask.PULL, 8)])


def test_messages_in_the_users_hands_are_waited_for_before_the_release():
    world = World(*TWO).start()
    state = world.cursor("0-1")
    state.handed_out(99, 5)
    world.changes(members=BOTH)
    assert (world.stands()[0], state.revoking) == (State.DRAINING, True)
    assert world.membership.owners == {"0-0": "g_me", "0-1": "g_me"}
    state.acknowledge()  # the next poll() does so …
    assert [each.assigned for each in world.core.notices.waiting] == [True, False]
    world.lets_go()  # … and lets go
    assert (world.stands()[0], world.membership.owners) == (State.STABLE, {"0-0": "g_me"})
    assert (world.stored("0-1"), state.active) == (Offset(5, 99), False)


def test_a_user_who_does_not_poll_loses_the_partition_after_the_wait():
    world = World(*TWO, wants_notice=True).start()
    world.changes(members=BOTH)
    assert world.waits() == ConsumerConfig().revoke_wait_seconds
    assert world.stands() == (State.STABLE, ["0-0"])
    world.lets_go()  # too late: nothing happens
    assert world.stands() == (State.STABLE, ["0-0"])


@pytest.mark.parametrize(("tries", "named"), [(0, 0), (3, 1)], ids=["its holder hands it over", "or keeps it for long"])
def test_a_partition_still_held_by_another_is_asked_for_until_it_is_free_and_its_holder_named_once(
    tries, named, caplog
):
    world = World(*TWO, owners={"0-1": "g_slow"}).start()
    for _ in range(tries):
        world.waits()
    assert world.stands() == (State.PLAN_LATER, ["0-0"])  # what could be claimed is used meanwhile
    assert (caplog.text.count("0-1 is held by g_slow"), len(caplog.records)) == (named, named)  # else nothing is wrong
    del world.membership.owners["0-1"]
    if tries:
        world.waits()
    else:
        world.member.changed()  # as the membership tells
        world.queued()
    assert world.stands() == (State.STABLE, ["0-0", "0-1"])
    assert world.opened == [("0-0", 0), ("0-1", 0)]  # the first was not opened twice


def test_a_member_waits_on_for_a_partition_if_zookeeper_does_not_say_who_holds_it(caplog):
    failures: list[Exception] = [AWAY, SessionLost("expired")]
    world = World(*TWO, owners={"0-1": "g_slow"}, owner_failures=failures).start()
    for _ in range(4):
        world.waits()
    assert (world.stands(), failures) == ((State.PLAN_LATER, ["0-0"]), [])
    assert caplog.text.count("0-1 is held by g_slow") == 1


def test_a_pause_that_a_change_has_ended_does_not_end_a_later_one():
    world = World(*TWO, owners={"0-1": "g_slow"}).start()
    (_, first) = world.timers[-1]
    world.member.changed()
    world.queued()
    first()
    assert world.member._events.empty()


def test_a_partition_freed_while_others_are_drained_is_claimed_at_once():
    world = World(*TWO, wants_notice=True).start()
    world.membership.owners |= {"0-2": "g_slow", "0-3": "g_slow"}
    # 0-1 stays, 0-0 goes, and 0-2, 0-3 are wanted instead of 0-0, 0-1
    world.changes(members=["g_a", "g_me"], partitions=["0-0", "0-1", "0-2", "0-3"])
    assert world.stands()[0] is State.DRAINING
    world.changes(owners={"0-0": "g_me", "0-1": "g_me"})  # both are free now
    real, tries = world.membership.claim_many, []

    def claim_many(wanted):
        tries.append(wanted)
        return set() if len(tries) == 1 else real(wanted)  # what it looked at was older

    cast(Any, world.membership).claim_many = claim_many
    world.lets_go()
    assert world.stands() == (State.STABLE, ["0-2", "0-3"])


def test_what_was_claimed_without_hearing_so_and_is_not_wanted_any_more_is_given_back():
    """As when the member was frozen in the middle of its claim, and the group went on without it."""
    world = World("0-0").start()
    world.changes(partitions=["0-0", "0-1"], claim_failures=[AWAY])
    assert world.stands()[0] is State.PLAN_LATER
    assert world.membership.owners == {"0-0": "g_me", "0-1": "g_me"}
    world.changes(members=["g_me", "g_z"])
    assert (world.stands(), world.membership.owners) == ((State.STABLE, ["0-0"]), {"0-0": "g_me"})


def test_what_may_have_been_given_up_is_claimed_anew_before_it_goes_on():
    """A release whose answer was lost: another member may have the partition by now."""
    world = World(*TWO).start()
    before = world.cursor("0-1")
    world.changes(members=["g_me", "g_z"], release_failures=[AWAY])
    assert (world.stands(), before.active) == ((State.PLAN_LATER, ["0-0"]), False)
    world.membership.owners["0-1"] = "g_z"  # it had been done, and it was quick
    world.changes(members=["g_me"])
    assert world.stands()[1] == ["0-0"]
    del world.membership.owners["0-1"]
    world.changes()
    assert world.stands() == (State.STABLE, ["0-0", "0-1"])


@pytest.mark.parametrize(("error", "closing", "logged"), [(AWAY, True, False), (ZeroDivisionError(), False, True)])
def test_a_bug_in_an_action_is_logged_and_tried_again_but_nothing_that_fails_while_it_closes(
    error, closing, logged, caplog
):
    world = World("0-0").start()
    world.member._rules.closing = closing
    world.changes(failures=[error])
    assert (world.stands()[0], "ZeroDivisionError" in caplog.text) == (State.PLAN_LATER, logged)
    assert logged or caplog.text == ""


def test_it_tries_for_ever_and_keeps_what_it_owns():
    world = World("0-0").start()
    world.changes(failures=[AWAY] * 50)
    for _ in range(50):
        assert world.stands() == (State.PLAN_LATER, ["0-0"])
        assert world.waits() <= ConsumerConfig().rebalance_max_seconds
    assert world.stands()[0] is State.STABLE


def test_a_failed_registration_is_repeated():
    world = World("0-0", failures=[AWAY]).start()
    assert world.stands()[0] is State.JOIN_LATER
    world.waits()
    assert world.stands()[0] is State.STABLE


def cannot_commit():
    """A world that is to give 0-1 up, of which 77 is consumed, and could not commit that."""
    world = World(*TWO).start()
    world.consume("0-1", 77)
    world.store.failures = [AWAY]
    world.changes(members=BOTH)
    return world


def test_a_failed_commit_keeps_the_partition_until_it_succeeds():
    world = cannot_commit()
    assert world.stands()[0] is State.PLAN_LATER
    assert world.membership.owners == {"0-0": "g_me", "0-1": "g_me"}
    world.waits()
    assert (world.stands()[1], world.stored("0-1")) == (["0-0"], Offset(5, 77))


def test_a_partition_that_need_not_be_handed_over_after_all_goes_on():
    world = cannot_commit()
    world.changes(members=["g_me"])
    assert world.stands() == (State.STABLE, ["0-0", "0-1"])
    kept = world.cursor("0-1")
    assert (kept.moves, kept.position, kept.revoking) == (1, 77, False)
    assert "0-1" in world.asked()


def test_a_partition_kept_before_its_first_position_is_known_does_not_begin_at_0():
    """start="latest" asks the broker; until it answers the position is 0 and means nothing."""
    world = World(*TWO, start=StartPosition(max_offset)).start()
    world.asked()
    world.changes(members=BOTH, release_failures=[AWAY])
    assert world.stands()[0] is State.PLAN_LATER
    world.changes(members=["g_me"])
    assert world.stands() == (State.STABLE, ["0-0", "0-1"])
    kept = world.cursor("0-1")
    assert (kept.moves, kept.opened, kept.revoking) == (0, False, False)
    assert "0-1" in world.asked()  # for where it begins


# --- nobody polls -----------------------------------------------------------------------------------------------------


def idle(*partitions, consumed=0):
    """A world whose user is away; `consumed`: of 0-0, and not committed."""
    world = World(*partitions).start()
    world.idle = True
    if consumed:
        world.consume("0-0", consumed)
    return world


def test_a_member_that_nobody_polls_commits_gives_everything_up_and_leaves_the_group():
    world = idle(*TWO, consumed=77)
    states = list(world.core.owned.values())
    world.member.step_out()
    assert world.member.stepped_out
    world.queued()
    assert (world.stands(), world.membership.owners) == ((State.AWAY, []), {})
    assert (world.membership.out, world.membership.left) == (True, False)
    assert world.store.log == [(1, {("t", "0-0"): Offset(5, 77)})]
    assert not any(state.active for state in states)
    assigned, revoked = world.core.notices.waiting
    assert (assigned.assigned, revoked.assigned) == (True, False)
    assert [str(each) for each in revoked.partitions] == ["0-0", "0-1"]  # heard of with the next poll
    world.member.changed()
    world.queued()
    assert world.stands()[0] is State.AWAY


def test_it_takes_part_again_with_the_next_poll_from_what_is_committed_by_then():
    world = idle(*TWO)
    world.steps_out()
    world.put({"0-0": Offset(9, 555)})  # the other member's
    world.polls()
    assert (world.member.stepped_out, world.membership.out) == (False, False)
    assert (world.stands(), world.opened[2:]) == ((State.STABLE, ["0-0", "0-1"]), [("0-0", 555), ("0-1", 0)])


def test_a_poll_that_comes_before_it_has_stepped_out_keeps_everything():
    world = idle("0-0")
    world.member.step_out()
    world.idle = False
    world.queued()
    assert (world.stands(), world.member.stepped_out) == ((State.STABLE, ["0-0"]), False)
    assert not world.membership.out


def test_a_poll_that_was_heard_of_before_the_idle_time_that_it_ended_leaves_no_member_out_for_ever():
    world = idle("0-0")
    world.member.step_out()
    world.member.come_back()  # and then nobody polls again for so long that it steps out when it gets to it
    world.queued()
    world.steps_out()
    assert (world.stands()[0], world.member.stepped_out) == (State.AWAY, True)
    world.polls()
    assert (world.stands()[0], world.member.stepped_out) == (State.STABLE, False)


def test_coming_back_that_an_exception_interrupts_is_made_good_by_the_next_poll():
    world = idle("0-0")
    world.steps_out()
    real, world.member._events = world.member._events, cast(Any, SimpleNamespace(put=raising(KeyboardInterrupt)))
    with pytest.raises(KeyboardInterrupt):
        world.member.come_back()
    world.member._events = real
    assert world.member.stepped_out  # so the next poll does it again
    world.polls()
    assert world.stands()[0] is State.STABLE


def test_what_cannot_be_committed_or_released_is_tried_again_until_somebody_polls(caplog):
    world = idle("0-0", consumed=77)
    world.store.failures, world.membership.release_failures = [AWAY], [AWAY]
    world.steps_out()
    for owned in (["0-0"], []):  # what is committed is not owned any more, whether its release is heard of or not
        assert world.stands() == (State.STEP_OUT_LATER, owned)
        world.waits()
    assert (world.stands()[0], world.store.offsets) == (State.AWAY, {("t", "0-0"): Offset(5, 77)})
    assert caplog.text.count("no answer") == 1


def test_nothing_is_owned_any_more_when_others_may_claim_it():
    world, seen = idle(*TWO), []
    world.membership.when_free = lambda: seen.append(world.stands()[1])
    world.steps_out()
    assert seen == [[]]


@pytest.mark.parametrize("how", ["release_failures", "lost_answers"])
def test_a_poll_while_stepping_out_fails_takes_part_again_whether_it_was_done_or_not(how):
    world = idle("0-0", consumed=77)
    setattr(world.membership, how, [AWAY])
    world.steps_out()
    assert world.stands()[0] is State.STEP_OUT_LATER
    world.polls()
    assert (world.stands(), world.opened[1:]) == ((State.STABLE, ["0-0"]), [("0-0", 77)])
    assert not world.member.stepped_out


def hands_over(world):
    world.changes(members=["g_a", "g_me"])


@pytest.mark.parametrize(("happens", "then"), [(World.steps_out, State.AWAY), (hands_over, State.JOIN_LATER)])
def test_a_session_that_ends_in_a_commit_takes_everything_with_it(happens, then):
    world = idle(*TWO, consumed=77)
    world.store.failures = [SessionLost("over")]
    world.store.before_commit = lambda: vars(world.membership).update(session_id=0)
    happens(world)
    assert (world.stands(), world.store.log) == ((then, []), [])


def test_a_member_that_waits_for_its_user_to_let_go_steps_out_at_once():
    world = idle(*TWO)
    world.cursor("0-1").handed_out(99, 5)
    world.changes(members=BOTH)
    assert world.stands()[0] is State.DRAINING
    world.steps_out()
    assert world.stands() == (State.AWAY, [])
    world.waits()  # the wait is over, and nobody cares
    assert world.stands()[0] is State.AWAY


def test_a_member_that_could_not_come_back_tries_again():
    world = idle("0-0")
    world.steps_out()
    world.membership.failures = [AWAY]
    world.polls()
    assert world.stands()[0] is State.JOIN_LATER
    world.waits()
    assert world.stands() == (State.STABLE, ["0-0"])


def test_closing_while_it_is_away_ends():
    world = idle("0-0")
    world.steps_out()
    world.member.take(Event.CLOSE)
    assert world.stands()[0] is State.LEFT


# --- lost sessions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replaced", [False, True])
def test_a_lost_session_drops_everything_without_a_commit_and_joins_again(replaced):
    """replaced: the membership has joined again by itself, before this member hears of the loss."""
    world = World("0-0").start()
    world.consume("0-0", 77)
    old = world.cursor("0-0")
    world.changes(session_id=2 if replaced else 0, owners={})
    if not replaced:
        assert (world.stands(), world.store.log) == ((State.JOIN_LATER, []), [])
        world.membership.session_id = 2
        world.waits()
    assert (world.stands(), old.active, world.cursor("0-0").fence) == ((State.STABLE, ["0-0"]), False, 2)


def test_a_member_knows_that_it_holds_nothing_before_its_own_thread_hears_of_a_lost_session():
    world = World("0-0").start()
    assert world.member.holds_its_claims()
    assert world.member.holds_its_claims()  # the second time without looking at each partition
    for session_id in (0, 2):  # gone; replaced by another, on which the membership is registered again already
        world.membership.session_id = session_id
        assert not world.member.holds_its_claims()
    world.changes(owners={})
    assert world.member.holds_its_claims()


def test_a_session_lost_while_handing_over_after_a_refused_claim_is_joined_again():
    """What a claim that failed has waited for says nothing about a later try to join."""
    world = World("0-1", "0-2", wants_notice=True).start()
    world.membership.owners["0-0"] = "g_slow"
    world.changes(members=["g_me", "g_z"], partitions=["0-0", "0-1", "0-2", "0-3"])  # 0-2 goes, 0-0 is wanted …
    world.changes()
    real = world.membership.claim_many

    def claim_many(wanted):
        world.membership.members = ["g_a", "g_me"]  # … but refused, and by now 0-1 goes, too
        return real(wanted)

    cast(Any, world.membership).claim_many = claim_many
    world.lets_go()
    assert world.stands() == (State.DRAINING, ["0-1"])
    world.changes()
    vars(world.membership).update(session_id=0, owners={}, release_failures=[SessionLost("over")])
    world.lets_go()
    assert world.stands() == (State.JOIN_LATER, [])
    world.membership.session_id = 2
    world.waits()
    assert world.stands() == (State.STABLE, ["0-2", "0-3"])


def test_bursts_of_changes_are_looked_at_once():
    world = World("0-0").start()
    for _ in range(10):
        world.member.changed()
    assert world.member._events.qsize() == 1


@pytest.mark.parametrize("failures", [[], [AWAY]], ids=["with ZooKeeper", "without"])
def test_leaving_commits_and_takes_everything_back_if_it_can(failures, caplog):
    world = World(*TWO).start()
    world.consume("0-0", 42)
    world.store.failures = [*failures]
    world.member.take(Event.CLOSE)
    assert (world.stands()[0], "could not leave properly" in caplog.text) == (State.LEFT, bool(failures))
    if not failures:
        assert (world.membership.left, world.membership.owners) == (True, {})
        assert world.store.log == [(1, {("t", "0-0"): Offset(5, 42)})]


# --- commits ----------------------------------------------------------------------------------------------------------


def test_only_what_changed_is_committed_and_a_failure_is_made_good():
    world = World(*TWO).start()
    assert (world.commit("0-0", 10), world.commit()) == (1, 0)
    world.store.failures = [AWAY]
    with pytest.raises(CoordinationUnavailable):
        world.commit("0-0", 20)
    assert world.commit() == 1
    assert world.store.log[1:] == [(1, {("t", "0-0"): Offset(5, 20)})]


def test_claims_of_different_sessions_are_committed_on_their_own():
    world = World(*TWO).start()
    world.cursor("0-1").fence = 2
    world.consume("0-0", 10)
    assert world.commit("0-1", 11) == 2
    assert sorted(fence for fence, _ in world.store.log) == [1, 2]


def test_regular_commits_go_on_after_a_failure(caplog):
    world = World("0-0").start()
    world.committer.commit_regularly(world.member._timers, 5, world.core)
    world.consume("0-0", 10)
    world.store.failures = [AWAY]
    assert world.waits() == 5
    assert "offsets of group g wait to be committed, every 5 s: no answer" in caplog.text
    assert world.waits() == 5
    assert world.store.offsets == {("t", "0-0"): Offset(5, 10)}
    assert [seconds for seconds, _ in world.timers] == [5]


# --- where partitions are read, and begin -----------------------------------------------------------------------------


def test_a_partition_is_read_from_a_slave_while_there_is_no_master():
    master, *slaves = (BrokerAddress(0, slave, "host", port) for port, slave in ((1, None), (2, 0), (3, 1)))
    world = World(*TWO, brokers={0: BrokerNodes(master, tuple(slaves))}).start()

    def ports():
        endpoints = [world.member.endpoint_of(TopicPartition("t", 0, number)) for number in range(2)]
        return [endpoint and endpoint.port for endpoint in endpoints]

    assert ports() == [1, 1]
    world.asked()
    world.changes(brokers={0: BrokerNodes(None, tuple(slaves))})
    assert ports() == [2, 3]  # shared out, and steady
    assert world.asked() == ["0-0", "0-1"]
    assert world.member.is_slave(Endpoint("host", 2))
    world.changes(brokers={0: BrokerNodes(master, tuple(slaves[:1]))})
    assert (ports(), world.asked()) == ([1, 1], ["0-0", "0-1"])
    assert not world.member.is_slave(Endpoint("host", 1))


@pytest.mark.parametrize(("start", "begins"), [(StartPosition(7), [100, 7]), (ALWAYS_LATEST, [max_offset, max_offset])])
def test_a_partition_begins_at_what_is_committed_unless_it_shall_always_begin_at_the_end(start, begins):
    world = World(*TWO, start=start, stored={"0-0": Offset(5, 100)}).start()
    assert [offset for _, offset in world.opened] == begins


def test_partitions_of_a_broker_set_that_changes_its_leader_are_kept():
    world = World(*TWO, "1-0").start()
    world.sets = [0]
    world.changes(partitions=[])
    assert world.stands()[1] == ["0-0", "0-1"]
    cursor = world.cursor("0-0")
    world.changes(partitions=["0-0", "0-1", "1-0"])
    assert world.stands()[1] == ["0-0", "0-1", "1-0"]
    assert world.cursor("0-0") is cursor


def test_partitions_of_a_broker_set_that_stays_without_a_leader_are_lost():
    world = World("0-0").start()
    world.sets = [0]
    world.changes(partitions=[])
    world.waits()
    assert world.stands()[1] == []


# --- ZooKeeper comes back with less than it had -----------------------------------------------------------------------


def lose_session(world, *, set_back=True, **group):
    """A new session follows; `set_back`: because no server took the former one any more."""
    connections, set_backs = world.membership.connections + 1, world.membership.set_backs + set_back
    state = {"session_id": 2, "owners": {}, "held": set(), "connections": connections, "set_backs": set_backs}
    world.changes(**state, **group)


def reconnect(world, **group):
    """The session lives on, on another server."""
    world.changes(connections=world.membership.connections + 1, **group)


def begins(world, name="0-0"):
    """Where a partition was begun last; `place`: by the argument `start`."""
    begin = dict(world.opened)[name]
    return begin if isinstance(begin, int) else "place"


@pytest.mark.parametrize("start", [FROM_THE_BEGINNING, LATEST, ALWAYS_LATEST])
def test_behind_an_empty_zookeeper_a_member_goes_on_where_it_was_and_writes_that(start):
    world = World(*TWO, start=start).start()
    while (cursor := world.core.next_wanting()) is not None:
        request = cursor.next_request(0.0)
        if request is not None and request.ask is Ask.BEGIN:
            world.core.found(request, 40, 0.0)  # the end
    world.commit("0-0", 77)
    world.consume("0-0", 90)
    world.store.offsets.clear()
    lose_session(world)
    assert (begins(world), world.stored()) == (90, Offset(5, 90))
    assert begins(world, "0-1") == (0 if start is FROM_THE_BEGINNING else 40)  # nothing was consumed of it
    world.commit("0-0", 99)
    assert world.stored() == Offset(5, 99)


def test_what_the_user_had_in_hand_when_the_session_was_lost_counts_once_it_is_done():
    world = World("0-0").start()
    world.consume("0-0", 77)
    cursor = world.cursor("0-0")
    cursor.handed_out(90, 5)
    world.changes(session_id=0)
    cursor.acknowledge()  # the next poll
    lose_session(world)
    world.waits()
    assert begins(world) == 90


@pytest.mark.parametrize(
    ("copy", "later", "set_back", "goes_on"),
    [
        pytest.param(Offset(1, 20), False, False, 77, id="an older copy: its server has had more transactions"),
        pytest.param(Offset(9, 500), True, False, 500, id="another member has gone on ahead"),
        pytest.param(Offset(9, 20), True, False, 20, id="an operator has set it back"),
        pytest.param(Offset(1, 20), True, True, 77, id="set back, and a former owner that had hung wrote since"),
    ],
)
def test_where_a_member_goes_on_behind_a_zookeeper_that_knows_another_place(copy, later, set_back, goes_on):
    """later: it was written since the session was lost. set_back: that server has refused the former session."""
    world = World("0-0").start()
    world.commit("0-0", 77)
    world.put({"0-0": copy})
    world.store.written_later = {("t", "0-0")} if later else set()
    lose_session(world, set_back=set_back)
    assert (begins(world), world.stored()) == (goes_on, Offset(5, 77) if goes_on == 77 else copy)


def test_behind_an_older_copy_that_refused_nobody_a_place_counts_against_where_the_former_owner_gave_the_partition_up():
    """It had given it up just before, and has written that again before this member came."""
    handed_over = {"0-0": Offset(1, 20)}
    world = World("0-0", stored=handed_over).start()
    world.commit("0-0", 77)
    world.put(handed_over)
    world.store.written_later.add(("t", "0-0"))
    lose_session(world, set_back=False)
    assert (begins(world), world.stored()) == (77, Offset(5, 77))


@pytest.mark.parametrize(("copy", "written"), [({("t", "0-0"): Offset(1, 20)}, 20), ({}, 77)])
def test_what_was_lost_with_an_earlier_session_than_the_last_is_written_where_nothing_is(copy, written):
    """Another member may have owned it since, and write more than the copy has."""
    world = World("0-0").start()
    world.commit("0-0", 77)
    world.store.offsets = copy
    lose_session(world, last_session_id=9)
    assert world.store.offsets["t", "0-0"].offset == written


def test_an_offset_that_is_kept_elsewhere_did_not_go_back_with_zookeeper():
    world = World("0-0").start()
    world.consume("0-0", 77)
    world.put({"0-0": Offset(9, 20)})
    world.store.is_elsewhere = True
    lose_session(world)
    assert (begins(world), world.stored()) == (20, Offset(9, 20))


def test_where_the_user_commits_what_was_not_committed_comes_again():
    world = World("0-0", config=ConsumerConfig(auto_commit_seconds=0.0)).start()
    world.commit("0-0", 77)
    world.consume("0-0", 90)
    world.store.offsets.clear()
    lose_session(world)
    assert (begins(world), world.stored()) == (77, Offset(5, 77))


@pytest.mark.parametrize("lose", [lose_session, reconnect])
def test_partitions_of_others_wait_until_these_had_time_to_come_back(lose):
    """They alone know where the group stands in them: whether the session is lost, or lives on in an older copy, which
    lacks that of one who had claimed them since."""
    world = World(*TWO, members=BOTH).start()
    world.commit("0-0", 77)
    assert world.stands()[1] == ["0-0"]
    world.put({"0-0": Offset(1, 20)})
    lose(world, members=["g_me"])  # the other one has not seen yet that ZooKeeper is back
    assert world.stands()[1] == ["0-0"]
    world.put({"0-1": Offset(3, 30)})  # it is back, and gone again
    assert world.waits() == 15.0  # the session timeout, and RETURN_SECONDS
    assert (world.stands()[1], begins(world, "0-1")) == (["0-0", "0-1"], 30)


def test_after_an_expiry_without_a_set_back_nobody_waits():
    world = World(*TWO, members=BOTH).start()
    lose_session(world, set_back=False, members=["g_me"])
    assert world.stands()[1] == ["0-0", "0-1"]


def test_a_member_that_cannot_write_where_it_stands_tries_again():
    world = World("0-0").start()
    world.consume("0-0", 77)
    world.store.offsets.clear()
    world.store.failures = [AWAY]
    lose_session(world)
    assert world.stands() == (State.JOIN_LATER, [])
    world.waits()
    assert (world.stands()[1], world.stored()) == (["0-0"], Offset(5, 77))


def test_a_session_that_lives_on_in_an_older_copy_makes_good_what_the_copy_lacks():
    names = ("0-0", "0-1", "0-2")
    world = World(*names).start()
    for name in names:
        world.commit(name, 77)
    world.store.offsets = {("t", "0-0"): Offset(1, 20), ("t", "0-1"): Offset(1, 20)}
    kept = world.cursor("0-0")
    reconnect(world, owners={"0-1": "g_other"})  # 0-0 was claimed later, and 0-1 belonged to another
    assert world.membership.owners == {"0-0": "g_me", "0-1": "g_other", "0-2": "g_me"}
    assert (world.cursor("0-0") is kept, world.stands()[1]) == (True, ["0-0", "0-2"])
    assert world.store.offsets == {("t", name): Offset(5, 77) for name in names}
    world.put({"0-0": Offset(1, 20)})
    world.changes()
    assert world.stored() == Offset(1, 20)  # once per connection


def give_one_up():
    """A world that has just given 0-1 up, of which 77 is committed, to a member that has not claimed it yet; the copy
    that it meets has 20 of it."""
    world = World(*TWO).start()
    world.consume("0-1", 77)
    world.changes(members=BOTH)
    assert (world.stands()[1], world.membership.owners) == (["0-0"], {"0-0": "g_me"})
    world.put({"0-1": Offset(1, 20)})
    return world


@pytest.mark.parametrize(("owner", "written"), [(None, 77), ("g_me", 77), ("g_other", 20)])
def test_a_session_that_lives_on_in_an_older_copy_makes_good_what_it_has_just_given_up(owner, written):
    """Nobody else knows where the group stands there; but who owns it in the copy goes on by itself."""
    world = give_one_up()
    reconnect(world, owners={"0-0": "g_me"} | ({"0-1": owner} if owner else {}))
    assert world.store.offsets["t", "0-1"].offset == written
    assert world.membership.owners.get("0-1") == ("g_other" if owner == "g_other" else None)
    assert world.stands()[1] == ["0-0"]


@pytest.mark.parametrize(
    ("lose", "seconds", "copy", "written"),
    [
        (lose_session, 0.0, {}, 77),
        *((lose, 26.0, {("t", "0-1"): Offset(1, 20)}, 20) for lose in (lose_session, reconnect)),
    ],
    ids=["behind an empty ZooKeeper", "long ago, another session", "long ago, another server"],
)
def test_what_was_just_given_up_is_written_where_it_stood_and_later_it_is_its_next_owners(lose, seconds, copy, written):
    world = give_one_up()
    world.store.offsets = copy
    world.now += seconds
    lose(world)
    assert world.store.offsets["t", "0-1"].offset == written


def test_an_owner_node_that_an_older_copy_has_again_goes_again():
    """Nobody could claim the partition as long as the session lives."""
    world = give_one_up()
    world.commit("0-0", 99)
    world.put({"0-0": Offset(1, 20)})
    world.now += 26.0
    reconnect(world, owners={"0-0": "g_me", "0-1": "g_me"})
    assert world.membership.owners == {"0-0": "g_me"}


@pytest.mark.parametrize("waited", [False, True])
def test_a_commit_that_comes_before_the_look_at_an_older_copy_does_not_hide_it(waited):
    """A timer commits, and it may be the first to reach the copy, or have waited for it: it overwrites what would have
    told of it."""
    world = World(*TWO, members=BOTH).start()
    world.commit("0-0", 77)
    world.membership.is_connected = not waited
    load = world.store.load_many

    def copy_comes():
        vars(world.membership).update(is_connected=True, members=["g_me"], connections=2)
        world.put({"0-0": Offset(1, 20)})

    def load_on_the_next_connection(group, names):
        if not world.membership.is_connected:
            copy_comes()
        return load(group, names)

    cast(Any, world.store).load_many = load_on_the_next_connection
    if not waited:
        copy_comes()
    world.commit("0-0", 90)
    world.changes()
    assert (world.stands()[1], world.stored()) == (["0-0"], Offset(5, 90))
    assert world.waits() == 15.0


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
