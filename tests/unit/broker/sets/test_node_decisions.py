"""What a member of a broker set decides by itself: its ZooKeeper and its broker are the test's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from metaq.broker.sets.history import EpochHistory
from metaq.broker.sets.node import SetMember
from metaq.coordination.records.set_payloads import SetState
from metaq.protocol.errors import NotLeader


def member(name: str = "b", history: EpochHistory | None = None) -> Any:
    new: Any = SetMember.__new__
    made = new(SetMember)
    made.name = name
    made.leader = None
    made._established = False
    made._trouble = ""
    made._broker = SimpleNamespace(config=SimpleNamespace(broker_id=7))
    made._file = SimpleNamespace(history=history or EpochHistory(), epoch=0)
    made._leader_url = lambda: "meta://a:1"
    return made


@pytest.mark.parametrize(
    ("others", "begins"),
    [({}, True), ({"c": 0}, True), ({"a": 0}, False), ({"c": 4}, False), ({"b": 0, "c": 0}, True)],
)
def test_of_new_nodes_the_first_by_name_begins_a_set_unless_another_has_been_in_it(others, begins) -> None:
    nodes = {name: SimpleNamespace(epoch=epoch) for name, epoch in others.items()}
    assert member()._may_create(SimpleNamespace(nodes=nodes)) == begins


def test_a_node_that_has_been_in_a_set_waits_for_an_operator(caplog: pytest.LogCaptureFixture) -> None:
    assert not member(history=EpochHistory().begin(1, {}))._may_create(SimpleNamespace(nodes={}))
    assert "metaq brokers elect --unclean" in caplog.text


@pytest.mark.parametrize(("epoch", "leader"), [(6, "b"), (5, "a")])
def test_a_node_that_another_has_followed_writes_no_state(epoch: int, leader: str) -> None:
    """It led in epoch 5, and has just read what came of it."""
    one = member()
    one.leader = SimpleNamespace(core=SimpleNamespace(epoch=5))
    one._view = SimpleNamespace(version=9, state=SetState(epoch, leader, {"a": "1", "b": "2"}))
    one._instances = {"a": "1", "b": "2"}
    one._set = SimpleNamespace(change=None)
    written: list[object] = []

    async def write(version: int, change: object) -> Any:
        written.append(change)
        return one._view

    one._write = write
    done = one._change_in_sync(frozenset({"b"}))
    assert (done.result, written) == (False, [])


def test_only_an_established_leader_serves_its_clients() -> None:
    one = member()
    assert isinstance(one.refusal(), NotLeader)
    one.leader = object()
    assert isinstance(one.refusal(), NotLeader)
    one._established = True
    assert one.refusal() is None
