"""A broker set of real nodes for tests: started, killed, and asked which of them leads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from metaq.coordination.broker_set import SetState
from metaq.coordination.session import ZkSession
from metaq.coordination.set_view import read_set
from tests.broker_process import Connection, RunningBroker, server_ini
from tests.integration.transaction_texts import tx
from tests.waiting import eventually

__all__ = ["NodeSet"]

SESSION_MS = 3000


class NodeSet:
    """The nodes of broker set 0, each with a directory below `directory`, on one ZooKeeper."""

    def __init__(
        self,
        directory: Path,
        connect: str,
        topics: Mapping[str, str],
        names: Sequence[str] = ("a", "b"),
        system: str = "",
    ) -> None:
        """connect: with a chroot. topics and system: as for server_ini. Starts the nodes."""
        self.directory = directory
        self.nodes: dict[str, RunningBroker] = {}
        self._connect = connect
        self._topics = topics
        self._system = system
        self._session = ZkSession(connect)
        self._session.start(30.0, create_chroot=True)
        for name in names:
            self.start(name)

    def start(self, name: str) -> RunningBroker:
        """Start a node that does not run."""
        place = self.directory / name
        place.mkdir(exist_ok=True, parents=True)
        zookeeper = f"zk.zkConnect={self._connect}\nzk.zkSessionTimeoutMs={SESSION_MS}\nzk.zkSyncTimeMs=100"
        ini = server_ini(place / "data", self._topics, zookeeper=zookeeper, system=self._system)
        module = ("-m", "metaq", "broker", "--node", name, "-f")
        node = self.nodes[name] = RunningBroker(place, ini, module=module)
        return node

    def state(self) -> SetState:
        """As ZooKeeper has it."""
        state = read_set(self._session, 0).state
        assert state is not None
        return state

    def leader(self) -> str:
        """The node that leads now and serves clients."""

        def serving() -> str:
            name = self.state().leader
            node = self.nodes.get(name)
            if node is None or node.process.poll() is not None:
                return ""
            with node.connect() as connection:
                return name if connection.ask(tx("null", "RECOVER")).code == 200 else ""

        return eventually(serving, what="an election")

    def connect(self) -> Connection:
        """To the leader."""
        return self.nodes[self.leader()].connect()

    def wait_in_sync(self) -> None:
        """Until all nodes that run are."""
        names = {name for name, node in self.nodes.items() if node.process.poll() is None}
        eventually(lambda: set(self.state().in_sync) == names, what=f"{names} in sync")

    def kill(self, name: str) -> None:
        self.nodes[name].kill()

    def fingerprints(self, name: str) -> dict[str, str]:
        """Of the data of each partition and the transaction log of a node: file -> digest; empty segments aside."""
        data = self.directory / name / "data"
        paths = [*data.glob("*-*/*.meta"), *data.glob("transactions/redo.*"), *data.glob("transactions/metaq.json")]
        paths += data.glob("transactions/checkpoint.*")
        found = {str(path.relative_to(data)): path.read_bytes() for path in paths}
        return {path: hashlib.sha256(content).hexdigest() for path, content in found.items() if content}

    def log(self, name: str) -> str:
        """What a node has logged in all its lives."""
        return (self.directory / name / "stderr.log").read_text()

    def close(self) -> None:
        for node in self.nodes.values():
            if node.process.poll() is None:
                node.kill()
        self._session.close()
