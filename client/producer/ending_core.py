"""The outcomes of transactions with check-back that brokers must still be told, by partition. This core has no threads,
sockets or timers.

While one request about a partition is in flight, further outcomes for this partition are collected, and the next
request contains all of them. The outcomes of a failed request are sent again, before the others, until their deadlines.
This is safe, because a broker decides a half message only once, even if it gets the outcome several times.

**A driver** reports events to the core:

1. `add` or `gather` for an outcome; it sends each returned batch to its broker;
2. `landed` or `failed` at the end of a request; it sends the returned batch, and passes the outcomes to `ended`;
3. `next_lingering` soon after `gather` has returned true, again and again until it returns None; `resume` when the core
   asks for it;
4. `expire` at `expire_at` or soon after.

`Ender` (ending_halves.py) with its threads is one driver. All methods may be called on any thread: `_lock` guards the
state, and is never held during I/O.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from metaq.protocol.errors import ClientError, MetaqError, NoPartition, NotLeader, RequestTimedOut
from metaq.protocol.half_messages import EndHalfReply, HalfOutcome
from metaq.protocol.limits import MAX_ENDED_HALVES

from ..records.results import TopicPartition
from ..runtime.waiting import Waiter
from . import tuning

if TYPE_CHECKING:
    from ..questions.asking import Follow
    from ..transport.connection import Connection, Exchange

__all__ = ["EndBatch", "EndPlace", "EndingCore", "Telling"]

_PAUSE_SECONDS = 0.1
"""Pause before the outcomes of a failed request are sent again."""


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
        for them. It runs on a thread that reads answers, so it must not block.
        """


class EndBatch:
    """The outcomes of one partition that are sent in one request. sender: identifies the thread that must send the
    request. It is an outcome (the thread that waits for this outcome), an earlier batch (the thread that has processed
    the end of this batch), or the core (any other thread). request: the request; the driver sets it just before
    sending.
    """

    __slots__ = ("place", "request", "sender", "tellings")

    def __init__(self, place: EndPlace, tellings: list[Telling], sender: object) -> None:
        self.place = place
        self.tellings = tellings
        self.sender = sender
        self.request: Exchange | None = None


class EndPlace:
    """The outcomes for one partition. batch: the outcomes that are in flight or about to be sent; None: there are none.
    gathered: the outcomes for later batches. paused: whether the last request has failed, and the core waits for
    `resume`. lingers: whether the gathered outcomes are held back for a moment, so that more can join them.
    """

    __slots__ = ("batch", "gathered", "lingers", "partition", "paused")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.batch: EndBatch | None = None
        self.gathered: list[Telling] = []
        self.paused = False
        self.lingers = False


