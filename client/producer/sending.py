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
from ..runtime.waiting import Exchange, finish_together
from ..settings.config import ConnectionConfig
from ..transport.channel import Channel, Channels
from ..transport.connection import Reply
from ..transport.metadata import Metadata
from .codec import FlightCodec, FlightRequest
from .core import Actions, ProducerCore
from .outgoing import Outgoing
from .queues import Flight, Turn

__all__ = ["Sender", "new_producer_id"]

log = get_log(__name__)


class Sender:
    """Sends flights to brokers. Any thread may call the methods.

    When the answer to a turn (here: the messages of one partition in a request) arrives, the thread that has read it
    does three things. First it reports the answer to the core, and sends the flights that the core returns, so that the
    broker has work. Then it gives the messages their results. Finally it calls the core's `release`, so that the
    messages no longer count for the limits of the buffer.

    interruptible: see ProducerCore. do: executes the core's actions after failures. on_released: called when the buffer
    has room for messages again.
    elsewhere: runs the given actions, in order, on a thread that no signal reaches. producer: the producer's id, or 0
    if its requests have no sequence numbers. packs: whether the producer compresses payloads.
    """

    def __init__(
        self,
        core: ProducerCore,
        metadata: Metadata,
        pool: Channels,
        config: ConnectionConfig,
        do: Callable[[Actions], None],
        on_released: Callable[[], None],
        elsewhere: Callable[[Callable[[], None]], None],
        clock: Callable[[], float] = time.monotonic,
        producer: int = 0,
        packs: bool = False,
        interruptible: Callable[[], bool] = may_be_interrupted,
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
        self._interruptible = interruptible
        self._codec = FlightCodec(producer, packs)
        self.half_checks: dict[int, float | None] = {}
        """For each broker id, the number of seconds after which the broker first asks for the outcome of a half
        message, if the message itself does not state this time. It is the lowest number that the broker has announced
        since this producer was created. It is None if the broker announces no number.
        """

    def transmit(self, flight: Flight, caller: Outgoing | None = None) -> None:
        """Send `flight` over a connection to its broker. caller: the message for whose outcome the current thread will
        wait; it is None if the thread waits for no message. This thread will itself read the answer, so the method
        stores the connection in the message's attribute `driver`.
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
        """Send each of `flights`. The messages of a flight that cannot be sent are retried later, and the following
        flights are sent nevertheless. Only an interrupt of the thread (such as KeyboardInterrupt) ends this method
        early; then the caller must let `lose_untaken` handle the flights that were not sent.
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
        """Find the flights that an interrupted thread has not begun to send, and report them to the core as failed, so
        that their messages are retried. Runs on another thread than the interrupted one.
        """
        for flight in flights:
            if not flight.taken:
                self._lose(flight)

    def _lose(self, flight: Flight) -> None:
        """Report a flight to the core as failed, because the thread that should have sent it was interrupted. The core
        retries its messages.
        """
        flight.elsewhere = True  # so that this runs after actions that were handed over just before the interrupt
        self._fail(flight, BrokerUnavailable("sending was interrupted"))

    def _note_check(self, broker: int, connection: Channel) -> None:
        """Update `half_checks` from what the broker has announced on this connection. Keep the lowest number that the
        broker has ever announced, also on earlier connections: a half message may have been sent before the broker was
        restarted with another setting.
        """
        said, before = connection.half_check_seconds, self.half_checks.get(broker)
        self.half_checks[broker] = said if before is None or said is None else min(before, said)

    def _connection(self, partition: TopicPartition, timeout: float) -> Channel:
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
        the action at once. If the current thread can be interrupted, the action is queued for a thread that no signal
        reaches; that thread runs the queued actions one after the other. Threads that wait for the messages of `flight`
        wait until the action is done.
        """
        if not (flight.elsewhere or self._interruptible()):
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
        """Give the only message of `flight` its result. This method does the same as `_take` with `_land`, in fewer
        steps. The method is worthwhile because programs that wait for each send usually have one message per flight.
        Return False if the answer needs all steps; then the caller must process it with `_take`.
        """
        outgoing = flight.turns[0].batch[0]
        if len(flight.turns) > 1 or (outgoing.report is not None and self._interruptible()):
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
        """Give each message of the turns in `flight.landed` its result, or `error` if its result is not known any more.
        Called if an interrupt has ended the processing of the answer after the turns were reported to the core as
        stored. Runs on a thread that cannot be interrupted.
        """
        for _, batch in flight.landed:
            for outgoing in batch:
                if outgoing.result is not None:
                    outgoing.succeed(outgoing.result)
                else:
                    outgoing.fail(error)
        self._release(flight, flight.landed)

    def _release(self, flight: Flight, turns: Sequence[Turn]) -> None:
        if self._core.keys_move and self._interruptible():
            self._elsewhere(partial(self._release_here, flight, turns))
        else:
            self._release_here(flight, turns)

    def _release_here(self, flight: Flight, turns: Sequence[Turn]) -> None:
        self.transmit_all(self._core.release(flight, turns))
        self._on_released()


def new_producer_id() -> int:
    """Return a random id of 63 bits, never 0. The operating system supplies the bits, so the id does not repeat after a
    fork, or if the program gives its random generator a fixed seed.
    """
    return int.from_bytes(os.urandom(8)) >> 1 or 1
