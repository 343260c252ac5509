"""Encode and decode the extFields of the framed protocol. On the wire, extFields are strings; in the program, they are
the attributes of a dataclass.

For each request and each answer, a dataclass derived from ExtFields describes the extFields. The annotation of each
attribute defines its form on the wire:

    @dataclass(slots=True)
    class OffsetReply(ExtFields):
        offset: Annotated[int, number("offset", 0, INT64_MAX)]

Annotations are evaluated outside of their module's scope, so functions in them must be named functions, not lambdas. If
a field is missing, the attribute gets its default; if the attribute has no default, a missing field is an error.
Decoding a wrong or missing field raises RemoteProtocolError, which names the field; an invalid topic or group name
raises InvalidName. The broker answers both errors with MESSAGE_ILLEGAL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, Self, get_type_hints

from .errors import RemoteProtocolError
from .limits import INT32_MAX, INT64_MAX, check_group, check_label, check_topic

__all__ = [
    "INT64_MIN",
    "AnyGroupField",
    "AnyTopicField",
    "Ext",
    "ExtFields",
    "Field",
    "GroupField",
    "LabelField",
    "PartitionField",
    "TopicField",
    "choice",
    "flag",
    "number",
]

Ext = Mapping[str, str]
INT64_MIN = -INT64_MAX - 1


class Field(NamedTuple):
    """The wire form of one extField.

    read: the function that converts the text on the wire to the attribute's value, and raises RemoteProtocolError or
    InvalidName for a wrong text; None if the text itself is the value. write: the inverse function; None if the value
    is a text or a number, which needs no conversion. missing: the attribute's value if a frame lacks the field and the
    attribute has no default. left_out: whether the field is left out of a frame if its value is the attribute's
    default.
    """

    name: str
    read: Callable[[str], Any] | None = None
    write: Callable[[Any], str | int] | None = None
    missing: Any = MISSING
    left_out: bool = False


def number(name: str, low: int, high: int, *, left_out: bool = False) -> Field:
    """Return a field for an integer in [low, high]."""

    def read(text: str) -> int:
        digits = text[1:] if text[:1] == "-" else text
        if digits.isascii() and digits.isdigit() and len(digits) <= 19 and low <= (value := int(text)) <= high:
            return value
        raise RemoteProtocolError(f"extFields.{name}={text[:40]!r} is not an integer in [{low}, {high}]")

    return Field(name, read, left_out=left_out)


def flag(name: str, *, left_out: bool = False) -> Field:
    """Return a field for a truth value, written as 0 or 1."""
    read = number(name, 0, 1).read
    assert read is not None
    return Field(name, lambda text: read(text) == 1, int, left_out=left_out)


def choice(name: str, choices: Collection[str]) -> Field:
    """Return a field whose value is one of these texts."""

    def read(text: str) -> str:
        if text not in choices:
            raise RemoteProtocolError(f"extFields.{name}={text[:40]!r} is none of {', '.join(choices)}")
        return text

    return Field(name, read)


def _read_any_topic(text: str) -> str:
    return text and check_topic(text)


def _read_any_group(text: str) -> str:
    return text and check_group(text)


TopicField = Annotated[str, Field("topic", lru_cache(1024)(check_topic))]
AnyTopicField = Annotated[str, Field("topic", _read_any_topic, missing="", left_out=True)]
"""The topic to which the request refers; "" means all topics."""
GroupField = Annotated[str, Field("group", check_group)]
AnyGroupField = Annotated[str, Field("group", _read_any_group, missing="", left_out=True)]
"""The group to which the request refers; "" means all groups."""
LabelField = Annotated[str, Field("group", lru_cache(1024)(check_label))]
"""The name of a group in a request such as PULL. The broker creates nothing under this name when it serves the request,
so the name need not follow 1.x's rules for group names. "" means that the request names no group.
"""
PartitionField = Annotated[int, number("partition", 0, INT32_MAX)]


def _check_text(name: str, text: str) -> None:
    """Raise RemoteProtocolError if the text contains half of a surrogate pair. JSON can express such a character, but
    UTF-8 cannot.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RemoteProtocolError(f"extFields.{name}={text[:40]!a} is not valid UTF-8") from error


class _Codec:
    """The functions that decode and encode the extFields of one dataclass. They are made from the annotations of the
    dataclass.
    """

    def __init__(self, kind: type[Any]) -> None:
        hints = get_type_hints(kind, include_extras=True)
        found: list[tuple[Any, Field]] = [(each, hints[each.name].__metadata__[0]) for each in fields(kind)]
        self.reading = [
            (field.name, field.read, field.missing if attribute.default is MISSING else attribute.default)
            for attribute, field in found
        ]
        self.left_out = [(each.name, field.name, each.default) for each, field in found if field.left_out]
        writers = {f"write_{field.name}": field.write for _, field in found if field.write is not None}
        items = [
            f"{field.name!r}: write_{field.name}(self.{attribute.name})"
            if field.write is not None
            else f"{field.name!r}: self.{attribute.name}"
            for attribute, field in found
        ]
        # generated code, as dataclasses does for __init__: no loop over the fields at each call
        # (docs/decisions/099-ext-fields.md)
        self.write: Callable[[Any], dict[str, str | int]] = eval(f"lambda self: {{{', '.join(items)}}}", writers)


class _Codecs(dict[type[Any], _Codec]):
    """Keeps the _Codec of each class of extFields, and makes it when the class is first used."""

    def __missing__(self, kind: type[Any]) -> _Codec:
        self[kind] = _Codec(kind)
        return self[kind]


_CODECS = _Codecs()


class ExtFields:
    """Base class of a dataclass that describes the extFields of one kind of request or answer."""

    __slots__ = ()

    def to_ext(self) -> dict[str, str | int]:
        """Return the extFields in the form that `encode_frame` takes."""
        codec = _CODECS[type(self)]
        ext = codec.write(self)
        for attribute, name, default in codec.left_out:
            if getattr(self, attribute) == default:
                del ext[name]
        return ext

    @classmethod
    def from_ext(cls, ext: Ext) -> Self:
        """Decode the extFields of a frame. Raises RemoteProtocolError, InvalidName."""
        values: list[Any] = []
        for name, read, missing in _CODECS[cls].reading:
            text = ext.get(name)
            if text is not None:
                if not text.isascii():
                    _check_text(name, text)
                values.append(text if read is None else read(text))
            elif missing is MISSING:
                raise RemoteProtocolError(f"extFields.{name} is missing")
            else:
                values.append(missing)
        return cls(*values)
