"""Keep this process connected to ZooKeeper by a session, for as long as the process needs ZooKeeper. When a session has
expired, a new session begins. Callers can distinguish the sessions by their ids.

kazoo has two threads (connection, callbacks), which must never wait for ZooKeeper. So a listener or watch on these
threads only posts a call to the event thread. Any thread may use a ZkSession. If a signal handler raises an exception
inside kazoo's code, kazoo wrongly treats it as a closed connection. So calls that may change kazoo's state run on
another thread (runtime/interrupts.py).
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
from ..runtime.certificates import CertificateFiles
from ..runtime.events import EventThread
from ..runtime.forks import ForkGuard
from ..runtime.interrupts import Aside, Ending, begin_elsewhere
from ..runtime.local_address import is_loopback
from ..runtime.logs import get_log
from ..runtime.zookeeper_login import ZooKeeperLogin
from .diagnosis import ServerFinding, examine, sentence
from .kazoo_client import Client
from .node_acls import NodeAcls
from .zk_tls import ZkTls
from .znodes import Znodes

__all__ = ["DEFAULT_SESSION_TIMEOUT", "SessionEvent", "SessionProof", "ZkSession", "check_connect", "session_clock"]

log = get_log(__name__)

# kazoo warns at each connection attempt, so its log is not used. metaq reports once that the connection is lost, and
# how long the session lives without it.
_kazoo_log = logging.getLogger("metaq.kazoo")
_kazoo_log.addHandler(logging.NullHandler())

DEFAULT_SESSION_TIMEOUT = 30.0
"""The default session timeout in seconds. The setting zk.zkSessionTimeoutMs of metaq 1.x has the same default."""

_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0, "max_jitter": 0.5}
"""The arguments that tell kazoo how to reconnect. With kazoo's own defaults the pauses between attempts grow to an
hour, but a session without a connection expires after seconds.
"""

_CLOSE_TIMEOUT = 10.0

_GIVE_UP_TIMEOUT = 0.5
"""If start() fails before any session has begun, closing the ZkSession takes at most this number of seconds."""

_FIRST_LOOK = 0.3
_NEXT_LOOK = 0.7
"""start() examines the servers if no session has begun after _FIRST_LOOK seconds, and again after every further
_NEXT_LOOK seconds. If two successive examinations find that no server can open a session, start() gives up. One
examination would not be enough, because a server that is just restarting may be ready at the second one.
"""

_LOOK_SECONDS = 1.0
"""Longest time in seconds that start() waits for a server's answer when it examines why the server opens no session."""


if sys.platform == "linux":

    def session_clock() -> float:
        """Return the number of seconds since some fixed moment. The number includes the time during which the machine
        was suspended, because the ZooKeeper servers also count this time.
        """
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    session_clock = time.monotonic


class SessionEvent(Enum):
    CONNECTED = "connected"
    """A new session has begun. The ephemeral znodes of earlier sessions do not exist any more, and no watch is set."""
    SUSPENDED = "suspended"
    """The connection is lost. The session may expire after its timeout; the client learns this only when it
    reconnects.
    """
    RECONNECTED = "reconnected"
    """The same session is connected again. Its ephemeral znodes still exist, but kazoo has dropped every watch."""
    EXPIRED = "expired"
    """The session has ended, and other processes may own its former znodes. The next event is CONNECTED, which reports
    a new session.
    """


def check_connect(connect: str) -> str:
    """Check that `connect` has the form `host:port[,host:port…][/chroot]`, and return it. Raises ConfigError for
    another form. The function makes no request to ZooKeeper.
    """
    try:
        collect_hosts(connect)
    except ValueError as error:
        raise ConfigError("zookeeper", connect, "use host:port[,host:port…][/chroot]") from error
    return connect


