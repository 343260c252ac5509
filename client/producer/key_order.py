"""Keep the order of a key's messages while the partitions of its topic change.

The partition of a key is computed from the list of the topic's partitions. When a broker joins or leaves the cluster,
this list changes, and so does the partition of some keys. Earlier messages of such a key may then still be queued for
the key's previous partition, or be in flight to it. Later messages of the key are held back until each of those earlier
messages is stored or has failed, and only then go to the key's current partition. Messages whose key keeps its
partition are not held back.

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
"""The type of a function that takes a topic, and returns the partitions among which the topic's keys are now
distributed. The result is empty if no broker publishes the topic. Only the first call for a topic may block. Raises
NoPartition if the partitions cannot be found out.
"""


class _Move:
    """The change of one key from its previous partition to another one."""

    __slots__ = ("before", "waiting")

    def __init__(self, before: set[Outgoing]) -> None:
        self.before = before  # messages without an outcome, at the previous partition
        self.waiting: deque[Outgoing] = deque()


class KeyOrder:
    """Chooses the partitions of messages with a key. queues: the queues of all partitions; when the partitions of a
    topic have changed, the topic's queues are searched for messages whose keys now belong to another partition.

    Invariant: the messages of one key that have no outcome yet are all queued for the same partition or in flight to
    it, except for the messages that this object holds back.
    """

    def __init__(self, queues: Mapping[TopicPartition, PartitionQueue], partitions_of: PartitionsOf) -> None:
        self._queues = queues
        self._partitions_of = partitions_of
        self._lists: dict[str, Sequence[TopicPartition]] = {}
        self._moves: dict[tuple[str, bytes], _Move] = {}
        self.moving: Collection[object] = self._moves
        """The keys whose partition has changed while earlier messages of the key have no outcome yet. If `moving` is
        empty, no message is held back. This is a plain attribute and not a property, because each send reads it and a
        property would cost a Python call.
        """

    def place(self, outgoing: Outgoing) -> TopicPartition | None:
        """Return the current partition of a message's key, and call `look` first if the topic's partitions have
        changed. If no broker publishes the topic now, return the partition that the key has in the last known list of
        partitions, or None if there never was a list. Raises NoPartition.
        """
        topic, key = outgoing.topic, outgoing.key
        assert key is not None
        known = self._lists.get(topic)
        if self._partitions_of(topic) is not known:
            self.look(topic)
            known = self._lists.get(topic)
        return partition_for_key(key, known) if known else None

    def look(self, topic: str) -> None:
        """Check whether the topic's partitions have changed. If so, find the keys that now belong to another partition
        although messages with these keys are still queued for the previous partition or in flight to it. Later messages
        of these keys are then held back. When `look` is called, each accepted message with a key must be in a queue or
        in flight, because only these messages are searched. The call takes O(1) time if nothing has changed, and
        O(messages of the topic) after a change. Raises NoPartition.
        """
        now = self._partitions_of(topic)
        known = self._lists.get(topic)
        if now is not known and now:
            if now != known:
                self._moved(topic, now)
            self._lists[topic] = now

    def noticed(self, outgoing: Outgoing) -> TopicPartition | None:
        """Return the partition of a message's key according to the partitions that the last `look` has found, even if
        the partitions have changed since then. Return None if no partitions are known. Unlike `place`, this method
        never looks for changed partitions.
        """
        assert outgoing.key is not None
        known = self._lists.get(outgoing.topic)
        return partition_for_key(outgoing.key, known) if known else None

    def behind(self, outgoing: Outgoing) -> deque[Outgoing] | None:
        """If the key of the new message `outgoing` is moving to another partition, return the list of the key's held
        back messages, which may be empty; the caller must append `outgoing` to the list. Otherwise return None, because
        the message need not wait.
        """
        if not self._moves or outgoing.key is None:
            return None
        move = self._moves.get((outgoing.topic, key_bytes(outgoing.key)))
        return None if move is None else move.waiting

    def settled(self, ended: Iterable[Outgoing]) -> list[Outgoing]:
        """Record that the messages in `ended` are stored or have failed. If all earlier messages of a moving key have
        now ended, return the key's held back messages, in the order of their sends; the caller must put them into
        queues.
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
        """Yield one list for each key in `moving`, with the held back messages of this key."""
        return (move.waiting for move in self._moves.values())

    def take_all(self) -> list[Outgoing]:
        """Remove all held back messages and return them, so that the caller can end them."""
        left = [outgoing for waiting in self.waiting() for outgoing in waiting]
        self._moves.clear()
        return left

    def _moved(self, topic: str, now: Sequence[TopicPartition]) -> None:
        """For each message of the topic with a key that is queued or in flight, compute the key's partition from the
        list `now`. If the message is queued for another partition or in flight to another partition, record its key as
        moving. If an interrupt has ended a call, the call can be repeated.
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
