"""Kill a broker and producers again and again, and check that each message was delivered as its transaction decided."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from metaq import ConnectionConfig
from metaq.client.questions.waiting_halves import HalvesPage, list_halves
from metaq.client.transport.connection import Endpoint, open_connection
from tests.broker_process import server_ini
from tests.kills.brokers import BrokerPlace
from tests.kills.children import Child, Crew, wait_until
from tests.kills.outcome import Outcome, Problem, Say, lost, twice, unmeant
from tests.kills.stored import stored
from tests.waiting import DEADLINE

from .worker import TOPICS, Task, recorded

__all__ = ["judge", "run"]

BROKER = ("-m", "metaq", "broker", "--half-check", "0.3", "--half-checks", "100", "-f")
WORKERS = ("worker-0", "worker-1")
FLUSH = {"loose": 1000, "safe": 0}


def judge(found: Sequence[str], books: Mapping[str, bool], left: Sequence[int]) -> list[Problem]:
    """Return the problems. found: delivered messages. books: by message, whether its transaction is committed. left:
    half messages that are still undecided."""
    committed = {payload for payload, commit in books.items() if commit}
    return [
        *lost(committed, found),
        *twice(found),
        *unmeant("never committed", found, set(found) - committed),
        *(Problem("not decided", f"the half message {each}") for each in left),
    ]


def run(directory: Path, seed: int, say: Say, *, kills: int = 20, seconds: float = 1.0, pauses: float = 3.0) -> Outcome:
    """Transactions with check-back: committed messages are delivered once, others not, and all are decided.

    kills: of the broker, each after about so many `seconds`; at least as many of producers. pauses: longest SIGSTOP in
    seconds, shorter than the time after which a producer counts as gone; 0: none.
    """
    rng = random.Random(seed)
    topics = {topic: f"numPartitions={count}\nunflushThreshold={FLUSH[topic]}" for topic, count in TOPICS.items()}
    ini = server_ini(directory / "data", topics)
    with BrokerPlace(directory, ini, program=BROKER) as broker, Crew(directory) as crew:
        started = deaths = worker_kills = 0

        def start(name: str, *, answers: bool = False) -> None:
            nonlocal started
            started += 1
            task = Task(address=f"127.0.0.1:{broker.port}", seed=seed * 1000 + started, answers=answers)
            crew.start(name, task)

        def keep_workers() -> None:
            nonlocal deaths
            for name in WORKERS:
                if not crew[name].running:
                    deaths += not killed.pop(name, False)
                    start(name)

        def kill_worker() -> None:
            nonlocal worker_kills
            name = rng.choice([each for each in WORKERS if each not in killed])
            killed[name] = crew[name].running
            crew[name].kill()
            worker_kills += 1

        killed: dict[str, bool] = {}
        for name in WORKERS:
            start(name)
        for _ in range(kills):
            keep_workers()
            time.sleep(rng.uniform(0.5, 1.5) * seconds)
            if pauses:
                _pause(rng, [broker.child, *(crew[name] for name in WORKERS)], pauses)
            broker.kill()
            if rng.random() < 0.5:
                kill_worker()
            broker.start_and_wait()
            time.sleep(rng.uniform(0.5, 1.5) * seconds)
            keep_workers()
            kill_worker()
        keep_workers()
        time.sleep(seconds)
        for name in WORKERS:
            crew.end(name, DEADLINE)
        start("answers", answers=True)
        wait_until(lambda: not _undecided(broker.port).total, DEADLINE, 0.2)
        left = [half.id for half in _undecided(broker.port).halves]
        crew.end("answers", DEADLINE)
        broker.end(DEADLINE)
        books = {message: commit for path in crew.journals() for message, commit in recorded(path).items()}
    committed = sum(books.values())
    figures = {
        "broker kills": kills,
        "producer kills": worker_kills,
        "producers that died in their local work": deaths,
        "committed": committed,
        "rolled back": len(books) - committed,
    }
    return Outcome(judge([each.payload for each in stored(directory / "data", TOPICS)], books, left), figures)


def _pause(rng: random.Random, children: Sequence[Child], longest: float) -> None:
    """Stop none, one or two processes for up to `longest` seconds, one after the other or together."""
    chosen = rng.sample(children, rng.choice([0, 1, 2]))
    for each in chosen:
        each.freeze()
        time.sleep(rng.uniform(0.1, longest / 2))
    for each in chosen:
        time.sleep(rng.uniform(0.1, longest / 2))
        each.thaw()


def _undecided(port: int) -> HalvesPage:
    connection = open_connection(Endpoint("127.0.0.1", port), ConnectionConfig())
    try:
        return list_halves(connection)
    finally:
        connection.close()
