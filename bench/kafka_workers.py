"""Load generators in Python for Kafka: `python -m bench.kafka_workers kafka-python|confluent-kafka <bootstrap>`.
For confluent-kafka, further arguments `key=value` are settings of the client, such as `security.protocol=SASL_SSL`.

The clients have their default settings, with two exceptions: single sends do not linger, and the batches of the
producer for bulk sends are as large as the benchmark's batches (Kafka's default is 16 KiB).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

from .loops import Client, Generator, Poll, PollArrow, serve

__all__ = ["BULK_BATCH_BYTES", "BULK_LINGER_MS", "POLL_MESSAGES", "POLL_SECONDS"]

BULK_BATCH_BYTES = 512 * 1024
BULK_LINGER_MS = 5  # the Java client's default since Kafka 4.0
POLL_MESSAGES = 1000
POLL_SECONDS = 0.1
JOIN_POLL_SECONDS = 1.0
"""Timeout of a poll in seconds. It must be long enough for joining a group: kafka-python ends a poll at its timeout
even while it joins, and the next poll begins the join anew.
"""
CONFLUENT_QUEUE = 100_000
"""The most messages that confluent-kafka's producer queues by default."""


class KafkaPython:
    """Adapter that makes kafka-python a Client of the measuring loops."""

    def __init__(self, bootstrap: str) -> None:
        from kafka import KafkaProducer  # each client is only imported where it is measured

        self._bootstrap = bootstrap
        self._prompt = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
        self._bulk = KafkaProducer(
            bootstrap_servers=bootstrap, acks="all", linger_ms=BULK_LINGER_MS, batch_size=BULK_BATCH_BYTES
        )

    def send(self, topic: str, data: bytes) -> object:
        return self._prompt.send(topic, data).get()

    def send_async(self, topic: str, data: bytes) -> _KafkaFuture:
        return _KafkaFuture(self._prompt.send(topic, data))

    def produce(self, topic: str, data: bytes, count: int) -> None:
        """Raise NotImplementedError: kafka-python's futures have call-backs, but it cannot send without making a
        future.
        """
        raise NotImplementedError("the client has no call-back of a send")

    def send_batches(self, topic: str, payloads: list[bytes], batches: int) -> None:
        """Send all messages, then wait for their acknowledgements. The client gathers the batches itself."""
        sent = [self._bulk.send(topic, data) for _ in range(batches) for data in payloads]
        self._bulk.flush()
        for future in sent:
            future.get()

    @contextmanager
    def consume(self, topic: str, group: str) -> Iterator[Poll]:
        from kafka import KafkaConsumer

        consumer = KafkaConsumer(topic, group_id=group, bootstrap_servers=self._bootstrap, auto_offset_reset="earliest")

        def poll() -> list[Any]:
            polled = consumer.poll(timeout_ms=int(JOIN_POLL_SECONDS * 1000), max_records=POLL_MESSAGES)
            return [message for messages in polled.values() for message in messages]

        with closing(consumer):
            yield poll

    def consume_arrow(self, topic: str, group: str) -> AbstractContextManager[PollArrow]:
        raise NotImplementedError("the client has no Arrow")

    @staticmethod
    def data(message: Any) -> bytes:
        value: bytes = message.value
        return value

    def close(self) -> None:
        self._prompt.close()
        self._bulk.close()


class _KafkaFuture:
    """Wrapper of kafka-python's future with the method names of concurrent.futures."""

    __slots__ = ("result",)

    def __init__(self, future: Any) -> None:
        self.result = future.get


