"""What happened in a run, as values: the input of the checkers (checkers.py).

Times are seconds of the machine's monotonic clock, which all processes of a run share. A partition is named
`<topic> <broker>-<partition>`. Messages know their producer, their key and its number for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = [
    "TAGS",
    "Ack",
    "Call",
    "Commit",
    "Delivery",
    "Done",
    "History",
    "Name",
    "Owner",
    "Place",
    "Send",
    "Stored",
    "narrowed",
    "required",
]

TAGS = ("even", "odd")
"""Of messages, by their number."""

GRACE_SECONDS = 0.5
"""How long a running process may take from its decision to hand a message out to the moment that it writes down."""


class Name(NamedTuple):
    """A message: who sent it, with which key, and its number among all of that producer."""

    producer: str
    key: str
    number: int

    def __str__(self) -> str:
        return f"{self.producer}/{self.key}/{self.number}"

    @property
    def tag(self) -> str:
        """What members may filter by."""
        return TAGS[self.number % len(TAGS)]

    @classmethod
    def parse(cls, text: str) -> Name:
        """The inverse of str(). Raises ValueError."""
        producer, key, number = text.split("/")
        return cls(producer, key, int(number))


class Stored(NamedTuple):
    """A record as it lies in a partition at the end of the run. end: where the next one begins."""

    partition: str
    offset: int
    end: int
    id: int
    name: Name


class Ack(NamedTuple):
    """A send that was acknowledged, and where the broker says the message is."""

    name: Name
    partition: str
    offset: int
    id: int


class Send(NamedTuple):
    """A send that has ended. begun, time: when it was called, and when it ended. ack: None if it failed; error: why."""

    begun: float
    time: float
    name: Name
    ack: Ack | None
    error: str = ""


class Place(NamedTuple):
    """A message in the hands of an application."""

    offset: int
    id: int
    name: Name


class Delivery(NamedTuple):
    """A message that a member was handed, once for each time."""

    time: float
    member: str
    partition: str
    place: Place


@dataclass(slots=True)
class Call:
    """Messages of one partition that one call handed out.

    began: when the member may have decided it, at the earliest; time: when they were there. done: when the handler
    returned, if it is one.
    """

    began: float
    time: float
    places: Sequence[Place]
    done: float | None = None


@dataclass(slots=True)
class Owner:
    """One ownership of a partition as its member knew it: from on_assigned to on_revoked.

    member: one life of one consumer. announced: False if messages came although nobody said on_assigned. tags: those
    that the member takes, () for all. position: where it was to begin, as on_assigned found it; None if that is not
    known. begins_late: the group begins at "latest".
    """

    group: str
    member: str
    partition: str
    begin: float
    end: float = math.inf
    calls: list[Call] = field(default_factory=list)
    announced: bool = True
    calls_handlers: bool = False
    """It is a member in run(), whose handlers take time."""
    tags: tuple[str, ...] = ()
    position: int | None = None
    begins_late: bool = False
    proves: bool = True
    """False: what it was handed counts as handed, and shows nothing about the order of its partition."""

    def takes(self, name: Name) -> bool:
        return not self.tags or name.tag in self.tags


class Commit(NamedTuple):
    """A committed offset. zxid: of the write, in which ZooKeeper orders them; seen: when a look found it. era: how
    often ZooKeeper had come back with less than it had, after which the numbers may begin again."""

    group: str
    partition: str
    offset: int
    zxid: int
    seen: float
    era: int = 0

    @property
    def order(self) -> tuple[int, int]:
        return self.era, self.zxid


class Done(NamedTuple):
    """What was done to the run. victim: a member, a broker, or a server; end: when it was put right again."""

    begin: float
    end: float
    kind: str
    victim: str


@dataclass(slots=True)
class History:
    """Everything that the checkers read.

    stored: by partition, in the order of offsets. settled: all groups stood still at the end, had nothing left to do,
    and all their members left properly. session_seconds: of the members.
    """

    stored: dict[str, list[Stored]] = field(default_factory=dict)
    acks: list[Ack] = field(default_factory=list)
    owners: list[Owner] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    faults: list[Done] = field(default_factory=list)
    groups: Sequence[str] = ()
    settled: bool = True
    session_seconds: float = 6.0
    failed_sends: int = 0
    has_java_brokers: bool = False
    """Their ids do not tell when a message was stored."""


def required(owners: Iterable[Owner], records: Sequence[Stored]) -> list[Stored]:
    """What a group must be handed of a partition. owners: all that the group had there.

    What one of them leaves out may reach nobody. A group with start="latest" may miss what lies in front of its
    beginning: where its first owner was to begin, before which nobody can have consumed anything.
    """
    owners = sorted(owners, key=lambda each: each.begin)
    begin = 0
    if owners and all(each.begins_late for each in owners):
        begin = next((each.position for each in owners if each.position is not None), 0)
    return [each for each in records if each.offset >= begin and all(owner.takes(each.name) for owner in owners)]


def narrowed(began: float, time: float, frozen: Iterable[tuple[float, float]]) -> float:
    """When a member may have decided, at the earliest, to hand out what it did at `time`, in a call from `began` on.

    frozen: spans in which its process stood still.
    """
    earliest = max(began, time - GRACE_SECONDS)
    for begin, end in sorted(frozen, reverse=True):
        if begin <= time and end >= earliest:
            earliest = min(earliest, max(began, begin - GRACE_SECONDS))
    return earliest
