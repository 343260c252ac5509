"""Create a process's ephemeral znodes again whenever its ZooKeeper session is replaced by a new session. The znodes are
a broker's registration, or a consumer's membership.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from metaq.protocol.errors import CoordinationError, MetaqError

from ..runtime.backoff import Backoff
from ..runtime.events import PersistentTask
from ..runtime.logs import get_log
from .zk_session import SessionEvent, ZkSession

__all__ = ["Presence"]

log = get_log(__name__)

_STALE_MARGIN = 2.0
"""When the timeout of a dead session is over, the server removes the session's znodes within this number of seconds."""

_POLL = 0.2

_STOP_SECONDS = 5.0


class Presence:
    """Calls `appear`, a function that creates the znodes, on a separate thread after each beginning of a new session.
    If a call fails, it is repeated until it succeeds.

    name: the name of the broker or consumer in errors and in the log. Any thread may call the methods, except that
    kazoo's threads must not call the blocking methods: take_over(), stop() and leave().
    """

    def __init__(
        self,
        session: ZkSession,
        name: str,
        appear: Callable[[], None],
        backoff: Backoff | None,
        on_expired: Callable[[], None] = lambda: None,
    ) -> None:
        """on_expired: called on the event thread when a session has ended."""
        self._session = session
        self._name = name
        self._on_expired = on_expired
        self._stopping = threading.Event()
        self._task = PersistentTask(f"presence of {name}", appear, backoff)

    @property
    def stopped(self) -> bool:
        """Whether stop() was called."""
        return self._stopping.is_set()

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Return a context manager. From the beginning of its `with` block on, `appear` is called after the beginning
        of each new session. If the code in the block raises an exception, `appear` is not called any more.
        """
        self._session.on_session(self._session_changed)
        try:
            yield
        except BaseException:
            self._session.off_session(self._session_changed)
            raise

    def again(self) -> None:
        """Call `appear` soon on the separate thread, and repeat it until it succeeds."""
        self._task.trigger()

    def take_over(self, take: Callable[[], MetaqError | None]) -> None:
        """Call `take` again and again until it returns None. `take` tries to create a znode, and returns an error if
        the znode belongs to another session. If `take` still returns an error after the longest time for which
        ZooKeeper keeps the session of a dead process, raise this error. Raises CoordinationError if stop() is called
        meanwhile.
        """
        deadline = time.monotonic() + self._session.session_timeout + _STALE_MARGIN
        told = False
        while (obstacle := take()) is not None:
            if time.monotonic() >= deadline:
                raise obstacle
            if not told:
                log.warning("%s: waiting until its session ends", obstacle)
                told = True
            if self._stopping.wait(_POLL):
                raise CoordinationError(f"{self._name} left while it waited: {obstacle}")

    def stop(self) -> None:
        """Do not call `appear` any more. Wait at most 5 s for the end of a running call."""
        self._session.off_session(self._session_changed)
        self._stopping.set()
        self._task.close(_STOP_SECONDS)

    def leave(self, disappear: Callable[[], object]) -> None:
        """Call `disappear`, which removes the znodes. If there is no connection or no session, only log a warning,
        because the znodes are ephemeral and end with the session.
        """
        try:
            self._session.require_connection()
            disappear()
        except CoordinationError as error:
            log.warning("%s could not leave, its nodes end with its session: %s", self._name, error)

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.CONNECTED:
            self._task.trigger()
        elif event is SessionEvent.EXPIRED:
            self._on_expired()
