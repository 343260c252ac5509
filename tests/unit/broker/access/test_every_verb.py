"""What each verb asks of its sender, made from the broker's own tables: a new verb has no entry here yet, and fails."""

from typing import Any, NamedTuple

import pytest

from metaq.broker.assembly.stats import seen
from metaq.broker.http.dashboard import Dashboard, RecentLog
from metaq.broker.requests.gate import HttpPeer, PageRequest
from metaq.protocol.access import ANYBODY, Access, AccessGrant, AccessMode, Permissions, Principal, User
from metaq.protocol.frames import encode_frame
from metaq.protocol.pulls import READER_GROUP
from metaq.protocol.put_run import LEAST_PUTS, PutRun
from metaq.protocol.record import encode_attributes, encode_body, tag_hash
from metaq.protocol.shared import (
    SettleAction,
    Settlement,
    SettleOutcome,
    decode_leased,
    decode_outcomes,
    encode_settlements,
)
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from metaq.protocol.text import (
    Get,
    IgnoredAnswer,
    OffsetQuery,
    Put,
    Stats,
    Sync,
    TooLargePut,
    TransactionCommand,
    Version,
)
from tests.unit.broker.harness import pull, put, send

ANYONE, USERS, BROKERS, SOME = "anyone", "users", "brokers", "send:TOPIC"
T0 = {"topic": "t", "partition": "0"}
GROUP = T0 | {"group": "g"}
MANY = {"topics": "t/safe", "parts": "2", "count": "2"}
XA = {"txKey": "XID:1:0a:0b:q"}


class Entry(NamedTuple):
    """A request, and the grants that permit it: ANYONE, USERS (whatever their grants), BROKERS (and no user), or
    grants. brokers: whether a broker's certificate permits it, too.
    """

    ext: dict[str, str]
    grants: tuple[str, ...]
    brokers: bool = True


