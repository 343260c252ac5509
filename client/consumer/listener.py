"""Consuming by a handler: messages go to it partition by partition. A failing message blocks only its own partition.

The thread in run() takes arrivals and tells the user of assignments, as poll() does; a few worker threads call the
handler. Each partition is one unit of work with at most one worker, which keeps its order. After a failure of the
handler the work pauses with its messages in memory, and a timer puts it back into the queue.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

from metaq.coordination.interrupts import BackgroundThread, Ending
from metaq.coordination.logs import get_log
from metaq.protocol.errors import CorruptRecord, MetaqError
from metaq.protocol.own_topics import is_own_topic
from metaq.protocol.retries import Failure

from ..fetching.chunk import Chunk
from ..fetching.core import Accept, ConsumerCore
from ..fetching.cursor import PartitionCursor
from ..fetching.fetcher import Fetcher
from ..fetching.tuning import ALONE_LOOK_SECONDS, HANDLER_MESSAGES, SENDING_LOOK_SECONDS, STOP_LOOK_SECONDS
from ..records.message import Message, as_original
from ..records.values import TopicPartition
from ..runtime.timers import TimeLeft, Timers
from .rejected import RejectHandler
from .retrying import FailedMessages, Sending
from .suspects import Care, Suspects, WorkerDied
from .watches import PollWatch

__all__ = ["Deliver", "Handling", "Listener", "RetryLater", "accepting", "delivering_living"]

log = get_log(__name__)

Deliver = Callable[[Sequence[Message]], object]


class RetryLater(Exception):
    """Raise it in a handler to get the message again after a pause, without a line in the log. It counts as a try.
    (1.x: Message.setRollbackOnly.)
    """


def delivering_living(deliver: Deliver, core: ConsumerCore) -> Deliver:
    """`deliver` for kept messages: only unexpired ones, with their values."""

    def deliver_living(messages: Sequence[Message]) -> None:
        living = core.living(messages)
        if living:
            deliver(core.readable(living))

    return deliver_living


def accepting(deliver: Deliver, accept: Accept | None) -> Deliver:
    """`deliver` for messages that pass the user's filter; an exception of the filter is a failure of the message."""
    if accept is None:
        return deliver

    def deliver_accepted(messages: Sequence[Message]) -> None:
        wanted = list(filter(accept, messages))
        if wanted:
            deliver(wanted)

    return deliver_accepted


class Handling(NamedTuple):
    """Options of a run(). deliver: gets at most `batch` messages, which count as consumed when it returns. failed:
    where failing messages go; None: as max_retries and `reject` say. suspects: messages that may have ended a former
    owner's process."""

    deliver: Deliver
    batch: int
    max_retries: int | None
    reject: RejectHandler
    threads: int
    failed: FailedMessages | None = None
    suspects: Suspects | None = None


@dataclass(slots=True, eq=False)
class _Leaving:
    """The first message of a work on its way to the delayed topic of its next attempt, or to the dead letters."""

    original: Message
    failure: Failure
    sending: Sending | None = None
    avoided: tuple[int, ...] = ()
    """The broker to which it could not be sent last."""
    complained: bool = False


@dataclass(slots=True, eq=False)
class _Work:
    """The work of one partition. Its worker owns all fields, except `queued`, `more` and `paused`, which Listener._lock
    guards."""

    cursor: PartitionCursor
    is_of_own_topic: bool
    """Whether its messages may have failed before they came here."""
    queued: bool = False
    """In the queue, or with a worker."""
    more: bool = False
    """Messages arrived meanwhile."""
    paused: bool = False
    messages: deque[Message] = field(default_factory=deque)
    """Taken but not processed yet, from the cursor's position on."""
    end: int = 0
    """The position once these are processed: after the last one, and after filtered ones behind it."""
    moves: int = -1
    """The cursor's `moves` when they were taken."""
    tries: int = 0
    """Failed tries of the first of them."""
    may_expire: bool = False
    """Whether some of `messages` have an expiry time."""
    single_before: int = 0
    """Below this offset, messages of a batch that failed go to the handler one by one."""
    leaving: _Leaving | None = None
    looked: bool = False
    """Whether it is known if the last owner died."""
    care: Care | None = None
    complained: bool = False

    def is_current(self) -> bool:
        """Whether the taken messages are still the next ones."""
        cursor = self.cursor
        return cursor.active and not cursor.revoking and cursor.moves == self.moves


