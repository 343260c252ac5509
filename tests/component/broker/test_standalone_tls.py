"""The secure port of the standalone ZooKeeper: real sockets, our own sessions, and everything that must be refused."""

import datetime
import gc
import re
import shutil
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.exceptions import NoAuthError
from kazoo.security import ACL, Id, make_acl

from metaq.broker.network import tls_connection
from metaq.broker.standalone.in_process import InProcessZooKeeper
from metaq.cli import authority
from metaq.cli.authority import make_authority, make_broker, make_client
from metaq.coordination.runtime.certificates import CertificateFiles, ClientCertificates
from metaq.coordination.servers.free_ports import ready_port
from metaq.coordination.servers.local_zookeeper import four_letter_word
from metaq.coordination.servers.server_tls import ServerTls
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.standalone_process import StandaloneZooKeeper
from metaq.protocol.errors import ConfigError, CoordinationUnavailable
from tests.waiting import eventually

CONNECT = struct.pack("!iiqiqi", 44, 0, 0, 30_000, 0, 16) + bytes(16)
WHO_AM_I = struct.pack("!iii", 8, 1, 107)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pki") / "pki"
    make_authority(directory)
    make_broker(directory, "zk", ["127.0.0.1"])
    for name in ("mq1", "mq2"):
        make_client(directory, name)
    return directory


def server_tls(pki: Path, asked: ClientCertificates = "optional") -> ServerTls:
    folder = pki / "zk"
    files = CertificateFiles(str(pki / "ca.pem"), str(folder / "broker.pem"), str(folder / "broker.key"), "zookeeper")
    return ServerTls(files, asked)


def client_files(pki: Path, name: str = "", ca: Path | None = None) -> CertificateFiles:
    own = (str(pki / name / "client.pem"), str(pki / name / "client.key")) if name else ()
    return CertificateFiles(str(ca or pki / "ca.pem"), *own)


@pytest.fixture
def server(pki: Path) -> Iterator[InProcessZooKeeper]:
    """One whose only port is secure."""
    with InProcessZooKeeper(tls=server_tls(pki)) as server:
        yield server


def test_a_verified_certificate_is_an_identity_and_others_have_none(pki: Path, server: InProcessZooKeeper):
    with (
        ZkSession(server.connect_string, tls=client_files(pki, "mq1")) as owner,
        ZkSession(server.connect_string, tls=client_files(pki, "mq2")) as other,
        ZkSession(server.connect_string, tls=client_files(pki)) as nobody,
    ):
        assert owner.zk.create("/mine", b"x", [make_acl("auth", "", all=True)]) == "/mine"
        assert nobody.zk.create("/large", bytes(900_000)) == "/large"
        assert owner.zk.get_acls("/mine")[0] == [ACL(31, Id("x509", "CN=mq1"))]
        assert other.zk.get("/large")[0] == bytes(900_000)
        for stranger in (other, nobody):
            with pytest.raises(NoAuthError):
                stranger.zk.get("/mine")


@pytest.mark.parametrize("asked", ["none", "optional", "required"])
def test_a_server_process_serves_whom_its_option_admits(pki: Path, tmp_path: Path, asked: ClientCertificates):
    with StandaloneZooKeeper(tmp_path / "zk", tls=server_tls(pki, asked)) as server:
        assert identities(server, pki, "mq1") == ([] if asked == "none" else ["CN=mq1"])
        if asked == "required":
            with pytest.raises(CoordinationUnavailable, match="check `certificate` and `key`"):
                ZkSession(server.connect_string, tls=client_files(pki)).start(20.0)
        else:
            assert identities(server, pki) == []


def identities(server: StandaloneZooKeeper, pki: Path, name: str = "") -> list[str]:
    """The names of certificates that the server sees."""
    context = client_files(pki, name).client_context()
    connected = socket.create_connection((server.host, server.port), timeout=30)
    with context.wrap_socket(connected, server_hostname=server.host) as connection:
        connection.sendall(CONNECT + WHO_AM_I)
        answer = b""
        while answer.count(b"ip") < 1 or len(answer) < 40 + 4 + struct.unpack_from("!i", answer, 40)[0]:
            answer += connection.recv(4096)
    return re.findall(r"CN=\w+", answer.decode("latin-1"))


def test_a_client_without_tls_learns_what_is_missing(server: InProcessZooKeeper):
    with pytest.raises(CoordinationUnavailable, match=r"speaks TLS: add a section \[zookeeper\]"):
        ZkSession(server.connect_string).start(20.0)


def test_both_ports_serve_the_same_data(pki: Path, tmp_path: Path):
    with (
        StandaloneZooKeeper(tmp_path / "zk", tls=server_tls(pki), secure_port=0) as server,
        ZkSession(server.connect_string) as plain,
        ZkSession(server.secure_string, tls=client_files(pki)) as secure,
    ):
        plain.zk.create("/a", b"x")
        assert secure.zk.get("/a")[0] == b"x"
        assert "Mode: standalone" in four_letter_word(server.host, server.port, b"srvr")


