"""One ZooKeeper session of this process, maintained for as long as needed, and distinguished from its successors.

Two threads of kazoo's (connection, callbacks) must never wait for ZooKeeper; they post their events to our event
thread. ZkSession itself is safe on any thread. kazoo does not support exceptions raised by a signal's handler (it takes
one for a closed connection): calls that may change its state run aside (runtime/interrupts.py).
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Self

from kazoo.exceptions import KazooException
from kazoo.hosts import collect_hosts
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.states import KazooState, KeeperState

from metaq.protocol.errors import ConfigError, CoordinationUnavailable, SessionLost

from ..records.paths import DEFAULT_ROOT, ROOT, Paths, split_connect_string
from ..runtime.events import EventThread
from ..runtime.forks import ForkGuard
from ..runtime.interrupts import Aside, Ending, begin_elsewhere
from ..runtime.logs import get_log
from .diagnosis import examine, sentence
from .kazoo_client import Client
from .znodes import Znodes

__all__ = ["DEFAULT_SESSION_TIMEOUT", "SessionEvent", "SessionProof", "ZkSession", "check_connect", "session_clock"]

log = get_log(__name__)

# kazoo warns at each connection attempt; we report once that the connection is lost and how long that may last
_kazoo_log = logging.getLogger("metaq.kazoo")
_kazoo_log.addHandler(logging.NullHandler())

DEFAULT_SESSION_TIMEOUT = 30.0
"""Seconds, as zk.zkSessionTimeoutMs of 1.x."""

_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0, "max_jitter": 0.5}
"""kazoo's own default backs off to an hour, and a session lives for seconds."""

_CLOSE_TIMEOUT = 10.0

_GIVE_UP_TIMEOUT = 0.5
"""Seconds that close() takes if there never was a session to end."""

_FIRST_LOOK = 0.3
_NEXT_LOOK = 0.7
"""Seconds without a session until the reason is examined, and then until the next examination. After two without a
server that could open one it gives up: a restarted server has come back by then, or takes much longer."""

_LOOK_SECONDS = 1.0
"""Seconds that a server gets to identify itself."""


