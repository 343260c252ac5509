"""Remember the half messages that a producer has sent itself, and answer brokers' questions about them.

The producer knows more about its own half messages than any check can find out. The producer gives no answer while a
half message is in flight, while it waits for a thread, or while its local work runs. In these cases a check would
truthfully say that nothing is committed, although the local work may commit something a moment later. If the send has
failed, no local work follows, so the answer is "rolled back", without a check. If a transaction was left open, the
check function that was passed to its own call answers. For any other half message (its broker may have lost the
outcome) the check of its topic answers.

A half message in flight is identified by a number of the producer's own, because its id is known only from the broker's
answer. If a broker asks about an id that the producer does not know, the id may belong to any half message that is in
flight at that time. If the producer still does not know the id after all these sends have ended, no local work will
follow for the message.
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
    """The half messages that one producer has sent. Any thread may call the methods, because each step is a single
    operation on a dict or set. The order of the steps ensures that a concurrent question gets no answer rather than a
    wrong one.
    """

    def __init__(self) -> None:
        self._numbers = count(1)
        self._sending: dict[int, None] = {}
        self._busy: set[int] = set()  # ids of half messages whose local work may be in progress
        self._left_open: dict[int, Any] = {}  # the answer, or the check that gives it; None: the topic's check
        self._asked: dict[int, int] = {}  # ids unknown here → the next free number at the first question
        self._failed: dict[int, None] = {}  # hashes of half messages that a broker may have but that get no local work

    # --- a transaction's way ------------------------------------------------------------------------------------------

    def send(self) -> int:
        """Record that a half message is about to be sent; return the number that identifies it until its id is
        known.
        """
        number = next(self._numbers)
        self._sending[number] = None
        return number

    def sent(self, number: int, half_id: int) -> None:
        """Record the id of a sent half message. From now on its local work may begin."""
        self._busy.add(half_id)
        self._sending.pop(number, None)

    def not_sent(self, number: int, topic: str, body: bytes) -> None:
        """Record that the send of a half message has failed, perhaps after the message reached the broker. Its local
        work will not be done.
        """
        _put_bounded(self._failed, hash((topic, body)), None)
        self._sending.pop(number, None)

    def left_open(self, half_id: int, answer: Check | HalfOutcome | None) -> None:
        """Record that a transaction is left open. Its local work has ended or will never begin, and its broker may ask
        for the outcome.

        answer: the answer to the broker's question, or a check function that returns this answer. None: call the check
        function of the topic.
        """
        _put_bounded(self._left_open, half_id, answer)
        self._busy.discard(half_id)

    def decided(self, half_ids: Sequence[int]) -> None:
        """Record that the brokers of these half messages know the outcomes."""
        if self._left_open:
            for each in half_ids:
                self._left_open.pop(each, None)
        self._busy.difference_update(half_ids)

    # --- questions ----------------------------------------------------------------------------------------------------

    def answer(self, half_id: int, topic: str, body: bytes, check: Check | None) -> Check | HalfOutcome | None:
        """Return the answer to a broker's question about a half message of this producer, or the check function to call
        for it. Return None if there is no answer now. check: the check function of the message's topic.
        """
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
