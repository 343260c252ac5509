"""Which segments are too old (storage.md §5), or too many. Pure: `retention_runs.py` acts on it."""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from metaq.protocol.errors import ConfigError

__all__ = ["DeletePolicy", "Disposal", "SegmentAge", "count_excess", "count_expired", "parse_delete_policy"]

_AGE = re.compile(r"(\d+)([hms]?)", re.ASCII)
_SECONDS = {"": 3600, "h": 3600, "m": 60, "s": 1}
_SIZE_WORD = "size="
_SIZE = re.compile(r"(\d+)([kmgt]?)b?", re.ASCII)
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_REMEDY = "use delete,<age> or archive,<age>[,true], the age in hours or with a unit h, m or s, as in delete,168"
_SIZE_REMEDY = "use size=<bytes>, with a unit k, m, g or t, at least 1, as in delete,168,size=10g"


class Disposal(Enum):
    """What happens to an old segment."""

    DELETE = "delete"
    ARCHIVE = "archive"
    """Renamed to `<name>.meta.arc`."""
    COMPRESS = "compress"
    """Zipped to `<name>.meta.zip`, with one entry `<name>.meta`."""


@dataclass(frozen=True, slots=True)
class DeletePolicy:
    """Closed segments not changed for `max_age_s` seconds are taken away by `action`.

    So are the oldest ones of a topic that has more than `max_bytes` bytes of messages in all its partitions on this
    broker; None: any number.
    """

    action: Disposal
    max_age_s: int
    max_bytes: int | None = None


class SegmentAge(NamedTuple):
    """A closed segment: byte offset where it starts, time of its file's last change in Unix seconds, its bytes."""

    first_offset: int
    modified: float
    size: int = 0


def parse_delete_policy(text: str, option: str = "deletePolicy") -> DeletePolicy:
    """The policy of a 1.x `deletePolicy` value: `delete,168`, `archive,24h`, `archive,30m,true`, `delete,168,size=10g`.

    `size=` is ours: 1.x passes over words there, and takes any but `true` behind archive's age as false. Other options
    that 1.x does not look at are not looked at. Raises ConfigError naming `option`, the value and the accepted forms.
    """
    name, *values = [part.strip() for part in text.split(",")]
    age = _AGE.fullmatch(values[0].lower()) if values else None
    if age is None:
        raise ConfigError(option, text, _REMEDY)
    seconds = int(age[1]) * _SECONDS[age[2]]
    max_bytes = _max_bytes(values[1:], text, option)
    if name == "delete":
        return DeletePolicy(Disposal.DELETE, seconds, max_bytes)
    if name == "archive":
        compress = len(values) > 1 and values[1].lower() == "true"
        return DeletePolicy(Disposal.COMPRESS if compress else Disposal.ARCHIVE, seconds, max_bytes)
    raise ConfigError(option, text, _REMEDY)


def _max_bytes(words: Sequence[str], text: str, option: str) -> int | None:
    sizes = [word.lower().removeprefix(_SIZE_WORD) for word in words if word.lower().startswith(_SIZE_WORD)]
    if not sizes:
        return None
    found = _SIZE.fullmatch(sizes[0].strip())
    if len(sizes) > 1 or found is None or not int(found[1]):
        raise ConfigError(option, text, _SIZE_REMEDY)
    return int(found[1]) * _BYTES[found[2]]


def count_expired(closed: Sequence[SegmentAge], policy: DeletePolicy, now: float) -> int:
    """How many of the oldest closed segments are older than the policy allows at `now` (Unix seconds).

    Differs from 1.x, which judges each segment alone: a younger one keeps those behind it, so no gap can arise.
    """
    for count, segment in enumerate(closed):
        if now - segment.modified <= policy.max_age_s:
            return count
    return len(closed)


def count_excess(closed: Sequence[Sequence[SegmentAge]], excess: int) -> list[int]:
    """How many of the oldest closed segments of each of a topic's logs must go so that it loses `excess` bytes.

    The segment changed longest ago goes first, whichever log it is in, never one in front of which another stays.
    What the closed segments do not have stays too much: the last segment of a log never goes.
    """
    counts = [0] * len(closed)
    oldest = [(segments[0].modified, log) for log, segments in enumerate(closed) if segments]
    heapq.heapify(oldest)
    while oldest and excess > 0:
        _, log = heapq.heappop(oldest)
        excess -= closed[log][counts[log]].size
        counts[log] += 1
        if counts[log] < len(closed[log]):
            heapq.heappush(oldest, (closed[log][counts[log]].modified, log))
    return counts
