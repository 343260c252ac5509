"""ZooKeeper's wire format as the fuzz needs it: a list of typed parts to bytes, and a reader of answers.

Written from Apache's zookeeper.jute alone, so that a mistake of the server's own codec is not made here, too.
"""

from __future__ import annotations

import re
import struct
from typing import Any

__all__ = ["OpCode", "Part", "Reader", "Unreadable", "encode"]

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_REPLACED = re.compile("\N{REPLACEMENT CHARACTER}+")


class OpCode:
    """Numbers of requests; those below -99 are the fuzz's own: what a client does without a request."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    RECONFIG = 16
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    DELETE_CONTAINER = 20
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CREATE_SESSION = -10
    CLOSE_SESSION = -11
    ERROR = -1

    CONNECT = -100
    ABANDON = -101
    EXPIRE = -102
    """Wait for the end of the connection that the server makes when the session has expired."""
    RAW = -103
    BURST = -104
    """Several requests at once, parts of the kind "request": opcode and parts of each."""


Part = tuple[str, Any]
"""A field of a request. The kind says how it is encoded: int, long, bool; buffer (bytes or None); text (str, bytes or
None, as it stands); path (text below the run's root, if it begins with a slash); paths; acls; bytes (as they stand).
Others name what differs between the servers: zxid and seen (the number of a zxid that both have shown), session,
password (numbers of sessions)."""


class Unreadable(Exception):
    """The bytes are not what the answer to that request should be."""


def _buffer(value: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if value is None else _INT.pack(len(value)) + value


def _text(value: str | bytes | None) -> bytes:
    return _buffer(value.encode() if isinstance(value, str) else value)


def _path(value: str | None, root: str) -> bytes:
    if value is not None and value.startswith("/"):
        value = root if value == "/" else root + value
    return _text(value)


def encode(parts: tuple[Part, ...], root: str) -> bytes:
    """The parts as bytes, one behind the other; `root` goes in front of paths. Those that name a server's own values
    must have been resolved."""
    encoded = []
    for kind, value in parts:
        if kind == "path":
            encoded.append(_path(value, root))
        elif kind == "int":
            encoded.append(_INT.pack(value))
        elif kind == "bool":
            encoded.append(bytes([value]))
        elif kind == "buffer":
            encoded.append(_buffer(value))
        elif kind == "long":
            encoded.append(_LONG.pack(value))
        elif kind == "paths":
            if value is None:
                encoded.append(_INT.pack(-1))
            else:
                encoded.append(_INT.pack(len(value)))
                encoded += [_path(each, root) for each in value]
        elif kind == "acls":
            if value is None:
                encoded.append(_INT.pack(-1))
            else:
                encoded.append(_INT.pack(len(value)))
                for perms, scheme, identity in value:
                    encoded.append(_INT.pack(perms) + _text(scheme) + _text(identity))
        elif kind == "text":
            encoded.append(_text(value))
        elif kind == "bytes":
            encoded.append(value)
        else:
            raise ValueError(f"{kind!r}: no kind of part")
    return b"".join(encoded)


def _decoded(data: bytes) -> str:
    """Surrogates of three bytes each, Apache's characters behind U+FFFF, are read as the character (rules.py)."""
    if data.isascii():
        return data.decode("ascii")
    if b"\xed" in data:
        data = data.decode("utf-8", "surrogatepass").encode("utf-16", "surrogatepass").decode("utf-16").encode()
    return _REPLACED.sub("\N{REPLACEMENT CHARACTER}", data.decode("utf-8"))


class Reader:
    """Reads values off the front of `data`. Each method raises Unreadable if it is too short."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, count: int) -> bytes:
        at = self._at
        if count < 0 or at + count > len(self._data):
            raise Unreadable(f"{count} bytes at {at} of {len(self._data)}")
        self._at = at + count
        return self._data[at : self._at]

    def int32(self) -> int:
        number: int = _INT.unpack(self._take(4))[0]
        return number

    def int64(self) -> int:
        number: int = _LONG.unpack(self._take(8))[0]
        return number

    def boolean(self) -> bool:
        return self._take(1) != b"\0"

    def buffer(self) -> bytes | None:
        size = self.int32()
        return None if size == -1 else self._take(size)

    def text(self) -> str | None:
        data = self.buffer()
        try:
            return None if data is None else _decoded(data)
        except UnicodeError as error:
            raise Unreadable(str(error)) from error

    def count(self) -> int | None:
        """Of a vector; None for the null vector."""
        size = self.int32()
        if size < -1 or size > len(self._data):
            raise Unreadable(f"a vector of {size}")
        return None if size == -1 else size

    def rest(self) -> bytes:
        return self._take(len(self._data) - self._at)
