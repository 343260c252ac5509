"""The half messages that a producer has sent itself: which of them it answers for, and with what.

The producer knows more of them than any check can find out. While one is on its way, waits for a thread or has its
local work under way, nothing is said of it: a check would truthfully say that nothing is committed, just before
something is. One whose send has failed is never worked on: it is rolled back without a check. One that was left open is
answered by the check of its own call. For any other one (its broker may have lost what it was told) the check of its
topic answers.

A half message is on its way under a number, because its id comes with the answer. One that is asked about and not known
here may be any of those that were on their way then; once these have ended, it is none that will be worked on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar

from metaq.protocol.halves import HalfOutcome

from ..records.message import Message
from . import tuning

__all__ = ["Check", "OwnHalves"]

Check = Callable[[Message], bool | HalfOutcome | None]
"""check(message): True = its transaction is committed, False = rolled back, None = that cannot be told yet."""

V = TypeVar("V")
_UNKNOWN = object()


class OwnHalves:
    """Of one producer. Any thread: each step is one call of a dict or set, in an order that makes a look in between
    find nothing to be said rather than something wrong."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._sending: dict[int, None] = {}
        self._busy: set[int] = set()  # their local work may be under way
        self._left_open: dict[int, Any] = {}  # who or what answers; None: the topic's check
        self._asked: dict[int, int] = {}  # not known here → a number that was free when it was asked about first
        self._failed: dict[int, None] = {}  # hashes of what may have come to a broker and will not be worked on

    # --- a transaction's way ------------------------------------------------------------------------------------------

    def send(self) -> int:
        """A half message is going to be sent; its number."""
        number = next(self._numbers)
        self._sending[number] = None
        return number

    def sent(self, number: int, half_id: int) -> None:
        """It has its id: its local work may begin."""
        self._busy.add(half_id)
        self._sending.pop(number, None)

    def not_sent(self, number: int, topic: str, body: bytes) -> None:
        """Its send has failed, perhaps behind its broker: there will be no local work."""
        _put_bounded(self._failed, hash((topic, body)), None)
        self._sending.pop(number, None)

    def left_open(self, half_id: int, answer: Check | HalfOutcome | None) -> None:
        """Its local work has ended, or will never begin, and its broker may ask. answer: what then answers; None: the
        check of its topic."""
        _put_bounded(self._left_open, half_id, answer)
        self._busy.discard(half_id)

    def decided(self, half_ids: Sequence[int]) -> None:
        """Their broker knows the outcomes."""
        if self._left_open:
            for each in half_ids:
                self._left_open.pop(each, None)
        self._busy.difference_update(half_ids)

    # --- questions ----------------------------------------------------------------------------------------------------

    def answer(self, half_id: int, topic: str, body: bytes, check: Check | None) -> Check | HalfOutcome | None:
        """Who or what answers for a half message of this producer; None: nobody now. check: that of its topic."""
        if half_id in self._busy:
            return None
        if (left := self._left_open.get(half_id, _UNKNOWN)) is _UNKNOWN:
            first = self._asked.get(half_id) or next(self._numbers)
            on_its_way = any(number < first for number in list(self._sending))  # before the others are looked at again
            if half_id in self._busy:
                return None
            if (left := self._left_open.get(half_id, _UNKNOWN)) is _UNKNOWN:
                if on_its_way:
                    _put_bounded(self._asked, half_id, first)
                    return None
                self._asked.pop(half_id, None)
                return HalfOutcome.ROLLED_BACK if hash((topic, body)) in self._failed else check
        return left or check


def _put_bounded(values: dict[int, V], key: int, value: V) -> None:
    values[key] = value
    while len(values) > tuning.LEFT_OPEN:
        try:
            values.pop(next(iter(values)), None)
        except (StopIteration, RuntimeError):  # another thread has changed it
            continue