ADMIN = ("admin",)
FRAMES = {
    RequestCode.SEND: Entry(T0, ("send:t",)),
    RequestCode.SEND_BATCH: Entry(T0, ("send:t",)),
    RequestCode.SEND_MANY: Entry(MANY, ("send:t", "send:safe")),
    RequestCode.PULL: Entry(GROUP, ("consume:t@g",)),
    RequestCode.MIN_OFFSET: Entry(T0, ("see:t",)),
    RequestCode.MAX_OFFSET: Entry(T0, ("see:t",)),
    RequestCode.SEARCH_OFFSET_BY_TIME: Entry(T0, ("see:t",)),
    RequestCode.SEARCH_OFFSET_BY_COUNT: Entry(T0, ("see:t",)),
    RequestCode.MESSAGE_COUNTS: Entry(T0, ("see:t",)),
    RequestCode.VIEW_MESSAGE_BY_ID: Entry(T0, ("consume:t",)),
    RequestCode.QUERY_MESSAGE: Entry(T0, ("consume:t",)),
    RequestCode.HEARTBEAT: Entry({}, (ANYONE,)),
    RequestCode.AUTHENTICATE: Entry({}, (ANYONE,)),
    RequestCode.STATS: Entry({}, ("see:*",)),
    RequestCode.TRANSACTION: Entry({"txKey": "TX:s:1"}, (SOME,)),
    RequestCode.TRANSACTION_OUTCOME: Entry({"txKey": "TX:s:1"}, (SOME,)),
    RequestCode.CANCEL_DELAYED: Entry(T0, ("send:t",)),
    RequestCode.LIST_DELAYED: Entry({"topic": "t"}, ("consume:t",)),
    RequestCode.END_HALF: Entry(T0, ("send:t",)),
    RequestCode.END_HALVES: Entry(T0, ("send:t",)),
    RequestCode.CHECK_HALVES: Entry({"group": "g", "topics": "t safe"}, ("send:t", "send:safe")),
    RequestCode.LIST_HALVES: Entry({"topic": "t"}, ("consume:t", "see:*")),
    RequestCode.RELOAD_CONFIG: Entry({}, ADMIN, brokers=False),
    RequestCode.CLOSE_PARTITIONS: Entry(T0, ADMIN, brokers=False),
    RequestCode.OPEN_PARTITIONS: Entry(T0, ADMIN, brokers=False),
    RequestCode.FOLLOW: Entry({}, (BROKERS,)),
    RequestCode.REPLICATION_STATUS: Entry({}, ADMIN, brokers=False),
    RequestCode.RESTART_REPLICATION: Entry({}, ADMIN, brokers=False),
    RequestCode.HAND_OVER: Entry({}, ADMIN, brokers=False),
    RequestCode.SET_STATUS: Entry({}, (USERS,)),
    RequestCode.MOVE: Entry(T0, ADMIN),
    RequestCode.ACQUIRE: Entry(GROUP, ("consume:t@g",)),
    RequestCode.SETTLE: Entry(GROUP, ("consume:t@g",)),
    RequestCode.SHARED_STATUS: Entry({"group": "g"}, ("consume:x@g",)),
    RequestCode.SHARED_FORGET: Entry({"group": "g"}, ADMIN, brokers=False),
    RequestCode.PREPARED_TRANSACTIONS: Entry({}, ADMIN, brokers=False),
    RequestCode.COMPLETE_TRANSACTION: Entry(XA, ADMIN, brokers=False),
}
VARIANTS = [
    (RequestCode.SEND, Entry(T0 | {"txKey": "TX:s:1"}, ("send:t",))),
    (RequestCode.SEND_BATCH, Entry(T0 | {"txKey": "TX:s:1"}, ("send:t",))),
    (RequestCode.SEND, Entry({"topic": "%RETRY%g", "partition": "0"}, ("consume:x@g",))),
    (RequestCode.PULL, Entry({"topic": "%DEAD%g", "partition": "0"}, ("consume:x@g",))),
    (RequestCode.PULL, Entry(T0, ("consume:t",))),
    (RequestCode.PULL, Entry(T0 | {"group": READER_GROUP}, ("consume:t",))),
    (RequestCode.STATS, Entry({"item": "t"}, ("see:t",))),
    (RequestCode.STATS, Entry({"item": "topics"}, (USERS,))),
    (RequestCode.STATS, Entry({"item": "offsets"}, (USERS,))),
    (RequestCode.STATS, Entry({"item": "config"}, ADMIN, brokers=False)),
    (RequestCode.STATS, Entry({"item": "access"}, ADMIN, brokers=False)),
    (RequestCode.STATS, Entry({"item": "reset"}, ADMIN, brokers=False)),
    (RequestCode.STATS, Entry({"item": "halves"}, ("see:*",))),
    (RequestCode.TRANSACTION, Entry(XA, ("transact",))),
    (RequestCode.TRANSACTION, Entry({"type": "RECOVER"}, ("transact",))),
    (RequestCode.TRANSACTION, Entry({"type": "RECOVER", "txKey": "TX:s:1"}, ("transact",))),
    (RequestCode.SEND, Entry(T0 | XA, ("send:t", "transact"))),
    (RequestCode.LIST_DELAYED, Entry({}, ("consume:*",))),
    (RequestCode.LIST_HALVES, Entry({}, ("consume:*", "see:*"))),
    (RequestCode.CHECK_HALVES, Entry({"group": "g"}, ("send:*",))),
    (RequestCode.SHARED_STATUS, Entry({}, ("see:*",))),
]
CASES = [*FRAMES.items(), *VARIANTS]


def text(data, grants, brokers=True):
    return Entry({"": data}, grants, brokers)


TOO_LARGE = 9 << 20
TEXTS = {
    Put: text(put("t", 0, opaque=7), ("send:t",)),
    PutRun: text(b"".join(put("t", 0, b"x", n) for n in range(LEAST_PUTS)), ("send:t",)),
    TooLargePut: text(b"put t 0 %d 0 7\r\n" % TOO_LARGE + bytes(TOO_LARGE), (ANYONE,)),
    Sync: text(b"sync t 0 5 0 777 7\r\nhello", (BROKERS,)),
    Get: text(b"get t g 0 0 100 7\r\n", ("consume:t@g",)),
    OffsetQuery: text(b"offset t g 0 0 7\r\n", ("see:t",)),
    TransactionCommand: text(b"transaction TX:s:1 s BEGIN 7\r\n", (SOME,)),
    Stats: text(b"stats t 7\r\n", ("see:t",)),
    Version: text(b"version 7\r\n", (ANYONE,)),
    IgnoredAnswer: text(b"result 200 3 7\r\n0.1", (ANYONE,)),
    PageRequest: text(b"", (ANYONE,)),  # by HTTP: test_http.py
}
MORE_TEXTS = [
    (Get, text(b"get t Just_for_Browser 0 0 100 7\r\n", ("consume:t",))),
    (Put, text(b"put t 0 5 0 -1 TX:s:1 7\r\nhello", ("send:t",))),
    (Stats, text(b"stats config 7\r\n", ADMIN, brokers=False)),
    (TransactionCommand, text(b"transaction XID:1:0a:0b:q s COMMIT_ONE_PHASE 7\r\n", ("transact",))),
    (TransactionCommand, text(b"transaction null s RECOVER 7\r\n", ("transact",))),
]

