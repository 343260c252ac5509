"""Define TopicPartition, which identifies one partition of a cluster by its topic, broker and number."""

from __future__ import annotations

import re
from typing import NamedTuple

from .errors import InvalidName

__all__ = ["TopicPartition"]

_NAME = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


class TopicPartition(NamedTuple):
    """The identity of a partition. `partition` is the partition's number; each broker numbers its partitions of a topic
    from 0. str() returns metaq's own form `broker-partition`.
    """

    topic: str
    broker: int
    partition: int

    def __str__(self) -> str:
        return f"{self.broker}-{self.partition}"

    @classmethod
    def parse(cls, topic: str, text: str) -> TopicPartition:
        """Parse a text that str() returned: `parse("trades", "0-3")`. Raises InvalidName."""
        found = _NAME.fullmatch(text)
        if found is None:
            raise InvalidName(f"{text!r} is not a partition: write it as <broker>-<partition>, for example 0-3")
        return cls(topic, int(found[1]), int(found[2]))
