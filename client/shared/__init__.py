"""Consume messages as a member of a shared group: many members take messages of the same partitions, and each message
is leased to one member at a time.
"""

from .consumer import SharedConsumer
from .message import SharedMessage

__all__ = ["SharedConsumer", "SharedMessage"]
