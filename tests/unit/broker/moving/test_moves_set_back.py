"""What a broker does about its moves when ZooKeeper has lost them, or has an older state of them."""

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred, succeed

from metaq.broker.moving.moves import BrokerMoves
from metaq.coordination.moves.move_nodes import FoundMove
from metaq.coordination.records.move_payloads import Move, MoveState
from tests.unit.broker.harness import Harness


class MemoryMoves:
    """The moves that ZooKeeper has, by name; its transactions have numbers from `zxid` on."""

    def __init__(self) -> None:
        self.found: dict[str, FoundMove] = {}
        self.zxid = 0

    def put(self, move: Move, instead_of: FoundMove | None = None) -> bool:
        if self.found.get(move.name) != instead_of:
            return False
        self.zxid += 1
        self.found[move.name] = FoundMove(move, 0, self.zxid)
        return True

    begin = put

    def change(self, found: FoundMove, move: Move) -> bool:
        return self.put(move, found)

    def read_all(self) -> list[FoundMove]:
        return list(self.found.values())


class Scene:
    def __init__(self, harness: Harness) -> None:
        session: Any = SimpleNamespace(nodes=None, paths=None, set_backs=0)
        registration: Any = None
        broker: Any = BrokerMoves(harness.broker, session, registration)
        self.session, self.broker, self.zookeeper = session, broker, MemoryMoves()
        self.zookeeper.zxid = 500
        broker.moves, broker.in_thread = self.zookeeper, lambda function: succeed(function())

    def know(self, *moves: Move) -> None:
        for move in moves:
            self.zookeeper.put(move)
        self.done(self.broker.look_at_all())

    def lose(self, *older: Move) -> None:
        """ZooKeeper has only these."""
        self.zookeeper.found.clear()
        self.zookeeper.zxid = 3
        for move in older:
            self.zookeeper.put(move)

    def done(self, work: Any) -> None:
        ensureDeferred(work).addErrback(lambda failure: pytest.fail(str(failure)))

    def states(self) -> dict[str, str]:
        return {name: each.move.state.value for name, each in self.zookeeper.found.items()}


@pytest.fixture
def scene(harness: Harness) -> Scene:
    """Of broker 0."""
    return Scene(harness)


def move(state: MoveState, source: int, first: int, target: int) -> Move:
    return Move("t", source, first, 1, target, rate=1, state=state, target_first=3, ends=(7,))


def test_what_an_empty_zookeeper_lacks_is_written_by_the_target_and_what_is_done_by_the_source_too(scene) -> None:
    scene.know(
        move(MoveState.DONE, 0, 1, 1),
        move(MoveState.COPYING, 0, 2, 1),  # its target knows more
        move(MoveState.PUBLISHING, 2, 3, 0),
        move(MoveState.DONE, 4, 5, 6),
    )
    scene.lose()
    scene.session.set_backs = 1
    scene.done(scene.broker.write_again())
    assert scene.states() == {"0-1": "done", "2-3": "publishing"}
    assert {key[1] for key in scene.broker._found} == {"0-1", "2-3"}
    assert {each.zxid for each in scene.broker._found.values()} == {4, 5}


def test_an_older_state_is_replaced_by_the_target_and_believed_by_others(scene: Scene) -> None:
    scene.know(move(MoveState.HANDING_OVER, 1, 1, 0), move(MoveState.CLOSING, 0, 2, 1))
    scene.lose(move(MoveState.CLOSING, 1, 1, 0), move(MoveState.COPYING, 0, 2, 1))
    scene.done(scene.broker.write_again())
    assert scene.states() == {"1-1": "handing-over", "0-2": "copying"}
    assert scene.broker._found == {("t", name): each for name, each in scene.zookeeper.found.items()}


def test_a_move_that_somebody_has_deleted_stays_deleted(scene: Scene) -> None:
    scene.know(move(MoveState.DONE, 0, 1, 1), move(MoveState.DONE, 0, 2, 1))
    del scene.zookeeper.found["0-1"]
    scene.done(scene.broker.write_again())
    assert scene.states() == {"0-2": "done"}
