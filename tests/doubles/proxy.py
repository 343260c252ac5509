"""A proxy in front of a server, whose heirs change what passes."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Self

__all__ = ["Passes", "Proxy"]

Passes = Callable[[bytes], tuple[bytes, bool]]
"""What is passed on of bytes that came, and whether anything is behind it: else the connection ends."""


class Proxy(ABC):
    """Listens on `port` of the loopback. Each connection has two threads of its own."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @abstractmethod
    def ways(self) -> tuple[Passes, Passes]:
        """For each connection: of what the client sends, and of what the server does."""

    def close(self) -> None:
        """Take no more connections; those that there are end with their peers."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for source, target, passes in zip((client, server), (server, client), self.ways(), strict=True):
                    threading.Thread(target=_copy, args=(source, target, passes), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket, passes: Passes) -> None:
    """Whoever has nothing more to say may still be answered; a connection that is broken ends on both sides."""
    with suppress(OSError):
        while data := source.recv(1 << 18):
            passed, goes_on = passes(data)
            target.sendall(passed)
            if not goes_on:
                break
        else:
            target.shutdown(socket.SHUT_WR)
            return
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
