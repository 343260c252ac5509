"""Index units for a worker thread: those in the file, read by a descriptor of its own, and a copy of the others."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np

from .files import Files, read_exactly
from .index import HEADER_BYTES, UNIT, UNIT_BYTES, UNIT_DTYPE, UnitArray

__all__ = ["UnitReader"]

_CHUNK_UNITS = 1 << 16


class UnitReader:
    """The units of one segment as they were when it was made. Use as a context manager, on one thread."""

    def __init__(self, files: Files, path: str, stored: int, tail: bytes = b"") -> None:
        """stored: how many units the file has; tail: those behind them. Raises OSError when entered."""
        self._files = files
        self._path = path
        self._stored = stored
        self._tail = np.frombuffer(tail, UNIT_DTYPE)
        self._fd = -1

    def __len__(self) -> int:
        return self._stored + len(self._tail)

    def __enter__(self) -> Self:
        if self._stored:
            self._fd = self._files.open(self._path, os.O_RDONLY)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)

    def units(self, start: int, stop: int) -> UnitArray:
        """Units start … stop-1. Raises OSError, also if the file is shorter than it was."""
        stored = self._stored
        stop = min(stop, len(self))
        if start >= stored:
            return self._tail[start - stored : stop - stored]
        size = (min(stop, stored) - start) * UNIT_BYTES
        data = read_exactly(self._files, self._fd, size, HEADER_BYTES + start * UNIT_BYTES)
        if len(data) < size:
            raise OSError(f"{self._path} ends before its unit {min(stop, stored)}")
        units = np.frombuffer(data, UNIT_DTYPE)
        return units if stop <= stored else np.concatenate([units, self._tail[: stop - stored]])

    def unit(self, number: int) -> tuple[int, int, int, int, int]:
        """One unit: (offset, id, time_ms, size, tag)."""
        if number >= self._stored:
            found: tuple[int, int, int, int, int] = self._tail[number - self._stored].item()
            return found
        data = self._files.pread(self._fd, UNIT_BYTES, HEADER_BYTES + number * UNIT_BYTES)
        if len(data) < UNIT_BYTES:
            raise OSError(f"{self._path} ends before its unit {number + 1}")
        return UNIT.unpack(data)

    def chunks(self, start: int, stop: int) -> Iterator[UnitArray]:
        """Units start … stop-1 in arrays of at most 2 MiB."""
        for first in range(start, stop, _CHUNK_UNITS):
            yield self.units(first, min(stop, first + _CHUNK_UNITS))

    def chunks_backwards(self, start: int, stop: int) -> Iterator[UnitArray]:
        """The same, the last array first."""
        for last in range(stop, start, -_CHUNK_UNITS):
            yield self.units(max(start, last - _CHUNK_UNITS), last)

    def starting_before(self, offset: int) -> int:
        """Number of units of records that begin before `offset`."""
        return bisect_left(range(len(self)), offset, key=lambda number: self.unit(number)[0])

    def stored_before(self, time_ms: int) -> int:
        """Number of units whose store time, or its bound, is before `time_ms` (Unix ms)."""
        return bisect_left(range(len(self)), time_ms, key=lambda number: abs(self.unit(number)[2]))

    def with_id(self, message_id: int, start: int, stop: int, *, ascending: bool) -> int | None:
        """Number of the unit with this id among start … stop-1. ascending: their ids are known to be sorted."""
        if ascending:
            place = bisect_left(range(stop), message_id, start, stop, key=lambda number: self.unit(number)[1])
            return place if place < stop and self.unit(place)[1] == message_id else None
        for chunk in self.chunks(start, stop):
            found = np.flatnonzero(chunk["id"] == message_id)
            if len(found):
                return start + int(found[0])
            start += len(chunk)
        return None
