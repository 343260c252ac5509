"""The server's answers to four-letter words. A client may send such a word instead of its first request. Each function
yields the answer as parts of a text.

Source: org.apache.zookeeper.server.command, ZooKeeper 3.9.5. The lines that monitoring tools read have the same form as
in the answers of Apache's server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from .connections import PeerConnection
from .watches import WatchTable

if TYPE_CHECKING:
    from .server import StandaloneServer

__all__ = ["HARMLESS", "WORDS", "Counters"]

VERSION = "3.9.5-metaq-standalone"
"""The version that the server reports. The text names the ZooKeeper version whose protocol the server uses, and shows
that the server is not Apache's server.
"""


class Counters:
    """Counters of events since the server's start, or since the last command `srst`, which resets the counters."""

    def __init__(self, now_ms: int) -> None:
        self.started_ms = now_ms
        self.reset()

    def reset(self) -> None:
        self.received = 0
        self._answers = self._total_ms = self.longest_ms = 0
        self._shortest_ms: int | None = None

    def answered(self, waits_ms: Sequence[int]) -> None:
        """Count packets that were sent to clients. waits_ms: for each packet, how long it had to wait for the disk, in
        ms.
        """
        if waits_ms:
            self._answers += len(waits_ms)
            self._total_ms += sum(waits_ms)
            self.longest_ms = max(self.longest_ms, *waits_ms)
            shortest = min(waits_ms)
            self._shortest_ms = shortest if self._shortest_ms is None else min(self._shortest_ms, shortest)

    @property
    def shortest_ms(self) -> int:
        return self._shortest_ms or 0

    @property
    def average_ms(self) -> float:
        return round(self._total_ms / self._answers, 4) if self._answers else 0.0


def _ruok(_server: StandaloneServer) -> Iterator[str]:
    yield "imok"


def _isro(_server: StandaloneServer) -> Iterator[str]:
    yield "rw"


def _srvr(server: StandaloneServer) -> Iterator[str]:
    yield f"Zookeeper version: {VERSION}\n"
    yield from _statistics(server)


def _stat(server: StandaloneServer) -> Iterator[str]:
    yield f"Zookeeper version: {VERSION}\nClients:\n"
    for connection in list(server.connections):
        yield f" /{connection.address}[1]({_traffic(connection)})\n"
    yield "\n"
    yield from _statistics(server)


def _statistics(server: StandaloneServer) -> Iterator[str]:
    counters = server.counters
    yield (
        f"Latency min/avg/max: {counters.shortest_ms}/{counters.average_ms}/{counters.longest_ms}\n"
        f"Received: {counters.received}\n"
        f"Sent: {server.outbox.sent}\n"
        f"Connections: {len(server.connections)}\n"
        f"Outstanding: {server.outbox.waiting}\n"
        f"Zxid: 0x{server.database.zxid:x}\n"
        "Mode: standalone\n"
        f"Node count: {len(server.database.tree.nodes)}\n"
    )


def _mntr(server: StandaloneServer) -> Iterator[str]:
    counters, tree = server.counters, server.database.tree
    values = {
        "version": VERSION,
        "server_state": "standalone",
        "ephemerals_count": sum(map(len, tree.ephemerals.values())),
        "num_alive_connections": len(server.connections),
        "avg_latency": counters.average_ms,
        "min_latency": counters.shortest_ms,
        "max_latency": counters.longest_ms,
        "outstanding_requests": server.outbox.waiting,
        "znode_count": len(tree.nodes),
        "global_sessions": len(server.sessions.by_id),
        "local_sessions": 0,
        "packets_sent": server.outbox.sent,
        "packets_received": counters.received,
        "watch_count": len(server.database.watches),
        "approximate_data_size": tree.data_bytes,
        "uptime": server.now.ms - counters.started_ms,
    }
    yield "".join(f"zk_{name}\t{value}\n" for name, value in values.items())


def _traffic(connection: PeerConnection) -> str:
    return f"queued=0,recved={connection.received},sent={connection.sent}"


def _cons(server: StandaloneServer) -> Iterator[str]:
    for connection in list(server.connections):
        yield f" /{connection.address}[1]({_traffic(connection)}{_session(connection)})\n"
    yield "\n"


