"""Compute the byte ranges that a batch query, or a micro-batch of a stream, reads. All functions compute only from
their arguments and ask no broker.

The driver decides all ranges once, when it plans a batch; messages that arrive later are not part of the batch. The
limits of a micro-batch are shared among the partitions in proportion to their backlogs, so every partition with unread
messages makes progress. The backlog of a partition is the data that the query has not read yet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from metaq.client.records.results import TopicPartition
from metaq.client.transport.connection import Endpoint
from metaq.coordination.records.move_payloads import Move, moved_places, place_now
from metaq.protocol.errors import ConfigError, OffsetOutOfRange
from metaq.protocol.limits import INT64_MAX

from .options import EARLIEST, LATEST, At, BatchLimits, Explicit, RangeEnds, ReadOptions, Times

__all__ = [
    "DataLoss",
    "Lost",
    "OffsetRange",
    "PartitionState",
    "Span",
    "StreamOffsets",
    "admit",
    "check_partitions",
    "cut",
    "followed",
    "from_json",
    "narrow",
    "parts_of",
    "plan_ranges",
    "position",
    "shares",
    "shown",
    "started_of",
    "time_wanted",
    "to_json",
]

_STARTED = ""
"""The key under which a stream's position contains the query's start time. The other keys are names of topics; no topic
has an empty name.
"""

StreamOffsets = Mapping[str, Mapping[str, int]]
"""A stream's position, in checkpoints and in `startingOffsets`: byte offset by topic and `<brokerId>-<partition>`."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The data about a partition that the driver has asked for when it plans a query. endpoint: the address of the
    broker that serves reads of the partition. first, end: the readable bytes are [first, end). committed: the offset
    that the consumer group has committed. starting_time, ending_time: the offsets for the start time and the end time
    in the options. Each is None if the options do not name this time. If no message was stored at or after the time,
    the offset is the partition's end.
    """

    id: TopicPartition
    endpoint: Endpoint
    first: int
    end: int
    committed: int | None = None
    starting_time: int | None = None
    ending_time: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The messages of one partition that begin in the bytes [start, end); `end` is the end of a message. One task on an
    executor reads the range.

    nodes: addresses of the broker set's nodes at planning time; empty for a broker outside a set. planned_ms: planning
    time in ms since 1970. A task leaves out the messages that had expired at planning time; if it is repeated, it
    leaves out the same messages. If planned_ms is 0, no message is left out.
    """

    id: TopicPartition
    endpoint: Endpoint
    start: int
    end: int
    nodes: tuple[Endpoint, ...] = ()
    planned_ms: int = 0


@dataclass(frozen=True, slots=True)
class Lost:
    """Bytes [start, end) of a partition that a query must read but cannot."""

    id: TopicPartition
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.id.topic} {self.id}: [{self.start}, {self.end})"


class DataLoss(OffsetOutOfRange):
    """A query must read bytes that partitions no longer have (because retention has deleted them) or never had. lost:
    each range of these bytes.
    """

    def __init__(self, lost: Sequence[Lost], first: int, end: int) -> None:
        super().__init__(lost[0].start, first, end)
        self.lost = tuple(lost)
        self.args = (
            f"{len(lost)} ranges are not readable: {'; '.join(map(str, lost))}: messages were deleted, the topic was "
            "made anew, or an option gave an offset at which no message begins; call load() again for a batch query, "
            "whose plan is as old as its DataFrame's first action, or set failOnDataLoss=false to read what is there",
        )


# --- batch queries ----------------------------------------------------------------------------------------------------


