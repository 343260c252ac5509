"""One run: brokers, a producer and two consumers, of which one is killed at a time, then a redrive that is killed."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from metaq import DeadLetters, browse
from metaq.coordination.embedded import EmbeddedZooKeeper
from tests.integration.client_cluster import running_brokers
from tests.integration.coordination_helpers import make_chroot

from .checkers import judge, repeated
from .facts import ATTEMPTS, Facts, Letter, failures_of, read_facts
from .programs import GROUP, SESSION_SECONDS, TOPIC

__all__ = ["Outcome", "run"]

KINDS = ("broker", "producer", "consumer")
PARTITIONS = 4
_MODULE = "tests.retries.programs"


@dataclass
class Outcome:
    """What a run has come to. problems: sentences, none if all is well."""

    facts: Facts
    problems: list[str]
    redrive_kills: int
    redriven_twice: int

    def __str__(self) -> str:
        kills = ", ".join(f"{count} of {kind}" for kind, count in sorted(self.facts.kills.items()))
        calls, letters = repeated(self.facts)
        return (
            f"killed {kills}: {len(self.facts.acked)} acknowledged, {len(self.facts.calls)} calls ({calls} repeated), "
            f"{len(self.facts.letters)} dead letters ({letters} repeated); redrive killed {self.redrive_kills} times, "
            f"{self.redriven_twice} sent twice; {len(self.problems)} problems"
        )


class _Children:
    """Processes of this run by name; a name's process is started anew in a file of its own."""

    def __init__(self, connect: str, directory: Path) -> None:
        self._connect = connect
        self._directory = directory
        self._lives: Counter[str] = Counter()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, program: str, notes: str, *words: str) -> subprocess.Popen[bytes]:
        life = self._lives[name] = self._lives[name] + 1
        path = self._directory / f"{notes}-{name}-{life}"
        with (self._directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, program, self._connect, str(path), *words], stdout=log, stderr=log
            )
        self._processes[name] = process
        return process

    def start_producer(self) -> None:
        self.start("producer", "produce", "acked", str((self._lives["producer"] + 1) * 1_000_000))

    def start_consumer(self, name: str) -> None:
        self.start(name, "consume", "calls")

    def kill(self, name: str) -> None:
        process = self._processes[name]
        assert process.poll() is None, f"{name} has ended by itself: see {self._directory / name}.log"
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


def run(
    directory: Path, kills: int, seed: int = 1, redrive_kills: int = 0, say: Callable[[str], object] = lambda _: None
) -> Outcome:
    """kills: of each kind. redrive_kills: of the redrive afterwards. directory: empty, for all files."""
    rng = random.Random(seed)
    with EmbeddedZooKeeper(directory / "zookeeper", tick_time_ms=100) as server:
        connect = make_chroot(f"{server.connect_string}/retries")
        with running_brokers(connect, directory, {TOPIC: PARTITIONS}, 2, session_seconds=SESSION_SECONDS) as brokers:
            children = _Children(connect, directory)
            try:
                children.start_producer()
                for name in ("consumer-0", "consumer-1"):
                    children.start_consumer(name)
                _until(lambda: read_facts(directory).calls, "the first call of a handler")
                left = [kind for kind in KINDS for _ in range(kills)]
                rng.shuffle(left)
                killed: Counter[str] = Counter()
                for number, kind in enumerate(left):
                    time.sleep(rng.uniform(0.1, 1.2))
                    if kind == "broker":
                        broker_id = rng.randrange(2)
                        brokers.running[broker_id].kill()
                        time.sleep(rng.uniform(0, 0.3))
                        brokers.start(broker_id)
                    elif kind == "producer":
                        children.kill("producer")
                        children.start_producer()
                    else:
                        name = f"consumer-{rng.randrange(2)}"
                        children.kill(name)
                        children.start_consumer(name)
                    killed[kind] += 1
                    if number % 20 == 19:
                        say(f"{number + 1} kills")
                children.kill("producer")
                facts = _settled(connect, directory)
                facts.kills = dict(killed)
                for name in ("consumer-0", "consumer-1"):
                    children.kill(name)
                problems = judge(facts)
                say(f"{len(facts.acked)} acknowledged, {len(facts.letters)} dead letters, {len(problems)} problems")
                twice, more = _redriven(connect, children, facts, redrive_kills, rng)
                return Outcome(facts, problems + more, redrive_kills, twice)
            finally:
                children.stop()


def _until(condition: Callable[[], object], what: str, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.3)


def _settled(connect: str, directory: Path) -> Facts:
    """What is noted once everything that was acknowledged is settled, or nothing has changed for long."""
    facts = read_facts(directory)
    seen, since = -1, time.monotonic()
    while time.monotonic() - since < 60:
        facts = read_facts(directory)
        facts.letters = _letters(connect)
        unsettled = facts.unsettled()
        if not unsettled:
            break
        if len(facts.calls) + len(facts.letters) != seen:
            seen, since = len(facts.calls) + len(facts.letters), time.monotonic()
        time.sleep(1.0)
    return facts


def _letters(connect: str) -> list[Letter]:
    with DeadLetters(connect, group=GROUP) as letters:
        return [Letter(int(each.original.payload.split()[0]), each.attempts, each.name) for each in letters.read()]


def _redriven(connect: str, children: _Children, facts: Facts, kills: int, rng: random.Random) -> tuple[int, list[str]]:
    """How many were sent twice by a redrive that was killed so often, and what is wrong."""
    if not kills:
        return 0, []
    before = Counter(_numbers(connect))
    for _ in range(kills):
        process = children.start("redrive", "redrive", "redriven")
        try:
            process.wait(rng.uniform(0.6, 1.5))
        except subprocess.TimeoutExpired:
            children.kill("redrive")
    process = children.start("redrive", "redrive", "redriven")
    code = process.wait(120)
    sent = Counter(_numbers(connect)) - before
    expected = Counter(each.number for each in facts.letters)
    problems = [f"the last redrive ended with {code}"] if code else []
    problems += [f"{number} was not redriven" for number in sorted(expected) if sent[number] < expected[number]]
    problems += [f"{number} was redriven and is no dead letter" for number in sorted(sent.keys() - expected.keys())]
    if left := _letters(connect):
        problems.append(f"{len(left)} dead letters are left")
    twice = sum((sent - expected).values())
    if twice > kills:
        problems.append(f"{twice} were sent twice by {kills} interrupted redrives: at most one each may be")
    assert all(failures_of(number) == ATTEMPTS for number in expected)
    return twice, problems


def _numbers(connect: str) -> list[int]:
    return [int(each.payload.split()[0]) for each in browse(connect, TOPIC)]