def _session(connection: PeerConnection) -> str:
    session = connection.session
    if session is None:
        return ""
    last_xid = f",lcxid=0x{connection.last_xid:x}" if connection.last_xid >= 0 else ""
    return (
        f",sid=0x{session.id:x},lop={connection.last_operation},est={connection.established_ms},"
        f"to={session.timeout_ms}{last_xid},lzxid=0x{connection.last_zxid % 2**64:x}"
    )


def _conf(server: StandaloneServer) -> Iterator[str]:
    settings, sessions = server.settings, server.sessions
    yield (
        f"clientPort={settings.port}\n"
        + (f"secureClientPort={settings.secure_port}\n" if settings.secure_port else "")
        + f"dataDir={settings.data_dir}\n"
        f"tickTime={settings.tick_time_ms}\n"
        f"minSessionTimeout={sessions.shortest_ms}\n"
        f"maxSessionTimeout={sessions.longest_ms}\n"
        "serverId=0\n"
    )


def _envi(server: StandaloneServer) -> Iterator[str]:
    yield f"Environment:\nzookeeper.version={VERSION}\n"
    yield from (f"{name}={value}\n" for name, value in server.settings.environment)


def _dump(server: StandaloneServer) -> Iterator[str]:
    buckets = list(server.sessions.buckets())
    yield f"SessionTracker dump:\nSession Sets ({len(buckets)})/({len(server.sessions.by_id)}):\n"
    for expiry_ms, sessions in buckets:
        yield f"{len(sessions)} expire in {expiry_ms - server.now.ms} ms:\n"
        for session in sessions:
            yield f"\t0x{session.id:x}\n"
    ephemerals = server.database.tree.ephemerals
    yield f"ephemeral nodes dump:\nSessions with Ephemerals ({len(ephemerals)}):\n"
    for session_id, paths in list(ephemerals.items()):
        yield f"0x{session_id:x}:\n"
        yield from (f"\t{path}\n" for path in list(paths))


def _wchs(server: StandaloneServer) -> Iterator[str]:
    table = server.database.watches.data
    yield f"{len(table.by_watcher)} connections watching {len(table.by_path)} paths\nTotal watches:{len(table)}\n"


def _wchc(server: StandaloneServer) -> Iterator[str]:
    yield from _listed((_id_of(each), paths) for each, paths in _data(server).by_watcher.items())


def _wchp(server: StandaloneServer) -> Iterator[str]:
    yield from _listed((path, map(_id_of, watchers)) for path, watchers in _data(server).by_path.items())


def _listed(groups: Iterable[tuple[str, Iterable[str]]]) -> Iterator[str]:
    for name, members in groups:
        yield f"{name}\n"
        yield from (f"\t{each}\n" for each in members)
    yield "\n"


def _data(server: StandaloneServer) -> WatchTable[PeerConnection]:
    return server.database.watches.data


def _id_of(watcher: PeerConnection) -> str:
    return f"0x{watcher.session.id if watcher.session else 0:x}"


def _srst(server: StandaloneServer) -> Iterator[str]:
    server.counters.reset()
    server.outbox.sent = 0
    yield "Server stats reset.\n"


def _crst(server: StandaloneServer) -> Iterator[str]:
    for connection in list(server.connections):
        connection.received = connection.sent = 0
        yield ""
    yield "Connection stats reset.\n"


WORDS: dict[bytes, Callable[[StandaloneServer], Iterator[str]]] = {
    b"ruok": _ruok,
    b"isro": _isro,
    b"srvr": _srvr,
    b"stat": _stat,
    b"mntr": _mntr,
    b"cons": _cons,
    b"conf": _conf,
    b"envi": _envi,
    b"dump": _dump,
    b"wchs": _wchs,
    b"wchc": _wchc,
    b"wchp": _wchp,
    b"srst": _srst,
    b"crst": _crst,
}

HARMLESS = frozenset((b"ruok", b"isro", b"srvr", b"stat", b"mntr"))
"""The words that a server with a secure port answers. The others show paths and the ids of sessions, or change figures:
Apache's server does not answer them either, unless its configuration names them.
"""
