"""A gate in front of a server: the test decides whom it lets through."""

import selectors
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.waiting import DEADLINE


class Gate:
    """Passes connections on to `server` (host:port) from an address of its own. Methods: the test's thread."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.swallowed = 0
        self.passed = 0
        """Bytes, in both directions."""
        self._to_swallow = 0
        self._mute: list[socket.socket] = []
        self._fillers: list[socket.socket] = []
        self._other_end: dict[socket.socket, socket.socket] = {}
        self._accepting = True
        self._silent = False
        self._selector = selectors.DefaultSelector()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)

    def __enter__(self) -> Self:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(DEADLINE)
        for each in [self._listener, *self._mute, *self._fillers, *self._other_end]:
            each.close()
        self._selector.close()

    @property
    def passing(self) -> bool:
        """Whether a connection goes through at this moment."""
        return bool(self._other_end)

    def swallow(self, connections: int) -> None:
        """End what goes through; take the next `connections` and never answer them."""
        self._to_swallow = connections
        self.cut()

    def switch_off(self) -> None:
        """End what goes through; from now on nothing comes back from this address, not even a refusal."""
        self._accepting = False
        self._listener.listen(0)
        with suppress(TimeoutError):  # a full queue of the kernel drops what else arrives
            while True:
                filler = socket.socket()
                self._fillers.append(filler)
                filler.settimeout(0.2)
                filler.connect(self._listener.getsockname())
        self.cut()

    def silence(self) -> None:
        """From now on nothing passes, and nobody is told."""
        self._silent = True

    def cut(self) -> None:
        """End what goes through."""
        for end in list(self._other_end):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        while not self._stop.is_set():
            for key, _ in self._selector.select(0.05):
                end = key.fileobj
                assert isinstance(end, socket.socket)
                if end is self._listener:
                    self._accept()
                elif end in self._other_end:
                    self._pass_on(end)

    def _accept(self) -> None:
        if not self._accepting:
            self._selector.unregister(self._listener)
            return
        client, _ = self._listener.accept()
        if self._to_swallow:
            self._to_swallow -= 1
            self.swallowed += 1
            self._mute.append(client)
            return
        server = socket.create_connection(self._server)
        self._other_end |= {client: server, server: client}
        for each in (client, server):
            self._selector.register(each, selectors.EVENT_READ)

    def _pass_on(self, end: socket.socket) -> None:
        try:
            data = end.recv(1 << 16)
            if data and self._silent:
                return
            self._other_end[end].sendall(data)
            self.passed += len(data)
        except OSError:
            data = b""
        if not data:
            other = self._other_end.pop(end)
            del self._other_end[other]
            for each in (end, other):
                self._selector.unregister(each)
                each.close()
