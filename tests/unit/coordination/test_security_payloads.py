"""The znodes of users and of the mode: what is written is read again, and whatever is damaged opens no door."""

import json
from collections.abc import Callable

import pytest
from scramp import ScramClient, ScramMechanism

from metaq.coordination.records.security_payloads import (
    MAX_ITERATIONS,
    MAX_MODE_BYTES,
    MAX_USER_BYTES,
    StoredMode,
    StoredUser,
    Verifier,
    format_mode,
    format_user,
    format_verifier,
    parse_mode,
    parse_user,
    parse_verifier,
)
from metaq.coordination.security.passwords import make_verifiers, random_password
from metaq.protocol.access import MAX_GRANTS, Access, AccessGrant, AccessMode, Quota, User
from metaq.protocol.errors import ConfigError, CoordinationError
from metaq.protocol.login import MECHANISMS

PATH = "/meta/security/users/app"
VERIFIER = format_verifier(Verifier(4096, b"s" * 16, b"k" * 64, b"v" * 64))
GRANTS = ["send:orders", "consume:orders@billing", "deny send:secret-*"]


def user_of(*grants: str, **more: object) -> StoredUser:
    return parse_user(PATH, "app", json.dumps({"grants": grants, **more}).encode())


def test_a_user_is_read_as_it_was_written():
    stored = user_of(*GRANTS, scram={"SCRAM-SHA-512": VERIFIER}, expires=1_790_000_000_000)
    assert stored.user.name == "app"
    assert list(map(str, stored.user.access.grants)) == GRANTS
    assert stored.user.verifiers == {"SCRAM-SHA-512": VERIFIER}
    assert stored.user.expires_ms == 1_790_000_000_000
    assert json.loads(format_user(stored)) == {
        "grants": GRANTS,
        "scram": {"SCRAM-SHA-512": VERIFIER},
        "expires": 1_790_000_000_000,
    }


def test_what_a_user_does_not_have_is_not_written():
    assert json.loads(format_user(StoredUser(User("app", Access([AccessGrant.parse("admin")]))))) == {
        "grants": ["admin"]
    }


def test_keys_and_mechanisms_of_later_versions_are_kept_and_ignored():
    later = {"grants": ["see:*"], "quota": [1], "scram": {"SCRAM-SHA3-512": "x", "SCRAM-SHA-512": VERIFIER}}
    stored = parse_user(PATH, "app", json.dumps(later).encode())
    assert stored.user.verifiers == {"SCRAM-SHA-512": VERIFIER}
    assert json.loads(format_user(stored)) == later
    mode = parse_mode(PATH, b'{"mode":"observe","since":5}')
    assert json.loads(format_mode(mode._replace(mode=AccessMode.ENFORCE))) == {"mode": "enforce", "since": 5}


DAMAGED_USERS = {
    "nothing": None,
    "empty": b"",
    "no JSON": b"grants",
    "no UTF-8": b'{"grants":["send:\xff"]}',
    "no object": b'["send:orders"]',
    "too deep": b'{"grants":' + b"[" * 100_000,
    "no grants": b"{}",
    "grants as a text": b'{"grants":"admin"}',
    "a number as a grant": b'{"grants":["admin",5]}',
    "an unknown grant": b'{"grants":["send:orders","fly:orders"]}',
    "an unknown prohibition": b'{"grants":["admin","deny fly:*"]}',
    "a key twice": b'{"grants":["send:a"],"grants":["admin"]}',
    "too many grants": json.dumps({"grants": [f"send:t{n}" for n in range(MAX_GRANTS + 1)]}).encode(),
    "too long": b'{"grants":["admin"]}' + b" " * MAX_USER_BYTES,
    "a wrong expiry": b'{"grants":["admin"],"expires":"soon"}',
    "true as an expiry": b'{"grants":["admin"],"expires":true}',
    "a negative expiry": b'{"grants":["admin"],"expires":-1}',
    "scram as a list": b'{"grants":["admin"],"scram":[]}',
    "a wrong verifier": b'{"grants":["admin"],"scram":{"SCRAM-SHA-512":"1:a:b:c"}}',
    "no text as a verifier": b'{"grants":["admin"],"scram":{"SCRAM-SHA-512":7}}',
}


@pytest.mark.parametrize("data", DAMAGED_USERS.values(), ids=DAMAGED_USERS)
def test_a_user_that_cannot_be_understood_wholly_is_damaged(data):
    with pytest.raises(CoordinationError, match=f"node {PATH} is damaged, .*: correct or delete the node"):
        parse_user(PATH, "app", data)


def test_a_name_that_no_user_can_have_is_damaged():
    with pytest.raises(CoordinationError, match="damaged"):
        parse_user(PATH, "-app", b'{"grants":["admin"]}')


