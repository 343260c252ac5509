"""Mutated inputs at every port of a broker."""

from __future__ import annotations

import random
import re
import select
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from metaq.cli.authority import make_authority, make_broker
from metaq.client.settings.user_config import UserConfig
from metaq.client.transport.login import Login
from metaq.coordination.security.passwords import random_password
from metaq.coordination.security.security_admin import SecurityAdmin
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.standalone_process import StandaloneZooKeeper
from metaq.protocol.access import AccessGrant, AccessMode
from metaq.protocol.errors import MetaqError, TlsFailed
from metaq.protocol.record import checksum
from metaq.protocol.text import encode_put
from metaq.protocol.tls import TlsStream
from tests.broker_process import resident_bytes, server_ini
from tests.kills.brokers import BrokerPlace
from tests.kills.outcome import Outcome, Problem, Say

from .inputs import HTTP, REQUESTS, basic, mutated, noise

__all__ = ["run"]

Port = Literal["all", "text", "records", "frames", "user", "http", "https"]

_TOPICS = {"t": "numPartitions=2", "t3": "numPartitions=3", "java": "numPartitions=2"}
_ADMIN = "root"
_BODY = b"still here"
_PUT = encode_put("t", 0, 0, checksum(_BODY), 1, _BODY)
_OPEN_AT_ONCE = 50
"""After this number of connections, all are closed, and another client sends a message."""
_IN_A_ROW = 16
"""One connection with TLS carries at most this number of inputs: a handshake costs more than an input."""
_ANSWER_SECONDS = 0.002
_DEADLINE = 60.0
_GROWTH_BYTES = 48 << 20
"""The broker's memory may grow by this, from a fifth of the inputs to their end."""


