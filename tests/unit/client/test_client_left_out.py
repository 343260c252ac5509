"""Partitions that groups' offsets or moves name while no live broker offers them; what ZooKeeper has is set by hand."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from metaq.client.questions.left_out import LeftOut, left_out, without
from metaq.client.records.results import TopicPartition
from metaq.coordination.records.move_payloads import Move, MoveState

ZERO, ONE = TopicPartition("t", 0, 0), TopicPartition("t", 1, 0)
MOVE = Move("t", 0, 0, 1, 1, 1, MoveState.DONE, 0, (60,))
AWAY = "broker 1 is not registered in ZooKeeper: start it"


class View:
    """What groups have written: their names by partition."""

    def __init__(self, **groups: list[str]) -> None:
        self.groups = groups

    def partitions_of_groups(self, wanted: Callable[[str], bool]) -> dict[tuple[str, str], list[str]]:
        named = {("t", name.strip("p").replace("_", "-")): groups for name, groups in self.groups.items()}
        return {place: groups for place, groups in named.items() if wanted(place[0])}


def found(view: View, offered: set[TopicPartition], *moves: Move, live: tuple[int, ...] = (0,)) -> list[LeftOut]:
    anything: Any = view
    return left_out(anything, moves, live, lambda topic: topic == "t", offered)


def test_a_partition_that_a_group_knows_is_left_out_while_its_broker_is_away() -> None:
    assert found(View(p0_0=["g"], p1_0=["g", "h"]), {ZERO}) == [LeftOut(ONE, "offsets of groups g, h", AWAY)]
    assert found(View(p0_0=["g"], p1_0=["g"]), {ZERO, ONE}) == []


def test_one_that_a_live_broker_does_not_offer_may_not_exist_and_what_is_no_partition_is_passed_over() -> None:
    (only,) = found(View(p0_5=["g"], words=["g"]), {ZERO})
    assert (only.partition, only.exists) == (TopicPartition("t", 0, 5), False)


def test_an_offset_of_a_partition_that_has_moved_names_where_it_is_now() -> None:
    assert found(View(p0_0=["g"]), {ONE}, MOVE, live=(0, 1)) == []
    assert found(View(p0_0=["g"]), set(), MOVE) == [LeftOut(ONE, "its move", AWAY)]


def test_a_move_names_its_partition_without_any_group() -> None:
    assert found(View(), set(), MOVE) == [LeftOut(ONE, "its move", AWAY)]
    assert found(View(), set(), replace(MOVE, topic="other")) == []


@pytest.mark.parametrize("state", [state for state in MoveState if state is not MoveState.DONE])
def test_a_partition_under_way_is_at_the_source_or_the_target(state: MoveState) -> None:
    move = replace(MOVE, state=state)
    assert found(View(p0_0=["g"]), {ZERO}, move, live=(0, 1)) == []
    (away,) = {each.partition for each in found(View(), set(), move, live=(1,))}
    assert away == ZERO


def test_a_partition_that_is_handed_over_at_this_moment_exists() -> None:
    (only,) = found(View(p0_0=["g"]), set(), replace(MOVE, state=MoveState.HANDING_OVER), live=(0, 1))
    assert only == LeftOut(ZERO, "its move", "goes to broker 1 just now, see `metaq partitions moves`")
    assert found(View(p0_0=["g"]), {ONE}, replace(MOVE, state=MoveState.HANDING_OVER), live=(0, 1)) == []


def test_a_sentence_names_partitions_together_that_have_one_reason() -> None:
    more = [LeftOut(TopicPartition("t", 1, number), "offsets of group g", AWAY) for number in range(22)]
    said = without([*more, LeftOut(ZERO, "its move", "goes")])
    assert said.startswith("t 1-0, t 1-1, ")
    assert said.endswith(
        f"t 1-19 and 2 more ({AWAY}; known from offsets of group g); t 0-0 (goes; known from its move)"
    )
