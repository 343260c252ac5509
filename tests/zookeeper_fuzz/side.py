"""The clients of one of the two servers: one request at a time."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from .answers import Context, Item, answer, connect_answer, event
from .jute import OpCode, Part, encode
from .operations import Operation, attaching
from .wires import Connect, Wire

__all__ = ["Session", "Side"]

_FRAME = struct.Struct(">i")
_REQUEST = struct.Struct(">iii")
_CLOSED = Item(("closed",))


class Session(NamedTuple):
    id: int
    password: bytes


class _Connection:
    """A wire and the number of its last request."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.xid = 0


_ENDING_ERRORS = frozenset({-115, -6})
"""After these the server may close the connection: AUTHFAILED, UNIMPLEMENTED."""

_CUT_EVERY = 8
"""Requests, one of which is sent in two pieces."""

_END_WAIT = 2.0
"""Seconds within which the end of a connection follows an answer that may be its last."""


def _may_end(answered: tuple, connection: _Connection) -> bool:
    """Whether the connection ends behind that, or an event is there."""
    return answered[0] == "answer" and answered[2] in _ENDING_ERRORS and connection.wire.has_more(_END_WAIT)


class Side:
    """One server, as the clients of a run see it.

    root: the run's znode there. zxids: those that both servers have shown, this one's numbers.
    """

    def __init__(self, connect: Connect, root: str, zxids: Sequence[int]) -> None:
        self._connect_wire = connect
        self.root = root
        self.sessions: list[Session] = []
        self.attached: dict[int, int] = {}
        """Numbers of sessions by slot."""
        self._zxids = zxids
        self._numbers: dict[int, int] = {}
        self._connections: dict[int, _Connection] = {}
        self._context = Context(root, self._numbers, {})

    def connected(self, slot: int) -> bool:
        return slot in self._connections

    def send(self, operation: Operation) -> None:
        """Send the request; receive() must follow."""
        if operation.opcode == OpCode.CONNECT:
            stale = self._connections.pop(operation.slot, None)
            if stale is not None:
                stale.wire.close()
            connection = self._connections[operation.slot] = _Connection(self._connect_wire())
            body = operation.damaged(encode(self._resolved(operation.parts), self.root))
            connection.wire.send(_FRAME.pack(len(body)) + body)
            return
        found = self._connections.get(operation.slot)
        if found is None:
            return
        if operation.opcode == OpCode.EXPIRE:
            return
        if operation.opcode == OpCode.ABANDON:
            found.wire.finish()
            return
        if operation.opcode == OpCode.RAW:
            found.wire.send(encode(operation.parts, self.root))
            return
        encoded = [
            (each.opcode, each.damaged(encode(self._resolved(each.parts), self.root))) for each in operation.requests
        ]
        self._request(found, encoded)

    def receive(self, operation: Operation) -> list[Item]:
        """All that came on the slot's connection up to the answer, or to its end. Raises Stuck."""
        connection = self._connections.get(operation.slot)
        if connection is None:
            return [Item(("not connected",))]
        if operation.opcode == OpCode.CONNECT:
            return self._connect(operation.slot, connection)
        if operation.opcode in (OpCode.ABANDON, OpCode.EXPIRE, OpCode.RAW):
            return self._end(operation.slot, connection)
        items: list[Item] = []
        for request in operation.requests:
            items += self._answer(connection, request.opcode)
            if items[-1] == _CLOSED:
                break
        last = items[-1].plain
        if last == _CLOSED.plain:
            self._forget(operation.slot)
        elif operation.opcode == OpCode.CLOSE_SESSION or _may_end(last, connection):
            items += self._end(operation.slot, connection)
        return items

    def gather(self, slot: int) -> list[Item]:
        """What has come on the slot's connection by now: all events of operations that have been answered."""
        connection = self._connections[slot]
        self._request(connection, [(OpCode.PING, b"")])
        items = self._answer(connection, OpCode.PING)
        if items[-1] == _CLOSED:
            self._forget(slot)
        return items

    def close(self) -> None:
        """Close all connections, and end all sessions, whose ends would come into a later run."""
        for slot in list(self._connections):
            self._forget(slot)
        for number in range(len(self.sessions)):
            attach = attaching(0, number)
            self.send(attach)
            if self.receive(attach)[-1].plain[0] == "connected":
                end = Operation(0, OpCode.CLOSE_SESSION)
                self.send(end)
                self.receive(end)

    @property
    def slots(self) -> list[int]:
        return list(self._connections)

    def _forget(self, slot: int) -> None:
        self._connections.pop(slot).wire.close()
        self.attached.pop(slot, None)

    def _request(self, connection: _Connection, bodies: Sequence[tuple[int, bytes]]) -> None:
        packets = b""
        for opcode, body in bodies:
            connection.xid += 1
            xid = {OpCode.PING: -2, OpCode.AUTH: -4}.get(opcode, connection.xid)
            packets += _REQUEST.pack(len(body) + 8, xid, opcode) + body
        if connection.xid % _CUT_EVERY:
            connection.wire.send(packets)
            return
        at = connection.xid % len(packets)
        for piece in (packets[:at], packets[at:]):
            connection.wire.send(piece)

    def _answer(self, connection: _Connection, opcode: int) -> list[Item]:
        items: list[Item] = []
        while True:
            frame = connection.wire.frame()
            if frame is None:
                return [*items, _CLOSED]
            if frame[:4] == b"\xff\xff\xff\xff":
                items.append(event(frame, self._context))
            else:
                return [*items, answer(opcode, frame, self._context)]

    def _connect(self, slot: int, connection: _Connection) -> list[Item]:
        frame = connection.wire.frame()
        if frame is None:
            self._forget(slot)
            return [_CLOSED]
        item, session, password = connect_answer(frame)
        if not session:
            return [item, *self._end(slot, connection)]
        number = self._numbers.get(session)
        if number is None:
            number = self._numbers[session] = len(self.sessions)
            self.sessions.append(Session(session, password))
        self.attached[slot] = number
        same = self.sessions[number].password == password
        return [Item((*item.plain, f"session {number}", "its password" if same else "another password"))]

    def _end(self, slot: int, connection: _Connection) -> list[Item]:
        """What comes up to the end of the connection, which must come."""
        items = []
        while (frame := connection.wire.frame()) is not None:
            is_event = frame[:4] == b"\xff\xff\xff\xff"
            items.append(event(frame, self._context) if is_event else answer(OpCode.ERROR, frame, self._context))
        self._forget(slot)
        return [*items, _CLOSED]

    def _resolved(self, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """With this server's values in the place of their numbers; numbers that there are not are left out, as 0."""
        return tuple(self._resolve(kind, value) for kind, value in parts)

    def _resolve(self, kind: str, value: int) -> Part:
        if kind == "zxid":
            return "long", self._zxids[value % len(self._zxids)] if self._zxids else 0
        if kind == "session":
            return "long", self.sessions[value].id if value < len(self.sessions) else 0
        if kind == "password":
            return "buffer", self.sessions[value].password if value < len(self.sessions) else bytes(16)
        return kind, value
