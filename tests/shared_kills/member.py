"""A member in a process of its own, which writes what it does to a file: one line for each, before it goes on.

H offset attempts time until  a message was handed to it
R offset delay time           it is going to release it
C offset time                 its acknowledgement was confirmed
"""

from __future__ import annotations

import random
import sys
import time

from metaq import SharedConfig, SharedConsumer
from metaq.client.connection import Endpoint
from metaq.client.metadata import DirectMetadata

GROUP, TOPIC = "g", "jobs"


def main(port: int, path: str, lease: float, seed: int) -> None:
    rng = random.Random(seed)
    metadata = DirectMetadata(Endpoint("127.0.0.1", port), 0, {TOPIC: 1})
    config = SharedConfig(lease_seconds=lease, prefetch=8)
    with (
        open(path, "a", buffering=1) as said,
        SharedConsumer(group=GROUP, topics=[TOPIC], metadata=metadata, config=config) as consumer,
    ):
        while True:
            acknowledged = []
            lost = consumer.counts[1]
            for message in consumer.poll(1.0, 5):
                until = message.lease_until
                said.write(f"H {message.offset} {message.attempts} {time.monotonic():.6f} {until:.6f}\n")
                if rng.random() < 0.1:
                    said.write(f"R {message.offset} 0.3 {time.monotonic():.6f}\n")
                    consumer.release(message, delay=0.3)
                    continue
                time.sleep(0.002)
                consumer.ack(message)
                acknowledged.append(message)
            consumer.flush(60)
            if consumer.counts[1] == lost:
                for message in acknowledged:
                    said.write(f"C {message.offset} {time.monotonic():.6f}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
