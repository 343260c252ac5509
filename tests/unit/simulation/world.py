"""A cluster in one thread: a broker's real sessions and store, clients on the real core, made-up time and wire.

Nothing here sleeps or opens a port. All events are delayed calls of one virtual clock, and all chance comes from one
seed, so a seed repeats a run exactly.
"""

from __future__ import annotations

import random
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from metaq.client.transport.connection import Build, Endpoint, Exchange, OnDone
from metaq.protocol.client_stream import ClientStream, Opening
from metaq.protocol.errors import BrokerUnavailable, MetaqError
from metaq.protocol.record import Buffer
from tests.unit.broker.harness import NOW, Harness, Transport

__all__ = ["BROKER", "Client", "Faults", "World"]

BROKER = Endpoint("broker", 8123)


@dataclass(frozen=True)
class Faults:
    """What goes wrong, as a share of what could. Seconds are virtual."""

    cuts: float = 0.0
    """Of the pieces that arrive, the share in whose place the connection ends: requests and answers are lost."""
    stalls: float = 0.0
    """Of the pieces, the share that comes `stall_seconds` late, and what follows behind it: answers miss deadlines."""
    stall_seconds: float = 3.0
    latency_seconds: float = 0.01
    """Each piece takes up to so long."""


class World:
    """The clock, the chance and the broker."""

    def __init__(self, directory: Path, seed: int, faults: Faults, text: bool = False) -> None:
        self.clock = Clock()
        self.rng = random.Random(seed)
        self.faults = faults
        self.text = text
        self.history: list[tuple[float, str]] = []
        """What happened when; equal for equal seeds."""
        self.links: list[Link] = []
        self._directory = directory
        self._brokers = [Harness(directory / "0", reactor=self.clock)]
        self._threads_due = False

    @property
    def broker(self) -> Harness:
        """The one that runs now."""
        return self._brokers[-1]

    def kill_broker(self) -> None:
        """As `kill -9` does, at this moment; another one starts on what it has written."""
        self.note("the broker is killed")
        for link in self.links:
            link.cut("a connection ends with its broker")
        self.links.clear()
        before, after = (self._directory / str(len(self._brokers) - more) for more in (1, 0))
        shutil.copytree(before, after)
        self._brokers.append(Harness(after, reactor=self.clock))
        self._keep_time()

    def _keep_time(self) -> None:
        self.broker.time = NOW + self.now

    @property
    def now(self) -> float:
        return self.clock.seconds()

    def later(self, seconds: float, action: Callable[..., object], *arguments: object) -> None:
        self.clock.callLater(seconds, action, *arguments)

    def note(self, what: str) -> None:
        self.history.append((self.now, what))

    def run(self, is_over: Callable[[], bool], seconds: float) -> None:
        """Let events happen until `is_over`; at most `seconds` of the virtual time."""
        end = self.now + seconds
        while not is_over():
            if self.broker.threads.waiting and not self._threads_due:
                self._threads_due = True
                self.later(self.rng.uniform(0, self.faults.latency_seconds), self._run_threads)
            calls = self.clock.getDelayedCalls()
            assert calls, f"nothing is left to happen at {self.now:.3f}"
            assert self.now <= end, f"not over after {seconds} s: {self.history[-5:]}"
            following: float = min(call.getTime() for call in calls)  # type: ignore[misc]  # as Twisted declares it
            self.clock.advance(max(0.0, following - self.now))
            self._keep_time()

    def _run_threads(self) -> None:
        """What the broker gave to its threads is done: syncs among it."""
        self._threads_due = False
        self.broker.threads.run()

    def close(self) -> None:
        for each in self._brokers:
            each.threads.run()
            each.broker.transactions.close()
            each.store.close()


class _BrokersEnd(Transport):
    """What the session writes to."""

    def __init__(self, link: Link) -> None:
        super().__init__(peerAddress=IPv4Address("TCP", "127.0.0.1", 40000))
        self._link = link

    def write(self, data: bytes) -> None:
        self._link.to_client.send(bytes(data))

    def loseConnection(self, *_: object) -> None:  # noqa: N802
        self._link.cut("the broker closes the connection")

    def abortConnection(self) -> None:  # noqa: N802
        self.loseConnection()


class _Direction:
    """One direction of a connection: bytes come later and in other pieces, in their order."""

    def __init__(self, world: World, link: Link, take: Callable[[bytes], object]) -> None:
        self._world = world
        self._link = link
        self._take = take
        self._last = 0.0
        self._under_way: deque[bytes] = deque()

    def send(self, data: bytes) -> None:
        world, rng, faults = self._world, self._world.rng, self._world.faults
        for piece in _pieces(data, rng):
            delay = rng.uniform(0, faults.latency_seconds)
            if rng.random() < faults.stalls:
                delay += faults.stall_seconds
            self._last = max(self._last, world.now + delay)
            self._under_way.append(piece)
            world.later(self._last - world.now, self._arrive)

    def _arrive(self) -> None:
        piece = self._under_way.popleft()  # two sums of seconds may differ by a rounding: the order is kept here
        if self._link.is_cut:
            return
        if self._world.rng.random() < self._world.faults.cuts:
            self._link.cut("the wire is cut")
        else:
            self._take(piece)


