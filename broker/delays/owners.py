"""Count how many bytes of the waiting messages of one internal log each user has sent. Used only on the reactor
thread.
"""

from __future__ import annotations

import numpy as np

from metaq.protocol.access import NO_USER, Quota

from ..memory.delayed_records import Ids
from ..runtime.user_quotas import UserQuotas
from .waiting_table import NOWHERE, WaitingTable

__all__ = ["Owners"]

_SIZE_BITS = 32
"""How many bits of a number in the table are the size of a message's record; the higher bits are the user's number."""


class _Owner:
    """A user who has sent waiting messages. number: stands for the user in the table. size: the bytes of all records
    of his waiting messages.
    """

    __slots__ = ("number", "size", "user")

    def __init__(self, user: str, number: int) -> None:
        self.user = user
        self.number = number
        self.size = 0


class Owners:
    """Counts, for one quota, the bytes of the records of each user's waiting messages. A message counts for nobody if
    its sender is no user, if it arrived before the broker's restart, or if another leader has received it. Each message
    that counts takes 16 bytes of memory.
    """

    def __init__(self, users: UserQuotas, quota: Quota) -> None:
        self._users = users
        self._quota = quota
        self._table = WaitingTable()  # by id: the number of the user, and the size of the record
        self._by_user: dict[str, _Owner] = {}
        self._by_number: dict[int, _Owner] = {}
        self._last = 0

    def came(self, user: str, ids: Ids, sizes: Ids) -> None:
        """Count messages that the user has just sent. sizes: the size of each message's record in bytes."""
        if user == NO_USER:
            return
        owner = self._by_user.get(user)
        if owner is None:
            self._last += 1
            owner = self._by_user[user] = self._by_number[self._last] = _Owner(user, self._last)
        self._table.insert(ids, sizes | (owner.number << _SIZE_BITS))
        self._count(owner, int(sizes.sum()))

    def went(self, ids: Ids) -> None:
        """Stop to count these messages, because they no longer wait. Ids of other messages are ignored."""
        if not len(self._table):
            return
        found = self._table.remove(ids)
        found = found[found != NOWHERE]
        numbers, which = np.unique(found >> _SIZE_BITS, return_inverse=True)
        sizes = np.zeros(len(numbers), np.int64)
        np.add.at(sizes, which, found & ((1 << _SIZE_BITS) - 1))
        for number, size in zip(numbers.tolist(), sizes.tolist(), strict=True):
            self._count(self._by_number[number], -size)

    def clear(self) -> None:
        """Count no message of this log any more."""
        for owner in list(self._by_user.values()):
            self._count(owner, -owner.size)
        self._table.clear()

    def _count(self, owner: _Owner, size: int) -> None:
        owner.size += size
        self._users.add(owner.user, self._quota, size)
        if not owner.size:
            del self._by_user[owner.user], self._by_number[owner.number]
