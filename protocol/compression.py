"""Compress and decompress the payloads of messages. If a producer has compressed a message's payload, the record's flag
has bit 3 (COMPRESSED_FLAG).

The attribute in front of a payload is never compressed, so tags, keys and properties are found as in any record. A
compressed payload is one Zstandard frame that states its original size, so a reader knows how much memory the
decompression needs before the reader allocates any. The module zstandard is imported when the first payload is
compressed or decompressed.
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

# zstandard's objects serve one thread at a time, and making one costs more than using it. Each user takes one and puts
# it back: there are as many as concurrent threads, and an interrupt leaves one to the garbage collector.
_compressors: dict[int, deque[Any]] = {}
"""Compressor objects that are not in use, by compression level."""
_decompressors: deque[Any] = deque()

_ZSTANDARD = b"\x28\xb5\x2f\xfd"
"""The first four bytes of each Zstandard frame (RFC 8878)."""


def compress(payload: Buffer, level: int) -> bytes:
    """Compress a payload. level: 1 … 22. Any thread may call this."""
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
    """Return whether `payload` begins with the first four bytes of a Zstandard frame. Every compressed payload does,
    but an uncompressed payload can begin with the same bytes by chance.
    """
    return bytes(payload[: len(_ZSTANDARD)]) == _ZSTANDARD


def unpacked_bytes(packed: Buffer) -> int:
    """Return the original size in bytes of a compressed payload, which the header of its Zstandard frame states.

    Raises PayloadUnreadable if there is no header, or if the header states no size, states more than MAX_PAYLOAD_BYTES,
    or needs a dictionary.
    """
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
    """Return the original payload of `packed`. The decompression takes at most MAX_PAYLOAD_BYTES of memory. Raises
    PayloadUnreadable if the payload is damaged, or in the cases in which `unpacked_bytes` raises it.
    """
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
    """Check the header of the Zstandard frame in a record with COMPRESSED_FLAG, but not the rest of the frame. Raises
    PayloadUnreadable.
    """
    unpacked_bytes(memoryview(body)[payload_start(body, flag) :])


def payload_of(body: bytes, flag: int) -> bytes:
    """Return the uncompressed payload of a record's body. Raises PayloadUnreadable."""
    start = payload_start(body, flag)
    if flag & COMPRESSED_FLAG:
        return decompress(memoryview(body)[start:])
    return body[start:] if start else body


def unpacked_body(body: bytes, flag: int) -> tuple[int, bytes]:
    """Decompress the payload of a record with this flag and this body; return the record's new flag and new body.
    Raises PayloadUnreadable.
    """
    if not flag & COMPRESSED_FLAG:
        return flag, body
    return flag & ~COMPRESSED_FLAG, body[: payload_start(body, flag)] + payload_of(body, flag)


def unpacked_if_fitting(body: bytes, flag: int) -> tuple[int, bytes]:
    """Like `unpacked_body`, but return the flag and the body unchanged if the new body would be larger than
    MAX_BODY_BYTES, because so large a body cannot be sent. Raises PayloadUnreadable.
    """
    if flag & COMPRESSED_FLAG:
        start = payload_start(body, flag)
        if start + unpacked_bytes(memoryview(body)[start:]) > MAX_BODY_BYTES:
            return flag, body
    return unpacked_body(body, flag)
