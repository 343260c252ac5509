"""Which segments are too old (storage.md §5). Pure: `discard.py` acts on it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from metaq.protocol.errors import ConfigError

__all__ = ["Action", "DeletePolicy", "SegmentAge", "count_expired", "parse_delete_policy"]

_AGE = re.compile(r"(\d+)([hms]?)", re.ASCII)
_SECONDS = {"": 3600, "h": 3600, "m": 60, "s": 1}
_REMEDY = "use delete,<age> or archive,<age>[,true], the age in hours or with a unit h, m or s, as in delete,168"


class Action(Enum):
    """What happens to an old segment."""

    DELETE = "delete"
    ARCHIVE = "archive"
    """Renamed to `<name>.meta.arc`."""
    COMPRESS = "compress"
    """Zipped to `<name>.meta.zip`, with one entry `<name>.meta`."""


@dataclass(frozen=True, slots=True)
class DeletePolicy:
    """Closed segments not changed for `max_age_s` seconds are taken away by `action`."""

    action: Action
    max_age_s: int


class SegmentAge(NamedTuple):
    """A closed segment: byte offset where it starts, time of its file's last change in Unix seconds."""

    first_offset: int
    modified: float


def parse_delete_policy(text: str, option: str = "deletePolicy") -> DeletePolicy:
    """The policy of a 1.x `deletePolicy` value: `delete,168`, `archive,24h`, `archive,30m,true`.

    Options that 1.x does not look at are not looked at. Raises ConfigError naming `option`, the value and the accepted
    forms.
    """
    name, *values = [part.strip() for part in text.split(",")]
    age = _AGE.fullmatch(values[0].lower()) if values else None
    if age is None:
        raise ConfigError(option, text, _REMEDY)
    seconds = int(age[1]) * _SECONDS[age[2]]
    if name == "delete":
        return DeletePolicy(Action.DELETE, seconds)
    if name == "archive":
        compress = len(values) > 1 and values[1].lower() == "true"
        return DeletePolicy(Action.COMPRESS if compress else Action.ARCHIVE, seconds)
    raise ConfigError(option, text, _REMEDY)


def count_expired(closed: Sequence[SegmentAge], policy: DeletePolicy, now: float) -> int:
    """How many of the oldest closed segments are older than the policy allows at `now` (Unix seconds).

    Differs from 1.x, which judges each segment alone: a younger one keeps those behind it, so no gap can arise.
    """
    for count, segment in enumerate(closed):
        if now - segment.modified <= policy.max_age_s:
            return count
    return len(closed)
