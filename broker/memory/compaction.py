"""Keeping the internal logs of one kind short: what is known is written anew, and what is older goes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from metaq.protocol.errors import MetaqError

from .. import tuning
from ..runtime.slices import SlicedWork
from ..store.partition_log import PartitionLog
from ..store.store import Store

__all__ = ["Compaction"]

_log = logging.getLogger(__name__)


class Compaction:
    """Of the logs of one internal topic, while this node leads. Reactor thread.

    A log that is too long gets a new segment, and all that is known is written to it, some in each turn; what becomes
    known meanwhile is written behind it, as ever. The segments before it go once that is on the disk.
    """

    def __init__(
        self,
        store: Store,
        topic: str,
        works: SlicedWork,
        write_all: Callable[[PartitionLog], Iterator[None]],
        most_bytes: Callable[[PartitionLog], int],
        seconds: Callable[[], float],
    ) -> None:
        """write_all(log): appends all that is known, and pauses as a SlicedWork does; raises MetaqError if that fails.
        most_bytes(log): how long it may be."""
        self._store = store
        self._topic = topic
        self._works = works
        self._write_all = write_all
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._under_way: set[PartitionLog] = set()
        self._written: dict[PartitionLog, tuple[int, int]] = {}  # where its newest snapshot begins and ends
        self._not_before = 0.0

    def tick(self) -> None:
        """Drop what is not needed any more, or begin."""
        for log in self._store.internal_logs(self._topic):
            if log in self._written:
                start, end = self._written[log]
                if log.synced_end >= end:
                    del self._written[log]
                    self._store.drop_internal_before(log, start)
            elif log not in self._under_way and self._is_due(log):
                self._under_way.add(log)
                self._works.add(self._compact(log))

    def clear(self) -> None:
        """Another node leads, and does this. What is under way ends. Clear its work, too, before this node leads."""
        self._under_way.clear()
        self._written.clear()

    def _is_due(self, log: PartitionLog) -> bool:
        size = log.end_offset - log.first_offset
        return log.read_only is None and self._seconds() >= self._not_before and size > self._most_bytes(log)

    def _compact(self, log: PartitionLog) -> Iterator[None]:
        if log not in self._under_way:
            return
        try:
            log.roll()
            start = log.end_offset
            for _ in self._write_all(log):
                yield
                if log not in self._under_way:
                    return
            if log.read_only is None:
                self._written[log] = start, log.end_offset
                log.checkpoint()
        except (OSError, MetaqError) as error:
            _log.warning("%s is not made shorter now: %s", log.directory, error)
            self._not_before = self._seconds() + tuning.SEQUENCES_SWEEP_SECONDS
        finally:
            self._under_way.discard(log)
