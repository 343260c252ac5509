"""The order of a key while the partitions of its topic change.

Which partition a key has follows from the list of its topic's partitions. When a broker goes or comes the list changes,
and messages of a key may still wait, or be under way, for the partition that it had before. Later ones of that key are
held back until each of those has its outcome; then they go to the partition that the key has by then. So no message of
a key is sent before the outcome of an earlier one that was sent elsewhere. Keys whose partition stays are not held
back.

`ProducerCore._lock` guards everything here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from ..records.values import TopicPartition
from .outgoing import Outgoing
from .queues import PartitionQueue
from .routing import key_bytes, partition_for_key

__all__ = ["KeyOrder", "PartitionsOf"]

PartitionsOf = Callable[[str], Sequence[TopicPartition]]
"""The list from which keys of a topic choose now, empty if nobody publishes it. Never blocks for a topic that was asked
for before. Raises NoPartition if the list cannot be known."""


class _Move:
    """A key on its way to another partition."""

    __slots__ = ("before", "waiting")

    def __init__(self, before: set[Outgoing]) -> None:
        self.before = before  # without an outcome, where it was
        self.waiting: deque[Outgoing] = deque()


class KeyOrder:
    """Says where messages with a key go. queues: all there are; read when a topic's partitions have changed.

    Invariant: messages of a key without an outcome are in one queue, except for those that wait here.
    """

    def __init__(self, queues: Mapping[TopicPartition, PartitionQueue], partitions_of: PartitionsOf) -> None:
        self._queues = queues
        self._partitions_of = partitions_of
        self._lists: dict[str, Sequence[TopicPartition]] = {}
        self._moves: dict[tuple[str, bytes], _Move] = {}
        self.moving: Collection[object] = self._moves
        """Not empty while messages wait for earlier ones of their keys. No property: it is looked at for each send."""

    def place(self, outgoing: Outgoing) -> TopicPartition | None:
        """The partition that a message's key has now, or had last if nobody publishes the topic now; None if that was
        never known. Takes notice of a change, as `look`. Raises NoPartition."""
        topic, key = outgoing.topic, outgoing.key
        assert key is not None
        known = self._lists.get(topic)
        if self._partitions_of(topic) is not known:
            self.look(topic)
            known = self._lists.get(topic)
        return partition_for_key(key, known) if known else None

    def look(self, topic: str) -> None:
        """Take notice of a change of the topic's partitions. All messages with a key must be in their queues, or under
        way there: those that are in a caller's hand are not found. O(1), O(messages of the topic) after a change.
        Raises NoPartition.
        """
        now = self._partitions_of(topic)
        known = self._lists.get(topic)
        if now is not known and now:
            if now != known:
                self._moved(topic, now)
            self._lists[topic] = now

    def noticed(self, outgoing: Outgoing) -> TopicPartition | None:
        """As `place`, when `look` was called last."""
        assert outgoing.key is not None
        known = self._lists.get(outgoing.topic)
        return partition_for_key(outgoing.key, known) if known else None

    def behind(self, outgoing: Outgoing) -> deque[Outgoing] | None:
        """What a new message has to be put behind, to wait for earlier ones of its key; None if it need not wait."""
        if not self._moves or outgoing.key is None:
            return None
        move = self._moves.get((outgoing.topic, key_bytes(outgoing.key)))
        return None if move is None else move.waiting

    def settled(self, ended: Iterable[Outgoing]) -> list[Outgoing]:
        """These have their outcome. Returns what waited for that, in its order; place it."""
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
        """What is held back, by key."""
        return (move.waiting for move in self._moves.values())

    def take_all(self) -> list[Outgoing]:
        """What is held back, to be given up."""
        left = [outgoing for waiting in self.waiting() for outgoing in waiting]
        self._moves.clear()
        return left

    def _moved(self, topic: str, now: Sequence[TopicPartition]) -> None:
        """Find the keys whose messages are not where the key goes from now on. May be repeated, if interrupted."""
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
                self._moves[name] = _Move(before)  # never one that nothing is before: it would not end
            else:
                move.before.update(before)
