"""Messages that could not be delivered, and that nobody was told of: they are counted, and told later.

A producer that nobody closed delivers what it has accepted when the program ends, and says what it could not. The
threads that send and read are daemons, and the interpreter ends them without a word. Its order of ending: it waits
for all other threads of the program, then runs what `atexit` knows, the youngest first, and only then stops daemons. So
a function of `atexit` comes when nobody sends any more (threading's own exit functions would come before the other
threads have ended), and, registered after the ZooKeeper session was begun, before kazoo's, which ends that session.
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

from metaq.coordination.forks import ForkGuard
from metaq.coordination.interrupts import begin_elsewhere

__all__ = ["AtExit", "Losses"]

_began: float | None = None
"""When the first producer was told that the program ends: all share the time, so that many do not take many times."""


class Losses:
    """Counts by topic and reason. Any thread."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def note(self, topic: str, reason: Exception, count: int) -> None:
        """So many messages were lost."""
        with self._counting:
            self._counts[topic, str(reason)] += count

    def report(self, topic: str, error: Exception | None, _result: object) -> None:
        """What one message ended with."""
        if error is not None:
            self.note(topic, error, 1)

    def __bool__(self) -> bool:
        """Whether there are any that were not taken."""
        return bool(self._counts)

    def take(self) -> Mapping[tuple[str, str], int]:
        """What was noted since the last call."""
        with self._counting:
            counts, self._counts = self._counts, Counter()
        return counts


class _Leaving(Protocol):
    @property
    def rests(self) -> bool:
        """Whether there is nothing to deliver. Takes no lock."""

    def flush(self, deadline: float) -> bool:
        """Wait until everything has its outcome; False at the deadline."""

    def end_at_exit(self, timeout: float) -> Mapping[tuple[str, str], int]:
        """Deliver what was accepted within `timeout` seconds; count what was not, by topic and reason."""


class AtExit:
    """Has a producer's messages delivered when the program ends, unless `cancel` was called.

    It keeps what delivers them (driver), but not the producer, alive. Once nobody has the producer any more, and what
    it had accepted has its outcome, it lets go of the driver. losses: what the producer has not told yet.

    A process that was forked off does nothing for its parent's producers. SIGKILL, SIGTERM without a handler and
    os._exit end a program without this.
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
        """The producer is closed. Idempotent."""
        self._is_over = True
        atexit.unregister(self.run)

    def run(self) -> None:
        """Deliver, and say on stderr what could not be."""
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
        """Nobody has the producer any more. The collector may call this, so on any thread, with any lock held."""
        if self._is_over:
            return
        if self._guard.is_elsewhere or (self._driver.rests and not self._losses):
            self.cancel()
        else:
            begin_elsewhere((self._outlive,))

    def _outlive(self) -> None:
        """On a thread of its own: keep the driver until all is delivered, or has failed."""
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
