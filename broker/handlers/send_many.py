"""SEND_MANY: records of many partitions in one frame: checked together, appended once a partition, one answer."""

from __future__ import annotations

from collections.abc import Sequence
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

from ..answers import Answer, Bytes, answer_frame, response_code
from ..broker import Broker
from ..partitions import ANY
from ..store.batch import StampedRecords, stamp_records
from ..store.index import UNIT_BYTES
from ..store.partition_log import PartitionLog
from .safety import when_safe
from .send_batch import puts_of

__all__ = ["answer_send_many"]


def answer_send_many(broker: Broker, frame: Frame) -> Answer:
    """Each part on its own. Raises RemoteProtocolError, with nothing appended, for a body that is not what it says."""
    request = SendManyRequest.from_ext(frame.ext)
    parts = split_many(frame.body, request)
    ids = message_ids_from(broker.message_ids.next(request.records), request.records)
    stamped = stamp_records(parts.records, parts.sizes, ids, broker.now_ms())
    return _ManyParts(broker, frame.opaque, request, parts, stamped).commit()


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
        self._logs: list[PartitionLog | None] = []
        self._offsets: list[int] = []
        self._errors: dict[int, MetaqError] = {}  # of the refused parts

    def commit(self) -> Answer:
        """Append everything, once per part. The answer, when it may be given."""
        starts, ends = self._starts.tolist(), self._ends.tolist()
        byte_starts = self._stamped.starts[self._starts]
        byte_ends = self._stamped.ends[self._ends - 1]
        sizes = (byte_ends - byte_starts).tolist()
        self._count_puts(starts, ends, sizes)
        self._choose_logs(sizes)
        units = self._stamped.units
        units["offset"] += np.repeat(np.array(self._offsets) - byte_starts, self._ends - self._starts)
        return self._append(starts, ends, byte_starts.tolist(), byte_ends.tolist(), memoryview(units.tobytes()))

    def _count_puts(self, starts: list[int], ends: list[int], sizes: list[int]) -> None:
        asked: dict[str, tuple[int, int]] = {}
        for topic, start, end, size in zip(self._topics, starts, ends, sizes, strict=True):
            count, body_bytes = asked.get(topic, (0, 0))
            asked[topic] = count + end - start, body_bytes + size - (end - start) * HEADER_BYTES
        for topic, (count, body_bytes) in asked.items():
            self._broker.metrics.put(topic, count, body_bytes)

    def _choose_logs(self, sizes: list[int]) -> None:
        """Where each part goes, and the offset it will have there; a log may be named twice."""
        damaged = self._damaged()
        expected: dict[PartitionLog, int] = {}
        for number, size in enumerate(sizes):
            try:
                if number in damaged:
                    raise ChecksumMismatch
                log = self._log(number)
            except MetaqError as error:
                self._errors[number] = error
                self._logs.append(None)
                self._offsets.append(0)
                continue
            base = expected.get(log, log.end_offset)
            expected[log] = base + size
            self._logs.append(log)
            self._offsets.append(base)

    def _damaged(self) -> set[int]:
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

    def _append(
        self, starts: list[int], ends: list[int], byte_starts: list[int], byte_ends: list[int], units: memoryview
    ) -> Answer:
        data, slave = self._stamped.data, self._broker.sync_slave
        numbers: list[int] = []
        appends: list[tuple[PartitionLog, tuple[memoryview], Buffer]] = []
        for number, log in enumerate(self._logs):
            if log is not None:
                numbers.append(number)
                records = data[byte_starts[number] : byte_ends[number]]
                appends.append((log, (records,), units[starts[number] * UNIT_BYTES : ends[number] * UNIT_BYTES]))
        waiting: list[_Waiting] = []
        errors = self._broker.store.append_many(appends)
        for number, (log, (here,), _), error in zip(numbers, appends, errors, strict=True):
            if error is not None:
                self._errors[number] = error
                continue
            end = self._offsets[number] + len(here)
            if slave is not None:
                waiting.append(_Waiting(number, log, end, puts_of(here), self._ids_of(number)))
            elif log.visible_end < end:
                waiting.append(_Waiting(number, log, end))
        return self._answer_when_safe(waiting) if waiting else self._answer()

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
        rows = encode_rows(self._stamped.units["id"][self._starts], self._offsets, self._partitions, codes)
        ext = SendManyReply(self._count).to_ext()
        return answer_frame(self._opaque, ext, remark=remark, body=len(rows)) + rows