def _pieces(data: bytes, rng: random.Random) -> Iterator[bytes]:
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(3)))
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        if start < end:
            yield data[start:end]


class Link:
    """One connection to the broker."""

    def __init__(self, world: World, received: Callable[[bytes], object], lost: Callable[[str], object]) -> None:
        self.is_cut = False
        self._world = world
        self._lost = lost
        self._session = world.broker.session()
        self.to_client = _Direction(world, self, received)
        self.to_broker = _Direction(world, self, self._session.dataReceived)
        self._session.makeConnection(_BrokersEnd(self))
        world.links.append(self)

    def cut(self, why: str) -> None:
        """Both ends learn of it, and what is on its way is lost."""
        if not self.is_cut:
            self.is_cut = True
            self._world.note(why)
            self._world.later(0, self._session.connectionLost, Failure(ConnectionError()))
            self._world.later(0, self._lost, why)


class Client:
    """Drives a ClientStream by delayed calls, where client/transport/connection.py has a socket and threads.

    What a Sender uses of a pool and of a Connection is here, too.
    """

    endpoint = BROKER
    down = frozenset[Endpoint]()

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.late: list[float] = []
        """For each request that ended without an answer on a connection that was open, how long after its deadline."""
        self._world = world
        self._stream: ClientStream[Exchange] | None = None
        self._connect()

    @property
    def speaks_frames(self) -> bool:
        return self._stream is not None and self._stream.speaks_frames

    @property
    def takes_many(self) -> bool:
        return self._stream is not None and self._stream.takes_many

    def notice_end(self, now: float) -> None:
        """It ends at the moment at which the wire does."""

    @property
    def takes_delays(self) -> bool:
        return self._stream is not None and self._stream.takes_delays

    @property
    def half_check_seconds(self) -> float | None:
        return None if self._stream is None else self._stream.half_check_seconds

    @property
    def takes_halves(self) -> bool:
        return self._stream is not None and self._stream.takes_halves

    @property
    def takes_sequences(self) -> bool:
        return self._stream is not None and self._stream.takes_sequences

    def connection(self, _endpoint: Endpoint, _timeout: float) -> Client:
        """Raises BrokerUnavailable."""
        if self._stream is None:
            raise BrokerUnavailable("no connection")
        return self

    def new_opaque(self) -> int:
        return 0 if self._stream is None else self._stream.new_opaque()

    def ask(self, build: Build, on_done: OnDone, timeout: float) -> None:
        """Send a request; without a connection it ends at once with BrokerUnavailable."""
        request = Exchange(self.new_opaque(), on_done, self._world.now + timeout)
        self.send((request,), build(request.opaque))

    def send(self, requests: Sequence[Exchange], buffers: Sequence[Buffer]) -> None:
        """As Connection.send, and as `ask` without a connection."""
        stream = self._stream
        for request in requests:
            if stream is None:
                self._world.later(0, request.on_done, None, BrokerUnavailable("no connection"))
            else:
                stream.pending[request.opaque] = request
        if stream is not None:
            self._link.to_broker.send(b"".join(buffers))
            deadline = requests[0].deadline
            self._world.later(max(0.0, deadline - self._world.now), self._expire, stream, deadline)

    def _connect(self) -> None:
        opening = Opening()
        self._link = Link(self._world, lambda data: self._opened(opening, data), self._lost)
        self._link.to_broker.send(opening.request)

    def _opened(self, opening: Opening, data: bytes) -> None:
        if self._stream is not None:
            self._stream.receive(data)
            self._settle(self._stream)
        elif (version := opening.receive(data)) is not None:
            self._stream = ClientStream("broker", version, text=self._world.text)

    def _expire(self, stream: ClientStream[Exchange], deadline: float) -> None:
        stream.expire(max(self._world.now, deadline))  # a sum of seconds may be a rounding short of it
        self._settle(stream)

    def _lost(self, why: str) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end(list(stream.pending), BrokerUnavailable(why))
            self._settle(stream)
        self._world.later(self._world.rng.uniform(0, 0.5), self._connect)

    def _settle(self, stream: ClientStream[Exchange]) -> None:
        while stream.outcomes:
            request, reply, error = stream.outcomes.popleft()
            if error is not None and self._stream is stream:
                self.late.append(self._world.now - request.deadline)
            self._world.note(f"{self.name} {_summary(reply, error)}")
            assert not request.told
            request.told = True
            request.on_done(reply, error)


def _summary(reply: Any, error: MetaqError | None) -> str:
    return type(error).__name__ if reply is None else f"{type(reply).__name__} {reply.opaque}"
