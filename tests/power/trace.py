"""The trace that shim.c writes, as Python values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from struct import Struct

__all__ = ["Kind", "Operation", "SyncKind", "Unsupported", "encode_mark", "parse_trace", "read_trace"]

_HEAD = Struct("=IIqqq")


class Kind(IntEnum):
    """The order is that of the enum in shim.c."""

    OPEN = 1
    WRITE = 2
    TRUNCATE = 3
    RENAME = 4
    UNLINK = 5
    MKDIR = 6
    RMDIR = 7
    SYNC_BEGIN = 8
    SYNC_END = 9
    MARK = 10
    UNSUPPORTED = 11
    DROP = 12
    KILLED = 13


class SyncKind(IntEnum):
    """What a sync was asked for."""

    FDATASYNC = 0
    FSYNC = 1
    SYNCFS = 2


class Unsupported(Exception):
    """The process changed the disk in a way that the trace does not describe."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One record. `a`, `b`, `payload` by kind:

    OPEN flags, 1 if it was made, path. WRITE position, bytes, data. TRUNCATE size. RENAME source NUL target.
    UNLINK, MKDIR, RMDIR path. SYNC_BEGIN SyncKind, number of the sync. SYNC_END errno or 0, number. MARK data.
    DROP position, bytes, data: a page that a failed sync had lost left the cache, and reads as this now.
    """

    kind: Kind
    handle: int
    a: int
    b: int
    payload: bytes

    @property
    def path(self) -> str:
        return self.payload.decode()

    def __str__(self) -> str:
        shown = f"{len(self.payload)} bytes" if self.kind is Kind.WRITE else self.payload.decode("utf-8", "replace")
        return f"{self.kind.name.lower()} #{self.handle} {self.a} {self.b} {shown}"


def encode_mark(data: bytes) -> bytes:
    """A MARK as the shim writes it."""
    return _HEAD.pack(_HEAD.size + len(data), Kind.MARK, 0, 0, 0) + data


def read_trace(path: Path) -> list[Operation]:
    """All records of a trace. Raises Unsupported, ValueError for bytes that are no trace."""
    return parse_trace(path.read_bytes())


def parse_trace(data: bytes) -> list[Operation]:
    """As `read_trace`."""
    found = []
    position = 0
    while position < len(data):
        if position + _HEAD.size > len(data):
            raise ValueError(f"trace cut at byte {position}")
        size, kind, handle, a, b = _HEAD.unpack_from(data, position)
        payload = data[position + _HEAD.size : position + size]
        if size < _HEAD.size or len(payload) != size - _HEAD.size:
            raise ValueError(f"trace cut at byte {position}")
        operation = Operation(Kind(kind), handle, a, b, payload)
        if operation.kind is Kind.UNSUPPORTED:
            raise Unsupported(f"the process used {operation.path}, which the trace cannot describe")
        found.append(operation)
        position += size
    return found
