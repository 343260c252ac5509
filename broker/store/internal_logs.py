"""The store's internal logs: what a broker has to remember beside its partitions, and is written as they are.

An internal log is a PartitionLog like any other: journaled, synced, recovered, replicated and cut as one. It lies in a
directory without a `-`, which Java brokers pass over, and no client can name its topic, because a topic has no `/`
(limits.check_topic). It is never among `Store.logs()`.

Each internal topic has two logs, so that what is remembered is made safe as the messages that it belongs to: one for
partitions with asynchronous flush, one for those with group commit.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from . import tuning
from .topic_config import TopicStoreConfig

__all__ = [
    "DELAYED_TOPIC",
    "HALVES_TOPIC",
    "INTERNAL_TOPICS",
    "NUMBERS",
    "PENDING_TOPICS",
    "SEQUENCES_TOPIC",
    "SHARED_TOPIC",
    "InternalTopic",
    "internal_path",
    "is_internal",
    "number_of",
]

LOOSE, WAITING = 0, 1
NUMBERS = LOOSE, WAITING
"""The numbers of an internal topic's logs: of what has asynchronous flush, and of what has group commit."""

SEQUENCES_TOPIC = "/sequences"
"""Rows of numbered sends (sequence_rows.py)."""

DELAYED_TOPIC = "/delayed"
"""Messages that wait for their time (broker/delays)."""

HALVES_TOPIC = "/halves"
"""Half messages, which wait for the outcome of a transaction (broker/halves)."""

PENDING_TOPICS = frozenset((DELAYED_TOPIC, HALVES_TOPIC))
"""What waits there goes to its partition later, behind a mark (delayed_records.py)."""

SHARED_TOPIC = "/shared"
"""What shared consumers have leased and acknowledged (broker/shared)."""


class InternalTopic(NamedTuple):
    """directory: below the first data path; max_segment_size: bytes."""

    directory: str
    max_segment_size: int

    def config(self, number: int) -> TopicStoreConfig:
        """Settings of one of its logs."""
        if number == WAITING:
            return TopicStoreConfig(self.max_segment_size, 0, 0)
        return TopicStoreConfig(self.max_segment_size, tuning.INTERNAL_SYNC_RECORDS, tuning.INTERNAL_SYNC_MS)


INTERNAL_TOPICS = {
    SEQUENCES_TOPIC: InternalTopic("metaqsequences", 1 << 30),
    DELAYED_TOPIC: InternalTopic("metaqdelayed", tuning.DELAYED_SEGMENT_BYTES),
    HALVES_TOPIC: InternalTopic("metaqhalves", tuning.DELAYED_SEGMENT_BYTES),
    SHARED_TOPIC: InternalTopic("metaqshared", 1 << 30),
}


def internal_path(data_path: str, topic: str, number: int) -> str:
    """The directory of an internal log. data_path: the store's first one."""
    return os.path.join(data_path, INTERNAL_TOPICS[topic].directory, str(number))


def is_internal(topic: str) -> bool:
    """Whether it is the topic of internal logs."""
    return topic.startswith("/")


def number_of(waits: bool) -> int:
    """The log for what has group commit (True) or asynchronous flush."""
    return WAITING if waits else LOOSE
