"""The table of a node's life: what leads where, and what no order of events may do."""

from __future__ import annotations

import re

import pytest

from metaq.broker.sets import life
from metaq.broker.sets.life import CANDIDATES, LEADERS, TABLE, Action, Event, State, next_state
from metaq.protocol.errors import LocalProtocolError


def test_every_state_event_and_action_is_used() -> None:
    reached = {state for state, _ in TABLE.values()}
    assert reached | {State.IDLE} == set(State)
    assert {event for _, event in TABLE} == set(Event)
    assert {action for _, actions in TABLE.values() for action in actions} == set(Action)


@pytest.mark.parametrize("state", State)
def test_a_stop_ends_every_state_and_nothing_follows_it(state: State) -> None:
    assert next_state(state, Event.STOP)[0] is State.STOPPED
    assert {found for (before, _), (found, _) in TABLE.items() if before is State.STOPPED} == {State.STOPPED}


def test_a_node_leads_only_by_an_election_that_it_has_won_and_recorded() -> None:
    ways = {(before, event) for (before, event), (after, _) in TABLE.items() if after in LEADERS}
    assert ways == {(State.ELECTED, Event.RECORDED), (State.LEADING, Event.COMMITTED)}
    assert {before for (before, _), (after, _) in TABLE.items() if after is State.ELECTED} == {State.STANDING}


def test_a_candidate_knows_the_outcome_when_it_grants_again() -> None:
    """Only from FOLLOWING, or from a state from which it follows again, are grants given."""
    left = {event for (before, event), (after, _) in TABLE.items() if before in CANDIDATES and after not in CANDIDATES}
    assert left == {Event.LOST, Event.UNFIT, Event.FAILED, Event.RECORDED, Event.DISTRUSTED, Event.STOP}
    assert State.FOLLOWING not in {after for (before, _), (after, _) in TABLE.items() if before in CANDIDATES}


def test_followers_that_wait_for_an_election_are_answered_at_its_end() -> None:
    for (before, event), (after, actions) in TABLE.items():
        if before in CANDIDATES and after not in {*CANDIDATES, State.STOPPED}:
            assert Action.LET_IN in actions, (before, event)
    assert all(
        actions == (Action.LET_IN,)
        for (before, event), (_, actions) in TABLE.items()
        if (before, event)
        in {(State.STOPPED, event) for event in (Event.WON, Event.LOST, Event.UNFIT, Event.RECORDED, Event.FAILED)}
    )


def test_whoever_stops_leading_turns_clients_away() -> None:
    for (before, event), (after, actions) in TABLE.items():
        if before in LEADERS and after not in LEADERS:
            assert actions[0] is Action.STEP_DOWN, (before, event)


def test_an_event_that_cannot_happen_is_a_bug() -> None:
    with pytest.raises(LocalProtocolError, match="SERVING cannot take the event WON"):
        next_state(State.SERVING, Event.WON)


def test_the_picture_names_every_event_of_a_failover() -> None:
    picture = (life.__doc__ or "").split("A node without")[0]
    assert set(re.findall(r"[A-Z]{3,}", picture)) >= {state.name for state in State} - {"CREATING", "OUT", "STOPPED"}
