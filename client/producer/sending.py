"""From batches to requests, and from their answers to results; both protocols."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from metaq.coordination.interrupts import begin_elsewhere, may_be_interrupted
from metaq.protocol.errors import BrokerUnavailable, MetaqError, NoPartition, RemoteProtocolError
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.record import Buffer
from metaq.protocol.refusals import frame_error, is_success
from metaq.protocol.send_many import PartRows, decode_rows
from metaq.protocol.sends import SendBatchRequest, SendHeaders, SentReply
from metaq.protocol.statuses import RequestCode

from ..config import ConnectionConfig
from ..connection import Connection, Endpoint, Exchange, Reply
from ..metadata import Metadata
from ..pool import ConnectionPool
from ..values import TopicPartition
from ..waiting import Waiter, finish_together
from .core import FailedTurn
from .outgoing import Outgoing, encode_batch, encode_many, give_results
from .queues import Flight, Turn
from .text_sending import OnLanded, OnSettled, TextBatch

__all__ = ["Sender"]


class Sender:
    """Sends one flight: one frame, or pipelined puts for each of its turns (text). Any thread.

    For each turn exactly one `on_landed` follows, on the reading thread of the connection or on the caller's own. The
    messages of finished turns get their results after that, while the broker has the next flight already; then
    `on_settled` follows.
    """

    def __init__(
        self,
        metadata: Metadata,
        pool: ConnectionPool,
        config: ConnectionConfig,
        on_landed: OnLanded,
        on_settled: OnSettled,
        landed_alone: Callable[[Flight], Sequence[Flight] | None],
        elsewhere: Callable[[Callable[[], None]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metadata = metadata
        self._pool = pool
        self._request_timeout = config.request_timeout_seconds
        self.on_landed = on_landed
        self.on_settled = on_settled
        self._landed_alone = landed_alone
        self._elsewhere = elsewhere
        self._clock = clock
        self._headers = SendHeaders()

    def transmit(self, flight: Flight, caller: Outgoing | None = None) -> None:
        """Send `flight`. caller: the message whose thread this is, and which is going to drive the connection that this
        chooses: its `driver`."""
        try:
            flight.taken = True
            now = self._clock()
            turns = flight.turns
            queue, batch = turns[0]
            if len(turns) == 1 and len(batch) == 1:
                last = batch[0].deadline
            else:
                last = max([outgoing.deadline for turn in turns for outgoing in turn.batch])
            deadline = min(now + self._request_timeout, last)
            patience = deadline if caller is None else min(deadline, caller.deadline)
            try:
                connection = self._connection(queue.partition, patience - now)
            except MetaqError as error:
                self._fail(flight, error)
                flight.failed = True
                return
            if connection is not flight.broker.connection:
                flight.broker.use(connection)
            if caller is not None:
                caller.driver = connection
            if len(turns) > 1 and connection.takes_many:
                self._send_many(connection, flight, deadline, _needs_reader(connection, flight))
                return
            for turn in turns:  # more than one only if the connection is new, to an older broker
                background = _needs_reader(connection, flight)
                if connection.speaks_frames:
                    self._send_frame(connection, flight, turn, deadline, background)
                else:
                    TextBatch(flight, turn, connection.endpoint, self).send(connection, deadline, background)
        except BaseException:  # where one comes, a flight has one turn
            begin_elsewhere((self._lose_unless_gone, flight))
            raise

    def _lose_unless_gone(self, flight: Flight) -> None:
        if not _has_gone(flight):
            self._lose(flight)

    def lose_untaken(self, flights: Sequence[Flight]) -> None:
        """The caller of `transmit` was interrupted, maybe before it had begun with some of these. On another thread."""
        for flight in flights:
            if not flight.taken:
                self._lose(flight)

    def _lose(self, flight: Flight) -> None:
        """The thread that was going to send it was interrupted: its messages are tried again."""
        flight.elsewhere = True  # behind what was handed on just before the interrupt
        self._fail(flight, BrokerUnavailable("sending was interrupted"))

    def _connection(self, partition: TopicPartition, timeout: float) -> Connection:
        endpoint = self._metadata.view(partition.topic).endpoints.get(partition.broker)
        if endpoint is None:
            raise NoPartition(f"topic {partition.topic!r}: broker {partition.broker} is not registered any more")
        return self._pool.connection(endpoint, timeout)

    # --- one partition ----------------------------------------------------------------------------------------------

    def _send_frame(
        self, connection: Connection, flight: Flight, turn: Turn, deadline: float, background: bool
    ) -> None:
        partition, opaque, first = turn.queue.partition, connection.new_opaque(), turn.batch[0]
        frame: Sequence[Buffer]
        if len(turn.batch) == 1 and first.is_single:
            ((flag, checksum, body),) = first.records()
            frame = self._headers.encode(opaque, partition, flag, checksum, len(body)), body
        else:
            frame = _batch_frame(partition, turn.batch, opaque)
        on_done = partial(self._frame_answered, flight, turn, connection.endpoint)
        flight.request = request = Exchange(opaque, on_done, deadline, background)
        connection.send((request,), frame)

    def take(self, flight: Flight, action: Callable[[], None]) -> None:
        """Take an answer, or its absence: now, or on a thread that no signal reaches, one after the other. The callers
        among the senders wait for that.
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

    def _fail(self, flight: Flight, error: MetaqError) -> None:
        self.take(flight, partial(self.on_landed, flight, (), [(turn, error) for turn in flight.turns]))

    def _frame_answered(
        self, flight: Flight, turn: Turn, endpoint: Endpoint, reply: Reply | None, error: MetaqError | None
    ) -> None:
        if type(reply) is SentReply and self._sent_alone(flight, turn, reply):
            return
        self.take(flight, partial(self._take_one, flight, turn, endpoint, reply, error))

    def _take_one(
        self, flight: Flight, turn: Turn, endpoint: Endpoint, reply: Reply | None, error: MetaqError | None
    ) -> None:
        partition = turn.queue.partition
        if type(reply) is not SentReply:
            error = error or _refusal(reply, partition, endpoint)
            if turn in flight.landed:
                self.settle_again(flight, error)
            else:
                self.on_landed(flight, (), [(turn, error)])
            return
        self.on_landed(flight, (turn,), ())
        parked: list[Waiter] = []
        give_results(turn.batch, reply.message_id, _chosen(partition, reply), reply.offset, parked)
        self.on_settled(flight, (turn,))
        finish_together(parked)

    def _sent_alone(self, flight: Flight, turn: Turn, reply: SentReply) -> bool:
        if len(turn.batch) > 1:
            return False
        partition, outgoing = _chosen(turn.queue.partition, reply), turn.batch[0]
        return self.settle_alone(flight, outgoing, outgoing.native_result(reply.message_id, partition, reply.offset))

    def settle_alone(self, flight: Flight, outgoing: Outgoing, result: object) -> bool:
        """The usual answer of producers that wait for each of their sends: if it is the only message of `flight`, it is
        done with in few steps. False: nothing was done, it needs all of them.
        """
        if len(flight.turns) > 1 or (outgoing.report is not None and may_be_interrupted()):
            return False
        # before it counts as landed, so that `settle_again` finds it if an interrupt comes between the two
        outgoing.result = result
        following = self._landed_alone(flight)
        if following is None:
            return False
        for each in following:
            self.transmit(each)
        outgoing.succeed(result)
        if outgoing.report is not None:
            self.on_settled(flight, flight.turns)
        return True

    def settle_again(self, flight: Flight, error: MetaqError) -> None:
        """The handler of an answer was interrupted behind `on_landed`: its messages are stored, and get what results
        there are. Where no interrupt comes."""
        for _, batch in flight.landed:
            for outgoing in batch:
                if outgoing.result is not None:
                    outgoing.succeed(outgoing.result)
                else:
                    outgoing.fail(error)
        self.on_settled(flight, flight.landed)

    # --- many partitions --------------------------------------------------------------------------------------------

    def _send_many(self, connection: Connection, flight: Flight, deadline: float, background: bool) -> None:
        opaque = connection.new_opaque()
        frame = encode_many(opaque, [(turn.queue.partition, turn.batch) for turn in flight.turns])
        on_done = partial(self._many_answered, flight, connection.endpoint)
        flight.request = request = Exchange(opaque, on_done, deadline, background)
        connection.send((request,), frame)

    def _many_answered(self, flight: Flight, endpoint: Endpoint, reply: Reply | None, error: MetaqError | None) -> None:
        self.take(flight, partial(self._take_many, flight, endpoint, reply, error))

    def _take_many(self, flight: Flight, endpoint: Endpoint, reply: Reply | None, error: MetaqError | None) -> None:
        turns = flight.turns
        rows: PartRows | None = None
        if error is None:
            try:
                rows = _rows(reply, turns, endpoint)
            except MetaqError as wrong:
                error = wrong
        if rows is None and flight.landed:
            assert error is not None
            self.settle_again(flight, error)
            return
        if rows is None:
            failure = error or _refusal(reply, turns[0].queue.partition, endpoint)
            self.on_landed(flight, (), [(turn, failure) for turn in turns])
            return
        stored: Sequence[Turn] = turns
        failed: list[FailedTurn] = []
        if any(rows.codes):
            stored = [turn for turn, code in zip(turns, rows.codes, strict=True) if not code]
            failed = [
                (turn, _part_refusal(code, reply, turn.queue.partition, endpoint))
                for turn, code in zip(turns, rows.codes, strict=True)
                if code
            ]
        self.on_landed(flight, stored, failed)
        parked: list[Waiter] = []
        for (queue, batch), first_id, offset, number, code in zip(turns, *rows, strict=True):
            if code:
                continue
            partition = queue.partition
            if partition.partition < 0:
                partition = partition._replace(partition=number)
            give_results(batch, first_id, partition, offset, parked)
        self.on_settled(flight, stored)
        finish_together(parked)


