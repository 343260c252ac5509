"""How a run ends: its groups are handed everything, and its processes end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from .checkers import Problem
from .children import Child
from .facts import Stored
from .journal import clock
from .reading import seen_in

__all__ = ["Say", "drain", "stuck"]

_QUIET_SECONDS = 60.0
"""A group that is handed nothing new for so long does not come to the end."""
_LOOK_SECONDS = 1.0

Say = Callable[[str], None]
"""Tells a person how far a run is."""


def drain(
    events: Path, groups: Collection[str], stored: Mapping[str, Iterable[Stored]], seconds: float = math.inf
) -> bool:
    """Whether each group is handed everything, within so many seconds. events: the directory of members' journals."""
    wanted = {(each.partition, each.offset) for records in stored.values() for each in records}
    moved = begin = clock()
    count = -1
    while True:
        found = seen_in(events)
        seen = [found.get(group, set()) for group in groups]
        if all(wanted <= each for each in seen):
            return True
        now = clock()
        if sum(map(len, seen)) != count:
            count, moved = sum(map(len, seen)), now
        if now - moved > _QUIET_SECONDS or now - begin > seconds:
            return False
        time.sleep(_LOOK_SECONDS)


def stuck(children: Iterable[tuple[str, Child]], seconds: float) -> list[Problem]:
    """Those, by name, that were asked to end and do not, each within so many seconds more."""
    return [
        Problem("stuck", f"{name} does not end, see {child.log}", "-")
        for name, child in children
        if not child.wait(seconds)
    ]
