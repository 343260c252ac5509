"""Choose new partitions for the messages in a partition's queue, without changing their order, after a request to the
partition has failed and its queue is paused.

The caller calls three methods for this, one after the other: `drain`, `choose` and `resume`. `drain` and `resume` run
with `ProducerCore._lock` held. `choose` runs without the lock, because it may call a user's selector. Until `resume`
puts the messages into queues again, they are in `under_way` of the old queue, so that KeyOrder still finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from metaq.protocol.errors import NoPartition

from ..records.results import TopicPartition
from .failures import Failures
from .key_order import KeyOrder
from .outgoing import GivenUp, Outgoing
from .queues import PartitionQueue, Queues
from .routing import Routes, key_bytes

__all__ = ["Rerouting"]

Rerouted = tuple[Outgoing, TopicPartition | None]
"""A message and its new partition. None instead of a partition means that `resume` computes the partition from the
message's key.
"""


class Rerouting:
    """Chooses new partitions for the messages of paused partitions, one partition at a time. Only one thread may use an
    object of this class.
    """

    def __init__(
        self, queues: Queues, keys: KeyOrder, places: Routes, failures: Failures, clock: Callable[[], float]
    ) -> None:
        self._queues = queues
        self._keys = keys
        self._places = places
        self._failures = failures
        self._clock = clock

    def drain(self, queue: PartitionQueue) -> tuple[Sequence[Outgoing], Sequence[Outgoing]]:
        """Take all messages out of the paused `queue`, and return them in the first list, so that partitions can be
        chosen for them. If the queue's failed request must not be repeated any more, return the messages of this
        request in the second list, so that the caller ends them. The queue stays paused until `resume`.
        """
        if not queue.paused:
            return (), ()
        overdue: Sequence[Outgoing] = ()
        if queue.repeat is not None and not self._failures.may_repeat(queue):
            overdue = queue.give_up_repeat()
        drained = queue.take_all()
        queue.under_way = [*(queue.repeat or ()), *drained]
        return drained, overdue

    def choose(self, queue: PartitionQueue, drained: Sequence[Outgoing]) -> tuple[list[Rerouted], list[GivenUp]]:
        """Choose a new partition for each message in `drained`, which `drain` has taken out of `queue`. Return the
        messages with their new partitions, and the messages that must end with an error because their deadline has
        passed or the user's selector has failed.
        """
        placed: list[Rerouted] = []
        ended: list[GivenUp] = []
        for outgoing in drained:
            if outgoing.done or outgoing.deadline <= self._clock():
                ended.append((outgoing, self._failures.overdue(outgoing)))
            elif outgoing.goes_by_key:
                placed.append((outgoing, None))
            elif queue.follows:
                placed.append((outgoing, queue.partition))
            else:
                try:
                    placed.append((outgoing, self._places.route(outgoing)))
                except NoPartition:
                    # no broker publishes the topic now: the message waits here
                    placed.append((outgoing, queue.partition))
                except Exception as error:  # of a user's selector: the message gets its error
                    ended.append((outgoing, error))
        return placed, ended

    def resume(self, queue: PartitionQueue, placed: Sequence[Rerouted]) -> Iterable[PartitionQueue]:
        """Put these messages into the queues of their new partitions, and end the pause of `queue`. Messages that have
        come into `queue` since `drain` are put behind them. Return all queues that were changed.
        """
        here = queue.partition
        if any(outgoing.goes_by_key for outgoing in chain((each for each, _ in placed), queue.queue)):
            # before any message leaves its place: a concurrent look would not find messages outside of queues
            self._keys.look(here.topic)
        placed = [*placed, *((each, None if each.goes_by_key else here) for each in queue.take_all())]
        queue.under_way = queue.repeat or ()
        touched = {here: queue}
        # Messages of a key stay after an earlier one that is repeated here: in another partition they could be stored
        # first.
        held = {key_bytes(each.key) for each in queue.repeat or () if each.key is not None and each.goes_by_key}
        for outgoing, partition in placed:
            if partition is not None:
                where = partition
            elif held and outgoing.key is not None and key_bytes(outgoing.key) in held:
                where = here
            else:
                where = self._keys.noticed(outgoing) or here
            other = self._queues.of(where)
            other.put(outgoing)
            touched[where] = other
        queue.paused = False
        return touched.values()
