"""What one user may have on a broker, and that it is given back."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.broker.access.audit import AUDIT_SECONDS, Audit
from metaq.broker.delays.owners import Owners
from metaq.broker.runtime.user_quotas import UserQuotas
from metaq.protocol.access import NO_USER, OPEN, Access, AccessMode, Permissions, Principal, Quota, User
from metaq.protocol.errors import QuotaExceeded
from metaq.protocol.frames import encode_frame
from metaq.protocol.half_messages import EndHalfRequest, HalfOutcome
from metaq.protocol.own_topics import retry_topic
from metaq.protocol.put_run import LEAST_PUTS
from metaq.protocol.sends import SendReply
from metaq.protocol.shared import AcquireRequest
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from metaq.protocol.transactions import TransactionType
from tests.unit.broker.harness import pull, put, raw_batch, records_of, reserved, send
from tests.unit.broker.transactions.conversation import Asker, tx

APP, OTHER = Principal("user", "app"), Principal("user", "other")
BEGIN, ROLLBACK = TransactionType.BEGIN.name, TransactionType.ROLLBACK.name


def allow(harness, default=(), **own):
    """Let the user app have these quotas, and all others `default`."""
    quotas = {Quota(name.replace("_", "-")): value for name, value in own.items()}
    users = {"app": User("app", Access([]), quotas=quotas)}
    harness.broker.account.users.permissions = Permissions(AccessMode.OPEN, users, dict(default))


def test_a_refusal_by_a_quota_is_in_the_audit_log_at_once_and_others_are_counted(harness):
    lines: list[str] = []
    seconds = [0.0]
    audit = Audit(lines.append, lambda: 0, lambda: seconds[0])
    quotas = harness.broker.account.users
    allow(harness, connections=0)
    quotas.on_refused = lambda user, quota, why: audit.quota_refused(user, "10.0.0.7", quota, why)
    for _ in range(3):
        with pytest.raises(QuotaExceeded):
            quotas.take("app", Quota.CONNECTIONS)
    seconds[0] = AUDIT_SECONDS
    audit.tick()
    entries = [json.loads(line) for line in lines]
    told = {"principal": "user app", "address": "10.0.0.7", "need": "quota connections", "decision": "refused"}
    assert [entry["count"] for entry in entries] == [1, 2]
    for entry in entries:
        assert told.items() <= entry.items()
        assert "metaq users quota app connections=NUMBER" in entry["why"]


def connect(harness, principal=APP):
    peer = harness.connect()
    peer.session.logged_in(principal)
    return peer


def used(harness, quota, user="app"):
    return harness.broker.account.users.used(user, quota)


# --- counting ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["app", "other", NO_USER]), st.sampled_from(Quota), st.integers(-3, 3))))
def test_nobody_gets_more_than_his_quota_and_all_is_given_back(steps):
    quotas = UserQuotas()
    own = {Quota.CONNECTIONS: 2, Quota.OWN_TOPICS: 0}
    quotas.permissions = Permissions(users={"app": User("app", Access([]), quotas=own)}, quotas={Quota.CONNECTIONS: 4})
    has: Counter[tuple[str, Quota]] = Counter()
    for user, quota, amount in steps:
        limit = quotas.permissions.quota(user, quota)
        if amount < 0:
            given_back = min(-amount, has[user, quota])
            quotas.add(user, quota, -given_back)
            has[user, quota] -= given_back
        elif limit is not None and has[user, quota] + amount > limit:
            if amount:
                with pytest.raises(QuotaExceeded):
                    quotas.take(user, quota, amount)
        else:
            quotas.take(user, quota, amount)
            has[user, quota] += amount
        assert quotas.used(user, quota) == (has[user, quota] if user != NO_USER else 0)
        assert limit is None or has[user, quota] <= limit
    for (user, quota), amount in has.items():
        quotas.add(user, quota, -amount)
    assert quotas.report()["users"] == {}


def test_an_own_quota_counts_more_than_that_of_all_and_brokers_have_none():
    known = Permissions(
        users={"app": User("app", Access([]), quotas={Quota.CONNECTIONS: 9})},
        quotas={Quota.CONNECTIONS: 1, Quota.OWN_TOPICS: 2},
    )
    assert known.quota("app", Quota.CONNECTIONS) == 9
    assert known.quota("app", Quota.OWN_TOPICS) == 2
    assert known.quota("other", Quota.CONNECTIONS) == 1
    assert known.quota("app", Quota.WAITING_PULLS) is None
    for principal, user in ((Principal("broker", "app"), NO_USER), (Principal("address", "app"), "app")):
        assert principal.user == user
    assert known.quota(NO_USER, Quota.CONNECTIONS) is None


# --- connections ------------------------------------------------------------------------------------------------------


def test_a_connection_too_many_is_refused_until_there_is_room(harness):
    allow(harness, connections=1)
    first, second, other = connect(harness), connect(harness), connect(harness, OTHER)
    assert first.ask(put("t", 0), work=True).code == Status.SUCCESS
    assert other.ask(put("t", 0), work=True).code == Status.SUCCESS
    refused = second.ask_frame(send("t", 0))
    assert refused.code == ResponseCode.QUOTA_EXCEEDED
    assert "the user app has 1 of at most 1 connections" in refused.remark
    assert "metaq users quota app connections=NUMBER" in refused.remark
    assert second.ask(put("t", 0)).code == Status.ERROR
    second.send(b"".join(put("t", 0, opaque=number) for number in range(LEAST_PUTS)))
    assert [(each.code, each.opaque) for each in second.answers()] == [(Status.ERROR, n) for n in range(LEAST_PUTS)]
    first.lose()
    assert second.ask(put("t", 0), work=True).code == Status.SUCCESS
    second.lose()
    assert used(harness, Quota.CONNECTIONS) == 0


def test_a_refused_connection_gives_nothing_back_and_a_higher_quota_helps_it(harness):
    allow(harness, connections=1)
    first, second, third = connect(harness), connect(harness), connect(harness)
    for peer in (first, second, third):
        peer.ask_frame(send("t", 0), work=True)
    third.lose()
    assert used(harness, Quota.CONNECTIONS) == 1
    allow(harness, connections=2)
    assert second.ask_frame(send("t", 0), work=True).code == ResponseCode.SUCCESS
    assert used(harness, Quota.CONNECTIONS) == 2


def test_a_connection_too_many_may_still_decide_a_transaction(harness):
    allow(harness, connections=0, open_transactions=1)
    asker = Asker(harness)
    asker.peer.session.logged_in(APP)
    asker.ok(tx("TX:s:0", BEGIN))
    assert "at most 1 open-transactions" in asker.refused(tx("TX:s:1", BEGIN))
    assert "at most 0 connections" in asker.refused(put("t", 0))
    asker.ok(tx("TX:s:0", ROLLBACK))
    assert used(harness, Quota.OPEN_TRANSACTIONS) == 0


def test_another_login_counts_for_the_other_user(harness):
    allow(harness, connections=1)
    peer = connect(harness)
    peer.send(pull("t", 0, 0, wait_ms=10_000))
    assert used(harness, Quota.WAITING_PULLS) == 1
    peer.session.logged_in(OTHER)
    assert used(harness, Quota.CONNECTIONS) == used(harness, Quota.WAITING_PULLS) == 0
    assert used(harness, Quota.WAITING_PULLS, "other") == 1
    peer.ask_frame(send("u", 0), work=True)
    assert used(harness, Quota.CONNECTIONS, "other") == 1
    peer.lose()
    harness.turn()  # the pull ends
    assert harness.broker.account.users.report()["users"] == {}


# --- what else counts -------------------------------------------------------------------------------------------------


def test_waiting_pulls(harness):
    allow(harness, waiting_pulls=2)
    first, second = connect(harness), connect(harness)
    for peer in (first, second):
        peer.send(pull("t", 0, 0, wait_ms=10_000))
    assert second.ask_frame(pull("t", 0, 0, wait_ms=10_000)).code == ResponseCode.QUOTA_EXCEEDED
    connect(harness, OTHER).send(pull("t", 0, 0, wait_ms=10_000))
    assert used(harness, Quota.WAITING_PULLS, "other") == 1
    first.lose()
    harness.turn()
    assert used(harness, Quota.WAITING_PULLS) == 1
    second.send(pull("t", 0, 0, wait_ms=10_000))
    assert used(harness, Quota.WAITING_PULLS) == 2
    assert second.frames() == []


def test_open_transactions(harness):
    allow(harness, open_transactions=2)
    asker = Asker(harness)
    asker.peer.session.logged_in(APP)
    asker.ok(tx("TX:s:0", BEGIN))
    asker.ok(tx("TX:s:1", BEGIN))
    assert "at most 2 open-transactions" in asker.refused(tx("TX:s:2", BEGIN))
    asker.ok(tx("TX:s:1", ROLLBACK))
    asker.ok(tx("TX:s:2", BEGIN))
    asker.peer.lose()
    while used(harness, Quota.OPEN_TRANSACTIONS):
        harness.turn()


def acquire(group, opaque=1):
    request = AcquireRequest("t", 0, group, "m", max_records=1, max_bytes=100, lease_ms=1000)
    return encode_frame(RequestCode.ACQUIRE, opaque, request.to_ext())


def test_shared_groups(harness):
    allow(harness, shared_groups=1)
    peer = connect(harness)
    peer.send(acquire("a"))
    peer.frames()
    assert peer.ask_frame(acquire("b")).code == ResponseCode.QUOTA_EXCEEDED
    peer.send(acquire("a"))
    assert all(each.code != ResponseCode.QUOTA_EXCEEDED for each in peer.frames())
    assert used(harness, Quota.SHARED_GROUPS) == 1
    harness.broker.shared._stop()
    assert used(harness, Quota.SHARED_GROUPS) == 0


def test_own_topics(harness):
    allow(harness, default={Quota.OWN_TOPICS: 1})
    peer, other = connect(harness), connect(harness, OTHER)
    assert peer.ask_frame(send(retry_topic("a"), 0), work=True).code == ResponseCode.SUCCESS
    assert peer.ask_frame(send(retry_topic("b"), 0)).code == ResponseCode.QUOTA_EXCEEDED
    assert peer.ask_frame(send(retry_topic("a"), 0), work=True).code == ResponseCode.SUCCESS
    assert other.ask_frame(send(retry_topic("b"), 0), work=True).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("quota", "message", "cancel"),
    [
        (Quota.DELAYED_BYTES, {"metaq.delay": "60000"}, None),
        (Quota.HALF_BYTES, {"metaq.half": "bank"}, HalfOutcome.COMMITTED),
        (Quota.HALF_BYTES, {"metaq.half": "bank"}, HalfOutcome.ROLLED_BACK),
    ],
    ids=["delayed", "committed", "rolled-back"],
)
def test_bytes_of_waiting_messages(lives, quota, message, cancel):
    small, large = reserved(b"x" * 150, message), reserved(b"x" * 300, message)
    app, other = (connect(lives.harness, each) for each in (APP, OTHER))
    allow(lives.harness, **{quota.replace("-", "_"): 600})
    sent = lives.ask(send("t", 0, small[1], flag=small[0]), app)
    assert sent.code == ResponseCode.SUCCESS
    assert 150 < used(lives.harness, quota) < 300
    for too_much in (records_of([large, small]), records_of([small] * 4)):
        refused = lives.ask(raw_batch("t", 0, too_much), app)
        assert (refused.code, f"at most 600 {quota}" in refused.remark) == (ResponseCode.QUOTA_EXCEEDED, True)
    assert lives.ask(raw_batch("t", 0, records_of([small] * 4)), other).code == ResponseCode.SUCCESS
    assert lives.ask(send("t", 0, b"now"), app).code == ResponseCode.SUCCESS
    assert lives.ask(send("t", 0, large[1], flag=large[0]), app).code == ResponseCode.SUCCESS
    assert used(lives.harness, quota) > 450
    before = used(lives.harness, quota)
    if cancel is None:
        lives.wait(61, 1)
        assert len(lives.payloads()) == 7
        assert used(lives.harness, quota) == used(lives.harness, quota, "other") == 0
    else:
        end = EndHalfRequest("t", 0, SendReply.from_ext(sent.ext).message_id, cancel)
        assert lives.ask(encode_frame(RequestCode.END_HALF, 1, end.to_ext()), other).code == ResponseCode.SUCCESS
        assert before - used(lives.harness, quota) > 150
    lives.broker.account.users.permissions = OPEN
    assert lives.ask(raw_batch("t", 0, records_of([small])), app).code == ResponseCode.SUCCESS
    assert used(lives.harness, quota) > 150, "it counts, although the user has no quota"
    lives.restart()
    assert used(lives.harness, quota) == 0, "nobody knows the sender after a restart"


@given(st.lists(st.tuples(st.sampled_from(["app", "other", NO_USER]), st.integers(1, 1 << 27), st.booleans())))
def test_bytes_of_waiting_messages_are_given_back_to_whoever_has_sent_them(steps):
    """Each step either sends two messages, or ends up to three waiting messages and one that does not wait."""
    quotas = UserQuotas()
    owners = Owners(quotas, Quota.DELAYED_BYTES)
    waiting: dict[int, tuple[str, int]] = {}
    for number, (user, size, sends) in enumerate(steps):
        if sends:
            ids = [2 * number, 2 * number + 1]
            owners.came(user, np.array(ids, np.int64), np.array([size, 1], np.int64))
            waiting |= dict(zip(ids, [(user, size), (user, 1)], strict=True))
        else:
            gone = list(waiting)[: size % 4]
            owners.went(np.array([*gone, -7], np.int64))
            for each in gone:
                del waiting[each]
        assert quotas.used(NO_USER, Quota.DELAYED_BYTES) == 0
        for name in ("app", "other"):
            expected = sum(has for who, has in waiting.values() if who == name)
            assert quotas.used(name, Quota.DELAYED_BYTES) == expected
    owners.clear()
    assert quotas.report()["users"] == {}


def test_what_a_user_has_is_reported(harness):
    allow(harness, connections=5)
    peer = connect(harness)
    peer.ask_frame(send("t", 0), work=True)
    quotas = harness.broker.account.users.report()
    assert json.loads(json.dumps(quotas))["users"] == {"app": {"connections": {"used": 1, "quota": 5}}}
    assert quotas["refused"]["connections"] == 0
