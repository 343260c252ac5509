"""A producer that keeps the order of messages within a partition, even if some had to be saved on local disk because
the partition's broker was unavailable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.runtime.forks import ForkGuard
from metaq.coordination.runtime.interrupts import Aside, begin_elsewhere
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import ConfigError, MetaqError, NoPartition, PartitionClosed
from metaq.protocol.limits import check_topic
from metaq.protocol.record import Buffer, payload_bytes

from ..records.local_store import LocalMessageStore, StoredMessage
from ..records.results import SendResult, TopicPartition
from ..runtime.durations import Duration, check_timeout, check_wait
from ..runtime.patched import refuse_patched
from ..runtime.timers import END_SECONDS, TimeLeft
from ..runtime.unclosed import Closing
from ..settings.config import ProducerConfig, config_or_default
from ..settings.moved_options import MovedProtocol, with_moved
from ..transport.metadata import Metadata
from .building import SendOptions, build_body
from .futures import refuse_in_handler
from .packing import Packer
from .producer import Producer, zookeeper_metadata
from .resending import Resender
from .routing import PartitionSelector, RoundRobinSelector, check_selector, partition_for_key
from .typed import TypedSend

if TYPE_CHECKING:
    from ..serializers.base import Serializer

__all__ = ["OrderedProducer"]

log = get_log(__name__)

T = TypeVar("T")


class OrderedProducer(Closing):
    """A producer that sends each message to one of the CONFIGURED partitions of its topic, or saves it in a local store
    until the partition accepts it.

    The choice of a partition never depends on which brokers are registered, so a key always keeps its partition. A
    message is saved if its partition is not registered now, is closed, or still has messages in the store. A thread
    sends the saved messages of a partition in the order in which they were saved, beginning with those that an earlier
    process has saved. It starts to send when a message is sent to the partition, when brokers are registered or
    unregistered, and every recover_interval_seconds. A new message never overtakes saved ones. So if one `send` to a
    partition returns before another `send` to the same partition is called, the broker stores the message of the first
    call first. Any thread may call the methods.
    """

    def __init__(
        self,
        connect: str = "localhost:2181",
        *,
        partitions: Mapping[str, Mapping[int, int]],
        store: LocalMessageStore,
        selector: PartitionSelector | None = None,
        save_failed: bool = False,
        root: str = "/meta",
        config: ProducerConfig | None = None,
        metadata: Metadata | None = None,
        clock: Callable[[], float] = time.monotonic,
        **moved: Unpack[MovedProtocol],
    ) -> None:
        """partitions: for each topic, the number of partitions on each broker, {"trades": {0: 4, 1: 4}}; all producers
        that ever write to the topic must be configured with the same numbers. store: the store for saved messages; only
        this producer may use it, and the producer closes it. selector: chooses among the configured partitions for
        messages without a key (default: each in turn). save_failed: whether a message is also saved if its send fails
        with another error that allows a retry; if false, `send` raises such an error. (A message is always saved if its
        partition is closed or not registered.) If only the broker's answer to a message was lost, and the message is
        therefore saved, the broker later stores it a second time. The other arguments are the same as for Producer.
        Raises ConfigError; CoordinationUnavailable.
        """
        refuse_patched()  # before anything waits
        self._guard = ForkGuard("OrderedProducer")
        self._aside = Aside("metaq-ordered-close")
        self._configured = {topic: _listed(topic, counts) for topic, counts in partitions.items()}
        self._config = with_moved(config_or_default(config, ProducerConfig), "OrderedProducer", moved, "protocol")
        self._packer = Packer.of(self._config)
        self._store = store
        self._selector: PartitionSelector = RoundRobinSelector() if selector is None else check_selector(selector)
        self._save_failed = save_failed
        self._clock = clock
        own = None
        if metadata is None:
            metadata = own = zookeeper_metadata(connect, root, self._config)
        self._metadata = metadata
        self._producer = Producer(config=self._config, metadata=metadata, clock=clock)
        self._queues = {_queue(each): each for listed in self._configured.values() for each in listed}
        send_once = partial(self._producer.send_stored, retry=False)
        resender = self._resender = Resender(
            store, self._queues.__contains__, send_once, self._config.recover_interval_seconds, clock
        )
        try:
            if own is not None:
                own.start(self._config.start_timeout_seconds)
            for topic in self._configured:
                metadata.view(topic)  # watched from now on
            metadata.on_change(lambda topic: resender.trigger_all())
            resender.begin()
            self._opened()
        except BaseException:
            begin_elsewhere((self._abandon,))
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Stop the threads and close the connections of a producer whose constructor has failed or was interrupted. A
        repeated call does no harm.
        """
        self._aside.do(self._close, 0.0)

    def send(
        self,
        topic: str,
        payload: Buffer,
        *,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> SendResult:
        """Send one message, or save it in the store. The arguments are those of Producer.send. For a saved message the
        result's `pending` is true, and its message id is 0.

        Raises NoPartition (the topic or the partition is not configured), LocalStoreFull, LocalStoreError, and the
        errors of Producer.send. An error of Producer.send means that the broker is registered, but could not be reached
        in time or refused the message; the message is then not saved (see `save_failed`).
        """
        self._guard.check()
        seconds = self._config.delivery_timeout_seconds if timeout is None else check_timeout(timeout)
        deadline = self._clock() + seconds
        payload = payload_bytes(payload)
        flag, body = build_body(payload, options, self._packer)
        key = options.get("key")
        chosen = self._choose(topic, payload, key, options.get("partition"))
        message = StoredMessage(topic, body, flag, chosen, key)
        backoff = Backoff(self._config.retry_min_seconds, self._config.retry_max_seconds)
        while self._may_send(chosen):
            try:
                return self._producer.send_stored(message, timeout=max(0.0, deadline - self._clock()), retry=False)
            except PartitionClosed:
                break
            except MetaqError as error:
                if not error.retriable:
                    raise
                if self._save_failed:
                    log.info("a message to %s %s is saved: %s", topic, chosen, error)
                    break
                pause = backoff.next()
                if self._clock() + pause >= deadline:
                    raise
                time.sleep(pause)
        return self._save(message, chosen)

    def typed(self, serializer: Serializer[T]) -> TypedSend[T]:
        """Return an object that sends values through this producer; `serializer` turns each value into a payload.
        Values are serialised when they are sent or saved. Raises ConfigError.
        """
        return TypedSend(self, serializer)

    def waiting(self, partition: TopicPartition) -> int:
        """Return how many messages of a partition are saved and not sent yet."""
        return self._store.count(_queue(partition))

    @property
    def failures(self) -> Mapping[TopicPartition, MetaqError]:
        """Return, for each partition whose first saved message could not be sent, the error of the last try.

        If a broker refuses this message permanently, no later message of the partition is sent, as in 1.x. You can
        remove the message from the store, so that the later ones are sent.
        """
        return {self._queues[queue]: error for queue, error in self._resender.failures.items()}

    def flush(self, timeout: Duration | None = None) -> bool:
        """Try to send all saved messages now. Return whether all of them were sent within `timeout` seconds. Like
        close(), raises ClientError in a signal handler that has interrupted a call of this producer.
        """
        self._guard.check()
        refuse_in_handler("flush()", self)
        seconds = self._config.delivery_timeout_seconds if timeout is None else check_timeout(timeout)
        deadline = self._clock() + seconds
        for queue in self._queues:
            if self._store.count(queue):
                self._resender.trigger(queue)
        return all(self._resender.wait_until_empty(queue, deadline - self._clock()) for queue in self._queues)

    def close(self, timeout: Duration = 10.0) -> None:
        """Wait at most `timeout` seconds for messages in flight, and close the store, which keeps its messages. Even if
        a thread or a connection hangs, closing takes at most 2 × END_SECONDS (2 s) longer than `timeout`. Idempotent.
        If it is called in a signal handler that has interrupted a call of this producer, it raises ClientError and
        closes nothing.

        In a forked process it only closes that process's copies of the sockets.
        """
        seconds = check_wait("timeout", timeout)
        if self._guard.is_elsewhere:
            self._producer.close()
            return
        refuse_in_handler("close()", self)
        self._closes()
        self._aside.do(self._close, seconds)

    def _close(self, timeout: float) -> None:
        """Close the threads, the producer and the store. Runs on a thread that cannot be interrupted."""
        left = TimeLeft(timeout, self._clock)
        self._resender.close(left.seconds)
        self._producer.close(left.seconds)
        self._resender.close(max(left.seconds, END_SECONDS))  # the producer's end also ends the sends of the resender
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- where to ---------------------------------------------------------------------------------------------------

    def _choose(
        self, topic: str, payload: bytes, key: str | bytes | None, partition: TopicPartition | None
    ) -> TopicPartition:
        configured = self._configured.get(topic)
        if configured is None:
            raise NoPartition(f"topic {topic!r} has no configured partitions: add it to partitions={{...}}")
        if partition is not None:
            chosen = partition
        elif key is not None:
            return partition_for_key(key, configured)
        else:
            chosen = self._selector.select(topic, configured, payload)
        if chosen not in configured:
            raise NoPartition(f"topic {topic!r} has no partition {chosen!r} among those configured")
        return chosen

    def _may_send(self, partition: TopicPartition) -> bool:
        """Return whether a message may be sent to the partition now: the partition is registered and has no saved
        messages that must be sent first. If it has at most ordered_wait_messages saved messages, first wait up to
        ordered_wait_seconds until they are sent.
        """
        if not self._is_available(partition):
            return False
        queue = _queue(partition)
        in_front = self._store.count(queue)
        if not in_front:
            return True
        self._resender.trigger(queue)
        if in_front > self._config.ordered_wait_messages:
            return False
        return self._resender.wait_until_empty(queue, self._config.ordered_wait_seconds)

    def _is_available(self, partition: TopicPartition) -> bool:
        return partition in self._metadata.view(partition.topic).partitions

    # --- saved messages ---------------------------------------------------------------------------------------------

    def _save(self, message: StoredMessage, partition: TopicPartition) -> SendResult:
        queue = _queue(partition)
        self._store.append(queue, [message])
        if self._is_available(partition):
            self._resender.trigger(queue)  # the resender may just have found the queue empty for the last time
        return SendResult(0, partition, -1)


def _listed(topic: str, counts: Mapping[int, int]) -> tuple[TopicPartition, ...]:
    """Return the configured partitions of a topic, ordered by broker and number as in a Producer's view. Raises
    ConfigError, InvalidName.
    """
    check_topic(topic)
    listed = tuple(TopicPartition(topic, broker, p) for broker in sorted(counts) for p in range(counts[broker]))
    if not listed or min(counts) < 0 or min(counts.values()) < 0:
        raise ConfigError(f"partitions[{topic!r}]", dict(counts), "name brokers with their number of partitions")
    return listed


def _queue(partition: TopicPartition) -> str:
    return f"{partition.topic}@{partition}"
