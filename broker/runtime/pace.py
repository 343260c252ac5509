"""Limit the rate of reading data that are not in the page cache (cold data). While the reads do not slow producers
down, cold data are read as fast as the disk allows; otherwise they are read more slowly.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from .. import tuning
from .reactor import ReactorTime

__all__ = ["Pace", "processor_wait_seconds"]


class Pace:
    """Computes how fast cold data may be read. While cold data are read, it measures the lateness of the reactor's
    loop: how long after its due time the loop calls a timer. If the lateness is too large, the allowed rate is halved;
    otherwise the rate grows. While no producer writes, the rate is not limited, because then the reads cannot delay
    producers.

    The lateness can also have other causes than cold reads: too few processors, worker threads that take the
    interpreter lock, or the loop's own work for producers and for readers of cached data. These causes, too, lower the
    allowed rate. This object is used by the reactor thread only. The lateness is not measured while nobody reads cold
    data.
    """

    def __init__(
        self,
        reactor: ReactorTime,
        written: Callable[[], int],
        waited: Callable[[], float] | None = None,
        *,
        least: float = tuning.PACE_MIN_BYTES_PER_SECOND,
        written_factor: float = tuning.PACE_WRITTEN_FACTOR,
    ) -> None:
        """written: returns the number of bytes appended so far. waited: returns for how many seconds in total the
        reactor thread was ready to run but had to wait for a processor (CPU). least: the rate that is always allowed,
        in bytes a second, > 0.
        written_factor: the product of this factor and the rate at which producers write is also a rate that is always
            allowed.
        """
        self._least = least
        self._written_factor = written_factor
        self._waited = waited or processor_wait_seconds
        self._waited_before = self._waited()
        self._reactor = reactor
        self._written = written
        self._since = self._refilled = reactor.seconds()
        self._written_before = written()
        self._read = self._read_before = 0
        self._timer_runs = False
        self._due = 0.0
        self._late = 0.0
        self._timers = 0
        self._credit = float(tuning.PACE_MIN_BURST_BYTES)
        self.bytes_per_second = tuning.PACE_MAX_BYTES_PER_SECOND

    def spend(self, size: int) -> None:
        """Record that `size` bytes were read."""
        self._read += size
        self._credit -= size

    def pause(self) -> float:
        """Return the seconds to wait before the next read may begin, or 0 for none."""
        now = self._reactor.seconds()
        if not self._timer_runs:
            self._begin(now)
        rate = self.bytes_per_second
        burst = max(tuning.PACE_MIN_BURST_BYTES, rate * tuning.PACE_BURST_SECONDS)
        self._credit = min(burst, self._credit + (now - self._refilled) * rate)
        self._refilled = now
        return max(0.0, -self._credit / rate)

    def _begin(self, now: float) -> None:
        self._timer_runs = True
        self._since = now
        self._written_before, self._read_before = self._written(), self._read
        self._waited_before = self._waited()
        self._late, self._timers = 0.0, 0
        self._sleep(now)

    def _sleep(self, now: float) -> None:
        self._due = now + tuning.PACE_TIMER_SECONDS
        self._reactor.callLater(tuning.PACE_TIMER_SECONDS, self._wake)

    def _wake(self) -> None:
        now = self._reactor.seconds()
        self._late += max(0.0, now - self._due)
        self._timers += 1
        elapsed = now - self._since
        if elapsed >= tuning.PACE_WINDOW_SECONDS:
            if self._read == self._read_before:  # nobody reads cold data now
                self._timer_runs = False
                return
            self._adapt(elapsed)
            self._begin(now)
        else:
            self._sleep(now)

    def _adapt(self, elapsed: float) -> None:
        written = (self._written() - self._written_before) / elapsed
        if not written:
            self.bytes_per_second = tuning.PACE_MAX_BYTES_PER_SECOND
            return
        waiting = (self._waited() - self._waited_before) / elapsed
        if self._late / self._timers <= tuning.PACE_MAX_LATENESS_SECONDS and waiting <= tuning.PACE_MAX_WAITING_PART:
            self.bytes_per_second = min(tuning.PACE_MAX_BYTES_PER_SECOND, self.bytes_per_second * tuning.PACE_FASTER)
            return
        least = max(self._least, self._written_factor * written)
        read = (self._read - self._read_before) / elapsed
        self.bytes_per_second = max(least, min(self.bytes_per_second, read) * tuning.PACE_SLOWER)


def processor_wait_seconds() -> float:
    """Return for how many seconds, since it was started, the calling thread was ready to run but had to wait for a free
    processor. Return 0.0 where the kernel does not report this.

    Source: Linux, Documentation/scheduler/sched-stats.rst, second field of `/proc/<pid>/schedstat` in nanoseconds.
    """
    try:
        fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0.0
    try:
        return int(os.read(fd, 100).split()[1]) / 1e9
    finally:
        os.close(fd)
