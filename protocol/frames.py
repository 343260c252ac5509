"""Frames: the layout of RocketMQ's JSON remoting.

    total length u32 | 0x00 | header length u24 | JSON header | body         big-endian, total = 4 + header + body

`total length` counts everything behind itself. Because a frame is shorter than 16 MiB its first byte is zero, which no
text command begins with. JSON header: `{"code":int,"language":"PYTHON","version":int,"opaque":int,"flag":bits,
"remark":str,"extFields":{str:str}}`; flag bit 0 = response, bit 1 = one-way (no answer wanted).
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any, NamedTuple

import simplejson

from .errors import LocalProtocolError, RemoteProtocolError
from .limits import INT32_MAX, INT32_MIN, MAX_FRAME_BYTES, MAX_FRAME_HEADER_BYTES
from .record import Buffer

__all__ = ["ONE_WAY", "PREFIX_BYTES", "RESPONSE", "Frame", "FrameReader", "encode_frame", "frame_bytes", "parse_frame"]

RESPONSE = 1
ONE_WAY = 2
REMOTING_VERSION = 1

_PREFIX = Struct(">II")
PREFIX_BYTES = _PREFIX.size
_LENGTH_WORD = 4

_NO_REMARK = '""'

_encode_json = simplejson.JSONEncoder(separators=(",", ":")).encode
_decode_json = simplejson.JSONDecoder().decode


class Frame(NamedTuple):
    """One decoded frame. `ext` are the extFields, always strings; `body` is a view into the bytes received."""

    code: int
    opaque: int
    flag: int
    remark: str
    ext: Mapping[str, str]
    body: memoryview

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE)

    @property
    def is_one_way(self) -> bool:
        return bool(self.flag & ONE_WAY)


def encode_frame(
    code: int,
    opaque: int,
    ext: Mapping[str, str | int],
    body_bytes: int = 0,
    *,
    flag: int = 0,
    remark: str = "",
) -> bytes:
    """Prefix and header of a frame whose body has `body_bytes` bytes; the caller sends the body after it.

    Integers in `ext` are written as strings. Raises LocalProtocolError if the frame would exceed MAX_FRAME_BYTES.
    """
    # numbers need no escaping, and field names are ours: the common answer costs a quarter of the general way
    if not remark and all(type(value) is int for value in ext.values()):
        fields = "{" + ",".join([f'"{name}":"{value}"' for name, value in ext.items()]) + "}"
    else:
        fields = _encode_json({name: str(value) for name, value in ext.items()})
    header = (
        f'{{"code":{int(code)},"language":"PYTHON","version":{REMOTING_VERSION},"opaque":{opaque},"flag":{flag},'
        f'"remark":{_encode_json(remark) if remark else _NO_REMARK},"extFields":{fields}}}'
    ).encode("ascii")
    total = _LENGTH_WORD + len(header) + body_bytes
    if total + _LENGTH_WORD > MAX_FRAME_BYTES or len(header) > MAX_FRAME_HEADER_BYTES:
        raise LocalProtocolError(f"a frame of {total + _LENGTH_WORD} bytes is above the limit of {MAX_FRAME_BYTES}")
    return _PREFIX.pack(total, len(header)) + header


def frame_bytes(data: Buffer, position: int) -> int:
    """Length in bytes of the frame that begins at `position`, prefix included; 0 if the prefix is not complete yet.

    Checked before anything is buffered for it. Raises RemoteProtocolError for lengths that cannot be.
    """
    if len(data) - position < PREFIX_BYTES:
        return 0
    total, header = _PREFIX.unpack_from(data, position)
    if header >> 24:
        raise RemoteProtocolError(f"frame header type {header >> 24} is not JSON (0)")
    if header > MAX_FRAME_HEADER_BYTES or total + _LENGTH_WORD > MAX_FRAME_BYTES or header + _LENGTH_WORD > total:
        raise RemoteProtocolError(f"frame of {total} bytes with a header of {header} bytes is outside the limits")
    length: int = total + _LENGTH_WORD
    return length


def parse_frame(data: bytes, position: int, length: int) -> Frame:
    """Decode the frame of `length` bytes at `position`. Raises RemoteProtocolError for a header that is not ours."""
    header_end = position + PREFIX_BYTES + int.from_bytes(data[position + 5 : position + 8], "big")
    try:
        header = _decode_json(data[position + PREFIX_BYTES : header_end].decode("utf-8"))
    except (ValueError, RecursionError) as error:  # simplejson's and UTF-8's errors are ValueErrors
        raise RemoteProtocolError(f"frame header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise RemoteProtocolError("frame header is not a JSON object")
    ext = header.get("extFields") or {}
    remark = header.get("remark") or ""
    if not isinstance(ext, dict) or not all(isinstance(value, str) for value in ext.values()):
        raise RemoteProtocolError("extFields is not an object of strings")
    if not isinstance(remark, str):
        raise RemoteProtocolError("remark is not a string")
    body = memoryview(data)[header_end : position + length]
    return Frame(_number(header, "code"), _number(header, "opaque"), _number(header, "flag"), remark, ext, body)


def _number(header: dict[str, Any], name: str) -> int:
    value = header.get(name, 0)
    if type(value) is not int or not INT32_MIN <= value <= INT32_MAX:
        raise RemoteProtocolError(f"frame header has {name}={str(value)[:40]}, not an int32")
    return value


class FrameReader:
    """Reads frames from a stream of bytes; no I/O. Used by clients; a broker reads both protocols (requests.py).

    Cost: O(bytes), each byte is joined at most once; memory is bounded by MAX_FRAME_BYTES, checked before buffering.
    """

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._missing = 0

    def receive(self, data: bytes) -> list[Frame]:
        """Take the next bytes; return the frames they complete. Raises RemoteProtocolError: close the connection."""
        if self._missing > len(data):
            self._chunks.append(data)
            self._missing -= len(data)
            return []
        if self._chunks:
            self._chunks.append(data)
            data = b"".join(self._chunks)
            self._chunks.clear()
        self._missing = 0
        frames: list[Frame] = []
        position = 0
        while position < len(data):
            length = frame_bytes(data, position)
            if length == 0 or position + length > len(data):
                self._missing = max(0, position + length - len(data))
                self._chunks.append(data[position:] if position else data)
                break
            frames.append(parse_frame(data, position, length))
            position += length
        return frames
