"""Delayed messages. The broker stores them in an internal log, and delivers them to their partitions when they are due.

The wall clock decides when a message is due. Timers use the monotonic clock. So that a change of the wall clock is
noticed, a timer runs at most a second; then the wall clock is read again. If somebody sets the wall clock forward,
messages that are due by the new time are delivered at once. If somebody sets it back, messages are delivered later than
they would have been.

A delivery first appends one record, the mark, to the internal log. Then the delivery appends the messages to their
partitions. Both appends happen in one iteration of the reactor, so no request is served between them. After a crash, a
mark is ignored for messages that are not in their partition (delayed_log.py). So no message is lost or delivered twice
if the broker crashes between the two appends, or if a new leader lacks the mark or the messages.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from twisted.internet.defer import Deferred, ensureDeferred

from metaq.protocol.access import Quota
from metaq.protocol.delays import (
    COUNTER_MASK,
    CancelDelayedReply,
    CancelDelayedRequest,
    Cancelled,
    due_ms,
    due_of,
    pending_id,
    pending_ids_of,
)
from metaq.protocol.errors import MetaqError
from metaq.protocol.message_id import message_id_list, store_times_ms
from metaq.protocol.record import DELAYED_FLAG, HEADER_BYTES, Buffer

from .. import tuning
from ..memory.delayed_records import (
    DelayTarget,
    Group,
    Ids,
    MarkKind,
    Marks,
    Pending,
    Sizes,
    check_record,
    decode_pending,
    encode_marks,
    encode_pending,
    place_tag,
)
from ..memory.figures import Lines, Metrics, counter, gauge, gauges
from ..memory.memory import Memory
from ..memory.topics import DELAYED_TOPIC
from ..runtime.account import Account
from ..runtime.reactor import ReactorTime, Timer
from ..store.batch import encode_many_puts, packed_units
from ..store.partition_log import PartitionLog
from ..store.store import Append, Store
from ..store.tuning import FEW_PUTS
from .cleaning import write_oldest_anew
from .delayed_log import DelayedLog, Late, read_records
from .deliverer import Delayed, Deliverer, DueWrite
from .owners import Owners
from .waiting_table import NOWHERE

__all__ = ["DelayedDelivery", "Delays", "Pended"]

_log = logging.getLogger(__name__)


class Pended(NamedTuple):
    """The records of delayed messages for one partition. `Delays.pend` has made these records. The caller must append
    them to the internal log `log`, and then call `Delays.noted`.
    """

    owner: Delays
    log: DelayedLog
    place: DelayTarget
    ids: Sequence[int]
    sizes: Sequence[int]
    buffers: Sequence[Buffer]
    size: int
    """The total size of the records in bytes."""
    now_ms: int

    def units(self, offset: int) -> bytes:
        """Return the index units that the records have when the first of them is appended at byte `offset` of the
        internal log.
        """
        return packed_units(offset, self.ids, self.sizes, place_tag(self.place), self.now_ms)


class DelayedDelivery(NamedTuple):
    """The messages that one delivery appends to one partition. wanted: when each message was due, in Unix ms."""

    group: Group
    write: DueWrite
    wanted: Ids


class Delays(Memory[DelayedLog]):
    """The delayed messages of one broker. Used only on the reactor thread.

    Only the leader of a broker set delivers delayed messages; the other nodes only keep them.
    """

    topic = DELAYED_TOPIC
    name = "delayed messages"
    item = "delayed"
    ending = "to be delivered or cancelled"
    """What the messages of this memory wait for, in words for an operator. `left_behind` puts these words into a text
    that tells an operator why a partition with waiting messages cannot be moved to another broker yet.
    """
    check_record = staticmethod(check_record)
    followed = tuning.DELAYED_FOLLOWED_UNITS
    quota = Quota.DELAYED_BYTES
    """The quota that limits how many bytes of these messages a user may have waiting."""

    def __init__(
        self,
        store: Store,
        make_write: Callable[[PartitionLog, Sequence[Buffer], Buffer], DueWrite],
        clock: Callable[[], float],
        reactor: ReactorTime,
        in_thread: Callable[[Callable[[], Any]], Deferred[Any]],
        account: Account,
    ) -> None:
        """store: an open store. make_write(log, buffers, units): returns a DueWrite, which appends these records and
        their index units to the log. clock: returns seconds since 1970.
        """
        super().__init__(store, clock, reactor)
        self.writing: Deliverer
        """The object that appends messages. This attribute must be set before the first request."""
        self.delivered = 0
        """Number of messages delivered since the broker's start."""
        self.damaged = 0
        """Number of messages since the broker's start that could not be read when they were due."""
        self._account = account
        self._make_write = make_write
        self.in_thread = in_thread
        self.reactor = reactor
        self.seconds = reactor.seconds
        self.call_later = reactor.callLater
        self._counter = 0
        self._crowded = False  # whether a new id may be in use already
        self._timer: Timer | None = None
        self._wakes_at = _NEVER
        self._retry_at = 0.0  # when to deliver again after an error
        self._lateness: deque[int] = deque(maxlen=tuning.DELAYED_LATENESS)
        self._returned: dict[PartitionLog, list[Group]] = {}
        self._last_settled: dict[PartitionLog, int] = {}

    @property
    def turn_records(self) -> int:
        """The greatest number of due messages that are handled in one turn, before the reactor does other work."""
        return tuning.DELAYED_TURN_RECORDS

    # --- messages come ------------------------------------------------------------------------------------------------

    def due(self, flag: int, body: Buffer) -> int:
        """Return the time (Unix ms) when a delayed message that arrives now will be due. Raises RemoteProtocolError if
        `body` does not name a valid time.
        """
        return self._due(flag, body, self.now_ms())

    def _due(self, flag: int, body: Buffer, now_ms: int) -> int:
        return due_of(flag, body, now_ms)

    def check(self, target: PartitionLog, size: int) -> None:
        """Raise DiskFull or StoreError if no delayed message for this partition can be stored now. Raise AccountSpent
        or QuotaExceeded if too many messages wait already. size: the bytes of the message.
        """
        self._check_room(1, size)
        self._contents(target.has_group_commit)

    def _check_room(self, count: int, size: int) -> None:
        """Raise QuotaExceeded if `size` additional bytes of messages would be too many for the user who sends them. A
        subclass can override this method to raise AccountSpent if `count` additional messages would be too many.
        """
        self._account.users.check(self._account.asker_user, self.quota, size)

    def pend(
        self,
        target: PartitionLog,
        dues: Sequence[int],
        flags: Sequence[int],
        checksums: Sequence[int],
        bodies: Sequence[Buffer],
        taken: Sequence[int],
    ) -> Pended:
        """Make the records of delayed messages for the partition `target`. The caller must have called `check` for this
        partition. For each message, `dues` has the result of the method `due`, and `taken` has the message id that the
        message would get if it were stored now without delay.
        """
        work = self._pend(target, dues, (flags, checksums, bodies, taken))
        while True:
            try:
                next(work)
            except StopIteration as done:
                pended: Pended = done.value
                return pended

    def pend_in_slices(
        self,
        target: PartitionLog,
        flags: Sequence[int],
        checksums: Sequence[int],
        bodies: Sequence[Buffer],
        taken: Sequence[int],
    ) -> Generator[None, None, Pended]:
        """Make the records of delayed messages like `pend`, but yield between slices of the work. This method also
        makes the checks of the methods `due` and `check`, except for the size, and raises their errors.
        """
        self._check_room(len(bodies), 0)
        now_ms = self.now_ms()
        dues: list[int] = []
        for start in range(0, len(bodies), tuning.DELAYED_SLICE_RECORDS):
            if start:
                yield
            chosen = slice(start, start + tuning.DELAYED_SLICE_RECORDS)
            looked_at = 0
            for flag, body in zip(flags[chosen], bodies[chosen], strict=True):
                if looked_at > tuning.DELAYED_SLICE_BYTES:
                    yield
                    looked_at = 0
                dues.append(self._due(flag, body, now_ms))
                looked_at += len(body)
        return (yield from self._pend(target, dues, (flags, checksums, bodies, taken)))

    def _pend(
        self,
        target: PartitionLog,
        dues: Sequence[int],
        columns: tuple[Sequence[int], Sequence[int], Sequence[Buffer], Sequence[int]],
    ) -> Generator[None, None, Pended]:
        contents = self._contents(target.has_group_commit)
        ids = yield from self._ids(dues)
        place = target.topic, target.partition
        flags, checksums, bodies, taken = columns
        if len(dues) <= FEW_PUTS:  # in tuples: a frame may have many parts, and the garbage collector tracks lists
            few, widths = encode_pending(place, flags, checksums, bodies, taken, ids)
            size = sum(widths)
            data = (b"".join(few),) if size <= tuning.DELAYED_JOINED_BYTES else tuple(few)
            return Pended(self, contents, place, tuple(ids), tuple(widths), data, size, self.now_ms())
        buffers: list[Buffer] = []
        sizes = array("q")
        for start in range(0, len(dues), tuning.DELAYED_SLICE_RECORDS):
            if start:
                yield
            chosen = slice(start, start + tuning.DELAYED_SLICE_RECORDS)
            more, widths = encode_pending(
                place, flags[chosen], checksums[chosen], bodies[chosen], taken[chosen], ids[chosen]
            )
            buffers.append(b"".join(more))
            sizes.extend(widths)
        return Pended(self, contents, place, ids, sizes, buffers, sum(map(len, buffers)), self.now_ms())

    def _contents(self, group_commit: bool) -> DelayedLog:
        """Return the state of one of the two internal logs: of the log for partitions with group commit if
        `group_commit` is true, otherwise of the log for the other partitions. Raises DiskFull if the disk of this log
        is full, and StoreError.
        """
        log = self.store.internal_log(self.topic, group_commit)
        if self.store.space.full:
            self.store.space.check(log.directory, journaled=group_commit)
        return self._of(log)

    def _reader(self, log: PartitionLog) -> DelayedLog:
        return DelayedLog(log, Owners(self._account.users, self.quota))

    def _ids(self, dues: Sequence[int]) -> Generator[None, None, Sequence[int]]:
        counter = self._counter
        self._counter += len(dues)
        self._crowded = self._crowded or self._counter > COUNTER_MASK
        later = 0
        while True:
            ids = pending_ids_of(dues, counter, later)
            if not (self._crowded and (yield from self._any_waits(np.array(ids, np.int64)))):
                return ids
            later += 1  # all four million ids of this millisecond are in use

    def _any_waits(self, ids: Ids) -> Generator[None, None, bool]:
        for start in range(0, len(ids), tuning.DELAYED_SLICE_RECORDS):
            if start:
                yield
            chosen = ids[start : start + tuning.DELAYED_SLICE_RECORDS]
            if any((each.find(chosen) != NOWHERE).any() for each in self._logs.values()):
                return True
        return False

    def noted(self, pended: Pended, base: int) -> None:
        """Record that these records were appended at byte `base` of the internal log, so that their messages are
        delivered when they are due.
        """
        ids, sizes = np.array(pended.ids, np.int64), np.array(pended.sizes, np.int64)
        pended.log.insert(pended.place, ids, base + sizes.cumsum() - sizes, pended.size)
        pended.log.owners.came(self._account.asker_user, ids, sizes)
        self._wake_by(due_ms(int(ids.min())))

    # --- time passes --------------------------------------------------------------------------------------------------

    def _wake_by(self, due: float) -> None:
        """Set the timer so that the broker next looks for due messages at the time `due` (Unix ms) or earlier."""
        if due < self._wakes_at and self.enabled:
            if self._timer is not None:
                self._timer.cancel()
            self._wakes_at = due
            self._timer = self.call_later(self._seconds_until(due), self._wake)

    def _seconds_until(self, due: float) -> float:
        """Return how many seconds to sleep until the time `due` (Unix ms). The result is 0 only if the wall clock has
        reached `due`. Before the wall clock has reached `due`, the result is at least DELAYED_LEAST_SECONDS, although
        inexact floats could give 0.
        """
        if due <= self.now_ms():
            return 0.0
        return min(tuning.DELAYED_SLEEP_SECONDS, max(tuning.DELAYED_LEAST_SECONDS, due / 1000 - self._clock()))

    def _wake(self) -> None:
        self._timer, self._wakes_at = None, _NEVER
        if not self.enabled:
            return
        try:
            self._turn()
        except Exception:
            _log.exception("delayed messages are not delivered now")
            self._retry_at = self.seconds() + tuning.DELAYED_RETRY_SECONDS[1]
        finally:
            self._sleep()

    def _turn(self) -> None:
        for contents in list(self._logs.values()):
            self._deliver_late(contents)
            self._deliver_due(contents)

    def _sleep(self) -> None:
        """Set the timer to the time when the next message will be due."""
        now_ms, seconds = self.now_ms(), self.seconds()
        wake_at = self._wanted_at(now_ms, seconds)
        if self._retry_at > seconds:
            wake_at = max(wake_at, now_ms + max(tuning.DELAYED_LEAST_SECONDS, self._retry_at - seconds) * 1000)
        self._wake_by(wake_at)

    def _wanted_at(self, now_ms: float, seconds: float) -> float:
        """Return the time (Unix ms) when the broker should next look for due messages. now_ms: the present time by the
        wall clock.
        seconds: the present time by the monotonic clock.
        """
        least = tuning.DELAYED_LEAST_SECONDS
        wake_at = _NEVER
        for contents in self._logs.values():
            if contents.reading:
                continue
            first = contents.table.first
            if first is not None:
                due: float = due_ms(first)
                if due <= now_ms and contents.table_unsafe:
                    due = now_ms + tuning.DELAYED_UNSAFE_SECONDS * 1000
                wake_at = min(wake_at, due)
            for late in contents.late.values():
                wake_at = min(wake_at, now_ms + max(least, late.retry_at - seconds) * 1000)
        return wake_at

    # --- delivering ---------------------------------------------------------------------------------------------------

    def _deliver_due(self, contents: DelayedLog) -> None:
        """Deliver due messages whose records are safe, but at most as many as one turn may deliver."""
        if contents.reading or self.seconds() < self._retry_at:
            return
        due_before = pending_id(self.now_ms() + 1, 0)
        ids, offsets = contents.table.until(due_before, self.turn_records)
        safe = offsets < contents.log.durability.safe_end
        contents.table_unsafe = not safe.all()
        if contents.table_unsafe:
            ids, offsets = ids[safe], offsets[safe]
        if len(ids):
            self._read(contents, ids, offsets)

    def _deliver_late(self, contents: DelayedLog) -> None:
        seconds = self.seconds()
        for place, late in list(contents.late.items()):
            if not len(late.table):
                del contents.late[place]
            elif late.retry_at <= seconds and not contents.reading and seconds >= self._retry_at:
                self._try(contents, place, late)
                if self.seconds() >= seconds + tuning.TURN_SECONDS:
                    break

    def _try(self, contents: DelayedLog, place: DelayTarget, late: Late) -> None:
        try:
            self.writing.log(*place, place[1])
        except MetaqError as error:
            self._pause(late, str(error))
            return
        late.pause = tuning.DELAYED_RETRY_SECONDS[0]
        self._read(contents, *late.table.until(_ALL, self.turn_records))

    def _pause(self, late: Late, why: str) -> None:
        late.why = why
        late.retry_at = self.seconds() + late.pause
        late.pause = min(late.pause * 2, tuning.DELAYED_RETRY_SECONDS[1])

    def _read(self, contents: DelayedLog, ids: Ids, offsets: Ids) -> None:
        """Read due messages from the internal log, and deliver them. If they are in the page cache, deliver them at
        once; otherwise deliver them after a worker thread has read them.
        """
        most = tuning.DELAYED_TURN_BYTES
        records = read_records(contents.log.segments.read, offsets, most)
        if records is not None:
            self._give(contents, ids, records)
            return
        contents.reading = True
        read = partial(read_records, contents.log.segments.snapshot().read, offsets, most)
        self.in_thread(read).addBoth(self._has_read, contents, contents.log.renewals, ids, offsets)

    def _has_read(self, result: Any, contents: DelayedLog, renewals: int, ids: Ids, offsets: Ids) -> None:
        contents.reading = False
        if not self.enabled or contents.log.renewals != renewals or self._logs.get(contents.log) is not contents:
            return
        try:
            if isinstance(result, list):
                ids, offsets = ids[: len(result)], offsets[: len(result)]
                waits = (contents.find(ids) == offsets).tolist()  # some may have been cancelled meanwhile
                records = [record for record, waiting in zip(result, waits, strict=True) if waiting]
                if records:
                    self._give(contents, ids[np.array(waits)], records)
            else:
                _log.error("delayed messages cannot be read, trying again: %s", result.value)
                self._retry_at = self.seconds() + tuning.DELAYED_RETRY_SECONDS[1]
        except Exception:
            _log.exception("delayed messages are not delivered now")
            self._retry_at = self.seconds() + tuning.DELAYED_RETRY_SECONDS[1]
        finally:
            self._sleep()

    def decoded(self, contents: DelayedLog, ids: Ids, records: Sequence[bytes]) -> list[Pending]:
        """Decode these records and return their messages. Messages whose record is damaged are cancelled and left out.
        ids: the expected message id of each record; additional ids at the end are ignored.
        """
        found, damaged = [], []
        for expected, record in zip(ids.tolist(), records, strict=False):
            pending = decode_pending(record)
            if pending is None or pending.id != expected:
                damaged.append(expected)
            else:
                found.append(pending)
        if damaged:
            self._drop_damaged(contents, damaged)
        return found

    def _give(self, contents: DelayedLog, ids: Ids, records: Sequence[bytes]) -> None:
        """Deliver the messages in these records: append a mark to the internal log, and then the messages to their
        partitions. ids: the message ids of the records, in the same order; there may be more ids than records, and the
        additional ids at the end are ignored.
        """
        groups: defaultdict[DelayTarget, list[Pending]] = defaultdict(list)
        for pending in self.decoded(contents, ids, records):
            groups[pending.place].append(pending)
        deliveries = []
        for place, messages in groups.items():
            late = contents.late.get(place)
            if late is not None and len(late.table) and late.retry_at > self.seconds():
                contents.set_late(place, _ids_of(messages), late.why, 0.0)
                continue
            try:
                deliveries.append(self._delivery(place, messages))
            except MetaqError as error:
                self._not_taken(contents, place, _ids_of(messages), error)
        if deliveries:
            self._append(contents, deliveries)

    def _delivery(self, place: DelayTarget, messages: Sequence[Pending]) -> DelayedDelivery:
        """Prepare the delivery of messages to one partition. Raises the error of a refused put if the partition takes
        no messages.
        """
        log = self.writing.log(*place, place[1])
        count = len(messages)
        first_id = self.writing.message_ids.next(count)
        puts = [(each.flag & ~DELAYED_FLAG, each.checksum, each.body) for each in messages]
        base = log.end_offset
        write = self._make_write(log, *encode_many_puts(puts, base, message_id_list(first_id, count)))
        ids, taken = _ids_of(messages), np.array([each.taken for each in messages], np.int64)
        sizes = _sizes_of(messages)
        wanted = np.maximum(store_times_ms(ids), store_times_ms(taken))
        return DelayedDelivery(Group(place, ids, sizes, base, first_id), write, wanted)

    def _append(self, contents: DelayedLog, deliveries: Sequence[DelayedDelivery]) -> None:
        mark, _ = self._append_marked(contents, deliveries)
        if mark.error is not None:
            _log.error("delayed messages are not delivered now: %s", mark.error)
            self._retry_at = self.seconds() + tuning.DELAYED_RETRY_SECONDS[1]
            return
        now_ms = self.now_ms()
        for each in deliveries:
            if each.write.error is not None:
                self._not_taken(contents, each.group.place, each.group.ids, each.write.error)
                continue
            self._lateness.extend((now_ms - each.wanted).tolist())

    def _append_marked(
        self, contents: DelayedLog, deliveries: Sequence[DelayedDelivery]
    ) -> tuple[DueWrite, list[DueWrite]]:
        """Append a mark to the internal log, and after it the deliveries to their partitions. Return the DueWrite of
        the mark, and all DueWrites (of the mark and the messages) whose records are not safe yet.

        If the mark cannot be appended, no message is appended. If a partition refuses its messages, the DueWrite of
        this delivery has the error, and the messages wait as before.
        """
        log = contents.log
        mark_at = log.end_offset
        marks = Marks(MarkKind.DELIVERED, self._settled(contents), [each.group for each in deliveries])
        mark = self._mark_write(log, marks)
        mark.delayed = Delayed(deliveries[0].write.log)

        def writes() -> Iterator[DueWrite]:
            yield mark
            if mark.error is None:
                for each in deliveries:
                    yield each.write

        waiting = self.writing.append(writes())
        if mark.error is not None:
            return mark, []
        contents.appended()
        self._last_settled[log] = marks.settled
        for each in deliveries:
            if each.write.error is not None:
                self._returned.setdefault(log, []).append(Group(each.group.place, each.group.ids, each.group.sizes))
                continue
            contents.delivered(each.group, each.write.log, mark_at)
            self.delivered += len(each.group.ids)
        if self._returned:
            self._tell_returned()
        return mark, waiting

    def _not_taken(self, contents: DelayedLog, place: DelayTarget, ids: Ids, error: MetaqError) -> None:
        late = contents.late.get(place)
        if late is None:
            _log.warning("delayed messages of %s-%d wait: %s", *place, error)
        late = contents.set_late(place, ids, str(error), tuning.DELAYED_RETRY_SECONDS[0])
        self._pause(late, str(error))

    def _drop_damaged(self, contents: DelayedLog, ids: Sequence[int]) -> None:
        """Cancel damaged messages permanently, by a mark in the internal log. The mark names no partition, because the
        partition's name is in the records, which cannot be read.
        """
        _log.error(
            "%s: %d delayed messages that are due are damaged, the first one has the id %d",
            contents.log.directory,
            len(ids),
            ids[0],
        )
        self.damaged += len(ids)
        group = Group(("", 0), np.array(ids, np.int64), np.zeros(len(ids), np.int64))
        if self._append_marks(contents, Marks(MarkKind.CANCELLED, 0, [group])) is None:
            contents.remove(*group[:3])

    # --- marks --------------------------------------------------------------------------------------------------------

    def _mark_write(self, log: PartitionLog, marks: Marks) -> DueWrite:
        data, unit = encode_marks(marks, self.now_ms(), log.end_offset)
        return self._make_write(log, (data,), unit)

    def _append_marks(self, contents: DelayedLog, marks: Marks) -> MetaqError | None:
        """Append marks to the internal log without waiting until they are safe. If the append fails, return the error;
        otherwise return None.
        """
        data, unit = encode_marks(marks, self.now_ms(), contents.log.end_offset)
        append = Append(contents.log, (data,), unit)
        self.store.append_many((append,))
        if append.error is None:
            contents.appended()
        return append.error

    def _settled(self, contents: DelayedLog) -> int:
        return contents.settled(copied=self.writing.copies is not None)

    def _tell_returned(self) -> None:
        """For deliveries that have a mark but have failed, write another mark to the internal log. This mark says that
        the delivery has failed, so that its messages wait again. If a mark cannot be written now, another attempt is
        made later.
        """
        for log, groups in list(self._returned.items()):
            error = self._append_marks(self._of(log), Marks(MarkKind.RETURNED, 0, groups))
            if error is None:
                del self._returned[log]
            else:
                _log.warning("deliveries that have failed stay in %s: %s", log.directory, error)

    # --- leading and following ----------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Begin the work of a leader, as Memory.lead describes: read the internal logs to their ends, and deliver due
        messages from now on.
        """
        for log in self.store.internal_logs(self.topic):
            contents = self._of(log)
            if returned := contents.lead(self.store.find):
                self._returned[log] = returned
            self._crowded = self._crowded or len(contents) > 0
        self._tell_returned()
        self.enabled = True
        self._retry_at = 0.0
        if self._logs:
            self.call_later(0, self._begin)

    def _begin(self) -> None:
        if self.enabled:
            self._sleep()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._wakes_at = None, _NEVER
        for contents in self._logs.values():
            contents.owners.clear()
        self._logs.clear()
        self._returned.clear()
        self._last_settled.clear()

    def tick(self) -> None:
        if self.enabled:
            if self._returned:
                self._tell_returned()
            for contents in self._logs.values():
                self._tell_settled(contents)
        super().tick()

    def _tell_settled(self, contents: DelayedLog) -> None:
        """If all deliveries of an internal log are certain (no power failure can undo them), write a mark that says so.
        The mark of each delivery also says which earlier deliveries are certain; the separate mark is needed only if no
        further delivery follows.
        """
        written = self._last_settled.get(contents.log)
        if written is None:
            return
        settled = self._settled(contents)
        if settled == contents.log.end_offset:
            del self._last_settled[contents.log]
            self._append_marks(contents, Marks(MarkKind.DELIVERED, settled, ()))

    def most_bytes(self, log: PartitionLog) -> int:
        return max(tuning.DELAYED_LOG_BYTES, 2 * self._of(log).live_bytes)

    def needed_from(self, log: PartitionLog) -> int:
        return self._of(log).needed_from

    async def write_anew(self, log: PartitionLog) -> int:
        await write_oldest_anew(self, self._of(log))
        return self.needed_from(log)

    def rewritten(self, contents: DelayedLog, messages: Sequence[Pending]) -> None:
        """Called after records of waiting messages were appended to the log's end again (cleaning.py). Marks about
        these messages that were written earlier are in older segments of the log, which may be removed although the
        messages still wait. A subclass can override this method to append these marks again after the records.
        """

    # --- what is shown ------------------------------------------------------------------------------------------------

    def lines(self) -> Lines:
        yield f"pending {len(self)}"
        yield f"pending_bytes {self.live_bytes}"
        yield f"delivered {self.delivered}"
        yield f"damaged {self.damaged}"
        yield f"lateness_p99_ms {self.lateness_ms(0.99)}"
        for (topic, partition), (count, why) in sorted(self.late().items())[: tuning.STATS_NAMED]:
            yield f"late:{topic}-{partition} {count} {why}"

    def metrics(self) -> Metrics:
        topics: defaultdict[str, int] = defaultdict(int)
        for (topic, _), count in self.counts().items():
            topics[topic] += count
        late: defaultdict[str, int] = defaultdict(int)
        for (topic, _), (count, _) in self.late().items():
            late[topic] += count
        yield gauges("metaq_delayed_pending", "Messages that wait for their time", "topic", sorted(topics.items()))
        refused = "Messages that are due but that their partition does not take"
        yield gauges("metaq_delayed_late", refused, "topic", sorted(late.items()))
        yield gauge("metaq_delayed_bytes", "Bytes of the messages that wait", self.live_bytes)
        yield counter("metaq_delayed_delivered", "Delayed messages delivered", self.delivered)
        damaged = "Delayed messages that could not be read when they were due"
        yield counter("metaq_delayed_damaged", damaged, self.damaged)
        text = "Delay between a message's due time and its delivery, of the last deliveries"
        parts = (("50", 0.5), ("99", 0.99), ("100", 1.0))
        lateness = ((name, self.lateness_ms(part) / 1000) for name, part in parts)
        yield gauges("metaq_delayed_lateness_seconds", text, "percentile", lateness)

    def left_behind(self, topic: str, partitions: Sequence[int]) -> str | None:
        counts = {partition: self.count((topic, partition)) for partition in partitions}
        where = ", ".join(f"{count} for {topic}-{partition}" for partition, count in counts.items() if count)
        return f"{self.name} {self.ending} ({where}): see `metaq {self.item} list --topic {topic}`" if where else None

    # --- what is asked ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of waiting messages."""
        return sum(map(len, self._logs.values()))

    def counts(self) -> Counter[DelayTarget]:
        """Return how many messages wait for each partition."""
        total: Counter[DelayTarget] = Counter()
        for contents in self._logs.values():
            total.update(contents.counts)
        return total

    def count(self, place: DelayTarget) -> int:
        """Return how many messages wait for a partition."""
        return sum(contents.counts[place] for contents in self._logs.values())

    def late(self) -> dict[DelayTarget, tuple[int, str]]:
        """Return, for each partition that refuses its due messages now, the number of these messages and the reason for
        the refusal.
        """
        found: dict[DelayTarget, tuple[int, str]] = {}
        for contents in self._logs.values():
            for place, late in contents.late.items():
                if len(late.table):
                    found[place] = found.get(place, (0, ""))[0] + len(late.table), late.why
        return found

    @property
    def live_bytes(self) -> int:
        """The total size in bytes of the records of waiting messages."""
        return sum(contents.live_bytes for contents in self._logs.values())

    def lateness_ms(self, part: float) -> int:
        """Return a quantile of the lateness (the ms between due time and delivery) of the last delivered messages, or 0
        if no message was delivered. part: which quantile, 0.0 … 1.0.
        """
        if not self._lateness:
            return 0
        return int(np.quantile(np.array(self._lateness), part, method="higher"))

    def contents(self) -> Sequence[DelayedLog]:
        """Return the states of all internal logs that exist."""
        return tuple(self._logs.values())

    def cancel(self, request: CancelDelayedRequest) -> Deferred[CancelDelayedReply]:
        """Cancel a delayed message. The Deferred fires when the cancellation is stored as safely as the partition's
        messages. The Deferred fails with the error of a refused put or with StoreError.
        """
        return ensureDeferred(self._cancel((request.topic, request.partition), request.message_id))

    async def _cancel(self, place: DelayTarget, message_id: int) -> CancelDelayedReply:
        for contents in self._logs.values():
            if contents.cancelled.get(message_id) == place:
                before = self._make_write(contents.log, (), b"")
                before.delayed, before.end = Delayed(self.store.find(*place) or contents.log), contents.log.end_offset
                await self._until_safe(before, [before])
                return CancelDelayedReply(Cancelled.CANCELLED)
        ids = np.array([message_id], np.int64)
        for contents in self._logs.values():
            offsets = contents.find(ids)
            if offsets[0] == NOWHERE:
                continue
            read = partial(read_records, contents.log.segments.snapshot().read, offsets, 0)
            (record,) = await self.in_thread(read)
            pending = decode_pending(record)
            if pending is None or pending.place != place:
                return CancelDelayedReply(Cancelled.UNKNOWN)
            if self._logs.get(contents.log) is not contents or contents.find(ids)[0] == NOWHERE:
                return await self._cancel(place, message_id)  # it was cancelled or delivered meanwhile
            _, write, waiting = self._cancel_now(contents, (pending,))
            await self._until_safe(write, waiting)
            return CancelDelayedReply(Cancelled.CANCELLED)
        late = due_ms(message_id) <= self.now_ms()
        return CancelDelayedReply(Cancelled.LATE if late else Cancelled.UNKNOWN)

    def _cancel_now(self, contents: DelayedLog, messages: Sequence[Pending]) -> tuple[Group, DueWrite, list[DueWrite]]:
        """Cancel messages for one partition by appending a mark to the internal log. Return the messages as a group,
        the DueWrite of the mark, and the DueWrites that are not safe yet. Raises the error if the mark cannot be
        appended.
        """
        place = messages[0].place
        group = Group(place, _ids_of(messages), _sizes_of(messages))
        write = self._mark_write(contents.log, Marks(MarkKind.CANCELLED, 0, [group]))
        write.delayed = Delayed(self.store.find(*place) or contents.log)
        waiting = self.writing.append((write,))
        if write.error is not None:
            raise write.error
        contents.appended()
        contents.cancel(group)
        return group, write, waiting

    async def _until_safe(self, write: DueWrite, waiting: Sequence[DueWrite]) -> None:
        """Wait until the records of `write` are safe; raise its error if they cannot be made safe. waiting: the
        DueWrites that are not safe yet.
        """
        if waiting:
            safe: Deferred[None] = Deferred()
            self.writing.when_safe(waiting, partial(safe.callback, None))
            await safe
        if write.failure is not None:
            raise write.failure


def _ids_of(messages: Sequence[Pending]) -> Ids:
    return np.array([each.id for each in messages], np.int64)


def _sizes_of(messages: Sequence[Pending]) -> Sizes:
    """Return the sizes of the messages' records in the partition."""
    return np.array([len(each.body) for each in messages], np.int64) + HEADER_BYTES


_NEVER = float("inf")
_ALL = (1 << 63) - 1
