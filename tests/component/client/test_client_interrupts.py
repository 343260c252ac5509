"""An exception that a signal's handler raises may come out of any line of a user's thread: the client goes on.

CPython looks for signals behind each call of a C function, where a function begins and where a loop begins anew. So
the points here are each return from a C function, and each line, but for lines that begin with no operation or end a
`with`: no signal comes between the last call of a block and the `__exit__` of its lock. Each line is more than can be:
where the code relies on statements without a call, the points are the beginnings of functions and loops instead.
"""

import contextlib
import dis
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from queue import SimpleQueue
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from metaq import LocalMessageStore, OrderedProducer, Producer, ProducerConfig, StoredMessage
from metaq.client import connection as connection_module
from metaq.client import local_store as local_store_module
from metaq.client import pool as pool_module
from metaq.client import reading_role as reading_role_module
from metaq.client import timers as timers_module
from metaq.client import waiting as waiting_module
from metaq.client import wire as wire_module
from metaq.client.config import ConnectionConfig
from metaq.client.connection import Endpoint, open_connection
from metaq.client.consumer import core as core_module
from metaq.client.consumer import cursor as cursor_module
from metaq.client.consumer import fetcher as fetcher_module
from metaq.client.consumer import listener as listener_module
from metaq.client.consumer.chunk import Chunk
from metaq.client.consumer.cursor import Ask, PartitionCursor, Request
from metaq.client.consumer_config import ConsumerConfig
from metaq.client.message import Message
from metaq.client.pool import ConnectionPool
from metaq.client.producer import answers as answers_module
from metaq.client.producer import core as producer_core_module
from metaq.client.producer import driver as driver_module
from metaq.client.producer import futures as futures_module
from metaq.client.producer import ordered as ordered_module
from metaq.client.producer import outgoing as outgoing_module
from metaq.client.producer import producer as producer_module
from metaq.client.producer import resending as resending_module
from metaq.client.producer import sending as sending_module
from metaq.client.producer.answers import FlightCodec
from metaq.client.producer.core import Actions
from metaq.client.producer.futures import SendFuture
from metaq.client.producer.outgoing import Outgoing
from metaq.client.producer.queues import BrokerQueue, Flight, PartitionQueue, Turn
from metaq.client.producer.sending import Sender
from metaq.client.values import SendResult, TopicPartition
from metaq.coordination import interrupts as interrupts_module
from metaq.protocol import client_stream as client_stream_module
from metaq.protocol.errors import BrokerUnavailable, ClientError, RequestTimedOut
from metaq.protocol.frames import encode_frame
from metaq.protocol.pulls import PullRequest
from metaq.protocol.sends import SentReply
from metaq.protocol.statuses import RequestCode
from metaq.testing import FakeBroker, FakeCluster
from tests.component.client.test_client_fetcher import Reader
from tests.component.client.test_client_listener import Running
from tests.component.client.test_client_produce import messages
from tests.raising import raising
from tests.waiting import DEADLINE, assert_within, eventually

CONFIG = ConnectionConfig()
FILES = frozenset(
    str(module.__file__)
    for module in (connection_module, reading_role_module, wire_module, client_stream_module, waiting_module)
)
MOST_POINTS = 2000
FRUITLESS = 3
STORM = 50
STORM_SECONDS = 2e-5


pytestmark = pytest.mark.timeout(method="thread")  # the other one uses the signal of the storms


@pytest.fixture(autouse=True, scope="module")
def alarms() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGALRM, before)


class Interrupt(BaseException):
    """What a handler of a signal raises."""


Point = tuple[str, str, int]
storms = pytest.mark.parametrize("storm", [False, True], ids=["once", "storm"])


def ends_of_with(code: CodeType) -> frozenset[tuple[int, int]]:
    """(line, first instruction behind its `__enter__`) of each with statement."""
    line, found = 0, set()
    for instruction in dis.get_instructions(code):
        line = instruction.starts_line or line
        if instruction.opname == "BEFORE_WITH":
            found.add((line, instruction.offset))
    return frozenset(found)


