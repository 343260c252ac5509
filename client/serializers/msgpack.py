"""MessagePack, by the extra `msgpack`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .base import missing_library

__all__ = ["MsgPack"]


class MsgPack:
    """MessagePack with text as str and bytes as bytes; aware datetimes become its timestamps, and come back in UTC.

    default: converts a value that MessagePack cannot hold, as in msgpack.packb.
    """

    content_type = "application/msgpack"

    def __init__(self, *, default: Callable[[Any], Any] | None = None) -> None:
        """Raises ConfigError if msgpack is not installed."""
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
