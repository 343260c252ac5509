"""Send flights (the messages that go to one broker together) over a connection to their broker. Report to the core how
each flight has ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial

from metaq.coordination.runtime.interrupts import begin_elsewhere, is_interrupt, may_be_interrupted
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import BrokerUnavailable, MetaqError, NoPartition

from ..records.results import TopicPartition
from ..runtime.waiting import finish_together
from ..settings.config import ConnectionConfig
from ..transport.connection import Connection, Exchange, Reply
from ..transport.metadata import Metadata
from ..transport.pool import ConnectionPool
from .codec import FlightCodec, FlightRequest
from .core import Actions, ProducerCore
from .outgoing import Outgoing
from .queues import Flight, Turn

__all__ = ["Sender", "new_producer_id"]

log = get_log(__name__)


class Sender:
    """Sends flights to brokers. Any thread may call the methods.

    When the answer to a turn (the messages of one partition in a request) has come, the sender reports it to the core.
    The sender makes this report on the thread that reads the connection, or on the caller's own thread. Next the
    messages get their results, while the broker already has the next flight. Finally the core releases the messages.

    do: executes the core's actions after failures. on_released: called when the buffer has room for messages again.
    elsewhere: runs the given actions, in order, on a thread that no signal reaches. producer: the producer's id; 0 if
    its requests have no sequence numbers. packs: whether the producer compresses payloads.
    """

    def __init__(
        self,
        core: ProducerCore,
        metadata: Metadata,
        pool: ConnectionPool,
        config: ConnectionConfig,
        do: Callable[[Actions], None],
        on_released: Callable[[], None],
        elsewhere: Callable[[Callable[[], None]], None],
        clock: Callable[[], float] = time.monotonic,
        producer: int = 0,
        packs: bool = False,
    ) -> None:
        self._core = core
        self._metadata = metadata
        self._pool = pool
        self._request_timeout = config.request_timeout_seconds
        self._do = do
        self._on_released = on_released
        self._elsewhere = elsewhere
        self._clock = clock
        self._numbers = producer > 0
        self._codec = FlightCodec(producer, packs)
        self.half_checks: dict[int, float | None] = {}
        """By broker id: the number of seconds after which the broker first asks about a half message that states no
        such time itself. The number is the lowest that the broker has announced; None if the broker does not announce a
        number.
        """

    def transmit(self, flight: Flight, caller: Outgoing | None = None) -> None:
        """Send `flight`. caller: the message whose outcome the current thread waits for. The current thread will read
        the answers from the chosen connection, and this connection becomes the message's `driver`.
        """
        try:
            flight.taken = True
            flight.sent_at = now = self._clock()
            turns = flight.turns
            partition = turns[0].queue.partition
            deadline = flight.deadline(now, self._request_timeout)
            patience = deadline if caller is None else min(deadline, caller.deadline)
            try:
                connection = self._connection(partition, patience - now)
                self._codec.check(connection)
                if self._numbers and connection.takes_sequences and (ended := connection.notice_end(now)) is not None:
                    raise ended
            except MetaqError as failure:
                self._fail(flight, failure)
                flight.failed = True
                return
            if connection is not flight.broker.connection:
                flight.broker.use(connection)
                self._note_check(partition.broker, connection)
            if caller is not None:
                caller.driver = connection
            if refused := self._codec.refused(turns, connection):
                turns = [turn for turn in turns if all(turn is not other for other, _ in refused)]
                self._take(flight, partial(self._landed, flight, (), refused, True))
                if not turns:
                    flight.failed = True
                    return
            for request in self._codec.requests(turns, connection, now):
                background = flight.needs_reader(connection)
                opaques: list[int] = []
                exchanges: list[Exchange] = []
                for index in range(request.answers):
                    opaque = connection.new_opaque()
                    opaques.append(opaque)
                    on_done = partial(self._answered, flight, request, index)
                    exchanges.append(Exchange(opaque, on_done, deadline, background))
                buffers = request.encode(opaques)
                flight.counted = flight.counted or request.counted
                flight.request = exchanges[0]
                connection.send(exchanges, buffers)
        except BaseException:  # wherever an interrupt can come, a flight has one turn
            begin_elsewhere((self._lose_unless_gone, flight))
            raise

    def transmit_all(self, flights: Sequence[Flight]) -> None:
        """Send each of `flights`. A flight that cannot be sent is retried, and the following flights are sent
        nevertheless. An interrupt of the thread (such as KeyboardInterrupt) is raised. A caller whose thread can be
        interrupted then calls `lose_untaken` for the following flights.
        """
        for flight in flights:
            try:
                self.transmit(flight)
            except Exception as error:
                if is_interrupt(error):
                    raise
                log.exception("a request could not be sent")

    def _lose_unless_gone(self, flight: Flight) -> None:
        if not flight.has_gone:
            self._lose(flight)

    def lose_untaken(self, flights: Sequence[Flight]) -> None:
        """Retry the messages of the flights that the sending thread has not begun to send, because it was interrupted.
        This method runs on another thread than the interrupted thread.
        """
        for flight in flights:
            if not flight.taken:
                self._lose(flight)

    def _lose(self, flight: Flight) -> None:
        """Retry the messages of a flight whose sending thread was interrupted."""
        flight.elsewhere = True  # so that this runs after actions that were handed over just before the interrupt
        self._fail(flight, BrokerUnavailable("sending was interrupted"))

    def _note_check(self, broker: int, connection: Connection) -> None:
        """Update `half_checks` with the lowest time that this broker has announced. Earlier announcements also count,
        because a half message may have been sent on an earlier connection, before a restart of the broker.
        """
        said, before = connection.half_check_seconds, self.half_checks.get(broker)
        self.half_checks[broker] = said if before is None or said is None else min(before, said)

    def _connection(self, partition: TopicPartition, timeout: float) -> Connection:
        endpoint = self._metadata.view(partition.topic).endpoints.get(partition.broker)
        if endpoint is None:
            raise NoPartition(f"topic {partition.topic!r}: broker {partition.broker} is not registered any more")
        return self._pool.connection(endpoint, timeout)

    # --- answers ----------------------------------------------------------------------------------------------------

    def _answered(
        self, flight: Flight, request: FlightRequest, index: int, reply: Reply | None, error: MetaqError | None
    ) -> None:
        """Process the answer to a request. This method is called a second time if an interrupt (such as
        KeyboardInterrupt) has ended the first call.
        """
        if (result := request.result_alone(reply)) is None or not self._settle_alone(flight, result):
            self._take(flight, partial(self._land, flight, request, index, reply, error))

    def _fail(self, flight: Flight, error: MetaqError) -> None:
        self._take(flight, partial(self._landed, flight, (), [(turn, error) for turn in flight.turns], False))

    def _take(self, flight: Flight, action: Callable[[], None]) -> None:
        """Run `action`, which processes an answer or a failure. If the current thread cannot be interrupted, it runs
        the action at once. If it can, the action is queued for a thread that no signal reaches; that thread runs the
        queued actions one after the other. Threads that wait for the messages of `flight` wait until the action is
        done.
        """
        if not (flight.elsewhere or may_be_interrupted()):
            action()
            return
        flight.elsewhere = True
        for _, batch in flight.turns:
            for outgoing in batch:
                outgoing.driver = None
                outgoing.answered = True
        self._elsewhere(action)

    def _land(
        self, flight: Flight, request: FlightRequest, index: int, reply: Reply | None, error: MetaqError | None
    ) -> None:
        if error is not None and any(turn in flight.landed for turn in request.turns):
            self._settle_again(flight, error)
            return
        landing = request.read(index, reply, error)
        if landing is None:
            return
        self._landed(flight, landing.stored, landing.failed, error is None)
        if landing.stored:
            parked = landing.give()
            self._release(flight, landing.stored)
            finish_together(parked)

    def _landed(
        self, flight: Flight, stored: Sequence[Turn], failed: Sequence[tuple[Turn, MetaqError]], answered: bool
    ) -> None:
        actions = self._core.landed(flight, stored, failed, answered)
        if failed:
            self._do(actions)
        else:
            self.transmit_all(actions.flights)

    def _settle_alone(self, flight: Flight, result: object) -> bool:
        """Give the only message of `flight` its result in few steps. Producers that wait for each send usually have one
        message per flight. Return False if this short way is impossible; then the caller must process the answer with
        `_take`.
        """
        outgoing = flight.turns[0].batch[0]
        if len(flight.turns) > 1 or (outgoing.report is not None and may_be_interrupted()):
            return False
        # before it counts as landed, so that `_settle_again` finds it after an interrupt between the two statements
        outgoing.result = result
        try:
            following = self._core.landed_alone(flight)
            self._on_released()
        except BaseException:
            begin_elsewhere((self._on_released,))
            raise
        if following is None:
            return False
        self.transmit_all(following)
        outgoing.succeed(result)
        if outgoing.report is not None:
            self._release(flight, flight.turns)
        return True

    def _settle_again(self, flight: Flight, error: MetaqError) -> None:
        """Give each stored message its result, or `error` if its result is not available. This method is needed if the
        handler of the answer was interrupted after it had reported the stored messages to the core. Runs on a thread
        that cannot be interrupted.
        """
        for _, batch in flight.landed:
            for outgoing in batch:
                if outgoing.result is not None:
                    outgoing.succeed(outgoing.result)
                else:
                    outgoing.fail(error)
        self._release(flight, flight.landed)

    def _release(self, flight: Flight, turns: Sequence[Turn]) -> None:
        if self._core.keys_move and may_be_interrupted():
            self._elsewhere(partial(self._release_here, flight, turns))
        else:
            self._release_here(flight, turns)

    def _release_here(self, flight: Flight, turns: Sequence[Turn]) -> None:
        self.transmit_all(self._core.release(flight, turns))
        self._on_released()


def new_producer_id() -> int:
    """Return a random id of 63 bits, never 0. The operating system supplies the bits, so the id does not repeat after a
    fork or with a fixed seed.
    """
    return int.from_bytes(os.urandom(8)) >> 1 or 1
