"""Keep half messages in the memory of a FakeBroker."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from metaq.protocol.delays import pending_id
from metaq.protocol.half_messages import (
    CheckedHalf,
    CheckHalvesRequest,
    EndHalfReply,
    EndHalfRequest,
    HalfOutcome,
    half_of,
)
from metaq.protocol.limits import HALF_GRACE_SECONDS
from metaq.protocol.record import Buffer, checksum

__all__ = ["CHECK_MS", "FakeHalf", "FakeHalves"]

CHECK_MS = 6000
"""Milliseconds from the arrival of a half message until a producer is asked for its outcome for the first time. If a
half message has the property `metaq.check-after`, the value of this property is used instead.
"""


@dataclass(slots=True)
class FakeHalf:
    """A half message that waits for its outcome. due: the next time at which a producer is asked for the outcome, in
    Unix ms. asked: how often a producer was asked so far. flag, body: the flag and the body as they were sent.
    producer: the name of the producer that sent it; "" if unknown.
    """

    id: int
    topic: str
    partition: int
    group: str
    due: int
    flag: int
    body: bytes
    asked: int = 0
    producer: str = ""

    def ready_at(self, request: CheckHalvesRequest, askers: Collection[str]) -> float:
        """Return the earliest time (Unix ms) at which the producer of `request` may get this half message. Return
        infinity if the producer is of another group or does not ask about this topic. Also return infinity if another
        producer has sent the half message and is in `askers`, because then only that other producer is asked. askers:
        the producers that wait for half messages now.
        """
        if request.group != self.group or not (request.topics is None or self.topic in request.topics):
            return math.inf
        if self.producer in ("", request.producer):
            return self.due
        if self.producer in askers:
            return math.inf
        return self.due if self.asked or not self.due else self.due + HALF_GRACE_SECONDS * 1000


class FakeHalves:
    """The waiting and the decided half messages of a FakeBroker. This object may be used by one thread only."""

    def __init__(self, clock: Callable[[], float], deliver: Callable[[FakeHalf], tuple[int, int]]) -> None:
        """clock: returns seconds since 1970. deliver: stores a committed half message in its partition, and returns the
        id and the offset of the stored message.
        """
        self.waiting: list[FakeHalf] = []
        self.askers: dict[str, object] = {}
        """For each producer that waits to be asked about half messages, the connection on which its CHECK_HALVES
        request came.
        """
        self.decided: dict[int, HalfOutcome] = {}
        """The outcome of each decided half message, by the id of the half message."""
        self._replies: dict[int, EndHalfReply] = {}
        self._clock = clock
        self._deliver = deliver
        self._counter = 0

    @property
    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def take(self, topic: str, partition: int, records: Sequence[tuple[int, Buffer]]) -> int:
        """Keep these records (flag, body) as half messages, and return the id of the first. Raises
        RemoteProtocolError.
        """
        now_ms = self._now_ms
        found: list[FakeHalf] = []
        said = [half_of(flag, body) for flag, body in records]
        for number, ((flag, body), terms) in enumerate(zip(records, said, strict=True), self._counter):
            due = now_ms + (CHECK_MS if terms.check_after_ms is None else terms.check_after_ms)
            identity = pending_id(due, number)
            record = flag, bytes(body)
            found.append(FakeHalf(identity, topic, partition, terms.group, due, *record, producer=terms.producer))
        self._counter += len(records)
        self.waiting += found
        return found[0].id

    def end(self, request: EndHalfRequest) -> EndHalfReply:
        """Commit a half message or roll it back, as an END_HALF request says, and return the answer to this request."""
        for each in self.waiting:
            if (each.id, each.topic, each.partition) == (request.message_id, request.topic, request.partition):
                self.waiting.remove(each)
                outcome = self.decided[each.id] = HalfOutcome(request.outcome)
                place = self._deliver(each) if outcome is HalfOutcome.COMMITTED else (0, -1)
                self._replies[each.id] = EndHalfReply(outcome, *place)
        return self._replies.get(request.message_id, EndHalfReply(HalfOutcome.UNKNOWN))

    def checked(self, request: CheckHalvesRequest) -> list[CheckedHalf]:
        """Return the half messages whose outcomes the producer of this request must be asked for now."""
        now_ms = self._now_ms
        found: list[CheckedHalf] = []
        for each in self.waiting:
            if len(found) < request.limit and each.ready_at(request, self.askers) <= now_ms:
                each.asked += 1
                each.due = now_ms + (CHECK_MS << min(each.asked - 1, 9))
                columns = each.id, each.flag, checksum(each.body), each.body
                found.append(CheckedHalf(each.topic, each.partition, each.asked, 0, *columns))
        return found

    def make_due(self) -> None:
        """Change the check time of all waiting half messages to now, so that producers are asked for their outcomes."""
        for each in self.waiting:
            each.due = 0

    def lost(self, caller: object) -> None:
        """Handle the loss of a client's connection: forget the producers whose requests came on this connection."""
        self.askers = {name: asks for name, asks in self.askers.items() if asks is not caller}

    def patience(self, requests: Collection[CheckHalvesRequest]) -> float | None:
        """Return the seconds until one of these requests can be answered with a half message, or None if no waiting
        half message can be given to one of these requests.
        """
        due = min((each.ready_at(asks, self.askers) for each in self.waiting for asks in requests), default=math.inf)
        return max(0.0, due / 1000 - self._clock()) + 0.001 if due < math.inf else None
