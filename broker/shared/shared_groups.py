"""Serve all shared groups of a broker. Leases and settlements are stored in internal logs before the requests are
answered, and are read from there when the broker starts.

All leases, settlements and skipped bytes of one iteration of the reactor are gathered into at most two records
(rows.py): one for each of the two internal logs `/shared`, if the iteration has something to store there. The records
are written at the beginning of the next iteration, and then the requests are answered. So many requests that arrive at
the same time, for example of sixty-four members, need only one or two appends. A SETTLE request is answered when its
record is as safe (for example synced) as the topic's settings demand for messages. An ACQUIRE request is answered as
soon as its record is written. In a broker set, it is answered only when the other in-sync nodes have the record, too,
so that a new leader does not lease the same messages to other members.
"""

from __future__ import annotations

import logging
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nlargest
from itertools import count
from math import ceil
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
from twisted.internet.defer import Deferred

from metaq.protocol.access import NO_USER, Quota
from metaq.protocol.errors import InvalidWhere, MetaqError, NotLeader, NotMaster, SharedRefused
from metaq.protocol.record import tag_hash
from metaq.protocol.shared import AcquireRequest, SettleAction, Settlement, SettleOutcome, SettleRequest

from .. import tuning
from ..memory.figures import Lines, Metric, Metrics, counter
from ..memory.memory import Memory
from ..memory.records import internal_record, record_id_at
from ..memory.topics import SHARED_TOPIC
from ..partitions.counters import OTHERS
from ..partitions.partitions import Partitions
from ..reading.long_poll import ParkedPulls, ParkedRequest
from ..reading.reading import Reading
from ..runtime.account import NOBODY, Account, Shares
from ..runtime.reactor import ReactorTime
from ..store.damage import Damaged, Soundness
from ..store.partition_log import PartitionLog
from ..store.store import Store
from ..store.worker_turns import call_safely
from ..writing.write import Write
from ..writing.writing import Writing
from .crew import Crew, Suspicion
from .group_filter import GroupFilter, TopicFilter
from .queue import Handed, SharedQueue
from .rows import (
    SharedKey,
    changed_section,
    check_sections,
    done_section,
    encode_body,
    filter_section,
    forgotten_section,
    leased_section,
    skipped_section,
    state_section,
    suspects_section,
)
from .state import Grant, HeldState, Limits, SharedState
from .stored import StoredState, StoredStates

__all__ = ["LIMITS", "Leases", "SharedGroups"]

_log = logging.getLogger(__name__)

LIMITS = Limits(
    tuning.SHARED_MAX_HELD,
    tuning.SHARED_MAX_AHEAD,
    tuning.SHARED_MAX_AHEAD_ORDERED,
    tuning.SHARED_AHEAD_BYTES,
    tuning.SHARED_MAX_RANGES,
    tuning.SHARED_SHARE,
    tuning.SHARED_SCARCE,
)

_RECORD_BYTES = 4 << 20
"""The maximum number of bytes of sections in one record, unless a single section is larger. When the log is read at the
start of the broker, records that are much longer than this limit are accepted, too.
"""

_TOKEN_BITS = 63
"""The number of random bits in a token, which identifies a lease. The protocol has no room for more bits. Because
tokens are random, only the holder of a lease can settle it. A token is sent only in the answer to ACQUIRE; no web page,
log line or other answer contains a token.
"""

Fire = Callable[[MetaqError | None], None]
"""fire(error): answers a request whose record was to be stored. error: why the record could not be stored, or None if
it was stored.
"""


class Leases:
    """The result of one ACQUIRE request: the messages that were leased. The member should handle them in the order of
    `handed`.
    """

    __slots__ = ("damaged_bytes", "handed", "suspicion", "token", "waiting")

    def __init__(self, handed: Handed, token: int, waiting: int, damaged_bytes: int, suspicion: Suspicion) -> None:
        """waiting: the number of further messages of the partition that could be leased now. damaged_bytes: the size of
        the leased messages that are not delivered because they are damaged. suspicion: if the lease consists of one
        suspect, the way in which this suspect is leased; otherwise NONE.
        """
        self.suspicion = suspicion
        self.handed = handed
        self.token = token
        self.waiting = waiting
        self.damaged_bytes = damaged_bytes


class _Gathered:
    """The sections that one iteration of the reactor has to write to one internal log. written: functions that answer
    requests as soon as the sections are appended. safe: functions that answer requests when the appended record is as
    safe (for example synced) as the partition's messages must be before a put is answered.
    """

    def __init__(self) -> None:
        self.sections: list[bytes] = []
        self.written: list[Fire] = []
        self.safe: list[Fire] = []


