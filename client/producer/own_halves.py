"""The half messages that a producer has sent itself, and its answers about them.

The producer knows more about its own half messages than any check can find out. There is no answer while a half message
is in flight, while it waits for a thread, or while its local work runs. A check would truthfully say that nothing is
committed, just before something is committed. If the send has failed, no local work follows, so the answer is "rolled
back", without a check. If the transaction was left open, the check of its own call answers. For any other half message
(its broker may have lost the outcome) the check of its topic answers.

A half message in flight has a number, because its id comes with the answer. If a broker asks about an id that is not
known here, the message may be any of those in flight at that time. Once all of these have ended, no local work will
follow for it.
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
"""check(message): True = its transaction is committed, False = rolled back, None = unknown yet."""

V = TypeVar("V")
_UNKNOWN = object()


class OwnHalves:
    """The own half messages of one producer. Any thread: each step is one call of a dict or set. The order of the steps
    ensures that a concurrent question finds no answer rather than a wrong one."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._sending: dict[int, None] = {}
        self._busy: set[int] = set()  # ids of half messages whose local work may be in progress
        self._left_open: dict[int, Any] = {}  # the answer, or the check that gives it; None: the topic's check
        self._asked: dict[int, int] = {}  # ids unknown here → the next free number at the first question
        self._failed: dict[int, None] = {}  # hashes of half messages that a broker may have but that get no local work

    # --- a transaction's way ------------------------------------------------------------------------------------------

    def send(self) -> int:
        """Note that a half message is about to be sent; return its number."""
        number = next(self._numbers)
        self._sending[number] = None
        return number

    def sent(self, number: int, half_id: int) -> None:
        """Note the id of a half message: its local work may begin."""
        self._busy.add(half_id)
        self._sending.pop(number, None)

    def not_sent(self, number: int, topic: str, body: bytes) -> None:
        """Note that a send has failed, perhaps after it reached the broker: there will be no local work."""
        _put_bounded(self._failed, hash((topic, body)), None)
        self._sending.pop(number, None)

    def left_open(self, half_id: int, answer: Check | HalfOutcome | None) -> None:
        """Note that a transaction is left open: its local work has ended, or will never begin, and its broker may ask.

        answer: the answer, or a check for it; None: the check of its topic.
        """
        _put_bounded(self._left_open, half_id, answer)
        self._busy.discard(half_id)

    def decided(self, half_ids: Sequence[int]) -> None:
        """Note that the brokers of these half messages know the outcomes."""
        if self._left_open:
            for each in half_ids:
                self._left_open.pop(each, None)
        self._busy.difference_update(half_ids)

    # --- questions ----------------------------------------------------------------------------------------------------

    def answer(self, half_id: int, topic: str, body: bytes, check: Check | None) -> Check | HalfOutcome | None:
        """Return the answer about a half message of this producer, or the check for it; None: no answer now. check: the
        check of its topic."""
        if half_id in self._busy:
            return None
        if (left := self._left_open.get(half_id, _UNKNOWN)) is _UNKNOWN:
            first = self._asked.get(half_id) or next(self._numbers)
            # must be read before the id is looked up again in the other tables
            on_its_way = any(number < first for number in list(self._sending))
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
