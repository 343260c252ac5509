"""What a producer answers to questions of brokers: what became of the transactions of its group.

One thread for each broker waits there for questions, on connections of its own, so that no send waits behind them. The
producer's check is called on these threads, one call at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from metaq.coordination.backoff import Backoff
from metaq.coordination.interrupts import BackgroundThread, Bell
from metaq.coordination.logs import get_log
from metaq.protocol.errors import MetaqError, NotLeader
from metaq.protocol.halves import CheckedHalf, HalfOutcome
from metaq.protocol.record import DELAYED_FLAG

from ..config import ProducerConfig
from ..connection import Connection, Endpoint
from ..message import Message
from ..metadata import Metadata
from ..pool import ConnectionPool
from ..questions.halves import check_halves, end_half
from ..values import TopicPartition
from . import tuning
from .sending import no_halves

__all__ = ["Check", "Checker", "outcome_of"]

log = get_log(__name__)

Check = Callable[[Message], bool | None]
"""check(message): True = its transaction is committed, False = rolled back, None = that cannot be told yet."""


def outcome_of(answer: object, function: str) -> HalfOutcome:
    """What `execute` or `check` has said. Raises TypeError for anything but True, False and None."""
    if answer is None:
        return HalfOutcome.UNKNOWN
    if isinstance(answer, bool):
        return HalfOutcome.COMMITTED if answer else HalfOutcome.ROLLED_BACK
    raise TypeError(
        f"{function} returned {answer!r}: return True (commit), False (roll back) or None (not known, ask again)"
    )


class Checker:
    """Of one producer. Any thread."""

    def __init__(
        self, metadata: Metadata, pool: Callable[[], ConnectionPool], config: ProducerConfig, clock: Callable[[], float]
    ) -> None:
        """pool: makes the one for its connections."""
        self._metadata = metadata
        self._make_pool = pool
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        self._calls = threading.Lock()  # one check at a time
        self._checks: dict[str, Check] = {}  # by group
        self._topics: set[str] = set()
        self._running: set[int] = set()  # half messages whose `execute` runs here
        self._pool: ConnectionPool | None = None
        self._askers: dict[tuple[str, int], _Asker] = {}
        self._watcher: BackgroundThread | None = None
        self._bell = Bell()
        self._closed = False

    def use(self, group: str, topic: str, check: Check | None) -> None:
        """Answer questions for this group at the brokers of this topic, too. check: replaces the one before; None: as
        before, and if there is none the group's other producers answer."""
        if check is None and (topic in self._topics or group not in self._checks):
            return
        with self._lock:
            known = group in self._checks and topic in self._topics
            if check is not None:
                self._checks[group] = check
            if known:
                return
            self._topics.add(topic)
            if self._watcher is None and not self._closed:
                self._pool = self._make_pool()
                self._watcher = BackgroundThread(self._watch, "metaq-checks")
        self._bell.ring()

    def begin(self, half_id: int) -> None:
        """Its `execute` runs: who asks this producer gets no answer."""
        self._running.add(half_id)

    def end(self, half_id: int) -> None:
        """It has ended."""
        self._running.discard(half_id)

    def close(self, seconds: float) -> None:
        """Ask for nothing any more. A check under way is waited for, at most so long; what it finds out is not told to
        the broker, which asks another producer. Idempotent."""
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
        """Have one thread for each group and broker."""
        while not self._closed:
            try:
                self._look()
            except MetaqError as error:
                log.info("which brokers ask for transactions is not known now: %s", error)
            self._bell.wait(tuning.CHECK_LOOK_SECONDS)

    def _look(self) -> None:
        with self._lock:
            topics, groups = list(self._topics), list(self._checks)
        brokers = {broker for topic in topics for broker in self._metadata.view(topic).endpoints}
        for group in groups:
            for broker in brokers:
                asker = self._askers.get((group, broker))
                if (asker is None or asker.has_ended) and not self._closed:
                    self._askers[group, broker] = _Asker(self, group, broker)

    def endpoint(self, broker: int) -> Endpoint | None:
        """Where the broker is now; None: nobody publishes a topic there."""
        for topic in list(self._topics):
            found = self._metadata.view(topic).endpoints.get(broker)
            if found is not None:
                return found
        return None

    # --- an asker's thread --------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._closed

    def connection(self, endpoint: Endpoint) -> Connection:
        """Raises BrokerUnavailable, RequestTimedOut."""
        assert self._pool is not None
        return self._pool.connection(endpoint, self._config.connection.connect_timeout_seconds)

    def follow(self, error: NotLeader) -> float:
        """Seconds until the node that leads can be asked."""
        assert self._pool is not None
        pause = self._pool.follow(error)
        return tuning.CHECK_PAUSE_SECONDS[0] if pause is None else pause

    def forget(self, endpoint: Endpoint) -> None:
        """The broker is elsewhere now."""
        if self._pool is not None:
            self._pool.forget(endpoint)

    def ask(self, connection: Connection, group: str, broker: int) -> None:
        """Wait for questions, and answer them. Raises what `check_halves` does."""
        wait = tuning.CHECK_WAIT_SECONDS
        timeout = wait + self._config.connection.request_timeout_seconds
        for half in check_halves(connection, group, broker, tuning.CHECK_HALVES, wait, timeout):
            if self._closed:
                return
            self._answer(connection, group, broker, half)

    def _answer(self, connection: Connection, group: str, broker: int, half: CheckedHalf) -> None:
        partition = TopicPartition(half.topic, broker, half.partition)
        message = Message(partition, -1, half.id, half.flag & ~DELAYED_FLAG, bytes(half.body))
        if half.id in self._running:
            return
        try:
            with self._calls:
                outcome = outcome_of(self._checks[group](message), "check")
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
        if reply.outcome not in (outcome, HalfOutcome.UNKNOWN):
            log.error("%r is %s by its check, and was %s before", message, outcome.value, reply.outcome)


class _Asker:
    """A thread that waits for one group's questions at one broker."""

    def __init__(self, checker: Checker, group: str, broker: int) -> None:
        self._checker = checker
        self._group = group
        self._broker = broker
        self._bell = Bell()
        self._endpoint: Endpoint | None = None
        self._told = ""
        low, high = tuning.CHECK_PAUSE_SECONDS
        self._backoff = Backoff(low, high)
        self.has_ended = False
        self._thread = BackgroundThread(self._run, f"metaq-check-{broker}")

    def close(self, seconds: float) -> None:
        """The checker is closed."""
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
        """Seconds until the next one; None: the broker is gone."""
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
            self._checker.ask(connection, self._group, self._broker)
        except NotLeader as error:
            return self._checker.follow(error)
        except MetaqError as error:
            if not self._checker.closed and str(error) != self._told:
                self._told = str(error)
                log.warning("broker %d does not ask for transactions of %s now: %s", self._broker, self._group, error)
            return self._backoff.next()
        self._backoff.reset()
        self._told = ""
        return 0.0
