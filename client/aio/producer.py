"""The producer for asyncio."""

from __future__ import annotations

import asyncio
import random
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from metaq.protocol.errors import ClientError, MetaqError, NoPartition, RequestTimedOut
from metaq.protocol.record import Buffer, payload_bytes

from ..producer.building import SendOptions, build_batch, build_body, build_message, list_of
from ..producer.cancelling import Cancelling
from ..producer.delays import timing_of
from ..producer.futures import Outcome
from ..producer.outgoing import ASKED, Outgoing
from ..producer.packing import Packer
from ..producer.producer import zookeeper_metadata
from ..producer.requesting import reply_options
from ..producer.routing import PartitionSelector, Router, check_selector
from ..records.results import SendResult, TopicPartition
from ..runtime.durations import Duration, check_timeout, check_wait, milliseconds_of
from ..runtime.timers import END_SECONDS, TimeLeft
from ..settings.config import ProducerConfig, config_or_default
from ..transport.connection import Reply
from ..transport.metadata import UNKNOWN, DirectMetadata, Metadata, parse_address
from .loop import BlockingThread
from .metadata import LoopMetadata
from .pool import LoopPool
from .producing import LoopDriver

if TYPE_CHECKING:
    from ..records.message import Message

__all__ = ["AsyncProducer", "SendOutcome"]

T = TypeVar("T")

_TURN_SECONDS = 0.001
"""A loop of `produce` calls, which need not wait, lets the event loop work after this number of seconds. Otherwise no
answer would be read, and no other task would run, before the buffer is full.
"""


class SendOutcome(Generic[T]):
    """The outcome of a message that `produce` has accepted. `await delivery` returns the message's result, or raises
    the error of its send. If a task that waits is cancelled, the message and this object are not affected: the object
    can be awaited again, by any number of tasks.
    """

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[T]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.shield(self._future).__await__()

    def done(self) -> bool:
        """Whether the message is stored or has failed."""
        return self._future.done()

    def result(self) -> T:
        """Return the result, or raise the error. Raises asyncio.InvalidStateError if it is not known yet."""
        return self._future.result()

    def exception(self) -> BaseException | None:
        """Return the error; None if the message is stored. Raises asyncio.InvalidStateError if it is not known yet."""
        return self._future.exception()

    def add_done_callback(self, callback: Callable[[SendOutcome[T]], object]) -> None:
        """Call `callback(self)` on the event loop when the outcome is known."""
        self._future.add_done_callback(lambda _: callback(self))


class _Futures:
    """The event loop's futures of the messages that share an Outcome, in the order of their indexes in it."""

    __slots__ = ("_outcome", "futures")

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self.futures: list[asyncio.Future[Any]] = []

    def settled(self) -> None:
        error = self._outcome.error
        if error is not None:
            for future in self.futures:
                if not future.done():  # otherwise its task was cancelled
                    future.set_exception(error)
            return
        for future, result in zip(self.futures, self._outcome.result, strict=False):
            if not future.done():
                future.set_result(result)


