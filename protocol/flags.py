"""Interpret the flag of a put in the text protocol. metaq 1.x reads only bit 0, so senders of 1.x may have set the
other bits for purposes of their own. So a bit that metaq defines (such as "delayed") has metaq's meaning only if the
record's content fits it.
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
    """Return those of the bits DELAYED_FLAG and COMPRESSED_FLAG that are set in `flag` and that the record's content
    fits. DELAYED_FLAG fits a record with a due time, a delay or the property of half messages; COMPRESSED_FLAG fits a
    payload that begins like a Zstandard frame.
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
