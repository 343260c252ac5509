"""Read messages without a consumer group: all messages of a topic, or one partition of one broker."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from metaq.coordination.runtime.interrupts import Aside, begin_elsewhere
from metaq.protocol.errors import ClientError, CorruptRecord, OffsetOutOfRange
from metaq.protocol.limits import INT32_MAX
from metaq.protocol.pulls import READER_GROUP

from ..fetching.core import Accept, ConsumerCore
from ..fetching.fetcher import Fetcher
from ..fetching.polling import Poller
from ..questions.asking import following
from ..questions.cluster import Cluster
from ..questions.partition_bounds import max_offset, min_offset
from ..questions.places import locate
from ..questions.stored_records import read_chosen, read_messages
from ..records.message import Message
from ..records.results import TopicPartition
from ..runtime.durations import Duration, check_timeout, check_wait
from ..runtime.timers import Timers
from ..runtime.unclosed import Closing
from ..serializers.base import Deserializer, deserializers
from ..settings.config import (
    BROWSE_BYTES,
    check_call_backs,
    check_number,
    check_offset,
    config_or_default,
)
from ..settings.consumer_config import ConsumerConfig, MovedReading, check_where
from ..settings.moved_options import MovedProtocol, with_moved
from ..transport.metadata import parse_address
from ..transport.pool import ConnectionPool

__all__ = ["PartitionReader", "TopicBrowser", "browse"]


def browse(
    connect: str,
    topic: str,
    *,
    root: str = "/meta",
    where: str | None = None,
    config: ConsumerConfig | None = None,
    **moved: Unpack[MovedProtocol],
) -> Iterator[Message]:
    """Iterate over all messages that `topic` contains now, as a TopicBrowser does. Raises the same errors as
    TopicBrowser.
    """
    config = with_moved(config_or_default(config, ConsumerConfig), "browse", moved, "protocol")
    with TopicBrowser(connect, topic, root=root, where=where, config=config) as browser:
        yield from browser


class TopicBrowser(Closing):
    """An iteration over this object returns all messages that a topic contains when the iteration begins. The messages
    come partition by partition, in the order of (broker id, partition). A browser joins no group, commits nothing and
    leaves no trace in ZooKeeper.

    (It corresponds to TopicBrowser of 1.x. If the oldest messages of a partition were deleted, 1.x treats the partition
    as empty; this browser begins at the oldest message that still exists.) A new iteration reads the topic again. Use a
    browser on one thread only.
    """

    def __init__(
        self,
        connect: str,
        topic: str,
        *,
        root: str = "/meta",
        where: str | None = None,
        config: ConsumerConfig | None = None,
        **moved: Unpack[MovedReading],
    ) -> None:
        """where: a filter; only messages whose properties match it are returned (docs/filters.md). config: its setting
        `damage` determines whether reading stops at a damaged range or skips the range.

        Raises ConfigError, CoordinationUnavailable.
        """
        self._topic = topic
        self._closed = False
        self._config = with_moved(
            config_or_default(config, ConsumerConfig), "TopicBrowser", moved, "protocol", "on_damaged"
        )
        self._where = check_where(where)
        self._cluster = Cluster(connect, root=root, config=self._config.connection, starts=False)
        try:
            self._cluster.start()
            self._opened()
        except BaseException:
            begin_elsewhere((self._cluster.close,))
            raise

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions to iterate over. Raises NoPartition, CoordinationUnavailable, ClientError (closed)."""
        if self._closed:
            raise ClientError("this TopicBrowser is closed")
        return self._cluster.partitions(self._topic)

    def __iter__(self) -> Iterator[Message]:
        """Iterate over the messages. Raises NoPartition, BrokerUnavailable, RequestTimedOut, CorruptRecord, ClientError
        (closed)."""
        ends = {each: self._cluster.ask(each, partial(max_offset, partition=each)) for each in self.partitions()}
        for partition, end in ends.items():
            yield from self._read(partition, end)

    def _read(self, partition: TopicPartition, end: int) -> Iterator[Message]:
        ask = partial(self._cluster.ask, partition)
        position = ask(partial(min_offset, partition=partition))
        while position < end:
            try:
                size = self._config.fetch_max_bytes
                read = partial(read_chosen, partition=partition, offset=position, max_bytes=size, where=self._where)
                messages, following = ask(read)
            except OffsetOutOfRange as error:
                if error.first <= position:
                    return  # the partition ends earlier than before: the broker has lost its tail
                position = error.first  # deleted meanwhile: continue at the oldest message left
                continue
            except CorruptRecord as error:
                position = self._behind(error)
                continue
            if following <= position:
                return
            for message in messages:
                if message.offset >= end:
                    return
                yield message
            position = following

    def _behind(self, damage: CorruptRecord) -> int:
        """Call the user's on_damaged, and return the offset after the damaged range, where reading can continue. If the
        end of the range is unknown, or the setting `damage` says to stop at damage, raise the error `damage`.
        """
        if self._config.on_damaged is not None:
            self._config.on_damaged(damage)
        if damage.end is None or self._config.damage == "stop":
            raise damage
        return damage.end

    def close(self, timeout: Duration = 10.0) -> None:
        """End the ZooKeeper session and close all connections, within `timeout` seconds if possible (see
        Cluster.close).
        """
        seconds = check_wait("timeout", timeout)
        self._closed = True
        self._closes()
        self._cluster.close(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class PartitionReader(Poller):
    """Reads one partition of one broker, without ZooKeeper and without a consumer group. Nothing is committed: a
    program that wants to continue later must store the `position` itself.

    (It corresponds to the direct mode of 1.x: a consumer that is given a serverUrl, a partition and an offset.) Like a
    Consumer, it fetches messages before poll() asks for them, and continues after a restart of the broker. Use it on
    one thread only; close() may be called on any thread.
    """

    def __init__(
        self,
        address: str,
        partition: TopicPartition,
        start: str | int = "earliest",
        *,
        where: str | None = None,
        accept: Accept | None = None,
        deserializer: Deserializer | None = None,
        config: ConsumerConfig | None = None,
        **moved: Unpack[MovedReading],
    ) -> None:
        """address: `host:port` of the broker, or of any running node of a broker set; that node tells the reader which
        node leads.
        start: "earliest", "latest", or the offset in bytes at which a message begins. where: a filter; only messages
        whose properties match it are returned (docs/filters.md). accept: a function that is called with each message;
        if it returns false, the message is skipped.
        deserializer: see Consumer.

        Raises ConfigError. The reader connects in the background.
        """
        config = with_moved(
            config_or_default(config, ConsumerConfig), "PartitionReader", moved, "protocol", "on_damaged"
        )
        check_call_backs(accept=accept)
        reader = None if deserializer is None else deserializers("deserializer", deserializer)
        self._endpoint = parse_address(address)
        self._ending = Aside("metaq reader close")
        self._timers = Timers("metaq-read")
        self._pool = ConnectionPool(config.connection)
        core = ConsumerCore(
            READER_GROUP,
            config,
            where=check_where(where),
            accept=accept,
            follow=self._pool.follow,
            reader=reader,
        )
        endpoint = self._endpoint
        super().__init__(core, Fetcher(core, self._pool, lambda _: endpoint, self._timers))
        begin = 0 if start == "earliest" else locate(start, option="start")
        (self._cursor,) = core.claim([partition], [begin], announced=True)
        try:
            self._fetcher.serve_soon()
            self._opened()
        except BaseException:
            begin_elsewhere((self.close,))
            self.close()
            raise

    @property
    def position(self) -> int:
        """Byte offset of the next message that poll() returns; pass it as `start` to continue later."""
        self._settle()
        return self._cursor.position

    def seek(self, offset: int) -> None:
        """Let the next poll() continue at a byte offset where a message begins. Raises ConfigError."""
        self._settle()
        check_offset("offset", offset)
        self._cursor.moved_to(offset)
        self._fetcher.serve_soon()

    def fetch(self, offset: int, max_bytes: int = BROWSE_BYTES, timeout: Duration | None = None) -> list[Message]:
        """Return messages from the byte position `offset` on, in one round trip. The reader's position does not change.
        Raises the same errors as `read_messages`, and ClientError (closed).
        """
        self._check_open()
        check_offset("offset", offset)
        check_number("max_bytes", max_bytes, most=INT32_MAX)
        within = None if timeout is None else check_timeout(timeout)
        seconds, partition = self._core.config.connection.connect_timeout_seconds, self._cursor.partition

        def read() -> list[Message]:
            return read_messages(self._pool.connection(self._endpoint, seconds), partition, offset, max_bytes, within)

        return following(self._pool.follow, read)

    def close(self) -> None:
        """Close the connection. Idempotent. If a forked process calls this method, the parent's connection stays
        open.
        """
        self._closes()
        self._closed = True
        if self._guard.is_elsewhere:
            self._pool.close()
            return
        self._ending.do(self._end)

    def _end(self) -> None:
        self._core.lose([self._cursor])
        self._fetcher.wake()
        self._timers.close()
        self._pool.close()
