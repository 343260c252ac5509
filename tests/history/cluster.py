"""The processes of a run: the ensemble, brokers, producers, members of groups; and which of them may end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests.broker_process import server_ini
from tests.kills.brokers import BrokerPlace
from tests.kills.children import Child, Processes, wait_until
from tests.kills.journal import read_journal

from . import sender
from .ensemble import Ensemble
from .facts import TAGS
from .member import MODES, Task
from .watcher import CommitWatcher

__all__ = ["PARTITIONS", "SESSION_SECONDS", "TOPICS", "Cluster", "Member", "Shape"]

SESSION_SECONDS = 6.0
TOPICS = ("t", "u")
PARTITIONS = 2
"""Number of partitions of each topic on each broker."""

_SERVE_SECONDS = 240.0
_SEGMENT_BYTES = 64 << 10
"""Small, so that segments roll during a run."""
_FILTERING = 0.4
"""Share of the groups whose members take different tags."""
_CHOICES: Sequence[tuple[str, ...]] = ((), TAGS[:1], TAGS[1:], TAGS)
_BURST_THREADS, _BURST_LIVES = 2, 2


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a run. groups: the modes of the members by group. per_second: messages of each of four producers."""

    brokers: int
    groups: dict[str, tuple[str, ...]]
    per_second: float

    @classmethod
    def drawn(cls, seed: int) -> Shape:
        """Return a shape with two groups, in which each mode occurs once or twice."""
        rng = random.Random(f"shape {seed}")
        modes = list(MODES)
        rng.shuffle(modes)
        modes += [rng.choice(MODES) for _ in range(rng.randrange(3))]
        cut = rng.randrange(2, len(modes) - 1)
        return cls(rng.choice((2, 3)), {"g": tuple(modes[:cut]), "h": tuple(modes[cut:])}, rng.choice((10.0, 30.0)))


class Member:
    """A member of a group over its lives: one consumer after the other, each in a process of its own."""

    def __init__(self, group: str, base: str, mode: str) -> None:
        self.group = group
        self.base = base
        self.mode = mode
        self.lives = 0
        self.consumer_id = ""
        self.child: Child | None = None

    @property
    def life(self) -> str:
        return f"{self.base}-{self.lives}"

    @property
    def name(self) -> str:
        """The name of the present life, with its group."""
        return f"{self.group}.{self.life}"

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.running


class Cluster(Processes):
    """All processes of a run."""

    def __init__(self, directory: Path, seed: int, shape: Shape) -> None:
        super().__init__(directory)
        self.shape = shape
        self.seed = seed
        self.events = directory / "events"
        self.events.mkdir(parents=True)
        self.acks = directory / "acks.journal"
        self.commits = directory / "commits.journal"
        self.ensemble = Ensemble(directory)
        self.brokers: list[BrokerPlace] = []
        self.members = [
            Member(group, f"{mode}{number}", mode)
            for group, modes in shape.groups.items()
            for number, mode in enumerate(modes)
        ]
        self.bursts: list[Child] = []
        self.watcher = CommitWatcher(self.ensemble.connect_string, list(shape.groups), TOPICS, self.commits)
        self._rng = random.Random(f"cluster {seed}")
        self._strategies = {group: self._rng.choice(("range", "consist")) for group in shape.groups}
        self._starts = {group: self._rng.choice(("earliest", "latest")) for group in shape.groups}
        self._filtering = {group for group in shape.groups if self._rng.random() < _FILTERING}
        self._numbers = count(1)

    def _start(self) -> None:
        self._ending.enter_context(self.ensemble)
        self._ending.callback(self._kill_all)
        for number in range(self.shape.brokers):
            directory = self.directory / f"broker-{number}"
            self.brokers.append(BrokerPlace(directory, self._ini(number, directory / "data")))
            self.start_broker(self.brokers[-1])
        self.await_brokers()
        self._ending.callback(self.watcher.close)
        self.watcher.start()
        for member in self.members:
            self.start_member(member)
        task = sender.Task(
            self.ensemble.connect_string,
            TOPICS,
            self.shape.brokers,
            PARTITIONS,
            self.seed,
            str(self.acks),
            self.shape.per_second,
        )
        self.sender = self._child("sender", task.words())
        started = wait_until(lambda: bool(list(read_journal(self.acks))), _SERVE_SECONDS)
        assert started, f"the producers did not start: {self.sender.log.read_text()}"

    def _ini(self, number: int, data: Path) -> str:
        """Return a server.ini with which messages are on disk when they are acknowledged."""
        data.mkdir(parents=True)
        session = f"zk.zkSessionTimeoutMs={int(SESSION_SECONDS * 1000)}"
        return server_ini(
            data,
            dict.fromkeys(TOPICS, f"numPartitions={PARTITIONS}"),
            broker_id=number,
            zookeeper=f"zk.zkConnect={self.ensemble.connect_string}\n{session}\nzk.zkSyncTimeMs=100",
            max_segment_size=_SEGMENT_BYTES,
        )

    def start_broker(self, broker: BrokerPlace) -> None:
        """Start a broker without waiting until it serves."""
        if not broker.running:
            broker.start()
            self._children.append((broker.name, broker.child))

    def await_brokers(self) -> None:
        """Wait until all brokers serve. Raises AssertionError if they do not in time."""
        serve = wait_until(lambda: all(broker.serves for broker in self.brokers), _SERVE_SECONDS)
        assert serve, f"brokers do not serve: {[broker.name for broker in self.brokers if not broker.serves]}"

    def start_member(self, member: Member) -> None:
        """Start a new life of a member; half of the times with the consumer id of the former one."""
        member.lives += 1
        if not (member.consumer_id and self._rng.random() < 0.5):
            member.consumer_id = member.life
        member.child = self._child(member.name, self._task(member, member.life, member.consumer_id).words())

    def start_burst(self, number: int) -> Child:
        """Start a process with members that come and go concurrently; it ends by itself."""
        group = self._rng.choice(list(self.shape.groups))
        member = Member(group, "burst", self._rng.choice(("poll", "poll_arrow", "run")))
        name = f"burst-{number}"
        task = self._task(member, name, "", _BURST_LIVES, _BURST_THREADS)
        child = self._child(f"{group}.{name}", task.words())
        self.bursts.append(child)
        self._may_end.add(child)
        return child

    def _task(self, member: Member, name: str, consumer_id: str, lives: int = 0, threads: int = 1) -> Task:
        return Task(
            self.ensemble.connect_string,
            member.group,
            name,
            TOPICS,
            member.mode,
            next(self._numbers),
            str(self.events),
            SESSION_SECONDS,
            self._strategies[member.group],
            consumer_id,
            lives,
            threads,
            self._starts[member.group],
            self._rng.choice(_CHOICES) if member.group in self._filtering else (),
        )

    def crashed(self) -> list[str]:
        return [text for child, text in self._crashes() if not _found_no_zookeeper(child)]


def _found_no_zookeeper(child: Child) -> bool:
    """Return whether a starting broker ended because ZooKeeper was away, which its last line says; its operator starts
    it again."""
    last = child.log.read_text("utf-8", "replace").rstrip().rpartition("\n")[2]
    return last.startswith("metaq broker: ZooKeeper at ") and " does not answer within " in last
