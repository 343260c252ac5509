"""Listeners: what security.ini may say about them, and what a connection of one may do."""

from __future__ import annotations

import os
import pwd
import socket
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock

from metaq.broker.assembly.server import warn_if_open
from metaq.broker.configuration.listeners_ini import ListenerRules
from metaq.broker.configuration.security_ini import read_security
from metaq.broker.network.open_listener import OpenListener
from metaq.broker.network.tls import PROXY_HEADER_SECONDS, Certificates
from metaq.broker.network.transport import FastConnection
from metaq.client.settings.config import ConnectionConfig
from metaq.client.settings.profile import PROFILE
from metaq.client.settings.tls_config import TlsConfig
from metaq.coordination.brokers.cluster_view import at_listener
from metaq.coordination.brokers.registration import BrokerAddress
from metaq.coordination.records.payloads import ListenerAddress, format_listeners, parse_listeners
from metaq.protocol.access import AccessMode, AccessOperation, Need, Permissions, Principal
from metaq.protocol.errors import ConfigError, CoordinationError, MetaqError, TlsFailed, TlsRequired
from metaq.protocol.proxy_header import ProxyHeaderReader
from metaq.protocol.tls import TlsStream

TLS = "[tls]\ncertificate=broker.pem\nkey=broker.key\n"


def listeners(pki: Path, text: str) -> tuple[ListenerRules, ...]:
    path = pki / "mq1" / "listeners.ini"
    path.write_text(TLS + text)
    return read_security(str(path)).listeners


def test_a_listener_has_strict_defaults_and_keeps_what_is_written(pki):
    plain, full, main, local = listeners(
        pki,
        "[listener app]\nport=8124\n"
        "[listener old-1]\nport=0\naddress=127.0.0.1\nprotocols=text\ntls=none\nlogin=address\n"
        "networks=10.0.0.0/8, 192.168.1.7\nproxy=10.0.0.7\nadvertise=mq.example:443\n"
        "[listener main]\nprotocols=frames\n"
        "[listener local]\npath=a.sock\nadmins=root, 1001\nmode=0660\n",
    )
    assert plain == ListenerRules("app", 8124)
    assert (plain.tls, sorted(plain.protocols), len(plain.login)) == ("required", ["frames", "text"], 3)
    assert (full.port, full.address, full.tls) == (0, "127.0.0.1", "none")
    assert ([*full.protocols], [*full.login]) == (["text"], ["address"])
    assert ([*map(str, full.networks)], full.advertise) == (["10.0.0.0/8", "192.168.1.7/32"], ("mq.example", 443))
    assert (main.tls, [*main.protocols]) == (None, ["frames"])
    assert (local.path, sorted(local.admins), local.mode) == (str(pki / "mq1" / "a.sock"), [0, 1001], 0o660)
    (local,) = listeners(pki, "[listener x]\npath=/a.sock\n")
    assert (local.admins, local.mode, local.path) == (frozenset((0, os.geteuid())), 0o600, "/a.sock")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[listener App]\nport=1\n", r"\[listener App\]: name the listener with 1 to 32"),
        ("[listener ]\nport=1\n", r"\[listener\]: is not a section|name the listener"),
        ("[listener a]\n", "port=: is required"),
        ("[listener a]\nport=70000\n", "port=70000: must be 0 … 65535"),
        ("[listener a]\nport=1\naddress=localhost\n", "address=localhost: must be a numeric address"),
        ("[listener a]\nport=1\nprotocols=text, http\n", "protocols=text, http: must be one or more of these"),
        ("[listener a]\nport=1\nlogin=\n", "login=: is empty"),
        ("[listener a]\nport=1\nlogin=token\n", "login=token: must be one or more of these"),
        ("[listener a]\nport=1\ntls=yes\n", "tls=yes: must be one of: required, optional, none"),
        ("[listener a]\nport=1\nnetworks=10.0.0.1/8\n", "networks=10.0.0.1/8: write networks such as"),
        ("[listener a]\nport=1\nproxy=haproxy\n", "proxy=haproxy: write networks such as"),
        ("[listener a]\nport=1\nadvertise=a b\n", "advertise=a b: must be a host"),
        ("[listener a]\nport=1\nadvertise=a:0\n", "advertise=a:0: must be a host"),
        ("[listener a]\nport=1\nadvertise=:5\n", "advertise=:5: must be a host"),
        ("[listener a]\nport=1\nmode=0600\n", "mode=0600: is not a key of .listener a."),
        ("[listener a]\npath=x\nport=1\n", "port=1: is not a key of .listener a."),
        ("[listener main]\nport=1\n", "port=1: is not a key of .listener main."),
        ("[listener a]\npath=x\nmode=rw\n", "mode=rw: must be a mode"),
        ("[listener a]\npath=x\nadmins=no-such-user\n", "admins=no-such-user: is no user of this machine"),
        (f"[listener a]\npath=/{'x' * 107}\n", "is too long for a Unix socket"),
        ("[listener a]\nport=1\n[listener b]\nport=1\n", r"\[listener b\] port=1: \[listener a\] has it, too"),
        ("[listener a]\npath=x\n[listener b]\npath=x\n", r"\[listener b\] path=.*x: \[listener a\] has it, too"),
        ("[listener a]\nport=1\n[listener a]\ntls=none\n", r"\[listener a\]: stands there a second time"),
        ("".join(f"[listener a{n}]\nport=0\n" for n in range(33)), "has too many listeners: use at most 32"),
    ],
)
def test_each_mistake_is_one_clear_error(pki, text, said):
    with pytest.raises(ConfigError, match=said):
        listeners(pki, text)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("mq.example", "mq.example", 7), ("[fd00::1]:443", "fd00::1", 443), ("[fd00::1]", "fd00::1", 7), ("", "mq1", 7)],
)
def test_what_a_listener_advertises(pki, text, host, port):
    (rules,) = listeners(pki, "[listener a]\nport=0\n" + (f"advertise={text}\n" if text else ""))
    found = OpenListener(rules, 7).address("mq1", "loopback")
    assert found == ListenerAddress("a", host, port, "required", ("frames", "text"))
    assert OpenListener(ListenerRules("x", path="/x"), 0).address("mq1", "loopback") is None


