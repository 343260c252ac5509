"""Users with rates over real sockets: the broker does not read from the connections of a user beyond his rate."""

import socket
import threading
from contextlib import closing
from typing import Any

import pytest
from twisted.internet.selectreactor import SelectReactor

from metaq.broker.assembly.server import SessionFactory, listen
from metaq.broker.configuration.security_ini import read_security
from metaq.broker.network.tls import Certificates
from metaq.cli.authority import make_authority, make_broker, make_client
from metaq.client.settings.tls_config import TlsConfig
from metaq.client.transport.tls_socket import TlsSocket
from metaq.protocol.access import Access, AccessMode, Permissions, Quota, User
from metaq.protocol.statuses import Status
from metaq.protocol.text import AnswerReader
from tests.unit.broker.harness import Harness, put
from tests.waiting import eventually

SECONDS = 20.0
BODY = b"x" * 100_000
PUTS = 300
"""More bytes than all buffers of a connection have room for."""

SLOW, FAST = 1_000, 1_000_000_000
ADDRESSES = {"app": "127.0.0.2", "other": "127.0.0.3"}


class Scene:
    """A broker whose reactor runs in a thread of its own, and its clients."""

    def __init__(self, harness, reactor, pki):
        self.harness, self.reactor, self.pki = harness, reactor, pki

    def allow(self, send_bytes):
        user = User("app", Access(()), quotas={Quota.SEND_BYTES: send_bytes})
        known = Permissions(AccessMode.OPEN, {"app": user})
        self.reactor.callFromThread(self.harness.broker.account.see, known)

    def connect(self, user):
        """Connect without TLS; the address says who the user is."""
        return socket.create_connection(
            ("127.0.0.1", self.harness.broker.port), SECONDS, source_address=(ADDRESSES[user], 0)
        )

    def connect_secure(self, user):
        """Connect with TLS from the address of the other user; the certificate says who the user is."""
        folder = self.pki / user
        files = TlsConfig(
            ca=str(self.pki / "ca.pem"), certificate=str(folder / "client.pem"), key=str(folder / "client.key")
        )
        # not an SSLSocket: until Python 3.13, two threads that send and receive at the same time break its connection
        return TlsSocket(self.connect("other"), files.context(), "mq1.example", "the broker")


@pytest.fixture
def scene(tmp_path):
    pki = tmp_path / "pki"
    make_authority(pki)
    make_broker(pki, "mq1", ["mq1.example"])
    make_client(pki, "app")
    ini = pki / "mq1" / "security.ini"
    ini.write_text(ini.read_text() + "[addresses]\n" + "".join(f"{user}={ADDRESSES[user]}/32\n" for user in ADDRESSES))
    reactor = SelectReactor()
    harness = Harness(tmp_path, reactor=reactor)
    object.__setattr__(harness.broker.config, "listen", "127.0.0.1")
    object.__setattr__(harness.broker.config, "port", 0)
    certificates = Certificates(read_security(str(ini)))
    listen(harness.broker, SessionFactory(harness.broker, harness.gate, 9), reactor, certificates)
    thread = threading.Thread(target=reactor.run, kwargs={"installSignalHandlers": False})
    thread.start()
    yield Scene(harness, reactor, pki)
    reactor.callFromThread(reactor.stop)
    thread.join(SECONDS)
    assert not thread.is_alive()
    harness.close()


def answered(client, count):
    """Wait for `count` answers of puts."""
    reader = AnswerReader()
    answers: list[Any] = []
    while len(answers) < count:
        data = client.recv(1 << 16)
        assert data, "the broker has closed the connection"
        answers += reader.receive(data)
    assert {answer.code for answer in answers} == {Status.SUCCESS}


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_connections_of_a_user_are_read_at_his_rate_and_others_are_not_delayed(scene, secure):
    """The user sends much, on a connection that the broker stops to read. Another connection of the user has to wait,
    too, a connection of another user has not. A higher rate wakes both.
    """
    scene.allow(SLOW)
    rates = scene.harness.broker.account.rates
    connect = scene.connect_secure if secure else scene.connect
    with closing(connect("app")) as first, scene.connect("app") as second, scene.connect("other") as other:
        sends = threading.Thread(target=first.sendall, args=(b"".join(put("t", 0, BODY) for _ in range(PUTS)),))
        sends.start()
        eventually(lambda: rates.waiting == 1)
        second.sendall(put("t", 0))
        eventually(lambda: rates.waiting == 2)
        for _ in range(20):
            other.sendall(put("t", 1))
            answered(other, 1)
        second.setblocking(False)
        with pytest.raises(BlockingIOError):
            second.recv(1)
        assert sends.is_alive(), "the broker has read everything although the user is in debt"
        second.settimeout(SECONDS)
        scene.allow(FAST)
        answered(second, 1)
        answered(first, PUTS)
        sends.join(SECONDS)
        assert not sends.is_alive()
