"""The producer: what users call, and what becomes of a message whose broker fails."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from metaq.protocol.errors import (
    ClientError,
    MetaqError,
    NoPartition,
    RequestTimedOut,
    TopicNotAccepted,
    WrongPartition,
)
from metaq.protocol.record import Buffer, checksum, encode_attributes

from ..backoff import Backoff
from ..config import ProducerConfig, check_protocol
from ..connection import Connection
from ..direct import UNKNOWN, DirectMetadata, parse_address
from ..local_store import LocalMessageStore, StoredMessage
from ..message import Message
from ..metadata import Metadata
from ..pool import ConnectionPool
from ..timers import Timers
from ..values import SendResult, TopicPartition
from .batching import Outbox
from .building import build_batch, build_message
from .futures import SendFuture
from .lanes import Accumulator, Flight, Lane, Turn
from .outgoing import Outgoing
from .partitioner import PartitionSelector
from .routing import Router
from .sending import FailedTurn, Sender
from .transaction import Transaction
from .transactional import Transactional
from .undelivered import Undelivered
from .xa import XaResource

__all__ = ["Producer"]

log = logging.getLogger(__name__)

_VIEW_RETRIES = 3
_LOOK_AGAIN_SECONDS = 1.0  # for the message's deadline and a closed producer; changes of the cluster wake up
"""Tries of a message that brokers refuse although ZooKeeper lists their topic: the view is stale, or stays wrong."""


class Producer:
    """Sends messages. Safe to share between threads; not between a process and its fork.

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
        self._metadata = metadata or connect_metadata(connect, root, self._config)
        self._router = Router(self._metadata, self._pool, selector, default_topic, clock)
        self._transactional = Transactional(self._metadata, self._pool, self._router, self._config, clock)
        self._timers = Timers("metaq-producer-retry", clock)
        self._sender = Sender(self._metadata, self._pool, self._config.connection, self._landed, self._settled, clock)
        self._outbox = Outbox(self._config, self._sender.transmit, self._linger, clock)
        self._closing = False
        self._cluster_changed = threading.Condition()
        self._undelivered: Undelivered | None = None
        if undelivered is not None:
            interval = self._config.recover_interval_seconds
            self._undelivered = Undelivered(undelivered, self._send_again, interval, clock)
        self._metadata.on_change(self._view_changed)

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
        texts. key: messages with the same key go to the same partition. partition: exactly there. timeout: seconds for
        everything, tries on other brokers included (default delivery_timeout_seconds).

        Raises NoPartition (nobody publishes the topic; one that was sent to before is waited for), RequestTimedOut (not
        acknowledged in time; it may or may not be stored), RequestRefused (the broker will not have it), InvalidName,
        LocalProtocolError (too large, bad keys).
        """
        outgoing = build_message(topic, payload, tag, keys, attribute, headers, self._deadline(timeout))
        outgoing.key, outgoing.fixed = key, partition
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
        """As `send`, but return a future at once; it ends with what `send` would return or raise.

        Blocks only for the first connection to a broker and while max_buffered_bytes are waiting (then raises
        RequestTimedOut). Callbacks of the future run on the thread that reads the answer: keep them short.

        With a store for `undelivered` messages an error that may pass neither is raised nor ends the future: the result
        is `pending` then, without an id, and the message is sent again later, behind others sent since.
        """
        outgoing = build_message(topic, payload, tag, keys, attribute, headers, self._deadline(timeout))
        outgoing.key, outgoing.fixed = key, partition
        future: SendFuture[SendResult] = SendFuture()
        outgoing.future = future
        try:
            route = self._route if self._undelivered is None else self._router.route
            _, flights = self._outbox.add(outgoing, route(outgoing))
        except MetaqError as error:
            if self._undelivered is None or not error.retriable:
                raise
            self._undelivered.keep(outgoing, error)
            return future
        for flight in flights:
            self._sender.transmit(flight)
        return future

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

        tag, keys, attribute and headers are given to every payload; a Message keeps its own. The results are in order
        and computed when looked at. An empty batch returns []. Raises as `send`; LocalProtocolError if the batch is
        larger than one frame: send it in parts.
        """
        items = list(payloads)
        if not items:
            return []
        outgoing = build_batch(topic, items, encode_attributes(attribute, tag, keys, headers), self._deadline(timeout))
        outgoing.key, outgoing.fixed = key, partition
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
        items = list(payloads)
        future: SendFuture[Sequence[SendResult]] = SendFuture()
        if not items:
            future.set_result([])
            return future
        outgoing = build_batch(topic, items, encode_attributes(attribute, tag, keys, headers), self._deadline(timeout))
        outgoing.key, outgoing.fixed, outgoing.future = key, partition, future
        outgoing.encode()
        _, flights = self._outbox.add(outgoing, self._route(outgoing))
        for flight in flights:
            self._sender.transmit(flight)
        return future

    def send_stored(self, message: StoredMessage, *, timeout: float | None = None, retry: bool = True) -> SendResult:
        """Send a message from a LocalMessageStore, to its partition if it has one. retry: False = one try only.

        Raises as `send`; without `retry`, also PartitionClosed, BrokerUnavailable and whatever else the try ends with.
        """
        body = message.body
        outgoing = Outgoing(message.topic, message.flag, checksum(body), body, self._deadline(timeout))
        outgoing.key, outgoing.fixed, outgoing.message = message.key, message.partition, message.payload
        outgoing.once = not retry
        return self._send_and_wait(outgoing)  # type: ignore[no-any-return]

    def transaction(self, *, timeout_seconds: int | None = None) -> Transaction:
        """A transaction on one broker, to be used in a `with` block. Nothing is asked of a broker yet.

        timeout_seconds: after which the broker rolls it back (default transaction_timeout_seconds; 0 = never).
        """
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
        default = self._config.transaction_timeout_seconds
        seconds = default if timeout_seconds is None else timeout_seconds
        return XaResource(self._transactional, topics, qualifier, seconds)

    def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """The partitions of `topic` that take messages now, ordered by (broker, partition); empty if there are none."""
        return self._metadata.view(topic).partitions

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is answered. Raises RequestTimedOut after `timeout` seconds."""
        seconds = self._config.delivery_timeout_seconds if timeout is None else timeout
        if not self._outbox.flush(self._clock() + seconds):
            raise RequestTimedOut(f"{self._outbox.buffered_bytes} bytes are not acknowledged after {seconds} s")
        if self._undelivered is not None:
            self._undelivered.write()

    def close(self, timeout: float = 10.0) -> None:
        """Flush for at most `timeout` seconds; what is left then fails with ClientError, or becomes undelivered.

        Idempotent.
        """
        if self._closing:
            return
        deadline = self._clock() + timeout
        try:
            if self._undelivered is not None:
                self._undelivered.stop_sending(timeout)
            self._outbox.flush(deadline)
        finally:
            self._closing = self._transactional.closed = True
            for outgoing in self._outbox.close():
                self._give_up(outgoing, _Closed("the producer was closed before this message could be sent"))
            self._timers.close()
            self._pool.close()  # requests under way end with BrokerUnavailable
            if self._undelivered is not None:
                self._undelivered.close()
            self._metadata.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- waiting ----------------------------------------------------------------------------------------------------

    def _deadline(self, timeout: float | None) -> float:
        return self._clock() + (self._config.delivery_timeout_seconds if timeout is None else timeout)

    def _send_and_wait(self, outgoing: Outgoing) -> Any:
        accumulator, flights = self._outbox.add(outgoing, self._route(outgoing))
        try:
            for flight in flights:
                self._sender.transmit(flight, outgoing)
        except BaseException:
            for flight in flights:
                if not flight.taken:
                    self._sender.lose(flight)
            raise
        if not outgoing.done:
            self._wait(outgoing, accumulator.lane.connection)
        if outgoing.error is not None:
            raise outgoing.error
        return outgoing.result

    def _route(self, outgoing: Outgoing) -> TopicPartition:
        """As Router.route; but a topic that was sent to before is waited for, until the message's deadline.

        Its only broker may be between two lives: restarted, or its ZooKeeper session has just ended.
        """
        try:
            return self._router.route(outgoing)
        except NoPartition:
            if outgoing.once or not self._outbox.has_sent_to(outgoing.topic):
                raise
        with self._cluster_changed:
            while self._is_away(outgoing) and not self._closing:
                remaining = outgoing.deadline - self._clock()
                if remaining <= 0:
                    break
                self._cluster_changed.wait(min(remaining, _LOOK_AGAIN_SECONDS))
        return self._router.route(outgoing)

    def _is_away(self, outgoing: Outgoing) -> bool:
        """Whether what a message needs is not registered now: its partition's broker, or any that has the topic."""
        view = self._metadata.view(outgoing.topic)
        if outgoing.fixed is not None:
            return outgoing.fixed.broker not in view.endpoints
        return not view.partitions

    def _wait(self, outgoing: Outgoing, connection: Connection | None) -> None:
        if connection is not None:
            # from here on a request sent for this message on this connection needs no background reader
            outgoing.driver = connection
            connection.drive(outgoing, outgoing.deadline)
            outgoing.driver = None
        else:
            outgoing.park_until_done(outgoing.deadline, self._clock)
        if not outgoing.done:
            outgoing.error = _undelivered(outgoing)
            outgoing.done = True  # whoever holds it now drops it

    # --- what becomes of a batch ------------------------------------------------------------------------------------

    def _landed(self, flight: Flight, finished: Sequence[Turn], failed: Sequence[FailedTurn]) -> None:
        for turn, error in failed:
            self._failed(turn.accumulator, turn.batch, error)
        if self._router.avoids_any:
            for accumulator, _ in finished:
                self._router.works(accumulator.partition)
        self._outbox.landed(flight, finished, len(failed))

    def _settled(self, finished: Sequence[Turn]) -> None:
        self._outbox.release(finished)

    def _failed(self, accumulator: Accumulator, batch: list[Outgoing], error: MetaqError) -> None:
        """Give up what cannot or may not be tried again; the rest waits, in order, for the retry thread."""
        again: list[Outgoing] = []
        given_up: list[Outgoing] = []
        now = self._clock()
        for outgoing in batch:
            outgoing.attempts += 1
            if outgoing.cause is None or now < outgoing.deadline:  # its own deadline cutting a try short tells nothing
                outgoing.cause = error
            may_retry = not self._closing and _may_retry(outgoing, error)
            if not outgoing.done and may_retry and now < outgoing.deadline:
                again.append(outgoing)
            else:
                given_up.append(outgoing)
                self._give_up(outgoing, _undelivered(outgoing) if may_retry else error)
        self._outbox.failed(accumulator, again, given_up)
        pause = self._pause(accumulator.failures)
        self._router.avoid(accumulator.partition, error, pause)
        self._timers.call_later(0.0 if accumulator.failures == 1 else pause, partial(self._try_again, accumulator))

    def _give_up(self, outgoing: Outgoing, error: MetaqError) -> None:
        """Nothing is tried any more: the caller gets the error, or the store the message."""
        keeps = self._undelivered is not None and outgoing.storable and outgoing.future is not None
        if self._undelivered is not None and keeps and error.retriable and not outgoing.done:
            self._undelivered.keep(outgoing, error)
        else:
            outgoing.fail(error)

    def _send_again(self, message: StoredMessage) -> SendResult:
        return self.send_stored(message, retry=False)

    def _pause(self, failures: int) -> float:
        backoff = Backoff(self._config.retry_min_seconds, self._config.retry_max_seconds, self._random)
        backoff.tries = failures - 1
        return backoff.next()

    def _try_again(self, accumulator: Accumulator) -> None:
        """Retry thread: route everything queued of a failed partition anew."""
        placed: list[tuple[Outgoing, TopicPartition]] = []
        given_up: list[Outgoing] = []
        for outgoing in self._outbox.drain(accumulator):
            partition = None
            if not outgoing.done and outgoing.deadline <= self._clock():
                self._give_up(outgoing, _undelivered(outgoing))
            elif not outgoing.done:
                partition = self._route_again(outgoing, accumulator.partition)
            if partition is None:
                given_up.append(outgoing)
            else:
                placed.append((outgoing, partition))
        if given_up:
            self._outbox.give_up(given_up)
        self._outbox.resume(accumulator, placed)

    def _route_again(self, outgoing: Outgoing, before: TopicPartition) -> TopicPartition | None:
        try:
            return self._router.route(outgoing)
        except NoPartition:
            return before  # nobody publishes the topic at the moment: it waits here until its deadline
        except Exception as error:  # a selector of the user's: the message gets its error
            outgoing.fail(error)
            return None

    def _view_changed(self, topic: str) -> None:
        """Any thread. A view lists all brokers that are registered, not only those of its topic."""
        with self._cluster_changed:
            self._cluster_changed.notify_all()
        self._pool.forget_all_down_but(set(self._metadata.view(topic).endpoints.values()))
        if self._undelivered is not None:
            self._undelivered.send_soon()

    def _linger(self, lane: Lane) -> None:
        self._timers.call_later(self._config.linger_ms / 1000, partial(self._outbox.flush_lingering, lane))


class _Closed(ClientError):
    """The producer was closed; another one may send the message."""

    retriable = True


def _may_retry(outgoing: Outgoing, error: MetaqError) -> bool:
    if outgoing.once:
        return False
    if isinstance(error, (TopicNotAccepted, WrongPartition)):
        return outgoing.attempts < _VIEW_RETRIES
    return error.retriable


def _undelivered(outgoing: Outgoing) -> RequestTimedOut:
    cause = f"; the last of {outgoing.attempts} tries failed: {outgoing.cause}" if outgoing.cause else ""
    return RequestTimedOut(f"a message to topic {outgoing.topic!r} was not acknowledged in time{cause}")


def connect_metadata(connect: str, root: str, config: ProducerConfig) -> Metadata:
    """The cluster as ZooKeeper tells it. Raises CoordinationUnavailable."""
    from ..zookeeper import ZooKeeperMetadata  # so that a producer with metadata of its own needs no kazoo

    return ZooKeeperMetadata(connect, root, config.session_timeout_seconds, config.start_timeout_seconds)
