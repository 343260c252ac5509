"""Remember the half messages that a producer has sent itself, and answer brokers' questions about them.

A broker that does not know the outcome of a half message asks a producer. Usually a check function of the user finds
the answer, but the producer knows more than the check function about the half messages that it has sent itself. In
three cases the producer gives no answer: the half message is in flight, it waits for a thread to begin its local work,
or its local work is running. In these cases a check function would truthfully say that nothing is committed, although
the local work may commit something a moment later. If the send of the half message has failed, its local work is never
begun, so the producer answers "rolled back" without a check function. If a transaction was left open, the check
function that was passed to its call of send_in_transaction answers. For any other half message (for example, if the
broker has lost the outcome) the check function of its topic answers.

The producer learns the id of a half message only from the broker's answer; until then it identifies the message by a
number of its own. So if a broker asks about an unknown id, the id may belong to any half message that is in flight at
that time, and the producer gives no answer. If the id is still unknown when all sends that were in flight at the first
question have ended, the local work of this half message will never begin, and the question can be answered.
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
"""The type of a user's check function: check(message) returns True if the message's transaction is committed, False if
it is rolled back, and None or HalfOutcome.UNKNOWN if that is not known yet.
"""

V = TypeVar("V")
_UNKNOWN = object()


class OwnHalves:
    """The half messages that one producer has sent. Any thread may call the methods: they use no lock, but only
    operations on a dict or set that no other thread can interrupt. They do these operations in such an order that a
    broker's question that comes in the middle gets no answer rather than a wrong one.
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
        """Record the id that the broker has given to a half message. The caller may begin the local work after this
        call.
        """
        self._busy.add(half_id)
        self._sending.pop(number, None)

    def not_sent(self, number: int, topic: str, body: bytes) -> None:
        """Record that the send of a half message has failed, so that its local work will never be done. The broker may
        have stored the message nevertheless.
        """
        _put_bounded(self._failed, hash((topic, body)), None)
        self._sending.pop(number, None)

    def left_open(self, half_id: int, answer: Check | HalfOutcome | None) -> None:
        """Record that the producer leaves a transaction open: its local work has ended or will never begin, and its
        broker does not know the outcome and may ask for it.

        answer: what to answer when the broker asks: the outcome, or a check function that returns it. If it is None,
        the check function of the topic answers.
        """
        _put_bounded(self._left_open, half_id, answer)
        self._busy.discard(half_id)

    def decided(self, half_ids: Sequence[int]) -> None:
        """Record that the brokers of these half messages have received the outcomes, so that they will not ask any
        more.
        """
        if self._left_open:
            for each in half_ids:
                self._left_open.pop(each, None)
        self._busy.difference_update(half_ids)

    # --- questions ----------------------------------------------------------------------------------------------------

    def answer(self, half_id: int, topic: str, body: bytes, check: Check | None) -> Check | HalfOutcome | None:
        """Return the answer to a broker's question about a half message that this producer may have sent, or the check
        function that the caller must call to get the answer. Return None if the question must not be answered now.
        check: the check function of the message's topic.
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
