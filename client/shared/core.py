"""Decide when a shared consumer requests messages of each partition, and when it sends settlements (acknowledgements,
releases and extensions of leases). This module has no I/O, threads or clock.

The driver (driver.py) calls the core with a lock held, executes the core's `actions`, and reports their results to the
core.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from metaq.coordination.runtime.backoff import Backoff
from metaq.protocol.limits import MAX_ACQUIRED
from metaq.protocol.own_topics import is_own_topic
from metaq.protocol.record import EXPIRES_FLAG, MAX_PRIORITY, priority_of
from metaq.protocol.shared import SettleAction, Settlement, SettleOutcome
from metaq.protocol.where import Where

from ..fetching.tuning import WAITED_SHARE
from ..records.results import TopicPartition
from ..runtime.wall_clock import WallClock, now_ms
from ..serializers.base import ValueReader
from ..settings.consumer_config import SharedConfig
from . import tuning
from .message import SharedMessage

__all__ = ["Acquiring", "Settle", "SharedCore"]

_ACK, _RELEASE, _RETURN, _EXTEND = SettleAction.ACK, SettleAction.RELEASE, SettleAction.RETURN, SettleAction.EXTEND
_DONE = SettleOutcome.DONE
_IS_ALONE = 2  # AcquireReply.suspect: this must be the only message of this member


class Acquiring(NamedTuple):
    """Action: request to lease at most `records` messages of this partition. If the partition has no message to lease,
    the broker waits at most `wait_ms` milliseconds for one. An Acquiring with 0 records is a withdrawal: it makes the
    broker answer this member's waiting requests at once.
    """

    partition: TopicPartition
    records: int
    wait_ms: int


class Settle(NamedTuple):
    """Action: send these settlements to the partition's broker."""

    partition: TopicPartition
    settlements: tuple[Settlement, ...]


_Due = tuple[SharedMessage, SettleAction, int, int]
"""A settlement that no broker has answered yet. The fields are the message, the action (acknowledge, release or
extend), a duration in milliseconds (a release's delay or an extension's length), and how many earlier attempts got no
answer.
"""


@dataclass(slots=True, eq=False)
class _Partition:
    """The state of a member's requests and settlements for one partition; all times are monotonic seconds.

    asked: number of messages that the request in flight asks for, or 0 if no request is in flight. is_parked: whether
    the request in flight waits at the broker for a message. has_more: whether the last answer said that there are more
    messages; true before the first answer. ask_at: the earliest time for the next request. early_until: the time until
    which the request in flight asks the broker to wait for messages; an empty answer before this time is unexpected.
    due: unsent settlements. sent: settlements in flight. settle_at: the time at which `due` is sent. retry_at: the
    earliest time at which `due` may be sent after settlements have failed. acknowledged: the offsets of messages that
    this member has acknowledged after their leases had ended, or whose acknowledgement must be sent again, each with
    the token of its lease. If the broker leases such a message to this member again, it is not handled again.
    withdraw_at: the time at which a closing member next sends a withdrawal of its waiting request.
    """

    partition: TopicPartition
    backoff: Backoff
    asked: int = 0
    is_parked: bool = False
    has_more: bool = True
    ask_at: float = 0.0
    early_until: float = -math.inf
    withdraw_at: float = 0.0
    due: list[_Due] = field(default_factory=list)
    sent: list[_Due] = field(default_factory=list)
    settle_at: float = math.inf
    retry_at: float = 0.0
    acknowledged: dict[int, int] = field(default_factory=dict)