def _chosen(partition: TopicPartition, reply: SentReply) -> TopicPartition:
    """Where it was stored: some senders leave the choice to the broker."""
    return partition if partition.partition >= 0 else partition._replace(partition=reply.partition)


def _has_gone(flight: Flight) -> bool:
    """Whether it has its outcome, or will have it, although its sender was interrupted."""
    if flight.failed or flight.missing <= 0:
        return True
    return flight.request is not None and flight.request.taken


def _needs_reader(connection: Connection, flight: Flight) -> bool:
    """Whether nobody is blocked for some of these messages who would read the connection for them."""
    for _, batch in flight.turns:
        for outgoing in batch:
            if outgoing.driver is not connection:
                return True
    return False


def _refusal(reply: Reply | None, partition: TopicPartition, endpoint: Endpoint) -> MetaqError:
    if isinstance(reply, Frame) and not is_success(reply):
        return frame_error(reply, partition, endpoint)
    return BrokerUnavailable(f"{endpoint} answered a send with something else: {reply!r}")


def _rows(reply: Reply | None, turns: Sequence[Turn], endpoint: Endpoint) -> PartRows:
    """Raises MetaqError: the whole frame was refused, or the answer is not one."""
    if not isinstance(reply, Frame) or not is_success(reply):
        raise _refusal(reply, turns[0].queue.partition, endpoint)
    try:
        return decode_rows(reply.body, len(turns))
    except RemoteProtocolError as wrong:
        raise BrokerUnavailable(f"{endpoint} answered a send with something else: {wrong}") from wrong


def _part_refusal(code: int, reply: Reply | None, partition: TopicPartition, endpoint: Endpoint) -> MetaqError:
    assert isinstance(reply, Frame)
    return frame_error(reply._replace(code=code), partition, endpoint)


def _batch_frame(partition: TopicPartition, batch: list[Outgoing], opaque: int) -> Sequence[Buffer]:
    body = encode_batch(batch)
    records = sum(outgoing.count for outgoing in batch)
    request = SendBatchRequest(partition.topic, partition.partition, records)
    return encode_frame(RequestCode.SEND_BATCH, opaque, request.to_ext(), sum(map(len, body))), *body