USER, BROKER = Principal("user", "app"), Principal("broker", "mq1.example")
EXPIRED = 1


def enforced(harness, *grants, expires_ms=None):
    """The broker knows one user, app, who has these grants."""
    user = User("app", Access(map(AccessGrant.parse, grants)), expires_ms)
    access = harness.broker.access
    access.see(Permissions(AccessMode.ENFORCE, {"app": user}))
    harness.gate.guard = access
    return harness


def ask(harness, principal, code, ext):
    peer = harness.connect("192.0.2.7")
    peer.session.logged_in(principal)
    peer.send(encode_frame(code, 7, ext, 5) + b"hello")
    harness.threads.run()
    harness.turn()
    return peer.received()


def refused(received):
    return b'"code":%d,' % ResponseCode.ACCESS_REFUSED in received


def named(value):
    return value.name if isinstance(value, RequestCode) else getattr(value, "__name__", "")


def test_each_verb_has_an_entry(harness):
    assert set(FRAMES) == set(harness.gate.frames)
    assert set(TEXTS) == set(harness.gate.texts)
    in_transaction = {code for code, verb in harness.gate.frames.items() if verb.in_transaction}
    assert in_transaction <= {code for code, entry in VARIANTS if "txKey" in entry.ext}


@pytest.mark.parametrize(("code", "entry"), CASES, ids=named)
def test_a_frame_is_refused_without_its_grant_and_permitted_with_it(harness, code, entry):
    for_anyone, for_users, for_brokers = (entry.grants == (each,) for each in (ANYONE, USERS, BROKERS))
    enforced(harness, "see:other", *([] if SOME in entry.grants else ["send:other"]), "consume:other@h")
    assert refused(ask(harness, ANYBODY, code, entry.ext)) != for_anyone
    assert refused(ask(harness, Principal("user", "nobody"), code, entry.ext)) != for_anyone
    assert refused(answer := ask(harness, USER, code, entry.ext)) != (for_anyone or for_users)
    if not (for_anyone or for_users or for_brokers) and not entry.grants[0].startswith("consume:x"):
        assert f"metaq acl grant app {entry.grants[0]}".encode() in answer
    assert refused(ask(harness, BROKER, code, entry.ext)) != entry.brokers
    if for_anyone or for_brokers:
        assert refused(ask(enforced(harness, "admin"), USER, code, entry.ext)) == for_brokers
        return
    grants = () if for_users else entry.grants
    assert not refused(ask(enforced(harness, *grants), USER, code, entry.ext))
    assert not refused(ask(enforced(harness, "admin"), USER, code, entry.ext))
    assert refused(ask(enforced(harness, "admin", expires_ms=EXPIRED), USER, code, entry.ext))
    for grant in grants:
        others = [each for each in grants if each != grant]
        assert refused(ask(enforced(harness, *others), USER, code, entry.ext)), "each of several is needed"
    if grants and grants != ADMIN:
        denied = enforced(harness, "admin", f"deny {grants[0]}")
        assert refused(ask(denied, USER, code, entry.ext)) or grants[0].startswith(("consume:x", "see:t", SOME))


