"""A server between the fuzz and another one, which tells lies: does the fuzz see them?"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

__all__ = ["LIES", "Lie", "LyingProxy"]

Lie = Callable[[], Callable[[bytes], list[bytes] | None]]
"""For each connection: what is sent for a frame of the server; None: nothing, and the connection is closed."""

Address = tuple[str, int]

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


class LyingProxy:
    """Listens on `address` and forwards to `server`, frame by frame. Threads of its own; a context manager."""

    def __init__(self, server: Address, lie: Lie) -> None:
        self._server = server
        self._lie = lie
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: Address = ("127.0.0.1", self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            for connection in (client, server):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_forward, args=(client, server), daemon=True).start()
            threading.Thread(target=_tell, args=(server, client, self._lie()), daemon=True).start()


def _forward(client: socket.socket, server: socket.socket) -> None:
    try:
        while data := client.recv(1 << 16):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the other direction closes both


def _tell(server: socket.socket, client: socket.socket, lie: Callable[[bytes], list[bytes] | None]) -> None:
    with server, client, _ended(server, client):
        for number, frame in enumerate(_frames(server)):
            told = lie(frame) if number else [frame]  # the first one answers the connect, and has no header
            if told is None:
                return
            try:
                client.sendall(b"".join(struct.pack(">i", len(each)) + each for each in told))
            except OSError:
                return


@contextmanager
def _ended(*connections: socket.socket) -> Iterator[None]:
    """Shut down behind it: while the other thread waits for one to read, closing it alone would say nothing."""
    try:
        yield
    finally:
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _frames(server: socket.socket) -> Iterator[bytes]:
    with server.makefile("rb") as stream, suppress(ConnectionResetError):
        while len(size := stream.read(4)) == 4:
            yield stream.read(struct.unpack(">i", size)[0])
