"""Send the outcomes of transactions with check-back to the brokers. While one request about a partition is in flight,
further outcomes for this partition are collected, and the next request contains all of them.

A thread that waits for its transaction sends its outcome at once if no request is in flight. If no thread waits for an
outcome, it is held back for a moment, or until no local work is left to begin. The thread that reads an answer sends
the next request. If a request fails, its outcomes are sent again until their deadlines, before newer outcomes.
Repeating an outcome is safe, because a broker decides a half message only once, even if it gets the outcome several
times.

**Interrupts** (interrupts.py). If a thread is interrupted while it sends, another thread continues its work (`_go_on`).
If other threads than the reading one wait for an answer, the answer is processed on a thread that cannot be
interrupted.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from metaq.coordination.runtime.interrupts import begin_elsewhere, may_be_interrupted
from metaq.protocol.errors import ClientError, MetaqError, NoPartition, NotLeader, RequestTimedOut
from metaq.protocol.half_messages import EndHalfReply, HalfOutcome
from metaq.protocol.limits import MAX_ENDED_HALVES

from ..questions.asking import Follow
from ..questions.waiting_halves import ends_request, read_ended
from ..records.results import TopicPartition
from ..runtime.timers import Timers
from ..runtime.waiting import Waiter, finish_together
from ..transport.connection import Connection, Exchange, Reply
from . import tuning

__all__ = ["Ender", "Telling"]

_PAUSE_SECONDS = 0.1


class Telling(Waiter):
    """The outcome of one half message, which must reach the broker before `deadline` (clock time). When `done` is true,
    either `reply` or `error` is set.
    """

    __slots__ = ("cause", "connection", "deadline", "error", "half_id", "outcome", "partition", "reply")

    blocks: ClassVar[bool] = True
    """Whether a thread waits until this outcome is acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.partition: TopicPartition
        self.half_id = 0
        self.outcome = HalfOutcome.UNKNOWN
        self.deadline = math.inf
        self.reply: EndHalfReply | None = None
        self.error: MetaqError | None = None
        self.cause: MetaqError | None = None  # why the last try failed
        self.connection: Connection | None = None  # the connection that its thread drives

    def told(self, together: Sequence[Any]) -> None:
        """Called once for all outcomes in `together`, which include this one, when they are done and no thread waits
        for them. The call comes on a thread that reads answers, so `told` must not block.
        """


class _Place:
    """The outcomes for one partition and their state. batch: the outcomes that are in flight, or that `sender` is about
    to send; None: there are none. request: the request of the batch; set just before the request is sent. paused:
    whether the last try has failed, so that the timer thread sends again after a pause. lingers: whether the gathered
    outcomes are held back for a moment, so that more can join them.
    """

    __slots__ = ("batch", "gathered", "lingers", "partition", "paused", "request", "sender")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.batch: Sequence[Telling] | None = None
        self.gathered: list[Telling] = []
        self.paused = False
        self.lingers = False
        self.request: Exchange | None = None
        self.sender: object = None


