"""security.ini, the profile, and the files that they name: each mistake is one clear error."""

import datetime
import os
import re
import shutil
import stat
import time

import pytest

from metaq.broker.configuration.security_ini import AuditSettings, read_security
from metaq.broker.network.tls import Certificates, may_be_plain
from metaq.cli import authority
from metaq.cli.authority import make_authority, make_broker, make_client
from metaq.client.settings.config import ConnectionConfig
from metaq.client.settings.profile import PROFILE
from metaq.client.settings.tls_config import TlsConfig, profile_tls
from metaq.protocol.errors import ConfigError


def ini(pki, text):
    path = pki / "mq1" / "test.ini"
    path.write_text(text)
    return str(path)


BOTH = "certificate=broker.pem\nkey=broker.key\n"


@pytest.mark.parametrize(
    ("from_plain", "plain", "brokers"), [(False, "loopback", "required"), (True, "everywhere", "plain")]
)
def test_what_metaq_security_writes_is_read(tmp_path, from_plain, plain, brokers):
    make_authority(tmp_path / "pki")
    security = read_security(str(make_broker(tmp_path / "pki", "mq1", [], from_plain=from_plain)))
    assert (security.client_certificates, security.plain, security.brokers) == ("optional", plain, brokers)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tsl]\n", r"test.ini=\[tsl\]: is not a section of this file: use \[tls\]"),
        (f"[tls]\n{BOTH}certficate=x\n", "certficate=x: is not a key of .tls.; did you mean certificate"),
        (f"[tls]\n{BOTH}plain=yes\n", "test.ini:4: plain=yes: must be one of: loopback, everywhere, nowhere"),
        (f"[tls]\n{BOTH}clientCertificates=required\n", "name the CA of the clients' certificates"),
        ("[tls]\n", "certificate=: name a PEM file"),
        (f"[tls]\n{BOTH}plain=nowhere\nplain=everywhere\n", "test.ini:5: plain=everywhere: stands there a second time"),
        (f"[tls]\n{BOTH}ca=none.pem\nclientCertificates=optional\n", "none.pem: it cannot be read"),
        ("[tls]\ncertificate=broker.pem\n", "key=: name a PEM file"),
        ("[tls]\ncertificate=broker.pem\nkey=none.key\n", "none.key: it cannot be read: name a PEM file of yours"),
        ("[tls]\ncertificate=ca.pem\nkey=broker.key\n", "it is no PEM certificate with the key"),
        (f"[tls]\n{BOTH}ca=broker.key\nclientCertificates=optional\n", "it has no PEM certificates"),
    ],
)
def test_a_mistake_in_security_ini_is_named(pki, text, said):
    with pytest.raises(ConfigError, match=said):
        read_security(ini(pki, text))


def test_a_key_that_others_may_read_is_refused(pki, tmp_path):
    key = tmp_path / "broker.key"
    key.write_bytes((pki / "mq1" / "broker.key").read_bytes())
    (tmp_path / "broker.pem").write_bytes((pki / "mq1" / "broker.pem").read_bytes())
    (tmp_path / "s.ini").write_text(f"[tls]\n{BOTH}")
    key.chmod(0o640)
    with pytest.raises(ConfigError, match="others may read this secret: chmod 600"):
        read_security(str(tmp_path / "s.ini"))
    key.chmod(0o600)
    read_security(str(tmp_path / "s.ini"))


