"""Count, list and cancel delayed messages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import merge
from itertools import islice

from metaq.protocol.delays import Cancelled, due_ms
from metaq.protocol.limits import check_topic

from ..producer.cancelling import cancel_at
from ..questions.cluster import Cluster
from ..questions.delayed import WaitingMessage, each_delayed, list_delayed
from ..records.results import TopicPartition
from ..settings.config import check_number
from ..transport.connection import Connection
from .completeness import ask_brokers, tell_silent
from .known import check_known_topic

__all__ = ["DelayedAdmin", "DelayedCount", "DelayedCounts", "DelayedMessage", "DelayedMessages", "brokers_to_ask"]


@dataclass(frozen=True, slots=True)
class DelayedCount:
    """The number of waiting messages of a topic. late: number of messages whose time has come, but which their
    partition does not accept. why: the reason for this, with the partition's name; None if no message is late.
    """

    topic: str
    count: int
    late: int
    why: str | None


@dataclass(frozen=True, slots=True)
class DelayedCounts:
    """The numbers of waiting messages by topic, sorted by topic. silent: for each broker that did not answer, the
    reason; its messages are not counted.
    """

    topics: Sequence[DelayedCount]
    silent: Mapping[int, str]

    def check_complete(self) -> None:
        """Raise BrokerUnavailable if a broker did not answer."""
        tell_silent(self.silent)


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that waits for its time, and the partition that it will be delivered to."""

    partition: TopicPartition
    message: WaitingMessage


@dataclass(frozen=True, slots=True)
class DelayedMessages:
    """The next messages to be delivered, in the order of their times. silent: for each broker that did not answer, the
    reason; its messages are not in the result.
    """

    messages: Sequence[DelayedMessage]
    silent: Mapping[int, str]

    def check_complete(self) -> None:
        """Raise BrokerUnavailable if a broker did not answer."""
        tell_silent(self.silent)


class DelayedAdmin:
    """The calls about delayed messages. Only one thread may use this object at a time. All calls raise
    CoordinationUnavailable if ZooKeeper does not answer.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.time) -> None:
        """clock: returns seconds since 1970."""
        self._cluster = cluster
        self._clock = clock

    def count(self, *, topic: str | None = None, broker: int | None = None) -> DelayedCounts:
        """Count the waiting messages by topic. topic: only of this topic. broker: ask only the broker with this id.
        Raises NoPartition for an unknown topic, and BrokerUnavailable if `broker` is not registered.
        """
        cluster = self._cluster
        counts: Counter[str] = Counter()
        late: Counter[str] = Counter()
        why: dict[str, str] = {}
        found, silent = ask_brokers(
            cluster, brokers_to_ask(cluster, broker), lambda connection, _: list_delayed(connection, topic or "", 0)
        )
        for each, page in found.items():
            counts.update({name: count for name, count in page.topics.items() if topic in (None, name)})
            for place, said in page.late.items():
                name, _, number = place.rpartition("-")
                if topic in (None, name):
                    late[name] += int(said["count"])
                    why[name] = f"{each}-{number}: {said['why']}"
        if topic is not None and not counts:
            check_known_topic(cluster, topic)
        rows = [DelayedCount(name, count, late[name], why.get(name)) for name, count in sorted(counts.items())]
        return DelayedCounts(rows, silent)

    def list(self, *, topic: str | None = None, broker: int | None = None, limit: int = 100) -> DelayedMessages:
        """Return the next messages to be delivered, at most `limit` (1 or more). The other arguments and the errors are
        those of `count`. Also raises ConfigError for a wrong limit.
        """
        check_number("limit", limit)
        cluster = self._cluster
        found, silent = ask_brokers(
            cluster,
            brokers_to_ask(cluster, broker),
            lambda connection, _: [*each_delayed(connection, topic or "", limit)],
        )
        in_order = merge(*(_placed(*answer) for answer in found.items()), key=lambda each: each.message.due)
        chosen = [*islice(in_order, limit)]
        if topic is not None and not chosen:
            check_known_topic(cluster, topic)
        return DelayedMessages(chosen, silent)

    def cancel(
        self, partition: TopicPartition, message_ids: Iterable[int], *, dry_run: bool = False
    ) -> Mapping[int, Cancelled]:
        """Cancel messages of one partition, so that they are not delivered. Return for each id whether the message is
        cancelled. dry_run: cancel nothing; the result says what would happen, but a message that was cancelled earlier
        counts as unknown.

        Raises NoPartition for an unknown topic, and BrokerUnavailable. If the call fails, some of the messages may be
        cancelled; repeat the call then.
        """
        cluster = self._cluster
        cluster.look_again()
        check_known_topic(cluster, check_topic(partition.topic))
        question = partial(_would_cancel, clock=self._clock) if dry_run else cancel_at
        return {
            each: cluster.ask(partition, partial(question, partition=partition, message_id=each))
            for each in message_ids
        }


def brokers_to_ask(cluster: Cluster, broker: int | None) -> Sequence[int]:
    """Return the ids of the brokers to ask: only `broker` if it is given, otherwise all registered brokers. Raises the
    errors of `Cluster.endpoint`.
    """
    cluster.look_again()
    if broker is not None:
        cluster.endpoint(broker)
        return [broker]
    return sorted(number for number, nodes in cluster.view.brokers().items() if nodes.master is not None)


def _placed(broker: int, messages: Sequence[WaitingMessage]) -> list[DelayedMessage]:
    return [DelayedMessage(TopicPartition(each.topic, broker, each.partition), each) for each in messages]


def _would_cancel(
    connection: Connection, partition: TopicPartition, message_id: int, clock: Callable[[], float]
) -> Cancelled:
    """Return the result that `cancel_at` would have, without cancelling the message. There is one difference: for a
    message that was cancelled earlier, this function returns that the message does not wait.
    """
    page = list_delayed(connection, limit=1, after=message_id - 1)  # messages are in the order of their ids
    for each in page.messages:
        if (each.id, each.topic, each.partition) == (message_id, partition.topic, partition.partition):
            return Cancelled.CANCELLED
    return Cancelled.LATE if due_ms(message_id) <= clock() * 1000 else Cancelled.UNKNOWN
