"""Sends what a local store holds: each queue in its order, by one thread at a time, until a message fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from metaq.coordination.interrupts import Bells
from metaq.coordination.logs import get_log
from metaq.protocol.errors import MetaqError

from ..local_store import LocalMessageStore, StoredMessage
from ..timers import Timers
from . import tuning

__all__ = ["Resender"]

log = get_log(__name__)


class Resender:
    """Empties the queues of a store that `owns` says are its own. Any thread.

    send: sends one message or raises MetaqError, which ends this round of its queue: the message stays the first, and
    the next `trigger`, or the next interval, tries it again.
    """

    def __init__(
        self,
        store: LocalMessageStore,
        owns: Callable[[str], bool],
        send: Callable[[StoredMessage], object],
        interval_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._owns = owns
        self._send = send
        self._interval = interval_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._changed = Bells()
        self._wanted: dict[str, None] = {}  # triggered; the timers' thread starts what empties them
        self._running: dict[str, threading.Thread] = {}
        self._asked_again: set[str] = set()
        self._failures: dict[str, MetaqError] = {}
        self._closed = False
        self._timers = Timers("metaq-resend", clock)
        self._timers.call_later(0.0, self._round)

    @property
    def failures(self) -> Mapping[str, MetaqError]:
        """Why the first message of a queue could not be sent when it was tried last."""
        return dict(self._failures)

    def trigger(self, queue: str) -> None:
        """Have the queue emptied. Returns at once."""
        self._wanted[queue] = None
        self._timers.call_later(0.0, self._start_wanted)

    def trigger_all(self) -> None:
        """Have every queue emptied, later: this returns at once and never waits for the file."""
        self._timers.call_later(0.0, self._trigger_owned)

    def wait_until_empty(self, queue: str, seconds: float) -> bool:
        """Whether the queue is empty, now or within `seconds`."""
        deadline = self._clock() + seconds
        self._changed.wait_for(lambda: self._closed or not self._store.count(queue), lambda: deadline - self._clock())
        return not self._store.count(queue)

    @property
    def rests(self) -> bool:
        """Whether no queue is being emptied, or about to be."""
        with self._lock:
            return not (self._wanted or self._running)

    def close(self, timeout: float) -> None:
        """Stop after the messages under way; wait for them for at most `timeout` seconds. Idempotent."""
        deadline = self._clock() + timeout
        with self._lock:
            self._closed = True
            running = list(self._running.values())
        self._changed.ring()
        self._timers.close(min(1.0, timeout))
        for thread in running:
            thread.join(max(0.0, deadline - self._clock()))

    # --- timer thread -----------------------------------------------------------------------------------------------

    def _round(self) -> None:
        self._timers.call_later(self._interval, self._round)
        self._trigger_owned()

    def _trigger_owned(self) -> None:
        for queue in self._store.queues():
            if self._owns(queue):
                self.trigger(queue)

    def _start_wanted(self) -> None:
        while self._wanted:
            with self._lock:
                queue, _ = self._wanted.popitem()
                if self._closed:
                    return
                if queue in self._running:
                    self._asked_again.add(queue)  # it may just have seen its last message
                else:
                    self._start(queue)

    # --- a thread per queue -----------------------------------------------------------------------------------------

    def _start(self, queue: str) -> None:
        thread = threading.Thread(target=self._empty, args=(queue,), name=f"metaq-resend-{queue}", daemon=True)
        self._running[queue] = thread
        thread.start()

    def _empty(self, queue: str) -> None:
        try:
            while not self._closed and self._send_chunk(queue):
                pass
            self._failures.pop(queue, None)
        except MetaqError as error:
            log.warning("local messages of %s wait: %s", queue, error)
            self._failures[queue] = error
        finally:
            with self._lock:
                del self._running[queue]
                if queue in self._asked_again:
                    self._asked_again.discard(queue)
                    if not self._closed:
                        self._start(queue)
            self._changed.ring()

    def _send_chunk(self, queue: str) -> bool:
        """False: there was nothing to send."""
        rows = self._store.peek(queue, tuning.RESENT_TOGETHER)
        sent: list[int] = []
        try:
            for number, message in rows:
                if self._closed:
                    break
                self._send(message)
                sent.append(number)
        finally:
            self._store.remove(queue, sent)
            self._changed.ring()
        return bool(rows)
