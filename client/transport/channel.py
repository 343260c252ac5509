"""The methods of a connection and of a pool of connections that the code of a producer and of a fetcher uses. A client
with threads and a client on an event loop have different connections and pools with these methods.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from metaq.protocol.client_stream import ClientStream, Reply
from metaq.protocol.errors import MetaqError
from metaq.protocol.record import Buffer

from ..runtime.waiting import Exchange, OnBegun, OnDone, Waiter
from .wire import Endpoint

__all__ = ["Build", "Channel", "Channels", "KnownBroker"]

Build = Callable[[int], Sequence[Buffer]]
"""A function that returns a request's bytes for a given opaque number."""


class KnownBroker:
    """The facts about the broker of an open connection, which do not change.

    speaks_frames: true if both sides agreed on the framed protocol; otherwise only text commands may be sent. The
    attributes that begin with takes_ and knows_ are true if the broker supports the following: takes_many: SEND_MANY.
    takes_sequences: sequence numbers of a producer's sends. takes_delays: delayed messages. takes_halves: half
    messages. knows_compressed: compressed messages, in both protocols. takes_where: pulls filtered by content.
    takes_shared: requests of shared consumers. half_check_seconds: if a half message states no time for the first
        check-back, the broker first asks for its outcome this number of seconds after its arrival; None if the broker
        does not report this number.
    """

    def __init__(self, endpoint: Endpoint, stream: ClientStream[Exchange]) -> None:
        self.endpoint = endpoint
        self.peer_version = stream.peer_version
        self.speaks_frames = stream.speaks_frames
        self.takes_many = stream.takes_many
        self.takes_sequences = stream.takes_sequences
        self.takes_delays = stream.takes_delays
        self.knows_compressed = stream.knows_compressed
        self.takes_where = stream.takes_where
        self.takes_shared = stream.takes_shared
        self.takes_halves = stream.takes_halves
        self.half_check_seconds = stream.half_check_seconds
        self.new_opaque = stream.new_opaque
        """A function that returns an unused opaque number for a new Exchange."""


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
