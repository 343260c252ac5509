"""Logging in by SCRAM and by HTTP's Basic authentication: who gets in, and what a stranger learns."""

import base64
import logging

import pytest
from scramp import ScramClient, ScramException, ScramMechanism

from metaq.broker.access.control import AccessControl
from metaq.broker.access.logins import FAILURE_SECONDS, MAX_FAILURES, Logins
from metaq.broker.runtime.few_lines import FewLines
from metaq.coordination.security.passwords import make_verifiers
from metaq.protocol.access import ANYBODY, Access, AccessGrant, AccessMode, Permissions, Principal, User
from metaq.protocol.errors import AccessRefused, BrokerStarting
from metaq.protocol.login import MECHANISMS, AuthenticateRequest

PASSWORD = "correct horse battery"
VERIFIERS = make_verifiers(PASSWORD)
OTHERS = make_verifiers("another password")
USERS = {
    "app": User("app", Access([AccessGrant.parse("send:t")]), None, VERIFIERS),
    "root": User("root", Access([AccessGrant.parse("admin")]), None, VERIFIERS),
    "job": User("job", Access([]), 5_000, VERIFIERS),
    "certified": User("certified", Access([])),
}
CERTIFIED = Principal("user", "certified")
APP, ROOT = (Principal("user", name, USERS[name].stamp) for name in ("app", "root"))
BY_BASIC = Principal("user", "app")


class Peer:
    host = "192.0.2.7"
    is_encrypted = True

    def __init__(self, host="192.0.2.7"):
        self.host = host
        self.principal = ANYBODY

    def logged_in(self, principal):
        self.principal = principal


class Scene:
    def __init__(self, harness, folder):
        self.now_ms = 1_000.0
        self.seconds = 100.0
        lines = FewLines(logging.getLogger("metaq.test"), "refused", harness.reactor)
        self.control = AccessControl(
            0, str(folder), harness.store.files, lambda: self.now_ms, harness.broker.in_thread, lines, lines
        )
        self.control.see(Permissions(AccessMode.ENFORCE, USERS))
        self.logins = Logins(self.control, lambda: self.now_ms, lambda: self.seconds)

    def login(self, name, password=PASSWORD, mechanism=MECHANISMS[0], peer=None):
        """Log in as a client does, which also checks the broker. Returns the connection's principal."""
        peer = peer or Peer()
        client = ScramClient([mechanism], name, password)
        reply = self.logins.step(AuthenticateRequest(client.get_client_first(), mechanism), peer)
        client.set_server_first(reply.message)
        reply = self.logins.step(AuthenticateRequest(client.get_client_final(), mechanism), peer)
        client.set_server_final(reply.message)
        return peer.principal

    def basic(self, name, password=PASSWORD, host="192.0.2.7", certified=ANYBODY, is_encrypted=True):
        header = "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()
        return self.logins.by_basic(header, host, certified, is_encrypted)


@pytest.fixture
def scene(harness, tmp_path):
    return Scene(harness, tmp_path)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_user_logs_in_with_either_mechanism(scene, mechanism):
    assert scene.login("app", mechanism=mechanism) == APP
    assert scene.basic("app") == BY_BASIC


WRONG = [("app", "wrong password"), ("nobody", PASSWORD), ("certified", PASSWORD), ("job", PASSWORD), ("a b", PASSWORD)]


@pytest.mark.parametrize(("name", "password"), WRONG)
def test_all_others_get_the_same_refusal_at_the_same_step(scene, name, password):
    scene.now_ms = 5_000
    peer = Peer()
    for way in (scene.login, scene.basic):
        with pytest.raises(AccessRefused) as refusal:
            way(name, password, **({"peer": peer} if way == scene.login else {}))
        assert "the user or the password is wrong, or the user has expired: " in str(refusal.value)
    assert peer.principal is ANYBODY


def test_a_stranger_cannot_tell_which_users_exist(scene):
    """The first answer to an unknown name looks as that to a known one, and is the same each time."""

    def first(name):
        client = ScramClient(["SCRAM-SHA-256"], name, "x" * 9)
        request = AuthenticateRequest(client.get_client_first(), "SCRAM-SHA-256")
        fields = dict(each.split("=", 1) for each in scene.logins.step(request, Peer()).message.split(","))
        return fields["s"], fields["i"], len(fields["r"])

    known, unknown = first("app"), first("nobody")
    assert known == first("app")
    assert unknown == first("nobody")
    assert unknown != first("nobody2")
    assert [len(each[0]) for each in (known, unknown)] == [len(known[0])] * 2
    assert known[1:] == unknown[1:]


