"""What a member of a broker set decides by itself: its ZooKeeper and its broker are the test's."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.broker.sets.life import LEADERS, RESTING, NodeEvent, NodeState
from metaq.broker.sets.node import SetMember
from metaq.broker.sets.outlook import Outlook
from metaq.coordination.records.set_payloads import SetNode, SetState
from metaq.coordination.sets.set_view import SetMaster, SetView
from metaq.protocol.errors import NotLeader

ALONE = SetState(5, "a", {"b": "2"})
BOTH = SetState(5, "a", {"a": "1", "b": "2"})
LEADS = SetMaster("meta://a:1", 11, 1)
MINE = SetMaster("meta://b:1", 22, 1)


def node(name: str, epoch: int = 5, *, forgetful: bool = False) -> SetNode:
    return SetNode(name, f"meta://{name}:1", "", {"a": "1", "b": "2", "c": "3"}[name], forgetful, epoch)


def view(state: SetState | None, master: SetMaster | None = None, *nodes: SetNode, **more: Any) -> SetView:
    return SetView(state, 9, {each.name: each for each in nodes}, master, **more)


WELL = Outlook(
    broker_id=7,
    name="b",
    instance="2",
    epoch=5,
    has_data=True,
    view=view(BOTH, None, node("b")),
    present=True,
    session_id=22,
    gone=None,
    promised=False,
    led=None,
    diverged=False,
    stopping=False,
)
"""In sync, and the leader's session has ended."""


@pytest.mark.parametrize(
    ("others", "begins"),
    [({}, True), ({"c": 0}, True), ({"a": 0}, False), ({"c": 4}, False), ({"b": 0, "c": 0}, True)],
)
def test_of_new_nodes_the_first_by_name_begins_a_set_unless_another_has_been_in_it(others, begins) -> None:
    nodes = [node(name, epoch) for name, epoch in others.items()]
    found = replace(WELL, has_data=False, epoch=0, view=view(None, None, *nodes))
    assert (found.due(NodeState.IDLE), found.trouble) == (NodeEvent.NO_SET if begins else None, "")


def test_a_node_that_has_been_in_a_set_waits_for_an_operator() -> None:
    found = replace(WELL, view=view(None))
    assert found.due(NodeState.IDLE) is None
    assert "metaq brokers elect --unclean" in found.trouble


def test_a_node_stands_when_all_that_it_knows_allows_it() -> None:
    assert {state for state in NodeState if WELL.due(state) is NodeEvent.CHANCE} == RESTING
    assert {WELL.due(state) for state in set(NodeState) - RESTING - LEADERS} == {None}


NOT_NOW: dict[str, tuple[dict[str, Any], NodeEvent | None]] = {
    "it is not on the list": ({"present": False}, NodeEvent.LEADER),
    "it is not in sync": ({"instance": "0"}, NodeEvent.LEADER),
    "the state is older than its data": ({"epoch": 6}, NodeEvent.LEADER),
    "the state is older than another's data": ({"view": view(BOTH, None, node("b"), node("c", 6))}, NodeEvent.LEADER),
    "ZooKeeper was set back": ({"view": view(BOTH, None, node("b"), set_back=True)}, NodeEvent.LEADER),
    "another leads": ({"view": view(BOTH, LEADS, node("b"))}, NodeEvent.LEADER),
    "it has promised": ({"promised": True}, NodeEvent.LEADER),
    "it has forgotten": ({"view": view(BOTH, None, node("a"), node("b", forgetful=True))}, NodeEvent.LEADER),
    "nobody leads, and it is not in sync": ({"instance": "0", "view": view(replace(BOTH, leader=""))}, None),
    "it stops": ({"stopping": True}, None),
}


@pytest.mark.parametrize(("instead", "due"), NOT_NOW.values(), ids=NOT_NOW)
def test_a_node_does_not_stand_if(instead: dict[str, Any], due: NodeEvent | None) -> None:
    assert replace(WELL, **instead).due(NodeState.IDLE) == due