@pytest.mark.parametrize(
    ("kind", "entry"), [*TEXTS.items(), *MORE_TEXTS], ids=lambda each: getattr(each, "__name__", "")
)
def test_a_text_command_is_refused_without_its_grant_and_permitted_with_it(harness, kind, entry):
    (data,) = entry.ext.values()

    def is_refused(principal, *grants):
        enforced(harness, *grants)
        peer = harness.connect("192.0.2.7")
        peer.session.logged_in(principal)
        peer.send(data)
        harness.threads.run()
        return any(getattr(each, "code", 0) == Status.FORBIDDEN for each in peer.answers())

    for_anyone, for_users, for_brokers = (entry.grants == (each,) for each in (ANYONE, USERS, BROKERS))
    assert is_refused(ANYBODY) != for_anyone
    assert is_refused(USER, "see:other") != (for_anyone or for_users)
    assert is_refused(BROKER) != entry.brokers
    assert is_refused(USER, "admin") == for_brokers
    if not (for_anyone or for_users or for_brokers):
        assert not is_refused(USER, *entry.grants)


def test_nothing_is_stored_of_what_is_refused(harness):
    enforced(harness, "send:other")
    for code, entry in CASES:
        ask(harness, USER, code, entry.ext)
    peer = harness.connect()
    for entry in TEXTS.values():
        (data,) = entry.ext.values()
        peer.send(data)
    harness.threads.run()
    assert list(harness.store.logs()) == []


def test_of_puts_that_arrive_together_only_the_refused_ones_are_refused(harness):
    enforced(harness, "send:t")
    peer = harness.connect()
    peer.session.logged_in(USER)
    topics = [("t", "safe")[number % 5 == 0] for number in range(2 * LEAST_PUTS)]
    peer.send(b"".join(put(topic, 0, b"body", number) for number, topic in enumerate(topics)))
    harness.threads.run()
    assert [each.code for each in peer.answers()] == [200 if topic == "t" else 403 for topic in topics]


INBOX = "0123456789abcdef"
REPLIES = {"topic": "%REPLY%", "partition": "0"}


def test_who_asks_reads_the_replies_of_one_inbox_and_who_answers_sends_them(harness):
    inbox = REPLIES | {"tags": INBOX, "group": READER_GROUP}
    for grant, may_send, may_read in (("send:t", False, True), ("consume:t@g", True, False), ("see:t", False, False)):
        enforced(harness, grant)
        assert refused(ask(harness, USER, RequestCode.SEND, REPLIES)) != may_send
        assert refused(ask(harness, USER, RequestCode.PULL, inbox)) != may_read
    enforced(harness, "send:*", "deny consume:%REPLY%")
    assert refused(ask(harness, USER, RequestCode.PULL, inbox))


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.PULL, {}),
        (RequestCode.PULL, {"tags": INBOX[:-1]}),
        (RequestCode.PULL, {"tags": f"{INBOX}||{INBOX[::-1]}"}),
        (RequestCode.PULL, {"tags": INBOX, "where": "TRUE"}),
        (RequestCode.PULL, {"tags": INBOX, "group": "g"}),
        (RequestCode.ACQUIRE, {"tags": INBOX, "group": "g"}),
        (RequestCode.VIEW_MESSAGE_BY_ID, {}),
        (RequestCode.QUERY_MESSAGE, {}),
        (RequestCode.LIST_DELAYED, {}),
    ],
)
def test_who_may_ask_reads_the_replies_of_no_other_inbox(harness, code, ext):
    enforced(harness, "send:t", "consume:t@g")
    answer = ask(harness, USER, code, REPLIES | ext)
    assert b"metaq acl grant app consume:%REPLY%" in answer
    enforced(harness, "consume:%REPLY%", "consume:%REPLY%@g")
    assert not refused(ask(harness, USER, code, REPLIES | ext))


def test_an_inbox_is_compared_and_not_only_its_hash(harness, monkeypatch):
    """32 bits could be guessed. Also while nothing is enforced, so that the answer never depends on the mode."""
    monkeypatch.setattr("metaq.broker.requests.pull.tag_hash", lambda tag: tag_hash(INBOX))
    peer = harness.connect()
    flag, attribute = encode_attributes(tag=INBOX)
    body = encode_body(b"for one", flag, attribute)
    peer.send(send("%REPLY%", 0, body, flag=flag))
    harness.threads.run()
    assert [each.code for each in peer.frames()] == [ResponseCode.SUCCESS]

    def pulled(tag):
        peer.send(pull("%REPLY%", 0, 0, tags=(tag,), group=READER_GROUP))
        for _ in range(5):
            harness.turn()
        harness.reactor.advance(1)
        (answer,) = peer.frames()
        return bytes(answer.body)

    assert pulled(INBOX).endswith(b"for one")
    assert pulled(INBOX[::-1]) == pulled("0123456789' OR 'a' = 'a") == b""


