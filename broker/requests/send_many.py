"""SEND_MANY: records of many partitions in one frame: checked together, appended once a partition, one answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from twisted.internet.defer import Deferred

from metaq.protocol.errors import ChecksumMismatch, MetaqError, PartitionClosed
from metaq.protocol.frames import Frame
from metaq.protocol.message_id import message_ids_from
from metaq.protocol.record import HEADER_BYTES, Buffer
from metaq.protocol.send_many import Parts, SendManyReply, SendManyRequest, encode_rows, split_many
from metaq.protocol.statuses import ResponseCode

from ..broker import Broker
from ..partitions import ANY
from ..store.batch import StampedRecords, stamp_in_slices
from ..store.index import UNIT_BYTES
from ..store.partition_log import PartitionLog
from .answers import Bytes, Work, answer_frame, response_code
from .safety import when_safe
from .send_batch import puts_of

__all__ = ["answer_send_many"]


_CHUNK_PARTS = 64
"""Parts that are prepared together."""
_SLICE_SECONDS = 0.003
"""Appending goes on for so long before others may be served: a part is a write of its own."""


def answer_send_many(broker: Broker, frame: Frame) -> Work:
    """Each part on its own. Raises RemoteProtocolError, with nothing appended, for a body that is not what it says."""
    request = SendManyRequest.from_ext(frame.ext)
    parts = split_many(frame.body, request)
    ids = message_ids_from(broker.message_ids.next(request.records), request.records)
    stamped = yield from stamp_in_slices(parts.records, parts.sizes, ids)
    return (yield from _ManyParts(broker, frame.opaque, request, parts, stamped).work())


class _Waiting(NamedTuple):
    """Part `number`, as safety.Written."""

    number: int
    log: PartitionLog
    end: int
    puts: Sequence[tuple[int, int, Buffer]] = ()
    ids: Sequence[int] = ()


class _ManyParts:
    """One frame's parts. Lives until they are answered."""

    def __init__(
        self, broker: Broker, opaque: int, request: SendManyRequest, parts: Parts, stamped: StampedRecords
    ) -> None:
        self._broker = broker
        self._opaque = opaque
        self._count = request.parts
        self._topics = [request.topics[number] for number in parts.topics]
        self._partitions = parts.partitions
        self._stamped = stamped
        self._ends: npt.NDArray[np.int64] = np.cumsum(parts.counts)  # numbers of records, as are _starts
        self._starts = self._ends - parts.counts
        self._byte_starts = stamped.starts[self._starts]
        self._byte_ends = stamped.ends[self._ends - 1]
        self._damaged = self._damaged_parts()
        self._next = 0
        self._offsets = [0] * request.parts
        self._errors: dict[int, MetaqError] = {}  # of the refused parts
        self._refused: dict[
            PartitionLog, MetaqError
        ] = {}  # what follows a refused part in its partition is refused too
        self._waiting: list[_Waiting] = []

    def work(self) -> Work:
        """Append everything, once per part, in slices. Then the answer, when it may be given."""
        seconds = self._broker.reactor.seconds
        while self._next < self._count:
            if self._next:
                yield
            # a slave gets its copies when all is appended, and nothing of others may come in between
            in_slices = self._broker.sync_slave is None
            self._append_slice(seconds() + _SLICE_SECONDS if in_slices else float("inf"))
        self._first_ids = self._stamped.units["id"][self._starts]
        del self._stamped  # an answer that waits for the disk needs no more
        return self._answer_when_safe(self._waiting) if self._waiting else self._answer()

    def _append_slice(self, until: float) -> None:
        """All parts that can be appended until then, and a chunk at least; they share one sync."""
        appended: list[tuple[int, PartitionLog, memoryview]] = []
        errors = self._broker.store.append_many(self._appends(until, appended))
        slave = self._broker.sync_slave
        for (number, log, records), error in zip(appended, errors, strict=True):
            if error is not None:
                self._errors[number] = self._refused[log] = error
                continue
            end = self._offsets[number] + len(records)
            if slave is not None:
                self._waiting.append(_Waiting(number, log, end, puts_of(records), self._ids_of(number)))
            elif log.visible_end < end:
                self._waiting.append(_Waiting(number, log, end))

    def _appends(
        self, until: float, appended: list[tuple[int, PartitionLog, memoryview]]
    ) -> Iterator[tuple[PartitionLog, tuple[memoryview], Buffer]]:
        """For Store.append_many, which appends each before it asks for the next."""
        data, seconds = self._stamped.data, self._broker.reactor.seconds
        while self._next < self._count:
            first, last = self._next, min(self._next + _CHUNK_PARTS, self._count)
            starts, ends = self._starts[first:last].tolist(), self._ends[first:last].tolist()
            byte_starts, byte_ends = self._byte_starts[first:last], self._byte_ends[first:last]
            sizes = (byte_ends - byte_starts).tolist()
            self._count_puts(first, starts, ends, sizes)
            logs = self._choose_logs(first, sizes)
            units = self._stamped.units[starts[0] : ends[-1]]
            counts = self._ends[first:last] - self._starts[first:last]
            units["offset"] += np.repeat(np.array(self._offsets[first:last]) - byte_starts, counts)
            packed = units.view(np.uint8).data
            places = zip(logs, starts, ends, byte_starts.tolist(), byte_ends.tolist(), strict=True)
            for number, (log, start, end, byte_start, byte_end) in enumerate(places, first):
                if log is not None:
                    records = data[byte_start:byte_end]
                    appended.append((number, log, records))
                    yield log, (records,), packed[(start - starts[0]) * UNIT_BYTES : (end - starts[0]) * UNIT_BYTES]
            self._next = last
            if seconds() >= until:
                return

    def _count_puts(self, first: int, starts: list[int], ends: list[int], sizes: list[int]) -> None:
        asked: dict[str, tuple[int, int]] = {}
        topics = self._topics[first : first + len(sizes)]
        for topic, start, end, size in zip(topics, starts, ends, sizes, strict=True):
            count, body_bytes = asked.get(topic, (0, 0))
            asked[topic] = count + end - start, body_bytes + size - (end - start) * HEADER_BYTES
        for topic, (count, body_bytes) in asked.items():
            self._broker.metrics.put(topic, count, body_bytes)

    def _choose_logs(self, first: int, sizes: list[int]) -> list[PartitionLog | None]:
        """Where each of a chunk's parts goes, and the offset it will have there; a log may be named twice."""
        logs: list[PartitionLog | None] = []
        expected: dict[PartitionLog, int] = {}
        for number, size in enumerate(sizes, first):
            try:
                if number in self._damaged:
                    raise ChecksumMismatch
                log = self._log(number)
                if log in self._refused:
                    raise self._refused[log]
            except MetaqError as error:
                self._errors[number] = error
                logs.append(None)
                continue
            base = expected.get(log, log.end_offset)
            expected[log] = base + size
            logs.append(log)
            self._offsets[number] = base
        return logs

    def _damaged_parts(self) -> set[int]:
        """The parts with a record whose checksum is wrong."""
        if self._stamped.intact.all():
            return set()
        return set(np.searchsorted(self._ends, np.flatnonzero(~self._stamped.intact), "right").tolist())

    def _log(self, number: int) -> PartitionLog:
        topic, partition = self._topics[number], self._partitions[number]
        chosen = partition == ANY
        if chosen:
            partition = self._partitions[number] = self._broker.partitions.choose(topic)
        log = self._broker.partitions.for_put(topic, partition, chosen=chosen)
        if self._broker.sync_slave is not None:
            self._broker.sync_slave.check()
        return log

    def _answer_when_safe(self, waiting: list[_Waiting]) -> Deferred[Bytes]:
        def visible(errors: Sequence[MetaqError | None]) -> None:
            for part, error in zip(waiting, errors, strict=True):
                if error is not None:
                    self._errors.setdefault(part.number, error)

        def replicated(part: _Waiting, errors: Sequence[MetaqError | None]) -> None:
            error = next((error for error in errors if error is not None), None)
            if error is not None:
                self._errors.setdefault(part.number, error)

        return when_safe(self._broker, waiting, visible, replicated, self._answer)

    def _ids_of(self, number: int) -> list[int]:
        ids: list[int] = self._stamped.units["id"][self._starts[number] : self._ends[number]].tolist()
        return ids

    def _answer(self) -> bytes:
        codes = [int(ResponseCode.SUCCESS)] * self._count
        for number, error in self._errors.items():
            codes[number] = int(response_code(error))
            if not isinstance(error, PartitionClosed):
                count = int(self._ends[number] - self._starts[number])
                self._broker.metrics.put_refused(self._topics[number], count)
        remark = str(self._errors[min(self._errors)]) if self._errors else ""
        rows = encode_rows(self._first_ids, self._offsets, self._partitions, codes)
        ext = SendManyReply(self._count).to_ext()
        return answer_frame(self._opaque, ext, remark=remark, body=len(rows)) + rows
