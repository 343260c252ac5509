"""Manage the connections of one client, one for each broker, which all its threads share. core.py decides when to
connect, to reconnect and to close; this module executes these decisions, with threads, locks and sockets.

A housekeeping thread sends heartbeats and reconnects.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from random import random

from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.runtime.forks import ForkGuard
from metaq.coordination.runtime.interrupts import BackgroundThread, Bell
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import (
    AccessRefused,
    BrokerUnavailable,
    ClientError,
    LeaderMoved,
    MetaqError,
    RequestTimedOut,
)

from ..runtime.patched import refuse_patched
from ..settings.config import ConnectionConfig
from .connection import Connection, Endpoint, open_connection
from .core import Due, Link, PoolCore, proves_nothing
from .wire import load_modules

__all__ = ["ConnectionPool"]

log = get_log(__name__)

_CLOSE_SECONDS = 5.0

_LEAST_PAUSE_SECONDS = 0.001

Open = Callable[[Endpoint, ConnectionConfig, float], Connection]


class _Link(Link[Connection]):
    """A link with a lock. While a thread connects to the broker, it holds the lock; other threads that need the same
    broker wait.
    """

    def __init__(self, endpoint: Endpoint, backoff: Backoff) -> None:
        super().__init__(endpoint, backoff)
        self.lock = threading.Lock()


class ConnectionPool:
    """The connections of a client by broker address. Any thread may call the methods.

    The first thread that needs a broker connects to it. After an attempt has failed, or the connection has ended, only
    the housekeeping thread connects again. Until an attempt of this thread has succeeded, the method `connection`
    raises an error at once, so that no caller waits for a dead broker.
    """

    def __init__(
        self,
        config: ConnectionConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random,
        open: Open = open_connection,  # noqa: A002
    ) -> None:
        """Create a pool without connections. Raises ClientError if gevent or eventlet has patched modules that the pool
        uses for waiting.
        """
        refuse_patched()
        load_modules(config)
        self._config = config
        self._clock = clock
        self._open = open
        self._core = PoolCore(config, _Link, random)
        self._mutex = threading.Lock()  # held for all changes of the core
        self._wake = Bell()
        self._housekeeper: BackgroundThread | None = None
        self._guard = ForkGuard("client")

    @property
    def down(self) -> frozenset[Endpoint]:
        """Addresses of brokers that cannot be reached now; usually empty."""
        return self._core.down

    def connection(self, endpoint: Endpoint, timeout: float) -> Connection:
        """Return the open connection to the broker at `endpoint`. If this broker has named another node as the leader
        of its set (see `follow`), return the connection to that node instead. If there is no connection, connect within
        `timeout` seconds.

        Raises BrokerUnavailable if the broker cannot be reached, or if the last attempt to reach it has failed, and
        RequestTimedOut if another thread is still connecting to the broker after `timeout` seconds. Raises
        AccessRefused if the broker has refused the login in the last attempt. Raises ClientError in a forked process.
        """
        link = self._core.found(endpoint, self._clock())
        connection = None if link is None else link.connection
        if connection is not None and not connection.closed:
            return connection  # in a forked process, the connection itself refuses requests
        self._guard.check()
        link = link or self._link(endpoint)
        # This check does not take the lock, because the housekeeping thread may hold the lock while it connects.
        if connection is not None or link.cause:
            raise self._is_down(link)
        deadline = self._clock() + timeout
        held: list[bool] = []
        try:
            held.extend(map(link.lock.acquire, (True,), (max(0.0, timeout),)))  # in one call: see interrupts.py
            if not held[0]:
                raise RequestTimedOut(f"no connection to {link.endpoint} in time: another thread is still trying")
            return self._there(link) or self._connect(link, deadline - self._clock())
        finally:
            if True in held:
                link.lock.release()

    def open_connection(self, endpoint: Endpoint) -> Connection | None:
        """Return the same connection as the method `connection`, but never block. Return None if there is no connection
        yet, so that `connection` would have to open one.

        Raises BrokerUnavailable and AccessRefused as `connection` does.
        """
        link = self._core.found(endpoint, self._clock())
        return None if link is None else self._there(link)

    def forget(self, endpoint: Endpoint) -> None:
        """Close the broker's connection and stop reconnecting, because the broker is not needed any more."""
        if (link := self._core.links.get(endpoint)) is not None:
            with self._mutex:
                self._core.drop(link)
            _close(link)

    def forget_ended(self) -> None:
        """Forget the connections that have ended and the brokers that could not be reached, so that the next call for
        such a broker connects at once instead of raising the earlier error.
        """
        now = self._clock()
        for link in list(self._core.links.values()):
            if link.cause or (link.connection is not None and link.connection.notice_end(now) is not None):
                self.forget(link.endpoint)

    def follow(self, error: MetaqError) -> float | None:
        """Process the error with which a request has ended. If the request failed only because another node leads the
        broker set, return the seconds to wait before the request is sent again. Return None if it failed for another
        reason.
        """
        return self._core.follow(error, self._clock())

    def listed(self, masters: Mapping[int, Endpoint], others: Collection[Endpoint] = ()) -> None:
        """Process the list of the brokers that are registered in ZooKeeper now. If a broker cannot be reached and is
        not in the list, stop reconnecting to it. masters: the master's address for each broker id. others: addresses of
        other registered processes.

        If another node has become the master of a broker id, requests in flight to the former master end soon with
        LeaderMoved.
        """
        with self._mutex:
            gone, is_earlier = self._core.listed(masters, others, self._clock())
        for link in gone:
            _close(link)
        if is_earlier:
            self._wake.ring()

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Close all connections and end the housekeeping thread, within `timeout` seconds. Further calls do nothing."""
        if self._guard.is_elsewhere:  # locks may stay locked for ever, and the thread is the parent's
            for link in list(self._core.links.values()):
                _close(link)
            return
        deadline = time.monotonic() + timeout
        with self._mutex:
            links = self._core.close()
        self._wake.ring()
        for link in links:  # stop all connections first, so that they end at the same time
            _close(link, 0.0)
        for link in links:
            _close(link, max(0.0, deadline - time.monotonic()))
        if self._housekeeper is not None and not self._housekeeper.is_current:
            self._housekeeper.join(max(0.0, deadline - time.monotonic()))  # the thread may be connecting

    # --- connecting -------------------------------------------------------------------------------------------------

    def _link(self, endpoint: Endpoint) -> _Link:
        with self._mutex:
            # The thread is started before the link is made. An interrupted call then leaves no link, so the next call
            # comes here again.
            if self._housekeeper is None:
                self._housekeeper = BackgroundThread(self._keep_house, "metaq-housekeeping")
            return self._core.link(endpoint, self._clock())

    def _there(self, link: _Link) -> Connection | None:
        """Return the link's open connection, or None if the pool has never tried to connect to this broker. Raises
        BrokerUnavailable or AccessRefused if the last attempt has failed or the connection has ended.
        """
        connection = link.connection
        if connection is not None and not connection.closed:
            return connection
        if connection is not None or link.cause:
            raise self._is_down(link)
        return None

    def _connect(self, link: _Link, timeout: float) -> Connection:
        deadline = self._clock() + timeout
        try:
            connection = self._open(link.endpoint, self._config, timeout)
        except MetaqError as error:
            is_refusal = isinstance(error, AccessRefused)
            if not is_refusal and proves_nothing(timeout, deadline - self._clock()):
                raise RequestTimedOut(f"no connection to {link.endpoint} in time: {error}") from error
            self._mark_down(link, error)
            raise
        connection.on_closed = partial(self._broken, link)
        with self._mutex:
            wanted = self._core.connected(link, connection)
        if not wanted:
            connection.close()
            raise BrokerUnavailable(f"no connection to {link.endpoint}: it is not wanted any more")
        return connection

    def _is_down(self, link: _Link) -> ClientError:
        """Return the error to raise for a broker whose connection has ended or could not be made. If the end of the
        connection was not recorded yet, also record it.
        """
        connection = link.connection
        if connection is None or not connection.closed or link.refusal is not None:
            return self._core.why_down(link)
        self._broken(link, connection)
        return BrokerUnavailable(f"{connection.failure} (trying again in the background)")

    def _broken(self, link: _Link, connection: Connection) -> None:
        """Record that a connection of this link has ended, and let the housekeeping thread connect again. Any thread
        may call this, any number of times.
        """
        self._mark_down(link, connection.failure, connection)

    def _mark_down(self, link: _Link, error: MetaqError | None, connection: Connection | None = None) -> None:
        with self._mutex:
            is_news = self._core.failed(link, error, self._clock(), connection)
        if is_news:
            log.info("%s; next try in %.2f s", error, link.retry_at - self._clock())
            self._wake.ring()

    # --- housekeeping thread ----------------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        with self._mutex:
            if self._housekeeper is None or not self._housekeeper.is_current:
                return  # the start of this thread was interrupted, and another thread replaces it
        core = self._core
        while not core.closed:
            now = self._clock()
            self._wake.wait(max(_LEAST_PAUSE_SECONDS, core.look_at(now) - now))
            for link in list(core.links.values()):
                if core.closed:
                    return
                self._look_after(link, core.due(link, self._clock()))

    def _look_after(self, link: _Link, due: Due) -> None:
        if due is Due.GIVE_UP:
            with self._mutex:
                self._core.drop(link)
            if link.connection is not None:
                failure = LeaderMoved(f"{link.endpoint} leads its broker set no longer, and has not answered")
                link.connection.fail(failure)
        elif due is Due.BEAT and link.connection is not None:
            link.connection.beat()
        elif due is Due.CONNECT:
            try:
                with link.lock:
                    self._connect(link, self._config.connect_timeout_seconds)
            except MetaqError:
                return  # the broker is marked as down again, and the cause is logged
            log.info("%s can be reached again", link.endpoint)


def _close(link: _Link, timeout: float = _CLOSE_SECONDS) -> None:
    if link.connection is not None:
        link.connection.close(timeout)
