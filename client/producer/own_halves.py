"""The half messages that a producer has sent itself, and its answers for them.

The producer knows more about them than any check can find out. While a half message is in flight, waits for a thread,
or its local work runs, there is no answer: a check would truthfully say that nothing is committed, just before
something is. If the send has failed, no local work follows: it is rolled back without a check. If it was left open, the
check of its own call answers. For any other one (its broker may have lost the outcome) the check of its topic answers.

A half message in flight has a number, because its id comes with the answer. If a broker asks for one that is not known
here, it may be any of those in flight at that time. Once these have ended, it is none that will be worked on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar

from metaq.protocol.half_messages import HalfOutcome

from ..records.message import Message
from . import tuning

__all__ = ["Check", "OwnHalves"]

Check = Callable[[Message], bool | HalfOutcome | None]
"""check(message): True = its transaction is committed, False = rolled back, None = that cannot be told yet."""

V = TypeVar("V")
_UNKNOWN = object()


class OwnHalves:
    """The own half messages of one producer. Any thread: each step is one call of a dict or set. The order of the steps
    ensures that a concurrent look finds no answer rather than a wrong one."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._sending: dict[int, None] = {}
        self._busy: set[int] = set()  # their local work may be under way
        self._left_open: dict[int, Any] = {}  # the answer or the check that gives it; None: the topic's check
        self._asked: dict[int, int] = {}  # not known here → a number that was free at the first question
        self._failed: dict[int, None] = {}  # hashes of those that a broker may have but that get no work

    # --- a transaction's way ------------------------------------------------------------------------------------------

    def send(self) -> int:
        """Note that a half message is about to be sent; return its number."""
        number = next(self._numbers)
        self._sending[number] = None
        return number

    def sent(self, number: int, half_id: int) -> None:
        """Note its id: its local work may begin."""
        self._busy.add(half_id)
        self._sending.pop(number, None)

    def not_sent(self, number: int, topic: str, body: bytes) -> None:
        """Its send has failed, perhaps after it reached the broker: there will be no local work."""
        _put_bounded(self._failed, hash((topic, body)), None)
        self._sending.pop(number, None)

    def left_open(self, half_id: int, answer: Check | HalfOutcome | None) -> None:
        """Its local work has ended, or will never begin, and its broker may ask. answer: the answer, or a check for it;
        None: the check of its topic."""
        _put_bounded(self._left_open, half_id, answer)
        self._busy.discard(half_id)

    def decided(self, half_ids: Sequence[int]) -> None:
        """Note that their broker knows the outcomes."""
        if self._left_open:
            for each in half_ids:
                self._left_open.pop(each, None)
        self._busy.difference_update(half_ids)

    # --- questions ----------------------------------------------------------------------------------------------------

    def answer(self, half_id: int, topic: str, body: bytes, check: Check | None) -> Check | HalfOutcome | None:
        """Return the answer, or the check for it, of a half message of this producer; None: no answer now. check: of
        its topic."""
        if half_id in self._busy:
            return None
        if (left := self._left_open.get(half_id, _UNKNOWN)) is _UNKNOWN:
            first = self._asked.get(half_id) or next(self._numbers)
            on_its_way = any(number < first for number in list(self._sending))  # before the others are looked up again
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
