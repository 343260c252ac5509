"""The connections of one client on an event loop, one for each broker. transport/core.py decides when to connect, to
reconnect and to close; this module executes these decisions. Everything runs on the event loop's thread, except where
a method says otherwise.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial

from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import BrokerUnavailable, ClientError, LeaderMoved, MetaqError

from ..settings.config import ConnectionConfig
from ..transport.core import Due, Link, PoolCore
from ..transport.wire import Endpoint, load_modules
from .connection import LoopConnection, open_connection
from .loop import BlockingThread, on_loop

__all__ = ["LoopPool"]

log = get_log(__name__)

_LEAST_PAUSE_SECONDS = 0.001


class _Link(Link[LoopConnection]):
    """A link with the task that connects, and the callbacks that wait for it."""

    def __init__(self, endpoint: Endpoint, backoff: Backoff) -> None:
        super().__init__(endpoint, backoff)
        self.task: asyncio.Task[None] | None = None
        self.waiting: list[Callable[[], None]] = []


class LoopPool:
    """The connections of a client by broker address; see transport/pool.py, whose ConnectionPool does the same with
    threads. `connection` never connects: the caller first asks `must_connect`, and then calls `when_connected`.
    """

    def __init__(
        self,
        config: ConnectionConfig,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        load_modules(config)
        self._config = config
        self._loop = loop
        self._clock = clock
        self._core = PoolCore(config, _Link, random)
        self._thread = BlockingThread("metaq-names", loop)
        self._thread_id = threading.get_ident()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def down(self) -> frozenset[Endpoint]:
        """Addresses of brokers that cannot be reached now; usually empty."""
        return self._core.down

    def connection(self, endpoint: Endpoint, timeout: float = 0.0) -> LoopConnection:
        """Return the open connection to the broker at `endpoint`, or to the node that this broker has named as the
        leader. Raises BrokerUnavailable if there is none, and AccessRefused if the broker has refused the login in the
        last attempt. On another thread than the event loop's, connect first if necessary, and block meanwhile. timeout:
        ignored, because an attempt to connect always has the configured time.
        """
        if threading.get_ident() != self._thread_id:
            return on_loop(self._loop, self.connected(endpoint), self._config.connect_timeout_seconds)
        connection = self.open_connection(endpoint)
        if connection is None:
            raise BrokerUnavailable(f"no connection to {endpoint} yet")
        return connection

    def open_connection(self, endpoint: Endpoint) -> LoopConnection | None:
        """Return the same connection as `connection`, or None if the pool has never tried to connect to this broker."""
        link = self._core.found(endpoint, self._clock())
        if link is None:
            return None
        connection = link.connection
        if connection is not None and not connection.closed:
            return connection
        if connection is not None or link.cause:
            raise self._is_down(link)
        return None

    def must_connect(self, endpoint: Endpoint) -> bool:
        """Whether the pool has not tried yet to connect to this broker, or is trying for the first time."""
        link = self._core.found(endpoint, self._clock())
        return not self._core.closed and (link is None or (link.connection is None and not link.cause))

    def when_connected(self, endpoint: Endpoint, action: Callable[[], None]) -> None:
        """Connect to a broker to which `must_connect` applies. Call `action` when the attempt has ended; `connection`
        then returns the connection or raises the error.
        """
        link = self._core.link(endpoint, self._clock())
        link.waiting.append(action)
        self._begin(link)

    async def connected(self, endpoint: Endpoint) -> LoopConnection:
        """Return the connection to a broker, and connect first if necessary. Raises the errors of `connection`."""
        if self.must_connect(endpoint):
            future: asyncio.Future[None] = self._loop.create_future()
            self.when_connected(endpoint, lambda: None if future.done() else future.set_result(None))
            await future
        return self.connection(endpoint)

    def follow(self, error: MetaqError) -> float | None:
        """See ConnectionPool.follow. Any thread may call this."""
        return self._core.follow(error, self._clock())

    def listed(self, masters: Mapping[int, Endpoint], others: Collection[Endpoint] = ()) -> None:
        """See ConnectionPool.listed. Any thread may call this; on another thread it takes effect soon."""
        if threading.get_ident() != self._thread_id:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.listed, masters, others)
            return
        gone, is_earlier = self._core.listed(masters, others, self._clock())
        for link in gone:
            _close(link)
        if is_earlier:
            self._look_later()

    def close(self, timeout: float = 0.0) -> None:
        """Close all connections. Requests in flight end on the loop's next turn. timeout: ignored, because the method
        does not wait. Further calls do nothing. Any thread may call this.
        """
        if threading.get_ident() != self._thread_id:
            with suppress(RuntimeError):  # the loop is closed, and with it the connections
                self._loop.call_soon_threadsafe(self.close)
            return
        for link in self._core.close():
            _close(link)
        if self._timer is not None:
            self._timer.cancel()
        self._thread.close()

    # --- connecting -------------------------------------------------------------------------------------------------

    def _begin(self, link: _Link) -> None:
        if link.task is None:
            link.task = self._loop.create_task(self._connect(link))
            self._look_later()

    async def _connect(self, link: _Link) -> None:
        """Try once to connect. Ends without an exception, unless the task is cancelled."""
        was_down = bool(link.cause)
        try:
            try:
                connection = await open_connection(
                    link.endpoint, self._config, self._thread.run, self._loop, self._clock
                )
            except MetaqError as error:
                self._mark_down(link, error)
            except Exception as error:  # a bug here must not leave the messages without an answer
                log.exception("connecting to %s failed", link.endpoint)
                self._mark_down(link, BrokerUnavailable(f"no connection to {link.endpoint}: {error!r}"))
            else:
                connection.on_closed = partial(self._broken, link)
                if not self._core.connected(link, connection):
                    connection.close()
                elif was_down:
                    log.info("%s can be reached again", link.endpoint)
        finally:
            link.task = None
            waiting, link.waiting = link.waiting, []
            for action in waiting:
                try:
                    action()
                except Exception:
                    log.exception("a request could not be sent")

    def _is_down(self, link: _Link) -> ClientError:
        connection = link.connection
        if connection is None or not connection.closed or link.refusal is not None:
            return self._core.why_down(link)
        self._broken(link, connection)
        return BrokerUnavailable(f"{connection.failure} (trying again in the background)")

    def _broken(self, link: _Link, connection: LoopConnection) -> None:
        self._mark_down(link, connection.failure, connection)

    def _mark_down(self, link: _Link, error: MetaqError | None, connection: LoopConnection | None = None) -> None:
        if self._core.failed(link, error, self._clock(), connection):
            log.info("%s; next try in %.2f s", error, link.retry_at - self._clock())
            self._look_later()

    # --- time passes ------------------------------------------------------------------------------------------------

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._core.closed:
            return
        now = self._clock()
        pause = max(_LEAST_PAUSE_SECONDS, self._core.look_at(now) - now)
        self._timer = self._loop.call_later(pause, self._look)

    def _look(self) -> None:
        for link in list(self._core.links.values()):
            due = Due.NOTHING if link.task is not None else self._core.due(link, self._clock())
            if due is Due.GIVE_UP:
                self._core.drop(link)
                if link.connection is not None:
                    failure = LeaderMoved(f"{link.endpoint} leads its broker set no longer, and has not answered")
                    link.connection.fail(failure)
            elif due is Due.BEAT and link.connection is not None:
                link.connection.beat()
            elif due is Due.CONNECT:
                self._begin(link)
        self._look_later()


def _close(link: _Link) -> None:
    if link.task is not None:
        link.task.cancel()
    if link.connection is not None:
        link.connection.close()
