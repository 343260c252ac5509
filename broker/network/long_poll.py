"""Pulls that wait for data: woken when a partition shows more of it, at their deadline, or never (disconnect)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol

from .. import tuning
from ..runtime.reactor import ReactorTime, Timer
from ..store.partition_log import PartitionLog

__all__ = ["ParkedPulls", "ParkedRequest"]


class ParkedRequest(Protocol):
    """A parked request. `key` is what it waits for: a pull's (topic, partition), or a shared group's (group, topic,
    partition). `deadline` is a time of the reactor's clock in seconds."""

    key: Hashable
    deadline: float


class _Parked:
    __slots__ = ("resume", "timer", "waiter")

    def __init__(self, waiter: ParkedRequest, resume: Callable[[], None]) -> None:
        self.waiter = waiter
        self.resume = resume
        self.timer: Timer | None = None


class ParkedPulls:
    """All parked pulls of a broker, by partition. Lives on the reactor thread.

    Waking is put off to the reactor's next turn, so that all that one turn appended is answered at once, and puts are
    answered before the pulls they wake. Very many are woken in several turns.
    """

    def __init__(self, reactor: ReactorTime) -> None:
        self._reactor = reactor
        self._parked: dict[Hashable, dict[ParkedRequest, _Parked]] = {}
        self._count = 0
        self._ready: dict[Hashable, None] = {}  # as an ordered set
        self._woken: deque[_Parked] = deque()  # that are resumed next, unless they are gone by then
        self._wakes = False  # `_wake` comes in the next turn

    def __len__(self) -> int:
        return self._count

    def park(self, waiter: ParkedRequest, resume: Callable[[], None]) -> None:
        """Call `resume` once, when the partition shows more data or the deadline has come."""
        parked = _Parked(waiter, resume)
        delay = max(0.0, waiter.deadline - self._reactor.seconds())
        parked.timer = self._reactor.callLater(delay, self._expired, parked)
        self._parked.setdefault(waiter.key, {})[waiter] = parked
        self._count += 1

    def drop(self, waiter: ParkedRequest) -> bool:
        """Forget a parked pull, whose connection is gone or must not wait. Returns whether it was parked here."""
        parked = self._parked.get(waiter.key, {}).get(waiter)
        if parked is None:
            return False
        if parked.timer is not None:
            parked.timer.cancel()
        self._remove(waiter)
        return True

    def end(self, key: Hashable, chosen: Callable[[ParkedRequest], bool]) -> None:
        """In the next turn resume those that wait for this and are chosen, as if their deadline had come."""
        now = self._reactor.seconds()
        for waiter, parked in self._parked.get(key, {}).items():
            if chosen(waiter):
                waiter.deadline = min(waiter.deadline, now)
                if parked.timer is not None:
                    parked.timer.cancel()
                parked.timer = self._reactor.callLater(0, self._expired, parked)

    def wake_all(self) -> None:
        """Resume every parked pull soon: what it is answered may be another thing now."""
        self._ready |= dict.fromkeys(self._parked)
        if self._ready:
            self._wake_soon()

    def wake(self, waiters: Iterable[ParkedRequest]) -> None:
        """Resume those of these that are parked soon, in their order."""
        found = [self._parked.get(waiter.key, {}).get(waiter) for waiter in waiters]
        self._woken.extend(parked for parked in found if parked is not None)
        if self._woken:
            self._wake_soon()

    def waiting(self, key: Hashable) -> int:
        """How many wait for this."""
        return len(self._parked.get(key, ()))

    def wake_some(
        self, key: Hashable, wanted: Callable[[], bool], among: Sequence[ParkedRequest] | None = None
    ) -> Sequence[ParkedRequest]:
        """Resume now, first to last, those that wait for this, while they are `wanted`; those that were not looked at.
        among: of these only."""
        waiters = list(self._parked.get(key, ())) if among is None else among
        for number, waiter in enumerate(waiters):
            if not wanted():
                return waiters[number:]
            parked = self._parked.get(key, {}).get(waiter)
            if parked is None:  # dropped by what another one led to
                continue
            if parked.timer is not None:
                parked.timer.cancel()
            self._remove(waiter)
            parked.resume()
        return ()

    def watch(self, log: PartitionLog) -> None:
        """Have `log` tell when it shows more data."""
        log.on_visible = self._became_visible

    def _became_visible(self, log: PartitionLog) -> None:
        if not self._parked:  # called for each append, and mostly nobody waits
            return
        key = (log.topic, log.partition)
        if key in self._parked:
            self._ready[key] = None
            self._wake_soon()

    def _wake_soon(self) -> None:
        if not self._wakes:
            self._wakes = True
            self._reactor.callLater(0, self._wake)

    def _wake(self) -> None:
        self._wakes = False
        for key in self._ready:
            self._woken.extend(self._parked.get(key, {}).values())
        self._ready.clear()
        until = self._reactor.seconds() + tuning.WAKING_SECONDS
        while self._woken:
            parked = self._woken.popleft()
            if self._parked.get(parked.waiter.key, {}).get(parked.waiter) is not parked:
                continue  # dropped, or resumed and perhaps parked anew
            if parked.timer is not None:
                parked.timer.cancel()
            self._remove(parked.waiter)
            parked.resume()
            if self._reactor.seconds() >= until:
                break
        if self._woken:
            self._wake_soon()

    def _expired(self, parked: _Parked) -> None:
        parked.timer = None
        self._woken.append(parked)
        self._wake_soon()

    def _remove(self, waiter: ParkedRequest) -> None:
        waiting = self._parked[waiter.key]
        del waiting[waiter]
        self._count -= 1
        if not waiting:
            del self._parked[waiter.key]
