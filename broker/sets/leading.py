"""Record a leader's knowledge about its followers, and compute which blocks are committed. The code does no I/O, reads
no clock and starts no thread.

`needed` contains the other nodes that must have a block. Only then is the block committed, and only then do clients get
acknowledgements for its messages. These are the nodes of the in-sync set. While the leader is changing this set and the
outcome is unknown, `needed` contains the nodes of the old set and of the new set. The caller reports each event (for
example an acknowledgement) by calling a method. Then it calls `advance`, which finds out which blocks are committed by
now. After that, `take_committed` returns the positions up to which data have become visible, and `take_answers` returns
the callbacks to call.
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
"""answered(error): called with None when the block is committed, else with the reason why it is unknown whether the
block will ever be committed.
"""

_NOTHING = -1
"""Used as block number for a follower that has acknowledged no block."""


class Mark(NamedTuple):
    """The position in a log where a block's data end. end: the byte offset. records: how many records the log has
    before this offset.
    """

    log: Any
    end: int
    records: int


class FollowerState:
    """The leader's knowledge about one follower, which may be connected or not."""

    def __init__(self) -> None:
        self.received = self.safe = _NOTHING
        """The numbers of the last block that the follower has in memory (`received`) and of the last block that it has
        on the disk (`safe`).
        """
        self.granted_until = float("-inf")
        """The time when the follower's grant ends, in monotonic seconds of the leader's clock. Before this time the
        follower does not stand for election.
        """
        self.live = False
        """Whether the follower receives each block as soon as the leader makes it."""


class _LaneState:
    """The uncommitted blocks of one lane, and the callbacks that wait for their commit. In the memory lane, a block is
    committed when the needed nodes have it in memory; in the disk lane, when they have it on the disk.
    """

    def __init__(self) -> None:
        self.committed = 0
        self.marks: deque[tuple[int, Sequence[Mark]]] = deque()
        self.waiting: deque[tuple[int, OnCommitted]] = deque()


class Leading:
    """Everything that a leader knows about its blocks and followers, from its election until it stops leading. Block
    numbers begin at 1.
    """

    def __init__(self, me: str, epoch: int, in_sync: Iterable[str]) -> None:
        self.me = me
        self.epoch = epoch
        self.in_sync = frozenset(in_sync)
        """The in-sync set in ZooKeeper, as far as this node knows."""
        self.changing_to: frozenset[str] | None = None
        """The in-sync set that the leader is writing to ZooKeeper, until the outcome of the write is known, or None if
        there is no such write.
        """
        self.followers: dict[str, FollowerState] = {}
        self.number = 0
        """The number of the last block that `next_block` has added, or 0 before the first block."""
        self.own_safe = 0
        """The number of the last block that is on this node's own disk."""
        self._lanes = (_LaneState(), _LaneState())
        self._newly: list[Mark] = []

    @property
    def needed(self) -> frozenset[str]:
        """The other nodes that must acknowledge a block before it is committed."""
        return counted(self.in_sync, self.changing_to) - {self.me}

    @property
    def committed(self) -> tuple[int, int]:
        """Two block numbers: that of the last block that the needed nodes have in memory, and that of the last block
        that they have on the disk.
        """
        return self._lanes[Lane.MEMORY].committed, self._lanes[Lane.DISK].committed

    # --- events -------------------------------------------------------------------------------------------------------

    def next_block(self, memory: Sequence[Mark], disk: Sequence[Mark]) -> int:
        """Add a block and return its number. memory: one mark for each log whose data followers need to have only in
        memory; it says where the block's data end in this log. disk: the same for the logs whose data must be on the
        followers' disks.
        """
        self.number += 1
        for lane, marks in zip(self._lanes, (memory, disk), strict=True):
            if marks:
                lane.marks.append((self.number, marks))
        return self.number

    def acknowledged(self, name: str, ack: Ack) -> None:
        """Record which blocks a follower has acknowledged. Do nothing if the follower does not receive new blocks yet
        (`live` is False).
        """
        state = self.followers[name]
        if state.live:
            state.received, state.safe = ack.received, ack.safe

    def granted(self, name: str, until: float) -> None:
        """Record that a follower does not stand for election before the time `until`, in monotonic seconds."""
        state = self.followers[name]
        state.granted_until = max(state.granted_until, until)

    def revoke(self, name: str) -> None:
        """Record that a follower may stand for election from now on."""
        self.followers[name].granted_until = float("-inf")

    def connected(self, name: str) -> None:
        """Record that a follower has connected. The follower will get a copy of the data that it lacks."""
        self.followers[name] = FollowerState()

    def went_live(self, name: str) -> None:
        """Record that a follower receives every block from now on."""
        self.followers[name].live = True

    def lost(self, name: str) -> None:
        """Record that a follower's connection is lost. Its grant is still valid."""
        state = self.followers.get(name)
        if state is not None:
            state.live = False
            state.received = state.safe = _NOTHING

    # --- what is committed --------------------------------------------------------------------------------------------

    def may_acknowledge(self, now: float) -> bool:
        """Return whether it is certain that no other node has been elected leader by now. now: monotonic seconds."""
        granted = {name: state.granted_until for name, state in self.followers.items()}
        return may_acknowledge(now, granted, self.needed, self.me)

    def advance(self, now: float) -> None:
        """Find out which blocks are committed. now: monotonic seconds."""
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
        """Return how many nodes, including this one, have block `number`: on the disk if `lane` is the disk lane, at
        least in memory if it is the memory lane. The block must be committed in this lane.
        """
        states = self.followers.values()
        if lane is Lane.DISK:
            return 1 + sum(state.safe >= number for state in states)
        return 1 + sum(state.received >= number for state in states)

    def take_committed(self) -> list[Mark]:
        """Return the marks of the blocks that were committed since the last call of this method, oldest first. Of
        several marks of one log, the caller needs only the last one.
        """
        newly, self._newly = self._newly, []
        return newly

    # --- who waits ----------------------------------------------------------------------------------------------------

    def wait(self, lane: Lane, number: int, answered: OnCommitted) -> bool:
        """Keep the callback `answered` until block `number` is committed; then `take_answers` returns it. Return False
        without keeping it if the block is committed already.
        """
        state = self._lanes[lane]
        if number <= state.committed:
            return False
        state.waiting.append((number, answered))
        return True

    def take_answers(self) -> list[OnCommitted]:
        """Remove and return those callbacks given to `wait` whose block is committed by now."""
        found = []
        for lane in self._lanes:
            while lane.waiting and lane.waiting[0][0] <= lane.committed:
                found.append(lane.waiting.popleft()[1])
        return found

    def take_all(self) -> list[OnCommitted]:
        """Remove and return all waiting callbacks, because the leadership has ended."""
        found = [answered for lane in self._lanes for _, answered in lane.waiting]
        for lane in self._lanes:
            lane.waiting.clear()
        return found
