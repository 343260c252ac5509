"""Two classes with threads: EventThread runs the callbacks of the coordination code, and PersistentTask repeats an
attempt until it succeeds. None of these threads is one of kazoo's own threads.

kazoo calls state listeners on its connection thread, and watches on its callback thread. If a callback on one of
kazoo's threads waited for an answer of ZooKeeper, it would wait for ever, because the same thread has to read or
deliver the answer. So listeners and watches only post calls to the event thread. The classes of this module use
threading.Condition, whose lock may stay locked after an interrupt (interrupts.py). So a thread that an interrupt can
reach must not call these classes; ZkSession ensures that no such thread does.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable

from metaq.protocol.errors import CoordinationError

from .backoff import Backoff
from .logs import get_log

__all__ = ["EventThread", "PersistentTask"]

log = get_log(__name__)


class EventThread:
    """Runs posted calls in order on one daemon thread. Any thread may post calls. The posted calls may block on
    ZooKeeper.

    A posted call should raise no exception. If it raises one, the thread logs the exception with its traceback, and
    continues with the next call.
    """

    def __init__(self, name: str) -> None:
        self._later: list[tuple[float, int, Callable[[], object]]] = []  # a heap of (time, order, call)
        self._order = itertools.count()
        self._calls: deque[Callable[[], object]] = deque()
        self._once: set[Callable[[], object]] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, call: Callable[[], object]) -> None:
        """Queue `call`, so that the event thread runs it soon. After close() this method does nothing."""
        with self._changed:
            if not self._closed:
                self._calls.append(call)
                self._changed.notify()

    def post_once(self, call: Callable[[], object]) -> None:
        """Post a call as post() does, unless an equal call is in the queue already. In this way, many events in quick
        succession lead to only one call.
        """
        with self._changed:
            if not self._closed and call not in self._once:
                self._once.add(call)
                self._calls.append(call)
                self._changed.notify()

    def post_later(self, seconds: float, call: Callable[[], object]) -> None:
        """Make the event thread run `call` once, when `seconds` seconds have passed."""
        with self._changed:
            if not self._closed:
                heapq.heappush(self._later, (time.monotonic() + seconds, next(self._order), call))
                self._changed.notify()

    def close(self, timeout: float) -> None:
        """Drop the waiting calls, and end the thread. If a call is running, wait at most `timeout` seconds for its end.
        The event thread itself may call this method, too.
        """
        with self._changed:
            self._closed = True
            self._calls.clear()
            self._later.clear()
            self._changed.notify()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _run(self) -> None:
        while (call := self._next()) is not None:
            try:
                call()
            except Exception:
                log.exception("a coordination callback failed: %r", call)

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            while not self._closed:
                pause = self._post_due()
                if self._calls:
                    call = self._calls.popleft()
                    self._once.discard(call)
                    return call
                self._changed.wait(pause)
            return None

    def _post_due(self) -> float | None:
        """Post the delayed calls that are due. Return the seconds until the next delayed call is due, or None if there
        is none.
        """
        while self._later:
            pause = self._later[0][0] - time.monotonic()
            if pause > 0:
                return pause
            self._calls.append(heapq.heappop(self._later)[2])
        return None


class PersistentTask:
    """Calls `attempt` on a separate thread until a call succeeds. The pauses between the calls grow and are partly
    random. The number of calls is not limited.

    Each call of trigger() is a request to call `attempt` until it has succeeded once. If trigger() is called during an
    attempt, another attempt follows after this one. If an attempt raises CoordinationError, one log line shows the
    error and the pause before the next attempt. Any other exception is a bug, so it is logged with its traceback. The
    attempt is repeated after such an exception, too: without further attempts the broker or consumer would stop its
    work, and nobody would notice. The thread ends when no request is left.
    """

    def __init__(self, name: str, attempt: Callable[[], None], backoff: Backoff | None = None) -> None:
        self._name = name
        self._attempt = attempt
        self._backoff = backoff or Backoff()
        self._changed = threading.Condition()
        self._wanted = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def trigger(self) -> None:
        """Call `attempt` soon, and repeat it until it succeeds. Any thread may call this method, which never blocks."""
        with self._changed:
            self._wanted = not self._closed
            if self._wanted and self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"metaq {self._name}", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self, timeout: float) -> None:
        """Make no more attempts. If an attempt is running, wait at most `timeout` seconds for its end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and threading.current_thread() is not thread:
            thread.join(timeout)

    def _run(self) -> None:
        while self._take_wish():
            pause = self._try()
            if pause:
                self._wait_to_retry(pause)

    def _take_wish(self) -> bool:
        """Return whether an attempt is requested, and clear the request. If no attempt is requested, the calling thread
        must end; the next trigger() starts another thread.
        """
        with self._changed:
            wanted, self._wanted = self._wanted and not self._closed, False
            if not wanted:
                self._thread = None
            return wanted

    def _wait_to_retry(self, pause: float) -> None:
        """Wait for `pause` seconds before the next attempt. A call of trigger() ends the wait early, because it often
        means that the cause of the failure has disappeared.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._closed, pause)
            self._wanted = True

    def _try(self) -> float:
        """Make one attempt. Return the seconds to wait before the next attempt, 0 after a success."""
        try:
            self._attempt()
        except CoordinationError as error:
            pause = self._backoff.next()
            if not self._closed:  # after close() the failure is expected, and there is no retry
                log.warning("%s failed, again in %.1f s: %s", self._name, pause, error)
        except Exception:
            pause = self._backoff.next()
            log.exception("%s failed, again in %.1f s", self._name, pause)
        else:
            pause = 0.0
            self._backoff.reset()
        return pause
