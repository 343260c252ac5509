"""Consuming by a handler: messages go to it partition by partition, and a failing one holds up its own partition only.

The thread in run() takes arrivals and tells the user of assignments, as poll() does; a few worker threads call the
handler. A partition is a lane: at most one worker is in it, so its order holds. A lane whose handler failed pauses with
its messages in memory, and a timer puts it back into the queue of work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import SimpleQueue

from metaq.coordination.interrupts import BackgroundThread, Ending
from metaq.coordination.logs import get_log
from metaq.protocol.errors import CorruptRecord

from ..config import ConsumerConfig
from ..message import Message
from ..timers import Timers
from ..values import TopicPartition
from .arrivals import Arrivals
from .chunk import Chunk
from .damage import DamagePolicy
from .fetcher import Fetcher
from .handout import Accept, Handout, take_next
from .lane import Lane
from .notices import Notices
from .partition_state import PartitionState
from .poll_watch import PollWatch
from .rejected import RejectHandler

__all__ = ["Deliver", "Listener", "RetryLater", "accepting"]

log = get_log(__name__)

_BLOCK = 500
"""Most messages that a worker takes before the next lane has its turn."""
_LOOK_SECONDS = 1.0
"""How long the thread in run() waits at most before it looks whether it shall stop."""

Deliver = Callable[[Sequence[Message]], object]


class RetryLater(Exception):
    """Raise it in a handler to get the message again after a pause, without a complaint in the log. It counts as a try.
    (1.x: Message.setRollbackOnly.)
    """


def accepting(deliver: Deliver, accept: Accept | None) -> Deliver:
    """`deliver` for what the user's filter lets through; what the filter raises is a failure of that message."""
    if accept is None:
        return deliver

    def deliver_accepted(messages: Sequence[Message]) -> None:
        wanted = list(filter(accept, messages))
        if wanted:
            deliver(wanted)

    return deliver_accepted


