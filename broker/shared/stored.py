"""What an internal log `/shared` says of shared groups, read on as it grows: at the start, and by nodes that follow."""

from __future__ import annotations

from typing import NamedTuple

from ..memory.reading import LogReader
from ..store.partition_log import PartitionLog
from .filters import GroupFilter
from .rows import RowKind, RowSection, SharedKey, apply, read_bodies, read_filter, read_state, sections
from .state import Limits, SharedState

__all__ = ["StoredState", "StoredStates"]


class StoredState(NamedTuple):
    """serial: of the last record that says something of it. state: None if it was forgotten. filter: the group's on the
    topic, and filter_serial of the record that says so; None: an earlier version has written it."""

    serial: int
    state: SharedState | None
    filter: GroupFilter | None = None
    filter_serial: int = -1


class StoredStates(LogReader):
    """Of one log."""

    def __init__(self, log: PartitionLog, limits: Limits) -> None:
        super().__init__(log)
        self._limits = limits
        self._states: dict[SharedKey, StoredState] = {}
        self.serial = 0
        """The biggest that was read."""

    def _clear(self) -> None:
        self._states.clear()

    def _read(self, most: int | None) -> None:
        """most: bytes."""
        for end, body in read_bodies(self.log.segments.snapshot(), self._read_to, most):
            serial, found = sections(body)
            for section in found:
                self._take(serial, section)
            self.serial = max(self.serial, serial)
            self._read_to = end

    def _take(self, serial: int, section: RowSection) -> None:
        key = section.key
        state: SharedState | None = None
        found: GroupFilter | None = None
        filter_serial = -1
        if section.kind is RowKind.STATE:
            state = SharedState(0, self._limits)
            read_state(section.payload, state)
        elif section.kind is RowKind.FORGOTTEN:
            state = None
        elif (known := self._states.get(key)) is not None and known.state is not None:
            state, found, filter_serial = known.state, known.filter, known.filter_serial
            said = read_filter(section)
            if said is None:
                apply(section, state)
            else:
                found, filter_serial = said, serial
        else:  # the other log has what was before: its later rows begin with a STATE
            return
        self._states[key] = StoredState(serial, state, found, filter_serial)

    def take_all(self) -> dict[SharedKey, StoredState]:
        """What was read, which belongs to the caller from now on: the log is read again if it is asked for anew."""
        states, self._states = self._states, {}
        self.forget()
        return states
