"""The puts of one read when they are many: checked, stamped and answered together, appended once per partition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from twisted.internet.defer import Deferred

from metaq.protocol.errors import MetaqError
from metaq.protocol.message_id import message_ids_from
from metaq.protocol.put_run import PutRun
from metaq.protocol.record import Buffer, checksums

from ..broker import Broker
from ..store.batch import StampedRecords, stamp_puts
from ..store.index import UNIT_BYTES
from ..store.partition_log import PartitionLog
from .answers import Answer, Bytes
from .put import PutGroup, Refuse

__all__ = ["answer_put_run"]

_LEAST_COST = 100
_PARTITION_COST = 4
"""A run has 80 µs of its own, and spares 1 µs a put and 4 µs a partition."""
_POWERS_OF_TEN = 10 ** np.arange(1, 19)
_VIEW_BYTES = 1 << 10
"""What goes to a partition is copied if it is smaller: that costs less than a view of it."""


def answer_put_run(broker: Broker, run: PutRun, refuse: Refuse) -> Answer:
    """As a PutGroup of the same puts; it is one if they are few, if one is to be refused, or with a slave."""
    few = len(run.bodies) + _PARTITION_COST * len(set(run.partitions)) < _LEAST_COST
    logs = None if few else _logs(broker, run)
    if logs is not None and (checksums(run.bodies) == np.array(run.checksums)).all():
        return _Appending(broker, run, refuse, logs).commit()
    group = PutGroup(broker, refuse)
    for put in run.puts():
        group.add(put)
    return group.commit()


def _logs(broker: Broker, run: PutRun) -> list[PartitionLog] | None:
    if broker.sync_slave is not None:
        return None
    try:
        return broker.partitions.for_puts(run.topics, run.partitions)
    except MetaqError:
        return None


class _Appending:
    """Puts that are good so far. Lives until they are answered."""

    def __init__(self, broker: Broker, run: PutRun, refuse: Refuse, logs: list[PartitionLog]) -> None:
        """logs: of each put."""
        self._broker = broker
        self._run = run
        self._refuse = refuse
        self._logs = logs
        self._ids = message_ids_from(broker.message_ids.next(len(logs)), len(logs))
        self._offsets = np.empty(len(logs), np.int64)
        self._errors: dict[PartitionLog, MetaqError] = {}

    def commit(self) -> Answer:
        """Append everything, once per partition. All answers, in the order of the puts, when they may be given."""
        self._count_puts()
        appends = self._appends()
        errors = self._broker.store.append_many(appends)
        self._errors = {append[0]: error for append, error in zip(appends, errors, strict=True) if error is not None}
        waiting = [(log, log.end_offset) for log, _, _ in appends if log.waits and log not in self._errors]
        return self._answer_when_visible(waiting) if waiting else self._answers()

    def _count_puts(self) -> None:
        run, count = self._run, self._broker.metrics.put
        topics = set(run.topics)
        if len(topics) == 1:
            count(run.topics[0], len(run.bodies), run.body_bytes)
            return
        for topic in topics:
            sizes = [len(body) for name, body in zip(run.topics, run.bodies, strict=True) if name == topic]
            count(topic, len(sizes), sum(sizes))

    def _appends(self) -> list[tuple[PartitionLog, tuple[Buffer], bytes]]:
        """For each partition its records and index units; sets the offset of each put."""
        logs = list(dict.fromkeys(self._logs))
        numbers = dict(zip(logs, range(len(logs)), strict=True))
        number = np.fromiter(map(numbers.__getitem__, self._logs), np.intp, len(self._logs))
        order = number.argsort(kind="stable")
        counts = np.bincount(number)
        ends = counts.cumsum()  # numbers of records
        starts = ends - counts
        stamped = self._stamped(order)
        byte_starts, byte_ends = stamped.starts[starts], stamped.ends[ends - 1]
        stamped.units["offset"] += np.repeat(np.array([log.end_offset for log in logs]) - byte_starts, counts)
        self._offsets[order] = stamped.units["offset"]
        data: Buffer = stamped.data
        if len(data) < _VIEW_BYTES * len(logs):
            data = bytes(data)
        units = stamped.units.tobytes()
        places = (byte_starts, byte_ends, starts * UNIT_BYTES, ends * UNIT_BYTES)
        return [
            (log, (data[start:end],), units[first:last])
            for log, start, end, first, last in zip(logs, *(place.tolist() for place in places), strict=True)
        ]

    def _stamped(self, order: npt.NDArray[np.intp]) -> StampedRecords:
        run = self._run
        bodies = list(map(run.bodies.__getitem__, order.tolist()))
        flags, crcs = np.array(run.flags)[order], np.array(run.checksums)[order]
        return stamp_puts(flags, crcs, bodies, self._ids[order])

    def _answer_when_visible(self, waiting: list[tuple[PartitionLog, int]]) -> Deferred[Bytes]:
        settled: Deferred[Sequence[MetaqError | None]] = Deferred()

        def answers(errors: Sequence[MetaqError | None]) -> Bytes:
            for (log, _), error in zip(waiting, errors, strict=True):
                if error is not None:
                    self._errors[log] = error
            return self._answers()

        self._broker.store.when_all_visible(waiting, settled.callback)
        return settled.addCallback(answers)

    def _answers(self) -> bytes:
        run, ids, offsets = self._run, self._ids, self._offsets
        lengths = _digits(ids) + _digits(np.array(run.partitions)) + _digits(offsets) + 2
        columns = (lengths.tolist(), run.opaques, ids.tolist(), run.partitions, offsets.tolist())
        answers = [b"result 200 %d %d\r\n%d %d %d" % each for each in zip(*columns, strict=True)]
        if self._errors:
            for number, (log, put) in enumerate(zip(self._logs, run.puts(), strict=True)):
                if log in self._errors:
                    answers[number] = self._refuse(put, put.partition, self._errors[log])
        return b"".join(answers)


def _digits(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """How many decimal digits each of the numbers, none negative, has."""
    digits: npt.NDArray[np.intp] = _POWERS_OF_TEN.searchsorted(numbers, "right") + 1
    return digits
