"""Read and write Jute, ZooKeeper's encoding. Integers and lengths are in network byte order; the length −1 means null.

The encoding is defined by zookeeper.jute and the class BinaryInputArchive of Apache ZooKeeper 3.9.5. As in Java,
invalid UTF-8 is read as replacement characters.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["MOST_ACLS", "Acl", "JuteReader", "Malformed", "encode_acls", "encode_buffer", "encode_text"]

MOST_ACLS = 100
"""Largest number of ACLs of a znode. Apache's server has no such limit. A client of Apache's server can give a znode
thirty thousand ACLs by one request, and then the server must check all of them at each access to the znode.
"""

_INT = struct.Struct("!i")
_LONG = struct.Struct("!q")
_NULL = _INT.pack(-1)


class Malformed(Exception):  # not a MetaqError: the peer gets a marshalling error, or its connection is closed
    """Raised if received or stored bytes are invalid."""


class Acl(NamedTuple):
    """One entry of a znode's access control list. permissions: a sum of permission bits such as `acls.READ`."""

    permissions: int
    scheme: str | None
    identity: str | None


class JuteReader:
    """Reads Jute values one after the other from a bytes object. Every method raises Malformed if the bytes end too
    early.
    """

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    @property
    def left(self) -> int:
        """The number of unread bytes."""
        return len(self.data) - self.at

    def int32(self) -> int:
        """Read a signed integer of four bytes."""
        try:
            value: int = _INT.unpack_from(self.data, self.at)[0]
        except struct.error as error:
            raise Malformed("cut off") from error
        self.at += 4
        return value

    def int64(self) -> int:
        """Read a signed integer of eight bytes."""
        try:
            value: int = _LONG.unpack_from(self.data, self.at)[0]
        except struct.error as error:
            raise Malformed("cut off") from error
        self.at += 8
        return value

    def boolean(self) -> bool:
        """Read one byte as a boolean."""
        if self.at >= len(self.data):
            raise Malformed("cut off")
        self.at += 1
        return self.data[self.at - 1] != 0

    def buffer(self) -> bytes | None:
        """Read a length, and then as many bytes as the length says. Return None for null."""
        length = self.int32()
        if length == -1:
            return None
        end = self.at + length
        if length < 0 or end > len(self.data):
            raise Malformed(f"a length of {length}")
        value = self.data[self.at : end]
        self.at = end
        return value

    def text(self) -> str | None:
        """Read a length in bytes, and then a UTF-8 text of this length."""
        value = self.buffer()
        return None if value is None else value.decode("utf-8", "replace")

    def texts(self) -> list[str | None] | None:
        """Read a vector of texts; the count −1 means null. Any other negative count is read as an empty vector, as in
        Java.
        """
        count = self.int32()
        return None if count == -1 else [self.text() for _ in range(count)]

    def acls(self) -> list[Acl] | None:
        """Read a vector of at most MOST_ACLS ACLs."""
        count = self.int32()
        if count > MOST_ACLS:
            raise Malformed(f"{count} ACLs")
        return None if count == -1 else [Acl(self.int32(), self.text(), self.text()) for _ in range(count)]


def encode_buffer(value: bytes | None) -> bytes:
    return _NULL if value is None else _INT.pack(len(value)) + value


def encode_text(value: str | None) -> bytes:
    return _NULL if value is None else encode_buffer(value.encode())


def encode_acls(acls: Iterable[Acl]) -> bytes:
    parts = [_INT.pack(each.permissions) + encode_text(each.scheme) + encode_text(each.identity) for each in acls]
    return _INT.pack(len(parts)) + b"".join(parts)
