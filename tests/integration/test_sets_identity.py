"""Nodes of a broker set whose data, or whose state in ZooKeeper, are not those that the set agreed on."""

from __future__ import annotations

import json
import shutil
import socket
import time
from itertools import islice

import pytest

from metaq import Producer
from metaq.coordination.records.set_payloads import format_set_state
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.session.znodes import set_data
from metaq.protocol.frames import encode_frame
from metaq.protocol.statuses import RequestCode
from tests.integration.set_nodes import SetNodes
from tests.integration.test_sets import bodies
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(180)

SET_TOPICS = {"t": "numPartitions=1"}
STAND_SECONDS = 3.0
"""In which a node that may stand leads, three times over: a grant lasts one second."""


def send(nodes: SetNodes, words: str, count: int = 50) -> list[bytes]:
    sent = [b"%s %d" % (words.encode(), number) for number in range(count)]
    with Producer(nodes.connect) as producer:
        for each in sent:
            producer.send("t", each)
    return sent


def stored(nodes: SetNodes, name: str) -> set[bytes]:
    return set(bodies(nodes.segments(name)))


def end(nodes: SetNodes, *names: str) -> None:
    for name in names:
        nodes.kill(name)
    nodes.wait_until(lambda view: not view.nodes and view.master is None, "their sessions to end")


def says(nodes: SetNodes, name: str, words: str) -> None:
    eventually(lambda: words in nodes.nodes[name].errors.read_text(), what=f"{name} to say {words!r}")


def in_sync(nodes: SetNodes) -> list[str]:
    state = nodes.view().state
    return [] if state is None else list(state.in_sync)


def test_an_empty_directory_is_not_in_sync_whatever_the_name_of_its_node(nodes: SetNodes) -> None:
    sent = send(nodes, "acknowledged")
    end(nodes, "a", "b")
    shutil.rmtree(nodes.data("b"))
    nodes.start("b")
    says(nodes, "b", "b was in sync in epoch 1 with other data than these")
    says(nodes, "b", "or start a node that has data: this one has none")
    time.sleep(STAND_SECONDS)
    assert nodes.view().master is None
    nodes.start("a")
    nodes.wait_in_sync("a", "b")
    assert nodes.leader == "a"
    eventually(lambda: set(sent) <= stored(nodes, "b"), what="b to have everything")


def test_an_empty_node_names_the_one_that_has_data_and_the_command(nodes: SetNodes) -> None:
    send(nodes, "kept")
    nodes.kill("b")
    eventually(lambda: in_sync(nodes) == ["a"], what="a to be in sync alone")
    end(nodes, "a")
    shutil.rmtree(nodes.data("a"))
    nodes.start("b")
    nodes.start("a")
    says(nodes, "a", "if they are lost, have b lead with what it has: `metaq brokers elect 0 --unclean --node b`")
    nodes.elect("b")
    nodes.wait_in_sync("a", "b")
    assert nodes.leader == "b"


def test_an_old_copy_of_a_node_neither_takes_its_place_nor_leads(nodes: SetNodes) -> None:
    send(nodes, "before")
    shutil.copytree(nodes.data("a"), nodes.data("copy"))
    sent = send(nodes, "after")
    end(nodes, "a", "b")
    shutil.rmtree(nodes.data("a"))
    nodes.data("copy").rename(nodes.data("a"))
    nodes.start("a")
    says(nodes, "a", "the data directory is a copy")
    time.sleep(STAND_SECONDS)
    assert nodes.view().master is None
    nodes.start("b")
    nodes.wait_in_sync("a", "b")
    assert nodes.leader == "b"
    eventually(lambda: set(sent) <= stored(nodes, "a"), what="a to have everything")


def test_a_replaced_node_that_comes_at_once_is_counted_only_when_it_has_everything(nodes: SetNodes) -> None:
    sent = send(nodes, "acknowledged")
    former = nodes.view().nodes["b"].instance
    nodes.kill("b")
    shutil.rmtree(nodes.data("b"))
    nodes.start("b")
    eventually(
        lambda: nodes.view().in_sync_present == ["a", "b"] and nodes.view().nodes["b"].instance != former,
        what="the new b to be in sync",
    )
    state = nodes.view().state
    assert state is not None
    assert state.in_sync["b"] == nodes.view().nodes["b"].instance != former
    assert set(sent) <= stored(nodes, "b")


def test_a_state_that_was_set_back_elects_nobody(nodes: SetNodes) -> None:
    old = nodes.view().state
    assert old is not None
    for leader in ("a", "b"):
        assert nodes.leader == leader
        nodes.hand_over()
    sent = send(nodes, "acknowledged")
    end(nodes, "a", "b")
    with ZkSession(nodes.connect) as session:
        session.nodes.write(session.session_id, [set_data(session.paths.broker_set(0), format_set_state(old))])
    nodes.start("a", "b")
    says(nodes, "a", "ZooKeeper was set back")
    says(nodes, "b", "ZooKeeper was set back")
    assert nodes.view().master is None
    nodes.elect("a")
    nodes.wait_in_sync("a", "b")
    state = nodes.view().state
    assert state is not None
    assert state.epoch > 3
    assert set(sent) <= stored(nodes, "a") & stored(nodes, "b")


def test_a_new_node_that_begins_the_set_anew_does_not_make_others_cut(nodes: SetNodes) -> None:
    sent = send(nodes, "acknowledged")
    end(nodes, "a", "b")
    with ZkSession(nodes.connect) as session:
        session.nodes.write(session.session_id, [set_data(session.paths.broker_set(0), b"")])
    nodes.start("c")
    nodes.wait_in_sync("c")
    nodes.start("a", "b")
    for name in ("a", "b"):
        says(nodes, name, "have nothing in common")
        assert set(sent) <= stored(nodes, name)
        assert nodes.kept(name) == []
    nodes.kill("c")
    nodes.wait_until(lambda view: view.master is None and "c" not in view.nodes, "the session of c to end")
    nodes.elect("a")
    nodes.wait_for_leader("a")
    assert set(sent) <= stored(nodes, "a")


@pytest.mark.parametrize("name", ["c", "b"])
def test_who_has_no_znode_in_the_set_is_no_replica(nodes: SetNodes, name: str) -> None:
    """A stranger, and one that calls itself as a node that is away."""
    sent = send(nodes, "before")
    nodes.kill("b")
    nodes.wait_until(lambda view: list(view.nodes) == ["a"], "the session of b to end")
    eventually(lambda: in_sync(nodes) == ["a"], what="a alone")

    def ask_to_follow(hello: dict[str, object], parts: int | None = None) -> bytes:
        """What the leader says until it closes the connection, or in so many parts."""
        body = json.dumps(hello).encode()
        with socket.create_connection(("127.0.0.1", nodes.nodes["a"].port), timeout=10) as stranger:
            stranger.sendall(encode_frame(RequestCode.FOLLOW, 1, {}, len(body)) + body)
            return b"".join(islice(iter(lambda: stranger.recv(65536), b""), parts))

    hello: dict[str, object] = {"set": 0, "node": name, "instance": "strange", "epochs": [], "hasData": False}
    said = ask_to_follow(hello | {"epoch": 0})
    assert b"no znode of the set's nodes has the name" in said
    assert all(each not in said for each in sent)
    assert in_sync(nodes) == ["a"]
    assert b"FOLLOW does not say who asks" in ask_to_follow(hello, 1)  # it must not hold up those who ask meanwhile