def test_a_node_waits_for_nothing_but_its_promises() -> None:
    assert replace(WELL, promised=True).waits_for_promises
    assert not replace(WELL, promised=True, present=False).waits_for_promises
    assert not WELL.waits_for_promises


@pytest.mark.parametrize(
    ("state", "seen", "stands"), [(ALONE, 5, True), (ALONE, 4, False), (BOTH, 5, False)], ids=["alone", "older", "both"]
)
def test_a_node_alone_in_sync_has_granted_nothing_unless_it_has_forgotten_the_epoch(
    state: SetState, seen: int, stands: bool
) -> None:
    found = replace(WELL, promised=True, epoch=seen, view=view(state, None, node("b")))
    assert (found.due(NodeState.IDLE) is NodeEvent.CHANCE) == stands


def test_a_leader_whose_process_has_ended_is_not_waited_for() -> None:
    found = replace(WELL, gone=(5, "a"), view=view(BOTH, LEADS, node("b")))
    assert found.due(NodeState.FOLLOWING) is NodeEvent.CHANCE
    assert replace(found, gone=(4, "a")).due(NodeState.FOLLOWING) is NodeEvent.LEADER


MINE_NOW = replace(BOTH, leader="b")
DEPOSED: dict[str, SetView] = {
    "epoch 6 has begun": view(replace(BOTH, epoch=6), LEADS),
    "epoch 5 has begun": view(BOTH, MINE),
    "ZooKeeper was set back": view(None, MINE),
    "its ZooKeeper session has ended": view(MINE_NOW, None),
    "": view(MINE_NOW, MINE),
}


@pytest.mark.parametrize(("why", "seen"), DEPOSED.items(), ids=DEPOSED)
@pytest.mark.parametrize("stopping", [False, True])
@pytest.mark.parametrize("state", [NodeState.LEADING, NodeState.SERVING])
def test_a_leader_steps_down_if(why: str, seen: SetView, stopping: bool, state: NodeState) -> None:
    found = replace(WELL, led=5, view=seen, stopping=stopping)
    assert (found.deposed_by, found.due(state)) == (why, NodeEvent.DEPOSED if why else None)


@pytest.mark.parametrize(
    ("diverged", "state", "due"), [(True, ALONE, NodeEvent.TRUSTED), (True, BOTH, None), (False, ALONE, None)]
)
def test_an_operators_choice_brings_a_node_back_whose_data_differed(
    diverged: bool, state: SetState, due: NodeEvent | None
) -> None:
    found = replace(WELL, diverged=diverged, view=view(state, None, node("b")))
    assert found.due(NodeState.OUT) == due


# --- the member itself ------------------------------------------------------------------------------------------------


def member() -> Any:
    new: Any = SetMember.__new__
    made = new(SetMember)
    made.name = "b"
    made._state = NodeState.IDLE
    made._broker = SimpleNamespace(config=SimpleNamespace(broker_id=7))
    made._leader_url = lambda: "meta://a:1"
    return made


@pytest.mark.parametrize(("epoch", "leader"), [(6, "b"), (5, "a")])
def test_a_node_that_another_has_followed_writes_no_state(epoch: int, leader: str) -> None:
    """It led in epoch 5, and has just read what came of it."""
    one = member()
    one.leader = SimpleNamespace(core=SimpleNamespace(epoch=5))
    one._view = SimpleNamespace(version=9, state=SetState(epoch, leader, {"a": "1", "b": "2"}))
    one._admission = SimpleNamespace(instances={"a": "1", "b": "2"})
    one._set = SimpleNamespace(change=None)
    written: list[object] = []

    async def write(version: int, change: object) -> Any:
        written.append(change)
        return one._view

    one._write = write
    done = one._change_in_sync(frozenset({"b"}))
    assert (done.result, written) == (False, [])


def test_only_a_leader_whose_data_are_committed_serves_its_clients() -> None:
    one = member()
    refused = set()
    for state in NodeState:
        one._state = state
        if isinstance(one.refusal(), NotLeader):
            refused.add(state)
    assert refused == set(NodeState) - {NodeState.SERVING}
