"""Check the state of a group member: whether its ZooKeeper session still proves that it owns its partitions, and
whether the program still polls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable

from metaq.coordination.runtime.logs import get_log
from metaq.coordination.session.zk_session import SessionProof, ZkSession, session_clock

from ..fetching.tuning import PROOF_SHARE, SUSPENDED_SHARE, UNPROVED_SHARE
from ..runtime.timers import Scheduler
from ..settings.config import IDLE_WARNING_SECONDS
from .group_member import GroupMember

__all__ = ["PollWatch", "SessionWatch"]

log = get_log(__name__)


class SessionWatch:
    """Determines whether a member may still deliver messages, from the state of the member's ZooKeeper session.
    holds_its_claims: returns whether all owned partitions were claimed on the current session.

    All time limits of this class are fractions of the session timeout that the ZooKeeper server has granted, which may
    be shorter than the requested timeout.
    """

    def __init__(
        self,
        session: ZkSession,
        group: str,
        timers: Scheduler,
        holds_its_claims: Callable[[], bool],
        clock: Callable[[], float] = session_clock,
    ) -> None:
        self._session = session
        self._group = group
        self._timers = timers
        self._holds_its_claims = holds_its_claims
        self._proof = SessionProof(session, clock)
        self._waits = False

    def prove(self) -> None:
        """Ask ZooKeeper now, and from now on at regular intervals, to prove that the session is alive."""
        self._proof.renew()
        self._timers.call_later(self._session.session_timeout * PROOF_SHARE, self.prove)

    def may_have_lost_everything(self) -> bool:
        """Whether this client has heard nothing from ZooKeeper for so long that the session may be over and another
        member may own the partitions. The result is also true if the session is alive but some owned partitions were
        not claimed on it.

        While the result is true, the member keeps its partitions but delivers no messages; it delivers again when
        ZooKeeper has answered and confirmed the ownership.
        """
        timeout = self._session.session_timeout
        suspended, unproved = self._session.suspended_seconds, self._proof.age_seconds
        if suspended <= timeout * SUSPENDED_SHARE and unproved <= timeout * UNPROVED_SHARE:
            self._waits = False
            return not self._holds_its_claims()
        if not self._waits:
            self._waits = True
            log.warning(
                "group %s: ZooKeeper has not answered for %.1f s; nothing is handed out until it does, because another "
                "member may own the partitions",
                self._group,
                max(suspended, unproved),
            )
        return True


class PollWatch:
    """Watches whether the program calls poll() or run(). If the program calls neither, nobody reads the partitions that
    this member owns, because no other member may read them; so the member must leave the group.

    Like Kafka's max.poll.interval.ms, the watch measures the time between two polls. The time in which the program
    works on messages counts, also in a handler of run(); the time in which a poll waits for messages does not count.

    attend() and wait() are called on the thread that polls. works() and rests() are called on the threads of handlers.

    An interrupt may end attend() or wait() on the polling thread at any line; the next attend() repairs the state.
    """

    def __init__(
        self, group: str, consumer_id: str, limit: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """limit: number of seconds without a poll after which the member leaves its group for the time being. If it is
        None, the member stays in its group however long nobody polls.
        """
        self._group = group
        self._consumer_id = consumer_id
        self._limit = math.inf if limit is None else limit
        self._clock = clock
        self._since = clock()
        self._waits = False
        self._working: dict[Hashable, float] = {}  # running handlers, and since when
        self._warned_of = -math.inf  # start of the idle time for which the last warning was logged

    def begin(self, member: GroupMember, timers: Scheduler) -> None:
        """Start to watch the polls of `member`. The watch ends when the timers are closed."""
        self._member = member
        self._timers = timers
        self._look_later(0.0)

    # --- polling thread ---------------------------------------------------------------------------------------------

    def attend(self) -> None:
        """Record that the program polls now. If the member had left its group because nobody polled, it joins again."""
        self._since = self._clock()
        self._waits = False
        if self._member.stepped_out and not self.is_idle():
            self._member.come_back()

    def wait(self, wait: Callable[[], None]) -> None:
        """Call the function `wait`, in which a poll waits for messages. The duration of this call does not count as
        time without a poll.
        """
        try:
            self._waits = True
            wait()
        finally:
            try:
                self._since = self._clock()
            finally:
                self._waits = False

    def wait_begins(self) -> None:
        """Record that the polling task of an event loop waits for messages from now on, until `wait_ends`."""
        self._waits = True

    def wait_ends(self) -> None:
        self._since, self._waits = self._clock(), False

    # --- handlers' threads ------------------------------------------------------------------------------------------

    def works(self, worker: Hashable) -> None:
        """Record that `worker` calls a handler now; an earlier call of the same worker has ended."""
        self._working[worker] = self._clock()

    def rests(self, worker: Hashable) -> None:
        """Record that `worker` has no handler running now, so that no time counts for it."""
        self._working.pop(worker, None)

    # --- any thread -------------------------------------------------------------------------------------------------

    def is_idle(self) -> bool:
        """Return whether the program has not polled, or a handler has been running, for so long that the member must
        give up its partitions.
        """
        return self._clock() - self._beginning() >= self._limit

    def _beginning(self) -> float:
        """Return the clock time since when the program counts as not polling: the time when it stopped polling, or the
        time when the oldest handler call that is still running began, whichever is earlier. Return inf if the program
        polls and no handler runs.
        """
        return min([math.inf if self._waits else self._since, *list(self._working.values())])

    # --- timer thread -----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        beginning = self._beginning()
        idle = self._clock() - beginning
        if idle >= self._limit:
            if not self._member.stepped_out:
                self._tell_limit(beginning)
                self._member.step_out()
        elif idle >= IDLE_WARNING_SECONDS and beginning != self._warned_of and self._member.owned:
            self._warned_of = beginning
            self._warn(beginning)
        self._look_later(idle)

    def _look_later(self, idle: float) -> None:
        """Set a timer for the next check, at the time when the limit for the warning, or the limit for leaving the
        group, may be reached. idle: seconds without a poll so far.
        """
        due = [each - idle for each in (IDLE_WARNING_SECONDS, self._limit) if each > idle]
        self._timers.call_later(min(*due, IDLE_WARNING_SECONDS, self._limit), self._look)

    def _what_happened(self, beginning: float) -> str:
        seconds = f"{self._clock() - beginning:.0f} s"
        if beginning in self._working.values():
            return f"a handler of {self._consumer_id} has not returned for {seconds}"
        return f"nobody has polled {self._consumer_id} for {seconds}"

    def _warn(self, beginning: float) -> None:
        log.warning(
            "group %s: %s, so nobody gets the messages of its %d partitions: poll more often, with fewer messages at "
            "once, or close() it; with ConsumerConfig(max_poll_interval_seconds=...) it gives them to others by itself",
            self._group,
            self._what_happened(beginning),
            len(self._member.owned),
        )

    def _tell_limit(self, beginning: float) -> None:
        log.warning(
            "group %s: %s (max_poll_interval_seconds=%g): it leaves its %d partitions to others until the next poll(), "
            "and messages in work come again there; poll more often, with fewer messages at once, or raise the limit",
            self._group,
            self._what_happened(beginning),
            self._limit,
            len(self._member.owned),
        )
