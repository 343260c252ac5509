"""Whom the server tells of what, and when: as ZooKeeper 3.9.5 does."""

import struct

import pytest

from metaq.coordination.standalone.codes import EventKind, OpCode, RefusalCode
from metaq.coordination.standalone.jute import Acl, encode_text
from metaq.coordination.standalone.watches import WatcherKind, WatchMode, WatchTable
from tests.unit.coordination.standalone.harness import EPHEMERAL, Client, Event, Server, create_body

CREATED, DELETED, CHANGED, CHILDREN = EventKind
NAMES: dict[int, str] = {CREATED: "created", DELETED: "deleted", CHANGED: "changed", CHILDREN: "children"}
PERSISTENT, RECURSIVE = 0, 1


@pytest.fixture
def watcher(server: Server) -> Client:
    return server.client()


def does(client: Client, script: str) -> None:
    """Requests like `create /a, data /a`; those that read leave a watch."""
    for verb, _, path in (each.partition(" ") for each in filter(None, script.split(", "))):
        match verb:
            case "create" | "delete":
                getattr(client, verb)(path)
            case "set":
                client.set_data(path, b"x")
            case "data" | "children" | "has":
                getattr(client, verb)(path, watch=True)
            case "persistent" | "recursive":
                client.add_watch(path, (PERSISTENT, RECURSIVE)[verb == "recursive"])


SCENES = {
    "a watch tells once": "create /a | data /a | set /a, set /a | changed /a",
    "a watch is used up by whatever comes first": " | has /a | create /a, delete /a | created /a",
    "children that come are told at the parent alone": "create /a | children /a | set /a, create /a/b | children /a",
    "and those that go": "create /a, create /a/b | children /a | delete /a/b | children /a",
    "a deletion is told once to who watches data and children": (
        "create /a | data /a, children /a, children / | delete /a | deleted /a, children /"
    ),
    "a question for what is not there sets a watch for existence alone": (
        " | has /a, data /b | create /a, create /b | created /a"
    ),
    "a persistent watch stays and sees children": (
        " | persistent /a | create /a, create /a/b, set /a/b, delete /a/b, delete /a"
        " | created /a, children /a, children /a, deleted /a"
    ),
    "a recursive watch sees all below but no lists of children": (
        "create /a | recursive /a"
        " | create /a/b, create /a/b/c, set /a/b/c, create /ab, delete /a/b/c, delete /a/b, delete /a"
        " | created /a/b, created /a/b/c, changed /a/b/c, deleted /a/b/c, deleted /a/b, deleted /a"
    ),
    "a recursive watch at the root sees everything": " | recursive / | create /a | created /a",
    "several watches at one path tell once": "create /a | persistent /a, recursive /a, data /a | set /a | changed /a",
}
"""What is there, what is watched, what happens, and what the watcher is told."""


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_a_watcher_is_told(server: Server, client: Client, watcher: Client, scene: str):
    before, watched, happens, told = map(str.strip, scene.split("|"))
    does(client, before)
    does(watcher, watched)
    does(client, happens)
    assert [f"{NAMES[kind]} {path}" for kind, path in watcher.told()] == told.split(", ")
    assert bool(server.core.database.watches) is ("persistent" in watched or "recursive" in watched)


def test_an_event_has_the_zxid_of_its_write(client: Client, watcher: Client):
    watcher.has("/a", watch=True)
    reply = client.create("/a")
    watcher.replies()
    assert watcher.events == [Event(CREATED, "/a", reply.zxid)]


def test_an_event_comes_in_front_of_the_answer_to_whom_caused_it(client: Client):
    client.has("/a", watch=True)
    client.post(OpCode.CREATE, create_body("/a"))
    frames = client.frames()
    assert [struct.unpack_from("!i", frame)[0] for frame in frames] == [-1, client.xid]


def test_watches_are_checked_and_removed_by_kind(client: Client):
    client.create("/a")
    client.data("/a", watch=True)
    client.add_watch("/a", PERSISTENT)
    body = {kind: encode_text("/a") + struct.pack("!i", kind) for kind in WatcherKind}
    found = {kind: client.ask(OpCode.CHECK_WATCHES, body[kind]).code == 0 for kind in WatcherKind}
    assert found == {
        WatcherKind.CHILDREN: False,
        WatcherKind.DATA: True,
        WatcherKind.ANY: True,
        WatcherKind.PERSISTENT: True,
        WatcherKind.RECURSIVE: False,
    }
    assert client.ask(OpCode.REMOVE_WATCHES, body[WatcherKind.DATA]).code == 0
    assert client.ask(OpCode.REMOVE_WATCHES, body[WatcherKind.DATA]).code == RefusalCode.NO_WATCHER
    assert client.ask(OpCode.REMOVE_WATCHES, body[WatcherKind.ANY]).code == 0
    client.set_data("/a", b"x")
    assert client.told() == []