class Listener:
    """One run of a handler. `loop` is called on one thread; stop() on any.

    may_work: False while another member may own the partitions. choose: called on the thread of `loop` before the first
    message and then from time to time, until it says where failed messages go. While it returns None they are tried
    again in their place, for ever. Its exceptions end `loop`.
    """

    def __init__(
        self,
        handling: Handling,
        core: ConsumerCore,
        fetcher: Fetcher,
        timers: Timers,
        poll_watch: PollWatch,
        may_work: Callable[[], bool],
        choose: Callable[[Handling], Handling | None] | None = None,
    ) -> None:
        self._handling = handling
        self._choose = choose
        self._choose_at = 0.0  # time.monotonic()
        self._core = core
        self._fetcher = fetcher
        self._timers = timers
        self._poll_watch = poll_watch
        self._config = core.config
        self._may_work = may_work
        self._lock = threading.Lock()
        self._busy = 0  # workers that handle a partition
        self._alone: _Work | None = None  # no other work may call the handler
        self._works: dict[PartitionCursor, _Work] = {}
        self._taken: dict[TopicPartition, _Work] = {}  # queued works by partition
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._stopping = False
        self._failure: BaseException | None = None
        self._workers: list[BackgroundThread] = []
        self._gave_back = False
        self._ending = Ending()

    # --- the thread in run() ----------------------------------------------------------------------------------------

    def loop(self) -> None:
        """Work until stop().

        Raises exceptions of on_assigned, on_revoked and `choose`, and those of a handler that do not derive from
        Exception (SystemExit …).
        """
        core = self._core
        try:
            self._look_for_choice()
            for number in range(self._handling.threads):
                self._workers.append(BackgroundThread(self._run_worker, f"metaq-handler-{number}"))
            for cursor in core.owned.values():  # messages may be there already
                self._arrived(self._work_of(cursor))
            while not self._stopping:
                self._poll_watch.attend()
                self._fetcher.listen()
                self._look_for_choice()
                if core.notices.waiting:
                    core.notices.tell(self._is_busy)
                while (arrived := core.next_ready()) is not None:
                    work = self._work_of(arrived)  # first: give_back() finds it by its work
                    core.hand_over(arrived)
                    self._arrived(work)
                self._poll_watch.wait(partial(self._fetcher.wait, STOP_LOOK_SECONDS))
        finally:
            self._end()
        if self._failure is not None:
            raise self._failure

    def _look_for_choice(self) -> None:
        if self._choose is None or time.monotonic() < self._choose_at:
            return
        chosen = self._choose(self._handling)
        self._choose_at = time.monotonic() + STOP_LOOK_SECONDS
        if chosen is not None:
            self._handling, self._choose = chosen, None

    def stop(self) -> None:
        """Let `loop` return once the running handlers have. Any thread."""
        self._stopping = True
        self._fetcher.wake()

    def is_worker(self) -> bool:
        """Whether the calling thread is one that calls handlers."""
        return any(worker.is_current for worker in self._workers)

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` until the handlers have returned. Any thread except a handler's."""
        self._ending.wait(seconds)

    def add_work(self, job: Callable[[], None]) -> None:
        """Let a worker do another job that calls the handler."""
        self._jobs.put(job)

    def _work_of(self, cursor: PartitionCursor) -> _Work:
        with self._lock:
            work = self._works.get(cursor)
            if work is None:
                self._works = {each: work for each, work in self._works.items() if each.active or work.queued}
                work = self._works[cursor] = _Work(cursor, is_own_topic(cursor.partition.topic))
            return work

    def _arrived(self, work: _Work) -> None:
        with self._lock:
            work.more = True
            self._queue(work)

    def _queue(self, work: _Work) -> None:
        """Put a work into the queue; under the lock. The work of a former claim may still be in its handler."""
        if work.queued or work.paused:
            return
        if self._taken.setdefault(work.cursor.partition, work) is work:
            work.queued, work.more = True, False
            self._jobs.put(partial(self._work_on, work))
        else:
            work.more = True

    def _leave_queue(self, work: _Work) -> None:
        """Take a work out of the queue; under the lock. A later claim of the partition is next, if there is one."""
        work.queued = False
        del self._taken[work.cursor.partition]
        if not work.cursor.active:
            for later in list(self._works.values()):
                if later.more and later.cursor.partition == work.cursor.partition:
                    self._queue(later)

    def _is_busy(self, partition: TopicPartition) -> bool:
        """Whether a handler works for a given up or lost claim of the partition; a later claim does not count."""
        with self._lock:
            works = list(self._works)
        given = [each for each in works if each.partition == partition and (each.revoking or not each.active)]
        return self._core.is_out(given)

    def _end(self) -> None:
        try:
            self._stop_workers()
            self._core.notices.tell(self._is_busy)
        finally:
            self.give_back()

    def _stop_workers(self) -> None:
        self._stopping = True
        self._jobs.put(None)
        left = TimeLeft(self._config.stop_seconds)
        returned = [worker.join(left.seconds) for worker in self._workers]
        if not all(returned):
            log.warning(
                "a handler has not returned within stop_seconds=%g: its message counts as not consumed",
                self._config.stop_seconds,
            )

    def give_back(self) -> None:
        """Let unprocessed messages come again with the next poll() or run(), also those in a running handler. May be
        repeated: `loop` may end without it, by an interrupt."""
        if self._gave_back:
            return
        self._stopping = True
        self._jobs.put(None)
        for worker in self._workers:
            self._poll_watch.rests(worker.ident)
        with self._lock:
            cursors = list(self._works)
        for cursor in cursors:
            cursor.again()
        self._fetcher.serve_soon()
        self._ending.tell()
        self._gave_back = True

    # --- workers ----------------------------------------------------------------------------------------------------

    def _run_worker(self) -> None:
        worker = threading.get_ident()
        while (job := self._jobs.get()) is not None:
            try:
                if not self._stopping:
                    self._poll_watch.works(worker)
                    job()
            except Exception:
                log.exception("a bug: a worker failed")
            except BaseException as error:  # SystemExit and similar exceptions concern the whole program
                self._failure = error
                self.stop()
            finally:
                self._poll_watch.rests(worker)
        self._jobs.put(None)  # for the other workers

    def _work_on(self, work: _Work) -> None:
        cursor, pause = work.cursor, 0.0
        if cursor.hold():
            with self._lock:
                self._busy += 1
            try:
                pause = self._process(work)
            finally:
                with self._lock:
                    self._busy -= 1
                cursor.let_go()
                if cursor.revoking or not cursor.active:
                    self._fetcher.wake()  # somebody waits for the handler to return
        with self._lock:
            if self._alone is work and not (work.care and work.care.waits and work.is_current()):
                self._alone = None
            self._leave_queue(work)
            if pause:
                work.paused = True
                self._timers.call_later(pause, partial(self._resume, work))
            elif work.more or (work.messages and work.is_current()) or cursor.next_chunk() is not None:
                self._queue(work)

    def _resume(self, work: _Work) -> None:
        """Put a paused work back into the queue; timer thread."""
        with self._lock:
            work.paused = False
            self._queue(work)

    def _process(self, work: _Work) -> float:
        """Process the work's messages, or the next ones. Return the seconds to pause; 0: none."""
        if not work.is_current():
            work.messages.clear()
            work.tries, work.leaving = 0, None
        if not work.messages:
            pause = self._take(work)
            if pause:
                return pause
        while work.messages:
            if self._stopping or not work.is_current():
                return 0.0
            if not self._may_work():
                return self._config.retry_step_seconds
            if self._alone is not None and self._alone is not work:
                return ALONE_LOOK_SECONDS
            pause = self._process_next(work)
            if pause:
                return pause
        work.cursor.consumed_to(work.end, work.cursor.last_id, work.moves)
        return 0.0

    def _take(self, work: _Work) -> float:
        cursor = work.cursor
        work.moves, work.end = cursor.moves, cursor.position
        chunk = cursor.next_chunk()
        # Checked after the chunk: if give_back() or others moved the cursor, the messages are dropped here.
        if chunk is None or self._stopping or not work.is_current():
            return 0.0
        pause = 0.0
        try:
            work.messages.extend(self._core.next_messages(cursor, chunk, max(HANDLER_MESSAGES, self._handling.batch)))
            work.may_expire = chunk.may_expire
            work.end = chunk.reached
            if not chunk.bytes_left:
                cursor.used_up(chunk)
        except CorruptRecord as error:
            pause = self._damaged(work, chunk, error)
        self._fetcher.serve()
        return pause

    def _damaged(self, work: _Work, chunk: Chunk, error: CorruptRecord) -> float:
        """Fetch damaged messages again and check them again. Skip a known damaged range, or try for ever: another
        broker, or a repaired file, may have it intact. Other partitions go on.
        """
        cursor = work.cursor
        if chunk.damage is None:
            cursor.damaged_at(error.position, work.moves)
            return 0.0
        is_new = cursor.reported != error.position
        try:
            passes = self._core.passes_damage(cursor, error)
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

    def _process_next(self, work: _Work) -> float:
        self._poll_watch.works(threading.get_ident())
        if work.leaving is not None:
            return self._leave(work, work.leaving)
        if self._handling.suspects is not None and (work.care is not None or not work.looked):
            pause = self._take_care(work, self._handling.suspects)
            if pause is not None:
                return pause
        singly = work.care is not None and work.care.singly > 0
        size = 1 if singly or work.messages[0].offset < work.single_before else self._handling.batch
        unit = [work.messages[number] for number in range(min(size, len(work.messages)))]
        living = self._core.living(unit) if work.may_expire else unit  # also for a message that has failed before
        if living:
            has_failed = self._handling.failed is not None and (work.tries or work.is_of_own_topic)
            given = [as_original(each, work.tries) for each in living] if has_failed else living
            try:
                self._handling.deliver(given)
            except Exception as error:
                return self._failed(work, unit, living[0], error)
        self._done(work, unit)
        return 0.0

    def _done(self, work: _Work, unit: Sequence[Message]) -> None:
        for _ in unit:
            work.messages.popleft()
        if work.care is not None:
            work.care.left -= len(unit)
            self._alone = None if self._alone is work else self._alone
        work.tries = 0
        work.cursor.consumed_to(unit[-1].next_offset, unit[-1].id, work.moves)

    def _failed(self, work: _Work, unit: Sequence[Message], first: Message, error: Exception) -> float:
        """Handle a failure. first: of the unit's messages that the handler got."""
        if self._choose is not None:
            return self._failed_too_early(first, error)
        work.tries += 1
        if self._handling.failed is not None:
            return self._failed_for_now(work, unit, error, self._handling.failed)
        if self._handling.max_retries is None or work.tries <= self._handling.max_retries:
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
            self._take_singly(work, unit)
            return self._config.retry_step_seconds
        try:
            self._handling.reject(first, error)
        except Exception:
            log.exception("%r can be neither processed nor put aside: its partition waits", first)
            return self._config.retry_max_seconds
        self._done(work, unit)
        return 0.0

    def _failed_too_early(self, first: Message, error: Exception) -> float:
        """The message stays and the attempt does not count: brokers may be absent for longer than all attempts take."""
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

    def _take_singly(self, work: _Work, unit: Sequence[Message]) -> None:
        log.warning("a batch of %d messages failed %d times: now one by one", len(unit), work.tries)
        work.single_before, work.tries = unit[-1].next_offset, 0

    # --- messages that may end their process --------------------------------------------------------------------------

    def _take_care(self, work: _Work, suspects: Suspects) -> float | None:
        """Prepare for a message that may end the process. Return the seconds for which the partition must pause (0:
        none, but the first message has changed); None: the message may be begun."""
        offset = work.messages[0].offset
        try:
            if not work.looked:
                work.care, work.looked = suspects.look(work.cursor), True
            care = work.care
            if care is None:
                return None
            if care.is_named(offset) and care.begun.alone and care.marked != offset and not work.tries:
                work.tries = care.begun.alone
                return self._died(work)
            alone = self._handling.threads == 1 or (care.is_named(offset) and self._is_alone(work))
            care.waits = care.is_named(offset) and not alone
            if care.waits:
                return ALONE_LOOK_SECONDS
            suspects.step(work.cursor, care, offset, alone)
        except MetaqError as error:
            if not work.complained:
                work.complained = True
                log.warning("%s waits until what it begins can be written down: %s", work.cursor, error)
            return self._config.retry_max_seconds
        work.complained = False
        if care.is_over:
            work.care = None
            suspects.over(work.cursor)
        return None

    def _died(self, work: _Work) -> float:
        failed = self._handling.failed
        assert failed is not None, "only then there are suspects"
        error = WorkerDied(f"{work.tries} processes ended, or lost their sessions, while they handled it alone")
        return self._failed_for_now(work, [work.messages[0]], error, failed)

    def _is_alone(self, work: _Work) -> bool:
        """Whether this work is alone: other works finish their messages, and begin none until this one has been
        handled."""
        with self._lock:
            if self._alone is None:
                self._alone = work
            return self._alone is work and self._busy == 1

    # --- messages that go back to the broker --------------------------------------------------------------------------

    def _failed_for_now(self, work: _Work, unit: Sequence[Message], error: Exception, failed: FailedMessages) -> float:
        if len(unit) > 1:  # it is not known which of them failed, so none counts an attempt
            self._take_singly(work, unit)
            return 0.0
        original = as_original(unit[0])
        failure = failed.failure(original, error, original.attempts + work.tries - 1)
        waits_here = failed.retry.ordered and not failed.is_last(failure)
        pause = failed.pause(failure.attempts) if waits_here else 0.0
        if failed.is_last(failure):
            log.error(
                "the handler failed on %r for the last time, attempt %d", original, failure.attempts, exc_info=error
            )
        elif not isinstance(error, RetryLater):
            log.warning(
                "the handler failed on %r, attempt %d%s",
                original,
                failure.attempts,
                f"; its partition waits for {pause:.2f} s" if waits_here else "",
                exc_info=error if failure.attempts == 1 else None,
            )
        if waits_here:
            return pause
        work.leaving = _Leaving(original, failure)
        return self._leave(work, work.leaving)

    def _leave(self, work: _Work, leaving: _Leaving) -> float:
        """Send the message on. It counts as consumed only when it is stored there; until then its partition waits."""
        failed = self._handling.failed
        assert failed is not None, "nothing leaves otherwise"
        try:
            sending = leaving.sending
            if sending is None:
                sending = leaving.sending = failed.send(leaving.original, leaving.failure, leaving.avoided)
            if not sending.future.done():
                try:
                    sending.future.exception(SENDING_LOOK_SECONDS)
                except TimeoutError:
                    return SENDING_LOOK_SECONDS
            sending.future.result()
        except MetaqError as error:
            return self._not_sent(leaving, error)
        work.leaving = None
        if leaving.complained or failed.is_last(leaving.failure):
            log.warning("%r lies in %s now", leaving.original, sending.partition.topic)
        self._done(work, [work.messages[0]])
        return 0.0

    def _not_sent(self, leaving: _Leaving, error: MetaqError) -> float:
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
