"""What names one partition of a cluster."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TopicPartition"]


class TopicPartition(NamedTuple):
    """One partition: `partition` counts from 0 within its topic and broker. str() is metaq's own `broker-partition`."""

    topic: str
    broker: int
    partition: int

    def __str__(self) -> str:
        return f"{self.broker}-{self.partition}"

    @classmethod
    def parse(cls, topic: str, text: str) -> TopicPartition:
        """The inverse of str(): `parse("trades", "0-3")`. Raises ValueError."""
        broker, mark, partition = text.partition("-")
        if not (mark and broker.isdigit() and partition.isdigit()):
            raise ValueError(f"{text!r} is not a partition: write it as <broker>-<partition>, for example 0-3")
        return cls(topic, int(broker), int(partition))
