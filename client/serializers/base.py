"""Define the interface of serializers, and choose the serializer that decodes a message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

from metaq.protocol.errors import ConfigError, ValueUnreadable

__all__ = ["Deserializer", "ReadableMessage", "Serializer", "ValueReader", "deserializers", "missing_library"]

T = TypeVar("T")


@runtime_checkable
class Serializer(Protocol[T]):
    """Converts values of one kind to bytes and back. The methods are called on any thread, also on several threads at
    once.

    content_type: the name of the format, in printable ASCII, such as `application/json`; it is stored in the messages,
    and appears in errors.
    """

    content_type: str

    def dumps(self, value: T) -> bytes:
        """Return the payload for a value. If this method raises an exception, the send raises the same exception."""

    def loads(self, payload: bytes) -> T:
        """Return the value that a payload contains. If this method raises an exception, the reader raises
        ValueUnreadable with this exception as its cause.
        """


Deserializer = Serializer[Any] | Iterable[Serializer[Any]]
"""One serializer, or several. If there are several, each message's content type determines which one decodes it."""


class ReadableMessage(Protocol):
    """The attributes of a message that a ValueReader uses (records/message.py)."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> Any: ...
    @property
    def offset(self) -> int: ...
    @property
    def content_type(self) -> str | None: ...
    @property
    def payload(self) -> bytes:
        """The message's payload. Raises CorruptRecord if the payload cannot be decompressed."""


class ValueReader:
    """Decodes the payloads of messages to values. Any thread may use it."""

    def __init__(self, serializers: Iterable[Serializer[Any]]) -> None:
        """serializers: the serializers of all expected content types. The first one also decodes messages without a
        content type.
        """
        self._by_type: Mapping[str, Serializer[Any]] = {each.content_type: each for each in serializers}
        self._first = next(iter(self._by_type.values()))

    def value_of(self, message: ReadableMessage) -> Any:
        """Return the value that the message's payload contains. Raises ValueUnreadable if the payload cannot be
        decoded, and CorruptRecord if the payload cannot be decompressed.
        """
        kind = message.content_type
        serializer = self._first if kind is None else self._by_type.get(kind)
        where = f"topic {message.topic}, partition {message.partition}, offset {message.offset}"
        if serializer is None:
            known = ", ".join(self._by_type)
            raise ValueUnreadable(
                f"{where}: its type is {kind}, and what reads it here is for {known}: name a deserializer for its type"
            )
        payload = message.payload
        try:
            return serializer.loads(payload)
        except Exception as error:
            said = "says no type" if kind is None else f"is of type {kind}"
            raise ValueUnreadable(
                f"{where}: it {said}, and cannot be read as {serializer.content_type}: {type(error).__name__}: {error}"
            ) from error


def deserializers(option: str, given: object) -> ValueReader:
    """Return a ValueReader for `given`, the value of the user's option `option`. Raises ConfigError unless `given` is
    one Serializer or several.
    """
    several = [given] if isinstance(given, Serializer) else list(given) if isinstance(given, Iterable) else []
    if not several or not all(isinstance(each, Serializer) and not isinstance(each, type) for each in several):
        remedy = "give it a serializer, such as Json(), or a list of them"
        raise ConfigError(option, repr(given), remedy)
    return ValueReader(several)


def missing_library(option: str, library: str, extra: str) -> ConfigError:
    """Return the error for a serializer whose library is not installed."""
    return ConfigError(option, library, f"is not installed: pip install 'metaq[{extra}]'")