class SharedCore:
    """Makes the decisions of one shared consumer. Only one thread at a time may use an object of this class.

    waiting: the callers that wait for messages, each with the number of messages that it wants; each caller removes
    itself when it stops waiting. workers: the number of threads that handle messages: during run(), the number of
    run()'s threads; otherwise 1. wakes_at: the time at which the driver calls `actions` again even if nothing happens;
    the driver sets it. is_due: whether the driver must call `actions` earlier; the driver resets it.
    """

    def __init__(
        self,
        config: SharedConfig,
        on_lost: Callable[[SharedMessage], None] = lambda message: None,
        *,
        ordered: bool = False,
        where: Where | None = None,
        tags: frozenset[str] | None = None,
        reader: ValueReader | None = None,
        now_ms: WallClock = now_ms,
    ) -> None:
        """on_lost: a function that is called with each message that was settled only after its lease had ended, so that
        another member may have got the message.
        ordered: whether the next message of a key waits until the key's previous message is acknowledged. where:
        messages that do not match this filter are acknowledged and not delivered. tags: messages without one of these
        tags are also acknowledged and not delivered. reader: decodes a message's `value`.
        """
        self.waiting: dict[object, int] = {}
        self.workers = 1
        self.wakes_at = math.inf
        self.is_due = False
        self.acknowledged = self.lost = self.damaged = 0
        """`acknowledged`, `lost` and `damaged` are the numbers of messages that were acknowledged, lost or damaged
        since the start. Messages that were filtered out or had expired also count as acknowledged.
        """
        self._config = config
        self._on_lost = on_lost
        self._linger = 0.0 if ordered else config.settle_linger_ms / 1000
        self._where = where
        self._tags = tags
        self._filters = where is not None or tags is not None
        self._reader = reader
        self._now_ms = now_ms
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._turn: deque[_Partition] = deque()  # the order in which partitions are requested
        self._buffers: list[deque[SharedMessage]] = [deque() for _ in range(MAX_PRIORITY + 1)]
        self._top = 0  # no buffer with a priority above this has messages
        self._buffered = 0
        self._stale_at = math.inf  # when the first buffered message has waited too long, or earlier
        # Whether buffered messages have waited too long: then nothing is leased ahead until somebody takes messages
        # again.
        self._rests = False
        self._low = -1  # request more at this number of buffered messages, or fewer; -1 = never
        self._stale_seconds = config.lease_seconds * tuning.STALE_PART
        self._keep_seconds = config.lease_seconds * tuning.KEEP_PART
        self._kept: dict[int, SharedMessage] = {}  # messages on which handlers work, by id()
        self._alone: SharedMessage | None = None  # while it is set, the broker gives this member no other message
        self._seconds: float | None = None  # mean time in which a worker handles a message
        self._closing = False

    # --- partitions ---------------------------------------------------------------------------------------------------

    def use(self, partitions: Iterable[TopicPartition]) -> None:
        """Request messages only from these partitions from now on. Messages of other partitions that are leased already
        can be settled as before.
        """
        there = set(partitions)
        for each in there - self._partitions.keys():
            found = _Partition(each, Backoff(self._config.error_min_seconds, self._config.error_max_seconds))
            self._partitions[each] = found
        self._turn = deque(self._partitions[each] for each in sorted(there))
        self._note_low()

    # --- messages -----------------------------------------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        """Number of leased messages that no caller has taken yet."""
        return self._buffered

    def take(self, most: int, now: float, *, keep: bool = False) -> list[SharedMessage]:
        """Return at most `most` buffered messages, the most urgent first, and remove them from the buffer. keep:
        whether the core extends the leases of these messages until they are settled.
        """
        taken: list[SharedMessage] = []
        while len(taken) < most and (message := self.take_one(now, keep=keep)) is not None:
            taken.append(message)
        return taken

    def take_one(self, now: float, *, keep: bool = False) -> SharedMessage | None:
        """Return the most urgent buffered message, as `take` does, or None if no message is buffered."""
        if self._rests:
            self._rests = False
            self._note_low()
        while self._buffered:
            buffer = self._buffers[self._top]
            if not buffer:
                self._top -= 1
                continue
            # Count before taking: then an interrupt after popleft() only delays one message until its lease ends, and
            # the count stays right.
            self._buffered -= 1
            message = buffer.popleft()
            if message.lease_until - now < self._stale_seconds:
                self._settle(message, _RETURN, 0, now)
            elif message.flag & EXPIRES_FLAG and message.has_expired(self._now_ms()):
                self._settle(message, _ACK, 0, now)
            else:
                message.handed_at = now
                if keep:
                    self._kept[id(message)] = message
                    self._look_by(message.lease_until - self._keep_seconds)
                return message
        return None

    def arrived(
        self,
        partition: TopicPartition,
        messages: Sequence[SharedMessage],
        waiting: int,
        now: float,
        suspect: int = 0,
    ) -> None:
        """Process the answer to a request for messages (Acquiring). waiting: number of further messages that the broker
        could have leased; the broker may report a number that is too low. suspect: 0 if the answer contains no suspect.
        Otherwise the answer consists of one suspect, and AcquireReply describes the value.
        """
        found = self._partitions[partition]
        found.has_more = waiting > 0
        if found.asked and not messages and (found.has_more or now < found.early_until):
            found.ask_at = now + min(found.backoff.next(), tuning.IN_VAIN_SECONDS)
        else:
            found.backoff.reset()
        found.asked = 0
        known, wants_none = found.acknowledged, self._closing or self._rests
        noted = self._stale_at + self._stale_seconds  # a lease that ends later than this need not be noted
        for message in messages:
            if wants_none:
                self._settle(message, _RETURN, 0, now)
            elif known and message.leased_at in known:
                continue  # it was leased again before the broker got the acknowledgement
            elif suspect and self._holds_one_alone(now):  # a second suspect, while another is held alone
                self._settle(message, _RETURN, 0, now)
            elif self._filters and self._leaves_out(message):
                self._settle(message, _ACK, 0, now)
            else:
                if self._reader is not None:
                    message.reader = self._reader
                if suspect:
                    message.is_suspect = True
                    if suspect == _IS_ALONE:
                        self._alone = message
                if message.lease_until < noted:
                    self._note_stale(message)
                    noted = message.lease_until
                priority = priority_of(message.flag)
                self._buffers[priority].append(message)
                if priority > self._top:
                    self._top = priority
                self._buffered += 1
        self._note_low()

    def _note_stale(self, message: SharedMessage) -> None:
        """Record the time at which this buffered message must be released to the broker, unless a caller has taken it
        before.
        """
        when = message.lease_until - self._stale_seconds
        if when < self._stale_at:
            self._stale_at = when
            self._look_by(when)

    def _holds_one_alone(self, now: float) -> bool:
        return self._alone is not None and now < self._alone.lease_until

    def _leaves_out(self, message: SharedMessage) -> bool:
        """Return whether the group's filters reject the message. All members have the same filters, because the broker
        leases nothing to a member with other filters.

        A message from the group's own topic (for example a retry) has already passed the filters, so it is not checked
        again.
        """
        if is_own_topic(message.leased_from.topic):
            return False
        if self._tags is not None and message.tag not in self._tags:
            return True
        return self._where is not None and not self._where.holds_for(message.body, message.flag)

    def damaged_here(self, message: SharedMessage, now: float) -> None:
        """Release a message whose checksum is wrong. Before the next lease, the broker reads the message from its disk
        again; so if the message is damaged on the disk, the broker notices the damage.
        """
        self.damaged += 1
        self._settle(message, _RELEASE, 1000, now)

    def refused(self, partition: TopicPartition, now: float, pause: float | None) -> None:
        """Record that no answer with messages will come from this partition, because the request for messages has
        failed, or because the broker has refused the request's withdrawal (as earlier broker versions do). pause:
        number of seconds before the next attempt; None means a pause that grows with each failure.
        """
        found = self._partitions[partition]
        found.asked = 0
        found.ask_at = now + (found.backoff.next() if pause is None else pause)
        self._note_low()

    # --- settling -----------------------------------------------------------------------------------------------------

    def ack(self, message: SharedMessage, now: float) -> None:
        """Acknowledge the message, because it was handled successfully."""
        seconds = now - message.handed_at
        if self._seconds is not None:
            seconds = self._seconds + tuning.RATE_WEIGHT * (seconds - self._seconds)
        self._seconds = seconds
        if now > message.lease_until - self._stale_seconds:
            self._drop_copy(message)
            self._remember(message)
        self._settle(message, _ACK, 0, now)

    def _remember(self, message: SharedMessage) -> None:
        """Remember that this member has acknowledged the message, because the broker may lease it again before it gets
        the acknowledgement.
        """
        known = self._partitions[message.leased_from].acknowledged
        known.setdefault(message.leased_at, message.token)
        if len(known) > tuning.LATE_ACKNOWLEDGED:
            del known[next(iter(known))]

    def release(self, message: SharedMessage, delay: float, now: float) -> None:
        """Release the message, so that it can be leased again after `delay` seconds."""
        if now > message.lease_until - self._stale_seconds:
            self._drop_copy(message)
        self._settle(message, _RELEASE, round(delay * 1000), now)

    def _drop_copy(self, message: SharedMessage) -> None:
        """Remove a second copy of the message from the buffer. A second copy exists if the lease of `message` has ended
        and the broker has leased the message to this member again. `message` then gets the copy's lease. So when a
        caller settles `message`, the new lease is settled.
        """
        for buffer in self._buffers:
            for number, copy in enumerate(buffer):
                if copy.leased_at == message.leased_at and copy.leased_from == message.leased_from:
                    del buffer[number]
                    self._buffered -= 1
                    message.token, message.lease_until = copy.token, copy.lease_until
                    if copy is self._alone:
                        self._alone = message
                    return

    def extend(self, message: SharedMessage, seconds: float, now: float) -> None:
        """Extend the message's lease, so that it ends `seconds` from now."""
        message.lease_until = now + seconds
        self._say(message, _EXTEND, round(seconds * 1000), now)

    def _settle(self, message: SharedMessage, action: SettleAction, ms: int, now: float) -> None:
        message.is_settled = True
        if self._kept:
            self._kept.pop(id(message), None)
        self._say(message, action, ms, now)
        if message is self._alone:
            self._alone = None
            self._note_low()

    def _say(self, message: SharedMessage, action: SettleAction, ms: int, now: float) -> None:
        found = self._partitions[message.leased_from]
        found.due.append((message, action, ms, 0))
        waits = action is _ACK and len(found.due) < tuning.SETTLE_AT and not message.is_suspect
        when = now + self._linger if waits else now
        if when < found.settle_at:
            self._settle_by(found, when)

    def _settle_by(self, found: _Partition, when: float) -> None:
        when = max(when, found.retry_at)
        if when < found.settle_at:
            found.settle_at = when
            if not found.sent:
                self._look_by(when)

    def _look_by(self, when: float) -> None:
        """Ensure that the driver calls `actions` at the time `when` or earlier."""
        if when < self.wakes_at:
            self.wakes_at = when
            self.is_due = True

    def settle_now(self, now: float) -> None:
        """Let the next call of `actions` return all unsent settlements, because a caller waits for the brokers'
        answers.
        """
        for each in self._partitions.values():
            if each.due:
                self._settle_by(each, now)

    def settled(self, partition: TopicPartition, outcomes: Sequence[SettleOutcome]) -> None:
        """Process a broker's answer to a Settle action: the outcome of each settlement."""
        found = self._partitions[partition]
        sent, found.sent = found.sent, []
        found.backoff.reset()
        for (message, action, _, tries), outcome in zip(sent, outcomes, strict=True):
            if action is _ACK and (outcome is _DONE or (outcome is SettleOutcome.GONE and tries)):
                self.acknowledged += 1  # GONE: the answer to an earlier try was lost; the message is done
            elif outcome is not _DONE and action is not _RETURN and not _is_outdated(message, action):
                done_by = found.acknowledged.get(message.leased_at, message.token)
                if (
                    outcome is not SettleOutcome.GONE or done_by == message.token
                ):  # otherwise another lease of this member holds it
                    self._lose(message)
        if found.due:
            self._look_by(found.settle_at)

    def _lose(self, message: SharedMessage) -> None:
        message.is_settled = True
        self._kept.pop(id(message), None)
        if message is self._alone:
            self._alone = None
            self._note_low()
        known = self._partitions[message.leased_from].acknowledged
        if known.get(message.leased_at) == message.token:
            del known[message.leased_at]
        self.lost += 1
        self._on_lost(message)

    def unsettled(self, partition: TopicPartition, now: float, pause: float | None, *, sent: bool = True) -> None:
        """Process the failure of a Settle action: put its settlements back among the unsent ones, except those of
        messages whose leases have certainly ended.
        sent: whether the broker may have received the request.
        """
        found = self._partitions[partition]
        pause = found.backoff.next() if pause is None else pause
        again, found.sent = found.sent, []
        for message, action, ms, tries in again:
            if _is_outdated(message, action):
                continue
            if now > message.lease_until + self._config.lease_seconds:
                self._lose(message)
            else:
                found.due.append((message, action, ms, tries + sent))
                if action is _ACK:
                    self._remember(message)
        found.retry_at = now + pause
        if found.due:
            found.settle_at = found.retry_at
            self._look_by(found.settle_at)

    @property
    def unsettled_count(self) -> int:
        """Number of settlements that no broker has answered yet."""
        return sum(len(each.due) + len(each.sent) for each in self._partitions.values())

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, and all earlier requests and settlements are answered."""
        return self._closing and not (self.unsettled_count or any(each.asked for each in self._partitions.values()))

    # --- actions ----------------------------------------------------------------------------------------------------

    def close(self, now: float) -> None:
        """Request no more messages. Release all messages that no caller has taken yet, and also messages that arrive
        later as answers to earlier requests, so that other members can lease them.
        """
        self._closing = True
        for buffer in self._buffers:
            while buffer:
                self._settle(buffer.popleft(), _RETURN, 0, now)
        self._buffered = 0
        self._note_low()
        for each in self._partitions.values():
            each.settle_at = min(each.settle_at, now)

    def actions(self, now: float) -> list[Acquiring | Settle]:
        """Return the actions that are due at the time `now`. The caller must execute all of them, because the core
        regards them as in flight from now on.
        """
        self._keep(now)
        self._return_stale(now)
        self._end_alone(now)
        asks = self._withdrawals(now) if self._closing else self._asks(now)
        asked = {ask.partition for ask in asks}
        actions: list[Acquiring | Settle] = []
        for each in self._partitions.values():
            if (
                each.due
                and not each.sent
                and (each.settle_at <= now or self._closes_now(each, now) or self._goes_along(each, asked, now))
            ):
                actions.append(self._settlements(each, now))
        return actions + asks

    def _withdrawals(self, now: float) -> list[Acquiring]:
        """For a closing member, return withdrawals of those of its requests that may still wait at brokers. Without the
        withdrawals, brokers would later lease messages to a member that has ended. A withdrawal is repeated until the
        request is answered, because one thread may send the withdrawal before another thread sends the request.
        """
        asked = [each for each in self._partitions.values() if each.asked and each.withdraw_at <= now]
        for each in asked:
            each.withdraw_at = now + tuning.WITHDRAW_SECONDS
        return [Acquiring(each.partition, 0, 0) for each in asked]

    def _closes_now(self, found: _Partition, now: float) -> bool:
        return self._closing and found.retry_at <= now

    def _goes_along(self, found: _Partition, asked: set[TopicPartition], now: float) -> bool:
        """Return whether the partition's unsent settlements are sent now, together with a request for more messages,
        which saves a round trip. This is so if such a request is due (the partition is in `asked`), at least
        tuning.SETTLE_ALONG settlements are unsent, and no pause after a failure is running.
        """
        return found.partition in asked and len(found.due) >= tuning.SETTLE_ALONG and found.retry_at <= now

    def _settlements(self, found: _Partition, now: float) -> Settle:
        found.sent, found.due = found.due[: tuning.MAX_SETTLED], found.due[tuning.MAX_SETTLED :]
        found.settle_at = now if found.due else math.inf
        said = [Settlement(message.leased_at, message.token, ms, action) for message, action, ms, _ in found.sent]
        return Settle(found.partition, tuple(said))

    def _keep(self, now: float) -> None:
        for message in list(self._kept.values()):
            if message.lease_until - now <= self._keep_seconds:
                self.extend(message, self._config.lease_seconds, now)

    def _return_stale(self, now: float) -> None:
        """Release messages that no caller has taken, shortly before their leases end. Without the release such a lease
        would end unsettled, and its message would become a suspect, or the lease would count as an attempt, although no
        handler had got the message. If messages were released and no caller is waiting, the member leases no more
        messages ahead until a caller takes one.
        """
        if now < self._stale_at:
            return
        self._stale_at = math.inf
        before = self._buffered
        for buffer in self._buffers:
            messages = list(buffer)
            buffer.clear()
            for message in messages:
                if now < message.lease_until - self._stale_seconds:
                    buffer.append(message)
                    self._note_stale(message)
                else:
                    self._buffered -= 1
                    self._settle(message, _RETURN, 0, now)
        self._rests = self._buffered < before and not self.waiting
        self._note_low()

    def _end_alone(self, now: float) -> None:
        """While a broker leases a suspect alone to this member, the member must request no other message. When this
        lease has ended, forget the suspect, so that other messages are requested again.
        """
        if self._alone is not None and now >= self._alone.lease_until:
            self._alone = None
            self._note_low()

    @property
    def _ahead(self) -> int:
        """Number of messages that the member should have leased before its handler threads need them."""
        if not self._config.prefetch or self._rests:
            return 0
        if self._seconds is None:
            return min(self._config.prefetch, self.workers * tuning.FIRST_PREFETCH)
        work = self.workers * tuning.PREFETCH_SECONDS / max(self._seconds, 1e-5)
        return min(self._config.prefetch, int(work))

    def _asks(self, now: float) -> list[Acquiring]:
        asks = self._wanted(now)
        self._note_low()
        return asks

    def _wanted(self, now: float) -> list[Acquiring]:
        if self._alone is not None:
            return []
        ahead, idle = self._ahead, sum(self.waiting.values())
        there = self._there
        want = min(MAX_ACQUIRED, idle + ahead - there)
        if want <= 0 or not self._turn or (not idle and there > ahead * tuning.REFILL_PART):
            return []
        free = [each for each in self._turn if not each.asked and each.ask_at <= now]
        if len(self._turn) > 1 and (full := next((each for each in free if each.has_more), None)) is not None:
            if any(each.asked and not each.is_parked for each in self._turn):
                return []
            self._turn.remove(full)
            self._turn.append(full)
            full.asked, full.is_parked, full.early_until = want, False, now
            return [Acquiring(full.partition, want, 0)]
        asks = []
        for each in free:  # each request may wait at its broker, or there is only one partition
            each.asked = max(1, want // len(self._turn))
            each.is_parked = not each.has_more
            each.early_until = now + self._config.long_poll_ms / 1000 * WAITED_SHARE
            asks.append(Acquiring(each.partition, each.asked, self._config.long_poll_ms))
        return asks

    @property
    def _there(self) -> int:
        """Number of messages that callers can expect soon: the buffered messages that no caller has taken, plus the
        messages that requests in flight ask for. Requests that wait at a broker because it has no message do not count.
        """
        return self._buffered + sum(each.asked for each in self._turn if not each.is_parked)

    @property
    def is_low(self) -> bool:
        """Whether so few buffered messages are left that `actions` would request more."""
        return self._buffered <= self._low and not self.waiting

    def _note_low(self) -> None:
        """Compute the limit for `is_low`: if no caller waits, and at most this number of messages are buffered,
        `actions` would request more messages.
        """
        ahead = self._ahead
        if not ahead or self._closing or self._alone is not None or all(each.asked for each in self._turn):
            self._low = -1
        else:
            self._low = int(ahead * tuning.REFILL_PART) - self._there + self._buffered

    def next_time(self, now: float) -> float:
        """Return the earliest time at which an action may become due if nothing happens before that time."""
        times = [each.settle_at for each in self._partitions.values() if each.due and not each.sent]
        times += [each.ask_at for each in self._turn if not each.asked and each.ask_at > now]
        times += [message.lease_until - self._keep_seconds for message in self._kept.values()]
        if self._closing:
            times += [each.withdraw_at for each in self._partitions.values() if each.asked]
        if self._buffered:
            times.append(self._stale_at)
        if self._alone is not None:
            times.append(self._alone.lease_until)
        return min(times, default=math.inf)


def _is_outdated(message: SharedMessage, action: SettleAction) -> bool:
    """Return whether `action` is an extension whose result no longer matters, because the message was acknowledged,
    released or lost after the extension was sent. (The answer to the acknowledgement or release says whether the lease
    had ended.)
    """
    return action is _EXTEND and message.is_settled
