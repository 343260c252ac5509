"""The server.ini settings for storing one topic: when its data are synced, and which segments are removed (storage.md
§5, §9).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from metaq.protocol.errors import ConfigError

__all__ = ["GROUP_COMMIT", "DeletePolicy", "Disposal", "FlushPolicy", "TopicStoreConfig", "parse_delete_policy"]

_AGE = re.compile(r"(\d+)([hms]?)", re.ASCII)
_SECONDS = {"": 3600, "h": 3600, "m": 60, "s": 1}
_SIZE_WORD = "size="
_SIZE = re.compile(r"(\d+)([kmgt]?)b?", re.ASCII)
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_REMEDY = "use delete,<age> or archive,<age>[,true], the age in hours or with a unit h, m or s, as in delete,168"
_SIZE_REMEDY = "use size=<bytes>, with a unit k, m, g or t, at least 1, as in delete,168,size=10g"


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """The rule that says when the data of a topic's partition are synced (storage.md §3). They are synced as soon as
    the partition has more than `threshold_records` unsynced records, or when `interval_ms` milliseconds have passed
    since the first unsynced record was appended.

    A threshold of 0 means group commit: puts are answered, and readers see data, only after the sync. The sync begins
    as soon as a record is appended, unless a sync is running. All data that are appended while a sync runs share the
    next sync.
    """

    threshold_records: int
    interval_ms: float

    @property
    def has_group_commit(self) -> bool:
        """Whether puts are answered only after their data are on the disk (group commit)."""
        return not self.threshold_records

    @property
    def seconds(self) -> float:
        """The longest time, in seconds, that appended data wait until their sync begins."""
        return self.interval_ms / 1000


GROUP_COMMIT = FlushPolicy(0, float("inf"))


class Disposal(Enum):
    """What happens to an old segment."""

    DELETE = "delete"
    ARCHIVE = "archive"
    """The segment is renamed to `<name>.meta.arc`."""
    COMPRESS = "compress"
    """The segment is compressed to `<name>.meta.zip`, with one entry `<name>.meta`."""


@dataclass(frozen=True, slots=True)
class DeletePolicy:
    """Retention rules of a topic. Segments that receive no more records and were not changed for `max_age_s` seconds
    are removed in the way that `action` names (deleted, renamed or compressed).

    If a topic has more than `max_bytes` bytes of messages in all its partitions on this broker, its oldest segments are
    removed, too, except the last segment of each partition. If `max_bytes` is None, there is no limit.
    """

    action: Disposal
    max_age_s: int
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TopicStoreConfig:
    """The server.ini settings for storing one topic (storage.md §9). unflush_threshold <= 0 means group commit."""

    max_segment_size: int
    unflush_threshold: int
    unflush_interval_ms: int
    delete_policy: DeletePolicy | None = None
    """The rules by which old segments are removed. It is None if no segment is ever removed."""

    @property
    def flush_policy(self) -> FlushPolicy:
        if self.unflush_threshold <= 0:
            return GROUP_COMMIT
        return FlushPolicy(self.unflush_threshold, self.unflush_interval_ms)


def parse_delete_policy(text: str, option: str = "deletePolicy") -> DeletePolicy:
    """Return the policy of a 1.x `deletePolicy` value: `delete,168`, `archive,24h`, `archive,30m,true`,
    `delete,168,size=10g`.

    `size=`, the limit for the bytes of the topic, is an extension of this broker. Metaq 1.x ignores a `size=` that
    follows the age of `delete`. After the age of `archive`, 1.x expects `true` (compress the segments) or `false`; it
    takes any other word, such as `size=10g`, for `false`. As in 1.x, all other words after the age are ignored. Raises
    ConfigError, which names `option`, the value and the accepted forms.
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
