"""Format and parse the payload of a znode that describes a move of partitions from one broker to another. The functions
are pure.

The functions use helper functions from payloads.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from metaq.protocol.limits import INT64_MAX
from metaq.protocol.topic_partition import TopicPartition

from .payloads import MAX_PARTITIONS, damaged, payload_text

__all__ = ["Move", "MoveState", "format_move", "moved_places", "parse_move", "place_now", "places_of"]

_COUNT = re.compile(r"[0-9]{1,9}\Z")
_PLACE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})\Z")


class MoveState(Enum):
    """The states of a move, in the order of a normal move. CANCELLED may follow only ASKED, COPYING or CLOSING."""

    ASKED = "asked"
    """The move was requested, but the target broker has not read it yet."""
    COPYING = "copying"
    """The target broker copies the partitions' data from the source broker, which still accepts messages."""
    CLOSING = "closing"
    """The source broker accepts no more messages for the partitions, and the target broker copies the remaining
    data.
    """
    PUBLISHING = "publishing"
    """The target broker has all data and registers its new partitions, so producers begin to send to the target
    broker.
    """
    HANDING_OVER = "handing-over"
    """Consumers stop reading from the source broker. The groups' offsets are handed over to the partitions at the
    target broker.
    """
    DONE = "done"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Move:
    """A move of partitions of a topic from one broker (the source) to another broker (the target). The messages keep
    their offsets.

    The source's partitions `first` … `first + count - 1` become partitions of the target from the number `target_first`
    on; `target_first` is -1 until the target has chosen it. rate: copying speed in bytes per second, from 1 to
    INT64_MAX. ends: the byte offset at the end of each of the source's partitions, in the order of the partitions;
    empty before the state PUBLISHING. note: the reason why the move was cancelled.
    """

    topic: str
    source: int
    first: int
    count: int
    target: int
    rate: int
    state: MoveState = MoveState.ASKED
    target_first: int = -1
    ends: tuple[int, ...] = ()
    note: str = ""

    @property
    def active(self) -> bool:
        """Whether the move is neither done nor cancelled."""
        return self.state not in (MoveState.DONE, MoveState.CANCELLED)

    @property
    def name(self) -> str:
        """The name of the move's znode, which is the name `<broker>-<partition>` of the first moved partition at the
        source.
        """
        return f"{self.source}-{self.first}"

    def of_target(self, partition: int) -> int:
        """Return the number that a moved partition gets at the target. partition: its number at the source."""
        return partition - self.first + self.target_first

    def __str__(self) -> str:
        where = f"broker {self.target}" if self.target_first < 0 else f"{self.target}-{self.target_first}"
        last = f" … {self.source}-{self.first + self.count - 1}" if self.count > 1 else ""
        return f"{self.topic} {self.name}{last} to {where}"


def places_of(move: Move) -> dict[TopicPartition, TopicPartition]:
    """Return a mapping with one entry for each partition of the move. The key is the partition at the source; the value
    is the partition of the target that holds the same messages. The result is meaningless until the target has chosen
    `target_first`.
    """
    return {
        TopicPartition(move.topic, move.source, number): TopicPartition(move.topic, move.target, move.of_target(number))
        for number in range(move.first, move.first + move.count)
    }


def moved_places(moves: Iterable[Move]) -> dict[TopicPartition, TopicPartition]:
    """Return a mapping with one entry for each partition that a completed move has moved. The key is the partition at
    the source; the value is the partition of the target that holds the same messages.
    """
    done = [places_of(move) for move in moves if move.state is MoveState.DONE]
    return {source: target for places in done for source, target in places.items()}


def place_now(partition: TopicPartition, moved: Mapping[TopicPartition, TopicPartition]) -> TopicPartition:
    """Return the partition that contains the messages of `partition` now. moved: the result of `moved_places`. If the
    messages were moved several times, the result is the partition after the last of these moves.
    """
    now, passed = partition, {partition}
    while (after := moved.get(now)) is not None and after not in passed:
        passed.add(after)
        now = after
    return now


def format_move(move: Move) -> bytes:
    """Return the move as a JSON object. The object omits the topic, the source and the first moved partition, because
    the path of the move's znode contains them.
    """
    to = str(move.target) if move.target_first < 0 else f"{move.target}-{move.target_first}"
    fields: dict[str, object] = {"state": move.state.value, "count": move.count, "to": to, "rate": move.rate}
    if move.ends:
        fields["ends"] = move.ends
    if move.note:
        fields["note"] = move.note
    return json.dumps(fields, separators=(",", ":")).encode()


def parse_move(path: str, topic: str, name: str, data: bytes | None) -> Move | None:
    """Parse the payload of the move's znode `name` below the topic `topic`. Return the move, or None if the payload is
    empty. Unknown fields are ignored.
    """
    text = payload_text(path, data)
    if text is None:
        return None
    place = _PLACE.match(name)
    try:
        fields = json.loads(text)
        state, count, to, rate = (fields[key] for key in ("state", "count", "to", "rate"))
        ends, note = fields.get("ends", []), fields.get("note", "")
        target = _PLACE.match(to) or _COUNT.match(to)
        sound = type(count) is int and 0 < count <= MAX_PARTITIONS and type(rate) is int and 0 < rate <= INT64_MAX
        if place and target and sound and type(note) is str and all(type(end) is int and end >= 0 for end in ends):
            broker, _, first = to.partition("-")
            return Move(
                *(topic, int(place[1]), int(place[2]), count, int(broker), rate, MoveState(state)),
                target_first=int(first) if first else -1,
                ends=tuple(ends),
                note=note,
            )
    except (ValueError, KeyError, TypeError):
        pass  # reported below, with the node
    raise damaged(path, data, '{"state":<state>,"count":<number>,"to":"<broker>-<partition>","rate":<bytes>}')
