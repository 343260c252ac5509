"""The queue of one shared group on one partition. The queue reads ahead in the partition to find messages that can be
leased. After messages were leased, the queue reads them from the partition so that they can be delivered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from twisted.internet.defer import Deferred

from metaq.protocol.errors import MetaqError, OffsetOutOfRange
from metaq.protocol.record import (
    ATTRIBUTE_FLAG,
    HEADER,
    HEADER_BYTES,
    MAX_PRIORITY,
    PRIORITY_MASK,
    PRIORITY_SHIFT,
    PROPERTIES_FLAG,
    Buffer,
    attribute_of,
    checksum,
    headers_at,
    key_hash,
    keys_of_attribute,
)
from metaq.protocol.where import parse_where

from .. import tuning
from ..reading.reading import Reading
from ..reading.selecting import slice_of, wanted_of
from ..runtime.account import Shares
from ..runtime.reactor import ReactorTime
from ..store.damage import Damaged, Soundness
from ..store.files import NotCached
from ..store.index import UnitArray
from ..store.partition_log import PartitionLog
from ..store.segments import Snapshot
from .group_filter import GroupFilter
from .lines import NO_KEY
from .rows import SharedKey
from .state import Grant, SharedState

__all__ = ["Handed", "SharedQueue"]

_log = logging.getLogger(__name__)


class Handed(NamedTuple):
    """The leased records that were read from the partition, in the order of their lease. grants: the records whose
    checksum is right. parts: the bytes of these records. damaged: the records whose checksum is wrong.
    """

    grants: list[Grant]
    parts: list[Buffer]
    damaged: list[Grant]


class _Span(NamedTuple):
    """Leased records that directly follow each other: bytes [start, end) of the partition."""

    start: int
    end: int
    grants: list[Grant]


class SharedQueue:
    """Finds messages of one partition that one group can lease, and reads the leased messages. Use this object on the
    reactor thread.
    """

    def __init__(
        self,
        key: SharedKey,
        state: SharedState,
        reading: Reading,
        reactor: ReactorTime,
        on_more: Callable[[SharedQueue], None],
        on_skipped: Callable[[SharedQueue, Sequence[tuple[int, int, int]]], None],
        memory: Shares,
        address: str,
    ) -> None:
        """on_more: called when there are more messages to lease than before. on_skipped: called with byte ranges of the
        partition that no member has to acknowledge. Each range has a start, an end and a number of records. address:
        the address of the client whose request has created this queue. memory: the account to which this queue adds the
        memory of its state, as used by `address`.
        """
        self.key = key
        self.state = state
        self.log: PartitionLog | None = None
        """The partition's log, or None while the partition has no data."""
        self.mode: bool | None = None
        """In which of the two internal logs `/shared` this queue's sections (rows.py) are stored: True for the log with
        group commit, False for the log with asynchronous flush, None if no section is stored yet.
        """
        self.filter: GroupFilter | None = None
        """The group's filter on the topic, or None if no member has set it yet."""
        self.is_filter_written = False
        self.is_watching = False
        """Whether this queue is notified of newly visible messages of the partition."""
        self._members: dict[str, float] = {}  # when each member asked last, by the reactor's clock
        self._asked_at = -tuning.SHARED_MEMBER_SECONDS
        self.damaged_bytes = 0
        """The number of the partition's bytes that this object has skipped because they are damaged.
        """
        self.failure: MetaqError | None = None
        """Why the last attempt to read ahead in the partition has failed, or None if it has not."""
        self._reading = reading
        self._reactor = reactor
        self._on_more = on_more
        self._on_skipped = on_skipped
        self._memory = memory
        self._address = address
        self._counted = 0
        self._tag_hashes: npt.NDArray[np.uint32] | None = None  # None: all
        self._filter_is_new = False  # waiting messages were chosen by the old filter
        self._looking = False
        self._epoch = 0  # grows with each new filter; results of an earlier epoch are dropped

    # --- what is asked ------------------------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        """The number of messages in the partition that the group has not finished (acknowledged or skipped), including
        leased ones.
        """
        if self.log is None:
            return 0
        return max(0, self.log.lookup.messages_behind(self.state.low) - self.state.done_above)

    def take_filter(self, found: GroupFilter, tag_hashes: npt.NDArray[np.uint32] | None) -> None:
        """Use `found` as the group's filter from now on. The caller has checked it. tag_hashes: the hashes of the
        filter's tags; None means that all tags are wanted.
        """
        self.filter = found
        self._tag_hashes = tag_hashes
        self.is_filter_written = False
        self._filter_is_new = True
        self._epoch += 1

    def use_filter(self) -> None:
        """If the filter has changed since the last call, drop the messages that were read ahead and wait to be leased.
        The queue then reads ahead again from the group's first unfinished message, with the new filter. To be called
        before messages are leased.
        """
        if self._filter_is_new:
            self._filter_is_new = False
            self.state.look_again(ordered=self.filter is not None and self.filter.ordered)

    def seen(self, member: str) -> None:
        """Remember the present time as the time when this member asked for messages last."""
        self._asked_at = self._members[member] = self._reactor.seconds()
        if len(self._members) > tuning.SHARED_MEMBERS:
            self._members = self.members

    @property
    def members(self) -> dict[str, float]:
        """A dict from each member that has asked for messages in the last SHARED_MEMBER_SECONDS to the time of its last
        request, in seconds of the reactor's clock. The dict has at most SHARED_MEMBERS / 2 members: those that asked
        last.
        """
        since = self._reactor.seconds() - tuning.SHARED_MEMBER_SECONDS
        found = sorted(self._members.items(), key=lambda item: item[1])[-tuning.SHARED_MEMBERS // 2 :]
        return {name: at for name, at in found if at >= since}

    @property
    def is_asked(self) -> bool:
        """Whether any member has asked for messages in the last SHARED_MEMBER_SECONDS."""
        return self._reactor.seconds() - self._asked_at < tuning.SHARED_MEMBER_SECONDS

    @property
    def _where(self) -> str:
        """The group's filter by content, or "" if there is none."""
        return "" if self.filter is None else self.filter.where

    # --- memory -------------------------------------------------------------------------------------------------------

    def count(self) -> None:
        """Measure the memory that the state uses now, and count it as used by this queue's client address. To be called
        after each change of the state.
        """
        known = self.state.known_bytes
        self._memory.add(self._address, known - self._counted)
        self._counted = known
        self.state.scarce = self._memory.room(self._address) <= 0

    def drop(self) -> None:
        """No longer count this queue's memory as used by its address. To be called when the queue is no longer used."""
        self._memory.add(self._address, -self._counted)
        self._counted = 0

    # --- looking ahead ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Read ahead in the partition: read the next slice now, and further slices in later iterations of the
        reactor.
        """
        if self._looking:
            return
        self.use_filter()
        self._looking = True
        self.failure = None
        self._look(self._epoch)

    def _look(self, epoch: int) -> None:
        """Read one slice ahead. If there is more to read, schedule the next call. If data must be loaded from the disk
        first, the next call is made when they are loaded. epoch: the value of `_epoch` when reading ahead began; if the
        filter has changed since, begin reading ahead again.
        """
        log, state = self.log, self.state
        if log is None or epoch != self._epoch:
            self._looking = False
            if log is not None:
                self.look()
            return
        before = state.available
        try:
            state.cut(log.first_offset)
            if state.scanned >= log.visible_end or not state.wants_more:
                self._looking = False
                return
            with self._reading.cold_reads.cached_only:
                waiting = self._look_at_slice(log, epoch)
        except NotCached as missing:
            waiting = self._reading.cold_reads.run(self.key.group, missing.load)
        except OffsetOutOfRange:  # retention has removed the data meanwhile
            waiting = None
        except Exception as error:
            self._read_failed(error, epoch)
            return
        self.count()
        if state.available > before:
            self._on_more(self)
        if waiting is None:
            self._reactor.callLater(0, self._look, epoch)
        else:
            waiting.addCallbacks(lambda _: self._look(epoch), lambda failure: self._read_failed(failure.value, epoch))

    def _read_failed(self, error: BaseException, epoch: int) -> None:
        if isinstance(error, OffsetOutOfRange):
            self._look(epoch)
        elif isinstance(error, MetaqError):
            self._failed(error)
        else:
            _log.error("group %s cannot look ahead in %s-%d", *self.key, exc_info=error)
            self._looking = False

    def _failed(self, error: MetaqError) -> None:
        """Record that reading ahead has failed, and let `on_more` wake the waiting members, so that they get the error.
        When a member asks for messages next, the queue tries again to read ahead.
        """
        self._looking = False
        self.failure = error
        _log.warning("group %s cannot look ahead in %s-%d: %s", *self.key, error)
        self._on_more(self)

    def _look_at_slice(self, log: PartitionLog, epoch: int) -> Deferred[None] | None:
        """Read one slice ahead. Return None if the next slice can be read at once; else return a Deferred that fires
        when the caller can call again.
        """
        state = self.state
        start = state.scanned
        known = log.segments.damage.at(start) if len(log.segments.damage) else None
        if known is not None:
            self._skip(known.start, known.end)
            return None
        most, most_bytes = tuning.SHARED_SCAN_RECORDS, tuning.SHARED_SCAN_BYTES
        if state.ordered:
            most = tuning.SHARED_SCAN_ORDERED
        if state.scarce:
            most = min(most, tuning.SHARED_SCARCE)
        if where := self._where:
            if (turn := self._reading.where_time.turn()) is not None:
                return turn
            judged, size = slice_of(parse_where(where))
            most = min(most, judged)
            most_bytes = min(most_bytes, size)
        units = log.lookup.units(start, most_bytes, most)
        if len(units) and len(log.segments.damage):
            units = log.segments.damage.in_front(units)
        if not len(units) or int(units[0]["offset"]) != start:
            found = self._reading.examinations.examine(log, self.key.group, start)
            return found.addCallback(partial(self._examined, epoch))
        end = int(units[-1]["offset"]) + int(units[-1]["size"])
        data = log.segments.read(start, end - start)
        if data is None:
            read = partial(log.segments.snapshot().read, start, end - start)
            cold = self._reading.cold_reads.run(self.key.group, read)
            return cold.addCallback(lambda found: self._take(units, start, end, found, epoch))
        self._take(units, start, end, data, epoch)
        return None

    def _skip(self, start: int, end: int) -> None:
        """Skip damaged bytes, which contain no record."""
        state = self.state
        start = max(start, state.scanned)
        state.skip(start, end)
        state.scanned = end
        self.damaged_bytes += end - start
        self._on_skipped(self, [(start, end, 0)])

    def _examined(self, epoch: int, place: Soundness | BaseException) -> None:
        if isinstance(place, BaseException):
            raise place
        if epoch != self._epoch:
            return
        state, (first, second) = self.state, place
        if isinstance(place, Damaged):
            self._skip(first, second)
        elif first == state.scanned:  # a record too large for its index, or without one
            log = self.log
            assert log is not None
            data = log.segments.read(first, HEADER_BYTES + 65_536)
            if data is None:
                data = log.segments.snapshot().read(first, HEADER_BYTES + 65_536)
            units = np.zeros(1, [("offset", np.int64), ("size", np.int32)])
            units["offset"], units["size"] = first, second
            self._take(units, first, first + second, data, epoch)
        else:  # the group's first offset is inside a record
            state.skip(state.scanned, first)
            state.scanned = first

    def _take(self, units: UnitArray, start: int, end: int, data: Buffer, epoch: int) -> None:
        state = self.state
        if epoch != self._epoch or state.scanned != start:
            return
        if self._where or self._tag_hashes is not None:
            units = self._leave_out(units, start, data)
        offsets = units["offset"].astype(np.int64)
        sizes = units["size"].astype(np.int32)
        flags = headers_at(data, offsets - start)["flag"]
        urgent = flags & PRIORITY_MASK
        priorities = None
        if urgent.any():
            priorities = np.minimum(urgent >> PRIORITY_SHIFT, MAX_PRIORITY).astype(np.uint8)
        keys = _keys(data, offsets - start, sizes, flags) if state.ordered else None
        state.look(end, offsets, sizes, priorities, keys)

    def _leave_out(self, units: UnitArray, start: int, data: Buffer) -> UnitArray:
        """Return the index units of those records that the group's filter accepts, and mark the others as skipped.
        Records before the offset `state.known_end` are accepted without a check, because they may have been leased
        under an earlier filter. The members apply their filter to such records themselves. start: the offset of the
        first byte of `data`.
        """
        offsets, sizes = units["offset"].astype(np.int64), units["size"].astype(np.int64)
        wanted = offsets < self.state.known_end
        rest = np.flatnonzero(~wanted)
        if self._tag_hashes is not None and "tag" in (units.dtype.names or ()):  # otherwise the units have no tags
            rest = rest[np.isin(units["tag"][rest], self._tag_hashes)]
        if self._where and len(rest):
            time = self._reading.where_time
            deadline = time.deadline()
            rest = rest[wanted_of(parse_where(self._where), data, offsets[rest] - start, sizes[rest])]
            time.used_until(deadline)
        wanted[rest] = True
        left_out = np.flatnonzero(~wanted)
        if not len(left_out):
            return units
        ends = offsets + sizes
        firsts = np.flatnonzero(offsets[left_out[1:]] != ends[left_out[:-1]]) + 1
        ranges = []
        for run in np.split(left_out, firsts):
            first, end, records = int(offsets[run[0]]), int(ends[run[-1]]), len(run)
            self.state.skip(first, end, records)
            ranges.append((first, end, records))
        self._on_skipped(self, ranges)
        return units[wanted]

    # --- what was leased ----------------------------------------------------------------------------------------------

    def read(self, grants: Sequence[Grant]) -> Handed | Deferred[Handed]:
        """Read these leased records from the partition. If they are in the page cache, return them at once, else return
        a Deferred that fires with them. Raises StoreError, or the Deferred fails with StoreError.
        """
        log = self.log
        assert log is not None
        spans = _spans(grants)
        parts: list[Buffer] = []
        for span in spans:
            part = log.segments.read(span.start, span.end - span.start)
            if part is None or len(part) != span.end - span.start:
                snapshot = log.segments.snapshot()
                return self._reading.cold_reads.run(self.key.group, partial(_read_cold, snapshot, spans))
            parts.append(part)
        return _checked(spans, parts)

    def examine(self, offset: int) -> Deferred[Soundness | BaseException]:
        """Find out whether the partition is really damaged at the offset of a leased record whose checksum was wrong.
        The Deferred never fails: an error is passed as its result.
        """
        log = self.log
        assert log is not None
        return self._reading.examinations.examine(log, self.key.group, offset)


def _keys(data: Buffer, starts: UnitArray, sizes: UnitArray, flags: UnitArray) -> list[int]:
    """Return the hash of each record's first key; NO_KEY for a record without a key."""
    keys = []
    both = ATTRIBUTE_FLAG | PROPERTIES_FLAG
    view = memoryview(data)
    for start, size, flag in zip(starts.tolist(), sizes.tolist(), flags.tolist(), strict=True):
        key = NO_KEY
        if flag & both == both:
            attribute = attribute_of(view[start + HEADER_BYTES : start + size], flag)
            found = chain.from_iterable(keys_of_attribute(attribute)) if attribute is not None else iter(())
            if (first := next(found, None)) is not None:
                key = key_hash(first)
        keys.append(key)
    return keys