class Interrupter:
    """Raises in the calling thread, at the first point that is not among those `seen`: once, or a storm of them, which
    meets what the first one left to do. Main thread, if it is a storm."""

    def __init__(
        self, seen: set[Point], files: frozenset[str] = FILES, lines: bool = True, storm: bool = False
    ) -> None:
        self.seen = seen
        self.files = files
        self.lines = lines and not storm
        self.storm = storm
        self._raised = 0
        self._runs = False
        self._last: dict[Any, int] = {}  # line, by frame
        self.at: Point | None = None
        self._ends: dict[CodeType, frozenset[tuple[int, int]]] = {}

    def run(self, action: Callable[[], Any]) -> None:
        """Until it returns or is interrupted."""
        before = sys.gettrace()
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # one may come in a weak reference's call-back
        try:
            self._runs = True
            sys.settrace(self._trace)
            sys.setprofile(self._profile)
            action()
        except Interrupt:
            pass
        finally:
            self._runs = False
            sys.setprofile(None)
            sys.settrace(before)
            sys.unraisablehook = hook
            if self.storm:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _again(self, *_: object) -> None:
        self._raised += 1
        if not self._runs or self._raised > STORM:  # one that another thread takes may come later
            signal.setitimer(signal.ITIMER_REAL, 0)
        else:
            raise Interrupt("storm")

    def _trace(self, frame: Any, event: str, _arg: Any) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        if event == "call":
            self._last[frame] = 0
            self._reach(("begin", frame.f_code.co_name, frame.f_lineno))
        if event == "line":
            again = frame.f_lineno <= self._last[frame]
            self._last[frame] = frame.f_lineno
            if (self.lines or again) and not self._cannot_raise(frame):
                self._reach(("line", frame.f_code.co_name, frame.f_lineno))
        return self._trace

    def _profile(self, frame: Any, event: str, _arg: Any) -> None:
        if event == "c_return" and frame.f_code.co_filename in self.files:
            self._reach(("call", frame.f_code.co_name, frame.f_lineno))

    def _cannot_raise(self, frame: Any) -> bool:
        ends = self._ends.get(frame.f_code)
        if ends is None:
            ends = self._ends[frame.f_code] = ends_of_with(frame.f_code)
        if frame.f_code.co_code[frame.f_lasti] == dis.opmap["NOP"]:
            return True
        return any(line == frame.f_lineno and frame.f_lasti > entry for line, entry in ends)

    def _reach(self, point: Point) -> None:
        if self.at is None and point not in self.seen:
            self.seen.add(point)
            self.at = point
            if self.storm:
                signal.signal(signal.SIGALRM, self._again)
                sys.settrace(None)  # in whose functions, in front of calls, no signal's handler runs otherwise
                sys.setprofile(None)
                signal.setitimer(signal.ITIMER_REAL, STORM_SECONDS, STORM_SECONDS)
            raise Interrupt(point)


def at_each_point(
    scenario: Callable[[Interrupter], None], files: frozenset[str] = FILES, lines: bool = True, storm: bool = False
) -> set[Point]:
    """Run the scenario with an interrupt, or a storm, at each point in turn, until there is no new one several times in
    a row."""
    seen: set[Point] = set()
    fruitless = 0
    for _ in range(MOST_POINTS):
        interrupter = Interrupter(seen, files, lines, storm)
        try:
            scenario(interrupter)
        except BaseException as error:
            error.add_note(f"after an interrupt at {interrupter.at}")
            raise
        fruitless = fruitless + 1 if interrupter.at is None else 0
        if fruitless == FRUITLESS:
            return seen
    raise AssertionError(f"more than {MOST_POINTS} points")


