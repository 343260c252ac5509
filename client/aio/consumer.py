"""The consumer for asyncio."""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from metaq.coordination.runtime.interrupts import begin_elsewhere
from metaq.protocol.errors import ClientError, ConfigError
from metaq.protocol.remoting import DEFAULT_FOUND_MESSAGES

from ..consumer import consumer as with_threads
from ..fetching.core import Accept, ConsumerCore
from ..fetching.cursor import Request
from ..fetching.fetcher import EndpointOf
from ..fetching.notices import OnPartitions
from ..fetching.pauses import PlacesGiven
from ..fetching.polling import Taken, checked_poll
from ..fetching.tuning import CLOSE_SECONDS
from ..questions.finding import FoundMessages
from ..questions.places import Place
from ..records.message import Message
from ..records.results import Lag, TopicPartition
from ..runtime.durations import Duration, check_wait
from ..serializers.base import Deserializer
from ..settings.config import BROWSE_BYTES, ConnectionConfig, config_or_default
from ..settings.consumer_config import ConsumerConfig
from .fetching import LoopFetcher
from .loop import BlockingThread, LoopTimers
from .pool import LoopPool

__all__ = ["AsyncConsumer"]

T = TypeVar("T")

_TURN_SECONDS = 0.005
"""If polls have returned messages for this number of seconds without waiting, the next poll first lets the loop run
other tasks.
"""


