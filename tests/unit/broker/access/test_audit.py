"""The audit log: which entries there are, how often, and what is done when the disk does not take them."""

import json
import logging
import stat
import threading
from types import SimpleNamespace

import pytest
from scramp import ScramClient

from metaq.broker.access.audit import AUDIT_SECONDS, Audit, AuditDecision, AuditFile, _Files
from metaq.broker.access.logins import _NO_TLS as NO_TLS
from metaq.broker.assembly.verbs import _serve_operator, make_gate
from metaq.broker.configuration.security_ini import AuditSettings
from metaq.broker.requests.gate import HttpPeer, PageRequest
from metaq.coordination.security.passwords import make_verifiers
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
)
from metaq.protocol.errors import AccessRefused, ConfigError
from metaq.protocol.frames import encode_frame
from metaq.protocol.login import MECHANISMS, AuthenticateRequest
from metaq.protocol.statuses import RequestCode
from tests.unit.broker.access.test_every_verb import ADMIN, BROKERS, CASES, TEXTS, ask, named
from tests.unit.broker.access.test_logins import PASSWORD, VERIFIERS, Peer
from tests.unit.broker.harness import put

APP, ROOT = Principal("user", "app"), Principal("user", "root")
HOST = "192.0.2.7"
SEND = Need(AccessOperation.SEND, "t")


def user(name, *grants, expires_ms=None, verifiers=VERIFIERS):
    return User(name, Access(map(AccessGrant.parse, grants)), expires_ms, verifiers)


class Scene:
    """An audit log in memory, with a clock that stands still."""

    def __init__(self):
        self.now = 1_700_000_000.0
        self._lines: list[str] = []
        self.audit = Audit(self._lines.append, lambda: self.now * 1000, lambda: self.now)

    def entries(self, *fields):
        """Take the entries since the last call. fields: return only these."""
        found = [json.loads(line) for line in self._lines]
        self._lines.clear()
        return [tuple(entry[field] for field in fields) for entry in found] if fields else found

    def after(self, seconds):
        self.now += seconds
        self.audit.tick()

    def refuse(self, topic="t", principal=APP, host=HOST):
        need = Need(AccessOperation.SEND, topic)
        self.audit.refused(principal, host, need, "SEND", "no grant", would_be=False)


@pytest.fixture
def scene():
    return Scene()


@pytest.fixture
def audited(harness, scene):
    """A broker with this audit log; it knows the users root and app."""
    harness.broker.access.audit = scene.audit
    harness.gate = make_gate(harness.broker)
    see(harness, AccessMode.ENFORCE)
    scene.entries()
    return harness


def see(harness, mode):
    access = harness.broker.access
    access.see(Permissions(mode, {"root": user("root", "admin"), "app": user("app", "send:t")}))
    harness.gate.guard = None if access.is_open else access


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_refusal_has_an_entry_at_once_and_others_of_its_kind_are_counted(scene):
    scene.refuse()
    assert scene.entries() == [
        {
            "time": "2023-11-14T22:13:20.000Z",
            "principal": "user app",
            "address": HOST,
            "need": "send:t",
            "request": "SEND",
            "decision": "refused",
            "why": "no grant",
            "count": 1,
        }
    ]
    for _ in range(41):
        scene.refuse()
    scene.after(AUDIT_SECONDS - 1)
    assert scene.entries() == []
    scene.after(1)
    assert scene.entries("need", "count") == [("send:t", 41)]
    scene.refuse()
    scene.after(AUDIT_SECONDS - 1)
    assert scene.entries() == [], "at most one a minute"
    scene.after(1)
    assert scene.entries("need", "count") == [("send:t", 1)]
    scene.after(AUDIT_SECONDS)
    scene.refuse()
    assert scene.entries("count") == [(1,)], "after a quiet minute the next one has an entry at once"


def test_each_principal_address_and_need_has_its_own_entries(scene):
    scene.refuse()
    scene.refuse(principal=ANYBODY)
    scene.refuse(host="192.0.2.8")
    scene.refuse("u")
    scene.refuse()
    found = scene.entries("principal", "address", "need")
    assert found == [
        ("user app", HOST, "send:t"),
        ("anonymous", HOST, "send:t"),
        ("user app", "192.0.2.8", "send:t"),
        ("user app", HOST, "send:u"),
    ]


def test_what_is_counted_is_written_at_the_end(scene):
    scene.refuse()
    scene.refuse()
    scene.audit.close()
    assert scene.entries("count") == [(1,), (1,)]


