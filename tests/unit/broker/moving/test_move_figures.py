"""What `/metrics` shows of moves: by the target that drives them, and by the source that refuses messages."""

from types import SimpleNamespace
from typing import Any

import pytest

from metaq.broker.http.metrics import exposition
from metaq.broker.http.sheets import encoded
from metaq.broker.moving.move_driver import MoveDriver
from metaq.broker.moving.moves import BrokerMoves
from metaq.coordination.moves.move_nodes import FoundMove
from metaq.coordination.records.move_payloads import Move, MoveState
from tests.unit.broker.harness import NOW, Harness
from tests.unit.broker.http.promlint import complaints

LABELS = '{from="%s",to="%d",topic="t"}'


@pytest.fixture
def moves(harness: Harness) -> BrokerMoves:
    session: Any = SimpleNamespace(nodes=None, paths=None)
    registration: Any = None
    found = harness.broker.moves = BrokerMoves(harness.broker, session, registration)
    found._driving = True
    return found


def shown(harness: Harness) -> dict[str, float]:
    text = encoded(exposition(harness.broker)).decode()
    assert list(complaints(text)) == []
    lines = [line for line in text.splitlines() if line.startswith("metaq_move_")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def at(state: MoveState, source: int, target: int) -> FoundMove:
    move = Move("t", source, 2, 1, target, rate=1, state=state, target_first=3)
    return FoundMove(move, 0, 1, changed_ms=int((NOW - 30) * 1000))


def test_the_target_shows_how_far_it_is(harness: Harness, moves: BrokerMoves) -> None:
    found = at(MoveState.COPYING, 1, 0)
    moves.learn(found)
    assert shown(harness) == {}  # nobody drives it here yet
    driver = moves._drivers["t", "1-2"] = MoveDriver(moves, found)
    copy: Any = SimpleNamespace(left=500, copied=70, progressed_at=harness.reactor.seconds() + 4)
    labels, state = LABELS % ("1-2", 0), '{from="1-2",state="copying",to="0",topic="t"}'
    harness.reactor.advance(10)
    assert shown(harness) == {
        f"metaq_move_state_seconds{state}": 30.0,
        f"metaq_move_idle_seconds{labels}": 10.0,
        f"metaq_move_copied_bytes_total{labels}": 0.0,
    }
    driver._copy = copy
    assert shown(harness) == {
        f"metaq_move_state_seconds{state}": 30.0,
        f"metaq_move_idle_seconds{labels}": 6.0,
        f"metaq_move_left_bytes{labels}": 500.0,
        f"metaq_move_copied_bytes_total{labels}": 70.0,
    }
    driver.take(found._replace(zxid=2))
    assert shown(harness)[f"metaq_move_idle_seconds{labels}"] == 0.0
    driver.active = False
    assert shown(harness) == {}


@pytest.mark.parametrize("state", list(MoveState))
def test_the_source_shows_for_how_long_it_has_refused_messages(harness, moves, state) -> None:
    moves.learn(at(state, 0, 1))
    wanted = {'metaq_move_state_seconds{from="0-2",state="closing",to="1",topic="t"}': 30.0}
    assert shown(harness) == (wanted if state is MoveState.CLOSING else {})
    moves._driving = False  # another node leads
    assert shown(harness) == {}