class Listener:
    """One run of a handler. `loop` is called on one thread; stop() on any.

    deliver: gets at most `batch` messages at a time; they count as consumed when it returns. may_work: False while
    another member may own the partitions. tell: as that of Notices.tell.
    """

    def __init__(
        self,
        deliver: Deliver,
        *,
        batch: int,
        max_retries: int | None,
        reject: RejectHandler,
        threads: int,
        tags: frozenset[str] | None,
        config: ConsumerConfig,
        fetcher: Fetcher,
        handout: Handout,
        arrivals: Arrivals,
        timers: Timers,
        notices: Notices,
        tell: Callable[[bool, Sequence[TopicPartition]], None],
        damage: DamagePolicy,
        may_work: Callable[[], bool],
        poll_watch: PollWatch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deliver = deliver
        self._batch = batch
        self._max_retries = max_retries
        self._reject = reject
        self._tags = tags
        self._config = config
        self._fetcher = fetcher
        self._handout = handout
        self._arrivals = arrivals
        self._timers = timers
        self._notices = notices
        self._tell = tell
        self._damage = damage
        self._may_work = may_work
        self._poll_watch = poll_watch
        self._clock = clock
        self._lock = threading.Lock()
        self._lanes: dict[PartitionState, Lane] = {}
        self._taken: dict[TopicPartition, Lane] = {}  # the lane of each partition that is queued
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._stopping = False
        self._failure: BaseException | None = None
        self._threads = threads
        self._workers: list[BackgroundThread] = []
        self._gave_back = False
        self._ending = Ending()

    # --- the thread in run() ----------------------------------------------------------------------------------------

    def loop(self, owned: Iterable[PartitionState]) -> None:
        """Work until stop(). owned: partitions of which something may be there already.

        Raises what on_assigned and on_revoked raise, and what a handler raises that is no Exception (SystemExit …).
        """
        try:
            for number in range(self._threads):
                self._workers.append(BackgroundThread(self._run_worker, f"metaq-handler-{number}"))
            for state in owned:
                self._arrived(self._lane_of(state))
            while not self._stopping:
                self._poll_watch.attend()
                self._arrivals.listen()
                if self._notices.waiting:
                    self._notices.tell(self._tell, self._is_busy)
                while (arrived := self._arrivals.first()) is not None:
                    lane = self._lane_of(arrived)  # first: give_back() knows it by its lane
                    self._arrivals.discard(arrived)
                    self._arrived(lane)
                self._poll_watch.wait(partial(self._fetcher.wait, _LOOK_SECONDS))
        finally:
            self._end()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Have `loop` return once the handlers under way have. Any thread."""
        self._stopping = True
        self._arrivals.put(None)

    def is_worker(self) -> bool:
        """Whether the caller's thread is one on which handlers are called."""
        return any(worker.is_current for worker in self._workers)

    def wait(self, seconds: float) -> None:
        """At most `seconds` until the handlers have returned. Any thread but a handler's."""
        self._ending.wait(seconds)

    def add_work(self, job: Callable[[], None]) -> None:
        """Have a worker do something else that calls the handler."""
        self._work.put(job)

    def _lane_of(self, state: PartitionState) -> Lane:
        with self._lock:
            lane = self._lanes.get(state)
            if lane is None:
                self._lanes = {each: lane for each, lane in self._lanes.items() if each.active or lane.queued}
                lane = self._lanes[state] = Lane(state)
            return lane

    def _arrived(self, lane: Lane) -> None:
        with self._lock:
            lane.more = True
            self._queue(lane)

    def _queue(self, lane: Lane) -> None:
        """Under the lock. The lane of a former claim of the partition may still be in its handler."""
        if lane.queued or lane.paused:
            return
        if self._taken.setdefault(lane.state.partition, lane) is lane:
            lane.queued, lane.more = True, False
            self._work.put(partial(self._work_on, lane))
        else:
            lane.more = True

    def _leave_queue(self, lane: Lane) -> None:
        """Under the lock. It is the turn of a lane of a later claim, if there is one."""
        lane.queued = False
        del self._taken[lane.state.partition]
        if not lane.state.active:
            for later in list(self._lanes.values()):
                if later.more and later.state.partition == lane.state.partition:
                    self._queue(later)

    def _is_busy(self, partition: TopicPartition) -> bool:
        """Whether a handler works for a claim of it that is given up or lost; not for a later one."""
        with self._lock:
            given = [state for state in self._lanes if state.revoking or not state.active]
        return self._handout.is_out([state for state in given if state.partition == partition])

    def _end(self) -> None:
        try:
            self._stop_workers()
            self._notices.tell(self._tell, self._is_busy)
        finally:
            self.give_back()

    def _stop_workers(self) -> None:
        self._stopping = True
        self._work.put(None)
        deadline = self._clock() + self._config.stop_seconds
        returned = [worker.join(max(0.0, deadline - self._clock())) for worker in self._workers]
        if not all(returned):
            log.warning(
                "a handler has not returned within stop_seconds=%g: its message counts as not consumed",
                self._config.stop_seconds,
            )

    def give_back(self) -> None:
        """What was taken and not processed comes again with the next poll() or run(), also what a handler has that has
        not returned. May be repeated: `loop` may end without it, by an interrupt."""
        if self._gave_back:
            return
        self._stopping = True
        self._work.put(None)
        for worker in self._workers:
            self._poll_watch.rests(worker.ident)
        with self._lock:
            states = list(self._lanes)
        for state in states:
            if state.opened and state.active and not state.revoking:
                self._fetcher.again(state)
        self._ending.tell()
        self._gave_back = True

    # --- workers ----------------------------------------------------------------------------------------------------

    def _run_worker(self) -> None:
        worker = threading.get_ident()
        while (job := self._work.get()) is not None:
            try:
                if not self._stopping:
                    self._poll_watch.works(worker)
                    job()
            except Exception:
                log.exception("a bug: a worker failed")
            except BaseException as error:  # SystemExit and the like are meant for the whole program
                self._failure = error
                self.stop()
            finally:
                self._poll_watch.rests(worker)
        self._work.put(None)  # for the other workers

    def _work_on(self, lane: Lane) -> None:
        state, pause = lane.state, 0.0
        if self._handout.hold(state):
            try:
                pause = self._process(lane)
            finally:
                self._handout.let_go(state)
                if state.revoking or not state.active:
                    self._arrivals.put(None)  # somebody waits for the handler to return
        with self._lock:
            self._leave_queue(lane)
            if pause:
                lane.paused = True
                self._timers.call_later(pause, partial(self._resume, lane))
            elif lane.more or (lane.messages and lane.is_current()) or state.next_chunk() is not None:
                self._queue(lane)

    def _resume(self, lane: Lane) -> None:
        """Timer thread."""
        with self._lock:
            lane.paused = False
            self._queue(lane)

    def _process(self, lane: Lane) -> float:
        """Process what the lane holds, or else the next messages. Returns how long it must pause; 0 = not at all."""
        if not lane.is_current():
            lane.messages.clear()
            lane.tries = 0
        if not lane.messages:
            pause = self._take(lane)
            if pause:
                return pause
        while lane.messages:
            if self._stopping or not lane.is_current():
                return 0.0
            if not self._may_work():
                return self._config.retry_step_seconds
            pause = self._process_next(lane)
            if pause:
                return pause
        if lane.is_current():
            self._passed(lane, lane.end, lane.state.last_id)
        return 0.0

    def _take(self, lane: Lane) -> float:
        state = lane.state
        lane.moves, lane.end = state.moves, state.position
        chunk = state.next_chunk()
        # looked at behind the chunk: what moves the state, as give_back() does, finds it here no more
        if chunk is None or self._stopping or not lane.is_current():
            return 0.0
        try:
            messages, lane.end = take_next(
                state, chunk, max(_BLOCK, self._batch), self._tags, self._config.check_crcs is not False
            )
        except CorruptRecord as error:
            return self._damaged(lane, chunk, error)
        state.damage = 0
        lane.messages.extend(messages)
        if not chunk.bytes_left:
            state.drop_chunk(chunk)
            self._fetcher.refill(state)
        return 0.0

    def _damaged(self, lane: Lane, chunk: Chunk, error: CorruptRecord) -> float:
        """Have what fails here fetched and looked at again. Where it is known to be damaged, pass over it, or try again
        for ever: another broker, or a repaired file, may have it. Other partitions go on.
        """
        state = lane.state
        if chunk.damage is None:
            self._fetcher.examine(state, error.position, lane.moves)
            return 0.0
        new = state.reported != error.position
        try:
            passes = self._damage.passes(state, error)
        except Exception:
            log.exception("on_damaged failed")
            passes = False
        if passes:
            lane.end = chunk.end_offset
            state.drop_chunk(chunk)
            self._fetcher.refill(state)
            return 0.0
        if new:
            log.error("the partition waits at damaged bytes, which are fetched again and again: %s", error)
        state.damage = 0
        self._fetcher.examine(state, chunk.offset, lane.moves)
        return self._config.retry_max_seconds

    def _process_next(self, lane: Lane) -> float:
        self._poll_watch.works(threading.get_ident())
        size = 1 if lane.messages[0].offset < lane.single_before else self._batch
        unit = [lane.messages[number] for number in range(min(size, len(lane.messages)))]
        try:
            self._deliver(unit)
        except Exception as error:
            return self._failed(lane, unit, error)
        self._done(lane, unit)
        return 0.0

    def _done(self, lane: Lane, unit: Sequence[Message]) -> None:
        for _ in unit:
            lane.messages.popleft()
        lane.tries = 0
        self._passed(lane, unit[-1].next_offset, unit[-1].id)

    def _passed(self, lane: Lane, offset: int, message_id: int) -> None:
        """Everything in front of `offset` counts as consumed, unless the partition was lost or moved meanwhile."""
        state = lane.state
        with state.lock:
            if state.moves == lane.moves and (state.position, state.last_id) != (offset, message_id):
                state.position, state.last_id = offset, message_id
                state.consumed = (offset, message_id)

    def _failed(self, lane: Lane, unit: Sequence[Message], error: Exception) -> float:
        lane.tries += 1
        if self._max_retries is None or lane.tries <= self._max_retries:
            pause = min(self._config.retry_max_seconds, self._config.retry_step_seconds * lane.tries)
            if not isinstance(error, RetryLater):
                log.warning(
                    "the handler failed on %r, try %d; the next in %.2f s",
                    unit[0],
                    lane.tries,
                    pause,
                    exc_info=error if lane.tries == 1 else None,
                )
            return pause
        if len(unit) > 1:
            log.warning("a batch of %d messages failed %d times: now one by one", len(unit), lane.tries)
            lane.single_before, lane.tries = unit[-1].next_offset, 0
            return self._config.retry_step_seconds
        try:
            self._reject(unit[0], error)
        except Exception:
            log.exception("%r can be neither processed nor put aside: its partition waits", unit[0])
            return self._config.retry_max_seconds
        self._done(lane, unit)
        return 0.0
