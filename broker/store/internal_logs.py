"""The store's internal logs. A broker must store not only messages but also data of its own, for example about delayed
messages. It stores these data in internal logs, in the same way as messages.

An internal log is a PartitionLog like any other: the broker writes it to the journal, syncs, recovers, replicates and
cuts it as it does with a partition. Its directory's name has no `-`, so Java brokers ignore it. Its topic begins with
`/`, so no client can use it: clients' topics must not contain `/` (limits.check_topic). `Store.logs()` does not return
internal logs.

The code that opens the store passes the list of internal topics to it (assembly/kinds.py). Each internal topic has two
logs: one for partitions with asynchronous flush and one for partitions with group commit. If data belong to a message,
the flush mode of the message's partition decides to which of the two logs the data are written. So the data are made
safe in the same way as the message.
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
begin at byte offset first_offset; the callee reads them with `snapshot`. directories: the partitions' directories by
`<topic>-<partition>`; the partitions have not been recovered yet. Raises StoreError.
"""


@dataclass(frozen=True)
class InternalTopic:
    """The settings of an internal topic. directory: its directory below the first data path. max_segment_size: bytes.

    with_messages: whether appends to this topic belong to the messages that are appended to partitions in the same
    iteration of the reactor. If it is True, they become safe in one step: after a crash, the next start of the broker
    finds either both the appends to this topic and those messages, or neither. recovered: called when a log of this
    topic has been recovered. At that time, neither the partitions nor the internal topics that follow this one in the
    list of internal topics have been recovered.
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
"""Maps the name of each internal topic to its settings."""


def is_internal(topic: str) -> bool:
    """Return whether this topic name belongs to an internal topic."""
    return topic.startswith("/")


def number_of(group_commit: bool) -> int:
    """Return which of an internal topic's two logs to use: WAITING if `group_commit` is True (for partitions with group
    commit), else LOOSE (for partitions with asynchronous flush).
    """
    return WAITING if group_commit else LOOSE