class _SharedTopic:
    """A shared group on one topic of this broker. memory: counts the filter's memory as used by the client address
    `address`, as soon as the group has a queue on this topic.
    """

    def __init__(self, agreed: TopicFilter, memory: Shares, address: str = NOBODY) -> None:
        self.agreed = agreed
        self.queues: list[SharedQueue] = []
        self._memory = memory
        self._address = address
        self._counted = 0
        self._tag_hashes: npt.NDArray[np.uint32] | None = None

    def why_not(self, wanted: GroupFilter, address: str) -> str | None:
        """Return the reason why the memory limit of `address` does not allow the filter `wanted`, or None if it is
        allowed or is the present filter.
        """
        more = 0 if wanted == self.agreed.filter else wanted.held_bytes
        return self._memory.why_not(address, more) if more else None

    def add(self, queue: SharedQueue) -> None:
        if not self.queues:
            self._count()
        self.queues.append(queue)
        if self.agreed.filter is not None:
            queue.take_filter(self.agreed.filter, self._tag_hashes)

    def take_filter(self, agreed: GroupFilter) -> None:
        """Let all queues of the topic use a new filter, which TopicFilter has accepted."""
        if self.queues:
            self._count()
        for queue in self.queues:
            queue.take_filter(agreed, self._tag_hashes)

    def drop(self) -> None:
        """No longer count the filter's memory as used by its address. To be called when this object is no longer
        used.
        """
        self._memory.add(self._address, -self._counted)
        self._counted = 0

    def _count(self) -> None:
        agreed = self.agreed.filter or GroupFilter()
        self._tag_hashes = np.fromiter(map(tag_hash, agreed.tags), np.uint32) if agreed.tags else None
        self._memory.add(self._address, agreed.held_bytes - self._counted)
        self._counted = agreed.held_bytes


class _SharedGroup:
    """A shared group on all partitions of this broker. held_back: the partitions where members wait although there are
    messages to lease. These members may get no message now, because of a suspect.
    """

    def __init__(self) -> None:
        self.crew = Crew()
        self.queues: list[SharedQueue] = []
        self.held_back: dict[SharedKey, None] = {}


