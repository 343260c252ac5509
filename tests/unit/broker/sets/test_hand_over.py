"""The order in which a leader hands over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from metaq.broker.sets.leader import FollowerStatus
from metaq.broker.sets.node import SetMember
from metaq.protocol.errors import CoordinationError


class Doubles:
    """A member whose leadership, disk and clock are the test's; done: what it has done, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.written: Deferred[None] = Deferred()
        new: Any = SetMember.__new__
        self.member: Any = new(SetMember)
        self.leader: Any = SimpleNamespace(
            draining=False,
            status=lambda: [FollowerStatus("b", True, True, True, 0, 0.0, "")],
            drain_to=self._drain,
            hand_over_to=self._hand_over_to,
        )
        self.member.leader = self.leader
        self.member._hand_overs = 0
        transactions = SimpleNamespace(is_waited_for=False, has_active=False, ending=None)
        self.member._broker = SimpleNamespace(transactions=transactions, config=SimpleNamespace(broker_id=0))
        self.member._reactor = SimpleNamespace(seconds=lambda: 0.0, callLater=self._later)
        self.member._transactions = SimpleNamespace(write_back=self._write_back)

    def _later(self, *_: object) -> Any:
        return SimpleNamespace(active=lambda: False)

    async def _write_back(self) -> None:
        self.done.append("writes back")
        await self.written

    def _drain(self, name: str) -> Deferred[bool]:
        self.leader.draining = True
        self.done.append("drains")
        return succeed(True)

    def _hand_over_to(self, name: str, *, leaving: bool) -> None:
        self.done.append(f"tells {name}")
        self.member.leader = None


def test_a_leader_that_goes_on_writes_its_page_cache_back_while_it_still_takes_messages() -> None:
    doubles = Doubles()
    handed = ensureDeferred(doubles.member.hand_over("b"))
    assert (doubles.done, doubles.leader.draining) == (["writes back"], False)
    doubles.written.callback(None)
    assert doubles.done == ["writes back", "drains", "drains", "tells b"]
    assert handed.result == "b"


def test_of_two_hand_overs_at_once_one_is_refused() -> None:
    doubles = Doubles()
    first, second = (ensureDeferred(doubles.member.hand_over("b")) for _ in range(2))
    doubles.written.callback(None)
    assert first.result == "b"
    refused: list[Failure] = []
    second.addErrback(refused.append)
    with pytest.raises(CoordinationError, match="faster"):
        refused[0].raiseException()
    assert doubles.done.count("tells b") == 1


def test_a_hand_over_waits_for_a_node_that_is_about_to_be_in_sync() -> None:
    doubles, clock = Doubles(), Clock()
    doubles.member._reactor = clock
    doubles.written.callback(None)
    doubles.leader.status = lambda: [FollowerStatus("b", False, True, False, None, None, "")]
    handed = ensureDeferred(doubles.member.hand_over(None))
    clock.pump([0.5, 0.5])
    assert not handed.called
    doubles.leader.status = lambda: [FollowerStatus("b", True, True, True, 0, 0.0, "")]
    clock.pump([0.5, 0.5])
    assert handed.result == "b"


@pytest.mark.parametrize(
    ("connected", "after", "told"), [(True, 4, "in sync: b lacks data still"), (False, 0, "in sync$")]
)
def test_a_hand_over_to_nobody_says_who_lacks_data(connected: bool, after: int, told: str) -> None:
    doubles, clock = Doubles(), Clock()
    doubles.member._reactor = clock
    doubles.leader.status = lambda: [FollowerStatus("b", False, connected, False, None, None, "")]
    refused: list[Failure] = []
    ensureDeferred(doubles.member.hand_over(None)).addErrback(refused.append)
    clock.pump([0.5] * 2 * after)
    with pytest.raises(CoordinationError, match=f"no other node is {told}"):
        refused[0].raiseException()
    assert doubles.done == []


def test_a_leader_that_stops_does_not_wait_for_its_disk() -> None:
    doubles = Doubles()
    ensureDeferred(doubles.member._hand_over(None, leaving=True))
    assert doubles.done == ["drains", "drains", "tells b"]