def _spans(grants: Sequence[Grant]) -> list[_Span]:
    """Combine leased records that directly follow each other in the partition into spans, so that each span is read at
    once.
    """
    spans: list[_Span] = []
    first, end = 0, grants[0].offset
    start = end
    for number, (offset, size, _, _) in enumerate(grants):
        if offset != end or offset - start >= tuning.SPAN_BYTES:
            spans.append(_Span(start, end, list(grants[first:number])))
            first, start = number, offset
        end = offset + size
    spans.append(_Span(start, end, list(grants[first:])))
    return spans


def _read_cold(log: Snapshot, spans: Sequence[_Span]) -> Handed:
    """Read the records from the disk, in a worker thread. Each span is within one segment."""
    parts: list[Buffer] = []
    for span in spans:
        data = b""
        while len(data) < span.end - span.start:
            more = log.read(span.start + len(data), span.end - span.start - len(data))
            if not more:
                break
            data += more
        parts.append(data)
    return _checked(spans, parts)


def _checked(spans: Sequence[_Span], parts: Sequence[Buffer]) -> Handed:
    """Check the checksum of each record in the spans, and return the records as a Handed, which lists good and damaged
    ones separately. parts: the bytes of each span.
    """
    good: list[Grant] = []
    good_parts: list[Buffer] = []
    damaged: list[Grant] = []
    for span, part in zip(spans, parts, strict=True):
        view = memoryview(part)
        bad = [grant for grant in span.grants if not _is_good(view, grant.offset - span.start, grant.size)]
        if not bad:
            good += span.grants
            good_parts.append(part)
            continue
        damaged += bad
        for grant in span.grants:
            if grant not in bad:
                good.append(grant)
                good_parts.append(view[grant.offset - span.start : grant.offset - span.start + grant.size])
    return Handed(good, good_parts, damaged)


def _is_good(data: memoryview, start: int, size: int) -> bool:
    if start + size > len(data):
        return False
    length, expected, _, _ = HEADER.unpack_from(data, start)
    return bool(length == size - HEADER_BYTES) and checksum(data[start + HEADER_BYTES : start + size]) == expected
