"""Which bytes of which partitions a query reads: pure functions from plain values to plain values.

Everything is decided once, on the driver, when the query is planned; later messages are not part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metaq.client.values import TopicPartition
from metaq.protocol.errors import ConfigError, OffsetOutOfRange

from .options import EARLIEST, LATEST, Bounds, Explicit, ReadOptions

__all__ = ["OffsetRange", "PartitionState", "plan_ranges"]


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition at planning time: where its broker listens, its readable bytes [first, end), the group's offset."""

    id: TopicPartition
    host: str
    port: int
    first: int
    end: int
    committed: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The messages of one partition that begin in [start, end), in bytes. Sent to an executor."""

    id: TopicPartition
    host: str
    port: int
    start: int
    end: int


def plan_ranges(options: ReadOptions, states: Sequence[PartitionState]) -> list[OffsetRange]:
    """The range of each partition in `states`, empty ones left out, sorted by partition.

    Raises ConfigError if offsets given as JSON do not name exactly these partitions; OffsetOutOfRange if an explicit or
    committed offset lies outside the readable bytes and failOnDataLoss is true (else it is moved to the nearest bound).
    """
    for option, bounds in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        if isinstance(bounds, Explicit):
            _check_partitions(option, bounds.offsets, [state.id for state in states])
    ranges = [
        OffsetRange(
            state.id,
            state.host,
            state.port,
            start=_position(options.starting, state, options.fail_on_data_loss),
            end=_position(options.ending, state, options.fail_on_data_loss),
        )
        for state in sorted(states, key=lambda state: state.id)
    ]
    return [found for found in ranges if found.start < found.end]


def _position(bounds: Bounds, state: PartitionState, strict: bool) -> int:
    wanted = _wanted(bounds, state)
    if wanted == EARLIEST:
        return state.first
    if wanted == LATEST:
        return state.end
    if strict and not state.first <= wanted <= state.end:
        raise DataLoss(state, wanted)
    return min(max(wanted, state.first), state.end)


def _wanted(bounds: Bounds, state: PartitionState) -> int:
    if isinstance(bounds, Explicit):
        return bounds.offsets[state.id.topic][str(state.id)]
    if bounds == "committed":
        return EARLIEST if state.committed is None else state.committed
    return EARLIEST if bounds == "earliest" else LATEST


class DataLoss(OffsetOutOfRange):
    """A query asks for bytes that the partition does not have (any more)."""

    def __init__(self, state: PartitionState, wanted: int) -> None:
        super().__init__(wanted, state.first, state.end)
        self.id = state.id
        self.args = (
            f"{state.id.topic} {state.id}: offset {wanted} is outside the readable bytes [{state.first}, {state.end}]: "
            "messages were deleted or the topic made anew; set failOnDataLoss=false to read what is there",
        )


def _check_partitions(option: str, offsets: Mapping[str, Mapping[str, int]], ids: Sequence[TopicPartition]) -> None:
    given = {f"{topic} {name}" for topic, names in offsets.items() for name in names}
    there = {f"{each.topic} {each}" for each in ids}
    if given != there:
        missing, unknown = sorted(there - given), sorted(given - there)
        said = [f"{len(missing)} missing ({', '.join(missing[:5])})"] if missing else []
        said += [f"{len(unknown)} unknown ({', '.join(unknown[:5])})"] if unknown else []
        shown = {topic: dict(names) for topic, names in offsets.items()}
        raise ConfigError(option, shown, f"partitions {' and '.join(said)}: name every partition of the topics once")