def test_a_transaction_is_committed_only_by_who_may_still_send_its_messages(harness):
    enforced(harness, "send:t")
    peer = harness.connect()
    peer.session.logged_in(USER)
    begin, commit = (b"transaction TX:s:1 s %b 7\r\n" % each for each in (b"BEGIN", b"COMMIT_ONE_PHASE"))
    peer.send(begin + b"put t 0 5 0 -1 TX:s:1 8\r\nhello")
    harness.threads.run()
    assert [each.code for each in peer.answers()] == [200, 200]
    enforced(harness, "send:other")
    other = harness.connect()
    other.session.logged_in(USER)
    answer = other.ask_frame(encode_frame(RequestCode.TRANSACTION_OUTCOME, 7, {"txKey": "TX:s:1", "firstId": "1"}))
    assert answer.code == ResponseCode.ACCESS_REFUSED, "it would roll it back"
    assert (refusal := peer.ask(commit)).code == 403
    assert "metaq acl grant app send:t" in refusal.text
    enforced(harness, "send:t")
    peer.send(commit)
    harness.threads.run()
    assert [each.code for each in peer.answers()] == [200], "nothing was lost meanwhile"


def two_users(harness, app, other):
    """The broker knows the users app and other, who have these grants. Returns a connection of each."""
    users = {
        name: User(name, Access(map(AccessGrant.parse, grants))) for name, grants in (("app", app), ("other", other))
    }
    harness.broker.access.see(Permissions(AccessMode.ENFORCE, users))
    harness.gate.guard = harness.broker.access
    peers = [harness.connect() for _ in users]
    for peer, name in zip(peers, users, strict=True):
        peer.session.logged_in(Principal("user", name))
    return peers


def transaction(peer, harness, verb):
    peer.send(b"transaction XID:1:0a:0b:q s %b 7\r\n" % verb)
    harness.threads.run()
    (answer,) = peer.answers()
    return answer


XA_PUT = b"put t 0 5 0 -1 XID:1:0a:0b:q 7\r\nhello"


@pytest.mark.parametrize("verb", [b"PREPARE", b"COMMIT_ONE_PHASE", b"COMMIT_TWO_PHASE", b"ROLLBACK"])
def test_an_xa_transaction_is_ended_only_by_who_may_send_its_messages(harness, verb):
    """Also a prepared one, after a restart: its topics are in the transaction log, and who began it is not."""
    app, other = two_users(harness, ("send:t", "transact"), ("send:safe", "transact"))
    assert transaction(app, harness, b"BEGIN").code == 200
    assert app.ask(XA_PUT).code == 200
    if verb == b"COMMIT_TWO_PHASE":
        assert transaction(app, harness, b"PREPARE").code == 200
    refused = transaction(other, harness, verb)
    assert (refused.code, "metaq acl grant other send:t" in refused.text) == (403, True)
    assert transaction(app, harness, verb).code == 200, "nothing has ended it"


def test_nobody_puts_messages_into_an_xa_transaction_of_another_user(harness):
    """The other one could not commit it, if it had messages for topics that he may not send to."""
    app, other = two_users(harness, ("send:t", "transact"), ("send:t", "send:safe", "transact"))
    assert transaction(app, harness, b"BEGIN").code == 200
    refused = other.ask(XA_PUT.replace(b"put t", b"put safe"))
    assert (refused.code, "belongs to user app" in refused.text) == (403, True)
    framed = other.ask_frame(encode_frame(RequestCode.SEND, 7, T0 | XA, 5) + b"hello")
    assert framed.code == ResponseCode.ACCESS_REFUSED
    harness.broker.access.see(
        Permissions(AccessMode.OBSERVE, harness.broker.access.permissions.users)
    )  # nothing is refused, as before there were users
    assert other.ask(XA_PUT).code == 200


