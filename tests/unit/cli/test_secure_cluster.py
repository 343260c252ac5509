"""The files of `metaq up --secure`: what a first start makes, and what a later start adds to older files."""

import re
import ssl
from pathlib import Path

import pytest

from metaq.broker.configuration.security_ini import read_security
from metaq.cli.secure_cluster import ClusterSecurity
from metaq.client.settings.tls_config import TlsConfig
from metaq.client.settings.user_config import UserConfig
from metaq.coordination.runtime.certificates import CertificateFiles
from metaq.protocol.errors import ConfigError, TlsFailed
from metaq.protocol.tls import TlsStream

NAMES = ["broker-0", "broker-1"]


def start(data_dir: Path, *, zookeeper_tls: bool = True) -> tuple[ClusterSecurity, list[str]]:
    """Make the files as a start of the cluster does, and return what the user was told."""
    told: list[str] = []
    security = ClusterSecurity(data_dir, told.append, zookeeper_tls=zookeeper_tls)
    security.make_files(NAMES, "127.0.0.1")
    security.name_zookeeper()
    return security, told


def contents(data_dir: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()}


def is_accepted(server: CertificateFiles, client: CertificateFiles) -> bool:
    """Whether a server that asks for certificates and a client accept each other's."""
    streams = (
        TlsStream(server.server_context("required"), "client", server_side=True),
        TlsStream(client.client_context(), "server", server_hostname="127.0.0.1"),
    )
    streams[1].receive(b"")
    try:
        for _ in range(3):
            for this, other in (streams, streams[::-1]):
                other.receive(this.take())
    except TlsFailed:
        return False
    return all(each.established for each in streams)


def test_brokers_and_the_admin_know_themselves_to_zookeeper_by_certificates(tmp_path):
    security, told = start(tmp_path)
    assert security.identities == ["x509:CN=broker-0", "x509:CN=broker-1", "x509:CN=admin"]
    assert security.server_tls is not None
    assert security.server_tls.client_certificates == "optional"
    server, admin = security.server_tls.files, security.session_tls
    brokers = [read_security(str(security.security_ini(name))).zookeeper for name in NAMES]
    for client in (admin, *brokers):
        assert client is not None
        assert is_accepted(server, client)
    assert told == []


def test_zookeepers_certificate_is_no_identity(tmp_path):
    security, _ = start(tmp_path)
    assert security.server_tls is not None
    server = security.server_tls.files
    assert not is_accepted(server, server)
    broker = read_security(str(security.security_ini("broker-0"))).files
    assert not is_accepted(broker, server)


def test_a_later_start_changes_no_file(tmp_path):
    start(tmp_path)
    before = contents(tmp_path)
    assert len(before) == 17
    assert start(tmp_path)[1] == []
    assert contents(tmp_path) == before


def of_an_earlier_version(data_dir: Path) -> None:
    """Make the files be those of a version whose ZooKeeper had no TLS."""
    start(data_dir, zookeeper_tls=False)


def test_files_of_an_earlier_version_get_what_they_lack_once(tmp_path):
    of_an_earlier_version(tmp_path)
    profile, ini = tmp_path / "security" / "admin.ini", tmp_path / "security" / "broker-0" / "security.ini"
    ini.write_text(ini.read_text() + "[audit]\nfile = audit.log")  # without an end of the line
    before = contents(tmp_path)
    security, (told,) = start(tmp_path)
    assert re.search(r"admin.ini.* got the section \[zookeeper\]; add to the profiles of users", told)
    assert f"ca = {tmp_path / 'security' / 'ca.pem'}" in told
    assert [path for path, data in before.items() if not path.read_bytes().startswith(data)] == []
    assert UserConfig.from_profile(profile).name == "admin"
    assert profile.stat().st_mode & 0o777 == 0o600
    changed = read_security(str(ini))
    assert changed.audit is not None
    assert changed.audit.file == str(ini.with_name("audit.log"))
    ca, certificate, key = (str(ini.with_name(name)) for name in ("ca.pem", "broker.pem", "broker.key"))
    assert changed.zookeeper == CertificateFiles(ca, certificate, key, f"{ini}: zookeeper")
    assert len(security.identities) == 3
    assert start(tmp_path)[1] == []


def test_sections_that_are_there_stay(tmp_path):
    of_an_earlier_version(tmp_path)
    profile = tmp_path / "security" / "admin.ini"
    profile.write_text(profile.read_text() + "\n[zookeeper]\nca = other.pem\n")
    start(tmp_path)
    assert TlsConfig.zookeeper_from_profile(profile) == TlsConfig(str(tmp_path / "security" / "other.pem"))


def test_removed_folders_are_made_again(tmp_path):
    security, _ = start(tmp_path)
    for name in ("zookeeper", "admin"):
        for path in (tmp_path / "security" / name).iterdir():
            path.unlink()
        (tmp_path / "security" / name).rmdir()
    security, told = start(tmp_path)
    assert security.server_tls is not None
    assert security.session_tls is not None
    assert is_accepted(security.server_tls.files, security.session_tls)
    assert told == []


def test_apaches_zookeeper_has_no_tls_and_refuses_a_directory_with_it(tmp_path):
    security, _ = start(tmp_path, zookeeper_tls=False)
    assert (security.server_tls, security.session_tls, security.identities) == (None, None, [])
    start(tmp_path)
    with pytest.raises(ConfigError, match=r"--data-dir=.*: its ZooKeeper has TLS, .*: leave out --zookeeper"):
        start(tmp_path, zookeeper_tls=False)


def test_a_file_without_a_certificate_is_named(tmp_path):
    security, _ = start(tmp_path)
    path = security.security_ini("broker-1").with_name("broker.pem")
    path.write_text(ssl.DER_cert_to_PEM_cert(b"none"))
    with pytest.raises(ConfigError, match=r"--data-dir=.*broker.pem: it has no certificate"):
        print(security.identities)
