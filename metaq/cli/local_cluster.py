"""A complete cluster on this machine: a ZooKeeper server and broker processes, with their files below one data
directory.

<data>/zookeeper/            ZooKeeper's data
<data>/broker-<id>/          server.ini (written at every start), broker.log, data/
<data>/broker-<id>-<node>/   the same for each further node of a broker set; broker-<id> is its node `a`
<data>/security/             certificates and the profile of an admin, if only users may use the cluster
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.coordination.records.set_payloads import SetState
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.sets.set_admin import write_state
from metaq.coordination.sets.set_view import SetView, read_set
from metaq.protocol.errors import BrokerUnavailable

from .earlier_starts import TOPIC_SECTION, broker_directory, node_name, stored_topics
from .options import TopicSetting, TopicSpec
from .servers import Child, signal_name, stop_all, wait_until
from .zookeepers import local_zookeeper

if TYPE_CHECKING:
    from .secure_cluster import ClusterSecurity

__all__ = [
    "HOST",
    "MAX_REPLICAS",
    "ClusterPlan",
    "LocalCluster",
    "PlannedNode",
    "server_ini",
]

HOST = "127.0.0.1"
MAX_REPLICAS = 8
START_SECONDS = 30.0
"""After the start of all broker processes, start() waits at most this number of seconds until they publish every
topic.
"""

GRACE_MS = 500
"""When a broker is told to stop, it serves clients for this number of milliseconds more, so that they can change to
other brokers. The number is small because all brokers of this cluster stop together, so clients find no other broker
anyway.
"""

SYNC_FLUSH = {"unflushThreshold": 0, "unflushInterval": 10_000}  # group commit: acknowledged means on disk
ASYNC_FLUSH = {"unflushThreshold": 1_000, "unflushInterval": 1_000}


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A broker process to start. node: the name of the process within its broker set, or None if it is in no set."""

    broker_id: int
    node: str | None
    port: int
    directory: Path

    @property
    def name(self) -> str:
        """The name of the process in texts for the user."""
        return f"broker {self.broker_id}" + (f" node {self.node}" if self.node else "")


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Describes the cluster that a LocalCluster starts. ports: one port for each broker process. The first ports are
    for the broker ids 0, 1, and so on. In a cluster of broker sets, the ports for the second node of each set follow,
    in the same order of ids, then the ports for the third nodes, and so on. topics: the topics with their numbers of
    partitions on each broker id.
    """

    data_dir: Path
    ports: Sequence[int]
    zookeeper_port: int
    topics: Sequence[TopicSpec]
    durable: bool = True
    session_timeout_ms: int = 30_000
    disk_reserve: int | None = None
    """The value of the brokers' option --disk-reserve in bytes; None means the broker's default."""
    replicas: int = 1
    """Number of nodes of each broker id; 1 means that there are no broker sets."""
    settings: Sequence[TopicSetting] = ()
    """Additional settings for the sections of `topics` in server.ini."""
    apache_jars: Path | None = None
    """Directory with the jars of Apache's ZooKeeper; None means that metaq's standalone server is used."""
    secure: bool = False
    """Whether the brokers have TLS and serve only users."""

    @property
    def brokers(self) -> int:
        """Number of broker ids."""
        return len(self.ports) // self.replicas

    def nodes(self) -> list[PlannedNode]:
        """Return all broker processes: first one process for each broker id, then the second process for each broker
        id, and so on.
        """
        return [
            PlannedNode(
                number % self.brokers,
                node_name(number // self.brokers) if self.replicas > 1 else None,
                port,
                self.data_dir / broker_directory(number % self.brokers, number // self.brokers),
            )
            for number, port in enumerate(self.ports)
        ]


def server_ini(plan: ClusterPlan, node: PlannedNode, connect_string: str) -> str:
    """Return the content of server.ini for one broker process of `plan`."""
    system = {
        "brokerId": node.broker_id,
        "hostName": HOST,
        "serverPort": node.port,
        "numPartitions": 1,
        "dataPath": node.directory / "data",
        "maxSegmentSize": 1 << 30,
        "maxTransferSize": 1 << 20,
        **(SYNC_FLUSH if plan.durable else ASYNC_FLUSH),
    }
    zookeeper = {
        "zk.zkConnect": connect_string,
        "zk.zkSessionTimeoutMs": plan.session_timeout_ms,
        "zk.zkSyncTimeMs": GRACE_MS,
    }
    sections: dict[str, dict[str, object]] = {"system": system, "zookeeper": zookeeper}
    sections |= {f"{TOPIC_SECTION}{topic.name}": {"numPartitions": topic.partitions} for topic in plan.topics}
    for setting in plan.settings:
        sections[f"{TOPIC_SECTION}{setting.topic}"][setting.name] = setting.value
    lines = ["; written at every start of `metaq up`, which reads here which topics and settings there were"]
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{key}={value}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


class LocalCluster:
    """Starts and stops the processes of a ClusterPlan. Only the main thread may use this object, because the kernel
    ends each process when the thread that started it ends.
    """

    def __init__(self, plan: ClusterPlan, tell: Callable[[str], None] = lambda text: None) -> None:
        """tell: called with a text for the user in these cases: a node of a broker set has ended and was started again;
        a node was made the leader because the data of the in-sync nodes was removed; ClusterSecurity has changed users
        or the mode at a later start.
        """
        self.plan = plan
        self.brokers: list[Child] = []
        """The broker processes, in the order of plan.nodes()."""
        self._tell = tell
        self.security: ClusterSecurity | None = None
        """The certificates and the admin of the cluster, or None if everybody may use it."""
        if plan.secure:
            from .secure_cluster import ClusterSecurity  # a cluster without users starts faster without these modules

            self.security = ClusterSecurity(plan.data_dir, tell, zookeeper_tls=plan.apache_jars is None)
        server_tls = None if self.security is None else self.security.server_tls
        place = plan.data_dir / "zookeeper", plan.zookeeper_port, HOST
        self._zookeeper = local_zookeeper(*place, plan.apache_jars, server_tls)

    @property
    def connect_string(self) -> str:
        return self._zookeeper.connect_string

    @property
    def addresses(self) -> list[str]:
        """One text for each broker id, with the address of the broker, or with the addresses and names of all nodes of
        the broker set.
        """
        nodes = self.plan.nodes()
        return [
            ", ".join(
                f"{HOST}:{each.port}" + (f" ({each.node})" if each.node else "")
                for each in nodes
                if each.broker_id == broker_id
            )
            for broker_id in range(self.plan.brokers)
        ]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all processes. Wait until all brokers publish all topics and all nodes of broker sets are in sync. If
        only users may use the cluster, wait until all brokers enforce grants, too.

        If a process ends or does not become ready in time, raises CoordinationUnavailable or BrokerUnavailable; the
        error text contains the last line of a log, or says which logs to read.
        """
        plan = self.plan
        # Start the brokers while ZooKeeper starts, with three exceptions. A broker set needs its state in ZooKeeper
        # first, and brokers that serve only users need the mode. Apache's server opens no session for any client if one
        # was requested before the server served.
        at_once = plan.replicas == 1 and plan.apache_jars is None and not plan.secure
        if self.security is not None:
            self.security.make_files([node.directory.name for node in plan.nodes()], HOST)
        self._zookeeper.launch()
        if self.security is not None:  # only now, because the launch refuses a directory with data of Apache's server
            self.security.name_zookeeper()
        if at_once:
            self._start_brokers()
        self._zookeeper.wait_until_serving()
        session = ZkSession(self.connect_string, tls=None if self.security is None else self.security.session_tls)
        session.start()
        try:
            if self.security is not None:
                self.security.enforce(session)
            if plan.replicas > 1:
                self._found_sets(session)
            if not at_once:
                self._start_brokers()
            self._wait_for_brokers(session)
        finally:
            session.close()

    def _found_sets(self, session: ZkSession) -> None:
        """Write the first state of each new broker set to ZooKeeper. If an earlier start without broker sets has stored
        messages of the set's broker id, they are in the directory of the set's first node, so this node becomes the
        leader. Otherwise the set's preferred node becomes the leader; consecutive broker ids have different preferred
        nodes, so that the leaders are spread over the nodes.

        An existing set keeps its state, unless the directories of all in-sync nodes were removed (`_choose_data`). If
        the nodes of a set have data, but the set's state in ZooKeeper is lost, nothing is written, and the set waits
        for an operator.
        """
        stored = stored_topics(self.plan.data_dir)
        for broker_id in range(self.plan.brokers):
            directories = [each.directory for each in self.plan.nodes() if each.broker_id == broker_id]
            view = read_set(session, broker_id)
            if view.state is None and not any((each / "data" / "metaqset").exists() for each in directories):
                preferred = node_name(broker_id % self.plan.replicas)  # spread the leaders over the nodes
                first = node_name(0) if broker_id in stored else preferred
                write_state(session, broker_id, SetState(0, "", {first: ""}, preferred), view)
            elif view.state is not None:
                self._choose_data(session, broker_id, view.state, view)

    def _choose_data(self, session: ZkSession, broker_id: int, state: SetState, view: SetView) -> None:
        """If somebody has removed the directories of all nodes that were in sync, make the node with the highest epoch
        among the remaining nodes the leader. Data that only the removed directories contained is lost. Raises
        StoreError.
        """
        from metaq.broker import inspection  # loaded late, as in earlier_starts.py

        nodes = [each for each in self.plan.nodes() if each.broker_id == broker_id]
        stored = {node.node or "": inspection.stored_node(node.directory / "data") for node in nodes}
        having = {name: found for name, found in stored.items() if found is not None}
        if not having or any(found.copied or state.has_in_sync(name, found.instance) for name, found in having.items()):
            return  # only an operator knows which copy is the right one
        chosen = max(having, key=lambda name: having[name].epoch)
        epoch = max(state.epoch, *(found.epoch for found in having.values()))
        in_sync = {chosen: having[chosen].instance}
        if write_state(session, broker_id, replace(state, epoch=epoch, leader="", in_sync=in_sync), view):
            lost = " and ".join(state.in_sync)
            gone = f"the data of node {lost}, which was in sync last, are gone"
            self._tell(f"broker {broker_id}: {gone}: node {chosen} leads with what it has")

    def _start_brokers(self) -> None:
        self.brokers = [self._start_broker(node) for node in self.plan.nodes()]

    def _start_broker(self, node: PlannedNode) -> Child:
        (node.directory / "data").mkdir(0o700, parents=True, exist_ok=True)
        ini = node.directory / "server.ini"
        ini.write_text(server_ini(self.plan, node, self.connect_string), "utf-8")
        options = ["--listen", HOST]
        options += [] if self.plan.disk_reserve is None else ["--disk-reserve", str(self.plan.disk_reserve)]
        options += ["--node", node.node] if node.node else []
        if self.security is not None:
            options += ["--security", str(self.security.security_ini(node.directory.name))]
        return Child(node.name, ["broker", "-f", str(ini), *options], node.directory / "broker.log")

    def _wait_for_brokers(self, session: ZkSession) -> None:
        view = ClusterView(session)

        def all_serve() -> bool:
            self.check()
            return (
                all(map(_listens, self.plan.ports))
                and all(
                    len(view.topic_partitions(topic.name)) >= topic.partitions * self.plan.brokers
                    for topic in self.plan.topics
                )
                and (self.plan.replicas == 1 or all(self._in_sync(session, each) for each in range(self.plan.brokers)))
                and (self.security is None or self.security.serves_admin(session, len(self.plan.ports)))
            )

        if not wait_until(all_serve, time.monotonic() + START_SECONDS):
            logs = ", ".join(str(broker.log) for broker in self.brokers)
            what = "do not publish all topics" + (", or are not in sync," if self.plan.replicas > 1 else "")
            if self.security is not None and self.security.silence:
                what = f"do not serve the admin ({self.security.silence})"
            raise BrokerUnavailable(f"the brokers {what} after {START_SECONDS:.0f} s: see {logs}")

    def _in_sync(self, session: ZkSession, broker_id: int) -> bool:
        view = read_set(session, broker_id)
        nodes = {each.node for each in self.plan.nodes()}
        return view.master is not None and nodes <= set(view.in_sync_present)

    def check(self) -> None:
        """Raise BrokerUnavailable if a broker process or ZooKeeper has ended by itself."""
        for broker in self.brokers:
            broker.check()
        if not self._zookeeper.running:
            raise BrokerUnavailable(f"ZooKeeper has ended: see {self.plan.data_dir / 'zookeeper'}")

    def watch(self, wait: Callable[[float], bool]) -> None:
        """Check the processes until `wait(seconds)` returns true. Raise BrokerUnavailable as soon as a process has
        ended by itself.

        There is one exception: if a node of a broker set has ended with the exit code 0 or by a signal, start this node
        again and raise no error.
        """
        while not wait(0.5):
            if self.plan.replicas > 1:
                self._start_again()
            self.check()

    def _start_again(self) -> None:
        for number, (node, child) in enumerate(zip(self.plan.nodes(), self.brokers, strict=True)):
            code = child.process.poll()
            if code is not None and code <= 0:
                how = f"was ended by {signal_name(-code)}" if code else "was stopped"
                self.brokers[number] = self._start_broker(node)
                self._tell(f"{node.name} {how}: it is started again")

    def stop(self) -> None:
        """First stop the brokers, which remove their registrations in ZooKeeper, and then stop ZooKeeper. A second call
        has no effect.

        The nodes of a broker set are stopped one after the other, the first node last, so that the first node is the
        leader at the end.
        """
        while self.brokers:
            last = self.brokers[-self.plan.brokers :]
            del self.brokers[-self.plan.brokers :]
            stop_all(last)
        self._zookeeper.stop()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0