class AsyncProducer:
    """A client that sends messages from an event loop. The arguments, results and errors are those of the Producer with
    threads, and so are batching, retries and the choice of partitions. All methods are called on the event loop that
    has started the producer; any number of tasks may use it.

    Use it as `async with Producer(...) as producer:`, or call `start` and `close`.

    If the task of a call is cancelled, the call raises CancelledError and the producer can still be used. A message of
    a cancelled call may be stored once or not at all, but no retry is lost: the producer still sends an accepted
    message until its deadline. Use `produce` if the program must learn the outcome after a cancellation.
    """

    def __init__(
        self,
        connect: str = "localhost:2181",
        *,
        selector: PartitionSelector | None = None,
        linger_ms: int | timedelta | None = None,
        root: str = "/meta",
        default_topic: str | None = None,
        config: ProducerConfig | None = None,
        metadata: Metadata | None = None,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        """See the Producer with threads for the arguments. The constructor does no I/O. Raises ConfigError."""
        config = config_or_default(config, ProducerConfig)
        self._config = config if linger_ms is None else replace(config, linger_ms=milliseconds_of(linger_ms))
        self._selector = None if selector is None else check_selector(selector)
        self._cluster = connect, root
        self._default_topic = default_topic
        self._given_metadata = self._cluster_metadata = metadata
        self._clock = clock
        self._random = random
        self._seconds = self._config.delivery_timeout_seconds
        self._packer = Packer.of(self._config)
        self._turn_began = 0.0
        self._is_open = False
        self._was_started = False

    @classmethod
    def direct(
        cls,
        address: str,
        *,
        broker_id: int = UNKNOWN,
        partitions: Mapping[str, int] | None = None,
        selector: PartitionSelector | None = None,
        linger_ms: int | timedelta | None = None,
        config: ProducerConfig | None = None,
    ) -> Self:
        """Return a producer that sends to one broker and does not use ZooKeeper; see Producer.direct of the client with
        threads. Raises ConfigError.
        """
        metadata = DirectMetadata(parse_address(address), broker_id, partitions or {})
        return cls(selector=selector, linger_ms=linger_ms, config=config, metadata=metadata)

    async def start(self) -> None:
        """Connect to ZooKeeper. Raises CoordinationUnavailable if no ZooKeeper server answers within
        start_timeout_seconds, and ClientError if the producer was started before.
        """
        if self._was_started:
            raise ClientError("a Producer is started once: make another one")
        self._was_started = True
        loop = self._loop = asyncio.get_running_loop()
        thread = self._thread = BlockingThread("metaq-zookeeper", loop)
        metadata = self._given_metadata
        try:
            if metadata is None:
                metadata = await thread.run(self._read_cluster)
            self._metadata = LoopMetadata(metadata, thread, loop)
            if self._default_topic is not None:
                await self._metadata.learn(self._default_topic)
        except BaseException:  # also if this task is cancelled while the thread still connects
            self._end_metadata(END_SECONDS)
            raise
        self._pool = LoopPool(self._config.connection, loop, self._clock, self._random)
        router = Router(self._metadata, self._pool, self._selector, self._default_topic, self._clock, self._random)
        self._driver = LoopDriver(
            self._config,
            self._metadata,
            self._pool,
            router,
            loop,
            self._clock,
            self._random,
            gathers=self._selector is None,
        )
        # A producer that compresses builds each payload, so no message joins a batch unchanged.
        self._join = self._driver.core.join if self._packer is None else _join_none
        self._is_open = True

    def _read_cluster(self) -> Metadata:
        """Connect to ZooKeeper. Runs on the thread for blocking calls."""
        metadata = self._cluster_metadata = zookeeper_metadata(*self._cluster, self._config)
        metadata.start(self._config.start_timeout_seconds)
        return metadata

    def _end_metadata(self, seconds: float) -> asyncio.Future[None]:
        """Let the thread for blocking calls close the session to ZooKeeper within `seconds`, and end. Return the future
        of the closing.
        """

        def close() -> None:
            if self._cluster_metadata is not None:
                self._cluster_metadata.close(seconds)

        ending = self._thread.begin(close)
        self._thread.close()
        return ending

    # --- sending ----------------------------------------------------------------------------------------------------

    async def send(
        self, topic: str, payload: Buffer, *, timeout: Duration | None = None, **options: Unpack[SendOptions]
    ) -> SendResult:
        """Send one message, and wait until it is acknowledged. The options, the result and the errors are those of
        Producer.send of the client with threads.

        While messages of max_buffered_bytes (or max_buffered_messages messages) wait for their outcome, the call waits
        for room. Calls that run at the same time share requests. Raises RequestTimedOut after `timeout` seconds
        (default delivery_timeout_seconds); the message may or may not be stored.
        """
        return await (await self._begin(topic, payload, timeout, options))

    async def produce(
        self, topic: str, payload: Buffer, *, timeout: Duration | None = None, **options: Unpack[SendOptions]
    ) -> SendOutcome[SendResult]:
        """Accept one message for sending, and return its SendOutcome. The call waits only for room in the buffer, and
        for the first message of a topic until the topic is read from ZooKeeper. If it raises an error, also
        CancelledError, the message was not accepted and will not be stored.
        """
        if self._clock() - self._turn_began > _TURN_SECONDS:
            await self._turn()
        return SendOutcome(await self._begin(topic, payload, timeout, options))

    async def send_batch(
        self,
        topic: str,
        payloads: Iterable[Buffer | Message],
        *,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> Sequence[SendResult]:
        """Send many messages to one partition in one request, and wait until all are acknowledged; see
        Producer.send_batch of the client with threads.
        """
        return await (await self._begin_batch(topic, payloads, timeout, options))

    async def produce_batch(
        self,
        topic: str,
        payloads: Iterable[Buffer | Message],
        *,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> SendOutcome[Sequence[SendResult]]:
        """Accept the messages of a batch as `send_batch` does, but return their SendOutcome at once, as `produce`."""
        if self._clock() - self._turn_began > _TURN_SECONDS:
            await self._turn()
        return SendOutcome(await self._begin_batch(topic, payloads, timeout, options))

    async def _turn(self) -> None:
        """Let the event loop run other tasks, and send and receive."""
        await asyncio.sleep(0)
        self._turn_began = self._clock()

    async def reply(
        self, request: Message, payload: Buffer, *, timeout: Duration | None = None, **options: Unpack[SendOptions]
    ) -> SendResult:
        """Send the reply to a request that a consumer has received, and wait until the reply is stored; see
        Producer.reply of the client with threads.
        """
        to, own = reply_options(request, options)
        topic, deadline = to.partition.topic, self._deadline(timeout)
        outgoing = build_message(topic, payload, deadline, own, self._packer)
        result: SendResult = await (await self._accept(outgoing))
        return result

    async def cancel(self, result: SendResult, *, timeout: Duration | None = None) -> bool:
        """Cancel a message that was sent with `deliver_at` or `delay`; see Producer.cancel of the client with threads.
        If the task is cancelled meanwhile, the message may or may not be cancelled.
        """
        self._check_open()
        deadline = self._deadline(timeout)
        cancelling = Cancelling(result, self._pool.follow, deadline)
        topic, broker = cancelling.partition.topic, cancelling.partition.broker
        await self._metadata.learn(topic)
        while True:
            try:
                endpoint = self._metadata.view(topic).endpoints.get(broker)
                if endpoint is None:
                    raise NoPartition(f"topic {topic!r}: broker {broker} is not registered any more")
                connection = await self._pool.connected(endpoint)
                reply: Reply = await connection.ask(cancelling.request, deadline - self._clock())
                return cancelling.is_cancelled(cancelling.state(reply, connection))
            except MetaqError as error:
                pause = cancelling.pause_after(error, self._clock())
            await asyncio.sleep(pause)

    async def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions of `topic` that accept messages now, ordered by (broker, partition)."""
        self._check_open()
        await self._metadata.learn(topic)
        return self._metadata.view(topic).partitions

    async def flush(self, timeout: Duration | None = None) -> None:
        """Wait until every accepted message is delivered or has failed. Raises RequestTimedOut after `timeout` seconds
        (default delivery_timeout_seconds).
        """
        self._check_open()
        seconds = self._seconds if timeout is None else check_timeout(timeout)
        if not await self._driver.flush_within(seconds):
            left = self._driver.core.buffered_bytes
            raise RequestTimedOut(f"{left} bytes are not acknowledged after {seconds} s")

    # --- the end ----------------------------------------------------------------------------------------------------

    async def close(self, timeout: Duration = 10.0) -> None:
        """Wait at most `timeout` seconds until every accepted message is delivered or has failed, and close the
        producer. The messages without an outcome then fail with ClientError. Idempotent. If the task is cancelled, the
        producer is closed without waiting.
        """
        seconds = check_wait("timeout", timeout)
        if not self._is_open:
            return
        left = TimeLeft(seconds, self._clock)
        try:
            await self._driver.end_within(seconds)
        finally:
            if self._is_open:
                self._is_open = False
                self._driver.close(left)
                await asyncio.shield(self._end_metadata(max(left.seconds, END_SECONDS)))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            words = "this Producer was not closed, so its last messages may be lost: use `async with Producer(...)`"
            self._end_metadata(END_SECONDS)
            warnings.warn(words, ResourceWarning, 2, source=self)

    # --- accepting --------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClientError(
                "this producer is closed" if self._was_started else "this producer is not started: use `async with`"
            )

    def _deadline(self, timeout: Duration | None) -> float:
        return self._clock() + (self._seconds if timeout is None else check_timeout(timeout))

    async def _begin(
        self, topic: str, payload: Buffer, timeout: Duration | None, options: SendOptions
    ) -> asyncio.Future[SendResult]:
        """Accept a message for sending, and return a future of its result."""
        if not self._is_open:
            self._check_open()
        deadline = self._clock() + (self._seconds if timeout is None else check_timeout(timeout))
        if not options and type(payload) is bytes:
            joined = self._join(topic, 0, payload, deadline, ASKED)
            if joined is not None:
                return self._future(*joined)
        payload = payload_bytes(payload)
        flag, body = build_body(payload, options, self._packer)
        timing = timing_of(flag, body)
        await self._learn(topic, deadline)
        while True:
            outcome, place, outgoing = self._driver.gather(topic, payload, flag, body, timing, deadline, ASKED, options)
            if outgoing is None or self._driver.try_begin(outgoing):
                return self._future(outcome, place)
            await self._driver.wait_for_room(outgoing)

    async def _begin_batch(
        self, topic: str, payloads: Iterable[Buffer | Message], timeout: Duration | None, options: SendOptions
    ) -> asyncio.Future[Sequence[SendResult]]:
        self._check_open()
        items = list_of(payloads)
        if not items:
            empty: asyncio.Future[Sequence[SendResult]] = self._loop.create_future()
            empty.set_result([])
            return empty
        outgoing = build_batch(topic, items, self._deadline(timeout), options, self._packer)
        outgoing.encode()
        return await self._accept(outgoing)

    async def _accept(self, outgoing: Outgoing) -> asyncio.Future[Any]:
        """Accept a message or a batch that is built, and return a future of its result."""
        self._check_open()
        outcome = Outcome()
        outgoing.report = outcome.settle
        await self._learn(outgoing.topic, outgoing.deadline)
        while not self._driver.try_begin(outgoing):
            await self._driver.wait_for_room(outgoing)
        return self._future(outcome, None)

    async def _learn(self, topic: str, deadline: float) -> None:
        if self._metadata.knows(topic):
            return
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock())):
                await self._metadata.learn(topic)
        except TimeoutError:
            raise RequestTimedOut(f"topic {topic!r} was not read from ZooKeeper in time") from None
        self._check_open()

    def _future(self, outcome: Outcome, place: int | None) -> asyncio.Future[Any]:
        """Return a new future of the result at `place` in the outcome, or of the whole result if `place` is None. Call
        it for each message of an Outcome, in the order of their places, before anything else can run.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        if outcome.is_settled:
            if outcome.error is not None:
                future.set_exception(outcome.error)
            else:
                future.set_result(outcome.result if place is None else outcome.result[place])
        elif place is None:
            outcome.watched = [_Whole(outcome, future)]
        else:
            if outcome.watched is None:
                outcome.watched = [_Futures(outcome)]
            (shared,) = outcome.watched
            assert isinstance(shared, _Futures), "only this producer watches it"
            shared.futures.append(future)
        return future


class _Whole:
    """The event loop's future of an Outcome that belongs to one message or batch alone."""

    __slots__ = ("_future", "_outcome")

    def __init__(self, outcome: Outcome, future: asyncio.Future[Any]) -> None:
        self._outcome = outcome
        self._future = future

    def settled(self) -> None:
        if self._future.done():
            return  # its task was cancelled
        if self._outcome.error is not None:
            self._future.set_exception(self._outcome.error)
        else:
            self._future.set_result(self._outcome.result)


def _join_none(*_: object) -> None:
    """Return None, as ProducerCore.join does if there is no open batch."""
