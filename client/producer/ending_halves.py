"""Send the outcomes of transactions with check-back to the brokers. ending_core.py decides when each outcome is sent.

A thread that waits for its transaction's end sends the outcome at once, unless a request about the same partition is in
flight. Outcomes for which no thread waits are held back for OUTCOMES_SECONDS, or for less time if no further local work
waits to begin. The outcomes that were collected while a request was in flight are sent by the thread that reads its
answer.

**Interrupts** (interrupts.py). If a thread is interrupted while it sends, another thread sends instead (`_go_on`). An
answer that concerns other outcomes than the one for which the reading thread waits is processed by a thread that cannot
be interrupted.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import partial

from metaq.coordination.runtime.interrupts import begin_elsewhere, may_be_interrupted
from metaq.protocol.errors import ClientError, MetaqError
from metaq.protocol.half_messages import EndHalfReply

from ..questions.asking import Follow
from ..questions.waiting_halves import ends_request, read_ended
from ..records.results import TopicPartition
from ..runtime.timers import Timers
from ..runtime.waiting import finish_together
from ..transport.connection import Connection, Exchange, Reply
from . import tuning
from .ending_core import EndBatch, EndingCore, EndPlace, Telling

__all__ = ["Ender", "Telling"]


class Ender:
    """Sends the outcomes of one producer's half messages. Any thread may call the methods."""

    def __init__(
        self,
        connect: Callable[[str, int, float], Connection],
        follow: Follow,
        request_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        """connect: a function that is called as connect(topic, broker id, seconds) and returns the connection to the
        broker; see Transactional.connect.
        """
        self._connect = connect
        self._request_seconds = request_seconds
        self._clock = clock
        self._timers = Timers("metaq-producer-outcomes", clock)
        self._core = EndingCore(follow, clock, self._resume_later)
        self._arming = threading.Lock()
        self._armed = math.inf

    def tell(self, telling: Telling) -> EndHalfReply:
        """Send an outcome and wait for the broker's answer. If no answer comes, raise the error of the last try, for
        example RequestTimedOut; the broker may have got the outcome nevertheless.
        """
        try:
            batch = self._core.add(telling)
            if batch is not None:
                self._transmit(batch, caller=telling)
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
            telling.error = self._core.overdue(telling)
            telling.done = True
        if telling.reply is None:
            assert telling.error is not None
            raise telling.error
        return telling.reply

    def gather(self, telling: Telling) -> None:
        """Queue an outcome for which no thread waits. The next call of `hurry` sends all queued outcomes together; a
        timer calls `hurry` after OUTCOMES_SECONDS. If a request about the same partition is in flight at that time, the
        outcomes are sent when that request has ended. Call it on a thread that cannot be interrupted.
        """
        try:
            lingers = self._core.gather(telling)
        except ClientError as closed:
            telling.error = closed
            self._finish((telling,))
            return
        if lingers:
            self._timers.call_later(tuning.OUTCOMES_SECONDS, self.hurry)
        if self._core.expire_at < self._armed:
            self._arm()

    def hurry(self) -> None:
        """Send the gathered outcomes of all partitions that have no request in flight. Call it on a thread that cannot
        be interrupted.
        """
        while (batch := self._core.next_lingering()) is not None:
            self._transmit(batch)

    def close(self) -> None:
        """Stop sending outcomes. Outcomes that no broker has answered yet end with ClientError."""
        left = self._core.close()
        self._timers.close()
        self._finish(left)

    # --- going out ----------------------------------------------------------------------------------------------------

    def _transmit(self, batch: EndBatch, connection: Connection | None = None, caller: Telling | None = None) -> None:
        """Send the batch to its broker. connection: an open connection to the broker; if it is None, get a connection
        from `connect`.
        caller: the outcome for which the current thread waits, if any; if it is the only one of the batch, this thread
        reads the answer itself.
        """
        tellings, partition = batch.tellings, batch.place.partition
        now = self._clock()
        last = max([each.deadline for each in tellings])
        if connection is None or connection.closed:
            try:
                connection = self._connect(partition.topic, partition.broker, max(0.001, last - now))
            except MetaqError as error:
                self._failed(batch, error)
                return
        alone = caller is not None and len(tellings) == 1
        if alone and caller is not None:
            caller.connection = connection
        opaque = connection.new_opaque()
        answered = partial(self._answered, batch, connection)
        request = Exchange(opaque, answered, min(now + self._request_seconds, last), background=not alone)
        buffers = ends_request(opaque, partition, [(each.half_id, each.outcome) for each in tellings])
        batch.request = request
        connection.send((request,), buffers)

    def _go_on(self, partition: TopicPartition, sender: object) -> None:
        """Send the outcomes of this partition that an interrupted thread (`sender`) should have sent; see
        EndingCore.untaken.
        """
        if (batch := self._core.untaken(partition, sender)) is not None:
            self._transmit(batch)

    def _resume_later(self, seconds: float, place: EndPlace) -> None:
        self._timers.call_later(seconds, partial(self._resume, place))

    def _resume(self, place: EndPlace) -> None:
        """Send the partition's outcomes after the pause that follows a failure. Runs on the timer thread."""
        if (batch := self._core.resume(place)) is not None:
            self._transmit(batch)

    # --- coming back --------------------------------------------------------------------------------------------------

    def _answered(self, batch: EndBatch, connection: Connection, reply: Reply | None, error: MetaqError | None) -> None:
        """Process the broker's answer to a batch (`reply`), or the `error` if no answer came. If an interrupt has ended
        a call of this method, it is called a second time.
        """
        tellings = batch.tellings
        alone = len(tellings) == 1 and tellings[0].blocks and not batch.place.gathered
        if alone or not may_be_interrupted():
            self._landed(batch, connection, reply, error)
        else:
            for each in tellings:
                each.answered = True
            self._timers.call_later(0.0, partial(self._landed, batch, connection, reply, error))

    def _landed(self, batch: EndBatch, connection: Connection, reply: Reply | None, error: MetaqError | None) -> None:
        tellings, partition = batch.tellings, batch.place.partition
        if not self._core.is_under_way(batch):  # an interrupt came after the batch had ended
            self._finish(tellings)
            self._go_on(partition, batch)
            return
        if error is None:
            assert reply is not None
            try:
                replies = read_ended(reply, connection, partition, len(tellings))
            except MetaqError as wrong:
                error = wrong
        if error is not None:
            self._failed(batch, error)
            return
        for each, ended in zip(tellings, replies, strict=True):
            each.reply = ended
        following = self._core.landed(batch)
        if following is None or may_be_interrupted():
            self._pass_on(batch, following)
        else:
            self._transmit(following, connection)
            self._finish(tellings)

    def _failed(self, batch: EndBatch, error: MetaqError) -> None:
        self._pass_on(batch, self._core.failed(batch, error))

    def _pass_on(self, batch: EndBatch, following: EndBatch | None) -> None:
        """Finish those outcomes of `batch` that have a reply or an error (`_finish`). Let the timer thread send
        `following`, the partition's next batch. The current thread does not send it, because it may be a thread that
        can be interrupted, or one that reads answers and must not wait until a new connection is open.
        """
        if following is not None:
            self._timers.call_later(0.0, partial(self._go_on, batch.place.partition, batch))
        self._finish(batch.tellings)

    # --- the end of each ----------------------------------------------------------------------------------------------

    def _finish(self, tellings: Sequence[Telling]) -> None:
        """For the outcomes that have a reply or an error: wake the threads that wait for them, and call `told` for the
        ones for which no thread waits. If this method is called twice, a thread may be woken twice, but `told` gets
        each outcome only once.
        """
        tellings = [each for each in tellings if each.reply is not None or each.error is not None]
        ended = self._core.ended(tellings)
        waiting = [each for each in tellings if each.blocks]
        if len(waiting) == 1:
            waiting[0].finish()
        elif waiting:
            finish_together(waiting)
        if ended:
            ended[0].told(ended)

    def _arm(self) -> None:
        """Set the timer to the earliest deadline of an outcome for which no thread waits."""
        with self._arming:
            if (when := self._core.expire_at) < self._armed:
                self._timers.call_later(max(0.0, when - self._clock()), self._expire)
                self._armed = when

    def _expire(self) -> None:
        """End the outcomes whose deadline has passed and for which no thread waits. Runs on the timer thread."""
        with self._arming:
            self._armed = math.inf
        over = self._core.expire()
        self._arm()
        self._finish(over)
