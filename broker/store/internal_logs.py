"""The store's internal logs: what a broker has to remember beside its partitions, and is written as they are.

An internal log is a PartitionLog like any other: journaled, synced, recovered, replicated and cut as one. It lies in a
directory without a `-`, which Java brokers pass over, and no client can name its topic, because a topic has no `/`
(limits.check_topic). It is never among `Store.logs()`.

Whoever opens the store says which internal topics there are (memory/kinds.py). Each has two logs, so that what is
remembered is made safe as the messages that it belongs to: one for partitions with asynchronous flush, one for those
with group commit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

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
"""The numbers of an internal topic's logs: of what has asynchronous flush, and of what has group commit."""

OnRecovered = Callable[[Files, Snapshot, int, Mapping[str, PartitionDirectory]], None]
"""recovered(files, snapshot, first_offset, directories): a log has been recovered, from this byte offset on; what is in
the directories, by `<topic>-<partition>`, has not been yet. Raises StoreError."""


class InternalTopic(NamedTuple):
    """directory: below the first data path; max_segment_size: bytes.

    with_messages: what is appended to it in one turn of the reactor with messages of partitions is made safe together
    with these: a start finds all of it, or nothing. recovered: called before partitions and later topics are recovered.
    """

    directory: str
    max_segment_size: int
    with_messages: bool = False
    recovered: OnRecovered | None = None

    def config(self, number: int) -> TopicStoreConfig:
        """Settings of one of its logs."""
        if number == WAITING:
            return TopicStoreConfig(self.max_segment_size, 0, 0)
        return TopicStoreConfig(self.max_segment_size, tuning.INTERNAL_SYNC_RECORDS, tuning.INTERNAL_SYNC_MS)

    def path(self, data_path: str, number: int) -> str:
        """The directory of one of its logs. data_path: the store's first one."""
        return os.path.join(data_path, self.directory, str(number))


InternalTopics: TypeAlias = Mapping[str, InternalTopic]
"""By name, in the order in which a start recovers them."""


def is_internal(topic: str) -> bool:
    """Whether it is the topic of internal logs."""
    return topic.startswith("/")


def number_of(waits: bool) -> int:
    """The log for what has group commit (True) or asynchronous flush."""
    return WAITING if waits else LOOSE
