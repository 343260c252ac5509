"""Outcomes of transactions with check-back on their way to brokers: while one request is under way, those of other
threads gather, and go together in the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from metaq.protocol.errors import MetaqError, RequestTimedOut
from metaq.protocol.halves import EndHalfReply, HalfOutcome
from metaq.protocol.limits import MAX_ENDED_HALVES

from ..questions.asking import Asked
from ..questions.halves import end_half, end_halves
from ..values import TopicPartition
from ..waiting import Waiter, finish_together

__all__ = ["Ender"]


class _Outcome(Waiter):
    """One that a thread waits for. batch: those that this thread is to send, its own among them; None until then.
    Once done, without a batch: reply or error."""

    __slots__ = ("batch", "error", "half_id", "outcome", "reply")

    def __init__(self, half_id: int, outcome: HalfOutcome) -> None:
        super().__init__()
        self.half_id = half_id
        self.outcome = outcome
        self.batch: list[_Outcome] | None = None
        self.reply: EndHalfReply | None = None
        self.error: MetaqError | None = None


_Place = tuple[Asked, TopicPartition]


class Ender:
    """Of one producer. Any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._gathered: dict[_Place, list[_Outcome]] = {}
        """Where a request is under way -> who waits for the next one."""

    def end(
        self, connection: Asked, partition: TopicPartition, half_id: int, outcome: HalfOutcome, seconds: float
    ) -> EndHalfReply:
        """As questions.halves.end_half."""
        place = connection, partition
        deadline = self._clock() + seconds
        mine = _Outcome(half_id, outcome)
        with self._lock:
            gathered = self._gathered.get(place)
            if gathered is None:
                self._gathered[place] = []
                mine.batch = [mine]
            else:
                gathered.append(mine)
        if gathered is not None:
            try:
                mine.park_until_done(deadline, self._clock)
            except BaseException:
                self._give_up(place, mine)
                raise
            if not mine.done and self._leave(place, mine):
                raise RequestTimedOut(f"{connection.endpoint} was not told the outcome of {half_id} in time")
        if mine.batch is not None:
            self._send(place, mine.batch, max(0.001, deadline - self._clock()))
        if mine.error is not None:
            raise mine.error
        assert mine.reply is not None
        return mine.reply

    def _leave(self, place: _Place, mine: _Outcome) -> bool:
        """Wait no longer; False if it is this thread's turn to send."""
        with self._lock:
            if mine.batch is not None:
                return False
            gathered = self._gathered.get(place, [])
            if mine in gathered:
                gathered.remove(mine)
            return True

    def _give_up(self, place: _Place, mine: _Outcome) -> None:
        """The thread was interrupted while it waited: another one sends what it was to send."""
        if not self._leave(place, mine):
            assert mine.batch is not None
            with self._lock:
                self._gathered[place][:0] = [each for each in mine.batch if each is not mine]
            self._pass_on(place, ())

    def _send(self, place: _Place, batch: Sequence[_Outcome], seconds: float) -> None:
        """Have the broker decide these, and wake their threads, and the one that sends what has gathered meanwhile."""
        connection, partition = place
        error: MetaqError = RequestTimedOut(f"the thread that told {connection.endpoint} outcomes was interrupted")
        try:
            if len(batch) == 1:
                batch[0].reply = end_half(connection, partition, batch[0].half_id, batch[0].outcome, seconds)
            else:
                outcomes = [(each.half_id, each.outcome) for each in batch]
                for each, reply in zip(batch, end_halves(connection, partition, outcomes, seconds), strict=True):
                    each.reply = reply
        except MetaqError as failure:
            error = failure
        finally:
            for each in batch:
                if each.reply is None:
                    each.error = error
            self._pass_on(place, batch[1:])

    def _pass_on(self, place: _Place, done: Sequence[_Outcome]) -> None:
        """These have their answer; the first of those that wait sends for up to MAX_ENDED_HALVES of them."""
        woken = [*done]
        with self._lock:
            gathered = self._gathered[place]
            if gathered:
                batch, self._gathered[place] = gathered[:MAX_ENDED_HALVES], gathered[MAX_ENDED_HALVES:]
                batch[0].batch = batch
                woken.insert(0, batch[0])
            else:
                del self._gathered[place]
        finish_together(woken)
