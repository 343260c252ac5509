"""What is done to a run, and when: the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["KINDS", "Fault", "faults"]

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
"""Kind -> how often it is chosen, and how many seconds it lasts (member-freeze: longer than the session).

All of them: kill -9 of a broker; all brokers, one after the other, as an operator restarts them; kill -9 of a member;
SIGSTOP of one; the session of a member or of a broker ended on the server; kill -9 of ZooKeeper's leader, or of two
servers; members that come and go; one that leaves properly and comes back.
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """at: seconds from the beginning. which: a number that the victim is chosen by, among those that are there then."""

    at: float
    kind: str
    seconds: float
    which: int


def faults(seed: int, seconds: float) -> Iterator[Fault]:
    """Those of a run; each kind comes once before any other comes again and again."""
    rng = random.Random(f"faults {seed}")
    first = list(KINDS)
    rng.shuffle(first)
    at = FIRST_SECONDS
    while at < seconds:
        kind = first.pop() if first else rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
        yield Fault(round(at, 2), kind, round(rng.uniform(*KINDS[kind][1]), 2), rng.randrange(1 << 16))
        at += rng.uniform(*PAUSE_SECONDS)
