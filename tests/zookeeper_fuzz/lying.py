"""A server between the fuzz and another one, which tells lies: does the fuzz see them?"""

from __future__ import annotations

import struct
from collections.abc import Callable

from tests.doubles.proxy import Passes, Proxy

from .wires import Frames

__all__ = ["LIES", "Lie", "LyingProxy"]

Lie = Callable[[], Callable[[bytes], list[bytes] | None]]
"""For each connection: what is sent for a frame of the server; None: nothing, and the connection is closed."""

_EVENT = b"\xff\xff\xff\xff"
_HEADER = struct.Struct(">iqi")
_BAD_VERSION, _NO_NODE = -103, -101


def _events_of_deletions_left_out() -> Callable[[bytes], list[bytes]]:
    return lambda frame: [] if frame[:4] == _EVENT and frame[16:20] == b"\0\0\0\2" else [frame]


def _events_behind_the_answer() -> Callable[[bytes], list[bytes]]:
    held: list[bytes] = []

    def tell(frame: bytes) -> list[bytes]:
        if frame[:4] == _EVENT:
            held.append(frame)
            return []
        frames = [frame, *held]
        held.clear()
        return frames

    return tell


def _no_node_for_bad_version() -> Callable[[bytes], list[bytes]]:
    def tell(frame: bytes) -> list[bytes]:
        if len(frame) == _HEADER.size:
            xid, zxid, error = _HEADER.unpack(frame)
            if error == _BAD_VERSION:
                return [_HEADER.pack(xid, zxid, _NO_NODE)]
        return [frame]

    return tell


def _refusals_take_no_zxid() -> Callable[[bytes], list[bytes]]:
    def tell(frame: bytes) -> list[bytes]:
        if len(frame) == _HEADER.size:
            xid, zxid, error = _HEADER.unpack(frame)
            if error == _BAD_VERSION:
                return [_HEADER.pack(xid, zxid - 1, error)]
        return [frame]

    return tell


def _closed_at_bad_version() -> Callable[[bytes], list[bytes] | None]:
    return lambda frame: None if frame[12:16] == _HEADER.pack(0, 0, _BAD_VERSION)[12:] else [frame]


def _a_byte_more() -> Callable[[bytes], list[bytes]]:
    return lambda frame: (
        [frame + b"\0"] if len(frame) == _HEADER.size + 4 and frame[:4] != b"\xff\xff\xff\xfc" else [frame]
    )


LIES: dict[str, Lie] = {
    "events of deletions left out": _events_of_deletions_left_out,
    "events behind the answer": _events_behind_the_answer,
    "no node for bad version": _no_node_for_bad_version,
    "refusals take no zxid": _refusals_take_no_zxid,
    "closed at bad version": _closed_at_bad_version,
    "a byte more": _a_byte_more,
}


class LyingProxy(Proxy):
    """In front of `server`; lies frame by frame."""

    def __init__(self, server: tuple[str, int], lie: Lie) -> None:
        self._lie = lie
        super().__init__(server)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def ways(self) -> tuple[Passes, Passes]:
        frames, lie, is_connected = Frames(), self._lie(), False

        def answers(data: bytes) -> tuple[bytes, bool]:
            """The first one answers the connect, and has no header."""
            nonlocal is_connected
            frames.feed(data)
            passed = b""
            while (frame := frames.next()) is not None:
                told = lie(frame) if is_connected else [frame]
                is_connected = True
                if told is None:
                    return passed, False
                passed += b"".join(struct.pack(">i", len(each)) + each for each in told)
            return passed, True

        return (lambda data: (data, True)), answers
