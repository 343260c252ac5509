"""The store's internal logs. Besides the messages of its partitions, a broker must remember other data, for example
about delayed messages. The broker stores these data in internal logs, in the same way as messages.

An internal log is a PartitionLog like any other: it is journaled, synced, recovered, replicated and cut like a
partition. Its directory's name has no `-`, so Java brokers ignore it. No client can name its topic, because a client's
topic may not contain `/` (limits.check_topic). `Store.logs()` never returns it.

The code that opens the store names the internal topics (assembly/kinds.py). Each internal topic has two logs: one for
partitions with asynchronous flush and one for partitions with group commit. So if data in an internal log belong to a
message, the data become safe in the same way as the message.
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
"""The numbers of an internal topic's two logs: LOOSE for partitions with asynchronous flush, WAITING for partitions
with group commit.
"""

OnRecovered = Callable[[Files, Snapshot, int, Mapping[str, PartitionDirectory]], None]
"""recovered(files, snapshot, first_offset, directories): called when an internal log has been recovered. The log's data
begin at byte offset first_offset; snapshot reads them. directories: the partitions' directories by
`<topic>-<partition>`; the partitions have not been recovered yet. Raises StoreError.
"""


@dataclass(frozen=True)
class InternalTopic:
    """The settings of an internal topic. directory: its directory below the first data path. max_segment_size: bytes.

    with_messages: whether appends to this topic become safe together with the messages that are appended to partitions
    in the same iteration of the reactor. If True, the next start of the broker after a crash finds either both appends
    or none of them. recovered: called when a log of this topic has been recovered. Partitions and other internal topics
    are recovered later.
    """

    directory: str
    max_segment_size: int
    with_messages: bool = False
    recovered: OnRecovered | None = None

    def config(self, number: int) -> TopicStoreConfig:
        """Return the store settings of one of the topic's two logs. number: LOOSE for the log for partitions with
        asynchronous flush, WAITING for the log for partitions with group commit.
        """
        if number == WAITING:
            return TopicStoreConfig(self.max_segment_size, 0, 0)
        return TopicStoreConfig(self.max_segment_size, tuning.INTERNAL_SYNC_RECORDS, tuning.INTERNAL_SYNC_MS)

    def path(self, data_path: str, number: int) -> str:
        """Return the directory of one of the topic's two logs. data_path: the store's first data path. number: LOOSE or
        WAITING, as in `config`.
        """
        return os.path.join(data_path, self.directory, str(number))


InternalTopics: TypeAlias = Mapping[str, InternalTopic]
"""The internal topics by name."""


def is_internal(topic: str) -> bool:
    """Return whether this topic name belongs to an internal topic."""
    return topic.startswith("/")


def number_of(group_commit: bool) -> int:
    """Return which of an internal topic's two logs to use: WAITING if `group_commit` is True (for partitions with group
    commit), else LOOSE (for partitions with asynchronous flush).
    """
    return WAITING if group_commit else LOOSE
