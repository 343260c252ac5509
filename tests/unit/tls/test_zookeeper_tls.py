"""TLS to ZooKeeper without a server: the waiting for answers, and the sections of security.ini and of a profile."""

import socket
import ssl
from contextlib import suppress

import pytest

from metaq.broker.configuration.security_ini import read_security
from metaq.client.settings.config import ConnectionConfig
from metaq.client.settings.profile import PROFILE
from metaq.client.settings.tls_config import TlsConfig
from metaq.client.settings.user_config import UserConfig
from metaq.client.transport.zookeeper import zk_session
from metaq.coordination.runtime.certificates import CertificateFiles
from metaq.coordination.session.kazoo_client import Client
from metaq.coordination.session.zk_tls import ZkTls
from metaq.protocol.errors import ConfigError
from metaq.protocol.tls import TlsStream


@pytest.fixture
def secured(pki):
    """The client's socket behind the handshake, the server's stream and its socket."""
    ours, theirs = socket.socketpair()
    folder = pki / "mq1"
    served = CertificateFiles("", str(folder / "broker.pem"), str(folder / "broker.key")).server_context("none")
    stream = TlsStream(served, "client", server_side=True)
    context = CertificateFiles(str(pki / "ca.pem")).client_context()
    client = context.wrap_socket(ours, server_hostname="mq1.example", do_handshake_on_connect=False)
    client.setblocking(False)
    with client, theirs:
        while not stream.established or stream.take():
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
            stream.receive(theirs.recv(1 << 16))
            theirs.sendall(stream.take())
        client.do_handshake()
        yield client, stream, theirs


def test_a_second_answer_in_a_tls_record_is_read_without_a_wait(secured, pki):
    client, stream, theirs = secured
    handler = Client("127.0.0.1:1", tls=ZkTls(CertificateFiles(str(pki / "ca.pem")))).handler
    stream.write([b"firstsecond"])
    theirs.sendall(stream.take())
    assert handler.select([client], [], [], 10.0)[0] == [client]
    assert client.recv(5) == b"first"
    other, theirs_of_it = socket.socketpair()
    with other, theirs_of_it:
        assert handler.select([client, other], [], [], 10.0)[0] == [client]
        theirs_of_it.sendall(b"x")
        assert handler.select([client, other], [], [], 10.0)[0] == [client, other]
        assert client.recv(100) == b"second"
        assert handler.select([client, other], [], [], 10.0)[0] == [other]


BOTH = "certificate = broker.pem\nkey = broker.key\n"


def test_security_ini_has_a_section_for_zookeeper(pki):
    path = pki / "mq1" / "zookeeper.ini"
    path.write_text(f"[tls]\n{BOTH}[zookeeper]\nca = ca.pem\n{BOTH}")
    folder = str(pki / "mq1")
    found = read_security(str(path)).zookeeper
    assert found is not None
    assert (found.ca, found.key) == (f"{folder}/ca.pem", f"{folder}/broker.key")
    path.write_text(f"[tls]\n{BOTH}")
    assert read_security(str(path)).zookeeper is None


def secret(path, text="sixteen characters\n"):
    path.write_text(text)
    path.chmod(0o600)