def test_a_client_that_chooses_ever_new_names_gets_few_entries(scene, monkeypatch):
    monkeypatch.setattr("metaq.broker.access.audit._MAX_NEEDS", 3)
    for number in range(50):
        scene.refuse(f"t{number}")
    scene.refuse("other", ANYBODY)
    kept = [("user app", f"send:t{number}", 1) for number in range(3)]
    expected = [*kept, ("user app", "*", 1), ("anonymous", "send:other", 1)]
    assert scene.entries("principal", "need", "count") == expected
    scene.after(AUDIT_SECONDS)
    assert scene.entries("need", "count") == [("*", 46)]
    scene.after(AUDIT_SECONDS)
    scene.refuse("new")
    assert scene.entries("need") == [("send:new",)]


def test_many_clients_need_bounded_memory(scene, monkeypatch):
    monkeypatch.setattr("metaq.broker.access.audit._MAX_COUNTED", 3)
    for number in range(50):
        scene.refuse(host=f"192.0.2.{number}")
    assert scene.entries("address", "count") == [("192.0.2.0", 1), ("192.0.2.1", 1), ("192.0.2.2", 1), ("*", 1)]
    scene.after(AUDIT_SECONDS)
    assert scene.entries("address", "count") == [("*", 46)]
    scene.after(AUDIT_SECONDS)
    assert scene.audit._counted == scene.audit._needs == {}


@pytest.mark.parametrize("name", ['a"}\n{"time":"1970"', "\x1b[31m\u2028\ud800", "x" * 1_000_000])
def test_a_name_that_a_client_chooses_cannot_end_a_line_or_fill_the_disk(scene, name):
    lines: list[str] = []
    audit = Audit(lines.append, lambda: 0, lambda: 0)
    audit.refused(APP, HOST, Need(AccessOperation.SEND, name), "SEND", f"lacks {name}", would_be=False)
    (line,) = lines
    assert line.isascii()
    assert line.isprintable()
    assert len(line) < 10_000
    assert json.loads(line)["need"] == f"send:{name}"[:600]


# --- on a broker ------------------------------------------------------------------------------------------------------


def operator_cases():
    return [(code, entry) for code, entry in CASES if entry.grants == ADMIN]


@pytest.mark.parametrize("mode", list(AccessMode))
@pytest.mark.parametrize(("code", "entry"), operator_cases(), ids=named)
def test_every_request_of_operators_has_an_entry_in_each_mode(audited, scene, mode, code, entry):
    audited.broker.admin_from = "any"
    audited.gate = make_gate(audited.broker)
    see(audited, mode)
    scene.entries()
    for _ in range(2):
        ask(audited, ROOT, code, entry.ext)
    fields = ("principal", "address", "need", "request", "decision", "count")
    assert scene.entries(*fields) == 2 * [("user root", HOST, "admin", code.name, "permitted", 1)]


def test_the_text_command_stats_config_has_an_entry_and_stats_has_none(audited, scene):
    data = b"stats config 7\r\n"
    peer = audited.connect(HOST)
    peer.session.logged_in(ROOT)
    peer.send(b"stats 7\r\n" + data)
    audited.threads.run()
    assert scene.entries("need", "request", "decision") == [("admin", "stats", "permitted")]


def test_what_is_permitted_and_is_no_request_of_operators_has_no_entry(audited, scene):
    peer = audited.connect(HOST)
    peer.session.logged_in(APP)
    assert peer.ask(put("t", 0)).code == 200
    assert scene.entries() == []
    others = set(RequestCode) - {code for code, _ in operator_cases()}
    rows = [audited.gate.frames[code].serve for code in others]
    assert [row for row in rows if getattr(row, "func", None) is _serve_operator] == [], "they cost nothing"


@pytest.mark.parametrize(("code", "entry"), CASES, ids=named)
def test_every_refused_frame_has_an_entry(audited, scene, code, entry):
    if entry.grants in (("anyone",), ()) or not is_refused(audited, code, entry):
        return
    found = scene.entries("principal", "request", "decision")
    assert found
    assert set(found) == {("anonymous", code.name, "refused")}


def is_refused(harness, code, entry):
    return b"log in as a user" in ask(harness, ANYBODY, code, entry.ext) or entry.grants == (BROKERS,)


def test_a_refused_text_command_has_an_entry_with_its_name(audited, scene):
    names = []
    for entry in TEXTS.values():
        peer = audited.connect(HOST)
        (data,) = entry.ext.values()
        peer.send(data)
        audited.threads.run()
        names += [name for (name,) in scene.entries("request")]
        scene.after(AUDIT_SECONDS)
    assert names == ["put", "put", "sync", "get", "offset", "transaction", "stats"]


