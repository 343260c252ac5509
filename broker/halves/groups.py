"""Producer groups: their half messages whose first check was due, in the order of their next ones, and who asks.

A half message that is handed out comes again after a pause that grows. Reactor thread; times are monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from twisted.internet.defer import Deferred

from ..store.delayed_records import DelayTarget

__all__ = ["NEVER", "AskedGroup", "Groups", "Half", "Poll"]

T = TypeVar("T")

NEVER = float("inf")


class Half:
    """One whose first check was due. at: when it may be handed out next, NEVER if it is parked. asked: how often it
    was."""

    __slots__ = ("asked", "at", "group", "id", "last_ms", "place")

    def __init__(self, half_id: int, group: str, place: DelayTarget, asked: int, at: float, last_ms: int) -> None:
        self.id = half_id
        self.group = group
        self.place = place
        self.asked = asked
        self.at = at
        self.last_ms = last_ms
        """When it was handed out last, Unix ms; 0 = never."""


class Poll(NamedTuple, Generic[T]):
    """A producer that waits for half messages, until `ends_at`."""

    caller: object
    group: str
    limit: int
    ends_at: float
    answer: Deferred[T]


class AskedGroup(Generic[T]):
    """One producer group."""

    __slots__ = ("_due", "asked", "parked", "polls")

    def __init__(self) -> None:
        self._due: list[tuple[float, int]] = []
        self.polls: deque[Poll[T]] = deque()
        self.asked = 0
        """Half messages that may be handed out, now or later."""
        self.parked = 0

    @property
    def first_at(self) -> float:
        """When the next one is due; infinite without any."""
        return self._due[0][0] if self._due else NEVER


class Groups(Generic[T]):
    """All of a broker. most: how often each half message is handed out."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._groups: dict[str, AskedGroup[T]] = {}
        self._halves: dict[int, Half] = {}

    def __len__(self) -> int:
        return len(self._halves)

    def clear(self) -> list[Poll[T]]:
        """Forget all; those who waited."""
        polls = [poll for group in self._groups.values() for poll in group.polls]
        self._groups.clear()
        self._halves.clear()
        return polls

    # --- half messages ------------------------------------------------------------------------------------------------

    def add(self, half: Half) -> None:
        """Its first check is due, or was."""
        self._halves[half.id] = half
        self._group(half.group).asked += 1
        self.put_off(half, half.at)

    def get(self, half_id: int) -> Half | None:
        """None: it is decided, or its first check is not due."""
        return self._halves.get(half_id)

    def discard(self, half_id: int) -> None:
        """It is decided."""
        half = self._halves.pop(half_id, None)
        if half is not None:
            group = self._groups[half.group]
            if self.is_parked(half):
                group.parked -= 1
            else:
                group.asked -= 1
            if len(group._due) > 2 * (group.asked + 8):
                group._due = [(at, each) for at, each in group._due if self._is_current(at, each)]
                heapify(group._due)
            self._drop_empty(half.group)

    def put_off(self, half: Half, at: float) -> None:
        """It may be handed out at that time, and not before; never again if that was the last time."""
        group = self._groups[half.group]
        if half.asked < self._most:
            half.at = at
            heappush(group._due, (at, half.id))
        elif not self.is_parked(half):
            half.at = NEVER
            group.asked -= 1
            group.parked += 1

    def is_parked(self, half: Half) -> bool:
        """Whether it is handed out no more."""
        return half.at == NEVER

    def take(self, name: str, most: int, now: float) -> list[Half]:
        """Those that are due, at most so many; they are to be `put_off`, unless they are decided first."""
        group = self._group(name)
        found: list[Half] = []
        while len(found) < most and group.first_at <= now:
            at, half_id = heappop(group._due)
            if self._is_current(at, half_id):
                found.append(self._halves[half_id])
        return found

    def _is_current(self, at: float, half_id: int) -> bool:
        half = self._halves.get(half_id)
        return half is not None and half.at == at

    def all(self) -> Iterator[tuple[str, AskedGroup[T]]]:
        """By name."""
        yield from sorted(self._groups.items())

    # --- who asks -----------------------------------------------------------------------------------------------------

    def wait(self, poll: Poll[T]) -> None:
        """It is to be answered when there is something."""
        self._group(poll.group).polls.append(poll)

    def wait_first(self, poll: Poll[T]) -> None:
        """It is the next one again."""
        self._group(poll.group).polls.appendleft(poll)

    def next_poll(self, name: str) -> Poll[T] | None:
        """One that waits, which does not any more."""
        group = self._groups.get(name)
        return group.polls.popleft() if group is not None and group.polls else None

    def take_polls(self, is_over: Callable[[Poll[T]], bool]) -> list[Poll[T]]:
        """Those of which this is true: they wait no more."""
        found: list[Poll[T]] = []
        for name, group in list(self._groups.items()):
            kept: deque[Poll[T]] = deque()
            for poll in group.polls:
                (found if is_over(poll) else kept).append(poll)
            group.polls = kept
            self._drop_empty(name)
        return found

    def wanted(self) -> Iterator[str]:
        """The groups that somebody waits for."""
        return iter([name for name, group in self._groups.items() if group.polls])

    def next_at(self) -> float:
        """When there is something to do for those who wait; infinite if nobody does."""
        found = [
            min(group.first_at, *(poll.ends_at for poll in group.polls))
            for group in self._groups.values()
            if group.polls
        ]
        return min(found, default=NEVER)

    def _group(self, name: str) -> AskedGroup[T]:
        found = self._groups.get(name)
        if found is None:
            found = self._groups[name] = AskedGroup()
        return found

    def _drop_empty(self, name: str) -> None:
        group = self._groups.get(name)
        if group is not None and not (group.polls or group.asked or group.parked):
            del self._groups[name]
