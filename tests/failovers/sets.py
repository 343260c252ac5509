"""What a run is about: a ZooKeeper, and broker sets of real processes. The load comes from the heirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from metaq.coordination.servers.free_ports import ready_ports
from tests.kills.children import Processes, wait_until
from tests.kills.journal import Journal

from .isolation import is_isolated
from .network import Network, OneHost
from .nodes import NodePlace, SetWatcher

__all__ = ["START_SECONDS", "ZOOKEEPER", "Sets"]

ZOOKEEPER = "zookeeper"
"""Its host."""
START_SECONDS = 240.0


class Sets(Processes):
    """As root each node has a host and a disk of its own."""

    def __init__(self, directory: Path, sets: int, nodes: int, topics: Mapping[str, str]) -> None:
        """nodes: of each set. topics: as of server_ini()."""
        super().__init__(directory)
        self.sets: dict[int, dict[str, NodePlace]] = {set_id: {} for set_id in range(sets)}
        self.network: Network | OneHost
        self._names = "abcdefgh"[:nodes]
        self._topics = topics

    @property
    def able(self) -> Sequence[str]:
        """What the faults may need."""
        return ("net", "disk") if is_isolated() else ()

    def _start(self) -> None:
        if is_isolated():
            self.network = network = Network(self.directory)
            self._ending.callback(network.close)
        else:
            self.network = OneHost()
        self._ending.callback(self._unmount)
        self._ending.callback(self._kill_all)
        ports = ready_ports("port", 0, 1 + len(self.sets) * len(self._names))
        host = self.network.add(ZOOKEEPER)
        self.connect = f"{host.address}:{ports[0]}"
        words = ["-m", "tests.failovers.zookeeper", str(self.directory / "zookeeper"), host.address, str(ports[0])]
        server = self._child("zookeeper", words, host.prefix)
        serves = wait_until(lambda: b"serving" in server.log.read_bytes() or not server.running, START_SECONDS)
        assert serves, server.log.read_text()
        assert server.running, server.log.read_text()
        self.watcher = SetWatcher(self.connect, list(self.sets), Journal(self.directory / "sets.journal"))
        self._ending.callback(self.watcher.close)
        self.watcher.start()
        self._start_nodes(ports[1:])

    def _start_nodes(self, ports: Sequence[int]) -> None:
        left = list(ports)
        for set_id, nodes in self.sets.items():
            for name in self._names:
                host = self.network.add(f"{set_id}{name}")
                nodes[name] = NodePlace(self.directory, set_id, name, host, left.pop(), self.connect, self._topics)
            nodes["a"].start()  # the first node of a set begins it
        for set_id, nodes in self.sets.items():
            assert self.watcher.wait_healthy(set_id, ["a"], START_SECONDS), f"no leader in set {set_id}"
            for node in nodes.values():
                node.start()
        for set_id, nodes in self.sets.items():
            assert self.watcher.wait_healthy(set_id, list(nodes), START_SECONDS), f"set {set_id} is not in sync"

    def _kill_all(self) -> None:
        super()._kill_all()
        for nodes in self.sets.values():
            for child in [child for node in nodes.values() for child in node.children]:
                child.kill()

    def _unmount(self) -> None:
        for nodes in self.sets.values():
            for node in nodes.values():
                node.disk.unmount()
