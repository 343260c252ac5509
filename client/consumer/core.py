"""Decide what a member of a group does next. The code here has no I/O, threads, locks or clocks.

rebalance.py, a table of states, says which actions follow an event. MemberCore decides the details of each action. A
driver executes the actions one after another. For each action it sends requests to ZooKeeper, calls the core, and
reports an event when the action ends:

| action | the driver asks ZooKeeper | this core |
|---|---|---|
| PLAN | whether the claims hold, for a snapshot of the group, to agree on zones | `plan_begins`, `zones_to_agree_on`, |
| | for the broker sets, if partitions are `missing`, to release `stray` claims | `brokers_are`, `plan`, `compare` |
| DRAIN | nothing | `drain`, until it is `drained` |
| RELEASE | to commit and to release the `losses` | `released` |
| CLAIM | to claim the `gains`, for their offsets | `begin`, `claimed` |
| SETTLE | nothing | `settle` |
| PAUSE | who holds the `suspect` | `pause` |
| ABANDON | nothing | `lose` |
| STEP_OUT, LEAVE | to commit and to leave | `give_all_up`, `tell_rest` |

The rebalance thread of group_member.py is one driver. now: monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from metaq.coordination.brokers.cluster_view import BrokerNodes
from metaq.coordination.groups.assignment import STRATEGIES, Strategy
from metaq.coordination.groups.group_view import GroupSnapshot
from metaq.coordination.records.java_order import java_sorted
from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import CoordinationError, SessionLost
from metaq.protocol.own_topics import RETRY_PREFIX

from ..fetching.core import ConsumerCore
from ..fetching.cursor import PartitionCursor, Reached
from ..fetching.notices import Notice
from ..fetching.tuning import HELD_LOOK_SECONDS, ZONE_SETTLE_SECONDS
from ..questions.sources import source_of
from ..records.results import TopicPartition
from ..transport.absences import Absences
from .filters import GroupFilters
from .offset_commit import StartPosition
from .rebalance import Action, Event, State, next_state
from .zones import ByZone

__all__ = ["MemberCore"]

log = get_log(__name__)

_FIRST = StartPosition(0)


class MemberCore:
    """Makes the decisions of one member of a group. The methods may be called by only one thread at a time.
    Exceptions are `holds_claims`, `drained` and the attributes, which any thread may use at any time.

    start: the position where reading of newly owned partitions begins; set by the driver. closing: set to true by the
    driver when failures shall no longer be logged. reason: why the last failed action has failed. gains: partitions
    that the last plan gives to this member and that it does not own. losses: partitions that it owns and that the last
    plan does not give to it. known: all partitions of the group's topics. brokers: the brokers at the last plan.
    pauses: how many pauses before another try there have been so far.
    """

    def __init__(self, group: str, me: str, core: ConsumerCore) -> None:
        """me: the consumer's id. core: the ConsumerCore, which holds the partitions that this member owns."""
        config = core.config
        strategy = config.strategy
        self.state = State.NEW
        self.start = _FIRST
        self.closing = False
        self.reason = ""
        self.gains: list[TopicPartition] = []
        self.losses: list[PartitionCursor] = []
        self.known: Collection[TopicPartition] = ()
        self.brokers: Mapping[int, BrokerNodes] = {}
        self.pauses = 0
        self._group = group
        self._me = me
        self._core = core
        self._revoke_wait = config.revoke_wait_seconds
        # None: the assignment by zones
        self._strategy: Strategy | None = strategy if callable(strategy) else STRATEGIES.get(strategy)
        self._by_zone = ByZone(group, ZONE_SETTLE_SECONDS)
        self._filters = GroupFilters(group)
        self._absences = Absences()
        self._listed: set[TopicPartition] = set()
        self._retry_topic = RETRY_PREFIX + group
        self._checked: tuple[Mapping[TopicPartition, PartitionCursor], int] = ({}, 0)
        self._change_noted = False
        self._draining: Notice | None = None
        self._backoff = Backoff(config.rebalance_min_seconds, config.rebalance_max_seconds)
        self._waits_for: list[TopicPartition] = []  # partitions that other members held at the last claim
        # the partitions that this member waits for, and since when
        self._waiting: tuple[list[TopicPartition], float] = ([], 0.0)
        self._complaint = ""  # the last reason that was logged as a warning
        self._began = 0.0
        self._moved = 0

    # --- events -----------------------------------------------------------------------------------------------------

    def take(self, event: Event) -> Sequence[Action]:
        """Change the state as the event requires, and return the next actions. Raises LocalProtocolError for an event
        that cannot come in the present state.
        """
        self.state, actions = next_state(self.state, event)
        return actions

    def failed(self, action: Action, error: Exception, claims_hold: bool) -> Event:
        """Return the event that the state machine gets after an action has failed with `error`. claims_hold: whether
        the owned partitions are still claimed on the current ZooKeeper session.
        """
        self.reason = str(error) or type(error).__name__
        if action is Action.LEAVE:
            log.warning("group %s: could not leave properly: %s", self._group, self.reason)
            return Event.GONE
        if isinstance(error, SessionLost) and action is not Action.JOIN and not claims_hold:
            return Event.SESSION_LOST
        return Event.FAILED

    def holds_claims(self, session_id: int) -> bool:
        """Return whether all owned partitions were claimed on this ZooKeeper session. session_id: the current session.
        The check costs so little that each poll can make it.

        When a session ends, this member owns no partitions any more, even if the driver does not know of the end yet.
        """
        owned = self._core.owned
        if self._checked[0] is owned and self._checked[1] == session_id:
            return True
        if any(each.fence != session_id for each in owned.values()):
            return False
        self._checked = owned, session_id
        return True

    # --- a plan -----------------------------------------------------------------------------------------------------

    def plan_begins(self, now: float) -> None:
        """Record that the driver begins to plan: to compute which partitions this member should own. The plan may miss
        changes of the group that are reported after this call, so these changes need another plan.
        """
        if self._backoff.tries == 0:
            self._began, self._moved = now, 0
        self._change_noted = False

    def note_change(self) -> None:
        """Remember that the group has changed, so that this member must plan again."""
        self._change_noted = True

    def zones_to_agree_on(self, snapshot: GroupSnapshot, now: float) -> Mapping[int, str] | None:
        """Return a dict from broker id to zone: the zones of the brokers on which the group must agree now. The driver
        must write these zones to ZooKeeper before it calls `plan`. Return None if the zones in ZooKeeper need no
        change, or if the group does not assign partitions by zones.
        """
        if snapshot.zones is None:
            return None
        registered = {each for each, nodes in snapshot.brokers.items() if nodes.master is not None}
        return self._by_zone.update(self._me, snapshot.zones, registered, now)

    def brokers_are(self, brokers: Mapping[int, BrokerNodes]) -> list[PartitionCursor]:
        """Store the current brokers. Return the cursors of the partitions that must now be read from another endpoint.
        The endpoint changes if a master has gone and a slave remains, or if a master has come back.
        """
        former, self.brokers = self.brokers, brokers
        moved = []
        for partition, cursor in self._core.owned.items():
            source = source_of(brokers, partition)
            if source is not None and source != source_of(former, partition):
                log.info("group %s: %s is read from %s now", self._group, _names([partition]), source)
                moved.append(cursor)
        return moved

    def missing(self, snapshot: GroupSnapshot) -> list[TopicPartition]:
        """Store which partitions of the group's topics are registered according to this snapshot. Return the partitions
        that were in an earlier snapshot but are not registered any more. If there are any, the driver must read the ids
        of the broker sets from ZooKeeper and pass them to `plan`.
        """
        listed = snapshot.partitions.items()
        self._listed = {TopicPartition.parse(topic, name) for topic, names in listed for name in names}
        return self._absences.missing(self.known, self._listed)

    def plan(
        self, snapshot: GroupSnapshot, missing: Sequence[TopicPartition], set_ids: Collection[int], now: float
    ) -> set[TopicPartition]:
        """Return the partitions that this member should own. Raises CoordinationError if the group does not list the
        member."""
        self._filters.look(self._me, snapshot.consumers, snapshot.filters)
        wanted: set[TopicPartition] = set()
        partitions = self._with_absent(snapshot.partitions, self._absences.kept(missing, set_ids, now))
        for topic, consumers in snapshot.consumers.items():
            if self._me not in consumers:
                raise CoordinationError(f"{self._me} is not registered in the group")
            if self._strategy is None:
                assert snapshot.zones is not None, "the membership has a zone"
                names = self._by_zone.share(self._me, topic, consumers, partitions[topic], snapshot.zones)
            else:
                names = self._strategy(self._me, consumers, partitions[topic])
            wanted.update(TopicPartition.parse(topic, name) for name in names)
        return wanted

    def _with_absent(
        self, listed: Mapping[str, Sequence[str]], kept: Sequence[TopicPartition]
    ) -> Mapping[str, Sequence[str]]:
        """Return the partitions to assign to members, by topic. The result contains the registered partitions
        (`listed`), and also `kept`: the partitions that are not registered only because their broker set is changing
        its leader. The partition names of each topic are sorted in Java's string order.
        """
        self.known = self._listed.union(kept)
        if not kept:
            return listed
        away: dict[str, list[str]] = {}
        for each in kept:
            away.setdefault(each.topic, []).append(str(each))
        return {topic: java_sorted([*names, *away.get(topic, ())]) for topic, names in listed.items()}

    @property
    def looks_in(self) -> list[float]:
        """The last plan can stop being valid by itself, for several reasons. Return, for each such reason, the number
        of seconds until then. When the first of these times is over, this member must plan again, even if no change was
        reported.
        """
        return [each for each in (self._by_zone.ends_in, self._absences.ends_in) if each is not None]

    def compare(self, wanted: Collection[TopicPartition]) -> Event:
        """Compare the partitions that this member should own (`wanted`) with those that it owns, and set `gains` and
        `losses`. Return the event LOSSES if there are losses, otherwise GAINS if there are gains, otherwise SETTLED.
        """
        owned = self._core.owned
        self.gains = sorted(set(wanted) - owned.keys())
        self.losses = [owned[partition] for partition in sorted(owned.keys() - wanted)]
        for partition in owned.keys() & wanted:
            owned[partition].keep()  # drop a hand-over that failed half-way
        if self.losses:
            return Event.LOSSES
        return Event.GAINS if self.gains else Event.SETTLED

    # --- the hand-over ----------------------------------------------------------------------------------------------

    def drain(self, on_told: Callable[[Notice], None]) -> Notice | None:
        """Stop fetching from the partitions in `losses`. Return the Notice by which the polling thread tells the user
        that they are revoked. Return None if the user need not be told and has no unfinished messages of these
        partitions. on_told: called with the notice on the user's thread when the user was told and has finished these
        messages.
        """
        for cursor in self.losses:
            cursor.revoke()
        heard_of = self._core.told(self.losses)
        if not (heard_of and self._core.notices.on_revoked) and not self._core.is_out(self.losses):
            return None

        def told(_: Sequence[TopicPartition]) -> None:
            if not notice.left:
                on_told(notice)

        notice = self._draining = Notice(False, heard_of, told)
        self._core.notices.put(notice)
        return notice

    def drained(self, notice: Notice, late: bool = False) -> bool:
        """End the wait until partitions can be handed over: the user has finished the messages of the partitions in
        `notice`, or has not finished them in time (`late`). Return False if the wait for this notice had ended before.
        """
        if self._draining is not notice:
            return False
        self._draining = None
        if late:
            log.warning(
                "group %s: no poll() for %g s, so %s are handed over now; messages in work will come again elsewhere",
                self._group,
                self._revoke_wait,
                _names(notice.left),
            )
        return True

    def released(self) -> list[PartitionCursor]:
        """Stop owning the partitions in `losses`, whose offsets the driver has committed, and return their cursors."""
        losses, self.losses = self.losses, []
        self._core.lose(losses)
        self._moved += len(losses)
        return losses

    def begin(
        self,
        claimed: Sequence[TopicPartition],
        stored: Sequence[Reached | None],
        resumed: Sequence[Reached | None],
        fence: int,
    ) -> None:
        """Become the owner of these partitions, which the driver has claimed in ZooKeeper. stored: their committed
        offsets. resumed: for each partition the position where reading continues, which this member remembers from an
        earlier ownership. It is None if reading begins at the committed offset. fence: the ZooKeeper session on which
        the partitions were claimed.
        """
        starts = [_FIRST if each.topic == self._retry_topic else self.start for each in claimed]
        begins = [start.begins([each])[0] for start, each in zip(starts, stored, strict=True)]
        recorded = [each is not None or not start.resume for start, each in zip(starts, stored, strict=True)]
        begins = [begin if place is None else place[0] for begin, place in zip(begins, resumed, strict=True)]
        self._core.claim(claimed, begins, stored, resumed, recorded=recorded, fence=fence)
        self._moved += len(claimed)

    def claimed(self, granted: Collection[TopicPartition]) -> Event:
        """Record which partitions the driver could claim. granted: the partitions in `gains` that were claimed
        successfully. Return the event CLAIMED, or FAILED if other members still hold some partitions.
        """
        self._waits_for = [partition for partition in self.gains if partition not in granted]
        return Event.FAILED if self._waits_for else Event.CLAIMED

    def settle(self, now: float) -> Event | None:
        """End a rebalance, because this member owns all partitions that are assigned to it. Return CHANGED if the group
        has changed since the plan, so that this member must plan again; otherwise None.
        """
        if self._moved or self._backoff.tries:
            log.info(
                "group %s: %s owns %d partitions after a rebalance of %.3f s, %d tries",
                self._group,
                self._me,
                len(self._core.owned),
                now - self._began,
                self._backoff.tries + 1,
            )
        self._waiting = [], 0.0
        self.calm_down()
        return Event.CHANGED if self._change_noted else None

    def calm_down(self) -> None:
        """Called when a try has succeeded: after the next failure, let the pauses begin with the shortest one again."""
        self._backoff.reset()
        self._complaint = ""

    # --- pauses -----------------------------------------------------------------------------------------------------

    def suspect(self, now: float) -> TopicPartition | None:
        """Return a partition that this member waits for and that another member should have given up by now. Return
        None if there is none. The driver finds out which member owns the partition, and passes that member to `pause`,
        which logs a warning.
        """
        former, since = self._waiting
        is_late = self._waits_for == former and now - since >= HELD_LOOK_SECONDS
        return self._waits_for[0] if self._waits_for and is_late and not self._change_noted else None

    def pause(self, now: float, holder: str | None = None) -> float | None:
        """Return the seconds until the next try of a rebalance. Return None if the next try shall begin at once,
        because this member only waited for partitions of other members and the group has changed meanwhile. holder: the
        member that holds the partition that `suspect` has returned.
        """
        waits_for, self._waits_for = self._waits_for, []  # they belong to the failed claim, not to a later try
        if waits_for and self._change_noted:
            return None
        self.pauses += 1
        if waits_for:
            self._wait_for_others(waits_for, now, holder)
            return HELD_LOOK_SECONDS
        pause = self._backoff.next()
        self._complain(
            f"rebalance try {self._backoff.tries} failed, next in {pause:.2f} s, keeping {len(self._core.owned)} "
            "partitions",
            self.reason,
        )
        return pause

    def _wait_for_others(self, waits_for: list[TopicPartition], now: float, holder: str | None) -> None:
        """Log that this member waits for partitions that other members have not given up yet. To wait for some time is
        normal, because the other members must finish their messages first. So it is a warning only if a member keeps a
        partition that it should have given up by now.
        """
        former, since = self._waiting
        if former != waits_for:
            self._waiting = waits_for, now
            log.info("group %s: waiting until %s are free", self._group, _names(waits_for))
        elif holder is not None:  # otherwise the partition has just become free
            self._complain(
                f"{_names(waits_for)} could not be claimed for {now - since:.0f} s",
                f"{waits_for[0]} is held by {holder}",
            )

    def _complain(self, trouble: str, reason: str) -> None:
        """Log a failure. If `reason` is the same as for the last failure that was logged, the log line is only a debug
        line, otherwise it is a warning. While the member closes, nothing is logged.
        """
        if self.closing:
            return
        tell = log.debug if reason == self._complaint else log.warning
        self._complaint = reason
        tell("group %s: %s: %s", self._group, trouble, reason)

    # --- the end of ownership ---------------------------------------------------------------------------------------

    def lose(self, lost: Sequence[PartitionCursor], why: str) -> None:
        """Stop reading partitions that this member no longer owns in ZooKeeper, and no longer count them as owned. why:
        the reason, for the log.
        """
        self._core.lose(lost)
        if lost:
            log.warning("group %s: %d partitions are lost: %s", self._group, len(lost), why)
            self._core.notices.put(Notice(False, self._core.told(lost)))

    def give_all_up(self) -> tuple[list[PartitionCursor], Collection[TopicPartition]]:
        """Stop fetching from all partitions. Return the cursors of all owned partitions, and the partitions that were
        already reported to the user as revoked.
        """
        told = () if self._draining is None else self._draining.partitions
        self._draining, self._waits_for = None, []
        owned = list(self._core.owned.values())
        for cursor in owned:
            cursor.revoke()
        return owned, told

    def tell_rest(self, owned: Sequence[PartitionCursor], told: Collection[TopicPartition]) -> None:
        """Tell the user that the partitions in `owned` are revoked, except those in `told`, of which the user knows
        already. owned, told: the results of `give_all_up`.
        """
        if owned:
            self._core.notices.put(Notice(False, set(self._core.told(owned)).difference(told)))


def _names(partitions: Sequence[TopicPartition]) -> str:
    shown = ", ".join(f"{each.topic} {each}" for each in partitions[:5])
    return shown if len(partitions) <= 5 else f"{shown} and {len(partitions) - 5} more"
