"""The class SharedConsumer. A program uses it to consume messages as a member of a shared group."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from metaq.coordination.runtime.forks import ForkGuard
from metaq.coordination.runtime.interrupts import Aside, BackgroundThread, Bells, begin_elsewhere
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import ClientError, ConfigError, MetaqError, RequestTimedOut
from metaq.protocol.limits import (
    INT32_MAX,
    MAX_LEASE_MS,
    MAX_MEMBER_CHARACTERS,
    MAX_RELEASE_MS,
    check_zookeeper_group,
    check_zookeeper_topic,
)
from metaq.protocol.retries import Failure
from metaq.protocol.shared import STARTS

from ..consumer.retry import Retry
from ..consumer.retrying import FailedMessages, FailedSender
from ..consumer.works import RetryLater
from ..records.results import TopicPartition
from ..runtime.durations import Duration, check_wait
from ..runtime.timers import END_SECONDS, TimeLeft
from ..runtime.unclosed import Closing
from ..serializers.base import Deserializer, deserializers
from ..settings.config import (
    ProducerConfig,
    check_call_back,
    check_call_backs,
    check_number,
    check_texts,
    check_threads,
    config_or_default,
)
from ..settings.consumer_config import MovedLease, SharedConfig, check_tags, check_where
from ..settings.moved_options import by_position, with_moved
from ..transport.metadata import LentMetadata, Metadata
from ..transport.pool import ConnectionPool
from . import tuning
from .core import SharedCore
from .driver import SharedDriver
from .message import SharedMessage
from .terms import SharedTerms

if TYPE_CHECKING:
    from ..questions.zookeeper_metadata import ZooKeeperMetadata

__all__ = ["SharedConsumer"]

log = get_log(__name__)

_NO_WORD = (
    "its members have ended, or let their leases run out, before they settled it; or the one that failed on it found "
    "no broker for the dead letter, as its log says"
)
"""The text that a dead letter contains in place of an exception, if this member does not know why the last attempt
failed: the message's last lease ended without a settlement, or another member could not store the dead letter.
"""

_RETRY = Retry()


class SharedConsumer(Closing):
    """A member of a shared group. A broker leases each message to one member at a time. When the member has
    acknowledged the message, the broker leases it to no member of the group any more. If the lease ends before that,
    the broker leases the message again, so a message is delivered at least once. When a member joins or leaves, there
    is no rebalance: the other members go on unchanged. Any thread may call any method. A forked process must create a
    SharedConsumer of its own.
    """

    def __init__(
        self,
        connect: str = "localhost:2181",
        *,
        group: str,
        topics: Iterable[str],
        start: str = "earliest",
        ordered_by_key: bool = False,
        tags: Iterable[str] | None = None,
        where: str | None = None,
        on_lost: Callable[[SharedMessage], object] | None = None,
        deserializer: Deserializer | None = None,
        root: str = "/meta",
        config: SharedConfig | None = None,
        metadata: Metadata | None = None,
        **moved: Unpack[MovedLease],
    ) -> None:
        """connect: ZooKeeper's connect string, `host:port,host:port/chroot`. root: a znode below the chroot; metaq
        keeps its znodes below this root.

        group: the name of the shared group; a Consumer's group of the same name is unrelated. start: "earliest" or
        "latest": where the group begins to read a partition from which no member of the group has requested messages
        before.
        ordered_by_key: if true, messages with the same key are leased one at a time, in their order. tags: deliver only
        messages with one of these tags. where: deliver only messages whose properties match this filter
        (docs/filters.md). The broker filters by `tags` and `where`, and the consumer checks both again. Messages that
        do not match count as acknowledged for the whole group. So all members must have the same values of
        ordered_by_key, tags and where: the first member determines them, and poll() and run() of a member with other
        values raise SharedRefused.
        on_lost: a function that is called with each message whose lease had already ended when it was acknowledged or
        extended, so that another member may have got the message. The function runs on a thread of the consumer, and
        must not block. deserializer: decodes `message.value`. If several deserializers are given, the message's content
        type determines which one is used. The first deserializer also decodes messages without a content type.
        metadata: a source of topics and brokers that is used instead of ZooKeeper.

        Raises ConfigError, InvalidName, TypeError; CoordinationUnavailable if no ZooKeeper server answers.
        """
        config = with_moved(config_or_default(config, SharedConfig), "SharedConsumer", moved, "lease_seconds", "member")
        if start not in STARTS:
            raise ConfigError("start", repr(start), f"choose {' or '.join(map(repr, STARTS))}")
        if not isinstance(ordered_by_key, bool):
            raise ConfigError("ordered_by_key", repr(ordered_by_key), "choose True or False")
        wanted = check_tags(tags)
        chosen = check_where(where)
        reader = None if deserializer is None else deserializers("deserializer", deserializer)
        check_call_backs(on_lost=on_lost)
        self.group = check_zookeeper_group(group)
        self.topics = tuple(map(check_zookeeper_topic, check_texts("topics", topics)))
        if not self.topics:
            raise ConfigError("topics", "none", "name at least one topic")
        self.member = _member(config.member)
        self._config = config
        self._clock = time.monotonic
        self._guard = ForkGuard("SharedConsumer")
        self._closed = self._stopped = False
        self._ending = Bells()  # is rung when run() must end
        self._aside = Aside("metaq-shared-close")
        self._pool = ConnectionPool(config.connection)
        own: ZooKeeperMetadata | None = None
        if metadata is None:
            from ..questions.zookeeper_metadata import ZooKeeperMetadata  # imports kazoo: only with a ZooKeeper

            metadata = own = ZooKeeperMetadata(connect, root, config.session_timeout_seconds, config=config.connection)
        self._metadata = metadata
        self._sender: FailedSender | None = None  # sends dead letters
        self._core = SharedCore(
            config,
            partial(_lost, self.group, on_lost),
            ordered=ordered_by_key,
            where=chosen,
            tags=wanted,
            reader=reader,
        )
        self._driver = SharedDriver(
            self._core,
            config,
            SharedTerms(
                self.group,
                self.member,
                start,
                ordered_by_key,
                "" if chosen is None else chosen.text,
                tuple(sorted(wanted or ())),
            ),
            self.topics,
            metadata,
            self._pool,
        )
        try:
            if own is not None:
                own.start(config.start_timeout_seconds)
            self._driver.begin()
            self._opened()
        except BaseException:
            begin_elsewhere((self._abandon,))
            self._abandon()
            raise

    def __repr__(self) -> str:
        topics = ", ".join(self.topics[:3]) + (", …" if len(self.topics) > 3 else "")
        closed = ": closed" if self._closed else ""
        return f"<SharedConsumer {self.member} of the group {self.group}, {topics}{closed}>"

    def _abandon(self) -> None:
        """End threads and connections after the constructor has failed or was interrupted. This method may be called
        again.
        """
        self._driver.end(0.0)
        self._pool.close()
        self._metadata.close()

    # --- messages -----------------------------------------------------------------------------------------------------

    def poll(self, timeout: Duration = 1.0, *former: Any, max_messages: int = 1) -> list[SharedMessage]:
        """Return at most `max_messages` messages, the most urgent first. The call returns as soon as there is a
        message, or with [] after `timeout` seconds.

        The caller must call `ack` or `release` for each message before its lease ends; `extend` makes the lease longer.
        Raises RequestRefused if a broker's version cannot lease messages, SharedRefused if a broker leases nothing to
        this member (for example because the group has other filters), AccessRefused if a broker refuses to lease
        messages or to log the user in, and ClientError if this consumer is closed.

        former: max_messages by position, as earlier releases allowed; this causes a DeprecationWarning.
        """
        if former:
            max_messages = by_position("SharedConsumer.poll", former, "max_messages")["max_messages"]
        check_number("max_messages", max_messages, most=INT32_MAX)
        seconds = check_wait("timeout", timeout)
        return self._take(max_messages, self._clock() + seconds, keep=False)

    def _take(self, most: int, deadline: float, *, keep: bool) -> list[SharedMessage]:
        """Return at most `most` messages; if there are none yet, wait for the first one until the deadline. If an
        interrupt ends this call after it has taken messages, the messages are delivered again when their leases end.
        keep: whether the driver extends the leases of the returned messages until the messages are settled.
        """
        driver, core, waiting = self._driver, self._core, object()
        taken: list[SharedMessage] = []

        def look() -> bool:
            nonlocal taken
            with driver.lock:
                self._check_open()
                if driver.failure is not None:
                    raise copy(driver.failure)  # a copy, so that the driver does not keep the raising thread's frames
                taken = core.take(most, self._clock(), keep=keep)
                if not taken and not self._stopped:
                    core.waiting[waiting] = most
                is_due = core.is_low or core.is_due or not taken
                core.is_due = False
            if is_due:
                driver.ring()
            return bool(taken or self._stopped)

        try:
            driver.came.wait_for(look, lambda: deadline - self._clock())
        except MetaqError:
            raise
        except BaseException:
            begin_elsewhere((driver.look_anew,))
            raise
        finally:
            core.waiting.pop(waiting, None)
        return taken

    def _next(self, done: SharedMessage | None, *, keep: bool) -> SharedMessage | None:
        """Acknowledge the message `done` (unless it is None), and return the next message for a thread of run(). One
        method does both, so that the core's lock is acquired only once. Return None if no message comes within a
        second.
        """
        driver, core = self._driver, self._core
        with driver.lock:
            if self._closed:
                self._check_open()
            now = self._clock()
            if done is not None and not done.is_settled:
                core.ack(done, now)
            message = core.take_one(now, keep=keep)
            is_due, core.is_due = core.is_due, False
            is_low = message is not None and core.is_low
        if is_due:
            driver.ring()
        if is_low:
            driver.go_on()
        if message is not None:
            return message
        return next(iter(self._take(1, now + 1.0, keep=keep)), None)

    def ack(self, *messages: SharedMessage) -> None:
        """Acknowledge messages. The call does not wait for the broker, which gets the acknowledgements some
        milliseconds later. Call `flush` to wait for the broker's answer.

        Messages that were acknowledged, released or lost before are ignored. Raises ClientError if this consumer is
        closed, TypeError if an argument did not come from poll().
        """
        self._settle(messages, self._core.ack)

    def release(self, *messages: SharedMessage, delay: Duration = 0.0) -> None:
        """Give up the leases of these messages, so that any member can lease the messages again after `delay` seconds.
        Raises the errors of `ack`, and ConfigError for a wrong delay.
        """
        seconds = _at_most("delay", delay, MAX_RELEASE_MS)
        self._settle(messages, lambda message, now: self._core.release(message, seconds, now))

    def extend(self, message: SharedMessage, seconds: Duration | None = None) -> None:
        """Change the message's lease so that it ends `seconds` from now; None means lease_seconds from now. Raises the
        errors of `release`.
        """
        longer = self._config.lease_seconds if seconds is None else _at_most("seconds", seconds, MAX_LEASE_MS)
        self._settle((message,), lambda message, now: self._core.extend(message, longer, now))

    def _settle(self, messages: Sequence[SharedMessage], settle: Callable[[SharedMessage, float], None]) -> None:
        for message in messages:
            if not isinstance(message, SharedMessage):
                raise TypeError(f"{message!r:.80} is no message of this consumer's poll()")
        try:
            with self._driver.lock:
                self._check_open()
                now = self._clock()
                for message in messages:
                    if not message.is_settled:
                        settle(message, now)
                is_due, self._core.is_due = self._core.is_due, False
            if is_due:
                self._driver.ring()
        except MetaqError:
            raise
        except BaseException:
            begin_elsewhere((self._driver.look_anew,))
            raise

    def flush(self, timeout: Duration = 10.0) -> None:
        """Wait until the brokers have answered all acknowledgements, releases and extensions. Raises RequestTimedOut
        after `timeout` seconds.
        """
        seconds = check_wait("timeout", timeout)
        deadline = self._clock() + seconds
        driver = self._driver
        driver.look_anew()
        if not driver.settling.wait_for(driver.has_settled, lambda: deadline - self._clock()):
            raise RequestTimedOut(f"{driver.unsettled} acknowledgements are not answered after {seconds:g} s")

    @property
    def counts(self) -> tuple[int, int]:
        """Two numbers: how many acknowledged messages brokers have confirmed, and how many messages were lost. A
        message is lost if its lease had already ended when it was acknowledged or extended.
        """
        return self._core.acknowledged, self._core.lost

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions from which this member requests messages now. Raises CoordinationUnavailable."""
        return [each for topic in self.topics for each in self._metadata.view(topic).partitions]

    # --- handlers -----------------------------------------------------------------------------------------------------

    def run(
        self,
        handler: Callable[[SharedMessage], object],
        *,
        threads: int = 1,
        keep_leases: bool = True,
        retry: Retry = _RETRY,
    ) -> None:
        """Call `handler` with each message, on `threads` threads (1 … 1024), until stop() or close().

        When the handler returns, the message is acknowledged. If the handler raises an Exception, the message is
        delivered again after a pause, to any member. If the handler raises an exception of another kind, such as
        KeyboardInterrupt, run() ends and raises this exception.

        keep_leases: whether to extend a message's lease while its handler is running. If it is False and a handler
        hangs, its message's lease ends, and another member may get the message. retry: the pauses between attempts, and
        the number of attempts after which a message becomes a dead letter of the group (DeadLetters). The handler also
        gets dead letters that were redriven to this group. Raises the errors of `poll`. Also raises ConfigError for
        Retry(ordered=True) and for pauses above a week, and InvalidName if the group's name is too long for the name of
        its dead-letter topic.
        """
        check_call_back("handler", handler)
        check_threads(threads)
        if not isinstance(retry, Retry):
            raise ConfigError("retry", repr(retry), "give it a Retry")
        if retry.ordered:
            raise ConfigError(
                "retry",
                "Retry(ordered=True)",
                "leave out ordered: a SharedConsumer has no partition that could wait; with ordered_by_key=True those "
                "behind a message with the same key wait for its next attempt",
            )
        longest = retry.longest_pause(retry.attempts)
        if longest > MAX_RELEASE_MS / 1000:
            raise ConfigError(
                "retry", f"pauses of up to {longest:g} s", f"choose most={MAX_RELEASE_MS // 1000}, a week, or less"
            )
        self._check_open()
        failed = FailedMessages(retry, self.group, self._make_sender, lambda broker: True)
        self._driver.also_take(failed.retry_topic)
        run = _Run(self, handler, keep_leases, failed)
        self._stopped = False
        self._core.workers = threads
        workers: list[BackgroundThread] = []
        try:
            for number in range(threads):
                workers.append(BackgroundThread(run.work, f"metaq-shared-{number}"))
            self._ending.wait_for(lambda: self._stopped or run.failure is not None, lambda: 1.0)
        finally:
            self.stop()
            left = TimeLeft(self._config.stop_seconds)
            for worker in workers:
                worker.join(left.seconds)
        if run.failure is not None:
            raise run.failure

    def stop(self) -> None:
        """Make run() and waiting poll() calls return. Any thread may call this, also a thread in a handler."""
        self._stopped = True
        self._driver.wake()
        self._ending.ring()

    def close(self, timeout: Duration = 10.0) -> None:
        """Release the leased messages that the program has not taken yet, send all acknowledgements and releases to the
        brokers, and end the consumer, all within `timeout` seconds. Messages that the program has taken, but neither
        acknowledged nor released, go to other members when their leases end. Further calls do nothing.
        """
        seconds = check_wait("timeout", timeout)
        self._closes()
        self._closed = self._stopped = True
        if self._guard.is_elsewhere:
            self._pool.close()
            return
        self._aside.do(self._close, seconds)

    def _close(self, timeout: float) -> None:
        """Close the consumer. This method runs on a thread that no interrupt reaches."""
        left = TimeLeft(timeout)
        self._driver.wake()
        self._ending.ring()
        if not self._driver.end(left.part(0.8)):
            log.warning("group %s: brokers have not confirmed everything before the end", self.group)
        if self._sender is not None:
            self._sender.close(left.part(0.5))
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

    def _make_sender(self) -> FailedSender:
        from ..producer import Producer  # not imported by a consumer that never fails

        with self._driver.lock:
            if self._sender is None:
                config = ProducerConfig(connection=self._config.connection)
                self._sender = Producer(config=config, metadata=LentMetadata(self._metadata))
            return self._sender


