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
    """Turns that wait: each address has one in its turn, however many connections it has."""

    def __init__(self) -> None:
        self._by_address: dict[str, deque[Callable[[], None]]] = {}  # the next one first
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
    """The turns of all connections: one iteration of the reactor takes some of them, and the others come in the next
    ones, those of an address in their order. Reactor thread.

    A connection is *busy*, not 0, if it has lately had more to do than one turn. The others go first, so that a single
    request does not wait for all who send thousands; of both each iteration takes one at least.
    """

    def __init__(self, reactor: ReactorTime) -> None:
        self._reactor = reactor
        self.seconds = reactor.seconds
        self._waiting = _Queue()
        self._busy = _Queue()
        self.large = WorkPlaces(self, lambda: tuning.MAX_LARGE_WORKS)
        """For requests that take much memory while they are worked on."""
        self.listing = WorkPlaces(self, lambda: tuning.MAX_LISTINGS)
        """For those whose answers do."""
        self._timed = False  # the iteration is one whose time counts: `_take_turns` comes at the beginning of the next
        self._until = 0.0  # which takes nothing more then

    def wait(self, turn: Callable[[], None], busy: int, address: str) -> None:
        """Call this in one of the next iterations. Of the same connection nothing may wait."""
        (self._busy if busy else self._waiting).append(address, turn)
        self._time()

    def defers(self, busy: int) -> bool:
        """Whether a connection that has something to do is to `wait` with it."""
        return self._timed and ((bool(busy) and len(self._busy) >= tuning.FEW_BUSY) or self.seconds() >= self._until)

    def do(self, work: Callable[[], None], address: str) -> None:
        """Do it now. If this iteration has enough to do, do it in a later one, behind those that have little to do."""
        if self.defers(1):
            self.wait(work, 1, address)
        else:
            since = self.seconds()
            work()
            self.has_worked(since)

    def turn(self, address: str) -> Deferred[None]:
        """Of who goes on with much to do."""
        comes: Deferred[None] = Deferred()
        self.wait(partial(comes.callback, None), 1, address)
        return comes

    def has_worked(self, since: float) -> None:
        """A connection did since then what came in: much of that by many is one iteration's work, too."""
        if self.seconds() >= since + tuning.COUNTED_SECONDS:
            self._time()

    def _time(self) -> None:
        if not self._timed:
            self._timed = True
            self._until = self.seconds() + tuning.ITERATION_SECONDS
            self._reactor.callLater(0, self._take_turns)

    def _take_turns(self) -> None:
        until = self.seconds() + tuning.ITERATION_SECONDS
        chosen = [(queue, len(queue)) for queue in (self._waiting, self._busy)]  # what comes meanwhile is not
        for queue, count in chosen:
            for _ in range(count):
                _, turn = queue.popleft()
                turn()
                if self.seconds() >= until:
                    break
        self._timed = False
        if self._waiting or self._busy:
            self._time()


class WorkPlaces:
    """So much work of one kind is under way at once; further ones begin in the order of turns. Reactor thread."""

    def __init__(self, turns: ConnectionTurns, most: Callable[[], int]) -> None:
        self._turns = turns
        self._most = most
        self._taken = 0
        self._waiting = _Queue()

    def begin(self, turn: Callable[[], None], address: str) -> bool:
        """Whether it may begin; else `turn` is called when it may. `end` follows."""
        if self._taken < self._most():
            self._taken += 1
            return True
        self._waiting.append(address, turn)
        return False

    def end(self) -> None:
        """It is done, and its place goes to the next one."""
        if self._waiting:
            address, turn = self._waiting.popleft()
            self._turns.wait(turn, 1, address)
        else:
            self._taken -= 1
