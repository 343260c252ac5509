"""Encode and decode frames. A frame has the layout of RocketMQ's JSON remoting:

    total length u32 | 0x00 | header length u24 | JSON header | body         big-endian, total = 4 + header + body

The eight bytes before the JSON header are called the prefix. `total length` counts all bytes after itself. A frame is
shorter than 16 MiB, so its first byte is zero. As no text command begins with a zero byte, a receiver can tell frames
and text commands apart by this byte. JSON header:
`{"code":int,"language":"PYTHON","version":int,"opaque":int,"flag":bits, "remark":str,"extFields":{str:str}}`; bit 0 of
`flag` means a response, bit 1 means a one-way request, which gets no answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from .errors import LocalProtocolError, RemoteProtocolError
from .limits import (
    INT32_MAX,
    INT32_MIN,
    MAX_FRAME_BYTES,
    MAX_FRAME_HEADER_BYTES,
    MAX_HEADER_TEXTS,
    PLAIN_HEADER_BYTES,
)
from .record import Buffer

__all__ = [
    "ONE_WAY",
    "PREFIX_BYTES",
    "RESPONSE",
    "Frame",
    "FrameStream",
    "encode_frame",
    "encode_prefix",
    "frame_bytes",
    "parse_frame",
    "parse_frame_parts",
]

RESPONSE = 1
ONE_WAY = 2
REMOTING_VERSION = 1

_PREFIX = Struct(">II")
PREFIX_BYTES = _PREFIX.size
_LENGTH_WORD = 4

_NO_REMARK = '""'


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


# Python's own json: simplejson takes six times as long for a megabyte of escapes, too long for a request
# (docs/decisions/092)
_encode_json = json.JSONEncoder(separators=(",", ":")).encode
_decode_json = json.JSONDecoder(parse_constant=_no_json).decode
# an unterminated text matches, too: otherwise its end would be searched again from each of its quotation marks
_texts_in = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL).finditer


class Frame(NamedTuple):
    """One decoded frame. `ext` contains the extFields, whose values are always strings. `body` is a view into the
    received bytes.
    """

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
    """Return the prefix and the header of a frame with a body of `body_bytes` bytes. The caller sends the body after
    them.

    Integers in `ext` are written as strings. Raises LocalProtocolError if the frame would exceed MAX_FRAME_BYTES.
    """
    # numbers need no escaping, and field names are ours: this costs a third of encoding the whole object
    fields = ",".join(
        [
            f'"{name}":{_encode_json(value)}' if isinstance(value, str) else f'"{name}":"{value}"'
            for name, value in ext.items()
        ]
    )
    header = (
        f'{{"code":{int(code)},"language":"PYTHON","version":{REMOTING_VERSION},"opaque":{opaque},"flag":{flag},'
        f'"remark":{_encode_json(remark) if remark else _NO_REMARK},"extFields":{{{fields}}}}}'
    ).encode("ascii")
    total = _LENGTH_WORD + len(header) + body_bytes
    if total + _LENGTH_WORD > MAX_FRAME_BYTES or len(header) > MAX_FRAME_HEADER_BYTES:
        raise LocalProtocolError(f"a frame of {total + _LENGTH_WORD} bytes is above the limit of {MAX_FRAME_BYTES}")
    return encode_prefix(len(header), body_bytes) + header


def encode_prefix(header_bytes: int, body_bytes: int) -> bytes:
    """Return the prefix of a frame with a header of `header_bytes` and a body of `body_bytes` bytes. The frame must be
    within the limits.
    """
    return _PREFIX.pack(_LENGTH_WORD + header_bytes + body_bytes, header_bytes)


def frame_bytes(data: Buffer, position: int) -> int:
    """Return the length in bytes of the frame at `position`, prefix included, or 0 if the prefix is not complete yet.

    Call this before memory is allocated for the frame. Raises RemoteProtocolError for impossible lengths.
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


def parse_frame(data: Buffer, position: int, length: int) -> Frame:
    """Decode the frame of `length` bytes at `position`. Raises RemoteProtocolError if its header does not have the
    required form.
    """
    header = position + PREFIX_BYTES
    body = header + _header_bytes(data, position)
    view = memoryview(data)
    return _decode(bytes(view[header:body]), view[body : position + length])


def parse_frame_parts(prefix: bytes, header: bytes, body: bytes) -> Frame:
    """Like `parse_frame`, but take the prefix, the header and the body of the frame as three objects, so that a caller
    that has received them separately need not join them.
    """
    return _decode(header, memoryview(body))


def _header_bytes(data: Buffer, position: int) -> int:
    return int.from_bytes(data[position + 5 : position + 8], "big")


