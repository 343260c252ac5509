"""What a broker knows of users and grants, what it keeps when ZooKeeper loses them, and what it counts."""

import json
import logging
import os
import stat
from types import SimpleNamespace

import pytest

from metaq.broker.access.control import HOLD_SECONDS, AccessControl, Granted
from metaq.broker.runtime.few_lines import FewLines
from metaq.broker.sets.connections import StreamProtocol
from metaq.coordination.security.passwords import make_verifiers
from metaq.protocol.access import (
    ANYBODY,
    OPEN,
    Access,
    AccessGrant,
    AccessMode,
    AccessOperation,
    Need,
    Permissions,
    Principal,
    User,
)
from metaq.protocol.errors import AccessRefused, BrokerStarting, StoreError
from metaq.protocol.frames import encode_frame
from metaq.protocol.statuses import RequestCode
from tests.unit.broker.harness import pull, put

SEND = Need(AccessOperation.SEND, "t")
APP = Principal("user", "app")
USERS = {"app": User("app", Access([AccessGrant.parse("send:t")]), None, make_verifiers("correct horse"))}
ENFORCED = Permissions(AccessMode.ENFORCE, USERS)


class Peer:
    host = "192.0.2.7"
    granted: Granted | None = None

    def __init__(self, principal=APP):
        self.principal = principal


class Starts:
    """Makes the control of one more start of the broker."""

    def __init__(self, harness, folder):
        self.now = [1_000_000.0]
        self._harness, self._folder = harness, folder

    def __call__(self):
        lines = FewLines(logging.getLogger("metaq.test"), "refused", self._harness.reactor)
        return AccessControl(
            0,
            str(self._folder),
            self._harness.store.files,
            lambda: self.now[0],
            self._harness.broker.in_thread,
            lines,
            lines,
        )


@pytest.fixture
def make(harness, tmp_path):
    return Starts(harness, tmp_path)


def is_refused(control, need=SEND, principal=APP):
    try:
        control.check(need, Peer(principal), "SEND")
    except AccessRefused:
        return True
    return False


def test_before_anything_is_read_nothing_is_permitted_but_nothing(make):
    control = make()
    assert not control.is_open
    with pytest.raises(BrokerStarting):
        control.check(SEND, Peer(), "SEND")
    control.check(Need(AccessOperation.NOTHING), Peer(ANYBODY), "HEARTBEAT")


def test_a_cluster_that_never_had_users_is_open(make, harness, tmp_path):
    control = make()
    control.see(None)
    harness.threads.run()
    assert control.is_open
    assert not is_refused(control, principal=ANYBODY)
    assert not (tmp_path / "metaqaccess.json").exists()


def test_what_was_read_last_is_known_after_a_restart_and_in_a_file_of_the_owner_alone(make, harness, tmp_path):
    first = make()
    first.see(ENFORCED)
    harness.threads.run()
    file = tmp_path / "metaqaccess.json"
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    second = make()
    assert second.permissions.mode is AccessMode.ENFORCE
    user = second.permissions.users["app"]
    assert (user.access.grants, user.verifiers) == (USERS["app"].access.grants, USERS["app"].verifiers)
    assert [is_refused(second, principal=each) for each in (APP, ANYBODY)] == [False, True]
    second.see(Permissions(AccessMode.OPEN, USERS))
    harness.threads.run()
    assert make().is_open, "an operator has opened the cluster"


def test_users_that_zookeeper_has_lost_are_valid_for_some_time_and_then_nothing_is(make, harness, caplog):
    control = make()
    control.see(ENFORCED)
    control.see(None)
    control.see(None)
    harness.threads.run()
    assert caplog.text.count("has no users and grants any more") == 1
    assert [is_refused(control), is_refused(control, principal=ANYBODY)] == [False, True]
    make.now[0] += HOLD_SECONDS * 1000 - 1
    assert not is_refused(control)
    assert not is_refused(make()), "after a restart, too"
    make.now[0] += 1
    for each in (control, make()):
        with pytest.raises(AccessRefused, match="gone from ZooKeeper for too long"):
            each.check(SEND, Peer(), "SEND")
    control.see(ENFORCED)
    harness.threads.run()
    assert not is_refused(control)
    assert not is_refused(make()), "they are back"


def test_a_damaged_file_is_no_open_door(make, tmp_path):
    for text in ("", "{}", '{"mode": "{}", "users": {}, "gone": null}', "[]", '{"mode": "x", "users": [], "gone": 1}'):
        (tmp_path / "metaqaccess.json").write_text(text)
        with pytest.raises(StoreError, match="metaqaccess"):
            make()


