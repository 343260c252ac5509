"""The state of one group on one partition, without I/O, clock or log. queue.py gives it records and uses its results.

    done        everything below `low`, and ranges of acknowledged records above it
    held        leased, or released and not leased again; each with its attempts and the token of its last lease
    waiting     looked at (below `scanned`) and never leased; in a line for each priority
    unknown     from `scanned` on

Invariants, which a unit test checks after every change of a state:
- every record from `low` to `scanned` is exactly one of done, held and waiting;
- a record is leased to at most one member, until `until`;
- if the group is ordered (`ordered`), of all records with the same key that are not done, only the first is held or may
  be leased.

Times are seconds of the caller's clock, which never goes back. While a state is being read from a log, its times are
Unix milliseconds; `begin` converts them before the state is used.

A member whose lease has expired may settle the message as long as no other member has leased it; the token in the
request shows which lease is meant. If the same member has leased a message twice in a row, it may settle the message
with the token of either lease.

*Suspects* are messages whose lease has expired before the member settled (acknowledged or released) them. The member's
process may have died: killed by the suspect itself, or by another message that the member had. So it is not certain
that the suspect is to blame, and the lease whose expiry made the message a suspect does not count as an attempt. A
suspect is leased alone, without other messages in the same lease, and a member has only one suspect at a time. If the
member has no other message of the group when it leases the suspect, or if the message's lease has expired twice, the
member gets no other message until it has settled the suspect (crew.py). If such a lease expires, it counts as an
attempt, because no other message can be the cause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from metaq.protocol.record import MAX_PRIORITY
from metaq.protocol.shared import SettleOutcome

from .. import tuning
from .crew import Crew, Suspicion
from .lines import FRONT, NO_KEY, Again, Line, QueuedMessage

__all__ = ["NO_KEY", "Grant", "HeldFigures", "HeldMessage", "HeldState", "Limits", "SharedState", "Suspect"]

_AHEAD_BYTES, _FRONT_BYTES, _ORDERED_BYTES, _KEY_BYTES, _HELD_BYTES, _RANGE_BYTES = 12, 180, 110, 850, 400, 300
"""Measured sizes, in bytes, from which the memory of a state is computed. _AHEAD_BYTES: for each record read ahead.
_FRONT_BYTES: in addition, for each record at the front of a queue. _ORDERED_BYTES: in an ordered group, in addition for
each record read ahead. _KEY_BYTES: in an ordered group, for each message key. _HELD_BYTES: for each held record.
_RANGE_BYTES: for each range of acknowledged records.
"""

_MOST_MS = 8 * 24 * 3600 * 1000
"""The maximum remaining time, in milliseconds, of a lease or delay that is read from the log. The limit is higher than
any time that a client may request. Without it, leases would become too long if the clock was set back.
"""

_EARLIER = 16
"""How many tokens of earlier leases are kept for a message that the same member has leased several times in a row."""


class HeldState(Enum):
    """The state of a held record (leased, or released and not done)."""

    LEASED = "leased"
    READY = "ready"
    """The record waits to be leased again."""
    DELAYED = "delayed"
    """The record was released with a delay and becomes READY at the time `until`."""
    UNSEEN = "unseen"
    """The record can be leased again, but only after the broker has read ahead in the partition up to it; then it
    becomes READY.
    """


_LEASED, _READY, _DELAYED, _UNSEEN = HeldState
_NONE, _SUSPECT, _ALONE = Suspicion


class Suspect(NamedTuple):
    """Information about a suspect record. suspicion: how it was leased last. has_ended: whether this lease has expired
    before a member settled the record.
    """

    offset: int
    suspicion: Suspicion
    has_ended: bool


class HeldMessage:
    """A record that was leased and is not done. until: when its lease ends or, for a DELAYED record, when its delay
    ends. earlier: the tokens of the leases directly before the present one, if `member` had these leases, too.
    has_ended: whether the last lease has expired before a member settled the record.
    """

    __slots__ = (
        "attempts",
        "earlier",
        "has_ended",
        "key",
        "member",
        "priority",
        "size",
        "state",
        "suspicion",
        "token",
        "until",
    )

    def __init__(
        self, size: int, priority: int, attempts: int, token: int, until: float, member: str, key: int = NO_KEY
    ) -> None:
        self.size = size
        self.priority = priority
        self.key = key
        self.attempts = attempts
        self.token = token
        self.until = until
        self.member = member
        self.state = _LEASED
        self.earlier: tuple[int, ...] = ()
        self.suspicion = _NONE
        self.has_ended = False

    @property
    def next_suspicion(self) -> Suspicion:
        """How the record must be leased next. A higher value of Suspicion, that is, a stricter way, is allowed, too."""
        if not self.has_ended:
            return self.suspicion
        return _SUSPECT if self.suspicion is _NONE else _ALONE

    @property
    def attempts_before(self) -> int:
        """How many of the record's leases so far count as attempts."""
        return self.attempts - (self.has_ended and self.suspicion is not _ALONE)

    def lease(self, token: int, until: float, member: str, suspicion: Suspicion) -> None:
        """Lease this record again, to this member; `suspicion` says how it is leased. The present token becomes an
        earlier one if the same member had the last lease.
        """
        self.attempts = self.attempts_before + 1
        self.earlier = (*self.earlier, self.token)[-_EARLIER:] if member == self.member else ()
        self.state, self.until, self.token, self.member = _LEASED, until, token, member
        self.suspicion, self.has_ended = suspicion, False