class Ender:
    """Sends the outcomes of one producer's half messages. Any thread may call the methods."""

    def __init__(
        self,
        connect: Callable[[str, int, float], Connection],
        follow: Follow,
        request_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        """connect: called as connect(topic, broker id, seconds); see Transactional.connect."""
        self._connect = connect
        self._follow = follow
        self._request_seconds = request_seconds
        self._clock = clock
        self._timers = Timers("metaq-producer-outcomes", clock)
        self._lock = threading.Lock()
        self._places: dict[TopicPartition, _Place] = {}
        self._lingering: list[_Place] = []
        self._look_at = math.inf
        self._closed = False

    def tell(self, telling: Telling) -> EndHalfReply:
        """Send an outcome and wait for the broker's answer. If no answer comes, raise the error of the last try, for
        example RequestTimedOut; then it is unknown whether the broker knows the outcome.
        """
        try:
            place = self._place(telling.partition)
            with self._lock:
                if self._closed:
                    raise _closed()
                place.gathered.append(telling)
                ready = place.batch is None and self._take(place, telling)
            if ready:
                self._transmit(place, caller=telling)
        except MetaqError:
            raise
        except BaseException:
            begin_elsewhere((self._go_on, telling.partition, telling))
            raise
        if not telling.done:
            if telling.connection is not None:
                telling.connection.drive(telling, telling.deadline)
            else:
                telling.park_until_done(telling.deadline, self._clock)
        if not telling.done:
            telling.error = self._overdue(telling)
            telling.done = True
        if telling.reply is None:
            assert telling.error is not None
            raise telling.error
        return telling.reply

    def gather(self, telling: Telling) -> None:
        """Queue an outcome that no thread waits for. The next `hurry`, which comes soon, sends it together with the
        other outcomes that are queued until then. Call `gather` on a thread that cannot be interrupted.
        """
        place = self._place(telling.partition)
        with self._lock:
            if not self._closed:
                place.gathered.append(telling)
                if telling.deadline < self._look_at:
                    self._arm(telling.deadline)
                if place.batch is None and not place.paused and not place.lingers:
                    place.lingers = True
                    self._lingering.append(place)
                    self._timers.call_later(tuning.OUTCOMES_SECONDS, self.hurry)
                return
        telling.error = _closed()
        self._finish((telling,))

    def hurry(self) -> None:
        """Send the gathered outcomes of all partitions that have no request in flight. Call it on a thread that cannot
        be interrupted.
        """
        while self._lingering:
            with self._lock:
                if not self._lingering:
                    return
                place = self._lingering.pop()
                place.lingers = False
                ready = place.batch is None and self._take(place, self)
            if ready:
                self._transmit(place)

    def close(self) -> None:
        """Stop sending. Outcomes without an answer end with ClientError."""
        with self._lock:
            self._closed = True
            left = [each for place in self._places.values() for each in _all_of(place)]
            for place in self._places.values():
                place.gathered = []
        self._timers.close()
        for each in left:
            each.error = _closed()
        self._finish(left)

    # --- going out ----------------------------------------------------------------------------------------------------

    def _place(self, partition: TopicPartition) -> _Place:
        found = self._places.get(partition)
        return self._places.setdefault(partition, _Place(partition)) if found is None else found

    def _take(self, place: _Place, sender: object) -> bool:
        """Move the gathered outcomes of a partition into its next batch. Return False if there are none, or the
        partition is paused. The caller must hold the lock.
        """
        place.request = place.batch = None
        while place.gathered and not place.paused:
            batch = [each for each in place.gathered[:MAX_ENDED_HALVES] if not each.done]
            del place.gathered[:MAX_ENDED_HALVES]
            if batch:
                place.batch, place.sender = batch, sender
                return True
        return False

    def _transmit(self, place: _Place, connection: Connection | None = None, caller: Telling | None = None) -> None:
        """Send the batch of `place`. connection: an open connection to the broker; None: get one. caller: the outcome
        that the current thread waits for. If the batch has no other outcome, the current thread reads the answer
        itself.
        """
        batch, partition = place.batch, place.partition
        assert batch is not None
        now = self._clock()
        last = max([each.deadline for each in batch])
        if connection is None or connection.closed:
            try:
                connection = self._connect(partition.topic, partition.broker, max(0.001, last - now))
            except MetaqError as error:
                self._failed(place, batch, error)
                return
        alone = caller is not None and len(batch) == 1
        if alone and caller is not None:
            caller.connection = connection
        opaque = connection.new_opaque()
        answered = partial(self._answered, place, batch, connection)
        request = Exchange(opaque, answered, min(now + self._request_seconds, last), background=not alone)
        buffers = ends_request(opaque, partition, [(each.half_id, each.outcome) for each in batch])
        place.request = request
        connection.send((request,), buffers)

    def _go_on(self, partition: TopicPartition, sender: object) -> None:
        """Send the outcomes of the partition that `sender` has not sent, because the sender's thread was
        interrupted.
        """
        place = self._place(partition)
        with self._lock:
            if place.batch is None:
                left = self._take(place, self)
            else:
                left = place.sender is sender and not (place.request is not None and place.request.taken)
                place.sender = self
        if left:
            self._transmit(place)

    # --- coming back --------------------------------------------------------------------------------------------------

    def _answered(
        self,
        place: _Place,
        batch: Sequence[Telling],
        connection: Connection,
        reply: Reply | None,
        error: MetaqError | None,
    ) -> None:
        """Process the answer to a batch, or the error instead of an answer. If an interrupt has ended the first call,
        `_answered` is called a second time.
        """
        alone = len(batch) == 1 and batch[0].blocks and not place.gathered
        if alone or not may_be_interrupted():
            self._landed(place, batch, connection, reply, error)
        else:
            for each in batch:
                each.answered = True
            self._timers.call_later(0.0, partial(self._landed, place, batch, connection, reply, error))

    def _landed(
        self,
        place: _Place,
        batch: Sequence[Telling],
        connection: Connection,
        reply: Reply | None,
        error: MetaqError | None,
    ) -> None:
        if place.batch is not batch:  # an interrupt came after the batch had ended
            self._finish(batch)
            self._go_on(place.partition, batch)
            return
        if error is None:
            assert reply is not None
            try:
                replies = read_ended(reply, connection, place.partition, len(batch))
            except MetaqError as wrong:
                error = wrong
        if error is not None:
            self._failed(place, batch, error)
            return
        for each, ended in zip(batch, replies, strict=True):
            each.reply = ended
        self._pass_on(place, batch, connection)

    def _pass_on(self, place: _Place, batch: Sequence[Telling], connection: Connection | None = None) -> None:
        """End a batch, and send the outcomes that were gathered meanwhile. If `connection` is given and the current
        thread cannot be interrupted, they are sent at once. If not, the timer thread sends them, because the sender may
        have to connect first.
        """
        with self._lock:
            if place.batch is not batch:
                return
            following = self._take(place, batch)
        if following:
            if connection is None or may_be_interrupted():
                self._timers.call_later(0.0, partial(self._go_on, place.partition, batch))
            else:
                self._transmit(place, connection)
        self._finish(batch)

    def _failed(self, place: _Place, batch: Sequence[Telling], error: MetaqError) -> None:
        """Handle a failed batch. Outcomes with time left before their deadlines are queued again, and sent after a
        pause. The other outcomes end with `error`.
        """
        pause = math.inf
        if error.retriable or isinstance(error, NotLeader | NoPartition):
            following = self._follow(error) if isinstance(error, NotLeader) else None
            pause = _PAUSE_SECONDS if following is None else following
        again_at = self._clock() + pause
        left = [each for each in batch if again_at < each.deadline and not each.done]
        for each in batch:
            if again_at >= each.deadline:
                each.error = error
            each.cause = error
        if not left or self._closed:
            self._pass_on(place, batch)
            return
        with self._lock:
            if place.batch is not batch:
                return
            self._timers.call_later(pause, partial(self._resume, place))  # first, because `_resume` waits for the lock
            place.gathered[:0] = left
            place.paused = True
            place.batch = None
        self._finish(batch)

    def _resume(self, place: _Place) -> None:
        """Send the partition's outcomes after the pause that follows a failure. Runs on the timer thread."""
        with self._lock:
            place.paused = False
            ready = place.batch is None and self._take(place, self)
        if ready:
            self._transmit(place)

    # --- the end of each ----------------------------------------------------------------------------------------------

    def _finish(self, tellings: Sequence[Telling]) -> None:
        """For each ended outcome, wake the thread that waits for it. If no thread waits, call `told`. A thread may be
        woken twice, but `told` gets each outcome once.
        """
        tellings = [each for each in tellings if each.reply is not None or each.error is not None]
        with self._lock:
            ended = [each for each in tellings if not each.blocks and not each.done]
            for each in ended:
                each.done = True
        waiting = [each for each in tellings if each.blocks]
        if len(waiting) == 1:
            waiting[0].finish()
        elif waiting:
            finish_together(waiting)
        if ended:
            ended[0].told(ended)

    def _arm(self, deadline: float) -> None:
        """Set the timer to `deadline`, the earliest deadline of an outcome. The caller must hold the lock."""
        self._look_at = deadline
        self._timers.call_later(max(0.0, deadline - self._clock()), self._look)

    def _look(self) -> None:
        """End all outcomes that have passed their deadline and that no thread waits for. Runs on the timer thread."""
        now = self._clock()
        with self._lock:
            left = [each for place in self._places.values() for each in _all_of(place) if not each.blocks]
            later = [each.deadline for each in left if each.deadline > now]
            self._look_at = math.inf
            if later:
                self._arm(max(min(later), now + tuning.LOOK_SECONDS))
        over = [each for each in left if each.deadline <= now]
        for each in over:
            each.error = self._overdue(each)
        self._finish(over)

    def _overdue(self, telling: Telling) -> MetaqError:
        place = telling.partition
        return telling.cause or RequestTimedOut(
            f"the broker of {place} did not take the outcome of half message {telling.half_id} in time"
        )


def _closed() -> ClientError:
    return ClientError("this producer is closed")


def _all_of(place: _Place) -> list[Telling]:
    return [each for each in (*(place.batch or ()), *place.gathered) if not each.done]
