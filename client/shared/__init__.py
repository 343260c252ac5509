"""Shared consumers: many members take the messages of the same partitions, each message one member at a time."""

from .consumer import SharedConsumer
from .message import SharedMessage

__all__ = ["SharedConsumer", "SharedMessage"]
