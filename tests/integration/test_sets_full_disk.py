"""Nodes of a broker set on file systems that are really full: they come back by themselves when there is room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq import Producer
from metaq.protocol.errors import MetaqError
from tests.integration.disks import small_disk
from tests.integration.set_nodes import SetNodes, set_nodes
from tests.waiting import DEADLINE, eventually

DISK_MB = 48
TOPICS = {"t": "numPartitions=4", "safe": "numPartitions=8\nunflushThreshold=0\nack=disk"}
_PIECE = 1 << 20


@pytest.fixture
def nodes(tmp_path: Path, chroot: str) -> Iterator[SetNodes]:
    """Two nodes, each with a file system of its own."""
    with (
        small_disk(tmp_path / "a" / "data", DISK_MB),
        small_disk(tmp_path / "b" / "data", DISK_MB),
        set_nodes(tmp_path, chroot, TOPICS, unflush_threshold=1000, max_segment_size=1 << 20) as nodes,
    ):
        yield nodes


def fill(nodes: SetNodes, name: str) -> Path:
    """Leave no byte free; the file that has to go."""
    path = nodes.data(name) / "others"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(fd, b"x" * _PIECE)
    except OSError:
        return path
    finally:
        os.close(fd)


def send(producer: Producer, count: int, seconds: float = DEADLINE) -> int:
    """How many of some messages were acknowledged."""
    sent = 0
    for number in range(count):
        try:
            producer.send("safe" if number % 2 else "t", b"x" * 3000, timeout=seconds)
            sent += 1
        except MetaqError:
            pass
    return sent


@pytest.mark.parametrize("victim", ["leader", "follower"])
@pytest.mark.parametrize("reserve", ["0", "8m"])
def test_a_node_whose_disk_was_full_comes_back(nodes: SetNodes, victim: str, reserve: str) -> None:
    nodes.start("a", "b", options=("--disk-reserve", reserve))
    nodes.wait_in_sync("a", "b")
    leader = nodes.leader
    name = leader if victim == "leader" else "ab".replace(leader, "")
    processes = {each: node.process.pid for each, node in nodes.nodes.items()}
    with Producer(nodes.connect) as producer:
        assert send(producer, 20) == 20
        others = fill(nodes, name)
        send(producer, 20, 1.0)
        assert send(producer, 20) == 20  # the other node leads, or leads alone
        others.unlink()
        nodes.wait_in_sync("a", "b")
        assert send(producer, 20) == 20
    assert {each: node.process.pid for each, node in nodes.nodes.items()} == processes
    eventually(lambda: nodes.segments("a") == nodes.segments("b"), what="the nodes to have the same bytes")


@pytest.mark.parametrize("reserve", ["0", "8m"])
def test_a_lone_node_whose_disk_was_full_leads_again(nodes: SetNodes, reserve: str) -> None:
    nodes.start("a", options=("--disk-reserve", reserve))
    nodes.wait_in_sync("a")
    with Producer(nodes.connect) as producer:
        assert send(producer, 20) == 20
        others = fill(nodes, "a")
        send(producer, 6, 1.0)
        others.unlink()
        assert send(producer, 20) == 20
