"""Serializer for MessagePack. The serializer needs the extra `msgpack`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .base import missing_library

__all__ = ["MsgPack"]


class MsgPack:
    """Serializer for MessagePack. A str is read back as str, and bytes are read back as bytes. A datetime with a time
    zone is written as a MessagePack timestamp, and read back as a datetime in UTC.

    default: a function that converts values that MessagePack cannot represent, as in msgpack.packb.
    """

    content_type = "application/msgpack"

    def __init__(self, *, default: Callable[[Any], Any] | None = None) -> None:
        """Import the package msgpack. Raises ConfigError if it is not installed."""
        try:
            import msgpack
        except ImportError:
            raise missing_library("MsgPack", "msgpack", "msgpack") from None
        self._default = default
        self._pack, self._unpack = msgpack.packb, msgpack.unpackb

    def dumps(self, value: Any) -> bytes:
        packed: bytes = self._pack(value, default=self._default, datetime=True)
        return packed

    def loads(self, payload: bytes) -> Any:
        return self._unpack(payload, timestamp=3, strict_map_key=False)
