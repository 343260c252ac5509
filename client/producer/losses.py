"""Messages that could not be delivered, and that nobody was told of: they are counted, and told later.

A producer that nobody closed delivers what it has accepted when the program ends, and says what it could not. The
threads that send and read are daemons, and the interpreter ends them without a word. Its order of ending: it waits
for all other threads of the program, then runs what `atexit` knows, the youngest first, and only then stops daemons. So
a function of `atexit` comes when nobody sends any more (threading's own exit functions would come before the other
threads have ended), and, registered after the ZooKeeper session was begun, before kazoo's, which ends that session.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from metaq.coordination.forks import ForkGuard

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

    def take(self) -> Mapping[tuple[str, str], int]:
        """What was noted since the last call."""
        with self._counting:
            counts, self._counts = self._counts, Counter()
        return counts


class _Leaving(Protocol):
    def deliver_last(self, timeout: float) -> Mapping[tuple[str, str], int]:
        """Deliver what was accepted within `timeout` seconds; count what was not, by topic and reason."""


class AtExit:
    """Has a producer deliver what it holds when the program ends, unless `cancel` was called. Does not keep it alive.

    A process that was forked off does nothing for its parent's producers. SIGKILL, SIGTERM without a handler and
    os._exit end a program without this.
    """

    def __init__(self, producer: _Leaving, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._producer = weakref.ref(producer)
        self._seconds = seconds
        self._clock = clock
        self._guard = ForkGuard("Producer")
        atexit.register(self.run)

    def cancel(self) -> None:
        """The producer is closed. Idempotent."""
        atexit.unregister(self.run)

    def run(self) -> None:
        """Deliver, and say on stderr what could not be."""
        global _began
        producer = self._producer()
        if producer is None or self._guard.is_elsewhere:
            return
        _began = self._clock() if _began is None else _began
        losses = producer.deliver_last(max(0.0, _began + self._seconds - self._clock()))
        if sys.stderr is not None:
            sys.stderr.write("".join(map(self._line, losses.items())))

    def _line(self, loss: tuple[tuple[str, str], int]) -> str:
        (topic, reason), count = loss
        return (
            f"metaq: {count} {'message' if count == 1 else 'messages'} to topic {topic!r} could not be delivered "
            f"before the program ended (deliver_at_exit_seconds={self._seconds:g}): {reason}. "
            "Close the producer, for example by `with Producer(...)`, and look at the futures\n"
        )
