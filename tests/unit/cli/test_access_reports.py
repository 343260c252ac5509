"""What an operator is told about what brokers refuse: the commands that help, and what stands against enforcing."""

import json
from collections.abc import Mapping

import pytest

from metaq.cli.access_reports import (
    RECENT_SECONDS,
    AccessReport,
    BrokerAnswers,
    RefusedNeed,
    covering_grant,
    mode_of_brokers,
    need_of,
    obstacles,
    parse_report,
    suggest,
)
from metaq.cli.acl import decide, parse_need
from metaq.protocol.access import Access, AccessGrant, AccessMode, AccessOperation, Need, User
from metaq.protocol.errors import ClientError, InvalidName
from metaq.protocol.own_topics import DEAD_PREFIX, REPLY_TOPIC, RETRY_PREFIX

NOW = 1_790_000_000_000
ANSWER = {
    "mode": "observe",
    "users": 3,
    "refused": [{"principal": "anonymous", "address": "10.0.0.5", "need": "send:orders", "count": 12, "last_ms": NOW}],
    "forgotten": 4,
    "admins": [{"name": "root", "last_ms": NOW}],
}


def user(name: str, *grants: str, expires_ms: int | None = None) -> User:
    return User(name, Access(map(AccessGrant.parse, grants)), expires_ms)


def users(*found: User) -> Mapping[str, User]:
    return {each.name: each for each in found}


def report(*refused: RefusedNeed, mode: AccessMode = AccessMode.OBSERVE, known: int = 1, admins: tuple[str, ...] = ()):
    return AccessReport(mode, known, refused, 0, admins)


def refused(principal: str, need: str, address: str = "10.0.0.5", times: int = 1, last_ms: int = NOW) -> RefusedNeed:
    return RefusedNeed(principal, address, need, times, last_ms)


# --- reports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"later": {"a": 1}}])
def test_a_report_is_read(more):
    read = parse_report(json.dumps(ANSWER | more, indent=1).splitlines())
    assert read == AccessReport(
        AccessMode.OBSERVE, 3, (RefusedNeed("anonymous", "10.0.0.5", "send:orders", 12, NOW),), 4, ("root",)
    )


@pytest.mark.parametrize("lines", [[], ["access resultCode 404"], ["access *Empty*"]])
def test_a_broker_that_takes_the_item_for_a_topic_knows_no_users(lines):
    assert parse_report(lines) is None


@pytest.mark.parametrize(
    "wrong", [{"mode": "wild"}, {"refused": 5}, {"refused": [{}]}, {"admins": [7]}, {"users": "many"}]
)
def test_an_answer_that_is_no_report_is_an_error(wrong):
    with pytest.raises(ValueError, match="stats access"):
        parse_report([json.dumps(ANSWER | wrong)])
    with pytest.raises(ValueError, match="cannot be read"):
        parse_report(["{"])


# --- needs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "need",
    [
        Need(AccessOperation.SEND, "orders"),
        Need(AccessOperation.CONSUME, "orders", "billing"),
        Need(AccessOperation.CONSUME, "orders"),
        Need(AccessOperation.SEE, "orders"),
        Need(AccessOperation.SEE),
        Need(AccessOperation.SEE, None, "billing"),
        Need(AccessOperation.TRANSACT),
        Need(AccessOperation.ADMIN),
        Need(AccessOperation.SEND, REPLY_TOPIC),
    ],
)
def test_a_need_is_found_again_from_the_grant_that_a_broker_writes(need):
    assert need_of(AccessGrant.parse(str(need))) == need


@pytest.mark.parametrize("prefix", [RETRY_PREFIX, DEAD_PREFIX])
def test_the_need_for_failed_messages_is_permitted_by_whatever_names_the_group(prefix):
    need = need_of(AccessGrant.parse(str(Need(AccessOperation.CONSUME, prefix + "billing", "billing"))))
    assert need is not None
    assert user("app", "consume:orders@billing").access.permits(need)
    assert not user("app", "consume:orders@other").access.permits(need)


@pytest.mark.parametrize("text", ["send:orders*", "deny send:orders"])
def test_what_stands_for_many_topics_is_no_need(text):
    assert need_of(AccessGrant.parse(text)) is None


# --- suggestions ------------------------------------------------------------------------------------------------------


