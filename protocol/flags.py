"""Interpret the flag of a put in the text protocol. 1.x reads only bit 0; senders may use the other bits for any
purpose. So if a bit that metaq defines is set, it counts only if the record's content fits the bit.
"""

from __future__ import annotations

from .compression import begins_frame
from .record import (
    ATTRIBUTE_FLAG,
    COMPRESSED_FLAG,
    DELAY_PROPERTY,
    DELAYED_FLAG,
    DUE_PROPERTY,
    HALF_PROPERTY,
    PROPERTIES_FLAG,
    Buffer,
    attribute_of,
    own_list,
    payload_start,
    property_of,
)

__all__ = ["meant_of"]

_LIST = ATTRIBUTE_FLAG | PROPERTIES_FLAG
_TIMES = tuple(name.encode() for name in (DUE_PROPERTY, DELAY_PROPERTY, HALF_PROPERTY))


def meant_of(flag: int, body: Buffer) -> int:
    """Return DELAYED_FLAG, COMPRESSED_FLAG, both or 0: each of the two bits counts if it is set in `flag` and the
    record's content confirms it.
    """
    meant = 0
    if flag & DELAYED_FLAG and flag & _LIST == _LIST:
        attribute = attribute_of(body, flag)
        own = b"" if attribute is None else own_list(attribute)
        if any(property_of(own, name) is not None for name in _TIMES):
            meant = DELAYED_FLAG
    if flag & COMPRESSED_FLAG and begins_frame(memoryview(body)[payload_start(body, flag) :]):
        meant |= COMPRESSED_FLAG
    return meant
