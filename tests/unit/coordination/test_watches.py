"""ChildrenWatcher against a kazoo whose answers, losses and events the test decides."""

from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kazoo.exceptions import ConnectionLoss, NoAuthError, NoNodeError, OperationTimeoutError
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent

from metaq.coordination.session.kazoo_client import Client
from metaq.coordination.session.watches import ChildrenWatcher, DataWatcher
from metaq.coordination.session.zk_session import SessionEvent
from metaq.coordination.session.znodes import Znodes
from metaq.protocol.errors import CoordinationUnavailable

PATH = "/meta/consumers/g/ids"


class Answer:
    """One request that the watcher made, and kazoo's AsyncResult of it."""

    def __init__(self, kind: str, watch: Callable[[WatchedEvent], None]) -> None:
        self.kind = kind
        self.value: Any = None
        self.exception: Exception | None = None
        self._watch = watch
        self._linked: list[Callable[[Any], None]] = []

    def rawlink(self, callback: Callable[[Any], None]) -> None:
        self._linked.append(callback)

    def give(self, value: Any = None, error: Exception | None = None) -> None:
        read = self.kind in ("children", "data") and error is None
        self.value, self.exception = (value, "stat") if read else value, error
        for callback in self._linked:
            callback(self)

    def fire(self, kind: str = EventType.CHILD) -> None:
        self._watch(WatchedEvent(kind, KeeperState.CONNECTED, PATH))


class FakeSession:
    """Its event thread is a queue that `run()` empties."""

    closed = False

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.queue: deque[Callable[[], None]] = deque()
        self.now = 0.0
        self.later: list[Callable[[], None]] = []
        self.listeners: list[Callable[[SessionEvent], None]] = []
        self.events = SimpleNamespace(
            post=self.queue.append, post_once=self.post_once, post_later=lambda _seconds, call: self.later.append(call)
        )
        self.zk = SimpleNamespace(
            get_children_async=lambda _path, watch, include_data: self.request("children", watch),
            get_async=lambda _path, watch: self.request("data", watch),
            exists_async=lambda _path, watch: self.request("exists", watch),
        )
        self.nodes = Znodes(cast(Client, self.zk), "zk:2181", 1.0)
        self.on_session = self.listeners.append
        self.off_session = self.listeners.remove

    def request(self, kind: str, watch: Callable[[WatchedEvent], None]) -> Answer:
        self.answers.append(Answer(kind, watch))
        return self.answers[-1]

    def post_once(self, call: Callable[[], None]) -> None:
        if call not in self.queue:
            self.queue.append(call)

    def tell(self, event: SessionEvent) -> None:
        for listener in list(self.listeners):
            listener(event)
        self.run()

    def run(self) -> None:
        while self.queue:
            self.queue.popleft()()

    def answer(self, value: Any = None, error: Exception | None = None) -> None:
        self.answers[-1].give(value, error)
        self.run()


@pytest.fixture
def session() -> FakeSession:
    return FakeSession()


@pytest.fixture
def seen(session: FakeSession) -> list[list[str]]:
    """What a started watcher delivered."""
    delivered: list[list[str]] = []
    start(session, lambda _path, children: delivered.append(children))
    return delivered


def start(session: FakeSession, on_change: Callable[[str, list[str]], None]) -> ChildrenWatcher:
    watcher = ChildrenWatcher(session, PATH, on_change)  # type: ignore[arg-type]
    watcher.start()
    session.run()
    return watcher


def change(session: FakeSession, kind: str = EventType.CHILD) -> None:
    session.answers[-1].fire(kind)
    session.run()


# equal children, too: their data may differ
@pytest.mark.parametrize("later", [["a", "b"], ["a"]])
def test_the_children_are_delivered_at_the_start_and_after_each_change(session, seen, later):
    session.answer(["a"])
    change(session)
    session.answer(later)
    assert seen == [["a"], later]


def test_a_burst_of_changes_is_read_once(session, seen):
    session.answer(["a"])
    for _ in range(5):
        session.answers[-1].fire()
    session.run()
    assert len(session.answers) == 2


def test_a_change_while_reading_is_read_afterwards(session, seen):
    first = session.answers[-1]
    first.fire()
    session.run()
    assert len(session.answers) == 1
    first.give(["old"])
    session.run()
    assert len(session.answers) == 2
    session.answer(["new"])
    assert seen[-1] == ["new"]


def test_a_missing_node_has_no_children_and_is_seen_when_it_appears(session, seen):
    session.answer(error=NoNodeError())
    assert session.answers[-1].kind == "exists"
    session.answer(None)
    change(session, EventType.CREATED)
    session.answer(["a"])
    assert seen == [[], ["a"]]


def test_a_node_created_between_the_two_looks_is_read(session, seen):
    session.answer(error=NoNodeError())
    session.answer("its stat")
    assert session.answers[-1].kind == "children"
    session.answer(["a"])
    assert seen == [["a"]]


@pytest.mark.parametrize("event", [SessionEvent.RECONNECTED, SessionEvent.CONNECTED])
def test_everything_is_read_again_after_a_loss(session, seen, event):
    session.answer(["a"])
    session.tell(SessionEvent.SUSPENDED)
    change(session, EventType.NONE)  # kazoo tells its watchers so that it dropped them
    assert len(session.answers) == 1
    session.tell(event)
    session.answer(["a", "b"])
    assert seen == [["a"], ["a", "b"]]


