"""Decide which partition's messages the handlers get next, and what happens after a handler fails. The code of this
module has no I/O, threads, locks or clocks. The worker threads of listener.py (the driver) call it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import CorruptRecord, MetaqError
from metaq.protocol.own_topics import is_own_topic
from metaq.protocol.retries import Failure

from ..fetching.chunk import Chunk
from ..fetching.core import ConsumerCore
from ..fetching.cursor import PartitionCursor
from ..records.message import Message, as_original
from ..records.results import TopicPartition
from ..settings.consumer_config import ConsumerConfig
from .retrying import FailedMessages, Sending
from .suspects import Care

__all__ = ["Leaving", "RetryLater", "Work", "Works"]

log = get_log(__name__)


class RetryLater(Exception):
    """A handler raises this exception to get the message again after a pause, without a line in the log. The call of
    the handler counts as a failed try. (1.x: Message.setRollbackOnly.)
    """


@dataclass(slots=True, eq=False)
class Leaving:
    """A failed message that is being sent to the retry topic for its next attempt, or to the dead letters. A message
    that is being sent is always the first message of a Work.
    """

    original: Message
    failure: Failure
    sending: Sending | None = None
    avoided: tuple[int, ...] = ()
    """Contains the id of the broker to which the message could not be sent in the last try. It is empty if no try has
    failed.
    """
    complained: bool = False


@dataclass(slots=True, eq=False)
class Work:
    """The messages of one partition that a handler shall process, and their state. Only the worker thread that has this
    object may use its fields. The exceptions are `queued`, `more` and `paused`, which the driver's lock guards.
    """

    cursor: PartitionCursor
    is_of_own_topic: bool
    """Whether the topic is one of metaq's own topics. The messages of such a topic may have failed earlier."""
    queued: bool = False
    """Whether this object is in the queue of the worker threads, or a worker thread has taken it."""
    more: bool = False
    """Whether messages of the partition have arrived since the work was queued."""
    paused: bool = False
    messages: deque[Message] = field(default_factory=deque)
    """Messages that were taken from the cursor but are not processed yet, the oldest first."""
    end: int = 0
    """The offset after the last of `messages`; if messages directly behind it were filtered out, the offset after
    these.
    """
    moves: int = -1
    """The value that the cursor's `moves` had when `messages` were taken. `moves` counts the seeks and other restarts
    of the cursor, so a different value means that `messages` may no longer be the next ones.
    """
    tries: int = 0
    """Number of failed tries of the first message."""
    may_expire: bool = False
    """Whether some of `messages` have an expiry time."""
    single_before: int = 0
    """Messages before this offset are given to the handler one by one, because a batch that contained them has
    failed.
    """
    leaving: Leaving | None = None
    looked: bool = False
    """Whether this consumer, since it claimed the partition, has already looked for the mark of an owner that died."""
    care: Care | None = None
    complained: bool = False

    def is_current(self) -> bool:
        """Return whether `messages` are still the next messages of the partition. The result is False if the partition
        was lost or its position was moved.
        """
        cursor = self.cursor
        return cursor.active and not cursor.revoking and cursor.moves == self.moves

    def refresh(self) -> None:
        """Drop the taken messages if they are not the next messages of the partition any more."""
        if not self.is_current():
            self.messages.clear()
            self.tries, self.leaving = 0, None

    def take(self, core: ConsumerCore, chunk: Chunk, most: int) -> None:
        """Take at most `most` messages of `chunk`, the cursor's oldest chunk, into `messages`. Raises CorruptRecord."""
        self.messages.extend(core.next_messages(self.cursor, chunk, most))
        self.may_expire = chunk.may_expire
        self.end = chunk.reached
        if not chunk.bytes_left:
            self.cursor.used_up(chunk)

    def unit(self, most: int) -> list[Message]:
        """Return the messages that the handler gets next, at most `most`."""
        singly = self.care is not None and self.care.singly > 0
        size = 1 if singly or self.messages[0].offset < self.single_before else most
        return [self.messages[number] for number in range(min(size, len(self.messages)))]

    def given(self, living: Sequence[Message], may_have_failed: bool) -> Sequence[Message]:
        """Return the messages as the handler gets them. If `may_have_failed` is true, and if either the first message
        has failed here or the topic contains messages that failed earlier, each message is replaced by its original
        message, which also states the number of attempts.
        """
        if may_have_failed and (self.tries or self.is_of_own_topic):
            return [as_original(each, self.tries) for each in living]
        return living

    def all_done(self) -> None:
        """Count all taken messages as consumed, because they are processed."""
        self.cursor.consumed_to(self.end, self.cursor.last_id, self.moves)

    def take_singly(self, unit: Sequence[Message]) -> None:
        """Let the handler get each of these messages alone from now on, because it has failed on them as a batch, and
        it is unknown which message was the cause.
        """
        log.warning("a batch of %d messages failed %d times: now one by one", len(unit), self.tries)
        self.single_before, self.tries = unit[-1].next_offset, 0