def test_who_may_not_read_a_node_is_not_told_of_it(client: Client, watcher: Client):
    client.create("/a")
    watcher.data("/a", watch=True)
    watcher.has("/b", watch=True)
    client.set_acl("/a", [Acl(31, "ip", "10.0.0.1"), Acl(2, "world", "anyone")])
    client.set_data("/a", b"x")
    client.create("/b", acl=[Acl(30, "world", "anyone")])
    assert watcher.told() == []


def test_watches_that_are_restored_tell_what_was_missed(server: Server, client: Client):
    for path in ("/same", "/changed", "/gone", "/parent", "/still"):
        client.create(path)
    seen = client.create("/last").zxid
    client.set_data("/changed", b"x")
    client.delete("/gone")
    client.create("/parent/child")
    client.create("/new")
    watcher = server.client()
    reply = watcher.set_watches(
        seen,
        ["/same", "/changed", "/gone"],
        ["/new", "/missing"],
        ["/still", "/parent", "/gone"],
        ["/persistent"],
        ["/recursive"],
    )
    assert (reply.code, reply.xid) == (0, -8)
    assert {event.zxid for event in watcher.events} == {-1}
    assert watcher.told() == [
        (CHANGED, "/changed"), (DELETED, "/gone"), (CREATED, "/new"), (CHILDREN, "/parent"), (DELETED, "/gone"),
    ]  # fmt: skip
    client.set_data("/same", b"x")
    client.create("/missing")
    client.create("/still/child")
    client.create("/persistent")
    client.create("/recursive")
    client.create("/recursive/child")
    assert watcher.told() == [
        (CHANGED, "/same"), (CREATED, "/missing"), (CHILDREN, "/still"),
        (CREATED, "/persistent"), (CREATED, "/recursive"), (CREATED, "/recursive/child"),
    ]  # fmt: skip


def test_a_request_to_restore_watches_that_is_cut_off_restores_none(server: Server, client: Client):
    body = struct.pack("!qi", 0, 1) + encode_text("/a") + struct.pack("!i", 5)
    assert client.ask(OpCode.SET_WATCHES, body, xid=-8).code == RefusalCode.MARSHALLING_ERROR
    assert len(server.core.database.watches) == 0


def test_watches_end_with_their_connection(server: Server, client: Client, watcher: Client):
    watcher.data("/", watch=True)
    watcher.add_watch("/", RECURSIVE)
    server.core.lost(watcher.connection)
    server.work()
    assert len(server.core.database.watches) == 0
    assert client.create("/a").code == 0


def test_an_expired_session_tells_those_who_watched_its_nodes(server: Server, watcher: Client):
    client = server.client(wanted_ms=2000)
    client.create("/e", mode=EPHEMERAL)
    does(watcher, "has /e, children /")
    server.wait(3000)
    assert watcher.told() == [(DELETED, "/e"), (CHILDREN, "/")]
    assert client.closed


def test_a_table_forgets_a_watcher_in_steps():
    table: WatchTable[str] = WatchTable()
    for number in range(1000):
        table.add(f"/{number}", "w", WatchMode.ONCE)
        table.add(f"/{number}", "other", WatchMode.RECURSIVE)
    steps = list(table.forget("w"))
    assert (sum(steps), max(steps) < 1000) == (1000, True)
    assert list(table.triggered("/7/below")) == ["other"]
    assert len(table) == 1000


def test_watches_of_lost_connections_go_while_there_is_always_more_to_do(server: Server, client: Client):
    watcher = server.client()
    for number in range(1000):
        watcher.has(f"/{number}", watch=True)
    server.core.lost(watcher.connection)
    for _ in range(1000):
        client.post_later(OpCode.EXISTS, encode_text("/") + b"\0")
    for _ in range(20):
        assert server.core.work(20, server.now)
    assert len(server.core.database.watches) == 0
