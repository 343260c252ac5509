"""A broker's connection to another broker with TLS: both sides in memory, and a clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet import defer
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from metaq.broker.configuration.security_ini import read_security
from metaq.broker.network.tls import Certificates
from metaq.broker.runtime import dialing
from metaq.broker.runtime.dialing import Dialer
from metaq.protocol.errors import ConfigError, TlsFailed
from metaq.protocol.tls import TlsStream


class Inner(Protocol):
    """What a broker speaks over the connection."""

    def __init__(self) -> None:
        self.data = b""
        self.reason: Failure | None = None

    def dataReceived(self, data: bytes) -> None:  # noqa: N802
        self.data += data

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: N802
        self.reason = reason


class Tcp(StringTransport):
    """The TCP connection under TLS."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False
        self.bufferSize = 1

    def setTcpNoDelay(self, enabled: bool) -> None: ...  # noqa: N802

    def abortConnection(self) -> None:  # noqa: N802
        self.aborted = True
        self.disconnecting = True


class Dialled:
    """A connection to mq1.example that has been asked for, and the other broker's side of it."""

    def __init__(self, pki: Path, monkeypatch: pytest.MonkeyPatch, host: str, certificates: Certificates) -> None:
        self.tcp = Tcp()
        self.clock = Clock()
        self.found: list[Any] = []

        def connect(factory: Any) -> Deferred[Protocol]:
            self.outer = factory.buildProtocol(None)
            self.outer.makeConnection(self.tcp)
            return succeed(self.outer)

        monkeypatch.setattr(dialing, "HostnameEndpoint", lambda *where: type("Endpoint", (), {"connect": connect}))
        self.server = TlsStream(certificates.context, "us", server_side=True)
        dialer = Dialer(self.clock, certificates.to_brokers)
        self.dialled = dialer.dial(host, 8123, 5.0, Inner).addBoth(self.found.append)

    def exchange(self) -> None:
        """Bring all bytes over, both ways."""
        sent = answer = b"some"
        while sent or answer:
            sent = self.tcp.value()
            self.tcp.clear()
            if sent:
                self.server.receive(sent)
            answer = self.server.take()
            if answer:
                self.outer.dataReceived(answer)


@pytest.fixture
def certificates(pki: Path) -> Certificates:
    return Certificates(read_security(str(pki / "mq1" / "security.ini")))


@pytest.fixture
def dialled(pki: Path, monkeypatch: pytest.MonkeyPatch, certificates: Certificates) -> Dialled:
    return Dialled(pki, monkeypatch, "mq1.example", certificates)


def test_bytes_go_both_ways_encrypted_and_the_broker_shows_its_own_certificate(dialled: Dialled) -> None:
    dialled.exchange()
    (inner,) = dialled.found
    inner.transport.writeSequence([b"follow", b" me"])
    inner.transport.write(bytes(100_000))
    assert b"follow" not in dialled.tcp.value()
    dialled.exchange()
    assert dialled.server.read() == b"follow me" + bytes(100_000)
    dialled.server.write([b"welcome"])
    dialled.exchange()
    assert inner.data == b"welcome"
    assert dialled.server.certificate["subject"] == ((("commonName", "mq1"),),)
    assert dialled.server.certified_hosts == {"mq1.example", "localhost", "127.0.0.1", "::1"}


def test_the_first_answer_may_come_with_the_end_of_the_handshake(dialled: Dialled) -> None:
    dialled.server.receive(dialled.tcp.value())
    dialled.tcp.clear()
    dialled.outer.dataReceived(dialled.server.take())
    dialled.server.receive(dialled.tcp.value())
    dialled.server.write([b"hello"])
    for byte in dialled.server.take():
        dialled.outer.dataReceived(bytes([byte]))
    assert dialled.found[0].data == b"hello"


def test_the_transport_is_the_tcp_connections_else(dialled: Dialled) -> None:
    dialled.exchange()
    (inner,) = dialled.found
    inner.transport.bufferSize = 1 << 20
    inner.transport.registerProducer(inner, True)
    inner.transport.abortConnection()
    assert (dialled.tcp.bufferSize, dialled.tcp.producer, dialled.tcp.aborted) == (1 << 20, inner, True)


def test_a_certificate_of_another_host_is_refused(
    pki: Path, monkeypatch: pytest.MonkeyPatch, certificates: Certificates
) -> None:
    dialled = Dialled(pki, monkeypatch, "mq2.example", certificates)
    with pytest.raises(TlsFailed):
        dialled.exchange()  # the other side hears of it
    (failure,) = dialled.found
    assert failure.check(TlsFailed)
    assert "Hostname mismatch" in failure.getErrorMessage()
    assert dialled.tcp.disconnecting
    dialled.outer.connectionLost(Failure(ConnectionLost()))  # told once
    assert len(dialled.found) == 1


def test_a_port_without_tls_is_named(dialled: Dialled) -> None:
    dialled.outer.dataReceived(b"HTTP/1.1 400\r\n")
    assert dialled.found[0].check(TlsFailed)


def test_a_connection_that_ends_in_the_handshake_is_named(dialled: Dialled) -> None:
    dialled.outer.connectionLost(Failure(ConnectionDone()))
    assert "does this port speak TLS?" in dialled.found[0].getErrorMessage()


def test_a_handshake_has_a_time_limit(dialled: Dialled) -> None:
    dialled.clock.advance(5.0)
    assert dialled.found[0].check(defer.TimeoutError)
    assert dialled.tcp.aborted
    dialled.outer.connectionLost(Failure(ConnectionLost()))
    assert len(dialled.found) == 1


def test_a_try_can_be_given_up(dialled: Dialled) -> None:
    dialled.dialled.cancel()
    assert dialled.found[0].check(CancelledError)
    assert dialled.tcp.aborted


def test_the_end_of_the_connection_reaches_the_protocol_inside(dialled: Dialled) -> None:
    dialled.exchange()
    (inner,) = dialled.found
    dialled.server.write([b"last words"])
    dialled.server.end()
    dialled.exchange()
    assert inner.data == b"last words"
    assert dialled.tcp.disconnecting
    dialled.outer.connectionLost(Failure(ConnectionDone()))
    assert inner.reason is not None
    dialled.outer.connectionLost(Failure(ConnectionLost()))
    assert inner.reason.check(ConnectionDone)
    inner.transport.write(b"ignored")
    assert not dialled.tcp.value()


def test_a_damaged_record_ends_the_connection(dialled: Dialled) -> None:
    dialled.exchange()
    (inner,) = dialled.found
    dialled.outer.dataReceived(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert inner.reason is not None
    assert inner.reason.check(TlsFailed)
    assert dialled.tcp.disconnecting


def test_brokers_connect_with_tls_if_security_ini_names_a_ca(pki: Path, tmp_path: Path) -> None:
    text = (pki / "mq1" / "security.ini").read_text().replace("brokers = required\n", "")
    path = pki / "mq1" / "brokers.ini"

    def to_brokers(text: str) -> object:
        path.write_text(text)
        return Certificates(read_security(str(path))).to_brokers

    assert to_brokers(text) is not None
    assert to_brokers(text + "brokers = plain\n") is None
    without = text.replace("ca = ca.pem\n", "").replace("clientCertificates = optional\n", "")
    assert to_brokers(without) is None
    with pytest.raises(ConfigError, match="CA of the other brokers"):
        to_brokers(without + "brokers = tls\n")
    with pytest.raises(ConfigError, match="clientCertificates=none: must be optional or required"):
        to_brokers(text.replace("optional", "none") + "brokers = required\n")
