"""Bring a follower up to date: read the data that the follower lacks from the leader's partition files, and send them
to the follower. The copy is made in rounds, because producers send new messages meanwhile.

A round copies each partition up to the point where the partition ended when the round began. When the follower lacks at
most LIVE_BYTES, the last round begins. During the last round the leader keeps its new blocks for this follower in
memory, and sends them after the copy. Worker threads read the files. The next piece of the copy is sent only when the
connection's send buffer has room.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from metaq.protocol.errors import OffsetOutOfRange, PeerLost, RemoteProtocolError
from metaq.protocol.replication_stream import COPY, Kind, Lane, StreamEntry, encode_block, encode_json

from ..runtime.pace import Pace
from ..store.copy_reader import CopiedPiece, CopyReader
from ..store.partition_log import PartitionLog
from . import tuning
from .connections import StreamProtocol
from .host import SetHost
from .transaction_copy import send_copy

__all__ = ["Copying", "copy_pace"]

_log = logging.getLogger(__name__)

T = TypeVar("T")


def copy_pace(broker: SetHost) -> Pace:
    """Return the Pace object for the sum of all copies that a leader makes at the same time: it limits their total
    rate.
    """
    return Pace(
        broker.reactor,
        lambda: broker.metrics.put_bytes,
        least=broker.config.copy_bytes_per_second,
        written_factor=tuning.COPY_WRITTEN_FACTOR,
    )


class _Place(NamedTuple):
    """The byte offsets where a partition of the follower begins and ends."""

    first: int
    end: int


class Copying:
    """Copies a leader's data to one follower. An object makes one copy only. The methods run on the reactor thread."""

    def __init__(
        self,
        broker: SetHost,
        connection: StreamProtocol,
        ready: Mapping[str, Any],
        pace: Pace,
        go_live: Callable[[], Callable[[], None]],
    ) -> None:
        """ready: the content of the follower's READY message. pace: limits the rate at which data are sent; not used in
        the last round. go_live: makes the leader keep its new blocks for this follower in memory, and returns the
        function that sends the kept blocks.
        """
        self.sent_bytes = 0
        self._broker = broker
        self._store = broker.store
        self._connection = connection
        self._places = _places(ready)
        self._transactions = _transactions(ready)
        self._pace: Pace | None = pace
        self._go_live = go_live
        self._stopped = False

    def stop(self) -> None:
        """Stop the copy: send nothing more to the follower."""
        self._stopped = True

    async def run(self) -> None:
        """Copy all data that the follower lacks, and then let the leader send its new blocks to the follower. Raises
        StoreError, PeerLost.
        """
        await self._turn()  # handling READY has filled this turn
        while await self._missing() > tuning.LIVE_BYTES and not self._stopped:
            await self._round()
        if self._stopped:
            return
        live = self._go_live()
        self._pace = None  # be quick: the held blocks take memory
        await self._round()
        if not self._stopped:
            self.sent_bytes += await send_copy(
                self._broker, self._connection, lambda: self._stopped, self._transactions
            )
        if not self._stopped:
            self._drop()
            await self._turn()
        if not self._stopped:
            live()

    async def _turn(self) -> None:
        """Wait until the reactor's next iteration, so that the reactor can do other work meanwhile."""
        await deferLater(cast(Any, self._broker.reactor), 0)

    async def _in_turns(self, items: Sequence[T]) -> AsyncIterator[T]:
        """Yield the items one after another. After each LOOKED_AT items, wait until the reactor's next iteration."""
        for number, item in enumerate(items):
            if number and not number % tuning.LOOKED_AT:
                await self._turn()
            yield item

    async def _missing(self) -> int:
        missing = 0
        async for log in self._in_turns(tuple(self._store.all_logs())):
            missing += max(0, log.end_offset - self._end_of(log))
        return missing

    def _end_of(self, log: PartitionLog) -> int:
        place = self._place(log)
        return log.first_offset if place is None else place.end

    def _place(self, log: PartitionLog) -> _Place | None:
        """Return where the follower's copy of the leader's partition `log` begins and ends. Return None if the whole
        partition must be copied. That is so in three cases: the follower does not have the partition; the follower's
        copy ends before the leader's partition begins; or the follower lacks the leader's first messages.
        """
        place = self._places.get(log.journal_name.decode())
        if place is None or place.end < log.first_offset or place.first > log.first_offset:
            return None
        return place

    async def _round(self) -> None:
        """Copy all data that the follower lacks, up to where each partition ends when this method is called."""
        targets = [(log, log.end_offset) for log in self._store.all_logs()]
        begin = {}
        async for log, _ in self._in_turns(targets):
            name = log.journal_name.decode()
            place = self._place(log)
            if place is None:
                begin[name] = log.first_offset
                self._places[name] = _Place(log.first_offset, log.first_offset)
            elif place.end > log.end_offset:
                raise PeerLost(f"{self._connection.name} has {place.end} bytes of {name}, its leader {log.end_offset}")
        if begin:
            self._connection.send([encode_json(Kind.BEGIN, begin)])
            await self._turn()
        async for log, target in self._in_turns(targets):
            await self._copy(log, target)

    async def _copy(self, log: PartitionLog, target: int) -> None:
        name = log.journal_name.decode()
        first, end = self._places[name]
        if end >= target:
            return
        reader = CopyReader(log.segments, end, tuning.PIECE_BYTES)
        reader.end = target  # later messages are in blocks
        reading = self._read(reader, end, target)
        while reading is not None and not self._stopped:
            try:
                piece = await reading
            except OffsetOutOfRange:  # retention has removed these data: the partition begins anew
                self._connection.send([encode_json(Kind.BEGIN, {name: log.first_offset})])
                first = end = log.first_offset
                reading = self._read(reader, end, target)
                continue
            end = piece.end
            reading = self._read(reader, end, target)  # read on while this piece is sent
            await self._connection.drained()
            await self._paced(len(piece.data))
            entry = StreamEntry(log.journal_name, piece.base, piece.segment, Lane.MEMORY, piece.units, (piece.data,))
            self._connection.send(encode_block(COPY, (0, 0), [entry]))
            self.sent_bytes += len(piece.data)
        if reading is not None:
            reading.addErrback(lambda _: None)  # nobody needs the piece any more
        self._places[name] = _Place(first, end)

    async def _paced(self, size: int) -> None:
        """Wait until `self._pace` allows the next piece of the copy, and record that the piece has `size` bytes. In the
        last round, do not wait.
        """
        if self._pace is not None:
            seconds = self._pace.pause()
            self._pace.spend(size)
            if seconds > 0:
                await deferLater(cast(Any, self._broker.reactor), seconds)

    def _read(self, reader: CopyReader, offset: int, target: int) -> Deferred[CopiedPiece] | None:
        return self._broker.in_thread(partial(reader.read, offset)) if offset < target else None

    def _drop(self) -> None:
        """For each partition that begins at a lower offset on the follower than on the leader, tell the follower to
        drop the data before the leader's first offset. Partitions that the leader has created since the last round
        began are left out: the follower gets them with the leader's new blocks.
        """
        firsts = {
            name: log.first_offset
            for log in self._store.all_logs()
            if (place := self._places.get(name := log.journal_name.decode())) and place.first < log.first_offset
        }
        if firsts:
            self._connection.send([encode_json(Kind.DROP, firsts)])


def _transactions(ready: Mapping[str, Any]) -> tuple[int, str]:
    try:
        size, digest = ready["transactions"]
        return int(size), str(digest)
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"READY does not say what the transaction log is: {error!r}") from error


def _places(ready: Mapping[str, Any]) -> dict[str, _Place]:
    try:
        return {name: _Place(int(first), int(end)) for name, (first, end) in ready["partitions"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RemoteProtocolError(f"READY does not say where partitions end: {error!r}") from error
