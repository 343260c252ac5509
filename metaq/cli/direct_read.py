"""Read a topic without a consumer group. Nothing is written to ZooKeeper. Each partition is read from a given position
to the end that it had when reading began. With `follow`, the reader does not stop at this end, but waits for new
messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from metaq.client.admin.completeness import without
from metaq.client.questions.cluster import Cluster
from metaq.client.questions.partition_bounds import partition_bounds
from metaq.client.questions.places import Position, offset_in
from metaq.client.questions.stored_records import read_chosen
from metaq.client.records.message import Message
from metaq.client.records.results import TopicPartition
from metaq.client.transport.connection import Connection
from metaq.protocol.errors import BrokerUnavailable, CorruptRecord
from metaq.protocol.where import Where

from .options import PartitionName

__all__ = ["Wanted", "read_topic"]

_T = TypeVar("_T")

READ_BYTES = 1 << 20
IDLE_SECONDS = 0.1
"""If a reader that waits for new messages (`follow`) has found none in any partition, it pauses for this number of
seconds before it asks again.
"""
RETRY_SECONDS = 5.0
"""If a broker does not answer a reader that waits for new messages (`follow`), the reader asks the broker again after
this number of seconds.
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages of `topic` to read. start: where to begin. only: the partitions to read, by default all. follow:
    whether to wait for new messages at the end. where: a filter by content; only messages that match it are read. None
    means that all messages are read.
    """

    topic: str
    start: Position
    only: Sequence[PartitionName] = ()
    follow: bool = False
    where: Where | None = None


@dataclass(slots=True)
class _Cursor:
    """The reading position in one partition. offset: the byte offset of the next message to read; None until the broker
    has answered. end: the offset at which the reader stops; None means that the reader never stops, but waits for new
    messages.
    """

    partition: TopicPartition
    offset: int | None = None
    end: int | None = None

    @property
    def done(self) -> bool:
        return self.end is not None and self.offset is not None and self.offset >= self.end


def read_topic(
    cluster: Cluster,
    wanted: Wanted,
    *,
    idle: Callable[[], bool] = lambda: True,
    on_damaged: Callable[[CorruptRecord], None] | None = None,
    on_silent: Callable[[str], None] | None = None,
) -> Iterator[Message]:
    """Yield the wanted messages. Messages of a partition are in order. The function reads the partitions in turn, a
    block of about READ_BYTES from each.

    idle: called whenever there is no new message; returns whether to keep waiting. on_damaged: called with the error if
    bytes are damaged; reading continues after these bytes. on_silent: called with a sentence about the missing data if
    a broker does not answer or an operator has closed a partition. A broker or partition that has been reported in this
    way is reported again only if it has answered in between. After a call of on_damaged or on_silent, the function
    continues to read the other partitions. If `wanted.follow` is set, the function asks a broker that has not answered
    again every RETRY_SECONDS.

    Raises NoPartition and OffsetOutOfRange. Raises CorruptRecord for damaged bytes if on_damaged is not given, or if
    the end of the damage is unknown. If on_silent is not given, the function raises BrokerUnavailable instead of
    calling it.
    """
    reader = _Reader(cluster, wanted, on_silent or _refuse)
    retry_at = time.monotonic() + RETRY_SECONDS
    while reader.cursors:
        progress = False
        for cursor in reader.cursors:
            before = cursor.offset
            try:
                yield from reader.next_block(cursor)
                progress = progress or cursor.offset != before
            except CorruptRecord as error:
                if on_damaged is None or error.end is None:
                    raise
                on_damaged(error)
                cursor.offset, progress = error.end, True
        reader.leave_what_is_done()
        if time.monotonic() >= retry_at:
            reader.survey.ask_again()
            retry_at = time.monotonic() + RETRY_SECONDS
        if not progress and reader.cursors:
            if not idle():
                return
            time.sleep(IDLE_SECONDS)


class _Reader:
    """The state of one call of read_topic: the reading positions, and the brokers and partitions that it has already
    reported as unavailable.
    """

    def __init__(self, cluster: Cluster, wanted: Wanted, on_silent: Callable[[str], None]) -> None:
        topic = wanted.topic
        self._chosen = cluster.choose_partitions(topic, [TopicPartition(topic, *name) for name in wanted.only])
        self._offset_of = offset_in(wanted.start, topic, cluster.finder())
        self._follow = wanted.follow
        self._where = wanted.where
        self._on_silent = on_silent
        self.survey = cluster.survey()
        self.cursors = [_Cursor(partition) for partition in self._chosen]
        self._told: set[int | TopicPartition] = set()
        for cursor in self.cursors:  # each partition is read to the end that it has now
            self._ask(cursor, partial(self._open, cursor=cursor))
        self.leave_what_is_done()

    def next_block(self, cursor: _Cursor) -> Iterator[Message]:
        """Yield the messages of the partition's next block. Before a message is yielded, the cursor's offset is set to
        the end of this message.
        """
        if cursor.offset is None and not self._ask(cursor, partial(self._open, cursor=cursor)):
            return
        assert cursor.offset is not None
        read = partial(read_chosen, offset=cursor.offset, max_bytes=READ_BYTES, where=self._where)
        answer = self._ask(cursor, read)
        if answer is None:
            return
        messages, following = answer
        for message in messages:
            if cursor.end is not None and message.offset >= cursor.end:
                break
            cursor.offset = message.next_offset
            yield message
        cursor.offset = following

    def leave_what_is_done(self) -> None:
        """Remove the cursors that have reached their end. If `follow` is not set, also remove the cursors of closed
        partitions and of partitions whose broker does not answer.
        """
        self.cursors = [each for each in self.cursors if not each.done and not self._is_given_up(each.partition)]

    def _is_given_up(self, partition: TopicPartition) -> bool:
        return not self._follow and (partition.broker in self.survey.silent or partition in self.survey.closed)

    def _open(self, connection: Connection, partition: TopicPartition, *, cursor: _Cursor) -> bool:
        bounds = partition_bounds(connection, partition)
        cursor.offset = self._offset_of(connection, partition, bounds)
        cursor.end = None if self._follow else bounds.end
        return True

    def _ask(self, cursor: _Cursor, question: Callable[[Connection, TopicPartition], _T]) -> _T | None:
        partition, broker_id = cursor.partition, cursor.partition.broker
        answer = self.survey.ask(partition, question)
        if answer is not None:
            self._told -= {broker_id, partition}
        elif broker_id in self.survey.silent:
            self._tell(broker_id, without({broker_id: self.survey.silent[broker_id]}, self._chosen))
        elif partition in self.survey.closed:
            self._tell(partition, f"{partition.topic} {partition} was closed by an operator, and is left out")
        return answer

    def _tell(self, whom: int | TopicPartition, sentence: str) -> None:
        """Call on_silent with `sentence`, which says that the broker or partition `whom` cannot be read. Do nothing if
        `whom` was already reported and has not answered since.
        """
        if whom not in self._told:
            self._told.add(whom)
            self._on_silent(sentence)


def _refuse(sentence: str) -> None:
    raise BrokerUnavailable(sentence)
