"""Everything that runs in a run: ZooKeeper, the nodes of all sets, producers, the prober, and readers of all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from metaq.coordination.ports import ready_ports
from tests.history import member
from tests.history.children import Child, wait_until
from tests.history.journal import Journal, read_journal
from tests.history.watcher import CommitWatcher

from . import prober, ranges, sender
from .isolation import is_isolated
from .network import Network, OneHost
from .nodes import NodePlace, SetWatcher, topics

__all__ = ["GROUP", "READ_TOPICS", "ZOOKEEPER", "Cluster", "Shape"]

ZOOKEEPER = "zookeeper"
"""Its host."""
GROUP = "g"
READ_TOPICS = (*sender.SAFE_TOPICS, sender.LOOSE_TOPIC)
MEMBER_SECONDS = 10.0
"""Session of the group's members."""
_MODES = ("poll", "poll_arrow")
_START_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class Shape:
    """nodes: of each set. per_second: calls of each producer's thread. kinds: of faults; none: all that can be done."""

    sets: int
    nodes: int
    min_in_sync: int
    per_second: float
    transactions: bool
    kinds: Sequence[str] = ()


class Cluster:
    """Use as a context manager, on one thread: nothing that it has started outlives it."""

    def __init__(self, directory: Path, seed: int, shape: Shape) -> None:
        self.directory = directory
        self.shape = shape
        self.seed = seed
        self.events = directory / "events"
        self.sends = directory / "sends.journal"
        self.probes = directory / "probes.journal"
        self.rows = directory / "rows.journal"
        self.commits = directory / "commits.journal"
        self.sets: dict[int, dict[str, NodePlace]] = {}
        self.members: list[tuple[str, Child]] = []
        self.network: Network | OneHost
        self._children: list[tuple[str, Child]] = []
        self._may_end: set[Child] = set()
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._ending.close()
            raise
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._ending.close()

    @property
    def able(self) -> Sequence[str]:
        """What the faults may need."""
        return ("net", "disk") if is_isolated() else ()

    def _start(self) -> None:
        shape = self.shape
        self.events.mkdir(parents=True)
        if is_isolated():
            self.network = network = Network(self.directory)
            self._ending.callback(network.close)
        else:
            self.network = OneHost()
        self._ending.callback(self._unmount)
        self._ending.callback(self._kill_all)
        ports = ready_ports("port", 0, 1 + shape.sets * shape.nodes)
        host = self.network.add(ZOOKEEPER)
        self.connect = f"{host.address}:{ports[0]}"
        words = ["-m", "tests.failovers.zookeeper", str(self.directory / "zookeeper"), host.address, str(ports[0])]
        server = self._child("zookeeper", words, host.prefix)
        serves = wait_until(lambda: b"serving" in server.log.read_bytes() or not server.running, _START_SECONDS)
        assert serves, server.log.read_text()
        assert server.running, server.log.read_text()
        self.watcher = SetWatcher(self.connect, range(shape.sets), Journal(self.directory / "sets.journal"))
        self._ending.callback(self.watcher.close)
        self.watcher.start()
        self._start_nodes(ports[1:])
        self.commit_watcher = CommitWatcher(self.connect, [GROUP], READ_TOPICS, self.commits)
        self._ending.callback(self.commit_watcher.close)
        self.commit_watcher.start()
        self._start_load()

    def _start_nodes(self, ports: Sequence[int]) -> None:
        shape, left = self.shape, list(ports)
        lines = topics(shape.min_in_sync)
        for set_id in range(shape.sets):
            nodes = self.sets[set_id] = {}
            for name in "abcdefgh"[: shape.nodes]:
                host = self.network.add(f"{set_id}{name}")
                nodes[name] = NodePlace(self.directory, set_id, name, host, left.pop(), self.connect, lines)
            nodes["a"].start()  # the first node of a set begins it
        for set_id, nodes in self.sets.items():
            assert self.watcher.wait_healthy(set_id, ["a"], _START_SECONDS), f"no leader in set {set_id}"
            for node in nodes.values():
                node.start()
        for set_id, nodes in self.sets.items():
            assert self.watcher.wait_healthy(set_id, list(nodes), _START_SECONDS), f"set {set_id} is not in sync"

    def _start_load(self) -> None:
        shape = self.shape
        for number, mode in enumerate(_MODES):
            name = f"{mode}{number}"
            member_task = member.Task(
                self.connect, GROUP, name, READ_TOPICS, mode, number, str(self.events), MEMBER_SECONDS
            )
            child = self._child(f"{GROUP}.{name}", member_task.words())
            self.members.append((name, child))
        nodes = {node.full_name: node.address for nodes in self.sets.values() for node in nodes.values()}
        partitions = dict.fromkeys(sender.SAFE_TOPICS, sender.PARTITIONS)
        partitions |= dict.fromkeys((sender.LOOSE_TOPIC, *prober.ASKED_TOPICS), 1)
        self.prober = self._child("prober", prober.Task(nodes, partitions, str(self.probes)).words())
        self.reader = self._child("ranges", ranges.Task(self.connect, READ_TOPICS, str(self.rows)).words())
        task = sender.Task(self.connect, shape.sets, self.seed, str(self.sends), shape.per_second, shape.transactions)
        self.sender = self._child("sender", task.words())
        started = wait_until(lambda: bool(list(read_journal(self.sends))), _START_SECONDS)
        assert started, f"the producers did not start: {self.sender.log.read_text()}"

    def _child(self, name: str, words: Sequence[str], prefix: Sequence[str] = ()) -> Child:
        child = Child(words, self.directory / f"{name}.log", prefix=prefix)
        self._children.append((name, child))
        return child

    def end(self, child: Child, seconds: float) -> bool:
        """SIGTERM; whether it ends in time. It may end from now on."""
        self._may_end.add(child)
        child.terminate()
        return child.wait(seconds)

    def crashed(self) -> list[str]:
        """Who has ended and was not asked to, or with an error; nodes are asked to all the time."""
        return [
            f"{name} ended with {code}, see {child.log}"
            for name, child in self._children
            if (code := child.process.poll()) is not None and (child not in self._may_end or code > 0)
        ]

    def _kill_all(self) -> None:
        nodes = [node for nodes in self.sets.values() for node in nodes.values()]
        for child in [child for _, child in self._children] + [child for node in nodes for child in node.children]:
            child.kill()

    def _unmount(self) -> None:
        for nodes in self.sets.values():
            for node in nodes.values():
                node.disk.unmount()
