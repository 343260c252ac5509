"""Nodes of a broker set whose directories have lost files: a disk that is not mounted, a directory moved away."""

from __future__ import annotations

import json
import shutil
import signal
import time

import pytest

from metaq import Producer, Xid
from tests.integration.set_nodes import SetNodes
from tests.integration.test_sets_identity import STAND_SECONDS, end, says, send, stored
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(180)

SEGMENT_BYTES = 2048
SET_TOPICS = {"t": "numPartitions=1"}
SET_SETTINGS = {"max_segment_size": SEGMENT_BYTES}


def same_everywhere(nodes: SetNodes, sent: list[bytes]) -> None:
    assert set(sent) <= stored(nodes, "a")
    eventually(lambda: nodes.segments("a") == nodes.segments("b"), what="a and b to have the same files")


def kill_without_journal(nodes: SetNodes) -> None:
    """Kill b. What its journal had is in the partition's files since its last start, so that only they have it."""
    nodes.kill("b")
    nodes.wait_in_sync("a")  # else the wait behind the start may end before b has read its journal
    nodes.start("b")
    nodes.wait_in_sync("a", "b")
    nodes.kill("b")


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGTERM])
def test_a_node_that_has_lost_a_partition_is_not_in_sync(nodes: SetNodes, ended_by: signal.Signals) -> None:
    """Its directory comes back in the end: then it is what it was."""
    sent = send(nodes, "acknowledged")
    if ended_by is signal.SIGKILL:
        kill_without_journal(nodes)
        end(nodes, "a")
        last = "b"
    else:
        for last in ("b", "a"):  # the one that stops last is in sync alone
            nodes.signal(last, ended_by)
            nodes.nodes[last].process.wait(30)
    lost = nodes.data(last) / "t-0"
    kept = lost.rename(nodes.data(last).parent / "kept")
    nodes.start(last)
    says(nodes, last, "directories lack data that they had when the node stopped (t-0)")
    says(nodes, last, f"{last} was in sync in epoch")
    time.sleep(STAND_SECONDS)
    assert nodes.view().master is None
    nodes.kill(last)
    shutil.rmtree(lost, ignore_errors=True)
    kept.rename(lost)
    nodes.start(last)
    nodes.wait_for_leader(last)
    nodes.start("a" if last == "b" else "b")
    nodes.wait_in_sync("a", "b")
    same_everywhere(nodes, sent)


@pytest.mark.parametrize("journaled", [0, 10])
def test_a_partition_that_is_gone_is_copied_anew(nodes: SetNodes, journaled: int) -> None:
    """Also if the journal has its last messages."""
    sent = send(nodes, "acknowledged")
    kill_without_journal(nodes)
    if journaled:
        nodes.wait_in_sync("a")
        nodes.start("b")
        nodes.wait_in_sync("a", "b")
        sent += send(nodes, "journaled", journaled)
        nodes.kill("b")
    shutil.rmtree(nodes.data("b") / "t-0")
    nodes.start("b")
    says(nodes, "b", "directories lack data that they had when the node stopped (t-0)")
    same_everywhere(nodes, sent)
    nodes.wait_in_sync("a", "b")
    nodes.hand_over("--to", "b")
    same_everywhere(nodes, sent)


def test_a_node_that_has_lost_its_transaction_log_is_not_in_sync(nodes: SetNodes) -> None:
    with Producer(nodes.connect) as producer:
        xa, xid = producer.xa(["t"]), Xid(1, b"transfer", b"orders")
        xa.start(xid).send("t", b"in doubt")
        xa.end(xid)
        xa.prepare(xid)
    file, log = nodes.data("b") / "metaqset/history.json", nodes.data("b") / "transactions"
    eventually(lambda: json.loads(file.read_bytes())["ends"]["transactions"], what="b to remember that it has the log")
    end(nodes, "a", "b")
    shutil.rmtree(log)
    nodes.start("b")
    says(nodes, "b", "directories lack data that they had when the node stopped (transactions)")
    time.sleep(STAND_SECONDS)
    assert nodes.view().master is None


def test_a_partition_that_lacks_its_beginning_is_copied_anew(nodes: SetNodes) -> None:
    """Else the node that has it would drop it as soon as the other one leads."""
    sent = send(nodes, "acknowledged", 100)
    kill_without_journal(nodes)
    first, *_ = sorted((nodes.data("b") / "t-0").glob("*.meta"))
    for file in first.parent.glob(f"{first.stem}*"):
        file.unlink()
    nodes.start("b")
    eventually(lambda: nodes.segments("a") == nodes.segments("b"), what="b to have the first segment again")
    nodes.wait_in_sync("a", "b")
    nodes.hand_over("--to", "b")
    same_everywhere(nodes, sent)
    nodes.hand_over("--to", "a")
    same_everywhere(nodes, sent)
