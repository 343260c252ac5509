"""Everything that runs in a run: the sets, producers, the prober, and readers of all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.history import member
from tests.history.watcher import CommitWatcher
from tests.kills.children import Child, wait_until
from tests.kills.journal import read_journal

from . import java_clients, prober, ranges, sender
from .java_clients import JavaClients
from .nodes import topics
from .sets import START_SECONDS, Sets

__all__ = ["GROUP", "READ_TOPICS", "Cluster", "Shape"]

GROUP = "g"
READ_TOPICS = (*sender.SAFE_TOPICS, sender.LOOSE_TOPIC)
MEMBER_SECONDS = 10.0
"""Session of the group's members."""
_MODES = ("poll", "poll_arrow")


@dataclass(frozen=True, slots=True)
class Shape:
    """nodes: of each set. per_second: calls of each producer's thread. kinds: of faults; none: all that can be done.
    rolling: all nodes are restarted in turn, instead of faults. java: applications of the Java client run, too."""

    sets: int
    nodes: int
    min_in_sync: int
    per_second: float
    transactions: bool
    kinds: Sequence[str] = ()
    rolling: bool = False
    java: bool = False


class Cluster(Sets):
    """The sets and their load."""

    def __init__(self, directory: Path, seed: int, shape: Shape) -> None:
        super().__init__(directory, shape.sets, shape.nodes, {**topics(shape.min_in_sync), **java_clients.TOPICS})
        self.shape = shape
        self.seed = seed
        self.events = directory / "events"
        self.sends = directory / "sends.journal"
        self.probes = directory / "probes.journal"
        self.rows = directory / "rows.journal"
        self.commits = directory / "commits.journal"
        self.members: list[tuple[str, Child]] = []
        self.java: JavaClients | None = None

    def _start(self) -> None:
        super()._start()
        self.events.mkdir(parents=True)
        self.commit_watcher = CommitWatcher(self.connect, [GROUP], READ_TOPICS, self.commits)
        self._ending.callback(self.commit_watcher.close)
        self.commit_watcher.start()
        self._start_load()

    def _start_load(self) -> None:
        shape = self.shape
        for number, mode in enumerate(_MODES):
            name = f"{mode}{number}"
            member_task = member.Task(
                self.connect, GROUP, name, READ_TOPICS, mode, number, str(self.events), MEMBER_SECONDS
            )
            child = self._child(f"{GROUP}.{name}", member_task.words())
            self.members.append((name, child))
        nodes = {node.name: node.address for nodes in self.sets.values() for node in nodes.values()}
        partitions = dict.fromkeys(sender.SAFE_TOPICS, sender.PARTITIONS)
        partitions |= dict.fromkeys((sender.LOOSE_TOPIC, *prober.ASKED_TOPICS), 1)
        self.prober = self._child("prober", prober.Task(nodes, partitions, str(self.probes)).words())
        self.reader = self._child("ranges", ranges.Task(self.connect, READ_TOPICS, str(self.rows)).words())
        task = sender.Task(self.connect, shape.sets, self.seed, str(self.sends), shape.per_second, shape.transactions)
        self.sender = self._child("sender", task.words())
        started = wait_until(lambda: bool(list(read_journal(self.sends))), START_SECONDS)
        assert started, f"the producers did not start: {self.sender.log.read_text()}"
        if shape.java:
            self.java = self._ending.enter_context(JavaClients(self.connect, self.directory))
            self.java.join()
            self.java.join()
            self.java.send()
            silent = self.java.wait_until_all_receive(START_SECONDS)
            assert not silent, silent
