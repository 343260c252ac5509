"""Find partitions that exist according to ZooKeeper, but that no live broker offers, so that a reader of a whole topic
would silently leave them out.

The list of a topic's partitions in ZooKeeper shows only those of live brokers. The partitions of a broker that is down
can be found only in the znodes of groups (with their offsets) and of moves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.coordination.records.move_payloads import Move, MoveState, moved_places, place_now, places_of
from metaq.protocol.errors import InvalidName

from ..records.results import TopicPartition

__all__ = ["LeftOut", "left_out", "why_away", "without"]

_NAMED = 20
"""A text for users names at most this number of partitions of a broker, and at most this number of groups. If there are
more, the text says only how many more there are.
"""


class LeftOut(NamedTuple):
    """A partition that a znode mentions, but that no live broker offers.

    known_from: the kind of znode that mentions the partition. why: the reason why the partition is not offered, as a
    text for users. exists: false if the partition's broker is registered, but does not offer the partition, although no
    move is just handing the partition over. In this case the partition perhaps does not exist any more, and only an old
    offset of a group mentions it.
    """

    partition: TopicPartition
    known_from: str
    why: str
    exists: bool = True


def left_out(
    view: ClusterView,
    moves: Sequence[Move],
    registered: Collection[int],
    wanted: Callable[[str], bool],
    offered: Collection[TopicPartition],
) -> list[LeftOut]:
    """Return the partitions of the wanted topics that a znode mentions, but that are not in `offered`. The result is
    sorted. This function reads the znodes of all groups. wanted: returns whether a topic is wanted.

    registered: ids of the brokers that were live before `offered` was read. A broker that registers after `registered`
    was read therefore counts as absent.
    """
    named: dict[TopicPartition, str] = {}
    for (topic, name), groups in sorted(view.partitions_of_groups(wanted).items()):
        with suppress(InvalidName):  # a znode that metaq did not make
            named[TopicPartition.parse(topic, name)] = f"offsets of {_groups(groups)}"
    under_way: dict[TopicPartition, Move] = {}
    for move in moves:
        if wanted(move.topic):
            named |= dict.fromkeys(places_of(move), "its move")
            under_way |= dict.fromkeys(places_of(move) if move.active else (), move)
    done, there = moved_places(moves), set(offered)
    found: dict[TopicPartition, LeftOut] = {}
    for each, known_from in named.items():
        now = place_now(each, done)
        going = under_way.get(now)
        places = {each, now} if going is None else {each, now, places_of(going)[now]}
        if there.isdisjoint(places):
            found[now] = LeftOut(now, known_from, *why_away(now, going, registered))
    return sorted(found.values())


def why_away(partition: TopicPartition, move: Move | None, registered: Collection[int]) -> tuple[str, bool]:
    """Return the fields `why` and `exists` of a LeftOut. move: the move of the partition that is in progress, or None.
    registered: as in `left_out`.
    """
    broker = partition.broker
    if broker not in registered:
        return f"broker {broker} is not registered in ZooKeeper: start it", True
    if move is not None and move.state is MoveState.HANDING_OVER:
        return f"goes to broker {move.target} just now, see `metaq partitions moves`", True
    return f"broker {broker} is registered and does not offer it", False


def without(found: Iterable[LeftOut]) -> str:
    """Return a text for users which names the partitions in `found` and says why they are left out."""
    together: dict[tuple[str, str], list[str]] = {}
    for each in found:
        named = f"{each.partition.topic} {each.partition}"
        together.setdefault((each.why, each.known_from), []).append(named)
    return "; ".join(f"{_listed(names)} ({why}; known from {source})" for (why, source), names in together.items())


def _groups(names: Sequence[str]) -> str:
    return f"group{'s' if len(names) > 1 else ''} {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
