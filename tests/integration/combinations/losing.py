"""In front of a broker: loses the answers of chosen requests, which the broker has carried out."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import suppress

__all__ = ["LosingProxy"]

_KEPT_BYTES = 4096


class LosingProxy:
    """Passes everything on, but the answer to a request with a marked text: that is dropped, and its connection ends.

    Any thread may mark; each connection has two threads of its own.
    """

    def __init__(self, port: int) -> None:
        """port: where the broker listens."""
        self.lost: Counter[bytes] = Counter()
        """Answers lost, by mark."""
        self.watched: dict[bytes, list[int]] = {}
        """How often each piece of a request had these bytes, if it had them."""
        self._broker = "127.0.0.1", port
        self._marks: set[bytes] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, mark: bytes) -> None:
        """The answer to the next request with these bytes. They must stand in nothing else that clients send."""
        with self._lock:
            self._marks.add(mark)

    def close(self) -> None:
        """Take no more connections; those that there are end with their peers."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self._broker)
                for each in (client, broker):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                losing: list[bytes] = []
                threading.Thread(target=self._requests, args=(client, broker, losing), daemon=True).start()
                threading.Thread(target=self._answers, args=(broker, client, losing), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket, losing: list[bytes]) -> None:
        seen = b""
        with suppress(OSError):
            while data := client.recv(1 << 18):
                for mark, counts in self.watched.items():
                    if count := data.count(mark):
                        counts.append(count)
                seen = seen[-_KEPT_BYTES:] + data
                with self._lock:
                    found = [mark for mark in self._marks if mark in seen]
                    self._marks.difference_update(found)
                losing += found
                broker.sendall(data)
        self._end(client, broker)

    def _answers(self, broker: socket.socket, client: socket.socket, losing: list[bytes]) -> None:
        with suppress(OSError):
            while data := broker.recv(1 << 18):
                if losing:
                    self.lost.update(losing)
                    break
                client.sendall(data)
        self._end(client, broker)

    @staticmethod
    def _end(*ends: socket.socket) -> None:
        for each in ends:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
