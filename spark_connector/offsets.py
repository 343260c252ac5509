"""Which bytes of which partitions a query reads: pure functions from plain values to plain values.

Everything is decided once, on the driver, when a batch is planned; later messages are not part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from metaq.client.connection import Endpoint
from metaq.client.values import TopicPartition
from metaq.protocol.errors import ConfigError, OffsetOutOfRange

from .read_options import EARLIEST, LATEST, At, Explicit, RangeEnds, ReadOptions, Times

__all__ = [
    "DataLoss",
    "Lost",
    "OffsetRange",
    "PartitionState",
    "StreamOffsets",
    "check_partitions",
    "cut",
    "from_json",
    "narrow",
    "parts_of",
    "plan_ranges",
    "position",
    "time_wanted",
    "to_json",
]

StreamOffsets = Mapping[str, Mapping[str, int]]
"""A stream's position, in checkpoints and in `startingOffsets`: byte offset by topic and `<brokerId>-<partition>`."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition at planning time: where it is read, its readable bytes [first, end), the group's offset, and where
    the times that the options name lie (None: not asked for)."""

    id: TopicPartition
    endpoint: Endpoint
    first: int
    end: int
    committed: int | None = None
    starting_time: int | None = None
    ending_time: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The messages of one partition that begin in [start, end), in bytes. Sent to an executor."""

    id: TopicPartition
    endpoint: Endpoint
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Bytes [start, end) of a partition that a query was to read and that cannot be read."""

    id: TopicPartition
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.id.topic} {self.id}: [{self.start}, {self.end})"


class DataLoss(OffsetOutOfRange):
    """A query asks for bytes that partitions do not have (any more); `lost` has each range."""

    def __init__(self, lost: Sequence[Lost], first: int, end: int) -> None:
        super().__init__(lost[0].start, first, end)
        self.lost = tuple(lost)
        self.args = (
            f"{len(lost)} ranges are not readable: {'; '.join(map(str, lost))}: messages were deleted or the topic "
            "made anew; set failOnDataLoss=false to read what is there",
        )


# --- batch queries ----------------------------------------------------------------------------------------------------


def plan_ranges(options: ReadOptions, states: Sequence[PartitionState]) -> list[OffsetRange]:
    """The range of each partition in `states`, empty ones left out, sorted by partition.

    Raises ConfigError if offsets given as JSON do not name exactly these partitions; OffsetOutOfRange if an explicit or
    committed offset lies outside the readable bytes and failOnDataLoss is true (else it is moved to the nearest bound).
    """
    check_partitions(options.starting_option, options.starting, [state.id for state in states])
    check_partitions(options.ending_option, options.ending, [state.id for state in states])
    ranges = [
        OffsetRange(state.id, state.endpoint, start=position(options, state), end=position(options, state, ending=True))
        for state in sorted(states, key=lambda state: state.id)
    ]
    return [found for found in ranges if found.start < found.end]


def position(options: ReadOptions, state: PartitionState, *, ending: bool = False) -> int:
    """Where a query begins (or ends) in one partition. Raises as plan_ranges."""
    wanted = _ending(options, state) if ending else _starting(options, state)
    if wanted == EARLIEST:
        return state.first
    if wanted == LATEST:
        return state.end
    if options.fail_on_data_loss and not state.first <= wanted <= state.end:
        raise OffsetLost(state, wanted)
    return min(max(wanted, state.first), state.end)


def _starting(options: ReadOptions, state: PartitionState) -> int:
    bounds = options.starting
    if isinstance(bounds, At | Times):
        found = state.end if state.starting_time is None else state.starting_time
        if found >= state.end and options.unmatched_time == "error":
            said = "choose an earlier time, or startingOffsetsByTimestampStrategy=latest to begin at the end there"
            raise ConfigError(
                options.starting_option,
                str(time_wanted(bounds, state.id)),
                f"{state.id.topic} {state.id} has no message stored at this time or later: {said}",
            )
        return found
    if bounds == "committed":
        return EARLIEST if state.committed is None else state.committed
    return _number(bounds, state)


def _ending(options: ReadOptions, state: PartitionState) -> int:
    if isinstance(options.ending, At | Times):
        return LATEST if state.ending_time is None else state.ending_time
    return _number(options.ending, state)


def _number(bounds: RangeEnds, state: PartitionState) -> int:
    if isinstance(bounds, Explicit):
        return bounds.offsets[state.id.topic][str(state.id)]
    return EARLIEST if bounds == "earliest" else LATEST


def time_wanted(bounds: RangeEnds, partition: TopicPartition) -> int | None:
    """The time that an option names for this partition, in milliseconds since 1970."""
    if isinstance(bounds, Times):
        return bounds.times.get(partition.topic, {}).get(str(partition))
    return bounds.time_ms if isinstance(bounds, At) else None


class OffsetLost(OffsetOutOfRange):
    """An offset that a query names lies outside the readable bytes."""

    def __init__(self, state: PartitionState, wanted: int) -> None:
        super().__init__(wanted, state.first, state.end)
        self.id = state.id
        self.args = (
            f"{state.id.topic} {state.id}: offset {wanted} is outside the readable bytes [{state.first}, {state.end}]: "
            "messages were deleted or the topic made anew; set failOnDataLoss=false to read what is there",
        )


def check_partitions(option: str, bounds: RangeEnds, ids: Sequence[TopicPartition]) -> None:
    """Raise ConfigError unless offsets or times per partition name each of `ids` once."""
    if isinstance(bounds, Explicit):
        named = bounds.offsets
    elif isinstance(bounds, Times):
        named = bounds.times
    else:
        return
    given = {f"{topic} {name}" for topic, names in named.items() for name in names}
    there = {f"{each.topic} {each}" for each in ids}
    if given != there:
        missing, unknown = sorted(there - given), sorted(given - there)
        said = [f"{len(missing)} missing ({', '.join(missing[:5])})"] if missing else []
        said += [f"{len(unknown)} unknown ({', '.join(unknown[:5])})"] if unknown else []
        shown = {topic: dict(names) for topic, names in named.items()}
        raise ConfigError(option, shown, f"partitions {' and '.join(said)}: name every partition of the topics once")


# --- splitting and narrowing ------------------------------------------------------------------------------------------


def parts_of(ranges: Sequence[OffsetRange], min_partitions: int | None) -> list[int]:
    """Into how many parts each range is cut so that there are at least `min_partitions`, in proportion to its bytes."""
    if min_partitions is None or len(ranges) >= min_partitions:
        return [1] * len(ranges)
    total = sum(each.end - each.start for each in ranges)
    return [-(-(each.end - each.start) * min_partitions // total) for each in ranges]


def cut(whole: OffsetRange, boundaries: Iterable[int]) -> list[OffsetRange]:
    """`whole` cut at the byte offsets `boundaries` (message boundaries; those outside cut nothing)."""
    inside = {each for each in boundaries if whole.start < each < whole.end}
    marks = [whole.start, *sorted(inside), whole.end]
    return [OffsetRange(whole.id, whole.endpoint, start, end) for start, end in pairwise(marks)]


def narrow(found: OffsetRange, start: int | None, end: int | None) -> OffsetRange:
    """`found` without what lies before `start` or from `end` on."""
    low = found.start if start is None else max(found.start, start)
    high = found.end if end is None else min(found.end, end)
    return OffsetRange(found.id, found.endpoint, low, high)


# --- streams ----------------------------------------------------------------------------------------------------------


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """A stream's position, in the order of partitions."""
    found: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition)] = offsets[partition]
    return found


def from_json(offsets: StreamOffsets) -> dict[TopicPartition, int]:
    """The inverse of to_json. Raises ValueError for anything else than a position of this source."""
    return {
        TopicPartition.parse(topic, name): offset for topic, names in offsets.items() for name, offset in names.items()
    }