class AsyncConsumer:
    """A member of a consumer group that reads topics, for asyncio. The messages, their order, the commits and the
    settings are those of the Consumer with threads. Use it by `async with Consumer(...) as consumer`, or call `start`
    and `close`. It belongs to the event loop on which it was started; only one task at a time may poll.

    ZooKeeper and the group are served by a constant number of threads. No call blocks the event loop.
    """

    def __init__(
        self,
        connect: str = "localhost:2181",
        *,
        group: str,
        topics: Iterable[str],
        start: str | int | Place = "earliest",
        tags: Iterable[str] | None = None,
        where: str | None = None,
        accept: Accept | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        deserializer: Deserializer | None = None,
        root: str = "/meta",
        config: ConsumerConfig | None = None,
    ) -> None:
        """See the Consumer with threads for the arguments. accept, on_assigned, on_revoked: plain functions, which
        poll() calls on the event loop, so they must not block. The constructor does no I/O. Raises ConfigError if one
        of these is a coroutine function; `start` checks all other arguments.
        """
        for option, given in (("accept", accept), ("on_assigned", on_assigned), ("on_revoked", on_revoked)):
            if inspect.iscoroutinefunction(given):
                raise ConfigError(option, repr(given), "give a plain function, which is called inside poll()")
        config = self._config = config_or_default(config, ConsumerConfig)
        # a partial, which holds no reference to this object: otherwise an abandoned one would wait for the collector
        self._make = partial(
            _Inner,
            connect,
            group=group,
            topics=topics,
            start=start,
            tags=tags,
            where=where,
            accept=accept,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            deserializer=deserializer,
            root=root,
            config=config,
        )
        self._inner: _Inner | None = None
        self._was_started = self._is_closed = False

    async def start(self) -> None:
        """Connect to ZooKeeper; the consumer then joins its group in the background. Raises ClientError if the consumer
        was started before, and the errors of the constructor of the Consumer with threads. If the task is cancelled,
        the consumer is closed.
        """
        if self._was_started:
            raise ClientError("a Consumer is started once: make another one")
        self._was_started = True
        loop = asyncio.get_running_loop()
        thread = self._thread = BlockingThread("metaq-zookeeper", loop)
        links = _Links(self._config.connection, loop)
        beginning = thread.begin(partial(self._make, links=links))
        try:
            self._inner = await asyncio.shield(beginning)
        except BaseException:
            thread.begin(links.end)  # after the constructor has ended, if the task was cancelled meanwhile
            thread.close()
            raise

    # --- polling ----------------------------------------------------------------------------------------------------

    async def poll(self, timeout: Duration = 1.0, *, max_messages: int = 500) -> list[Message]:
        """Return the next messages: at least one if any comes within `timeout` seconds, otherwise []. The messages that
        earlier calls returned now count as consumed. The errors are those of Consumer.poll with threads.

        A cancelled call has taken no messages. That is not so if the call runs in a task of its own, whose result
        nobody reads: so limit the time by `timeout` or asyncio.timeout(), not by asyncio.wait_for().
        """
        inner = self._opened()
        seconds = checked_poll(max_messages, timeout)
        messages = await inner.poll_here(partial(inner.take_messages, max_messages), seconds) or []
        inner.returned()
        return messages

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages until close(). A message counts as consumed when the task requests the next one."""
        while not self._is_closed:
            for message in await self.poll(1.0, max_messages=1):
                yield message

    # --- positions --------------------------------------------------------------------------------------------------

    def assignment(self) -> list[TopicPartition]:
        """Return the owned partitions, sorted; see Consumer.assignment with threads."""
        return self._opened().assignment()

    def position(self, partition: TopicPartition) -> int:
        """Return the byte offset of the next message that poll() returns. Raises NotOwner."""
        return self._opened().position(partition)

    async def commit(self) -> int:
        """Count all delivered messages as consumed, commit their offsets now, and return the number of partitions whose
        offset has changed. If the task is cancelled, the offsets are committed nevertheless. Raises SessionLost if the
        partitions now belong to other members, and CoordinationUnavailable.
        """
        inner = self._opened()
        inner.acknowledge()
        return await asyncio.shield(self._on_thread(inner.commit_here))

    def pause(self, places: PlacesGiven) -> None:
        """Deliver no messages of these topics or partitions until `resume`; see Consumer.pause with threads."""
        self._opened().pause(places)

    def resume(self, places: PlacesGiven | None = None) -> None:
        """Deliver messages of these topics or partitions again; with None, of all. Raises ConfigError."""
        self._opened().resume(places)

    def paused(self) -> list[TopicPartition]:
        """Return the owned partitions that are paused, sorted."""
        return self._opened().paused()

    async def seek(self, partition: TopicPartition, to: int | str | Place) -> None:
        """Continue reading a partition at another position; see Consumer.seek with threads."""
        inner = self._opened()
        inner.move(partition, await self._on_thread(partial(inner.place, partition, to)))

    async def lag(self) -> dict[TopicPartition, Lag]:
        """Return for each owned partition how much data the broker has after this consumer's position. Raises
        BrokerUnavailable.
        """
        return await self._on_thread(self._opened().lag)

    async def fetch(
        self, partition: TopicPartition, offset: int, max_bytes: int = BROWSE_BYTES, timeout: Duration | None = None
    ) -> list[Message]:
        """Return messages of any partition from the byte position `offset` on, without consuming them; see
        Consumer.fetch with threads.
        """
        return await self._on_thread(partial(self._opened().fetch, partition, offset, max_bytes, timeout))

    async def view_message(self, topic: str, message_id: int) -> Message:
        """Return the message of `topic` with this id; see Consumer.view_message with threads."""
        return await self._on_thread(partial(self._opened().view_message, topic, message_id))

    async def query_message(
        self,
        topic: str,
        key: str,
        max_messages: int = DEFAULT_FOUND_MESSAGES,
        begin: datetime | None = None,
        end: datetime | None = None,
    ) -> FoundMessages:
        """Return the newest messages of `topic` that have this key; see Consumer.query_message with threads."""
        return await self._on_thread(partial(self._opened().query_message, topic, key, max_messages, begin, end))

    # --- the end ----------------------------------------------------------------------------------------------------

    async def close(self, timeout: Duration = CLOSE_SECONDS) -> None:
        """Commit the consumed messages, release the partitions and leave the group, within `timeout` seconds.
        Idempotent. A poll() that waits in another task returns []. If the task is cancelled, closing continues in the
        background.
        """
        seconds = check_wait("timeout", timeout)
        self._is_closed = True
        inner, self._inner = self._inner, None
        if inner is None:
            return
        inner.stop_polling()
        ending = self._thread.begin(partial(inner.close, seconds))
        self._thread.close()
        await asyncio.shield(ending)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if kind is None and self._inner is not None:
            self._inner.acknowledge()
        await self.close()

    def __del__(self) -> None:
        inner = getattr(self, "_inner", None)
        if inner is not None:
            words = "this Consumer was not closed: use `async with Consumer(...)`"
            begin_elsewhere((inner.close,))
            self._thread.close()
            warnings.warn(words, ResourceWarning, 2, source=self)

    def _opened(self) -> _Inner:
        if self._inner is None:
            raise ClientError(
                "this Consumer is closed" if self._was_started else "this Consumer is not started: use `async with`"
            )
        return self._inner

    async def _on_thread(self, call: Callable[[], T]) -> T:
        return await self._thread.run(call)


class _Links:
    """The parts of a consumer that live on the event loop. Made on the loop's thread."""

    def __init__(self, config: ConnectionConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread_id = threading.get_ident()
        self.timers = LoopTimers(loop)
        self.pool = LoopPool(config, loop, time.monotonic, random.random)
        self.inner: _Inner | None = None

    def end(self) -> None:
        """Close the consumer, if it was made, and the connections. Runs on the thread for blocking calls."""
        if self.inner is not None:
            self.inner.close()
        self.pool.close()


class _Inner(with_threads.Consumer):
    """The Consumer with threads on the connections and timers of an event loop. Its thread for the group and its
    commits go on as they are. The methods below are called on the loop's thread; the public ones, except those that ask
    nobody, on the thread for blocking calls.
    """

    def __init__(self, connect: str, *, links: _Links, **options: Any) -> None:
        self._links = links
        self._turn_began = 0.0
        super().__init__(connect, **options)
        links.inner = self

    def _make_timers(self) -> LoopTimers:
        return self._links.timers

    def _make_pool(self, _config: ConnectionConfig) -> LoopPool:
        return self._links.pool

    def _make_fetcher(
        self, core: ConsumerCore, endpoint_of: EndpointOf, record: Callable[[Request], None]
    ) -> LoopFetcher:
        links = self._links
        fetcher = self._loop_fetcher = LoopFetcher(
            core, links.pool, endpoint_of, links.timers, record, links.loop, links.thread_id
        )
        return fetcher

    def _opened(self) -> None:
        """Do nothing: the object around this one warns if it was not closed."""

    async def poll_here(self, take: Callable[[], Taken], timeout: float) -> Taken | None:
        """Do the same as `_poll`, in a task."""
        self._check_open()
        if self._polling:
            raise ClientError("poll() is under way in another task: let one task poll")
        self._polling = True
        try:
            core, now = self._core, time.monotonic()
            deadline = now + timeout
            if now - self._turn_began > _TURN_SECONDS:
                await asyncio.sleep(0)
                self._turn_began = time.monotonic()
            core.acknowledge()
            while True:
                taken = self._take(take)
                if taken:
                    return taken
                seconds = deadline - time.monotonic()
                if seconds <= 0 or self._closed:
                    return None
                self._poll_watch.wait_begins()
                try:
                    await self._loop_fetcher.wait_here(self._longest_wait(seconds))
                finally:
                    self._poll_watch.wait_ends()
                    self._turn_began = time.monotonic()
                core.acknowledge()  # see Poller._poll
        finally:
            self._polling = False

    def take_messages(self, max_messages: int) -> list[Message]:
        return self._core.take(max_messages)

    def returned(self) -> None:
        """Record that the caller gets the messages of `poll_here`."""
        self._core.under_way = False

    def acknowledge(self) -> None:
        """Count all delivered messages as consumed."""
        self._core.acknowledge()

    def commit_here(self) -> int:
        """Commit the offsets of the consumed messages. Called on the thread for blocking calls."""
        return self._committer.commit_owned(self._core)

    def place(self, partition: TopicPartition, to: int | str | Place) -> int:
        """Return the byte offset of a position. Called on the thread for blocking calls."""
        return self._place(partition, to)

    def move(self, partition: TopicPartition, offset: int) -> None:
        """Continue reading a partition at this offset. Raises NotOwner."""
        self._move(self._core.cursor(partition), offset)

    def _settle(self) -> None:
        """Do nothing: on an event loop no exception comes between the taking of messages and the end of a poll."""

    def stop_polling(self) -> None:
        """Let a task that waits in `poll_here` return."""
        self._closed = True
        self._fetcher.wake()

    def _end(self, timeout: float, waits: bool) -> None:
        try:
            super()._end(timeout, waits)
        finally:
            self._loop_fetcher.end()