def plan_ranges(
    options: ReadOptions, states: Sequence[PartitionState], away: Collection[TopicPartition] = ()
) -> list[OffsetRange]:
    """Return the non-empty range of each partition in `states`, sorted by partition. away: as in check_partitions.

    Raises ConfigError if an option gives offsets as JSON and does not name exactly the partitions in `states`, or if a
    range ends before it starts. An explicit or committed offset can be outside the readable bytes. If failOnDataLoss is
    true, such an offset raises OffsetOutOfRange; if it is false, the nearest readable offset is used.
    """
    ids = [state.id for state in states]
    check_partitions(options.starting_option, options.starting, ids, away)
    check_partitions(options.ending_option, options.ending, ids, away)
    ranges = []
    inverted: list[str] = []
    lost: list[tuple[PartitionState, int]] = []
    for state in sorted(states, key=lambda state: state.id):
        try:
            start, end = position(options, state), position(options, state, ending=True)
        except OffsetLost as error:
            lost += error.lost
        else:
            ranges.append(OffsetRange(state.id, state.endpoint, start=start, end=end))
            inverted += _inverted(options, state, start, end)
    if inverted:
        said = f"ends before {options.starting_option} starts: {'; '.join(inverted)}: choose a later end"
        raise ConfigError(options.ending_option, shown(options.ending), said)
    if lost:
        raise OffsetLost(lost)
    return [found for found in ranges if found.start < found.end]


def position(options: ReadOptions, state: PartitionState, *, ending: bool = False) -> int:
    """Return the byte offset where a query begins to read a partition. If `ending` is set, return the byte offset where
    the query ends. Raises the errors of plan_ranges.
    """
    wanted = _ending(options, state) if ending else _starting(options, state)
    if wanted == EARLIEST:
        return state.first
    if wanted == LATEST:
        return state.end
    if options.fail_on_data_loss and not state.first <= wanted <= state.end:
        raise OffsetLost([(state, wanted)])
    return min(max(wanted, state.first), state.end)


def _inverted(options: ReadOptions, state: PartitionState, start: int, end: int) -> list[str]:
    """If a range ends before it starts, return a list with one text for the error: the partition, and the offsets or
    times that the options give. Otherwise return an empty list. Also return an empty list if the range starts at a
    committed offset that is after its end, because the group has already read all of the messages.
    """
    starting, ending = options.starting, options.ending
    first, last = time_wanted(starting, state.id), time_wanted(ending, state.id)
    if first is not None and last is not None:
        start, end = first, last
    elif isinstance(starting, Explicit) and isinstance(ending, Explicit) and _number(ending, state) != LATEST:
        start, end = _number(starting, state), _number(ending, state)
    elif starting == "committed":
        return []
    return [f"{state.id.topic} {state.id} from {start} to {end}"] if start > end else []


def shown(bounds: RangeEnds) -> object:
    """Return the start or the end of a read in the form in which the user gave it as an option, for an error text. For
    offsets and times by partition this form is JSON.
    """
    if isinstance(bounds, At):
        return bounds.time_ms
    if isinstance(bounds, str):
        return bounds
    named = bounds.offsets if isinstance(bounds, Explicit) else bounds.times
    return json.dumps({topic: dict(names) for topic, names in named.items()}, separators=(",", ":"))


def _starting(options: ReadOptions, state: PartitionState) -> int:
    bounds = options.starting
    if isinstance(bounds, At | Times):
        found = state.end if state.starting_time is None else min(state.starting_time, state.end)
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
        # the time was looked up after the end, and messages may have been stored in between
        return LATEST if state.ending_time is None else min(state.ending_time, state.end)
    return _number(options.ending, state)


def _number(bounds: RangeEnds, state: PartitionState) -> int:
    if isinstance(bounds, Explicit):
        return bounds.offsets[state.id.topic][str(state.id)]
    return EARLIEST if bounds == "earliest" else LATEST


def time_wanted(bounds: RangeEnds, partition: TopicPartition) -> int | None:
    """Return the time that the user's option gives as the start or the end for this partition, in milliseconds since
    1970, or None if the option gives no time.
    """
    if isinstance(bounds, Times):
        return bounds.times.get(partition.topic, {}).get(str(partition))
    return bounds.time_ms if isinstance(bounds, At) else None