def test_published_listeners_are_read_again_and_damage_is_an_error():
    found = ListenerAddress("a", "mq1", 7, "none", ("text",))
    data = format_listeners([found])
    assert parse_listeners("/x", data) == {"a": found}
    assert parse_listeners("/x", data.replace(b'"name"', b'"later":1,"name"')) == {"a": found}
    assert parse_listeners("/x", b"") == {}
    for wrong in (b"{}", b"[1]", b'{"listeners":[{}]}', b'{"listeners":3}', data.replace(b"7", b"0"), b"\xff"):
        with pytest.raises(CoordinationError):
            parse_listeners("/x", wrong)


def test_a_client_gets_the_address_of_its_listener_or_the_reason_why_not():
    master, slave = BrokerAddress(0, None, "mq1", 8123), BrokerAddress(0, 1, "mq2", 8123)
    published = {"a": ListenerAddress("a", "lb", 443, "required", ("frames",))}
    assert at_listener(master, "a", published) == BrokerAddress(0, None, "lb", 443)
    for address, known in ((master, None), (master, {}), (slave, published)):
        assert "publishes no listeners" in at_listener(address, "a", known).host
    missing = at_listener(master, "b", published)
    assert (
        missing.port,
        "listener=b: broker 0-m has no such listener; it has a: name one of these" in missing.host,
    ) == (0, True)


def test_the_listener_of_a_client_comes_from_its_profile(tmp_path, monkeypatch):
    profile = tmp_path / "p.ini"
    profile.write_text("[client]\nlistener = app\n")
    monkeypatch.setenv(PROFILE, str(profile))
    assert ConnectionConfig().listener == "app"
    assert ConnectionConfig(listener=None).listener is None
    with pytest.raises(ConfigError, match="listener='A b': name a listener"):
        ConnectionConfig(listener="A b")


def test_a_local_user_is_an_operator_but_no_broker():
    enforced, local = Permissions(AccessMode.ENFORCE), Principal("local", pwd.getpwuid(0).pw_name)
    for operation in set(AccessOperation) - {AccessOperation.REPLICATE}:
        assert enforced.refusal(local, Need(operation), 0) is None
    assert "only a broker" in str(enforced.refusal(local, Need(AccessOperation.REPLICATE), 0))


@pytest.mark.parametrize(
    ("listen", "lines"), [("", 1), ("0.0.0.0", 1), ("10.0.0.1", 1), ("127.0.0.1", 0), ("127.0.0.9", 0), ("::1", 0)]
)
def test_a_broker_without_security_that_others_can_reach_says_so_in_one_line(caplog, listen, lines):
    broker: Any = SimpleNamespace(config=SimpleNamespace(listen=listen), port=8123)
    warn_if_open(broker, None)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * lines
    assert ("anybody who reaches the port 8123" in caplog.text and "docs/security.md" in caplog.text) == (lines == 1)
    caplog.clear()
    warn_if_open(broker, cast(Certificates, object()))
    assert not caplog.records


