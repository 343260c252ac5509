"""Run Apache Kafka (KRaft, one or two nodes) and RocketMQ (name server and broker) as processes, together with their
Java clients.

Maven builds bench/java once; the servers run from its class paths. Unless synchronous flush is requested, they flush
asynchronously, which is their default. Their heap is as large as the heap that Kafka's own start script gives a broker.
"""

from __future__ import annotations

import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree

from .javapeer import JAVA_OPTIONS
from .maven import build, java_class_path
from .processes import ProcessFailed, Server, Worker, free_port

__all__ = [
    "kafka_client",
    "kafka_properties",
    "peer_versions",
    "rocketmq_client",
    "rocketmq_java",
    "rocketmq_properties",
    "start_kafka",
    "start_rocketmq",
]

PROJECT = Path(__file__).resolve().parent / "java"
HEAP = ("-Xms1G", "-Xmx1G")
FLUSHED = "create_flushed_topics"


def peer_versions(names: Sequence[str] = ("kafka", "rocketmq")) -> dict[str, str]:
    """Return the versions of `names` in bench/java/pom.xml; `spark` is the version of its Kafka source."""
    space = {"m": "http://maven.apache.org/POM/4.0.0"}
    properties = ElementTree.parse(PROJECT / "pom.xml").find("m:properties", space)
    assert properties is not None
    return {name: properties.findtext(f"m:{name}.version", namespaces=space) or "" for name in names}


def _java(module: str, main: str, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
    build(PROJECT, "the benchmark's peers")
    return ["java", *JAVA_OPTIONS, *options, "-cp", java_class_path(PROJECT / module), main, *arguments]


def _properties(pairs: Mapping[str, object]) -> str:
    return "".join(f"{key}={value}\n" for key, value in pairs.items())


# --- Kafka ----------------------------------------------------------------------------------------------------------


def kafka_properties(port: int, controller_port: int, data: Path, *, node: int = 1, replicas: int = 1) -> str:
    """Return the server.properties of one node. Keys that are not set have Kafka's default.

    node: node 1 is broker and controller, other nodes are only brokers; replicas: number of copies of every topic, all
    of which must be in sync for an acknowledgement.
    """
    controller = f",CONTROLLER://127.0.0.1:{controller_port}" if node == 1 else ""
    return _properties(
        {
            "process.roles": "broker,controller" if node == 1 else "broker",
            "node.id": node,
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{port}{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": data,
            "default.replication.factor": replicas,
            "min.insync.replicas": replicas,
            # the defaults need three nodes
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": replicas,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": replicas,
            # a group of one member need not wait 3 s for others
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
        }
    )


def start_kafka(
    directory: Path, topics: Mapping[str, int], flushed: Collection[str], stack: ExitStack, replicas: int = 1
) -> tuple[str, list[Server]]:
    """Format the storage, start the nodes, create the topics; return the bootstrap addresses and the nodes.

    topics: number of partitions by name; flushed: the topics that every node flushes before each acknowledgement;
    replicas: number of nodes, each of which has every message.
    """
    controller_port, cluster = free_port(), urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    addresses, nodes = [], []
    for number in range(1, replicas + 1):
        home = directory / f"node-{number}"
        home.mkdir()
        port, config = free_port(), home / "server.properties"
        config.write_text(
            kafka_properties(port, controller_port, home / "data", node=number, replicas=replicas), "utf-8"
        )
        _format_kafka(config, cluster, home / "format.log")
        server = _java("kafka", "kafka.Kafka", str(config), options=HEAP)
        nodes.append(stack.enter_context(Server(server, home / "broker.log", "Kafka Server started", home)))
        addresses.append(f"127.0.0.1:{port}")
    address = ",".join(addresses)
    with kafka_client(address, directory / "topics.log") as client:
        _create_topics(client, {name: number for name, number in topics.items() if name not in flushed})
        _create_topics(client, {name: number for name, number in topics.items() if name in flushed}, FLUSHED)
    return address, nodes


def _format_kafka(config: Path, cluster: str, log: Path) -> None:
    # a leading dash would be read as an option
    command = _java("kafka", "kafka.tools.StorageTool", "format", f"--cluster-id=A{cluster[1:]}", "-c", str(config))
    with log.open("wb") as output:
        formatted = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    if formatted.returncode:
        raise ProcessFailed("formatting Kafka's storage failed", log)


def kafka_client(address: str, log: Path) -> Worker:
    """Return Kafka's Java client as a Worker of the line protocol."""
    return Worker(_java("kafka", "metaq.bench.kafka.KafkaPeer", address), log, log.parent)


def _create_topics(client: Worker, topics: Mapping[str, int], command: str = "create_topics") -> None:
    if topics:
        client.call(command, *(f"{name}:{partitions}" for name, partitions in topics.items()))


# --- RocketMQ -------------------------------------------------------------------------------------------------------


def rocketmq_properties(name_server: str, port: int, data: Path, synchronous: bool) -> str:
    """Return the broker.conf of one master. Keys that are not set have RocketMQ's default. synchronous: flush before
    acknowledging.
    """
    return _properties(
        {
            # RocketMQ makes system topics with both names, so they must differ from the benchmark's topics
            "brokerClusterName": "peers",
            "brokerName": "peer",
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "namesrvAddr": name_server,
            "listenPort": port,
            "haListenPort": free_port(),
            "storePathRootDir": data,
            "storePathCommitLog": data / "commitlog",
            # by default, the broker refuses a message that has waited 200 ms, which happens while the JVM is cold; here
            # every send must succeed
            "waitTimeMillsInSendQueue": 10_000,
            "flushDiskType": "SYNC_FLUSH" if synchronous else "ASYNC_FLUSH",
            "brokerRole": "ASYNC_MASTER",
        }
    )


def start_rocketmq(
    directory: Path, topics: Mapping[str, int], synchronous: bool, stack: ExitStack
) -> tuple[str, Server]:
    """Start the name server and the broker, and create the topics. Return the name server's address and the broker."""
    name_port, broker_port = free_port(), free_port()
    address = f"127.0.0.1:{name_port}"
    home = (f"-Drocketmq.home.dir={directory}", f"-Duser.home={directory}", *HEAP)
    name_config, broker_config = directory / "namesrv.conf", directory / "broker.conf"
    name_config.write_text(_properties({"listenPort": name_port}))
    broker_config.write_text(rocketmq_properties(address, broker_port, directory / "data", synchronous))
    name_server = _java("rocketmq", "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(name_config), options=home)
    stack.enter_context(Server(name_server, directory / "namesrv.log", "boot success", directory))
    command = _java("rocketmq", "org.apache.rocketmq.broker.BrokerStartup", "-c", str(broker_config), options=home)
    broker = stack.enter_context(Server(command, directory / "broker.log", "boot success", directory))
    with rocketmq_client(address, directory / "topics.log") as client:
        _create_topics(client, topics)
    return address, broker


def rocketmq_java(main: str, *arguments: str, home: Path) -> list[str]:
    """Return the command line of a program of bench/java/rocketmq; home: the directory in which its client writes a
    log.
    """
    return _java("rocketmq", main, *arguments, options=(f"-Duser.home={home}",))


def rocketmq_client(address: str, log: Path) -> Worker:
    """Return RocketMQ's Java client as a Worker of the line protocol."""
    home = (f"-Duser.home={log.parent}",)
    return Worker(_java("rocketmq", "metaq.bench.rocketmq.RocketPeer", address, options=home), log, log.parent)
