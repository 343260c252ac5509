"""The events of a run, as values: the input of the checkers (checkers.py).

Times are seconds of the machine's monotonic clock, which all processes of a run share. A partition is named `<topic>
<broker>-<partition>`. A message contains its producer, its key and its number among the producer's messages.
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
"""The tags of messages, by their number."""

GRACE_SECONDS = 0.5
"""Seconds that a running process may take from its decision to deliver a message to the time that it records."""


class Name(NamedTuple):
    """A message's name: its producer, its key, and its number among all messages of that producer."""

    producer: str
    key: str
    number: int

    def __str__(self) -> str:
        return f"{self.producer}/{self.key}/{self.number}"

    @property
    def tag(self) -> str:
        """The message's tag, by which members may filter."""
        return TAGS[self.number % len(TAGS)]

    @classmethod
    def parse(cls, text: str) -> Name:
        """Return the name of a text: the inverse of str(). Raises ValueError."""
        producer, key, number = text.split("/")
        return cls(producer, key, int(number))


class Stored(NamedTuple):
    """A record that is in a partition at the end of the run. end: where the next one begins."""

    partition: str
    offset: int
    end: int
    id: int
    name: Name


class Ack(NamedTuple):
    """A send that was acknowledged, and the place of the message according to the broker."""

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
    """A message that an application got."""

    offset: int
    id: int
    name: Name


class Delivery(NamedTuple):
    """One delivery of a message to a member."""

    time: float
    member: str
    partition: str
    place: Place


@dataclass(slots=True)
class Call:
    """Messages of one partition that one call delivered.

    began: the earliest time at which the member may have decided this; time: when they were delivered. done: when the
    handler returned, if a handler was called.
    """

    began: float
    time: float
    places: Sequence[Place]
    done: float | None = None


@dataclass(slots=True)
class Owner:
    """One ownership of a partition as its member knew it: from on_assigned to on_revoked.

    member: one life of one consumer. announced: false if messages came without a call of on_assigned. tags: those that
    the member takes, () for all. position: where it was to begin, as on_assigned found it; None if unknown.
    begins_late: the group begins at "latest".
    """

    group: str
    member: str
    partition: str
    begin: float
    end: float = math.inf
    calls: list[Call] = field(default_factory=list)
    announced: bool = True
    calls_handlers: bool = False
    """Whether the member is in run(), whose handlers take time."""
    tags: tuple[str, ...] = ()
    position: int | None = None
    begins_late: bool = False
    proves: bool = True
    """False: the delivered messages count as delivered, but prove nothing about the order of their partition."""

    def takes(self, name: Name) -> bool:
        return not self.tags or name.tag in self.tags


class Commit(NamedTuple):
    """A committed offset. zxid: of the write, by which ZooKeeper orders writes; seen: when the watcher found it. era:
    how often ZooKeeper had come back with older data, after which zxids may begin again."""

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
    """A fault that was done to the run. victim: a member, a broker, or a server; end: when it was repaired."""

    begin: float
    end: float
    kind: str
    victim: str


@dataclass(slots=True)
class History:
    """All input of the checkers.

    stored: by partition, in the order of offsets. settled: whether all groups had nothing left to do at the end, and
    all their members left properly. session_seconds: of the members.
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
    """Whether there are Java brokers, whose ids do not tell when a message was stored."""


def required(owners: Iterable[Owner], records: Sequence[Stored]) -> list[Stored]:
    """Return the records of a partition that a group must get. owners: all ownerships of the group there.

    A record that one owner filters out may reach nobody. A group with start="latest" may miss records before its
    beginning: where its first owner was to begin, before which nobody can have consumed anything.
    """
    owners = sorted(owners, key=lambda each: each.begin)
    begin = 0
    if owners and all(each.begins_late for each in owners):
        begin = next((each.position for each in owners if each.position is not None), 0)
    return [each for each in records if each.offset >= begin and all(owner.takes(each.name) for owner in owners)]


def narrowed(began: float, time: float, frozen: Iterable[tuple[float, float]]) -> float:
    """Return the earliest time at which a member may have decided to deliver what it did at `time`, in a call that
    began at `began`.

    frozen: time spans in which its process was stopped.
    """
    earliest = max(began, time - GRACE_SECONDS)
    for begin, end in sorted(frozen, reverse=True):
        if begin <= time and end >= earliest:
            earliest = min(earliest, max(began, begin - GRACE_SECONDS))
    return earliest