@pytest.mark.parametrize(("files", "uses_tls"), [("", False), ("ca = ca.pem\n", True)])
def test_security_ini_has_a_login_for_zookeeper_which_alone_means_no_tls(pki, files, uses_tls):
    path = pki / "mq1" / "zookeeper.ini"
    secret(pki / "mq1" / "zk.password")
    path.write_text(f"[tls]\n{BOTH}[zookeeper]\n{files}user = metaq\npasswordFile = zk.password\n")
    found = read_security(str(path))
    assert found.zookeeper_login is not None
    assert found.zookeeper_login.credentials == "metaq:sixteen characters"
    assert (found.zookeeper is not None) == uses_tls


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("user = metaq\n", "zookeeper.passwordFile=: write both user and passwordFile"),
        ("passwordFile = ca.pem\n", "zookeeper.user=: write both user and passwordFile"),
        ("user = metaq\npasswordFile = none\n", "zookeeper.passwordFile=.*none: it cannot be read"),
        ("plain = nowhere\n", "is not a key of .zookeeper."),
        ("ca = none.pem\n", "zookeeper.ca=.*none.pem: it cannot be read"),
        ("ca = ca.pem\nca = ca.pem\n", "ca=ca.pem: stands there a second time"),
        ("ca = ca.pem\nkey = broker.key\n", "zookeeper.certificate=: name a PEM file"),
    ],
)
def test_a_mistake_in_the_section_for_zookeeper_is_named(pki, text, said):
    path = pki / "mq1" / "zookeeper.ini"
    path.write_text(f"[tls]\n{BOTH}[zookeeper]\n{text}")
    with pytest.raises(ConfigError, match=said):
        read_security(str(path))


@pytest.mark.parametrize(
    ("text", "tls", "zookeeper"),
    [
        ("[tls]\nca = a.pem\n", "a.pem", None),
        ("[zookeeper]\nca = z.pem\n", None, "z.pem"),
        ("[tls]\nca = a.pem\n[zookeeper]\nca = z.pem\n", "a.pem", "z.pem"),
    ],
)
def test_a_profile_says_which_connections_use_tls(tmp_path, monkeypatch, text, tls, zookeeper):
    (tmp_path / "p.ini").write_text(text)
    monkeypatch.setenv(PROFILE, str(tmp_path / "p.ini"))
    config = ConnectionConfig()
    for found, name in ((config.tls, tls), (config.zookeeper_tls, zookeeper)):
        assert found == (name and TlsConfig(ca=str(tmp_path / name)))


@pytest.mark.parametrize("uses_tls", [False, True])
def test_a_profile_has_a_login_for_zookeeper(pki, tmp_path, monkeypatch, uses_tls):
    files = f"ca = {pki / 'ca.pem'}\n" if uses_tls else ""
    (tmp_path / "p.ini").write_text(f"[zookeeper]\n{files}user = apps\npasswordFile = secret\n")
    secret(tmp_path / "secret")
    monkeypatch.setenv(PROFILE, str(tmp_path / "p.ini"))
    config = ConnectionConfig()
    assert config.zookeeper_user == UserConfig("apps", "sixteen characters")
    assert (config.zookeeper_tls is not None) == uses_tls
    assert config.user is None
    session = zk_session("127.0.0.1:2181", config=config)
    assert session.login is not None
    assert session.login.identity.startswith("digest:apps:")
    (tmp_path / "p.ini").write_text("[zookeeper]\nuser = apps\n")
    with pytest.raises(ConfigError, match="write both user and passwordFile"):
        ConnectionConfig()


def test_a_section_with_a_wrong_name_is_not_taken_for_no_tls(tmp_path):
    (tmp_path / "p.ini").write_text("[tls]\nca = a.pem\n[zookeper]\nca = a.pem\n")
    with pytest.raises(
        ConfigError, match=r"it has a section \[zookeper\]: use \[tls\], \[zookeeper\], \[user\] and \[client\]"
    ):
        TlsConfig.from_profile(tmp_path / "p.ini")


def test_files_for_zookeeper_that_can_no_longer_be_used_leave_the_former_ones(pki, tmp_path, caplog):
    ca = tmp_path / "ca.pem"
    ca.write_bytes((pki / "ca.pem").read_bytes())
    tls = ZkTls(CertificateFiles(str(ca), option="zookeeper"))
    ca.write_text("nothing")
    ours, theirs = socket.socketpair()
    ours.settimeout(10.0)
    theirs.close()
    with pytest.raises(OSError):  # noqa: PT011 - the other side is gone; the files did not count
        tls.wrap(ours, "mq1.example")
    assert ours.fileno() == -1
    assert "the former certificate files for ZooKeeper stay in use: zookeeper.ca=" in caplog.text
