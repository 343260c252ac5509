"""From the arguments of a send to the records that go out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from isal.isal_zlib import crc32

from metaq.protocol.errors import LocalProtocolError
from metaq.protocol.limits import MAX_BATCH_RECORDS, MAX_BODY_BYTES
from metaq.protocol.record import Buffer, encode_attributes, encode_body

from ..config import MAX_BATCH_BODY_BYTES
from ..message import Message
from .outgoing import Outgoing, OutgoingBatch

__all__ = ["build_batch", "build_message"]


def build_message(
    topic: str,
    payload: Buffer,
    tag: str | None,
    keys: Sequence[str],
    attribute: str | None,
    headers: Mapping[str, str] | None,
    deadline: float,
) -> Outgoing:
    """One message. Raises TypeError (no bytes), LocalProtocolError (too large, keys with blanks)."""
    if type(payload) is not bytes and not isinstance(payload, Buffer):
        raise _no_buffer(payload)
    flag = 0
    body = payload
    if tag is not None or keys or attribute is not None or headers:
        flag, text = encode_attributes(attribute, tag, keys, headers)
        body = encode_body(payload, flag, text)
    if len(body) > MAX_BODY_BYTES:
        raise _too_large(len(body))
    outgoing = Outgoing(topic, flag, crc32(body) & 0x7FFFFFFF, body, deadline)
    outgoing.message = payload
    return outgoing


def build_batch(
    topic: str, items: list[Buffer | Message], attributes: tuple[int, bytes], deadline: float
) -> OutgoingBatch:
    """Messages that stay together. attributes: of every payload (`encode_attributes`); a Message keeps its own.

    Raises as `build_message`, and LocalProtocolError for more than one frame can carry.
    """
    flag, text = attributes
    flags: list[int] | int = flag
    if not flag and set(map(type, items)) == {bytes}:  # the usual case, without a loop
        bodies = cast(list[Buffer], items)
    else:
        bodies, flags = [], [flag] * len(items)
        for index, item in enumerate(items):
            if isinstance(item, Message):
                flags[index] = item.flag
                bodies.append(item.body)
            elif isinstance(item, Buffer):
                bodies.append(encode_body(item, flag, text) if flag else item)
            else:
                raise _no_buffer(item)
    if max(map(len, bodies)) > MAX_BODY_BYTES:
        raise _too_large(max(map(len, bodies)))
    checksums = np.fromiter(map(crc32, bodies), dtype=np.uint32, count=len(bodies)) & np.uint32(0x7FFFFFFF)
    outgoing = OutgoingBatch(topic, flags, checksums, bodies, deadline)
    if outgoing.size + 4 * outgoing.count > MAX_BATCH_BODY_BYTES or outgoing.count > MAX_BATCH_RECORDS:
        raise LocalProtocolError(
            f"a batch of {outgoing.count} messages, {outgoing.size} bytes, is above one frame's "
            f"{MAX_BATCH_RECORDS} messages and {MAX_BATCH_BODY_BYTES} bytes: send it in parts"
        )
    outgoing.message = items
    return outgoing


def _too_large(size: int) -> LocalProtocolError:
    return LocalProtocolError(f"a message of {size} bytes is above the limit of {MAX_BODY_BYTES}: send it in parts")


def _no_buffer(payload: object) -> TypeError:
    hint = ": encode it, for example with .encode()" if isinstance(payload, str) else ""
    return TypeError(f"a payload is bytes, bytearray or memoryview, not {type(payload).__name__}{hint}")
