"""A run: producers and a group of consumers in processes of their own, watched, drained at the end and judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from metaq import Producer
from metaq.cli.direct_read import read_topic
from metaq.client.questions.cluster import Cluster

from .checker import Verdict, judge
from .history import Ack, History, Stored, Window
from .members import Group, JavaProducer, Member, PythonProducer
from .places import SESSION_SECONDS
from .watcher import GroupWatcher, without_owner

__all__ = ["TICK_MS", "Judged", "Run"]

TICK_MS = 100
"""ZooKeeper ends a session at most this long after its time."""

REBALANCE_SECONDS = 8.0
"""How long a rebalance may take after the session of a dead member is over: Java tries 7 times, each second."""

DRAIN_SECONDS = 180.0
PAUSE_SECONDS = 0.2
PROBE = "probe"
"""The producer name of the messages that open every partition at the end."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What happened and what to think of it. missed_looks: times at which ZooKeeper did not answer the watcher."""

    history: History
    verdict: Verdict
    missed_looks: int


class Run:
    """Use as a context manager: nothing that it started outlives it. Brokers are the caller's, also at the end."""

    def __init__(self, group: Group, members: Sequence[Member]) -> None:
        self.group = group
        self.members = members
        self._producers: list[PythonProducer | JavaProducer] = []
        self._watcher = GroupWatcher(group.zookeeper, group.name, group.topic)
        self._excused: list[Window] = []
        self._probes: list[Ack] = []

    def __enter__(self) -> Run:
        self._watcher.__enter__()
        try:
            self.disturb(*(member.start for member in self.members))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes of the run, the others too if one of them fails to end."""
        with ExitStack() as ending:
            ending.callback(self._watcher.stop)
            for member in self.members:
                ending.callback(member.stop)
            for producer in self._producers:
                ending.callback(producer.close)
            self._producers.clear()

    def produce(self, producer: PythonProducer | JavaProducer) -> None:
        """Take charge of a running producer."""
        self._producers.append(producer)

    def acknowledged(self) -> int:
        """How many messages have been acknowledged until now."""
        return len(self.group.acks())

    def wait_for(self, messages: int, seconds: float = DRAIN_SECONDS) -> None:
        """Return when so many more messages have been acknowledged. Raises TimeoutError."""
        goal = self.acknowledged() + messages
        deadline = time.monotonic() + seconds
        while (now := self.acknowledged()) < goal:
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {now} of {goal} messages were acknowledged within {seconds:.0f} s")
            time.sleep(PAUSE_SECONDS)

    def disturb(self, *actions: Callable[[], None]) -> None:
        """Do what makes the group rebalance: for a session time-out and a rebalance more, partitions may be unowned."""
        begin = time.time()
        try:
            for action in actions:
                action()
        finally:
            self._excused.append(Window(begin, time.time() + SESSION_SECONDS + REBALANCE_SECONDS))

    def finish(self) -> Judged:
        """Stop the producers, wait until the group has everything, stop the members, judge. All brokers are running."""
        for producer in self._producers:
            producer.close()
        self._producers.clear()
        self._probe()
        stored = self._read_log()
        self._drain(stored)
        log = self._watcher.stop()
        for member in self.members:
            member.stop()
        history = History(
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
        return Judged(history, judge(history), self._watcher.missed)

    def _probe(self) -> None:
        """One message to each partition: a Java broker serves some only after a put (storage.md §1)."""
        with Cluster(self.group.zookeeper) as cluster, Producer(self.group.zookeeper) as producer:
            for number, partition in enumerate(cluster.partitions(self.group.topic)):
                payload = f"{PROBE} {number}".encode()
                result = producer.send(self.group.topic, payload, partition=partition)
                self._probes.append(Ack(PROBE, number, str(result.partition), result.offset))

    def _read_log(self) -> list[Stored]:
        with Cluster(self.group.zookeeper) as cluster:
            return list(_stored(cluster, self.group.topic))

    def _drain(self, stored: Sequence[Stored]) -> None:
        """Wait until each record was delivered; the checker says what is missing if the time does not suffice."""
        places = {(record.partition, record.offset) for record in stored}
        deadline = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < deadline:
            delivered = {(delivery.partition, delivery.offset) for delivery in self.group.deliveries(stored)}
            if places <= delivered:
                return
            time.sleep(PAUSE_SECONDS)


def _stored(cluster: Cluster, topic: str) -> Iterable[Stored]:
    for message in read_topic(cluster, topic, "earliest"):
        producer, number = message.payload.decode("ascii").split(" ")
        yield Stored(str(message.partition), message.offset, message.id, producer, int(number))