@pytest.mark.parametrize(
    "data", [CONNECT, b"srvr\r\n", b"GET / HTTP/1.0\r\n\r\n", bytes(100), b"\x16\x03\x01\x00\x05hello"]
)
def test_bytes_without_tls_get_no_answer(server: InProcessZooKeeper, caplog: pytest.LogCaptureFixture, data: bytes):
    caplog.set_level("INFO")
    with socket.create_connection((server.host, server.port), timeout=30) as connection:
        connection.sendall(data)
        answer = received(connection)
    assert len(answer) in (0, 7)
    assert answer[:1] in (b"", b"\x15")  # an alert of TLS
    eventually(lambda: "the TLS connection of 127.0.0.1 is refused" in caplog.text)


def received(connection: socket.socket) -> bytes:
    """All bytes until the end of the connection."""
    data = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(4096):
            data += part
    return data


@pytest.mark.parametrize("begin", [b"", b"\x16\x03\x01\x02\x00\x01"])
def test_a_slow_handshake_is_ended(server: InProcessZooKeeper, monkeypatch, caplog, begin: bytes):
    caplog.set_level("INFO")
    monkeypatch.setattr(tls_connection, "HANDSHAKE_SECONDS", 0.1)
    with socket.create_connection((server.host, server.port), timeout=30) as connection:
        connection.sendall(begin)
        assert received(connection) == b""
    assert "its handshake took longer than 0.1 seconds" in caplog.text


def test_wrong_and_expired_certificates_are_refused(pki, server, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    strangers = tmp_path / "strangers"
    make_authority(strangers)
    make_client(strangers, "mq1")
    monkeypatch.setattr(authority, "_DAYS", -1)
    monkeypatch.setattr(authority, "_EARLY", datetime.timedelta(days=3))
    make_client(pki, "old")
    old = make_broker(pki, "old-zk", ["127.0.0.1"]).parent
    for files, said in (
        (client_files(pki, ca=strangers / "ca.pem"), "its certificate is refused"),
        (client_files(strangers, "mq1", pki / "ca.pem"), "check `certificate` and `key`"),
        (client_files(pki, "old"), "check `certificate` and `key`"),
    ):
        with pytest.raises(CoordinationUnavailable, match=said):
            ZkSession(server.connect_string, tls=files).start(20.0)
    assert "its certificate is refused: certificate has expired" in caplog.text
    expired = ServerTls(CertificateFiles("", str(old / "broker.pem"), str(old / "broker.key"), "zookeeper"), "none")
    for kind in (InProcessZooKeeper, StandaloneZooKeeper):
        with pytest.raises(ConfigError, match=r"zookeeper.certificate=.*old-zk.*: certificate has expired"):
            kind(tmp_path / "zk", tls=expired).start()


def test_new_connections_get_changed_certificates(pki: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    mine = tmp_path / "pki"
    shutil.copytree(pki, mine)
    others = tmp_path / "others"
    make_authority(others)
    make_broker(others, "zk", ["127.0.0.1"])
    with (
        InProcessZooKeeper(tls=server_tls(mine)) as server,
        ZkSession(server.connect_string, tls=client_files(pki)) as old,
    ):
        shutil.copy(others / "zk" / "broker.key", mine / "zk" / "broker.key")
        with ZkSession(server.connect_string, tls=client_files(pki)):
            assert "the former certificate stays in use" in caplog.text
        shutil.copy(others / "zk" / "broker.pem", mine / "zk" / "broker.pem")
        with ZkSession(server.connect_string, tls=client_files(others)) as new:
            assert new.zk.create("/a") == "/a"
        assert old.zk.exists("/a")


def test_mistakes_in_the_settings_are_named(pki: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="secure_port=0: name the certificate"):
        InProcessZooKeeper(secure_port=0)
    without_ca = ServerTls(replace(server_tls(pki).files, ca="", option="tls"))
    with pytest.raises(ConfigError, match=r"tls.ca=: name the CA of the clients' certificates: they are optional"):
        InProcessZooKeeper(tls=without_ca).start()
    taken = ready_port("port", 0, "127.0.0.1")
    with (
        InProcessZooKeeper(port=taken),
        pytest.raises(ConfigError, match=f"secure_port={taken}: "),
    ):
        InProcessZooKeeper(tls=server_tls(pki), secure_port=taken).start()


def test_ended_connections_leave_nothing_for_the_collector(pki: Path, server: InProcessZooKeeper):
    context = client_files(pki, "mq1").client_context()

    def connect(data: bytes) -> None:
        connected = socket.create_connection((server.host, server.port), timeout=30)
        with connected, suppress(ssl.SSLError, ConnectionError):
            if data:
                connected.sendall(data)
                received(connected)
            else:
                with context.wrap_socket(connected, server_hostname=server.host) as connection:
                    connection.sendall(CONNECT)
                    assert connection.recv(4) == struct.pack("!i", 36)

    gc.disable()
    try:
        before = connections()
        for _ in range(20):
            connect(b"")
            connect(b"no TLS")
        eventually(lambda: connections() <= before)
    finally:
        gc.enable()


def connections() -> int:
    return sum(type(each).__name__ in ("SecureServerConnection", "TlsStream") for each in gc.get_objects())
