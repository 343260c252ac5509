"""A broker set of real processes, for tests: nodes to start, kill and compare."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.sets.set_view import SetView, read_set
from metaq.protocol.message_id import store_time_ms
from metaq.protocol.record import HEADER_BYTES, attribute_of, iter_headers
from tests.broker_process import RunningBroker, server_ini
from tests.integration.background import Repeating
from tests.integration.cli_helpers import Operator
from tests.integration.client_cluster import SHORT_SESSION_SECONDS
from tests.integration.forked_processes import ForkedBroker
from tests.segment_files import segments
from tests.waiting import eventually

__all__ = ["SetNodes", "set_nodes"]


class SetNodes:
    """Nodes of one broker set by name. A node that is started again has its former port."""

    def __init__(
        self,
        directory: Path,
        connect: str,
        topics: Mapping[str, str],
        zones: Mapping[str, str] | None = None,
        **settings: object,
    ) -> None:
        """topics: name -> lines of its section. zones: those of nodes that have one. settings: of server_ini()."""
        self.connect = connect
        self.nodes: dict[str, RunningBroker] = {}
        self._directory = directory
        self._topics = topics
        self._zones = zones or {}
        self._id = int(str(settings.get("broker_id", 0)))
        self._settings = settings
        self._ports: dict[str, int] = {}

    def start(self, *names: str, options: tuple[str, ...] = ()) -> None:
        """Start nodes, one after the other."""
        for name in names:
            directory = self._directory / name
            directory.mkdir(exist_ok=True)
            session = int(SHORT_SESSION_SECONDS * 1000)
            ini = server_ini(
                directory / "data",
                self._topics,
                zookeeper=f"zk.zkConnect={self.connect}\nzk.zkSessionTimeoutMs={session}\nzk.zkSyncTimeMs=100",
                **self._settings,  # type: ignore[arg-type]
            ).replace("serverPort=0", f"serverPort={self._ports.get(name, 0)}")
            zone = ("--zone", self._zones[name]) if name in self._zones else ()
            words = ("-m", "metaq", "broker", "--node", name, *zone, *options, "-f")
            self.nodes[name] = self._begin(name, directory, ini, words)
            self._ports[name] = self.nodes[name].port

    def _begin(self, name: str, directory: Path, ini: str, words: tuple[str, ...]) -> RunningBroker:
        return ForkedBroker(directory, ini, module=words)

    @property
    def operator(self) -> Operator:
        return Operator(self.connect)

    def hand_over(self, *to: str) -> None:
        self.operator.json("brokers", "hand-over", str(self._id), *to)
        self.wait_in_sync("a", "b")

    def elect(self, name: str) -> None:
        """As an operator, whoever was in sync."""
        self.operator.json("brokers", "elect", str(self._id), "--unclean", "--node", name, "--yes")

    def data(self, name: str) -> Path:
        return self._directory / name / "data"

    def view(self) -> SetView:
        with ZkSession(self.connect) as session:
            return read_set(session, self._id)

    @property
    def leader(self) -> str:
        state = self.view().state
        return state.leader if state else ""

    @property
    def epoch(self) -> int:
        state = self.view().state
        return state.epoch if state else 0

    def wait_until(self, condition: Callable[[SetView], object], what: str) -> None:
        """Until this holds for what ZooKeeper has of the set."""
        with ZkSession(self.connect) as session:
            eventually(lambda: condition(read_set(session, self._id)), what=what)

    def wait_for_leader(self, *names: str) -> None:
        """Until one of these leads."""
        self.wait_until(lambda view: view.state and view.state.leader in names, f"one of {names} to lead")

    def wait_in_sync(self, *names: str, after: int = 0) -> None:
        """Until exactly these are in the in-sync set, and one of them leads in a later epoch and offers the topics."""
        with ZkSession(self.connect) as session:

            def settled(view: SetView) -> bool:
                return bool(
                    view.state
                    and list(view.state.in_sync) == sorted(names)
                    and view.master is not None
                    and view.state.leader in names
                    and view.state.epoch > after
                    and all(session.nodes.children(session.paths.topic_pub(topic)) for topic in self._topics)
                )

            self.wait_until(settled, f"the nodes {names} to be in sync")

    def kill_leader(self) -> None:
        """Until there is another one, which may be reached."""
        epoch = self.epoch
        self.kill(self.leader)
        self.wait_until(lambda view: view.state and view.state.epoch > epoch and view.master, "an election")

    def fail_over(self, load: Repeating, more: int) -> None:
        """Of the nodes a and b the one that leads is killed under load, three times, and started again each time."""
        load.wait_for(more)
        for name, other in (("a", "b"), ("b", "a"), ("a", "b")):
            assert self.leader == name
            self.kill(name)
            self.wait_for_leader(other)
            load.wait_for(more)
            self.start(name)
            self.wait_in_sync("a", "b")
            load.wait_for(more // 2)

    def signal(self, name: str, number: signal.Signals) -> None:
        self.nodes[name].process.send_signal(number)

    def kill(self, name: str) -> None:
        self.nodes[name].kill()

    def segments(self, name: str) -> dict[str, bytes]:
        """The partition files of a node by their path in its directory; a follower has no empty ones."""
        return {path: content for path, content in segments(self.data(name)).items() if content}

    def delivered(self, name: str) -> Iterator[tuple[bytes, int, str]]:
        """Of the messages with attributes that a node has: payload, when it was given to its partition, Unix ms, and
        where it lies."""
        for path, data in self.segments(name).items():
            for header in iter_headers(data):
                body = data[header.start + HEADER_BYTES : header.end]
                attribute = attribute_of(body, header.flag)
                assert attribute is not None
                yield body[4 + len(attribute) :], store_time_ms(header.id) or 0, f"{path}:{header.start}"

    def kept(self, name: str) -> list[Path]:
        """What the node has cut off and kept."""
        return sorted(self.data(name).glob("*/*.damaged-*"))

    def stop(self) -> None:
        for node in self.nodes.values():
            if node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
                node.kill()


@contextmanager
def set_nodes(
    directory: Path, connect: str, topics: Mapping[str, str], zones: Mapping[str, str] | None = None, **settings: object
) -> Iterator[SetNodes]:
    nodes = SetNodes(directory, connect, topics, zones, **settings)
    try:
        yield nodes
    finally:
        nodes.stop()
