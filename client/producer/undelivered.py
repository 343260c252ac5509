"""Asynchronous messages that nobody took: kept in a local store, and sent again later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from metaq.coordination.interrupts import Aside
from metaq.protocol.errors import LocalStoreError, MetaqError

from ..local_store import LocalMessageStore, StoredMessage
from ..timers import Timers
from ..values import SendResult, TopicPartition
from . import tuning
from .outgoing import Outgoing
from .resender import Resender

__all__ = ["NOWHERE", "Undelivered"]

NOWHERE = -1
"""Broker and partition of a message that went to none yet."""
_PREFIX = "undelivered "
"""With the topic behind it the name of a queue; no topic has a blank."""


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

    def keep(self, outgoing: Outgoing, error: MetaqError) -> None:
        """`error` says why it was given up; its future ends once it is in the store. One that waits to be written is
        not kept twice, whoever gives it up. After `close` its future ends with LocalStoreError."""
        self._given_up.setdefault(outgoing, error)
        if self._closed:
            self.write()
        else:
            self._timers.call_later(0.0, self.write)

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
