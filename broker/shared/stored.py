"""Read the states of shared groups from an internal log `/shared`. The log is read when the broker starts. A follower
of a broker set also reads what the leader appends to the log later.
"""

from __future__ import annotations

from typing import NamedTuple

from ..memory.reading import LogReader
from ..memory.records import read_bodies
from ..store.partition_log import PartitionLog
from .group_filter import GroupFilter
from .rows import RowKind, RowSection, SharedKey, apply, read_filter, read_state, sections
from .state import Limits, SharedState

__all__ = ["StoredState", "StoredStates"]


class StoredState(NamedTuple):
    """The stored state of one group on one partition. serial: the serial number (rows.py) of the last record about this
    group and partition. state: None if the group was forgotten.
    filter: the group's filter on the topic. `filter` is None if the state was written by an earlier version of the
        broker, which stored no filters.
    filter_serial: the serial number of the record that contains the filter.
    """

    serial: int
    state: SharedState | None
    filter: GroupFilter | None = None
    filter_serial: int = -1


class StoredStates(LogReader):
    """Reads the states of shared groups that are stored in one log."""

    def __init__(self, log: PartitionLog, limits: Limits) -> None:
        super().__init__(log)
        self._limits = limits
        self._states: dict[SharedKey, StoredState] = {}
        self.serial = 0
        """The highest serial number among the records that were read."""

    def _clear(self) -> None:
        self._states.clear()

    def _read(self, most: int | None) -> None:
        """Read the log from the position where the last call has ended. most: the maximum number of bytes to read. None
        means no limit.
        """
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
        else:  # the earlier state is in the other log; later rows here begin with a STATE
            return
        self._states[key] = StoredState(serial, state, found, filter_serial)

    def take_all(self) -> dict[SharedKey, StoredState]:
        """Return the states that were read, and drop this object's references to them. If the states are needed again,
        the object must read the log again from its beginning.
        """
        states, self._states = self._states, {}
        self.forget()
        return states