@pytest.mark.parametrize(
    ("plain", "served"),
    [("everywhere", "127.0.0.1 ::1 10.0.0.1 ?"), ("loopback", "127.0.0.1 ::1 ::ffff:127.0.0.1"), ("nowhere", "")],
)
def test_where_connections_without_tls_are_served(plain, served):
    hosts = ("127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "?", "fe80::1")
    found = [host for host in hosts if may_be_plain(plain, host)]
    assert found == ([*hosts] if plain == "everywhere" else served.split())


def test_changed_files_count_and_files_that_cannot_be_used_do_not(pki, tmp_path, caplog):
    make_authority(tmp_path / "pki")
    folder = make_broker(tmp_path / "pki", "mq1", []).parent
    certificates = Certificates(read_security(str(folder / "security.ini")))
    first = certificates.context
    certificates.look()
    assert certificates.context is first
    renewed = make_broker(tmp_path / "pki", "again", []).parent
    os.replace(renewed / "broker.pem", folder / "broker.pem")  # its key is still the former one's
    certificates.look()
    assert certificates.context is first
    assert "no PEM certificate with the key" in str(certificates.failure)
    assert "the former certificate stays in use" in caplog.text
    (renewed / "broker.key").chmod(0o644)
    os.replace(renewed / "broker.key", folder / "broker.key")
    certificates.look()
    assert "chmod 600" in str(certificates.failure)
    (folder / "broker.key").chmod(0o600)
    certificates.look()
    assert certificates.context is not first
    assert certificates.failure is None


def test_the_certificate_is_shown_to_operators(pki, tmp_path, monkeypatch, caplog):
    made = time.time()
    state = Certificates(read_security(str(pki / "mq1" / "security.ini"))).state
    assert (state.path, state.name) == (str(pki / "mq1" / "broker.pem"), "mq1")
    assert re.fullmatch("[0-9A-F]{30,40}", state.serial)
    assert 824 < (state.expires - made) / 86_400 < 826
    assert not caplog.records
    monkeypatch.setattr(authority, "_DAYS", -1)
    monkeypatch.setattr(authority, "_EARLY", datetime.timedelta(days=3))
    make_authority(tmp_path / "pki")
    expired = Certificates(read_security(str(make_broker(tmp_path / "pki", "expired", ["mq2"]))))
    assert expired.state == (str(tmp_path / "pki" / "expired" / "broker.pem"), "", "", 0.0)
    assert "clients refuse this broker's certificate" in caplog.text
    assert "certificate has expired" in caplog.text


def test_a_profile_is_the_default_of_every_connection(pki, monkeypatch):
    assert ConnectionConfig().tls is None
    folder = pki / "app"
    monkeypatch.setenv(PROFILE, str(folder / "profile.ini"))
    expected = TlsConfig(str(folder / "ca.pem"), str(folder / "client.pem"), str(folder / "client.key"))
    assert ConnectionConfig().tls == profile_tls() == expected
    assert ConnectionConfig(tls=None).tls is None
    assert TlsConfig.from_profile(folder / "profile.ini") == expected


def test_a_profile_in_the_users_directory_counts_without_the_variable(pki, tmp_path, monkeypatch):
    home = tmp_path / "home"
    shutil.copytree(pki / "app", home / ".config" / "metaq")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    tls = ConnectionConfig().tls
    assert tls is not None
    assert tls.ca == str(home / ".config" / "metaq" / "ca.pem")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert ConnectionConfig().tls is None
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv(PROFILE, "")
    assert ConnectionConfig().tls is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "the profile cannot be read: No such file"),
        ("", "it is no profile: it has no section .tls., .zookeeper., .user. or .client."),
        ("[other]\n", "it has a section .other.: use .tls., .zookeeper., .user. and .client."),
        ("ca=x\n", "it is no profile: line 1 stands before the first section"),
        ("[tls]\npassword=x\n", "password=…: is not a key of .tls.: use ca, certificate, key"),
        ("[tls]\ncertificate=x\n", "tls.key=: name a PEM file: a certificate and its key go together"),
    ],
)
def test_a_mistake_in_a_profile_is_named(tmp_path, monkeypatch, text, said):
    path = tmp_path / "profile.ini"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv(PROFILE, str(path))
    with pytest.raises(ConfigError, match=said):
        profile_tls()


def test_a_ca_of_its_own_is_the_only_one(pki):
    assert len(TlsConfig(ca=str(pki / "ca.pem")).context().get_ca_certs()) == 1


