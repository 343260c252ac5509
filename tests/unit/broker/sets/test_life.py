"""The table of a node's life: what leads where, and what no order of events may do."""

from __future__ import annotations

import re

import pytest

from metaq.broker.sets import life
from metaq.broker.sets.life import CANDIDATES, LEADERS, TABLE, NodeAction, NodeEvent, NodeState, next_state
from metaq.protocol.errors import LocalProtocolError


def test_every_state_event_and_action_is_used() -> None:
    reached = {state for state, _ in TABLE.values()}
    assert reached | {NodeState.IDLE} == set(NodeState)
    assert {event for _, event in TABLE} == set(NodeEvent)
    assert {action for _, actions in TABLE.values() for action in actions} == set(NodeAction)


@pytest.mark.parametrize("state", NodeState)
def test_a_stop_ends_every_state_and_nothing_follows_it(state: NodeState) -> None:
    assert next_state(state, NodeEvent.STOP)[0] is NodeState.STOPPED
    assert {found for (before, _), (found, _) in TABLE.items() if before is NodeState.STOPPED} == {NodeState.STOPPED}


def test_a_node_leads_only_by_an_election_that_it_has_won_and_recorded() -> None:
    ways = {(before, event) for (before, event), (after, _) in TABLE.items() if after in LEADERS}
    assert ways == {(NodeState.ELECTED, NodeEvent.RECORDED), (NodeState.LEADING, NodeEvent.COMMITTED)}
    assert {before for (before, _), (after, _) in TABLE.items() if after is NodeState.ELECTED} == {NodeState.STANDING}


def test_a_candidate_knows_the_outcome_when_it_grants_again() -> None:
    """Only from FOLLOWING, or from a state from which it follows again, are grants given."""
    left = {event for (before, event), (after, _) in TABLE.items() if before in CANDIDATES and after not in CANDIDATES}
    assert left == {
        NodeEvent.LOST,
        NodeEvent.UNFIT,
        NodeEvent.FAILED,
        NodeEvent.RECORDED,
        NodeEvent.DISTRUSTED,
        NodeEvent.STOP,
    }
    assert NodeState.FOLLOWING not in {after for (before, _), (after, _) in TABLE.items() if before in CANDIDATES}


def test_followers_that_wait_for_an_election_are_answered_at_its_end() -> None:
    for (before, event), (after, actions) in TABLE.items():
        if before in CANDIDATES and after not in {*CANDIDATES, NodeState.STOPPED}:
            assert NodeAction.LET_IN in actions, (before, event)
    for event in (NodeEvent.WON, NodeEvent.LOST, NodeEvent.UNFIT, NodeEvent.RECORDED, NodeEvent.FAILED):
        assert TABLE[NodeState.STOPPED, event] == (NodeState.STOPPED, (NodeAction.LET_IN,))


def test_whoever_stops_leading_turns_clients_away() -> None:
    for (before, event), (after, actions) in TABLE.items():
        if before in LEADERS and after not in LEADERS:
            assert actions[0] is NodeAction.STEP_DOWN, (before, event)


def test_an_event_that_cannot_happen_is_a_bug() -> None:
    with pytest.raises(LocalProtocolError, match="SERVING cannot take the event WON"):
        next_state(NodeState.SERVING, NodeEvent.WON)


def test_the_picture_names_every_event_of_a_failover() -> None:
    picture = (life.__doc__ or "").split("A node without")[0]
    assert set(re.findall(r"[A-Z]{3,}", picture)) >= {state.name for state in NodeState} - {
        "CREATING",
        "OUT",
        "STOPPED",
    }
