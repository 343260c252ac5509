"""Fetching ahead: one pull under way per partition (a second one while a bulk reader's answer is coming in), all
partitions of a broker on one connection.

There is no thread per partition and no loop that asks: the answer to a pull is taken on the thread that reads the
connection, which stores it and sends the next pull at once, as long as the partition's buffer has room. With one broker
that is the thread that waits in poll(), and the next answer comes into the socket's buffer while the user works; with
several it is a background thread for each broker. What must wait for a time (an error's pause, the text protocol's
empty answers) is on the timer thread, what must wait for a broker (to connect, to ask it something else) on a thread of
that broker (broker_threads.py).

A user's thread that is interrupted (interrupts.py) may leave any line. If it had noted that a pull is under way, the
timer thread sends that (`_pull_elsewhere`), and the answer to another one, if there is one, is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

from metaq.coordination.interrupts import begin_elsewhere
from metaq.coordination.logs import get_log
from metaq.protocol.errors import BrokerUnavailable, CorruptRecord, MetaqError, RemoteProtocolError
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.pulls import NOT_DAMAGED, PullReply, PullRequest, decode_runs
from metaq.protocol.record import HEADER, HEADER_BYTES, Buffer, is_blank, iter_headers
from metaq.protocol.refusals import frame_error, text_error
from metaq.protocol.sends import split_batch
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from metaq.protocol.text import Result, Value, encode_get

from ..config import ConsumerConfig
from ..connection import Connection, Endpoint, Reply
from ..damage import locate_damage
from ..inquiry import damaged_bytes, max_offset
from ..places import Locate
from ..pool import ConnectionPool
from ..timers import Timers
from ..values import TopicPartition
from .arrivals import Arrivals
from .broker_threads import BrokerThreads
from .chunk import Chunk
from .partition_state import NOWHERE, PartitionState

__all__ = ["DAMAGE_TRIES", "Fetcher"]

log = get_log(__name__)

_CONNECT_SECONDS = 3.0
DAMAGE_TRIES = 3
"""A record with a wrong checksum is fetched again (it may be damaged on the way) so often before it is looked into."""

_LARGEST_GET_BYTES = 32 << 20
"""The text protocol's request stops growing here; no message is larger."""
_EMPTY_GETS = 60
"""After so many in a row: does the position lie behind the end, where nothing will ever come? (At the
longest pause half a minute; a Java broker may hand out bytes that its flushed end has not reached yet.)"""

EndpointOf = Callable[[TopicPartition], Endpoint | None]