@pytest.mark.parametrize("given", ["ca.pem", True, object()])
def test_a_setting_that_is_no_tls_config_is_refused(given):
    with pytest.raises(ConfigError, match=r"make it a TlsConfig\(ca=…\), or None for no TLS"):
        ConnectionConfig(tls=given)


def test_an_authority_never_overwrites_and_its_secrets_are_its_owners(pki):
    for make in (make_authority, lambda path: make_broker(path, "mq1", []), lambda path: make_client(path, "app")):
        with pytest.raises(ConfigError, match="nothing is overwritten"):
            make(pki)
    secrets = [*pki.rglob("*.key")]
    assert len(secrets) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (pki, pki / "mq1", pki / "app")} == {0o700}


@pytest.mark.parametrize(
    ("name", "hosts", "said"),
    [
        ("../x", [], "choose a name"),
        ("", [], "choose a name"),
        ("ok", ["ü.example"], "--host=ü.example: write an address"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(pki, name, hosts, said):
    with pytest.raises(ConfigError, match=said):
        make_broker(pki, name, hosts)
    assert not (pki / "ok").exists()


def test_a_directory_without_an_authority_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"ca\.key: it cannot be read"):
        make_client(tmp_path, "app")


# --- users by address -------------------------------------------------------------------------------------------------


def test_the_smallest_network_names_the_user_of_an_address(pki):
    addresses = "[addresses]\nlegacy = 10.0.0.0/8, 192.0.2.7\nrack = 10.1.0.0/16\nsix = 2001:db8::/32\n"
    certificates = Certificates(read_security(ini(pki, f"[tls]\n{BOTH}{addresses}")))
    found = {
        host: certificates.user_at(host).name
        for host in ("10.2.0.1", "10.1.2.3", "192.0.2.7", "192.0.2.8", "::ffff:10.1.2.3", "2001:db8::1", "?", "::1")
    }
    assert found == {
        "10.2.0.1": "legacy",
        "10.1.2.3": "rack",
        "192.0.2.7": "legacy",
        "192.0.2.8": "",
        "::ffff:10.1.2.3": "rack",
        "2001:db8::1": "six",
        "?": "",
        "::1": "",
    }
    assert certificates.user_at("10.2.0.1").kind == "address"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("legacy = 10.0.0.0/33", r"legacy=10.0.0.0/33: write networks such as 10.0.0.0/8 or addresses"),
        ("legacy = 10.0.0.1/8", "legacy=10.0.0.1/8: write networks"),
        ("legacy = 10.0.0.1,", "legacy=: write networks"),
        ("a b = 10.0.0.1", "is no name of a user: write USER = NETWORK"),
        ("a = 10.0.0.1\nb = 10.0.0.1/32", r"b=10.0.0.1/32: is given to the user a already"),
    ],
)
def test_a_mistake_in_addresses_is_named(pki, line, said):
    with pytest.raises(ConfigError, match=said):
        read_security(ini(pki, f"[tls]\n{BOTH}[addresses]\n{line}\n"))


def audit_settings(pki, text):
    return read_security(ini(pki, f"[tls]\n{BOTH}{text}")).audit


def test_the_section_audit(pki):
    assert audit_settings(pki, "") is None
    file = str(pki / "mq1" / "logs" / "audit.log")
    assert audit_settings(pki, "[audit]\nfile = logs/audit.log\n") == AuditSettings(file, 16 * 1024 * 1024, 8)
    found = audit_settings(pki, "[audit]\nfile = /var/log/a\nmaxBytes = 1024*1024\nfiles = 2\n")
    assert found == AuditSettings("/var/log/a", 1 << 20, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "name the file of the audit log"),
        ("file = a\nfiles = 1\n", "files=1: must be 2 "),
        ("file = a\nmaxBytes = 100\n", "maxBytes=100: must be 4096 "),
        ("file = a\nmaxbytes = 100\n", "did you mean maxBytes"),
    ],
)
def test_a_mistake_in_the_section_audit_is_named(pki, text, said):
    with pytest.raises(ConfigError, match=said):
        audit_settings(pki, f"[audit]\n{text}")
