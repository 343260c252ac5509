"""Reading an internal log on as it grows."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..store.partition_log import PartitionLog

__all__ = ["LogReader"]


class LogReader(ABC):
    """What one internal log says. Reactor thread.

    A log whose end was cut, or that has lost what was not read, is read again from its beginning.
    """

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self._renewals = log.renewals
        self._read_to = log.first_offset

    @property
    def unread_bytes(self) -> int:
        """Of the log, which `read_on` would read."""
        return self.log.end_offset - (self.log.first_offset if self._is_other else self._read_to)

    @property
    def _is_other(self) -> bool:
        """Whether all is to be read again."""
        return self.log.renewals != self._renewals or self._read_to < self.log.first_offset

    def read_on(self, most: int | None = None) -> None:
        """Take what has come, to the log's end; most: about so much of it, as `_read` counts. Raises StoreError."""
        if self._is_other:
            self.forget()
        self._read(most)

    def forget(self) -> None:
        """Read all again, when `read_on` is called next."""
        self._renewals, self._read_to = self.log.renewals, self.log.first_offset
        self._clear()

    @abstractmethod
    def _clear(self) -> None:
        """Know nothing any more."""

    @abstractmethod
    def _read(self, most: int | None) -> None:
        """Take what is behind byte `_read_to`, and move that on."""
