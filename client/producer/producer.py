"""The producer: what users call, and what becomes of a message whose broker fails."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from metaq.coordination.backoff import Backoff
from metaq.coordination.forks import ForkGuard
from metaq.coordination.interrupts import Aside, begin_elsewhere
from metaq.coordination.logs import get_log
from metaq.protocol.errors import (
    ClientError,
    DeliveryFailed,
    MetaqError,
    NoPartition,
    RequestTimedOut,
    TopicNotAccepted,
    WrongPartition,
)
from metaq.protocol.record import Buffer, checksum

from ..config import ProducerConfig, check_protocol
from ..local_store import LocalMessageStore, StoredMessage
from ..message import Message
from ..metadata import UNKNOWN, DirectMetadata, Metadata, parse_address
from ..pool import ConnectionPool
from ..timers import END_SECONDS, TimeLeft, Timers
from ..values import SendResult, TopicPartition
from .at_exit import AtExit
from .batching import Outbox
from .building import build_batch, build_body, build_message
from .futures import SendFuture, refuse_in_callback
from .lanes import Accumulator, Flight, Lane, Turn
from .losses import Losses
from .outgoing import ASKED, GatheredBatch, OnDelivery, Outgoing, call_back
from .partitioner import PartitionSelector
from .routing import Router, no_partition
from .sending import FailedTurn, Sender
from .transaction import Transaction
from .transactional import Transactional
from .undelivered import Undelivered
from .xa import XaResource

if TYPE_CHECKING:
    from ..zookeeper import ZooKeeperMetadata

__all__ = ["Producer"]

log = get_log(__name__)

_CROWD = 8
"""So many threads that wait for the next request leave the reading to the background thread: handing that from one to
the next would cost each of them more than it saves."""

_VIEW_RETRIES = 3
"""Tries of a message that brokers refuse although ZooKeeper lists their topic: the view is stale, or stays wrong."""


class Producer:
    """Sends messages. Safe to share between threads. A process that was forked off makes one of its own: with this one
    every call raises ClientError there, but close(), which leaves the parent's alone.

    At least once: a message whose answer is lost (its broker died, the request timed out) is sent again and may then be
    stored twice. Order holds within a partition for messages of one thread that share a key or a partition.
    """

    def __init__(
        self,
        connect: str = "localhost:2181",
        *,
        selector: PartitionSelector | None = None,
        linger_ms: int | None = None,
        protocol: str = "auto",
        root: str = "/meta",
        default_topic: str | None = None,
        undelivered: LocalMessageStore | None = None,
        config: ProducerConfig | None = None,
        metadata: Metadata | None = None,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        """connect: ZooKeeper's `host:port,host:port/chroot`; root: metaq's own root below it.

        selector: chooses the partition of messages without a key (default: each in turn). linger_ms: how long an
        asynchronous message waits for company. protocol: "auto", or "text" for the metaq 1.x commands only.
        default_topic: whose partitions a message goes to, under its own topic, while nobody publishes that (brokers
        with a pattern in server.ini publish a topic with its first message). undelivered: where asynchronous messages
        go that could not be delivered in time, to be sent again every recover_interval_seconds; for this producer
        alone, closed with it.
        Raises ConfigError; CoordinationUnavailable if no ZooKeeper server answers within start_timeout_seconds.
        """
        config = config or ProducerConfig()
        self._config = config if linger_ms is None else replace(config, linger_ms=linger_ms)
        self._clock = clock
        self._random = random
        self._pool = ConnectionPool(self._config.connection, check_protocol(protocol), clock=clock, random=random)
        own = None
        if metadata is None:
            metadata = own = zookeeper_metadata(connect, root, self._config)
        self._metadata = metadata
        try:
            if own is not None:
                own.start(self._config.start_timeout_seconds)
            self._assemble(selector, default_topic, undelivered, clock, random)
        except BaseException:
            if own is not None:
                begin_elsewhere((own.close,))
                own.close()
            raise

    def _assemble(
        self,
        selector: PartitionSelector | None,
        default_topic: str | None,
        undelivered: LocalMessageStore | None,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._router = Router(self._metadata, self._pool, selector, default_topic, clock)
        self._seconds = self._config.delivery_timeout_seconds
        self._gathers = selector is None  # else it is asked for each message
        self._transactional = Transactional(self._metadata, self._pool, self._router, self._config, clock)
        self._timers = Timers("metaq-producer-retry", clock)
        self._answers = Timers("metaq-producer-answers", clock)
        self._sender = Sender(
            self._metadata,
            self._pool,
            self._config.connection,
            self._landed,
            self._settled,
            self._landed_alone,
            self._elsewhere,
            clock,
        )
        self._deadlines = Timers("metaq-producer-deadlines", clock)  # not behind a retry, which may have to connect
        self._outbox = Outbox(
            self._config,
            self._sender.transmit,
            self._linger,
            self._look_at,
            self._elsewhere,
            self._router.partitions_for_keys,
            clock,
        )
        self._closing = False
        self._aside = Aside("metaq-producer-close")
        self._guard = ForkGuard("Producer")
        self._changed_topics: set[str] = set()
        self._undelivered: Undelivered | None = None
        if undelivered is not None:
            interval = self._config.recover_interval_seconds
            self._undelivered = Undelivered(undelivered, self._send_again, interval, clock)
        self._metadata.on_change(self._view_changed)
        self._unreported = Losses()
        self._lost_at_exit: Losses | None = None
        self._at_exit = AtExit(self, self._config.deliver_at_exit_seconds, clock)

    @classmethod
    def direct(
        cls,
        address: str,
        *,
        broker_id: int = UNKNOWN,
        partitions: Mapping[str, int] | None = None,
        selector: PartitionSelector | None = None,
        linger_ms: int | None = None,
        protocol: str = "auto",
        undelivered: LocalMessageStore | None = None,
        config: ProducerConfig | None = None,
    ) -> Self:
        """A producer for one broker, without ZooKeeper (1.x's serverUrl).

        address: `host:port`, also with 1.x's `meta://` in front. partitions: how many a topic has; for other topics the
        broker chooses one for each message, and `key`, `partition` and transactions are not possible. broker_id: what
        partitions call the broker; only for you. The rest: as for Producer. Raises ConfigError.
        """
        return cls(
            selector=selector,
            linger_ms=linger_ms,
            protocol=protocol,
            undelivered=undelivered,
            config=config,
            metadata=DirectMetadata(parse_address(address), broker_id, partitions or {}),
        )

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        payload: Buffer,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        attribute: str | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | bytes | None = None,
        partition: TopicPartition | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message and wait until it is acknowledged.

        tag: what consumers filter on. keys: for lookups, without blanks. attribute: metaq 1.x's. headers: any other
        texts. key: messages with the same key go to the same partition; its words become keys for lookups, too, if it
        is a text (bytes: UTF-8). partition: exactly there. timeout: seconds for everything, tries on other brokers
        included (default delivery_timeout_seconds).

        Raises NoPartition (nobody publishes the topic; one that was sent to before is waited for), RequestTimedOut (not
        acknowledged in time; it may or may not be stored), RequestRefused (the broker will not have it), InvalidName,
        LocalProtocolError (too large, bad keys), TypeError (no bytes, or attributes that are no texts).
        """
        self._guard.check()
        deadline = self._deadline(timeout)
        outgoing = build_message(topic, payload, tag, keys, attribute, headers, key, partition, deadline)
        return self._send_and_wait(outgoing)  # type: ignore[no-any-return]

    def send_async(
        self,
        topic: str,
        payload: Buffer,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        attribute: str | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | bytes | None = None,
        partition: TopicPartition | None = None,
        timeout: float | None = None,
    ) -> Future[SendResult]:
        """As `send`, but return a future at once; it ends with what `send` would return or raise, 0.25 s after the
        deadline at the latest.

        Blocks only for the first connection to a broker, the first look at a topic in ZooKeeper, and while
        max_buffered_bytes are waiting (then raises RequestTimedOut). A topic that was sent to before and is away now is
        no reason: its messages are queued. Callbacks of the future run on the thread that reads the answer: keep them
        short. What waits for an answer (`send`, `flush`, a transaction) raises ClientError there.

        With a store for `undelivered` messages an error that may pass neither is raised nor ends the future: the result
        is `pending` then, without an id, and the message is sent again later, behind others sent since.
        """
        self._guard.check()
        if (
            type(payload) is bytes
            and tag is None
            and key is None
            and partition is None
            and attribute is None
            and not (keys or headers)
        ):
            deadline = self._clock() + (self._seconds if timeout is None else timeout)
            joined = self._outbox.join(topic, 0, payload, deadline, ASKED)
            if joined is not None:
                return SendFuture(*joined)
        return self._take_over(topic, payload, tag, keys, attribute, headers, key, partition, timeout, ASKED)

    def produce(
        self,
        topic: str,
        payload: Buffer,
        *,
        on_delivery: OnDelivery | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        attribute: str | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | bytes | None = None,
        partition: TopicPartition | None = None,
        timeout: float | None = None,
    ) -> None:
        """As `send_async`, for loops of single sends: it makes no future, and costs least of all.

        on_delivery: called as on_delivery(None, result), or on_delivery(error, None), with what `send` would return or
        raise; the order is that of confluent-kafka's on_delivery. It runs where callbacks of futures do, without a poll
        by the caller. Without one, messages that could not be delivered are counted, and the next flush() or close()
        raises DeliveryFailed, which tells how many and why.
        """
        self._guard.check()
        report = self._unreported if on_delivery is None else on_delivery
        if (
            type(payload) is bytes
            and tag is None
            and key is None
            and partition is None
            and attribute is None
            and not (keys or headers)
        ):
            deadline = self._clock() + (self._seconds if timeout is None else timeout)
            if self._outbox.join(topic, 0, payload, deadline, report) is not None:
                return
        self._take_over(topic, payload, tag, keys, attribute, headers, key, partition, timeout, report)

    def send_batch(
        self,
        topic: str,
        payloads: Iterable[Buffer | Message],
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        attribute: str | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | bytes | None = None,
        partition: TopicPartition | None = None,
        timeout: float | None = None,
    ) -> Sequence[SendResult]:
        """Send many messages to one partition in one frame (text protocol: pipelined puts); wait for all.

        tag, keys, attribute, headers and key are given to every payload; a Message keeps its own. The results are in
        order and computed when looked at. An empty batch returns []. Raises as `send`; LocalProtocolError if the batch
        is larger than one frame: send it in parts.
        """
        self._guard.check()
        items = list(payloads)
        if not items:
            return []
        deadline = self._deadline(timeout)
        outgoing = build_batch(topic, items, tag, keys, attribute, headers, key, partition, deadline)
        return self._send_and_wait(outgoing)  # type: ignore[no-any-return]

    def send_batch_async(
        self,
        topic: str,
        payloads: Iterable[Buffer | Message],
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        attribute: str | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | bytes | None = None,
        partition: TopicPartition | None = None,
        timeout: float | None = None,
    ) -> Future[Sequence[SendResult]]:
        """As `send_batch`, but return a future at once; it ends with what `send_batch` would return or raise.

        For bulk: the next batch is made while the broker stores the one before. The batches of one thread to one
        partition keep their order. Blocks as `send_async` does; a store for `undelivered` messages has no part in it.
        """
        self._guard.check()
        items = list(payloads)
        future: SendFuture[Sequence[SendResult]] = SendFuture()
        if not items:
            future.set_result([])
            return future
        deadline = self._deadline(timeout)
        outgoing = build_batch(topic, items, tag, keys, attribute, headers, key, partition, deadline)
        outgoing.report = future.outcome.settle
        outgoing.encode()
        self._begin(outgoing)
        return future

    def send_stored(self, message: StoredMessage, *, timeout: float | None = None, retry: bool = True) -> SendResult:
        """Send a message from a LocalMessageStore, to its partition if it has one. retry: False = one try only.

        Raises as `send`; without `retry`, also PartitionClosed, BrokerUnavailable and whatever else the try ends with.
        """
        self._guard.check()
        body = message.body
        outgoing = Outgoing(message.topic, message.flag, checksum(body), body, self._deadline(timeout))
        outgoing.key, outgoing.fixed, outgoing.message = message.key, message.partition, message.payload
        outgoing.once = not retry
        return self._send_and_wait(outgoing)  # type: ignore[no-any-return]

    def transaction(self, *, timeout_seconds: int | None = None) -> Transaction:
        """A transaction on one broker, to be used in a `with` block. Nothing is asked of a broker yet.

        timeout_seconds: after which the broker rolls it back (default transaction_timeout_seconds; 0 = never).
        """
        self._guard.check()
        default = self._config.transaction_timeout_seconds
        return Transaction(self._transactional, default if timeout_seconds is None else timeout_seconds)

    def xa(
        self, topics: Sequence[str], *, qualifier: str | None = None, timeout_seconds: int | None = None
    ) -> XaResource:
        """The XA verbs, for a transaction coordinator of your own.

        topics: all that messages will be sent to; a transaction goes to a broker that publishes every one of them.
        qualifier: names this resource to brokers, for `recover` after a restart: unique among all programs, the same
        after a restart (default `XAMessageProducer-<host name>`, as 1.x). timeout_seconds: as for `transaction`; a
        prepared transaction has none. Raises ConfigError.
        """
        self._guard.check()
        default = self._config.transaction_timeout_seconds
        seconds = default if timeout_seconds is None else timeout_seconds
        return XaResource(self._transactional, topics, qualifier, seconds)

    def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """The partitions of `topic` that take messages now, ordered by (broker, partition); empty if there are none."""
        self._guard.check()
        return self._metadata.view(topic).partitions

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is answered. Raises RequestTimedOut after `timeout` seconds; ClientError in
        a callback of a send; DeliveryFailed for messages of `produce` without an on_delivery that could not be
        delivered since the last call."""
        self._guard.check()
        refuse_in_callback("flush()")
        seconds = self._config.delivery_timeout_seconds if timeout is None else timeout
        if not self._flush(self._clock() + seconds):
            raise RequestTimedOut(f"{self._outbox.buffered_bytes} bytes are not acknowledged after {seconds} s")
        if self._undelivered is not None:
            self._undelivered.write()
        self._tell_losses()

    def _tell_losses(self) -> None:
        """Raises DeliveryFailed, once for each loss."""
        if losses := self._unreported.take():
            raise DeliveryFailed(losses)

    def close(self, timeout: float = 10.0) -> None:
        """Flush for at most `timeout` seconds; what is left then fails with ClientError, or becomes undelivered. Takes
        END_SECONDS more at most, whatever hangs. Raises DeliveryFailed when all is closed, as `flush` does.

        Every future has ended when this returns, or is being ended by the thread that reads its answer. Idempotent.
        Raises ClientError in a callback of a send, and closes nothing then. In a process that was forked off it only
        closes that process's copies of the sockets.
        """
        if self._guard.is_elsewhere:
            self._pool.close()
            return
        refuse_in_callback("close()")
        self._aside.do(self._close, timeout)
        self._tell_losses()

    def _close(self, timeout: float) -> None:
        """Where no interrupt comes: each step it left out would leave futures, threads or a session behind."""
        if self._closing:
            return
        left = TimeLeft(timeout, self._clock)
        try:
            self._end(timeout)
        finally:
            left = TimeLeft(max(left.seconds, END_SECONDS), self._clock)
            self._at_exit.cancel()
            self._deadlines.close(min(1.0, left.part(0.2)))
            self._timers.close(min(1.0, left.part(0.2)))
            self._answers.close(min(1.0, left.part(0.2)))
            self._pool.close(left.part(0.5))
            if self._undelivered is not None:
                self._undelivered.close(left.part(0.5))
            self._metadata.close(left.seconds)

    def deliver_last(self, timeout: float) -> Mapping[tuple[str, str], int]:
        """For AtExit: as close, but leave connections and session to the end of the process. Returns what is lost."""
        if self._closing:
            return {}
        told = Counter(self._unreported.take())
        self._lost_at_exit = Losses()
        self._end(timeout)
        if self._undelivered is not None:
            self._undelivered.close()
        return told + Counter(self._lost_at_exit.take())

    def _end(self, timeout: float) -> None:
        """Flush; give up what is left after `timeout` seconds, and accept nothing any more."""
        deadline = self._clock() + timeout
        try:
            if self._undelivered is not None:
                self._undelivered.stop_sending(timeout)
            self._flush(deadline)
        finally:
            self._closing = self._transactional.closed = True
            self._give_up_all(self._outbox.close())

    def _flush(self, deadline: float) -> bool:
        """Wait until everything has its outcome; False at the deadline."""
        self._timers.call_later(0.0, self._outbox.send_all)  # not here: it may have to connect
        return self._outbox.wait_until_empty(deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except DeliveryFailed as lost:
            if error is None:
                raise
            log.error("%s", lost)  # the block's own exception tells more

    # --- waiting ----------------------------------------------------------------------------------------------------

    def _deadline(self, timeout: float | None) -> float:
        return self._clock() + (self._seconds if timeout is None else timeout)

    def _take_over(
        self,
        topic: str,
        payload: Buffer,
        tag: str | None,
        keys: Sequence[str],
        attribute: str | None,
        headers: Mapping[str, str] | None,
        key: str | bytes | None,
        partition: TopicPartition | None,
        timeout: float | None,
        on_delivery: OnDelivery | Losses,
    ) -> SendFuture[SendResult]:
        """A single message that no thread is blocked for; its future if on_delivery is ASKED."""
        deadline = self._deadline(timeout)
        flag, body = build_body(payload, tag, keys, attribute, headers, key)
        if key is None and (self._gathers or partition is not None):
            where = topic if partition is None else (topic, partition)
            joined = self._outbox.join(where, flag, body, deadline, on_delivery)
            if joined is not None:
                return SendFuture(*joined)
            gathered = GatheredBatch(where, topic, flag, body, deadline, on_delivery)
            gathered.fixed = partition
            self._begin(gathered)
            return SendFuture(gathered.outcome, 0)
        outgoing = Outgoing(topic, flag, checksum(body), body, deadline)
        outgoing.message, outgoing.key, outgoing.fixed = payload, key, partition
        future: SendFuture[SendResult] = SendFuture()
        if on_delivery is ASKED:
            outgoing.report = future.outcome.settle
        elif isinstance(on_delivery, Losses):
            outgoing.report = partial(on_delivery.report, topic)
        else:
            outgoing.report = partial(call_back, on_delivery)
        self._begin(outgoing)
        return future

    def _begin(self, outgoing: Outgoing) -> None:
        """Accept what no thread is blocked for."""
        try:  # as in `_send_and_wait`
            try:
                if self._undelivered is not None and outgoing.storable and self._router.is_away(outgoing):
                    raise no_partition(outgoing.topic)  # kept until somebody publishes it
                _, flights = self._outbox.add(outgoing, self._route(outgoing))
            except MetaqError as error:
                if self._undelivered is None or not outgoing.storable or not error.retriable:
                    raise
                self._undelivered.keep(outgoing, error)
                return
            for flight in flights:
                self._sender.transmit(flight)
        except BaseException:
            if outgoing.flights:
                begin_elsewhere((self._sender.lose_untaken, outgoing.flights))
            raise

    def _send_and_wait(self, outgoing: Outgoing) -> Any:
        refuse_in_callback("a blocking send")
        try:  # not in a function of its own: where that begins an interrupt may come
            accumulator, flights = self._outbox.add(outgoing, self._route(outgoing))
            for flight in flights:
                self._sender.transmit(flight, outgoing)
        except BaseException:
            if outgoing.flights:
                begin_elsewhere((self._sender.lose_untaken, outgoing.flights))
            raise
        if not outgoing.done:
            self._wait(outgoing, accumulator)
        if outgoing.error is not None:
            raise outgoing.error
        return outgoing.result

    def _route(self, outgoing: Outgoing) -> TopicPartition | None:
        """Where a message is to be queued: as Router.route, or None: by its key, which the outbox does in order.

        A topic that was sent to before may be away: its only broker may be between two lives, restarted, or its
        ZooKeeper session has just ended. Its messages are queued, at most until their deadlines.
        """
        if outgoing.key is not None and outgoing.goes_by_key:
            known = not outgoing.once and self._outbox.partition_of(outgoing.topic) is not None
            if not known and not self._router.partitions_for_keys(outgoing.topic):
                raise no_partition(outgoing.topic)
            return None
        if isinstance(outgoing, GatheredBatch):
            sticky = self._outbox.sticks_to(outgoing.where)
            if sticky is not None:
                return sticky
        try:
            return self._router.route(outgoing)
        except NoPartition:
            last = self._outbox.partition_of(outgoing.topic)
            if outgoing.once or last is None or not self._router.is_away(outgoing):
                raise
        return outgoing.fixed or last

    def _wait(self, outgoing: Outgoing, accumulator: Accumulator | None) -> None:
        connection = outgoing.driver  # that its flight left on; its lane may have another one by now
        if connection is None and accumulator is not None and accumulator.queued_records < _CROWD:
            # from here on a request sent for this message on this connection needs no background reader
            connection = outgoing.driver = accumulator.lane.connection
        if connection is not None:
            connection.drive(outgoing, outgoing.deadline)
            outgoing.driver = None
        else:
            outgoing.park_until_done(outgoing.deadline, self._clock)
        if not outgoing.done:
            outgoing.error = self._overdue(outgoing)
            outgoing.done = True  # whoever holds it now drops it

    # --- what becomes of a batch ------------------------------------------------------------------------------------

    def _landed(self, flight: Flight, finished: Sequence[Turn], failed: Sequence[FailedTurn]) -> None:
        for turn, error in failed:
            if turn.accumulator.under_way is not turn.batch:
                continue  # its request ended before its sender was interrupted
            self._failed(turn.accumulator, turn.batch, error)
        if self._router.avoids_any:
            for accumulator, _ in finished:
                self._router.works(accumulator.partition)
        self._outbox.landed(flight, finished, len(failed))

    def _landed_alone(self, flight: Flight) -> Sequence[Flight] | None:
        return None if self._router.avoids_any else self._outbox.landed_alone(flight)

    def _settled(self, flight: Flight, finished: Sequence[Turn]) -> None:
        self._outbox.release(flight, finished)

    def _elsewhere(self, action: Callable[[], None]) -> None:
        """Have done what an interrupt must not divide, on a thread that no signal reaches."""
        self._answers.call_later(0.0, action)

    def _failed(self, accumulator: Accumulator, batch: list[Outgoing], error: MetaqError) -> None:
        """Give up what cannot or may not be tried again; the rest waits, in order, for the retry thread."""
        again: list[Outgoing] = []
        given_up: list[Outgoing] = []
        now = self._clock()
        for outgoing in batch:
            outgoing.attempts += 1
            outgoing.cause = _telling(outgoing, error, now)
            may_retry = _may_retry(outgoing, error)
            if not outgoing.done and may_retry and not self._closing and now < outgoing.deadline:
                again.append(outgoing)
            else:
                given_up.append(outgoing)
                self._give_up(outgoing, self._no_time_left(outgoing) if may_retry else error)
        self._give_up_all(self._outbox.failed(accumulator, again, given_up))
        pause = self._pause(accumulator.failures)
        self._router.avoid(accumulator.partition, error, pause)
        self._timers.call_later(0.0 if accumulator.failures == 1 else pause, partial(self._try_again, accumulator))

    def _give_up(self, outgoing: Outgoing, error: MetaqError) -> None:
        """Nothing is tried any more: the caller gets the error, or the store the message."""
        if self._undelivered is not None and self._keeps(outgoing) and error.retriable and not outgoing.done:
            self._undelivered.keep(outgoing, error)
        else:
            self._fail(outgoing, error)

    def _fail(self, outgoing: Outgoing, error: Exception) -> None:
        if self._lost_at_exit is not None and not outgoing.done:
            self._lost_at_exit.note(outgoing.topic, outgoing.cause or error, outgoing.count)
        outgoing.fail(error)

    def _give_up_all(self, left: Sequence[Outgoing]) -> None:
        """The producer was closed."""
        for outgoing in left:
            self._give_up(outgoing, _Closed())

    def _keeps(self, outgoing: Outgoing) -> bool:
        """Whether a store for undelivered messages takes it."""
        return self._undelivered is not None and outgoing.storable and outgoing.report is not None

    def _send_again(self, message: StoredMessage) -> SendResult:
        return self.send_stored(message, retry=False)

    def _pause(self, failures: int) -> float:
        backoff = Backoff(self._config.retry_min_seconds, self._config.retry_max_seconds, self._random)
        backoff.tries = failures - 1
        return backoff.next()

    def _try_again(self, accumulator: Accumulator) -> None:
        """Retry thread: route everything queued of a failed partition anew."""
        drained = self._outbox.drain(accumulator)
        if drained is None:
            return  # it was tried again already, when the cluster changed
        placed: list[tuple[Outgoing, TopicPartition | None]] = []
        given_up: list[Outgoing] = []
        for outgoing in drained:
            if not outgoing.done and outgoing.deadline <= self._clock():
                self._give_up(outgoing, self._overdue(outgoing))
                given_up.append(outgoing)
            elif outgoing.done:
                given_up.append(outgoing)
            elif outgoing.goes_by_key:
                placed.append((outgoing, None))
            elif (partition := self._route_again(outgoing, accumulator.partition)) is not None:
                placed.append((outgoing, partition))
            else:
                given_up.append(outgoing)
        self._give_up_all(self._outbox.resume(accumulator, placed, given_up))

    def _route_again(self, outgoing: Outgoing, before: TopicPartition) -> TopicPartition | None:
        try:
            return self._router.route(outgoing)
        except NoPartition:
            return before  # nobody publishes the topic at the moment: it waits here until its deadline
        except Exception as error:  # a selector of the user's: the message gets its error
            self._fail(outgoing, error)
            return None

    def _view_changed(self, topic: str) -> None:
        """Any thread. A view lists all brokers that are registered, not only those of its topic."""
        self._changed_topics.add(topic)
        self._outbox.unstick(topic)
        self._timers.call_later(0.0, self._try_changed)
        self._pool.forget_all_down_but(set(self._metadata.view(topic).endpoints.values()))
        if self._undelivered is not None:
            self._undelivered.send_soon()

    def _try_changed(self) -> None:
        """Retry thread: what waits for brokers that are away need not wait longer if they are back."""
        topics: set[str] = set()
        while self._changed_topics:
            topics.add(self._changed_topics.pop())
        for accumulator in self._outbox.paused(topics) if topics else ():
            self._try_again(accumulator)

    # --- deadlines --------------------------------------------------------------------------------------------------

    def _look_at(self, when: float) -> None:
        self._deadlines.call_later(when - self._clock(), self._expire)

    def _expire(self) -> None:
        """Deadlines' thread: end futures whose time is over, whatever their messages wait for."""
        queued, under_way = self._outbox.take_expired()
        for outgoing in queued:
            self._give_up(outgoing, self._overdue(outgoing))
        for outgoing in under_way:
            if not self._keeps(outgoing):  # else it may be acknowledged yet, and would be sent twice
                self._fail(outgoing, self._overdue(outgoing))

    def _no_time_left(self, outgoing: Outgoing) -> ClientError:
        """What a message ends with that could be tried again."""
        return _Closed() if self._closing else self._overdue(outgoing)

    def _overdue(self, outgoing: Outgoing) -> ClientError:
        """What a message ends with at its deadline."""
        if (outgoing.cause is None or isinstance(outgoing.cause, NoPartition)) and self._router.is_away(outgoing):
            return NoPartition(
                f"topic {outgoing.topic!r}: no broker that is registered now has "
                + ("the topic" if outgoing.fixed is None else f"partition {outgoing.fixed}")
                + ", and none came back before the message's deadline"
            )
        cause = f"; the last of {outgoing.attempts} tries failed: {outgoing.cause}" if outgoing.cause else ""
        return RequestTimedOut(f"a message to topic {outgoing.topic!r} was not acknowledged in time{cause}")

    def _linger(self, lane: Lane) -> None:
        self._timers.call_later(self._config.linger_ms / 1000, partial(self._outbox.flush_lingering, lane))


class _Closed(ClientError):
    """The producer was closed; another one may send the message."""

    retriable = True

    def __init__(self) -> None:
        super().__init__("the producer was closed before this message was acknowledged")


def _may_retry(outgoing: Outgoing, error: MetaqError) -> bool:
    if outgoing.once:
        return False
    if isinstance(error, (TopicNotAccepted, WrongPartition)):
        return outgoing.attempts < _VIEW_RETRIES
    return error.retriable


def _telling(outgoing: Outgoing, error: MetaqError, now: float) -> MetaqError:
    """Which error is the cause of a failed message: its own deadline cutting a try short tells nothing, and that its
    broker is not registered any more tells less than what the broker did before."""
    known = outgoing.cause
    if known is None or isinstance(known, NoPartition):
        return error
    return known if now >= outgoing.deadline or isinstance(error, NoPartition) else error


def zookeeper_metadata(connect: str, root: str, config: ProducerConfig) -> ZooKeeperMetadata:
    """The cluster as ZooKeeper tells it, once it is started: in a `try`, so that an interrupt leaves no session."""
    from ..zookeeper import ZooKeeperMetadata  # so that a producer with metadata of its own needs no kazoo

    return ZooKeeperMetadata(connect, root, config.session_timeout_seconds)