class Once:
    """What a request's handler is called with: once, or once more with an error after an interrupt."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, object]] = []

    def __call__(self, reply: object, error: object) -> None:
        self.calls.append((reply, error))


def ask(opaque):
    return (encode_frame(RequestCode.STATS, opaque, {"item": "x"}),)


def long_poll(opaque):
    return (encode_frame(RequestCode.PULL, opaque, PullRequest("t", 0, 0, 1000, wait_ms=30_000).to_ext()),)


def usable(broker, connection):
    """The connection itself, or a new one if it has failed."""
    if not connection.closed:
        try:
            connection.call(ask, 10)
            return
        except BrokerUnavailable:
            assert connection.closed
    fresh = open_connection(broker.endpoint, CONFIG)
    fresh.call(ask, 10)
    fresh.close()


@storms
def test_an_interrupted_call_leaves_a_connection_that_goes_on_or_has_ended(broker, storm):
    def scenario(interrupter: Interrupter) -> None:
        connection = open_connection(broker.endpoint, CONFIG)
        pulled, asked = Once(), Once()
        connection.submit(long_poll, pulled, time.monotonic() + 30)
        connection.submit(ask, asked, time.monotonic() + 30, background=False)
        interrupter.run(lambda: connection.call(ask, 10))
        usable(broker, connection)
        eventually(lambda: asked.calls)
        connection.close()
        eventually(lambda: pulled.calls and not connection.in_flight)
        assert 1 <= len(asked.calls) <= 2
        assert len(pulled.calls) == 1

    assert len(at_each_point(scenario, storm=storm)) > 10


@storms
def test_an_interrupted_leader_hands_the_reading_to_a_thread_that_waits(broker, storm):
    """Its own answer never comes; the other thread's does."""

    def scenario(interrupter: Interrupter) -> None:
        connection = open_connection(broker.endpoint, CONFIG)
        ended: list[object] = []

        def follow() -> None:
            try:
                ended.append(connection.call(ask, 30))
            except BrokerUnavailable as error:
                ended.append(error)

        follower = threading.Thread(target=follow)

        def lead() -> None:
            with contextlib.suppress(RequestTimedOut):
                connection.call(long_poll, 0.02)

        follower.start()
        interrupter.run(lead)
        follower.join(DEADLINE)
        assert len(ended) == 1
        usable(broker, connection)
        connection.close()

    assert len(at_each_point(scenario, storm=storm)) > 10


@storms
def test_an_interrupted_follower_leaves_the_role_with_others(broker, storm):
    def scenario(interrupter: Interrupter) -> None:
        connection = open_connection(broker.endpoint, CONFIG)
        pulled, asked = Once(), Once()
        connection.submit(long_poll, pulled, time.monotonic() + 30)  # the background thread reads
        interrupter.run(lambda: connection.call(ask, 10))
        connection.submit(ask, asked, time.monotonic() + 30)
        usable(broker, connection)
        eventually(lambda: asked.calls)
        connection.close()

    assert len(at_each_point(scenario, storm=storm)) > 10


@storms
def test_closing_may_be_interrupted(broker, storm):
    def scenario(interrupter: Interrupter) -> None:
        connection = open_connection(broker.endpoint, CONFIG)
        pulled = Once()
        connection.submit(long_poll, pulled, time.monotonic() + 30)
        interrupter.run(connection.close)
        again = threading.Thread(target=connection.close, daemon=True)
        again.start()
        again.join(DEADLINE)
        assert not again.is_alive()
        eventually(lambda: pulled.calls and connection._wire._sock.fileno() == -1)
        assert len(pulled.calls) == 1

    assert len(at_each_point(scenario, FILES | {threading.__file__}, storm=storm)) > 5


@storms
def test_an_interrupted_try_to_connect_leaves_a_pool_that_tries_again(broker, storm):
    def scenario(interrupter: Interrupter) -> None:
        down: set[Endpoint] = set()

        def connect(endpoint, config, protocol, timeout):
            if endpoint in down:
                raise BrokerUnavailable(f"{endpoint} is down")
            return open_connection(endpoint, config, protocol, timeout)

        def reach() -> bool:
            with contextlib.suppress(BrokerUnavailable):
                return pool.connection(endpoint, 10).call(ask, 10) is not None
            return False

        config = ConnectionConfig(reconnect_min_seconds=0.001, reconnect_max_seconds=0.01)
        pool = ConnectionPool(config, open=connect)
        pool.connection(broker.endpoint, 10)  # starts the housekeeping
        endpoint = Endpoint("localhost", broker.endpoint.port)
        down.add(endpoint)
        interrupter.run(reach)
        down.clear()
        eventually(reach)
        pool.close()

    assert (
        len(at_each_point(scenario, frozenset({pool_module.__file__, threading.__file__}), lines=False, storm=storm))
        > 10
    )


