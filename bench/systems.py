"""The systems side by side: Java broker and client, our broker and client, our broker under the Java client."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kazoo.client import KazooClient

from .javapeer import JavaBroker, JavaClient
from .processes import Server, Worker, free_port
from .server_ini import server_ini

__all__ = ["JAVA", "MIXED", "OURS", "System", "start_systems"]

JAVA = "java"
OURS = "ours"
MIXED = "our broker, java client"
BROKER_OF = {JAVA: "java", OURS: "ours", MIXED: "ours"}

ROOT = Path(__file__).resolve().parents[1]
# 1.x's asynchronous flush: fsync after 1,000 messages or 10 s; nobody waits for it
ASYNC_FLUSH: dict[str, object] = {"unflushThreshold": 1000, "unflushInterval": 10_000}


@dataclass(frozen=True, slots=True)
class System:
    """A load generator in a process of its own, and the broker it talks to: "java" or "ours"."""

    name: str
    broker: str
    generator: Worker


@contextmanager
def start_systems(names: list[str], directory: Path, topics: dict[str, int], zk: str | None) -> Iterator[list[System]]:
    """Start the named systems, each broker with its own chroot; all processes are gone at the end.

    directory: for data and logs; topics: name -> partitions; zk: host:port of a running server, None to start one.
    """
    with ExitStack() as stack:
        address = zk or stack.enter_context(_zookeeper(directory))
        chroots = {BROKER_OF[name]: f"{address}/{BROKER_OF[name]}" for name in names}
        _create_chroots(address, list(chroots))
        if "java" in chroots:
            stack.enter_context(JavaBroker(_subdirectory(directory, "java"), chroots["java"], topics, ASYNC_FLUSH))
        if "ours" in chroots:
            stack.enter_context(_our_broker(_subdirectory(directory, "ours"), chroots["ours"], topics))
        yield [
            System(name, BROKER_OF[name], stack.enter_context(_generator(name, chroots, directory))) for name in names
        ]


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


def _generator(name: str, chroots: dict[str, str], directory: Path) -> Worker:
    log = directory / f"{name.replace(' ', '-').replace(',', '')}-client.log"
    if name == OURS:
        return Worker([sys.executable, "-m", "bench.worker", chroots[BROKER_OF[name]]], log, ROOT)
    return JavaClient(chroots[BROKER_OF[name]], log)


def _metaq() -> list[str]:
    return [sys.executable, "-m", "metaq"]
