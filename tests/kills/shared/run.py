"""One run: a broker, some members, a producer, and kills."""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from pathlib import Path
from typing import Literal

from metaq import Producer
from metaq.client.questions.shared import SharedPartition, shared_status
from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import Endpoint, open_connection
from metaq.client.transport.metadata import DirectMetadata
from metaq.protocol.errors import MetaqError
from tests.broker_process import server_ini
from tests.kills.brokers import BrokerPlace
from tests.kills.children import Crew
from tests.kills.journal import read_journal
from tests.kills.outcome import Outcome, Say
from tests.waiting import eventually

from .checkers import Handed, events_in, judge
from .member import GROUP, TOPIC, Task

__all__ = ["run"]

LEASE_SECONDS = 4.0
RATE = 300.0
LEAST_SENT = 10
"""Least number of messages between two kills, however slow the disk is."""
BROKER_SHARE = 0.4
"""Share of the kills that hit the broker; the others hit members."""


def run(
    directory: Path,
    seed: int,
    say: Say,
    *,
    kills: int = 60,
    members: int = 4,
    flush: Literal["async", "group-commit", "by seed"] = "by seed",
) -> Outcome:
    """A shared group: nothing is lost, and leases and attempts are right, while members and the broker are killed.

    kills: of members and of the broker together. flush: "by seed" is group commit for an even seed. Raises
    AssertionError if the group never settles.
    """
    rng = random.Random(seed)
    # a random sequence of its own: the producer's thread would take numbers of the kills
    priorities = random.Random(seed)
    is_brokers = [number < kills * BROKER_SHARE for number in range(kills)]
    rng.shuffle(is_brokers)
    is_async = flush == "async" or (flush == "by seed" and seed % 2)
    ini = server_ini(directory / "data", {TOPIC: f"unflushThreshold={1000 if is_async else 0}"})
    sent: list[int] = []
    stop = threading.Event()
    names = [f"member-{number}" for number in range(members)]

    with BrokerPlace(directory, ini) as broker, Crew(directory) as crew:
        metadata = DirectMetadata(Endpoint("127.0.0.1", broker.port), 0, {TOPIC: 1})

        def start(name: str) -> None:
            crew.start(name, Task(port=broker.port, lease=LEASE_SECONDS, seed=rng.randrange(1 << 30)))

        def send() -> None:
            with Producer(metadata=metadata) as producer:
                number = 0
                while not stop.wait(1 / RATE):
                    number += 1
                    try:
                        result = producer.send(TOPIC, b"%d" % number, priority=9 if priorities.random() < 0.05 else 0)
                    except MetaqError:
                        continue  # the send was not acknowledged
                    sent.append(result.offset)

        def enough(before: int) -> bool:
            return len(sent) >= before + LEAST_SENT

        producing = threading.Thread(target=send)
        try:
            for name in names:
                start(name)
            producing.start()
            for is_broker in is_brokers:
                before = len(sent)
                time.sleep(rng.uniform(0.2, 1.0))
                eventually(partial(enough, before), what="messages in front of a kill")
                if is_broker:
                    broker.kill()
                    broker.start_and_wait()
                else:
                    name = rng.choice(names)
                    crew.kill(name)
                    start(name)
            stop.set()
            producing.join()
            eventually(lambda: _left(broker.port) == (0, 0), what="the last acknowledgement")
        finally:
            stop.set()
        crew.kill(*names)
    events = [event for path in crew.journals() for event in events_in(path.stem, read_journal(path))]
    handed = [event for event in events if isinstance(event, Handed)]
    figures = {
        "broker kills": sum(is_brokers),
        "member kills": kills - sum(is_brokers),
        "sent": len(sent),
        "handed": len(handed),
        "handed again": len(handed) - len({event.offset for event in handed}),
    }
    return Outcome(judge(events, sent), figures)


def _left(port: int) -> tuple[int, int] | None:
    """Return the number of messages that are not acknowledged, and of leased ones; None if the broker does not
    answer."""
    try:
        connection = open_connection(Endpoint("127.0.0.1", port), ConnectionConfig(), 5.0)
    except MetaqError:
        return None
    try:
        found: list[SharedPartition] = shared_status(connection, 0, GROUP)
    finally:
        connection.close()
    return (found[0].left, found[0].leased) if found else None