def test_of_changes_that_come_while_the_file_is_written_the_last_is_written(make, harness):
    control = make()
    for mode in (AccessMode.ENFORCE, AccessMode.OBSERVE, AccessMode.ENFORCE, AccessMode.OBSERVE):
        control.see(Permissions(mode, USERS))
    harness.threads.run()
    assert make().permissions.mode is AccessMode.OBSERVE


def test_a_file_that_cannot_be_written_is_logged_and_the_grants_hold(make, harness, tmp_path, caplog):
    control = make()
    (tmp_path / ".metaqaccess.json.tmp").mkdir()
    control.see(ENFORCED)
    harness.threads.run()
    assert "cannot be saved" in caplog.text
    assert is_refused(control, principal=ANYBODY)


def test_observing_refuses_nothing_and_reports_what_would_be(make, harness):
    control = make()
    control.see(Permissions(AccessMode.OBSERVE, USERS))
    harness.threads.run()
    assert not control.by_grants
    for _ in range(3):
        assert not is_refused(control, principal=ANYBODY)
    make.now[0] += 5
    assert not is_refused(control, Need(AccessOperation.CONSUME, "t", "g"))
    control.check(SEND, Peer(), "SEND")
    control.admin_logged_in("root")
    assert json.loads(json.dumps(control.report())) == {
        "mode": "observe",
        "users": 1,
        "refused": [
            {"principal": "anonymous", "address": "192.0.2.7", "need": "send:t", "count": 3, "last_ms": 1_000_000},
            {"principal": "user app", "address": "192.0.2.7", "need": "consume:t@g", "count": 1, "last_ms": 1_000_005},
        ],
        "forgotten": 0,
        "forgotten_ms": 0,
        "admins": [{"name": "root", "last_ms": 1_000_005}],
        "addresses": [],
    }


def test_the_report_has_the_users_by_address_with_their_expiry(make):
    control = make()
    users = {"legacy": User("legacy", Access([]), 2_000_000), "always": User("always", Access([]))}
    control.see(Permissions(AccessMode.ENFORCE, users))
    networks = {"legacy": ["10.0.0.0/8", "::1/128"], "always": ["192.0.2.7/32"], "nobody": ["192.0.2.8/32"]}
    found = [tuple(each.values()) for each in control.report(networks)["addresses"]]
    assert found == [
        ("legacy", ["10.0.0.0/8", "::1/128"], True, 2_000_000),
        ("always", ["192.0.2.7/32"], True, None),
        ("nobody", ["192.0.2.8/32"], False, None),
    ]


def test_what_is_counted_has_a_limit_and_one_address_hides_no_other(make, monkeypatch):
    monkeypatch.setattr("metaq.broker.access.control._MAX_NOTED", 6)
    monkeypatch.setattr("metaq.broker.access.control._MAX_NOTED_OF_ADDRESS", 3)
    control = make()
    control.see(ENFORCED)

    def refuse(host, topic):
        peer = Peer()
        peer.host = host
        with pytest.raises(AccessRefused):
            control.check(Need(AccessOperation.SEND, topic), peer, "SEND")

    def named():
        return [(each["address"], each["need"], each["count"]) for each in control.report()["refused"]]

    refuse("192.0.2.1", "x")
    for number in range(5):
        refuse("192.0.2.2", f"t{number}")
        make.now[0] += 1
        refuse("192.0.2.2", "t0")
    assert sorted(named()) == [
        ("192.0.2.1", "send:x", 1),
        ("192.0.2.2", "send:t0", 6),
        ("192.0.2.2", "send:t3", 1),
        ("192.0.2.2", "send:t4", 1),
    ]
    assert [control.report()[name] for name in ("forgotten", "forgotten_ms")] == [2, 1_000_002]
    for number in range(4):
        refuse(f"192.0.2.{10 + number}", "y")
    assert len(named()) == 6
    assert ("192.0.2.1", "send:x", 1) in named(), "the address with most makes room"


def test_a_pull_that_waits_is_refused_when_its_grant_goes(harness):
    """At once, and not only when data comes."""
    access = harness.broker.access

    def changed():
        harness.gate.guard = None if access.is_open else access
        harness.broker.parked.wake_all()

    access.changed = changed
    access.see(Permissions(AccessMode.ENFORCE, {"app": User("app", Access([AccessGrant.parse("consume:t@g")]))}))
    peer = harness.connect()
    peer.session.logged_in(APP)
    peer.send(pull("t", 0, 0, opaque=5, wait_ms=30_000, group="g"))
    harness.turn()
    assert peer.received() == b""
    access.see(Permissions(AccessMode.ENFORCE, {"app": User("app", Access([AccessGrant.parse("consume:x@g")]))}))
    harness.turn()
    assert b"metaq acl grant app consume:t@g" in peer.received()


