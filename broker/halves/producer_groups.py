"""The producer groups of a broker. For each group this module knows the half messages whose first check was due, in the
order of their next checks, and the producers that ask for half messages.

In this module, a producer "asks" if it sends CHECK_HALVES requests ("polls"). In its answer the broker hands out half
messages, and the producer should then tell the broker their outcomes. Until the outcome of a half message is known, the
half message is handed out again and again, after longer and longer pauses. While the producer that sent a half message
asks, the broker hands this half message out to no other producer, because only the sender knows whether the local work
of the transaction is still under way. So the half messages of a group and topic are in *lanes*: one lane for each
producer that asks, and one lane whose half messages every producer of the group may get. When a producer no longer asks
(it is *gone*), its half messages move to the lanes for everybody.

The time of each future event is in one heap, as the event's *alarm*. So the broker finds the next event without
examining all polls, lanes and producers. The events are: the next half message of a lane is due, the waiting time of a
poll ends, or a producer begins to count as gone. This module is used only on the reactor thread. All times are in
seconds of the clock `Halves._running`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import Any, Generic, NamedTuple, TypeVar

from twisted.internet.defer import Deferred

from ..memory.delayed_records import DelayTarget
from ..runtime.timed_entries import TimedEntries

__all__ = ["NEVER", "AskedGroup", "Half", "Poll", "ProducerGroups"]

T = TypeVar("T")

NEVER = float("inf")
_GONE = -NEVER
_ANYBODY = ""
"""The producer name of the lanes for everybody."""

_LOOKED_AT = 512
"""The greatest number of entries of lanes that the broker examines for one poll before the reactor does other work. The
examination of so many entries takes some 3 ms. The answer to a poll always has fewer half messages than this number.
"""


class Half:
    """A half message whose first check was due. at: when the half message may be handed out next, or NEVER if the half
    message is parked, which means that it is no longer handed out. asked: how often the half message was handed out.
    producer: the name of the producer that sent it, or "" if unknown.
    """

    __slots__ = ("asked", "at", "group", "id", "lane", "last_ms", "place", "producer")

    def __init__(
        self, half_id: int, group: str, place: DelayTarget, asked: int, at: float, last_ms: int, producer: str = ""
    ) -> None:
        self.id = half_id
        self.group = group
        self.place = place
        self.asked = asked
        self.at = at
        self.last_ms = last_ms
        """When the half message was last handed out, Unix ms; 0 means never."""
        self.producer = producer
        self.lane: _Lane | None = None


class Poll(NamedTuple, Generic[T]):
    """A CHECK_HALVES request of a producer, which waits for half messages until `ends_at`. topics: None means all
    topics. producer: the producer's name, or "" if the request names none.
    """

    caller: object
    group: str
    limit: int
    ends_at: float
    answer: Deferred[T]
    topics: frozenset[str] | None = None
    producer: str = ""


class _Lane:
    """The half messages of a group and topic that are handed out only to `producer`; if `producer` is _ANYBODY, to
    every producer of the group. due: entries (at, id), the earliest first; an entry is ignored if its half message has
    left the lane, or if the half message's own `at` is no longer that of the entry. count: number of half messages in
    the lane. alarm_at: time of the lane's alarm, or NEVER if the lane has no alarm.
    """

    __slots__ = ("alarm_at", "count", "due", "group", "producer", "topic")

    def __init__(self, group: str, topic: str, producer: str) -> None:
        self.group = group
        self.topic = topic
        self.producer = producer
        self.due: TimedEntries[tuple[float, int]] = TimedEntries()
        self.count = 0
        self.alarm_at = NEVER

    @property
    def first_at(self) -> float:
        return self.due.first[0] if self.due else NEVER


class _Asker:
    """A producer that asks. until: the producer counts as gone from this time on, unless it sends another poll before.
    The value is NEVER while a poll of the producer waits, and _GONE while the half messages that the producer has sent
    are being moved to the lanes for everybody. caller: the connection of the producer's last poll. topics: the topics
    of the last poll; None means all topics.
    """

    __slots__ = ("caller", "group", "producer", "topics", "until")

    def __init__(self, group: str, producer: str, until: float) -> None:
        self.group = group
        self.producer = producer
        self.until = until
        self.caller: object = None
        self.topics: frozenset[str] | None = None


_NONE: dict[Any, Any] = {}
"""An empty dictionary that is never changed. All groups for which no producer asks share this object to save memory,
because there can be very many such groups.
"""


class AskedGroup(Generic[T]):
    """One producer group. A group with one half message takes a kilobyte of memory."""

    __slots__ = ("_askers", "_by_producer", "_by_topic", "_lanes", "asked", "parked", "polls")

    def __init__(self) -> None:
        self.polls: dict[object, Poll[T]] = _NONE
        """The waiting polls of the group, by caller."""
        self._by_topic: dict[str | None, dict[object, Poll[T]]] = _NONE
        self._by_producer: dict[str, Poll[T]] = _NONE
        self._askers: dict[str, _Asker] = _NONE
        self._lanes: dict[str, dict[str, _Lane]] = {}  # by producer, then by topic
        self.asked = 0
        """The number of the group's half messages that are not parked."""
        self.parked = 0

    def _put(self, poll: Poll[T]) -> None:
        if not self.polls:
            self.polls, self._by_topic, self._by_producer = {}, {}, {}
        self.polls[poll.caller] = poll
        for topic in poll.topics or (None,):
            self._by_topic.setdefault(topic, {})[poll.caller] = poll
        if poll.producer:
            self._by_producer[poll.producer] = poll

    def _remove(self, poll: Poll[T]) -> None:
        del self.polls[poll.caller]
        for topic in poll.topics or (None,):
            waiting = self._by_topic[topic]
            del waiting[poll.caller]
            if not waiting:
                del self._by_topic[topic]
        if self._by_producer.get(poll.producer) is poll:
            del self._by_producer[poll.producer]
        if not self.polls:
            self.polls = self._by_topic = self._by_producer = _NONE

    def _taker(self, lane: _Lane) -> Poll[T] | None:
        """Return a waiting poll that may get half messages of this lane. If there are several such polls, return the
        poll that has waited longest.
        """
        if lane.producer:
            poll = self._by_producer.get(lane.producer)
            return poll if poll is not None and (poll.topics is None or lane.topic in poll.topics) else None
        for waiting in (self._by_topic.get(lane.topic), self._by_topic.get(None)):
            if waiting:
                return next(iter(waiting.values()))
        return None

    def _lanes_for(self, poll: Poll[T]) -> Iterator[_Lane]:
        for producer in {poll.producer, _ANYBODY}:
            lanes = self._lanes.get(producer)
            if lanes:
                topics = list(lanes) if poll.topics is None else poll.topics
                yield from (lane for topic in topics if (lane := lanes.get(topic)) is not None)


