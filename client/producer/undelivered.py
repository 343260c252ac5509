"""Count messages that could not be delivered and that nobody was told of; report them later.

A producer that nobody closed delivers its accepted messages when the program ends, and reports those it could not
deliver. The threads that send and read are daemons, which the interpreter ends silently. The interpreter first waits
for all other threads of the program, then runs the functions of `atexit`, the last registered first, and only then
stops daemons. So a function of `atexit` runs when no other thread sends any more. (Threading's own exit functions would
run before the other threads have ended.) It is registered after the start of the ZooKeeper session, so it runs before
kazoo's, which ends that session.
"""

from __future__ import annotations

import atexit
import math
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from metaq.coordination.runtime.forks import ForkGuard
from metaq.coordination.runtime.interrupts import begin_elsewhere

__all__ = ["AtExit", "Losses"]

_began: float | None = None
"""When the first producer began to end with the program. All producers share the time limit, so that many of them do
not take many times as long."""


class Losses:
    """Counts of lost messages, by topic and reason. Any thread."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def note(self, topic: str, reason: Exception, count: int) -> None:
        """Count `count` lost messages."""
        with self._counting:
            self._counts[topic, str(reason)] += count

    def report(self, topic: str, error: Exception | None, _result: object) -> None:
        """Count one message if it has failed."""
        if error is not None:
            self.note(topic, error, 1)

    def __bool__(self) -> bool:
        """Whether there are losses that `take` has not returned."""
        return bool(self._counts)

    def take(self) -> Mapping[tuple[str, str], int]:
        """Return the losses since the last call."""
        with self._counting:
            counts, self._counts = self._counts, Counter()
        return counts


class _Leaving(Protocol):
    @property
    def rests(self) -> bool:
        """Whether there is no message to deliver. Takes no lock."""

    def flush(self, deadline: float) -> bool:
        """Wait until all messages have their outcome; return False at the deadline."""

    def end_at_exit(self, timeout: float) -> Mapping[tuple[str, str], int]:
        """Deliver accepted messages within `timeout` seconds; count the others by topic and reason."""


class AtExit:
    """Exit function that delivers a producer's messages when the program ends, unless `cancel` was called.

    It keeps the driver alive, but not the producer. When nobody refers to the producer any more and its accepted
    messages have their outcomes, it releases the driver. losses: the producer's unreported losses.

    A forked process does nothing for its parent's producers. If SIGKILL, SIGTERM without a handler or os._exit ends a
    program, this does not run.
    """

    def __init__(
        self,
        producer: object,
        driver: _Leaving,
        losses: Losses,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._losses = losses
        self._seconds = seconds
        self._clock = clock
        self._guard = ForkGuard("Producer")
        self._is_over = False
        atexit.register(self.run)
        self._producer = weakref.ref(producer, self._dropped)

    def cancel(self) -> None:
        """Do nothing at the program's end, because the producer is closed. Idempotent."""
        self._is_over = True
        atexit.unregister(self.run)

    def run(self) -> None:
        """Deliver, and report losses on stderr."""
        global _began
        if self._is_over or self._guard.is_elsewhere:
            return
        self._is_over = True
        _began = self._clock() if _began is None else _began
        losses = Counter(self._losses.take())
        losses += Counter(self._driver.end_at_exit(max(0.0, _began + self._seconds - self._clock())))
        if sys.stderr is not None:
            sys.stderr.write("".join(map(self._line, losses.items())))

    def _dropped(self, _: object) -> None:
        """Note that nobody refers to the producer. The garbage collector may call this on any thread, with any lock
        held."""
        if self._is_over:
            return
        if self._guard.is_elsewhere or (self._driver.rests and not self._losses):
            self.cancel()
        else:
            begin_elsewhere((self._outlive,))

    def _outlive(self) -> None:
        """Keep the driver until all messages are delivered, or have failed; on a thread of its own."""
        self._driver.flush(math.inf)
        if not self._losses:
            self.cancel()

    def _line(self, loss: tuple[tuple[str, str], int]) -> str:
        (topic, reason), count = loss
        return (
            f"metaq: {count} {'message' if count == 1 else 'messages'} to topic {topic!r} could not be delivered "
            f"before the program ended (deliver_at_exit_seconds={self._seconds:g}): {reason}. "
            "Close the producer, for example by `with Producer(...)`, and look at the futures\n"
        )
