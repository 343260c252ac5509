"""The user as whom a client logs in: given by the program or in the profile; the password is told to nobody."""

import pickle
from dataclasses import replace

import pytest

from metaq import ConnectionConfig, ProducerConfig, TlsConfig, UserConfig
from metaq.client.settings.profile import PROFILE
from metaq.errors import ConfigError

SECRET = "correct horse"
TLS = TlsConfig(ca="ca.pem")
APP = UserConfig("app", SECRET)


@pytest.fixture
def profile(tmp_path):
    def write(text, mode=0o600):
        path = tmp_path / "profile.ini"
        path.write_text(text)
        path.chmod(mode)
        return path

    return write


@pytest.fixture
def password_file(tmp_path):
    def write(data, mode=0o600):
        path = tmp_path / "app.password"
        path.write_bytes(data)
        path.chmod(mode)

    return write


def test_a_user_goes_to_another_process_and_shows_his_password_to_nobody():
    config = ProducerConfig(connection=ConnectionConfig(tls=TLS, user=APP))
    assert pickle.loads(pickle.dumps(config)).connection.user == APP
    assert SECRET not in repr(config) + str(APP)
    assert "'app'" in repr(config)
    with pytest.raises(AttributeError):
        APP.password = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "password", "said"),
    [
        ("", SECRET, "^user.name='': .*use 1 to 64"),
        ("a b", SECRET, "^user.name='a b': .*use 1 to 64"),
        (7, SECRET, "^user.name=7: write the name"),
        ("app", "", "^user.password=: write the password"),
        ("app", SECRET.encode(), "^user.password=bytes: make it a str"),
    ],
)
def test_a_wrong_user_is_refused_without_his_password(name, password, said):
    with pytest.raises(ConfigError, match=said) as refused:
        UserConfig(name, password)
    assert SECRET not in str(refused.value)


def test_a_user_needs_tls():
    with pytest.raises(ConfigError, match=r"^user=app: a login needs TLS: set tls, too, or set user=None"):
        ConnectionConfig(tls=None, user=APP)
    with pytest.raises(ConfigError, match=r"^user=tuple: make it a UserConfig") as refused:
        ConnectionConfig(tls=TLS, user=("app", SECRET))  # type: ignore[arg-type]
    assert SECRET not in str(refused.value)
    assert replace(ConnectionConfig(tls=TLS, user=APP), user=None).user is None


def test_the_profile_is_the_default(profile, password_file, monkeypatch):
    assert ConnectionConfig().user is None
    monkeypatch.setenv(PROFILE, str(profile(f"[tls]\nca = ca.pem\n[user]\nname = app\npassword = {SECRET}\n")))
    assert ConnectionConfig().user == APP
    assert ConnectionConfig(tls=None, user=None).user is None
    password_file(f"{SECRET}\r\nnotes\n".encode())
    path = profile("[tls]\nca = ca.pem\n[user]\nname = app\npasswordFile = app.password\n", 0o644)
    assert ConnectionConfig().user == UserConfig.from_profile(path) == APP
    monkeypatch.setenv(PROFILE, str(profile("[tls]\nca = ca.pem\n", 0o644)))
    assert ConnectionConfig().user is None
    with pytest.raises(ConfigError, match=r"it has no section \[user\]"):
        UserConfig.from_profile(path)


def test_a_password_that_others_may_read_is_refused(profile, password_file):
    with pytest.raises(ConfigError, match=r"profile.ini: others may read this secret: chmod 600") as refused:
        UserConfig.from_profile(profile(f"[user]\nname = app\npassword = {SECRET}\n", 0o640))
    assert SECRET not in str(refused.value)
    password_file(SECRET.encode(), 0o604)
    with pytest.raises(ConfigError, match=r"passwordFile=.*app.password: others may read this secret: chmod 600"):
        UserConfig.from_profile(profile("[user]\nname = app\npasswordFile = app.password\n"))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (f"password = {SECRET}\n", "name=: write the name"),
        ("name = app\n", "write either password or passwordFile"),
        (f"name = app\npassword = {SECRET}\npasswordFile = x\n", "write either password or passwordFile"),
        ("name = app\npassword =\n", "write either password or passwordFile"),
        ("name = app\npasswordFile = none\n", "passwordFile=.*none: it cannot be read: No such file"),
        ("name = app\npasswordFile = empty\n", "its first line is empty"),
        ("name = app\npasswordFile = latin\n", "it is no text in UTF-8"),
        (f"name = app\npasword = {SECRET}\n", "pasword=…: is not a key of .user.: use name, password, passwordFile"),
        (f"name = app\npassword {SECRET}\n", "line 3 is no line of the form key = value"),
        (f"name = app\npassword = {SECRET}\npassword = {SECRET}\n", "already exists"),
    ],
)
def test_a_mistake_in_the_section_is_named_without_the_password(profile, tmp_path, lines, said):
    for name, data in (("empty", b"\n"), ("latin", b"\xe4\xff")):
        (tmp_path / name).write_bytes(data)
        (tmp_path / name).chmod(0o600)
    path = profile("[user]\n" + lines)
    with pytest.raises(ConfigError, match=said) as refused:
        UserConfig.from_profile(path)
    told = refused.value
    assert SECRET not in f"{told} {told.__dict__}"
    assert told.__suppress_context__ or SECRET not in str(told.__context__)


def test_a_password_before_the_first_section_is_not_shown(profile):
    with pytest.raises(ConfigError, match="line 1 stands before the first section") as refused:
        UserConfig.from_profile(profile(f"password = {SECRET}\n[user]\n"))
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__
