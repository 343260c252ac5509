"""How bytes get to a server and back: sockets, or calls of the standalone server's core with a clock of its own."""

from __future__ import annotations

import select
import socket
import struct
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

__all__ = ["Connect", "SocketWire", "Stuck", "Wire", "socket_wires"]

ANSWER_TIMEOUT = 20.0
"""Seconds; a server that owes an answer for so long is stuck. The machine may be busy."""

_FRAME = struct.Struct(">i")


class Stuck(TimeoutError):
    """The server neither answers nor closes."""


class Wire(Protocol):
    """One connection."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Send bytes; what becomes of them when the server has closed, frame() says."""

    @abstractmethod
    def frame(self) -> bytes | None:
        """The next frame, without its length; None at the end of the connection. Raises Stuck."""

    @abstractmethod
    def has_more(self, seconds: float) -> bool:
        """Whether something comes within that time: bytes, or the end."""

    @abstractmethod
    def finish(self) -> None:
        """Say that nothing more will be sent."""

    @abstractmethod
    def close(self) -> None: ...


Connect = Callable[[], Wire]
"""A new connection to one server."""


class Frames:
    """Cuts bytes into frames."""

    def __init__(self) -> None:
        self._buffer = b""

    def __bool__(self) -> bool:
        return bool(self._buffer)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> bytes | None:
        """None: more is needed."""
        if len(self._buffer) < _FRAME.size:
            return None
        end = _FRAME.size + _FRAME.unpack_from(self._buffer)[0]
        if len(self._buffer) < end:
            return None
        frame, self._buffer = self._buffer[_FRAME.size : end], self._buffer[end:]
        return frame

    def cut_short(self) -> bytes | None:
        """What is left at the end of a connection: a frame that a server has not sent whole."""
        left, self._buffer = self._buffer, b""
        return left or None


def socket_wires(address: tuple[str, int]) -> Connect:
    """Connections to a server that listens there."""
    return lambda: SocketWire(address)


class SocketWire(Wire):
    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=ANSWER_TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = Frames()
        self._ended = False

    def send(self, data: bytes) -> None:
        """Read first what there is: a connection that is reset for writing to it forgets what it had."""
        while not self._ended and select.select([self._socket], [], [], 0)[0]:
            self._read()
        with suppress(BrokenPipeError, ConnectionResetError):  # frame() says so
            if not self._ended:
                self._socket.sendall(data)

    def frame(self) -> bytes | None:
        while True:
            frame = self._frames.next()
            if frame is not None:
                return frame
            if self._ended:
                return self._frames.cut_short()
            self._read()

    def _read(self) -> None:
        try:
            data = self._socket.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        except TimeoutError:
            raise Stuck(f"no answer within {ANSWER_TIMEOUT:.0f} s") from None
        self._frames.feed(data)
        self._ended = not data

    def has_more(self, seconds: float) -> bool:
        return bool(self._frames) or self._ended or bool(select.select([self._socket], [], [], seconds)[0])

    def finish(self) -> None:
        with suppress(OSError):  # the server has ended the connection
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()
