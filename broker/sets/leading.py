"""What a leader knows of its followers, and what of its blocks is committed: no I/O, no clock, no thread.

`needed` are the other nodes that a commit and an acknowledgement need: those of the in-sync set, and while the outcome
of a change of the set is unknown those of both. Every method takes an event in; `take_committed` gives what it made
visible, and `take_answers` who is to be told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from metaq.protocol.errors import MetaqError
from metaq.protocol.stream import Ack, Lane

from .rules import committed_position, counted, may_acknowledge

__all__ = ["FollowerState", "Leading", "Mark", "OnCommitted"]

OnCommitted = Callable[[MetaqError | None], None]
"""answered(None when it is committed, else why nobody knows whether it ever will be)."""

_NOTHING = -1
"""A follower that has acknowledged nothing."""


class Mark(NamedTuple):
    """A log is committed up to byte `end`, the first `records` records of its own count."""

    log: Any
    end: int
    records: int


class FollowerState:
    """One follower, connected or not."""

    def __init__(self) -> None:
        self.received = self.safe = _NOTHING
        """Blocks that it has in memory and on the disk."""
        self.granted_until = float("-inf")
        """Until then it does not stand for election, by the leader's clock."""
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
        """As ZooKeeper has it, as far as is known."""
        self.changing_to: frozenset[str] | None = None
        """What a write under way, or of unknown outcome, makes it."""
        self.followers: dict[str, FollowerState] = {}
        self.number = 0
        """Of the last block."""
        self.own_safe = 0
        """The last block that is on this node's own disk."""
        self._lanes = (_LaneState(), _LaneState())
        self._newly: list[Mark] = []

    @property
    def needed(self) -> frozenset[str]:
        """The other nodes that must have what is acknowledged."""
        return counted(self.in_sync, self.changing_to) - {self.me}

    @property
    def committed(self) -> tuple[int, int]:
        """The last committed block, by lane."""
        return self._lanes[Lane.MEMORY].committed, self._lanes[Lane.DISK].committed

    # --- events -------------------------------------------------------------------------------------------------------

    def next_block(self, memory: Sequence[Mark], disk: Sequence[Mark]) -> int:
        """A block was made; its marks by lane. Its number."""
        self.number += 1
        for lane, marks in zip(self._lanes, (memory, disk), strict=True):
            if marks:
                lane.marks.append((self.number, marks))
        return self.number

    def acknowledged(self, name: str, ack: Ack) -> None:
        """By a live follower."""
        state = self.followers[name]
        if state.live:
            state.received, state.safe = ack.received, ack.safe

    def granted(self, name: str, until: float) -> None:
        """A follower does not stand for election before `until`, monotonic seconds."""
        state = self.followers[name]
        state.granted_until = max(state.granted_until, until)

    def revoke(self, name: str) -> None:
        """A follower may stand for election from now on."""
        self.followers[name].granted_until = float("-inf")

    def connected(self, name: str) -> None:
        """It is about to copy what it lacks."""
        self.followers[name] = FollowerState()

    def went_live(self, name: str) -> None:
        """From now on it gets every block."""
        self.followers[name].live = True

    def lost(self, name: str) -> None:
        """Its connection is gone. Its grant stays."""
        state = self.followers.get(name)
        if state is not None:
            state.live = False
            state.received = state.safe = _NOTHING

    # --- what is committed --------------------------------------------------------------------------------------------

    def may_acknowledge(self, now: float) -> bool:
        """Whether no other node can have been elected: monotonic seconds."""
        granted = {name: state.granted_until for name, state in self.followers.items()}
        return may_acknowledge(now, granted, self.needed, self.me)

    def advance(self, now: float) -> None:
        """See what is committed by now."""
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
        """Nodes that have block `number`, which is committed in this lane, where that asks for it."""
        states = self.followers.values()
        if lane is Lane.DISK:
            return 1 + sum(state.safe >= number for state in states)
        return 1 + sum(state.received >= number for state in states)

    def take_committed(self) -> list[Mark]:
        """What readers may see now that they did not before: the last mark of a log is the one that counts."""
        newly, self._newly = self._newly, []
        return newly

    # --- who waits ----------------------------------------------------------------------------------------------------

    def wait(self, lane: Lane, number: int, answered: OnCommitted) -> bool:
        """Have `take_answers` give `answered` when block `number` is committed; False: it is."""
        state = self._lanes[lane]
        if number <= state.committed:
            return False
        state.waiting.append((number, answered))
        return True

    def take_answers(self) -> list[OnCommitted]:
        """Who is to be told now that their block is committed."""
        found = []
        for lane in self._lanes:
            while lane.waiting and lane.waiting[0][0] <= lane.committed:
                found.append(lane.waiting.popleft()[1])
        return found

    def take_all(self) -> list[OnCommitted]:
        """Everybody who waits: the leadership has ended."""
        found = [answered for lane in self._lanes for _, answered in lane.waiting]
        for lane in self._lanes:
            lane.waiting.clear()
        return found
