"""Run a consumer's membership in its group: the thread, the timers and the requests to ZooKeeper. The core (core.py),
which follows the state machine of rebalance.py, makes the decisions.

Everything runs on one thread, the rebalance thread, unless noted otherwise.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue

from metaq.coordination.brokers.cluster_view import BrokerNodes, ClusterView
from metaq.coordination.groups.membership import GroupMembership
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import CoordinationError, CoordinationRefused, MetaqError, SessionLost
from metaq.protocol.own_topics import is_own_topic

from ..fetching.core import ConsumerCore
from ..fetching.cursor import PartitionCursor
from ..fetching.fetcher import Fetcher
from ..fetching.notices import Notice
from ..questions.sources import endpoint_at, source_of
from ..records.results import TopicPartition
from ..runtime.nearest import published_nowhere
from ..runtime.timers import Scheduler
from ..transport.connection import Endpoint
from .core import MemberCore
from .kept_positions import KeptPositions
from .offset_commit import OffsetCommitter, StartPosition, znode_name
from .rebalance import Action, Event, State

__all__ = ["GroupMember", "MissingTopics"]

log = get_log(__name__)

_NEVER = (1 << 63) - 1
"""A ZooKeeper transaction id (zxid) that is greater than all real ones."""


class GroupMember:
    """The membership of one consumer. A GroupMember claims partitions in ZooKeeper, gives them up there, and reports
    both to the core.

    stepped_out: whether the member has left the group, or is about to leave it, because the program did not poll.
    come_back() sets it to false.
    """

    def __init__(
        self,
        membership: GroupMembership,
        committer: OffsetCommitter,
        core: ConsumerCore,
        fetcher: Fetcher,
        timers: Scheduler,
        view: ClusterView,
        is_idle: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        on_brokers: Callable[[Collection[int]], None] = lambda _: None,
        on_given_up: Callable[[Iterable[PartitionCursor]], None] = lambda _: None,
    ) -> None:
        """is_idle: returns whether the program does not poll now. Before a member leaves the group because the program
        does not poll, it calls is_idle, and stays in the group if the program polls again. on_brokers: called with the
        ids of the registered brokers each time the ids were read from ZooKeeper.
        on_given_up: called with partitions that this member is giving up. When it is called, the partitions' offsets
        are committed and the core does not count the partitions as owned any more, but in ZooKeeper their owner nodes,
        which name this member, still exist. If on_given_up raises a MetaqError, the current action fails.
        """
        self.stepped_out = False
        self._rules = MemberCore(membership.group, membership.consumer_id, core)
        self._membership = membership
        self._committer = committer
        self._core = core
        self._fetcher = fetcher
        self._kept = KeptPositions(clock, by_commits=not core.config.auto_commit_seconds)
        self._published_on = 0  # the session on which lost commits were looked for
        self._set_backs = 0  # number of set-backs of ZooKeeper known so far
        self._connections = 0  # number of the connection to ZooKeeper when the owned partitions were last checked
        self._missing_topics = MissingTopics(membership.group, view)
        self._view = view
        self._timers = timers
        self._is_idle = is_idle
        self._on_brokers = on_brokers
        self._on_given_up = on_given_up
        self._clock = clock
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._change_is_queued = False
        self._joined = False
        self._is_out = False  # whether the membership is given up
        self._thread = threading.Thread(target=self._run, name="metaq-rebalance", daemon=True)

    # --- any thread -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._rules.state

    def begin(self, start: StartPosition) -> None:
        """Join the group in the background. start: the position where reading of newly owned partitions begins. The
        group's topic of failed messages is always read from its beginning, because no message of that topic may be
        skipped.
        """
        self._rules.start = start
        self._events.put(Event.STARTED)
        self._thread.start()

    def changed(self) -> None:
        """Make this member plan again which partitions it should own, because members, partitions, brokers or the
        session may have changed. Several calls before the next plan count as one.
        """
        if not self._change_is_queued:
            self._change_is_queued = True
            self._events.put(Event.CHANGED)

    def subscribe(self, topic: str) -> None:
        """Subscribe to an additional topic. Do not call this on the rebalance thread. Raises the same errors as
        GroupMembership.subscribe.
        """
        self._membership.subscribe(topic)
        self.changed()

    def step_out(self) -> None:
        """Give up all partitions and leave the group until come_back() is called, because the program does not poll."""
        self.stepped_out = True
        self._events.put(Event.IDLE)

    @property
    def owned(self) -> Mapping[TopicPartition, PartitionCursor]:
        """The owned partitions with their cursors; see ConsumerCore.owned."""
        return self._core.owned

    def come_back(self) -> None:
        """Join the group again, because the program polls again. If an interrupt ends `come_back` early, `stepped_out`
        stays true, and `come_back` may be called again.
        """
        self._events.put(Event.POLLED)
        self.stepped_out = False

    def endpoint_of(self, partition: TopicPartition) -> Endpoint | None:
        """Return the endpoint from which this member reads a partition: the broker's master or, if no master is
        registered, one of its slaves. As long as the registrations do not change, each call chooses the same slave.
        Return None if the broker has no registered node.
        """
        return source_of(self._rules.brokers, partition)

    def is_slave(self, endpoint: Endpoint) -> bool:
        """Return whether a slave listens at this endpoint, according to the list of brokers that was read last."""
        return any(endpoint == endpoint_at(each) for nodes in self._rules.brokers.values() for each in nodes.slaves)

    def close(self, timeout: float) -> bool:
        """Commit the offsets, release all partitions and leave the group. Return False if this was not finished within
        `timeout` seconds.
        """
        self._rules.closing = True
        if self._thread.ident is None:
            return True
        self._events.put(Event.CLOSE)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # --- the machine ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self.state is not State.LEFT:
            self.take(self._events.get())

    def take(self, first: Event) -> None:
        """Process an event, and then each event that the resulting actions report."""
        if first is Event.CHANGED:
            self._change_is_queued = False
        event: Event | None = first
        while event is not None:
            actions, event = self._rules.take(event), None
            for action in actions:
                event = self._act(action)

    def _act(self, action: Action) -> Event | None:
        try:
            return _ACTIONS[action](self)
        except (MetaqError, OSError) as error:
            return self._failed(action, error)
        except Exception as error:  # a bug here must not end the consumer silently: log it, pause, try again
            log.exception("group %s: %s failed", self._membership.group, action.name)
            return self._failed(action, error)

    def _failed(self, action: Action, error: Exception) -> Event:
        if isinstance(error, CoordinationRefused):
            self._core.refuse_membership(error)
            self._fetcher.wake()
        return self._rules.failed(action, error, self._claims_hold())

    def _session_lives(self) -> bool:
        return self._membership.session_id != 0

    def _claims_hold(self) -> bool:
        """Return whether all owned partitions were claimed on the current session. The result is False after the
        session was lost and a newer session has begun.
        """
        return self._session_lives() and self.holds_its_claims()

    @property
    def condition(self) -> tuple[str, str]:
        """What the member is doing, such as "stable", and why its last step has failed; the second text is "" unless
        the member is waiting to repeat this step. Any thread may read this.
        """
        state = self._rules.state.name.lower().replace("_", " ")
        return state, self._rules.reason if state.endswith(" later") else ""

    def holds_its_claims(self) -> bool:
        """Return MemberCore.holds_claims for the current session. Any thread may call this."""
        return self._rules.holds_claims(self._membership.session_id)

    # --- actions ----------------------------------------------------------------------------------------------------

    def _join(self) -> Event:
        """Join the group. This method registers the member only the first time and after it had left the group. If the
        ZooKeeper session is lost later, the GroupMembership registers the member again by itself and then reports a
        change.
        """
        if not self._joined:
            self._connections = self._membership.connections
            self._membership.join()
            self._joined = True
        elif self._is_out:
            self._membership.rejoin()
            self._is_out = self.stepped_out = False
        elif not self._session_lives() and not self._core.owned:  # otherwise the plan first drops the partitions
            raise SessionLost("there is no new ZooKeeper session yet")
        if not self._core.owned:
            self._publish_kept()
            if (pause := self._kept.ends_in) is not None:
                self._timers.call_later(pause, self.changed)
        return Event.JOINED

    def _publish_kept(self) -> None:
        """If the ZooKeeper session is new, find out whether ZooKeeper has lost offsets that this member had committed
        on its last session, and write these offsets again. Raises the errors of OffsetCommitter.commit; after an error
        the call may be repeated.
        """
        session_id = self._membership.session_id
        if session_id == self._published_on:
            return
        kept = self._kept.positions()
        names = [znode_name(each) for each in kept]
        stored = self._committer.load(names) if names else []
        set_backs, last = self._membership.set_backs, self._membership.last_session_id
        is_known = set_backs != self._set_backs
        behind = self._kept.behind(kept, stored, self._newer(names, is_known), last)
        if is_known or self._kept.shows_loss(kept, behind):
            # offsets that were written later come from another member, which may have known less
            behind = self._kept.behind(kept, stored, self._newer(names, True), last)
            self._kept.wait_for_others(self._membership.session_timeout)
            if behind:
                self._committer.publish({znode_name(each): kept[each].place for each in behind})
            log.warning(
                "group %s: ZooKeeper was set back: wrote again where the group stands in %d partitions, and waits "
                "up to %.0f s for the members that owned others",
                *(self._membership.group, len(behind), self._kept.ends_in or 0.0),
            )
        self._set_backs, self._published_on = set_backs, session_id

    def _newer(self, names: Sequence[tuple[str, str]], is_set_back: bool) -> list[bool]:
        """Return for each partition True if its committed offset is right, or False if the position that this member
        remembers is right. The committed offset is right if it was written after the last change in ZooKeeper that this
        member has seen, because then another member wrote it later. If ZooKeeper was set back to an older state, the
        remembered position is always right.
        """
        return (
            self._committer.changed_since(names, _NEVER if is_set_back else self._membership.seen_zxid) if names else []
        )

    def _plan(self) -> Event:
        rules = self._rules
        rules.plan_begins(self._clock())
        if not self._claims_hold():
            rules.reason = "the ZooKeeper session is over"
            return Event.SESSION_LOST
        self._prove_claims()
        snapshot = self._membership.snapshot()
        zones = rules.zones_to_agree_on(snapshot, self._clock())
        if zones is not None:
            assert snapshot.zones is not None, "they differ from these"
            self._membership.agree_on_zones(zones, snapshot.zones.version)
            snapshot = self._membership.snapshot()
        self._brokers_are(snapshot.brokers)
        self._missing_topics.look({name: each for name, each in snapshot.partitions.items() if not is_own_topic(name)})
        missing = rules.missing(snapshot)
        wanted = rules.plan(snapshot, missing, self._view.set_ids() if missing else (), self._clock())
        for seconds in rules.looks_in:
            self._timers.call_later(seconds, self.changed)
        stray = self._membership.held - {znode_name(partition) for partition in wanted | self.owned.keys()}
        if stray:  # claimed or released, but the answer was lost: nobody else would get these partitions
            self._membership.release_many(stray)
        not_yet = self._kept.waits_for_others(wanted - self.owned.keys())
        if not_yet and (pause := self._kept.ends_in) is not None:
            self._timers.call_later(pause, self.changed)
        event = rules.compare(wanted - not_yet)
        self._fetcher.serve_soon()
        return event

    def _prove_claims(self) -> None:
        """After each new connection to ZooKeeper, check that this member still owns its partitions there. ZooKeeper may
        have been restored from an older copy that contains this member's session, but not all changes that were made on
        this session. Partitions that this member gave up a short time ago are checked, too: if ZooKeeper has lost their
        committed offsets, only this member may know their positions.
        """
        connections = self._membership.connections
        owned = self._core.owned
        given_up = self._kept.given_up(owned)
        if connections != self._connections and (owned or given_up):
            granted = self._membership.claim_many([znode_name(partition) for partition in [*owned, *given_up]])
            lost = [cursor for partition, cursor in owned.items() if znode_name(partition) not in granted]
            free = [cursor for partition, cursor in given_up.items() if znode_name(partition) in granted]
            # This includes lost claims, because their next owner has no position. `_plan` releases free partitions
            # again.
            restored = self._committer.restore([*owned.values(), *free])
            self._rules.lose(lost, "they have other owners in ZooKeeper")
            self._fetcher.wake()
            if restored:
                log.warning(
                    "group %s: ZooKeeper was set back: wrote the committed offsets of %d partitions again",
                    *(self._membership.group, restored),
                )
                self._kept.wait_for_others(self._membership.session_timeout)
                self._membership.hold_again([znode_name(each) for each in self._rules.known if each not in owned])
        self._connections = connections

    def _brokers_are(self, brokers: Mapping[int, BrokerNodes]) -> None:
        """Give the current list of brokers to the core, and let the fetcher read each partition from the endpoint that
        serves it now.
        """
        moved = self._rules.brokers_are(brokers)
        self._on_brokers(brokers.keys())
        masters = {each: endpoint_at(nodes.master) for each, nodes in brokers.items() if nodes.master is not None}
        self._fetcher.brokers_are(masters, {endpoint_at(each) for nodes in brokers.values() for each in nodes.slaves})
        for cursor in moved:
            cursor.ask_anew()
        self._fetcher.serve_soon()

    def _drain(self) -> Event | None:
        notice = self._rules.drain(self._drained)
        if notice is None:
            return Event.DRAINED
        self._fetcher.wake()
        self._timers.call_later(self._core.config.revoke_wait_seconds, partial(self._drained, notice, late=True))
        return None

    def _drained(self, notice: Notice, late: bool = False) -> None:
        """End the wait until the user has finished the messages of the partitions that will be handed over. The polling
        thread calls this method when the user has finished the messages; the timer thread calls it with late=True if
        the user has not finished them in time.
        """
        if self._rules.drained(notice, late):
            self._events.put(Event.DRAINED)

    def _release(self) -> Event:
        self._committer.commit(self._rules.losses)
        losses = self._rules.released()
        self._on_given_up(losses)
        self._kept.gave_up(losses, self._membership.session_timeout)
        # last, because `_plan` does it again if it fails
        self._membership.release_many(znode_name(each.partition) for each in losses)
        return Event.RELEASED

    def _claim(self) -> Event:
        fence, gains = self._membership.session_id, self._rules.gains
        granted = self._membership.claim_many([znode_name(partition) for partition in gains])
        claimed = [partition for partition in gains if znode_name(partition) in granted]
        if claimed:
            self._begin(claimed, fence)
        return self._rules.claimed(claimed)

    def _begin(self, claimed: list[TopicPartition], fence: int) -> None:
        """Begin to read claimed partitions. The committed offsets are loaded only after the claim, because the previous
        owner may have committed until then.
        """
        names = [znode_name(partition) for partition in claimed]
        try:
            stored = self._committer.load(names)
        except BaseException:
            self._membership.release_many(names)
            raise
        kept = self._kept
        newer = self._newer(names, kept.ends_in is not None) if kept.knows_any(claimed) else [True] * len(names)
        self._rules.begin(claimed, stored, kept.resume(claimed, stored, newer), fence)
        self._fetcher.serve_soon()
        self._fetcher.wake()

    def _settle(self) -> Event | None:
        event = self._rules.settle(self._clock())
        self._kept.forget()
        return event

    def _note_change(self) -> None:
        self._rules.note_change()

    def _pause(self) -> Event | None:
        now = self._clock()
        suspect = self._rules.suspect(now)
        pause = self._rules.pause(now, None if suspect is None else self._holder(suspect))
        if pause is None:
            return Event.CHANGED
        self._timers.call_later(pause, partial(self._pause_over, self._rules.pauses))
        return None

    def _holder(self, suspect: TopicPartition) -> str | None:
        try:
            return self._membership.owner(*znode_name(suspect))
        except CoordinationError as error:  # the holder is only named in a warning, and the pause may not fail
            log.debug("group %s: who holds %s is unknown: %s", self._membership.group, suspect, error)
            return None

    def _pause_over(self, number: int) -> None:
        """End a pause before the next try of a rebalance, on the timer thread. number: the pause's number
        (`MemberCore.pauses`). If this pause has already ended because the group has changed, nothing happens; so this
        call cannot end a later pause.
        """
        if number == self._rules.pauses:
            self._events.put(Event.PAUSE_OVER)

    def _abandon(self) -> Event:
        """Drop all partitions, because their owner nodes in ZooKeeper are gone. Offsets are not committed, because a
        commit could overwrite a new owner's offsets.
        """
        lost = list(self.owned.values())
        self._kept.keep(lost)
        self._rules.lose(lost, f"{self._rules.reason}; joining again")
        self._fetcher.wake()
        return Event.CHANGED

    def _step_out(self) -> Event:
        """Give up all partitions and leave the group, because the program does not poll. If it fails, the state machine
        tries it again. Delivered messages that do not count as consumed will be delivered again by other members.
        """
        if not self._is_idle():
            self.stepped_out = False
            return Event.POLLED
        owned, told = self._rules.give_all_up()
        is_committed = self._claims_hold()
        if is_committed:
            self._committer.commit(owned)
        self._core.lose(owned)
        if is_committed:
            self._on_given_up(owned)
        self._rules.tell_rest(owned, told)
        self._fetcher.wake()
        self._is_out = self.stepped_out = True  # an earlier poll that was not processed yet may have reset it
        self._membership.step_out()  # last: others claim at once, and after a failure the step may or may not be done
        self._rules.calm_down()
        return Event.STEPPED_OUT

    def _leave(self) -> Event:
        owned, _ = self._rules.give_all_up()
        try:
            if self._session_lives():
                self._committer.commit(owned)  # the fence rejects the commit if the session is new
                self._core.lose(owned)
                self._on_given_up(owned)
        finally:
            self._core.lose(owned)
            self._membership.leave()  # releases everything held
        return Event.GONE


class MissingTopics:
    """Logs one warning for each subscribed topic that has had no partition yet, because a misspelt name would otherwise
    stay unnoticed. The object must be used by one thread only.

    No warning is logged for a topic that has had partitions before, because its name is not misspelt; only its brokers
    are absent.
    """

    def __init__(self, group: str, view: ClusterView) -> None:
        self._group = group
        self._view = view
        self._settled: set[str] = set()
        """The topics that have had a partition, and the topics about which a warning was logged."""

    def look(self, partitions: Mapping[str, Collection[str]]) -> None:
        """Log a warning for each subscribed topic that has no partition. partitions: for each subscribed topic, the
        names of its registered partitions. ZooKeeper is asked for the registered topics only if there is a subscribed
        topic that has never had a partition and about which no warning was logged yet.
        """
        self._settled |= {topic for topic, each in partitions.items() if each}
        missing = partitions.keys() - self._settled
        if not missing:
            return
        try:
            known = self._view.live_topics()
            told = {topic: self._trouble(topic, known) for topic in sorted(missing)}
        except MetaqError as error:  # a failed hint must not fail the plan
            told = {
                topic: f"topic {topic!r} has no partition; which topics there are is unknown: {error}"
                for topic in missing
            }
        for topic, trouble in told.items():
            if trouble is not None:
                self._settled.add(topic)
                log.warning("group %s: %s", self._group, trouble)

    def _trouble(self, topic: str, known: Collection[str]) -> str | None:
        """Return the text of the warning for a subscribed topic without a partition. Return None if the topic is
        registered now: then it was registered only after this member had read the group's state, and no warning is
        needed. known: all registered topics.
        """
        if self._view.consumer_partitions(topic):
            return None
        if topic in known:
            return (
                f"topic {topic!r} is given to consumers by no live broker: set acceptSubscribe=true in its server.ini"
            )
        return published_nowhere(topic, known)


_ACTIONS: dict[Action, Callable[[GroupMember], Event | None]] = {
    Action.JOIN: GroupMember._join,
    Action.PLAN: GroupMember._plan,
    Action.DRAIN: GroupMember._drain,
    Action.RELEASE: GroupMember._release,
    Action.CLAIM: GroupMember._claim,
    Action.SETTLE: GroupMember._settle,
    Action.NOTE_CHANGE: GroupMember._note_change,
    Action.PAUSE: GroupMember._pause,
    Action.ABANDON: GroupMember._abandon,
    Action.STEP_OUT: GroupMember._step_out,
    Action.LEAVE: GroupMember._leave,
}