class Works:
    """All Work objects (one for each partition) of one call of run(). The caller of a method must hold the driver's
    lock. Exceptions are `done` and the methods that handle a failure, which the worker thread that has the Work calls
    without the lock.

    alone: the only Work with which the handler may be called now. If it is None, the handler may be called with every
    Work. If a method returns Work objects, the driver must give them to worker threads, in the order in which they are
    returned.
    """

    def __init__(self, config: ConsumerConfig) -> None:
        self.alone: Work | None = None
        self._config = config
        self._busy = 0  # number of works in progress
        self._works: dict[PartitionCursor, Work] = {}
        self._taken: dict[TopicPartition, Work] = {}  # queued works by partition

    # --- whose turn it is -------------------------------------------------------------------------------------------

    @property
    def cursors(self) -> list[PartitionCursor]:
        """The cursors of all partitions for which there is a Work object. The cursor of a partition that is no longer
        owned may be missing, because its Work object is removed some time after the loss.
        """
        return list(self._works)

    def of(self, cursor: PartitionCursor) -> Work:
        """Return the Work object of a cursor; create one if there is none."""
        work = self._works.get(cursor)
        if work is None:
            self._works = {each: work for each, work in self._works.items() if each.active or work.queued}
            work = self._works[cursor] = Work(cursor, is_own_topic(cursor.partition.topic))
        return work

    def arrived(self, work: Work) -> list[Work]:
        """Queue a Work object, because messages of its partition have arrived. Return the Work objects that the driver
        must give to worker threads now.
        """
        work.more = True
        return self._queue(work)

    def resumed(self, work: Work) -> list[Work]:
        """Queue a Work object again, because its pause is over. Return the Work objects that the driver must give to
        worker threads now.
        """
        work.paused = False
        return self._queue(work)

    def _queue(self, work: Work) -> list[Work]:
        """Queue a Work object, unless it is queued or paused, or a worker thread has another Work object of the same
        partition, from an earlier claim. Return the Work objects that the driver must give to worker threads now.
        """
        if work.queued or work.paused:
            return []
        if self._taken.setdefault(work.cursor.partition, work) is not work:
            work.more = True
            return []
        work.queued, work.more = True, False
        return [work]

    def begun(self) -> None:
        """Count one more Work as in progress, because a worker thread begins to process it."""
        self._busy += 1

    def ended(self) -> None:
        """Count one Work less as in progress, because a worker thread has stopped processing it."""
        self._busy -= 1

    def left(self, work: Work, pauses: bool) -> list[Work]:
        """Take a Work object back from its worker thread, because its messages are processed or because it must pause.
        Return the Work objects that the driver must give to worker threads now. This may be the Work object of a later
        claim of the same partition, or `work` itself if it does not pause and has more messages. pauses: whether the
        Work waits until `resumed` is called.
        """
        if self.alone is work and not (work.care and work.care.waits and work.is_current()):
            self.alone = None
        following: list[Work] = []
        work.queued = False
        del self._taken[work.cursor.partition]
        if not work.cursor.active:
            for later in list(self._works.values()):
                if later.more and later.cursor.partition == work.cursor.partition:
                    following += self._queue(later)
        if pauses:
            work.paused = True
        elif work.more or (work.messages and work.is_current()) or work.cursor.next_chunk() is not None:
            following += self._queue(work)
        return following

    def given_up(self, partition: TopicPartition) -> list[PartitionCursor]:
        """Return the cursors of a partition that this consumer has lost or is handing over. If the consumer has claimed
        the partition again meanwhile, the cursor of the new claim is not included.
        """
        return [each for each in self._works if each.partition == partition and (each.revoking or not each.active)]

    def done(self, work: Work, unit: Sequence[Message]) -> None:
        """Count these messages, the first ones of the Work, as consumed, because they are processed. The worker thread
        that has the Work calls this without the driver's lock.
        """
        for _ in unit:
            work.messages.popleft()
        if work.care is not None:
            work.care.left -= len(unit)
            self.alone = None if self.alone is work else self.alone
        work.tries = 0
        work.cursor.consumed_to(unit[-1].next_offset, unit[-1].id, work.moves)

    def is_alone(self, work: Work) -> bool:
        """Reserve the handler for this Work, unless it is reserved for another one. Return whether it is reserved for
        this Work and no other Work is in progress. Handlers that are running with other messages may finish, but no
        further call of a handler begins until the first message of this Work has been handled.
        """
        if self.alone is None:
            self.alone = work
        return self.alone is work and self._busy == 1

    # --- what follows a failure: the seconds to pause; None says what the driver does --------------------------------

    def damaged(self, core: ConsumerCore, work: Work, chunk: Chunk, error: CorruptRecord) -> float:
        """Handle damaged messages. If the broker has not confirmed the damage yet, fetch the messages again, to check
        them again. If the broker has confirmed the damage and the setting `damage` is "skip", skip the damaged range.
        With any other setting, fetch the messages again after each pause, without end, because another node may have
        them undamaged, or somebody may repair the file. Other partitions continue meanwhile. Return the seconds for
        which this partition must pause.
        """
        cursor = work.cursor
        if chunk.damage is None:
            cursor.damaged_at(error.position, work.moves)
            return 0.0
        is_new = cursor.reported != error.position
        try:
            passes = core.passes_damage(cursor, error)
        except Exception:
            log.exception("on_damaged failed")
            passes = False
        if passes:
            work.end = chunk.reached
            cursor.used_up(chunk)
            return 0.0
        if is_new:
            log.error("the partition waits at damaged bytes, which are fetched again and again: %s", error)
        cursor.damaged_at(chunk.offset, work.moves, anew=True)
        return self._config.retry_max_seconds

    def failed_too_early(self, first: Message, error: Exception) -> float:
        """Handle a failure of the handler while it is not decided how failed messages are handled, because no broker
        has said whether it keeps delayed messages. Return the seconds to pause before the handler gets the message
        again. The attempt is not counted, because otherwise all attempts might be used up before a broker answers.
        """
        pause = self._config.retry_max_seconds
        if not isinstance(error, RetryLater):
            log.warning(
                "the handler failed on %r, and no broker has said yet whether it keeps failed messages: the next try "
                "in %.2f s",
                first,
                pause,
                exc_info=error,
            )
        return pause

    def failed_here(
        self, work: Work, unit: Sequence[Message], first: Message, error: Exception, max_retries: int | None
    ) -> float | None:
        """Handle a failure of the handler in a run() without a Retry: the partition waits, and the message is tried
        again in place. Return how many seconds the partition waits, or None if no try is left, so that the caller must
        reject the message. unit: the messages that the handler has failed on, and perhaps expired messages. first: the
        first message that the handler got.
        """
        if max_retries is None or work.tries <= max_retries:
            pause = min(self._config.retry_max_seconds, self._config.retry_step_seconds * work.tries)
            if not isinstance(error, RetryLater):
                log.warning(
                    "the handler failed on %r, try %d; the next in %.2f s",
                    first,
                    work.tries,
                    pause,
                    exc_info=error if work.tries == 1 else None,
                )
            return pause
        if len(unit) > 1:
            work.take_singly(unit)
            return self._config.retry_step_seconds
        return None

    def failed_for_now(
        self, work: Work, unit: Sequence[Message], error: Exception, failed: FailedMessages
    ) -> float | None:
        """Handle a failure of the handler in a run() with a Retry. Return the seconds for which the Work must pause
        before the handler gets the messages again. If the result is None, the caller must send the failed message (now
        `work.leaving`) to the retry topic for its next attempt or to the dead letters.
        """
        if len(unit) > 1:  # it is unknown which of them failed, so none counts an attempt
            work.take_singly(unit)
            return 0.0
        original = as_original(unit[0])
        failure = failed.failure(original, error, original.attempts + work.tries - 1)
        waits_here = failed.retry.ordered and not failed.is_last(failure)
        pause = failed.pause(failure.attempts) if waits_here else None
        if failed.is_last(failure):
            log.error(
                "the handler failed on %r for the last time, attempt %d", original, failure.attempts, exc_info=error
            )
        elif not isinstance(error, RetryLater):
            log.warning(
                "the handler failed on %r, attempt %d%s",
                original,
                failure.attempts,
                "" if pause is None else f"; its partition waits for {pause:.2f} s",
                exc_info=error if failure.attempts == 1 else None,
            )
        if pause is None:
            work.leaving = Leaving(original, failure)
        return pause

    def not_sent(self, leaving: Leaving, error: MetaqError) -> float:
        """Called if a failed message was sent but no broker has stored it: return the seconds to pause before it is
        sent again, if possible to another broker.
        """
        if not leaving.complained:
            leaving.complained = True
            log.warning(
                "%r waits with its partition until it can be stored for another attempt, or as a dead letter: %s; its "
                "handler failed with %s",
                leaving.original,
                error,
                leaving.failure.cause.splitlines()[0],
            )
        if leaving.sending is not None:
            leaving.avoided = (leaving.sending.partition.broker,)
            leaving.sending = None
        return self._config.retry_max_seconds