@storms
@pytest.mark.parametrize("protocol", ["auto", "text"])
@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside futures"])
def test_an_interrupted_send_leaves_a_producer_that_sends_and_futures_that_resolve(others, protocol, storm):
    files = FILES | {sending_module.__file__, answers_module.__file__}
    with FakeBroker({"t": 2}) as broker:

        def scenario(interrupter: Interrupter) -> None:
            config = ProducerConfig(retry_min_seconds=0.001, retry_max_seconds=0.01)
            with Producer(metadata=FakeCluster([broker]), config=config, protocol=protocol) as producer:
                producer.send("t", b"first")
                futures: list[Future[Any]] = []
                threads = [
                    threading.Thread(target=lambda: futures.append(producer.send_async("t", b"other")))
                    for _ in range(others)
                ]
                for thread in threads:
                    thread.start()
                interrupter.run(lambda: producer.send("t", b"interrupted", timeout=20))
                for thread in threads:
                    thread.join(DEADLINE)
                for _ in range(4):
                    assert producer.send("t", b"after", timeout=20).offset >= 0
                for future in futures:
                    assert future.result(20).offset >= 0
                producer.flush(20)

        assert len(at_each_point(scenario, files, storm=storm)) > 30


@storms
@pytest.mark.parametrize("linger_ms", [0, 5], ids=["at once", "lingering"])
@pytest.mark.parametrize("send", ["send_async", "send_batch_async"])
def test_an_interrupted_asynchronous_send_leaves_a_producer_that_sends_and_can_be_flushed(send, linger_ms, storm):
    files = frozenset(
        {producer_core_module.__file__, producer_module.__file__, driver_module.__file__, sending_module.__file__}
    )
    with FakeBroker({"t": 1}) as broker:

        def scenario(interrupter: Interrupter) -> None:
            config = ProducerConfig(retry_min_seconds=0.001, retry_max_seconds=0.01, linger_ms=linger_ms)
            with Producer(metadata=FakeCluster([broker]), config=config) as producer:
                producer.send("t", b"first")
                payload: Any = b"interrupted" if send == "send_async" else [b"interrupted"]
                interrupter.run(lambda: getattr(producer, send)("t", payload, timeout=20))
                futures = [producer.send_async("t", b"after", timeout=20) for _ in range(3)]
                for future in futures:
                    assert future.result(20).offset >= 0
                producer.flush(20)

        assert len(at_each_point(scenario, files, lines=False, storm=storm)) > 10


@storms
@pytest.mark.parametrize("linger_ms", [0, 5], ids=["at once", "lingering"])
def test_what_an_interrupted_loop_of_single_sends_handed_over_is_stored_and_reported_once(linger_ms, storm):
    files = frozenset(
        {producer_core_module.__file__, producer_module.__file__, driver_module.__file__, outgoing_module.__file__}
    )
    with FakeBroker({"t": 1}) as broker:

        def scenario(interrupter: Interrupter) -> None:
            config = ProducerConfig(retry_min_seconds=0.001, retry_max_seconds=0.01, linger_ms=linger_ms)
            begun: list[bytes] = []
            returned: list[bytes] = []
            reported: list[bytes] = []
            before = len(broker.bodies("t", 0))

            def produce(number: int) -> None:
                body = b"%d" % number
                begun.append(body)

                def report(error: Exception | None, _result: object) -> None:
                    assert error is None
                    reported.append(body)

                producer.produce("t", body, timeout=20, tag=None if number % 5 else "a", on_delivery=report)
                returned.append(body)

            with Producer(metadata=FakeCluster([broker]), config=config) as producer:
                producer.send("t", b"first")
                interrupter.run(lambda: [*map(produce, range(12))])
                for number in range(12, 16):
                    produce(number)
                producer.flush(20)
                eventually(lambda: set(returned) <= set(reported))
            assert len(set(reported)) == len(reported), "a call-back was called twice"
            assert set(reported) <= set(begun)
            stored = [message.payload for message in messages(broker, "t", 0)[before + 1 :]]
            assert [body for body in dict.fromkeys(stored) if body in returned] == returned

        assert len(at_each_point(scenario, files, lines=False, storm=storm)) > 10