class ZkSession:
    """A ZooKeeper client that connects, reconnects as often as necessary, and starts a new session when the old session
    has expired.

    connect: the connect string, `host:port[,host:port…][/chroot]`. root: the root path of metaq's znodes, below the
    chroot (called zk.zkRoot in metaq 1.x). session_timeout: the requested session timeout in seconds. With ZooKeeper's
    default limits, a server grants a timeout of at least 2 and at most 20 of its ticks. tls: the certificate files for
    connections with TLS; None means connections without TLS. listener: the name of the listener at whose address the
    views of this session show each broker; None means the main port. login: the user and password by which this process
    identifies itself; without TLS, only servers on this machine may get them. clock: the clock that measures
    suspended_seconds. Raises ConfigError for an invalid connect string, for certificate files that cannot be used, and
    for a login without TLS to another machine.
    """

    def __init__(
        self,
        connect: str,
        root: str = DEFAULT_ROOT,
        session_timeout: float = DEFAULT_SESSION_TIMEOUT,
        *,
        tls: CertificateFiles | None = None,
        listener: str | None = None,
        login: ZooKeeperLogin | None = None,
        clock: Callable[[], float] = session_clock,
    ) -> None:
        hosts, chroot = split_connect_string(connect)
        self.connect = connect
        self._asked_timeout = session_timeout
        self.paths = Paths(root)
        self.listener = listener
        try:
            self.zk = Client(
                hosts + chroot,
                timeout=session_timeout,
                connection_retry=dict(_RECONNECT),
                logger=_kazoo_log,
                clock=clock,
                tls=None if tls is None else ZkTls(tls),
                auth_data=_auth_data(login),
            )
        except ValueError as error:
            raise ConfigError("zookeeper", repr(connect), "use host:port[,host:port…][/chroot]") from error
        if login is not None and tls is None:
            _check_loopback(hosts, login)
        self.login = login
        self.nodes = Znodes(self.zk, connect, session_timeout, NodeAcls(self.paths), _identity(tls, login))
        self.events = EventThread("metaq coordination")
        self._hosts, self._chroot = hosts, chroot
        self._clock = clock
        self._suspended_at: float | None = None
        self.set_backs = 0
        """Number of sessions of this object that ended because ZooKeeper came back empty or was restored from an older
        copy. The number is increased before the EXPIRED event is reported.
        """
        self.connections = 0
        """Number of connections to a server that were made so far. If this number has increased, the process has been
        without a connection, so what it has read from ZooKeeper before may be out of date.
        """
        self.last_session_id = 0
        """Id of the session that ended last; 0 if none has ended yet."""
        self.seen_zxid = 0
        """The zxid of the newest transaction that any of the ended sessions has seen."""
        self._session_id: int | None = None
        self._listeners: list[Callable[[SessionEvent], None]] = []
        self._lock = threading.Lock()
        self._closing = False
        self._first_session = threading.Event()
        self._client_changes = threading.Lock()  # kazoo must not be stopped while it starts
        self._starting = Aside("metaq zookeeper start")
        self._given_up = Ending()
        # Separate from `_starting`, so that a close does not wait for a start that waits for servers.
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
        """Connect to ZooKeeper within `timeout` seconds. create_chroot: whether to create a missing chroot. Brokers
        create it; for other processes, a missing chroot counts as a typing error in the connect string.

        start() waits for a server that is slow, or whose ensemble is electing a leader. start() fails after about a
        second if it is certain that no server can open a session. This is certain if, for each server, the host name is
        unknown, or nothing listens at the port, or something else than ZooKeeper listens there. If wait_for_servers is
        true, start() continues to wait even then, because the servers may still be starting; it writes the obstacles to
        the log. If no session can be opened, start() raises CoordinationUnavailable, which describes each server. If
        the chroot is missing and start() must not create it, start() raises ConfigError. After such an error the
        session is closed. A ZkSession can be started only once.
        """
        try:
            self._starting.do(self._start, timeout, wait_for_servers, create_chroot)
        except BaseException:
            begin_elsewhere((self._give_up,))
            self._given_up.wait(_CLOSE_TIMEOUT)
            raise

    def _give_up(self) -> None:
        """Close the session after a failed start. The caller calls this method on a thread that no interrupt
        reaches.
        """
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

    def examine_servers(self, seconds: float) -> list[ServerFinding]:
        """Return the state of each server of the connect string. The call takes about `seconds` at most."""
        return examine(self._hosts, seconds, self.zk.tls)

    def ensure_chroot(self) -> None:
        """Create the chroot again if somebody has deleted it. The call blocks on ZooKeeper. Raises
        CoordinationUnavailable.
        """
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
            findings = self.examine_servers(_LOOK_SECONDS)
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
        """End the session on the server, which then removes the session's ephemeral znodes at once. Further calls do
        nothing.

        close() takes at most about `timeout` seconds. If no server answers by then, the session is left to expire by
        itself. In a forked child process close() does nothing, because the parent process still uses the session.
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
        # kazoo's stop() waits for a running connection attempt, which may take as long as a session timeout.
        stopper = threading.Thread(target=self._stop_client, name="metaq zookeeper close", daemon=True)
        stopper.start()
        stopper.join(timeout)
        if stopper.is_alive() and self._first_session.is_set():
            log.warning(
                "ZooKeeper at %s has not ended the session within %.1f s: it is left to expire", self.connect, timeout
            )
            self.zk.interrupt()  # a server that resumes still gets what was sent; kazoo's threads end
        self.events.close(max(0.0, deadline - time.monotonic()))

    # --- state ------------------------------------------------------------------------------------------------------

    @property
    def session_timeout(self) -> float:
        """The session timeout in seconds that the server granted at the last connection. If the server hears nothing
        from the client for this time, it ends the session.

        Before the first connection, the value is the timeout that will be requested.
        """
        return self.zk.granted_timeout or self._asked_timeout

    @property
    def session_id(self) -> int:
        """Id of the current session. When a session has expired and the next one has begun, the value is the id of the
        next session. Raises SessionLost while there is no session.
        """
        session_id = self._session_id
        if session_id is None:
            raise SessionLost(f"there is no ZooKeeper session at {self.connect} now")
        return session_id

    def is_current(self, session_id: int) -> bool:
        """Return whether `session_id` is the id of the current session."""
        return self._session_id == session_id

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closing

    @property
    def alive(self) -> bool:
        """Whether there is a session that has not expired, as far as this process knows."""
        return self._session_id is not None

    @property
    def connected(self) -> bool:
        """Whether this client is connected to a server now."""
        return self.alive and bool(self.zk.connected)

    @property
    def suspended_seconds(self) -> float:
        """Number of seconds without a connection until now; 0.0 while there is a connection.

        kazoo may take up to two thirds of the session timeout to notice a lost connection, and the number counts only
        from the moment when kazoo has noticed it. So as soon as the number reaches a third of the session timeout, the
        session may have ended, and other processes may own its former znodes.
        """
        since = self._suspended_at
        return 0.0 if since is None else self._clock() - since

    def require_connection(self) -> None:
        """Raise CoordinationUnavailable if no server is connected now. Call this method before a request that must fail
        at once if there is no connection, instead of waiting for a connection.
        """
        if not self.connected:
            raise CoordinationUnavailable(f"ZooKeeper at {self.connect} is not connected now")

    def on_session(self, callback: Callable[[SessionEvent], None]) -> None:
        """From now on, call `callback` on the event thread after every change of the session. The callback may use
        ZooKeeper, but must not take long.
        """
        with self._lock:
            self._listeners.append(callback)

    def off_session(self, callback: Callable[[SessionEvent], None]) -> None:
        """Stop calling `callback`, which was passed to on_session(). A call of `callback` that is running now may still
        finish.
        """
        with self._lock:
            self._listeners = [each for each in self._listeners if each != callback]

    # --- kazoo's connection thread ----------------------------------------------------------------------------------

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            event = self._connected()
        elif state == KazooState.SUSPENDED:
            self._suspended_at, event = self._clock(), SessionEvent.SUSPENDED
            self.nodes.policy_changed()  # kazoo drops its watch
        else:
            self.last_session_id = self._session_id or self.last_session_id
            self._session_id, event = None, SessionEvent.EXPIRED
            self.nodes.policy_changed()
            self.seen_zxid = max(self.seen_zxid, self.zk.last_zxid)
        seen, self.zk.set_back_from = self.zk.set_back_from, None
        if seen is not None:
            self.set_backs += 1
        if self._closing:
            return
        self._log(event, seen)
        self._tell(event)
        if state == KazooState.CONNECTED:
            self._first_session.set()  # last, so that a listener added after start() only hears of later changes
        if event is SessionEvent.EXPIRED and self.zk.client_state == KeeperState.CLOSED:
            self.events.post(self._revive)

    def _connected(self) -> SessionEvent:
        self._suspended_at = None
        self.connections += 1
        before, self._session_id = self._session_id, self.zk.client_id[0]
        return SessionEvent.RECONNECTED if before == self._session_id else SessionEvent.CONNECTED

    def _tell(self, event: SessionEvent) -> None:
        with self._lock:  # a listener that is added later must not hear of this change
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
        """Restart kazoo's connection thread. kazoo's thread ends permanently after an error that kazoo does not handle,
        for example a damaged answer.
        """
        if not self._closing:
            log.warning("the ZooKeeper client stopped by itself: starting it again")
            with suppress(CoordinationUnavailable):  # closed meanwhile
                self._start_client()  # not stop() first: its close request would stay queued and end the new session

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
        """Create the chroot and its parent znodes. A separate client without a chroot creates them, because kazoo's
        ensure_path() does not create the parents of a chroot.
        """
        client = Client(
            self._hosts,
            timeout=self._asked_timeout,
            logger=_kazoo_log,
            tls=self.zk.tls,
            auth_data=_auth_data(self.login),
        )
        try:
            client.start(timeout)
            Znodes(client, self.connect, timeout).ensure([self._chroot])
            client.stop()
            client.close()
        except (KazooException, client.handler.timeout_exception) as error:
            raise CoordinationUnavailable(
                f"cannot create the chroot {self._chroot} of {self.connect}: {type(error).__name__} {error}"
            ) from error


def _auth_data(login: ZooKeeperLogin | None) -> list[tuple[str, str]]:
    """Return what kazoo sends at the beginning of each connection, also after a reconnection and on a new session."""
    return [] if login is None else [("digest", login.credentials)]


def _check_loopback(hosts: str, login: ZooKeeperLogin) -> None:
    """Raise ConfigError if a server is not on this machine, because everybody on the way could read the password."""
    for host, _ in collect_hosts(hosts)[0]:
        if not is_loopback(host.strip()):
            remedy = f"a password goes to {host.strip()} only by TLS: name its CA (ca = …) beside passwordFile"
            raise ConfigError(f"{login.option}.user", login.user, remedy)


def _identity(tls: CertificateFiles | None, login: ZooKeeperLogin | None) -> str:
    """Return how this process identifies itself to ZooKeeper, in words for errors."""
    certificate = [] if tls is None or not tls.certificate else [f"the certificate {tls.certificate}"]
    user = [] if login is None else [f"digest:{login.user}"]
    return " and ".join(certificate + user) or "nobody but its address"


class SessionProof:
    """Measures how long ago this process last had a proof that its session was alive. The proof is a request that the
    server has answered in this session.

    kazoo reports a lost session only when kazoo's own thread gets time to run. After a hang (a stopped machine, a long
    pause of the whole system), other threads of the process may run before kazoo's thread. If these threads did not
    check the age of the last proof, they would continue to use partitions that another member now owns. The age in
    `age_seconds` is correct at once after a hang, because it does not depend on kazoo's thread. The age counts from the
    moment when the answered request was sent, because from then on the server keeps the session for the whole session
    timeout.

    Any thread may call renew(). The answers are processed on kazoo's thread.
    """

    def __init__(self, session: ZkSession, clock: Callable[[], float] = session_clock) -> None:
        self._session = session
        self._clock = clock
        self._asked_at = clock()

    @property
    def age_seconds(self) -> float:
        """Number of seconds since the last answered request was sent. Before the first answer, number of seconds since
        this object was made.
        """
        return self._clock() - self._asked_at

    def renew(self) -> None:
        """Send a request that proves the session when it is answered, and do not wait for the answer. Do nothing while
        no server is connected.
        """
        if self._session.connected:
            asked_at = self._clock()
            self._session.zk.exists_async(ROOT).rawlink(lambda answer: self._answered(asked_at, answer))

    def _answered(self, asked_at: float, answer: IAsyncResult) -> None:
        if answer.successful():
            self._asked_at = max(self._asked_at, asked_at)
