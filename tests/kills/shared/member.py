"""A member in a process of its own, until SIGKILL: `python -m tests.kills.shared.member JSON`, see Task.

handed    offset, attempts, until       a message was delivered to it; its lease ends then, as far as it knows
release   offset, delay                 it is about to release the message
confirmed offset                        its acknowledgement was confirmed
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

from metaq import SharedConfig, SharedConsumer
from metaq.client.transport.connection import Endpoint
from metaq.client.transport.metadata import DirectMetadata
from tests.kills.journal import Journal
from tests.kills.programs import LifeTask

__all__ = ["GROUP", "TOPIC", "Task"]

GROUP, TOPIC = "g", "jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(LifeTask):
    port: int
    lease: float
    seed: int


def main(task: Task) -> None:
    rng = random.Random(task.seed)
    journal = Journal(Path(task.journal))
    metadata = DirectMetadata(Endpoint("127.0.0.1", task.port), 0, {TOPIC: 1})
    config = SharedConfig(lease_seconds=task.lease, prefetch=8)
    with SharedConsumer(group=GROUP, topics=[TOPIC], metadata=metadata, config=config) as consumer:
        while True:
            acknowledged = []
            lost = consumer.counts[1]
            for message in consumer.poll(1.0, max_messages=5):
                journal.write("handed", message.offset, message.attempts, message.lease_until)
                if rng.random() < 0.1:
                    journal.write("release", message.offset, 0.3)
                    consumer.release(message, delay=0.3)
                    continue
                time.sleep(0.002)
                consumer.ack(message)
                acknowledged.append(message)
            consumer.flush(60)
            if consumer.counts[1] == lost:
                for message in acknowledged:
                    journal.write("confirmed", message.offset)


if __name__ == "__main__":
    main(Task.told())
