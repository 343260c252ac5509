"""End a run: deliver all messages to its groups, and end its processes."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from tests.kills.children import Child
from tests.kills.journal import clock
from tests.kills.outcome import Problem

from .facts import Owner, Stored, required
from .reading import owned_in, seen_in

__all__ = ["drain", "stuck"]

_QUIET_SECONDS = 60.0
"""Seconds without a new message after which a group counts as stuck."""
_LOOK_SECONDS = 1.0


def drain(
    events: Path, groups: Collection[str], stored: Mapping[str, Sequence[Stored]], seconds: float = math.inf
) -> bool:
    """Wait until each group has all messages that it must get, at most `seconds`; return whether it has. events: the
    directory of members' journals."""
    moved = begin = clock()
    count = -1
    while True:
        found = seen_in(events)
        seen = [found.get(group, set()) for group in groups]
        owners = owned_in(events)
        if all(_wanted(group, owners, stored) <= each for group, each in zip(groups, seen, strict=True)):
            return True
        now = clock()
        if sum(map(len, seen)) != count:
            count, moved = sum(map(len, seen)), now
        if now - moved > _QUIET_SECONDS or now - begin > seconds:
            return False
        time.sleep(_LOOK_SECONDS)


def _wanted(group: str, owners: Iterable[Owner], stored: Mapping[str, Sequence[Stored]]) -> set[tuple[str, int]]:
    by_partition: dict[str, list[Owner]] = defaultdict(list)
    for each in owners:
        if each.group == group:
            by_partition[each.partition].append(each)
    return {
        (partition, each.offset)
        for partition, records in stored.items()
        for each in required(by_partition[partition], records)
    }


def stuck(children: Iterable[tuple[str, Child]], seconds: float) -> list[Problem]:
    """Return a problem for each child that was asked to end and does not, within `seconds` more for each."""
    return [
        Problem("stuck", f"{name} does not end, see {child.log}") for name, child in children if not child.wait(seconds)
    ]
