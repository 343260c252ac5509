"""Which process of a run is ended when, and how: the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Blow", "Step", "steps"]

PAUSE_SECONDS = (2.0, 8.0)
DOWN_SECONDS = (0.5, 6.0)
DOUBLE = 0.25
"""The share of steps that hit a broker and a member at once."""


@dataclass(frozen=True, slots=True)
class Blow:
    """A process that is ended. crash: by SIGKILL, otherwise as its operator would."""

    victim: str
    crash: bool

    def __str__(self) -> str:
        return f"{'kill' if self.crash else 'stop'} {self.victim}"


@dataclass(frozen=True, slots=True)
class Step:
    """Wait `pause` seconds, end the victims, wait `down` seconds, start them again."""

    pause: float
    blows: Sequence[Blow]
    down: float


def steps(seed: int, brokers: Sequence[str], members: Sequence[str]) -> Iterator[Step]:
    """Endless. Every process is killed and stopped once in each round over all of them, in a new order each time."""
    chance = random.Random(seed)
    blows = [Blow(victim, crash) for victim in (*brokers, *members) for crash in (True, False)]
    while True:
        chance.shuffle(blows)
        for blow in blows:
            hit = [blow]
            if chance.random() < DOUBLE:
                others = members if blow.victim in brokers else brokers
                hit.append(Blow(chance.choice(others), chance.random() < 0.5))
            yield Step(chance.uniform(*PAUSE_SECONDS), hit, chance.uniform(*DOWN_SECONDS))
