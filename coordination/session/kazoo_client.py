"""Extend kazoo's client for metaq. The extended client knows the granted session timeout, and can make many reads in
one request. The client limits the time of each connection attempt, so that several attempts can be made before the
session times out. If no server accepts a session any more because ZooKeeper was set back, the client ends the session.
The client has one callback thread instead of two. The client can encrypt its connections by TLS.
"""

from __future__ import annotations

import atexit
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, ConnectionDropped, SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.paths import _prefix_root
from kazoo.protocol.serialization import (
    Connect,
    GetChildren,
    GetData,
    MultiHeader,
    Sync,
    int_struct,
    multiheader_struct,
    read_buffer,
    read_string,
    stat_struct,
)
from kazoo.protocol.states import ZnodeStat

from ..records.payloads import host_and_port
from ..runtime.forks import ForkGuard
from .diagnosis import examine
from .giving_up import Refusals, is_set_back
from .zk_tls import ZkTls

__all__ = ["Client"]

_LONGEST_ANSWER = 256 << 20
"""Largest length in bytes that an answer may have. A longer answer does not come from a ZooKeeper server, so the
connection is dropped.
"""

_ERROR = -1
"""In the answer to a multiRead request, a result with this type number is an error."""

_LOOK_SECONDS = 1.0
"""When servers refuse the session, the client asks all servers for their last transactions, and waits at most this
number of seconds for the answers.
"""


class Client(KazooClient):  # type: ignore[misc]
    """A KazooClient with additions. The constructor takes the same arguments as KazooClient, and `clock` and `tls`.

    granted_timeout: the session timeout in seconds that the server granted last; None before the first connection.
    set_back_from: if the last session ended because ZooKeeper was set back, the last zxid that this session had seen;
    otherwise None. ZkSession reads this attribute and then sets it to None.
    """

    def __init__(
        self,
        *arguments: Any,
        clock: Callable[[], float] = time.monotonic,
        tls: ZkTls | None = None,
        **options: Any,
    ) -> None:
        """clock: a function that returns seconds. The client uses the clock to measure how long a session has been
        without a connection. tls: encrypts the connections; None means connections without TLS.
        """
        self.granted_timeout: float | None = None
        self.set_back_from: int | None = None
        self.refusals = Refusals(clock)
        self.tls = tls
        super().__init__(*arguments, handler=_OneWorkerHandler(self._attempt_seconds, tls), **options)
        self._connection = _Connection(self, self._conn_retry.copy(), logger=self.logger)

    def get_many_async(self, paths: Sequence[str]) -> Any:
        """Read the data of each path as get_async does, but all in one request. The result for each path is (data,
        stat), or the exception for this path.

        A server older than ZooKeeper 3.6 does not know the request; the AsyncResult then raises UnimplementedError.
        """
        return self._read_many(GetData, paths)

    def get_children_many_async(self, paths: Sequence[str]) -> Any:
        """Read the names of the children of each path in one request, as get_many_async does for the data."""
        return self._read_many(GetChildren, paths)

    def interrupt(self) -> None:
        """Shut down the connection to the server, even if an attempt to open the session is waiting for the server's
        answer on this connection.
        """
        self._connection.interrupt()

    def _attempt_seconds(self) -> float:
        """Return the largest number of seconds that the attempt to connect to one server may take. With this limit,
        every server can be tried before the session times out. kazoo tries the n servers in rounds, each round in a new
        order, and may be in the middle of a round when the connection is lost. So it makes at most 2 n - 1 attempts
        until it has tried each server. kazoo's own limit for one attempt is the whole session timeout. With kazoo's
        limit, one silent server would be enough to lose the session. A server is silent, for example, if it is switched
        off, or if it lost the request because it was just starting.
        """
        return float(self.granted_timeout or self._session_timeout / 1000) / (2 * len(self.hosts))

    def _read_many(self, kind: Any, paths: Sequence[str]) -> Any:
        result = self.handler.async_result()
        self._call(_MultiRead(kind, [_prefix_root(self.chroot, path) for path in paths]), result)
        return result


