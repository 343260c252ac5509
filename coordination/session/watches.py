"""Watch the children or the data of a znode, even after the connection or the session was lost and replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from kazoo.exceptions import ConnectionClosedError, ConnectionLoss, NoAuthError, NoNodeError, SessionExpiredError
from kazoo.protocol.states import EventType, WatchedEvent, ZnodeStat

from metaq.protocol.errors import CoordinationError

from ..runtime.logs import get_log
from .zk_session import SessionEvent, ZkSession

__all__ = ["ChildrenWatcher", "ChildrenWatchers", "DataWatcher"]

log = get_log(__name__)

_LOST = (ConnectionLoss, SessionExpiredError, ConnectionClosedError)

_RETRY_SECONDS = 2.0

_LONGEST_BURST = 10
"""A change is usually reported when the znode has not changed again for a certain time, the quiet time. If the znode
changes again and again for longer than _LONGEST_BURST times the quiet time, the latest value is reported although the
changes continue.
"""


T = TypeVar("T")


class NodeWatcher(Generic[T]):
    """Calls `on_change(path, value)` on the session's event thread: once after start(), then after every change.

    `on_change` is also called after each reconnection, because kazoo drops all watches when the connection is lost.
    Several changes in quick succession may lead to a single call, but the last value is always reported. For a missing
    znode the value `absent` is reported; when somebody creates the znode, this is reported as a change. If `on_change`
    raises CoordinationError, the znode is read again after 2 s, and `on_change` is called again. Any thread may call
    the methods of this class. Only the event thread uses the private attributes.

    stat: the znode's metadata (ZooKeeper's Stat) at the time of the last reported value; None if the znode did not
    exist then.
    """

    def __init__(
        self,
        session: ZkSession,
        path: str,
        on_change: Callable[[str, T], None],
        absent: T,
        settle: Callable[[T], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """settle: a function that gets the znode's value and returns a pause in seconds. A change is reported when the
        znode has not changed again during the pause.
        """
        self.path = path
        self.stat: ZnodeStat | None = None
        self._session = session
        self._on_change = on_change
        self._absent = absent
        self._settle = settle
        self._clock = clock
        self._told_by: float | None = None  # during a burst: report at this time at the latest
        self._look = 0  # number of the latest read; earlier waits are void
        self._changed_while_waiting = False
        self._reading = False
        self._changed_while_reading = False
        self._generation = 0
        self._closed = False

    def start(self) -> None:
        self._session.on_session(self._session_changed)
        self._session.events.post_once(self._read)

    def close(self) -> None:
        """Stop calling `on_change`. A call of `on_change` that is running now may still finish. A watch may still be
        set in ZooKeeper; if it reports a change later, the report is ignored.
        """
        self._closed = True
        self._session.off_session(self._session_changed)

    # --- event thread -----------------------------------------------------------------------------------------------

    def _session_changed(self, event: SessionEvent) -> None:
        if event in (SessionEvent.CONNECTED, SessionEvent.RECONNECTED):
            # The answer to an earlier read may never come, and would not show whether the watch is set.
            self._generation += 1
            self._reading = False
            self._read()

    def _change(self) -> None:
        if self._told_by is None:
            self._read()
        else:
            self._changed_while_waiting = True

    def _read(self) -> None:
        """Read the znode and set a watch on it. If an earlier read has no answer yet, begin this read after the
        answer.
        """
        if self._closed:
            return
        if self._reading:
            self._changed_while_reading = True
            return
        self._reading = True
        self._changed_while_reading = self._changed_while_waiting = False
        self._request(self._question(), self._value_read)

    def _question(self) -> Callable[..., Any]:
        """Return the kazoo method that reads the value and the stat of the znode, and that can set a watch on it."""
        raise NotImplementedError

    def _value_read(self, result: Any) -> None:
        if isinstance(result.exception, NoNodeError):
            self._request(self._session.zk.exists_async, self._absence_read)
        elif result.exception is not None:
            self._failed(result.exception)
        else:
            self._arrived(*result.value)

    def _absence_read(self, result: Any) -> None:
        if result.exception is not None:
            self._failed(result.exception)
        elif result.value is None:
            self._arrived(self._absent, None)
        else:  # it has been created meanwhile
            self._reading = False
            self._read()

    def _arrived(self, value: T, stat: ZnodeStat | None) -> None:
        self._reading = False
        pause = self._settle(value)
        if pause > 0:
            self._wait(value, stat, pause)
            return
        self._told_by = None
        if self._changed_while_reading:
            self._read()
        self._tell(value, stat)

    def _wait(self, value: T, stat: ZnodeStat | None, pause: float) -> None:
        """Report the value after `pause` seconds if the znode does not change until then."""
        if self._told_by is None:
            self._told_by = self._clock() + _LONGEST_BURST * pause
        self._changed_while_waiting |= self._changed_while_reading
        self._look += 1
        self._session.events.post_later(pause, partial(self._waited, value, stat, self._look))

    def _waited(self, value: T, stat: ZnodeStat | None, look: int) -> None:
        if look != self._look or self._told_by is None:
            return  # the znode was read again meanwhile
        if self._changed_while_waiting and self._clock() < self._told_by:
            self._read()
            return
        self._told_by = None
        if self._changed_while_waiting:
            self._read()
        self._tell(value, stat)

    def _tell(self, value: T, stat: ZnodeStat | None) -> None:
        if self._closed:
            return
        self.stat = stat
        try:
            self._on_change(self.path, value)
        except CoordinationError as error:
            self._read_later(error)

    def _failed(self, error: Exception) -> None:
        self._reading = False
        if isinstance(error, NoAuthError):
            error = self._session.nodes.refused("read", self.path, error)
        if not isinstance(error, _LOST):  # after a loss, the session's next event leads to a read
            self._read_later(error)

    def _read_later(self, error: Exception) -> None:
        if self._closed or self._session.closed:
            return  # it was closed during the change
        log.warning(
            "a change of ZooKeeper node %s could not be followed, again in %g s: %s %s",
            self.path,
            _RETRY_SECONDS,
            type(error).__name__,
            error,
        )
        self._session.events.post_later(_RETRY_SECONDS, self._read)

    def _request(self, request: Callable[..., Any], arrived: Callable[[Any], None]) -> None:
        generation = self._generation

        def arrived_now(result: Any) -> None:
            if generation == self._generation:
                arrived(result)

        post = self._session.events.post
        request(self.path, watch=self._fired).rawlink(lambda result: post(lambda: arrived_now(result)))

    # --- kazoo's callback thread ------------------------------------------------------------------------------------

    def _fired(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:  # NONE: kazoo dropped the watch; the session's event leads to a read
            self._session.events.post_once(self._change)


class ChildrenWatcher(NodeWatcher[list[str]]):
    """Watches the names of a znode's children. A missing znode has no children.

    If a child was deleted and created again so fast that the list of names is the same as before, this is also reported
    as a change. Thus a program that has read the data of this child learns that it must read the data again.

    settle: a function that gets the number of children and returns a pause in seconds. A change is reported when the
    children have not changed again during the pause. If the children change again and again without such a pause
    between the changes, they are read once per pause length, and the result of every tenth read is reported.
    """

    def __init__(
        self,
        session: ZkSession,
        path: str,
        on_change: Callable[[str, list[str]], None],
        settle: Callable[[int], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        pause = settle or (lambda _children: 0.0)
        super().__init__(session, path, on_change, [], lambda children: pause(len(children)), clock)

    def _question(self) -> Callable[..., Any]:
        return partial(self._session.zk.get_children_async, include_data=True)


class DataWatcher(NodeWatcher[bytes | None]):
    """Watches the data of a znode. For a missing znode, None is reported."""

    def __init__(self, session: ZkSession, path: str, on_change: Callable[[str, bytes | None], None]) -> None:
        super().__init__(session, path, on_change, None, lambda _data: 0.0)

    def _question(self) -> Callable[..., Any]:
        return self._session.zk.get_async  # type: ignore[no-any-return]


class ChildrenWatchers:
    """Watches the children of several znodes, with one ChildrenWatcher for each znode. Any thread may call the
    methods.
    """

    def __init__(self, session: ZkSession) -> None:
        self._session = session
        self._watchers: dict[str, ChildrenWatcher] = {}
        self._lock = threading.Lock()
        self._closed = False

    def watch(
        self, path: str, on_change: Callable[[str, list[str]], None], settle: Callable[[int], float] | None = None
    ) -> None:
        """Start a ChildrenWatcher for the znode, unless the znode is watched already or close() was called."""
        with self._lock:
            if path in self._watchers or self._closed:
                return
            watcher = self._watchers[path] = ChildrenWatcher(self._session, path, on_change, settle)
        watcher.start()

    def stat(self, path: str) -> ZnodeStat | None:
        """Return the metadata (ZooKeeper's Stat) that the watched znode `path` had when its children were last
        reported, or None if the znode did not exist then.
        """
        return self._watchers[path].stat

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for watcher in self._watchers.values():
            watcher.close()
