"""The producer API for users."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar, Unpack, overload

from metaq.coordination.runtime.forks import ForkGuard
from metaq.coordination.runtime.interrupts import Aside, begin_elsewhere
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import ClientError, ConfigError, DeliveryFailed, RequestTimedOut
from metaq.protocol.limits import check_zookeeper_topic
from metaq.protocol.record import Buffer, payload_bytes

from ..records.results import SendResult, TopicPartition
from ..runtime.durations import Duration, check_timeout, check_wait, milliseconds_of, whole_seconds
from ..runtime.timers import END_SECONDS, TimeLeft
from ..runtime.unclosed import Closing
from ..settings.config import (
    Compression,
    ProducerConfig,
    check_call_back,
    check_texts,
    config_or_default,
)
from ..settings.moved_options import MovedProtocol, with_moved
from ..transport.metadata import UNKNOWN, DirectMetadata, Metadata, parse_address
from ..transport.pool import ConnectionPool
from .building import SendOptions, build_batch, build_body, build_message, list_of
from .delays import timing_of
from .driver import Driver
from .futures import SendFuture, refuse_in_callback, refuse_in_handler
from .outgoing import ASKED, OnDelivery
from .packing import Packer
from .routing import PartitionSelector, Router, check_selector
from .undelivered import AtExit, Losses

if TYPE_CHECKING:  # rarely used modules are imported when they are first used
    from ..questions.zookeeper_metadata import ZooKeeperMetadata
    from ..records.health import ProducerHealth
    from ..records.local_store import LocalMessageStore, StoredMessage
    from ..records.message import Message
    from ..serializers.base import Deserializer, Serializer
    from .check_back import Execute, TransactionResult
    from .own_halves import Check
    from .requesting import Requester
    from .transacting import Transacting
    from .transaction import Transaction
    from .typed import TypedProducer
    from .xa import XaResource

__all__ = ["Producer"]

log = get_log(__name__)

T = TypeVar("T")


class Producer(Closing):
    """A client that sends messages. Safe to share between threads. A forked process must create its own producer. In
    the forked process, all methods of the parent's producer raise ClientError, except close(), which does not affect
    the parent.

    If the broker's answer to a send does not arrive (because the broker died, or the request timed out), the producer
    sends the message again. With the setting `idempotent` (the default), a metaq broker recognizes the repetition and
    stores the message only once. Without it, or on a broker of metaq 1.x (a Java broker), the message may be stored
    twice; docs/client.md, "Exactly once stored", names all cases. If one thread sends several messages with the same
    key or to the same partition, these messages keep their order.
    """

    _made: Transacting | None = None

    def __init__(
        self,
        connect: str = "localhost:2181",
        *,
        selector: PartitionSelector | None = None,
        linger_ms: int | timedelta | None = None,
        compression: Compression | None = None,
        producer_group: str | None = None,
        root: str = "/meta",
        default_topic: str | None = None,
        undelivered: LocalMessageStore | None = None,
        config: ProducerConfig | None = None,
        metadata: Metadata | None = None,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
        **moved: Unpack[MovedProtocol],
    ) -> None:
        """connect: the addresses of the ZooKeeper servers, `host:port,host:port/chroot`. root: the path of metaq's
        nodes below the chroot.

        selector: chooses the partition for each message without a key (default: all partitions in turn). linger_ms: how
        long an asynchronous message waits for other messages to share its batch. compression, producer_group: as in
        ProducerConfig; if one of these three arguments is None, the value in `config` counts. default_topic: a topic
        whose partitions are used for messages of topics that no broker publishes yet. Such a message is sent to the
        broker of one of these partitions, with the partition's number, but under the message's own topic. When the
        first such message arrives, the broker begins to publish the message's topic, if the broker's server.ini has a
        topic pattern that matches the name. undelivered: a store in which messages of send_async and produce are saved
        if they cannot be delivered in time; the producer tries to send the saved messages every
        recover_interval_seconds. No other producer may use the store, and this producer closes it.

        Raises ConfigError; CoordinationUnavailable if no ZooKeeper server answers within start_timeout_seconds.
        """
        config = with_moved(config_or_default(config, ProducerConfig), "Producer", moved, "protocol")
        if selector is not None:
            check_selector(selector)
        self._config = _with_arguments(config, linger_ms, compression, producer_group)
        self._clock = clock
        self._random = random
        self._pool = ConnectionPool(self._config.connection, clock=clock, random=random)
        own = None
        if metadata is None:
            metadata = own = zookeeper_metadata(connect, root, self._config)
        self._metadata = metadata
        self._own_metadata = own
        self._of = f"of {connect}" if own is not None else "with metadata of its own"
        self._assemble(selector, default_topic, undelivered, clock, random)
        try:
            if own is not None:
                own.start(self._config.start_timeout_seconds)
            self._driver.start()
            self._opened()
        except BaseException:
            begin_elsewhere((self._abandon,))
            self._abandon()
            raise

    def _abandon(self) -> None:
        """End threads and connections after the constructor has failed or was interrupted. This method may be called
        again.
        """
        self._aside.do(self._close, 0.0)

    def _assemble(
        self,
        selector: PartitionSelector | None,
        default_topic: str | None,
        undelivered: LocalMessageStore | None,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._router = Router(self._metadata, self._pool, selector, default_topic, clock, random)
        self._seconds = self._config.delivery_timeout_seconds
        self._packer = Packer.of(self._config)
        self._driver = Driver(
            self._config, self._metadata, self._pool, self._router, undelivered, clock, random, gathers=selector is None
        )
        self._core = self._driver.core
        # A producer that compresses builds each payload, so no message joins a batch unchanged.
        self._join = self._core.join if self._packer is None else _join_none
        self._closing = False
        self._aside = Aside("metaq-producer-close")
        self._guard = ForkGuard("Producer")
        self._unreported = Losses()
        self._requester: Requester | None = None
        self._requesting = Aside("metaq-producer-requests")
        self._making_requester = threading.Lock()  # taken where no interrupt comes
        self._at_exit = AtExit(self, self._driver, self._unreported, self._config.deliver_at_exit_seconds, clock)

    @classmethod
    def direct(
        cls,
        address: str,
        *,
        broker_id: int = UNKNOWN,
        partitions: Mapping[str, int] | None = None,
        selector: PartitionSelector | None = None,
        linger_ms: int | timedelta | None = None,
        compression: Compression | None = None,
        producer_group: str | None = None,
        undelivered: LocalMessageStore | None = None,
        config: ProducerConfig | None = None,
        **moved: Unpack[MovedProtocol],
    ) -> Self:
        """Return a producer that sends to one broker and does not use ZooKeeper, like a producer of 1.x with
        `serverUrl`.

        address: `host:port`, also with 1.x's prefix `meta://`. partitions: the number of partitions of each topic. For
        a topic that is not listed, the broker chooses a partition for each message. The options `key` and `partition`
        and transactions cannot be used with such a topic.
        broker_id: the broker id in the partition names that this producer returns; it is not sent to the broker. The
        other arguments have the same meaning as in Producer. Raises ConfigError.
        """
        return cls(
            selector=selector,
            linger_ms=linger_ms,
            compression=compression,
            producer_group=producer_group,
            undelivered=undelivered,
            config=with_moved(config_or_default(config, ProducerConfig), "Producer.direct", moved, "protocol"),
            metadata=DirectMetadata(parse_address(address), broker_id, partitions or {}),
        )

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        payload: Buffer,
        *,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> SendResult:
        """Send one message and wait until it is acknowledged.

        Every kind of send has the following options. `tag`: a text; consumers can filter messages by their tags.
        `keys`: texts without blanks; users can look up the message by each of these texts. `attribute`: one text of
        your own, which clients of metaq 1.x can read, too. `properties`: a mapping from names to values of your own:
        str, int (64 bits), float (finite), bool or bytes. `key`: messages with the same key go to the same partition.
        If the key is a text (or bytes in UTF-8), users can look up the message by each word of the key, as by `keys`.
        `partition`: send the message to this partition. `deliver_at` (a datetime with a time zone) or `delay` (seconds
        after the broker accepts the message): the broker does not deliver the message before this time, which is at
        most 366 days ahead. In the result of such a send, `pending` is true; you can pass the result to `cancel`.
        `ttl`: when this number of seconds has passed since the send, by this machine's clock, no consumer gets the
        message any more. The ttl must be longer than the time until `deliver_at` or the `delay`. `content_type`: the
        type of the payload. Consumers can choose a deserializer by this type. The object that Producer.typed returns
        sets `content_type` itself.
        timeout: the limit in seconds for the whole call, including repeated tries, also on other brokers (default
        delivery_timeout_seconds).

        Raises NoPartition if no broker publishes the topic. The error comes at once or, if this producer has sent to
        the topic before, at the deadline, because a broker may only be restarting. Raises RequestTimedOut if the
        message was not acknowledged in time; the message may or may not be stored. Raises RequestRefused if the broker
        refuses the message. Raises InvalidName; LocalProtocolError (the message is too large, or has bad keys);
        ConfigError (a timeout below 0, a ttl of 0). Raises TypeError for other arguments of a wrong type: a payload
        that is not bytes, attributes that are not strings, a partition that is a number and not a TopicPartition.
        Raises RemoteProtocolError if the answer cannot be decoded; the message may or may not be stored, and is not
        sent again.
        """
        self._guard.check()
        outgoing = build_message(topic, payload, self._deadline(timeout), options, self._packer)
        return self._driver.send_and_wait(outgoing)  # type: ignore[no-any-return]

    def send_async(
        self,
        topic: str,
        payload: Buffer,
        *,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> Future[SendResult]:
        """Send as `send` does, but return a future at once. The future ends with the result or error of `send`, at most
        0.25 s after the deadline.

        The call blocks only in four cases. For the first message to a broker, it opens the connection. For the first
        message of a topic, it reads the topic in ZooKeeper, which takes up to 3 s while a broker set has no leader. If
        no broker publishes the topic, it reads the names of all topics in ZooKeeper, to name the most similar one in
        the error's text. While messages of max_buffered_bytes (or max_buffered_messages messages) wait for their
        outcome, it waits for room, and raises RequestTimedOut if there is no room until the deadline. If no broker
        publishes the topic now, but this producer has sent messages to the topic before, the call queues the message
        and returns at once. Callbacks of the future run on the thread that reads the
        answer: keep them short. In a callback, calls that wait for an answer (`send`, `flush`, a transaction) raise
        ClientError.

        If the producer has a store for `undelivered` messages, and a send fails with an error that is only temporary,
        the producer saves the message in the store and does not report the error. The future then ends with a result
        whose `pending` is true and which has no message id. The producer sends the saved message again later; messages
        that were sent in the meantime may be stored before it.
        """
        self._guard.check()
        deadline = self._clock() + (self._seconds if timeout is None else check_timeout(timeout))
        if not options and type(payload) is bytes:
            joined = self._join(topic, 0, payload, deadline, ASKED)
            if joined is not None:
                return SendFuture(*joined)
        return self._take_over(topic, payload, deadline, ASKED, options)

    def produce(
        self,
        topic: str,
        payload: Buffer,
        *,
        on_delivery: OnDelivery | None = None,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        """Send one message as `send_async` does, but create no future; on_delivery gets the result instead. This is the
        fastest way to send single messages in a loop.

        on_delivery: called as on_delivery(None, result), or on_delivery(error, None), with the result or error of
        `send`; the arguments are in the order of confluent-kafka's on_delivery. Like the callbacks of futures,
        on_delivery runs on the thread that reads the broker's answer, so unlike with confluent-kafka, you need not call
        a poll function. If it is None, the producer only counts the messages that could not be delivered, and the next
        flush() or close() raises DeliveryFailed with their number and the reasons.
        """
        self._guard.check()
        report = self._unreported if on_delivery is None else on_delivery
        deadline = self._clock() + (self._seconds if timeout is None else check_timeout(timeout))
        if options or type(payload) is not bytes or self._join(topic, 0, payload, deadline, report) is None:
            self._take_over(topic, payload, deadline, report, options)

    def send_batch(
        self,
        topic: str,
        payloads: Iterable[Buffer | Message],
        *,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> Sequence[SendResult]:
        """Send many messages to one partition in one request, and wait until all are acknowledged. (Over the text
        protocol each message is sent in a `put` command of its own, without waiting for the answers in between.)

        The options tag, keys, attribute, properties, ttl and key apply to every payload, except that a payload of type
        Message keeps its own values of these options. The results have the order of the payloads; each is computed only
        when it is read. An empty batch returns []. Raises the same errors as `send`. Also raises LocalProtocolError if
        the batch does not fit into one frame; then send the batch in parts.
        """
        self._guard.check()
        items = list_of(payloads)
        if not items:
            return []
        outgoing = build_batch(topic, items, self._deadline(timeout), options, self._packer)
        return self._driver.send_and_wait(outgoing)  # type: ignore[no-any-return]

    def send_batch_async(
        self,
        topic: str,
        payloads: Iterable[Buffer | Message],
        *,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> Future[Sequence[SendResult]]:
        """Send as `send_batch` does, but return a future at once. The future ends with the result or error of
        `send_batch`.

        Use this method to send very many messages: you can build the next batch while the broker stores this one.
        Batches that one thread sends to one partition keep their order. This method blocks in the same cases as
        `send_async`. Batches are never saved in the store for `undelivered` messages.
        """
        self._guard.check()
        items = list_of(payloads)
        future: SendFuture[Sequence[SendResult]] = SendFuture()
        if not items:
            future.set_result([])
            return future
        outgoing = build_batch(topic, items, self._deadline(timeout), options, self._packer)
        outgoing.report = future.outcome.settle
        outgoing.encode()
        self._driver.begin(outgoing)
        return future

    def request(
        self,
        topic: str,
        payload: Buffer,
        *,
        timeout: Duration | None = None,
        deserializer: Deserializer | None = None,
        **options: Unpack[SendOptions],
    ) -> Future[Message]:
        """Send a message that asks for a reply, and return a future of the reply at once.

        A consumer of the topic answers with `reply`. The options are the same as for `send`. If `ttl` is given, no
        consumer gets the request after this number of seconds. timeout: seconds to wait for the reply (default
        delivery_timeout_seconds). If no reply has come by then, the future ends with RequestTimedOut, at most 0.25 s
        later. A reply that comes even later is dropped and counted (`late_replies`). If the request cannot be stored,
        the future ends with the error that `send` would raise. Futures that still wait when the producer is closed end
        with ClientError. deserializer: turns the reply's payload into the reply's `value`, as the deserializer of a
        Consumer does.

        The replies are stored in one partition of ProducerConfig.reply_topic. The first call of `request` starts a
        thread that reads the replies from this partition, and blocks until the broker has told where the partition
        ends, because the reading begins there. Callbacks of the futures run on the reading thread: keep them short.
        Raises NoPartition (no broker has the reply topic), BrokerUnavailable, RequestTimedOut, and the errors of
        `send`.
        """
        self._guard.check()
        from ..serializers.base import deserializers

        reader = None if deserializer is None else deserializers("deserializer", deserializer)
        deadline = self._deadline(timeout)
        requester = self._requester or self._requesting.do(self._make_requester)
        return requester.request(topic, payload, deadline, options, reader)

    def reply(
        self,
        request: Message,
        payload: Buffer,
        *,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> SendResult:
        """Send the reply to a request that a consumer has received, and wait until the reply is stored. The options are
        those of `send`, except tag, key and partition, which the request determines.

        Raises ClientError (the message is no request), ConfigError (tag, key or partition is given), and the errors of
        `send`.
        """
        self._guard.check()
        from .requesting import reply_options

        to, own = reply_options(request, options)
        outgoing = build_message(to.partition.topic, payload, self._deadline(timeout), own, self._packer)
        return self._driver.send_and_wait(outgoing)  # type: ignore[no-any-return]

    @property
    def late_replies(self) -> int:
        """Number of received replies whose request had already ended, because of its timeout or because an earlier copy
        of the reply had come.
        """
        return 0 if self._requester is None else self._requester.late

    def _make_requester(self) -> Requester:
        from .requesting import Requester

        with self._making_requester:
            if self._closing:
                raise ClientError("this producer is closed")
            if self._requester is None:
                begin = self._driver.begin
                self._requester = Requester(
                    self._config, self._metadata, begin, self._packer, self._clock, self._random
                )
            return self._requester

    def send_stored(self, message: StoredMessage, *, timeout: Duration | None = None, retry: bool = True) -> SendResult:
        """Send a message from a LocalMessageStore. If the message names a partition, it goes to that partition. retry:
        False means that `send_stored` makes only one attempt. Raises the same errors as `send`; if `retry` is False,
        also PartitionClosed, BrokerUnavailable and any other error of the single attempt.
        """
        self._guard.check()
        return self._driver.send_stored(message, self._deadline(timeout), retry)

    def typed(self, serializer: Serializer[T]) -> TypedProducer[T]:
        """Return an object that sends values through this producer; `serializer` turns each value into a payload.
        Raises ConfigError.
        """
        from .typed import TypedProducer

        return TypedProducer(self, serializer)

    def transaction(self, *, timeout_seconds: int | timedelta | None = None) -> Transaction:
        """Return a new transaction, for use in a `with` block; all its messages must go to one broker. The transaction
        begins at the broker with the first message, so this call sends no request.

        timeout_seconds: the broker rolls the transaction back after this time (default transaction_timeout_seconds; 0 =
        never). Raises ConfigError.
        """
        self._guard.check()
        from .transaction import Transaction

        return Transaction(self._transacting().calls, self._transaction_seconds(timeout_seconds), self)

    def send_in_transaction(
        self,
        topic: str,
        payload: Buffer,
        *,
        execute: Execute,
        check: Check | None = None,
        group: str | None = None,
        check_after: Duration | None = None,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> TransactionResult:
        """Send one message that consumers see only if local work is committed.

        The broker first stores the message as a half message, which no consumer sees. Then the calling thread calls
        `execute(message)`, which must do the local work, for example a database transaction. If `execute` returns True,
        the message is committed (consumers see it). If it returns False, the message is rolled back (discarded). If it
        returns HalfOutcome.UNKNOWN, the message stays a half message for now. The message also stays a half message if
        `execute` raises an exception, because the local work may have been committed before the exception. The caller
        gets the exception. If the broker is not told the outcome, for example because this process has ended, it asks a
        producer of the same group for the outcome. The broker asks for the first time `check_after` seconds from now
        (by default the broker's value, 6), and at most 15 times in all, after growing pauses. If the last question
        brings no outcome, either, an operator must commit or roll back the message (`metaq halves`). `execute` must
        store the outcome together with the local work, for example in the same database transaction, because `check`
        must be able to find the outcome later, perhaps in another process.

        check: a function that answers the broker's questions about this group and topic from now on, as with
        `check_transactions`. If it is None, the function of an earlier call goes on answering them. `check(message)`
        returns True, False or HalfOutcome.UNKNOWN. UNKNOWN means that `check` cannot tell yet, because another process
        may still be doing the local work. group: the producer group, by default ProducerConfig.producer_group. timeout:
        the limit in seconds for sending the half message; sending its outcome has a separate limit of the same length.
        The options are those of `send`, except deliver_at and delay.

        The result's `outcome` is UNKNOWN if `execute` returned UNKNOWN, or if it returned nothing, which also logs a
        warning. The result's `outcome` is also UNKNOWN if the outcome could not be sent to the broker in time. In this
        last case the result's `cause` is the error of the send, and the broker asks for the outcome later. Raises
        HalfDecided if the check function of another process has given the broker the opposite outcome before `execute`
        had ended; then choose a longer `check_after`. Raises TypeError (`execute` returned a value of another type),
        ConfigError (no group). TransactionTooLate (`check_after` has passed before the work could begin; the message is
        rolled back) and errors of `send` mean that `execute` was not called.
        """
        self._guard.check()
        refuse_in_callback("send_in_transaction()")
        seconds = self._seconds if timeout is None else check_timeout(timeout)
        return self._transacting().halves.run(topic, payload, execute, check, group, check_after, seconds, options)

    def send_in_transaction_async(
        self,
        topic: str,
        payload: Buffer,
        *,
        execute: Execute,
        check: Check | None = None,
        group: str | None = None,
        check_after: Duration | None = None,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> Future[TransactionResult]:
        """Send as `send_in_transaction` does, but return a future at once. The future ends with the result or error of
        `send_in_transaction`.

        `execute(message)` is called once the broker has the half message, on one of `transaction_threads` threads of
        this producer (by default 4). So several calls of `execute` may run at the same time and in any order, and each
        call may block. If `execute` raises an exception, the future ends with this exception. An `execute` that waits
        for the future of another transaction occupies one of these threads meanwhile; if all of them wait like this, no
        transaction goes on.

        Until the transaction ends, it counts for max_buffered_messages, and flush() and close() wait for it. When the
        timeout of close() is over, close() ends the remaining transactions. If `execute` was not called yet for a
        transaction, the transaction's future ends with ClientError, and `execute` will never be called. If `execute`
        was called, the future ends with a result whose `outcome` is UNKNOWN, and the broker asks for the outcome later.
        When the call blocks, which errors it raises, and where the future's callbacks run: see `send_async`. `cancel()`
        of the future always returns False.
        """
        self._guard.check()
        seconds = self._seconds if timeout is None else check_timeout(timeout)
        return self._transacting().halves.begin(topic, payload, execute, check, group, check_after, seconds, options)

    def check_transactions(self, check: Check, topics: Iterable[str], *, group: str | None = None) -> None:
        """From now on, answer the questions of all brokers of these topics about transactions of this producer group,
        including transactions that other producers of the group have begun. A process that sends no messages can call
        this method, too.

        check: as in `send_in_transaction`; threads of this producer call it, one call at a time, until close(). If
        `check` raises an exception, the error is logged, and the broker asks again. A later call for the same group and
        topic replaces the check function. But if this producer has begun a transaction by a call of send_in_transaction
        with its own `check`, that function answers the questions about the transaction. group: the producer group, by
        default ProducerConfig.producer_group. Raises ConfigError, InvalidName.
        """
        self._guard.check()
        halves = self._transacting().halves
        name = halves.group(group)
        check_call_back("check", check)
        chosen = check_texts("topics", topics)
        if not chosen:
            raise ConfigError("topics", repr(topics), "name the topics of the transactions")
        for topic in tuple(map(check_zookeeper_topic, chosen)):
            halves.checker.use(name, topic, check)

    def xa(
        self, topics: Iterable[str], *, qualifier: str | None = None, timeout_seconds: int | timedelta | None = None
    ) -> XaResource:
        """Return an object with the operations of XA transactions (start, end, prepare, commit, rollback, recover),
        which your transaction coordinator must call.

        topics: all topics that you will send to. A transaction goes to a broker that publishes all these topics.
        qualifier: the name that identifies this resource at the brokers, so that `recover` finds its transactions after
        a restart. No other program may have the same qualifier, and it must stay the same after a restart (default
        `XAMessageProducer-<host name>`, as 1.x). timeout_seconds: as for `transaction`; a prepared transaction has no
        timeout. Raises ConfigError, InvalidName.
        """
        self._guard.check()
        from .xa import XaResource

        calls, seconds = self._transacting().calls, self._transaction_seconds(timeout_seconds)
        return XaResource(calls, topics, qualifier, seconds, self)

    def _transacting(self) -> Transacting:
        """Return the producer's object for transactions, and create it at the first call. Any thread may call this,
        also one that can be interrupted. If two threads create an object at the same time, only one of the two objects
        is kept, and both threads get it.
        """
        if self._made is None:
            from .transacting import Transacting

            pool = partial(ConnectionPool, self._config.connection, clock=self._clock, random=self._random)
            made = Transacting(
                *(self._config, self._metadata, self._pool, self._router, self._driver, self._packer),
                *(pool, self._clock),
            )
            kept: Transacting = vars(self).setdefault("_made", made)
            if self._closing:  # close() may have read the attribute before it was set
                kept.close(TimeLeft(0.0, self._clock))
            return kept
        return self._made

    def _transaction_seconds(self, given: int | timedelta | None) -> int:
        return self._config.transaction_timeout_seconds if given is None else whole_seconds("timeout_seconds", given)

    @overload
    def cancel(self, result: SendResult, *, timeout: Duration | None = None) -> bool: ...

    @overload
    def cancel(self, result: Iterable[SendResult], *, timeout: Duration | None = None) -> list[bool]: ...

    def cancel(
        self, result: SendResult | Iterable[SendResult], *, timeout: Duration | None = None
    ) -> bool | list[bool]:
        """Cancel a message that was sent with `deliver_at` or `delay`. Return True once the cancellation is stored as
        safely as the message was. Return False if the message was already due; then the message is delivered.

        result: the result of sending the message; another producer may have sent it. If it is several results, they are
        cancelled one after another, and a list of True and False is returned in their order. If this raises an error,
        some of the messages may be cancelled; you may repeat the call. timeout: time limit in seconds, by
        default delivery_timeout_seconds. Within this time, a broker that cannot be reached is asked again and again.
        Raises MessageNotFound (the broker does not know the message: it was sent to another cluster, or was cancelled
        long ago), ConfigError (the message was not delayed), RequestTimedOut, RequestRefused, BrokerUnavailable.
        """
        self._guard.check()
        refuse_in_callback("cancel()")
        from .cancelling import cancel_delayed

        connect, deadline = self._transacting().calls.connect, self._deadline(timeout)
        cancel = partial(cancel_delayed, connect, self._pool.follow, deadline=deadline, clock=self._clock)
        if isinstance(result, SendResult) or not isinstance(result, Iterable):
            return cancel(result)
        return [cancel(each) for each in list(result)]

    def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions of `topic` that accept messages now, ordered by (broker, partition). The result is
        empty if there are none.
        """
        self._guard.check()
        return self._metadata.view(topic).partitions

    def flush(self, timeout: Duration | None = None) -> None:
        """Wait until every message sent so far is delivered or has failed.

        Raises RequestTimedOut after `timeout` seconds. Raises ClientError if it is called in a callback of a send, or
        in a signal handler that has interrupted a call of this producer. Raises DeliveryFailed if messages that were
        sent by `produce` without an on_delivery could not be delivered, except those that an earlier call has reported.
        """
        self._guard.check()
        seconds = self._seconds if timeout is None else check_timeout(timeout)
        refuse_in_callback("flush()")
        refuse_in_handler("flush()", self)
        if not self._driver.flush(self._clock() + seconds):
            raise RequestTimedOut(f"{self._core.buffered_bytes} bytes are not acknowledged after {seconds} s")
        self._tell_losses()

    def _tell_losses(self) -> None:
        """Raise DeliveryFailed if messages of `produce` without an on_delivery were lost, except those that an earlier
        call has reported.
        """
        if losses := self._unreported.take():
            raise DeliveryFailed(losses)

    def close(self, timeout: Duration = 10.0) -> None:
        """Wait as `flush` does, but at most `timeout` seconds, and then close the producer. The messages that are not
        delivered within this time fail with ClientError, or are saved in the store for undelivered messages. Closing
        takes at most END_SECONDS longer than `timeout`, unless a callback hangs. When close() has closed the producer,
        it raises DeliveryFailed as its last step, in the same cases as `flush`. close() itself ends the futures of the
        messages that are not delivered, and runs their callbacks one after another, so it takes longer if a callback
        blocks.

        When close() returns, the futures of the delivered messages have ended, too, except those whose answers another
        thread has read and is just processing. Idempotent. In a callback of a send, or in a signal handler that has
        interrupted a call of this producer, close() raises ClientError and closes nothing. In a forked process close()
        only closes that process's copies of the sockets.
        """
        seconds = check_wait("timeout", timeout)
        if self._guard.is_elsewhere:
            self._pool.close()
            if self._requester is not None:
                self._requester.close_elsewhere()
            return
        refuse_in_callback("close()")
        refuse_in_handler("close()", self)
        self._closes()
        self._aside.do(self._close, seconds)
        self._tell_losses()

    def health(self) -> ProducerHealth:
        """Return the producer's state, as far as it knows the state itself. This call asks no server and does not wait;
        any thread may call it, also after close().
        """
        from ..records.health import ProducerHealth

        self._guard.check()
        return ProducerHealth(
            None if self._own_metadata is None else self._own_metadata.connected,
            sorted(map(str, self._pool.down)),
            self._core.buffered_messages,
            self._core.buffered_bytes,
            self._closing,
        )

    def __repr__(self) -> str:
        state = "closed" if self._closing else f"{self._core.buffered_messages} messages buffered"
        return f"<{type(self).__name__} {self._of}, {state}>"

    def _end_dropped(self) -> None:
        """Called if the program no longer refers to the producer and has not called close(): wait until all accepted
        messages are delivered or have failed, and then close the producer. If the program was not told of some lost
        messages, do not close it: the exit function reports these messages when the program ends.
        """
        self._driver.flush(math.inf)
        if not self._unreported:
            self.close()

    def _close(self, timeout: float) -> None:
        """Close the producer. Runs on a thread that cannot be interrupted, because after an interrupt some futures,
        threads or the ZooKeeper session would stay open.
        """
        if self._closing:
            return
        left = TimeLeft(timeout, self._clock)
        try:
            self._driver.end(timeout)
        finally:
            self._closing = True
            with self._making_requester:
                requester = self._requester
            if requester is not None:
                requester.close()
            left = TimeLeft(max(left.seconds, END_SECONDS), self._clock)
            self._at_exit.cancel()
            if self._made is not None:
                self._made.close(left)
            self._driver.close(left)
            self._metadata.close(left.seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        try:
            self.close()
        except DeliveryFailed as lost:
            if error is None:
                raise
            log.error("%s", lost)  # the exception of the block itself is more important

    # --- waiting ----------------------------------------------------------------------------------------------------

    def _deadline(self, timeout: Duration | None) -> float:
        return self._clock() + (self._seconds if timeout is None else check_timeout(timeout))

    def _take_over(
        self, topic: str, payload: Buffer, deadline: float, on_delivery: OnDelivery | Losses, options: SendOptions
    ) -> SendFuture[SendResult]:
        """Accept a single message for sending, and return without waiting for its outcome. The returned future gets the
        result or error only if on_delivery is ASKED; otherwise on_delivery gets it.
        """
        payload = payload_bytes(payload)
        flag, body = build_body(payload, options, self._packer)
        timing = timing_of(flag, body)
        return SendFuture(*self._driver.take_over(topic, payload, flag, body, timing, deadline, on_delivery, options))


def _join_none(*_: object) -> None:
    """Return None, as ProducerCore.join does if there is no open batch. A producer that compresses payloads uses this
    function in place of ProducerCore.join.
    """


def zookeeper_metadata(connect: str, root: str, config: ProducerConfig) -> ZooKeeperMetadata:
    """Return the metadata of the cluster, read from ZooKeeper. If an interrupt (such as KeyboardInterrupt) comes while
    the session to ZooKeeper is started, the session is closed again.
    """
    from ..questions.zookeeper_metadata import (
        ZooKeeperMetadata,
    )  # not imported with other metadata, so kazoo is not needed then

    return ZooKeeperMetadata(connect, root, config.session_timeout_seconds, config=config.connection)


def _with_arguments(
    config: ProducerConfig,
    linger_ms: int | timedelta | None,
    compression: Compression | None,
    producer_group: str | None,
) -> ProducerConfig:
    """Return `config` with the values of these arguments of the constructor, except those that are None."""
    if linger_ms is not None:
        config = replace(config, linger_ms=milliseconds_of(linger_ms))
    if compression is not None:
        config = replace(config, compression=compression)
    if producer_group is not None:
        config = replace(config, producer_group=producer_group)
    return config
