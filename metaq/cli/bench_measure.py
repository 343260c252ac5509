"""Measure a benchmark run: limit its duration, collect the counts of its threads, and show its progress."""

from __future__ import annotations

import itertools
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from rich.progress import SpinnerColumn, TextColumn

from .terminal import progress

__all__ = ["Durations", "Limit", "Run", "RunFigures", "Tally", "measure"]

PERCENTILES = (50.0, 90.0, 99.0, 99.9)

_PENDING = 1 << 14
"""When this number of durations is collected, one NumPy call adds them to the buckets of the histogram."""
_SUB_BUCKETS = 256
"""Like HdrHistogram, the histogram has this number of buckets for the durations from each power of two to the next one.
So a computed percentile is at most 1/256 too high.
"""
_BUCKETS = 64 * _SUB_BUCKETS

_SHOW_SECONDS = 0.2


class Durations:
    """A histogram of durations from 1 ns to centuries, in bounded memory. All durations must be added by the same
    thread. Pass the histogram to merge only after this thread has ended.
    """

    def __init__(self) -> None:
        self._pending = array("q")
        self._counts: npt.NDArray[np.int64] = np.zeros(_BUCKETS, np.int64)
        self._largest = 0

    def add(self, nanoseconds: int) -> None:
        """Add one duration to the histogram; less than 1 ns counts as 1 ns."""
        self._pending.append(nanoseconds)
        if len(self._pending) == _PENDING:
            self._sort()

    def merge(self, other: Durations) -> None:
        """Add all durations of the histogram `other` to this one."""
        other._sort()
        self._counts += other._counts
        self._largest = max(self._largest, other._largest)

    def percentiles_ms(self) -> dict[str, float]:
        """Return `p50`, `p90`, `p99`, `p99.9` and `max` of the durations in milliseconds. The result is empty if there
        are no durations.
        """
        self._sort()
        seen = self._counts.cumsum()
        if not seen[-1]:
            return {}
        ranks = [max(1, int(np.ceil(seen[-1] * percent / 100))) for percent in PERCENTILES]
        tops = [min(_bucket_top(int(bucket)), self._largest) for bucket in np.searchsorted(seen, ranks)]
        names = [f"p{percent:g}" for percent in PERCENTILES]
        return {**{name: top / 1e6 for name, top in zip(names, tops, strict=True)}, "max": self._largest / 1e6}

    def _sort(self) -> None:
        if not self._pending:
            return
        values = np.maximum(np.array(self._pending, np.int64), 1)
        self._pending = array("q")
        mantissas, exponents = np.frexp(values.astype(np.float64))  # value = mantissa × 2^exponent, mantissa in [½, 1)
        buckets = (exponents - 1) * _SUB_BUCKETS + ((mantissas * 2 - 1) * _SUB_BUCKETS).astype(np.int64)
        self._counts += np.bincount(buckets, minlength=_BUCKETS)
        self._largest = max(self._largest, int(values.max()))


def _bucket_top(bucket: int) -> int:
    octave, part = divmod(bucket, _SUB_BUCKETS)
    return int(np.ceil(2.0**octave * (1 + (part + 1) / _SUB_BUCKETS)))


@dataclass(slots=True)
class Tally:
    """The results of one thread of a run. This thread alone writes the results; other threads may read `messages` at
    any time.
    """

    messages: int = 0
    times: Durations = field(default_factory=Durations)


@dataclass(frozen=True, slots=True)
class Limit:
    """When a run ends: after `count` messages or after `seconds` seconds, whichever comes first. None means that there
    is no such limit.
    """

    count: int | None = None
    seconds: float | None = None


class Run:
    """A benchmark run. All threads of the run share this object. The run begins when the object is created."""

    def __init__(self, limit: Limit, stop: threading.Event, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.stop = stop
        self.clock_ns = clock_ns
        self.started_ns = clock_ns()
        self._count = limit.count
        self._end_ns = None if limit.seconds is None else self.started_ns + int(limit.seconds * 1e9)
        self._calls = itertools.count()

    @property
    def over(self) -> bool:
        """Whether the run's time is over, or the run was stopped."""
        return self.stop.is_set() or (self._end_ns is not None and self.clock_ns() >= self._end_ns)

    def take(self, messages: int = 1) -> int:
        """Reserve up to `messages` messages of the run for the calling thread, and return how many it must send or read
        now. The result is 0 when the run is over. Every call of a run's `take` must pass the same value of `messages`.
        """
        if self.over:
            return 0
        if self._count is None:
            return messages
        return min(messages, max(0, self._count - next(self._calls) * messages))

    def left(self, done: int, most: int) -> int:
        """Return the number of messages that the run still needs after `done` messages, but at most `most`. If the run
        has no limit of messages, return `most`.
        """
        return most if self._count is None else min(most, max(0, self._count - done))


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The results of a run. message_bytes: the bytes of all payloads together. seconds: the time in seconds by which
    the numbers of messages and bytes are divided to compute the rates.
    """

    scenario: str
    messages: int
    message_bytes: int
    seconds: float
    latency_ms: dict[str, float]

    @property
    def messages_per_second(self) -> float:
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.message_bytes / self.seconds if self.seconds else 0.0


def measure(title: str, run: Run, jobs: Sequence[Callable[[Tally], None]]) -> tuple[int, float, Durations]:
    """Run each job on a thread of its own. Return the number of messages, the elapsed seconds, and the durations that
    all jobs have measured. If a job fails, all jobs are stopped and its error is raised.

    If stderr is a terminal, a line on it shows the progress. title: the name of the run in this line.
    """
    tallies = [Tally() for _ in jobs]
    with ThreadPoolExecutor(len(jobs)) as pool, _progress_line(title) as show:
        running = [pool.submit(job, tally) for job, tally in zip(jobs, tallies, strict=True)]
        try:
            while True:
                done, waiting = wait(running, _SHOW_SECONDS, FIRST_EXCEPTION)
                show(sum(tally.messages for tally in tallies), (run.clock_ns() - run.started_ns) / 1e9)
                if not waiting or any(each.exception() for each in done):
                    break
        except BaseException:
            run.stop.set()
            raise
        if waiting:
            run.stop.set()
        for each in running:
            each.result()
    seconds = (run.clock_ns() - run.started_ns) / 1e9
    times = Durations()
    for tally in tallies:
        times.merge(tally.times)
    return sum(tally.messages for tally in tallies), seconds, times


@contextmanager
def _progress_line(title: str) -> Iterator[Callable[[int, float], None]]:
    """Show a progress line on stderr if stderr is a terminal. Yield a function that updates the line with the number of
    messages and the seconds since the start.
    """
    last = [0, 0.0]

    def show(messages: int, seconds: float) -> None:
        now = (messages - last[0]) / max(seconds - last[1], 1e-9)
        last[:] = messages, seconds
        line.update(task, description=f"{title}  {seconds:,.1f} s  {messages:,} messages  {now:,.0f}/s")

    with progress(SpinnerColumn(), TextColumn("{task.description}")) as line:
        task = line.add_task(title, total=None)
        yield show
