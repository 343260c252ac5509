"""Decide when the outcomes of transactions with check-back (commit or rollback of half messages) are sent to the
brokers. For each partition, the core keeps the outcomes that the partition's broker does not know yet. The core has no
threads, sockets or timers.

While one request about a partition is in flight, further outcomes for this partition are collected, and the next
request contains all of them. The outcomes of a failed request are sent again, before the outcomes collected meanwhile,
until their deadlines. Sending an outcome again is safe, because the broker acts only on the first outcome that it gets
for a half message.

**A driver** reports events to the core:

1. for each outcome it calls `add` if a thread waits for the outcome, otherwise `gather`; if a call returns a batch, the
   driver sends the batch to the partition's broker;
2. at the end of a request it calls `landed` or `failed`, sends the batch that the call returns, and passes the ended
   request's outcomes to `ended`;
3. soon after `gather` has returned True, it calls `next_lingering` again and again until that returns None; it calls
   `resume` at the time for which the core has asked by `resume_later`;
4. it calls `expire` at the time `expire_at` or soon after.

`Ender` (ending_halves.py) is a driver with threads. All methods may be called on any thread: `_lock` guards the state,
and is never held during I/O.
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
"""Pause in seconds before the outcomes of a failed request are sent again."""


class Telling(Waiter):
    """The outcome of one half message. The broker must get it before `deadline` (monotonic seconds). When `done` is
    true, either `reply` (the broker's answer) or `error` is set.
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
        """Called when outcomes for which no thread waits have ended. The driver calls this method once for several such
        outcomes, on one of them; `together` contains all of them, this one included. The method runs on a thread that
        reads brokers' answers, so it must not block.
        """


class EndBatch:
    """The outcomes of one partition that are sent in one request. sender: identifies the thread that must send the
    request. If `sender` is an outcome, the thread that waits for this outcome must send. If `sender` is an earlier
    batch, the thread that has processed that batch's end must send. If `sender` is the core, the thread to which the
    core has returned the batch sends it. request: the request; the driver sets it just before sending.
    """

    __slots__ = ("place", "request", "sender", "tellings")

    def __init__(self, place: EndPlace, tellings: list[Telling], sender: object) -> None:
        self.place = place
        self.tellings = tellings
        self.sender = sender
        self.request: Exchange | None = None


class EndPlace:
    """The outcomes that the broker of one partition must still be told. batch: the outcomes that are in flight or about
    to be sent; it is None if there are none. gathered: the outcomes that later batches will contain. paused: True after
    a failed request, until `resume` is called; meanwhile nothing is sent. lingers: whether the gathered outcomes are
    held back for a moment, so that more outcomes can go in the same request.
    """

    __slots__ = ("batch", "gathered", "lingers", "partition", "paused")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.batch: EndBatch | None = None
        self.gathered: list[Telling] = []
        self.paused = False
        self.lingers = False


class EndingCore:
    """Decides when each outcome is sent, and with which error an outcome ends."""

    def __init__(
        self, follow: Follow, clock: Callable[[], float], resume_later: Callable[[float, EndPlace], None]
    ) -> None:
        """resume_later: the core calls resume_later(seconds, place) when the sending for a partition (`place`) pauses
        after a failure. The function must return at once, and let the driver call `resume(place)` after this number of
        seconds.
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
        waits until another request about the same partition has ended. Raises ClientError (closed).
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
        """Choose a partition with outcomes that `gather` has held back, and return these outcomes as a batch that the
        driver must send now. Return None if there is no such partition.
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
        """Called if the thread that `sender` identifies (see EndBatch) was interrupted: return the batch that this
        thread should have sent, unless it has sent the batch. If no batch of the partition is in flight or about to be
        sent, return the partition's next batch. Return None if there is nothing to send.
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
        """Process the end of a batch in which each outcome has its reply or error. Return the partition's next batch,
        whose `sender` is the ended batch, or None if there is nothing to send. Further calls with the same batch return
        None.
        """
        with self._lock:
            return self._take(batch.place, batch) if batch.place.batch is batch else None

    def failed(self, batch: EndBatch, error: MetaqError) -> EndBatch | None:
        """Process a failed batch. If the error is temporary, the outcomes whose deadlines are later than the end of a
        pause are queued again, to be sent after this pause. The other outcomes of the batch end with `error`. If no
        outcome is queued again, return the partition's next batch, as `landed` does; otherwise return None.
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
        """End the pause that followed a failed request about this partition. Return the batch that must be sent now, or
        None.
        """
        with self._lock:
            place.paused = False
            return self._take(place, self) if place.batch is None else None

    def ended(self, tellings: Iterable[Telling]) -> list[Telling]:
        """Among the given outcomes, mark as done each outcome for which no thread waits. Return the outcomes that were
        not marked before; the driver must pass them to `told`.
        """
        with self._lock:
            ended = [each for each in tellings if not each.blocks and not each.done]
            for each in ended:
                each.done = True
            return ended

    def expire(self) -> list[Telling]:
        """Give an error to each outcome whose deadline has passed and for which no thread waits, and return these
        outcomes.
        """
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
        """Stop accepting outcomes. Set ClientError as the error of all outcomes that have no answer yet, and return
        these outcomes.
        """
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
        """Make the partition's next batch from its gathered outcomes, and return the batch. Return None if the
        partition has no gathered outcomes, or if its sending is paused. The caller must hold the lock.
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
