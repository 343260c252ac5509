"""What a shared consumer asks of which partition, and when: no I/O, no thread, no clock.

Its driver (driver.py) calls it with a lock held, carries out what `actions` says and tells what came of it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from metaq.coordination.backoff import Backoff
from metaq.protocol.limits import MAX_ACQUIRED
from metaq.protocol.own_topics import is_own_topic
from metaq.protocol.record import MAX_PRIORITY
from metaq.protocol.shared import SettleAction, Settlement, SettleOutcome
from metaq.protocol.where import Where

from ..config import SharedConfig
from ..serializers.base import ValueReader
from ..values import TopicPartition
from ..wall_clock import WallClock, now_ms
from . import tuning
from .message import SharedMessage

__all__ = ["Acquiring", "Settle", "SharedCore"]


class Acquiring(NamedTuple):
    """Lease at most `records` messages of this partition; the broker may wait for them."""

    partition: TopicPartition
    records: int
    wait_ms: int


class Settle(NamedTuple):
    """Tell the broker what became of these."""

    partition: TopicPartition
    settlements: tuple[Settlement, ...]


class _Due(NamedTuple):
    """What is to be said of a message. tries: how often it was said without an answer."""

    message: SharedMessage
    settlement: Settlement
    tries: int


@dataclass(slots=True, eq=False)
class _Partition:
    """asked: records of the request under way, 0 = none. is_parked: it waits for a message to come. has_more: the last
    answer said that there is more, or none was given yet. due: settlements that are not sent; sent: those under way.
    settle_at: when `due` goes; retry_at: not before that, as the last ones have failed."""

    partition: TopicPartition
    backoff: Backoff
    asked: int = 0
    is_parked: bool = False
    has_more: bool = True
    ask_at: float = 0.0
    due: list[_Due] = field(default_factory=list)
    sent: list[_Due] = field(default_factory=list)
    settle_at: float = math.inf
    retry_at: float = 0.0


class SharedCore:
    """One thread at a time.

    idle: who waits for a message now, as the driver counts them. workers: who work on messages, run()'s threads, or 1.
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
        """on_lost: called with a message whose settlement came too late: another member has it, or has had it.
        ordered: whether the next message of a key waits for the acknowledgement of the one before. where: what it does
        not hold for is acknowledged, and given to nobody; tags: so is what has none of these. reader: of `value`."""
        self.idle = 0
        self.workers = 1
        self.is_due = False
        """Whether `next_time` is earlier than it was; for the driver, which sets it back."""
        self.acknowledged = self.lost = self.damaged = 0
        """Messages since the start; acknowledged ones with those that were left out, or had expired."""
        self._config = config
        self._on_lost = on_lost
        self._linger = 0.0 if ordered else config.settle_linger_ms / 1000
        self._where = where
        self._tags = tags
        self._reader = reader
        self._now_ms = now_ms
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._turn: deque[_Partition] = deque()  # who is asked next
        self._buffers: list[deque[SharedMessage]] = [deque() for _ in range(MAX_PRIORITY + 1)]
        self._buffered = 0
        self._kept: dict[int, SharedMessage] = {}  # by identity: handlers work on them
        self._seconds: float | None = None  # that a message takes one worker
        self._closing = False

    # --- partitions ---------------------------------------------------------------------------------------------------

    def use(self, partitions: Iterable[TopicPartition]) -> None:
        """These are there now. What was leased of others may still be settled."""
        there = set(partitions)
        for each in there - self._partitions.keys():
            found = _Partition(each, Backoff(self._config.error_min_seconds, self._config.error_max_seconds))
            self._partitions[each] = found
        self._turn = deque(self._partitions[each] for each in sorted(there))

    # --- messages -----------------------------------------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        """Messages that nobody has taken yet."""
        return self._buffered

    def take(self, most: int, now: float, *, keep: bool = False) -> list[SharedMessage]:
        """At most so many of the most urgent ones that are here. keep: extend their leases until they are settled."""
        taken: list[SharedMessage] = []
        for priority in range(MAX_PRIORITY, -1, -1):
            buffer = self._buffers[priority]
            while buffer and len(taken) < most:
                message = buffer.popleft()
                self._buffered -= 1
                if message.lease_until - now < self._config.lease_seconds * tuning.STALE_PART:
                    self._settle(message, SettleAction.RETURN, 0, now)
                elif message.has_expired(self._now_ms()):
                    self._settle(message, SettleAction.ACK, 0, now)
                else:
                    taken.append(message)
        for message in taken:
            message.handed_at = now
            if keep:
                message.is_kept = True
                self._kept[id(message)] = message
        return taken

    def arrived(self, partition: TopicPartition, messages: Sequence[SharedMessage], waiting: int, now: float) -> None:
        """The answer to an Acquiring. waiting: messages that the broker could have given, too, at least."""
        found = self._partitions[partition]
        found.asked = 0
        found.backoff.reset()
        found.has_more = waiting > 0
        for message in messages:
            if self._closing:
                self._settle(message, SettleAction.RETURN, 0, now)
            elif self._leaves_out(message):
                self._settle(message, SettleAction.ACK, 0, now)
            else:
                message.reader = self._reader
                self._buffers[message.priority].append(message)
                self._buffered += 1

    def _leaves_out(self, message: SharedMessage) -> bool:
        """A filter that a message has passed once is not asked when it comes again from the group's own topic."""
        if (self._where is None and self._tags is None) or is_own_topic(message.leased_from.topic):
            return False
        if self._tags is not None and message.tag not in self._tags:
            return True
        return self._where is not None and not self._where.holds_for(message.body, message.flag)

    def damaged_here(self, message: SharedMessage, now: float) -> None:
        """It came with a wrong checksum: the broker may read it again, or find its damage."""
        self.damaged += 1
        self._settle(message, SettleAction.RELEASE, 1000, now)

    def refused(self, partition: TopicPartition, now: float, pause: float | None) -> None:
        """An Acquiring has failed. pause: until it is tried again; None: a growing one."""
        found = self._partitions[partition]
        found.asked = 0
        found.ask_at = now + (found.backoff.next() if pause is None else pause)

    # --- settling -----------------------------------------------------------------------------------------------------

    def ack(self, message: SharedMessage, now: float) -> None:
        """It is done."""
        seconds = now - message.handed_at
        self._seconds = (
            seconds
            if self._seconds is None
            else (1 - tuning.RATE_WEIGHT) * self._seconds + tuning.RATE_WEIGHT * seconds
        )
        self._settle(message, SettleAction.ACK, 0, now)

    def release(self, message: SharedMessage, delay: float, now: float) -> None:
        """It may be leased again in `delay` seconds."""
        self._settle(message, SettleAction.RELEASE, round(delay * 1000), now)

    def extend(self, message: SharedMessage, seconds: float, now: float) -> None:
        """Its lease ends in so many seconds."""
        message.lease_until = now + seconds
        ms = round(seconds * 1000)
        self._say(message, Settlement(message.leased_at, message.token, ms, SettleAction.EXTEND), now)

    def _settle(self, message: SharedMessage, action: SettleAction, ms: int, now: float) -> None:
        message.is_settled = True
        self._kept.pop(id(message), None)
        self._say(message, Settlement(message.leased_at, message.token, ms, action), now)

    def _say(self, message: SharedMessage, settlement: Settlement, now: float) -> None:
        found = self._partitions[message.leased_from]
        found.due.append(_Due(message, settlement, 0))
        waits = settlement.action == SettleAction.ACK and len(found.due) < tuning.SETTLE_AT
        self._settle_by(found, now + self._linger if waits else now)

    def _settle_by(self, found: _Partition, when: float) -> None:
        when = max(when, found.retry_at)
        if when < found.settle_at:
            found.settle_at = when
            self.is_due = True

    def settle_now(self, now: float) -> None:
        """Somebody waits until all is settled."""
        for each in self._partitions.values():
            if each.due:
                self._settle_by(each, now)

    def settled(self, partition: TopicPartition, outcomes: Sequence[SettleOutcome]) -> None:
        """The answer to a Settle."""
        found = self._partitions[partition]
        sent, found.sent = found.sent, []
        found.backoff.reset()
        for (message, settlement, tries), outcome in zip(sent, outcomes, strict=True):
            if settlement.action == SettleAction.ACK and (
                outcome is SettleOutcome.DONE or (outcome is SettleOutcome.GONE and tries)
            ):  # an answer was lost, and the message is done
                self.acknowledged += 1
            elif outcome is not SettleOutcome.DONE and settlement.action != SettleAction.RETURN:
                self._lose(message)

    def _lose(self, message: SharedMessage) -> None:
        message.is_settled = True
        self._kept.pop(id(message), None)
        self.lost += 1
        self._on_lost(message)

    def unsettled(self, partition: TopicPartition, now: float, pause: float | None, *, sent: bool = True) -> None:
        """A Settle has failed: it is said again, while the leases may matter still. sent: the broker may have it."""
        found = self._partitions[partition]
        pause = found.backoff.next() if pause is None else pause
        again = [each._replace(tries=each.tries + sent) for each in found.sent]
        found.sent = []
        for due in again:
            if now > due.message.lease_until + self._config.lease_seconds:
                self._lose(due.message)
            else:
                found.due.append(due)
        found.retry_at = now + pause
        if found.due:
            found.settle_at = found.retry_at

    @property
    def unsettled_count(self) -> int:
        """Settlements that no broker has answered."""
        return sum(len(each.due) + len(each.sent) for each in self._partitions.values())

    # --- what is to be done -------------------------------------------------------------------------------------------

    def close(self, now: float) -> None:
        """Ask for nothing more, and give back what nobody has taken."""
        self._closing = True
        for buffer in self._buffers:
            while buffer:
                self._settle(buffer.popleft(), SettleAction.RETURN, 0, now)
        self._buffered = 0
        for each in self._partitions.values():
            each.settle_at = min(each.settle_at, now)

    def actions(self, now: float) -> list[Acquiring | Settle]:
        """What is due. Each is under way from now on."""
        self._keep(now)
        actions: list[Acquiring | Settle] = []
        for each in self._partitions.values():
            if each.due and not each.sent and (each.settle_at <= now or self._closing):
                each.sent, each.due = each.due[: tuning.MAX_SETTLED], each.due[tuning.MAX_SETTLED :]
                each.settle_at = now if each.due else math.inf
                actions.append(Settle(each.partition, tuple(due.settlement for due in each.sent)))
        if not self._closing:
            actions += self._asks(now)
        return actions

    def _keep(self, now: float) -> None:
        lease = self._config.lease_seconds
        for message in list(self._kept.values()):
            if message.lease_until - now <= lease * tuning.KEEP_PART:
                self.extend(message, lease, now)

    @property
    def _ahead(self) -> int:
        """Messages to lease for those who work still."""
        if not self._config.prefetch:
            return 0
        if self._seconds is None:
            return min(self._config.prefetch, self.workers * tuning.FIRST_PREFETCH)
        work = self.workers * tuning.PREFETCH_SECONDS / max(self._seconds, 1e-5)
        return min(self._config.prefetch, int(work))

    def _asks(self, now: float) -> list[Acquiring]:
        ahead, idle = self._ahead, max(0, self.idle)
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
            full.asked, full.is_parked = want, False
            return [Acquiring(full.partition, want, 0)]
        asks = []
        for each in free:  # all of them wait for messages, or there is one alone
            each.asked = max(1, want // len(self._turn))
            each.is_parked = not each.has_more
            asks.append(Acquiring(each.partition, each.asked, self._config.long_poll_ms))
        return asks

    @property
    def _there(self) -> int:
        """Messages that nobody has taken, and those that are asked for and will come at once."""
        return self._buffered + sum(each.asked for each in self._turn if not each.is_parked)

    @property
    def is_low(self) -> bool:
        """Whether `actions` asks for more, now that messages were taken."""
        if self.idle:
            return False
        low = self._ahead * tuning.REFILL_PART
        return self._buffered <= low and self._there <= low

    def next_time(self, now: float) -> float:
        """When `actions` may have something to do, if nothing happens before."""
        times = [each.settle_at for each in self._partitions.values() if each.due and not each.sent]
        times += [each.ask_at for each in self._turn if not each.asked and each.ask_at > now]
        keep = self._config.lease_seconds * tuning.KEEP_PART
        times += [message.lease_until - keep for message in self._kept.values()]
        return min(times, default=math.inf)