def test_observe_says_what_would_be_refused_and_what_operators_may_not(audited, scene):
    see(audited, AccessMode.OBSERVE)
    scene.entries()
    local = audited.connect("127.0.0.1")
    local.ask(put("t", 0))
    local.ask(put("t", 0))
    for _ in range(2):
        local.ask_frame(encode_frame(RequestCode.RELOAD_CONFIG, 7, {}))
    fields = ("need", "request", "decision", "count")
    expected = [("send:t", "put", "would-be-refused", 1), *2 * [("admin", "RELOAD_CONFIG", "would-be-refused", 1)]]
    assert scene.entries(*fields) == expected


def test_an_operator_who_is_refused_for_his_address_has_an_entry(audited, scene):
    see(audited, AccessMode.OPEN)
    scene.entries()
    for _ in range(3):
        audited.connect(HOST).ask_frame(encode_frame(RequestCode.RELOAD_CONFIG, 7, {}))
    ((need, request, decision, why),) = scene.entries("need", "request", "decision", "why")
    assert (need, request, decision) == ("admin", "RELOAD_CONFIG", "refused")
    assert "--admin-from any" in why


def test_what_brokers_ask_of_each_other_is_no_request_of_operators(audited, scene):
    broker = Principal("broker", "mq1")
    for principal, entries in ((broker, 0), (ANYBODY, 0), (ROOT, 1)):
        see(audited, AccessMode.ENFORCE if principal is not ANYBODY else AccessMode.OPEN)
        scene.entries()
        ask(audited, principal, RequestCode.MOVE, {"topic": "t", "broker": "1", "partition": "0"})
        assert len(scene.entries()) == entries, principal


def test_a_broker_without_a_certificate_has_an_entry(audited, scene):
    audited.broker.certificates = SimpleNamespace(brokers_required=True)
    audited.gate = make_gate(audited.broker)
    see(audited, AccessMode.OPEN)
    scene.entries()
    ask(audited, ANYBODY, RequestCode.FOLLOW, {})
    assert scene.entries("principal", "need", "request", "decision") == [
        ("anonymous", "replicate", "FOLLOW", "refused")
    ]


def test_pages_of_operators_have_entries(audited, scene):
    for words, changes in ((["config"], False), (["reload-config"], True), (["topics", "t"], False)):
        page = PageRequest(words, changes, dict)
        peer = HttpPeer(HOST, ROOT)
        audited.gate.admit(page, peer).serve(page, peer)
    assert scene.entries("principal", "request") == [("user root", "GET /config"), ("user root", "POST /reload-config")]


# --- logins -----------------------------------------------------------------------------------------------------------


def login(harness, name, password):
    client = ScramClient([MECHANISMS[0]], name, password)
    peer = Peer(HOST)
    reply = harness.broker.logins.step(AuthenticateRequest(client.get_client_first(), MECHANISMS[0]), peer)
    client.set_server_first(reply.message)
    harness.broker.logins.step(AuthenticateRequest(client.get_client_final(), MECHANISMS[0]), peer)


def test_each_login_has_an_entry_and_failed_ones_are_counted(audited, scene):
    for _ in range(2):
        login(audited, "app", PASSWORD)
    fields = ("principal", "address", "request", "decision", "count", "why")
    assert scene.entries(*fields) == 2 * [("user app", HOST, "login", "permitted", 1, MECHANISMS[0])]
    for name in ("app", "nobody", "a secret typed in the wrong place"):
        with pytest.raises(AccessRefused):
            login(audited, name, "wrong password")
    scene.after(AUDIT_SECONDS)
    wrong = "wrong user or password"
    assert scene.entries(*fields) == [("", HOST, "login", "refused", count, wrong) for count in (1, 2)]


def test_logins_by_http_are_counted_because_each_request_is_one(audited, scene):
    header = "Basic YXBwOmNvcnJlY3QgaG9yc2UgYmF0dGVyeQ=="
    for _ in range(5):
        audited.broker.logins.by_basic(header, HOST, ANYBODY, True)
    scene.after(AUDIT_SECONDS)
    assert scene.entries("principal", "decision", "count") == [("user app", "permitted", n) for n in (1, 4)]
    with pytest.raises(AccessRefused):
        audited.broker.logins.by_basic(header, HOST, ANYBODY, False)
    assert scene.entries("decision", "why") == [("refused", NO_TLS)]