class ConfluentKafka:
    """Adapter that makes confluent-kafka a Client of the measuring loops. A separate thread calls the callbacks of
    acknowledgements.
    """

    def __init__(self, bootstrap: str, *settings: str) -> None:
        """settings: `key=value` of the client, for producers and consumers."""
        from confluent_kafka import Producer

        common = {"bootstrap.servers": bootstrap, **dict(each.split("=", 1) for each in settings)}
        self._common: dict[str, Any] = common
        self._prompt = Producer({**common, "linger.ms": 0})
        self._bulk = Producer({**common, "linger.ms": BULK_LINGER_MS, "batch.size": BULK_BATCH_BYTES})
        self._plain = Producer(common)
        self._closed = threading.Event()
        self._poller = threading.Thread(target=self._call_back, name="callbacks", daemon=True)
        self._poller.start()

    def _call_back(self) -> None:
        while not self._closed.is_set():
            self._prompt.poll(POLL_SECONDS)

    def send(self, topic: str, data: bytes) -> object:
        return self.send_async(topic, data).result()

    def send_async(self, topic: str, data: bytes) -> Future[None]:
        future: Future[None] = Future()
        self._prompt.produce(topic, data, on_delivery=_end(future))
        return future

    def produce(self, topic: str, data: bytes, count: int) -> None:
        """Send in the loop that the client's documentation shows, with the default settings."""
        reported, failed = 0, []

        def report(error: Any, _: Any) -> None:
            nonlocal reported
            reported += 1
            if error is not None:
                failed.append(error)

        produce, poll = self._plain.produce, self._plain.poll
        for _ in range(count):
            while True:
                try:
                    produce(topic, data, on_delivery=report)
                    break
                except BufferError:
                    poll(POLL_SECONDS)
            poll(0)
        self._plain.flush(60)
        if failed or reported != count:
            raise RuntimeError(f"{len(failed)} of {count} sends failed, {reported} were reported: {failed[:1]}")

    def send_batches(self, topic: str, payloads: list[bytes], batches: int) -> None:
        """Send all messages as fast as the client's queue accepts them, then wait for their acknowledgements. The
        client gathers the batches itself.
        """
        failed: list[Any] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                failed.append(error)

        for _ in range(batches):
            for data in payloads:
                while True:
                    try:
                        self._bulk.produce(topic, data, on_delivery=delivered)
                        break
                    except BufferError:  # the queue is full: wait for acknowledgements, as the documentation says
                        self._bulk.poll(POLL_SECONDS)
            self._bulk.poll(0)
        left = self._bulk.flush(60)
        if failed or left:
            raise RuntimeError(f"{len(failed)} sends failed, {left} have no answer: {failed[:1]}")

    @contextmanager
    def consume(self, topic: str, group: str) -> Iterator[Poll]:
        from confluent_kafka import Consumer

        consumer = Consumer({**self._common, "group.id": group, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])

        def poll() -> list[Any]:
            messages: list[Any] = consumer.consume(POLL_MESSAGES, POLL_SECONDS)
            _refuse_errors(messages)
            return messages

        def poll_promptly() -> list[Any]:
            # consume() waits for as many messages as it may return; after the first message do not wait
            first = consumer.poll(POLL_SECONDS)
            messages = [] if first is None else [first, *consumer.consume(POLL_MESSAGES, 0)]
            _refuse_errors(messages)
            return messages

        with closing(consumer):
            yield poll_promptly if topic.startswith("latency") else poll

    def consume_arrow(self, topic: str, group: str) -> AbstractContextManager[PollArrow]:
        raise NotImplementedError("the client has no Arrow")

    @staticmethod
    def data(message: Any) -> bytes:
        value: bytes = message.value()
        return value

    def close(self) -> None:
        self._closed.set()
        self._poller.join()
        self._prompt.flush(60)


class ConfluentKafkaBatch(ConfluentKafka):
    """confluent-kafka with its `produce_batch`, which supports no headers and is less well known."""

    def send_batches(self, topic: str, payloads: list[bytes], batches: int) -> None:
        failed: list[Any] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                failed.append(error)

        for _ in range(batches):
            while len(self._bulk) + len(payloads) > CONFLUENT_QUEUE:
                self._bulk.poll(POLL_SECONDS)
            messages = [{"value": data} for data in payloads]
            if self._bulk.produce_batch(topic, messages, on_delivery=delivered) != len(messages):
                raise RuntimeError(f"not all were taken: {[each for each in messages if '_error' in each][:1]}")
            self._bulk.poll(0)
        left = self._bulk.flush(60)
        if failed or left:
            raise RuntimeError(f"{len(failed)} sends failed, {left} have no answer: {failed[:1]}")


def _refuse_errors(messages: list[Any]) -> None:
    for message in messages:
        if message.error() is not None:
            raise RuntimeError(str(message.error()))


def _end(future: Future[None]) -> Callable[[Any, Any], None]:
    def delivered(error: Any, _message: Any) -> None:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(RuntimeError(str(error)))

    return delivered


CLIENTS: dict[str, Callable[..., Client]] = {
    "kafka-python": KafkaPython,
    "confluent-kafka": ConfluentKafka,
    "confluent-kafka-batch": ConfluentKafkaBatch,
}


def main() -> None:
    """Execute the commands from standard input, one per line, until the input ends."""
    if len(sys.argv) < 3 or sys.argv[1] not in CLIENTS or ("kafka-python" in sys.argv[:2] and sys.argv[3:]):
        sys.exit(f"usage: python -m bench.kafka_workers {'|'.join(CLIENTS)} <bootstrap server> [key=value …]")
    with closing(CLIENTS[sys.argv[1]](*sys.argv[2:])) as client:
        serve(Generator(client))


if __name__ == "__main__":
    main()
