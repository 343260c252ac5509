"""Index units for a worker thread: those in the file, read by a descriptor of its own, and a copy of the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np

from metaq.protocol.record import Buffer

from . import tuning
from .files import Files, read_exactly
from .index_blocks import UNIT_DTYPE, CheckedUnits, Unit, UnitArray, unreadable

__all__ = ["UnitReader"]


class UnitReader(CheckedUnits):
    """The units of one segment as they were when it was made. Use as a context manager, on one thread.

    What cannot be read raises IndexDamaged, or StoreError for want of descriptors or memory.
    """

    __slots__ = ("_fd", "_files", "_tail")

    def __init__(self, files: Files, path: str, stored: int, crc: int, tail: bytes = b"") -> None:
        """stored, crc: as of the segment's Index; tail: the units behind them."""
        super().__init__(path, stored, crc)
        self._files = files
        self._tail = np.frombuffer(tail, UNIT_DTYPE)
        self._fd = -1

    def __len__(self) -> int:
        return self.stored + len(self._tail)

    def __enter__(self) -> Self:
        if self.stored:
            try:
                self._fd = self._files.open(self.path, os.O_RDONLY)
            except OSError as error:
                raise unreadable(self.path, 0, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)

    def units(self, start: int, stop: int) -> UnitArray:
        """Units start … stop-1."""
        stored = self.stored
        stop = min(stop, len(self))
        if start >= stored:
            return self._tail[start - stored : stop - stored]
        units = self._stored_units(start, min(stop, stored)) if start < stop else self._tail[:0]
        return units if stop <= stored else np.concatenate([units, self._tail[: stop - stored]])

    def chunks(self, start: int, stop: int) -> Iterator[UnitArray]:
        """Units start … stop-1 in arrays of at most 2 MiB."""
        for first in range(start, stop, tuning.UNITS_PER_READ):
            yield self.units(first, min(stop, first + tuning.UNITS_PER_READ))

    def chunks_backwards(self, start: int, stop: int) -> Iterator[UnitArray]:
        """The same, the last array first."""
        for last in range(stop, start, -tuning.UNITS_PER_READ):
            yield self.units(max(start, last - tuning.UNITS_PER_READ), last)

    def with_id(self, message_id: int, start: int, stop: int, *, ascending: bool) -> int | None:
        """Number of the unit with this id among start … stop-1. ascending: their ids are known to be sorted."""
        if ascending:
            place = self._search(lambda unit: unit[1], message_id, start, stop)
            return place if place < stop and self.unit(place)[1] == message_id else None
        for chunk in self.chunks(start, stop):
            found = np.flatnonzero(chunk["id"] == message_id)
            if len(found):
                return start + int(found[0])
            start += len(chunk)
        return None

    def _load(self, size: int, position: int) -> Buffer:
        try:
            return read_exactly(self._files, self._fd, size, position)
        except OSError as error:
            raise unreadable(self.path, position, error) from error

    def _unstored(self, number: int) -> Unit:
        found: Unit = self._tail[number - self.stored].item()
        return found
