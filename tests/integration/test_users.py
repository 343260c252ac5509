"""Users and grants on a real ZooKeeper: the commands, and the view of a broker."""

import configparser
import json
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from metaq.cli import acl, app
from metaq.cli import users as users_command
from metaq.cli.access_reports import AccessReport, BrokerAnswers, RefusedNeed
from metaq.coordination.records.security_payloads import parse_verifier
from metaq.coordination.security.permissions_view import PermissionsView
from metaq.coordination.security.security_admin import SecurityAdmin
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.access import AccessGrant, AccessMode, AccessOperation, Need, Permissions, Principal
from metaq.protocol.errors import ClientError, ConfigError, InvalidName

from .cli_helpers import Operator
from .coordination_helpers import expire, session_at, tree, wait_for

ADMIN = AccessGrant(AccessOperation.ADMIN)
SEND = AccessGrant.parse("send:orders")


# --- commands ---------------------------------------------------------------------------------------------------------


def test_five_commands_lead_from_nothing_to_a_sender_and_a_consumer(operator: Operator, tmp_path: Path):
    root, web = tmp_path / "root.ini", tmp_path / "web.ini"
    assert operator.ran("users", "add", "root", "--admin", "--profile", str(root)).code == 0
    assert stat.S_IMODE(root.stat().st_mode) == 0o600
    web_added = operator.ran("users", "add", "web", "--can", "send:orders", "--profile", str(web))
    assert web_added.out == f"created the user web; profile: {web}\n"
    billing = operator.ran("users", "add", "billing", "--can", "consume:orders@billing", "--expires", "30d")
    assert billing.code == 0
    profile = configparser.ConfigParser(interpolation=None)
    profile.read_string(billing.out)
    assert profile["user"]["name"] == "billing"
    assert len(profile["user"]["password"]) == 22
    listed = {row["user"]: row for row in operator.json("users", "list")}
    assert listed["root"]["grants"] == ["admin"]
    assert listed["web"]["login"] == "password"
    assert 29 * 86_400 < listed["billing"]["expires_ms"] / 1000 - time.time() < 31 * 86_400
    assert operator.ran("security", "observe").out == "the mode is observe: the brokers obey it within a second\n"
    refused = operator.refused("security", "enforce")
    assert "the mode stays observe: no user with the grant admin has logged in over TLS" in refused
    assert operator.ran("security", "enforce", "--force").code == 0
    status = operator.json("security", "status")
    assert (status["mode"], status["users"], status["admins"]) == ("enforce", 3, ["root"])