class Session:
    """What a connection asks of a session."""

    large = False

    def __init__(self) -> None:
        self.host = ""
        self.data = b""
        self.refusal: MetaqError | None = None

    def comes_from(self, host: str) -> str | None:
        self.host = host
        return None

    def dataReceived(self, data: bytes) -> None:  # noqa: N802
        self.data += data

    def refuse(self, error: MetaqError) -> None:
        self.refusal = error


class Scene:
    """A connection from 10.0.0.7 to the listener that the text describes."""

    def __init__(self, pki: Path, text: str) -> None:
        path = pki / "mq1" / "scene.ini"
        path.write_text(f"{TLS}[addresses]\nlegacy = 10.9.8.7, 10.0.0.7\n[listener a]\nport=0\n{text}")
        certificates = Certificates(read_security(str(path)))
        self.clock: Any = Clock()
        ours, self.peer = socket.socketpair()
        for each in (ours, self.peer):
            each.setblocking(False)
        self.session = Session()
        kind: Any = certificates.connection_class(FastConnection, self.clock, certificates.listeners[0])
        self.connection = kind.__new__(kind)  # Twisted's constructor sets options of TCP, which the pair does not have
        self.connection.__dict__.update(
            socket=ours, client=("10.0.0.7", 1), _addressType=IPv4Address, protocol=self.session, reactor=self.clock,
        )  # fmt: skip

    def expects_header(self) -> None:
        self.connection._header = ProxyHeaderReader()
        self.connection._too_slow = self.clock.callLater(PROXY_HEADER_SECONDS, self.connection._end_without_header)

    def got(self, data: bytes) -> Any:
        self.peer.sendall(data)
        return self.connection.doRead()


HEADER = (
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11"
    + struct.pack("!H", 12)
    + socket.inet_aton("10.9.8.7")
    + socket.inet_aton("10.0.0.1")
    + struct.pack("!HH", 5, 6)
)


@pytest.mark.parametrize(
    ("text", "refused", "principal"),
    [
        ("", True, Principal("address", "legacy")),
        ("tls=optional\n", False, Principal("address", "legacy")),
        ("tls=none\nlogin=password\n", False, Principal("anonymous")),
    ],
)
def test_the_listener_says_whether_tls_is_required_and_who_counts(pki, text, refused, principal):
    scene = Scene(pki, text)
    assert scene.got(b"version 1\r\n") is None
    assert (isinstance(scene.session.refusal, TlsRequired), scene.session.data) == (refused, b"version 1\r\n")
    assert scene.connection.principal == principal


def test_a_client_with_tls_is_told_that_the_listener_has_none(pki):
    """Otherwise it could not tell this from a broker that restarts, and would try again for long."""
    scene = Scene(pki, "tls=none\n")
    client = TlsStream(TlsConfig(ca=str(pki / "ca.pem")).context(), "broker", server_hostname="mq1.example")
    client.receive(b"")
    assert scene.got(client.take()) is not None
    with pytest.raises(TlsFailed, match="alert protocol version"):
        client.receive(scene.peer.recv(100))


def test_a_header_in_pieces_gives_the_address_and_what_follows_is_the_first_request(pki):
    scene = Scene(pki, "tls=optional\nproxy=10.0.0.7\n")
    scene.expects_header()
    for byte in HEADER:
        assert scene.got(bytes((byte,))) is None
    assert (scene.session.host, scene.session.data, scene.clock.getDelayedCalls()) == ("10.9.8.7", b"", [])
    assert scene.got(b"version\r\n") is None
    assert scene.session.data == b"version\r\n"
    assert (scene.connection.getPeer().host, scene.connection.getPeer().port) == ("10.9.8.7", 5)


def test_a_wrong_header_and_one_that_does_not_come_end_the_connection(pki):
    scene = Scene(pki, "tls=optional\nproxy=10.0.0.7\n")
    scene.expects_header()
    assert scene.got(b"version\r\n") is not None
    slow, ended = Scene(pki, "proxy=10.0.0.7\n"), []
    slow.expects_header()
    slow.connection.abortConnection = lambda: ended.append(True)
    slow.clock.advance(PROXY_HEADER_SECONDS - 0.1)
    assert not ended
    slow.clock.advance(0.2)
    assert ended
