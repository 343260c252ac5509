"""Connections by broker, shared by all parts of one client; one housekeeping thread keeps them alive and reconnects."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import random

from metaq.coordination.backoff import Backoff
from metaq.coordination.forks import ForkGuard
from metaq.coordination.interrupts import BackgroundThread, Bell
from metaq.coordination.logs import get_log
from metaq.protocol.errors import BrokerUnavailable, LeaderMoved, MetaqError, NotLeader, RequestTimedOut

from ..runtime.patched import refuse_patched
from ..settings.config import ConnectionConfig, Protocol
from .connection import Connection, Endpoint, open_connection
from .redirects import Redirects

__all__ = ["ConnectionPool"]

log = get_log(__name__)

_HOUSEKEEPING_SECONDS = 0.5
"""How often idle connections are checked."""

_CLOSE_SECONDS = 5.0

_LEAST_CONNECT_SECONDS = 1.0
"""A connection that failed in less time proves nothing about the broker: others that ask for it have more time."""

LAST_ANSWERS_SECONDS = 0.2
"""By then a running former leader has refused its waiting requests; a hanging one answers nothing."""

Open = Callable[[Endpoint, ConnectionConfig, Protocol, float], Connection]


@dataclass(slots=True)
class _Link:
    """The pool's state of one broker. `lock` is held while one thread connects for all."""

    endpoint: Endpoint
    backoff: Backoff
    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: Connection | None = None
    cause: str = ""
    """Why there is no connection; "" = none was tried yet, or there is one."""
    retry_at: float = 0.0
    ends_at: float = math.inf
    """When the connection is given up because another node leads the broker set."""


