"""A broker and producers that are killed again and again, and whether each message came as its transaction says."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from metaq import ConnectionConfig
from metaq.client.connection import Endpoint, open_connection
from metaq.client.questions.halves import HalvesPage, list_halves
from metaq.protocol.record import HEADER_BYTES, attribute_of, iter_headers
from tests.broker_process import RunningBroker, server_ini
from tests.delays.life import Proxy
from tests.waiting import DEADLINE

from .worker import TOPICS, recorded

BROKER = ("-m", "metaq", "broker", "--half-check", "0.3", "--half-checks", "100", "-f")
WORKERS = 2


def stored(data: Path) -> Iterator[str]:
    """The payloads that lie in the partitions."""
    for topic in TOPICS:
        for directory in data.glob(f"{topic}-*"):
            content = b"".join(path.read_bytes() for path in sorted(directory.glob("*.meta")))
            for each in iter_headers(content):
                body = content[each.start + HEADER_BYTES : each.end]
                attribute = attribute_of(body, each.flag)
                yield (body if attribute is None else body[4 + len(attribute) :]).decode()


class Findings(NamedTuple):
    """Payloads. broker_kills, worker_kills: how often each was killed; deaths: workers that ended by themselves."""

    broker_kills: int
    worker_kills: int
    deaths: int
    committed: int
    rolled_back: int
    lost: list[str]
    twice: list[str]
    never_committed: list[str]
    """In a partition although their transaction was rolled back, or never ended."""
    left: list[int]
    """Half messages that are still not decided."""


def judge(found: list[str], books: dict[str, bool]) -> tuple[list[str], list[str], list[str]]:
    """Lost, twice, never committed."""
    counts = Counter(found)
    committed = {payload for payload, commit in books.items() if commit}
    return (
        sorted(committed - counts.keys()),
        sorted(payload for payload, count in counts.items() if count > 1),
        sorted(counts.keys() - committed),
    )


class Life:
    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.seed = seed
        self.random = random.Random(seed)
        settings = {topic: f"numPartitions={count}" for topic, count in TOPICS.items()}
        settings["loose"] += "\nunflushThreshold=1000"
        settings["safe"] += "\nunflushThreshold=0"
        self.ini = server_ini(directory / "data", settings)
        self.proxy = Proxy()
        self.proxy.start()
        self.start_broker()
        self.workers: list[subprocess.Popen[bytes]] = []
        self.started = 0
        self.deaths = 0

    def start_broker(self) -> None:
        self.broker = RunningBroker(self.directory, self.ini, module=BROKER)
        self.proxy.port = self.broker.port

    def start_worker(self, *more: str) -> None:
        self.started += 1
        arguments = [
            str(self.directory),
            str(self.started),
            self.proxy.address,
            str(self.seed * 1000 + self.started),
            *more,
        ]
        errors = (self.directory / "workers.log").open("ab")
        command = [sys.executable, "-m", "tests.halves.worker", *arguments]
        self.workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors))
        errors.close()

    def keep_workers(self) -> None:
        alive = [each for each in self.workers if each.poll() is None]
        self.deaths += len(self.workers) - len(alive)
        self.workers = alive
        while len(self.workers) < WORKERS:
            self.start_worker()

    def kill_worker(self) -> None:
        worker = self.random.choice(self.workers)
        worker.kill()
        worker.wait(DEADLINE)
        self.workers.remove(worker)

    def books(self) -> dict[str, bool]:
        found: dict[str, bool] = {}
        for number in range(1, self.started + 1):
            found |= recorded(self.directory, str(number))
        return found

    def undecided(self) -> HalvesPage:
        connection = open_connection(Endpoint("127.0.0.1", self.broker.port), ConnectionConfig())
        try:
            return list_halves(connection)
        finally:
            connection.close()

    def pause(self, longest: float) -> None:
        """Have the broker, a worker or both stand still for up to so many seconds, one after the other or together."""
        chosen = self.random.sample([self.broker.process, *self.workers], self.random.choice([0, 1, 2]))
        for each in chosen if longest else ():
            each.send_signal(signal.SIGSTOP)
            time.sleep(self.random.uniform(0.1, longest / 2))
        for each in chosen if longest else ():
            time.sleep(self.random.uniform(0.1, longest / 2))
            each.send_signal(signal.SIGCONT)

    def live(self, kills: int, seconds: float, longest_pause: float = 0.0) -> Findings:
        """So many kills of the broker, and as many of workers, each after about so many seconds; then until all is
        decided. longest_pause: about so many seconds, less than after which a producer counts as gone."""
        worker_kills = 0
        for _ in range(kills):
            self.keep_workers()
            time.sleep(self.random.uniform(0.5, 1.5) * seconds)
            self.pause(longest_pause)
            self.broker.kill()
            if self.random.random() < 0.5:
                self.kill_worker()
                worker_kills += 1
            self.start_broker()
            time.sleep(self.random.uniform(0.5, 1.5) * seconds)
            self.keep_workers()
            self.kill_worker()
            worker_kills += 1
        self.keep_workers()
        time.sleep(seconds)
        self._end_workers()
        self.start_worker("answers")
        give_up = time.monotonic() + DEADLINE
        while (page := self.undecided()).total and time.monotonic() < give_up:
            time.sleep(0.2)
        self._end_workers()
        assert self.broker.stop() == 0
        self.proxy.close()
        books = self.books()
        judged = judge(list(stored(self.directory / "data")), books)
        committed = sum(books.values())
        left = [half.id for half in page.halves]
        return Findings(kills, worker_kills, self.deaths, committed, len(books) - committed, *judged, left)

    def _end_workers(self) -> None:
        while self.workers:
            worker = self.workers.pop()
            assert worker.stdin is not None
            worker.stdin.close()
            worker.wait(DEADLINE)
