"""Gives out message ids that never repeat and never go back."""

from __future__ import annotations

import time
from collections.abc import Callable

from metaq.protocol.message_id import LAST_COUNTER, MAX_BROKER_ID, counter_at, counter_of, foreign_from, message_id

__all__ = ["MessageIds"]


class MessageIds:
    """Ids of one broker (protocol/message_id.py). Lives on the reactor thread.

    The counter follows the wall clock but never goes back: when the clock steps back, or more than 4,096 ids a
    millisecond are taken, it counts on from its last value. After a restart it begins above `floor_id`, the largest id
    in the store. Ids are positive: the counter follows neither a clock beyond the last id nor a foreign id.
    """

    def __init__(self, broker_id: int, clock: Callable[[], float] = time.time, floor_id: int = 0) -> None:
        """clock: seconds since 1970. floor_id: 0 if the store is empty."""
        if not 0 <= broker_id <= MAX_BROKER_ID:
            raise ValueError(f"broker id {broker_id} is not in 0 … {MAX_BROKER_ID}")
        self._broker_id = broker_id
        self._clock = clock
        # the floor may have another broker's id (a moved directory): all ids of its counter value count as used
        self._next = 1
        self.begin_above(floor_id)

    def begin_above(self, floor_id: int) -> None:
        """Give only ids above this one from now on. Ids of 0 and below, and foreign ids, change nothing."""
        if 0 < floor_id < foreign_from(int(self._clock() * 1000)):
            self._next = max(self._next, counter_of(floor_id) + 1)

    def next(self, count: int = 1) -> int:
        """Return the first of `count` consecutive new ids; message_ids_from gives all of them."""
        counter = counter_at(int(self._clock() * 1000))
        if counter < self._next or counter > LAST_COUNTER:
            counter = self._next
        self._next = counter + count
        return message_id(counter, self._broker_id)
