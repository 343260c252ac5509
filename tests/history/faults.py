"""Choose the faults of a run, and their times: the same ones for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["KINDS", "SET_BACKS", "Fault", "faults", "set_backs"]

FIRST_SECONDS = 2.0
PAUSE_SECONDS = (0.3, 4.0)

KINDS: Mapping[str, tuple[float, tuple[float, float]]] = {
    "broker-kill": (3.0, (0.2, 8.0)),
    "brokers-in-order": (1.0, (0.2, 1.0)),
    "member-kill": (3.0, (0.2, 8.0)),
    "member-freeze": (3.0, (1.0, 4.0)),
    "session": (4.0, (0.0, 0.0)),
    "broker-session": (1.0, (0.0, 0.0)),
    "leader-kill": (2.0, (0.2, 3.0)),
    "majority": (1.0, (1.0, 12.0)),
    "burst": (2.0, (0.0, 0.0)),
    "member-leave": (2.0, (0.2, 4.0)),
}
"""By kind: how often it is chosen, and how many seconds it lasts (member-freeze: longer than the session).

The kinds: kill -9 of a broker; all brokers, one after the other, as an operator restarts them; kill -9 of a member;
SIGSTOP of one; the session of a member or of a broker ended on the server; kill -9 of ZooKeeper's leader, or of two
servers; members that come and go; a member that leaves properly and comes back.
"""


SET_BACKS: Mapping[str, tuple[float, float]] = {
    "zookeeper-empty": (0.0, 0.0),
    "zookeeper-older": (2.0, 15.0),
}
"""All servers of ZooKeeper come back empty, or from a copy that is this many seconds old."""

_SET_BACK_SHARE = 0.5
"""Share of the runs with a set-back of ZooKeeper."""
_LEAST_SECONDS = 60.0
"""Least duration in seconds of a run with a set-back, which takes half a minute."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault. at: seconds from the beginning. which: a number that chooses the victim among those that exist then."""

    at: float
    kind: str
    seconds: float
    which: int


def faults(seed: int, seconds: float) -> Iterator[Fault]:
    """Yield the faults of a run; each kind comes once before any kind comes a second time."""
    rng = random.Random(f"faults {seed}")
    first = list(KINDS)
    rng.shuffle(first)
    at = FIRST_SECONDS
    while at < seconds:
        kind = first.pop() if first else rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
        yield Fault(round(at, 2), kind, round(rng.uniform(*KINDS[kind][1]), 2), rng.randrange(1 << 16))
        at += rng.uniform(*PAUSE_SECONDS)


def set_backs(seed: int, seconds: float) -> Iterator[Fault]:
    """Yield the set-back of ZooKeeper in a run, besides its faults: at most one, in about half of the runs."""
    rng = random.Random(f"set back {seed}")
    if rng.random() < _SET_BACK_SHARE and seconds >= _LEAST_SECONDS:
        kind = rng.choice(list(SET_BACKS))
        at = rng.uniform(0.2, 0.6) * seconds
        yield Fault(round(at, 2), kind, round(rng.uniform(*SET_BACKS[kind]), 2), 0)