# --- changes ----------------------------------------------------------------------------------------------------------


def test_changes_that_were_read_in_zookeeper_name_users_and_grants_but_no_verifiers(harness, scene):
    access = harness.broker.access
    access.audit = scene.audit
    first = {"app": user("app", "send:t"), "old": user("old")}
    access.see(Permissions(AccessMode.OBSERVE, first))
    assert scene.entries("request", "why") == [
        ("mode", "the mode open has become observe"),
        ("users", "the user app is new and never expires"),
        ("grants", "the user app has got the grant: send:t"),
        ("users", "the user old is new and never expires"),
    ]
    access.see(Permissions(AccessMode.OBSERVE, first))
    assert scene.entries() == []
    changed = user("app", "deny send:secret-*", expires_ms=1_000, verifiers=make_verifiers("another password"))
    access.see(Permissions(AccessMode.ENFORCE, {"app": changed}))
    found = scene.entries()
    assert {each["decision"] for each in found} == {AuditDecision.CHANGED}
    assert [each["why"] for each in found] == [
        "the mode observe has become enforce",
        "the user app now expires at 1970-01-01T00:00:01+00:00",
        "the user app has another password",
        "the user app has got the grant: deny send:secret-*",
        "the user app has lost the grant: send:t",
        "the user old is gone",
    ]
    text = json.dumps(found)
    assert not any(verifier in text for each in (changed, *first.values()) for verifier in each.verifiers.values())
    access.see(None)
    assert "no users, grants and mode any more" in scene.entries("why")[0][0]


# --- the file ---------------------------------------------------------------------------------------------------------


def contents(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def line(number, size=0):
    return json.dumps({"number": number, "filler": "x" * size})


def test_lines_are_written_to_files_of_the_owner_alone_and_old_files_are_deleted(tmp_path):
    path = tmp_path / "audit.log"
    path.touch(0o644)
    file = AuditFile(AuditSettings(str(path), max_bytes=4096, files=3))
    for number in range(40):
        file.write(line(number, 1000))
    file.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["audit.log", "audit.log.1", "audit.log.2"]
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}
    assert max(each.stat().st_size for each in tmp_path.iterdir()) <= 4096
    assert contents(path)[-1]["number"] == 39


def test_when_the_disk_hangs_nothing_waits_and_the_missing_entries_are_counted(tmp_path, monkeypatch):
    path = tmp_path / "audit.log"
    hangs, goes_on = threading.Event(), threading.Event()
    emit = _Files.emit

    def slow(files, record):
        hangs.set()
        goes_on.wait()
        emit(files, record)

    monkeypatch.setattr(_Files, "emit", slow)
    file = AuditFile(AuditSettings(str(path)), max_queued_bytes=1_000)
    file.write(line(0))
    hangs.wait()
    for number in range(1, 10_000):
        file.write(line(number, 100))
    file.tick()
    goes_on.set()
    file.close()
    found = contents(path)
    numbers = [each["number"] for each in found if "number" in each]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) < 12, "memory is bounded"
    (missing,) = (each["missing"] for each in found if "missing" in each)
    assert len(numbers) + missing == 10_000


def test_when_there_is_room_again_a_tick_says_what_is_missing(tmp_path):
    file = AuditFile(AuditSettings(str(tmp_path / "audit.log")))
    file._sender.missing = 7
    file.tick()
    file.write(line(1))
    file.close()
    first, second = contents(tmp_path / "audit.log")
    assert (first["missing"], "too slow" in first["why"], second["number"]) == (7, True, 1)


def test_when_the_disk_takes_nothing_this_is_logged_and_the_missing_entries_are_counted(tmp_path, caplog):
    directory = tmp_path / "gone"
    directory.mkdir()
    files = _Files(str(directory / "audit.log"), maxBytes=10, backupCount=1, encoding="ascii")
    (directory / "audit.log").rename(tmp_path / "audit.log")
    directory.rmdir()

    def emit(number):
        files.emit(logging.makeLogRecord({"msg": line(number)}))

    for number in range(3):
        emit(number)
    assert caplog.text.count("cannot be written") == 1
    directory.mkdir()
    emit(3)
    files.close()
    assert "3 entries are missing" in caplog.text
    found = [each for file in sorted(directory.iterdir(), reverse=True) for each in contents(file)]
    assert [each.get("missing") or each["number"] for each in found] == [3, 3]


def test_a_file_that_cannot_be_opened_stops_the_start(tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory"):
        AuditFile(AuditSettings(str(tmp_path / "none" / "audit.log")))
