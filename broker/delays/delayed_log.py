"""The state of one internal log of delayed messages: which messages wait, and which were delivered or cancelled. Used
only on the reactor thread.

A DelayedLog gets its information from the log's index units and marks (memory/delayed_records.py). A follower of a
broker set reads each record that is added to the log. A leader appends the records itself, so it need not read them.
The mark of a delivery is written before the message is appended to its partition. So the mark alone does not prove the
delivery: if the message is not in the partition, the mark is ignored. When a node becomes the leader, it checks for
each mark whether the messages are in their partitions (in `lead`). Until this check, messages that a mark names stay in
the table of waiting messages.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from metaq.protocol.errors import StoreError
from metaq.protocol.limits import MAX_FRAME_BYTES
from metaq.protocol.record import HEADER, HEADER_BYTES, Buffer

from .. import tuning
from ..memory.delayed_records import (
    FRONT_BYTES,
    MARKS,
    DelayTarget,
    Group,
    Ids,
    MarkKind,
    Marks,
    Sizes,
    decode_marks,
    overhead,
    place_of,
)
from ..memory.reading import LogReader
from ..store.files import Files
from ..store.index import IndexDamaged, UnitArray
from ..store.partition_log import PartitionLog
from ..store.scan import walk
from ..store.segment import Segment
from ..store.segments import Snapshot
from .owners import Owners
from .waiting_table import NOWHERE, WaitingTable

__all__ = ["DelayedLog", "Late", "read_records"]

_log = logging.getLogger(__name__)

Find = Callable[[str, int], PartitionLog | None]
"""find(topic, partition) returns the partition's log like Store.find, or None if the log does not exist."""


class _Held(NamedTuple):
    """A delivery that has a mark in the internal log. It is not known yet whether the messages were also appended to
    their partition. mark: the byte offset of the mark in the internal log. group: the messages of the delivery.
    """

    mark: int
    group: Group


class _Unsettled(NamedTuple):
    """A delivery by this leader that a power failure may undo. mark: byte offset of the delivery's mark in the internal
    log. end: byte offset in the partition `target` where the messages end. least: the lowest byte offset in the
    internal log of a record of these messages. As long as the delivery may be undone, the log is needed from this
    offset on.
    """

    mark: int
    target: PartitionLog
    end: int
    least: int


class Late:
    """The due messages of one partition that refuses to store them. why: the reason for the refusal. retry_at: the time
    of the next attempt to deliver them, in monotonic seconds. pause: the seconds to wait after this attempt, if it
    fails, before another attempt.
    """

    def __init__(self, why: str, pause: float) -> None:
        self.table = WaitingTable()
        self.why = why
        self.pause = pause
        self.retry_at = 0.0


