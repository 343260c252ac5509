"""The turns of all connections in an iteration of the reactor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from twisted.internet.defer import Deferred

from .. import tuning
from .reactor import ReactorTime

__all__ = ["ConnectionTurns", "WorkPlaces"]


class _Queue:
    """Waiting turns: addresses take turns, with one each, however many connections they have."""

    def __init__(self) -> None:
        self._by_address: dict[str, deque[Callable[[], None]]] = {}  # the next address first
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, address: str, turn: Callable[[], None]) -> None:
        self._by_address.setdefault(address, deque()).append(turn)
        self._length += 1

    def popleft(self) -> tuple[str, Callable[[], None]]:
        address = next(iter(self._by_address))
        turns = self._by_address.pop(address)
        turn = turns.popleft()
        if turns:
            self._by_address[address] = turns
        self._length -= 1
        return address, turn


class ConnectionTurns:
    """The turns of all connections. One iteration of the reactor takes some of them; the rest follow in later ones,
    those of an address in their order. Reactor thread.

    A connection is *busy*, not 0, if it has lately had more to do than one turn. Other connections go first, so that a
    single request does not wait for all that send thousands. Each iteration takes at least one turn of both kinds.
    """

    def __init__(self, reactor: ReactorTime) -> None:
        self._reactor = reactor
        self.seconds = reactor.seconds
        self._waiting = _Queue()
        self._busy = _Queue()
        self.large = WorkPlaces(self, lambda: tuning.MAX_LARGE_WORKS)
        """The places for requests that take much memory while they are under way."""
        self.listing = WorkPlaces(self, lambda: tuning.MAX_LISTINGS)
        """The places for requests whose answers take much memory."""
        self.timed = False
        """Whether this iteration's time counts: the next one begins with `_take_turns`. Until then nothing defers."""
        self._until = 0.0  # when this iteration stops taking turns

    def wait(self, turn: Callable[[], None], busy: int, address: str) -> None:
        """Call `turn` in one of the next iterations. The same connection must not wait already."""
        (self._busy if busy else self._waiting).append(address, turn)
        self._time()

    def defers(self, busy: int) -> bool:
        """Whether a connection that has work to do should `wait` with it."""
        return self.timed and ((bool(busy) and len(self._busy) >= tuning.FEW_BUSY) or self.seconds() >= self._until)

    def do(self, work: Callable[[], None], address: str) -> None:
        """Do work now; or in a later iteration if this one has enough to do, after connections with little to do."""
        if self.defers(1):
            self.wait(work, 1, address)
        else:
            since = self.seconds()
            work()
            self.has_worked(since)

    def turn(self, address: str) -> Deferred[None]:
        """Give the next turn to an address that has much to do."""
        comes: Deferred[None] = Deferred()
        self.wait(partial(comes.callback, None), 1, address)
        return comes

    def has_worked(self, since: float) -> None:
        """Note that a connection has worked on incoming data since `since`: that uses this iteration's time, too."""
        if self.seconds() >= since + tuning.COUNTED_SECONDS:
            self._time()

    def _time(self) -> None:
        if not self.timed:
            self.timed = True
            self._until = self.seconds() + tuning.ITERATION_SECONDS
            self._reactor.callLater(0, self._take_turns)

    def _take_turns(self) -> None:
        until = self.seconds() + tuning.ITERATION_SECONDS
        chosen = [(queue, len(queue)) for queue in (self._waiting, self._busy)]  # later ones are not chosen
        for queue, count in chosen:
            for _ in range(count):
                _, turn = queue.popleft()
                turn()
                if self.seconds() >= until:
                    break
        self.timed = False
        if self._waiting or self._busy:
            self._time()


class WorkPlaces:
    """Limits how much work of one kind is under way at once; more begins in the order of turns. Reactor thread."""

    def __init__(self, turns: ConnectionTurns, most: Callable[[], int]) -> None:
        self._turns = turns
        self._most = most
        self._taken = 0
        self._waiting = _Queue()

    def begin(self, turn: Callable[[], None], address: str) -> bool:
        """Whether work may begin now; if not, `turn` is called when it may. `end` must follow."""
        if self._taken < self._most():
            self._taken += 1
            return True
        self._waiting.append(address, turn)
        return False

    def end(self) -> None:
        """End a work: its place goes to the next one."""
        if self._waiting:
            address, turn = self._waiting.popleft()
            self._turns.wait(turn, 1, address)
        else:
            self._taken -= 1
