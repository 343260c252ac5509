"""What a broker shows and refuses by the moves that it has a part in."""

import pytest

from metaq.broker.partitions.move_table import Counts, MoveTable
from metaq.coordination.records.move_payloads import Move, MoveState

STATES = list(MoveState)


def at(state, **fields):
    ends = (10, 20) if state in (MoveState.PUBLISHING, MoveState.HANDING_OVER, MoveState.DONE) else ()
    return Move("t", 0, 2, 2, target=1, rate=1, state=state, target_first=3, ends=ends, **fields)


@pytest.mark.parametrize(
    ("state", "source", "target"),
    [
        (MoveState.ASKED, (4, 4), (3, 3)),
        (MoveState.COPYING, (4, 4), (3, 3)),
        (MoveState.CLOSING, (4, 4), (3, 3)),
        (MoveState.PUBLISHING, (2, 4), (5, 3)),
        (MoveState.HANDING_OVER, (2, 2), (5, 3)),
        (MoveState.DONE, (2, 2), (5, 5)),
        (MoveState.CANCELLED, (4, 4), (3, 3)),
    ],
)
def test_producers_go_over_before_consumers(state, source, target):
    assert MoveTable(0, [at(state)]).counts("t", 4) == Counts(*source)
    assert MoveTable(1, [at(state)]).counts("t", 5) == Counts(*target)  # its directories hold the copies


@pytest.mark.parametrize("state", STATES)
def test_the_source_refuses_from_the_closing_on_and_the_target_until_it_has_everything(state):
    later = state in STATES[STATES.index(MoveState.CLOSING) : -1]
    source, target = MoveTable(0, [at(state)]), MoveTable(1, [at(state)])
    assert [source.has_left("t", each) for each in range(1, 5)] == [False, later, later, False]
    assert source.open_count("t", 4) == (2 if later else 4)
    arrived = state in STATES[STATES.index(MoveState.PUBLISHING) : -1]
    assert [target.is_incoming("t", each) for each in range(2, 6)] == [False, not arrived, not arrived, False]
    assert list(target.arrived()) == ([("t", 3, 10), ("t", 4, 20)] if arrived else [])


def test_the_source_gets_no_partition_behind_those_that_are_to_leave():
    assert MoveTable(0, [at(MoveState.COPYING)]).counts("t", 9) == Counts(4, 4)


def test_partitions_without_data_count_at_both_ends():
    assert MoveTable(0, [at(MoveState.CLOSING)]).counts("t", 1) == Counts(4, 4)
    assert MoveTable(1, [at(MoveState.DONE)]).counts("t", 1) == Counts(5, 5)


def test_what_has_come_may_leave_again():
    onwards = Move("t", 1, 3, 2, target=2, rate=1, state=MoveState.DONE, target_first=0, ends=(10, 20))
    assert MoveTable(1, [at(MoveState.DONE), onwards]).counts("t", 5) == Counts(3, 3)
    assert MoveTable(2, [at(MoveState.DONE), onwards]).counts("t", 1) == Counts(2, 2)


def test_other_brokers_and_topics_are_not_concerned():
    assert not MoveTable(2, [at(MoveState.CLOSING)]).concerns("t")
    assert not MoveTable(0, [at(MoveState.CLOSING)]).concerns("u")
    assert not MoveTable(0, [at(MoveState.CLOSING)]).has_left("u", 2)
