"""Consume messages as a member of a shared group. Many members get messages of the same partitions, but a broker leases
each message to only one member at a time.
"""

from .consumer import SharedConsumer
from .message import SharedMessage

__all__ = ["SharedConsumer", "SharedMessage"]
