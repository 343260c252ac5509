"""Make the decisions of a client's connection pool: to which address it connects for a broker, when it tries again to
reach a broker, and which node of a broker set it regards as the leader. This module has no I/O, threads, locks or
clocks.

| event | method | what comes out |
|---|---|---|
| a caller needs a broker | `found` | the broker's link; if None, `link` makes one, and the driver connects |
| a connection was made, has failed or ended | `connected`, `failed` | whether it is wanted; whether its end is new |
| a request has ended with an error | `follow` | the seconds to wait before another node is asked |
| ZooKeeper shows these brokers | `listed` | the links to close, and whether a check is due earlier |
| the time of `look_at` has come | `due` of each link | what to do with the link |
| no caller needs one broker, or any broker, any more | `drop`, `close` | the links to close |

The threads of pool.py are together called the driver. In all methods, now is the current time in monotonic seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from metaq.coordination.runtime.backoff import Backoff
from metaq.protocol.errors import (
    AccessRefused,
    BrokerUnavailable,
    CannotConnect,
    ClientError,
    LeaderMoved,
    MetaqError,
    NotLeader,
)

from ..settings.config import ConnectionConfig
from .redirects import Redirects
from .wire import Endpoint, NoListener

__all__ = ["Due", "Link", "PoolCore", "proves_nothing"]

_LOOK_SECONDS = 0.5
"""The driver checks all connections at least once in this number of seconds, for example whether a heartbeat is due."""

_LEAST_CONNECT_SECONDS = 1.0
"""If an attempt to connect with a time limit of at least this number of seconds times out, the client regards the
broker as unreachable. If an attempt with a shorter limit times out, the client does not regard the broker as
unreachable, because a later attempt with more time can succeed.
"""

LISTENER_SECONDS = 2.0
"""If ZooKeeper still shows no listener of the wanted name for a broker after this number of seconds, the setting is
wrong. Before that, the broker may be registering, and requests are repeated.
"""

LAST_ANSWERS_SECONDS = 0.2
"""When a client learns that a broker set has a new leader, it waits this number of seconds for answers of the former
leader, and then closes the connection to the former leader. If the former leader still runs, it has refused all waiting
requests by then; if it hangs, no answer would come anyway.
"""

C = TypeVar("C")


class Link(Generic[C]):
    """The state of the connection to one broker address. connection: the last connection that the driver has made, even
    if it has ended. cause: the reason why the last connection ended or could not be made; it is "" if there is a
    connection, or if the driver has not tried to connect yet. refusal: the kind of the last error if connecting again
    does not help before somebody has changed a setting, for example because the broker has refused the client's login;
    otherwise None. retry_at: the time of the next attempt to connect (monotonic seconds). ends_at:
    the time (monotonic seconds) at which the driver must close the connection because another node leads the broker set
    now; it is infinity if the driver need not close the connection.
    """

    def __init__(self, endpoint: Endpoint, backoff: Backoff) -> None:
        self.endpoint = endpoint
        self.backoff = backoff
        self.connection: C | None = None
        self.cause = ""
        self.refusal: type[AccessRefused] | None = None
        self.lacks_listener_since = math.inf  # monotonic seconds of the first of the last NoListeners in a row
        self.retry_at = 0.0
        self.ends_at = math.inf


L = TypeVar("L", bound=Link[Any])


class Due(Enum):
    """What the driver must do with a link now."""

    NOTHING = auto()
    BEAT = auto()
    """If there is a connection and a heartbeat is due, send the heartbeat on this connection."""
    CONNECT = auto()
    GIVE_UP = auto()
    """Remove the link by `drop`, and end its connection with the error LeaderMoved."""


class PoolCore(Generic[L]):
    """Keeps the links of a client (one Link for each broker address, with the state of its connection), and decides
    what the driver must do with them. Any thread may call `found`, `follow`, `look_at` and `due`, and read the
    attributes. Only one thread at a time may call the other methods.

    down: addresses of brokers that cannot be reached now; usually empty. closed: true after `close`, when the client
    wants no connection any more.
    """

    def __init__(
        self,
        config: ConnectionConfig,
        new_link: Callable[[Endpoint, Backoff], L],
        random: Callable[[], float],
    ) -> None:
        self.links: dict[Endpoint, L] = {}
        self.down: frozenset[Endpoint] = frozenset()
        self.closed = False
        self._config = config
        self._new_link = new_link
        self._random = random
        self._redirects = Redirects(follows=config.listener is None)
        self._masters: dict[int, Endpoint] = {}  # each broker's last address in ZooKeeper

    def found(self, endpoint: Endpoint, now: float) -> L | None:
        """Return the link to the broker at `endpoint`. If this broker has named another node as the leader (see
        `follow`), return the link to that node instead. Return None if there is no link.
        """
        return self.links.get(self._redirects.target(endpoint, self.down, now))

    def link(self, endpoint: Endpoint, now: float) -> L:
        """Return the link that `found` returns. If `found` returns None, create a link and return it. Raises
        BrokerUnavailable if the pool is closed.
        """
        endpoint = self._redirects.target(endpoint, self.down, now)
        if self.closed:
            raise BrokerUnavailable(f"no connection to {endpoint}: this client is closed")
        link = self.links.get(endpoint)
        if link is None:
            backoff = Backoff(self._config.reconnect_min_seconds, self._config.reconnect_max_seconds, self._random)
            link = self.links[endpoint] = self._new_link(endpoint, backoff)
        return link

    def drop(self, link: L) -> None:
        """Remove the link, because no caller needs the broker any more."""
        if self._is_wanted(link):
            del self.links[link.endpoint]
            self.down -= {link.endpoint}

    def close(self) -> list[L]:
        """Remove all links, because no caller needs any broker any more. Return the links; the driver closes them."""
        self.closed = True
        links = list(self.links.values())
        self.links.clear()
        return links

    def connected(self, link: L, connection: object) -> bool:
        """Record that a connection was made for this link. Return False if the link was removed meanwhile, so that the
        driver must close the connection.
        """
        if not self._is_wanted(link):
            return False
        link.connection, link.cause, link.refusal, link.lacks_listener_since = connection, "", None, math.inf
        link.backoff.reset()
        self.down -= {link.endpoint}
        return True

    def failed(self, link: L, error: MetaqError | None, now: float, connection: object = None) -> bool:
        """Record that this connection of the link has ended. If `connection` is None, record that no connection could
        be made. error: the reason. Return True if no earlier call has recorded this; then the driver must try to
        connect again at the link's `retry_at`. Return False if the end of this connection was recorded by an earlier
        call, or if the link was removed.

        If somebody must change a setting first (AccessRefused, or NoListener for LISTENER_SECONDS), the next attempt
        comes only after reconnect_max_seconds.
        """
        if not self._is_wanted(link):
            return False
        if connection is not None and (link.cause or connection is not link.connection):
            return False  # already known, or there is a newer connection
        link.cause = str(error)
        link.lacks_listener_since = min(link.lacks_listener_since, now) if isinstance(error, NoListener) else math.inf
        if now - link.lacks_listener_since >= LISTENER_SECONDS:
            link.refusal = CannotConnect
        else:
            link.refusal = type(error) if isinstance(error, AccessRefused) else None
        link.retry_at = now + (self._config.reconnect_max_seconds if link.refusal else link.backoff.next())
        self.down |= {link.endpoint}
        return True

    def _is_wanted(self, link: L) -> bool:
        return not self.closed and self.links.get(link.endpoint) is link

    # --- who leads a broker set -------------------------------------------------------------------------------------

    def follow(self, error: MetaqError, now: float) -> float | None:
        """Process the error of a failed request. If the request failed only because another node leads the broker set,
        return the number of seconds to wait before it is sent again. Otherwise return None.
        """
        if isinstance(error, NotLeader):
            return self._redirects.learn(error, now)
        return 0.0 if isinstance(error, LeaderMoved) else None

    def listed(self, masters: Mapping[int, Endpoint], others: Collection[Endpoint], now: float) -> tuple[list[L], bool]:
        """Process the list of registered brokers. masters: the master's address for each broker id. others: addresses
        of other registered processes. Return two values: the links to close, and whether the driver must check the
        links earlier than planned.
        """
        wanted = {*masters.values(), *others}
        gone = [link for each in self.down - wanted if (link := self.links.get(each)) is not None]
        for link in gone:
            self.drop(link)
        is_earlier = False
        for broker_id, endpoint in masters.items():
            former, self._masters[broker_id] = self._masters.get(broker_id), endpoint
            if former is not None and former != endpoint:
                deposed = {former, self._redirects.target(former, (), now)} - wanted
                self._redirects.moved(deposed, endpoint, now)  # this view is newer than the nodes' answers
                for each in deposed & self.links.keys():
                    self.links[each].ends_at = now + LAST_ANSWERS_SECONDS
                    is_earlier = True
            if (leader := self.links.get(endpoint)) is not None:
                leader.ends_at = math.inf
        return gone, is_earlier

    # --- time passes ------------------------------------------------------------------------------------------------

    def look_at(self, now: float) -> float:
        """Return the time when the driver must check all links again, even if nothing happens before."""
        times = [link.retry_at if link.cause else link.ends_at for link in list(self.links.values())]
        return min([now + _LOOK_SECONDS, *times])

    def why_down(self, link: L) -> ClientError:
        """Return the error for a caller that needs this link while there is no connection."""
        if link.refusal is not None:
            return link.refusal(link.cause)
        return BrokerUnavailable(f"{link.cause} (trying again in the background)")

    def due(self, link: L, now: float) -> Due:
        """Return what the driver must do with a link now."""
        if link.ends_at <= now:
            return Due.GIVE_UP
        if not link.cause:
            return Due.BEAT
        return Due.CONNECT if link.retry_at <= now else Due.NOTHING


def proves_nothing(seconds: float, left: float) -> bool:
    """Return whether a failed attempt to connect leaves open whether the broker can be reached. This is so if the
    attempt's time limit was shorter than _LEAST_CONNECT_SECONDS and is used up. seconds: the time limit of the attempt
    in seconds. left: the number of seconds of this limit that remain.
    """
    return seconds < _LEAST_CONNECT_SECONDS and left <= 0
