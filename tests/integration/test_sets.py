"""Broker sets of real nodes: they elect, replicate, fail over, and hold the same bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq import Producer, TopicPartition
from metaq.protocol.record import HEADER_BYTES, iter_headers
from tests.integration.background import Repeating
from tests.integration.set_nodes import SetNodes, set_nodes
from tests.waiting import eventually

TOPICS = {"t": "numPartitions=4", "safe": "numPartitions=2\nunflushThreshold=0"}


@pytest.fixture
def nodes(tmp_path: Path, chroot: str) -> Iterator[SetNodes]:
    with set_nodes(tmp_path, chroot, TOPICS, unflush_threshold=1000, max_segment_size=1 << 16) as nodes:
        yield nodes


class Sender(Repeating):
    """Sends to both topics; `acknowledged` were."""

    def __init__(self, connect: str) -> None:
        super().__init__(self.send, 0.0)
        self.acknowledged: list[bytes] = []
        self._producer = Producer(connect)

    def send(self, number: int) -> None:
        body = b"%d " % number + b"x" * (number % 700)
        self._producer.send("safe" if number % 4 == 0 else "t", body, timeout=30)
        self.acknowledged.append(body)

    def end(self) -> None:
        super().end()
        self._producer.close()


@pytest.fixture
def sender(nodes: SetNodes) -> Iterator[Sender]:
    nodes.start("a", "b")
    nodes.wait_in_sync("a", "b")
    with Sender(nodes.connect) as sender:
        sender.wait_for(100)
        yield sender


def bodies(segments: dict[str, bytes]) -> Counter[bytes]:
    return Counter(
        bytes(view[header.start + HEADER_BYTES : header.end])
        for data in segments.values()
        for view in [memoryview(data)]
        for header in iter_headers(view)
    )


def check(nodes: SetNodes, sender: Sender, *names: str) -> None:
    """Nothing that was acknowledged is missing, no error reached the user, and all nodes hold the same bytes."""
    sender.wait_for(50)
    nodes.wait_in_sync(*names)
    sender.end()
    assert sender.errors == []
    eventually(lambda: all(nodes.segments(name) == nodes.segments(names[0]) for name in names), what="the same bytes")
    stored = bodies(nodes.segments(names[0]))
    assert [body for body in sender.acknowledged if body not in stored] == []


def test_a_node_joins_and_holds_the_same_files(nodes: SetNodes) -> None:
    nodes.start("a")
    nodes.wait_in_sync("a")
    with Producer(nodes.connect) as producer:
        for first in range(0, 2000, 50):  # several segments
            producer.send_batch("t", [b"%d " % number + b"y" * 300 for number in range(first, first + 50)])
        nodes.start("b")
        nodes.wait_in_sync("a", "b")
        producer.send_batch("t", [b"later %d" % number for number in range(100)])
    eventually(lambda: nodes.segments("a") == nodes.segments("b"), what="the same bytes on both nodes")
    assert len(nodes.segments("b")) > 4
    assert sum(bodies(nodes.segments("b")).values()) == 2100


def test_three_nodes_survive_two_deaths(nodes: SetNodes) -> None:
    nodes.start("a", "b", "c")
    nodes.wait_in_sync("a", "b", "c")
    left = {"a", "b", "c"}
    with Sender(nodes.connect) as sender:
        for _ in range(2):
            sender.wait_for(100)
            leader = nodes.leader
            nodes.kill(leader)
            left.discard(leader)
            nodes.wait_for_leader(*left)
        check(nodes, sender, *left)


def test_a_node_that_cannot_write_down_its_epoch_leaves_the_election_to_others(nodes: SetNodes) -> None:
    nodes.start("a", "b", "c")
    nodes.wait_in_sync("a", "b", "c")
    (nodes.data("b") / "metaqset" / ".history.json.tmp").mkdir()  # the file is written there first
    nodes.operator.ran("brokers", "hand-over", "0", "--to", "b")
    log = nodes.nodes["b"].errors
    eventually(lambda: "leaves its set" in log.read_text(), what="b to say that it cannot lead")
    nodes.wait_for_leader("a", "c")
    state = nodes.view().state
    assert state is not None
    assert "b" not in state.in_sync
    assert state.epoch <= 4


def test_a_dead_follower_is_dropped_and_comes_back(nodes: SetNodes, sender: Sender) -> None:
    nodes.kill("b")
    nodes.wait_in_sync("a")
    sender.wait_for(200)
    nodes.start("b")
    check(nodes, sender, "a", "b")


def test_a_node_with_foreign_data_does_not_join(nodes: SetNodes, tmp_path: Path, chroot: str) -> None:
    nodes.start("a")
    nodes.wait_in_sync("a")
    with Producer(nodes.connect) as producer:
        producer.send("t", b"ours", partition=TopicPartition("t", 0, 0))
    foreign = nodes.data("b") / "t-0"
    foreign.mkdir(parents=True)
    (foreign / f"{0:020d}.meta").write_bytes((nodes.data("a") / "t-0" / f"{0:020d}.meta").read_bytes())
    nodes.start("b")
    log = nodes.nodes["b"].errors
    eventually(lambda: "have nothing in common" in log.read_text(), what="b to say why it does not join")
    assert list(nodes.view().state.in_sync) == ["a"]  # type: ignore[union-attr]