class OffsetLost(OffsetOutOfRange):
    """A query must start or end at offsets that are outside the readable bytes. lost: each such offset with its
    partition. id: the partition of the first offset in `lost`.
    """

    def __init__(self, lost: Sequence[tuple[PartitionState, int]]) -> None:
        state, wanted = lost[0]
        super().__init__(wanted, state.first, state.end)
        self.id = state.id
        self.lost = tuple(lost)
        told = (
            f"{state.id.topic} {state.id}: offset {wanted} is outside the readable bytes [{state.first}, {state.end}]"
            for state, wanted in lost
        )
        remedy = "messages were deleted or the topic made anew; set failOnDataLoss=false to read what is there"
        self.args = (f"{'; '.join(told)}: {remedy}",)


def check_partitions(
    option: str, bounds: RangeEnds, ids: Sequence[TopicPartition], away: Collection[TopicPartition] = ()
) -> None:
    """Check an option that gives an offset or a time for each partition. Raise ConfigError if the option does not name
    exactly the partitions `ids`. away: partitions that no live broker serves now; whether the option names these does
    not matter.
    """
    if isinstance(bounds, Explicit):
        named = bounds.offsets
    elif isinstance(bounds, Times):
        named = bounds.times
    else:
        return
    given = {f"{topic} {name}" for topic, names in named.items() for name in names}
    there = {f"{each.topic} {each}" for each in ids}
    missing = sorted(there - given)
    unknown = sorted(given - there - {f"{each.topic} {each}" for each in away})
    if missing or unknown:
        said = [f"{len(missing)} missing ({', '.join(missing[:5])})"] if missing else []
        said += [f"{len(unknown)} unknown ({', '.join(unknown[:5])})"] if unknown else []
        wrong = f"partitions {' and '.join(said)}: name every partition of the topics once"
        raise ConfigError(option, shown(bounds), wrong)


# --- splitting and narrowing ------------------------------------------------------------------------------------------


def parts_of(ranges: Sequence[OffsetRange], min_partitions: int | None) -> list[int]:
    """Return for each range the number of parts into which to cut it, so that the sum of these numbers is at least
    `min_partitions`. A larger range gets more parts, in proportion to its size in bytes.
    """
    if min_partitions is None or len(ranges) >= min_partitions:
        return [1] * len(ranges)
    total = sum(each.end - each.start for each in ranges)
    return [-(-(each.end - each.start) * min_partitions // total) for each in ranges]


def cut(whole: OffsetRange, boundaries: Iterable[int]) -> list[OffsetRange]:
    """Cut the range `whole` at the byte offsets `boundaries`, and return the parts. Each boundary must be between two
    messages; boundaries outside the range have no effect.
    """
    inside = {each for each in boundaries if whole.start < each < whole.end}
    marks = [whole.start, *sorted(inside), whole.end]
    return [OffsetRange(whole.id, whole.endpoint, start, end) for start, end in pairwise(marks)]


def narrow(found: OffsetRange, start: int | None, end: int | None) -> OffsetRange:
    """Shorten the range `found` so that it starts at `start` or later and ends at `end` or earlier, and return it. None
    means that this end of the range does not change.
    """
    low = found.start if start is None else max(found.start, start)
    high = found.end if end is None else min(found.end, end)
    return OffsetRange(found.id, found.endpoint, low, high)


# --- streams ----------------------------------------------------------------------------------------------------------


def to_json(offsets: Mapping[TopicPartition, int], started_ms: int | None = None) -> dict[str, dict[str, int]]:
    """Encode a stream's position, sorted by partition. started_ms: the start time of the query, as in `started_of`."""
    found: dict[str, dict[str, int]] = {} if started_ms is None else {_STARTED: {"ms": started_ms}}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition)] = offsets[partition]
    return found


def from_json(offsets: StreamOffsets) -> dict[TopicPartition, int]:
    """Decode a stream's position, the inverse of to_json. Raises ValueError if `offsets` is not a position of this data
    source.
    """
    return {
        TopicPartition.parse(topic, name): offset
        for topic, names in offsets.items()
        if topic != _STARTED
        for name, offset in names.items()
    }


