"""Keep the delayed messages of a FakeBroker in memory until their delivery times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from metaq.protocol.delays import Cancelled, due_of, pending_id
from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.record import DELAYED_FLAG, Buffer

__all__ = ["FakeDelays", "WaitingRecord"]


class WaitingRecord(NamedTuple):
    """A delayed message that waits for its delivery time. due: the delivery time in Unix ms. flag, body: the flag and
    the body that the message will have in its partition.
    """

    id: int
    topic: str
    partition: int
    due: int
    flag: int
    body: bytes


class FakeDelays:
    """All delayed messages of a FakeBroker that wait for their delivery times. Only one thread may use this object."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: returns seconds since 1970."""
        self.waiting: list[WaitingRecord] = []
        self._clock = clock
        self._counter = 0

    def take(self, topic: str, partition: int, records: Sequence[tuple[int, Buffer]]) -> int | None:
        """If these records (flag, body) are delayed messages, keep them and return the pending id of the first. Return
        None if none of the records is a delayed message. Raises RemoteProtocolError for records that a real broker
        would also refuse.
        """
        delayed = [bool(flag & DELAYED_FLAG) for flag, _ in records]
        if not any(delayed):
            return None
        if not all(delayed):
            raise RemoteProtocolError("delayed messages and others cannot be in one batch: send two")
        now_ms = int(self._clock() * 1000)
        found = []
        for number, (flag, body) in enumerate(records, self._counter):
            due = due_of(flag, body, now_ms)
            identity = pending_id(due, number)
            found.append(WaitingRecord(identity, topic, partition, due, flag & ~DELAYED_FLAG, bytes(body)))
        self._counter += len(records)
        self.waiting += found
        return found[0].id

    def cancel(self, topic: str, partition: int, identity: int) -> Cancelled:
        """Cancel a waiting message, and return the outcome for the answer to CANCEL_DELAYED. identity: its pending
        id.
        """
        for each in self.waiting:
            if each[:3] == (identity, topic, partition):
                self.waiting.remove(each)
                return Cancelled.CANCELLED
        return Cancelled.UNKNOWN

    def take_due(self, *, everything: bool = False) -> list[WaitingRecord]:
        """Remove the messages whose delivery time has come, or all messages if `everything` is true. Return the removed
        messages in the order of their delivery times.
        """
        now_ms = int(self._clock() * 1000)
        due = sorted(each for each in self.waiting if everything or each.due <= now_ms)
        self.waiting = [each for each in self.waiting if each not in due]
        return due

    @property
    def patience(self) -> float | None:
        """Return the seconds until the next message is due, or None if no message waits."""
        if not self.waiting:
            return None
        return max(0.0, min(each.due for each in self.waiting) / 1000 - self._clock()) + 0.001
