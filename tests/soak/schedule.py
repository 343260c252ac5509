"""Choose when each process of a run is hit, and how: the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from .places import SESSION_SECONDS

__all__ = ["Blow", "Step", "Way", "steps"]

Way = Literal["kill", "stop", "freeze"]
"""How a process is hit: by SIGKILL; as its operator would stop it; by SIGSTOP for longer than its ZooKeeper session
lasts."""

PAUSE_SECONDS = (2.0, 8.0)
DOWN_SECONDS = (0.5, 6.0)
FROZEN_SECONDS = (SESSION_SECONDS + 1.0, SESSION_SECONDS + 6.0)
OUTAGE_SECONDS = (0.5, SESSION_SECONDS / 2)
DOUBLE = 0.25
"""The share of steps that hit a broker and a member at once."""


@dataclass(frozen=True, slots=True)
class Blow:
    """One hit of one process."""

    victim: str
    way: Way

    def __str__(self) -> str:
        return f"{self.way} {self.victim}"


@dataclass(frozen=True, slots=True)
class Step:
    """One step: wait `pause` seconds, hit the victims, wait `down` seconds, start them again or let them continue."""

    pause: float
    blows: Sequence[Blow]
    down: float


def steps(
    seed: int,
    brokers: Sequence[str],
    members: Sequence[str],
    frozen: Sequence[str] = (),
    restarted: Sequence[str] = (),
) -> Iterator[Step]:
    """Yield steps without end. In each round every process is killed and stopped once, in a new order.

    frozen: processes that are also frozen once a round. restarted: servers for all processes, stopped for less than a
    session.
    """
    chance = random.Random(seed)
    ways: Sequence[Way] = ("kill", "stop")
    blows = [Blow(victim, way) for victim in (*brokers, *members) for way in ways]
    blows += [Blow(victim, "freeze") for victim in frozen]
    blows += [Blow(victim, "stop") for victim in restarted]
    while True:
        chance.shuffle(blows)
        for blow in blows:
            hit = [blow]
            if blow.victim not in restarted and chance.random() < DOUBLE:
                others = members if blow.victim in brokers else brokers
                hit.append(Blow(chance.choice(others), chance.choice(ways)))
            yield Step(chance.uniform(*PAUSE_SECONDS), hit, chance.uniform(*_down(blow, restarted)))


def _down(blow: Blow, restarted: Sequence[str]) -> tuple[float, float]:
    if blow.victim in restarted:
        return OUTAGE_SECONDS
    return FROZEN_SECONDS if blow.way == "freeze" else DOWN_SECONDS