def test_a_lease_is_settled_only_by_who_has_its_token(harness):
    """Tokens are 63 random bits that only the answer to ACQUIRE has."""
    app, other = two_users(harness, ("send:t", "consume:t@g"), ("consume:t@g",))
    assert app.ask(put("t", 0)).code == 200
    asked = GROUP | {"member": "m", "maxRecords": "1", "maxBytes": "1000", "leaseMs": "60000", "start": "earliest"}
    app.send(encode_frame(RequestCode.ACQUIRE, 7, asked))
    for _ in range(5):
        harness.threads.run()
        harness.turn()
    (leased,) = app.frames()
    (row,) = decode_leased(memoryview(leased.body), 1)

    def settle(peer, token):
        body = encode_settlements([Settlement(row.offset, token, 0, SettleAction.ACK)])
        peer.send(encode_frame(RequestCode.SETTLE, 8, GROUP | {"records": "1"}, len(body)) + body)
        for _ in range(5):
            harness.threads.run()
            harness.turn()
        (answer,) = peer.frames()
        return decode_outcomes(answer.body, 1)

    assert settle(other, row.token ^ 1) == [SettleOutcome.LOST]
    assert settle(app, row.token) == [SettleOutcome.DONE]


# --- lists that leave out what their asker may not see ---------------------------------------------------------------


def stats_of(harness, principal, item):
    peer = harness.connect()
    peer.session.logged_in(principal)
    answer = peer.ask_frame(encode_frame(RequestCode.STATS, 7, {"item": item}), work=True)
    by_text = harness.connect()
    by_text.session.logged_in(principal)
    assert by_text.ask(b"stats %b 7\r\n" % item.encode(), work=True).text.encode() == bytes(answer.body)
    lines = bytes(answer.body).decode().split("\r\n")[1:-2]
    return [(line.split(" ")[0], line.split(" ")[-1]) for line in lines]


@pytest.fixture
def stored(harness):
    """The broker has messages of the topics t and safe; quiet is configured and has none."""
    peer = harness.connect()
    for topic in ("t", "safe"):
        assert peer.ask(put(topic, 0), work=True).code == 200
    return harness


def test_lists_of_topics_leave_out_those_that_the_asker_may_not_see(stored):
    enforced(stored, "consume:t@g", "see:quiet")
    assert stats_of(stored, USER, "topics") == [("t", "true"), ("quiet", "*Empty*"), ("*hidden*", "2")]
    assert [topic for topic, _ in stats_of(stored, USER, "offsets")] == ["t", "*hidden*"]
    for grants in (["see:*"], ["admin"]):
        enforced(stored, *grants)
        assert [topic for topic, _ in stats_of(stored, USER, "topics")] == ["safe", "t", "quiet", "wild*"]
    enforced(stored, "admin", "deny see:safe")
    assert [topic for topic, _ in stats_of(stored, USER, "offsets")] == ["t", "*hidden*"]
    assert [topic for topic, _ in stats_of(stored, BROKER, "offsets")] == ["safe", "t"]
    enforced(stored)
    assert stats_of(stored, USER, "topics") == [("*hidden*", "4")]


def test_observing_hides_nothing(stored):
    user = User("app", Access([]))
    stored.broker.access.see(Permissions(AccessMode.OBSERVE, {"app": user}))
    stored.gate.guard = stored.broker.access
    assert [topic for topic, _ in stats_of(stored, USER, "topics")] == ["safe", "t", "quiet", "wild*"]


def test_the_page_of_topics_leaves_them_out_too(stored):
    enforced(stored, "see:t")
    dashboard = Dashboard(stored.broker, stored.gate, lambda: None, RecentLog())
    pages: list[Any] = []
    dashboard.topics(stored.gate.sees(HttpPeer("192.0.2.7", USER))).addBoth(pages.append)
    for _ in range(10):
        stored.turn()
    table, without_data = pages[0].parts
    assert (list(table.rows), list(without_data.lines)) == (["t"], ["none"])
    assert pages[0].note.startswith("3 topics are not shown")


def test_a_list_of_many_topics_is_made_in_slices(harness, monkeypatch):
    """A decision takes some microseconds, and there may be ten thousand topics."""
    monkeypatch.setattr("metaq.broker.tuning.STATS_LINES", 4)
    asked: list[str] = []

    def sees(topic: str) -> bool:
        asked.append(topic)
        return True

    assert len(list(seen([str(number) for number in range(17)], sees))) == 4
    assert len(asked) == 17