class Following:
    """A stream of a follower on a connection of this principal."""

    def __init__(self, control, principal):
        gone = self.gone = []
        self.on_gone = lambda: gone.append(principal)
        self.closed: list[type] = []
        control.watch(self, Need(AccessOperation.REPLICATE), Peer(principal), "FOLLOW")

    def close(self, why):
        self.closed.append(type(why))
        self.on_gone()


def test_a_stream_ends_when_what_opened_it_is_forbidden(make, harness):
    control = make()
    control.see(None)
    broker, anybody, left = (Following(control, each) for each in (Principal("broker", "mq1"), ANYBODY, ANYBODY))
    left.on_gone()
    control.see(Permissions(AccessMode.OBSERVE, USERS))
    (refused,) = control.report()["refused"]
    assert (refused["need"], refused["count"], anybody.closed) == ("replicate", 2, []), "at the change and now"
    control.see(ENFORCED)
    assert (broker.closed, anybody.closed, left.closed) == ([], [AccessRefused], [])
    assert [len(each.gone) for each in (broker, anybody, left)] == [0, 1, 1], "its place is free again"
    control.see(Permissions(AccessMode.ENFORCE, {}))
    assert len(anybody.closed) == 1
    late = Following(control, ANYBODY)
    assert late.closed == [AccessRefused], "it was permitted when it came, and had to wait for its turn"


def test_the_stream_of_a_follower_is_such_a_stream(harness):
    """Its own certificate permits it, and without one it ends when grants are enforced."""
    streams = []

    def accept(frame, become, hosts):
        streams.append(StreamProtocol("follower", lambda messages: None))
        become(streams[-1])

    harness.broker.member = SimpleNamespace(accept=accept)
    harness.broker.access.see(None)
    for principal in (ANYBODY, Principal("broker", "mq1")):
        peer = harness.connect()
        peer.session.logged_in(principal)
        peer.transport.setTcpNoDelay = lambda enabled: None
        peer.send(encode_frame(RequestCode.FOLLOW, 1, {}))
    harness.broker.access.see(ENFORCED)
    assert [type(each.lost) for each in streams] == [AccessRefused, type(None)]


def test_an_open_connection_loses_what_its_user_loses(harness):
    access = harness.broker.access
    access.see(ENFORCED)
    harness.gate.guard = access
    peer = harness.connect()
    peer.session.logged_in(APP)
    assert peer.ask(put("t", 0)).code == 200
    access.see(Permissions(AccessMode.ENFORCE, {}))
    answer = peer.ask(put("t", 0))
    assert (answer.code, "the user app does not exist" in answer.text) == (403, True)


def test_operators_are_known_by_address_until_grants_are_enforced(harness):
    access = harness.broker.access
    for mode in (AccessMode.OPEN, AccessMode.OBSERVE, AccessMode.ENFORCE):
        access.see(Permissions(mode, USERS))
        assert access.by_grants == (mode is AccessMode.ENFORCE)
    assert OPEN.mode is AccessMode.OPEN


def test_what_is_remembered_of_a_connection_ends_with_the_permissions_and_has_a_limit(make, monkeypatch):
    monkeypatch.setattr("metaq.broker.access.control._MAX_GRANTED", 3)
    control = make()
    control.see(Permissions(AccessMode.ENFORCE, {"app": User("app", Access([AccessGrant.parse("send:t*")]))}))
    peer = Peer()
    for number in range(10):
        control.check(Need(AccessOperation.SEND, f"t{number}"), peer, "SEND")
    assert peer.granted is not None
    assert len(peer.granted.needs) <= 3
    control.see(Permissions(AccessMode.ENFORCE, {"app": User("app", Access([]))}))
    with pytest.raises(AccessRefused):
        control.check(Need(AccessOperation.SEND, "t9"), peer, "SEND")


def test_of_a_user_who_expires_and_of_users_that_are_lost_nothing_is_remembered(make):
    control = make()
    control.see(Permissions(AccessMode.ENFORCE, {"app": User("app", Access([AccessGrant.parse("send:t")]), 1_000_005)}))
    peer = Peer()
    control.check(SEND, peer, "SEND")
    make.now[0] += 5
    with pytest.raises(AccessRefused, match="has expired"):
        control.check(SEND, peer, "SEND")
    control.see(ENFORCED)
    control.check(SEND, peer, "SEND")
    control.see(None)
    control.check(SEND, peer, "SEND")
    make.now[0] += HOLD_SECONDS * 1000
    with pytest.raises(AccessRefused, match="for too long"):
        control.check(SEND, peer, "SEND")