class _Run:
    """One call of run(): its state, and the loop that its worker threads execute."""

    def __init__(
        self,
        consumer: SharedConsumer,
        handler: Callable[[SharedMessage], object],
        keep: bool,
        failed: FailedMessages,
    ) -> None:
        self.failure: BaseException | None = None
        self._consumer = consumer
        self._handler = handler
        self._keep = keep
        self._failed = failed
        self._unburied: OrderedDict[tuple[TopicPartition, int], Failure] = OrderedDict()
        """The failures of messages that have failed the maximum number of times and whose dead letters no broker has
        stored yet, by partition and offset. Such a message is leased again; if this member gets it, it tries again to
        store the dead letter with this failure. (If another member gets the message, that member does not know the
        failure.)
        """

    def work(self) -> None:
        """Run the loop of a worker thread."""
        consumer = self._consumer
        done: SharedMessage | None = None
        try:
            while not (consumer._stopped or consumer._closed):
                message = consumer._next(done, keep=self._keep)
                done = message if message is not None and self._handle(message) else None
            if done is not None:
                consumer.ack(done)
        except ClientError as error:
            if not consumer._closed:
                self._fail(error)
        except BaseException as error:  # also a handler's exception, which run() raises
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self._consumer._ending.ring()

    def _handle(self, message: SharedMessage) -> bool:
        """Call the handler with a message. Return whether the caller must acknowledge the message."""
        consumer, most = self._consumer, self._failed.retry.attempts
        if message.attempts > most:  # its last lease ended unsettled, or its dead letter was not stored
            known = self._unburied.pop((message.leased_from, message.leased_at), None)
            failure = known or self._failed.failure(message, TimeoutError(_NO_WORD), message.attempts - 1)
            return self._bury(message, failure)
        try:
            self._handler(message)
        except Exception as error:
            if message.is_settled:
                log.warning("group %s: the handler of a settled message failed", consumer.group, exc_info=error)
            elif message.attempts >= most:
                return self._bury(message, self._failed.failure(message, error, message.attempts), error)
            else:
                self._try_again(message, "the handler failed", error)
            return False
        except BaseException:
            consumer.release(message)
            raise
        return True

    def _try_again(self, message: SharedMessage, what: str, error: BaseException | None) -> None:
        pause = self._failed.pause(message.attempts)
        log.warning(
            "group %s: %s on %s %s @%d, attempt %d: again in %g s",
            self._consumer.group,
            what,
            message.topic,
            message.partition,
            message.offset,
            message.attempts,
            pause,
            exc_info=None if isinstance(error, RetryLater) else error,
        )
        self._consumer.release(message, delay=pause)

    def _bury(self, message: SharedMessage, failure: Failure, error: Exception | None = None) -> bool:
        """Store the message as a dead letter. Return True if a broker has stored the dead letter; the caller must then
        acknowledge the message. Otherwise release the message, so that it is delivered again, and return False. error:
        the exception that the handler has just raised, or None.
        """
        consumer = self._consumer
        try:
            self._failed.send(message, failure).future.result()
        except MetaqError as refusal:
            self._unburied[message.leased_from, message.leased_at] = failure
            while len(self._unburied) > tuning.UNBURIED:
                self._unburied.popitem(last=False)
            what = f"no broker has taken a dead letter ({refusal}) with the cause: {failure.cause.splitlines()[0]}:"
            self._try_again(message, what, None if isinstance(error, RetryLater) else error)
            return False
        log.error(
            "group %s: %s %s @%d is a dead letter after %d attempts: %s",
            consumer.group,
            message.topic,
            message.partition,
            message.offset,
            failure.attempts,
            failure.cause,
        )
        return True


def _lost(group: str, on_lost: Callable[[SharedMessage], object] | None, message: SharedMessage) -> None:
    log.warning(
        "group %s: %s %s @%d was settled too late: another member may have it",
        group,
        message.topic,
        message.partition,
        message.offset,
    )
    if on_lost is not None:
        on_lost(message)


def _member(name: str | None) -> str:
    if name is None:
        return f"{socket.gethostname()[:64]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_MEMBER_CHARACTERS or not name.isprintable():
        raise ConfigError("member", repr(name), f"name 1 … {MAX_MEMBER_CHARACTERS} printable characters")
    return name


def _at_most(option: str, given: Duration, most_ms: int) -> float:
    """Return the duration `given` in seconds. Raises ConfigError if it is above `most_ms` milliseconds, WrongDuration
    if it is no duration.
    """
    seconds = check_wait(option, given)
    if seconds > most_ms / 1000:
        raise ConfigError(option, given, f"choose at most {most_ms / 1000:g} seconds")
    return seconds
