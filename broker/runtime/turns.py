"""Divide the time of each iteration of the reactor among connections. A turn is a piece of a connection's work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from twisted.internet.defer import Deferred

from .. import tuning
from .reactor import ReactorTime

__all__ = ["ConnectionTurns", "WorkPlaces"]


class _Queue:
    """A queue of waiting turns. The addresses alternate: in each round, every address gets one turn, no matter how many
    connections it has.
    """

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
    """The turns of all connections. One iteration of the reactor runs some of the waiting turns, and later iterations
    run the rest. For each client address, the turn that was requested first runs first. This object is used by the
    reactor thread only.

    A connection is *busy* (the argument `busy` is not 0) if it has lately had work for more than one turn. Connections
    that are not busy go first, so that a single request does not wait for all clients that send thousands. Each
    iteration runs at least one turn of a busy connection and one of another connection, if they wait.
    """

    def __init__(self, reactor: ReactorTime) -> None:
        self._reactor = reactor
        self.seconds = reactor.seconds
        self._waiting = _Queue()
        self._busy = _Queue()
        self.large = WorkPlaces(self, lambda: tuning.MAX_LARGE_WORKS)
        """Limits how many requests that take much memory are handled at once."""
        self.listing = WorkPlaces(self, lambda: tuning.MAX_LISTINGS)
        """Limits how many requests whose answers take much memory are handled at once."""
        self.timed = False
        """True if the present iteration of the reactor has a time limit (`_until`) and `_take_turns` will run in the
        next iteration. If False, `defers` returns False.
        """
        self._until = 0.0  # when this iteration stops taking turns

    def wait(self, turn: Callable[[], None], busy: int, address: str) -> None:
        """Call `turn` in one of the next iterations. A connection must not call this again before its turn has come."""
        (self._busy if busy else self._waiting).append(address, turn)
        self._time()

    def defers(self, busy: int) -> bool:
        """Return whether a connection that has work to do should call `wait` instead of doing the work now."""
        return self.timed and ((bool(busy) and len(self._busy) >= tuning.FEW_BUSY) or self.seconds() >= self._until)

    def do(self, work: Callable[[], None], address: str) -> None:
        """Do `work` now. If this iteration of the reactor already has enough work, do `work` in a later iteration,
        after the turns of connections with little to do.
        """
        if self.defers(1):
            self.wait(work, 1, address)
        else:
            since = self.seconds()
            work()
            self.has_worked(since)

    def turn(self, address: str) -> Deferred[None]:
        """Return a Deferred that fires at the next turn of `address`. Called for work that takes many turns."""
        comes: Deferred[None] = Deferred()
        self.wait(partial(comes.callback, None), 1, address)
        return comes

    def has_worked(self, since: float) -> bool:
        """Record that a connection has worked on incoming data since the time `since`. The time of this work counts
        against the time limit of the reactor's present iteration. Return whether the work took at least a whole turn.
        """
        took = self.seconds() - since
        if took < tuning.COUNTED_SECONDS:
            return False
        self._time()
        return took >= tuning.TURN_SECONDS

    def _time(self) -> None:
        if not self.timed:
            self.timed = True
            self._until = self.seconds() + tuning.ITERATION_SECONDS
            self._reactor.callLater(0, self._take_turns)

    def _take_turns(self) -> None:
        until = self.seconds() + tuning.ITERATION_SECONDS
        chosen = [(queue, len(queue)) for queue in (self._waiting, self._busy)]  # turns that are added later must wait
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
    """Limits how many requests of one kind are handled at the same time. Further requests wait; the client addresses
    take turns. This object is used by the reactor thread only.
    """

    def __init__(self, turns: ConnectionTurns, most: Callable[[], int]) -> None:
        self._turns = turns
        self._most = most
        self._taken = 0
        self._waiting = _Queue()

    def begin(self, turn: Callable[[], None], address: str) -> bool:
        """Return whether work may begin now. If not, call `turn` when it may begin. The caller must call `end` after
        the work.
        """
        if self._taken < self._most():
            self._taken += 1
            return True
        self._waiting.append(address, turn)
        return False

    def end(self) -> None:
        """Record the end of a piece of work, and let the next piece begin."""
        if self._waiting:
            address, turn = self._waiting.popleft()
            self._turns.wait(turn, 1, address)
        else:
            self._taken -= 1
