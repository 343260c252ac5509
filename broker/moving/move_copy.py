"""Copy the partitions of a move from the source broker (if it is a broker set, from its leader) to this broker, with a
limit of bytes per second. The code runs on the reactor thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from metaq.coordination.records.move_payloads import Move
from metaq.protocol.errors import MetaqError, StoreError
from metaq.protocol.replication_stream import Lane

from ..replication.master_source import FrameSource
from ..replication.partition_copy import FETCH_BYTES, PartitionCopy
from ..replication.peer import Peer
from .host import Leadership, MovingHost

__all__ = ["MoveCopy"]

GROUP = "metaq-move"
"""The name of the consumer group in the pulls of a copy; the source broker counts the copied messages under this name
in its statistics.
"""

_FETCHES_PER_SECOND = 10
_LEAST_FETCH_BYTES = 1 << 16
"""The least number of bytes to fetch at once. A move with a low rate fetches few bytes at once, so that the load of the
source's disk and network is even. If a move fetched fewer bytes than this number at once, it would fetch nearly every
message separately.
"""

_PAUSE_SECONDS = 0.02
_TURN_SECONDS = 0.1
"""While a copy waits because of its rate limit, it checks at intervals of this many seconds whether it should
continue.
"""
_DISK_SECONDS = 0.05


class MoveCopy:
    """Copies the partitions of one move whose target is this broker."""

    def __init__(self, broker: MovingHost, move: Move) -> None:
        self._broker = broker
        self._reactor: Any = broker.reactor
        self._move = move
        self._partitions = range(move.first, move.first + move.count)
        fetch_bytes = max(_LEAST_FETCH_BYTES, min(FETCH_BYTES, move.rate // _FETCHES_PER_SECOND))
        self._copies = [
            PartitionCopy(
                broker, move.topic, each, _PAUSE_SECONDS, target=move.of_target(each), fetch_bytes=fetch_bytes
            )
            for each in self._partitions
        ]
        self._free_at = 0.0
        self.copied = 0
        """Number of bytes copied since this object was created."""
        self.begun_at: float = self._reactor.seconds()
        self.progressed_at = self.begun_at
        """When the last bytes arrived, in seconds of the reactor's clock."""

    @property
    def left(self) -> int | None:
        """The number of bytes that are still to be copied, or None while unknown."""
        lags = [each.status.lag_bytes for each in self._copies]
        return None if None in lags else sum(each for each in lags if each is not None)

    @property
    def per_second(self) -> float:
        """The average number of bytes copied per second since this object was created."""
        seconds: float = self._reactor.seconds() - self.begun_at
        return self.copied / max(0.001, seconds)

    async def go_through(self, peer: Peer, goes_on: Callable[[], bool]) -> None:
        """Copy the partitions one after the other, each of them up to its present end on the source broker. Stop
        earlier if `goes_on` returns false. Raises MetaqError.
        """
        source = FrameSource(peer, GROUP, wait_seconds=0.0)
        begun = [copy for copy in self._copies if await copy.begin(source)]
        for copy in begun:
            while copy.status.lag_bytes and await self._has_turn(goes_on):
                self._check()
                self._check_room()
                before = copy.status.offset
                await copy.step(source)
                self.copied += copy.status.offset - before
                self.progressed_at = self._reactor.seconds()
                self._free_at += (copy.status.offset - before) / self._move.rate
                await self.committed()

    async def _has_turn(self, goes_on: Callable[[], bool]) -> bool:
        """Wait until the move's rate allows the next fetch, or until `goes_on` returns false. Return what `goes_on` has
        returned last.
        """
        self._free_at = max(self._free_at, self._reactor.seconds() - _TURN_SECONDS)  # unused time does not count later
        while goes_on() and (pause := self._free_at - self._reactor.seconds()) > 0:
            await deferLater(self._reactor, min(pause, _TURN_SECONDS))
        return goes_on()

    def _check_room(self) -> None:
        """Raise StoreError if there is not enough space on the disk for the bytes that are still to be copied. The
        reserve, which is space that must stay free on the disk, may not be used for the copy.
        """
        space, move = self._broker.store.space, self._move
        directory = self._broker.store.directory_for(move.topic, move.target_first)
        space.check(directory, journaled=True)
        path, left = os.path.dirname(directory), self.left or 0
        for room in space.rooms():
            free = max(0, room.free - room.reserve)
            if room.path == path and left > free:
                raise StoreError(
                    f"{path} has no room for the copy: {left} bytes are left, and {free} are free above the reserve; "
                    "make room, or cancel the move"
                )

    async def finish(self, peer: Peer, ends: Sequence[int], goes_on: Callable[[], bool]) -> None:
        """Copy each partition up to its end offset in `ends`; afterwards the copy must end exactly there. Wait until
        all data are on this broker's disk and, in a broker set, on the disks of all in-sync nodes. Raises MetaqError.
        """
        await self.go_through(peer, goes_on)
        for partition, end in zip(self._partitions, ends, strict=True):
            if not goes_on():
                raise MetaqError("the move is not to go on here")
            here = self._move.of_target(partition)
            log = self._broker.partitions.for_replica(self._move.topic, here, end)
            if log.end_offset < end:
                raise MetaqError(f"{self._move.topic}-{here} ends at {log.end_offset} and its source at {end}")
            if log.end_offset > end:
                raise StoreError(
                    f"{self._move.topic}-{here} ends at {log.end_offset}, behind the source's end {end}: the source "
                    "has lost what it had; cancel the move"
                )
            log.checkpoint()
            while log.synced_end < end:
                if log.read_only is not None:
                    raise StoreError(f"{log.directory} is read-only: {log.read_only}")
                await deferLater(self._reactor, _DISK_SECONDS)
        await self.committed(Lane.DISK)

    async def committed(self, lane: Lane = Lane.MEMORY) -> None:
        """Wait until every in-sync node of this broker's set has, in memory or on the disk as `lane` says, all data
        that this node has appended so far; on a single broker do not wait. Raises NotLeader.
        """
        leader = self._check()
        if leader is not None:
            deferred: Deferred[None] = Deferred()
            leader.replicate((), lane, partial(_settle, deferred))
            await deferred

    def _check(self) -> Leadership | None:
        """Return the Leadership object of this node if this broker is a node of a broker set, or None for a single
        broker. Raises MetaqError if this broker must not append data now, because it does not lead its set or is
        handing the leadership over.
        """
        member = self._broker.member
        if member is None:
            return None
        if member.leader is None or member.leader.draining:
            raise member.refusal() or MetaqError("this node hands its leadership over")
        return member.leader


def _settle(deferred: Deferred[None], error: MetaqError | None) -> None:
    if error is None:
        deferred.callback(None)
    else:
        deferred.errback(error)
