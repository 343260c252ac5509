"""The framed protocol's extFields: strings on the wire, checked when they are read.

A wrong or missing field raises RemoteProtocolError naming it; the broker answers that with MESSAGE_ILLEGAL.
"""

from __future__ import annotations

from collections.abc import Mapping

from .errors import RemoteProtocolError
from .limits import INT64_MAX

__all__ = ["INT64_MIN", "Ext", "int_field", "text_field"]

Ext = Mapping[str, str]
INT64_MIN = -INT64_MAX - 1


def int_field(ext: Ext, name: str, low: int, high: int, default: int | None = None) -> int:
    """A field's integer in [low, high]. Raises RemoteProtocolError; for a missing one only without a default."""
    text = ext.get(name)
    if text is None:
        if default is not None:
            return default
        raise RemoteProtocolError(f"extFields.{name} is missing")
    digits = text[1:] if text[:1] == "-" else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or not low <= int(text) <= high:
        raise RemoteProtocolError(f"extFields.{name}={text[:40]!r} is not an integer in [{low}, {high}]")
    return int(text)


def text_field(ext: Ext, name: str, default: str | None = None) -> str:
    """A field's text. Raises RemoteProtocolError for a missing one without a default."""
    text = ext.get(name, default)
    if text is None:
        raise RemoteProtocolError(f"extFields.{name} is missing")
    return text