def started_of(offsets: StreamOffsets) -> int | None:
    """Return the start time of the query with this position, in milliseconds since 1970. Return None if the position
    has no start time, because an earlier version of metaq has written it. If a query with such a position finds another
    partition later, it reads this partition from byte 0 on.
    """
    return offsets.get(_STARTED, {}).get("ms")


def followed(offsets: Mapping[TopicPartition, int], moves: Iterable[Move]) -> dict[TopicPartition, int]:
    """Return the position of a query in which each partition that has moved to another broker has its new name. The
    offset of a moved partition is the same as before.
    """
    moved = moved_places(moves)
    found: dict[TopicPartition, int] = {}
    for each, offset in offsets.items():
        now = place_now(each, moved)
        if now == each or now not in offsets:
            found[now] = offset
    return found


# --- admission of messages to one micro-batch -------------------------------------------------------------------------

Span = tuple[int, int]
"""The bytes [start, end) of a partition that are still to be read. At `start` a message begins. At `end` a message
begins, or the partition ends.
"""
Count = Callable[[TopicPartition, Span], int]
"""A function that returns the number of messages in a span of a partition."""
After = Callable[[TopicPartition, int, int, int], int]
"""A function with the arguments (partition, offset, messages, bytes). It returns the end of the last whole message
within two limits, counted from `offset` on: at most `messages` messages, and at most `bytes` bytes.
"""


def shares(waiting: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Divide `limit` among the partitions in proportion to their backlogs `waiting`; no partition gets more than its
    backlog. The sum of the shares is `limit`, or the whole backlog if that is smaller.
    """
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    found = {each: limit * size // total for each, size in waiting.items()}
    rest = limit - sum(found.values())
    by_remainder = sorted(waiting, key=lambda each: (-(limit * waiting[each] % total), each))
    for each in by_remainder[:rest]:
        found[each] += 1
    return found


def admit(
    limits: BatchLimits, waiting: Mapping[TopicPartition, Span], count: Count, after: After, *, may_wait: bool
) -> dict[TopicPartition, int] | None:
    """Return for each partition of `waiting` the end offset of the next micro-batch. Return None if the micro-batch has
    to wait for more messages.

    may_wait: whether the micro-batch may wait for minOffsetsPerTrigger messages, that is, whether the time
    maxTriggerDelay since the previous micro-batch is not over yet. If there are unread messages, a micro-batch that
    does not wait has at least one message, even if this message is larger than maxBytesPerTrigger.
    """
    spans = {each: span for each, span in waiting.items() if span[0] < span[1]}
    ends = {each: span[1] for each, span in waiting.items()}
    holds_back = may_wait and limits.min_messages is not None
    if limits.max_messages is not None or holds_back:
        counts = {each: count(each, span) for each, span in spans.items()}
        if holds_back and sum(counts.values()) < (limits.min_messages or 0):
            return None
        if limits.max_messages is not None and sum(counts.values()) > limits.max_messages:
            for each, messages in shares(counts, limits.max_messages).items():
                ends[each] = after(each, spans[each][0], messages, INT64_MAX)
    if limits.max_bytes is not None:
        _limit_bytes(limits.max_bytes, {each: (spans[each][0], ends[each]) for each in spans}, ends, after)
    return ends


def _limit_bytes(
    max_bytes: int, spans: Mapping[TopicPartition, Span], ends: dict[TopicPartition, int], after: After
) -> None:
    sizes = {each: end - start for each, (start, end) in spans.items()}
    if sum(sizes.values()) <= max_bytes:
        return
    for each, size in shares(sizes, max_bytes).items():
        ends[each] = after(each, spans[each][0], INT64_MAX, size)
    if all(ends[each] <= start for each, (start, _) in spans.items()):
        largest = max(sizes, key=lambda each: (sizes[each], each))
        ends[largest] = after(largest, spans[largest][0], 1, INT64_MAX)
