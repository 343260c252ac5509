"""Messages in a local store that wait to be sent: put there when nobody took them, and sent again later.

Each queue is sent in its order, by one thread at a time, until a message fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from metaq.coordination.interrupts import Aside, Bells, begin_elsewhere
from metaq.coordination.logs import get_log
from metaq.protocol.errors import LocalStoreError, MetaqError

from ..records.local_store import LocalMessageStore, StoredMessage
from ..records.values import SendResult, TopicPartition
from ..runtime.timers import Timers
from . import tuning
from .outgoing import Outgoing

__all__ = ["NOWHERE", "Resender", "Undelivered"]

log = get_log(__name__)

NOWHERE = -1
"""Broker and partition of a message that went to none yet."""
_PREFIX = "undelivered "
"""With the topic behind it the name of a queue; no topic has a blank."""


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

    def begin(self) -> None:
        """Empty the queues from now on. No constructor does that: if it were interrupted when it returns, nobody could
        end it. An interrupt of this ends it (interrupts.py)."""
        try:
            self._timers.call_later(0.0, self._round)
        except BaseException:
            begin_elsewhere((self._timers.close,))
            raise

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


class Undelivered:
    """Any thread; `keep` never blocks. The queue of a topic is in the order in which its messages were given up.

    send: as for Resender.
    """

    def __init__(
        self,
        store: LocalMessageStore,
        send: Callable[[StoredMessage], object],
        interval_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._resender = Resender(store, lambda queue: queue.startswith(_PREFIX), send, interval_seconds, clock)
        self._given_up: dict[Outgoing, MetaqError] = {}
        self._closed = False
        self._writing = threading.Lock()
        self._aside = Aside("metaq-undelivered")  # else what is in the store might not be known to be, and come twice
        self._timers = Timers("metaq-undelivered", clock)

    def begin(self) -> None:
        """Send what the store has from now on, as Resender.begin."""
        self._resender.begin()

    def keep(self, outgoing: Outgoing, error: MetaqError) -> None:
        """`error` says why it was given up; its future ends once it is in the store. One that waits to be written is
        not kept twice, whoever gives it up. After `close` its future ends with LocalStoreError."""
        self._given_up.setdefault(outgoing, error)
        if self._closed:
            self.write()
        else:
            self._timers.call_later(0.0, self.write)

    @property
    def is_writing(self) -> bool:
        """Whether something was given up that is not in the store yet. Takes no lock."""
        return bool(self._given_up)

    def write(self) -> None:
        """Put everything that was given up into the store, now."""
        self._aside.do(self._write)

    def _write(self) -> None:
        with self._writing:
            given_up = list(self._given_up.items())
            by_topic: dict[str, list[tuple[Outgoing, MetaqError]]] = {}
            for outgoing, error in given_up:
                if not outgoing.done:  # else its answer came after all
                    by_topic.setdefault(outgoing.topic, []).append((outgoing, error))
            for topic, messages in by_topic.items():
                self._append(topic, messages)
            for outgoing, _ in given_up:
                del self._given_up[outgoing]

    def _append(self, topic: str, given_up: list[tuple[Outgoing, MetaqError]]) -> None:
        try:
            self._store.append(_PREFIX + topic, [message for outgoing, _ in given_up for message in _stored(outgoing)])
        except LocalStoreError as error:
            for outgoing, cause in given_up:
                error.__cause__ = cause
                outgoing.fail(error)
            return
        nowhere = TopicPartition(topic, NOWHERE, NOWHERE)
        for outgoing, _ in given_up:
            count = sum(1 for _ in outgoing.records())
            outgoing.succeed_text([SendResult(0, outgoing.fixed or nowhere, -1)] * count)

    def send_soon(self) -> None:
        """There may be brokers for what is in the store. Never blocks."""
        self._resender.trigger_all()

    def stop_sending(self, timeout: float) -> None:
        """Send nothing again any more; `keep` still works."""
        self._resender.close(timeout)

    def close(self, timeout: float = tuning.LAST_WAIT_SECONDS) -> None:
        """Write what is left and close the store, after waiting `timeout` seconds at most. Idempotent."""
        self._timers.close(timeout / 2)
        self._resender.close(timeout / 2)  # its sends have failed by now
        self._closed = True
        self.write()
        self._store.close()


def _stored(outgoing: Outgoing) -> list[StoredMessage]:
    topic, fixed, key = outgoing.topic, outgoing.fixed, outgoing.key
    return [StoredMessage(topic, bytes(body), flag, fixed, key) for flag, _, body in outgoing.records()]
