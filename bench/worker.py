"""metaq's load generator: `python -m bench.worker [--one-core] <zkConnect>`. metaq.peer.Peer is the one for Java
metaq.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from itertools import cycle
from typing import Any

from metaq import Consumer, Producer, ProducerConfig, TopicPartition

from .kinds import PRODUCER_GROUP, Kinds
from .loops import Generator, Poll, PollArrow, serve

BATCHES_UNDER_WAY = 4


class Metaq:
    """Adapter that makes metaq's client a Client of the measuring loops."""

    def __init__(self, zk_connect: str) -> None:
        self._zk_connect = zk_connect
        self._producer = Producer(zk_connect, config=ProducerConfig(producer_group=PRODUCER_GROUP))
        self.kinds = Kinds(zk_connect, self._producer)
        self._turns: dict[str, Iterator[TopicPartition] | None] = {}
        self.send = self._producer.send

    def send_async(self, topic: str, data: bytes) -> Future[Any]:
        """Send without waiting, to all partitions in turn, as metaq 1.x's client does. Without a named partition,
        metaq's client would choose one partition until a request to it is full.
        """
        if topic not in self._turns:
            partitions = self._producer.partitions(topic)
            self._turns[topic] = cycle(partitions) if len(partitions) > 1 else None
        turns = self._turns[topic]
        if turns is None:
            return self._producer.send_async(topic, data)
        return self._producer.send_async(topic, data, partition=next(turns))

    def produce(self, topic: str, data: bytes, count: int) -> None:
        """Send in the way in which a user of confluent-kafka would write it."""
        reported, failed = 0, []

        def report(error: Exception | None, _: Any) -> None:
            nonlocal reported
            reported += 1
            if error is not None:
                failed.append(error)

        produce = self._producer.produce
        for _ in range(count):
            produce(topic, data, on_delivery=report)
        self._producer.flush(60)
        if failed or reported != count:
            raise RuntimeError(f"{len(failed)} of {count} sends failed, {reported} were reported: {failed[:1]}")

    def send_batches(self, topic: str, payloads: list[bytes], batches: int) -> None:
        """Send batches, with a few unanswered ones at a time: while one is stored, the next is on the network and
        others are being made.
        """
        unanswered: deque[Future[Any]] = deque()
        for _ in range(batches):
            if len(unanswered) == BATCHES_UNDER_WAY:
                unanswered.popleft().result()
            unanswered.append(self._producer.send_batch_async(topic, payloads))
        for future in unanswered:
            future.result()

    @contextmanager
    def consume(self, topic: str, group: str) -> Iterator[Poll]:
        with Consumer(self._zk_connect, group=group, topics=[topic], start="earliest") as consumer:
            yield lambda: consumer.poll(timeout=1.0)

    @contextmanager
    def consume_arrow(self, topic: str, group: str) -> Iterator[PollArrow]:
        with Consumer(self._zk_connect, group=group, topics=[topic], start="earliest") as consumer:
            yield consumer.poll_arrow

    @staticmethod
    def data(message: Any) -> bytes:
        payload: bytes = message.payload
        return payload

    def close(self) -> None:
        self._producer.close()


def main() -> None:
    """Execute the commands from standard input, one per line, until the input ends."""
    *options, zk_connect = sys.argv[1:] or [""]
    if options not in ([], ["--one-core"]) or not zk_connect:
        sys.exit("usage: python -m bench.worker [--one-core] <zkConnect>")
    if options:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # as `taskset -c` does
    with closing(Metaq(zk_connect)) as client:
        serve(Generator(client), client.kinds.commands)


if __name__ == "__main__":
    main()
