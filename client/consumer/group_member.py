"""A consumer's membership in its group: carry out the actions of the state machine (rebalance.py).

Everything runs on one thread, the rebalance thread, unless noted otherwise.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue

from metaq.coordination.assignment import STRATEGIES, Strategy, java_sorted
from metaq.coordination.backoff import Backoff
from metaq.coordination.brokers import BrokerNodes, ClusterView
from metaq.coordination.group import GroupMembership, GroupSnapshot
from metaq.coordination.logs import get_log
from metaq.protocol.errors import CoordinationError, MetaqError, SessionLost
from metaq.protocol.own_topics import RETRY_PREFIX, is_own_topic

from ..fetching.core import ConsumerCore
from ..fetching.cursor import PartitionCursor
from ..fetching.fetcher import Fetcher
from ..fetching.notices import Notice
from ..fetching.tuning import HELD_LOOK_SECONDS, ZONE_SETTLE_SECONDS
from ..questions.brokers import endpoint_at, source_of
from ..records.values import TopicPartition
from ..runtime.nearest import published_nowhere
from ..runtime.timers import Timers
from ..transport.absences import Absences
from ..transport.connection import Endpoint
from .filters import GroupFilters
from .kept_positions import KeptPositions
from .offset_commit import OffsetCommitter, StartPosition, znode_name
from .rebalance import Action, Event, State, next_state
from .zones import ByZone

__all__ = ["GroupMember", "MissingTopics"]

log = get_log(__name__)

_FIRST = StartPosition(0)


class GroupMember:
    """Claim partitions for one consumer, give them up, and tell the core of both.

    stepped_out: the member has left the group, or is about to, because nobody polled; come_back() ends that.
    """

    def __init__(
        self,
        membership: GroupMembership,
        committer: OffsetCommitter,
        core: ConsumerCore,
        fetcher: Fetcher,
        timers: Timers,
        view: ClusterView,
        is_idle: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        on_brokers: Callable[[Collection[int]], None] = lambda _: None,
        on_given_up: Callable[[Iterable[PartitionCursor]], None] = lambda _: None,
    ) -> None:
        """is_idle: whether still nobody polls, asked before the member steps out. on_brokers: called with the ids of
        the registered brokers after each look at them. on_given_up: called with partitions that are committed and lost
        to the core, but still owned; its MetaqError fails the step."""
        config = core.config
        self.state = State.NEW
        self.stepped_out = False
        self._membership = membership
        self._committer = committer
        self._core = core
        self._fetcher = fetcher
        self._config = config
        strategy = config.strategy
        self._strategy: Strategy | None = strategy if callable(strategy) else STRATEGIES.get(strategy)  # None: by zones
        self._by_zone = ByZone(membership.group, ZONE_SETTLE_SECONDS, clock)
        self._filters = GroupFilters(membership.group)
        self._start = StartPosition(0)
        self._kept = KeptPositions(membership, committer, clock, by_commits=not config.auto_commit_seconds)
        self._connections = 0  # number of the connection to ZooKeeper when the owned partitions were last checked
        self._retry_topic = RETRY_PREFIX + membership.group
        self._missing_topics = MissingTopics(membership.group, view)
        self._absences = Absences()
        self._view = view
        self._known: Collection[TopicPartition] = ()
        self._timers = timers
        self._is_idle = is_idle
        self._on_brokers = on_brokers
        self._on_given_up = on_given_up
        self._clock = clock
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._checked: tuple[Mapping[TopicPartition, PartitionCursor], int] = ({}, 0)
        self._change_is_queued = False
        self._change_noted = False
        self._closing = False
        self._joined = False
        self._is_out = False  # the membership is given up
        self._gains: list[TopicPartition] = []
        self._losses: list[PartitionCursor] = []
        self._draining: Notice | None = None
        self._backoff = Backoff(config.rebalance_min_seconds, config.rebalance_max_seconds)
        self._reason = ""
        self._pauses = 0
        self._waiting: tuple[list[TopicPartition], float] = ([], 0.0)  # the partitions waited for, and since when
        self._waits_for: list[TopicPartition] = []  # held by other members at the last claim
        self._complaint = ""  # the last reason that was logged as a warning
        self._began = clock()
        self._moved = 0
        self._brokers: Mapping[int, BrokerNodes] = {}
        self._thread = threading.Thread(target=self._run, name="metaq-rebalance", daemon=True)

    # --- any thread -------------------------------------------------------------------------------------------------

    def begin(self, start: StartPosition) -> None:
        """Join the group in the background. start: where newly owned partitions begin. Exception: no failed message of
        the group may be skipped."""
        self._start = start
        self._events.put(Event.STARTED)
        self._thread.start()

    def changed(self) -> None:
        """Note that members, partitions, brokers or the session may have changed. Several calls before the next look
        count as one."""
        if not self._change_is_queued:
            self._change_is_queued = True
            self._events.put(Event.CHANGED)

    def subscribe(self, topic: str) -> None:
        """Subscribe to an additional topic. Not on the rebalance thread. Raises as GroupMembership.subscribe."""
        self._membership.subscribe(topic)
        self.changed()

    def step_out(self) -> None:
        """Give everything up and leave the group, because nobody polls, until come_back()."""
        self.stepped_out = True
        self._events.put(Event.IDLE)

    @property
    def owned(self) -> Mapping[TopicPartition, PartitionCursor]:
        """As ConsumerCore.owned."""
        return self._core.owned

    def come_back(self) -> None:
        """Somebody polls again. If interrupted, `stepped_out` stays true, and the call may be repeated."""
        self._events.put(Event.POLLED)
        self.stepped_out = False

    def endpoint_of(self, partition: TopicPartition) -> Endpoint | None:
        """Return where to read a partition: its master; without one, always the same of its slaves."""
        return source_of(self._brokers, partition)

    def is_slave(self, endpoint: Endpoint) -> bool:
        """Whether a slave listens at this endpoint, according to the group's last look at the brokers."""
        return any(endpoint == endpoint_at(each) for nodes in self._brokers.values() for each in nodes.slaves)

    def close(self, timeout: float) -> bool:
        """Commit, release everything and leave; return False if that took longer than `timeout` seconds."""
        self._closing = True
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
        """Process an event, and the events that its actions report."""
        if first is Event.CHANGED:
            self._change_is_queued = False
        event: Event | None = first
        while event is not None:
            self.state, actions = next_state(self.state, event)
            event = None
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
        self._reason = str(error) or type(error).__name__
        if action is Action.LEAVE:
            log.warning("group %s: could not leave properly: %s", self._membership.group, self._reason)
            return Event.GONE
        if isinstance(error, SessionLost) and action is not Action.JOIN and not self._claims_hold():
            return Event.SESSION_LOST
        return Event.FAILED

    def _session_lives(self) -> bool:
        return self._membership.session_id != 0

    def _claims_hold(self) -> bool:
        """Whether everything owned was claimed on the current session; the membership may already have a newer one."""
        return self._session_lives() and self.holds_its_claims()

    def holds_its_claims(self) -> bool:
        """Whether the session that claimed the owned partitions is still the current one. Any thread; cheap enough for
        each poll.

        When a session ends, nothing is ours any more, even before this thread hears of the end.
        """
        owned, session_id = self._core.owned, self._membership.session_id
        if self._checked[0] is owned and self._checked[1] == session_id:
            return True
        if any(each.fence != session_id for each in owned.values()):
            return False
        self._checked = owned, session_id
        return True

    # --- actions ----------------------------------------------------------------------------------------------------

    def _join(self) -> Event:
        """Join the group. After a lost session the membership registers again by itself, and then reports a change."""
        if not self._joined:
            self._connections = self._membership.connections
            self._membership.join()
            self._joined = True
        elif self._is_out:
            self._membership.rejoin()
            self._is_out = self.stepped_out = False
        elif not self._session_lives() and not self._core.owned:  # otherwise the plan first drops what was owned
            raise SessionLost("there is no new ZooKeeper session yet")
        if not self._core.owned:
            self._kept.publish()
            if (pause := self._kept.ends_in) is not None:
                self._timers.call_later(pause, self.changed)
        return Event.JOINED

    def _plan(self) -> Event:
        if self._backoff.tries == 0:
            self._began, self._moved = self._clock(), 0
        self._change_noted = False
        if not self._claims_hold():
            self._reason = "the ZooKeeper session is over"
            return Event.SESSION_LOST
        self._prove_claims()
        snapshot = self._with_settled_zones(self._membership.snapshot())
        self._brokers_are(snapshot.brokers)
        self._missing_topics.look({name: each for name, each in snapshot.partitions.items() if not is_own_topic(name)})
        me = self._membership.consumer_id
        self._filters.look(me, snapshot.consumers, snapshot.filters)
        wanted: set[TopicPartition] = set()
        partitions = self._partitions(snapshot.partitions)
        for topic, consumers in snapshot.consumers.items():
            if me not in consumers:
                raise CoordinationError(f"{me} is not registered in the group")
            if self._strategy is None:
                assert snapshot.zones is not None, "the membership has a zone"
                names = self._by_zone.share(me, topic, consumers, partitions[topic], snapshot.zones)
            else:
                names = self._strategy(me, consumers, partitions[topic])
            wanted.update(TopicPartition.parse(topic, name) for name in names)
        return self._compare(wanted)

    def _prove_claims(self) -> None:
        """Check the claims after each new connection: ZooKeeper may have come back from an older copy that has the
        session, but not all of its changes. Partitions that were just given up are checked, too: perhaps only we know
        their positions."""
        connections = self._membership.connections
        owned = self._core.owned
        given_up = self._kept.given_up(owned)
        if connections != self._connections and (owned or given_up):
            granted = self._membership.claim_many([znode_name(partition) for partition in [*owned, *given_up]])
            lost = [cursor for partition, cursor in owned.items() if znode_name(partition) not in granted]
            free = [cursor for partition, cursor in given_up.items() if znode_name(partition) in granted]
            # Also claims that are lost, because their next owner has no position. `_compare` gives free ones up again.
            restored = self._committer.restore([*owned.values(), *free])
            self._drop(lost, "they have other owners in ZooKeeper")
            if restored:
                log.warning(
                    "group %s: ZooKeeper was set back: wrote again what was committed of %d partitions",
                    *(self._membership.group, restored),
                )
                self._kept.wait_for_others()
                self._membership.hold_again([znode_name(each) for each in self._known if each not in owned])
        self._connections = connections

    def _with_settled_zones(self, snapshot: GroupSnapshot) -> GroupSnapshot:
        """Let the group first agree on the zones of brokers, if it has to."""
        if snapshot.zones is None:
            return snapshot
        registered = {each for each, nodes in snapshot.brokers.items() if nodes.master is not None}
        wanted = self._by_zone.update(self._membership.consumer_id, snapshot.zones, registered)
        if self._by_zone.ends_in is not None:
            self._timers.call_later(self._by_zone.ends_in, self.changed)
        if wanted is None:
            return snapshot
        self._membership.agree_on_zones(wanted, snapshot.zones.version)
        return self._membership.snapshot()

    def _partitions(self, listed: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
        """Return the partitions to assign, by topic in Java's string order: the registered ones, and those absent
        because their broker set is changing its leader."""
        found = {TopicPartition.parse(topic, name) for topic, names in listed.items() for name in names}
        missing = self._absences.missing(self._known, found)
        kept = self._absences.kept(missing, self._view.set_ids(), self._clock()) if missing else []
        self._known = found.union(kept)
        if self._absences.ends_in is None:
            return listed
        self._timers.call_later(self._absences.ends_in, self.changed)
        away: dict[str, list[str]] = {}
        for each in kept:
            away.setdefault(each.topic, []).append(str(each))
        return {topic: java_sorted([*names, *away.get(topic, ())]) for topic, names in listed.items()}

    def _brokers_are(self, brokers: Mapping[int, BrokerNodes]) -> None:
        """Switch partitions to their new source: a master left and a slave remains, or a master came back."""
        former, self._brokers = self._brokers, brokers
        self._on_brokers(brokers.keys())
        masters = {each: endpoint_at(nodes.master) for each, nodes in brokers.items() if nodes.master is not None}
        self._fetcher.brokers_are(masters, {endpoint_at(each) for nodes in brokers.values() for each in nodes.slaves})
        for partition, cursor in self._core.owned.items():
            source = source_of(brokers, partition)
            if source is not None and source != source_of(former, partition):
                log.info("group %s: %s is read from %s now", self._membership.group, _names([partition]), source)
                cursor.ask_anew()
        self._fetcher.serve_soon()

    def _compare(self, wanted: set[TopicPartition]) -> Event:
        owned = self._core.owned
        stray = self._membership.held - {znode_name(partition) for partition in wanted | owned.keys()}
        if stray:  # claimed or released, but the answer was lost: nobody else would get them
            self._membership.release_many(stray)
        gains = wanted - owned.keys()
        self._gains = sorted(gains - self._kept.waits_for_others(gains))
        if len(self._gains) < len(gains) and (pause := self._kept.ends_in) is not None:
            self._timers.call_later(pause, self.changed)
        self._losses = [owned[partition] for partition in sorted(owned.keys() - wanted)]
        for partition in wanted & owned.keys():
            owned[partition].keep()  # drop a hand-over that failed half-way
        self._fetcher.serve_soon()
        if self._losses:
            return Event.LOSSES
        return Event.GAINS if self._gains else Event.SETTLED

    def _drain(self) -> Event | None:
        losses = self._losses
        for cursor in losses:
            cursor.revoke()
        heard_of = self._core.told(losses)
        if not (heard_of and self._core.notices.on_revoked) and not self._core.is_out(losses):
            return Event.DRAINED

        def told(_: Sequence[TopicPartition]) -> None:
            if not notice.left:
                self._drained(notice)

        notice = self._draining = Notice(False, heard_of, told)
        self._tell(notice)
        self._timers.call_later(self._config.revoke_wait_seconds, partial(self._drained, notice, late=True))
        return None

    def _drained(self, notice: Notice, late: bool = False) -> None:
        """Called when the polling thread has let go; polling thread, or timer thread (late)."""
        if self._draining is not notice:
            return
        self._draining = None
        if late:
            log.warning(
                "group %s: no poll() for %g s, so %s are handed over now; messages in work will come again elsewhere",
                self._membership.group,
                self._config.revoke_wait_seconds,
                _names(notice.left),
            )
        self._events.put(Event.DRAINED)

    def _release(self) -> Event:
        losses, self._losses = self._losses, []
        self._committer.commit(losses)
        self._core.lose(losses)
        self._moved += len(losses)
        self._on_given_up(losses)
        self._kept.gave_up(losses)
        # last: if it fails, see `_compare`
        self._membership.release_many(znode_name(each.partition) for each in losses)
        return Event.RELEASED

    def _tell(self, notice: Notice) -> None:
        self._core.notices.put(notice)
        self._fetcher.wake()

    def _claim(self) -> Event:
        membership = self._membership
        fence = membership.session_id
        granted = membership.claim_many([znode_name(partition) for partition in self._gains])
        claimed = [partition for partition in self._gains if znode_name(partition) in granted]
        if claimed:
            self._begin(claimed, fence)
        self._waits_for = [partition for partition in self._gains if znode_name(partition) not in granted]
        return Event.FAILED if self._waits_for else Event.CLAIMED

    def _begin(self, claimed: list[TopicPartition], fence: int) -> None:
        """Read the offsets only now: the previous owner may have committed until the claim."""
        membership, names = self._membership, [znode_name(partition) for partition in claimed]
        try:
            stored = self._committer.load(names)
        except BaseException:
            membership.release_many(names)
            raise
        starts = [_FIRST if each.topic == self._retry_topic else self._start for each in claimed]
        begins = [start.begins([each])[0] for start, each in zip(starts, stored, strict=True)]
        recorded = [each is not None or not start.resume for start, each in zip(starts, stored, strict=True)]
        resumed = self._kept.resume(claimed, stored)
        begins = [begin if place is None else place[0] for begin, place in zip(begins, resumed, strict=True)]
        self._core.claim(claimed, begins, stored, resumed, recorded=recorded, fence=fence)
        self._moved += len(claimed)
        self._fetcher.serve_soon()
        self._fetcher.wake()

    def _settle(self) -> Event | None:
        if self._moved or self._backoff.tries:
            log.info(
                "group %s: %s owns %d partitions after a rebalance of %.3f s, %d tries",
                self._membership.group,
                self._membership.consumer_id,
                len(self._core.owned),
                self._clock() - self._began,
                self._backoff.tries + 1,
            )
        self._kept.forget()
        self._backoff.reset()
        self._complaint = ""
        self._waiting = [], 0.0
        return Event.CHANGED if self._change_noted else None

    def _note_change(self) -> None:
        self._change_noted = True

    def _pause(self) -> Event | None:
        waits_for, self._waits_for = self._waits_for, []  # it is about the failed claim, not about a later try
        if waits_for:
            if self._change_noted:
                return Event.CHANGED
            pause = self._wait_for_others(waits_for)
        else:
            pause = self._backoff.next()
            self._complain(
                f"rebalance try {self._backoff.tries} failed, next in {pause:.2f} s, keeping {len(self._core.owned)} "
                "partitions",
                self._reason,
            )
        self._pauses += 1
        self._timers.call_later(pause, partial(self._pause_over, self._pauses))
        return None

    def _pause_over(self, number: int) -> None:
        """Timer thread. If a change has ended a pause, that pause must not end a later one."""
        if number == self._pauses:
            self._events.put(Event.PAUSE_OVER)

    def _wait_for_others(self, waits_for: list[TopicPartition]) -> float:
        """Wait for members that hand over one after another: no failure, unless one keeps what it should give up."""
        now = self._clock()
        former, since = self._waiting
        if former != waits_for:
            self._waiting = waits_for, now
            log.info("group %s: waiting until %s are free", self._membership.group, _names(waits_for))
        elif now - since >= HELD_LOOK_SECONDS:
            holder = self._membership.owner(*znode_name(waits_for[0]))
            if holder is not None:  # otherwise it has just become free
                self._complain(
                    f"{_names(waits_for)} could not be claimed for {now - since:.0f} s",
                    f"{waits_for[0]} is held by {holder}",
                )
        return HELD_LOOK_SECONDS

    def _complain(self, trouble: str, reason: str) -> None:
        """Log a warning for each new reason, unless the end caused the failure."""
        if self._closing:
            return
        level = logging.DEBUG if reason == self._complaint else logging.WARNING
        self._complaint = reason
        log.log(level, "group %s: %s: %s", self._membership.group, trouble, reason)

    def _abandon(self) -> Event:
        """Drop everything owned: the owner nodes are gone, and a commit could overwrite a new owner's."""
        lost = list(self._core.owned.values())
        self._kept.keep(lost)
        self._drop(lost, f"{self._reason}; joining again")
        return Event.CHANGED

    def _drop(self, lost: Sequence[PartitionCursor], why: str) -> None:
        """Drop partitions that are not ours any more; there is nothing to give up."""
        self._core.lose(lost)
        if lost:
            log.warning("group %s: %d partitions are lost: %s", self._membership.group, len(lost), why)
            self._tell(Notice(False, self._core.told(lost)))

    def _step_out(self) -> Event:
        """Step out of the group; failed steps are tried again. Delivered messages that do not count as consumed come
        again elsewhere."""
        if not self._is_idle():
            self.stepped_out = False
            return Event.POLLED
        told = () if self._draining is None else self._draining.partitions
        self._draining, self._waits_for = None, []
        owned = self._core.owned
        for cursor in owned.values():
            cursor.revoke()
        is_committed = self._claims_hold()
        if is_committed:
            self._committer.commit(owned.values())
        self._core.lose(owned.values())
        if is_committed:
            self._on_given_up(owned.values())
        if owned:
            self._tell(Notice(False, set(self._core.told(owned.values())).difference(told)))
        self._is_out = self.stepped_out = True  # reset by a poll that came before and was not processed yet
        self._membership.step_out()  # last: others claim at once, and after a failure it may or may not be done
        self._backoff.reset()
        self._complaint = ""
        return Event.STEPPED_OUT

    def _leave(self) -> Event:
        self._draining = None
        owned = self._core.owned
        for cursor in owned.values():
            cursor.revoke()
        try:
            if self._session_lives():
                self._committer.commit(owned.values())  # the fence refuses it if the session is new
                self._core.lose(owned.values())
                self._on_given_up(owned.values())
        finally:
            self._core.lose(owned.values())
            self._membership.leave()  # releases everything held
        return Event.GONE


class MissingTopics:
    """Warn once of each subscribed topic that has had no partition yet, because a misspelt name would stay unnoticed.
    One thread.

    A topic that existed before is not misspelt: its brokers are absent, so there is no warning.
    """

    def __init__(self, group: str, view: ClusterView) -> None:
        self._group = group
        self._view = view
        self._settled: set[str] = set()
        """Topics that existed once, or that were logged."""

    def look(self, partitions: Mapping[str, Collection[str]]) -> None:
        """partitions: by topic, as in a plan. Asks ZooKeeper only if a topic is missing for the first time."""
        self._settled |= {topic for topic, each in partitions.items() if each}
        missing = partitions.keys() - self._settled
        if not missing:
            return
        try:
            known = self._view.live_topics()
            told = {topic: self._trouble(topic, known) for topic in sorted(missing)}
        except MetaqError as error:  # a hint must not fail the plan
            told = {
                topic: f"topic {topic!r} has no partition; which topics there are is unknown: {error}"
                for topic in missing
            }
        for topic, trouble in told.items():
            if trouble is not None:
                self._settled.add(topic)
                log.warning("group %s: %s", self._group, trouble)

    def _trouble(self, topic: str, known: Collection[str]) -> str | None:
        """Return the warning's text; None if the topic was registered after the plan was made."""
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


def _names(partitions: Sequence[TopicPartition]) -> str:
    shown = ", ".join(f"{each.topic} {each}" for each in partitions[:5])
    return shown if len(partitions) <= 5 else f"{shown} and {len(partitions) - 5} more"