if sys.platform == "linux":

    def session_clock() -> float:
        """Return the seconds since some moment, including those while the machine was suspended: the servers count them
        too."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    session_clock = time.monotonic


class SessionEvent(Enum):
    CONNECTED = "connected"
    """A new session: no ephemeral nodes of an earlier one exist any more, and no watch is left."""
    SUSPENDED = "suspended"
    """The connection is lost. The session may expire within its timeout; we only learn that when we reconnect."""
    RECONNECTED = "reconnected"
    """The same session again: ephemeral nodes are still there, but kazoo has dropped every watch."""
    EXPIRED = "expired"
    """The session has ended; others may own its former nodes. CONNECTED follows."""


def check_connect(connect: str) -> str:
    """Return `connect`, if it is `host:port[,host:port…][/chroot]`. Raises ConfigError; makes no request."""
    try:
        collect_hosts(connect)
    except ValueError as error:
        raise ConfigError("zookeeper", connect, "use host:port[,host:port…][/chroot]") from error
    return connect


class ZkSession:
    """Connects, reconnects for ever, and starts a new session when the old one expired.

    connect: `host:port[,host:port…][/chroot]`. root: zk.zkRoot of 1.x, below the chroot. session_timeout: requested
    seconds; the server grants 2 to 20 of its ticks, if it has no other limits. clock: of suspended_seconds. Raises
    ConfigError for an invalid connect string.
    """

    def __init__(
        self,
        connect: str,
        root: str = DEFAULT_ROOT,
        session_timeout: float = DEFAULT_SESSION_TIMEOUT,
        *,
        clock: Callable[[], float] = session_clock,
    ) -> None:
        hosts, chroot = split_connect_string(connect)
        self.connect = connect
        self._asked_timeout = session_timeout
        self.paths = Paths(root)
        try:
            self.zk = Client(
                hosts + chroot,
                timeout=session_timeout,
                connection_retry=dict(_RECONNECT),
                logger=_kazoo_log,
                clock=clock,
            )
        except ValueError as error:
            raise ConfigError("zookeeper", repr(connect), "use host:port[,host:port…][/chroot]") from error
        self.nodes = Znodes(self.zk, connect, session_timeout)
        self.events = EventThread("metaq coordination")
        self._hosts, self._chroot = hosts, chroot
        self._clock = clock
        self._suspended_at: float | None = None
        self.set_backs = 0
        """How many sessions are known to have ended because ZooKeeper came back empty or from an older copy: raised
        before the EXPIRED event."""
        self.connections = 0
        """How often a server was connected: this process's knowledge of ZooKeeper may be out of date after each
        time."""
        self.last_session_id = 0
        """Id of the session that ended last; 0 before one has."""
        self.seen_zxid = 0
        """The newest transaction seen by the sessions that have ended."""
        self._session_id: int | None = None
        self._listeners: list[Callable[[SessionEvent], None]] = []
        self._lock = threading.Lock()
        self._closing = False
        self._first_session = threading.Event()
        self._client_changes = threading.Lock()  # kazoo must not be stopped while it starts
        self._starting = Aside("metaq zookeeper start")
        self._given_up = Ending()
        # separate, so as not to queue behind a start that waits for servers
        self._ending = Aside("metaq zookeeper close")
        self._guard = ForkGuard("ZooKeeper session")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, timeout: float = 15.0, *, wait_for_servers: bool = False, create_chroot: bool = False) -> None:
        """Connect within `timeout` seconds. create_chroot: create it if it is missing, as brokers do; for others it is
        a typo.

        Waits for a server that is slow, or whose ensemble elects a leader. If it is certain that no server can open a
        session (unknown names, nothing listens, something else than ZooKeeper), this ends after about a second, unless
        wait_for_servers: they may be starting too, and the log says what is awaited. Raises CoordinationUnavailable,
        which describes each server, and ConfigError for a missing chroot; then the session is closed. A ZkSession
        starts once.
        """
        try:
            self._starting.do(self._start, timeout, wait_for_servers, create_chroot)
        except BaseException:
            begin_elsewhere((self._give_up,))
            self._given_up.wait(_CLOSE_TIMEOUT)
            raise

    def _give_up(self) -> None:
        """Runs where no interrupt comes."""
        self._close(_CLOSE_TIMEOUT if self._first_session.is_set() else _GIVE_UP_TIMEOUT)
        self._given_up.tell()

    def _start(self, timeout: float, wait_for_servers: bool, create_chroot: bool) -> None:
        self.events.start()
        self.zk.add_listener(self._state_changed)
        self._start_client()
        self._await_first_session(timeout, wait_for_servers)
        if self._chroot and not self.nodes.exists_root():
            if not create_chroot:
                raise ConfigError(
                    "zookeeper",
                    self.connect,
                    f"there is no node {self._chroot}: correct it, or start the brokers first, which create it",
                )
            self._create_chroot(timeout)

    def ensure_chroot(self) -> None:
        """Create the chroot again if somebody has deleted it. Blocks. Raises CoordinationUnavailable."""
        if self._chroot and not self.nodes.exists_root():
            self._create_chroot(self.session_timeout)

    def _await_first_session(self, timeout: float, wait_for_servers: bool) -> None:
        deadline = time.monotonic() + timeout
        certain = told = False
        pause = _FIRST_LOOK
        while not self._first_session.wait(max(0.0, min(pause, deadline - time.monotonic()))):
            pause = _NEXT_LOOK
            if self._closing:
                raise self._closed_early()
            findings = examine(self._hosts, _LOOK_SECONDS)
            before, certain = certain, all(each.certain for each in findings)
            if certain and before and not wait_for_servers:
                raise CoordinationUnavailable(f"no ZooKeeper at {self.connect}: {sentence(findings)}")
            if time.monotonic() >= deadline:
                raise CoordinationUnavailable(
                    f"ZooKeeper at {self.connect} does not answer within {timeout:g} s: {sentence(findings)}"
                )
            if wait_for_servers and not told:
                told = True
                log.warning("waiting up to %g s for ZooKeeper at %s: %s", timeout, self.connect, sentence(findings))

    def close(self, timeout: float = _CLOSE_TIMEOUT) -> None:
        """End the session on the server, which removes its ephemeral nodes at once. Idempotent.

        Takes at most about `timeout` seconds. If no server answers by then, the session is left to expire by itself. In
        a process that was forked off it does nothing: the session is the parent's.
        """
        if not self._guard.is_elsewhere:
            self._ending.do(self._close, timeout)

    def _close(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with self._lock:
            if self._closing:
                return
            self._closing = True
        if not self._first_session.is_set():
            self.zk.interrupt()
        # kazoo's stop() waits for a running connection attempt, as long as a session timeout
        stopper = threading.Thread(target=self._stop_client, name="metaq zookeeper close", daemon=True)
        stopper.start()
        stopper.join(timeout)
        if stopper.is_alive() and self._first_session.is_set():
            log.warning(
                "ZooKeeper at %s has not ended the session within %.1f s: it is left to expire", self.connect, timeout
            )
            self.zk.interrupt()  # a server that goes on still takes what it was sent; kazoo's threads end
        self.events.close(max(0.0, deadline - time.monotonic()))

    # --- state ------------------------------------------------------------------------------------------------------

    @property
    def session_timeout(self) -> float:
        """Seconds after which the server ends a silent session: as granted by the last connection.

        Before the first one, the value to be requested.
        """
        return self.zk.granted_timeout or self._asked_timeout

    @property
    def session_id(self) -> int:
        """Id of the current session; it changes after an expiry. Raises SessionLost while there is none."""
        session_id = self._session_id
        if session_id is None:
            raise SessionLost(f"there is no ZooKeeper session at {self.connect} now")
        return session_id

    def is_current(self, session_id: int) -> bool:
        """Whether `session_id` is the current session."""
        return self._session_id == session_id

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closing

    @property
    def alive(self) -> bool:
        """Whether there is a session that has not expired as far as we know."""
        return self._session_id is not None

    @property
    def connected(self) -> bool:
        """Whether a server is connected now."""
        return self.alive and bool(self.zk.connected)

    @property
    def suspended_seconds(self) -> float:
        """How long there has been no connection; 0.0 while there is one.

        The connection is given up after up to two thirds of the session timeout without an answer, so from a third of
        the timeout on, others may own the former nodes of this session.
        """
        since = self._suspended_at
        return 0.0 if since is None else self._clock() - since

    def require_connection(self) -> None:
        """Raise CoordinationUnavailable while no server is connected: for steps for which waiting is not worthwhile."""
        if not self.connected:
            raise CoordinationUnavailable(f"ZooKeeper at {self.connect} is not connected now")

    def on_session(self, callback: Callable[[SessionEvent], None]) -> None:
        """Have `callback` called on the event thread at every later change; it may use ZooKeeper, but not for long."""
        with self._lock:
            self._listeners.append(callback)

    def off_session(self, callback: Callable[[SessionEvent], None]) -> None:
        """Undo on_session(); a running call may still end."""
        with self._lock:
            self._listeners = [each for each in self._listeners if each != callback]

    # --- kazoo's connection thread ----------------------------------------------------------------------------------

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            event = self._connected()
        elif state == KazooState.SUSPENDED:
            self._suspended_at, event = self._clock(), SessionEvent.SUSPENDED
        else:
            self.last_session_id = self._session_id or self.last_session_id
            self._session_id, event = None, SessionEvent.EXPIRED
            self.seen_zxid = max(self.seen_zxid, self.zk.last_zxid)
        seen, self.zk.set_back_from = self.zk.set_back_from, None
        if seen is not None:
            self.set_backs += 1
        if self._closing:
            return
        self._log(event, seen)
        self._tell(event)
        if state == KazooState.CONNECTED:
            self._first_session.set()  # last: a listener that is added after start() only hears of later changes
        if event is SessionEvent.EXPIRED and self.zk.client_state == KeeperState.CLOSED:
            self.events.post(self._revive)

    def _connected(self) -> SessionEvent:
        self._suspended_at = None
        self.connections += 1
        before, self._session_id = self._session_id, self.zk.client_id[0]
        return SessionEvent.RECONNECTED if before == self._session_id else SessionEvent.CONNECTED

    def _tell(self, event: SessionEvent) -> None:
        with self._lock:  # a listener that is added later does not hear of this change
            listeners = list(self._listeners)
        for listener in listeners:
            self.events.post(partial(listener, event))

    def _log(self, event: SessionEvent, set_back_from: int | None) -> None:
        if event is SessionEvent.SUSPENDED:
            log.warning(
                "lost the connection to ZooKeeper at %s: the session lives for up to %g s without one",
                self.connect,
                self.session_timeout,
            )
        elif set_back_from is not None:
            log.error(
                "ZooKeeper at %s has come back empty or from an older copy: it has lost transaction 0x%x and no longer "
                "takes the session. Beginning a new session, which registers everything of this process again",
                self.connect,
                set_back_from,
            )
        elif event is SessionEvent.EXPIRED:
            log.warning("the ZooKeeper session at %s has expired: connecting for a new one", self.connect)
        else:
            log.info("%s to ZooKeeper at %s, session 0x%x", event.value, self.connect, self._session_id or 0)

    # --- event thread -----------------------------------------------------------------------------------------------

    def _revive(self) -> None:
        """Restart kazoo's connection thread, which ends for good on an error it does not know (a damaged answer)."""
        if not self._closing:
            log.warning("the ZooKeeper client stopped by itself: starting it again")
            with suppress(CoordinationUnavailable):  # closed meanwhile
                self._start_client()  # without stop(), whose farewell would stay in the queue and end the new session

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _start_client(self) -> None:
        with self._client_changes:
            if self._closing:
                raise self._closed_early()
            self.zk.start_async()

    def _closed_early(self) -> CoordinationUnavailable:
        return CoordinationUnavailable(f"the session at {self.connect} was closed before it began")

    def _stop_client(self) -> None:
        try:
            with self._client_changes:
                self.zk.stop()
                self.zk.close()
        except (KazooException, OSError) as error:
            log.warning("could not end the ZooKeeper session at %s: %s", self.connect, error)

    def _create_chroot(self, timeout: float) -> None:
        """Create the chroot. kazoo's ensure_path() does not create its parents, but a client without a chroot does."""
        client = Client(self._hosts, timeout=self._asked_timeout, logger=_kazoo_log)
        try:
            client.start(timeout)
            Znodes(client, self.connect, timeout).ensure([self._chroot])
            client.stop()
            client.close()
        except (KazooException, client.handler.timeout_exception) as error:
            raise CoordinationUnavailable(
                f"cannot create the chroot {self._chroot} of {self.connect}: {type(error).__name__} {error}"
            ) from error


class SessionProof:
    """How certain it is that a session lives: the age of the last question that the server answered in it.

    kazoo reports a lost session only once its thread has run. After a hang (a stopped machine, a long pause of the
    whole system) a process may run other threads first, which would go on using what another member now owns. The age
    is right at once, because nobody needs to notice anything. It counts from the moment of asking: the server has kept
    the session for its whole timeout from then on.

    Thread-safe: renew() on any thread, the answers come on kazoo's.
    """

    def __init__(self, session: ZkSession, clock: Callable[[], float] = session_clock) -> None:
        self._session = session
        self._clock = clock
        self._asked_at = clock()

    @property
    def age_seconds(self) -> float:
        """Seconds since the last answered question was asked; before the first one, since this object was made."""
        return self._clock() - self._asked_at

    def renew(self) -> None:
        """Ask, without waiting. Does nothing while no server is connected."""
        if self._session.connected:
            asked_at = self._clock()
            self._session.zk.exists_async(ROOT).rawlink(lambda answer: self._answered(asked_at, answer))

    def _answered(self, asked_at: float, answer: IAsyncResult) -> None:
        if answer.successful():
            self._asked_at = max(self._asked_at, asked_at)