class SharedGroups(Memory[StoredStates]):
    """Leases and settles messages for all shared groups. Its methods run on the reactor thread. In a broker set, only
    the leader serves shared groups.
    """

    topic = SHARED_TOPIC
    name = "shared groups"
    item = "shared"
    followed = tuning.SHARED_READ_BYTES
    check_record = staticmethod(check_sections)

    def __init__(
        self,
        store: Store,
        partitions: Partitions,
        writing: Writing,
        reading: Reading,
        parked: ParkedPulls,
        reactor: ReactorTime,
        clock: Callable[[], float],
        account: Account,
        *,
        limits: Limits = LIMITS,
    ) -> None:
        """store: must be open. clock: returns seconds since 1970."""
        super().__init__(store, clock, reactor)
        self.leased = self.acknowledged = self.redelivered = self.refused = 0
        """Four counts since the start: messages leased, messages acknowledged, messages leased again, and settlements
        that came too late.
        """
        self._partitions = partitions
        self._writing = writing
        self._reading = reading
        self._parked = parked
        self._reactor = reactor
        self._places = account.shared_groups
        self._memory = account.shared_bytes
        self._makers: dict[SharedKey, str] = {}  # the addresses charged for the places
        self._account = account
        self._users: dict[SharedKey, str] = {}  # the users for whose quotas they count
        self._limits = limits
        self._queues: dict[SharedKey, SharedQueue] = {}
        self._groups: dict[str, _SharedGroup] = {}
        self._topics: dict[tuple[str, str], _SharedTopic] = {}  # by group and topic
        self._by_partition: dict[tuple[str, int], list[SharedQueue]] = {}
        self._gathered: dict[bool, _Gathered] = {}
        self._flush_due = False
        self._led = 0  # how often all state was dropped
        self._serial = 0
        self._waking: dict[SharedKey, Sequence[ParkedRequest] | None] = {}  # None: all that wait then
        self._looks = 0  # queues that have read ahead in this turn
        self._to_look: dict[SharedKey, None] = {}
        self._timers: dict[SharedKey, tuple[float, Any]] = {}
        self._state_bytes: dict[PartitionLog, int] = {}  # the size of the log's newest snapshot

    @property
    def takes_shared(self) -> bool:
        """Whether this broker serves shared groups. A broker with the replication of metaq 1.x does not, because that
        replication copies only messages and no leases.
        """
        return self._writing.takes_all_kinds and self._partitions.takes_puts

    # --- leasing ------------------------------------------------------------------------------------------------------

    def acquire(self, request: AcquireRequest, address: str = NOBODY) -> Deferred[Leases] | None:
        """Handle an ACQUIRE request: lease messages to the member that sends it from this address. Return a Deferred
        that fires with the leased messages, or None if the member can get no message now. Raises SharedRefused,
        QuotaExceeded, StoreError, and the errors that Partitions.find raises.
        """
        queue = self._queue_for(request, address)
        state = queue.state
        queue.seen(request.member)
        now = self._reactor.seconds()
        if queue.log is not None:
            state.cut(queue.log.first_offset)
        state.expire(now)
        queue.use_filter()
        if not queue.is_filter_written and queue.filter is not None:
            queue.is_filter_written = True
            self._gather(queue, filter_section(queue.key, queue.filter))
        queue.look()
        if not state.available:
            if queue.failure is not None:
                raise queue.failure
            self._set_timer(queue, waits=True)
            return None
        most = min(request.max_records, tuning.SHARED_LEASED)
        wanted = min(most, ceil(state.available / (1 + self._parked.waiting(queue.key))))
        seconds = request.lease_ms / 1000
        token = secrets.randbits(_TOKEN_BITS)
        grants = state.acquire(wanted, request.max_bytes, now + seconds, token, request.member)
        if not grants and state.available:
            self._expire_all_of(request.group, now)
            grants = state.acquire(wanted, request.max_bytes, now + seconds, token, request.member)
        if not grants:
            if state.available:
                self._groups[request.group].held_back[queue.key] = None
            self._set_timer(queue, waits=True)
            return None
        queue.count()
        suspects = state.suspects([grants[0].offset])
        self.leased += len(grants)
        self.redelivered += len(suspects) or sum(grant.attempts > 1 for grant in grants)
        until_ms = self.now_ms() + request.lease_ms
        section = leased_section(queue.key, grants, token, until_ms, request.member)
        gathered = self._gather(queue, section + suspects_section(queue.key, suspects))
        suspicion = suspects[0].suspicion if suspects else Suspicion.NONE
        answer: Deferred[Leases] = Deferred()
        where = gathered.written if self._writing.copies is None else gathered.safe
        where.append(partial(self._written, queue, grants, token, suspicion, answer))
        if state.available:
            self._wake(queue)
        return answer

    def _expire_all_of(self, group: str, now: float) -> None:
        """Handle the group's leases that are over, on all partitions. Called when the partition for which a member asks
        has messages to lease, but the member gets none. The reason can be a suspect on another partition: if that
        suspect's lease is over, the member can get a message after this call.
        """
        for queue in self._groups[group].queues:
            queue.state.expire(now)

    def _queue_for(self, request: AcquireRequest, address: str) -> SharedQueue:
        if not self.takes_shared:
            raise NotMaster(self._partitions.broker_id, "in metaq 1.x's replication, which copies no leases")
        key = SharedKey(request.group, request.topic, request.partition)
        log = self._partitions.find(request.topic, request.partition)
        topic = self._agree(request, address)
        queue = self._queues.get(key)
        if queue is None:
            if (why := self._places.why_not(address)) is not None:
                raise SharedRefused(f"{why}: remove groups that nobody uses with `metaq shared delete`")
            user = self._account.asker_user
            self._account.users.take(user, Quota.SHARED_GROUPS)
            self._users[key] = user
            low = 0 if log is None else log.first_offset if request.start == "earliest" else log.visible_end
            state = SharedState(low, self._limits, self._groups.setdefault(request.group, _SharedGroup()).crew)
            queue = self._add(key, state, topic, address)
            queue.use_filter()
            self._write_state(queue)
        if log is not None and not queue.is_watching:
            queue.log = log
            queue.is_watching = True
            self.watch(log)
        return queue

    def _agree(self, request: AcquireRequest, address: str) -> _SharedTopic:
        """Let the _SharedTopic of the request's group and topic accept the filter in this member's request. Return the
        _SharedTopic. Raises SharedRefused, InvalidWhere.
        """
        place = request.group, request.topic
        now = self._reactor.seconds()
        topic = self._topics.get(place)
        if topic is None:
            topic = _SharedTopic(TopicFilter(*place, now), self._memory, address)  # kept with its first partition
        wanted = GroupFilter.of(request)
        if (why := topic.why_not(wanted, address)) is not None:
            raise SharedRefused(f"{why}: remove groups that nobody uses with `metaq shared delete`")
        has_leases = wanted != topic.agreed.filter and self._has_leases(topic, now)
        if topic.agreed.agree(wanted, request.member, now, has_leases=has_leases):
            topic.take_filter(wanted)
        return topic

    def _has_leases(self, topic: _SharedTopic, now: float) -> bool:
        """Return whether a member has leased messages of the topic or waits for them."""
        return any(queue.state.has_leases(now) or self._parked.waiting(queue.key) for queue in topic.queues)

    def _written(
        self,
        queue: SharedQueue,
        grants: Sequence[Grant],
        token: int,
        suspicion: Suspicion,
        answer: Deferred[Leases],
        error: MetaqError | None,
    ) -> None:
        """Called when the leases of an ACQUIRE request were written to the internal log, or when this has failed. Read
        the leased messages and fire `answer` with them. error: why the leases could not be written, or None if they
        were written. With an error, revoke the leases and let `answer` fail.
        """
        if error is not None:
            queue.state.revoke(grants, token)
            self._wake(queue)
            answer.errback(error)
            return
        try:
            handed = queue.read(grants)
        except MetaqError as failed:
            self._unread(queue, grants, token, answer, failed)
            return
        if isinstance(handed, Deferred):
            handed.addCallbacks(
                partial(self._read, queue, token, suspicion, answer),
                lambda failure: self._unread(queue, grants, token, answer, failure.value),
            )
        else:
            self._read(queue, token, suspicion, answer, handed)

    def _unread(
        self,
        queue: SharedQueue,
        grants: Sequence[Grant],
        token: int,
        answer: Deferred[Leases],
        error: BaseException,
    ) -> None:
        self.give_back(queue.key, grants, token)
        answer.errback(error)

    def give_back(self, key: SharedKey, grants: Sequence[Grant], token: int) -> None:
        """Release messages that were leased but could not be delivered to the member. The lease does not count as an
        attempt.
        """
        queue = self._queues.get(key)
        if queue is not None and grants:
            self._settle(queue, [Settlement(each.offset, token, 0, SettleAction.RETURN) for each in grants])

    def withdraw(self, key: SharedKey, chosen: Callable[[ParkedRequest], bool]) -> None:
        """End the waiting ACQUIRE requests for which `chosen` returns True, because their members no longer want
        messages.
        """
        self._parked.end(key, chosen)

    def _read(
        self, queue: SharedQueue, token: int, suspicion: Suspicion, answer: Deferred[Leases], handed: Handed
    ) -> None:
        for grant in handed.damaged:
            found = queue.examine(grant.offset)
            found.addCallback(partial(self._examined, queue, grant, token))
        damaged = sum(grant.size for grant in handed.damaged)
        answer.callback(Leases(handed, token, queue.state.available, damaged, suspicion))

    def _examined(self, queue: SharedQueue, grant: Grant, token: int, place: Soundness | BaseException) -> None:
        """Called when the position of a leased record with a wrong checksum was examined. If the record is really
        damaged, acknowledge it, because no member can get it; else release it, so that it is read again.
        """
        if isinstance(place, Damaged):
            queue.damaged_bytes += grant.size
            self._settle(queue, [Settlement(grant.offset, token, 0, SettleAction.ACK)])
        else:
            self.give_back(queue.key, [grant], token)

    # --- settling -----------------------------------------------------------------------------------------------------

    def settle(self, request: SettleRequest, settlements: Sequence[Settlement]) -> Deferred[bytes] | bytes:
        """Handle a SETTLE request: acknowledge, release or extend up to SHARED_SETTLED leased messages. The returned
        answer has an outcome for each message. Raises NotLeader, and the errors that Partitions.find raises. The
        Deferred fails with StoreError, NotLeader, or another error that leaves the outcome unknown.
        """
        self._partitions.find(request.topic, request.partition)  # raises if it is not served here
        if not self.enabled:
            raise NotLeader(self._partitions.broker_id, "")
        queue = self._queues.get(SharedKey(request.group, request.topic, request.partition))
        if queue is None:
            return bytes([SettleOutcome.GONE]) * len(settlements)
        outcomes, gathered = self._settle(queue, settlements)
        if gathered is None:
            return outcomes
        answer: Deferred[bytes] = Deferred()
        gathered.safe.append(lambda error: answer.callback(outcomes) if error is None else answer.errback(error))
        return answer

    def _settle(self, queue: SharedQueue, settlements: Sequence[Settlement]) -> tuple[bytes, _Gathered | None]:
        state, now = queue.state, self._reactor.seconds()
        now_ms = self.now_ms()
        state.expire(now)
        outcomes = bytearray()
        done: list[tuple[int, int]] = []
        changes: list[tuple[int, int, int, HeldState]] = []
        for offset, token, ms, action in settlements:
            if action == SettleAction.ACK:
                outcome = state.ack(offset, token, done)
            elif action == SettleAction.EXTEND:
                outcome = state.extend(offset, token, now + ms / 1000)
                if outcome is SettleOutcome.DONE:
                    changes.append((offset, now_ms + ms, state.attempts_of(offset), HeldState.LEASED))
            else:
                counts = action != SettleAction.RETURN
                outcome = state.release(offset, token, now, ms / 1000 if counts else 0.0, counts=counts)
                if outcome is SettleOutcome.DONE:
                    until = now_ms + ms if counts and ms else 0
                    changes.append((offset, until, state.attempts_of(offset), HeldState.DELAYED))
            outcomes.append(outcome)
        queue.count()
        self.acknowledged += len(done)
        self.refused += len(outcomes) - len(done) - len(changes)
        gathered = None
        if done:
            gathered = self._gather(queue, done_section(queue.key, done))
        if changes:
            suspects = state.suspects({offset for offset, *_ in changes})  # none that a later entry settles
            section = changed_section(queue.key, changes) + suspects_section(queue.key, suspects)
            gathered = self._gather(queue, section)
        if gathered is not None:
            self._wake(queue)
            self._wake_held_back(queue.key.group)
        return bytes(outcomes), gathered

    # --- who waits ----------------------------------------------------------------------------------------------------

    def watch(self, log: PartitionLog) -> None:
        """If a shared group reads this log, let the log notify the group's queues of new messages. This method sets the
        log's callback `on_visible`. It is to be called before the log's first use, and again each time that another
        object has replaced this callback by its own.
        """
        queues = self._by_partition.get((log.topic, log.partition))
        if not queues:
            return
        others = log.on_visible
        if getattr(others, "func", None) is SharedGroups._became_visible:
            return
        log.on_visible = partial(SharedGroups._became_visible, self, others)

    def _became_visible(self, others: Callable[[PartitionLog], None] | None, log: PartitionLog) -> None:
        if others is not None:
            others(log)
        if not self.enabled:
            return
        for queue in self._by_partition.get((log.topic, log.partition), ()):
            if queue.log is None:
                queue.log = log
            if queue.is_asked:
                self._look_soon(queue)

    def _look_soon(self, queue: SharedQueue) -> None:
        """Let the queue read ahead now, or in a later iteration of the reactor if many queues have to read ahead."""
        if self._looks >= tuning.SHARED_LOOKS:
            self._to_look[queue.key] = None
            return
        if not self._looks:
            self._reactor.callLater(0, self._look_on)
        self._looks += 1
        queue.look()

    def _look_on(self) -> None:
        self._looks = 0
        if not self.enabled:
            self._to_look.clear()
            return
        while self._to_look and self._looks < tuning.SHARED_LOOKS:
            key = next(iter(self._to_look))
            del self._to_look[key]
            if (queue := self._queues.get(key)) is not None:
                self._look_soon(queue)

    def _wake(self, queue: SharedQueue) -> None:
        """In the next iteration of the reactor, handle the queue's waiting ACQUIRE requests again: as many as there are
        messages for, or all if reading ahead has failed, so that they get the error.
        """
        if not (queue.state.available or queue.failure) or not self._parked.waiting(queue.key):
            self._set_timer(queue)
            return
        self._wake_later(queue.key, None)

    def _wake_held_back(self, group: str) -> None:
        """Handle again the waiting requests of members that got no messages because of suspects (`held_back`), because
        another member may have settled a suspect.
        """
        found = self._groups.get(group)
        if found is None:
            return
        held_back, found.held_back = found.held_back, {}
        for key in held_back:
            if key in self._queues:
                self._wake(self._queues[key])

    def _wake_all(self) -> None:
        waking, self._waking = self._waking, {}
        seconds = self._reactor.seconds
        until = seconds() + tuning.SHARED_SLICE_SECONDS
        for number, (key, among) in enumerate(waking.items()):
            queue = self._queues.get(key)
            if queue is None:
                continue
            if number and seconds() >= until:
                self._wake_later(key, among)
            else:
                self._wake_those_of(queue, among, until)

    def _wake_those_of(self, queue: SharedQueue, among: Sequence[ParkedRequest] | None, until: float) -> None:
        """Handle the queue's waiting requests again, one by one, while there are messages for them or an error to
        report. among: only these requests; None means all. Stop at the time `until`, but handle at least one request;
        the rest are handled in a later iteration of the reactor.
        """
        state, seconds, woken = queue.state, self._reactor.seconds, count()
        left = self._parked.wake_some(
            queue.key,
            lambda: bool(state.available or queue.failure) and (not next(woken) or seconds() < until),
            among,
        )
        if left and (state.available or queue.failure):
            self._wake_later(queue.key, left)
        else:
            self._set_timer(queue)

    def _wake_later(self, key: SharedKey, among: Sequence[ParkedRequest] | None) -> None:
        """In the next iteration of the reactor, handle again those requests of `among` that are still waiting. If
        `among` is None, handle all waiting requests of this queue.
        """
        if not self._waking:
            self._reactor.callLater(0, self._wake_all)
        if among is None or key not in self._waking:
            self._waking[key] = among

    def _set_timer(self, queue: SharedQueue, *, waits: bool = False) -> None:
        """If members wait for messages of this queue, set a timer. It fires when a lease, or the delay of a released
        message, ends next, because the members can then get this message. waits: True if a member that is not parked
        yet is about to wait.
        """
        when, key = queue.state.next_time, queue.key
        if when is None or not (waits or self._parked.waiting(key)):
            return
        timer = self._timers.get(key)
        if timer is not None:
            if timer[0] <= when:
                return
            timer[1].cancel()
        delay = max(0.0, when - self._reactor.seconds())
        self._timers[key] = when, self._reactor.callLater(delay, self._time_has_come, key)

    def _time_has_come(self, key: SharedKey) -> None:
        self._timers.pop(key, None)
        queue = self._queues.get(key)
        if queue is None or not self.enabled:
            return
        queue.state.expire(self._reactor.seconds())
        self._wake(queue)
        self._wake_held_back(key.group)

    # --- writing it down ----------------------------------------------------------------------------------------------

    def _gather(self, queue: SharedQueue, section: bytes) -> _Gathered:
        group_commit = queue.log is not None and queue.log.has_group_commit
        if queue.mode != group_commit:  # the rows in the other log no longer count
            return self._write_state(queue)
        return self._gather_in(group_commit, section)

    def _write_state(self, queue: SharedQueue) -> _Gathered:
        """Write a section with the whole state of the queue, including changes that are not written yet, to the
        internal log.
        """
        queue.mode = queue.log is not None and queue.log.has_group_commit
        section = state_section(queue.key, queue.state, self._reactor.seconds(), self.now_ms())
        if queue.filter is not None:
            section += filter_section(queue.key, queue.filter)
            queue.is_filter_written = True
        return self._gather_in(queue.mode, section)

    def _gather_in(self, group_commit: bool, section: bytes) -> _Gathered:
        gathered = self._gathered.get(group_commit)
        if gathered is None:
            gathered = self._gathered[group_commit] = _Gathered()
        gathered.sections.append(section)
        if not self._flush_due:
            self._flush_due = True
            self._reactor.callLater(0, self._flush)
        return gathered

    def _skipped(self, queue: SharedQueue, ranges: Sequence[tuple[int, int, int]]) -> None:
        self._gather(queue, skipped_section(queue.key, ranges))

    def _flush(self) -> None:
        self._flush_due = False
        gathered, self._gathered = self._gathered, {}
        for group_commit, each in gathered.items():
            self._append(group_commit, each)

    def _append(self, group_commit: bool, gathered: _Gathered) -> None:
        writes: list[Write] = []
        waiting: list[Write] = []
        try:
            internal = self.store.internal_log(self.topic, group_commit)
            for sections in _cut(gathered.sections):
                self._serial += 1
                body = encode_body(self._serial, sections)
                data, unit = internal_record(body, record_id_at(self.now_ms()), internal.segments.end_offset)
                write = Write(internal, (data,), unit)
                writes.append(write)
                waiting += self._writing.append((write,))
        except MetaqError as error:
            failure: MetaqError | None = error
        else:
            failure = next((write.error for write in writes if write.error is not None), None)
        self._fire(gathered.written, failure)
        if not gathered.safe:
            return
        if failure is not None or not waiting:
            self._fire(gathered.safe, failure)
            return

        def safe() -> None:
            refused = next((write.error for write in waiting if write.error is not None), None)
            self._fire(gathered.safe, refused)

        self._writing.when_safe(waiting, safe)

    def _fire(self, fires: Sequence[Fire], failure: MetaqError | None, first: int = 0) -> None:
        """Answer requests: call the functions in `fires` from index `first` on with `failure`. If the calls take long,
        make the remaining calls in later iterations of the reactor.
        """
        until = self._reactor.seconds() + tuning.SHARED_SLICE_SECONDS
        for number in range(first, len(fires)):
            call_safely(fires[number], failure)
            if number + 1 < len(fires) and self._reactor.seconds() >= until:
                self._reactor.callLater(0, self._fire, fires, failure, number + 1)
                return

    # --- starting, leading, following ---------------------------------------------------------------------------------

    def lead(self) -> None:
        """Begin to serve shared groups, because this node has become the leader of its set. Memory.lead describes the
        steps.
        """
        self._stop()
        found: dict[SharedKey, tuple[StoredState, bool]] = {}
        serial = 0
        for log in self.store.internal_logs(self.topic):
            stored = self._of(log)
            stored.read_on()
            serial = max(serial, stored.serial)
            for key, each in stored.take_all().items():
                if key not in found or found[key][0].serial < each.serial:
                    found[key] = each, log.has_group_commit
        self._serial = max(self._serial, serial)
        now, now_ms = self._reactor.seconds(), self.now_ms()
        self.enabled = True
        filters = _newest_filters(found)
        for key, (stored_state, group_commit) in found.items():
            state = stored_state.state
            if state is None:
                continue
            place = key.group, key.topic
            topic = self._topics.get(place)
            if topic is None:
                topic = _SharedTopic(TopicFilter(*place, now, filters.get(place)), self._memory)
            state.crew = self._groups.setdefault(key.group, _SharedGroup()).crew
            partition = self.store.find(key.topic, key.partition)
            changed = state.clip(0 if partition is None else partition.end_offset)
            state.begin(now, now_ms)
            queue = self._add(key, state, topic)
            queue.mode = group_commit
            queue.log = partition
            queue.is_filter_written = stored_state.filter == topic.agreed.filter
            if self._writing.copies is not None:  # unsafe rows were not read; new rows follow them
                self._write_state(queue)
            if changed:  # other messages may take the place of the lost ones
                _log.warning(
                    "the state of group %s in %s-%d ends behind the partition: the partition has lost messages",
                    *key,
                )
                self._write_state(queue)

    def _stop(self) -> None:
        self._led += 1
        for queue in self._queues.values():
            queue.drop()
        for topic in self._topics.values():
            topic.drop()
        self._queues.clear()
        for address in self._makers.values():
            self._places.add(address, -1)
        self._makers.clear()
        for user in self._users.values():
            self._account.users.add(user, Quota.SHARED_GROUPS, -1)
        self._users.clear()
        self._groups.clear()
        self._topics.clear()
        self._by_partition.clear()
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _reader(self, log: PartitionLog) -> StoredStates:
        return StoredStates(log, self._limits)

    def _add(self, key: SharedKey, state: SharedState, topic: _SharedTopic, address: str = NOBODY) -> SharedQueue:
        self._makers[key] = address
        self._places.add(address, 1)
        queue = SharedQueue(key, state, self._reading, self._reactor, self._wake, self._skipped, self._memory, address)
        queue.count()
        self._queues[key] = queue
        self._topics[key.group, key.topic] = topic
        topic.add(queue)
        self._groups[key.group].queues.append(queue)
        self._by_partition.setdefault((key.topic, key.partition), []).append(queue)
        return queue

    # --- keeping the logs short ---------------------------------------------------------------------------------------

    def most_bytes(self, log: PartitionLog) -> int:
        return max(tuning.SHARED_LOG_BYTES, 4 * self._state_bytes.get(log, 0))

    async def write_anew(self, log: PartitionLog) -> int:
        log.roll()
        start = log.end_offset
        outcomes: list[MetaqError | None] = []
        told: _Gathered | None = None
        for queue in [queue for queue in self._queues.values() if queue.mode == log.has_group_commit]:
            if self._queues.get(queue.key) is queue and queue.mode == log.has_group_commit:
                gathered = self._write_state(queue)
                if gathered is not told:
                    told = gathered
                    gathered.written.insert(0, outcomes.append)  # the first callback is called at once
            await self._compaction.pause()
        self._flush()  # otherwise older rows would be removed before these are written
        for failure in filter(None, outcomes):
            raise failure
        self._state_bytes[log] = log.end_offset - start
        return start

    # --- what is shown ------------------------------------------------------------------------------------------------

    def lines(self) -> Lines:
        for queue in self.each():
            state, (group, topic, partition) = queue.state, queue.key
            delayed, most_attempts, _ = yield from state.figures()
            yield (
                f"{group} {topic}-{partition} left {queue.left} leased {state.leased} delayed {delayed} "
                f"low {state.low} attempts {most_attempts}"
            )

    def metrics(self) -> Metrics:
        for name, text, value in (
            ("metaq_shared_leased", "Messages leased to shared consumers", self.leased),
            ("metaq_shared_redelivered", "Messages leased that had been leased before", self.redelivered),
            ("metaq_shared_acknowledged", "Messages acknowledged by shared consumers", self.acknowledged),
            ("metaq_shared_late", "Settlements of messages that came too late", self.refused),
        ):
            yield counter(name, text, value)
        left: defaultdict[tuple[str, str], int] = defaultdict(int)
        leased: defaultdict[tuple[str, str], int] = defaultdict(int)
        for queue in list(self._queues.values()):
            names = (queue.key.group, queue.key.topic)
            left[names] += queue.left
            leased[names] += queue.state.leased
            yield None
        labels = ("group", "topic")
        for name, text, values in (
            ("metaq_shared_left_messages", "Messages that are not acknowledged", left),
            ("metaq_shared_leased_messages", "Messages that members have now", leased),
        ):
            yield None
            yield Metric(name, "gauge", text, labels, _largest(values))

    # --- operators ----------------------------------------------------------------------------------------------------

    def _keys(self, group: str) -> list[SharedKey]:
        """Return the sorted keys of the queues of a group, or of all groups if `group` is "". With `group` "", the
        method also stores the queues in this order. Then at the next call only new queues, which are at the end, are
        out of order. This makes sorting 10,000 keys ten times as fast.
        """
        keys = sorted([key for key in self._queues if key.group == group] if group else self._queues)
        if not group and keys != list(self._queues):
            self._queues = {key: self._queues[key] for key in keys}
        return keys

    def queues(self, group: str = "") -> list[SharedQueue]:
        """Return the queues of a group, or of all groups, sorted by key."""
        return [self._queues[key] for key in self._keys(group)]

    def each(self, group: str = "") -> Iterator[SharedQueue]:
        """Yield the queues that `queues` returns, for reports to operators. Skip queues that were removed after the
        first one was yielded. Before a queue is yielded, `SharedState.expire` handles its leases that are over. Raises
        NotLeader if this node has stopped leading since the first queue.
        """
        led = self._led
        for key in self._keys(group):
            if self._led != led:
                raise NotLeader(self._partitions.broker_id, "")
            if (queue := self._queues.get(key)) is not None:
                queue.state.expire(self._reactor.seconds())
                yield queue

    def forget(self, group: str) -> Deferred[int]:
        """Remove a group and its stored state. The Deferred fires with the number of partitions on which the group had
        a state. Raises SharedRefused if the group has members or leased messages, or does not exist.
        """
        queues = self.queues(group)
        now = self._reactor.seconds()
        for queue in queues:
            if queue.state.has_leases(now) or queue.is_asked or self._parked.waiting(queue.key):
                raise SharedRefused(
                    f"group {group} has members, or leased messages, on {queue.key.topic}-{queue.key.partition}: stop "
                    "its members, and wait until their leases have ended"
                )
        if not queues:
            raise SharedRefused(f"there is no shared group {group} here")
        answer: Deferred[int] = Deferred()
        gathered: _Gathered | None = None
        for queue in queues:
            gathered = self._gather_in(bool(queue.mode), forgotten_section(queue.key))
            del self._queues[queue.key]
            queue.drop()
            self._places.add(self._makers.pop(queue.key), -1)
            self._account.users.add(self._users.pop(queue.key, NO_USER), Quota.SHARED_GROUPS, -1)
            self._groups.pop(queue.key.group, None)
            if (topic := self._topics.pop((queue.key.group, queue.key.topic), None)) is not None:
                topic.drop()
            self._by_partition[queue.key.topic, queue.key.partition].remove(queue)
        assert gathered is not None
        count = len(queues)
        gathered.safe.append(lambda error: answer.callback(count) if error is None else answer.errback(error))
        return answer


