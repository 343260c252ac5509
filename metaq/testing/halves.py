"""Half messages, in the memory of a FakeBroker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from metaq.protocol.delays import pending_id
from metaq.protocol.halves import CheckedHalf, CheckHalvesRequest, EndHalfReply, EndHalfRequest, HalfOutcome, half_of
from metaq.protocol.record import Buffer, checksum

__all__ = ["FakeHalf", "FakeHalves"]

_CHECK_MS = 6000


@dataclass(slots=True)
class FakeHalf:
    """One that waits for its outcome. due: when a producer is asked for it next, Unix ms. asked: how often one was.
    flag, body: as they were sent."""

    id: int
    topic: str
    partition: int
    group: str
    due: int
    flag: int
    body: bytes
    asked: int = 0


class FakeHalves:
    """What waits, and what was decided. One thread."""

    def __init__(self, clock: Callable[[], float], deliver: Callable[[FakeHalf], tuple[int, int]]) -> None:
        """clock: seconds since 1970. deliver: gives one to its partition; the message's id and offset."""
        self.waiting: list[FakeHalf] = []
        self.decided: dict[int, HalfOutcome] = {}
        """By the id of the half message."""
        self._replies: dict[int, EndHalfReply] = {}
        self._clock = clock
        self._deliver = deliver
        self._counter = 0

    @property
    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def take(self, topic: str, partition: int, records: Sequence[tuple[int, Buffer]]) -> int:
        """The first id of these records (flag, body). Raises RemoteProtocolError."""
        now_ms = self._now_ms
        found: list[FakeHalf] = []
        said = [half_of(flag, body) for flag, body in records]
        for number, ((flag, body), (group, after)) in enumerate(zip(records, said, strict=True), self._counter):
            due = now_ms + (_CHECK_MS if after is None else after)
            identity = pending_id(due, number)
            found.append(FakeHalf(identity, topic, partition, group, due, flag, bytes(body)))
        self._counter += len(records)
        self.waiting += found
        return found[0].id

    def end(self, request: EndHalfRequest) -> EndHalfReply:
        """What END_HALF answers."""
        for each in self.waiting:
            if (each.id, each.topic, each.partition) == (request.message_id, request.topic, request.partition):
                self.waiting.remove(each)
                outcome = self.decided[each.id] = HalfOutcome(request.outcome)
                place = self._deliver(each) if outcome is HalfOutcome.COMMITTED else (0, -1)
                self._replies[each.id] = EndHalfReply(outcome, *place)
        return self._replies.get(request.message_id, EndHalfReply(HalfOutcome.UNKNOWN))

    def checked(self, request: CheckHalvesRequest) -> list[CheckedHalf]:
        """Those that a producer is asked for now."""
        now_ms = self._now_ms
        found: list[CheckedHalf] = []
        for each in self.waiting:
            if each.group == request.group and each.due <= now_ms and len(found) < request.limit:
                each.asked += 1
                each.due = now_ms + (_CHECK_MS << min(each.asked - 1, 9))
                columns = each.id, each.flag, checksum(each.body), each.body
                found.append(CheckedHalf(each.topic, each.partition, each.asked, 0, *columns))
        return found

    def make_due(self) -> None:
        """Producers are asked for all that wait, now."""
        for each in self.waiting:
            each.due = 0

    def patience(self, groups: Iterable[str]) -> float | None:
        """Seconds until a producer of one of these groups is asked; None if nothing waits."""
        due = [each.due for each in self.waiting if each.group in set(groups)]
        return max(0.0, min(due) / 1000 - self._clock()) + 0.001 if due else None
