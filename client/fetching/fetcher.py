"""Send the core's requests (core.py) over connections, and pass the answers to the core.

There is no thread per partition and no request loop. Each connection has a thread that reads it. When the answer to a
pull arrives, this thread stores the data and at once sends the partition's next pull, unless the buffer for the
partition is full. If there is only one broker, its connection has no thread of its own: the thread that waits in poll()
reads it, and while the user's code works, the next answer waits in the socket's buffer. If there are several brokers,
each connection is read by a background thread. Work that must wait for a time (the pause after an error or after an
empty answer of the text protocol) runs on the timer thread. Work that must wait for a broker (connecting, requests
other than pulls) runs on a thread of its own for each broker, so that a hung broker blocks no other.

A user's thread may be interrupted at any line (interrupts.py). If the interrupted thread had marked a request as in
flight, nobody knows whether the thread has sent this request. So the timer thread sends a new request for the partition
(`_ask_anew`), and the answer to the first one, if it comes, is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from metaq.coordination.runtime.interrupts import Aside, Bell, begin_elsewhere
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import BrokerUnavailable, MetaqError
from metaq.protocol.frames import Frame

from ..questions.asking import Asked
from ..questions.divergence import diverged_at
from ..questions.partition_bounds import max_offset
from ..questions.stored_records import locate_damage
from ..records.results import TopicPartition
from ..runtime.timers import Scheduler
from ..runtime.waiting import Waiter
from ..transport.channel import Channel, Channels
from ..transport.connection import Endpoint, Reply
from .core import ConsumerCore
from .cursor import Ask, PartitionCursor, Reached, Request
from .tuning import CONNECT_SECONDS

__all__ = ["EndpointOf", "Fetcher"]

log = get_log(__name__)

EndpointOf = Callable[[TopicPartition], Endpoint | None]
"""A function that returns the endpoint of the broker that a partition is read from, or None if it is unknown."""


class Fetcher:
    """Sends the requests that keep the buffers of a consumer's partitions filled, and wakes the thread that waits for
    data. Any thread may call the methods.

    record: a function that takes a
    RECORD request, commits the request's offset (where the group begins in the partition), and then calls `go_on`.
    """

    def __init__(
        self,
        core: ConsumerCore,
        pool: Channels,
        endpoint_of: EndpointOf,
        timers: Scheduler,
        record: Callable[[Request], None] | None = None,
    ) -> None:
        self._core = core
        self._record = record
        self._pool = pool
        self._endpoint_of = endpoint_of
        self._timers = timers
        self._lock = threading.Lock()
        self._connections: list[Channel] = []
        self._asides: dict[Endpoint, Aside] = {}  # work that may wait for a broker runs on a thread of that broker
        self._bell_lock = threading.Lock()
        self._bell = Bell()  # rung before `_rung` is set
        self._rung = False
        self._waiter: Waiter | None = None

    # --- the thread in poll() ---------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake the thread that waits in poll(), so that it looks for data. If the thread is just reading from a socket,
        it looks for data after that.
        """
        with self._bell_lock:
            if not self._rung:
                self._bell.ring()  # first: an unneeded ring wakes the thread once too often, which does no harm
                self._rung = True
            waiter = self._waiter
        if waiter is not None:
            waiter.finish()

    def listen(self) -> None:
        """Forget all earlier calls of `wake`. After `listen` the caller must look for data and, if there are none, call
        `wait`. If `wake` was called after `listen`, this `wait` returns at once, so data that come between `listen` and
        `wait` are not missed.
        """
        if self._rung:
            with self._bell_lock:
                self._rung = False
                self._bell.wait(0.0)  # an exception may have ended the wait that took the ring

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` until `wake` is called. Return at once if `wake` was called since the last call of
        `listen`.

        If the consumer has a single connection and no other thread reads it, the waiting thread reads the connection
        meanwhile. This saves time: no other thread must hand the data over, and the data are in the cache of the
        processor core that uses them.
        """
        connections = self._connections
        if len(connections) != 1 or connections[0].closed:
            self._bell.wait(seconds)
            return
        waiter = self._waiter = _PollWaiter()
        try:
            if not self._rung:  # `wake` may have been called before the waiter could notice
                connections[0].drive(waiter, time.monotonic() + seconds)
        finally:
            self._waiter = None

    # --- requests ---------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Send a request for each partition that needs one according to the core (`next_wanting`)."""
        try:
            while (cursor := self._core.next_wanting()) is not None:
                self.ask(cursor)
        except BaseException:
            begin_elsewhere((self._serve_all,))
            raise

    def _serve_all(self) -> None:
        """Check for every owned partition whether it needs a request. Called after an interrupt, because the
        interrupted thread may have removed a partition from the core's queue before it sent the partition's request.
        """
        for cursor in list(self._core.owned.values()):
            self.ask(cursor)

    def serve_soon(self) -> None:
        """Call `serve` on another thread. Callers that hold locks, or that must not wait until a broker receives the
        request, use this method.
        """
        self._timers.call_later(0, self.serve)

    def ask(self, cursor: PartitionCursor) -> None:
        """Send the request of this partition, if it needs one."""
        try:
            request = cursor.next_request(time.monotonic())
            if request is not None:
                self._send(request)
        except BaseException:
            begin_elsewhere((self._ask_anew, cursor))
            raise

    def _ask_anew(self, cursor: PartitionCursor) -> None:
        """Let the timer thread send a partition's request again after a pause, because an exception has ended another
        thread's work on the request. The pause is needed because the exception may come from a bug, and would then be
        raised again at once.
        """

        def ask() -> None:
            cursor.ask_anew()
            self.serve()

        self._timers.call_later(cursor.backoff.next(), ask)

    def nearest_changed(self, broker_id: int) -> None:
        """Choose anew from which nodes the partitions of a broker set are read, because the set's nodes in the
        consumer's zone have changed. Any thread may call this.
        """
        self._core.nearest_changed(broker_id)
        self.serve_soon()

    def brokers_are(self, masters: Mapping[int, Endpoint], others: Collection[Endpoint]) -> None:
        """Pass the list of registered brokers to the connection pool; see ConnectionPool.listed."""
        self._pool.listed(masters, others)

    def _send(self, request: Request) -> None:
        if request.ask is Ask.RECORD:
            assert self._record is not None, "only a member of a group records"
            self._record(request)
            return
        try:
            leader = self._endpoint_of(request.cursor.partition)
            endpoint = self._core.source(request, leader, self._pool.down, time.monotonic())
            connection = self._pool.open_connection(endpoint) if request.ask is Ask.PULL else None
            if connection is not None:
                self._use(connection)
                self._pull(request, connection)
            else:
                self._ask_aside(request, endpoint)
        except MetaqError as error:
            self._then(request, self._core.failed(request, error, time.monotonic()))

    def go_on(self, requests: Sequence[Request], pause: float = 0.0) -> None:
        """In `pause` seconds, let each partition of these RECORD requests send its next request. Called after a try to
        commit the offsets of the RECORD requests. If a partition's offset was committed, its next request begins to
        read; if not, its next request is RECORD again, so that the commit is repeated.
        """
        for each in requests:
            self._timers.call_later(pause, partial(self.ask, each.cursor))
        self.wake()

    def _ask_aside(self, request: Request, endpoint: Endpoint) -> None:
        """Send a request that may have to wait for the broker, and do not wait here."""
        self._begin_aside(endpoint, partial(self._ask_here, request, endpoint))

    def _begin_aside(self, endpoint: Endpoint, action: Callable[[], None]) -> None:
        """Run `action` on a thread of the broker at `endpoint`, after the broker's earlier actions."""
        aside = self._asides.get(endpoint)
        if aside is None:
            aside = self._asides[endpoint] = Aside(f"metaq-fetch-{endpoint.host}:{endpoint.port}")
        aside.start(action)

    def _ask_here(self, request: Request, endpoint: Endpoint) -> None:
        """Connect to the broker if necessary, and send `request`. Runs on a thread of that broker, because it may have
        to wait for the broker.
        """
        try:
            if request.cursor.awaits(request):
                self._then(request, self._asked_here(request, endpoint))
        except Exception:  # one partition's bug must not stop the others
            log.exception("asking %s failed", endpoint)

    def _asked_here(self, request: Request, endpoint: Endpoint) -> float | None:
        core, cursor = self._core, request.cursor
        try:
            if request.ask is Ask.PULL:
                channel = self._pool.connection(endpoint, CONNECT_SECONDS)
                self._use(channel)
                self._pull(request, channel)
                return None
            connection = self._asked(endpoint)
            look = {Ask.BEGIN: cursor.locate, Ask.END: max_offset}.get(request.ask)
            what = (
                locate_damage(connection, cursor.partition, request.offset)
                if look is None
                else look(connection, cursor.partition)
            )
            return core.found(request, what, time.monotonic())
        except MetaqError as error:
            return core.failed(request, error, time.monotonic(), endpoint)

    def _asked(self, endpoint: Endpoint) -> Asked:
        """Return the connection for a question to a broker, on the broker's thread. Connect first if necessary."""
        connection = self._pool.connection(endpoint, CONNECT_SECONDS)
        self._use(connection)
        return connection

    def _use(self, connection: Channel) -> None:
        """Remember that this connection is used for requests, and let some thread read it. If it is the only connection
        in use, the thread in poll() reads it. As soon as several connections are in use, each is read by a thread of
        its own. Further calls with the same connection change nothing.
        """
        if connection in self._connections:
            return
        connection.expects_bulk = True
        with self._lock:
            connections = [*(each for each in self._connections if not each.closed), connection]
            if len(connections) > 1:
                for each in connections:
                    each.read_in_background()
            self._connections = connections
        self.wake()  # a thread in poll() now has to wait for something else

    def _pull(self, request: Request, connection: Channel) -> None:
        frames = connection.speaks_frames
        connection.submit(
            self._core.codec.encode(request, frames, connection.knows_compressed, connection.takes_where),
            partial(self._answered, request, connection),
            time.monotonic() + self._core.patience(frames),
            background=len(self._connections) > 1,
            on_begun=partial(self._begun, request) if self._core.codec.reads_in_bulk else None,
        )

    def _begun(self, request: Request, head: Frame) -> None:
        """Called when the header of an answer has arrived, but not its body: if possible, send the partition's next
        request already now. Runs on the thread that reads the connection.
        """
        try:
            ahead = self._core.answer_begins(request, head)
            if ahead is not None:
                self._send(ahead)
        except BaseException:
            begin_elsewhere((self._ask_anew, request.cursor))
            raise

    def _answered(self, request: Request, connection: Channel, reply: Reply | None, error: MetaqError | None) -> None:
        """Process a complete answer, or the error that came instead of an answer. Runs on the thread that reads the
        connection.
        """
        cursor, core = request.cursor, self._core
        try:
            if reply is not None:
                pause = core.answered(request, reply, connection.endpoint, time.monotonic())
                if (doubt := cursor.take_doubt()) is not None:
                    look = partial(self._look_into, cursor.partition, connection.endpoint, doubt)
                    self._begin_aside(connection.endpoint, look)
            else:
                error = error or BrokerUnavailable(f"{connection.endpoint} gave no answer")
                pause = core.unanswered(request, error, time.monotonic(), connection.endpoint)
            self._then(request, pause)
        except BaseException:
            begin_elsewhere((self._ask_anew, cursor))
            raise

    def _look_into(self, partition: TopicPartition, endpoint: Endpoint, doubt: Reached) -> None:
        """Ask the broker whether it has lost messages that this consumer has read, before the position `doubt`, and let
        the core log the answer. Runs on a thread of that broker.
        """
        found: int | MetaqError | None
        try:
            found = diverged_at(self._asked(endpoint), partition, *doubt)
        except MetaqError as error:
            found = error
        self._core.looked_into(partition, doubt, found)

    def _then(self, request: Request, pause: float | None) -> None:
        """Called when a partition's request was answered or has failed: send the partition's next request in `pause`
        seconds, or send none if `pause` is None.
        """
        cursor = request.cursor
        if cursor.has_next or self._core.is_refused:
            self.wake()
        if pause:
            self._timers.call_later(pause, partial(self.ask, cursor))
        elif pause is not None:
            self.ask(cursor)


class _PollWaiter(Waiter):
    __slots__ = ()
    returns = True
