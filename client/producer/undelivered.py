"""Count undelivered messages whose failure was reported to nobody, and report them later.

If nobody closed a producer, it delivers its accepted messages when the program ends, and reports the messages that it
could not deliver. The threads that send and read are daemon threads, which the interpreter ends silently. The
interpreter first waits for all other threads of the program. Then it runs the functions of `atexit`, the last
registered first, and only then it stops daemon threads. So a function of `atexit` runs when no other thread of the
program sends any more. (Threading's own exit functions would run before the other threads have ended.) The producer's
function is registered after the start of the ZooKeeper session. So it runs before kazoo's function, which ends the
session.
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
"""The clock time at which the first producer began to deliver at the program's end. All producers share one time limit
from then on, so that many producers do not take many times as long.
"""


class Losses:
    """Counts of lost messages, by topic and reason. Any thread may call the methods."""

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
        """Return whether there are losses that `take` has not returned yet."""
        return bool(self._counts)

    def take(self) -> Mapping[tuple[str, str], int]:
        """Return the losses since the last call of this method."""
        with self._counting:
            counts, self._counts = self._counts, Counter()
        return counts


class _Leaving(Protocol):
    @property
    def rests(self) -> bool:
        """Whether there is no message to deliver. Reading this takes no lock."""

    def flush(self, deadline: float) -> bool:
        """Wait until all messages have their outcome; return False at the deadline."""

    def end_at_exit(self, timeout: float) -> Mapping[tuple[str, str], int]:
        """Deliver accepted messages within `timeout` seconds; count the others by topic and reason."""


class AtExit:
    """Exit function that delivers a producer's messages when the program ends, unless `cancel` was called.

    This function keeps the driver alive, but not the producer. It releases the driver when nobody refers to the
    producer any more and all accepted messages have their outcomes. losses: the producer's unreported losses.

    A forked process does nothing for its parent's producers. The function does not run if SIGKILL, SIGTERM without a
    handler or os._exit ends the program.
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
        """Unregister the exit function, because the producer is closed or has no message left. Idempotent."""
        self._is_over = True
        atexit.unregister(self.run)

    def run(self) -> None:
        """Deliver the accepted messages, and report losses on stderr."""
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
        """Note that nobody refers to the producer any more. The garbage collector may call this method on any thread,
        while that thread holds any lock.
        """
        if self._is_over:
            return
        if self._guard.is_elsewhere or (self._driver.rests and not self._losses):
            self.cancel()
        else:
            begin_elsewhere((self._outlive,))

    def _outlive(self) -> None:
        """Keep the driver until all messages are delivered or have failed. This runs on a thread of its own."""
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
