"""Keep the order of a key's messages while the partitions of its topic change.

The list of a topic's partitions determines the partition of a key. When a broker goes or comes, the list changes, and
earlier messages of a key may still wait, or be in flight, for its previous partition. Later messages of that key are
held back until each earlier message has its outcome, and then go to the key's current partition. So a message is sent
only after all earlier messages of its key that went to another partition have their outcomes. Messages whose key keeps
its partition are not held back.

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
"""A function that returns the partitions that the keys of a topic are distributed to now; the result is empty if no
broker publishes the topic. If the function was called for this topic before, it does not block. Raises NoPartition if
the list cannot be known.
"""


class _Move:
    """The change of one key from its previous partition to another one."""

    __slots__ = ("before", "waiting")

    def __init__(self, before: set[Outgoing]) -> None:
        self.before = before  # messages without an outcome, at the previous partition
        self.waiting: deque[Outgoing] = deque()


class KeyOrder:
    """Chooses the partitions of messages with a key. queues: the queues of all partitions; they are searched for
    messages with moved keys when a topic's partitions have changed.

    Invariant: all messages of one key that have no outcome yet are in the queue of one partition, except for the
    messages that are held back here.
    """

    def __init__(self, queues: Mapping[TopicPartition, PartitionQueue], partitions_of: PartitionsOf) -> None:
        self._queues = queues
        self._partitions_of = partitions_of
        self._lists: dict[str, Sequence[TopicPartition]] = {}
        self._moves: dict[tuple[str, bytes], _Move] = {}
        self.moving: Collection[object] = self._moves
        """The key moves that are not finished. `moving` is empty if no messages wait for earlier messages of the same
        key. It is a plain attribute and not a property, because each send reads it.
        """

    def place(self, outgoing: Outgoing) -> TopicPartition | None:
        """Return the current partition of a message's key. If no broker publishes the topic now, return the key's last
        partition, or None if the topic's partitions were never known. If the partitions have changed, do what `look`
        does. Raises NoPartition.
        """
        topic, key = outgoing.topic, outgoing.key
        assert key is not None
        known = self._lists.get(topic)
        if self._partitions_of(topic) is not known:
            self.look(topic)
            known = self._lists.get(topic)
        return partition_for_key(key, known) if known else None

    def look(self, topic: str) -> None:
        """If the topic's partitions have changed, find the messages whose keys have moved. When `look` is called, each
        message with a key must be in its queue, or in flight from its queue. A message that is not in a queue yet would
        not be found. The call takes O(1) time if nothing has changed, and O(messages of the topic) after a change.
        Raises NoPartition.
        """
        now = self._partitions_of(topic)
        known = self._lists.get(topic)
        if now is not known and now:
            if now != known:
                self._moved(topic, now)
            self._lists[topic] = now

    def noticed(self, outgoing: Outgoing) -> TopicPartition | None:
        """Return the partition of a message's key among the partitions that were known at the last `look`; `place` uses
        the current partitions instead.
        """
        assert outgoing.key is not None
        known = self._lists.get(outgoing.topic)
        return partition_for_key(outgoing.key, known) if known else None

    def behind(self, outgoing: Outgoing) -> deque[Outgoing] | None:
        """If earlier messages of the same key are held back, return the list of these messages; the new message must be
        appended to it to keep the order. Return None if the message need not wait.
        """
        if not self._moves or outgoing.key is None:
            return None
        move = self._moves.get((outgoing.topic, key_bytes(outgoing.key)))
        return None if move is None else move.waiting

    def settled(self, ended: Iterable[Outgoing]) -> list[Outgoing]:
        """Record that these messages have their outcomes. Return the messages that were held back only because of them,
        in their order; the caller puts them into queues.
        """
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
        """Yield one list for each moved key, with the held back messages of this key."""
        return (move.waiting for move in self._moves.values())

    def take_all(self) -> list[Outgoing]:
        """Remove all held back messages and return them, so that the caller can end them."""
        left = [outgoing for waiting in self.waiting() for outgoing in waiting]
        self._moves.clear()
        return left

    def _moved(self, topic: str, now: Sequence[TopicPartition]) -> None:
        """Find the keys whose queued messages are not in the partition that `now` gives the key, and record their
        moves. May be called again after an interrupt.
        """
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