class DelayedLog(LogReader):
    """The state of one of the two internal logs of delayed messages. One log has the delayed messages for partitions
    with group commit, and the other log has those for partitions without group commit.
    """

    def __init__(self, log: PartitionLog, owners: Owners) -> None:
        """owners: counts how many bytes of these messages each user has sent."""
        super().__init__(log)
        self.owners = owners
        self.table = WaitingTable()
        self.late: dict[DelayTarget, Late] = {}
        self.counts: Counter[DelayTarget] = Counter()
        """How many messages wait for each partition, including the due messages that their partitions refused (those in
        `late`).
        """
        self.live_bytes = 0
        """The total size in bytes of the records of waiting messages."""
        self.cancelled: OrderedDict[int, DelayTarget] = OrderedDict()
        """The ids of the most recently cancelled messages, with their partitions. If a leader fails before it has
        answered a cancel request, the client repeats the request, and the next leader answers it from this table.
        """
        self.reading = False
        """Whether a worker thread is reading due messages now."""
        self.table_unsafe = False
        """Whether `table` contains due messages that must not be delivered yet, because their records in the internal
        log are not safe.
        """
        self._live: Counter[int] = Counter()  # number of waiting records, by the first offset of their segment
        self._places: dict[
            int, tuple[DelayTarget, bool]
        ] = {}  # by tag: the partition, and whether the records are rewritten ones
        self._held: list[_Held] = []
        self._unsettled: deque[_Unsettled] = deque()

    def __len__(self) -> int:
        """The number of waiting messages."""
        return sum(map(len, self.tables()))

    def tables(self) -> Iterator[WaitingTable]:
        """Yield all tables of waiting messages: first `table`, then the tables of the objects in `late`."""
        yield self.table
        for late in self.late.values():
            yield late.table

    # --- reading ------------------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        self.table.clear()
        self.late.clear()
        self.counts.clear()
        self._live.clear()
        self.cancelled.clear()
        self._held.clear()
        self._unsettled.clear()
        self.live_bytes = 0
        self.owners.clear()

    def _read(self, most: int | None) -> None:
        """Read the log from byte `_read_to` on, and update the tables accordingly. most: about how many records to
        read; None means all.
        """
        left = most
        for units in self._units():
            self._take(units)
            self._read_to = int(units["offset"][-1]) + int(units["size"][-1])
            if left is not None:
                left -= len(units)
                if left <= 0:
                    return
        if left is None:
            self._read_to = self.log.end_offset  # the log may end with damage

    def _units(self) -> Iterator[UnitArray]:
        for segment in list(self.log.segments):
            if segment.end > self._read_to:
                yield from self._units_of_segment(segment)

    def _units_of_segment(self, segment: Segment) -> Iterator[UnitArray]:
        index = segment.index
        if index is not None:
            try:
                number = index.starting_before(self._read_to)
                while number < len(index):
                    units = index.units(number, number + tuning.DELAYED_UNITS)
                    number += len(units)
                    yield units
                return
            except IndexDamaged as damage:
                _log.warning("%s: what waits is read from the records", damage)
        start = max(self._read_to, segment.first_offset) - segment.first_offset
        scans = self.snapshot().look(segment, partial(_scan, segment, start))
        for units in scans:
            yield units

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the internal log up to its end, including the records after the visible end."""
        return self.log.segments.snapshot()._replace(visible_end=self.log.end_offset)

    def _take(self, units: UnitArray) -> None:
        tags = units["tag"]
        marks = []
        for tag in np.unique(tags).tolist():
            chosen = tags == tag
            if tag in MARKS:
                marks += np.flatnonzero(chosen).tolist()
                continue
            if tag not in self._places:
                self._places[tag] = self._place_at(int(units["offset"][chosen.argmax()]))
            self._take_pending(*self._places[tag], units[chosen])
        for number in sorted(marks):
            offset, size = int(units["offset"][number]), int(units["size"][number])
            record = self.snapshot().read(offset, size)
            found = decode_marks(record)
            if found is None:  # a partition's name has the same hash as a mark
                self._take_pending(*place_of(record), units[number : number + 1])
            else:
                self._take_marks(offset, found)

    def _place_at(self, offset: int) -> tuple[DelayTarget, bool]:
        return place_of(self.snapshot().read(offset, FRONT_BYTES))

    def _take_pending(self, place: DelayTarget, anew: bool, units: UnitArray) -> None:
        ids, offsets = units["id"].astype(np.int64), units["offset"].astype(np.int64)
        sizes = units["size"].astype(np.int64) - anew  # the size of the original record
        if anew:
            before = self.table.move(ids, offsets)
            known = before != NOWHERE
            if known.any():
                self._tally(before[known], -1)
                self._tally(offsets[known], 1)
                ids, offsets, sizes = ids[~known], offsets[~known], sizes[~known]
        if len(ids):
            self._add(place, ids, offsets, int(sizes.sum()))

    def _take_marks(self, offset: int, marks: Marks) -> None:
        if marks.kind is MarkKind.DELIVERED:
            self._settle(marks.settled)
            self._held += [_Held(offset, group) for group in marks.groups]
        for group in marks.groups:
            if marks.kind is MarkKind.CANCELLED:
                self.cancel(group)
            elif marks.kind is MarkKind.RETURNED:
                self._held = [_Held(held.mark, _without(held.group, group.ids)) for held in self._held]

    def _settle(self, settled: int) -> None:
        done = [held.group for held in self._held if held.mark < settled]
        if done:
            self._held = [held for held in self._held if held.mark >= settled]
            for group in done:
                self.remove(group.place, group.ids, group.sizes)

    # --- leading ------------------------------------------------------------------------------------------------------

    def lead(self, find: Find) -> list[Group]:
        """Begin to lead: read the log to its end. For each delivery that has a mark, find out which of its messages are
        really in the partition. Return the messages that a mark names but that are not in their partition; these
        messages still wait. The caller must write marks that say that these messages were not delivered. Raises
        StoreError.
        """
        self.read_on()
        returned = []
        for mark, group in self._held:
            target = find(*group.place)
            there = _there(group, target)
            lost = ~there & (group.ids != NOWHERE)
            if lost.any():
                returned.append(Group(group.place, group.ids[lost], group.sizes[lost]))
            if there.any():
                offsets = self.remove(group.place, group.ids[there], group.sizes[there])
                if target is not None:
                    end = group.base + int(group.sizes[there].sum())
                    self._unsettled.append(_Unsettled(mark, target, end, int(offsets.min(initial=mark))))
        self._held.clear()
        return returned

    def appended(self) -> None:
        """Take note that this leader has appended records to the log. `_read` will not read these records, because the
        leader knows their content.
        """
        self._read_to = self.log.end_offset

    def insert(self, place: DelayTarget, ids: Ids, offsets: Ids, size: int) -> None:
        """Add messages whose records this leader has appended. size: the total size of these records in bytes."""
        self._add(place, ids, offsets, size)
        self.appended()

    def delivered(self, group: Group, target: PartitionLog, mark: int) -> None:
        """Record that this leader has delivered a group of messages to `target`. mark: byte offset of the delivery's
        mark in the internal log.
        """
        offsets = self.remove(group.place, group.ids, group.sizes)
        self._unsettled.append(_Unsettled(mark, target, group.end, int(offsets.min(initial=mark))))

    def settled(self, *, copied: bool) -> int:
        """Find out which deliveries are certain, which means that no power failure can undo them. Return a byte offset
        of the internal log; all deliveries whose marks lie before this offset are certain. copied: if true, a delivery
        is certain only when also the in-sync nodes of the broker set have its messages, so that readers can see them.
        """
        unsettled = self._unsettled
        while unsettled:
            _, target, end, _ = unsettled[0]
            if target.synced_end < end or (copied and target.visible_end < end):
                return unsettled[0].mark
            unsettled.popleft()
        return self.log.end_offset

    @property
    def needed_from(self) -> int:
        """The byte offset before which the log is no longer needed: the start of the first segment that is needed. A
        segment is needed if it contains the record of a waiting message, or of a delivered message whose delivery a
        power failure may undo.
        """
        end, unsettled = (
            self.log.first_offset,
            min((each.least for each in self._unsettled), default=self.log.end_offset),
        )
        for segment in self.log.segments[:-1]:
            if self._live[segment.first_offset] or segment.end > unsettled:
                break
            end = segment.end
        return end

    def rewritten(self, ids: Ids, offsets: Ids) -> None:
        """Record that this leader has appended the records of these messages again, at the byte offsets `offsets` of
        the internal log. Messages that no longer wait are ignored.
        """
        for table in self.tables():
            before = table.move(ids, offsets)
            known = before != NOWHERE
            self._tally(before[known], -1)
            self._tally(offsets[known], 1)

    def set_late(self, place: DelayTarget, ids: Ids, why: str, pause: float) -> Late:
        """Move these due messages from `table` into `late`, because their partition refuses them now."""
        late = self.late.get(place)
        if late is None:
            late = self.late[place] = Late(why, pause)
        offsets = self.table.remove(ids)
        known = offsets != NOWHERE
        late.table.insert(ids[known], offsets[known])
        return late

    # --- both ---------------------------------------------------------------------------------------------------------

    def find(self, ids: Ids) -> Ids:
        """Return the byte offsets of these messages' records, with NOWHERE for messages that do not wait."""
        found = self.table.find(ids)
        for table in islice(self.tables(), 1, None):
            found = np.maximum(found, table.find(ids))
        return found

    def remove(self, place: DelayTarget, ids: Ids, sizes: Sizes) -> Ids:
        """Remove messages that no longer wait. Ids of messages that do not wait are ignored. Return the byte offsets of
        the removed messages' records in the internal log. sizes: the sizes that the messages' records have in the
        partition.
        """
        found = self.table.remove(ids)
        if np.count_nonzero(found == NOWHERE):
            for table in islice(self.tables(), 1, None):
                found = np.maximum(found, table.remove(ids))
        known = found != NOWHERE
        count = int(np.count_nonzero(known))
        if self.counts[place] <= count:
            del self.counts[place]
        else:
            self.counts[place] -= count
        self.live_bytes -= int(sizes[known].sum()) + count * overhead(place)
        offsets: Ids = found[known]
        self._tally(offsets, -1)
        self.owners.went(ids)
        return offsets

    def cancel(self, group: Group) -> None:
        """Remove the messages of `group`, because a mark says that they are cancelled."""
        self.remove(group.place, group.ids, group.sizes)
        self.cancelled.update(dict.fromkeys(group.ids.tolist(), group.place))
        while len(self.cancelled) > tuning.DELAYED_CANCELLED:
            self.cancelled.popitem(last=False)

    def _add(self, place: DelayTarget, ids: Ids, offsets: Ids, size: int) -> None:
        self.table.insert(ids, offsets)
        self.counts[place] += len(ids)
        self.live_bytes += size
        self._tally(offsets, 1)

    def _tally(self, offsets: Ids, sign: int) -> None:
        if not len(offsets):
            return
        segments = self.log.segments
        least = most = int(offsets[0])
        if len(offsets) > 1:
            least, most = int(offsets.min()), int(offsets.max())
        if least < segments.first_offset:  # a follower's segment may be removed before later segments are read
            self._tally(offsets[offsets >= segments.first_offset], sign)
            return
        first, last = segments.number_at(least), segments.number_at(most)
        if first == last:
            self._live[segments[first].first_offset] += sign * len(offsets)
            return
        starts = [each.first_offset for each in segments[first : last + 1]]
        counts = np.bincount(np.searchsorted(starts, offsets, "right") - 1, minlength=len(starts)).tolist()
        for start, count in zip(starts, counts, strict=True):
            if count:
                self._live[start] += sign * count


