"""Whom the server tells of what, and when: as ZooKeeper 3.9.5 does."""

import struct

import pytest

from metaq.coordination.standalone.codes import EventKind, OpCode, RefusalCode
from metaq.coordination.standalone.jute import Acl, encode_text
from metaq.coordination.standalone.watches import WatcherKind, WatchMode, WatchTable
from tests.unit.coordination.standalone.harness import EPHEMERAL, Client, Event, Server, create_body

CREATED, DELETED, CHANGED, CHILDREN = EventKind
PERSISTENT, RECURSIVE = 0, 1


@pytest.fixture
def watcher(server: Server) -> Client:
    return server.client()


def test_a_watch_tells_once(client: Client, watcher: Client):
    client.create("/a")
    watcher.data("/a", watch=True)
    client.set_data("/a", b"1")
    client.set_data("/a", b"2")
    assert watcher.told() == [(CHANGED, "/a")]


def test_an_event_has_the_zxid_of_its_write(client: Client, watcher: Client):
    watcher.has("/a", watch=True)
    reply = client.create("/a")
    watcher.replies()
    assert watcher.events == [Event(CREATED, "/a", reply.zxid)]


def test_one_watch_is_used_up_by_whatever_comes_first(client: Client, watcher: Client):
    watcher.has("/a", watch=True)
    client.create("/a")
    client.delete("/a")
    assert watcher.told() == [(CREATED, "/a")]


def test_children_that_come_and_go_are_told_at_the_parent_alone(client: Client, watcher: Client):
    client.create("/a")
    watcher.children("/a", watch=True)
    client.set_data("/a", b"x")
    client.create("/a/b")
    assert watcher.told() == [(CHILDREN, "/a")]
    watcher.children("/a", watch=True)
    client.delete("/a/b")
    assert watcher.told() == [(CHILDREN, "/a")]


def test_a_deletion_is_told_once_to_who_watches_data_and_children(server: Server, client: Client, watcher: Client):
    client.create("/a")
    watcher.data("/a", watch=True)
    watcher.children("/a", watch=True)
    watcher.children("/", watch=True)
    client.delete("/a")
    assert watcher.told() == [(DELETED, "/a"), (CHILDREN, "/")]
    assert len(server.core.database.watches) == 0


def test_an_event_comes_in_front_of_the_answer_to_whom_caused_it(client: Client):
    client.has("/a", watch=True)
    client.post(OpCode.CREATE, create_body("/a"))
    frames = client.frames()
    assert [struct.unpack_from("!i", frame)[0] for frame in frames] == [-1, client.xid]


def test_a_question_for_what_is_not_there_sets_a_watch_for_existence_alone(client: Client, watcher: Client):
    assert not watcher.has("/a", watch=True)
    assert watcher.data("/b", watch=True) == RefusalCode.NO_NODE
    client.create("/a")
    client.create("/b")
    assert watcher.told() == [(CREATED, "/a")]


def test_a_persistent_watch_stays_and_sees_children(client: Client, watcher: Client):
    watcher.add_watch("/a", PERSISTENT)
    client.create("/a")
    client.create("/a/b")
    client.set_data("/a/b", b"x")
    client.delete("/a/b")
    client.delete("/a")
    assert watcher.told() == [
        (CREATED, "/a"), (CHILDREN, "/a"), (CHILDREN, "/a"), (DELETED, "/a"),
    ]  # fmt: skip


def test_a_recursive_watch_sees_all_below_but_no_lists_of_children(client: Client, watcher: Client):
    client.create("/a")
    watcher.add_watch("/a", RECURSIVE)
    client.create("/a/b")
    client.create("/a/b/c")
    client.set_data("/a/b/c", b"x")
    client.create("/ab")
    client.delete("/a/b/c")
    client.delete("/a/b")
    client.delete("/a")
    assert watcher.told() == [
        (CREATED, "/a/b"), (CREATED, "/a/b/c"), (CHANGED, "/a/b/c"),
        (DELETED, "/a/b/c"), (DELETED, "/a/b"), (DELETED, "/a"),
    ]  # fmt: skip


def test_a_recursive_watch_at_the_root_sees_everything(client: Client, watcher: Client):
    watcher.add_watch("/", RECURSIVE)
    client.create("/a")
    assert watcher.told() == [(CREATED, "/a")]


def test_several_watches_of_one_watcher_at_one_path_tell_once(client: Client, watcher: Client):
    client.create("/a")
    watcher.add_watch("/a", PERSISTENT)
    watcher.add_watch("/a", RECURSIVE)
    watcher.data("/a", watch=True)
    client.set_data("/a", b"x")
    assert watcher.told() == [(CHANGED, "/a")]


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
    watcher.has("/e", watch=True)
    watcher.children("/", watch=True)
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
