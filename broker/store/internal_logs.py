"""The store's internal logs: data that a broker keeps beside its partitions and writes like them.

An internal log is a PartitionLog like any other: it is journaled, synced, recovered, replicated and cut like one. It
lies in a directory without a `-`, which Java brokers ignore. No client can name its topic, because a topic has no `/`
(limits.check_topic). `Store.logs()` never returns it.

Whoever opens the store names the internal topics (assembly/kinds.py). Each has two logs, one for partitions with
asynchronous flush and one for those with group commit, so that its data becomes safe like the messages it belongs to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from . import tuning
from .directories import PartitionDirectory
from .files import Files
from .segments import Snapshot
from .topic_config import TopicStoreConfig

__all__ = [
    "NUMBERS",
    "InternalTopic",
    "InternalTopics",
    "OnRecovered",
    "is_internal",
    "number_of",
]

LOOSE, WAITING = 0, 1
NUMBERS = LOOSE, WAITING
"""The numbers of an internal topic's logs: for partitions with asynchronous flush, and for those with group commit."""

OnRecovered = Callable[[Files, Snapshot, int, Mapping[str, PartitionDirectory]], None]
"""recovered(files, snapshot, first_offset, directories): a log has been recovered, from this byte offset on. The
partitions in the directories, by `<topic>-<partition>`, have not been recovered yet. Raises StoreError."""


@dataclass(frozen=True)
class InternalTopic:
    """directory: below the first data path; max_segment_size: bytes.

    with_messages: whether appends to it become safe together with the messages appended to partitions in the same turn
    of the reactor: a start finds both or neither. recovered: called before partitions and other topics are recovered.
    """

    directory: str
    max_segment_size: int
    with_messages: bool = False
    recovered: OnRecovered | None = None

    def config(self, number: int) -> TopicStoreConfig:
        """Return the settings of one of its logs."""
        if number == WAITING:
            return TopicStoreConfig(self.max_segment_size, 0, 0)
        return TopicStoreConfig(self.max_segment_size, tuning.INTERNAL_SYNC_RECORDS, tuning.INTERNAL_SYNC_MS)

    def path(self, data_path: str, number: int) -> str:
        """Return the directory of one of its logs. data_path: the store's first one."""
        return os.path.join(data_path, self.directory, str(number))


InternalTopics: TypeAlias = Mapping[str, InternalTopic]
"""By name."""


def is_internal(topic: str) -> bool:
    """Whether this is the topic of internal logs."""
    return topic.startswith("/")


def number_of(group_commit: bool) -> int:
    """Return the log number for partitions with group commit (True) or asynchronous flush (False)."""
    return WAITING if group_commit else LOOSE