def _without(group: Group, ids: Ids) -> Group:
    """Return a copy of the group in which each of these ids is replaced by NOWHERE, which is not a valid id. The sizes
    of the replaced messages stay in the copy, because the offsets of the messages after them in the partition are
    computed from these sizes.
    """
    chosen = np.isin(group.ids, ids)
    return group if not chosen.any() else group._replace(ids=np.where(chosen, NOWHERE, group.ids))


def _there(group: Group, target: PartitionLog | None) -> npt.NDArray[np.bool_]:
    """Return for each of the group's messages whether it is in the partition. The result is also True in three cases in
    which this is unknown: retention has removed the message, an operator has removed the partition, or the partition
    cannot be read. In these cases the message is taken as delivered, so that it is not delivered twice.
    """
    everything = np.ones(len(group.ids), np.bool_)
    if target is None or group.base < target.first_offset:
        return everything
    there: npt.NDArray[np.bool_] = group.base + group.sizes.cumsum() <= target.end_offset
    if not there.any():
        return there
    try:
        snapshot = target.segments.snapshot()._replace(visible_end=target.end_offset)
        header = snapshot.read(group.base, HEADER_BYTES)
    except StoreError as error:
        _log.error("cannot find out whether delayed messages are in %s: %s", target.directory, error)
        return everything
    return there if HEADER.unpack(header)[2] == group.first_id else ~everything


