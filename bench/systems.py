"""The systems side by side: metaq in Java, ours, ours under the Java client, Kafka with four clients, RocketMQ."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kazoo.client import KazooClient

from .javapeer import JavaBroker, JavaClient
from .peers import kafka_client, rocketmq_client, start_kafka, start_rocketmq
from .processes import Server, Worker, free_port
from .server_ini import server_ini

__all__ = ["BROKER_OF", "JAVA", "MIXED", "OURS", "PEERS", "System", "start_systems"]

JAVA = "java"
OURS = "ours"
MIXED = "our broker, java client"
KAFKA = "kafka"
ROCKETMQ = "rocketmq"
KAFKA_CLIENTS = {
    "kafka-python": ["bench.kafka_workers", "kafka-python"],
    "aiokafka": ["bench.aiokafka_worker"],
    "confluent-kafka": ["bench.kafka_workers", "confluent-kafka"],
}
"""Name -> module and first words of a Python client's load generator."""
PEERS = (KAFKA, *KAFKA_CLIENTS, ROCKETMQ)
"""The systems that are no metaq, in the order of the report."""
BROKER_OF = {
    JAVA: "java",
    OURS: "ours",
    MIXED: "ours",
    KAFKA: "kafka",
    **dict.fromkeys(KAFKA_CLIENTS, "kafka"),
    ROCKETMQ: "rocketmq",
}
"""Name of a system -> name of its broker; systems with the same one share a running broker."""

ROOT = Path(__file__).resolve().parents[1]
# 1.x's asynchronous flush: fsync after 1,000 messages or 10 s; nobody waits for it
ASYNC_FLUSH: dict[str, object] = {"unflushThreshold": 1000, "unflushInterval": 10_000}


@dataclass(frozen=True, slots=True)
class System:
    """A load generator in a process of its own, and the name of the broker it talks to."""

    name: str
    broker: str
    generator: Worker


@contextmanager
def start_systems(names: list[str], directory: Path, topics: dict[str, int], zk: str | None) -> Iterator[list[System]]:
    """Start the named systems, and of brokers only theirs; all processes are gone at the end.

    directory: for data and logs; topics: name -> partitions; zk: host:port of a running server, None to start one.
    """
    with ExitStack() as stack:
        addresses = _start_brokers({BROKER_OF[name] for name in names}, directory, topics, zk, stack)
        yield [
            System(name, BROKER_OF[name], stack.enter_context(_generator(name, addresses[BROKER_OF[name]], directory)))
            for name in names
        ]


def _start_brokers(
    names: set[str], directory: Path, topics: dict[str, int], zk: str | None, stack: ExitStack
) -> dict[str, str]:
    """Only the named brokers; what their clients connect to."""
    addresses: dict[str, str] = {}
    if chroots := sorted(names & {"java", "ours"}):
        address = zk or stack.enter_context(_zookeeper(directory))
        _create_chroots(address, chroots)
        addresses |= {name: f"{address}/{name}" for name in chroots}
    if "java" in names:
        stack.enter_context(JavaBroker(_subdirectory(directory, "java"), addresses["java"], topics, ASYNC_FLUSH))
    if "ours" in names:
        stack.enter_context(_our_broker(_subdirectory(directory, "ours"), addresses["ours"], topics))
    if "kafka" in names:
        addresses["kafka"] = start_kafka(_subdirectory(directory, "kafka"), topics, stack)
    if "rocketmq" in names:
        addresses["rocketmq"] = start_rocketmq(_subdirectory(directory, "rocketmq"), topics, stack)
    return addresses


def _subdirectory(directory: Path, name: str) -> Path:
    path = directory / name
    path.mkdir()
    return path


@contextmanager
def _zookeeper(directory: Path) -> Iterator[str]:
    port = free_port()
    command = [*_metaq(), "zookeeper", "--port", str(port), "--data-dir", str(directory / "zookeeper")]
    with Server(command, directory / "zookeeper.log", "zookeeper serves at"):
        yield f"127.0.0.1:{port}"


def _create_chroots(address: str, names: list[str]) -> None:
    client = KazooClient(address)
    client.start()
    try:
        for name in names:
            client.create(f"/{name}")
    finally:
        client.stop()
        client.close()


def _our_broker(directory: Path, zk_connect: str, topics: dict[str, int]) -> Server:
    port = free_port()
    config = directory / "server.ini"
    config.write_text(server_ini(port, zk_connect, topics, {"dataPath": directory / "data", **ASYNC_FLUSH}))
    return Server([*_metaq(), "broker", "-f", str(config)], directory / "broker.log", "metaq broker 0 serving")


def _generator(name: str, address: str, directory: Path) -> Worker:
    log = directory / f"{name.replace(' ', '-').replace(',', '')}-client.log"
    if name == OURS:
        return Worker([sys.executable, "-m", "bench.worker", address], log, ROOT)
    if name in KAFKA_CLIENTS:
        return Worker([sys.executable, "-m", *KAFKA_CLIENTS[name], address], log, ROOT)
    if name == KAFKA:
        return kafka_client(address, log)
    if name == ROCKETMQ:
        return rocketmq_client(address, log)
    return JavaClient(address, log)


def _metaq() -> list[str]:
    return [sys.executable, "-m", "metaq"]
