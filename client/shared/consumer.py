"""The shared consumer: what users call."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from metaq.coordination.forks import ForkGuard
from metaq.coordination.interrupts import BackgroundThread
from metaq.coordination.logs import get_log
from metaq.protocol.errors import ClientError, ConfigError, RequestTimedOut
from metaq.protocol.limits import MAX_LEASE_MS, MAX_MEMBER_CHARACTERS, MAX_RELEASE_MS, check_group, check_topic
from metaq.protocol.shared import STARTS

from ..config import SharedConfig, check_call_back, check_call_backs, check_number, check_texts, config_or_default
from ..metadata import Metadata
from ..pool import ConnectionPool
from ..timers import END_SECONDS, TimeLeft
from ..values import TopicPartition
from .core import SharedCore
from .driver import SharedDriver
from .message import SharedMessage

if TYPE_CHECKING:
    from ..zookeeper import ZooKeeperMetadata

__all__ = ["OnExhausted", "SharedConsumer"]

log = get_log(__name__)

OnExhausted = Callable[[SharedMessage, BaseException | None], object]
"""on_exhausted(message, error): it has had max_attempts, the last of which ended with `error`; None if its member has
ended, or let its lease run out. When this returns the message counts as done; if it raises, the message comes again."""


class SharedConsumer:
    """A member of a shared group: each message is leased to one member, whatever its partition, and is done when that
    acknowledges it. At least once: one whose lease ends is leased again.

    Members join and leave without telling each other. Any thread may call any method. A process that was forked off
    makes one of its own.
    """

    def __init__(
        self,
        connect: str = "localhost:2181",
        *,
        group: str,
        topics: Iterable[str],
        start: str = "earliest",
        lease_seconds: float | None = None,
        ordered_by_key: bool = False,
        max_attempts: int | None = None,
        on_exhausted: OnExhausted | None = None,
        on_lost: Callable[[SharedMessage], object] | None = None,
        member: str | None = None,
        root: str = "/meta",
        config: SharedConfig | None = None,
        metadata: Metadata | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """connect: ZooKeeper's `host:port,host:port/chroot`; root: metaq's own root below it.

        group: shared groups have names of their own; one that a Consumer has, too, has nothing in common with it.
        start: where the group begins on a partition that no member has asked for yet: "earliest" or "latest".
        lease_seconds: as in SharedConfig, which it overrides. ordered_by_key: messages that were sent with the same key
        are leased one at a time, in their order; all members must say the same. max_attempts: after so many a message
        goes to on_exhausted instead of the handler; None, or without on_exhausted: it keeps coming. on_lost: called
        with a message that was acknowledged or extended too late, when another member may have it; on a thread of the
        consumer, which it must not hold up. member: what operators see; None: one is made of host and process.
        metadata: where the topics are, instead of ZooKeeper.

        Raises ConfigError, InvalidName, TypeError; CoordinationUnavailable if no ZooKeeper server answers.
        """
        config = config_or_default(config, SharedConfig)
        if lease_seconds is not None:
            check_number("lease_seconds", lease_seconds, whole=False)
            config = replace(config, lease_seconds=lease_seconds)
        if start not in STARTS:
            raise ConfigError("start", repr(start), f"choose {' or '.join(map(repr, STARTS))}")
        if not isinstance(ordered_by_key, bool):
            raise ConfigError("ordered_by_key", repr(ordered_by_key), "choose True or False")
        if max_attempts is not None:
            check_number("max_attempts", max_attempts)
        check_call_backs(on_exhausted=on_exhausted, on_lost=on_lost)
        self.group = check_group(group)
        self.topics = tuple(map(check_topic, check_texts("topics", topics)))
        if not self.topics:
            raise ConfigError("topics", "none", "name at least one topic")
        self.member = _member(member)
        self._config = config
        self._max_attempts = max_attempts if on_exhausted is not None else None
        self._on_exhausted = on_exhausted
        self._on_lost = on_lost
        self._clock = clock
        self._guard = ForkGuard("SharedConsumer")
        self._closed = self._stopped = False
        self._pool = ConnectionPool(config.connection)
        own: ZooKeeperMetadata | None = None
        if metadata is None:
            from ..zookeeper import ZooKeeperMetadata  # kazoo: only where there is a ZooKeeper

            metadata = own = ZooKeeperMetadata(connect, root, config.session_timeout_seconds)
        self._metadata = metadata
        self._core = SharedCore(config, self._lost)
        self._driver = SharedDriver(
            self._core,
            config,
            self.group,
            self.member,
            self.topics,
            start,
            ordered_by_key,
            metadata,
            self._pool,
            clock,
        )
        try:
            if own is not None:
                own.start(config.start_timeout_seconds)
            self._driver.begin()
        except BaseException:
            self._pool.close()
            metadata.close()
            raise

    # --- messages -----------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, max_messages: int = 1) -> list[SharedMessage]:
        """At most `max_messages` messages, the most urgent first, as soon as there is one; [] after `timeout` seconds.

        Each is to be settled: ack, release, or extend in time. Raises RequestRefused (a broker that leases nothing),
        SharedRefused, ClientError (closed).
        """
        check_number("max_messages", max_messages)
        return self._take(max_messages, self._clock() + timeout, keep=False)

    def _take(self, most: int, deadline: float, *, keep: bool) -> list[SharedMessage]:
        driver, core = self._driver, self._core
        with driver.changed:
            core.idle += most
            try:
                while True:
                    self._check_open()
                    if driver.failure is not None:
                        raise driver.failure
                    taken = core.take(most, self._clock(), keep=keep)
                    left = deadline - self._clock()
                    if taken or left <= 0 or self._stopped:
                        break
                    driver.ring()
                    driver.wait(left)
            finally:
                core.idle -= most
            if taken and not (core.is_low or core.is_due):
                return taken
            core.is_due = False
        driver.ring()
        return taken

    def ack(self, *messages: SharedMessage) -> None:
        """They are done. The broker hears of it in some milliseconds: `flush` waits for that.

        Ignored for one that is settled already. Raises ClientError (closed), TypeError for what poll() did not give.
        """
        self._settle(messages, lambda message, now: self._core.ack(message, now))

    def release(self, *messages: SharedMessage, delay: float = 0.0) -> None:
        """They may be leased again, by any member, in `delay` seconds. Raises as `ack`; ConfigError for the delay."""
        _check_seconds("delay", delay, MAX_RELEASE_MS)
        self._settle(messages, lambda message, now: self._core.release(message, delay, now))

    def extend(self, message: SharedMessage, seconds: float | None = None) -> None:
        """The lease ends in so many seconds from now on; None: lease_seconds. Raises as `release`."""
        if seconds is not None:
            _check_seconds("seconds", seconds, MAX_LEASE_MS)
        longer = self._config.lease_seconds if seconds is None else seconds
        self._settle((message,), lambda message, now: self._core.extend(message, longer, now))

    def _settle(self, messages: Sequence[SharedMessage], settle: Callable[[SharedMessage, float], None]) -> None:
        for message in messages:
            if not isinstance(message, SharedMessage):
                raise TypeError(f"{message!r:.80} is no message of this consumer's poll()")
        with self._driver.changed:
            self._check_open()
            now = self._clock()
            for message in messages:
                if not message.is_settled:
                    settle(message, now)
            is_due, self._core.is_due = self._core.is_due, False
        if is_due:
            self._driver.ring()

    def flush(self, timeout: float = 10.0) -> None:
        """Wait until the brokers have answered everything that was said of messages. Raises RequestTimedOut."""
        deadline = self._clock() + timeout
        with self._driver.changed:
            while count := self._core.unsettled_count:
                if self._driver.failure is not None:
                    raise self._driver.failure
                left = deadline - self._clock()
                if left <= 0:
                    raise RequestTimedOut(f"{count} acknowledgements are not answered after {timeout:g} s")
                self._driver.wait(left)

    @property
    def counts(self) -> tuple[int, int]:
        """Messages that this member has acknowledged, as brokers have confirmed, and those whose lease it has lost."""
        return self._core.acknowledged, self._core.lost

    def partitions(self) -> list[TopicPartition]:
        """Those that are asked for messages now. Raises CoordinationUnavailable."""
        return [each for topic in self.topics for each in self._metadata.view(topic).partitions]

    def _lost(self, message: SharedMessage) -> None:
        log.warning(
            "group %s: %s %s @%d was settled too late: another member may have it",
            self.group,
            message.topic,
            message.partition,
            message.offset,
        )
        if self._on_lost is not None:
            self._on_lost(message)

    # --- handlers -----------------------------------------------------------------------------------------------------

    def run(self, handler: Callable[[SharedMessage], object], *, threads: int = 1, keep_leases: bool = True) -> None:
        """Call `handler` with each message, on so many threads, until stop() or close(). A message whose handler
        returns is acknowledged. One whose handler raises an Exception is released, and comes again after a pause
        (SharedConfig.retry_step_seconds); what else it raises ends run(), which raises it.

        keep_leases: extend a lease while its handler works. False: a handler that hangs loses its message.
        Raises as `poll`.
        """
        check_call_back("handler", handler)
        check_number("threads", threads)
        self._check_open()
        run = _Run(self, handler, keep_leases)
        with self._driver.changed:
            self._stopped = False
            self._core.workers = threads
        workers = [BackgroundThread(run.work, f"metaq-shared-{number}") for number in range(threads)]
        try:
            with self._driver.changed:
                while not (self._stopped or self._closed or run.failure is not None):
                    self._driver.wait(1.0)
        finally:
            self.stop()
            left = TimeLeft(self._config.stop_seconds)
            for worker in workers:
                worker.join(left.seconds)
        if run.failure is not None:
            raise run.failure

    def stop(self) -> None:
        """Have run(), and polls that wait, return. Any thread, also a handler's."""
        self._stopped = True
        with self._driver.changed:
            self._driver.changed.notify_all()

    def close(self, timeout: float = 10.0) -> None:
        """Give back what was not taken, tell the brokers what is settled, and end; within `timeout` seconds. Messages
        that were taken and not settled come to others when their leases end. Idempotent."""
        if self._closed:
            return
        self._closed = self._stopped = True
        if self._guard.is_elsewhere:
            self._pool.close()
            return
        left = TimeLeft(timeout)
        with self._driver.changed:
            self._driver.changed.notify_all()
        if not self._driver.end(left.part(0.8)):
            log.warning("group %s: brokers have not confirmed everything before the end", self.group)
        self._pool.close(left.part(0.5))
        self._metadata.close(max(left.seconds, END_SECONDS))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        self._guard.check()
        if self._closed:
            raise ClientError("this SharedConsumer is closed")

    def _retry_delay(self, message: SharedMessage) -> float:
        config = self._config
        return min(config.retry_max_seconds, config.retry_step_seconds * message.attempts)