@storms
def test_an_interrupted_send_that_finds_no_broker_leaves_partitions_that_are_sent_to_when_there_is_one(storm):
    files = frozenset(
        {producer_core_module.__file__, driver_module.__file__, sending_module.__file__, timers_module.__file__}
    )
    with FakeBroker({"t": 1}) as dead:
        pass
    with FakeBroker({"t": 1}) as broker:

        def scenario(interrupter: Interrupter) -> None:
            config = ProducerConfig(retry_min_seconds=0.001, retry_max_seconds=0.01)
            cluster = FakeCluster([dead])
            with Producer(metadata=cluster, config=config) as producer:
                interrupter.run(lambda: producer.send_async("t", b"interrupted", timeout=20))
                cluster.register(broker)
                assert producer.send("t", b"after", timeout=5).offset >= 0
                producer.flush(5)

        assert len(at_each_point(scenario, files, lines=False, storm=storm)) > 10


@storms
@pytest.mark.parametrize("bulk", [False, True], ids=["messages", "bulk"])
@pytest.mark.parametrize(
    "files",
    [FILES, frozenset({fetcher_module.__file__}), frozenset({core_module.__file__, cursor_module.__file__})],
    ids=["connection", "fetcher", "core"],
)
def test_an_interrupted_poll_leaves_partitions_that_are_fetched(files, bulk, storm):
    """bulk: as poll_arrow reads, where the next pull leaves before the body of an answer is there."""
    with FakeBroker({"t": 1}) as broker:

        def scenario(interrupter: Interrupter) -> None:
            before = broker.log("t", 0).end
            reader = Reader(broker)
            reader.core.codec.reads_in_bulk = bulk
            reader.open(before)
            eventually(lambda: len(reader.fetcher._connections) == 1)
            broker.append("t", 0, b"f" * (500_000 if bulk else 5))
            interrupter.run(lambda: reader.read(1))
            broker.append("t", 0, b"second")
            payloads: list[bytes] = []
            while b"second" not in payloads:
                payloads += reader.payloads(1)
            reader.close()

        assert len(at_each_point(scenario, files, storm=storm)) > 10


@storms
def test_what_arrives_just_behind_the_look_of_an_interrupted_poll_is_found_by_the_next(storm):
    files = frozenset({core_module.__file__})

    class Late(PartitionCursor):
        looks = 0

        def next_chunk(self) -> Chunk | None:
            self.looks += 1
            return None if self.looks == 1 else super().next_chunk()

    with FakeBroker({"t": 1}) as broker:
        broker.append("t", 0, b"late")

        def scenario(interrupter: Interrupter) -> None:
            reader = Reader(broker)
            reader.open(0).__class__ = Late
            reader.until(reader.core.next_ready)
            found: list[Message] = []
            interrupter.run(lambda: found.extend(reader.core.take(1)))
            if not found:
                reader.core.acknowledge()
                found = reader.read(1)
            assert [message.payload for message in found] == [b"late"]
            reader.close()

        assert len(at_each_point(scenario, files, lines=False, storm=storm)) > 5


@storms
def test_what_arrives_while_a_run_is_interrupted_is_processed_or_comes_again(storm):
    files = frozenset({listener_module.__file__, core_module.__file__})
    with FakeBroker({"t": 1}) as broker:
        broker.append("t", 0, b"1")

        def scenario(interrupter: Interrupter) -> None:
            def handle(messages: Sequence[Message]) -> None:
                handled.extend(messages)
                running.listener.stop()

            handled: list[Message] = []
            running = Running(broker, handle)
            cursor = running.cursors[0]
            running.fetcher.serve_soon()
            running.until(running.core.next_ready)
            interrupter.run(running.listener.loop)
            running.listener.give_back()
            assert all(worker.join(DEADLINE) for worker in running.listener._workers)
            if cursor.consumed is None:
                running.until(lambda: running.core.take(1))
            running.core.lose(running.cursors)
            running.timers.close()
            running.pool.close()

        assert len(at_each_point(scenario, files, lines=False, storm=storm)) > 5


