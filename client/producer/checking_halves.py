"""Answer brokers' questions about the outcomes of transactions of the producer's group.

For each group and broker one thread waits for the broker's questions. These threads use connections on which nothing is
sent, so that no send has to wait behind a request that waits for questions. Each thread also calls the check functions
for its questions, one after the other. If the question is about a half message of this producer itself, OwnHalves
(own_halves.py) first decides whether to answer without a check function, to call a check function, or to give no answer
yet.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable

from metaq.coordination.runtime.interrupts import BackgroundThread, Bell
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import MetaqError, NotLeader
from metaq.protocol.half_messages import CheckedHalf, HalfOutcome, half_of
from metaq.protocol.record import DELAYED_FLAG

from ..questions.waiting_halves import check_halves, end_half
from ..records.message import Message
from ..records.results import TopicPartition
from ..settings.config import ProducerConfig
from ..transport.connection import Connection, Endpoint
from ..transport.metadata import Metadata
from ..transport.pool import ConnectionPool
from . import tuning
from .check_pace import CheckPace
from .codec import no_halves
from .own_halves import Check, OwnHalves

__all__ = ["Checker", "outcome_of"]

log = get_log(__name__)


def outcome_of(answer: object, function: str) -> HalfOutcome:
    """Return as HalfOutcome the value that a user's `execute` or `check` function has returned. function: the
    function's name, for the error. Raises TypeError if the value is not True, False, None or a HalfOutcome.
    """
    if isinstance(answer, HalfOutcome):
        return answer
    if answer is None:
        words = f"{function} returned nothing, so its outcome is unknown: return HalfOutcome.UNKNOWN if you mean that"
        warnings.warn(words, RuntimeWarning, stacklevel=2)
        return HalfOutcome.UNKNOWN
    if isinstance(answer, bool):
        return HalfOutcome.COMMITTED if answer else HalfOutcome.ROLLED_BACK
    raise TypeError(
        f"{function} returned {answer!r}: return True (commit), False (roll back) or HalfOutcome.UNKNOWN (ask again)"
    )


class Checker:
    """Answers brokers' questions about half messages for one producer. Any thread may call `use` and `close`."""

    def __init__(
        self, metadata: Metadata, pool: Callable[[], ConnectionPool], config: ProducerConfig, clock: Callable[[], float]
    ) -> None:
        """pool: a function that creates the ConnectionPool for the checker's connections."""
        self._metadata = metadata
        self._make_pool = pool
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        self._calls = threading.Lock()  # one check at a time
        self._checks: dict[tuple[str, str], Check] = {}  # by group and topic
        self.producer = os.urandom(8).hex()
        """A random name of this producer. It is sent with half messages and with requests for questions, so that the
        broker knows which half messages are this producer's.
        """
        self.own = OwnHalves()
        self._pool: ConnectionPool | None = None
        self._askers: dict[tuple[str, int], _Asker] = {}
        self._watcher: BackgroundThread | None = None
        self._bell = Bell()
        self._closed = False

    def use(self, group: str, topic: str, check: Check | None) -> None:
        """Answer questions for this group and topic with the function `check` from now on. The new function replaces an
        earlier one. If `check` is None, the earlier function stays in use. As long as there is no function, this
        producer requests no questions for this group and topic, so only other producers of the group get and answer
        them.
        """
        if check is None or self._checks.get((group, topic)) is check:  # a loop passes the same check for each message
            return
        with self._lock:
            if self._watcher is None and not self._closed:
                self._pool = self._make_pool()
                self._watcher = BackgroundThread(self._watch, "metaq-checks")
            is_new = (group, topic) not in self._checks
            self._checks[group, topic] = check  # last: after an interrupt before this line, the next call repeats all
        if is_new:
            self._bell.ring()

    def close(self, seconds: float) -> None:
        """Stop answering. Wait at most `seconds` for a running check. If the check is still running then, its result is
        not reported to the broker, and the broker asks another producer. Idempotent.
        """
        with self._lock:
            self._closed = True
            watcher, pool = self._watcher, self._pool
        deadline = self._clock() + seconds
        self._bell.ring()
        if watcher is not None:
            watcher.join(max(0.0, deadline - self._clock()))
        if pool is not None:
            pool.close(max(0.0, deadline - self._clock()))
        for asker in list(self._askers.values()):
            asker.close(max(0.0, deadline - self._clock()))

    # --- the watching thread ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Until the checker is closed, start a thread (_Asker) for each group and each broker of the group's topics."""
        while not self._closed:
            try:
                self._look()
            except MetaqError as error:
                log.info("which brokers ask for transactions is not known now: %s", error)
            self._bell.wait(tuning.CHECK_LOOK_SECONDS)

    def _look(self) -> None:
        topics, groups = self._all_topics(), {group for group, _ in list(self._checks)}
        brokers = {broker for topic in topics for broker in self._metadata.view(topic).endpoints}
        for group in groups:
            for broker in brokers:
                asker = self._askers.get((group, broker))
                if (asker is None or asker.has_ended) and not self._closed:
                    self._askers[group, broker] = _Asker(self, group, broker)
                elif asker is not None and asker.topics != self.topics(group):
                    asker.ask_now()

    def _all_topics(self) -> set[str]:
        return {topic for _, topic in list(self._checks)}

    def endpoint(self, broker: int) -> Endpoint | None:
        """Return the current endpoint of a broker. Return None if the broker now publishes none of the topics that have
        a check function.
        """
        for topic in self._all_topics():
            found = self._metadata.view(topic).endpoints.get(broker)
            if found is not None:
                return found
        return None

    # --- an asker's thread --------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._closed

    def connection(self, endpoint: Endpoint) -> Connection:
        """Return a connection of the checker to a broker. Raises BrokerUnavailable, RequestTimedOut."""
        assert self._pool is not None
        return self._pool.connection(endpoint, self._config.connection.connect_timeout_seconds)

    def follow(self, error: NotLeader) -> float:
        """If `error` names the new leader of the broker set, use this leader for the next connections. Return the
        seconds to wait before the next request.
        """
        assert self._pool is not None
        pause = self._pool.follow(error)
        return tuning.CHECK_PAUSE_SECONDS[0] if pause is None else pause

    def forget(self, endpoint: Endpoint) -> None:
        """Drop the connection to this endpoint, because the broker has another address now."""
        if self._pool is not None:
            self._pool.forget(endpoint)

    def topics(self, group: str) -> frozenset[str]:
        """Return the topics for which `use` was called with a check function and this group."""
        return frozenset(topic for each, topic in list(self._checks) if each == group)

    def ask(self, connection: Connection, group: str, broker: int, limit: int, wait: float) -> float:
        """Request at most `limit` questions about half messages from the broker, wait for them at most `wait` seconds,
        and answer them. Return how many seconds an answer took on average, or 0.0 if no question came. Raises the same
        errors as `check_halves`.
        """
        timeout = wait + self._config.connection.request_timeout_seconds
        halves = check_halves(connection, group, broker, limit, wait, timeout, self.topics(group), self.producer)
        began = self._clock()
        for half in halves:
            if self._closed:
                break
            self._answer(connection, group, broker, half)
        return (self._clock() - began) / len(halves) if halves else 0.0

    def _answer(self, connection: Connection, group: str, broker: int, half: CheckedHalf) -> None:
        partition = TopicPartition(half.topic, broker, half.partition)
        message = Message(partition, -1, half.id, half.flag & ~DELAYED_FLAG, bytes(half.body))
        check = self._checks.get((group, half.topic))
        is_own = half_of(half.flag, half.body).producer == self.producer
        answer = self.own.answer(half.id, half.topic, message.body, check) if is_own else check
        if answer is None:
            return
        if isinstance(answer, HalfOutcome):
            outcome = answer
        else:
            try:
                with self._calls:
                    outcome = outcome_of(answer(message), "check")
            except Exception:
                log.exception("the check of %r failed, so it will be asked again", message)
                return
            if outcome is HalfOutcome.UNKNOWN:
                return
        try:
            reply = end_half(connection, partition, half.id, outcome)
        except MetaqError as error:
            log.warning("%r is %s, which its broker was not told: %s", message, outcome.value, error)
            return
        if is_own:
            self.own.decided((half.id,))
        if reply.outcome not in (outcome, HalfOutcome.UNKNOWN) and not isinstance(answer, HalfOutcome):
            log.error("the check of %r says %s, but its outcome was %s before", message, outcome.value, reply.outcome)