def test_a_user_by_address_gets_the_same_commands_and_must_expire():
    asked = refused("user legacy (by address)", "send:orders")
    forever, lacking = user("legacy", "send:orders"), user("legacy", expires_ms=NOW + 1)
    assert suggest([report(asked)], users(lacking), NOW).commands == ("metaq acl grant legacy send:orders",)
    assert suggest([report(asked)], users(user("legacy", "send:orders", expires_ms=NOW + 1)), NOW) == ((), ())
    (note,) = suggest([report(asked)], users(forever), NOW).notes
    assert "metaq users expire legacy 90d" in note
    operator = report(refused("user legacy (by address)", "admin"))
    (note,) = suggest([operator], users(user("legacy", "admin", expires_ms=NOW + 1)), NOW).notes
    assert "let it log in" in note


def test_the_needs_of_a_user_at_all_brokers_become_one_command():
    known = users(user("app", "see:orders"), user("web"))
    first = report(refused("user app", "send:orders"), refused("user web", "consume:orders@shop"))
    second = report(refused("user app", "consume:orders@billing"), refused("user app", "send:orders", "10.0.0.6"))
    found = suggest([first, second], known, NOW)
    assert found.commands == (
        "metaq acl grant app consume:orders@billing send:orders",
        "metaq acl grant web consume:orders@shop",
    )
    assert found.notes == ()


def test_what_has_been_granted_meanwhile_is_not_suggested():
    known = users(user("app", "send:*", "consume:orders@billing"))
    needs = ("send:orders", "consume:TOPIC@billing", "consume:*@billing", "see:orders")
    assert suggest([report(*(refused("user app", need) for need in needs))], known, NOW) == ((), ())


def test_what_another_needed_grant_includes_is_not_suggested():
    needs = ("see:orders", "consume:orders@billing", "consume:*@billing", "consume:TOPIC@billing")
    found = suggest([report(*(refused("user app", need) for need in needs))], users(user("app")), NOW)
    assert found == (("metaq acl grant app consume:orders@billing",), ())


def test_a_need_for_many_topics_is_quoted_for_the_shell():
    found = suggest([report(refused("user app", "see:*"))], users(user("app")), NOW)
    assert found.commands == ("metaq acl grant app 'see:*'",)


def test_a_topic_that_the_broker_could_not_name_is_asked_for():
    found = suggest([report(refused("user app", "consume:TOPIC@billing"))], users(user("app")), NOW)
    assert found.commands == ("metaq acl grant app consume:TOPIC@billing",)
    assert found.notes == ("user app: write for TOPIC in consume:TOPIC@billing a topic that the group billing reads",)


@pytest.mark.parametrize(
    ("each", "note"),
    [
        (refused("anonymous", "send:orders"), "anonymous from 10.0.0.5 needs send:orders: let it log in as a user"),
        (refused("broker mq1", "admin"), "broker mq1 from 10.0.0.5 needs admin: let it log in as a user"),
        (refused("user app", "replicate"), "user app from 10.0.0.5 sends requests of brokers"),
        (refused("user gone", "send:orders"), "no such user: metaq users add"),
        (refused("user old", "send:orders"), "has expired: metaq users expire old"),
        (refused("user app", "send:secret-1"), "which its grant 'deny send:secret-*' forbids"),
        (refused("user app", "fly:orders"), "which this version of metaq does not know"),
    ],
)
def test_whom_no_grant_would_help_is_named(each, note):
    known = users(user("app", "deny send:secret-*"), user("old", "admin", expires_ms=NOW))
    found = suggest([report(each)], known, NOW)
    assert found.commands == ()
    assert len(found.notes) == 1
    assert note in found.notes[0]


# --- enforcing --------------------------------------------------------------------------------------------------------

KNOWN = users(user("root", "admin"), user("app", "send:orders"))


def test_nothing_stands_against_enforcing_once_an_admin_has_logged_in_and_nobody_would_be_cut():
    granted = refused("user app", "send:orders")
    old = refused("anonymous", "send:orders", last_ms=NOW - 1000 * RECENT_SECONDS - 1)
    assert obstacles(BrokerAnswers({"broker 0": report(granted, old, admins=("root",))}, {}), KNOWN, NOW) == []