def _scan(segment: Segment, start: int, files: Files, fd: int) -> list[UnitArray]:
    """Read the records of a segment that has no usable index, and return the index units that the index should have for
    these records.
    """
    found = []
    for scan in walk(files, fd, start, segment.size, segment.first_offset):
        if len(scan.units):
            found.append(scan.units)
        else:
            _log.error("%s: records of delayed messages are damaged, up to byte %d", segment.path, scan.end)
    return found


# --- records ----------------------------------------------------------------------------------------------------------

ReadBytes = Callable[[int, int], Buffer | None]
"""read(offset, most) returns at most `most` bytes of a log from byte `offset` on. Some such functions return None if
the read would have to wait for the disk.
"""

_SPAN_BYTES = 64 << 10
_FIRST_BYTES = 4096


def read_records(read: ReadBytes, offsets: Ids, most_bytes: int) -> list[bytes] | None:
    """Return the whole records at these offsets, in the order of the argument `offsets`. If all records together have
    more than `most_bytes`, return only the first records that fit into `most_bytes`, but at least one record.

    Records that lie near each other are read together. The result is None if `read` returns None. Errors of `read` are
    passed on.
    """
    order = offsets.argsort(kind="stable").tolist()
    starts = offsets.tolist()
    found: list[bytes] = [b""] * len(starts)
    sizes = [0] * len(starts)
    data: Buffer = b""
    base = 0
    for number, which in enumerate(order):
        start = starts[which]
        if start + HEADER_BYTES > base + len(data):
            span = number
            while span + 1 < len(order) and starts[order[span + 1]] - start < _SPAN_BYTES:
                span += 1
            got = read(start, starts[order[span]] - start + _FIRST_BYTES)
            if got is None:
                return None
            data, base = got, start
        place = start - base
        length: int = HEADER.unpack_from(data, place)[0]
        sizes[which] = size = HEADER_BYTES + (
            length if 0 <= length <= MAX_FRAME_BYTES else 0
        )  # otherwise it is damaged
        found[which] = bytes(data[place : place + size])
    total = 0
    for which, size in enumerate(sizes):
        total += size
        if total > most_bytes and which:
            return found[:which]
        if len(found[which]) < size:
            got = read(starts[which], size)
            if got is None:
                return None
            found[which] = bytes(got)
    return found
