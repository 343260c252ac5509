"""Reading a topic without a group: no state in ZooKeeper, every partition from a position to the end there was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from metaq.client.cluster import Cluster
from metaq.client.connection import Connection
from metaq.client.consumer.single_read import read_messages
from metaq.client.inquiry import partition_bounds
from metaq.client.message import Message
from metaq.client.values import TopicPartition
from metaq.protocol.errors import BrokerUnavailable, CorruptRecord

from .options import PartitionName, Position
from .positions import OffsetIn, offset_in
from .reach import Reach, without

__all__ = ["read_topic"]

_T = TypeVar("_T")

READ_BYTES = 1 << 20
IDLE_SECONDS = 0.1
"""Pause of a following reader after a round over all partitions that brought nothing."""
RETRY_SECONDS = 5.0
"""How long a following reader leaves a broker alone that did not answer."""


@dataclass(slots=True)
class _Cursor:
    """The next byte to read in one partition, None until its broker answers; end: where to stop, None to follow."""

    partition: TopicPartition
    offset: int | None = None
    end: int | None = None

    @property
    def done(self) -> bool:
        return self.end is not None and self.offset is not None and self.offset >= self.end


def read_topic(
    cluster: Cluster,
    topic: str,
    start: Position,
    only: Sequence[PartitionName] = (),
    follow: bool = False,
    idle: Callable[[], bool] = lambda: True,
    sleep: Callable[[float], None] = time.sleep,
    on_damaged: Callable[[CorruptRecord], None] | None = None,
    on_silent: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Message]:
    """Messages of `topic` from `start` on, in order within a partition, partitions in turns of one block.

    only: these partitions, default all. follow: go on after the end; `idle` is then called whenever there is nothing
    new and says whether to wait on. on_damaged: told of damaged bytes, behind which the reading goes on. on_silent:
    told once of a broker that does not answer, and what is missing. The others' partitions are read on, and with
    `follow` that broker is asked again every RETRY_SECONDS.

    Raises NoPartition, OffsetOutOfRange; CorruptRecord for damage without on_damaged, or whose end is not known;
    BrokerUnavailable for a silent broker without on_silent.
    """
    chosen = cluster.choose_partitions(topic, [TopicPartition(topic, *name) for name in only])
    reader = _Reader(cluster, offset_in(start, cluster, topic), chosen, follow, on_silent or _refuse)
    retry_at = clock() + RETRY_SECONDS
    while reader.cursors:
        progress = False
        for cursor in reader.cursors:
            try:
                for message in reader.next_block(cursor):
                    progress = True
                    yield message
            except CorruptRecord as error:
                if on_damaged is None or error.end is None:
                    raise
                on_damaged(error)
                cursor.offset, progress = error.end, True
        reader.leave_what_is_done()
        if clock() >= retry_at:
            reader.reach.ask_again()
            retry_at = clock() + RETRY_SECONDS
        if not progress and reader.cursors:
            if not idle():
                return
            sleep(IDLE_SECONDS)


class _Reader:
    """The cursors of one read_topic, and which brokers it was told are silent."""

    def __init__(
        self,
        cluster: Cluster,
        offset_of: OffsetIn,
        chosen: Sequence[TopicPartition],
        follow: bool,
        on_silent: Callable[[str], None],
    ) -> None:
        self.reach = Reach(cluster)
        self.cursors = [_Cursor(partition) for partition in chosen]
        self._offset_of = offset_of
        self._chosen = chosen
        self._follow = follow
        self._on_silent = on_silent
        self._told: set[int] = set()
        for cursor in self.cursors:  # all ends are those of the beginning
            self._ask(cursor, partial(self._open, cursor))
        self.leave_what_is_done()

    def next_block(self, cursor: _Cursor) -> Iterator[Message]:
        """The cursor moves over each message before it is given out."""
        if cursor.offset is None and not self._ask(cursor, partial(self._open, cursor)):
            return
        assert cursor.offset is not None
        read = partial(read_messages, partition=cursor.partition, offset=cursor.offset, max_bytes=READ_BYTES)
        for message in self._ask(cursor, read) or ():
            if cursor.done:
                return
            cursor.offset = message.next_offset
            yield message

    def leave_what_is_done(self) -> None:
        """Without `follow` a silent broker's partitions are given up."""
        given_up = () if self._follow else self.reach.silent
        self.cursors = [each for each in self.cursors if not each.done and each.partition.broker not in given_up]

    def _open(self, cursor: _Cursor, connection: Connection) -> bool:
        bounds = partition_bounds(connection, cursor.partition)
        cursor.offset = self._offset_of(connection, cursor.partition, bounds)
        cursor.end = None if self._follow else bounds.end
        return True

    def _ask(self, cursor: _Cursor, question: Callable[[Connection], _T]) -> _T | None:
        broker_id = cursor.partition.broker
        answer = self.reach.ask(cursor.partition, question)
        if answer is not None:
            self._told.discard(broker_id)
        elif broker_id not in self._told:
            self._told.add(broker_id)
            self._on_silent(without({broker_id: self.reach.silent[broker_id]}, self._chosen))
        return answer


def _refuse(sentence: str) -> None:
    raise BrokerUnavailable(sentence)