@storms
@pytest.mark.parametrize("wait", [lambda future: future.result(DEADLINE), lambda future: futures.wait([future], 0.5)])
def test_who_is_interrupted_while_it_waits_for_a_future_keeps_nobody_from_setting_it(wait, storm):
    files = frozenset({futures_module.__file__, futures._base.__file__, threading.__file__})

    def scenario(interrupter: Interrupter) -> None:
        future: SendFuture[int] = SendFuture()
        go: SimpleQueue[None] = SimpleQueue()

        def set_it() -> None:
            go.get()
            future.set_result(1)

        setter = threading.Thread(target=set_it, daemon=True)
        setter.start()

        def wait_for_it() -> None:
            go.put(None)
            with contextlib.suppress(RuntimeError):  # what the standard library makes of an interrupt in its locks
                wait(future)

        interrupter.run(wait_for_it)
        setter.join(DEADLINE)
        assert not setter.is_alive(), "the setter is the thread that reads for everybody"
        assert future.result(DEADLINE) == 1

    assert len(at_each_point(scenario, files, storm=storm)) > 5


@storms
@pytest.mark.parametrize("lingers", [0.0, 0.05])
def test_what_an_interrupted_call_asked_for_is_done_before_the_next(storm, lingers):
    files = frozenset({interrupts_module.__file__})

    def scenario(interrupter: Interrupter) -> None:
        aside, done = interrupts_module.Aside("metaq-test", lingers=lingers), list[int]()
        aside.do(done.clear)
        interrupter.run(lambda: aside.do(done.append, 1))
        aside.do(done.append, 2)
        aside.do(done.append, 3)
        assert done in ([1, 2, 3], [2, 3])
        with pytest.raises(ZeroDivisionError):
            aside.do(lambda: 1 / 0)

    assert len(at_each_point(scenario, files, storm=storm)) > 5


@storms
@pytest.mark.parametrize("lingers", [0.0, 0.05])
def test_what_an_interrupted_call_asked_for_is_done_although_nothing_is_asked_for_after_it(storm, lingers):
    files = frozenset({interrupts_module.__file__, threading.__file__})

    def scenario(interrupter: Interrupter) -> None:
        aside, done = interrupts_module.Aside("metaq-test", lingers=lingers), SimpleQueue[int]()
        aside.do(done.qsize)
        interrupter.run(lambda: aside.do(done.put, 1))
        eventually(aside._todo.empty, what="the end of what was asked for")

    assert len(at_each_point(scenario, files, storm=storm)) > 5


def test_a_thread_that_lingers_does_what_is_asked_for_next():
    aside = interrupts_module.Aside("metaq-lingers", lingers=1.0)
    assert len({aside.do(threading.get_ident) for _ in range(50)}) == 1
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("metaq-lingers") == 1


def test_what_is_asked_for_while_a_thread_ends_is_done():
    aside = interrupts_module.Aside("metaq-test", lingers=1e-5)
    assert [aside.do(int, number, seconds=DEADLINE) for number in range(3000)] == list(range(3000))


def test_an_action_that_had_not_begun_when_its_caller_was_interrupted_is_dropped_where_that_is_asked_for():
    """So the next call waits for one that hangs, not for all that gave up waiting behind it."""
    aside, done = interrupts_module.Aside("metaq-hangs", drops=True), list[int]()
    begun, go_on = SimpleQueue[None](), SimpleQueue[None]()

    def hang() -> None:
        begun.put(None)
        go_on.get()

    before = signal.signal(signal.SIGALRM, raising(Interrupt))
    try:
        for action in (hang, lambda: done.append(1), lambda: done.append(2)):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Interrupt):
                aside.do(action)
    finally:
        signal.signal(signal.SIGALRM, before)
    begun.get(timeout=DEADLINE)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("metaq-hangs") == 1
    go_on.put(None)
    aside.do(done.append, 3)
    assert done == [3]


