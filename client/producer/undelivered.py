"""Count lost messages that no exception, future or callback reports to the program, and report them later.

If the program ends without closing a producer, the producer still delivers its accepted messages, in an exit function
of `atexit`, and reports the messages that it could not deliver. At the end of a program, the interpreter first waits
for all threads that are no daemon threads. Then it runs the exit functions that are registered at `atexit`; the
function that was registered last runs first. Last, it stops the daemon threads, among them the producer's threads that
send and read. So when the exit function runs, no thread of the program itself sends messages any more, and the
producer's threads can still deliver them. (The exit functions of `threading` would run before the program's own threads
have ended.) The producer registers its exit function after it has started the ZooKeeper session. So the producer's exit
function runs before kazoo's exit function, which ends the session.
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
"""The time (monotonic seconds) when the first producer began to deliver its messages at the program's end. It is None
before the program's end. For every producer of the program, the time limit deliver_at_exit_seconds counts from this
time, so that many producers do not take longer than one.
"""


class Losses:
    """Counts lost messages by topic and reason. Any thread may call the methods."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def note(self, topic: str, reason: Exception, count: int) -> None:
        """Add `count` lost messages of this topic to the counts."""
        with self._counting:
            self._counts[topic, str(reason)] += count

    def report(self, topic: str, error: Exception | None, _result: object) -> None:
        """Count one message as lost if `error` is not None. With the argument `topic` fixed by functools.partial, this
        method can be used as an on_delivery callback.
        """
        if error is not None:
            self.note(topic, error, 1)

    def __bool__(self) -> bool:
        """Return whether there are losses that `take` has not returned yet."""
        return bool(self._counts)

    def take(self) -> Mapping[tuple[str, str], int]:
        """Return the numbers of messages that were lost since the last call of this method, by topic and reason."""
        with self._counting:
            counts, self._counts = self._counts, Counter()
        return counts


class _Leaving(Protocol):
    @property
    def rests(self) -> bool:
        """Whether the driver has no message that waits to be delivered or saved. Reading this property takes no
        lock.
        """

    def flush(self, deadline: float) -> bool:
        """Wait until all messages are delivered or have failed, and return True. Return False if the deadline passes
        before.
        """

    def end_at_exit(self, timeout: float) -> Mapping[tuple[str, str], int]:
        """Wait at most `timeout` seconds until the accepted messages are delivered, and end the others. Return the
        numbers of messages that were not delivered, by topic and reason.
        """


class AtExit:
    """An exit function that delivers a producer's messages when the program ends, unless `cancel` was called.

    The exit function refers to the producer's driver, but not to the producer. So the driver is not garbage collected
    as long as it has messages to deliver, even if nobody refers to the producer any more. losses: the lost messages of
    the producer that were not reported yet.

    In a forked process, the exit function does nothing for producers of the parent process. The exit function does not
    run if SIGKILL, SIGTERM without a handler or os._exit ends the program.
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
        """Unregister the exit function, because the producer is closed or has no message left. Further calls do
        nothing.
        """
        self._is_over = True
        atexit.unregister(self.run)

    def run(self) -> None:
        """Deliver the producer's accepted messages, and report lost messages on stderr. This method is registered as
        the exit function.
        """
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
        """Called when nobody refers to the producer any more. If there is nothing to deliver or report, unregister the
        exit function at once. Otherwise let `_outlive` do this later. The garbage collector may call this method on any
        thread, even on a thread that holds a lock.
        """
        if self._is_over:
            return
        if self._guard.is_elsewhere or (self._driver.rests and not self._losses):
            self.cancel()
        else:
            begin_elsewhere((self._outlive,))

    def _outlive(self) -> None:
        """Wait until all messages are delivered or have failed; the exit function keeps the driver alive meanwhile.
        After the wait, unregister the exit function, unless there are losses to report. Runs on a thread of its own.
        """
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
