"""One run: brokers, a producer and two consumers; one of them is killed at a time. Then a redrive is killed."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

from metaq import DeadLetters, browse
from metaq.coordination.embedded import EmbeddedZooKeeper
from tests.integration.client_cluster import running_brokers
from tests.integration.coordination_helpers import make_chroot
from tests.kills.children import Crew, wait_until
from tests.kills.journal import read_journal
from tests.kills.outcome import Outcome, Problem, Say

from .checkers import Facts, Letter, facts_in, judge, judge_redrive, repeated
from .programs import GROUP, SESSION_SECONDS, TOPIC, Task

__all__ = ["run"]

KINDS = ("broker", "producer", "consumer")
CONSUMERS = ("consumer-0", "consumer-1")
PARTITIONS = 4
_START_SECONDS = 300.0
_QUIET_SECONDS = 60.0
_REDRIVE_SECONDS = 120.0


class _Programs:
    """The programs of a run."""

    def __init__(self, connect: str, crew: Crew) -> None:
        self._connect = connect
        self._crew = crew
        self._producers = 0

    def start(self, *names: str) -> None:
        for name in names:
            first, program = 0, {"producer": "produce", "redrive": "redrive"}.get(name, "consume")
            if name == "producer":
                self._producers += 1
                first = self._producers * 1_000_000
            self._crew.start(name, Task(program=program, connect=self._connect, first=first))

    def replace(self, name: str) -> None:
        self._crew.kill(name)
        self.start(name)

    def facts(self) -> Facts:
        return facts_in(line for path in self._crew.journals() for line in read_journal(path))

    def letters(self) -> list[Letter]:
        with DeadLetters(self._connect, group=GROUP) as letters:
            return [Letter(int(each.original.payload.split()[0]), each.attempts, each.name) for each in letters.read()]

    def settled(self) -> Facts:
        """Wait until all acknowledged messages are settled, or nothing has changed for long; return the records."""
        seen, since = -1, time.monotonic()
        while True:
            facts = self.facts()
            facts.letters = self.letters()
            if len(facts.calls) + len(facts.letters) != seen:
                seen, since = len(facts.calls) + len(facts.letters), time.monotonic()
            if not facts.unsettled() or time.monotonic() - since > _QUIET_SECONDS:
                return facts
            time.sleep(1.0)

    def redrive(self, facts: Facts, kills: int, rng: random.Random) -> tuple[int, list[Problem]]:
        """Redrive the dead letters with so many kills; return how many messages were sent twice, and the problems."""
        before = Counter(self._numbers())
        for _ in range(kills):
            self.start("redrive")
            if not self._crew["redrive"].wait(rng.uniform(0.6, 1.5)):
                self._crew["redrive"].kill()
        self.start("redrive")
        assert self._crew["redrive"].wait(_REDRIVE_SECONDS), "the last redrive does not end"
        code = self._crew["redrive"].process.returncode
        sent = Counter(self._numbers()) - before
        expected = Counter(each.number for each in facts.letters)
        problems = judge_redrive(sent, expected, kills)
        if code:
            problems.append(Problem("redrive", f"the last one ended with {code}"))
        if left := self.letters():
            problems.append(Problem("redrive", f"{len(left)} dead letters are left"))
        return sum((sent - expected).values()), problems

    def _numbers(self) -> list[int]:
        return [int(each.payload.split()[0]) for each in browse(self._connect, TOPIC)]


def run(directory: Path, seed: int, say: Say, *, kills: int = 10, redrive_kills: int = 5) -> Outcome:
    """Retries and dead letters: nothing is lost, and dead letters are complete, while all processes are killed.

    kills: of brokers, of the producer and of consumers, so many each. redrive_kills: of the redrive afterwards.
    """
    rng = random.Random(seed)
    with EmbeddedZooKeeper(directory / "zookeeper", tick_time_ms=100) as server:
        connect = make_chroot(f"{server.connect_string}/retries")
        with (
            running_brokers(connect, directory, {TOPIC: PARTITIONS}, 2, session_seconds=SESSION_SECONDS) as brokers,
            Crew(directory) as crew,
        ):
            programs = _Programs(connect, crew)
            programs.start("producer", *CONSUMERS)
            called = wait_until(lambda: bool(programs.facts().calls), _START_SECONDS, 0.3)
            assert called, "no handler was called"
            left = [kind for kind in KINDS for _ in range(kills)]
            rng.shuffle(left)
            for number, kind in enumerate(left, 1):
                time.sleep(rng.uniform(0.1, 1.2))
                if kind == "broker":
                    broker_id = rng.randrange(2)
                    brokers.running[broker_id].kill()
                    time.sleep(rng.uniform(0, 0.3))
                    brokers.start(broker_id)
                else:
                    programs.replace("producer" if kind == "producer" else rng.choice(CONSUMERS))
                if number % 20 == 0:
                    say(f"{number} kills")
            crew.kill("producer")
            facts = programs.settled()
            crew.kill(*CONSUMERS)
            problems = judge(facts)
            twice, more = programs.redrive(facts, redrive_kills, rng)
    calls, letters = repeated(facts)
    figures = {
        **{f"{kind} kills": kills for kind in KINDS},
        "acknowledged": len(facts.acked),
        "calls": len(facts.calls),
        "calls repeated": calls,
        "dead letters": len(facts.letters),
        "dead letters repeated": letters,
        "redrive kills": redrive_kills,
        "redriven twice": twice,
    }
    return Outcome([*problems, *more], figures)