class EndingCore:
    """Decides which outcomes are sent when, and with which error an outcome ends."""

    def __init__(
        self, follow: Follow, clock: Callable[[], float], resume_later: Callable[[float, EndPlace], None]
    ) -> None:
        """resume_later: called as resume_later(seconds, place) when a pause of `place` begins. The driver must call
        `resume` after this number of seconds, and must not wait inside the callback.
        """
        self.expire_at = math.inf
        """The time (monotonic seconds) at which the driver must call `expire`; infinity if it need not."""
        self._follow = follow
        self._clock = clock
        self._resume_later = resume_later
        self._lock = threading.Lock()
        self._places: dict[TopicPartition, EndPlace] = {}
        self._lingering: list[EndPlace] = []
        self._closed = False

    def add(self, telling: Telling) -> EndBatch | None:
        """Add an outcome for which a thread waits. Return the batch that this thread must send, or None if the outcome
        waits for the end of another request. Raises ClientError (closed).
        """
        place = self._place(telling.partition)
        with self._lock:
            if self._closed:
                raise _closed()
            place.gathered.append(telling)
            return self._take(place, telling) if place.batch is None else None

    def gather(self, telling: Telling) -> bool:
        """Add an outcome for which no thread waits. Return whether the driver must call `next_lingering` after
        OUTCOMES_SECONDS. Raises ClientError (closed).
        """
        place = self._place(telling.partition)
        with self._lock:
            if self._closed:
                raise _closed()
            place.gathered.append(telling)
            self.expire_at = min(self.expire_at, telling.deadline)
            if place.batch is not None or place.paused or place.lingers:
                return False
            place.lingers = True
            self._lingering.append(place)
            return True

    def next_lingering(self) -> EndBatch | None:
        """Return the next batch of a partition whose outcomes (commits and rollbacks) were held back so that more could
        join them. Return None if there is no such partition.
        """
        while self._lingering:
            with self._lock:
                if not self._lingering:
                    return None
                place = self._lingering.pop()
                place.lingers = False
                batch = self._take(place, self) if place.batch is None else None
            if batch is not None:
                return batch
        return None

    def untaken(self, partition: TopicPartition, sender: object) -> EndBatch | None:
        """Return the batch that `sender` had to send and did not send, because its thread was interrupted. If the
        partition has no batch at all, return its next one. Return None if there is nothing to send.
        """
        place = self._place(partition)
        with self._lock:
            batch = place.batch
            if batch is None:
                return self._take(place, self)
            if batch.sender is not sender or (batch.request is not None and batch.request.taken):
                return None
            batch.sender = self
            return batch

    def is_under_way(self, batch: EndBatch) -> bool:
        """Whether neither `landed` nor `failed` was called for this batch."""
        return batch.place.batch is batch

    def landed(self, batch: EndBatch) -> EndBatch | None:
        """Process the end of a batch whose outcomes have replies or errors. Return the partition's next batch, whose
        `sender` is the ended batch. Further calls return None.
        """
        with self._lock:
            return self._take(batch.place, batch) if batch.place.batch is batch else None

    def failed(self, batch: EndBatch, error: MetaqError) -> EndBatch | None:
        """Process a failed batch. The outcomes that have time left go back into the queue, and are sent again after a
        pause. The other outcomes get `error` as their error. Return the partition's next batch, as `landed` does, if no
        outcome is queued again.
        """
        pause = math.inf
        if error.retriable or isinstance(error, NotLeader | NoPartition):
            following = self._follow(error) if isinstance(error, NotLeader) else None
            pause = _PAUSE_SECONDS if following is None else following
        again_at = self._clock() + pause
        left = [each for each in batch.tellings if again_at < each.deadline and not each.done]
        for each in batch.tellings:
            if again_at >= each.deadline:
                each.error = error
            each.cause = error
        if not left or self._closed:
            return self.landed(batch)
        place = batch.place
        with self._lock:
            if place.batch is batch:
                self._resume_later(pause, place)  # first, because `resume` waits for the lock
                place.gathered[:0] = left
                place.paused = True
                place.batch = None
        return None

    def resume(self, place: EndPlace) -> EndBatch | None:
        """End the pause of a partition. Return the batch to send."""
        with self._lock:
            place.paused = False
            return self._take(place, self) if place.batch is None else None

    def ended(self, tellings: Iterable[Telling]) -> list[Telling]:
        """Mark outcomes without a waiting thread as done. Return those that were not done before: the driver must call
        `told` for them.
        """
        with self._lock:
            ended = [each for each in tellings if not each.blocks and not each.done]
            for each in ended:
                each.done = True
            return ended

    def expire(self) -> list[Telling]:
        """Return the outcomes whose deadline has passed and for which no thread waits, with their errors."""
        now = self._clock()
        with self._lock:
            left = [each for place in self._places.values() for each in _all_of(place) if not each.blocks]
            later = [each.deadline for each in left if each.deadline > now]
            self.expire_at = max(min(later), now + tuning.LOOK_SECONDS) if later else math.inf
        over = [each for each in left if each.deadline <= now]
        for each in over:
            each.error = self.overdue(each)
        return over

    def overdue(self, telling: Telling) -> MetaqError:
        """Return the error with which an outcome ends at its deadline."""
        return telling.cause or RequestTimedOut(
            f"the broker of {telling.partition} did not take the outcome of half message {telling.half_id} in time"
        )

    def close(self) -> list[Telling]:
        """Stop accepting outcomes. Return all outcomes without an answer, with ClientError as their error."""
        with self._lock:
            self._closed = True
            left = [each for place in self._places.values() for each in _all_of(place)]
            for place in self._places.values():
                place.gathered = []
        for each in left:
            each.error = _closed()
        return left

    def _place(self, partition: TopicPartition) -> EndPlace:
        found = self._places.get(partition)
        return self._places.setdefault(partition, EndPlace(partition)) if found is None else found

    def _take(self, place: EndPlace, sender: object) -> EndBatch | None:
        """Make the partition's next batch of its gathered outcomes. Return None if there are no such outcomes, or the
        partition is paused. The caller must hold the lock.
        """
        place.batch = None
        while place.gathered and not place.paused:
            tellings = [each for each in place.gathered[:MAX_ENDED_HALVES] if not each.done]
            del place.gathered[:MAX_ENDED_HALVES]
            if tellings:
                place.batch = batch = EndBatch(place, tellings, sender)
                return batch
        return None


def _closed() -> ClientError:
    return ClientError("this producer is closed")


def _all_of(place: EndPlace) -> list[Telling]:
    under_way = [] if place.batch is None else place.batch.tellings
    return [each for each in (*under_way, *place.gathered) if not each.done]