def test_a_read_whose_answer_never_comes_does_not_stop_the_watch(session, seen):
    session.tell(SessionEvent.RECONNECTED)
    assert len(session.answers) == 2
    session.answer(["new"])
    session.answers[0].give(["late answer of the old connection"])
    session.run()
    assert seen == [["new"]]


def test_a_lost_read_waits_for_the_connection(session, seen):
    session.answer(error=ConnectionLoss())
    assert len(session.answers) == 1
    assert session.later == []
    session.tell(SessionEvent.RECONNECTED)
    session.answer(["a"])
    assert seen == [["a"]]


@pytest.mark.parametrize("error", [NoAuthError(), OperationTimeoutError()])
def test_another_error_is_logged_and_tried_again_later(session, seen, caplog, error):
    session.answer(error=error)
    assert PATH in caplog.text
    assert ("does not let this process read" in caplog.text) == isinstance(error, NoAuthError)
    (again,) = session.later
    again()
    session.answer(["a"])
    assert seen == [["a"]]


def test_a_listener_that_could_not_follow_is_called_again_later(session, caplog):
    outcomes = iter([CoordinationUnavailable("slow"), None])
    calls = []

    def on_change(_path: str, children: list[str]) -> None:
        calls.append(children)
        if error := next(outcomes):
            raise error

    start(session, on_change)
    session.answer(["a"])
    (again,) = session.later
    again()
    session.answer(["b"])
    assert calls == [["a"], ["b"]]
    assert "slow" in caplog.text


def test_a_listener_that_fails_after_the_session_was_closed_is_neither_called_again_nor_logged(session, caplog):
    def on_change(_path: str, _children: list[str]) -> None:
        session.closed = True
        raise CoordinationUnavailable("closed")

    start(session, on_change)
    session.answer(["a"])
    assert session.later == []
    assert caplog.text == ""


def test_a_closed_watcher_delivers_nothing_and_hears_nothing(session):
    watcher = start(session, lambda _path, _children: pytest.fail("it was called"))
    watcher.close()
    session.answer(["a"])
    session.answers[-1].fire()
    session.run()
    assert session.listeners == []
    assert len(session.answers) == 1


# --- a burst --------------------------------------------------------------------------------------------------------


@pytest.fixture
def burst(session: FakeSession) -> list[list[str]]:
    """What a watcher delivered that waits for a second of quiet while there are two children or more."""
    delivered: list[list[str]] = []
    watcher = ChildrenWatcher(
        session,  # type: ignore[arg-type]
        PATH,
        lambda _path, children: delivered.append(children),
        lambda children: 1.0 if children >= 2 else 0.0,
        lambda: session.now,
    )
    watcher.start()
    session.run()
    return delivered


def pass_a_second(session: FakeSession) -> None:
    session.now += 1.0
    later, session.later = session.later, []
    for call in later:
        call()
    session.run()


def test_few_children_are_told_at_once(session, burst):
    session.answer(["a"])
    assert burst == [["a"]]
    assert session.later == []


def test_many_children_are_told_when_the_node_has_been_quiet(session, burst):
    session.answer(["a", "b"])
    assert burst == []
    pass_a_second(session)
    assert burst == [["a", "b"]]
    assert len(session.answers) == 1


def test_changes_of_a_burst_are_read_once_in_the_time_of_quiet_and_told_together(session, burst):
    session.answer(["a", "b"])
    for names in (["a", "b", "c"], ["a", "b", "c", "d"]):
        change(session)
        change(session)
        read_before = len(session.answers)
        pass_a_second(session)
        assert len(session.answers) == read_before + 1
        session.answer(names)
    pass_a_second(session)
    assert burst == [["a", "b", "c", "d"]]


def test_a_burst_without_end_is_told_in_between_and_its_last_change_is_not_missed(session, burst):
    session.answer(["a", "b"])
    for number in range(25):
        change(session)
        pass_a_second(session)
        session.answer(["a", str(number)])
    assert 2 <= len(burst) <= 3
    pass_a_second(session)
    assert burst[-1] == ["a", "24"]


def test_a_loss_during_the_wait_leads_to_a_read_and_another_wait(session, burst):
    session.answer(["a", "b"])
    session.tell(SessionEvent.RECONNECTED)
    session.answer(["a", "b", "c"])
    pass_a_second(session)
    assert burst == [["a", "b", "c"]]


# --- data -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def told(session: FakeSession) -> Iterator[list[bytes | None]]:
    """What a started watcher of data told."""
    told: list[bytes | None] = []
    watcher = DataWatcher(session, PATH, lambda _path, data: told.append(data))  # type: ignore[arg-type]
    watcher.start()
    session.run()
    yield told
    watcher.close()
    assert session.listeners == []


def test_data_are_told_at_first_after_each_change_and_after_a_reconnection(session, told):
    session.answer(b"1")
    assert told == [b"1"]
    change(session, EventType.CHANGED)
    session.answer(b"2")
    session.tell(SessionEvent.RECONNECTED)
    session.answer(b"2")
    assert told == [b"1", b"2", b"2"]


def test_data_of_a_missing_node_are_none_until_it_appears(session, told):
    session.answer(error=NoNodeError())
    assert session.answers[-1].kind == "exists"
    session.answer(None)
    assert told == [None]
    change(session, EventType.CREATED)
    session.answer(b"")
    assert told == [None, b""]