class HeldFigures(NamedTuple):
    """Numbers about the held records. delayed: how many records are DELAYED. most_attempts: the highest number of
    attempts of any held record. members: a dict from each member to the number of records that it has leased now.
    """

    delayed: int
    most_attempts: int
    members: dict[str, int]


class Grant(NamedTuple):
    """A record that was leased by one call of `acquire`. size: in bytes. attempts: how many leases count as attempts,
    including this one.
    """

    offset: int
    size: int
    priority: int
    attempts: int


class Limits(NamedTuple):
    """The limits of one group on one partition. held: the maximum number of leased or released records. ahead: the
    maximum number of records read ahead and not leased. ahead_ordered: the same in an ordered group. ahead_bytes: the
    maximum number of bytes of the records read ahead. ranges: the maximum number of ranges of acknowledged records.
    share: each time this many records are leased, one of them is the oldest waiting record, whatever its priority, so
    that records of low priority are leased, too. scarce: the maximum that replaces `held` and `ahead` while memory is
    scarce.
    """

    held: int
    ahead: int
    ahead_ordered: int
    ahead_bytes: int
    ranges: int
    share: int
    scarce: int


class SharedState:
    """The state of one group on one partition, as the module's docstring describes it. Use this object on the reactor
    thread.
    """

    def __init__(self, low: int, limits: Limits, crew: Crew | None = None) -> None:
        """low: the byte offset where the group begins to read the partition. crew: the Crew object of the group, which
        the states of all its partitions use. It is None if the group has only this partition.
        """
        self.low = low
        self.scanned = low
        """The byte offset where reading ahead will continue; all data before it have been read ahead."""
        self.ordered = False
        self.scarce = False
        """Whether the client address to which the group's memory is charged has used up its part of the broker's
        memory. While this is True, only a few records are held and read ahead (`Limits.scarce`).
        """
        self.leased = 0
        self.done_above = 0
        """The number of done records behind the byte offset `low`."""
        self.crew = Crew() if crew is None else crew
        self._limits = limits
        self._held: dict[int, HeldMessage] = {}
        self._ranges: dict[int, tuple[int, int]] = {}  # done: start -> (end, records)
        self._range_of_end: dict[int, int] = {}
        self._lines = [Line() for _ in range(MAX_PRIORITY + 1)]
        self._again = [Again() for _ in range(MAX_PRIORITY + 1)]
        self._first_of_keys = [Again() for _ in range(MAX_PRIORITY + 1)]  # lines of an ordered group
        self._suspects = Again()
        self._lone = Again()  # suspects for a member without other messages
        self._in_lines = 0
        self._ready = 0  # held records that are READY
        self._keys: dict[int, deque[tuple[int, int, int]]] = {}
        """Used in an ordered group. The dict has an entry for each key of which a record is held or in a line. It maps
        the key's hash to the later records of this key, which must wait until that record is done: offset, size and
        priority of each.
        """
        self._behind_keys = 0
        self._ahead_bytes = 0
        self._ends: list[tuple[float, int, list[int]]] = []  # ends of leases: (when, token, offsets), a heap
        self._ending = 0  # offsets in _ends
        self._delays: list[tuple[float, int]] = []  # (when, offset), a heap
        self._known_end = low  # nothing behind it is held or done
        self._handed = 0

    # --- what is asked ------------------------------------------------------------------------------------------------

    @property
    def available(self) -> int:
        """An upper bound of the number of records that may be leased now."""
        return self._in_lines + self._ready

    @property
    def held(self) -> int:
        """The number of leased and released records."""
        return len(self._held)

    @property
    def wants_more(self) -> bool:
        """Whether more records should be read ahead in the partition."""
        ahead = self._in_lines + self._ready + self._behind_keys
        most = self._limits.ahead_ordered if self.ordered else self._limits.ahead
        if self.scarce:
            most = self._limits.scarce
        return ahead < most and (self._ahead_bytes < self._limits.ahead_bytes or not ahead)

    @property
    def known_bytes(self) -> int:
        """The memory in bytes that the state's records use, computed from measured sizes."""
        ahead = _AHEAD_BYTES * self._in_lines + _FRONT_BYTES * min(self._in_lines, FRONT)
        if self.ordered:
            ahead = _ORDERED_BYTES * (self._in_lines + self._behind_keys) + _KEY_BYTES * len(self._keys)
        return ahead + _HELD_BYTES * len(self._held) + _RANGE_BYTES * len(self._ranges)

    @property
    def next_time(self) -> float | None:
        """When `expire` must be called next: the time when the next lease or delay ends, or an earlier time. It is None
        if no lease or delay exists.
        """
        times = [heap[0][0] for heap in (self._ends, self._delays) if heap]
        return min(times, default=None)

    def has_leases(self, now: float) -> bool:
        """Return whether any lease is not over at the time `now`. Leases that are over do not count, even if `expire`
        has not handled them.
        """
        return self.leased > 0 and any(held.state is _LEASED and held.until > now for held in self._held.values())

    def figures(self) -> Generator[None, None, HeldFigures]:
        """Count the held records, and yield after each SHARED_COUNTED of them. If the state changes while the generator
        waits at a yield, the result is a mixture: records that were already counted count as they were before the
        change.
        """
        every = list(self._held.values())
        delayed = most_attempts = 0
        members: dict[str, int] = {}
        for first in range(0, len(every), tuning.SHARED_COUNTED):
            if first:
                yield
            for held in every[first : first + tuning.SHARED_COUNTED]:
                most_attempts = max(most_attempts, held.attempts)
                if held.state is _LEASED:
                    members[held.member] = members.get(held.member, 0) + 1
                elif held.state is _DELAYED:
                    delayed += 1
        return HeldFigures(delayed, most_attempts, members)

    # --- leasing ------------------------------------------------------------------------------------------------------

    def acquire(self, count: int, max_bytes: int, until: float, token: int, member: str) -> list[Grant]:
        """Lease at most `count` records to this member and return them. Together they have at most `max_bytes`, but a
        single record can be larger.

        Call `expire` before this method. until: when the lease ends. token: identifies this lease. If a suspect is
        leased, it is the only record of the result. The result can be empty although records are available. This
        happens if the member has a suspect that must be its only message, or if it is chosen for such a suspect and
        must settle its other messages first.
        """
        crew = self.crew
        if crew.has_one_alone(member):
            return []
        if self._lone or self._suspects or crew.chosen == member:
            suspect, waits = self._next_suspect(member)
            if suspect is not None:
                return [self._lease_suspect(*suspect, until, token, member)]
            if waits:
                return []
        granted: list[Grant] = []
        size = 0
        levels = [each for each in range(MAX_PRIORITY, -1, -1) if self._has_level(each)]
        while len(granted) < count and (found := self._next(levels)) is not None:
            priority, record, line = found
            if granted and size + record.size > max_bytes:
                break
            size += record.size
            granted.append(self._lease(priority, record, line, until, token, member))
            self._handed += 1
        if granted:
            offsets = [grant.offset for grant in granted]
            self._ends_at(until, token, offsets)
            crew.take(member, _NONE, len(offsets))
        return granted

    def _next_suspect(self, member: str) -> tuple[tuple[Again, Suspicion] | None, bool]:
        """Return two values. The first value says which suspect to lease to this member now: the line (queue) whose
        first record is this suspect, and how to lease it. The first value is None if there is no such suspect. The
        second value is True if the member must get no message now, because it was chosen to get a suspect later.
        """
        crew = self.crew
        lone = self._first_suspect(self._lone, _ALONE)
        if not crew.has_any(member):
            if lone:
                return (self._lone, _ALONE), False
            if crew.chosen == member and crew.chosen_for is not self and crew.still_wanted():
                return None, True  # it has settled all messages for another partition's suspect
            if self._first_suspect(self._suspects, _SUSPECT):
                return (self._suspects, _ALONE), False
            return None, False
        if crew.chosen == member and crew.still_wanted():
            return None, True
        if lone and crew.choose(member, self, self._wants_lone):
            return None, True
        if not crew.has_suspect(member) and self._first_suspect(self._suspects, _SUSPECT):
            return (self._suspects, _SUSPECT), False
        return None, False

    def _wants_lone(self) -> bool:
        return self._first_suspect(self._lone, _ALONE)

    def _first_suspect(self, line: Again, suspicion: Suspicion) -> bool:
        """Return whether `line` has a waiting suspect that must be leased next as `suspicion` says. Entries of other
        records are removed from the line's beginning, so that this suspect is then the first.
        """
        while (returned := line.peek()) is not None:
            held = self._held.get(returned.offset)
            if held is not None and held.state is _READY and held.next_suspicion is suspicion:
                return True
            line.pop()
        return False

    def _lease_suspect(self, line: Again, suspicion: Suspicion, until: float, token: int, member: str) -> Grant:
        record = line.peek()
        assert record is not None
        line.pop()
        offset = record.offset
        held = self._held[offset]
        held.lease(token, until, member, suspicion)
        self.leased += 1
        self._ready -= 1
        self._handed += 1
        self._ends_at(until, token, [offset])
        self.crew.take(member, suspicion)
        if line is self._lone and self.crew.chosen_for is self:
            self.crew.unchoose()
        return Grant(offset, held.size, held.priority, held.attempts)

    def _has_level(self, priority: int) -> bool:
        return bool(self._lines[priority].count or self._again[priority] or self._first_of_keys[priority])

    def _next(self, levels: list[int]) -> tuple[int, QueuedMessage, Line | Again] | None:
        """Find the record that must be leased next, but do not remove it from its line. Return its priority, the record
        and the line, or None if there is no such record. levels: the priorities that have records, highest first.
        """
        oldest = self._handed % self._limits.share == self._limits.share - 1
        oldest = (oldest and len(levels) > 1) or len(self._ranges) >= self._limits.ranges
        found: tuple[int, QueuedMessage, Line | Again] | None = None
        full = len(self._held) >= (self._limits.scarce if self.scarce else self._limits.held)
        for priority in levels:
            first = self._first(priority, full)
            if first is None:
                continue
            if not oldest:
                return priority, *first
            if found is None or first[0].offset < found[1].offset:
                found = priority, *first
        return found

    def _first(self, priority: int, full: bool) -> tuple[QueuedMessage, Line | Again] | None:
        """Return the first record of this priority that can be leased, and its line. Return None if there is none.
        full: True if the limit of held records is reached, so that only records that are held already can be leased.
        """
        again = self._again[priority]
        while (returned := again.peek()) is not None and not self._is_ready(returned.offset):
            again.pop()
        found: tuple[QueuedMessage, Line | Again] | None = None if returned is None else (returned, again)
        if full:
            return found
        new = self._lines[priority]
        for line in (new, self._first_of_keys[priority]) if self.ordered else (new,):  # runs for each message
            if (first := line.peek()) is not None and (found is None or first.offset < found[0].offset):
                found = first, line
        return found

    def _is_ready(self, offset: int) -> bool:
        """Return whether the record at this offset is held, waits to be leased again, and is no suspect, so that it can
        be leased together with other records.
        """
        held = self._held.get(offset)
        return held is not None and held.state is _READY and held.next_suspicion is _NONE

    def _lease(
        self, priority: int, record: QueuedMessage, line: Line | Again, until: float, token: int, member: str
    ) -> Grant:
        offset, size, key = record
        self.leased += 1
        line.pop()
        if line is self._again[priority]:
            self._ready -= 1
            held = self._held[offset]
            held.lease(token, until, member, _NONE)
            return Grant(offset, size, priority, held.attempts)
        self._in_lines -= 1
        self._ahead_bytes -= size
        self._held[offset] = HeldMessage(size, priority, 1, token, until, member, key)
        return Grant(offset, size, priority, 1)

    def _ends_at(self, until: float, token: int, offsets: list[int]) -> None:
        heappush(self._ends, (until, token, offsets))
        self._ending += len(offsets)
        if self._ending > 2 * len(self._held) + 4096:
            self._sweep()

    def _sweep(self) -> None:
        """Remove from the heap of lease ends the entries of records that were settled or leased again."""
        kept: list[tuple[float, int, list[int]]] = []
        for when, token, offsets in self._ends:
            left = [each for each in offsets if self._has(each, token)]
            if left:
                kept.append((when, token, left))
        heapify(kept)
        self._ends = kept
        self._ending = sum(len(offsets) for _, _, offsets in kept)

    def _has(self, offset: int, token: int) -> bool:
        held = self._held.get(offset)
        return held is not None and held.state is _LEASED and held.token == token

    def expire(self, now: float) -> int:
        """Change the state of held records to READY if their lease or delay is over. Return how many more records wait
        to be leased again than before the call.

        One call handles at most SHARED_EXPIRED records. If there are more, `next_time` is in the past after the call,
        and the next call handles the rest.
        """
        before = self._ready
        left = tuning.SHARED_EXPIRED
        while self._ends and self._ends[0][0] <= now and left > 0:
            when, token, offsets = heappop(self._ends)
            if len(offsets) > left:
                heappush(self._ends, (when, token, offsets[left:]))
                offsets = offsets[:left]
            left -= len(offsets)
            self._ending -= len(offsets)
            later: dict[float, list[int]] = {}
            for offset in offsets:
                if not self._has(offset, token):
                    continue
                held = self._held[offset]
                if held.until <= now:
                    self._come_back(offset, held)
                else:
                    later.setdefault(held.until, []).append(offset)
            for until, extended in later.items():
                heappush(self._ends, (until, token, extended))
                self._ending += len(extended)
        while self._delays and self._delays[0][0] <= now and left > 0:
            left -= 1
            offset = heappop(self._delays)[1]
            delayed = self._held.get(offset)
            if delayed is not None and delayed.state is _DELAYED and delayed.until <= now:
                self._come_back(offset, delayed)
        return self._ready - before

    def _come_back(self, offset: int, held: HeldMessage) -> None:
        """Put a held record whose lease or delay is over into the line (queue) from which it is leased again. If the
        broker has not read ahead up to this record yet, make it UNSEEN instead.
        """
        if held.state is _LEASED:
            held.has_ended = True
            self._let_go(held)
        if offset >= self.scanned:
            held.state = _UNSEEN
            return
        self._make_ready(offset, held)

    def _make_ready(self, offset: int, held: HeldMessage) -> None:
        held.state = _READY
        self._ready += 1
        suspicion = held.next_suspicion
        lines = self._again[held.priority], self._suspects, self._lone
        lines[suspicion].add(QueuedMessage(offset, held.size, held.key))

    def _let_go(self, held: HeldMessage) -> None:
        """Called when a held record's lease ends: if the record is leased, count one leased record less, here and in
        the Crew. Must be called before the record's `state` and `member` are changed.
        """
        if held.state is _LEASED:
            self.leased -= 1
            self.crew.let_go(held.member, held.suspicion)

    # --- settling -----------------------------------------------------------------------------------------------------

    def _find(self, offset: int, token: int) -> HeldMessage | SettleOutcome:
        held = self._held.get(offset)
        if held is None:
            return SettleOutcome.GONE
        return held if held.token == token or token in held.earlier else SettleOutcome.LOST

    def attempts_of(self, offset: int) -> int:
        """Return the attempts of a held record."""
        return self._held[offset].attempts

    def ack(self, offset: int, token: int, done: list[tuple[int, int]] | None = None) -> SettleOutcome:
        """Acknowledge a record, and return the outcome. If the token is right, the record is done and its range of byte
        offsets [start, end) is appended to the list `done`.
        """
        held = self._find(offset, token)
        if isinstance(held, SettleOutcome):
            return held
        end = offset + held.size
        self._drop(offset, held)
        self._mark_done(offset, end, 1)
        if done is not None:
            done.append((offset, end))
        return SettleOutcome.DONE

    def _drop(self, offset: int, held: HeldMessage) -> None:
        """Remove a record from the held records. In an ordered group, the next record with the same key can then be
        leased.
        """
        del self._held[offset]
        if held.state is _LEASED:  # inlines _let_go
            self.leased -= 1
            self.crew.let_go(held.member, held.suspicion)
        self._ready -= held.state is _READY
        if held.key != NO_KEY:
            self._next_of_key(held.key)

    def _next_of_key(self, key: int) -> None:
        behind = self._keys.get(key)
        if behind is None:
            return
        while behind:
            offset, size, priority = behind.popleft()
            self._behind_keys -= 1
            if offset >= self.low:
                self._first_of_keys[priority].add(QueuedMessage(offset, size, key))
                self._in_lines += 1
                return
            self._ahead_bytes -= size
        del self._keys[key]

    def release(self, offset: int, token: int, now: float, delay: float, *, counts: bool = True) -> SettleOutcome:
        """Release a leased record, so that it may be leased again in `delay` seconds. counts: whether the lease counts
        as an attempt. If False, the member has not worked on the record, and a suspect remains a suspect. If True, the
        record is no longer a suspect, because the member has worked on it and was not killed.
        """
        held = self._find(offset, token)
        if isinstance(held, SettleOutcome):
            return held
        if not counts and held.token != token:  # the member returns an extra copy, and works on the other one
            return SettleOutcome.LOST
        was_ready = held.state is _READY and not held.has_ended and (not counts or held.suspicion is _NONE)
        if not counts and (held.state is _LEASED or held.has_ended):
            held.attempts -= 1
        self._let_go(held)
        held.has_ended = False
        if counts:
            held.suspicion = _NONE
        if was_ready and delay <= 0:
            return SettleOutcome.DONE
        self._ready -= held.state is _READY
        if delay > 0:
            held.state, held.until = _DELAYED, now + delay
            heappush(self._delays, (held.until, offset))
        else:
            held.state = _DELAYED
            self._come_back(offset, held)
        return SettleOutcome.DONE

    def extend(self, offset: int, token: int, until: float) -> SettleOutcome:
        """Change the end of a leased record's lease to the time `until`."""
        held = self._find(offset, token)
        if isinstance(held, SettleOutcome):
            return held
        earlier = held.state is not _LEASED or until < held.until
        if held.state is not _LEASED:
            self.leased += 1
            self.crew.take(held.member, held.suspicion)
        self._ready -= held.state is _READY
        held.state, held.until, held.has_ended = _LEASED, until, False
        if earlier:
            self._ends_at(until, held.token, [offset])
        return SettleOutcome.DONE

    def revoke(self, grants: Iterable[Grant], token: int) -> None:
        """Undo an `acquire` whose lease could not be stored."""
        for grant in grants:
            if self._has(grant.offset, token):
                self.release(grant.offset, token, 0.0, 0.0, counts=False)

    # --- what is done -------------------------------------------------------------------------------------------------

    def _mark_done(self, start: int, end: int, records: int) -> None:
        if end <= self.low:
            return
        before = self._range_of_end.pop(start, None)
        if before is not None:
            _, count = self._ranges.pop(before)
            start, records = before, records + count
            self.done_above -= count
        behind = self._ranges.pop(end, None)
        if behind is not None:
            del self._range_of_end[behind[0]]
            end, records = behind[0], records + behind[1]
            self.done_above -= behind[1]
        if start <= self.low:
            self.low = end
            return
        self._ranges[start] = end, records
        self._range_of_end[end] = start
        self.done_above += records

    @property
    def known_end(self) -> int:
        """The end, as a byte offset, of the last record that was ever leased or is done. No record behind it was ever
        leased.
        """
        return self._known_end

    def skip(self, start: int, end: int, records: int = 0) -> None:
        """Mark the bytes [start, end), which no member has to acknowledge, as done. records: how many records they
        contain.
        """
        if start >= self._known_end or not any(first <= start < last for first, (last, _) in self._ranges.items()):
            self._mark_done(start, end, records)

    # --- looking ahead ------------------------------------------------------------------------------------------------

    def look(
        self,
        end: int,
        offsets: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int32],
        priorities: npt.NDArray[np.uint8] | None,
        keys: Sequence[int] | None,
    ) -> None:
        """Add the records that were read ahead, from byte offset `scanned` to `end`, to the lines of waiting records.
        Records that are done or held are left out. priorities: None means that all priorities are 0. keys: given only
        if `ordered` is set.
        """
        self.scanned = end
        if len(offsets) and int(offsets[0]) < self._known_end:
            new = self._unknown(offsets, keys)
            if not new.all():
                keys = None if keys is None else [key for key, is_new in zip(keys, new.tolist(), strict=True) if is_new]
                offsets, sizes = offsets[new], sizes[new]
                priorities = None if priorities is None else priorities[new]
        self._ahead_bytes += int(sizes.sum(dtype=np.int64))
        if keys is not None:
            levels = [0] * len(offsets) if priorities is None else priorities.tolist()
            for record in zip(offsets.tolist(), sizes.tolist(), levels, keys, strict=True):
                self._line_up(*record)
            return
        self._in_lines += len(offsets)
        if priorities is None:
            self._lines[0].add(offsets, sizes)
            return
        for priority in np.unique(priorities).tolist():
            chosen = priorities == priority
            self._lines[priority].add(offsets[chosen], sizes[chosen])

    def _line_up(self, offset: int, size: int, priority: int, key: int) -> None:
        """Add a record that was read ahead in an ordered group. If an earlier record of the same key waits or is held,
        the new record waits until that record is done.
        """
        if key != NO_KEY:
            behind = self._keys.get(key)
            if behind is not None:
                behind.append((offset, size, priority))
                self._behind_keys += 1
                return
            self._keys[key] = deque()
        self._first_of_keys[priority].add(QueuedMessage(offset, size, key))
        self._in_lines += 1

    def _unknown(self, offsets: npt.NDArray[np.int64], keys: Sequence[int] | None) -> npt.NDArray[np.bool_]:
        """Return for each of these records whether it is new, that is, neither done nor held. If one of these records
        is held and UNSEEN, it becomes READY.
        """
        new = np.ones(len(offsets), bool)
        if self._ranges:
            starts = np.fromiter(self._ranges, np.int64, len(self._ranges))
            ends = np.fromiter(map(itemgetter(0), self._ranges.values()), np.int64, len(self._ranges))
            order = starts.argsort()
            starts, ends = starts[order], ends[order]
            number = np.searchsorted(starts, offsets, "right") - 1
            new &= (number < 0) | (offsets >= ends[number])
        new &= offsets >= self.low
        for place, offset in enumerate(offsets.tolist()):
            held = self._held.get(offset)
            if held is None:
                continue
            new[place] = False
            if keys is not None and keys[place] != NO_KEY:
                held.key = keys[place]
                self._keys.setdefault(held.key, deque())
            if held.state is _UNSEEN:
                self._make_ready(offset, held)
        return new

    def look_again(self, *, ordered: bool) -> None:
        """Remove from the state all records that were read ahead and never leased, so that they are read ahead again.
        Held records that are READY become UNSEEN until the broker has read ahead up to them again.
        ordered: the new value of the attribute `ordered`.
        """
        self.ordered = ordered
        self.scanned = self.low
        lines: list[Line | Again] = [*self._lines, *self._again, *self._first_of_keys, self._suspects, self._lone]
        for line in lines:
            line.clear()
        self._keys.clear()
        self._in_lines = self._ready = self._behind_keys = self._ahead_bytes = 0
        for held in self._held.values():
            held.key = NO_KEY
            if held.state is _READY:
                held.state = _UNSEEN
        self._know_end()

    def _know_end(self) -> None:
        ends = [end for end, _ in self._ranges.values()]
        ends += [offset + held.size for offset, held in self._held.items()]
        self._known_end = max(ends, default=self.low)

    # --- the partition changes ----------------------------------------------------------------------------------------

    def cut(self, first: int) -> int:
        """Remove from the state the records before byte offset `first`, because retention has deleted these records.
        Return how many held records were removed.
        """
        if first <= self.low:
            return 0
        gone = [offset for offset in self._held if offset < first]
        for start in [start for start in self._ranges if start <= first]:
            end, count = self._ranges.pop(start)
            del self._range_of_end[end]
            self.done_above -= count
            first = max(first, end)
        self.low = first
        for offset in gone:
            self._drop(offset, self._held[offset])
        if self.scanned < first:
            self.scanned = first
        for again in self._again:
            while (returned := again.peek()) is not None and returned.offset < first:
                again.pop()
        lines: list[Line | Again] = [*self._lines, *self._first_of_keys]
        for line in lines:
            while (head := line.peek()) is not None and head.offset < first:
                line.pop()
                self._in_lines -= 1
                self._ahead_bytes -= head.size
                if head.key != NO_KEY:
                    self._next_of_key(head.key)
        return len(gone)

    def clip(self, end: int) -> bool:
        """The partition ends at byte offset `end`, but the stored state may also speak of bytes behind it. Remove what
        it says about these bytes. The partition has lost these bytes, and other records can be appended there. To be
        called before `begin`.

        Return whether anything was removed.
        """
        changed = self.low > end
        self.low = min(self.low, end)
        for offset in [offset for offset, held in self._held.items() if offset + held.size > end]:
            del self._held[offset]
            changed = True
        for start in [start for start, (stop, _) in self._ranges.items() if stop > end]:
            stop, count = self._ranges.pop(start)
            del self._range_of_end[stop]
            self.done_above -= count
            changed = True
            if start < end:
                self._ranges[start] = end, count
                self._range_of_end[end] = start
                self.done_above += count
        return changed

    # --- a state that is read from a log ------------------------------------------------------------------------------

    def read_grants(
        self, grants: Iterable[Grant], token: int, until_ms: int, member: str, state: HeldState = _LEASED
    ) -> None:
        """Add to this state the held records that a stored section names. state: the state of these records; by default
        they are leased.
        """
        for offset, size, priority, attempts in grants:
            before = self._held.get(offset)
            held = self._held[offset] = HeldMessage(size, priority, attempts, token, until_ms, member)
            held.state = state
            if before is None:
                continue
            if before.member == member:
                held.earlier = (*before.earlier, before.token)[-_EARLIER:]
            before.has_ended = before.has_ended or before.state is _LEASED
            if (
                before.next_suspicion is not _NONE
            ):  # `read_suspects` corrects this, unless an earlier version wrote the log
                held.suspicion = _SUSPECT

    def read_suspects(self, suspects: Iterable[Suspect]) -> None:
        """Set `suspicion` and `has_ended` of held records to the values in a stored SUSPECTS section."""
        for offset, suspicion, has_ended in suspects:
            if (held := self._held.get(offset)) is not None:
                held.suspicion, held.has_ended = suspicion, has_ended

    def read_done(self, start: int, end: int, records: int = 1) -> None:
        """Mark the bytes [start, end) as done, because a stored entry says that records there were acknowledged or
        skipped.
        """
        self._held.pop(start, None)
        self._mark_done(start, end, records)

    def read_change(self, offset: int, until_ms: int, attempts: int, state: HeldState) -> None:
        """Change a held record, because a stored entry says that it was released or that its lease was extended."""
        held = self._held.get(offset)
        if held is not None:
            if state is not _LEASED and attempts == held.attempts:  # a member has worked on it
                held.suspicion = _NONE
            held.state, held.until, held.attempts, held.has_ended = state, until_ms, attempts, False

    def begin(self, now: float, now_ms: int) -> None:
        """Make this state ready for use after it was read from a log. now: the present time in seconds of the caller's
        clock. now_ms: the same time in Unix milliseconds.
        """
        self.scanned = self.low
        self._know_end()
        for offset, held in self._held.items():
            left = min(held.until - now_ms, _MOST_MS) / 1000
            held.until = now + left
            if left <= 0:
                held.has_ended = held.has_ended or held.state is _LEASED
                held.state = _UNSEEN
            elif held.state is _LEASED:
                self.leased += 1
                self.crew.take(held.member, held.suspicion)
                self._ends_at(held.until, held.token, [offset])
            else:
                heappush(self._delays, (held.until, offset))

    # --- writing it down ----------------------------------------------------------------------------------------------

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield each range of done records behind the byte offset `low`: the range's first byte offset, its end offset
        and its number of records.
        """
        for start, (end, count) in self._ranges.items():
            yield start, end, count

    def suspects(self, offsets: Iterable[int] | None = None) -> list[Suspect]:
        """Return the suspects among the held records at these offsets. If offsets is None, return all suspects."""
        chosen = self._held if offsets is None else offsets
        found = ((offset, self._held.get(offset)) for offset in chosen)
        return [
            Suspect(offset, held.suspicion, held.has_ended)
            for offset, held in found
            if held is not None and (held.has_ended or held.suspicion is not _NONE)
        ]

    def items(self) -> Iterator[tuple[int, HeldMessage]]:
        """Yield the held records with their offsets."""
        return iter(self._held.items())