@storms
def test_an_interrupted_seek_has_moved_all_of_the_position_or_nothing_of_it(storm):
    files = frozenset({cursor_module.__file__})

    def scenario(interrupter: Interrupter) -> None:
        cursor = PartitionCursor(TopicPartition("t", 0, 0), ConsumerConfig())
        assert cursor.arrived(Request(cursor, 0, Ask.PULL, 0), Chunk.of(memoryview(b"x"), 0, 40))
        interrupter.run(lambda: cursor.moved_to(100))
        found = cursor.position, cursor.fetch_offset, cursor.buffered_bytes, cursor.moves, cursor.consumed
        assert found in ((0, 40, 1, 0, None), (100, 100, 0, 1, (100, -1)))

    at_each_point(scenario, files, lines=False, storm=storm)


@storms
def test_an_interrupted_close_of_a_producer_ends_every_future(storm):
    files = frozenset({producer_module.__file__, driver_module.__file__, producer_core_module.__file__})
    with FakeBroker({"t": 1}) as dead:
        pass

    def scenario(interrupter: Interrupter) -> None:
        producer = Producer(metadata=FakeCluster([dead]))
        futures = [producer.send_async("t", b"x", timeout=60) for _ in range(3)]
        interrupter.run(lambda: producer.close(0.001))
        producer.close(0.001)
        assert all(isinstance(future.exception(DEADLINE), ClientError) for future in futures)

    at_each_point(scenario, files, lines=False, storm=storm)


def test_a_waiter_that_never_ends_holds_up_no_other_future():
    class Stuck:
        def add_result(self, future: object) -> None:
            threading.Event().wait()

    first, second = SendFuture[int](), SendFuture[int]()
    first._condition.acquire()
    first._waiters.append(Stuck())
    setter = threading.Thread(target=first.set_result, args=(1,), daemon=True)
    setter.start()
    setter.join(DEADLINE)
    assert not setter.is_alive()
    assert first.result(0) == 1
    told = threading.Thread(target=futures.wait, args=([second],), daemon=True)
    told.start()
    eventually(lambda: second._waiters)
    second.set_result(2)

    def is_told() -> bool:
        futures_module._tellers.tell(lambda: None)  # the next of any future: then it is seen that one is stuck
        return not told.is_alive()

    eventually(is_told)


@storms
def test_an_interrupted_save_keeps_the_order_and_the_count_and_locks_nobody_out(tmp_path, storm):
    files = frozenset(
        str(module.__file__)
        for module in (
            ordered_module,
            resending_module,
            local_store_module,
            interrupts_module,
            timers_module,
            threading,
        )
    )
    config = ProducerConfig(ordered_wait_messages=3, ordered_wait_seconds=0.01, recover_interval_seconds=0.05)
    here = TopicPartition("t", 0, 0)
    numbers = iter(range(MOST_POINTS))

    def scenario(interrupter: Interrupter) -> None:
        with FakeBroker({"t": 1}) as broker:
            cluster = FakeCluster([broker])
            cluster.unregister(broker)
            store = LocalMessageStore(tmp_path / f"{next(numbers)}.db")
            with OrderedProducer(partitions={"t": {0: 1}}, store=store, config=config, metadata=cluster) as producer:
                producer.send("t", b"1", partition=here)
                interrupter.run(lambda: producer.send("t", b"2", partition=here))
                other = threading.Thread(target=producer.send, args=("t", b"3"), daemon=True)
                other.start()
                other.join(DEADLINE)
                assert not other.is_alive()
                cluster.register(broker)
                eventually(lambda: producer.flush(1.0))
                assert producer.waiting(here) == 0
                assert not producer.send("t", b"4", partition=here).pending
            bodies = broker.bodies("t", 0)
            assert [body for body in bodies if body != b"2"] == [b"1", b"3", b"4"]
            assert bodies.count(b"2") <= 1  # its send never returned: it may have been saved, then or a moment later

    assert len(at_each_point(scenario, files, storm=storm)) > 10