class _Connection:
    """A connection with or without TLS that reads what comes, and forgets it."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _DEADLINE)
        self._tls = None if context is None else TlsStream(context, "broker", server_hostname="127.0.0.1")
        self.ended = False
        if self._tls is not None:
            self._tls.receive(b"")
            while not self._tls.established:
                self._socket.sendall(self._tls.take())
                self._tls.receive(self.receive())
            self._socket.sendall(self._tls.take())

    def receive(self) -> bytes:
        """Wait for the next bytes as they are on the network. Raises ConnectionResetError at the end."""
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError("it closed the connection")
        return data

    def send(self, data: bytes) -> None:
        """Send one input. `ended` says whether the broker has closed the connection."""
        if self._tls is not None:
            self._tls.write((data,))
            data = self._tls.take()
        self.send_raw(data)

    def send_raw(self, data: bytes) -> None:
        """Send bytes without encrypting them."""
        try:
            self._socket.sendall(data)
        except ConnectionError:  # it may close before it has read everything
            self.ended = True

    def ask(self, data: bytes) -> bytes:
        """Send, and return the first bytes of the answer."""
        self.send(data)
        while True:
            answer = self.receive()
            if self._tls is None:
                return answer
            self._tls.receive(answer)
            if plaintext := self._tls.read():
                return plaintext

    def drain(self, seconds: float) -> None:
        """Read and forget what is there; wait at most `seconds` for it."""
        while not self.ended and select.select([self._socket], [], [], seconds)[0]:
            seconds = 0.0
            try:
                self.ended = not self._socket.recv(1 << 16)
            except ConnectionError:
                self.ended = True

    def close(self) -> None:
        self._socket.close()


class _Door(ABC):
    """A way to a broker. name: as the option says it. in_a_row: how many inputs a connection may carry."""

    in_a_row = 1

    def __init__(self, name: str, place: BrokerPlace, port: int, other: Callable[[], _Connection]) -> None:
        """other: connects a client whose requests the broker must serve meanwhile."""
        self.name = name
        self.place = place
        self.port = port
        self.other = other

    @abstractmethod
    def open(self) -> _Connection: ...

    @abstractmethod
    def send(self, connection: _Connection, rng: random.Random) -> None:
        """Send one input."""


class _Requests(_Door):
    """Requests of both protocols, with or without TLS, perhaps after a login."""

    def __init__(
        self,
        name: str,
        place: BrokerPlace,
        other: Callable[[], _Connection],
        context: ssl.SSLContext | None = None,
        login: Callable[[_Connection], None] | None = None,
    ) -> None:
        super().__init__(name, place, place.port, other)
        self._context = context
        self._login = login
        self.in_a_row = 1 if context is None else _IN_A_ROW

    def open(self) -> _Connection:
        connection = _Connection(self.port, self._context)
        if self._login is not None:
            self._login(connection)
        return connection

    def send(self, connection: _Connection, rng: random.Random) -> None:
        connection.send(mutated(rng, REQUESTS) if rng.randrange(6) else noise(rng))


class _Http(_Door):
    """Requests of HTTP, perhaps with TLS and a login."""

    def __init__(
        self,
        name: str,
        place: BrokerPlace,
        port: int,
        other: Callable[[], _Connection],
        context: ssl.SSLContext | None = None,
        login: bytes = b"Basic Og==",
    ) -> None:
        super().__init__(name, place, port, other)
        self._context = context
        self._samples = [each.replace(b"{login}", login) for each in HTTP]
        self.in_a_row = 1 if context is None else _IN_A_ROW

    def open(self) -> _Connection:
        return _Connection(self.port, self._context)

    def send(self, connection: _Connection, rng: random.Random) -> None:
        connection.send(mutated(rng, self._samples) if rng.randrange(12) else noise(rng))


class _Records(_Door):
    """TLS records: mutated in the first or second flight of the handshake or behind it, or random."""

    def __init__(
        self, name: str, place: BrokerPlace, other: Callable[[], _Connection], context: ssl.SSLContext
    ) -> None:
        super().__init__(name, place, place.port, other)
        self._context = context

    def open(self) -> _Connection:
        return _Connection(self.port)

    def send(self, connection: _Connection, rng: random.Random) -> None:
        kind = rng.randrange(8)
        if kind == 0:
            length = rng.randrange(1, 400)
            header = bytes((rng.randrange(0x14, 0x19), 3, rng.randrange(5))) + length.to_bytes(2, "big")
            connection.send_raw(b"\x16" + header[1:] + rng.randbytes(rng.randrange(length + 1)))
            return
        stream = TlsStream(self._context, "broker", server_hostname="127.0.0.1")
        stream.receive(b"")
        first = stream.take()
        if kind < 5:
            connection.send_raw(mutated(rng, [first]))
            return
        connection.send_raw(first)
        with suppress(TlsFailed, ConnectionError):
            while not stream.established:
                stream.receive(connection.receive())
            second = stream.take()
            if kind == 5:
                connection.send_raw(mutated(rng, [second]))
                return
            connection.send_raw(second)
            stream.write((mutated(rng, REQUESTS),))
            connection.send_raw(mutated(rng, [stream.take()]))


@dataclass(slots=True)
class _Tally:
    figures: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def run(directory: Path, seed: int, say: Say, *, inputs: int = 20_000, port: Port = "all") -> Outcome:
    """Two brokers get mutated inputs: one without users, and one that serves only users and only with TLS.

    inputs: how many each port gets. port: only this one: `text` (both protocols, without TLS), `records` (TLS records),
    `frames` (both protocols in TLS, without a login), `user` (the same behind an admin's login), `http`, `https` (the
    latter with an admin's login); `all` takes them in turn.

    Meanwhile another client sends a message after each 50 connections, which must be acknowledged. The brokers must not
    grow, log an internal error or make a file that they should not. "slowest answer, ms" is for a person: it depends on
    the machine.
    """
    tally = _Tally()
    with ExitStack() as stack:
        doors = _doors(directory, stack)
        for name in doors if port == "all" else (port,):
            _attack(doors[name], random.Random(f"{seed} {name}"), inputs, tally, say)
        for place in {door.place.name: door.place for door in doors.values()}.values():
            _judge(place, tally)
            place.end(_DEADLINE)
    return Outcome(tally.problems, tally.figures)


def _attack(door: _Door, rng: random.Random, inputs: int, tally: _Tally, say: Say) -> None:
    sent = connections = base = 0
    slowest = 0.0
    opened: list[_Connection] = []
    other = door.other()
    while sent < inputs:
        try:
            connection = door.open()
        except OSError as error:
            tally.problems.append(Problem("refused", f"{door.name}: after {sent} inputs a connection fails: {error}"))
            break
        connections += 1
        opened.append(connection)
        for _ in range(door.in_a_row):
            door.send(connection, rng)
            sent += 1
            if door.in_a_row > 1:
                connection.drain(_ANSWER_SECONDS)
            if connection.ended:
                break
        if len(opened) >= _OPEN_AT_ONCE or sent >= inputs:
            for each in opened:
                each.drain(0.0)
                each.close()
            opened = []
            began = time.monotonic()
            answer = other.ask(_PUT)
            slowest = max(slowest, time.monotonic() - began)
            if not answer.startswith(b"result 200 "):
                tally.problems.append(
                    Problem("others", f"{door.name}: after {sent} inputs a put gets {answer[:200]!r}")
                )
                break
        if not base and sent >= inputs // 5:
            base = resident_bytes(door.place.child.process.pid)
    other.close()
    grown = resident_bytes(door.place.child.process.pid) - base
    if grown > _GROWTH_BYTES:
        tally.problems.append(Problem("memory", f"{door.name}: the broker grew by {grown:,} bytes"))
    tally.figures |= {
        f"{door.name}: inputs": sent,
        f"{door.name}: connections": connections,
        f"{door.name}: slowest answer, ms": round(1000 * slowest),
        f"{door.name}: grown, KiB": grown >> 10,
    }
    say(f"{door.name}: {sent:,} inputs on {connections:,} connections, {grown >> 10:,} KiB, {1000 * slowest:.0f} ms")


def _judge(place: BrokerPlace, tally: _Tally) -> None:
    log = place.child.log.read_text("utf-8", "replace")
    for word in ("internal error", "Traceback"):
        if (at := log.find(word)) >= 0:
            tally.problems.append(Problem("error", f"{place.name}: {log[max(0, at - 200) : at + 800]}"))
    allowed = {f"{topic}-{partition}" for topic in _TOPICS for partition in range(3)} | {"transactions"}
    made = {path.name for path in (place.directory / "data").iterdir() if path.is_dir()}
    strange = {name for name in made - allowed if not name.startswith(("metaq", "%"))}
    if strange:
        tally.problems.append(Problem("files", f"{place.name} has made {', '.join(sorted(strange))}"))


# --- the brokers and their doors --------------------------------------------------------------------------------------


def _doors(directory: Path, stack: ExitStack) -> Mapping[str, _Door]:
    """Start both brokers. Return a door for each port."""
    zookeeper = StandaloneZooKeeper(directory / "zookeeper")
    zookeeper.start()
    stack.callback(zookeeper.stop)
    password = random_password()
    _make_admin(zookeeper.connect_string, password)
    make_authority(directory / "pki")
    security = make_broker(directory / "pki", "mq1", ["127.0.0.1"])
    security.write_text(security.read_text().replace("plain = loopback", "plain = nowhere"))
    plain = _broker(directory / "open", "zk.zkEnable=false", [], stack)
    words = ["--security", str(security)]
    secured = _broker(directory / "secured", f"zk.zkConnect={zookeeper.connect_string}", words, stack)
    context = ssl.create_default_context(cafile=str(directory / "pki" / "ca.pem"))
    login = partial(_login, password=password)
    to_plain = partial(_Connection, plain.port)

    def to_secured() -> _Connection:
        connection = _Connection(secured.port, context)
        login(connection)
        return connection

    _await_users(to_secured)
    return {
        "text": _Requests("text", plain, to_plain),
        "records": _Records("records", secured, to_secured, context),
        "frames": _Requests("frames", secured, to_secured, context),
        "user": _Requests("user", secured, to_secured, context, login),
        "http": _Http("http", plain, _http_port(plain), to_plain),
        "https": _Http("https", secured, _http_port(secured), to_secured, context, basic(_ADMIN, password)),
    }


def _make_admin(zookeeper: str, password: str) -> None:
    with ZkSession(zookeeper) as session:
        grants = [AccessGrant.parse("admin")]
        SecurityAdmin(session).add_user(_ADMIN, password, grants, first_mode=AccessMode.ENFORCE)


def _broker(directory: Path, zookeeper: str, words: list[str], stack: ExitStack) -> BrokerPlace:
    ini = server_ini(
        directory / "data", _TOPICS, unflush_threshold=1000, system="dashboardHttpPort=0", zookeeper=zookeeper
    )
    return stack.enter_context(BrokerPlace(directory, ini, program=("-m", "metaq", "broker", *words, "-f")))


def _http_port(place: BrokerPlace) -> int:
    found = re.findall(r"127\.0\.0\.1:(\d+)/", place.child.log.read_text())
    assert found, place.child.log.read_text()
    return int(found[0])


def _login(connection: _Connection, password: str) -> None:
    version = connection.ask(b"version 1\r\n").decode()
    login = Login(UserConfig(_ADMIN, password), "broker", version)
    answer = connection.ask(login.request)
    while more := login.receive(answer):
        answer = connection.ask(more)


def _await_users(connect: Callable[[], _Connection]) -> None:
    """Wait until the broker has read the users: it refuses logins before."""
    end = time.monotonic() + _DEADLINE
    while True:
        try:
            connect().close()
            return
        except (OSError, MetaqError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
