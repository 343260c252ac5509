"""Which addresses the half messages of one internal log come from. Reactor thread."""

from __future__ import annotations

import numpy as np

from ..delays.table import NOWHERE, DelayTable
from ..memory.delayed_records import Ids
from ..runtime.account import NOBODY, Shares

__all__ = ["Senders"]


class _Sender:
    """An address. number: in the table. count: of its half messages that wait."""

    __slots__ = ("address", "count", "number")

    def __init__(self, address: str, number: int) -> None:
        self.address = address
        self.number = number
        self.count = 0


class Senders:
    """Counts each half message that waits, in `places`: for its address, or for nobody if another leader or an earlier
    start has taken it. 16 bytes for each that has an address."""

    def __init__(self, places: Shares) -> None:
        self._places = places
        self._numbers = DelayTable()  # of its sender, by id
        self._by_address: dict[str, _Sender] = {}
        self._by_number: dict[int, _Sender] = {}
        self._last = 0
        self._nobodys = 0

    def found(self, count: int) -> None:
        """So many wait that the log tells of."""
        self._nobodys += count
        self._places.add(NOBODY, count)

    def came(self, address: str, ids: Ids) -> None:
        """These come from there."""
        sender = self._by_address.get(address)
        if sender is None:
            self._last += 1
            sender = self._by_address[address] = self._by_number[self._last] = _Sender(address, self._last)
        self._numbers.insert(ids, np.full(len(ids), sender.number, np.int64))
        self._count(sender, len(ids))

    def went(self, ids: Ids, count: int) -> None:
        """So many of these have waited, and do not any more."""
        numbers = self._numbers.remove(ids)
        for number, mine in zip(*(each.tolist() for each in np.unique(numbers, return_counts=True)), strict=True):
            if number != NOWHERE:
                self._count(self._by_number[number], -mine)
                count -= mine
        self.found(-count)

    def clear(self) -> None:
        """None waits any more."""
        for sender in list(self._by_address.values()):
            self._count(sender, -sender.count)
        self.found(-self._nobodys)
        self._numbers.clear()

    def _count(self, sender: _Sender, count: int) -> None:
        sender.count += count
        self._places.add(sender.address, count)
        if not sender.count:
            del self._by_address[sender.address], self._by_number[sender.number]
