"""Save messages in a local store if no broker has accepted them, and send them again later. The store has several
queues.

The messages of a queue are sent in the order in which they were saved, by one thread at a time, until a send fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from metaq.coordination.runtime.interrupts import Aside, Bells, begin_elsewhere
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import LocalStoreError, MetaqError

from ..records.local_store import LocalMessageStore, StoredMessage
from ..records.results import SendResult, TopicPartition
from ..runtime.timers import Timers
from . import tuning
from .outgoing import Outgoing

__all__ = ["NOWHERE", "Resender", "Undelivered"]

log = get_log(__name__)

NOWHERE = -1
"""Stands for the broker and for the partition number of a saved message that has no partition yet."""
_PREFIX = "undelivered "
"""First part of the name of a topic's queue in the store; the topic's name follows it. No topic's name begins with this
text, because the text contains a blank.
"""


class Resender:
    """Sends the messages of a store's queues, but only of the queues for whose names the function `owns` returns true.
    Any thread may call the methods.

    send: a function that sends one message or raises MetaqError. After an error the message stays the first of its
    queue, and nothing more of this queue is sent until the next `trigger`, or until `interval_seconds` have passed.
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
        self._wanted: dict[str, None] = {}  # triggered queues, for which the timers' thread starts threads
        self._running: dict[str, threading.Thread] = {}
        self._asked_again: set[str] = set()
        self._failures: dict[str, MetaqError] = {}
        self._closed = False
        self._timers = Timers("metaq-resend", clock)

    def begin(self) -> None:
        """Start sending the queues' messages. The constructor does not start it: if an interrupt (interrupts.py) came
        just before the constructor returns, the caller would not get the object, and nobody could stop the sending. If
        an interrupt ends this method, the sending stops, too.
        """
        try:
            self._timers.call_later(0.0, self._round)
        except BaseException:
            begin_elsewhere((self._timers.close,))
            raise

    @property
    def failures(self) -> Mapping[str, MetaqError]:
        """Return, for each queue whose first message could not be sent, the error of the last try."""
        return dict(self._failures)

    def trigger(self, queue: str) -> None:
        """Ask the background threads to send the queue's messages. Returns at once."""
        self._wanted[queue] = None
        self._timers.call_later(0.0, self._start_wanted)

    def trigger_all(self) -> None:
        """Ask the background threads to send the messages of every queue. Returns at once, without waiting for the
        store's file.
        """
        self._timers.call_later(0.0, self._trigger_owned)

    def wait_until_empty(self, queue: str, seconds: float) -> bool:
        """Wait at most `seconds` until the queue is empty. Return whether it is empty then."""
        deadline = self._clock() + seconds
        self._changed.wait_for(lambda: self._closed or not self._store.count(queue), lambda: deadline - self._clock())
        return not self._store.count(queue)

    @property
    def rests(self) -> bool:
        """Whether at present no thread sends stored messages, and none is about to begin."""
        with self._lock:
            return not (self._wanted or self._running)

    def close(self, timeout: float) -> None:
        """Send no more messages, and wait at most `timeout` seconds for the messages in flight. Idempotent."""
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
                    self._asked_again.add(queue)  # its thread may just have seen its last message
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
        """Read the first messages of the queue, at most RESENT_TOGETHER, and send them. Return False if the queue had
        none.
        """
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
    """Saves undelivered messages in the store and sends them again. Any thread may call the methods; `keep` never
    blocks. Each topic has one queue in the store, with the topic's messages in the order in which the producer gave up
    sending them.

    send: see Resender.
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
        # an interrupted thread might not know that a message is stored, which would then be sent twice
        self._aside = Aside("metaq-undelivered")
        self._timers = Timers("metaq-undelivered", clock)

    def begin(self) -> None:
        """Start sending the stored messages; see Resender.begin."""
        self._resender.begin()

    def keep(self, outgoing: Outgoing, error: MetaqError) -> None:
        """Let the background thread write a message to the store; `error` says why the producer no longer tries to send
        it. The message's future ends once the message is in the store. A repeated call with a message that is not
        written yet does no harm. If `close` was called before, the message is not saved, and its future ends with
        LocalStoreError.
        """
        self._given_up.setdefault(outgoing, error)
        if self._closed:
            self.write()
        else:
            self._timers.call_later(0.0, self.write)

    @property
    def is_writing(self) -> bool:
        """Whether a message was passed to `keep` and is not written to the store yet. Reading this takes no lock."""
        return bool(self._given_up)

    def write(self) -> None:
        """Write all messages that were passed to `keep` to the store now, on this thread."""
        self._aside.do(self._write)

    def _write(self) -> None:
        with self._writing:
            given_up = list(self._given_up.items())
            by_topic: dict[str, list[tuple[Outgoing, MetaqError]]] = {}
            for outgoing, error in given_up:
                if not outgoing.done:  # otherwise its answer came in time
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
        """Let the background threads send the stored messages soon. Called when brokers are registered that may accept
        them. Never blocks.
        """
        self._resender.trigger_all()

    def stop_sending(self, timeout: float) -> None:
        """Stop sending stored messages; `keep` can still save messages. Wait at most `timeout` seconds for the messages
        in flight.
        """
        self._resender.close(timeout)

    def close(self, timeout: float = tuning.LAST_WAIT_SECONDS) -> None:
        """Wait at most `timeout` seconds for the threads that write and send messages. Then write the remaining
        messages and close the store. Idempotent.
        """
        self._timers.close(timeout / 2)
        self._resender.close(timeout / 2)  # its sends have already failed
        self._closed = True
        self.write()
        self._store.close()


def _stored(outgoing: Outgoing) -> list[StoredMessage]:
    topic, fixed, key = outgoing.topic, outgoing.fixed, outgoing.key
    return [StoredMessage(topic, bytes(body), flag, fixed, key) for flag, _, body in outgoing.records()]
