"""Execute the actions that a shared consumer's core (core.py) returns.

Usually the thread that has caused an action executes it: for example, a thread of run() that has taken nearly all
leased messages sends the request for more, and a thread that has read an answer sends what follows from it. The
driver's own thread executes actions that become due at a certain time. If an interrupt (interrupts.py) may come on a
user's thread, the driver's thread also executes the actions that the user's thread has caused, because the interrupt
could come between the core's decision and the sending.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from isal.isal_zlib import crc32

from metaq.coordination.runtime.interrupts import BackgroundThread, Bell, Bells
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.client_stream import Reply
from metaq.protocol.errors import (
    AccessRefused,
    BrokerUnavailable,
    MetaqError,
    RequestRefused,
    RequestTimedOut,
    SharedRefused,
)
from metaq.protocol.frames import encode_frame
from metaq.protocol.limits import SHARED_MARK
from metaq.protocol.own_topics import is_own_topic
from metaq.protocol.record import HEADER, HEADER_BYTES, Buffer
from metaq.protocol.shared import (
    AcquireReply,
    AcquireRequest,
    SettleRequest,
    decode_leased,
    decode_outcomes,
    encode_settlements,
)
from metaq.protocol.statuses import RequestCode, ResponseCode, Status

from ..questions.asking import accepted
from ..records.message import Message, as_original
from ..runtime.timers import Timers
from ..runtime.waiting import Exchange
from ..settings.consumer_config import SharedConfig
from ..transport.connection import Connection, Endpoint
from ..transport.metadata import Metadata
from ..transport.pool import ConnectionPool
from .core import Acquiring, Settle, SharedCore
from .message import SharedMessage
from .terms import SharedTerms

__all__ = ["SharedDriver"]

log = get_log(__name__)

_PAUSE_SECONDS = 1.0
"""If a bug raises an exception in the driver's thread, the thread pauses for this number of seconds and then continues
its work.
"""


class SharedDriver:
    """Executes the actions of one shared consumer. `lock` guards the core. The driver's threads are daemon threads.

    came: bells that wake waiting threads when messages have come or the consumer has failed. settling: bells that wake
    waiting threads when answers to settlements have come. failure: the error that has ended the delivery of messages;
    waiting calls raise it. Messages that were taken before the failure can be settled nevertheless.
    """

    def __init__(
        self,
        core: SharedCore,
        config: SharedConfig,
        terms: SharedTerms,
        topics: Sequence[str],
        metadata: Metadata,
        pool: ConnectionPool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.core = core
        self.lock = threading.RLock()  # reentrant: on_lost and signal handlers may call methods that take it
        self.came = Bells()
        self.settling = Bells()
        self.failure: MetaqError | None = None
        self._config = config
        self._terms = terms
        self._topics = tuple(topics)
        self._metadata = metadata
        self._pool = pool
        self._clock = clock
        self._bell = Bell()
        self._ended = False
        self._look_needed = True
        self._timers = Timers("metaq-shared-connect")
        self._thread: BackgroundThread | None = None

    def begin(self) -> None:
        """Find the topics' partitions, and begin to request messages. Raises CoordinationUnavailable."""
        self._look()
        self._metadata.on_change(lambda topic: self._topics_changed())
        self._thread = BackgroundThread(self._run, "metaq-shared")

    def also_take(self, topic: str) -> None:
        """Also lease messages of this topic from now on. Any thread may call this."""
        if topic not in self._topics:
            self._topics = (*self._topics, topic)
            self._topics_changed()

    def ring(self) -> None:
        """Wake the driver's thread, because the core has changed."""
        self._bell.ring()

    @property
    def unsettled(self) -> int:
        """Number of settlements that no broker has answered yet."""
        with self.lock:
            return self.core.unsettled_count

    def has_settled(self) -> bool:
        """Return whether all settlements are answered."""
        return not self.unsettled

    def _has_closed(self) -> bool:
        with self.lock:
            return self.core.is_closed

    def wake(self) -> None:
        """Make all threads that wait for messages or settlements check their conditions again. Any thread may call
        this.
        """
        self.came.ring()
        self.settling.ring()

    def look_anew(self) -> None:
        """Make unsent settlements due, and wake the driver's thread and the threads that wait for messages, for example
        after an interrupted call (interrupts.py). Any thread may call this, any number of times.
        """
        with self.lock:
            self.core.settle_now(self._clock())
        self.ring()
        self.came.ring()

    def end(self, timeout: float) -> bool:
        """Release all messages that the program has not taken, including messages that arrive only now. Then wait at
        most `timeout` seconds until all requests and settlements are answered. Return whether all of them are answered.
        """
        deadline = self._clock() + timeout
        with self.lock:
            self.core.close(self._clock())
        self.ring()
        is_closed = self.settling.wait_for(self._has_closed, lambda: deadline - self._clock())
        self._ended = True
        self.ring()
        self._timers.close()
        if self._thread is not None and not self._thread.is_current:
            self._thread.join(max(0.0, deadline - self._clock()) + 0.1)
        return is_closed

    def go_on(self) -> None:
        """Execute the actions that are due now. Any thread that no interrupt reaches may call this."""
        with self.lock:
            actions = self.core.actions(self._clock())
        if actions:
            self._begin(actions)

    # --- the driver's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended:
            try:
                self._look_if_needed()
                self.go_on()
            except Exception:  # a bug must not end the thread silently: log it, pause, go on
                log.exception("shared group %s: a step failed", self._terms.group)
                self._bell.wait(_PAUSE_SECONDS)
                continue
            self._bell.wait(self._pause())

    def _pause(self) -> float | None:
        """Return the number of seconds that the driver's thread may sleep until an action becomes due. None means that
        the thread may sleep until its bell wakes it.
        """
        with self.lock:
            core, now = self.core, self._clock()
            core.is_due = False
            core.wakes_at = core.next_time(now)
            return None if core.wakes_at == math.inf else core.wakes_at - now

    def _look_if_needed(self) -> None:
        if self._look_needed:
            self._look_needed = False
            self._look()

    def _topics_changed(self) -> None:
        self._look_needed = True
        self.ring()

    def _look(self) -> None:
        found = [each for topic in self._topics for each in self._metadata.view(topic).partitions]
        with self.lock:
            self.core.use(found)

    def _begin(self, actions: Sequence[Acquiring | Settle]) -> None:
        """Send the requests of these actions. Requests to the same broker are sent together."""
        sending: dict[Connection, list[Acquiring | Settle]] = {}
        for action in actions:
            connection = self._connection(action)
            if connection is not None:
                sending.setdefault(connection, []).append(action)
        for connection, those in sending.items():
            self._send(connection, those)

    def _connection(self, action: Acquiring | Settle) -> Connection | None:
        """Return the connection on which to send the action. If there is no open connection, return None. In this case
        the core repeats the action later: when the connection exists that this method has begun to make, or, if the
        broker cannot be reached, after a pause.
        """
        partition = action.partition
        endpoint = self._metadata.view(partition.topic).endpoints.get(partition.broker)
        try:
            if endpoint is None:
                raise BrokerUnavailable(f"broker {partition.broker} is not registered in ZooKeeper")
            connection = self._pool.open_connection(endpoint)
        except MetaqError as error:
            self._failed(action, error, sent=False)
            return None
        if connection is None:
            self._connect(endpoint, action)
        elif not connection.takes_shared:
            self._give_up(
                RequestRefused(
                    Status.BAD_REQUEST,
                    f"broker {partition.broker} ({endpoint}) leases no messages to shared consumers: "
                    f"its version says no {SHARED_MARK}: update it, or read its topics with a Consumer",
                )
            )
            self._failed(action, None, sent=False)
            return None
        return connection

    def _connect(self, endpoint: Endpoint, action: Acquiring | Settle) -> None:
        """Connect to the broker of the action on another thread, because connecting may block."""

        def connect() -> None:
            try:
                self._pool.connection(endpoint, self._config.connection.connect_timeout_seconds)
            except MetaqError as error:
                self._failed(action, error, sent=False)
            else:
                self._failed(action, None, sent=False)

        self._timers.call_later(0.0, connect)

    def _send(self, connection: Connection, actions: Sequence[Acquiring | Settle]) -> None:
        requests: list[Exchange] = []
        buffers: list[Buffer] = []
        deadline = self._clock() + self._config.connection.request_timeout_seconds
        for action in actions:
            opaque = connection.new_opaque()
            if isinstance(action, Acquiring):
                on_done = partial(self._acquired if action.records else self._withdrawn, action, connection)
                requests.append(Exchange(opaque, on_done, deadline + action.wait_ms / 1000))
                buffers.append(encode_frame(RequestCode.ACQUIRE, opaque, self._acquire_request(action).to_ext()))
            else:
                requests.append(Exchange(opaque, partial(self._settled, action, connection), deadline))
                body = encode_settlements(action.settlements)
                partition = action.partition
                fields = SettleRequest(partition.topic, partition.partition, self._terms.group, len(action.settlements))
                buffers += encode_frame(RequestCode.SETTLE, opaque, fields.to_ext(), len(body)), body
        connection.send(requests, buffers)

    def _acquire_request(self, action: Acquiring) -> AcquireRequest:
        passed = is_own_topic(action.partition.topic)  # messages in the group's own topic were filtered already
        return AcquireRequest(
            action.partition.topic,
            action.partition.partition,
            self._terms.group,
            self._terms.member,
            action.records,
            self._config.fetch_max_bytes,
            round(self._config.lease_seconds * 1000),
            action.wait_ms,
            self._terms.start,
            self._terms.ordered,
            "" if passed else self._terms.where,
            () if passed else self._terms.tags,
        )

    # --- a connection's thread ----------------------------------------------------------------------------------------

    def _acquired(self, ask: Acquiring, connection: Connection, reply: Reply | None, error: MetaqError | None) -> None:
        partition = ask.partition
        try:
            if reply is None:
                raise error or BrokerUnavailable("no answer")
            frame = accepted(reply, connection, partition, (ResponseCode.PULL_NOT_FOUND,))
            answer = AcquireReply.from_ext(frame.ext)
            leased = decode_leased(memoryview(frame.body), answer.records)
        except MetaqError as failure:
            self._failed(ask, failure)
            return
        now = self._clock()
        until = now + self._config.lease_seconds
        good: list[SharedMessage] = []
        damaged: list[SharedMessage] = []
        may_be_copies = is_own_topic(partition.topic)
        for offset, token, attempts, record in leased:
            length, checksum, identity, flag = HEADER.unpack_from(record)
            body = record[HEADER_BYTES:].tobytes()
            message = tuple.__new__(SharedMessage, (partition, offset, identity, flag, body))
            if may_be_copies:
                original = as_original(Message(*message))
                attempts += original.attempts - 1
                message = SharedMessage(*original)
            message.leased_from, message.leased_at = partition, offset
            message.attempts, message.token, message.lease_until = attempts, token, until
            right = len(body) == length and crc32(body) & 0x7FFFFFFF == checksum
            (good if right else damaged).append(message)
        with self.lock:
            self.core.arrived(partition, good, answer.waiting, now, answer.suspect)
            for each in damaged:
                self.core.damaged_here(each, now)
        self.came.ring(len(good))
        self.settling.ring()  # `end` waits for this
        if damaged:
            log.error("%d messages of %s %s came with wrong checksums", len(damaged), partition.topic, partition)
        self._follow_up()

    def _withdrawn(self, ask: Acquiring, connection: Connection, reply: Reply | None, error: MetaqError | None) -> None:
        """Process the answer to a withdrawal. The broker sends a separate answer to the withdrawn request."""
        try:
            if reply is None:
                raise error or BrokerUnavailable("no answer")
            accepted(reply, connection, ask.partition, (ResponseCode.PULL_NOT_FOUND,))
        except MetaqError:  # for example from an earlier broker version: do not wait longer
            with self.lock:
                self.core.refused(ask.partition, self._clock(), None)
            self.settling.ring()

    def _settled(self, action: Settle, connection: Connection, reply: Reply | None, error: MetaqError | None) -> None:
        try:
            if reply is None:
                raise error or BrokerUnavailable("no answer")
            frame = accepted(reply, connection, action.partition, ())
            outcomes = decode_outcomes(frame.body, len(action.settlements))
        except MetaqError as failure:
            self._failed(action, failure)
            return
        with self.lock:
            self.core.settled(action.partition, outcomes)
        self.settling.ring()
        self._follow_up()

    def _follow_up(self) -> None:
        """Execute the actions that have become due because an answer has arrived."""
        self.go_on()
        if self.core.is_due:
            self.ring()

    # --- any thread ---------------------------------------------------------------------------------------------------

    def _failed(self, action: Acquiring | Settle, error: MetaqError | None, *, sent: bool = True) -> None:
        """Report to the core that an action was not executed. error: the reason. It is None if the action only had to
        wait for a connection; the connection exists now, so the core can repeat the action at once. sent: whether the
        broker may have received the request.
        """
        partition = action.partition
        pause = 0.0 if error is None else self._pool.follow(error)
        if pause is None:
            if isinstance(error, SharedRefused | AccessRefused):
                self._give_up(error)
            elif not isinstance(error, BrokerUnavailable | RequestTimedOut):
                log.warning("shared group %s: %s %s: %s", self._terms.group, partition.topic, partition, error)
        with self.lock:
            now = self._clock()
            if isinstance(action, Acquiring):
                self.core.refused(partition, now, pause)
            else:
                self.core.unsettled(partition, now, pause, sent=sent)
        self.settling.ring()
        self.ring()

    def _give_up(self, error: MetaqError) -> None:
        """Stop the consumer because of this error: request no more messages, and release the messages that the program
        has not taken.
        """
        with self.lock:
            if self.failure is None:
                self.failure = error
                self.core.close(self._clock())
        self.wake()
        self.ring()
