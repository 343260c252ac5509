"""Keep the internal logs of one kind short: write the known state anew, and drop everything before it."""

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
    """Compacts the logs of one internal topic while this node leads. Reactor thread.

    A log that is too long gets a new segment. The whole known state is written to it, a part in each turn; new rows
    follow as ever. The segments before it go once that state is on the disk.
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
        """write_all(log): append the whole known state, with pauses as in a SlicedWork; raises MetaqError if that
        fails. most_bytes(log): the log's maximum length."""
        self._store = store
        self._topic = topic
        self._works = works
        self._write_all = write_all
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._under_way: set[PartitionLog] = set()
        self._written: dict[PartitionLog, tuple[int, int]] = {}  # begin and end of its newest snapshot
        self._not_before = 0.0

    def tick(self) -> None:
        """Drop old segments that are no longer needed, or begin a compaction."""
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
        """End the compactions under way: another node leads. `works` must also be cleared before this node leads."""
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
            self._not_before = self._seconds() + tuning.COMPACTION_PAUSE_SECONDS
        finally:
            self._under_way.discard(log)
