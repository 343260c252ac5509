"""Passwords and profiles of users on the command line."""

import configparser
import os
import stat
from pathlib import Path

import pytest

from metaq.cli import app
from metaq.cli.user_input import DURATION, known_ca, known_zookeeper, profile_text, read_password, write_profile
from metaq.protocol.errors import ConfigError


def parsed(text: str) -> configparser.ConfigParser:
    profile = configparser.ConfigParser(interpolation=None)
    profile.read_string(text)
    return profile


def test_a_profile_has_the_login_and_names_the_ca():
    profile = parsed(profile_text("app", "%pass;word#1-_="))
    assert dict(profile["user"]) == {"name": "app", "password": "%pass;word#1-_="}
    assert dict(profile["tls"]) == {"ca": "ca.pem"}


def test_a_profile_names_the_file_of_a_password_by_its_whole_path(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert parsed(profile_text("app", None, "secret"))["user"]["passwordFile"] == str(tmp_path / "secret")


def test_a_profile_is_for_its_owner_and_overwrites_nothing(tmp_path):
    path = tmp_path / "app.ini"
    write_profile(path, "text")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="nothing is overwritten"):
        write_profile(path, "other")
    assert path.read_text() == "text"
    dangling = tmp_path / "link"
    dangling.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="nothing is overwritten"):
        write_profile(dangling, "other")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_profile(tmp_path / "missing" / "app.ini", "text")


def secret(path: Path, data: bytes, mode: int = 0o600) -> str:
    path.write_bytes(data)
    os.chmod(path, mode)
    return str(path)


@pytest.mark.parametrize("data", [b"correct horse", b"correct horse\n", b"correct horse\r\n"])
def test_a_password_file_has_one_line(tmp_path, data):
    assert read_password(secret(tmp_path / "p", data)) == "correct horse"


def test_a_password_file_that_others_may_read_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="chmod 600"):
        read_password(secret(tmp_path / "p", b"correct horse", 0o640))
    with pytest.raises(ConfigError, match="UTF-8"):
        read_password(secret(tmp_path / "q", b"\xff\xfe"))


@pytest.mark.parametrize(("text", "seconds"), [("5m", 300), ("12h", 43_200), ("30d", 2_592_000), ("2w", 1_209_600)])
def test_a_duration_has_a_unit(text, seconds):
    assert DURATION.convert(text, None, None) == seconds


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["users", "add", "app", "--expires", "30"], "write a number and m, h, d or w"),
        (["users", "add", "app", "--expires", "0d"], "write a number and m, h, d or w"),
        (["users", "add", "a b"], "user 'a b'"),
        (["users", "add", "app", "--can", "fly:x"], "begin it with one of"),
        (["users", "add", "app", "--prompt", "--no-password"], "--prompt and --no-password do not go together"),
        (["users", "add", "app", "--profile", "x", "--no-password"], "--profile and --no-password do not go together"),
        (["users", "add", "app", "--profile", "x", "--prompt"], "--profile and --prompt do not go together"),
        (
            ["users", "add", "app", "--ca", __file__, "--no-password"],
            "--ca is for a profile, and --no-password makes none",
        ),
        (["users", "add", "app", "--ca", "/none/ca.pem"], "File '/none/ca.pem' does not exist"),
        (["users", "password", "app", "--ca", __file__, "--prompt"], "--ca is for a profile, and --prompt makes none"),
        (["users", "quota", "app", "cups=3"], "'cups=3' is no quota: write one of connections, "),
        (
            ["users", "quota", "app", "connections=1.5"],
            "write a number from 0 (nothing is allowed) to 1,000,000,000,000",
        ),
        (["users", "quota", "--default", "connections=2000G"], "sets no quota"),
        (["users", "quota", "app", "requests=0"], "from 1 (a second; to allow nothing, revoke grants) to"),
        (["users", "quota"], "name a user, or write --default"),
        (["users", "expire", "app", "soon"], "'soon' is not a duration"),
        (["acl", "grant", "app"], "Missing argument 'GRANT...'"),
        (["acl", "grant", "app", "deny", "send:x"], "grant 'deny'"),
        (["acl", "test", "app", "fly", "x"], "'fly' is not one of"),
        (["acl", "test", "app", "send"], "name the topic"),
        (["acl", "test", "app", "send", "a*"], "name one topic"),
    ],
)
def test_a_wrong_command_line_is_noticed_before_anything_is_asked(capsys, arguments, named):
    assert app.run(arguments) == 2
    said = capsys.readouterr().err
    assert named in said
    assert said.count("\n") == 1


def test_a_profile_names_the_ca_that_is_chosen_or_that_of_ones_own_profile(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("METAQ_PROFILE", "")
    assert known_ca(None) == "ca.pem"
    (tmp_path / "security").mkdir()
    (tmp_path / "security" / "admin.ini").write_text("[tls]\nca = ca.pem\n")
    monkeypatch.setenv("METAQ_PROFILE", "security/admin.ini")
    mine = str(tmp_path / "security" / "ca.pem")
    assert known_ca(None) == mine
    assert known_zookeeper() is None
    assert parsed(profile_text("app", "a password", ca=known_ca(None)))["tls"]["ca"] == mine
    assert known_ca(Path("other.pem")) == str(tmp_path / "other.pem")
    (tmp_path / "security" / "admin.ini").write_text("[user]\nname = admin\n[tls]\n")
    assert known_ca(None) == "ca.pem"


@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        ("ca = ca.pem\ncertificate = admin.pem\nkey = admin.key\n", {"ca": "{here}/ca.pem"}),
        ("", {}),  # the system's CAs count
    ],
)
def test_a_profile_names_the_ca_of_zookeeper_but_not_the_certificate_of_ones_own_profile(
    monkeypatch, tmp_path, own, theirs
):
    (tmp_path / "admin.ini").write_text(f"[zookeeper]\n{own}")
    monkeypatch.setenv("METAQ_PROFILE", str(tmp_path / "admin.ini"))
    profile = parsed(profile_text("app", "a password", zookeeper=known_zookeeper()))
    assert dict(profile["zookeeper"]) == {key: path.format(here=tmp_path) for key, path in theirs.items()}
