"""What a leader knows of its followers, and which of its blocks are committed: no I/O, no clock, no thread.

`needed` are the other nodes that a commit and an acknowledgement need: the in-sync set, and while the outcome of a
change is unknown, the nodes of the old set and of the new one. Methods take events in. `take_committed` then gives
what became visible, and `take_answers` whom to answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from metaq.protocol.errors import MetaqError
from metaq.protocol.replication_stream import Ack, Lane

from .rules import committed_position, counted, may_acknowledge

__all__ = ["FollowerState", "Leading", "Mark", "OnCommitted"]

OnCommitted = Callable[[MetaqError | None], None]
"""answered(error): None when the block is committed, else why it is unknown whether it ever will be."""

_NOTHING = -1
"""A follower that has acknowledged nothing."""


class Mark(NamedTuple):
    """A log is committed up to byte `end`, which is after `records` records by the log's own count."""

    log: Any
    end: int
    records: int


class FollowerState:
    """One follower, connected or not."""

    def __init__(self) -> None:
        self.received = self.safe = _NOTHING
        """The last block that it has in memory, and the last that it has on the disk."""
        self.granted_until = float("-inf")
        """When its grant ends, by the leader's clock; until then it does not stand for election."""
        self.live = False
        """Whether it gets blocks as they are made."""


class _LaneState:
    """The blocks of one lane that are not committed, and who waits for them."""

    def __init__(self) -> None:
        self.committed = 0
        self.marks: deque[tuple[int, Sequence[Mark]]] = deque()
        self.waiting: deque[tuple[int, OnCommitted]] = deque()


class Leading:
    """One leadership. Block numbers begin at 1."""

    def __init__(self, me: str, epoch: int, in_sync: Iterable[str]) -> None:
        self.me = me
        self.epoch = epoch
        self.in_sync = frozenset(in_sync)
        """The in-sync set that ZooKeeper has, as far as is known."""
        self.changing_to: frozenset[str] | None = None
        """The in-sync set of a write that is under way or whose outcome is unknown; None without one."""
        self.followers: dict[str, FollowerState] = {}
        self.number = 0
        """The number of the last block."""
        self.own_safe = 0
        """The last block that is on this node's own disk."""
        self._lanes = (_LaneState(), _LaneState())
        self._newly: list[Mark] = []

    @property
    def needed(self) -> frozenset[str]:
        """The other nodes that must have acknowledged data."""
        return counted(self.in_sync, self.changing_to) - {self.me}

    @property
    def committed(self) -> tuple[int, int]:
        """The last committed block, by lane."""
        return self._lanes[Lane.MEMORY].committed, self._lanes[Lane.DISK].committed

    # --- events -------------------------------------------------------------------------------------------------------

    def next_block(self, memory: Sequence[Mark], disk: Sequence[Mark]) -> int:
        """Add a block, given its marks by lane, and return its number."""
        self.number += 1
        for lane, marks in zip(self._lanes, (memory, disk), strict=True):
            if marks:
                lane.marks.append((self.number, marks))
        return self.number

    def acknowledged(self, name: str, ack: Ack) -> None:
        """Note what a live follower has acknowledged."""
        state = self.followers[name]
        if state.live:
            state.received, state.safe = ack.received, ack.safe

    def granted(self, name: str, until: float) -> None:
        """Note that a follower does not stand for election before `until`, monotonic seconds."""
        state = self.followers[name]
        state.granted_until = max(state.granted_until, until)

    def revoke(self, name: str) -> None:
        """Note that a follower may stand for election from now on."""
        self.followers[name].granted_until = float("-inf")

    def connected(self, name: str) -> None:
        """Note that a follower has connected; it is about to copy what it lacks."""
        self.followers[name] = FollowerState()

    def went_live(self, name: str) -> None:
        """Note that a follower gets every block from now on."""
        self.followers[name].live = True

    def lost(self, name: str) -> None:
        """Note that a follower's connection is gone. Its grant stays."""
        state = self.followers.get(name)
        if state is not None:
            state.live = False
            state.received = state.safe = _NOTHING

    # --- what is committed --------------------------------------------------------------------------------------------

    def may_acknowledge(self, now: float) -> bool:
        """Whether no other node can have been elected. now: monotonic seconds."""
        granted = {name: state.granted_until for name, state in self.followers.items()}
        return may_acknowledge(now, granted, self.needed, self.me)

    def advance(self, now: float) -> None:
        """Work out what is committed. now: monotonic seconds."""
        if not self.may_acknowledge(now):
            return
        needed = self.needed
        received = {name: state.received for name, state in self.followers.items()}
        safe = {name: state.safe for name, state in self.followers.items()}
        positions = (self.number, received), (self.own_safe, safe)
        for lane, (own, acknowledged) in zip(self._lanes, positions, strict=True):
            committed = committed_position(own, acknowledged, needed, self.me)
            if committed <= lane.committed:
                continue
            lane.committed = committed
            while lane.marks and lane.marks[0][0] <= committed:
                self._newly += lane.marks.popleft()[1]

    def holders(self, lane: Lane, number: int) -> int:
        """Return how many nodes have block `number`, committed in this lane, where the lane wants it: in memory or on
        the disk."""
        states = self.followers.values()
        if lane is Lane.DISK:
            return 1 + sum(state.safe >= number for state in states)
        return 1 + sum(state.received >= number for state in states)

    def take_committed(self) -> list[Mark]:
        """Return the marks that readers may newly see. A log's last mark counts."""
        newly, self._newly = self._newly, []
        return newly

    # --- who waits ----------------------------------------------------------------------------------------------------

    def wait(self, lane: Lane, number: int, answered: OnCommitted) -> bool:
        """Have `take_answers` give `answered` when block `number` is committed. False if it is committed already."""
        state = self._lanes[lane]
        if number <= state.committed:
            return False
        state.waiting.append((number, answered))
        return True

    def take_answers(self) -> list[OnCommitted]:
        """Return the callbacks whose block is now committed."""
        found = []
        for lane in self._lanes:
            while lane.waiting and lane.waiting[0][0] <= lane.committed:
                found.append(lane.waiting.popleft()[1])
        return found

    def take_all(self) -> list[OnCommitted]:
        """Return all waiting callbacks: the leadership has ended."""
        found = [answered for lane in self._lanes for _, answered in lane.waiting]
        for lane in self._lanes:
            lane.waiting.clear()
        return found