class Fetcher:
    """Keeps the buffers of a consumer's partitions filled. Any thread.

    arrivals: gets a partition's state for each chunk that was added to it. endpoint_of: where a partition is read.
    is_slave: whether a slave listens there, which may hold less than its master did.
    """

    def __init__(
        self,
        group: str,
        tags: frozenset[str] | None,
        pool: ConnectionPool,
        endpoint_of: EndpointOf,
        arrivals: Arrivals,
        config: ConsumerConfig,
        timers: Timers,
        clock: Callable[[], float] = time.monotonic,
        is_slave: Callable[[Endpoint], bool] = lambda _: False,
    ) -> None:
        self._group = group
        self._tags = tuple(sorted(tags)) if tags else ()
        self._pool = pool
        self._endpoint_of = endpoint_of
        self._arrivals = arrivals
        self._config = config
        self._pull_bytes = config.fetch_max_bytes
        self._pulls_ahead = False
        self._timers = timers
        self._clock = clock
        self._is_slave = is_slave
        self._lock = threading.Lock()
        self._connections: list[Connection] = []
        self._broker_threads = BrokerThreads("metaq-fetch")

    def wait(self, seconds: float) -> None:
        """For arrivals (Arrivals.wait), at most `seconds`; if there is only one connection, it is read here."""
        connections = self._connections
        if len(connections) == 1 and not connections[0].closed:
            self._arrivals.wait_reading(connections[0], self._clock() + seconds)
        else:
            self._arrivals.wait(seconds)

    def read_in_bulk(self) -> None:
        """Whoever reads takes whole answers with little work for each: make them large, and ask for the next one while
        the last is coming in. (Who makes messages is slower than a broker, and gains nothing.) Any thread.
        """
        self._pull_bytes = self._config.arrow_fetch_bytes
        self._pulls_ahead = True

    def open(self, state: PartitionState, offset: int | Locate) -> None:
        """Begin to fetch at `offset`, or where it finds it when the partition's broker is asked; not if the user seeks
        before that."""
        if callable(offset):
            self._ask_broker(state, partial(self._open_where, state, offset))
        else:
            self._start(state, offset, first=True)

    def move(self, state: PartitionState, offset: int) -> None:
        """Drop what was fetched and go on at `offset`."""
        self._start(state, offset)

    def again(self, state: PartitionState) -> None:
        """Drop what was fetched and go on at the position, wherever another thread may have set it."""
        self._start(state, None)

    def _start(self, state: PartitionState, offset: int | None, *, first: bool = False) -> None:
        try:
            generation = state.start_at(offset, first=first)
            if generation is None:
                return
            # elsewhere: the caller may hold locks, and the first pull has to connect
            self._timers.call_later(0, partial(self._pull, state, generation))
        except BaseException:
            begin_elsewhere((self._pull_elsewhere, state))
            raise

    def examine(self, state: PartitionState, offset: int, moves: int | None = None) -> None:
        """What was fetched at `offset` fails its check: fetch it again, which may be enough, and have the broker check
        it too. After some tries find out how far the damage goes. It comes as a chunk of its own. moves: as start_at.
        """
        try:
            generation = state.start_at(offset, moves=moves)
            if generation is None:
                return
            state.suspect = offset
            state.damage += 1
            if state.damage <= DAMAGE_TRIES:
                self._timers.call_later(0, partial(self._pull, state, generation))
            else:
                self._ask_broker(state, partial(self._locate, state, generation))
        except BaseException:
            begin_elsewhere((self._pull_elsewhere, state))
            raise

    def refill(self, state: PartitionState) -> None:
        """Call after chunks were taken: pull again if there is room and no pull is under way."""
        with state.lock:
            if state.pulling or not self._has_room(state):
                return
        try:
            with state.lock:
                if state.pulling:
                    return
                state.pulling = True
                generation = state.generation
            self._pull(state, generation)
        except BaseException:
            begin_elsewhere((self._pull_elsewhere, state))
            raise

    def _pull_elsewhere(self, state: PartitionState) -> None:
        """The thread that was going to pull was interrupted. On another one, after a pause: if it was a bug instead
        that ended it, it comes again."""
        with state.lock:
            state.pulling = True
        again = state.pull_anew()
        if again is not None:
            self._timers.call_later(state.backoff.next(), partial(self._pull, state, again))

    def reroute(self, state: PartitionState) -> None:
        """The partition is read from another broker now: a pull that the former one may have parked is sent again."""
        generation = state.pull_anew()
        if generation is not None:
            self._timers.call_later(0, partial(self._pull, state, generation))

    def brokers_are(self, endpoints: Collection[Endpoint]) -> None:
        """These brokers are registered now: give up on others that cannot be reached."""
        self._pool.forget_all_down_but(endpoints)

    def _has_room(self, state: PartitionState, coming: int = 0) -> bool:
        """Whether to pull, with so many bytes of an answer still to come."""
        return (
            state.opened
            and state.active
            and not state.revoking
            and state.buffered_bytes + coming < self._config.max_buffered_bytes
        )

    # --- opening ----------------------------------------------------------------------------------------------------

    def _ask_broker(self, state: PartitionState, action: Callable[[], None]) -> None:
        """Have `action` run where it may wait for the partition's broker. Any thread."""
        # the timer thread starts the broker's: no interrupt comes between the two steps
        self._timers.call_later(0, partial(self._run_at_broker, state, action))

    def _run_at_broker(self, state: PartitionState, action: Callable[[], None]) -> None:
        endpoint = self._endpoint_of(state.partition)
        if endpoint is None:
            action()  # which does not wait: it finds the same
        else:
            self._broker_threads.run(endpoint, action)

    def _open_where(self, state: PartitionState, locate: Locate) -> None:
        """Broker's thread."""
        if not state.active or state.opened:
            return
        try:
            offset = locate(self._connect(state), state.partition)
        except MetaqError as error:
            self._later(state, error, partial(self._ask_broker, state, partial(self._open_where, state, locate)))
            return
        state.backoff.reset()
        self._start(state, offset, first=True)  # there may have been a seek meanwhile

    def _connect(self, state: PartitionState) -> Connection:
        """The connection to the partition's broker, made now if there is none. Broker's thread."""
        connection = self._pool.connection(self._endpoint(state), _CONNECT_SECONDS)
        self._use(connection)
        return connection

    def _endpoint(self, state: PartitionState) -> Endpoint:
        endpoint = self._endpoint_of(state.partition)
        if endpoint is None:
            raise BrokerUnavailable(f"broker {state.partition.broker} is not registered")
        return endpoint

    def _use(self, connection: Connection) -> None:
        """If it is new: one thread in poll() can read one connection; several need their reader threads. May be
        repeated."""
        if connection in self._connections:
            return
        connection.expects_bulk = True
        with self._lock:
            connections = [*(each for each in self._connections if not each.closed), connection]
            if len(connections) > 1:
                for each in connections:
                    each.read_in_background()
            self._connections = connections
        self._arrivals.put(None)  # a thread in poll() has something else to wait for

    # --- pulling ----------------------------------------------------------------------------------------------------

    def _pull(self, state: PartitionState, generation: int) -> None:
        if generation != state.generation or not state.active:
            return
        try:
            connection = self._pool.open_connection(self._endpoint(state))
            if connection is None:
                self._ask_broker(state, partial(self._connect_and_pull, state, generation))
                return
            self._use(connection)
            self._send_pull(state, generation, connection)
        except MetaqError as error:
            self._failed(state, generation, error)

    def _connect_and_pull(self, state: PartitionState, generation: int) -> None:
        """Broker's thread."""
        if generation != state.generation or not state.active:
            return
        try:
            self._send_pull(state, generation, self._connect(state))
        except MetaqError as error:
            self._failed(state, generation, error)

    def _send_pull(self, state: PartitionState, generation: int, connection: Connection) -> None:
        if connection.speaks_frames:
            wait_ms, build = self._config.long_poll_ms, self._build_pull(state)
        else:
            wait_ms, build = 0, self._build_get(state)
        deadline = self._clock() + wait_ms / 1000 + self._config.connection.request_timeout_seconds
        answered = partial(self._answered, state, generation, connection)
        begun = partial(self._begun, state, generation) if self._pulls_ahead else None
        connection.submit(build, answered, deadline, background=len(self._connections) > 1, on_begun=begun)

    def _begun(self, state: PartitionState, generation: int, head: Frame) -> None:
        """An answer says where it ends before its body is there: pull what follows, so that the broker works on that
        while this thread receives and its user consumes.
        """
        if head.code != ResponseCode.SUCCESS:
            return
        try:
            ahead = PullReply.from_ext(head.ext).next_offset
        except RemoteProtocolError:
            return  # who takes the whole answer meets the same error, and says it
        with state.lock:
            coming = ahead - state.fetch_offset
            if generation != state.generation or coming <= 0 or not self._has_room(state, coming):
                return
            state.ahead = ahead
        self._pull(state, generation)

    def _build_pull(self, state: PartitionState) -> Callable[[int], Sequence[Buffer]]:
        topic, _, number = state.partition
        config = self._config
        request = PullRequest(
            topic,
            number,
            state.fetch_offset if state.ahead is None else state.ahead,
            self._pull_bytes,
            self._group,
            self._tags,
            config.long_poll_ms,
            sizes=True,
            verify=state.ahead is None and state.suspect == state.fetch_offset,
        )
        return lambda opaque: (encode_frame(RequestCode.PULL, opaque, request.to_ext()),)

    def _build_get(self, state: PartitionState) -> Callable[[int], Sequence[Buffer]]:
        topic, _, number = state.partition
        if not state.fetch_bytes:
            state.fetch_bytes = self._config.fetch_max_bytes
        offset, size = state.fetch_offset, state.fetch_bytes
        return lambda opaque: (encode_get(topic, self._group, number, offset, size, opaque),)

    def _answered(
        self,
        state: PartitionState,
        generation: int,
        connection: Connection,
        reply: Reply | None,
        error: MetaqError | None,
    ) -> None:
        """The thread that reads the connection."""
        try:
            if generation != state.generation or not state.active:
                return
            if reply is None:
                self._lost(state, generation, error or BrokerUnavailable(f"{connection.endpoint} gave no answer"))
                return
            try:
                if isinstance(reply, Frame):
                    pause_ms = self._take_frame(state, generation, reply, connection.endpoint)
                elif isinstance(reply, Value):
                    pause_ms = self._take_value(state, generation, reply.data)
                elif isinstance(reply, Result):
                    pause_ms = self._take_result(state, generation, reply, connection.endpoint)
                else:
                    raise BrokerUnavailable(f"{connection.endpoint} answered a pull with something else: {reply!r}")
            except _NotWhole as failure:
                again = state.forget_ahead(generation)
                if again is not None:
                    self._ask_broker(state, partial(self._locate, state, again, failure))
                return
            except MetaqError as failure:
                self._failed(state, generation, failure)
                return
            self._recovered(state)
            if not state.end_ahead():
                self._go_on(state, generation, pause_ms)
        except BaseException:
            begin_elsewhere((self._pull_elsewhere, state))
            raise

    def _go_on(self, state: PartitionState, generation: int, pause_ms: int) -> None:
        with state.lock:
            if generation != state.generation:
                return
            if not self._has_room(state):
                state.pulling = False
                return
        if pause_ms:
            self._timers.call_later(pause_ms / 1000, partial(self._pull, state, generation))
        else:
            self._pull(state, generation)

    # --- answers ----------------------------------------------------------------------------------------------------

    def _take_frame(self, state: PartitionState, generation: int, frame: Frame, endpoint: Endpoint) -> int:
        if frame.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
            raise frame_error(frame, state.partition, endpoint)
        reply = PullReply.from_ext(frame.ext)
        if reply.damaged_from != NOT_DAMAGED:
            if reply.next_offset <= state.fetch_offset:
                raise RemoteProtocolError(f"{state.partition.topic} {state.partition}: damage ends before its begin")
            damage = damaged_bytes(state.partition, reply.damaged_from, reply.next_offset)
            self._add(state, generation, Chunk.damaged(damage, state.fetch_offset))
        elif frame.code == ResponseCode.PULL_OFFSET_MOVED:
            self._lead(state, reply, endpoint)
            self._moved(state, generation, reply.next_offset, endpoint)
        elif reply.runs:
            self._add_runs(state, generation, reply, frame.body)
        elif reply.records:
            sizes, records = split_batch(frame.body, reply.records)
            self._add(state, generation, Chunk.of(records, state.fetch_offset, reply.next_offset, sizes))
        elif frame.body or reply.next_offset != state.fetch_offset:
            self._add(state, generation, Chunk.of(frame.body, state.fetch_offset, reply.next_offset))
        return 0

    def _add_runs(self, state: PartitionState, generation: int, reply: PullReply, body: memoryview) -> None:
        """A filtered answer: stretches of records with gaps between them."""
        runs = decode_runs(body, reply.runs)
        ends = [offset for offset, _ in runs[1:]] + [reply.next_offset]
        for (offset, records), end in zip(runs, ends, strict=True):
            self._add(state, generation, Chunk.of(records, offset, end))

    def _add(self, state: PartitionState, generation: int, chunk: Chunk) -> None:
        if chunk.end_offset < chunk.offset + chunk.bytes_left:
            raise RemoteProtocolError(f"{state.partition.topic} {state.partition}: an answer ends before its data")
        if state.add(generation, chunk):
            self._arrivals.put(state)

    @staticmethod
    def _lead(state: PartitionState, reply: PullReply, endpoint: Endpoint) -> None:
        """Back to the start of the record that has the position: once, or what was read already would come for ever."""
        if reply.next_offset < state.fetch_offset and reply.next_offset < reply.max_offset:
            if state.led_back_from == state.fetch_offset:
                raise RemoteProtocolError(
                    f"{state.partition.topic} {state.partition}: {endpoint} leads back from {state.fetch_offset} to "
                    f"{reply.next_offset} again, which was read already"
                )
            state.led_back_from = state.fetch_offset

    def _moved(self, state: PartitionState, generation: int, offset: int, endpoint: Endpoint) -> None:
        """The position is outside the readable bytes: go where the broker says, but never back on a slave's word."""
        where = f"{state.partition.topic} {state.partition}"
        if offset < state.fetch_offset and self._is_slave(endpoint):
            raise BrokerUnavailable(
                f"{where}: the slave {endpoint} ends at {offset} and the position is {state.fetch_offset} already: "
                "waiting for the slave or the master"
            )
        if state.fetch_offset == offset:
            raise RemoteProtocolError(f"{where}: the broker moves the position {offset} to itself")
        committed = state.committed is not None and state.committed[0] == state.fetch_offset
        if state.fetch_offset or committed:  # else 0 is how "earliest" begins
            log.warning("%s: position %d is not readable, going on at %d", where, state.fetch_offset, offset)
        self._add(state, generation, Chunk.of(b"", offset, offset))

    def _take_value(self, state: PartitionState, generation: int, data: memoryview) -> int:
        """Text: a slice of the log; its last record is usually cut."""
        complete = _complete_bytes(data) or self._ask_for_more(state, data)
        if not complete:
            return 0
        state.fetch_bytes = self._config.fetch_max_bytes
        state.idle_ms = state.empty_gets = 0
        self._add(state, generation, Chunk.of(data[:complete], state.fetch_offset, state.fetch_offset + complete))
        return 0

    def _ask_for_more(self, state: PartitionState, data: memoryview) -> int:
        """Not even one record fits. Returns how many bytes to hand out nevertheless: those of a record that is damaged.

        Raises _NotWhole if asking for more does not help.
        """
        header = HEADER.unpack_from(data) if len(data) >= HEADER_BYTES else None
        if header is not None and (not 0 <= header[0] <= _LARGEST_GET_BYTES or is_blank(*header[:3])):
            return len(data)
        if len(data) < state.fetch_bytes or state.fetch_bytes >= _LARGEST_GET_BYTES:
            raise _NotWhole(
                f"the broker hands out {len(data)} bytes of the record at {state.fetch_offset}, which is longer: "
                "raise its maxTransferSize"
            )
        state.fetch_bytes = min(2 * state.fetch_bytes, _LARGEST_GET_BYTES)
        return 0

    def _take_result(self, state: PartitionState, generation: int, result: Result, endpoint: Endpoint) -> int:
        if result.code in (Status.NOT_FOUND, Status.FORBIDDEN):
            return self._idle_pause(state)
        if result.code == Status.MOVED and result.text.strip().isdigit():
            self._moved(state, generation, int(result.text), endpoint)
            return 0
        raise text_error(result, state.partition, endpoint)

    def _idle_pause(self, state: PartitionState) -> int:
        """Nothing now: ask again after a pause that grows, as 1.x does."""
        state.idle_ms = min(state.idle_ms + self._config.text_idle_step_ms, self._config.text_idle_max_ms)
        state.empty_gets += 1
        if state.empty_gets == _EMPTY_GETS and state.fetch_offset:
            self._ask_broker(state, partial(self._look_at_end, state))
        return state.idle_ms

    def _look_at_end(self, state: PartitionState) -> None:
        """Broker's thread. A Java broker answers a position behind the end as it answers the end: with nothing."""
        try:
            end = max_offset(self._connect(state), state.partition)
        except MetaqError:  # the fetching meets the same error, and says it
            return
        # end 0: a Java broker that was started again may not have opened the partition yet, which its next put does
        if state.active and 0 < end < state.fetch_offset:
            log.warning(
                "%s %s: the position %d lies behind the end %d, so nothing comes: seek to 'latest', for example",
                state.partition.topic,
                state.partition,
                state.fetch_offset,
                end,
            )

    # --- damage -----------------------------------------------------------------------------------------------------

    def _locate(self, state: PartitionState, generation: int, unless: MetaqError | None = None) -> None:
        """Broker's thread: how far does the damage go at the position? unless: what is wrong if nothing is damaged."""
        if generation != state.generation or not state.active:
            return
        try:
            damage = locate_damage(self._connect(state), state.partition, state.fetch_offset)
        except MetaqError as error:
            again = partial(self._locate, state, generation, unless)
            self._later(state, error, partial(self._ask_broker, state, again))
            return
        if damage is None and unless is not None:
            self._failed(state, generation, unless)
            return
        if damage is None:  # as the broker reads it, it is good
            reason = "it comes damaged from a broker that finds it good"
            damage = CorruptRecord.of(state.partition, state.fetch_offset, reason)
        self._add(state, generation, Chunk.damaged(damage, state.fetch_offset))
        if damage.end is not None:
            self._recovered(state)
            self._go_on(state, generation, 0)

    # --- errors -----------------------------------------------------------------------------------------------------

    def _failed(self, state: PartitionState, generation: int, error: MetaqError) -> None:
        again = state.forget_ahead(generation)
        if again is not None:
            self._later(state, error, partial(self._pull, state, again))

    def _lost(self, state: PartitionState, generation: int, error: MetaqError) -> None:
        """No answer came to a pull, or its taking was interrupted at any line: what it has added stays."""
        state.led_back_from = NOWHERE
        if state.chunks:
            self._arrivals.put(state)
        again = state.pull_anew()
        if again is not None:
            self._later(state, error, partial(self._pull, state, again))

    def _later(self, state: PartitionState, error: MetaqError, action: Callable[[], None]) -> None:
        pause = state.backoff.next()
        if str(error) != state.complaint:
            state.complaint = str(error)
            where = f"{state.partition.topic} {state.partition}"
            log.warning("fetching %s failed, next try in %.2f s: %s", where, pause, error)
        self._timers.call_later(pause, action)

    def _recovered(self, state: PartitionState) -> None:
        if state.complaint:
            log.info("fetching %s %s works again", state.partition.topic, state.partition)
            state.complaint = ""
        state.backoff.reset()


class _NotWhole(RemoteProtocolError):
    """The broker does not give the whole of a record: it gives too little at once, or the length is damaged."""


def _complete_bytes(data: memoryview) -> int:
    """How many bytes the complete records at the front take."""
    complete = 0
    try:
        for header in iter_headers(data):
            complete = header.end
    except RemoteProtocolError:
        pass  # no header: what is good in front of it comes first, it is the front of the next answer
    return complete
