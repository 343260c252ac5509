"""Count how many waiting half messages of one internal log each client address has sent. Used only on the reactor
thread.
"""

from __future__ import annotations

import numpy as np

from ..delays.waiting_table import NOWHERE, WaitingTable
from ..memory.delayed_records import Ids
from ..runtime.account import NOBODY, Shares

__all__ = ["Senders"]


class _Sender:
    """A client address that has sent half messages. number: stands for this address in a WaitingTable, which has
    numbers in place of strings. count: how many waiting half messages the address has sent.
    """

    __slots__ = ("address", "count", "number")

    def __init__(self, address: str, number: int) -> None:
        self.address = address
        self.number = number
        self.count = 0


class Senders:
    """Counts, in the account `places`, how many waiting half messages each address has sent. The sender of a half
    message is unknown if another leader has received the message, or if the message arrived before the broker's
    restart; such a half message counts for NOBODY. Each half message with an address takes 16 bytes of memory.
    """

    def __init__(self, places: Shares) -> None:
        self._places = places
        self._numbers = WaitingTable()  # by id: the sender's number
        self._by_address: dict[str, _Sender] = {}
        self._by_number: dict[int, _Sender] = {}
        self._last = 0
        self._nobodys = 0

    def found(self, count: int) -> None:
        """Add `count` to the count of NOBODY, because this many waiting half messages were read from the log, and their
        senders are unknown.
        """
        self._nobodys += count
        self._places.add(NOBODY, count)

    def came(self, address: str, ids: Ids) -> None:
        """Increase the count of an address by the half messages that this address has just sent."""
        sender = self._by_address.get(address)
        if sender is None:
            self._last += 1
            sender = self._by_address[address] = self._by_number[self._last] = _Sender(address, self._last)
        self._numbers.insert(ids, np.full(len(ids), sender.number, np.int64))
        self._count(sender, len(ids))

    def went(self, ids: Ids, count: int) -> None:
        """Decrease the counts of the senders of the half messages `ids`, because these no longer wait. count: how many
        of the messages have waited until now; ids of other messages are ignored.
        """
        numbers = self._numbers.remove(ids)
        for number, mine in zip(*(each.tolist() for each in np.unique(numbers, return_counts=True)), strict=True):
            if number != NOWHERE:
                self._count(self._by_number[number], -mine)
                count -= mine
        self.found(-count)

    def clear(self) -> None:
        """Subtract all half messages of this log from the counts."""
        for sender in list(self._by_address.values()):
            self._count(sender, -sender.count)
        self.found(-self._nobodys)
        self._numbers.clear()

    def _count(self, sender: _Sender, count: int) -> None:
        sender.count += count
        self._places.add(sender.address, count)
        if not sender.count:
            del self._by_address[sender.address], self._by_number[sender.number]
