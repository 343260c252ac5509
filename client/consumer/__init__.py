"""Consuming: group membership, fetching ahead, delivery, offsets."""

from metaq.coordination.offset_store import LocalOffsetStore, OffsetStore
from metaq.coordination.sql_offset_store import SqlOffsetStore

from .consumer import Consumer
from .listener import RetryLater
from .rejected import LocalRecoverStore, drop_message
from .retry import Retry

__all__ = [
    "Consumer",
    "LocalOffsetStore",
    "LocalRecoverStore",
    "OffsetStore",
    "Retry",
    "RetryLater",
    "SqlOffsetStore",
    "drop_message",
]