_Alarm = tuple[float, int, object]


class ProducerGroups(Generic[T]):
    """All producer groups of a broker. most: the greatest number of times that a half message is handed out. silent: a
    producer counts as gone this many seconds after its last poll was answered. grace: a producer counts as gone this
    many seconds after its connection was lost. A producer that has sent a half message and has not sent a poll yet
    counts as gone `grace` seconds after its first half message was added.
    """

    def __init__(self, most: int, silent: float, grace: float) -> None:
        self._most = most
        self._silent = silent
        self._grace = grace
        self._groups: dict[str, AskedGroup[T]] = {}
        self._halves: dict[int, Half] = {}
        self._callers: dict[object, dict[str, str]] = {}  # by caller: group → producer in its last poll
        self._alarms: TimedEntries[_Alarm] = TimedEntries()
        self._numbers = count()
        self._timed = 0  # number of polls, lanes and askers; each has at most one alarm
        self.asked = self.parked = 0
        """The sums of the groups' `asked` and `parked`."""
        self.presumed_until = -NEVER
        """A time on the module's clock, set when this node becomes the leader. Producers need some seconds to connect
        to the new leader. So until `presumed_until`, a producer that has sent half messages counts as one that polls
        for half messages to check, even if it has not polled this node yet.
        """

    def __len__(self) -> int:
        return len(self._halves)

    def clear(self) -> Iterator[Poll[T] | None]:
        """Forget all groups. Return an iterator that yields the polls that waited. The iterator also drops the groups,
        which takes long if there are very many; so it also yields None at points where the caller can let other work
        run.
        """
        left = _left(self._groups, self._halves, self._callers, self._alarms)
        self._groups, self._halves, self._callers, self._alarms = {}, {}, {}, TimedEntries()
        self._timed = self.asked = self.parked = 0
        return left

    # --- half messages ------------------------------------------------------------------------------------------------

    def add(self, half: Half, now: float) -> None:
        """Add a half message whose first check is due or was already made."""
        self._halves[half.id] = half
        group = self._group(half.group)
        group.asked += 1
        self.asked += 1
        if half.producer and half.producer not in group._askers:
            self._expect(group, half.group, half.producer, max(now + self._grace, self.presumed_until))
        elif half.producer and not self._asks(group, half):
            half.at = max(half.at, now + self._grace)
        self.put_off(half, half.at)

    def get(self, half_id: int) -> Half | None:
        """Return the half message with this id, or None if this object does not have it, because its outcome is decided
        or its first check is not due yet.
        """
        return self._halves.get(half_id)

    def discard(self, half_id: int) -> None:
        """Remove a half message whose outcome is decided."""
        half = self._halves.pop(half_id, None)
        if half is not None:
            group = self._groups[half.group]
            if self.is_parked(half):
                group.parked -= 1
                self.parked -= 1
            else:
                group.asked -= 1
                self.asked -= 1
            self._leave(half)
            self._drop_empty(half.group)

    def put_off(self, half: Half, at: float) -> None:
        """Let the half message be handed out again, at time `at` or later; but if it was already handed out as often as
        allowed, park it.
        """
        group = self._groups[half.group]
        if half.asked < self._most:
            half.at = at
            self._enter(half, half.producer if self._asks(group, half) else _ANYBODY)
        elif not self.is_parked(half):
            half.at = NEVER
            group.asked -= 1
            self.asked -= 1
            group.parked += 1
            self.parked += 1
            self._leave(half)

    def is_parked(self, half: Half) -> bool:
        """Return whether a half message is no longer handed out."""
        return half.at == NEVER

    def take(self, poll: Poll[T], now: float) -> list[Half] | None:
        """Return due half messages that the poll may get, at most as many as the poll's limit. For each of these half
        messages the caller must later call `put_off`, unless the outcome is decided before. The examination of the
        lanes ends after _LOOKED_AT entries. If none of these is a half message that the poll may get, return None; the
        caller must then call `wait` for the poll, so that the examination continues later.
        """
        group = self._group(poll.group)
        found: list[Half] = []
        lanes = [(lane.first_at, number, lane) for number, lane in enumerate(group._lanes_for(poll))]
        heapify(lanes)
        looked_at: list[_Lane] = []
        while lanes and len(found) < poll.limit and lanes[0][0] <= now and len(looked_at) < _LOOKED_AT:
            _, number, lane = heappop(lanes)
            at, half_id = lane.due.pop()
            looked_at.append(lane)
            if self._is_current(lane, at, half_id):
                half = self._halves[half_id]
                if not lane.producer and half.producer not in ("", poll.producer) and self._asks(group, half):
                    self._enter(half, half.producer)  # its sender asks again
                else:
                    found.append(half)
            if lane.due:
                heappush(lanes, (lane.first_at, number, lane))
        for lane in dict.fromkeys(looked_at):
            self._set_alarm(lane)
        return found if found or len(looked_at) < _LOOKED_AT else None

    def _is_current(self, lane: _Lane, at: float, half_id: int) -> bool:
        half = self._halves.get(half_id)
        return half is not None and half.lane is lane and half.at == at

    def first(self, most: int) -> list[tuple[str, AskedGroup[T]]]:
        """Return at most `most` groups, sorted by name. If there are more, return those that were added first."""
        return sorted(islice(self._groups.items(), most))

    def slices(self, size: int) -> Iterator[list[tuple[str, AskedGroup[T]]]]:
        """Yield the groups, `size` at a time. Groups that are added during the iteration are left out."""
        names = list(self._groups)
        for start in range(0, len(names), size):
            chosen = names[start : start + size]
            yield [(name, group) for name in chosen if (group := self._groups.get(name)) is not None]

    # --- lanes --------------------------------------------------------------------------------------------------------

    def _enter(self, half: Half, producer: str) -> None:
        lane = half.lane
        topic = half.place[0]
        if lane is None or lane.producer != producer:
            lanes = self._groups[half.group]._lanes.setdefault(producer, {})
            found = lanes.get(topic)
            if found is None:
                found = lanes[topic] = _Lane(half.group, topic, producer)
                self._timed += 1
            found.count += 1
            self._leave(half)
            half.lane = lane = found
        lane.due.push((half.at, half.id), lane.count, lambda due: self._is_current(lane, *due))
        self._set_alarm(lane)

    def _leave(self, half: Half) -> None:
        lane, half.lane = half.lane, None
        if lane is None:
            return
        lane.count -= 1
        if not lane.count:
            lanes = self._groups[lane.group]._lanes
            del lanes[lane.producer][lane.topic]
            if not lanes[lane.producer]:
                del lanes[lane.producer]
            self._timed -= 1

    def _set_alarm(self, lane: _Lane) -> None:
        if lane.first_at < lane.alarm_at:
            lane.alarm_at = lane.first_at
            self._alarm(lane.alarm_at, lane)

    # --- who asks -----------------------------------------------------------------------------------------------------

    def asked_for(self, caller: object, group: str) -> int:
        """Return how many groups other than `group` the connection sends polls for."""
        groups = self._callers.get(caller, {})
        return len(groups) - (group in groups)

    def arrive(self, poll: Poll[T]) -> None:
        """Record that a producer has sent this poll, so that it counts as a producer that asks. The poll does not wait
        yet.
        """
        producers = self._callers.setdefault(poll.caller, {})
        before = producers.get(poll.group)
        producers[poll.group] = poll.producer
        if before and before != poll.producer and (asker := self._group(poll.group)._askers.get(before)) is not None:
            asker.caller = None  # the connection now names another producer
            self._goes(asker)
        group = self._group(poll.group)
        if poll.producer:
            asker = self._expect(group, poll.group, poll.producer, NEVER)
            asker.caller, asker.topics = poll.caller, poll.topics

    def answered(self, poll: Poll[T], now: float) -> None:
        """Record that a poll was answered. The poll's producer must send its next poll within `silent` seconds from
        now; otherwise it counts as gone.
        """
        group = self._groups.get(poll.group)
        asker = None if group is None else group._askers.get(poll.producer)
        if asker is not None and asker.caller is poll.caller:
            asker.until = now + self._silent
            self._alarm(asker.until, asker)
        elif not poll.producer:
            self._leaves(poll.caller, poll.group)
        self._drop_empty(poll.group)

    def lost(self, caller: object, now: float) -> list[Poll[T]]:
        """Record that a connection is lost. Remove the waiting polls of this connection, and return them."""
        found = []
        for name, producer in self._callers.pop(caller, {}).items():
            group = self._groups.get(name)
            if group is None:
                continue
            if (poll := group.polls.get(caller)) is not None:
                self._stop_waiting(poll)
                found.append(poll)
            asker = group._askers.get(producer)
            if asker is not None and asker.caller is caller:
                asker.until = now + self._grace
                self._alarm(asker.until, asker)
            self._drop_empty(name)
        return found

    def _expect(self, group: AskedGroup[T], name: str, producer: str, until: float) -> _Asker:
        asker = group._askers.get(producer)
        if asker is None:
            group._askers = group._askers or {}
            asker = group._askers[producer] = _Asker(name, producer, until)
            self._timed += 1
        asker.until = until
        if until < NEVER:
            self._alarm(until, asker)
        return asker

    def _asks(self, group: AskedGroup[T], half: Half) -> bool:
        asker = group._askers.get(half.producer)
        if asker is None or asker.until == _GONE:
            return False
        return asker.topics is None or half.place[0] in asker.topics

    def _goes(self, asker: _Asker) -> None:
        """Record that a producer is gone. In later turns the half messages that it has sent are moved to the lanes for
        everybody, so that the broker can ask every producer of the group about them.
        """
        self._leaves(asker.caller, asker.group)
        if asker.producer in self._groups[asker.group]._lanes:
            asker.until = _GONE
            self._alarm(asker.until, asker)
        else:
            self._forget(asker)

    def _give_away(self, asker: _Asker, goes_on: Callable[[], bool]) -> None:
        for lane in list(self._groups[asker.group]._lanes.get(asker.producer, {}).values()):
            while lane.count and lane.due:  # a half message that is being read has no entry; it moves later
                at, half_id = lane.due.pop()
                if self._is_current(lane, at, half_id):
                    self._enter(self._halves[half_id], _ANYBODY)
                if not goes_on():
                    self._alarm(asker.until, asker)
                    return
        self._forget(asker)

    def _forget(self, asker: _Asker) -> None:
        del self._groups[asker.group]._askers[asker.producer]
        self._timed -= 1
        self._drop_empty(asker.group)

    def _leaves(self, caller: object, group: str) -> None:
        """Record that the connection no longer asks for half messages of this group."""
        groups = self._callers.get(caller)
        if groups is not None:
            groups.pop(group, None)
            if not groups:
                del self._callers[caller]

    def wait(self, poll: Poll[T]) -> None:
        """Let a poll wait until there are half messages for it, or until its time is over."""
        self._group(poll.group)._put(poll)
        self._timed += 1
        self._alarm(poll.ends_at, poll)

    def end_poll(self, caller: object, group: str) -> Poll[T] | None:
        """Remove the caller's waiting poll for this group, and return it; return None if there is no such poll."""
        found = self._groups.get(group)
        poll = None if found is None else found.polls.get(caller)
        if poll is not None:
            self._stop_waiting(poll)
        return poll

    def _stop_waiting(self, poll: Poll[T]) -> None:
        self._groups[poll.group]._remove(poll)
        self._timed -= 1

    # --- time passes --------------------------------------------------------------------------------------------------

    def turn(
        self,
        now: float,
        give: Callable[[Poll[T], list[Half]], None],
        end: Callable[[Poll[T]], None],
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """Handle the due alarms: call `give` with half messages for waiting polls, and `end` for polls whose time is
        over. A poll that is passed to `give` or `end` no longer waits. goes_on: returns whether there is time to handle
        another alarm; alarms for which there is no time are handled in the next turn.
        """
        while self._alarms and self._alarms.first[0] <= now and goes_on():
            at, _, what = self._alarms.pop()
            if not self._is_set(at, what):
                continue
            if isinstance(what, _Lane):
                what.alarm_at = NEVER
                self._serve(what, now, give, goes_on)
            elif isinstance(what, _Asker):
                if what.until == _GONE:
                    self._give_away(what, goes_on)
                else:
                    self._goes(what)
            else:
                assert isinstance(what, Poll)
                self._stop_waiting(what)
                end(what)
                self._drop_empty(what.group)

    def _serve(
        self, lane: _Lane, now: float, give: Callable[[Poll[T], list[Half]], None], goes_on: Callable[[], bool]
    ) -> None:
        """Give the due half messages of a lane to waiting polls. Half messages for which no poll waits stay in the
        lane.
        """
        group = self._groups[lane.group]
        while lane.first_at <= now and (poll := group._taker(lane)) is not None:
            if halves := self.take(poll, now):
                self._stop_waiting(poll)
                give(poll, halves)
            if not goes_on():
                break
        if lane.count and (lane.first_at > now or group._taker(lane) is not None):
            self._set_alarm(lane)

    def next_at(self) -> float:
        """Return the time when the next alarm is due, or infinity if there is no alarm. The result can be too early,
        because outdated alarms are not always noticed.
        """
        for _ in range(_LOOKED_AT):
            if not self._alarms or self._is_set_still(self._alarms.first):
                break
            self._alarms.pop()
        return self._alarms.first[0] if self._alarms else NEVER

    def _alarm(self, at: float, what: object) -> None:
        self._alarms.push((at, next(self._numbers), what), self._timed, self._is_set_still)

    def _is_set_still(self, alarm: _Alarm) -> bool:
        return self._is_set(alarm[0], alarm[2])

    def _is_set(self, at: float, what: object) -> bool:
        if isinstance(what, _Lane):
            return what.alarm_at == at and what.count > 0
        if isinstance(what, _Asker):
            group = self._groups.get(what.group)
            return what.until == at and group is not None and group._askers.get(what.producer) is what
        assert isinstance(what, Poll)
        group = self._groups.get(what.group)
        return group is not None and group.polls.get(what.caller) is what

    def _group(self, name: str) -> AskedGroup[T]:
        found = self._groups.get(name)
        if found is None:
            found = self._groups[name] = AskedGroup()
        return found

    def _drop_empty(self, name: str) -> None:
        group = self._groups.get(name)
        if group is not None and not (group.polls or group.asked or group.parked or group._askers):
            del self._groups[name]


def _left(
    groups: dict[str, AskedGroup[T]],
    halves: dict[int, Half],
    callers: dict[object, dict[str, str]],
    alarms: TimedEntries[_Alarm],
) -> Iterator[Poll[T] | None]:
    """Empty these dictionaries and the heap of alarms. Yield the waiting polls and None, as the iterator of
    ProducerGroups.clear does.
    """
    while groups:
        yield from groups.popitem()[1].polls.values()
        yield None
    for each in (halves, callers):
        while each:
            each.popitem()
            yield None
    while alarms:
        alarms.drop()
        yield None
