"""Which partition a message goes to."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from isal.isal_zlib import crc32

from ..values import TopicPartition

__all__ = ["PartitionSelector", "RoundRobinSelector", "key_bytes", "partition_for_key"]


class PartitionSelector(Protocol):
    """Your own way to choose a partition, for messages sent without a key."""

    def select(self, topic: str, partitions: Sequence[TopicPartition], message: Any) -> TopicPartition:
        """Return one of `partitions`: never empty, ordered numerically by (broker, partition), without those that
        cannot take messages now. Called on the sending thread, and on the producer's retry thread after a failure.

        message: the payload of send(), or the list of payloads of send_batch().
        """


class RoundRobinSelector:
    """Every partition in turn, counted per topic (1.x counts all topics together, so that two topics used alternately
    hit only every second partition). Any thread."""

    def __init__(self) -> None:
        self._counters: dict[str, Iterator[int]] = {}

    def select(self, topic: str, partitions: Sequence[TopicPartition], message: Any) -> TopicPartition:
        counter = self._counters.get(topic)
        if counter is None:
            counter = self._counters.setdefault(topic, itertools.count())
        return partitions[next(counter) % len(partitions)]


def partition_for_key(key: str | bytes, partitions: Sequence[TopicPartition]) -> TopicPartition:
    """CRC-32 (IEEE) of the key's UTF-8 bytes modulo the number of partitions, as an index into the ordered list.

    The same key goes to the same partition while the list is the same; when brokers come or go, keys may move.
    """
    return partitions[crc32(key_bytes(key)) % len(partitions)]


def key_bytes(key: str | bytes) -> bytes:
    """What a key is compared and hashed by: a text and its UTF-8 bytes are one key."""
    return key.encode("utf-8") if isinstance(key, str) else key
