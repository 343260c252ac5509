"""How fast cold data is read: as fast as the disk gives it, until producers or hot readers would suffer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

__all__ = ["MIN_BYTES_PER_SECOND", "Pace", "processor_wait_seconds"]

MIN_BYTES_PER_SECOND = 64 << 20
"""What cold readers together get in any case; twice what is being written if that is more, so that they catch up."""

_MAX_BYTES_PER_SECOND = 8 << 30
_WRITTEN_FACTOR = 2

_BUSY_CORES = 0.5
"""Processor time of everything else in the process above which its one interpreter lock is short."""
_WAITING_CORES = 0.05
"""Time the reactor thread was ready and got no processor, per second, above which the machine is short of them."""

_WINDOW_SECONDS = 0.1
_SLOWER = 0.5
_FASTER = 1.25
_BURST_SECONDS = 0.01
_MIN_BURST_BYTES = 1 << 20


class Pace:
    """Measures each 0.1 s whether other work suffers; the rate is halved then, and grows by a quarter otherwise.

    Reactor thread. It looks only when it is asked, so that it costs nothing while nobody reads cold data.
    """

    def __init__(
        self,
        seconds: Callable[[], float],
        written: Callable[[], int],
        *,
        process_seconds: Callable[[], float] = time.process_time,
        wait_seconds: Callable[[], float] | None = None,
    ) -> None:
        """seconds: monotonic clock. written: bytes appended so far. process_seconds: processor time of all threads.

        wait_seconds: how long the reactor thread has waited for a processor so far.
        """
        self._seconds = seconds
        self._written = written
        self._process_seconds = process_seconds
        self._wait_seconds = wait_seconds or processor_wait_seconds
        self._since = self._refilled = seconds()
        self._before = self._look()
        self._cost = 0.0  # processor time and bytes of the reads in this window
        self._read = 0
        self._credit = float(_MIN_BURST_BYTES)
        self.bytes_per_second = float(_MAX_BYTES_PER_SECOND)

    def spend(self, size: int, processor_seconds: float) -> None:
        """So many bytes were read, at this cost."""
        self._read += size
        self._cost += processor_seconds
        self._credit -= size

    def pause(self) -> float:
        """Seconds to wait before the next read may begin; 0 for none."""
        now = self._seconds()
        if now - self._since >= _WINDOW_SECONDS:
            self._adapt(now - self._since)
            self._since = now
        rate = self.bytes_per_second
        burst = max(_MIN_BURST_BYTES, rate * _BURST_SECONDS)
        self._credit = min(burst, self._credit + (now - self._refilled) * rate)
        self._refilled = now
        return max(0.0, -self._credit / rate)

    def _look(self) -> tuple[float, float, int]:
        return self._process_seconds(), self._wait_seconds(), self._written()

    def _adapt(self, elapsed: float) -> None:
        before, self._before = self._before, self._look()
        used, waited, written = (after - earlier for after, earlier in zip(self._before, before, strict=True))
        read, self._read = self._read, 0
        cost, self._cost = self._cost, 0.0
        if (used - cost) / elapsed > _BUSY_CORES or waited / elapsed > _WAITING_CORES:
            least = max(MIN_BYTES_PER_SECOND, _WRITTEN_FACTOR * written / elapsed)
            self.bytes_per_second = max(least, min(self.bytes_per_second, read / elapsed) * _SLOWER)
        else:
            self.bytes_per_second = min(_MAX_BYTES_PER_SECOND, self.bytes_per_second * _FASTER)


def processor_wait_seconds() -> float:
    """How long the calling thread was ready to run and did not, so far; 0.0 where the kernel does not say.

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