def _largest(values: Mapping[tuple[str, str], int]) -> Sequence[tuple[tuple[str, str], int]]:
    """Return pairs of a key (group, topic) and its value. If there are more than PAGE_GROUPS values, return only the
    largest ones, and a last pair with the sum of all others.
    """
    if len(values) <= tuning.PAGE_GROUPS:
        return sorted(values.items())
    shown = nlargest(tuning.PAGE_GROUPS, values.items(), key=itemgetter(1))
    others = sum(values.values()) - sum(value for _, value in shown)
    return [*shown, ((OTHERS, OTHERS), others)]


def _newest_filters(found: Mapping[SharedKey, tuple[StoredState, bool]]) -> dict[tuple[str, str], GroupFilter]:
    """Return the newest stored filter of each group and topic. A partition stores a new filter only when a member asks
    for messages of this partition, so some partitions can have older filters.
    """
    newest: dict[tuple[str, str], StoredState] = {}
    for key, (stored, _) in found.items():
        place = key.group, key.topic
        if stored.filter is not None and (place not in newest or newest[place].filter_serial < stored.filter_serial):
            newest[place] = stored
    return {
        place: stored.filter
        for place, stored in newest.items()
        if stored.filter is not None and _can_be_read(stored.filter, *place)
    }


def _can_be_read(found: GroupFilter, group: str, topic: str) -> bool:
    """Return whether this version can use a stored filter. Another version of the broker may have allowed filters that
    this version does not allow. If a stored filter cannot be used, the group has no filter until a member asks for
    messages; the member's request sets a new filter.
    """
    try:
        found.check()
    except InvalidWhere as error:
        _log.warning("the filter of group %s on %s is not used any more: %s", group, topic, error)
        return False
    return True


def _cut(sections: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Divide the sections into lists, each of which fits into one record (_RECORD_BYTES)."""
    taken: list[bytes] = []
    size = 0
    for section in sections:
        if taken and size + len(section) > _RECORD_BYTES:
            yield taken
            taken, size = [], 0
        taken.append(section)
        size += len(section)
    if taken:
        yield taken
