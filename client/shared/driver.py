"""Carries out what the core of a shared consumer decides: one thread sends, the connections' threads take answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

from isal.isal_zlib import crc32

from metaq.coordination.interrupts import BackgroundThread, Bell
from metaq.coordination.logs import get_log
from metaq.protocol.client_stream import Reply
from metaq.protocol.errors import BrokerUnavailable, MetaqError, RequestRefused, RequestTimedOut, SharedRefused
from metaq.protocol.frames import encode_frame
from metaq.protocol.limits import SHARED_MARK
from metaq.protocol.own_topics import is_own_topic
from metaq.protocol.record import HEADER, HEADER_BYTES
from metaq.protocol.shared import (
    AcquireReply,
    AcquireRequest,
    SettleRequest,
    decode_leased,
    decode_outcomes,
    encode_settlements,
)
from metaq.protocol.statuses import RequestCode, ResponseCode, Status

from ..config import SharedConfig
from ..connection import Connection, Endpoint
from ..message import Message, as_original
from ..metadata import Metadata
from ..pool import ConnectionPool
from ..questions.asking import accepted
from ..timers import Timers
from .core import Acquiring, Settle, SharedCore
from .message import SharedMessage

__all__ = ["SharedDriver"]

log = get_log(__name__)

_LOOK_SECONDS = 1.0
"""A thread that waits looks at its condition again after so long, whatever happened to its notification."""


class SharedDriver:
    """Of one shared consumer. `changed` guards the core; its threads are daemons.

    failure: why nothing will ever come: raised by whoever waits.
    """

    def __init__(
        self,
        core: SharedCore,
        config: SharedConfig,
        group: str,
        member: str,
        topics: Sequence[str],
        start: str,
        ordered: bool,
        where: str,
        tags: Collection[str],
        metadata: Metadata,
        pool: ConnectionPool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.core = core
        self.changed = threading.Condition()
        self.failure: MetaqError | None = None
        self._config = config
        self._group = group
        self._member = member
        self._topics = tuple(topics)
        self._start = start
        self._ordered = ordered
        self._where = where
        self._tags = tuple(sorted(tags))
        self._metadata = metadata
        self._pool = pool
        self._clock = clock
        self._bell = Bell()
        self._ended = False
        self._look_needed = True
        self._timers = Timers("metaq-shared-connect")
        self._thread: BackgroundThread | None = None

    def begin(self) -> None:
        """Read where the topics are, and begin to ask. Raises CoordinationUnavailable."""
        self._look()
        self._metadata.on_change(lambda topic: self._topics_changed())
        self._thread = BackgroundThread(self._run, "metaq-shared")

    def also_take(self, topic: str) -> None:
        """Lease messages of this topic, too. Any thread."""
        if topic not in self._topics:
            self._topics = (*self._topics, topic)
            self._topics_changed()

    def ring(self) -> None:
        """Something has changed that the core may act on."""
        self._bell.ring()

    def wait(self, seconds: float) -> None:
        """With `changed` held: until something has come, or the time is over."""
        self.changed.wait(min(max(0.0, seconds), _LOOK_SECONDS))

    def end(self, timeout: float) -> bool:
        """Give back what nobody has taken, and wait until all is settled; whether it is."""
        deadline = self._clock() + timeout
        with self.changed:
            self.core.close(self._clock())
        self.ring()
        with self.changed:
            while self.core.unsettled_count and self._clock() < deadline and self.failure is None:
                self.wait(deadline - self._clock())
            left = self.core.unsettled_count
        self._ended = True
        self.ring()
        self._timers.close()
        if self._thread is not None and not self._thread.is_current:
            self._thread.join(max(0.0, deadline - self._clock()) + 0.1)
        return not left

    # --- the driver's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended:
            try:
                pause = self._go_on()
            except Exception:  # a bug must not end it in silence: say it, pause, go on
                log.exception("shared group %s: a step failed", self._group)
                pause = _LOOK_SECONDS
            self._bell.wait(pause)

    def _go_on(self) -> float | None:
        if self._look_needed:
            self._look_needed = False
            self._look()
        if self.failure is not None:
            return None
        with self.changed:
            actions = self.core.actions(self._clock())
        for action in actions:
            self._begin(action)
        with self.changed:
            when = self.core.next_time(self._clock())
        return None if when == float("inf") else max(0.0, when - self._clock())

    def _topics_changed(self) -> None:
        self._look_needed = True
        self.ring()

    def _look(self) -> None:
        found = [each for topic in self._topics for each in self._metadata.view(topic).partitions]
        with self.changed:
            self.core.use(found)

    def _begin(self, action: Acquiring | Settle) -> None:
        partition = action.partition
        endpoint = self._metadata.view(partition.topic).endpoints.get(partition.broker)
        try:
            if endpoint is None:
                raise BrokerUnavailable(f"broker {partition.broker} is not registered in ZooKeeper")
            connection = self._pool.open_connection(endpoint)
        except MetaqError as error:
            self._failed(action, error, sent=False)
            return
        if connection is None:
            self._connect(endpoint, action)
        else:
            self._send(action, connection)

    def _connect(self, endpoint: Endpoint, action: Acquiring | Settle) -> None:
        """Elsewhere: it may block."""

        def connect() -> None:
            try:
                self._pool.connection(endpoint, self._config.connection.connect_timeout_seconds)
            except MetaqError as error:
                self._failed(action, error, sent=False)
            else:
                self._failed(action, None, sent=False)

        self._timers.call_later(0.0, connect)

    def _send(self, action: Acquiring | Settle, connection: Connection) -> None:
        if not connection.takes_shared:
            self._give_up(
                RequestRefused(
                    Status.BAD_REQUEST,
                    f"broker {action.partition.broker} ({connection.endpoint}) leases no messages to shared consumers: "
                    f"its version says no {SHARED_MARK}: update it, or read its topics with a Consumer",
                )
            )
            self._failed(action, None, sent=False)
            return
        now = self._clock()
        seconds = self._config.connection.request_timeout_seconds
        topic, number = action.partition.topic, action.partition.partition
        if isinstance(action, Acquiring):
            connection.expects_bulk = True
            passed = is_own_topic(topic)  # what comes to the group again has passed its filters
            request = AcquireRequest(
                topic,
                number,
                self._group,
                self._member,
                action.records,
                self._config.fetch_max_bytes,
                round(self._config.lease_seconds * 1000),
                action.wait_ms,
                self._start,
                self._ordered,
                "" if passed else self._where,
                () if passed else self._tags,
            )
            ext = request.to_ext()
            connection.submit(
                lambda opaque: (encode_frame(RequestCode.ACQUIRE, opaque, ext),),
                partial(self._acquired, action, connection),
                now + action.wait_ms / 1000 + seconds,
            )
            return
        body = encode_settlements(action.settlements)
        fields = SettleRequest(topic, number, self._group, len(action.settlements)).to_ext()
        connection.submit(
            lambda opaque: (encode_frame(RequestCode.SETTLE, opaque, fields, len(body)), body),
            partial(self._settled, action, connection),
            now + seconds,
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
            body = bytes(record[HEADER_BYTES:])
            message = SharedMessage(partition, offset, identity, flag, body)
            if may_be_copies:
                original = as_original(Message(*message))
                attempts += original.attempts - 1
                message = SharedMessage(*original)
            message.leased_from, message.leased_at = partition, offset
            message.attempts, message.token, message.lease_until = attempts, token, until
            right = len(body) == length and crc32(body) & 0x7FFFFFFF == checksum
            (good if right else damaged).append(message)
        with self.changed:
            self.core.arrived(partition, good, answer.waiting, now)
            for each in damaged:
                self.core.damaged_here(each, now)
            self.changed.notify_all()
        if damaged:
            log.error("%d messages of %s %s came with wrong checksums", len(damaged), partition.topic, partition)
        self.ring()

    def _settled(self, action: Settle, connection: Connection, reply: Reply | None, error: MetaqError | None) -> None:
        try:
            if reply is None:
                raise error or BrokerUnavailable("no answer")
            frame = accepted(reply, connection, action.partition, ())
            outcomes = decode_outcomes(frame.body, len(action.settlements))
        except MetaqError as failure:
            self._failed(action, failure)
            return
        with self.changed:
            self.core.settled(action.partition, outcomes)
            self.changed.notify_all()
        self.ring()

    # --- any thread ---------------------------------------------------------------------------------------------------

    def _failed(self, action: Acquiring | Settle, error: MetaqError | None, *, sent: bool = True) -> None:
        """error: None = there is a connection now. sent: the broker may have it."""
        partition = action.partition
        pause = 0.0 if error is None else self._pool.follow(error)
        if pause is None:
            if isinstance(error, SharedRefused):
                self._give_up(error)
            elif not isinstance(error, BrokerUnavailable | RequestTimedOut):
                log.warning("shared group %s: %s %s: %s", self._group, partition.topic, partition, error)
        with self.changed:
            now = self._clock()
            if isinstance(action, Acquiring):
                self.core.refused(partition, now, pause)
            else:
                self.core.unsettled(partition, now, pause, sent=sent)
            self.changed.notify_all()
        self.ring()

    def _give_up(self, error: MetaqError) -> None:
        with self.changed:
            if self.failure is None:
                self.failure = error
            self.changed.notify_all()
