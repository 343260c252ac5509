"""Test a message handler without ZooKeeper: call the handler, and call it again after a failure, as
Consumer.run(handler) does, but on the thread of the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from metaq.client.consumer.retry import Retry
from metaq.client.consumer.retrying import FailedMessages
from metaq.client.producer import Producer
from metaq.client.records.message import Message, as_original
from metaq.client.records.results import TopicPartition
from metaq.client.settings.config import check_texts
from metaq.protocol.own_topics import dead_topic

__all__ = ["DEFAULT_RETRY", "HandledCluster", "dead_letters", "handle_all"]

_SEND_SECONDS = 10.0
DEFAULT_RETRY = Retry()


class HandledCluster(Protocol):
    """What this module needs of a Cluster or FakeBroker."""

    handled: dict[tuple[str, TopicPartition], int]
    """For each group and partition, the offset before which `handle_all` has handled all messages."""

    def stored(self, topic: str) -> list[Message]:
        """Return all stored messages of a topic, partition by partition; none if the topic does not exist."""

    def deliver_delayed(self) -> bool:
        """Deliver delayed messages before their time. Return False if none waits."""

    def sender(self) -> Producer:
        """Return a new Producer, which the caller closes."""


def handle_all(
    cluster: HandledCluster,
    handler: Callable[[Message], object],
    *,
    group: str,
    topics: Iterable[str],
    retry: Retry = DEFAULT_RETRY,
) -> int:
    """Call `handler` with each message of `topics` until no message is left. If an earlier call has handled messages
    for the same `group`, begin after these messages. cluster: a Cluster or FakeBroker.

    If the handler raises an exception, call it again with the same message, as `retry` says. Return how often the
    handler was called. The function does not wait for the end of pauses between attempts: when no other message is
    left, it moves the cluster's clocks to the time of the next delayed message. So it also delivers all other delayed
    messages. (A FakeBroker delivers all of them at once, without regard to their times.) If the handler raises
    something that is not an Exception (such as KeyboardInterrupt), this function raises it, too. Raises ConfigError and
    InvalidName for wrong arguments, and MetaqError if a broker refuses a request.
    """
    calls = 0
    with cluster.sender() as producer:
        failed = FailedMessages(retry, group, lambda: producer, lambda _: True)
        names = (*check_texts("topics", topics), failed.retry_topic)
        while True:
            messages = [each for name in names for each in _read(cluster, group, name)]
            if not messages and not cluster.deliver_delayed():
                return calls
            for message in messages:
                calls += _handle(message, handler, failed)


def _handle(copy: Message, handler: Callable[[Message], object], failed: FailedMessages) -> int:
    """Call the handler with the message. If it fails and the message must be tried again in place, call it again at
    once. In all other cases of a failure, send the failed message to the broker, for a later attempt or as a dead
    letter. Return how often the handler was called.
    """
    tries = 0
    while True:
        message = as_original(copy, tries)
        tries += 1
        try:
            handler(message)
        except Exception as error:
            failure = failed.failure(message, error, message.attempts)
            if failed.retry.ordered and not failed.is_last(failure):
                continue
            failed.send(message, failure).future.result(_SEND_SECONDS)
        return tries


def dead_letters(cluster: HandledCluster, group: str) -> list[Message]:
    """Return the stored dead letters of a group. A dead letter has the payload, the tag and the keys of the original
    message; `attempts` and `origin` describe the failure.
    """
    return cluster.stored(dead_topic(group))


def _read(cluster: HandledCluster, group: str, topic: str) -> list[Message]:
    """Return the messages of a topic that `handle_all` has not handled for this group yet, and count them as
    handled.
    """
    handled = cluster.handled
    found = [each for each in cluster.stored(topic) if each.offset >= handled.get((group, each.partition), 0)]
    for each in found:
        handled[group, each.partition] = each.next_offset
    return found
