"""The base class of the tables that are built from an internal log and are updated when records are added to the
log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..store.partition_log import PartitionLog

__all__ = ["LogReader"]


class LogReader(ABC):
    """A table that is built by reading an internal log, and is updated when records are added to the log. Used only on
    the reactor thread. The table is built again from the log's beginning in two cases:

    the log's end was cut off, or a part of the log was removed before it was read.
    """

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self._renewals = log.renewals
        self._read_to = log.first_offset

    @property
    def unread_bytes(self) -> int:
        """The number of bytes of the log that the next `read_on` would read."""
        return self.log.end_offset - (self.log.first_offset if self._is_other else self._read_to)

    @property
    def _is_other(self) -> bool:
        """Whether the whole log has to be read again, because its end was cut off or an unread part was removed."""
        return self.log.renewals != self._renewals or self._read_to < self.log.first_offset

    def read_on(self, most: int | None = None) -> None:
        """Read the part of the log that was not read yet, and update the table. most: about how much to read at most,
        with the meaning that the subclass's `_read` gives it; None means no limit. Raises StoreError.
        """
        if self._is_other:
            self.forget()
        self._read(most)

    def forget(self) -> None:
        """Drop everything that was read, so that the next `read_on` reads the whole log."""
        self._renewals, self._read_to = self.log.renewals, self.log.first_offset
        self._clear()

    @abstractmethod
    def _clear(self) -> None:
        """Empty the table."""

    @abstractmethod
    def _read(self, most: int | None) -> None:
        """Read the log from byte `_read_to` on, update the table, and set `_read_to` to the end of what was read."""
