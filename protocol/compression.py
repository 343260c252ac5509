"""Payloads that their producer has compressed: a record whose flag has bit 3 (COMPRESSED_FLAG).

The attribute in front of a payload is never compressed, so tags, keys and properties are found as in any record. A
compressed payload is one Zstandard frame that says how large it was: a reader knows what memory it is going to take
before it takes any. zstandard is loaded with the first payload.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from .errors import PayloadUnreadable
from .limits import MAX_BODY_BYTES, MAX_PAYLOAD_BYTES
from .record import COMPRESSED_FLAG, Buffer, payload_start

__all__ = [
    "begins_frame",
    "check_packed",
    "compress",
    "decompress",
    "payload_of",
    "unpacked_body",
    "unpacked_bytes",
    "unpacked_if_fitting",
]

# zstandard's objects serve one thread at a time, and to make one costs more than to use it. Each user takes one out and
# puts it back: as many are made as there are threads at once, and an interrupt loses one to the garbage collector.
_compressors: dict[int, deque[Any]] = {}
"""By level."""
_decompressors: deque[Any] = deque()

_ZSTANDARD = b"\x28\xb5\x2f\xfd"
"""How each frame begins (RFC 8878)."""


def compress(payload: Buffer, level: int) -> bytes:
    """level: 1 … 22. Any thread."""
    idle = _compressors.get(level)
    if idle is None:
        idle = _compressors.setdefault(level, deque())
    try:
        compressor = idle.pop()
    except IndexError:
        import zstandard

        compressor = zstandard.ZstdCompressor(level=level)
    packed: bytes = compressor.compress(payload)
    idle.append(compressor)
    return packed


def begins_frame(payload: Buffer) -> bool:
    """Whether this may be a compressed payload."""
    return bytes(payload[: len(_ZSTANDARD)]) == _ZSTANDARD


def unpacked_bytes(packed: Buffer) -> int:
    """How large the payload is that `packed` was made of, by the header of its frame. Raises PayloadUnreadable: there
    is none, it says nothing, or more than MAX_PAYLOAD_BYTES, or it needs a dictionary."""
    import zstandard

    try:
        if not begins_frame(packed):
            raise zstandard.ZstdError("it does not begin as one")
        frame = zstandard.get_frame_parameters(packed)
    except zstandard.ZstdError as error:
        raise PayloadUnreadable(f"its payload is said to be compressed, and is no Zstandard frame ({error})") from None
    if frame.dict_id:
        raise PayloadUnreadable(f"its compressed payload needs a dictionary, number {frame.dict_id}")
    size: int = frame.content_size
    if size == zstandard.CONTENTSIZE_UNKNOWN:
        raise PayloadUnreadable("its compressed payload does not say how large it is")
    if size > MAX_PAYLOAD_BYTES:
        raise PayloadUnreadable(
            f"its compressed payload has {size} bytes, more than the {MAX_PAYLOAD_BYTES} there may be"
        )
    return size


def decompress(packed: Buffer) -> bytes:
    """The payload that `packed` was made of. Takes no more memory than MAX_PAYLOAD_BYTES. Raises PayloadUnreadable."""
    import zstandard

    size = unpacked_bytes(packed)
    if not size:
        return b""
    try:
        decompressor = _decompressors.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor()
    try:
        payload: bytes = decompressor.decompress(packed, max_output_size=size)
    except zstandard.ZstdError as error:
        raise PayloadUnreadable(f"its compressed payload is damaged ({error})") from None
    _decompressors.append(decompressor)
    return payload


def check_packed(body: Buffer, flag: int) -> None:
    """Of a record with COMPRESSED_FLAG: look at the header of its frame, not at what is behind it. Raises
    PayloadUnreadable."""
    unpacked_bytes(memoryview(body)[payload_start(body, flag) :])


def payload_of(body: bytes, flag: int) -> bytes:
    """The payload in the body of a record, as its producer had it. Raises PayloadUnreadable."""
    start = payload_start(body, flag)
    if flag & COMPRESSED_FLAG:
        return decompress(memoryview(body)[start:])
    return body[start:] if start else body


def unpacked_body(body: bytes, flag: int) -> tuple[int, bytes]:
    """Flag and body of the same record without compression. Raises PayloadUnreadable."""
    if not flag & COMPRESSED_FLAG:
        return flag, body
    return flag & ~COMPRESSED_FLAG, body[: payload_start(body, flag)] + payload_of(body, flag)


def unpacked_if_fitting(body: bytes, flag: int) -> tuple[int, bytes]:
    """As `unpacked_body`, but the record as it is if its body would be above MAX_BODY_BYTES: it can be sent only so.
    Raises PayloadUnreadable."""
    if flag & COMPRESSED_FLAG:
        start = payload_start(body, flag)
        if start + unpacked_bytes(memoryview(body)[start:]) > MAX_BODY_BYTES:
            return flag, body
    return unpacked_body(body, flag)
