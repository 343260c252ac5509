"""Assign message ids, which are never used twice and always increase."""

from __future__ import annotations

import time
from collections.abc import Callable

from metaq.protocol.message_id import LAST_COUNTER, MAX_BROKER_ID, counter_at, counter_of, foreign_from, message_id

__all__ = ["MessageIds"]


class MessageIds:
    """Assigns the message ids of one broker (protocol/message_id.py). Used only on the reactor thread.

    An id consists of a counter and the broker's id. The counter is the present time by the wall clock if this time is
    above the last counter. Otherwise (the clock was set back, or more than 4,096 ids are needed in a millisecond) it is
    the last counter plus one. After a restart the counter begins above `floor_id`, the largest id in the store. If the
    clock is so wrong that an id with its time would not be positive, the clock is ignored, and the counter is the last
    counter plus one. A `floor_id` is ignored if it is a foreign id, which is an id so large that no metaq broker can
    have assigned it yet (foreign_from in protocol/message_id.py).
    """

    def __init__(self, broker_id: int, clock: Callable[[], float] = time.time, floor_id: int = 0) -> None:
        """clock: returns seconds since 1970. floor_id: the largest id in the store, or 0 if the store is empty."""
        if not 0 <= broker_id <= MAX_BROKER_ID:
            raise ValueError(f"broker id {broker_id} is not in 0 … {MAX_BROKER_ID}")
        self._broker_id = broker_id
        self._clock = clock
        # after a move of the directory, floor_id may contain another broker's id; so all ids with its counter value
        # count as used
        self._next = 1
        self.begin_above(floor_id)

    def begin_above(self, floor_id: int) -> None:
        """From now on assign only ids that are larger than `floor_id`. A floor_id of 0 or less, or a foreign id, has no
        effect.
        """
        if 0 < floor_id < foreign_from(int(self._clock() * 1000)):
            self._next = max(self._next, counter_of(floor_id) + 1)

    def next(self, count: int = 1) -> int:
        """Assign `count` new ids with consecutive counter values, and return the first id; message_ids_from computes
        all ids from the first one.
        """
        counter = counter_at(int(self._clock() * 1000))
        if counter < self._next or counter > LAST_COUNTER:
            counter = self._next
        self._next = counter + count
        return message_id(counter, self._broker_id)
