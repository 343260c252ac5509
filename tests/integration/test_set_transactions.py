"""Transactions of a broker set whose leader is killed: prepared, decided, and under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.set_helpers import NodeSet
from tests.integration.transaction_texts import bodies, ok, recover, tx, tx_put
from tests.waiting import eventually

TOPICS = {"fast": "numPartitions=2\nunflushThreshold=1000", "safe": "numPartitions=2\nunflushThreshold=0"}
XID = "XID:4660:0a0b:0c:host"

Start = Callable[..., NodeSet]


@pytest.fixture
def start(chroot: str, tmp_path: Path) -> Iterator[Start]:
    started: list[NodeSet] = []

    def begin(**options: object) -> NodeSet:
        started.append(NodeSet(tmp_path, chroot, TOPICS, **options))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for nodes in started:
        nodes.close()


def same_files(nodes: NodeSet) -> bool:
    first, *others = (nodes.fingerprints(name) for name in nodes.nodes)
    return all(other == first for other in others)


def test_a_prepared_transaction_is_committed_on_the_next_leader(start: Start) -> None:
    nodes = start()
    nodes.wait_in_sync()
    first = nodes.leader()
    with nodes.connect() as connection:
        ok(connection, tx(XID, "BEGIN", 60, "host"), tx_put(XID, "safe", 0, b"one"), tx_put(XID, "fast", 1, b"two"))
        ok(connection, tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "safe", 0, b"never prepared"))
        assert ok(connection, tx(XID, "PREPARE", "host")) == "0"
        nodes.kill(first)
    with nodes.connect() as connection:
        assert nodes.state().leader != first
        assert recover(connection) == [XID]
        assert bodies(connection, "safe", 0) == []
        assert connection.ask(tx("TX:s:1", "COMMIT_ONE_PHASE")).code != 200
        assert ok(connection, tx(XID, "COMMIT_TWO_PHASE", "host")) == ""
        assert (bodies(connection, "safe", 0), bodies(connection, "fast", 1)) == ([b"one"], [b"two"])
    nodes.start(first)
    nodes.wait_in_sync()
    nodes.kill(nodes.leader())
    with nodes.connect() as connection:
        assert nodes.state().leader == first
        assert recover(connection) == []
        assert (bodies(connection, "safe", 0), bodies(connection, "fast", 1)) == ([b"one"], [b"two"])
    nodes.start(next(name for name in nodes.nodes if name != first))
    nodes.wait_in_sync()
    eventually(lambda: same_files(nodes), what="the same files on both nodes")
