"""What is done to a run: the same order for the same seed. How it is done: injuries.py."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["FOLLOWER_KINDS", "LEADER_KINDS", "Fault", "kinds_for", "plan"]

LEADER_KINDS = {
    "kill": "",
    "stop": "",
    "term": "",
    "hand-over": "",
    "syncs fail": "",
    "zookeeper lost": "net",
    "peers lost": "net",
    "both lost": "net",
    "alone": "net",
    "one way: to zookeeper": "net",
    "one way: from zookeeper": "net",
    "one way: to peers": "net",
    "one way: from peers": "net",
    "disk full": "disk",
}
"""What befalls a leader, and what it needs: namespaces of ours have both.

SIGKILL; SIGSTOP for longer than the session; SIGTERM and a start; `metaq brokers hand-over`; every sync fails; nothing
passes between it and ZooKeeper, its followers, both, or anybody; nothing passes in one direction; no block is free.
"""

FOLLOWER_KINDS = ("kill", "stop", "term", "syncs fail", "zookeeper lost", "alone", "disk full")
"""What befalls a follower between two faults of leaders, without being one of the failovers that are counted."""

_FOLLOWER_SHARE = 0.25
_TWO_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Fault:
    """of_leader: else of a follower. seconds: until it is healed, from the moment at which another node leads. second:
    what befalls a follower at the same time; "": nothing. which: a number that chooses among followers."""

    kind: str
    of_leader: bool
    set_id: int
    seconds: float
    which: int
    second: str = ""


def kinds_for(able: Sequence[str]) -> list[str]:
    """able: what faults may need."""
    return [kind for kind, needs in LEADER_KINDS.items() if not needs or needs in able]


def plan(seed: int, count: int, sets: int, nodes: int, kinds: Sequence[str]) -> Iterator[Fault]:
    """`count` faults of leaders, each kind as often as the others, with some of followers between them.

    kinds: of leaders; those that befall followers, too, do that.
    """
    rng = random.Random(f"failovers {seed}")
    small = [kind for kind in FOLLOWER_KINDS if kind in kinds] or ["kill"]
    left: list[str] = []
    # runs with seeds in a row share one sequence of rounds, so that together they have each kind as often
    first = (seed - 1) * count
    for number in range(first, first + count):
        if not left:
            left = _round(kinds, number // len(kinds))[number % len(kinds) :]
        if rng.random() < _FOLLOWER_SHARE:
            yield Fault(rng.choice(small), False, rng.randrange(sets), _seconds(rng), rng.randrange(1 << 16))
        kind = left.pop(0)
        second = rng.choice(small) if nodes > 2 and rng.random() < _TWO_SHARE else ""
        yield Fault(kind, True, rng.randrange(sets), _seconds(rng), rng.randrange(1 << 16), second)


def _round(kinds: Sequence[str], number: int) -> list[str]:
    return random.Random(f"round {number}").sample(kinds, len(kinds))


def _seconds(rng: random.Random) -> float:
    return round(rng.choice((0.0, rng.uniform(0.0, 2.0), rng.uniform(2.0, 8.0))), 2)