def test_without_tls_nobody_logs_in(scene):
    peer = Peer()
    peer.is_encrypted = False
    with pytest.raises(AccessRefused, match="only on a connection with TLS"):
        scene.login("app", peer=peer)
    with pytest.raises(AccessRefused, match="only on a connection with TLS"):
        scene.basic("app", is_encrypted=False)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "n",
        "n,,",
        "n,,n=app",
        "y,,n=app,r=",
        "p=tls-unique,,n=app,r=x",
        "n,,n==,r=x",
        "n,a=root,n=app,r=x",
        ",,,,",
        "n,,n=app,r=x,m=ext",
    ],
)
def test_a_message_that_is_none_is_refused_and_the_next_login_begins_anew(scene, message):
    peer = Peer()
    with pytest.raises(AccessRefused):
        scene.logins.step(AuthenticateRequest(message), peer)
    assert scene.login("app", peer=peer) == APP


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m[:-4] + "AAA=",
        lambda m: m + ",x=y",
        lambda m: m.replace("r=", "r=x"),
        lambda m: "",
        lambda m: m.replace("c=", "c=eSws"),
    ],
)
def test_a_changed_second_message_is_refused(scene, change):
    peer = Peer()
    client = ScramClient(["SCRAM-SHA-512"], "app", PASSWORD)
    reply = scene.logins.step(AuthenticateRequest(client.get_client_first()), peer)
    client.set_server_first(reply.message)
    with pytest.raises(AccessRefused):
        scene.logins.step(AuthenticateRequest(change(client.get_client_final())), peer)
    assert peer.principal is ANYBODY


def test_the_second_message_of_another_mechanism_or_connection_is_refused(scene):
    peer = Peer()
    client = ScramClient(["SCRAM-SHA-512"], "app", PASSWORD)
    reply = scene.logins.step(AuthenticateRequest(client.get_client_first()), peer)
    client.set_server_first(reply.message)
    final = client.get_client_final()
    with pytest.raises(AccessRefused):
        scene.logins.step(AuthenticateRequest(final), Peer())
    with pytest.raises(AccessRefused):
        scene.logins.step(AuthenticateRequest(final, "SCRAM-SHA-256"), peer)


def test_a_client_recognizes_a_broker_that_does_not_know_the_password(scene, monkeypatch):
    other = {"app": User("app", Access([]), None, OTHERS)}
    scene.control.see(Permissions(AccessMode.ENFORCE, other))
    with pytest.raises((AccessRefused, ScramException)):
        scene.login("app")


def test_after_many_failures_an_address_has_to_wait(scene):
    for _ in range(MAX_FAILURES):
        with pytest.raises((AccessRefused, ScramException)):
            scene.login("app", "guess")
    with pytest.raises(AccessRefused, match=r"too many failed logins from 192\.0\.2\.7"):
        scene.login("app")
    assert scene.login("root") == ROOT, "other users of this address need not"
    assert scene.login("app", peer=Peer("192.0.2.8")) == APP, "nor other addresses"
    scene.seconds += FAILURE_SECONDS
    assert scene.login("app") == APP


def test_the_addresses_that_are_remembered_have_a_limit(scene, monkeypatch):
    monkeypatch.setattr("metaq.broker.access.logins._MAX_ADDRESSES", 3)
    for number in range(9):
        with pytest.raises(AccessRefused):
            scene.basic("nobody", host=f"192.0.2.{number}")
    assert len(scene.logins._failures) == 3


def test_a_password_is_computed_once_and_forgotten_with_the_user(scene, monkeypatch):
    computed = []
    real = ScramMechanism.make_auth_info

    def counted(*arguments):
        computed.append(1)
        return real(*arguments)

    monkeypatch.setattr(ScramMechanism, "make_auth_info", counted)
    for _ in range(3):
        assert scene.basic("app") == BY_BASIC
    assert computed == [1]
    changed = {"app": User("app", Access([]), None, OTHERS)}
    scene.control.see(Permissions(AccessMode.ENFORCE, changed))
    with pytest.raises(AccessRefused):
        scene.basic("app")


