"""A broker's accepted connection with TLS: real sockets in one process, and a clock."""

from __future__ import annotations

import contextlib
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock

from metaq.broker import tuning
from metaq.broker.configuration.security_ini import Plain, read_security
from metaq.broker.network.tls import Certificates
from metaq.broker.network.tls_connection import HANDSHAKE_SECONDS, Handshakes
from metaq.broker.network.transport import FastConnection
from metaq.client.settings.tls_config import TlsConfig
from metaq.protocol.errors import MetaqError, TlsRequired
from metaq.protocol.tls import TlsStream


class Session:
    """What the transport asks of a session; a large frame's rest goes into `frame`."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.received_data = b""
        self.frame = bytearray()
        self.left = 0
        self.refusal: MetaqError | None = None
        self.lost = False

    large = property(lambda self: self.left > 0)
    space = property(lambda self: memoryview(self._space()))

    def _space(self) -> bytearray:
        self.buffer = bytearray(min(self.left, 1000))
        return self.buffer

    def received(self, count: int, since: float) -> None:
        self.frame += self.buffer[:count]
        self.left -= count

    def dataReceived(self, data: bytes) -> None:  # noqa: N802
        self.received_data += data

    def refuse(self, error: MetaqError) -> None:
        self.refusal = error

    def connectionLost(self, reason: object) -> None:  # noqa: N802
        self.lost = True

    reads_later = staticmethod(lambda: False)
    seconds = staticmethod(lambda: 0.0)


class Reactor(Clock):
    def addReader(self, reader: object) -> None: ...  # noqa: N802
    def removeReader(self, reader: object) -> None: ...  # noqa: N802
    def addWriter(self, writer: object) -> None: ...  # noqa: N802
    def removeWriter(self, writer: object) -> None: ...  # noqa: N802


class Scene:
    def __init__(self, pki: Path, plain: Plain = "loopback", host: str = "127.0.0.1") -> None:
        path = pki / "mq1" / "scene.ini"
        path.write_text(f"[tls]\ncertificate=broker.pem\nkey=broker.key\nplain={plain}\n")
        self.reactor = Reactor()
        ours, self.peer = socket.socketpair()
        for each in (ours, self.peer):
            each.setblocking(False)
        self.session = Session(host)
        kind: Any = Certificates(read_security(str(path))).connection_class(FastConnection, self.reactor)
        self.connection = kind.__new__(kind)  # Twisted's constructor sets options of TCP, which the pair does not have
        self.connection.__dict__.update(
            socket=ours, client=(host, 1), _addressType=IPv4Address,
            protocol=self.session, reactor=self.reactor, connected=1, disconnecting=0, disconnected=0,
            _tempDataBuffer=[], _tempDataLen=0, dataBuffer=b"", offset=0, producer=None,
            _stream=None, _is_known=False, _too_slow=None, logstr="x", fileno=lambda: -1, state="Open",
        )  # fmt: skip
        self.client = TlsStream(TlsConfig(ca=str(pki / "ca.pem")).context(), "broker", server_hostname="mq1.example")

    def turn(self) -> object:
        """Bring the client's bytes to the broker, and the answer back."""
        if data := self.client.take():
            self.peer.sendall(data)
        result = self.connection.doRead()
        with contextlib.suppress(BlockingIOError):
            self.client.receive(self.peer.recv(1 << 20))
        return result

    def connect(self) -> None:
        self.client.receive(b"")
        for _ in range(4):
            self.turn()
        assert self.client.established


def test_a_large_frame_goes_to_its_place_and_the_rest_behind_it(pki):
    scene = Scene(pki)
    scene.connect()
    scene.session.left = 2500
    scene.client.write([b"f" * 2500 + b"next"])
    scene.turn()
    assert (bytes(scene.session.frame), scene.session.received_data) == (b"f" * 2500, b"next")
    scene.connection.writeSequence([b"one ", b"two"])
    scene.client.receive(scene.peer.recv(1 << 16))
    assert scene.client.read() == b"one two"


def test_a_handshake_that_takes_too_long_is_ended_and_one_that_does_not_is_not(pki):
    slow = Scene(pki)
    slow.client.receive(b"")
    slow.turn()
    slow.connection.abortConnection = lambda: setattr(slow.session, "lost", True)
    slow.reactor.advance(HANDSHAKE_SECONDS - 0.1)
    assert not slow.session.lost
    slow.reactor.advance(0.2)
    assert slow.session.lost
    quick = Scene(pki)
    quick.connect()
    quick.reactor.advance(0)  # the next iteration
    assert not quick.reactor.getDelayedCalls()


@pytest.mark.parametrize(
    ("plain", "host", "refused"),
    [("loopback", "127.0.0.1", False), ("loopback", "10.0.0.9", True), ("nowhere", "127.0.0.1", True)],
)
def test_a_connection_without_tls_is_served_only_where_it_may_come_from(pki, plain, host, refused):
    scene = Scene(pki, plain, host)
    scene.peer.sendall(b"version 1\r\n")
    assert scene.connection.doRead() is None
    assert isinstance(scene.session.refusal, TlsRequired) == refused
    assert scene.session.received_data == b"version 1\r\n"  # it answers, so that the client learns why


def test_nonsense_behind_the_first_byte_ends_the_connection_with_one_line(pki, caplog):
    caplog.set_level("INFO")
    scene = Scene(pki)
    scene.peer.sendall(b"\x16" + b"nonsense" * 10)
    assert scene.connection.doRead() is not None
    assert "the TLS connection of 127.0.0.1 is refused: " in caplog.text


def test_handshakes_take_turns_so_that_an_iteration_of_the_reactor_is_short(pki):
    """Each step of a handshake takes as long as an iteration may: so one client has a step in each iteration."""
    scenes = [Scene(pki) for _ in range(3)]
    clock = scenes[0].reactor
    handshakes = Handshakes(clock)
    taken: list[Scene] = []
    for scene in scenes:
        kind: Any = type(scene.connection)
        kind.handshakes = handshakes
        scene.connection._begin = partial(begin_slowly, scene, clock, taken)
        scene.client.receive(b"")
        scene.peer.sendall(scene.client.take())
    for done in range(1, len(scenes) + 1):
        for scene in scenes:  # the reactor calls each connection that has data to read
            if scene not in taken:
                assert scene.connection.doRead() is None
        assert len(taken) == done
        clock.advance(0)
    assert handshakes.has_time


def begin_slowly(scene: Scene, clock: Reactor, taken: list[Scene], context: Any) -> None:
    taken.append(scene)
    type(scene.connection)._begin(scene.connection, context)
    clock.rightNow += tuning.HANDSHAKE_TURN_SECONDS
