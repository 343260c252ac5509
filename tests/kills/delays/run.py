"""Delayed messages, some of them cancelled, while their broker and their producers are killed again and again."""

from __future__ import annotations

import random
import time
from pathlib import Path

from tests.broker_process import server_ini
from tests.kills.brokers import BrokerPlace
from tests.kills.children import Crew
from tests.kills.journal import read_journal
from tests.kills.outcome import Outcome, Say
from tests.kills.stored import stored
from tests.waiting import DEADLINE

from .checkers import facts_in, judge
from .sender import LONGEST_SECONDS, PARTITIONS, TOPICS, WAYS, Task

__all__ = ["run"]

FLUSH = {"loose": 1000, "safe": 0}
KILLED = ("killed-0", "killed-1")


def run(directory: Path, seed: int, say: Say, *, kills: int = 25, seconds: float = 1.0) -> Outcome:
    """Delayed messages through kills of the broker and of producers: none lost, twice, early, or although cancelled.

    kills: of the broker, with about `seconds` between two; there are two more kills of processes with producers.
    Another process with producers is never killed.
    """
    rng = random.Random(seed)
    topics = {topic: f"numPartitions={PARTITIONS}\nunflushThreshold={FLUSH[topic]}" for topic in TOPICS}
    with BrokerPlace(directory, server_ini(directory / "data", topics)) as broker, Crew(directory) as crew:

        def start(name: str, number: int) -> None:
            crew.start(name, Task(address=f"127.0.0.1:{broker.port}", seed=seed * 1000 + number, ways=WAYS))

        for number, name in enumerate(("steady", *KILLED)):
            start(name, number)
        for kill in range(kills):
            time.sleep(rng.uniform(0.2, 0.8) * seconds)
            crew.kill(KILLED[kill % 2])
            start(KILLED[kill % 2], 10 + kill)
            time.sleep(rng.uniform(0.3, 0.7) * seconds)
            broker.kill()
            broker.start_and_wait()
        time.sleep(seconds)
        crew.kill(*KILLED)
        crew.end("steady", DEADLINE)
        assert crew["steady"].process.returncode == 0, crew["steady"].log.read_text()
        time.sleep(LONGEST_SECONDS + 1.0)
        broker.end(DEADLINE)
        facts = facts_in(line for path in crew.journals() for line in read_journal(path))
    found = list(stored(directory / "data", TOPICS))
    figures = {
        "broker kills": kills,
        "producer kills": kills + len(KILLED),
        "acknowledged": len(facts.due),
        "cancelled": len(facts.cancelled),
        "failed": facts.failed,
        "stored": len(found),
    }
    return Outcome(judge(facts, found), figures)