@pytest.mark.parametrize(
    "header", ["", "Basic", "Basic x", "Basic YXBw", "Bearer YTpi", "Basic \xff", "basic " + "A" * 99]
)
def test_a_header_that_is_none_is_refused(scene, header):
    with pytest.raises(AccessRefused):
        scene.logins.by_basic(header, "192.0.2.7", CERTIFIED, True)


def test_without_a_header_the_certificate_says_who_it_is(scene):
    assert scene.logins.by_basic(None, "192.0.2.7", CERTIFIED, True) == CERTIFIED
    assert scene.logins.by_basic(None, "192.0.2.7", ANYBODY, False) == ANYBODY
    assert scene.basic("app", certified=CERTIFIED) == BY_BASIC


def test_admins_that_have_logged_in_are_reported(scene):
    scene.login("app")
    assert scene.control.report()["admins"] == []
    scene.login("root")
    assert scene.control.report()["admins"] == [{"name": "root", "last_ms": 1_000}]


def test_junk_locks_nobody_out(scene):
    for _ in range(3 * MAX_FAILURES):
        with pytest.raises(AccessRefused):
            scene.logins.step(AuthenticateRequest("x"), Peer())
        with pytest.raises(AccessRefused):
            scene.logins.by_basic("Basic x", "192.0.2.7", ANYBODY, True)
    assert (scene.login("app"), scene.basic("app")) == (APP, BY_BASIC)


def test_of_basic_authentications_an_address_may_fail_so_often_but_who_is_known_goes_on(scene):
    assert scene.basic("app") == BY_BASIC
    for number in range(MAX_FAILURES):
        with pytest.raises(AccessRefused, match="wrong"):
            scene.basic(f"user{number}", "guess")
    with pytest.raises(AccessRefused, match="too many failed logins"):
        scene.basic("root")
    assert scene.basic("app") == BY_BASIC
    assert scene.basic("root", host="192.0.2.8") == Principal("user", "root")


def test_an_unknown_user_takes_as_long_as_a_known_one(scene, monkeypatch):
    computed = []
    real = ScramMechanism.make_auth_info

    def counting(*given):
        computed.append(given[2])
        return real(*given)

    monkeypatch.setattr(ScramMechanism, "make_auth_info", counting)
    for name in ("app", "nobody", "certified"):
        with pytest.raises(AccessRefused):
            scene.basic(name, "guess guess")
    assert computed == [computed[0]] * 3, "as many iterations"
    with pytest.raises(AccessRefused):
        scene.basic("app", "x" * 257)
    assert len(computed) == 3, "no password is so long"


def test_all_brokers_show_a_stranger_the_same_salt(scene, harness, tmp_path):
    other = Scene(harness, tmp_path / "other")

    def salt(each, name):
        request = AuthenticateRequest(ScramClient(["SCRAM-SHA-256"], name, "x" * 9).get_client_first(), "SCRAM-SHA-256")
        return each.logins.step(request, Peer()).message.split(",")[1]

    for name in ("app", "nobody"):
        assert salt(scene, name) == salt(other, name)


def test_a_login_that_began_before_the_password_changed_fails(scene):
    peer = Peer()
    client = ScramClient(["SCRAM-SHA-512"], "app", PASSWORD)
    client.set_server_first(scene.logins.step(AuthenticateRequest(client.get_client_first()), peer).message)
    changed = User("app", Access([]), None, OTHERS)
    scene.control.see(Permissions(AccessMode.ENFORCE, {"app": changed}))
    with pytest.raises(AccessRefused):
        scene.logins.step(AuthenticateRequest(client.get_client_final()), peer)
    assert peer.principal is ANYBODY


def test_before_the_users_are_read_no_password_is_wrong(harness, tmp_path):
    other = Scene(harness, tmp_path)
    other.control.permissions = None
    for way in (other.login, other.basic):
        with pytest.raises(BrokerStarting):
            way("app")


def test_a_login_goes_on_when_the_users_are_read_anew_meanwhile(scene):
    peer = Peer()
    client = ScramClient(["SCRAM-SHA-512"], "app", PASSWORD)
    client.set_server_first(scene.logins.step(AuthenticateRequest(client.get_client_first()), peer).message)
    again = User("app", Access([AccessGrant.parse("send:u")]), None, VERIFIERS)
    scene.control.see(Permissions(AccessMode.ENFORCE, {"app": again}))
    client.set_server_final(scene.logins.step(AuthenticateRequest(client.get_client_final()), peer).message)
    assert peer.principal == APP
