"""Copy one partition from a master. The copy has the same bytes at the same offsets as the master's partition. If the
copy cannot be kept identical, for example because the master has lost data, copying stops, and the status shows the
reason.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import numpy as np
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from metaq.coordination.runtime.backoff import Backoff
from metaq.protocol.errors import MetaqError, PeerLost, PeerTimedOut, ReplicaDiverged, StoreError
from metaq.protocol.message_id import foreign_from
from metaq.protocol.record import HEADER, HEADER_BYTES

from ..store.index import order_times
from ..store.partition_log import PartitionLog
from ..store.scan import scan_bytes
from .host import CopyHost
from .master_source import Fetched, MasterBounds, MasterSource
from .status import CopyState, PartitionStatus

__all__ = ["PartitionCopy"]

_log = logging.getLogger(__name__)

FETCH_BYTES = 1 << 20
"""The maximum number of bytes in one request to the master, as for a slave of 1.x. If a record is larger, the next
request asks for as many bytes as the record has.
"""

MAX_RECORD_BYTES = 16 << 20

_COMPARED_BYTES = (64 << 10, 1 << 20, MAX_RECORD_BYTES)
"""The number of bytes at the end of the slave's log that are compared with the master's log before copying continues.
The smallest size that contains a whole record is used.
"""

AHEAD_SECONDS = 30.0
"""If the end offset that a Java master reports stays below the end offset of the slave's copy for more than this many
seconds, the copy counts as diverged. A shorter time would be wrong: the reported end offset does not include unsynced
data, which the slave has copied already, and a Java master with 1.x's sample file syncs only every 10 s.
"""

_END_SECONDS = 1.0
"""Seconds between two requests for the master's end offset. The slave makes these requests only if the master does not
send its end offset with the data.
"""

_TROUBLE_SECONDS = (0.5, 5.0)
"""The first and the longest pause after a failed attempt."""


class PartitionCopy:
    """Copies one partition. `run` is called for each new connection to the master, and copies until this connection is
    lost. Used only on the reactor thread.
    """

    def __init__(
        self,
        broker: CopyHost,
        topic: str,
        partition: int,
        max_delay_seconds: float,
        *,
        target: int | None = None,
        fetch_bytes: int = FETCH_BYTES,
    ) -> None:
        """max_delay_seconds: the longest pause between two requests to a master that has no new data and answers at
        once, without waiting for new data. target: the number of this broker's partition that gets the copy; None means
        the number `partition`.
        fetch_bytes: the number of bytes to request at once.
        """
        self.status = PartitionStatus(topic, partition, since_ms=broker.now_ms())
        self._broker = broker
        self._topic = topic
        self._partition = partition
        self._target = partition if target is None else target
        self._max_delay = max_delay_seconds
        self._delay = 0.0
        self._pauses = Backoff(*_TROUBLE_SECONDS)
        self._fetch_bytes = self._want = fetch_bytes
        self._end_known_at = float("-inf")
        self._suspect = -1  # the offset at which received data were damaged, -1 if none
        self.active = True
        """If this is set to False, `run` ends as soon as its present request is done."""
        log = self._find()
        if log is not None:
            self.status.offset = log.end_offset

    async def run(self, source: MasterSource) -> None:
        """Copy until the connection is lost, `active` is set to False, or the copy must stop because it has diverged
        from the master. Never raises.
        """
        self._enter(CopyState.CONNECTING)
        begun = False
        while self.active:
            try:
                if not begun:
                    begun = await self.begin(source)
                else:
                    await self.step(source)
                self._pauses.reset()
            except (PeerLost, PeerTimedOut):
                self._enter(CopyState.CONNECTING)
                return
            except (ReplicaDiverged, StoreError) as error:
                self._stop(error)
                return
            except MetaqError as error:
                await self._trouble(str(error))
            except Exception as error:
                _log.exception("copying %s-%d failed", self._topic, self._partition)
                await self._trouble(f"internal error: {type(error).__name__}")

    # --- beginning ----------------------------------------------------------------------------------------------------

    async def begin(self, source: MasterSource) -> bool:
        """Find the offset where the copying continues. Check that the slave's last records are the same as the master's
        records at these offsets. Return False if nothing can be copied yet.

        Raises MetaqError, including ReplicaDiverged."""
        bounds = await source.bounds(self._topic, self._partition)
        log = self._find()
        if bounds is None:
            # this is no reason to stop, even if the slave has a log: a Java broker 1.4.6.2 does not load all its
            # partitions at its start
            self._enter(CopyState.EMPTY)
            self.status.master_end = self.status.behind = 0  # as far as is known, no data are missing
            await self._sleep(self._max_delay)
            return False
        self.status.master_end = bounds.end
        if log is None:
            self.status.offset = bounds.first
            return True
        self.status.offset = log.end_offset
        if log.end_offset < bounds.first:
            raise self._gap(bounds.first)
        if log.end_offset > bounds.end:
            return await self._ahead(source, log, bounds)
        await self._compare(source, log, bounds)
        return True

    async def _ahead(self, source: MasterSource, log: PartitionLog, bounds: MasterBounds) -> bool:
        since = self.status.since_ms if self.status.state is CopyState.TROUBLED else self._broker.now_ms()
        text = f"the slave has bytes up to {log.end_offset}, the master up to {bounds.end} only"
        if source.exact_end or self._broker.now_ms() - since >= AHEAD_SECONDS * 1000:
            raise ReplicaDiverged(text)
        self._enter(CopyState.TROUBLED, text)
        await self._sleep(_TROUBLE_SECONDS[0])
        return False

    async def _compare(self, source: MasterSource, log: PartitionLog, bounds: MasterBounds) -> None:
        """Raise ReplicaDiverged if the master does not have the slave's last records."""
        start = await self._last_records(log, max(log.first_offset, bounds.first))
        if start is None:
            return
        size = log.end_offset - start
        theirs = await source.fetch(self._topic, self._partition, start, size)
        self._check_sound(theirs)
        ours = log.segments.read(start, size)
        if ours is None:
            ours = await self._broker.in_thread(partial(log.segments.snapshot().read, start, size))
        common = min(len(theirs.data), len(ours))
        if theirs.moved_to is not None or bytes(theirs.data[:common]) != ours[:common]:
            raise ReplicaDiverged(f"the slave's bytes at {start} … {log.end_offset} are not those of the master")

    async def _last_records(self, log: PartitionLog, first: int) -> int | None:
        """Return the offset of the first of the slave's last records, which are compared with the master's, or None if
        there are no records to compare.
        """
        end = log.visible_end
        if first >= end:
            return None
        segment = log.segments.start_of(end - 1)
        if not log.lookup.is_indexed(end - 1):  # units can only be looked up where a record is known to begin
            within = max(first, segment, end - _COMPARED_BYTES[0])
            return max(first, await self._broker.in_thread(partial(log.segments.snapshot().record_start, within)))
        for span in _COMPARED_BYTES:
            units = log.lookup.units(max(first, segment, end - span), span)
            if len(units):
                return int(units[0]["offset"])
        return None

    # --- copying ------------------------------------------------------------------------------------------------------

    async def step(self, source: MasterSource) -> None:
        """Request data from the master once, and append the data of the answer to the slave's log. `begin` must have
        returned True before. Raises MetaqError.
        """
        status = self.status
        verify = self._suspect == status.offset
        fetched = await source.fetch(self._topic, self._partition, status.offset, self._want, verify=verify)
        if not self.active:
            return
        self._check_sound(fetched)
        if fetched.moved_to is not None:
            raise self._moved(fetched.moved_to)
        if fetched.end is not None:
            status.master_end, status.behind = fetched.end, fetched.behind
        if not len(fetched.data):
            await self._nothing_new(fetched)
            return
        self._delay = 0.0
        await self._append(fetched)
        if fetched.end is None:
            await self._ask_end(source, len(fetched.data) * 2 >= self._fetch_bytes)
        self._enter(CopyState.COPYING if status.lag_bytes else CopyState.CURRENT)

    async def _nothing_new(self, fetched: Fetched) -> None:
        self._enter(CopyState.CURRENT)
        if fetched.end is None:
            self.status.master_end = self.status.offset
            self.status.behind = 0
        if not fetched.waited:
            self._delay = min(self._max_delay, self._delay + self._max_delay / 10)
            await self._sleep(self._delay)

    async def _append(self, fetched: Fetched) -> None:
        """Append all whole records of an answer at once, and wait until they are safe on the disk."""
        status = self.status
        data = bytes(fetched.data)
        scan = scan_bytes(data, status.offset)
        if not scan.end:
            self._nothing_whole(data)
            return
        self._want = self._fetch_bytes
        log = self._broker.partitions.for_replica(self._topic, self._target, status.offset)
        if log.end_offset != status.offset:
            raise ReplicaDiverged(f"somebody else has written to the slave's log: it ends at {log.end_offset}")
        now_ms = self._broker.now_ms()
        # ids of a Java broker contain no time; as in recovery, the present time is stored as a bound
        times = scan.units["time_ms"]
        dated = (times > 0) & (scan.units["id"] < foreign_from(now_ms))
        scan.units["time_ms"] = np.where(dated, times, -now_ms)
        order_times(scan.units)
        log.append((memoryview(data)[: scan.end],), scan.units.tobytes())
        status.offset = log.end_offset
        if log.durability.safe_end < log.end_offset:
            await _safe(log)
        if scan.end < len(data) and self._damaged(data, scan.end):
            raise self._bad_record()

    def _nothing_whole(self, data: bytes) -> None:
        """Called if an answer contains no whole record: make the next request so large that its answer can contain the
        record. Raises MetaqError if a larger request would not help.
        """
        if self._damaged(data, 0):
            raise self._bad_record()
        size = HEADER_BYTES + HEADER.unpack_from(data)[0] if len(data) >= HEADER_BYTES else self._want * 2
        if size > MAX_RECORD_BYTES or (self._want >= size > len(data)):
            self._suspect = self.status.offset
            raise MetaqError(
                f"the master's record of {size} bytes at {self.status.offset} cannot be read from it: "
                f"raise its maxTransferSize above that (most: {MAX_RECORD_BYTES})"
            )
        self._want = max(size, self._fetch_bytes)

    def _bad_record(self) -> MetaqError:
        self._suspect = self.status.offset
        return MetaqError(f"the master's record at {self.status.offset} is damaged: it is not copied")

    @staticmethod
    def _check_sound(fetched: Fetched) -> None:
        """Raise MetaqError if the master's data are damaged. The slave then copies nothing from the damage on, because
        a log must not have gaps.
        """
        if fetched.damaged is not None:
            start, end = fetched.damaged
            raise MetaqError(
                f"the master's bytes [{start}, {end}) are damaged: neither they nor what follows them is copied until "
                "its file is repaired and it is started again"
            )

    @staticmethod
    def _damaged(data: bytes, position: int) -> bool:
        """The scan of `data` has stopped at `position`. Return True if the reason is a damaged record, and False if it
        is an incomplete record at the end of `data`.
        """
        if len(data) - position < HEADER_BYTES:
            return False
        length: int = HEADER.unpack_from(data, position)[0]
        return length < 0 or position + HEADER_BYTES + length <= len(data)

    async def _ask_end(self, source: MasterSource, more_to_come: bool) -> None:
        status = self.status
        now = self._broker.reactor.seconds()
        if now - self._end_known_at >= _END_SECONDS and more_to_come:
            self._end_known_at = now
            bounds = await source.bounds(self._topic, self._partition)
            status.master_end = status.master_end if bounds is None else bounds.end
        status.master_end = max(status.master_end or 0, status.offset)
        status.behind = None if status.lag_bytes else 0

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def _moved(self, offset: int) -> ReplicaDiverged:
        if offset > self.status.offset:
            return self._gap(offset)
        return ReplicaDiverged(f"the slave has bytes up to {self.status.offset}, the master up to {offset} only")

    def _gap(self, first: int) -> ReplicaDiverged:
        return ReplicaDiverged(
            f"the master's data begins at {first}, behind the slave's end {self.status.offset}, and a log has no gaps: "
            "stop the slave, move the partition's directory away, and start it again"
        )

    def _stop(self, error: MetaqError) -> None:
        _log.error("copying %s-%d has stopped: %s", self._topic, self._partition, error)
        self._enter(CopyState.STOPPED, str(error))

    async def _trouble(self, text: str) -> None:
        if self.status.error != text:
            _log.warning("copying %s-%d: %s; trying again", self._topic, self._partition, text)
        self._enter(CopyState.TROUBLED, text)
        await self._sleep(self._pauses.next())

    # --- state --------------------------------------------------------------------------------------------------------

    def _find(self) -> PartitionLog | None:
        return self._broker.store.find(self._topic, self._target)

    def _enter(self, state: CopyState, error: str = "") -> None:
        status = self.status
        status.error = error
        if status.state is not state:
            status.state = state
            status.since_ms = self._broker.now_ms()

    def _sleep(self, seconds: float) -> Deferred[Any]:
        reactor: Any = self._broker.reactor
        return deferLater(reactor, seconds)


def _safe(log: PartitionLog) -> Deferred[None]:
    """Return a Deferred that fires when all appended records are safe. Fails with LogReadOnly."""
    deferred: Deferred[None] = Deferred()

    def done(error: MetaqError | None) -> None:
        if error is None:
            deferred.callback(None)
        else:
            deferred.errback(error)

    log.when_safe(log.end_offset, done)
    return deferred
