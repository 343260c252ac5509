"""The methods of a connection and of a pool of connections that the code of a producer and of a fetcher uses. A client
with threads and a client on an event loop have different connections and pools with these methods.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from metaq.protocol.client_stream import Reply
from metaq.protocol.errors import MetaqError
from metaq.protocol.record import Buffer

from ..runtime.waiting import Exchange, OnBegun, OnDone, Waiter
from .wire import Endpoint

__all__ = ["Build", "Channel", "Channels"]

Build = Callable[[int], Sequence[Buffer]]
"""A function that returns a request's bytes for a given opaque number."""


class Channel(Protocol):
    """An open connection to a broker. connection.Connection describes the attributes and methods."""

    endpoint: Endpoint
    peer_version: str
    speaks_frames: bool
    takes_many: bool
    takes_sequences: bool
    takes_delays: bool
    takes_where: bool
    takes_halves: bool
    knows_compressed: bool
    half_check_seconds: float | None
    expects_bulk: bool
    new_opaque: Callable[[], int]

    @property
    def closed(self) -> bool: ...
    def notice_end(self, now: float) -> MetaqError | None: ...
    def send(self, requests: Sequence[Exchange], buffers: Sequence[Buffer]) -> None: ...
    def submit(
        self,
        build: Build,
        on_done: OnDone,
        deadline: float,
        *,
        background: bool = True,
        on_begun: OnBegun | None = None,
    ) -> None: ...
    def call(self, build: Build, timeout: float | None = None) -> Reply: ...
    def read_in_background(self) -> None: ...
    def drive(self, waiter: Waiter, deadline: float) -> None: ...


class Channels(Protocol):
    """The connections of one client, one for each broker. pool.ConnectionPool describes the methods."""

    @property
    def down(self) -> frozenset[Endpoint]: ...
    def connection(self, endpoint: Endpoint, timeout: float) -> Channel: ...
    def open_connection(self, endpoint: Endpoint) -> Channel | None: ...
    def follow(self, error: MetaqError) -> float | None: ...
    def listed(self, masters: Mapping[int, Endpoint], others: Collection[Endpoint] = ()) -> None: ...
    def close(self, timeout: float = 5.0) -> None: ...
