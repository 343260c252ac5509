"""Our load generator: `python -m bench.worker <zkConnect>`, the counterpart of metaq.peer.Peer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from typing import Any

from metaq import Consumer, Producer

from .loops import Generator, Poll, PollArrow, serve

POLL_MESSAGES = 1000


class Metaq:
    """Our client behind the loops."""

    def __init__(self, zk_connect: str) -> None:
        self._zk_connect = zk_connect
        self._producer = Producer(zk_connect)
        self.send = self._producer.send

    def send_async(self, topic: str, data: bytes) -> Future[Any]:
        return self._producer.send_async(topic, data)

    def send_batches(self, topic: str, payloads: list[bytes], batches: int) -> None:
        """Each frame is waited for."""
        for _ in range(batches):
            self._producer.send_batch(topic, payloads)

    @contextmanager
    def consume(self, topic: str, group: str) -> Iterator[Poll]:
        with Consumer(self._zk_connect, group=group, topics=[topic], start="earliest") as consumer:
            yield lambda: consumer.poll(max_messages=POLL_MESSAGES, timeout=1.0)

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
    """Answer standard input's lines until it ends."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m bench.worker <zkConnect>")
    with closing(Metaq(sys.argv[1])) as client:
        serve(Generator(client))


if __name__ == "__main__":
    main()