def _check_large(header_json: bytes) -> None:
    """Raise RemoteProtocolError if a header of more than PLAIN_HEADER_BYTES has many small values, which would be slow
    to decode, instead of a few long texts.

    Decoding a million small values takes a hundred times as long as decoding one long value with the same total length.
    """
    size = 0
    for number, text in enumerate(_texts_in(header_json)):
        size += text.end() - text.start()
        if number >= MAX_HEADER_TEXTS:
            raise RemoteProtocolError(
                f"frame header of {len(header_json)} bytes has more than {MAX_HEADER_TEXTS} names and values"
            )
        if text.end() == len(header_json):
            raise RemoteProtocolError(f"frame header of {len(header_json)} bytes ends within a text")
    if len(header_json) - size > PLAIN_HEADER_BYTES:
        raise RemoteProtocolError(
            f"frame header of {len(header_json)} bytes has more than {PLAIN_HEADER_BYTES} beside its texts"
        )


def _decode(header_json: bytes, body: memoryview) -> Frame:
    if len(header_json) > PLAIN_HEADER_BYTES:
        _check_large(header_json)
    try:
        header = _decode_json(header_json.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # JSON's and UTF-8's errors are ValueErrors
        raise RemoteProtocolError(f"frame header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise RemoteProtocolError("frame header is not a JSON object")
    ext = header.get("extFields") or {}
    remark = header.get("remark") or ""
    if not isinstance(ext, dict):
        raise RemoteProtocolError("extFields is not an object")
    if not all(isinstance(value, str) for value in ext.values()):
        ext = {name: str(value) if type(value) is int else value for name, value in ext.items()}
        if not all(isinstance(value, str) for value in ext.values()):
            raise RemoteProtocolError("extFields is not an object of strings and integers")
    if not isinstance(remark, str):
        raise RemoteProtocolError("remark is not a string")
    return Frame(_number(header, "code"), _number(header, "opaque"), _number(header, "flag"), remark, ext, body)


def _number(header: dict[str, Any], name: str) -> int:
    value = header.get(name, 0)
    if type(value) is not int or not INT32_MIN <= value <= INT32_MAX:
        raise RemoteProtocolError(f"frame header has {name}={str(value)[:40]}, not an int32")
    return value


def _are_prefix_and_header(chunks: list[bytes]) -> bool:
    return len(chunks) == 2 and len(chunks[0]) == PREFIX_BYTES and len(chunks[1]) == _header_bytes(chunks[0], 0)


T = TypeVar("T")


class FrameStream(Generic[T]):
    """Splits a received stream of bytes into frames, and parses each frame. The class does no I/O.

    The cost is O(bytes), because each byte is copied at most once when received pieces are joined. The memory for an
    incomplete frame is at most MAX_FRAME_BYTES; the size of a frame is checked before memory is allocated for it. If a
    caller passes exactly `wanted_bytes` bytes each time, no pieces are joined, and the caller can read each frame's
    header (`begun`) before the body is received.
    """

    def __init__(self, parse: Callable[[bytes, int, int], T], parse_parts: Callable[[bytes, bytes, bytes], T]) -> None:
        """parse: a function like parse_frame. parse_parts: a function like parse_frame_parts."""
        self._parse = parse
        self._parse_parts = parse_parts
        self._chunks: list[bytes] = []
        self._missing = 0

    @property
    def wanted_bytes(self) -> int:
        """The number of bytes still missing from the current part (prefix, header or body) of the current frame."""
        if len(self._chunks) == 1 and len(self._chunks[0]) == PREFIX_BYTES:
            return min(self._missing, _header_bytes(self._chunks[0], 0)) or PREFIX_BYTES
        return self._missing or PREFIX_BYTES

    @property
    def begun(self) -> T | None:
        """The current frame, if its header has arrived but its body has not arrived completely; the returned frame has
        an empty body. The value is None in all other cases, and always None if the caller has not passed exactly
        `wanted_bytes` bytes each time.
        """
        chunks = self._chunks
        return self._parse_parts(chunks[0], chunks[1], b"") if _are_prefix_and_header(chunks) else None

    def receive(self, data: bytes) -> list[T]:
        """Take the next bytes of the stream; return the frames that are complete now. Raises RemoteProtocolError for
        bytes that do not follow the protocol; the caller must then close the connection.
        """
        missing = self._missing
        if missing > len(data):
            self._chunks.append(data)
            self._missing -= len(data)
            return []
        self._missing = 0
        if self._chunks:
            chunks, self._chunks = self._chunks, []
            if missing == len(data) and _are_prefix_and_header(chunks):
                return [self._parse_parts(chunks[0], chunks[1], data)]
            data = b"".join((*chunks, data))
        frames: list[T] = []
        position = 0
        while position < len(data):
            length = frame_bytes(data, position)
            end = position + length
            if length == 0 or end > len(data):
                self._missing = max(0, end - len(data))
                self._chunks.append(data[position:] if position else data)
                break
            frames.append(self._parse(data, position, length))
            position = end
        return frames