def test_the_error_of_a_damaged_user_does_not_show_the_verifier():
    secret = VERIFIER[:-4]
    with pytest.raises(CoordinationError) as raised:
        user_of(scram={"SCRAM-SHA-512": secret})
    assert secret[:20] not in str(raised.value)
    assert raised.value.__suppress_context__
    assert "kkkk" not in repr(Verifier(4096, b"s" * 16, b"k" * 64, b"v" * 64))
    assert VERIFIER[10:] not in repr(user_of(scram={"SCRAM-SHA-512": VERIFIER}))


@pytest.mark.parametrize("mode", AccessMode)
def test_a_mode_is_read_as_it_was_written(mode):
    data = format_mode(StoredMode(mode))
    assert json.loads(data) == {"mode": str(mode)}
    assert parse_mode(PATH, data).mode is mode


@pytest.mark.parametrize(
    "data",
    [
        *(None, b"", b"open", b"{}", b'{"mode":"OPEN"}', b'{"mode":null}', b'{"mode":["open"]}'),
        *(b'{"mode":"enforce","mode":"open"}', b'{"mode":"open"}' + b" " * MAX_MODE_BYTES),
    ],
)
def test_a_mode_that_cannot_be_understood_is_damaged(data):
    with pytest.raises(CoordinationError, match="damaged"):
        parse_mode(PATH, data)


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: ["4095", *parts[1:]],
        lambda parts: [str(MAX_ITERATIONS + 1), *parts[1:]],
        lambda parts: ["٤٠٩٦", *parts[1:]],
        lambda parts: [" 4096", *parts[1:]],
        lambda parts: parts[:-1],
        lambda parts: [*parts, parts[-1]],
        lambda parts: [parts[0], "c2hvcnQ=", *parts[2:]],
        lambda parts: [*parts[:3], parts[3][:-4]],
        lambda parts: [*parts[:3], "*" + parts[3][1:]],
    ],
)
def test_a_verifier_outside_of_its_bounds_is_refused(change: Callable[[list[str]], list[str]]):
    assert format_verifier(parse_verifier("SCRAM-SHA-512", VERIFIER)) == VERIFIER
    with pytest.raises(ValueError, match=r"no verifier for SCRAM-SHA-512$"):
        parse_verifier("SCRAM-SHA-512", ":".join(change(VERIFIER.split(":"))))
    with pytest.raises(ValueError, match="no verifier"):
        parse_verifier("SCRAM-SHA-256", VERIFIER)


# --- passwords --------------------------------------------------------------------------------------------------------


def login(mechanism: str, verifier: Verifier, password: str) -> None:
    """A whole login. Raises ScramException."""
    info = (verifier.salt, verifier.stored_key, verifier.server_key, verifier.iterations)
    server = ScramMechanism(mechanism).make_server(lambda _name: info)
    client = ScramClient([mechanism], "app", password)
    server.set_client_first(client.get_client_first())
    client.set_server_first(server.get_server_first())
    server.set_client_final(client.get_client_final())
    client.set_server_final(server.get_server_final())


def test_a_password_is_verified_by_each_mechanism_and_another_one_is_not():
    password = random_password()
    found = make_verifiers(password)
    assert list(found) == list(MECHANISMS)
    for mechanism, text in found.items():
        verifier = parse_verifier(mechanism, text)
        login(mechanism, verifier, password)
        with pytest.raises(Exception, match="invalid-proof"):
            login(mechanism, verifier, password + "x")


def test_random_passwords_and_salts_differ_and_a_profile_can_hold_them():
    first, second = random_password(), random_password()
    assert first != second
    assert len(first) == 22
    assert first.replace("-", "").replace("_", "").isalnum()
    assert make_verifiers(first) != make_verifiers(first)


@pytest.mark.parametrize("password", ["", "short", " padded-with-blanks", "two\nlines", "bell\x07bell", "x" * 257])
def test_a_password_that_cannot_be_used_is_refused_and_not_shown(password):
    with pytest.raises(ConfigError) as raised:
        make_verifiers(password)
    assert not password or password not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_quotas_are_read_as_they_were_written_and_those_of_later_versions_are_kept():
    written = {"connections": 50, "moons": "many"}
    stored = user_of(*GRANTS, quotas=written)
    assert stored.user.quotas == {Quota.CONNECTIONS: 50}
    assert json.loads(format_user(stored))["quotas"] == written
    mode = parse_mode(PATH, json.dumps({"mode": "open", "quotas": written}).encode())
    assert mode.quotas == {Quota.CONNECTIONS: 50}
    assert json.loads(format_mode(mode)) == {"mode": "open", "quotas": written}
    assert "quotas" not in json.loads(format_mode(StoredMode(AccessMode.OPEN)))


@pytest.mark.parametrize(
    "quotas", [[], None, {"connections": -1}, {"connections": True}, {"own-topics": 10**12 + 1}, {"requests": 0}]
)
def test_a_quota_that_cannot_be_understood_is_damage(quotas: object):
    with pytest.raises(CoordinationError, match="quota"):
        user_of(*GRANTS, quotas=quotas)
    with pytest.raises(CoordinationError, match="quota"):
        parse_mode(PATH, json.dumps({"mode": "open", "quotas": quotas}).encode())
