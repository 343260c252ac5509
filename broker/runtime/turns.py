"""Divide the time of each iteration of the reactor among connections. A turn is a piece of a connection's work that is
done without interruption.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from twisted.internet.defer import Deferred

from .. import tuning
from .reactor import ReactorTime

__all__ = ["ConnectionTurns", "WorkPlaces"]


class _Queue:
    """A queue of waiting turns. The client addresses alternate: one turn of each address is taken from the queue before
    a second turn of any address, no matter how many connections an address has.
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
    """Runs the turns of all connections. One iteration of the reactor runs as many waiting turns as its time limit
    allows, and later iterations run the rest. For each client address, the turn that was requested first runs first.
    This object is used by the reactor thread only.

    A connection is *busy* (the argument `busy` is not 0) if it has lately had work for more than one turn. The turns of
    connections that are not busy run first, so that a client's single request does not wait for clients that send
    thousands of requests. Each iteration runs at least one turn of a busy connection and one turn of a connection that
    is not busy, if such turns wait.
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
        """Whether the present iteration of the reactor has a time limit (`_until`). While it is True, `_take_turns` is
        scheduled for the next iteration. While it is False, `defers` returns False.
        """
        self._until = 0.0  # when this iteration stops taking turns

    def wait(self, turn: Callable[[], None], busy: int, address: str) -> None:
        """Call the function `turn` in one of the next iterations of the reactor. A connection must not call `wait`
        again before `turn` was called.
        """
        (self._busy if busy else self._waiting).append(address, turn)
        self._time()

    def defers(self, busy: int) -> bool:
        """Return whether a connection should call `wait` instead of doing its work now. The result is True if this
        iteration's time is used up. For a busy connection it is also True if at least FEW_BUSY turns of busy
        connections wait.
        """
        return self.timed and ((bool(busy) and len(self._busy) >= tuning.FEW_BUSY) or self.seconds() >= self._until)

    def do(self, work: Callable[[], None], address: str) -> None:
        """Do `work` now, unless `defers` returns True for a busy connection. In that case, do `work` in a later
        iteration of the reactor, after turns of connections that are not busy.
        """
        if self.defers(1):
            self.wait(work, 1, address)
        else:
            since = self.seconds()
            work()
            self.has_worked(since)

    def turn(self, address: str) -> Deferred[None]:
        """Return a Deferred that fires when the caller, who works for a client with this address, may do its next piece
        of work. If the whole work takes more than one turn, the caller calls this method after each piece.
        """
        comes: Deferred[None] = Deferred()
        self.wait(partial(comes.callback, None), 1, address)
        return comes

    def has_worked(self, since: float) -> bool:
        """Record that a connection has worked on incoming data since the time `since`. If the work took at least
        COUNTED_SECONDS, set a time limit for the reactor's present iteration, unless it has one already. Return whether
        the work took at least TURN_SECONDS.
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
    """Limits how many of certain requests, for example of those that take much memory, are handled at the same time.
    Further requests wait. Each time the work of a request ends, one waiting request begins. It is chosen from each
    client address in turn. This object is used by the reactor thread only.
    """

    def __init__(self, turns: ConnectionTurns, most: Callable[[], int]) -> None:
        self._turns = turns
        self._most = most
        self._taken = 0
        self._waiting = _Queue()

    def begin(self, turn: Callable[[], None], address: str) -> bool:
        """Return whether the caller may begin its work now. If not, the function `turn` is called later, when the work
        may begin. After the work, the caller must call `end`.
        """
        if self._taken < self._most():
            self._taken += 1
            return True
        self._waiting.append(address, turn)
        return False

    def end(self) -> None:
        """Record that a request's work has ended, and let the next waiting request begin."""
        if self._waiting:
            address, turn = self._waiting.popleft()
            self._turns.wait(turn, 1, address)
        else:
            self._taken -= 1
