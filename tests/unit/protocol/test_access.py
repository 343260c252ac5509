"""Grants: how they are written, what they permit, and why a request is refused."""

from types import MappingProxyType

import pytest

from metaq.protocol.access import (
    ANYBODY,
    Access,
    AccessGrant,
    AccessMode,
    AccessOperation,
    Need,
    Permissions,
    Principal,
    User,
    check_user,
    is_user,
)
from metaq.protocol.errors import InvalidName

SEND, CONSUME, SEE = AccessOperation.SEND, AccessOperation.CONSUME, AccessOperation.SEE
NOW = 1_000


@pytest.mark.parametrize(
    "text",
    [
        "send:orders",
        "send:shop-*",
        "send:*",
        "consume:orders",
        "consume:orders@billing",
        "consume:*@*",
        "see:%RETRY%g",
        "transact",
        "admin",
        "deny send:secret-*",
        "deny consume:orders@billing",
        "deny admin",
        "consume:a@@b@g@@h",
        "send:a@@b",
    ],
)
def test_a_grant_is_written_as_it_is_read(text):
    assert str(AccessGrant.parse(text)) == text
    assert str(AccessGrant.parse(f"  {text} ")) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "write for example"),
        ("send:a send:b", "write for example"),
        ("deny", "write for example"),
        ("allow send:a", "write for example"),
        ("write:a", "begin it with one of: send, consume, see, transact, admin"),
        ("replicate", "begin it with one of"),
        ("nothing", "begin it with one of"),
        ("Send:a", "begin it with one of"),
        ("send", "name the topic: send:TOPIC"),
        ("send:", "name the topic"),
        ("admin:orders", "admin names no topic"),
        ("send:a@g", "only consume names a group"),
        ("consume:a@", "group '' is empty"),
        ("send:a*b", "topic"),
        ("send:a/b", "topic"),
        ("consume:a@g@h", "write a @ inside a name twice"),
        ("consume:@g", "name the topic"),
    ],
)
def test_a_mistake_in_a_grant_is_named(text, said):
    with pytest.raises(InvalidName, match=said.replace("*", r"\*")):
        AccessGrant.parse(text)


def permits(grants, need):
    return Access(map(AccessGrant.parse, grants)).permits(need)


@pytest.mark.parametrize(
    ("grants", "need", "permitted"),
    [
        ([], Need(SEE, "t"), False),
        (["send:t"], Need(SEND, "t"), True),
        (["send:t"], Need(SEND, "t2"), False),
        (["send:t"], Need(SEND, "T"), False),
        (["send:t*"], Need(SEND, "t2"), True),
        (["send:t*"], Need(SEND, "t"), True),
        (["send:t*"], Need(SEND, ""), False),
        (["send:*"], Need(SEND, ""), True),
        (["send:t"], Need(SEE, "t"), True),
        (["send:t"], Need(CONSUME, "t"), False),
        (["consume:t@g"], Need(CONSUME, "t", "g"), True),
        (["consume:t@g"], Need(CONSUME, "t", "g2"), False),
        (["consume:t@g*"], Need(CONSUME, "t", "g2"), True),
        (["consume:t@g"], Need(CONSUME, "t"), True),
        (["consume:t"], Need(CONSUME, "t", "g"), False),
        (["consume:t@g", "consume:u@h"], Need(CONSUME, "t", "h"), False),
        (["consume:t@g"], Need(SEND, "%RETRY%g"), True),
        (["consume:t@g"], Need(CONSUME, "%DEAD%g", "g"), True),
        (["consume:t@g"], Need(SEND, "%RETRY%g2"), False),
        (["consume:t@g*"], Need(SEND, "%RETRY%g2"), True),
        (["send:%RETRY%g"], Need(SEND, "%RETRY%g"), True),
        (["consume:t@g"], Need(SEE, None, "g"), True),
        (["consume:t@g"], Need(SEE), False),
        (["see:*"], Need(SEE), True),
        (["see:*"], Need(SEE, None, "g"), True),
        (["see:t*"], Need(SEE), False),
        (["send:*", "consume:*@*"], Need(SEE), False),
        (["see:*"], Need(CONSUME, "t"), False),
        (["transact"], Need(AccessOperation.TRANSACT), True),
        (["send:*"], Need(AccessOperation.TRANSACT), False),
        (["consume:a@@b@g"], Need(CONSUME, "a@b", "g"), True),
        (["consume:a@@b@g"], Need(CONSUME, "a", "b@g"), False),
        (["admin"], Need(CONSUME, "t", "g"), True),
        (["admin"], Need(AccessOperation.COOPERATE), True),
        (["admin"], Need(AccessOperation.REPLICATE), False),
        (["transact"], Need(AccessOperation.ADMIN), False),
        (["admin", "deny send:t*"], Need(SEND, "t2"), False),
        (["admin", "deny send:t*"], Need(SEND, "u"), True),
        (["deny send:t", "send:*"], Need(SEND, "t"), False),
        (["consume:*@*", "deny consume:t@g"], Need(CONSUME, "t", "g"), False),
        (["consume:*@*", "deny consume:t@g"], Need(CONSUME, "t", "h"), True),
        (["consume:*@*", "deny consume:t"], Need(CONSUME, "t", "h"), False),
        (["admin", "deny see:*"], Need(SEE), False),
        (["admin", "deny admin"], Need(AccessOperation.ADMIN), False),
    ],
)
def test_what_grants_permit(grants, need, permitted):
    assert permits(grants, need) == permitted
    assert permits(reversed(grants), need) == permitted, "their order does not matter"


