"""Start the brokers of a stage, and a load generator for each system that takes part in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kazoo.client import KazooClient

from .javapeer import JavaBroker, JavaClient
from .memory import resident_mb
from .names import (
    AIOKAFKA,
    BASE_OF,
    BROKER_OF,
    CONFLUENT,
    CONFLUENT_BATCH,
    KAFKA,
    KAFKA_PYTHON,
    NODES_OF,
    OUR_BROKERS,
    OURS,
    OURS_ONE_CORE,
    ROCKETMQ,
)
from .peers import kafka_client, rocketmq_client, start_kafka, start_rocketmq
from .processes import ProcessFailed, Server, Worker, free_port
from .scenarios import Stage, Topic
from .server_ini import server_ini
from .sets import METAQ, node_set

__all__ = ["FLUSH", "Broker", "Running", "System", "start_stage", "zookeeper"]

ROOT = Path(__file__).resolve().parents[1]
PYTHON_CLIENTS = {
    OURS: ["bench.worker"],
    OURS_ONE_CORE: ["bench.worker", "--one-core"],
    KAFKA_PYTHON: ["bench.kafka_workers", "kafka-python"],
    AIOKAFKA: ["bench.aiokafka_worker"],
    CONFLUENT: ["bench.kafka_workers", "confluent-kafka"],
    CONFLUENT_BATCH: ["bench.kafka_workers", "confluent-kafka-batch"],
}
"""By system: the module of its load generator, and the generator's first arguments."""

KAFKA_REPLICAS = {"kafka": 1, "kafka-2": 2}

