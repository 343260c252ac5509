"""Records with properties, as a broker stores them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metaq.protocol.properties import PropertyValue, encode_value
from metaq.protocol.record import ATTRIBUTE_FLAG, PROPERTIES_FLAG, encode_body

__all__ = ["LISTED", "body_with", "property_list", "sent_with"]

LISTED = ATTRIBUTE_FLAG | PROPERTIES_FLAG
"""The flag of a record with a property list."""


def property_list(properties: Mapping[str, PropertyValue]) -> bytes:
    """The attribute that says these, TAGS, KEYS and ATTR among them."""
    return "".join(f"{name}\x01{encode_value(value)}\x02" for name, value in properties.items()).encode()


def body_with(properties: Mapping[str, PropertyValue], payload: bytes = b"") -> bytes:
    """The body of a record whose flag is LISTED."""
    return encode_body(payload, LISTED, property_list(properties))


def sent_with(properties: Mapping[str, PropertyValue]) -> dict[str, Any]:
    """Arguments of `send` for a message with these."""
    return {"properties": properties}
