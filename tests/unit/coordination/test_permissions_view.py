"""PermissionsView over a tree that the test changes: what it tells, and that it never opens a door."""

import json
import logging
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent

from metaq.coordination.records.paths import Paths, parent_of
from metaq.coordination.security.permissions_view import PermissionsView
from metaq.coordination.session.zk_session import SessionEvent
from metaq.protocol.access import AccessMode, AccessOperation, Need, Permissions, Principal

SEND = Need(AccessOperation.SEND, "orders")
SECURITY, USERS, APP = "/meta/security", "/meta/security/users", "/meta/security/users/app"


class Answered:
    """kazoo's AsyncResult of a request that was answered at once."""

    def __init__(self, value: Any = None, exception: Exception | None = None) -> None:
        self.value, self.exception = value, exception

    def rawlink(self, callback: Callable[[Any], None]) -> None:
        callback(self)


class Tree:
    """A session and its ZooKeeper. The event thread is a queue that `run()` empties."""

    closed = False
    paths = Paths()

    def __init__(self) -> None:
        self.nodes: dict[str, bytes | None] = {}
        self.watches: dict[str, list[tuple[str, Callable[[WatchedEvent], None]]]] = {}
        self.reads: list[str] = []
        self.lost = False
        self.queue: deque[Callable[[], None]] = deque()
        self.listeners: list[Callable[[SessionEvent], None]] = []
        self.events = SimpleNamespace(post=self.queue.append, post_once=self.post_once, post_later=lambda *_: None)
        self.on_session, self.off_session = self.listeners.append, self.listeners.remove
        self.zk = SimpleNamespace(
            get_async=lambda path, watch: self.read(path, "data", watch),
            get_children_async=lambda path, watch, include_data: self.read(path, "children", watch),
            exists_async=lambda path, watch: self.read(path, "exists", watch),
        )

    def read(self, path: str, what: str, watch: Callable[[WatchedEvent], None]) -> Answered:
        if self.lost:
            return Answered(exception=ConnectionLoss())
        self.reads.append(f"{what} {path}")
        found = path in self.nodes
        if not found and what != "exists":
            return Answered(exception=NoNodeError())
        self.watches.setdefault(path, []).append((what, watch))
        if what == "data":
            return Answered((self.nodes[path], "stat"))
        if what == "children":
            return Answered(([each.rpartition("/")[2] for each in self.nodes if parent_of(each) == path], "stat"))
        return Answered("stat" if found else None)

    def post_once(self, call: Callable[[], None]) -> None:
        if call not in self.queue:
            self.queue.append(call)

    def run(self) -> None:
        while self.queue:
            self.queue.popleft()()

    def fire(self, path: str, *kinds: str) -> None:
        waiting = self.watches.pop(path, [])
        self.watches[path] = [each for each in waiting if each[0] not in kinds]
        for kind, watch in waiting:
            if kind in kinds:
                watch(WatchedEvent(EventType.CHANGED, KeeperState.CONNECTED, path))

    def put(self, path: str, value: object) -> None:
        new = path not in self.nodes
        self.nodes[path] = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        self.fire(path, "data", "exists")
        if new:
            self.fire(parent_of(path), "children")
        self.run()

    def drop(self, *paths: str) -> None:
        for path in paths:
            del self.nodes[path]
            self.fire(path, "data", "exists", "children")
            self.fire(parent_of(path), "children")
        self.run()

    def tell(self, event: SessionEvent) -> None:
        for listener in list(self.listeners):
            listener(event)
        self.run()

    def reconnect(self, event: SessionEvent = SessionEvent.RECONNECTED) -> None:
        self.watches.clear()
        self.tell(event)


@pytest.fixture
def tree() -> Tree:
    return Tree()


@pytest.fixture
def filled(tree: Tree) -> Tree:
    tree.put(SECURITY, {"mode": "enforce"})
    tree.put(USERS, b"")
    tree.put(APP, {"grants": ["send:orders"]})
    tree.put(f"{USERS}/root", {"grants": ["admin"]})
    return tree


@pytest.fixture
def told() -> list[Permissions | None]:
    """What a view tells that `view_of` starts."""
    return []


def view_of(tree: Tree, told: list[Permissions | None]) -> PermissionsView:
    view = PermissionsView(tree, told.append)  # type: ignore[arg-type]
    view.start()
    tree.run()
    return view


def permissions(told: list[Permissions | None]) -> Permissions:
    assert told
    assert told[-1] is not None
    return told[-1]


def test_everything_is_told_at_once_and_only_once(filled, told):
    view_of(filled, told)
    assert len(told) == 1
    assert permissions(told).mode is AccessMode.ENFORCE
    assert sorted(permissions(told).users) == ["app", "root"]


def test_without_the_znode_nothing_else_is_watched(tree, told):
    view_of(tree, told)
    assert told == [None]
    assert tree.reads == [f"data {SECURITY}", f"exists {SECURITY}"]


def test_the_first_users_are_noticed(tree, told):
    view_of(tree, told)
    tree.put(SECURITY, {"mode": "open"})
    tree.put(USERS, b"")
    tree.put(APP, {"grants": []})
    assert told[0] is None
    assert list(permissions(told).users) == ["app"]
    assert permissions(told).mode is AccessMode.OPEN