@pytest.mark.parametrize(
    ("answers", "named"),
    [
        (BrokerAnswers({"broker 0": report()}, {}), "no user with the grant admin has logged in"),
        (BrokerAnswers({"broker 0": report(admins=("app", "gone"))}, {}), "no user with the grant admin"),
        (
            BrokerAnswers({"broker 0": report(admins=("root",))}, {"broker 1": "is away"}),
            "broker 1 does not answer: is",
        ),
        (BrokerAnswers({"broker 0": report(admins=("root",))}, {}, ("broker 2",)), "broker 2 knows no users"),
        (
            BrokerAnswers(
                {"broker 0": report(refused("anonymous", "send:x", last_ms=NOW - 5000), admins=("root",))}, {}
            ),
            "anonymous from 10.0.0.5 would lack send:x (last seen 5 s ago)",
        ),
        (
            BrokerAnswers({"broker 0": report(refused("user app", "send:x"), admins=("root",))}, {}),
            "user app from 10.0.0.5 would lack send:x",
        ),
    ],
)
def test_each_reason_against_enforcing_is_named(answers, named):
    (found,) = obstacles(answers, KNOWN, NOW)
    assert named in found


def test_an_expired_admin_does_not_count():
    known = users(user("root", "admin", expires_ms=NOW))
    assert obstacles(BrokerAnswers({"broker 0": report(admins=("root",))}, {}), known, NOW)


# --- the first user of a tree -----------------------------------------------------------------------------------------


def test_a_tree_without_users_gets_the_strictest_mode_that_a_broker_obeys():
    def mode(*modes: AccessMode) -> AccessMode:
        reports = {f"broker {n}": report(mode=each, known=0) for n, each in enumerate(modes)}
        return mode_of_brokers(BrokerAnswers(reports, {}, ("broker 9",)), force=False)

    assert mode() is AccessMode.OPEN
    assert mode(AccessMode.OPEN, AccessMode.OPEN) is AccessMode.OPEN
    assert mode(AccessMode.OPEN, AccessMode.OBSERVE) is AccessMode.OBSERVE
    assert mode(AccessMode.ENFORCE, AccessMode.OBSERVE) is AccessMode.ENFORCE


def test_users_that_only_brokers_still_know_are_not_given_up_without_force():
    known = BrokerAnswers({"broker 0": report(mode=AccessMode.ENFORCE, known=5)}, {})
    closed = BrokerAnswers({}, {"broker 0": "lacks the grant"}, refused=("broker 0",))
    for answers in (known, closed):
        with pytest.raises(ClientError, match=r"broker 0.*--force"):
            mode_of_brokers(answers, force=False)
        assert mode_of_brokers(answers, force=True) is AccessMode.ENFORCE


def test_a_broker_that_does_not_answer_is_not_taken_for_an_open_one():
    with pytest.raises(ClientError, match="broker 1: is away: make them answer"):
        mode_of_brokers(BrokerAnswers({}, {"broker 1": "is away"}), force=True)


# --- acl test ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "resource", "allowed", "reason"),
    [
        ("send", "orders", True, "send:orders"),
        ("see", "orders", True, "send:orders"),
        ("consume", "orders@billing", True, "consume:orders@bil*"),
        ("consume", "*@billing", True, "consume:orders@bil*"),
        ("consume", "%RETRY%billing", True, "consume:orders@bil*"),
        ("send", "secret-1", False, "deny send:secret-*"),
        ("send", "other", False, "no grant permits it: metaq acl grant app send:other"),
        ("admin", "", False, "no grant permits it: metaq acl grant app admin"),
    ],
)
def test_the_grant_that_decides_is_named(operation, resource, allowed, reason):
    app = user("app", "send:secret-*", "deny send:secret-*", "send:orders", "consume:orders@bil*")
    decision = decide(app, parse_need(operation, resource), NOW)
    assert (decision.allowed, decision.reason) == (allowed, reason)
    assert decision.allowed == app.access.permits(parse_need(operation, resource))


ADMIN = Need(AccessOperation.ADMIN)


def test_an_expired_user_may_do_nothing():
    assert (
        decide(user("app", "admin", expires_ms=NOW), Need(AccessOperation.ADMIN), NOW).reason
        == "the user app has expired"
    )
    assert decide(user("app", "admin", expires_ms=NOW + 1), ADMIN, NOW).allowed


@pytest.mark.parametrize(("operation", "resource"), [("send", ""), ("send", "a@b"), ("admin", "x"), ("send", "a*")])
def test_what_names_no_resource_is_refused(operation, resource):
    with pytest.raises(InvalidName):
        parse_need(operation, resource)


def test_a_prohibition_decides_before_a_permission():
    grant = covering_grant(user("app", "admin", "deny send:orders"), Need(AccessOperation.SEND, "orders"))
    assert str(grant) == "deny send:orders"