class _Connection(ConnectionHandler):  # type: ignore[misc]
    _server: tuple[str, int] = ("", 0)  # the server that is being tried, as listed
    _refused = False
    _is_first = False  # the next connection is the first one after ZooKeeper was set back

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        client = self.client
        self._server, self._refused = (host, port), False
        try:
            seconds = super()._connect(host, hostip, port)
        except SessionExpiredError:
            client.refusals.connected()
            raise
        except Exception:
            if not self._refused:
                client.refusals.unreachable(self._server)
            raise
        client.refusals.connected()
        if self._is_first:  # this server may lag behind: a new session has no zxid to compare
            self._xid = 1
            self._invoke(seconds[1] / 1000, Sync(_prefix_root(client.chroot, "/")), xid=self._xid)
            self._is_first = False
        return seconds

    def _session_refused(self) -> None:
        """Record that the server that was tried last has refused the session. Raise SessionExpiredError if no server
        will ever accept the session again.
        """
        client = self.client
        self._refused = True
        client.refusals.refused(self._server)
        if client.granted_timeout is None or not client.refusals.lasted(client.granted_timeout):
            return
        servers = {(host.strip(), port) for host, port in client.hosts}
        findings = examine(",".join(host_and_port(*each) for each in servers), _LOOK_SECONDS, client.tls)
        seen = client.last_zxid
        if not is_set_back(seen, findings, refused_by_all=client.refusals.by_all(servers)):
            return
        client.refusals.connected()
        client.set_back_from = seen
        self._is_first = True
        raise SessionExpiredError(f"no server has come as far as 0x{seen:x}")

    def _read(self, length: int, timeout: float) -> Any:
        # Such a length means that the peer is not a ZooKeeper server. kazoo would allocate memory for the whole answer.
        if not 0 <= length <= _LONGEST_ANSWER:
            raise ConnectionDropped(f"an answer of {length} bytes")
        return super()._read(length, timeout)

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if isinstance(request, Connect) and request.session_id:  # a new session may need more time
            timeout = min(timeout, self.client._attempt_seconds())
        try:
            answer = super()._invoke(timeout, request, xid)
        except ConnectionDropped:
            if isinstance(request, Connect) and request.session_id:
                self._session_refused()
            raise
        if isinstance(request, Connect) and answer[0].time_out > 0:  # 0: the session has expired
            self.client.granted_timeout = answer[0].time_out / 1000
        return answer

    def interrupt(self) -> None:
        connected = self._socket
        if connected is not None:
            with suppress(OSError):  # it has just been closed
                # not SSLSocket.shutdown, behind which the connection's thread would read encrypted bytes as an answer
                socket.socket.shutdown(connected, socket.SHUT_RDWR)


class _OneWorkerHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """A kazoo handler with only one callback thread. kazoo itself has two callback threads, one for answers and one for
    watches. Two threads are needed only if the callback of a watch waits for an answer to a request. metaq's watch
    callbacks never wait, so one thread is enough.
    """

    _running: bool

    def __init__(self, attempt_seconds: Callable[[], float], tls: ZkTls | None) -> None:
        super().__init__()
        self._attempt_seconds = attempt_seconds
        self._tls = tls
        self._guard = ForkGuard("ZooKeeper client")

    def create_connection(self, *arguments: Any, timeout: float, hostname: str, **options: Any) -> Any:
        limit = min(timeout, self._attempt_seconds())
        connected = super().create_connection(*arguments, timeout=limit, hostname=hostname, **options)
        if self._tls is None:
            return connected
        connected.settimeout(limit)
        return self._tls.wrap(connected, hostname)

    def select(self, readable: Sequence[Any], *others: Any) -> Any:
        """Wait as kazoo's `select` does. But if a TLS connection has decrypted bytes that were not read yet, return at
        once, because it is possible that no further bytes arrive on its socket. kazoo does not look for such bytes
        before it waits for the next answer.
        """
        pending = [] if self._tls is None else [each for each in readable if _is_pending(each)]
        if not pending:
            return super().select(readable, *others)
        writable, exceptional = others[:2]
        found = super().select(readable, writable, exceptional, 0)
        return [*pending, *(each for each in found[0] if each not in pending)], *found[1:]

    def start(self) -> None:
        with self._state_change:
            if not self._running:
                self.completion_queue = self.callback_queue
                self._workers.append(self._create_thread_worker(self.callback_queue))
                self._running = True
                atexit.register(self.stop)

    def stop(self) -> None:
        if not self._guard.is_elsewhere:  # in a forked child, which calls this at exit, locks may be held for ever
            super().stop()


def _is_pending(readable: Any) -> bool:
    """Return whether this is a TLS connection with decrypted bytes that were not read yet."""
    return hasattr(readable, "pending") and readable.pending() > 0


class _MultiRead:
    """The request `multiRead` of ZooKeeper 3.6. Its answer has one result for each read, in order."""

    type = 22

    def __init__(self, kind: Any, paths: Sequence[str]) -> None:
        self._kind = kind
        self._paths = paths

    def __repr__(self) -> str:
        return f"MultiRead({self._kind.__name__}, {len(self._paths)} paths)"

    def serialize(self) -> bytes:
        header = MultiHeader(self._kind.type, False, -1).serialize()
        reads = b"".join(bytes(header + self._kind(path, None).serialize()) for path in self._paths)
        return reads + bytes(multiheader_struct.pack(-1, True, -1))

    def deserialize(self, data: bytes, offset: int) -> list[Any]:
        read = _read_data if self._kind is GetData else _read_children
        results: list[Any] = []
        while True:
            kind, done, _ = multiheader_struct.unpack_from(data, offset)
            offset += multiheader_struct.size
            if done:
                return results
            result, offset = (_read_error if kind == _ERROR else read)(data, offset)
            results.append(result)


def _read_data(data: bytes, offset: int) -> tuple[Any, int]:
    content, offset = read_buffer(data, offset)
    return (content, ZnodeStat._make(stat_struct.unpack_from(data, offset))), offset + stat_struct.size


def _read_children(data: bytes, offset: int) -> tuple[Any, int]:
    (count,) = int_struct.unpack_from(data, offset)
    offset += int_struct.size
    names = []
    for _ in range(count):
        name, offset = read_string(data, offset)
        names.append(name)
    return names, offset


def _read_error(data: bytes, offset: int) -> tuple[Any, int]:
    (code,) = int_struct.unpack_from(data, offset)
    return EXCEPTIONS[code](), offset + int_struct.size
