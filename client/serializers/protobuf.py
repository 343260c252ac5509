"""Serializer for Protocol Buffers. It uses the package `protobuf`, which is a dependency of metaq itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from metaq.protocol.errors import ConfigError

if TYPE_CHECKING:
    from google.protobuf.message import Message as ProtobufMessage

__all__ = ["Protobuf"]

M = TypeVar("M", bound="ProtobufMessage")


class Protobuf(Generic[M]):
    """Serializer of one generated message class."""

    def __init__(self, kind: type[M]) -> None:
        """kind: the generated class. Raises ConfigError if it is not a protobuf class."""
        from google.protobuf.message import Message as ProtobufMessage

        if not (isinstance(kind, type) and issubclass(kind, ProtobufMessage)):
            raise ConfigError("kind", repr(kind), "name a class that protoc has generated, without calling it")
        self._kind = kind
        self.content_type = f"application/x-protobuf;message={kind.DESCRIPTOR.full_name}"

    def dumps(self, value: M) -> bytes:
        if not isinstance(value, self._kind):
            raise TypeError(f"{value!r} is no {self._kind.DESCRIPTOR.full_name} but {type(value).__name__}")
        return value.SerializeToString()

    def loads(self, payload: bytes) -> M:
        return self._kind.FromString(payload)
