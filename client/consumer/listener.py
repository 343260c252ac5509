"""Consume messages with a handler; each call of the handler gets messages of one partition. If the handler fails on a
message, only this message's partition waits.

The thread in run() reacts to messages that arrive, and calls the user's callbacks about assigned partitions, as poll()
does. A few worker threads call the handler. A Work object has the messages of one partition. At most one worker thread
has it at a time, so the messages of a partition are handled in order. After a failure of the handler, the Work keeps
its messages in memory during a pause, and then a timer puts it back into the queue of the worker threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

from metaq.coordination.runtime.interrupts import BackgroundThread, Ending
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import CorruptRecord, MetaqError

from ..fetching.core import Accept, ConsumerCore
from ..fetching.cursor import PartitionCursor
from ..fetching.fetcher import Fetcher
from ..fetching.tuning import (
    ALONE_LOOK_SECONDS,
    HANDLER_MESSAGES,
    PAUSED_LOOK_SECONDS,
    SENDING_LOOK_SECONDS,
    STOP_LOOK_SECONDS,
)
from ..records.message import Message
from ..records.results import TopicPartition
from ..runtime.timers import Scheduler, TimeLeft
from .rejected import RejectHandler
from .retrying import FailedMessages
from .self_checks import PollWatch
from .suspects import Suspects, WorkerDied
from .works import Leaving, Work, Works

__all__ = ["Deliver", "Handling", "Listener", "accepting", "delivering_living"]

log = get_log(__name__)

Deliver = Callable[[Sequence[Message]], object]


def delivering_living(deliver: Deliver, core: ConsumerCore) -> Deliver:
    """Return a function that gets messages from a local store of rejected messages and passes them to `deliver`. The
    returned function leaves out expired messages, and decodes the values of the others.
    """

    def deliver_living(messages: Sequence[Message]) -> None:
        living = core.living(messages)
        if living:
            deliver(core.readable(living))

    return deliver_living


def accepting(deliver: Deliver, accept: Accept | None) -> Deliver:
    """Return a function that passes to `deliver` only the messages that the user's filter `accept` accepts. An
    exception that the filter raises counts as a failure of the handler on the message.
    """
    if accept is None:
        return deliver

    def deliver_accepted(messages: Sequence[Message]) -> None:
        wanted = list(filter(accept, messages))
        if wanted:
            deliver(wanted)

    return deliver_accepted


class Handling(NamedTuple):
    """The options of a call of run(). deliver: calls the handler with at most `batch` messages; the messages count as
    consumed when the handler returns. failed: the object that sends a message back to the broker after the handler has
    failed on it. If it is None, such a message is tried again in place up to max_retries times, and then passed to
    `reject`.
    suspects: takes care of messages that may have killed a former owner's process. If it is None, these messages get no
        special care.
    """

    deliver: Deliver
    batch: int
    max_retries: int | None
    reject: RejectHandler
    threads: int
    failed: FailedMessages | None = None
    suspects: Suspects | None = None


class Listener:
    """Does the work of one call of run() with a handler. `loop` runs on one thread; any thread may call stop().

    may_work: returns false while another member may own the partitions; no handler is called then. choose: a function
    that decides how failed messages are handled. It returns options that contain its decision, or None if it cannot
    decide yet. `loop` calls this function before the first message, and then from time to time until it has decided.
    Until then, failed messages are tried again in place, without limit. An exception of `choose` ends `loop`.
    """

    def __init__(
        self,
        handling: Handling,
        core: ConsumerCore,
        fetcher: Fetcher,
        timers: Scheduler,
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
        self._works = Works(core.config)
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._stopping = False
        self._failure: BaseException | None = None
        self._workers: list[BackgroundThread] = []
        self._gave_back = False
        self._ending = Ending()

    # --- the thread in run() ----------------------------------------------------------------------------------------

    def loop(self) -> None:
        """Consume messages until stop() is called.

        Raises exceptions of on_assigned, on_revoked and `choose`, and AccessRefused if a broker refuses to hand out the
        messages of a partition or to log the user in. Also raises exceptions of a handler that do not
        derive from Exception (SystemExit …).
        """
        core = self._core
        try:
            self._look_for_choice()
            for number in range(self._handling.threads):
                self._workers.append(BackgroundThread(self._run_worker, f"metaq-handler-{number}"))
            for cursor in core.owned.values():  # messages may have arrived already
                self._arrived(self._work_of(cursor))
            while not self._stopping:
                self._poll_watch.attend()
                self._fetcher.listen()
                self._look_for_choice()
                if core.notices.waiting:
                    core.notices.tell(self._is_busy)
                while (arrived := core.next_ready()) is not None:
                    work = self._work_of(arrived)  # first: give_back() finds the cursor by its work
                    core.hand_over(arrived)
                    self._arrived(work)
                if (refusal := core.take_refusal()) is not None:
                    raise refusal
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
        """Make `loop` return as soon as the running handlers have returned. Any thread may call this."""
        self._stopping = True
        self._fetcher.wake()

    def is_worker(self) -> bool:
        """Whether the calling thread is a worker thread, which calls handlers."""
        return any(worker.is_current for worker in self._workers)

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` until the running handlers have returned. Any thread may call this, except a worker
        thread.
        """
        self._ending.wait(seconds)

    def add_work(self, job: Callable[[], None]) -> None:
        """Let a worker thread run the function `job`. It calls the handler itself, with messages that do not come from
        a partition but, for example, from the local store of rejected messages.
        """
        self._jobs.put(job)

    def _work_of(self, cursor: PartitionCursor) -> Work:
        with self._lock:
            return self._works.of(cursor)

    def _arrived(self, work: Work) -> None:
        with self._lock:
            self._begin(self._works.arrived(work))

    def _begin(self, works: Sequence[Work]) -> None:
        """Hand these Work objects to the worker threads. The caller must hold the lock."""
        for each in works:
            self._jobs.put(partial(self._work_on, each))

    def _is_busy(self, partition: TopicPartition) -> bool:
        """Return whether a handler still works on messages that it got before this member gave up or lost the
        partition.
        """
        with self._lock:
            given_up = self._works.given_up(partition)
        return self._core.is_out(given_up)

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
        """Put back all messages that are not processed, so that the next poll() or run() delivers them again. Messages
        in a running handler are put back, too. This method may be called repeatedly. Besides `loop`, the consumer calls
        it, because an interrupt may end `loop` before `loop` has called it.
        """
        if self._gave_back:
            return
        self._stopping = True
        self._jobs.put(None)
        for worker in self._workers:
            self._poll_watch.rests(worker.ident)
        with self._lock:
            cursors = self._works.cursors
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
            except BaseException as error:  # SystemExit and similar exceptions must end the whole program
                self._failure = error
                self.stop()
            finally:
                self._poll_watch.rests(worker)
        self._jobs.put(None)  # so that the other workers end, too

    def _work_on(self, work: Work) -> None:
        cursor, pause = work.cursor, 0.0
        if cursor.hold():
            with self._lock:
                self._works.begun()
            try:
                pause = self._process(work)
            finally:
                with self._lock:
                    self._works.ended()
                cursor.let_go()
                if cursor.revoking or not cursor.active:
                    self._fetcher.wake()  # another thread waits for the handler to return
        with self._lock:
            self._begin(self._works.left(work, pauses=pause > 0))
            if pause:
                self._timers.call_later(pause, partial(self._resume, work))

    def _resume(self, work: Work) -> None:
        """Put a Work whose pause is over back into the queue of the worker threads. Runs on the timer thread."""
        with self._lock:
            self._begin(self._works.resumed(work))

    def _process(self, work: Work) -> float:
        """Call the handler with the messages of a Work until they are all processed. If the Work has no messages, take
        messages from its partition first. Return how many seconds the Work must pause before it goes on. 0 means no
        pause.
        """
        work.refresh()
        if not work.messages:
            pause = self._take(work)
            if pause:
                return pause
        while work.messages:
            if self._stopping or not work.is_current():
                return 0.0
            if work.cursor.paused:
                return PAUSED_LOOK_SECONDS
            if not self._may_work():
                return self._config.retry_step_seconds
            if self._works.alone is not None and self._works.alone is not work:
                return ALONE_LOOK_SECONDS
            pause = self._process_next(work)
            if pause:
                return pause
        work.all_done()
        return 0.0

    def _take(self, work: Work) -> float:
        cursor = work.cursor
        work.moves, work.end = cursor.moves, cursor.position
        chunk = cursor.next_chunk()
        # Checked after the chunk was taken: if give_back() or others moved the cursor, the messages are dropped here.
        if chunk is None or self._stopping or not work.is_current():
            return 0.0
        pause = 0.0
        try:
            work.take(self._core, chunk, max(HANDLER_MESSAGES, self._handling.batch))
        except CorruptRecord as error:
            pause = self._works.damaged(self._core, work, chunk, error)
        self._fetcher.serve()
        return pause

    def _process_next(self, work: Work) -> float:
        handling = self._handling
        self._poll_watch.works(threading.get_ident())
        if work.leaving is not None:
            return self._leave(work, work.leaving)
        if handling.suspects is not None and (work.care is not None or not work.looked):
            pause = self._take_care(work, handling.suspects)
            if pause is not None:
                return pause
        unit = work.unit(handling.batch)
        living = self._core.living(unit) if work.may_expire else unit  # also for a message that has failed before
        if living:
            try:
                handling.deliver(work.given(living, may_have_failed=handling.failed is not None))
            except Exception as error:
                return self._failed(work, unit, living[0], error)
        self._works.done(work, unit)
        return 0.0

    def _failed(self, work: Work, unit: Sequence[Message], first: Message, error: Exception) -> float:
        """Decide what happens to the messages on which the handler has failed, and do it. Return how many seconds the
        Work must pause. unit: the messages that the handler has failed on, and perhaps expired messages. first: the
        first message that the handler got.
        """
        if self._choose is not None:
            return self._works.failed_too_early(first, error)
        work.tries += 1
        if self._handling.failed is not None:
            return self._failed_for_now(work, unit, error, self._handling.failed)
        pause = self._works.failed_here(work, unit, first, error, self._handling.max_retries)
        if pause is not None:
            return pause
        try:
            self._handling.reject(first, error)
        except Exception:
            log.exception("%r can be neither processed nor put aside: its partition waits", first)
            return self._config.retry_max_seconds
        self._works.done(work, unit)
        return 0.0

    # --- messages that may end their process --------------------------------------------------------------------------

    def _take_care(self, work: Work, suspects: Suspects) -> float | None:
        """Before the handler gets the first message of `work`, do what is necessary if the message may kill the
        process: wait until no other message is handled, commit the offset and name the message in the mark. Return None
        if the handler may get the message now. Otherwise return how many seconds the partition must pause. 0 means no
        pause: the message was sent back as failed, and the message after it is now the first one of `work`.
        """
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
                log.warning("%s waits until ZooKeeper stores which messages it begins: %s", work.cursor, error)
            return self._config.retry_max_seconds
        work.complained = False
        if care.is_over:
            work.care = None
            suspects.over(work.cursor)
        return None

    def _is_alone(self, work: Work) -> bool:
        with self._lock:
            return self._works.is_alone(work)

    def _died(self, work: Work) -> float:
        failed = self._handling.failed
        assert failed is not None, "only then there are suspects"
        error = WorkerDied(f"{work.tries} processes ended, or lost their sessions, while they handled it alone")
        return self._failed_for_now(work, [work.messages[0]], error, failed)

    # --- messages that go back to the broker --------------------------------------------------------------------------

    def _failed_for_now(self, work: Work, unit: Sequence[Message], error: Exception, failed: FailedMessages) -> float:
        pause = self._works.failed_for_now(work, unit, error, failed)
        if pause is not None:
            return pause
        assert work.leaving is not None, "it goes to another place"
        return self._leave(work, work.leaving)

    def _leave(self, work: Work, leaving: Leaving) -> float:
        """Send a failed message to the group's topic of failed messages, where it waits for its next attempt, or to the
        dead letters. The message counts as consumed only when a broker has stored it there; until then its partition
        waits. Return how many seconds the Work must pause.
        """
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
            return self._works.not_sent(leaving, error)
        work.leaving = None
        if leaving.complained or failed.is_last(leaving.failure):
            log.warning("%r lies in %s now", leaving.original, sending.partition.topic)
        self._works.done(work, [work.messages[0]])
        return 0.0