def test_passwords_are_given_by_files_and_never_stored(operator: Operator, session: ZkSession, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("correct horse battery\n")
    assert "chmod 600" in operator.refused("users", "add", "app", "--password-file", str(secret))
    secret.chmod(0o600)
    assert operator.ran("users", "add", "app", "--password-file", str(secret)).out == "created the user app\n"
    stored = json.loads(session.zk.get(session.paths.user("app"))[0])
    assert list(stored) == ["grants", "scram"]
    assert "correct" not in json.dumps(stored)
    before = parse_verifier("SCRAM-SHA-512", stored["scram"]["SCRAM-SHA-512"])
    profile = tmp_path / "app.ini"
    changed = operator.ran("users", "password", "app", "--password-file", str(secret), "--profile", str(profile))
    assert changed.code == 0
    assert f"passwordFile = {secret}" in profile.read_text()
    stored = json.loads(session.zk.get(session.paths.user("app"))[0])
    assert parse_verifier("SCRAM-SHA-512", stored["scram"]["SCRAM-SHA-512"]).salt != before.salt
    assert operator.ran("users", "add", "cert", "--no-password").out == "created the user cert\n"
    assert [row["login"] for row in operator.json("users", "list")] == ["password", "certificate"]


def test_a_profile_is_not_overwritten_and_goes_if_its_user_could_not_be_made(operator: Operator, tmp_path: Path):
    profile = tmp_path / "app.ini"
    profile.write_text("mine")
    assert "nothing is overwritten" in operator.refused("users", "add", "app", "--profile", str(profile))
    assert operator.json("users", "list") == []
    assert profile.read_text() == "mine"
    assert operator.ran("users", "add", "app").code == 0
    other = tmp_path / "other.ini"
    assert "there is a user app already" in operator.refused("users", "add", "app", "--profile", str(other))
    assert not other.exists()


def test_grants_are_given_shown_tested_and_taken(operator: Operator):
    assert operator.ran("users", "add", "app", "--can", "send:orders").code == 0
    given = operator.ran("acl", "grant", "app", "consume:orders@billing", "deny send:secret-*")
    assert given.out == "app has: consume:orders@billing, deny send:secret-*\n"
    assert operator.json("acl", "list", "app") == [
        {"user": "app", "grants": ["send:orders", "consume:orders@billing", "deny send:secret-*"]}
    ]
    assert operator.ran("acl", "test", "app", "consume", "orders@billing")[:2] == (0, "yes: consume:orders@billing\n")
    assert operator.ran("acl", "test", "app", "send", "secret-1")[:2] == (1, "no: deny send:secret-*\n")
    assert operator.ran("acl", "test", "app", "consume", "other@billing")[:2] == (
        1,
        "no: no grant permits it: metaq acl grant app consume:other@billing\n",
    )
    assert operator.ran("acl", "revoke", "app", "send:orders").out == "app no longer has: send:orders\n"
    assert "user app has no grant send:orders" in operator.refused("acl", "revoke", "app", "send:orders")
    assert "did you mean 'app'" in operator.refused("acl", "list", "apq")
    assert "there is no user apq" in operator.refused("acl", "grant", "apq", "send:orders")


def test_the_last_admin_stays_unless_it_is_forced(operator: Operator):
    for name in ("root", "app"):
        assert operator.ran("users", "add", name, "--admin", *(("--expires", "1d") if name == "app" else ())).code == 0
    assert operator.ran("security", "observe").code == 0
    for command in (
        ("users", "delete", "root", "--yes"),
        ("users", "expire", "root", "30d"),
        ("acl", "revoke", "root", "admin"),
        ("acl", "grant", "root", "deny admin"),
    ):
        refused = operator.refused(*command)
        assert "root is the last user with the grant admin who does not expire" in refused
        assert "--force" in refused
    assert operator.ran("users", "expire", "app", "never").out == "the user app expires never\n"
    assert operator.ran("acl", "revoke", "root", "admin").code == 0
    assert operator.ran("users", "delete", "app", "--yes", "--force").out == "deleted the user app\n"
    assert operator.ran("security", "open").code == 0
    assert operator.ran("users", "delete", "root", "--yes").code == 0


def test_a_dry_run_changes_nothing(operator: Operator, session: ZkSession, tmp_path: Path):
    profile = tmp_path / "app.ini"
    added = operator.ran("users", "add", "app", "--dry-run", "--profile", str(profile))
    assert added.out == "would create the user app\n"
    assert operator.ran("security", "enforce", "--force", "--dry-run").out == "the mode would be enforce\n"
    assert tree(session.zk) == {}
    assert not profile.exists()
    assert operator.ran("users", "add", "app", "--can", "send:a").code == 0
    before = tree(session.zk)
    for command in (
        ("acl", "grant", "app", "send:b", "--dry-run"),
        ("acl", "revoke", "app", "send:a", "--dry-run"),
        ("users", "password", "app", "--dry-run"),
        ("users", "expire", "app", "5m", "--dry-run"),
        ("users", "delete", "app", "--dry-run"),
    ):
        assert operator.ran(*command).code == 0
    assert tree(session.zk) == before
    assert "there is no user b" in operator.refused("users", "delete", "b", "--dry-run")


def test_a_damaged_user_is_named_and_can_be_deleted(operator: Operator, session: ZkSession):
    assert operator.ran("users", "add", "app", "--can", "send:a").code == 0
    session.zk.set(session.paths.user("app"), b'{"grants":["fly:a"]}')
    listed = operator.ran("users", "list", "--json")
    assert (listed.code, listed.out) == (1, "[]\n")
    assert "node /meta/security/users/app is damaged" in listed.err
    assert "metaq users delete app deletes it" in operator.refused("acl", "grant", "app", "send:b")
    assert "is damaged" in operator.refused("acl", "test", "app", "send", "a")
    assert operator.ran("users", "delete", "app", "--yes").code == 0
    assert operator.json("users", "list") == []


def test_a_damaged_mode_is_mended_by_a_new_one(operator: Operator, session: ZkSession):
    assert operator.ran("users", "add", "root", "--admin").code == 0
    session.zk.set(session.paths.security(), b"")
    assert operator.ran("security", "status", "--json").code == 1
    assert SecurityAdmin(session).read().mode is AccessMode.ENFORCE
    assert "last user" in operator.refused("users", "delete", "root", "--yes")
    assert operator.ran("security", "observe").code == 0
    assert operator.json("security", "status")["mode"] == "observe"


# --- what brokers answer, by a stub -----------------------------------------------------------------------------------


@pytest.fixture
def here(chroot: str, monkeypatch: pytest.MonkeyPatch) -> list[BrokerAnswers]:
    """Commands in this process get the last of these answers from the brokers."""
    answers = [BrokerAnswers({}, {})]
    for module in (acl, users_command):
        monkeypatch.setattr(module, "ask_all", lambda _session: answers[-1])
    monkeypatch.setattr("metaq.cli.access_reports.ask_all", lambda _session: answers[-1])
    monkeypatch.setenv("METAQ_ZK", chroot)
    return answers


def seen(*refused: RefusedNeed, admins: tuple[str, ...] = ("root",), users: int = 2) -> AccessReport:
    return AccessReport(AccessMode.OBSERVE, users, refused, 0, admins)


def test_what_clients_need_is_suggested_and_kept_from_being_cut(here, session, capsys):
    admin = SecurityAdmin(session)
    admin.add_user("root", None, [ADMIN])
    admin.add_user("app", None, [])
    now = int(time.time() * 1000)
    cut = (
        RefusedNeed("user app", "10.0.0.6", "send:orders", 3, now),
        RefusedNeed("anonymous", "10.0.0.5", "see:*", 1, now),
    )
    here.append(BrokerAnswers({"broker 0": seen(*cut)}, {"broker 1": "it is away"}))
    assert app.run(["acl", "suggest"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "metaq acl grant app send:orders\n"
    assert "anonymous from 10.0.0.5 needs see:*: let it log in" in printed.err
    assert "broker 1: it is away" in printed.err
    assert app.run(["security", "enforce"]) == 1
    said = capsys.readouterr().err
    assert "broker 1 does not answer: it is away; anonymous from 10.0.0.5 would lack see:*" in said
    assert "user app from 10.0.0.6 would lack send:orders" in said
    assert admin.read().mode is AccessMode.OPEN
    admin.grant("app", [SEND])
    here.append(BrokerAnswers({"broker 0": seen(cut[0])}, {}))
    assert app.run(["security", "observe"]) == 0
    assert app.run(["security", "enforce"]) == 0
    assert admin.read().mode is AccessMode.ENFORCE
    capsys.readouterr()
    assert app.run(["security", "status", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["brokers"]
    assert (row["broker"], row["refused"], row["admins"]) == ("broker 0", 3, ["root"])


def test_the_first_user_of_an_emptied_tree_does_not_open_the_cluster(here, session, capsys):
    here.append(BrokerAnswers({"broker 0": AccessReport(AccessMode.ENFORCE, 5, (), 0, ())}, {}))
    assert app.run(["users", "add", "root", "--admin"]) == 1
    assert "ZooKeeper has lost its users" in capsys.readouterr().err
    assert SecurityAdmin(session).read().mode is None
    assert app.run(["users", "add", "root", "--admin", "--force"]) == 0
    assert SecurityAdmin(session).read().mode is AccessMode.ENFORCE


def test_each_broker_is_asked(brokers, operator: Operator):
    """An earlier version, which has no such statistics, is named."""
    status = operator.ran("security", "status", "--json")
    rows = [row["broker"] for row in json.loads(status.out)["brokers"]]
    assert rows == ["broker 0"] or "broker 0 knows no users: update it" in status.err


# --- SecurityAdmin ----------------------------------------------------------------------------------------------------


def test_what_no_user_can_have_is_refused_and_nothing_is_written(session: ZkSession):
    admin = SecurityAdmin(session)
    with pytest.raises(InvalidName, match="user 'a/b'"):
        admin.add_user("a/b", None, [])
    with pytest.raises(ConfigError, match="8 to 256 characters"):
        admin.add_user("app", "short", [])
    with pytest.raises(ClientError, match="at most 256 grants"):
        admin.add_user("app", None, [AccessGrant.parse(f"send:t{n}") for n in range(257)])
    assert tree(session.zk) == {}


def test_an_enforcing_cluster_has_an_admin(session: ZkSession):
    admin = SecurityAdmin(session)
    with pytest.raises(ClientError, match="no user has the grant admin"):
        admin.set_mode(AccessMode.ENFORCE)
    admin.add_user("root", None, [ADMIN])
    admin.set_mode(AccessMode.ENFORCE)
    assert admin.read().mode is AccessMode.ENFORCE


def test_operators_at_the_same_time_lose_no_grant_and_keep_an_admin(chroot: str):
    with session_at(chroot) as first, session_at(chroot) as second:
        admins = [SecurityAdmin(first), SecurityAdmin(second)]
        admins[0].add_user("one", None, [ADMIN])
        admins[0].add_user("two", None, [ADMIN])
        admins[0].set_mode(AccessMode.ENFORCE)
        with ThreadPoolExecutor(2) as pool:
            for number in range(5):
                given = [
                    pool.submit(each.grant, "one", [AccessGrant.parse(f"send:t{number}-{n}")])
                    for n, each in enumerate(admins)
                ]
                assert [each.result() for each in given] == [None, None]
            assert len(admins[0].users()["one"].access.grants) == 11
            removed = [pool.submit(admins[0].delete_user, "one"), pool.submit(admins[1].revoke, "two", [ADMIN])]
            errors = [each.exception() for each in removed]
        assert [type(each) for each in errors if each is not None] == [ClientError]
        assert sum(user.access.permits(Need(AccessOperation.ADMIN)) for user in admins[0].users().values()) == 1


def test_keys_of_a_later_version_survive_a_change(session: ZkSession):
    admin = SecurityAdmin(session)
    admin.add_user("app", "a long password", [SEND])
    path = session.paths.user("app")
    stored = json.loads(session.zk.get(path)[0])
    stored["quota"] = 5
    stored["scram"]["SCRAM-SHA3-512"] = "later"
    session.zk.set(path, json.dumps(stored).encode())
    admin.grant("app", [ADMIN])
    changed = json.loads(session.zk.get(path)[0])
    assert changed == stored | {"grants": ["send:orders", "admin"]}
    admin.set_password("app", "another password")
    changed = json.loads(session.zk.get(path)[0])
    assert changed["quota"] == 5
    assert list(changed["scram"]) == ["SCRAM-SHA-512", "SCRAM-SHA-256"], "the old password must not stay valid"


# --- PermissionsView --------------------------------------------------------------------------------------------------


class Told:
    """What a view has told, with the time since the last change."""

    def __init__(self) -> None:
        self.all: list[Permissions | None] = []

    @property
    def now(self) -> Permissions | None:
        return self.all[-1]

    def users(self) -> dict[str, list[str]]:
        users = self.now.users if self.all and self.now else {}
        return {name: list(map(str, user.access.grants)) for name, user in users.items()}

    def wait(self, users: dict[str, list[str]], mode: AccessMode) -> float:
        """Seconds until this is told."""
        began = time.monotonic()
        wait_for(lambda: self.users() == users and self.now and self.now.mode is mode, f"{users} {mode}")
        return time.monotonic() - began


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def viewed(chroot: str, told: Told) -> Iterator[ZkSession]:
    """The session of a view."""
    with session_at(chroot) as session:
        view = PermissionsView(session, told.all.append)
        view.start()
        wait_for(lambda: told.all, "the first call")
        yield session
        view.close()


def test_a_view_hears_of_each_change_within_a_second(viewed: ZkSession, told: Told, session: ZkSession):
    assert told.all == [None]
    admin = SecurityAdmin(session)
    admin.add_user("root", "a long password", [ADMIN])
    took = [told.wait({"root": ["admin"]}, AccessMode.OPEN)]
    admin.add_user("app", None, [SEND])
    took.append(told.wait({"root": ["admin"], "app": ["send:orders"]}, AccessMode.OPEN))
    assert told.now
    root = told.now.users["root"]
    admin.grant("app", [AccessGrant.parse("see:*")])
    took.append(told.wait({"root": ["admin"], "app": ["send:orders", "see:*"]}, AccessMode.OPEN))
    admin.set_mode(AccessMode.ENFORCE)
    took.append(told.wait({"root": ["admin"], "app": ["send:orders", "see:*"]}, AccessMode.ENFORCE))
    admin.delete_user("app")
    took.append(told.wait({"root": ["admin"]}, AccessMode.ENFORCE))
    assert told.now.users["root"] is root
    assert max(took) < 1, took


def test_a_view_reads_all_again_on_a_new_session(viewed: ZkSession, told: Told, session: ZkSession):
    admin = SecurityAdmin(session)
    admin.add_user("root", None, [ADMIN])
    admin.add_user("app", None, [SEND])
    admin.set_mode(AccessMode.ENFORCE)
    told.wait({"root": ["admin"], "app": ["send:orders"]}, AccessMode.ENFORCE)
    assert told.now
    root, calls = told.now.users["root"], len(told.all)
    expire(viewed)
    admin.revoke("app", [SEND])
    admin.add_user("late", None, [])
    told.wait({"root": ["admin"], "app": [], "late": []}, AccessMode.ENFORCE)
    assert told.now.users["root"] is root
    assert None not in told.all[calls:]
    assert all(each is not None and each.mode is AccessMode.ENFORCE for each in told.all[calls:])


def test_a_view_tells_that_the_znode_is_gone_and_that_it_is_back(viewed: ZkSession, told: Told, session: ZkSession):
    admin = SecurityAdmin(session)
    admin.add_user("root", None, [ADMIN])
    admin.add_user("app", None, [SEND])
    admin.set_mode(AccessMode.ENFORCE)
    told.wait({"root": ["admin"], "app": ["send:orders"]}, AccessMode.ENFORCE)
    calls = len(told.all)
    lost = session.zk.transaction()
    for path in (*map(session.paths.user, ("root", "app")), session.paths.users(), session.paths.security()):
        lost.delete(path)
    lost.commit()
    wait_for(lambda: told.now is None, "that nothing is there")
    assert told.all[calls:] == [None], "not fewer users before"
    admin.add_user("app", None, [SEND], first_mode=AccessMode.OBSERVE)
    told.wait({"app": ["send:orders"]}, AccessMode.OBSERVE)


def test_a_damaged_user_is_left_out_until_it_is_mended(viewed: ZkSession, told: Told, session: ZkSession):
    admin = SecurityAdmin(session)
    admin.add_user("app", None, [SEND])
    told.wait({"app": ["send:orders"]}, AccessMode.OPEN)
    data, _ = session.zk.get(session.paths.user("app"))
    session.zk.set(session.paths.user("app"), b"{")
    told.wait({}, AccessMode.OPEN)
    assert told.now
    assert told.now.refusal(Principal("user", "app"), Need(AccessOperation.SEND, "orders"), 0) is not None
    session.zk.set(session.paths.user("app"), data)
    told.wait({"app": ["send:orders"]}, AccessMode.OPEN)
