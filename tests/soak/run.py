"""A run: producers and a group of consumers in processes of their own, watched, drained at the end and judged."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import metaq
from metaq.client.questions.cluster import Cluster
from tests.history.checkers import duplicates
from tests.history.facts import Ack, Name, Stored
from tests.history.member import partition_text
from tests.history.reading import browsed
from tests.history.report import explain
from tests.kills.journal import clock
from tests.kills.outcome import Outcome, Problem

from .checkers import history_of, judge
from .facts import Facts, Window
from .members import Group, Member, Producer
from .places import SESSION_SECONDS
from .watcher import GroupWatcher, without_owner

__all__ = ["TICK_MS", "Judged", "Run"]

TICK_MS = 100
"""Longest delay in ms with which ZooKeeper ends an expired session."""

REBALANCE_SECONDS = 8.0
"""Seconds that a rebalance may take after the session of a dead member is over: Java tries 7 times, once a second."""

DRAIN_SECONDS = 180.0
PAUSE_SECONDS = 0.2
PROBE = "probe"
"""The producer name of the messages that open every partition at the end."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The history and its problems. missed_looks: times at which ZooKeeper did not answer the watcher."""

    facts: Facts
    problems: Sequence[Problem]
    missed_looks: int

    @property
    def explanation(self) -> str:
        return explain(history_of(self.facts), self.problems)

    def outcome(self, figures: Mapping[str, int]) -> Outcome:
        """Return the outcome. figures: additional ones."""
        history, facts = history_of(self.facts), self.facts
        names = [each.name for records in facts.stored.values() for each in records]
        counted = {
            "acknowledged": len(facts.acks),
            "delivered": len(facts.deliveries),
            "delivered again": duplicates(history),
            "stored twice": len(names) - len({*names}),
            "fetched on": sum(len(owner.calls) for owner in history.owners if not owner.proves),
            "claims": len(facts.claims),
            "longest seconds without an owner": math.ceil(
                max((end - begin for windows in facts.unowned.values() for begin, end in windows), default=0.0)
            ),
        }
        return Outcome(self.problems, {**figures, **counted}, explanation=self.explanation)


class Run:
    """A run. Use as a context manager: no process that it started outlives it. The caller starts and ends the
    brokers."""

    def __init__(self, group: Group, members: Sequence[Member]) -> None:
        self.group = group
        self.members = members
        self._producers: list[Producer] = []
        self._watcher = GroupWatcher(group.zookeeper, group.name, group.topic)
        self._excused: list[Window] = []
        self._probes: list[Ack] = []

    def __enter__(self) -> Run:
        try:
            self._watcher.start()
            self.disturb(*(member.start for member in self.members))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes of the run, even if one of them fails to end."""
        with ExitStack() as ending:
            ending.callback(self._watcher.close)
            for member in self.members:
                ending.callback(member.stop)
            for producer in self._producers:
                ending.callback(producer.close)
            self._producers.clear()

    def produce(self, producer: Producer) -> None:
        """Take charge of a running producer."""
        self._producers.append(producer)

    def acknowledged(self) -> int:
        """Return the number of messages that have been acknowledged so far."""
        return len(self.group.acks())

    def wait_for(self, messages: int, seconds: float = DRAIN_SECONDS) -> None:
        """Wait until `messages` more messages have been acknowledged. Raises TimeoutError."""
        goal = self.acknowledged() + messages
        deadline = time.monotonic() + seconds
        while (now := self.acknowledged()) < goal:
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {now} of {goal} messages were acknowledged within {seconds:.0f} s")
            time.sleep(PAUSE_SECONDS)

    def disturb(self, *actions: Callable[[], None]) -> None:
        """Do actions that make the group rebalance. For a session time-out and a rebalance after each, partitions may
        be unowned."""
        begin = clock()
        try:
            for action in actions:
                action()
        finally:
            self._excused.append(Window(begin, clock() + SESSION_SECONDS + REBALANCE_SECONDS))

    def finish(self) -> Judged:
        """Stop the producers, wait until the group has all messages, stop the members, and judge. All brokers must
        run."""
        for producer in self._producers:
            producer.close()
        self._producers.clear()
        self._probe()
        stored = browsed(self.group.zookeeper, [self.group.topic])
        self._drain(stored)
        self._watcher.close()
        log = self._watcher.log
        for member in self.members:
            member.stop()
        facts = Facts(
            self.group.name,
            self.group.acks() + self._probes,
            stored,
            self.group.deliveries(stored),
            log.claims,
            log.commits,
            without_owner(log, {name: at for member in self.members for name, at in member.deaths.items()}),
            self._excused,
            SESSION_SECONDS + REBALANCE_SECONDS,
            {name: spans for member in self.members for name, spans in member.fetched_on().items()},
        )
        return Judged(facts, judge(facts), self._watcher.missed)

    def _probe(self) -> None:
        """Send one message to each partition: a Java broker serves some partitions only after a put (storage.md §1)."""
        with Cluster(self.group.zookeeper) as cluster, metaq.Producer(self.group.zookeeper) as producer:
            for number, partition in enumerate(cluster.partitions(self.group.topic)):
                name = Name(PROBE, "-", number)
                result = producer.send(self.group.topic, str(name).encode(), partition=partition)
                self._probes.append(Ack(name, partition_text(result.partition), result.offset, result.message_id))

    def _drain(self, stored: Mapping[str, Sequence[Stored]]) -> None:
        """Wait until each record was delivered; if the time is too short, the checkers report what is missing."""
        places = {(partition, record.offset) for partition, records in stored.items() for record in records}
        deadline = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < deadline:
            delivered = {(each.partition, each.place.offset) for each in self.group.deliveries(stored)}
            if places <= delivered:
                return
            time.sleep(PAUSE_SECONDS)