class _Run:
    """One run of a handler."""

    def __init__(self, consumer: SharedConsumer, handler: Callable[[SharedMessage], object], keep: bool) -> None:
        self.failure: BaseException | None = None
        self._consumer = consumer
        self._handler = handler
        self._keep = keep

    def work(self) -> None:
        """A worker's thread."""
        consumer = self._consumer
        try:
            while not (consumer._stopped or consumer._closed):
                for message in consumer._take(1, consumer._clock() + 1.0, keep=self._keep):
                    self._handle(message)
        except ClientError as error:
            if not consumer._closed:
                self._fail(error)
        except BaseException as error:  # also of a handler: run() raises it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        with self._consumer._driver.changed:
            self._consumer._driver.changed.notify_all()

    def _handle(self, message: SharedMessage) -> None:
        consumer = self._consumer
        most = consumer._max_attempts
        if most is not None and message.attempts > most:  # members have ended over it
            self._exhausted(message, None)
            return
        try:
            self._handler(message)
        except Exception as error:
            if message.is_settled:
                log.warning("group %s: the handler of a settled message failed", consumer.group, exc_info=error)
            elif most is not None and message.attempts >= most:
                self._exhausted(message, error)
            else:
                delay = consumer._retry_delay(message)
                log.warning(
                    "group %s: the handler failed on %s %s @%d, attempt %d: again in %g s",
                    consumer.group,
                    message.topic,
                    message.partition,
                    message.offset,
                    message.attempts,
                    delay,
                    exc_info=error,
                )
                consumer.release(message, delay=delay)
        except BaseException:
            consumer.release(message)
            raise
        else:
            consumer.ack(message)

    def _exhausted(self, message: SharedMessage, error: BaseException | None) -> None:
        consumer = self._consumer
        assert consumer._on_exhausted is not None
        try:
            consumer._on_exhausted(message, error)
        except Exception as failure:
            delay = consumer._retry_delay(message)
            log.error(
                "group %s: on_exhausted failed on %s %s @%d: again in %g s",
                consumer.group,
                message.topic,
                message.partition,
                message.offset,
                delay,
                exc_info=failure,
            )
            consumer.release(message, delay=delay)
        else:
            consumer.ack(message)


def _member(name: str | None) -> str:
    if name is None:
        return f"{socket.gethostname()[:64]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_MEMBER_CHARACTERS or not name.isprintable():
        raise ConfigError("member", repr(name), f"name 1 … {MAX_MEMBER_CHARACTERS} printable characters")
    return name


def _check_seconds(option: str, value: float, most_ms: int) -> None:
    check_number(option, value, whole=False, may_be_0=True)
    if value > most_ms / 1000:
        raise ConfigError(option, value, f"choose at most {most_ms / 1000:g} seconds")
