"""Decide which partition handlers work on next, with which messages, and what follows a failure of the handler. A core
without I/O, threads, locks and clocks; the workers of listener.py are one driver.
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
    """A handler raises this exception to get the message again after a pause, without a line in the log. The call
    counts as a try. (1.x: Message.setRollbackOnly.)
    """


@dataclass(slots=True, eq=False)
class Leaving:
    """A failed message on its way to the delayed topic of its next attempt, or to the dead letters. It is the first
    message of a work."""

    original: Message
    failure: Failure
    sending: Sending | None = None
    avoided: tuple[int, ...] = ()
    """The broker to which the last send failed."""
    complained: bool = False


@dataclass(slots=True, eq=False)
class Work:
    """The work of one partition. Its worker owns all fields, except `queued`, `more` and `paused`, which the driver's
    lock guards."""

    cursor: PartitionCursor
    is_of_own_topic: bool
    """Whether its messages may have failed earlier, because the topic is one of metaq's own."""
    queued: bool = False
    """Whether the work is in the queue, or with a worker."""
    more: bool = False
    """Whether messages have arrived meanwhile."""
    paused: bool = False
    messages: deque[Message] = field(default_factory=deque)
    """Messages that were taken but are not processed yet, from the cursor's position on."""
    end: int = 0
    """The position after all of `messages`, and after the filtered messages that follow them."""
    moves: int = -1
    """The cursor's `moves` when `messages` were taken."""
    tries: int = 0
    """Number of failed tries of the first message."""
    may_expire: bool = False
    """Whether some of `messages` have an expiry time."""
    single_before: int = 0
    """Below this offset, the handler gets the messages of a failed batch one by one."""
    leaving: Leaving | None = None
    looked: bool = False
    """Whether the mark of a dead owner was already looked for in this claim."""
    care: Care | None = None
    complained: bool = False

    def is_current(self) -> bool:
        """Whether the taken messages are still the next ones."""
        cursor = self.cursor
        return cursor.active and not cursor.revoking and cursor.moves == self.moves

    def refresh(self) -> None:
        """Drop taken messages that are not the next ones any more."""
        if not self.is_current():
            self.messages.clear()
            self.tries, self.leaving = 0, None

    def take(self, core: ConsumerCore, chunk: Chunk, most: int) -> None:
        """Take at most `most` messages of the cursor's oldest chunk. Raises CorruptRecord."""
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
        """Return the same messages as the handler sees them: with their attempts, if some may have failed before."""
        if may_have_failed and (self.tries or self.is_of_own_topic):
            return [as_original(each, self.tries) for each in living]
        return living

    def all_done(self) -> None:
        """Note that all taken messages are processed."""
        self.cursor.consumed_to(self.end, self.cursor.last_id, self.moves)

    def take_singly(self, unit: Sequence[Message]) -> None:
        """Give these messages to the handler one by one, because it is unknown at which of them it has failed."""
        log.warning("a batch of %d messages failed %d times: now one by one", len(unit), self.tries)
        self.single_before, self.tries = unit[-1].next_offset, 0


class Works:
    """All works of one run. One thread at a time, with the driver's lock. Without the lock, a work's worker may call
    `done` and the methods that follow a failure.

    alone: the work that alone may call the handler; None: all may. The driver begins the works that a method returns,
    in their order.
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
        """The cursors that were worked on. Some inactive ones are already left out."""
        return list(self._works)

    def of(self, cursor: PartitionCursor) -> Work:
        """Return the work of a cursor; make it if there is none."""
        work = self._works.get(cursor)
        if work is None:
            self._works = {each: work for each, work in self._works.items() if each.active or work.queued}
            work = self._works[cursor] = Work(cursor, is_own_topic(cursor.partition.topic))
        return work

    def arrived(self, work: Work) -> list[Work]:
        """Note that messages have arrived for a work."""
        work.more = True
        return self._queue(work)

    def resumed(self, work: Work) -> list[Work]:
        """Note that the pause of a work is over."""
        work.paused = False
        return self._queue(work)

    def _queue(self, work: Work) -> list[Work]:
        """Queue a work, unless a former claim of the partition is still with its handler."""
        if work.queued or work.paused:
            return []
        if self._taken.setdefault(work.cursor.partition, work) is not work:
            work.more = True
            return []
        work.queued, work.more = True, False
        return [work]

    def begun(self) -> None:
        """Note that a work is in progress."""
        self._busy += 1

    def ended(self) -> None:
        """Note that a work in progress has ended, or pauses."""
        self._busy -= 1

    def left(self, work: Work, pauses: bool) -> list[Work]:
        """Note that a queued work has ended or pauses. Return the works that are due now: a later claim of its
        partition, or the work itself if messages are left. pauses: the work continues after `resumed`."""
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
        """Return the cursors of former claims of a partition; a later claim does not count."""
        return [each for each in self._works if each.partition == partition and (each.revoking or not each.active)]

    def done(self, work: Work, unit: Sequence[Message]) -> None:
        """Note that these messages, the first ones of a work, are processed. Called by the work's worker, without the
        lock."""
        for _ in unit:
            work.messages.popleft()
        if work.care is not None:
            work.care.left -= len(unit)
            self.alone = None if self.alone is work else self.alone
        work.tries = 0
        work.cursor.consumed_to(unit[-1].next_offset, unit[-1].id, work.moves)

    def is_alone(self, work: Work) -> bool:
        """Reserve the handler for this work, and return whether no other work is in progress. Other works finish their
        messages, and begin no new ones until the message of this work has been handled.
        """
        if self.alone is None:
            self.alone = work
        return self.alone is work and self._busy == 1

    # --- what follows a failure: the seconds to pause; None says what the driver does --------------------------------

    def damaged(self, core: ConsumerCore, work: Work, chunk: Chunk, error: CorruptRecord) -> float:
        """Fetch damaged messages again and check them again. Skip a known damaged range, or try again without end:
        another broker, or a repaired file, may have the messages intact. Other partitions continue."""
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
        """Keep the message and do not count the attempt: brokers may be absent for longer than all attempts take."""
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
        """Let the partition wait for the message. Return the seconds to pause; None: no try is left, so reject the
        message. first: the first message of the unit that the handler got."""
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
        """Handle a failure with a Retry. Return the seconds to pause; None: send the work's `leaving` to its next
        place."""
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
        """Return the seconds to pause before the message is sent again, because it could not be stored."""
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