class _Asker:
    """The thread that requests one group's questions from one broker and answers them."""

    def __init__(self, checker: Checker, group: str, broker: int) -> None:
        self._checker = checker
        self._group = group
        self._broker = broker
        self._bell = Bell()
        self._endpoint: Endpoint | None = None
        self._pace = CheckPace()
        self._connection: Connection | None = None
        self.topics: frozenset[str] = frozenset()
        """The topics that the last request of this thread has named; this request may still be waiting at the broker.
        """
        self.has_ended = False
        self._thread = BackgroundThread(self._run, f"metaq-check-{broker}")

    def close(self, seconds: float) -> None:
        """Wake the thread, because the checker is closed, and wait at most `seconds` until the thread ends."""
        self._bell.ring()
        if not self._thread.is_current:
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while not self._checker.closed:
                pause = self._step()
                if pause is None:
                    return
                if pause:
                    self._bell.wait(pause)
        finally:
            self.has_ended = True

    def _step(self) -> float | None:
        """Request and answer questions once. Return the seconds to wait before the next step, or None if the broker no
        longer publishes a topic that has a check function.
        """
        try:
            endpoint = self._checker.endpoint(self._broker)
            if endpoint != self._endpoint and self._endpoint is not None:
                self._checker.forget(self._endpoint)
            self._endpoint = endpoint
            if endpoint is None:
                return None
            connection = self._checker.connection(endpoint)
            if not connection.takes_halves:
                raise no_halves(connection)
            self._connection, self.topics = connection, self._checker.topics(self._group)
            each = self._checker.ask(connection, self._group, self._broker, self._pace.limit, tuning.CHECK_WAIT_SECONDS)
        except NotLeader as error:
            return self._checker.follow(error)
        except MetaqError as error:
            if not self._checker.closed and self._pace.is_news(str(error)):
                log.warning("broker %d does not ask for transactions of %s now: %s", self._broker, self._group, error)
            return self._pace.failed()
        self._pace.answered(each)
        return 0.0

    def ask_now(self) -> None:
        """Send a new request to the broker now. Called if the list of topics in the request that waits at the broker is
        out of date; the new request ends the waiting one. Runs on the thread of `Checker._watch`.
        """
        connection = self._connection
        if connection is not None and not connection.closed:
            self._checker.ask(connection, self._group, self._broker, 1, 0.0)
