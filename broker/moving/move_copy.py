"""Copy a move's partitions from the source's leader, at a limited rate in bytes per second. Reactor thread."""

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
"""The group named in pulls, for the source's statistics."""

_FETCHES_PER_SECOND = 10
_LEAST_FETCH_BYTES = 1 << 16
"""Fetches fit into the rate, so that they do not take the source's disk and network in bursts. But even a slow copy
need not ask for each message on its own."""

_PAUSE_SECONDS = 0.02
_TURN_SECONDS = 0.1
"""The time after which a copy that waits for its rate checks again whether to go on."""
_DISK_SECONDS = 0.05


class MoveCopy:
    """The copies of one move's partitions. It lives as long as the move is driven."""

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
        """Bytes copied since this object was made."""
        self.begun_at: float = self._reactor.seconds()
        self.progressed_at = self.begun_at
        """When the last bytes arrived, in seconds of the reactor's clock."""

    @property
    def left(self) -> int | None:
        """The number of the source's bytes that are not here; None while unknown."""
        lags = [each.status.lag_bytes for each in self._copies]
        return None if None in lags else sum(each for each in lags if each is not None)

    @property
    def per_second(self) -> float:
        """The average rate in bytes since this object was made."""
        seconds: float = self._reactor.seconds() - self.begun_at
        return self.copied / max(0.001, seconds)

    async def go_through(self, peer: Peer, goes_on: Callable[[], bool]) -> None:
        """Copy each partition up to the source's end at its turn, while `goes_on`. Raises MetaqError."""
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
        """Wait until the rate allows more. Return whether to go on."""
        self._free_at = max(self._free_at, self._reactor.seconds() - _TURN_SECONDS)  # unused time is lost
        while goes_on() and (pause := self._free_at - self._reactor.seconds()) > 0:
            await deferLater(self._reactor, min(pause, _TURN_SECONDS))
        return goes_on()

    def _check_room(self) -> None:
        """Raise StoreError if the rest of the copy would take the room of this broker's own messages."""
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
        """Copy up to exactly these ends, and wait until everything is on this broker's disk, and committed in its set.
        Raises MetaqError."""
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
        """Wait until every in-sync node of this broker's set has all appended data. Raises NotLeader."""
        leader = self._check()
        if leader is not None:
            deferred: Deferred[None] = Deferred()
            leader.replicate((), lane, partial(_settle, deferred))
            await deferred

    def _check(self) -> Leadership | None:
        """Return the leadership of a broker set's node. Raises MetaqError if nothing may be appended here now."""
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
