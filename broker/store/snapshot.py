"""A partition as a worker thread sees it: a value that the owning thread makes, with reads that wait for the disk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from metaq.protocol.errors import OffsetOutOfRange, StoreError

from .damage import place_by_walking
from .files import Files, opened, read_exactly

__all__ = ["SegmentName", "Snapshot", "find_segment"]

T = TypeVar("T")


class SegmentName(Protocol):
    """What other threads may know of a segment."""

    @property
    def path(self) -> str: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def removed(self) -> bool:
        """Whether retention has taken it meanwhile."""


S = TypeVar("S", bound=SegmentName)


def find_segment(segments: Sequence[S], visible_end: int, offset: int) -> tuple[S, int]:
    """The segment that has the byte `offset`, and the byte offset where what is readable of it ends.

    Raises OffsetOutOfRange(first, visible end).
    """
    number = len(segments) - 1
    if offset < segments[number].first_offset:
        number = bisect_right(segments, offset, key=_first_offset) - 1
        if number >= 0:
            return segments[number], min(segments[number + 1].first_offset, visible_end)
    elif offset <= visible_end:
        return segments[number], visible_end
    raise OffsetOutOfRange(offset, segments[0].first_offset, visible_end)


def _first_offset(segment: SegmentName) -> int:
    return segment.first_offset


class Snapshot(NamedTuple):
    """The readable bytes of a partition at one moment. Any thread; files are read by descriptors of its own.

    All methods raise OffsetOutOfRange(first, visible end), also if retention is faster, and StoreError if a file cannot
    be read.
    """

    files: Files
    segments: Sequence[SegmentName]
    visible_end: int

    def extent(self, offset: int, max_bytes: int) -> tuple[SegmentName, int]:
        """The segment that has `offset` and how many readable bytes of it may be given.

        Raises ValueError for max_bytes <= 0.
        """
        if max_bytes <= 0:
            raise ValueError(f"max_bytes {max_bytes} must be positive")
        segment, end = find_segment(self.segments, self.visible_end, offset)
        return segment, min(max_bytes, end - offset)

    def read(self, offset: int, max_bytes: int) -> bytes:
        """At most `max_bytes` stored bytes from `offset` on, of one segment, up to visible_end; b"" there.

        The last record may be cut.
        """
        segment, length = self.extent(offset, max_bytes)
        if not length:
            return b""
        return self.look(segment, partial(_read, size=length, position=offset - segment.first_offset))

    def record_start(self, offset: int) -> int:
        """Where the record that has this byte starts, by walking from the segment's start: up to 0.4 µs a record.

        Behind damage it goes on at the next good record; inside, the damage's start is given.
        """
        segment, end = find_segment(self.segments, self.visible_end, offset)
        first = segment.first_offset
        walk = partial(place_by_walking, first_offset=first, start=first, end=end, offset=offset)
        return self.look(segment, walk).start

    def look(self, segment: SegmentName, question: Callable[[Files, int], T]) -> T:
        """What `question(files, descriptor)` says of a segment's data file."""
        try:
            with opened(self.files, segment.path) as fd:
                return question(self.files, fd)
        except FileNotFoundError:
            if segment.removed:
                raise self.out_of_range(segment.first_offset) from None
            raise StoreError(f"{segment.path} is gone") from None
        except OSError as error:
            raise StoreError(f"{segment.path} cannot be read: {error}") from error

    def out_of_range(self, offset: int) -> OffsetOutOfRange:
        """For a reader of what retention has taken since: where it can go on now."""
        kept = (segment.first_offset for segment in self.segments if not segment.removed)
        return OffsetOutOfRange(offset, next(kept, self.visible_end), self.visible_end)


def _read(files: Files, fd: int, size: int, position: int) -> bytes:
    return read_exactly(files, fd, size, position)