# keys of metaq 1.x. False: fsync after 1,000 messages or 10 s, no answer waits for it. True: fsync before the answer,
# one fsync for all waiting answers
FLUSH: Mapping[bool, Mapping[str, object]] = {
    False: {"unflushThreshold": 1000, "unflushInterval": 10_000},
    True: {"unflushThreshold": 0, "unflushInterval": 10_000},
}

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class System:
    """A load generator in a process of its own, and the name of its broker."""

    name: str
    broker: str
    generator: Worker


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker. address: for its clients; pids: processes of its nodes; rest_mb: resident memory of the largest
    of these processes before any command, in units of 10^6 bytes.
    """

    address: str
    pids: tuple[int, ...]
    rest_mb: float


@dataclass(slots=True)
class Running:
    """The running systems of a stage, and their brokers. failures: by system, why it does not run."""

    systems: dict[str, System] = field(default_factory=dict)
    brokers: dict[str, Broker] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


@contextmanager
def start_stage(
    stage: Stage, topics: Mapping[str, Topic], names: Iterable[str], directory: Path, zk: str | None, log: Log
) -> Iterator[Running]:
    """Start the named systems and their brokers, and yield them. When the context ends, all their processes have ended.

    topics: the topics of the stage, and additional ones of the caller; directory: for data and logs; zk: host:port of a
    running ZooKeeper server, None to start one. A system whose broker does not start is added to the failures.
    """
    names = list(names)
    running = Running()
    with ExitStack() as stack:
        brokers = {BROKER_OF[name] for name in names}
        address = ""
        coordinated = sorted(brokers & {"java", *OUR_BROKERS})
        if coordinated:
            address = zk or stack.enter_context(zookeeper(directory))
            _create_chroots(address, [_chroot(stage, broker) for broker in coordinated])
        for broker in sorted(brokers):
            try:
                where = f"{address}{_chroot(stage, broker)}"
                running.brokers[broker] = _start_broker(broker, stage, topics, directory, where, stack)
            except ProcessFailed as failure:
                log(f"the {broker} broker does not start: {failure}")
                why = f"its broker does not start: {_first_line(failure)}"
                running.failures |= {name: why for name in names if BROKER_OF[name] == broker}
        for name in names:
            if name not in running.failures:
                worker = stack.enter_context(_generator(name, running.brokers[BROKER_OF[name]].address, directory))
                running.systems[name] = System(name, BROKER_OF[name], worker)
        yield running


def _chroot(stage: Stage, broker: str) -> str:
    return f"/{stage.name}-{broker}"


def _first_line(failure: ProcessFailed) -> str:
    return str(failure).splitlines()[0]


def _start_broker(
    name: str, stage: Stage, topics: Mapping[str, Topic], directory: Path, zk_connect: str, stack: ExitStack
) -> Broker:
    """Start a broker. zk_connect: ZooKeeper for the brokers of metaq and of Java metaq; stack: ends the started
    processes when it is closed.
    """
    home = directory / name
    home.mkdir()
    address = zk_connect
    if name in KAFKA_REPLICAS:
        replicas = KAFKA_REPLICAS[name]
        address, servers = start_kafka(home, _partitions(topics), _flushed(stage, topics), stack, replicas)
    elif name == "rocketmq":
        address, server = start_rocketmq(home, _partitions(topics), stage.synchronous, stack)
        servers = [server]
    elif name == "java":
        limited = {
            topic: Topic(min(each.partitions, stage.java_partitions), each.synchronous)
            for topic, each in topics.items()
        }
        sections = _sections(stage, limited)
        servers = [stack.enter_context(JavaBroker(home, zk_connect, sections, FLUSH[stage.synchronous]))]
    elif name in NODES_OF:
        nodes = NODES_OF[name]
        sections = _promised(_sections(stage, topics), _flushed(stage, topics), len(nodes))
        settings = FLUSH[stage.synchronous]
        servers = list(stack.enter_context(node_set(home, zk_connect, sections, settings, nodes)).nodes.values())
    else:
        servers = [stack.enter_context(_our_broker(home, zk_connect, stage, topics))]
    pids = tuple(server.pid for server in servers)
    return Broker(address, pids, max(resident_mb(pid)[0] for pid in pids))


def _partitions(topics: Mapping[str, Topic]) -> dict[str, int]:
    return {name: topic.partitions for name, topic in topics.items()}


def _flushed(stage: Stage, topics: Mapping[str, Topic]) -> set[str]:
    """Return the topics whose messages are on the disk before they are acknowledged."""
    return {
        name
        for name, topic in topics.items()
        if (stage.synchronous if topic.synchronous is None else topic.synchronous)
    }


def _sections(stage: Stage, topics: Mapping[str, Topic]) -> dict[str, Mapping[str, object]]:
    """Return by topic the keys of its section in server.ini."""
    flushed = _flushed(stage, topics)
    return {name: {"numPartitions": topic.partitions, **FLUSH[name in flushed]} for name, topic in topics.items()}


def _promised(
    sections: Mapping[str, Mapping[str, object]], flushed: set[str], replicas: int
) -> dict[str, Mapping[str, object]]:
    """Return the sections with additional keys, so that a message is acknowledged only when every node has it."""
    return {
        name: {**keys, "ack": "disk" if name in flushed else "in-sync", "minInSync": replicas}
        for name, keys in sections.items()
    }


@contextmanager
def zookeeper(directory: Path) -> Iterator[str]:
    """Start the ZooKeeper server that metaq includes, with its data below `directory`; yield its address, host:port."""
    port = free_port()
    command = [*METAQ, "zookeeper", "--port", str(port), "--data-dir", str(directory / "zookeeper")]
    with Server(command, directory / "zookeeper.log", "zookeeper serves at"):
        yield f"127.0.0.1:{port}"


def _create_chroots(address: str, paths: list[str]) -> None:
    client = KazooClient(address)
    client.start()
    try:
        for path in paths:
            client.create(path)
    finally:
        client.stop()
        client.close()


def _our_broker(directory: Path, zk_connect: str, stage: Stage, topics: Mapping[str, Topic]) -> Server:
    config = directory / "server.ini"
    settings = {"dataPath": directory / "data", **FLUSH[stage.synchronous]}
    config.write_text(server_ini(free_port(), zk_connect, _sections(stage, topics), settings))
    return Server([*METAQ, "broker", "-f", str(config)], directory / "broker.log", "metaq broker 0 serving")


def _generator(name: str, address: str, directory: Path) -> Worker:
    log = directory / f"{name.replace(' ', '-').replace(',', '')}-client.log"
    base = BASE_OF.get(name, name)
    if base in PYTHON_CLIENTS:
        return Worker([sys.executable, "-m", *PYTHON_CLIENTS[base], address], log, ROOT)
    if base == KAFKA:
        return kafka_client(address, log)
    if base == ROCKETMQ:
        return rocketmq_client(address, log)
    return JavaClient(address, log)