@pytest.mark.parametrize(
    "need",
    [
        Need(SEND, "t"),
        Need(CONSUME, "t", "g"),
        Need(CONSUME, "t"),
        Need(SEE, "t"),
        Need(SEE),
        Need(SEE, None, "g"),
        Need(SEND, ""),
        Need(CONSUME, ""),
        Need(AccessOperation.TRANSACT),
        Need(AccessOperation.ADMIN),
        Need(AccessOperation.COOPERATE),
        Need(SEND, "%REPLY%"),
        Need(CONSUME, "a@b", "g@h"),
    ],
    ids=str,
)
def test_the_grant_that_a_refusal_names_is_the_one_that_helps(need):
    assert permits([str(need)], need)


def test_all_topics_include_those_that_a_prohibition_names():
    for operation in (SEND, CONSUME):
        grants = [f"{operation}:*", f"deny {operation}:secret*"]
        assert not permits(grants, Need(operation, "")), "a list of all topics would show the secret ones"
        assert permits(grants, Need(operation, "t"))
    assert not permits(["see:*", "deny see:secret"], Need(SEE))
    assert permits(["send:*", "deny send:secret"], Need(SEND)), "to some topic"
    assert not permits(["consume:*@*", "deny consume:t@g"], Need(CONSUME, "t")), "a member could leave its group out"


def test_many_grants_are_looked_up_and_not_gone_through(monkeypatch):
    calls = []
    real = AccessGrant.covers

    def counting(grant, need):
        calls.append(grant)
        return real(grant, need)

    monkeypatch.setattr(AccessGrant, "covers", counting)
    access = Access(map(AccessGrant.parse, [*(f"send:p{number}-*" for number in range(250)), "send:*", "deny send:x"]))
    assert access.permits(Need(SEND, "p7-orders"))
    assert access.permits(Need(SEND, "q"))
    assert not access.permits(Need(SEND, "x"))
    assert len(calls) <= 6


def user(*grants, expires_ms=None, verifiers=MappingProxyType({})):
    return User("app", Access(map(AccessGrant.parse, grants)), expires_ms, verifiers)


def refusal(principal, need, *grants, expires_ms=None):
    return Permissions(AccessMode.ENFORCE, {"app": user(*grants, expires_ms=expires_ms)}).refusal(principal, need, NOW)


APP, BROKER, LEGACY = Principal("user", "app"), Principal("broker", "mq1"), Principal("address", "app")


@pytest.mark.parametrize(
    ("said", "principal", "need", "grants", "expires_ms"),
    [
        ("log in as a user with the grant send:t", ANYBODY, Need(SEND, "t"), [], None),
        ("log in as a user: nobody", ANYBODY, Need(AccessOperation.KNOWN), [], None),
        ("does not exist", Principal("user", "other"), Need(SEND, "t"), [], None),
        ("metaq acl grant app send:t", APP, Need(SEND, "t"), [], None),
        ("has expired", APP, Need(SEND, "t"), ["send:t"], NOW),
        ("only a broker may", APP, Need(AccessOperation.REPLICATE), ["admin"], None),
        ("is no operator", BROKER, Need(AccessOperation.ADMIN), [], None),
        ("must expire: metaq users expire app 90d", LEGACY, Need(SEND, "t"), ["send:t"], None),
        ("is no operator", LEGACY, Need(AccessOperation.ADMIN), ["admin"], NOW + 1),
        ("is no operator", LEGACY, Need(AccessOperation.COOPERATE), ["admin"], NOW + 1),
        ("has expired", LEGACY, Need(SEND, "t"), ["send:t"], NOW),
    ],
)
def test_a_refusal_says_why(said, principal, need, grants, expires_ms):
    assert said in (refusal(principal, need, *grants, expires_ms=expires_ms) or "")


@pytest.mark.parametrize(
    ("principal", "need", "grants", "expires_ms"),
    [
        (ANYBODY, Need(AccessOperation.NOTHING), [], None),
        (APP, Need(AccessOperation.KNOWN), [], None),
        (APP, Need(SEND, "t"), ["send:t"], NOW + 1),
        (LEGACY, Need(SEND, "t"), ["send:t"], NOW + 1),
        (BROKER, Need(AccessOperation.REPLICATE), [], None),
        (BROKER, Need(CONSUME, "t"), [], None),
        (BROKER, Need(AccessOperation.COOPERATE), [], None),
    ],
)
def test_what_is_permitted_has_no_refusal(principal, need, grants, expires_ms):
    assert refusal(principal, need, *grants, expires_ms=expires_ms) is None


def test_the_names_of_users_are_short_and_plain():
    for name in ("app", "a.b-c_1", "A", "0", "x" * 64):
        assert check_user(name) == name
    for name in ("", "-a", ".a", "a b", "a/b", "ä", "x" * 65, "a\n", "a,b", "a=b"):
        assert not is_user(name)
        with pytest.raises(InvalidName):
            check_user(name)


def test_no_verifier_is_shown():
    assert "secret" not in repr(User("app", Access([]), None, {"SCRAM-SHA-256": "secret"}))


def test_a_login_ends_with_the_password():
    before, after = (user("send:t", verifiers={"SCRAM-SHA-256": text}) for text in ("one", "two"))
    login = Principal("user", "app", before.stamp)
    for known, refused in ((before, False), (after, True), (user("send:t"), True)):
        said = Permissions(AccessMode.ENFORCE, {"app": known}).refusal(login, Need(SEND, "t"), NOW)
        assert ("the password" in (said or "")) == refused
    assert "one" not in before.stamp
