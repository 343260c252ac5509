"""Keep the order of a key's messages while the partitions of its topic change.

The list of a topic's partitions determines the partition of a key. When a broker goes or comes, the list changes, and
earlier messages of a key may still wait, or be in flight, for its previous partition. Later messages of that key are
held back until each earlier one has its outcome. Then they go to the key's current partition. So no message of a key is
sent before the outcome of an earlier one that was sent to another partition. Keys whose partition does not change are
not held back.

`ProducerCore._lock` guards everything here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from ..records.results import TopicPartition
from .outgoing import Outgoing
from .queues import PartitionQueue
from .routing import key_bytes, partition_for_key

__all__ = ["KeyOrder", "PartitionsOf"]

PartitionsOf = Callable[[str], Sequence[TopicPartition]]
"""Returns the partitions among which the keys of a topic are distributed now; empty if no broker publishes the topic.
Never blocks for a topic that was asked for before. Raises NoPartition if the list cannot be known.
"""


class _Move:
    """A key that moves to another partition."""

    __slots__ = ("before", "waiting")

    def __init__(self, before: set[Outgoing]) -> None:
        self.before = before  # messages without an outcome, at the previous partition
        self.waiting: deque[Outgoing] = deque()


class KeyOrder:
    """Chooses the partitions of messages with a key. queues: all queues; they are searched when a topic's partitions
    have changed.

    Invariant: messages of a key without an outcome are in one queue, except for those that wait here.
    """

    def __init__(self, queues: Mapping[TopicPartition, PartitionQueue], partitions_of: PartitionsOf) -> None:
        self._queues = queues
        self._partitions_of = partitions_of
        self._lists: dict[str, Sequence[TopicPartition]] = {}
        self._moves: dict[tuple[str, bytes], _Move] = {}
        self.moving: Collection[object] = self._moves
        """Not empty while messages wait for earlier ones of their keys. An attribute, because each send reads it."""

    def place(self, outgoing: Outgoing) -> TopicPartition | None:
        """Return the partition of a message's key; if no broker publishes the topic now, its last partition; None if it
        was never known. Handles a change as `look` does. Raises NoPartition."""
        topic, key = outgoing.topic, outgoing.key
        assert key is not None
        known = self._lists.get(topic)
        if self._partitions_of(topic) is not known:
            self.look(topic)
            known = self._lists.get(topic)
        return partition_for_key(key, known) if known else None

    def look(self, topic: str) -> None:
        """Handle a change of the topic's partitions. All messages with a key must be in their queues, or in flight from
        there; a message that a caller still holds is not found. This takes O(1) time, and O(messages of the topic)
        after a change. Raises NoPartition.
        """
        now = self._partitions_of(topic)
        known = self._lists.get(topic)
        if now is not known and now:
            if now != known:
                self._moved(topic, now)
            self._lists[topic] = now

    def noticed(self, outgoing: Outgoing) -> TopicPartition | None:
        """Return what `place` returns, but for the partitions at the last `look`."""
        assert outgoing.key is not None
        known = self._lists.get(outgoing.topic)
        return partition_for_key(outgoing.key, known) if known else None

    def behind(self, outgoing: Outgoing) -> deque[Outgoing] | None:
        """Return the held back messages after which a new one must wait, to keep its key's order; None if it need not
        wait."""
        if not self._moves or outgoing.key is None:
            return None
        move = self._moves.get((outgoing.topic, key_bytes(outgoing.key)))
        return None if move is None else move.waiting

    def settled(self, ended: Iterable[Outgoing]) -> list[Outgoing]:
        """Note that these messages have their outcome. Return the messages that waited for this, in their order; the
        caller places them."""
        if not self._moves:
            return []
        free: list[Outgoing] = []
        for outgoing in ended:
            if outgoing.key is None:
                continue
            name = outgoing.topic, key_bytes(outgoing.key)
            move = self._moves.get(name)
            if move is not None and outgoing in move.before:
                move.before.discard(outgoing)
                if not move.before:
                    del self._moves[name]
                    free += move.waiting
        return free

    def waiting(self) -> Iterator[deque[Outgoing]]:
        """Yield the held back messages, by key."""
        return (move.waiting for move in self._moves.values())

    def take_all(self) -> list[Outgoing]:
        """Take all held back messages, to end them."""
        left = [outgoing for waiting in self.waiting() for outgoing in waiting]
        self._moves.clear()
        return left

    def _moved(self, topic: str, now: Sequence[TopicPartition]) -> None:
        """Find the keys whose messages are not in their new partition. May be repeated after an interrupt."""
        places: dict[str | bytes, TopicPartition] = {}
        moved: dict[tuple[str, bytes], set[Outgoing]] = {}
        for queue in self._queues.values():
            if queue.partition.topic != topic:
                continue
            for outgoing in chain(queue.under_way, queue.queue):
                key = outgoing.key
                if key is None or not outgoing.goes_by_key:
                    continue
                place = places.get(key)
                if place is None:
                    place = places[key] = partition_for_key(key, now)
                if place != queue.partition:
                    moved.setdefault((topic, key_bytes(key)), set()).add(outgoing)
        for name, before in moved.items():
            move = self._moves.get(name)
            if move is None:
                self._moves[name] = _Move(before)  # a move without earlier messages would never end
            else:
                move.before.update(before)