def test_a_change_of_one_user_costs_one_read_and_leaves_the_others_as_they_are(filled, told):
    view_of(filled, told)
    before = permissions(told)
    filled.reads.clear()
    filled.put(APP, {"grants": ["send:other"]})
    assert filled.reads == [f"data {APP}"]
    now = permissions(told)
    assert now.users["root"] is before.users["root"]
    assert now.users["app"] is not before.users["app"]
    assert now.refusal(Principal("user", "app"), SEND, 0) is not None
    assert before.refusal(Principal("user", "app"), SEND, 0) is None


def test_a_user_comes_and_goes(filled, told):
    view_of(filled, told)
    filled.put(f"{USERS}/new", {"grants": ["see:*"]})
    assert sorted(permissions(told).users) == ["app", "new", "root"]
    filled.drop(APP)
    assert sorted(permissions(told).users) == ["new", "root"]
    filled.put(APP, {"grants": ["send:orders"]})
    assert "app" in permissions(told).users


def test_a_new_mode_is_told_with_the_same_users(filled, told):
    view_of(filled, told)
    users = dict(permissions(told).users)
    filled.put(SECURITY, {"mode": "observe"})
    assert permissions(told).mode is AccessMode.OBSERVE
    assert all(permissions(told).users[name] is user for name, user in users.items())


@pytest.mark.parametrize("event", [SessionEvent.RECONNECTED, SessionEvent.CONNECTED])
def test_after_a_loss_all_is_read_again_and_told_only_if_it_has_changed(filled, told, event):
    view_of(filled, told)
    filled.reconnect(event)
    assert len(told) == 1
    filled.watches.clear()
    filled.nodes[APP] = b'{"grants":["send:other"]}'
    del filled.nodes[f"{USERS}/root"]
    filled.nodes[f"{USERS}/new"] = b'{"grants":["see:*"]}'
    filled.reconnect(event)
    assert sorted(permissions(told).users) == ["app", "new"]
    assert permissions(told).users["app"].access.permits(Need(AccessOperation.SEND, "other"))


def test_while_the_connection_is_lost_nothing_is_told(filled, told):
    view_of(filled, told)
    filled.lost = True
    filled.reconnect(SessionEvent.SUSPENDED)
    filled.reconnect()
    assert len(told) == 1
    filled.lost = False
    filled.put(SECURITY, {"mode": "open"})
    filled.reconnect()
    assert permissions(told).mode is AccessMode.OPEN


def test_a_tree_that_came_back_empty_is_told_as_such_and_not_as_one_without_users(filled, told):
    view_of(filled, told)
    filled.nodes.clear()
    filled.reconnect(SessionEvent.CONNECTED)
    assert [type(each) for each in told] == [Permissions, type(None)]


def test_users_who_come_back_are_told_together(filled, told):
    view_of(filled, told)
    saved = dict(filled.nodes)
    filled.nodes.clear()
    filled.reconnect(SessionEvent.CONNECTED)
    filled.nodes.update(saved)
    filled.fire(SECURITY, "exists")
    filled.run()
    assert len(told) == 3
    assert sorted(permissions(told).users) == ["app", "root"]


def test_a_damaged_user_may_do_nothing_and_is_logged_once_per_content(filled, told, caplog):
    view_of(filled, told)
    with caplog.at_level(logging.ERROR):
        filled.put(APP, b'{"grants":["admin","fly:*"]}')
        filled.reconnect()
        assert list(permissions(told).users) == ["root"]
        assert permissions(told).refusal(Principal("user", "app"), SEND, 0) is not None
        assert len(caplog.records) == 1
        assert "the user app may do nothing" in caplog.text
        filled.put(APP, b"{}")
        assert len(caplog.records) == 2
    filled.put(APP, {"grants": ["send:orders"]})
    assert "app" in permissions(told).users


@pytest.mark.parametrize("damage", [None, b"", b'{"mode":"none"}'])
@pytest.mark.parametrize("before", [AccessMode.OBSERVE, AccessMode.ENFORCE, AccessMode.OPEN])
def test_a_damaged_mode_leaves_the_known_one_in_force(filled, told, caplog, before, damage):
    filled.put(SECURITY, {"mode": before})
    view_of(filled, told)
    with caplog.at_level(logging.ERROR):
        filled.put(SECURITY, damage)
        filled.reconnect()
    assert len(caplog.records) == 1
    assert permissions(told).mode is before


@pytest.mark.parametrize("damage", [None, b"", b"x"])
def test_a_mode_that_was_never_understood_is_enforce(filled, told, damage):
    filled.put(SECURITY, damage)
    view_of(filled, told)
    assert permissions(told).mode is AccessMode.ENFORCE
    assert sorted(permissions(told).users) == ["app", "root"]


def test_a_closed_view_tells_nothing(filled, told):
    view = view_of(filled, told)
    view.close()
    filled.put(APP, {"grants": ["admin"]})
    filled.put(SECURITY, {"mode": "open"})
    filled.reconnect()
    assert len(told) == 1
    assert filled.listeners == []
