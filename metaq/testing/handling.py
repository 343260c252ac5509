"""Test a message handler without ZooKeeper: call the handler, and call it again after a failure, as
Consumer.run(handler) does, but on the thread of the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from metaq.client.consumer.retry import Retry
from metaq.client.consumer.retrying import FailedMessages
from metaq.client.producer import Producer
from metaq.client.records.decoding import Records, decode_walking
from metaq.client.records.message import Message, as_original
from metaq.client.records.results import TopicPartition
from metaq.client.settings.config import check_texts
from metaq.protocol.own_topics import dead_topic

from .fake_broker import FakeBroker, FakeCluster

__all__ = ["dead_letters", "handle_all"]

_SEND_SECONDS = 10.0
_RETRY = Retry()


def handle_all(
    broker: FakeBroker,
    handler: Callable[[Message], object],
    *,
    group: str,
    topics: Iterable[str],
    retry: Retry = _RETRY,
) -> int:
    """Call `handler` with each message of `topics` until no message is left. If an earlier call has handled messages
    for the same `group`, begin after these messages.

    If the handler raises an exception, call it again with the same message, as `retry` says. Return how often the
    handler was called. The function does not wait for the end of pauses between attempts: when no other message is
    left, it delivers the failed messages that wait for another attempt, and all other delayed messages, at once. If the
    handler raises something that is not an Exception (such as KeyboardInterrupt), this function raises it, too. Raises
    ConfigError and InvalidName for wrong arguments, and MetaqError if the broker refuses a request.
    """
    calls = 0
    with Producer(metadata=FakeCluster([broker])) as producer:
        failed = FailedMessages(retry, group, lambda: producer, lambda _: True)
        names = (*check_texts("topics", topics), failed.retry_topic)
        while True:
            messages = [each for name in names for each in _read(broker, group, name)]
            if not messages:
                broker.deliver_delayed()
                messages = [each for name in names for each in _read(broker, group, name)]
            if not messages:
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


def dead_letters(broker: FakeBroker, group: str) -> list[Message]:
    """Return the stored dead letters of a group. A dead letter has the payload, the tag and the keys of the original
    message; `attempts` and `origin` describe the failure.
    """
    return [each for partition in _partitions(broker, dead_topic(group)) for each in _messages(broker, partition, 0)]


def _read(broker: FakeBroker, group: str, topic: str) -> Iterator[Message]:
    """Yield the messages of a topic that `handle_all` has not handled for this group yet."""
    for partition in _partitions(broker, topic):
        key = group, partition
        found = list(_messages(broker, partition, broker.handled.get(key, 0)))
        if found:
            broker.handled[key] = found[-1].next_offset
        yield from found


def _partitions(broker: FakeBroker, topic: str) -> list[TopicPartition]:
    numbers = sorted(partition for name, partition in list(broker.logs) if name == topic)
    return [TopicPartition(topic, broker.broker_id, number) for number in numbers]


def _messages(broker: FakeBroker, partition: TopicPartition, offset: int) -> Iterator[Message]:
    data: list[bytes] = []
    log = broker.log(partition.topic, partition.partition)
    first = max(offset, log.first)
    broker.run_there(lambda: data.append(log.slice(first, log.end - first)))
    (records,) = data
    return decode_walking(Records(records, 0, len(records), first, None), partition).messages