@storms
def test_what_an_interrupted_save_is_about_to_append_is_counted(tmp_path, storm):
    """Else the next message of an ordered producer would be sent before it."""
    files = frozenset(str(module.__file__) for module in (local_store_module, interrupts_module))
    late = 0

    def scenario(interrupter: Interrupter) -> None:
        nonlocal late
        queue = f"{len(interrupter.seen)} {late}"
        store._lock.acquire()
        threading.Timer(0.005, store._lock.release).start()
        interrupter.run(lambda: store.append(queue, [StoredMessage("t", b"x")]))
        late += store._lock.locked()
        counted = store.count(queue)
        assert counted == len(store.peek(queue, 9))

    with LocalMessageStore(tmp_path / "store.db") as store:
        assert len(at_each_point(scenario, files, storm=storm)) > 5
    assert late > 5


def test_what_follows_an_interrupted_answer_is_taken_behind_it():
    """The reading thread was interrupted when it had handed the answer over, and the handler is called again."""
    queued: list[Callable[[], None]] = []
    failed: list[Any] = []

    class Core:
        keys_move = False

        def landed(self, flight, finished, failures, answered):
            flight.landed.extend(finished)
            failed.extend(failures)
            return Actions()

        def landed_alone(self, flight):
            return None

        def release(self, flight, turns):
            return ()

    nothing: Any = None
    core: Any = Core()
    sender: Any = Sender(core, nothing, nothing, CONFIG, nothing, lambda: None, queued.append)
    broker = BrokerQueue()
    outgoing = Outgoing("t", 0, 0, b"x", time.monotonic() + 60)
    future = SendFuture[SendResult]()
    outgoing.report = future.outcome.settle
    turn = Turn(PartitionQueue(TopicPartition("t", 0, 0), broker), [outgoing])
    flight, endpoint = Flight(broker, [turn]), Endpoint("localhost", 8123)
    speaks = SimpleNamespace(endpoint=endpoint, speaks_frames=True, takes_many=True, takes_sequences=True)
    (request,) = FlightCodec().requests([turn], speaks, 0.0)
    sender._answered(flight, request, 0, SentReply(1, 77, 0, 4096), None)
    assert len(queued) == 1, "the main thread may be interrupted"
    interrupted = BrokerUnavailable("taking an answer was interrupted")
    again = threading.Thread(target=sender._answered, args=(flight, request, 0, None, interrupted))
    again.start()
    again.join(DEADLINE)
    assert len(queued) == 2
    for action in queued:
        action()
    assert future.result(0) == SendResult(77, TopicPartition("t", 0, 0), 4096)
    assert failed == []


def test_a_poll_whose_answer_is_interrupted_twice_goes_on():
    """The second interrupt meets what the first one has left to the next poll."""
    files = FILES | {fetcher_module.__file__, timers_module.__file__}
    with FakeBroker({"t": 1}) as broker:

        def scenario(interrupter: Interrupter) -> None:
            codec: Any
            before = broker.log("t", 0).end
            reader = Reader(broker)
            codec = reader.core.codec
            reader.open(before)
            eventually(lambda: len(reader.fetcher._connections) == 1)
            broker.append("t", 0, b"first")
            read, codec.read = codec.read, raising(Interrupt)
            with contextlib.suppress(Interrupt):
                reader.read(1)
            codec.read = read
            interrupter.run(lambda: reader.read(1))
            broker.append("t", 0, b"second")
            payloads: list[bytes] = []
            while b"second" not in payloads:
                payloads += reader.payloads(1)
            reader.close()

        assert len(at_each_point(scenario, files, lines=False)) > 10


def test_deadlines_hold_although_signals_come_while_an_answer_is_waited_for(broker):
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    pool = ConnectionPool(CONFIG)
    try:
        connection = pool.connection(broker.endpoint, 10)
        signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)

        def wait() -> float:
            began = time.monotonic()
            with pytest.raises(RequestTimedOut):
                connection.call(long_poll, 0.05)
            return time.monotonic() - began

        wait()  # the first time it is seen after a second or two that signals keep it from ending
        assert_within(0.25, wait)
        assert connection.call(ask, 10) is not None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        pool.close()


def test_a_wait_ends_at_its_time_although_signals_come():
    """As a profiler's do, whose handler raises nothing."""
    bell = interrupts_module.Bell()
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
        for _ in range(100):
            assert not bell.wait(1e-3)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    bell.ring()
    bell.ring()
    assert [bell.wait(0), bell.wait(0)] == [True, False]