class ConnectionPool:
    """Connections by endpoint. All methods may be called on any thread.

    The thread that needs a broker first connects to it. Only the housekeeping thread reconnects after a failure, so no
    caller waits for a dead broker again: until then `connection` raises at once.
    """

    def __init__(
        self,
        config: ConnectionConfig,
        protocol: Protocol = "auto",
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random,
        open: Open = open_connection,  # noqa: A002
    ) -> None:
        """Raises ClientError if gevent or eventlet has patched modules that it waits with."""
        refuse_patched()
        self._config = config
        self._protocol = protocol
        self._clock = clock
        self._random = random
        self._open = open
        self._links: dict[Endpoint, _Link] = {}
        self._redirects = Redirects(clock)
        self._masters: dict[int, Endpoint] = {}  # each broker's last address in ZooKeeper
        self._down: frozenset[Endpoint] = frozenset()
        self._mutex = threading.Lock()
        self._wake = Bell()
        self._closed = False
        self._housekeeper: BackgroundThread | None = None
        self._guard = ForkGuard("client")

    @property
    def down(self) -> frozenset[Endpoint]:
        """Brokers that cannot be reached now; usually empty."""
        return self._down

    def connection(self, endpoint: Endpoint, timeout: float) -> Connection:
        """Return the open connection to `endpoint`, or to the leader that this node has named (`follow`); connect
        within `timeout` seconds if there is none.

        Raises BrokerUnavailable: it cannot be reached, or could not just before; ClientError in a forked process.
        """
        endpoint = self._redirects.target(endpoint, self._down)
        link = self._links.get(endpoint)
        connection = None if link is None else link.connection
        if connection is not None and not connection.closed:
            return connection  # it refuses by itself in a forked process
        self._guard.check()
        link = link or self._link(endpoint)
        if connection is not None or link.cause:  # without the lock, which the housekeeping thread may hold to connect
            raise self._is_down(link)
        deadline = self._clock() + timeout
        held: list[bool] = []
        try:
            held.extend(map(link.lock.acquire, (True,), (max(0.0, timeout),)))  # in one call: see interrupts.py
            if not held[0]:
                raise RequestTimedOut(f"no connection to {endpoint} in time: another thread is still trying")
            return self._connect_or_refuse(link, deadline - self._clock())
        finally:
            if True in held:
                link.lock.release()

    def open_connection(self, endpoint: Endpoint) -> Connection | None:
        """As `connection`, but never blocks; None if `connection` would have to connect.

        Raises BrokerUnavailable as `connection`.
        """
        link = self._links.get(self._redirects.target(endpoint, self._down))
        if link is None:
            return None
        connection = link.connection
        if connection is not None and not connection.closed:
            return connection
        if connection is not None or link.cause:
            raise self._is_down(link)
        return None

    def forget(self, endpoint: Endpoint) -> None:
        """The broker is not needed any more: close its connection and stop reconnecting."""
        with self._mutex:
            link = self._links.pop(endpoint, None)
            self._down -= {endpoint}
        if link is not None and link.connection is not None:
            link.connection.close()

    def follow(self, error: MetaqError) -> float | None:
        """Take the end of a request. Return the seconds to wait before it is sent again, if the only reason is that
        another node leads the broker set. None: it has failed in another way."""
        if isinstance(error, NotLeader):
            return self._redirects.learn(error)
        return 0.0 if isinstance(error, LeaderMoved) else None

    def listed(self, masters: Mapping[int, Endpoint], others: Collection[Endpoint] = ()) -> None:
        """These are registered in ZooKeeper now. Stop reconnecting to other brokers that are down.

        If a broker id has moved to another node, requests in flight to the former node end soon, with LeaderMoved.
        """
        wanted = {*masters.values(), *others}
        for endpoint in self._down.difference(wanted):
            self.forget(endpoint)
        for broker_id, endpoint in masters.items():
            former, self._masters[broker_id] = self._masters.get(broker_id), endpoint
            if former is not None and former != endpoint:
                self._moved({former, self._redirects.target(former, ())} - wanted, endpoint)
            if (link := self._links.get(endpoint)) is not None:
                link.ends_at = math.inf

    def _moved(self, former: Collection[Endpoint], leader: Endpoint) -> None:
        """The leader of a broker set has moved. This view is newer than its nodes' answers."""
        self._redirects.moved(former, leader)
        for endpoint in former:
            if (link := self._links.get(endpoint)) is not None:
                link.ends_at = self._clock() + LAST_ANSWERS_SECONDS
                self._wake.ring()

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Close all connections and end the housekeeping thread, within `timeout` seconds. Idempotent."""
        if self._guard.is_elsewhere:  # the locks may be held for ever, and the thread is the parent's
            for link in list(self._links.values()):
                if link.connection is not None:
                    link.connection.close()
            return
        deadline = time.monotonic() + timeout
        with self._mutex:
            self._closed = True
            links = list(self._links.values())
            self._links.clear()
        self._wake.ring()
        for link in links:  # all of them first: each may then use the whole time
            if link.connection is not None:
                link.connection.close(0.0)
        for link in links:
            if link.connection is not None:
                link.connection.close(max(0.0, deadline - time.monotonic()))
        if self._housekeeper is not None and not self._housekeeper.is_current:
            self._housekeeper.join(max(0.0, deadline - time.monotonic()))  # it may be connecting

    # --- connecting -------------------------------------------------------------------------------------------------

    def _link(self, endpoint: Endpoint) -> _Link:
        with self._mutex:
            if self._closed:
                raise BrokerUnavailable(f"no connection to {endpoint}: this client is closed")
            if self._housekeeper is None:
                self._housekeeper = BackgroundThread(self._keep_house, "metaq-housekeeping")
            link = self._links.get(endpoint)
            if link is None:
                backoff = Backoff(self._config.reconnect_min_seconds, self._config.reconnect_max_seconds, self._random)
                link = self._links[endpoint] = _Link(endpoint, backoff)
            return link

    def _connect_or_refuse(self, link: _Link, timeout: float) -> Connection:
        connection = link.connection
        if connection is not None and not connection.closed:
            return connection
        if connection is not None or link.cause:
            raise self._is_down(link)
        return self._connect(link, timeout)

    def _connect(self, link: _Link, timeout: float) -> Connection:
        deadline = self._clock() + timeout
        try:
            connection = self._open(link.endpoint, self._config, self._protocol, timeout)
        except MetaqError as error:
            if timeout < _LEAST_CONNECT_SECONDS and self._clock() >= deadline:
                raise RequestTimedOut(f"no connection to {link.endpoint} in time: {error}") from error
            self._mark_down(link, str(error))
            raise
        connection.on_closed = partial(self._broken, link)
        with self._mutex:
            closed = self._closed or self._links.get(link.endpoint) is not link
            if not closed:
                link.connection, link.cause = connection, ""
                link.backoff.reset()
                self._down -= {link.endpoint}
        if closed:
            connection.close()
            raise BrokerUnavailable(f"no connection to {link.endpoint}: it is not wanted any more")
        return connection

    def _is_down(self, link: _Link) -> BrokerUnavailable:
        """The error in place of a connection. A caller may see the end of a connection before the pool is told."""
        connection = link.connection
        if connection is None or not connection.closed:
            return BrokerUnavailable(f"{link.cause} (trying again in the background)")
        self._broken(link, connection)
        return BrokerUnavailable(f"{connection.failure} (trying again in the background)")

    def _broken(self, link: _Link, connection: Connection) -> None:
        """A connection has broken. Any thread, any number of times."""
        self._mark_down(link, str(connection.failure), connection)

    def _mark_down(self, link: _Link, cause: str, connection: Connection | None = None) -> None:
        """Mark a broker as down. connection: the ended one; None: it could not be made."""
        with self._mutex:
            if self._closed or self._links.get(link.endpoint) is not link:
                return
            if connection is not None and (link.cause or connection is not link.connection):
                return  # already known, or there is a newer connection
            link.cause = cause
            link.retry_at = self._clock() + link.backoff.next()
            self._down |= {link.endpoint}
        log.info("%s; next try in %.2f s", cause, link.retry_at - self._clock())
        self._wake.ring()

    # --- housekeeping thread ----------------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        while not self._closed:
            self._wake.wait(self._pause())
            for link in list(self._links.values()):
                if self._closed:
                    return
                self._look_after(link)

    def _pause(self) -> float:
        """Seconds until something is due."""
        links = list(self._links.values())
        due = [link.retry_at if link.cause else link.ends_at for link in links if link.cause or link.ends_at < math.inf]
        if not due:
            return _HOUSEKEEPING_SECONDS
        return min(_HOUSEKEEPING_SECONDS, max(0.001, min(due) - self._clock()))

    def _look_after(self, link: _Link) -> None:
        if link.ends_at <= self._clock():
            self._give_up(link)
            return
        if not link.cause:
            if link.connection is not None:
                link.connection.beat()
            return
        if self._clock() < link.retry_at:
            return
        try:
            with link.lock:
                self._connect(link, self._config.connect_timeout_seconds)
        except MetaqError:
            return  # marked down again, with its cause logged
        log.info("%s can be reached again", link.endpoint)

    def _give_up(self, link: _Link) -> None:
        """Another node leads the broker set."""
        with self._mutex:
            if self._links.get(link.endpoint) is link:
                del self._links[link.endpoint]
            self._down -= {link.endpoint}
        if link.connection is not None:
            link.connection.fail(LeaderMoved(f"{link.endpoint} leads its broker set no longer, and has not answered"))
