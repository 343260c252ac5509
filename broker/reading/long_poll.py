"""Long polling: pulls that wait for data. A pull is resumed when readers can see more data of its partition, at its
deadline, or when its connection ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import count
from math import inf
from typing import Protocol

from .. import tuning
from ..runtime.reactor import ReactorTime, Timer
from ..runtime.timed_entries import TimedEntries
from ..store.partition_log import PartitionLog

__all__ = ["ParkedPulls", "ParkedRequest"]

_FEW = 512
"""The list of deadlines has an entry for each parked request; if a request is resumed earlier, its entry stays in the
list until the deadline. As soon as no request is parked any more, the remaining entries are useless. If they are at
most _FEW, they are all dropped at once, which takes less than a millisecond.
"""


class ParkedRequest(Protocol):
    """A request that can be parked. `key` says what the request waits for: (topic, partition) for a pull, (group,
    topic, partition) for a request of a member of a shared group. `deadline` is a time in seconds of the reactor's
    clock.
    """

    key: Hashable
    deadline: float


class _Parked:
    """A parked request. resume: the function to call, or None when the request no longer waits."""

    __slots__ = ("resume", "waiter")

    def __init__(self, waiter: ParkedRequest, resume: Callable[[], None]) -> None:
        self.waiter: ParkedRequest | None = waiter
        self.resume: Callable[[], None] | None = resume


_Deadline = tuple[float, int, _Parked]


def _is_current(entry: _Deadline) -> bool:
    return entry[2].resume is not None


class ParkedPulls:
    """All parked requests of a broker, by key. Used only on the reactor thread.

    When readers can see new data, the waiting pulls are resumed in the reactor's next iteration. So one answer contains
    all data that were appended in the present iteration, and a put is answered before the pulls that wait for its
    message. If very many pulls are to be resumed, this takes several iterations. One timer of the reactor is used for
    all deadlines. A timer for each deadline would have two disadvantages: the reactor would handle all due timers in
    one iteration, however many they are; and it would go through all timers whenever half of them are cancelled.
    """

    def __init__(self, reactor: ReactorTime) -> None:
        self._reactor = reactor
        self._parked: dict[Hashable, dict[ParkedRequest, _Parked]] = {}
        self._count = 0
        self._deadlines: TimedEntries[_Deadline] = TimedEntries()
        self._numbers = count()
        self._timer: Timer | None = None
        self._timer_at = inf
        self._ready: dict[Hashable, None] = {}  # an ordered set of keys: all requests that wait for them are resumed
        self._resuming: deque[_Parked] = deque()  # the requests of the last key taken from `_ready`
        self._woken: deque[ParkedRequest] = deque()  # resumed before the others, if they still wait
        self._wakes = False  # whether `_wake` runs in the next turn

    def __len__(self) -> int:
        return self._count

    def park(self, waiter: ParkedRequest, resume: Callable[[], None]) -> None:
        """Park a request. `resume` is called once: when readers can see more data of the partition, or at the deadline
        if that comes first.
        """
        parked = _Parked(waiter, resume)
        self._parked.setdefault(waiter.key, {})[waiter] = parked
        self._count += 1
        self._deadlines.push((waiter.deadline, next(self._numbers), parked), self._count, _is_current)
        self._set_timer(waiter.deadline)

    def end(self, key: Hashable, chosen: Callable[[ParkedRequest], bool]) -> None:
        """Soon resume those of the requests that wait for `key` for which `chosen` returns true. The request is resumed
        as if its deadline had come.
        """
        now = self._reactor.seconds()
        ended = [waiter for waiter in self._parked.get(key, ()) if chosen(waiter)]
        for waiter in ended:
            waiter.deadline = min(waiter.deadline, now)
        self.wake(ended)

    def wake_all(self) -> None:
        """Resume all parked requests soon, because a change in the broker (for example of its role) may have changed
        their answers.
        """
        self._ready |= dict.fromkeys(self._parked)
        if self._ready:
            self._wake_soon()

    def wake(self, waiters: Iterable[ParkedRequest]) -> None:
        """Resume the given requests soon, in the given order. Requests among them that are no longer parked are
        skipped.
        """
        self._woken.extend(waiters)
        if self._woken:
            self._wake_soon()

    def waiting(self, key: Hashable) -> int:
        """Return how many requests wait for `key`."""
        return len(self._parked.get(key, ()))

    def wake_some(
        self, key: Hashable, wanted: Callable[[], bool], among: Sequence[ParkedRequest] | None = None
    ) -> Sequence[ParkedRequest]:
        """Resume requests that wait for `key`, one after the other and immediately, until `wanted` returns false. The
        request that was parked first is resumed first. Return the requests that were left over because `wanted` has
        returned false. among: the only requests to consider; None means all requests that wait for `key`.
        """
        waiters = list(self._parked.get(key, ())) if among is None else among
        for number, waiter in enumerate(waiters):
            if not wanted():
                return waiters[number:]
            parked = self._parked.get(key, {}).get(waiter)
            if parked is not None:  # otherwise the resuming of another request has dropped it
                self._resume(parked)
        return ()

    def watch(self, log: PartitionLog) -> None:
        """From now on resume the requests that wait for data of this log whenever readers can see more of the log's
        data.
        """
        log.on_visible = self._became_visible

    def _became_visible(self, log: PartitionLog) -> None:
        if not self._parked:  # this runs for each append, and mostly no request waits
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
        now = self._reactor.seconds()
        until = now + tuning.WAKING_SECONDS
        for parked in self._due(now):
            if parked is not None:
                self._resume(parked)
            if self._reactor.seconds() >= until:
                break
        if self._woken or self._resuming or self._ready or (self._deadlines and self._deadlines.first[0] <= now):
            self._wake_soon()
        elif self._deadlines:
            self._set_timer(self._deadlines.first[0])

    def _due(self, now: float) -> Iterator[_Parked | None]:
        """Yield the parked requests that are to be resumed, until there are none left. It is possible that some of them
        were resumed earlier, for example at their deadline; `_resume` ignores such requests. Yield None for each
        request that was passed to `wake` and is no longer parked.
        """
        while True:
            if self._woken:
                waiter = self._woken.popleft()
                yield self._parked.get(waiter.key, {}).get(waiter)
            elif self._deadlines and self._deadlines.first[0] <= now:
                yield self._deadlines.pop()[2]
            elif self._resuming:
                yield self._resuming.popleft()
            elif self._ready:
                key = next(iter(self._ready))
                del self._ready[key]
                self._resuming.extend(self._parked.get(key, {}).values())
            else:
                return

    def _resume(self, parked: _Parked) -> None:
        """Resume a request if it still waits."""
        waiter, resume = parked.waiter, parked.resume
        if waiter is None or resume is None:
            return
        parked.waiter = parked.resume = None
        waiting = self._parked[waiter.key]
        del waiting[waiter]
        if not waiting:
            del self._parked[waiter.key]
        self._count -= 1
        if not self._count and len(self._deadlines) <= _FEW:
            self._deadlines.clear()  # the timer is kept, because mostly another request is parked before it fires
        resume()

    def _set_timer(self, at: float) -> None:
        """Set the timer for the deadline `at`, unless the timer already fires earlier."""
        if at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = self._reactor.callLater(max(0.0, at - self._reactor.seconds()), self._time_has_come)

    def _time_has_come(self) -> None:
        self._timer, self._timer_at = None, inf
        if self._deadlines:
            self._wake_soon()
