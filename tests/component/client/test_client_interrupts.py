"""An exception that a signal's handler raises may come out of any line of a user's thread: the client goes on.

CPython looks for signals behind each call of a C function, where a function begins and where a loop begins anew. So
the points here are each return from a C function, and each line, but for lines that begin with no operation or end a
`with`: no signal comes between the last call of a block and the `__exit__` of its lock. Each line is more than can be:
where the code relies on statements without a call, the points are the beginnings of functions and loops instead.
"""

import contextlib
import dis
import functools
import inspect
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from importlib import import_module
from queue import SimpleQueue
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

import pytest

from metaq import LocalMessageStore, OrderedProducer, Producer, ProducerConfig, StoredMessage
from metaq.client.fetching.chunk import Chunk
from metaq.client.fetching.cursor import Ask, PartitionCursor, Request
from metaq.client.producer.codec import FlightCodec
from metaq.client.producer.core import Actions
from metaq.client.producer.futures import SendFuture, _tellers
from metaq.client.producer.outgoing import Outgoing
from metaq.client.producer.queues import BrokerQueue, Flight, PartitionQueue, Turn
from metaq.client.producer.sending import Sender
from metaq.client.records.message import Message
from metaq.client.records.results import SendResult, TopicPartition
from metaq.client.settings.config import ConnectionConfig
from metaq.client.settings.consumer_config import ConsumerConfig
from metaq.client.transport.connection import Endpoint, open_connection
from metaq.client.transport.pool import ConnectionPool
from metaq.coordination.runtime.interrupts import Aside, Bell
from metaq.protocol.errors import BrokerUnavailable, ClientError, RequestTimedOut
from metaq.protocol.frames import encode_frame
from metaq.protocol.pulls import PullRequest
from metaq.protocol.sends import SentReply
from metaq.protocol.statuses import RequestCode
from metaq.testing import FakeBroker, FakeCluster
from tests.component.client.harness import FAST
from tests.component.client.test_client_fetcher import Reader
from tests.component.client.test_client_listener import Running
from tests.component.client.test_client_produce import messages
from tests.raising import raising
from tests.speaking import speaking
from tests.waiting import DEADLINE, assert_within, eventually

CONFIG = ConnectionConfig()
HERE = TopicPartition("t", 0, 0)
CONNECTION = (
    "client.transport.connection client.transport.reading_role client.transport.wire client.runtime.waiting "
    "protocol.client_stream"
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

    def __init__(self, seen: set[Point], files: frozenset[str], lines: bool, storm: bool) -> None:
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


def interrupted(
    names: str = "", *modules: ModuleType, lines: bool = True, more_than: int = 10
) -> Callable[[Callable[..., Iterator[Callable[[], object]]]], Any]:
    """The test yields an action, which is interrupted in the modules of metaq with these names (else those that its
    parameter `names` has), and in `modules`.

    It runs with an interrupt, or a storm, at each point in turn, until there is no new one several times in a row.
    """

    def decorate(scenario: Callable[..., Iterator[Callable[[], object]]]) -> Any:
        @pytest.mark.parametrize("storm", [False, True], ids=["once", "storm"])
        @functools.wraps(scenario)
        def test(storm: bool, **fixtures: object) -> None:
            found = [import_module(f"metaq.{name}") for name in str(names or fixtures["names"]).split()]
            files = frozenset(str(each.__file__) for each in (*found, *modules))
            seen: set[Point] = set()
            fruitless = 0
            for _ in range(MOST_POINTS):
                interrupter = Interrupter(seen, files, lines, storm)
                try:
                    steps = scenario(**fixtures)
                    interrupter.run(next(steps))
                    assert next(steps, None) is None
                except BaseException as error:
                    error.add_note(f"after an interrupt at {interrupter.at}")
                    raise
                fruitless = fruitless + 1 if interrupter.at is None else 0
                if fruitless == FRUITLESS:
                    assert len(seen) > more_than
                    return
            raise AssertionError(f"more than {MOST_POINTS} points")

        storm = inspect.Parameter("storm", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([storm, *inspect.signature(scenario).parameters.values()])
        return test

    return decorate


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


@interrupted(CONNECTION)
def test_an_interrupted_call_leaves_a_connection_that_goes_on_or_has_ended(broker):
    connection = open_connection(broker.endpoint, CONFIG)
    pulled, asked = Once(), Once()
    connection.submit(long_poll, pulled, time.monotonic() + 30)
    connection.submit(ask, asked, time.monotonic() + 30, background=False)
    yield lambda: connection.call(ask, 10)
    usable(broker, connection)
    eventually(lambda: asked.calls)
    connection.close()
    eventually(lambda: pulled.calls and not connection.in_flight)
    assert 1 <= len(asked.calls) <= 2
    assert len(pulled.calls) == 1


@interrupted(CONNECTION)
def test_an_interrupted_leader_hands_the_reading_to_a_thread_that_waits(broker):
    """Its own answer never comes; the other thread's does."""
    connection = open_connection(broker.endpoint, CONFIG)
    ended: list[object] = []

    def follow() -> None:
        try:
            ended.append(connection.call(ask, 30))
        except BrokerUnavailable as error:
            ended.append(error)

    def lead() -> None:
        with contextlib.suppress(RequestTimedOut):
            connection.call(long_poll, 0.02)

    follower = threading.Thread(target=follow)
    follower.start()
    yield lead
    follower.join(DEADLINE)
    assert len(ended) == 1
    usable(broker, connection)
    connection.close()


@interrupted(CONNECTION)
def test_an_interrupted_follower_leaves_the_role_with_others(broker):
    connection = open_connection(broker.endpoint, CONFIG)
    pulled, asked = Once(), Once()
    connection.submit(long_poll, pulled, time.monotonic() + 30)  # the background thread reads
    yield lambda: connection.call(ask, 10)
    connection.submit(ask, asked, time.monotonic() + 30)
    usable(broker, connection)
    eventually(lambda: asked.calls)
    connection.close()


@interrupted(CONNECTION, threading, more_than=5)
def test_closing_may_be_interrupted(broker):
    connection = open_connection(broker.endpoint, CONFIG)
    pulled = Once()
    connection.submit(long_poll, pulled, time.monotonic() + 30)
    yield connection.close
    again = threading.Thread(target=connection.close, daemon=True)
    again.start()
    again.join(DEADLINE)
    assert not again.is_alive()
    eventually(lambda: pulled.calls and connection._wire._sock.fileno() == -1)
    assert len(pulled.calls) == 1


@pytest.mark.parametrize("used", [False, True], ids=["unused pool", "used pool"])
@interrupted("client.transport.pool client.transport.core", threading, lines=False)
def test_an_interrupted_try_to_connect_leaves_a_pool_that_tries_again(broker, used):
    down: set[Endpoint] = set()

    def connect(endpoint, config, timeout):
        if endpoint in down:
            raise BrokerUnavailable(f"{endpoint} is down")
        return open_connection(endpoint, config, timeout)

    def reach() -> bool:
        with contextlib.suppress(BrokerUnavailable):
            return pool.connection(endpoint, 10).call(ask, 10) is not None
        return False

    config = ConnectionConfig(reconnect_min_seconds=0.001, reconnect_max_seconds=0.01)
    pool = ConnectionPool(config, open=connect)
    if used:
        pool.connection(broker.endpoint, 10)  # starts the housekeeping
    endpoint = Endpoint("localhost", broker.endpoint.port)
    down.add(endpoint)
    yield reach
    assert not reach()  # now only housekeeping tries again
    down.clear()
    eventually(reach)
    pool.close()


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside futures"])
@interrupted(f"{CONNECTION} client.producer.sending client.producer.codec", more_than=30)
def test_an_interrupted_send_leaves_a_producer_that_sends_and_futures_that_resolve(broker, others, protocol):
    broker.topics["t"] = 2
    with Producer(metadata=FakeCluster([broker]), config=speaking(protocol, FAST)) as producer:
        producer.send("t", b"first")
        futures: list[Future[Any]] = []
        threads = [
            threading.Thread(target=lambda: futures.append(producer.send_async("t", b"other"))) for _ in range(others)
        ]
        for thread in threads:
            thread.start()
        yield lambda: producer.send("t", b"interrupted", timeout=20)
        for thread in threads:
            thread.join(DEADLINE)
        for _ in range(4):
            assert producer.send("t", b"after", timeout=20).offset >= 0
        assert all(future.result(20).offset >= 0 for future in futures)
        producer.flush(20)


PRODUCER = "client.producer.core client.producer.producer client.producer.driver"
lingering = pytest.mark.parametrize("linger_ms", [0, 5], ids=["at once", "lingering"])


@lingering
@pytest.mark.parametrize("send", ["send_async", "send_batch_async"])
@interrupted(f"{PRODUCER} client.producer.sending", lines=False)
def test_an_interrupted_asynchronous_send_leaves_a_producer_that_sends_and_can_be_flushed(broker, send, linger_ms):
    with Producer(metadata=FakeCluster([broker]), config=FAST, linger_ms=linger_ms) as producer:
        producer.send("t", b"first")
        payload: Any = b"interrupted" if send == "send_async" else [b"interrupted"]
        yield lambda: getattr(producer, send)("t", payload, timeout=20)
        futures = [producer.send_async("t", b"after", timeout=20) for _ in range(3)]
        assert all(future.result(20).offset >= 0 for future in futures)
        producer.flush(20)


@lingering
@interrupted(f"{PRODUCER} client.producer.outgoing", lines=False)
def test_what_an_interrupted_loop_of_single_sends_handed_over_is_stored_and_reported_once(broker, linger_ms):
    begun, returned, reported = list[bytes](), list[bytes](), list[bytes]()
    before = len(broker.bodies("t", 0))

    def produce(number: int) -> None:
        body = b"%d" % number
        begun.append(body)

        def report(error: Exception | None, _result: object) -> None:
            assert error is None
            reported.append(body)

        producer.produce("t", body, timeout=20, tag=None if number % 5 else "a", on_delivery=report)
        returned.append(body)

    with Producer(metadata=FakeCluster([broker]), config=FAST, linger_ms=linger_ms) as producer:
        producer.send("t", b"first")
        yield lambda: [*map(produce, range(12))]
        for number in range(12, 16):
            produce(number)
        producer.flush(20)
        eventually(lambda: set(returned) <= set(reported))
    assert len(set(reported)) == len(reported), "a call-back was called twice"
    assert set(reported) <= set(begun)
    stored = [message.payload for message in messages(broker, "t", 0)[before + 1 :]]
    assert [body for body in dict.fromkeys(stored) if body in returned] == returned


@pytest.fixture
def dead() -> FakeBroker:
    """One whose process is gone."""
    with FakeBroker({"t": 1}) as broker:
        return broker


@interrupted("client.producer.core client.producer.driver client.producer.sending client.runtime.timers", lines=False)
def test_an_interrupted_send_that_finds_no_broker_leaves_partitions_that_are_sent_to_when_there_is_one(broker, dead):
    cluster = FakeCluster([dead])
    with Producer(metadata=cluster, config=FAST) as producer:
        yield lambda: producer.send_async("t", b"interrupted", timeout=20)
        cluster.register(broker)
        assert producer.send("t", b"after", timeout=5).offset >= 0
        producer.flush(5)


def read_second(broker: FakeBroker, reader: Reader) -> None:
    broker.append("t", 0, b"second")
    while b"second" not in reader.payloads(1):
        pass
    reader.close()


@pytest.mark.parametrize("bulk", [False, True], ids=["messages", "bulk"])
@pytest.mark.parametrize(
    "names",
    [CONNECTION, "client.fetching.fetcher", "client.fetching.core client.fetching.cursor"],
    ids=["connection", "fetcher", "core"],
)
@interrupted()
def test_an_interrupted_poll_leaves_partitions_that_are_fetched(broker, names, bulk):
    """bulk: as poll_arrow reads, where the next pull leaves before the body of an answer is there."""
    before = broker.log("t", 0).end
    reader = Reader(broker)
    reader.core.codec.reads_in_bulk = bulk
    reader.open(before)
    eventually(lambda: len(reader.fetcher._connections) == 1)
    broker.append("t", 0, b"f" * (500_000 if bulk else 5))
    yield lambda: reader.read(1)
    read_second(broker, reader)


@interrupted(f"{CONNECTION} client.fetching.fetcher client.runtime.timers", lines=False)
def test_a_poll_whose_answer_is_interrupted_twice_goes_on(broker):
    """The second interrupt meets what the first one has left to the next poll."""
    before = broker.log("t", 0).end
    reader = Reader(broker)
    codec: Any = reader.core.codec
    reader.open(before)
    eventually(lambda: len(reader.fetcher._connections) == 1)
    broker.append("t", 0, b"first")
    read, codec.read = codec.read, raising(Interrupt)
    with contextlib.suppress(Interrupt):
        reader.read(1)
    codec.read = read
    yield lambda: reader.read(1)
    read_second(broker, reader)


@interrupted("client.fetching.core", lines=False, more_than=5)
def test_what_arrives_just_behind_the_look_of_an_interrupted_poll_is_found_by_the_next(broker):
    class Late(PartitionCursor):
        looks = 0

        def next_chunk(self) -> Chunk | None:
            self.looks += 1
            return None if self.looks == 1 else super().next_chunk()

    if not broker.log("t", 0).end:
        broker.append("t", 0, b"late")
    reader = Reader(broker)
    reader.open(0).__class__ = Late
    reader.until(reader.core.next_ready)
    found: list[Message] = []
    yield lambda: found.extend(reader.core.take(1))
    if not found:
        reader.core.acknowledge()
        found = reader.read(1)
    assert [message.payload for message in found] == [b"late"]
    reader.close()


@interrupted("client.consumer.listener client.fetching.core", lines=False, more_than=5)
def test_what_arrives_while_a_run_is_interrupted_is_processed_or_comes_again(broker):
    def handle(messages: Sequence[Message]) -> None:
        running.listener.stop()

    if not broker.log("t", 0).end:
        broker.append("t", 0, b"1")
    running = Running(broker, handle)
    cursor = running.cursors[0]
    running.fetcher.serve_soon()
    running.until(running.core.next_ready)
    yield running.listener.loop
    running.listener.give_back()
    assert all(worker.join(DEADLINE) for worker in running.listener._workers)
    if cursor.consumed is None:
        running.until(lambda: running.core.take(1))
    running.core.lose(running.cursors)
    running.timers.close()
    running.pool.close()


@pytest.mark.parametrize("wait", [lambda future: future.result(DEADLINE), lambda future: futures.wait([future], 0.5)])
@interrupted("client.producer.futures", futures._base, threading, more_than=5)
def test_who_is_interrupted_while_it_waits_for_a_future_keeps_nobody_from_setting_it(wait):
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

    yield wait_for_it
    setter.join(DEADLINE)
    assert not setter.is_alive(), "the setter is the thread that reads for everybody"
    assert future.result(DEADLINE) == 1


lingers = pytest.mark.parametrize("lingers", [0.0, 0.05])


@lingers
@interrupted("coordination.runtime.interrupts", more_than=5)
def test_what_an_interrupted_call_asked_for_is_done_before_the_next(lingers):
    aside, done = Aside("metaq-test", lingers=lingers), list[int]()
    aside.do(done.clear)
    yield lambda: aside.do(done.append, 1)
    aside.do(done.append, 2)
    aside.do(done.append, 3)
    assert done in ([1, 2, 3], [2, 3])
    with pytest.raises(ZeroDivisionError):
        aside.do(lambda: 1 / 0)


@lingers
@interrupted("coordination.runtime.interrupts", threading, more_than=5)
def test_what_an_interrupted_call_asked_for_is_done_although_nothing_is_asked_for_after_it(lingers):
    aside, done = Aside("metaq-test", lingers=lingers), SimpleQueue[int]()
    aside.do(done.qsize)
    yield lambda: aside.do(done.put, 1)
    eventually(aside._todo.empty, what="the end of what was asked for")


def threads_named(name: str) -> int:
    return [thread.name for thread in threading.enumerate()].count(name)


def test_a_thread_that_lingers_does_what_is_asked_for_next():
    aside = Aside("metaq-lingers", lingers=1.0)
    assert len({aside.do(threading.get_ident) for _ in range(50)}) == 1
    assert threads_named("metaq-lingers") == 1


def test_what_is_asked_for_while_a_thread_ends_is_done():
    aside = Aside("metaq-test", lingers=1e-5)
    assert [aside.do(int, number, seconds=DEADLINE) for number in range(3000)] == list(range(3000))


@contextlib.contextmanager
def on_alarm(action: Callable[..., object]) -> Iterator[None]:
    """While it lasts, `action` handles alarms; no timer is left behind."""
    before = signal.signal(signal.SIGALRM, action)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_action_that_had_not_begun_when_its_caller_was_interrupted_is_dropped_where_that_is_asked_for():
    """So the next call waits for one that hangs, not for all that gave up waiting behind it."""
    aside, done = Aside("metaq-hangs", drops=True), list[int]()
    begun, go_on = SimpleQueue[None](), SimpleQueue[None]()

    def hang() -> None:
        begun.put(None)
        go_on.get()

    with on_alarm(raising(Interrupt)):
        for action in (hang, lambda: done.append(1), lambda: done.append(2)):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Interrupt):
                aside.do(action)
    begun.get(timeout=DEADLINE)
    assert threads_named("metaq-hangs") == 1
    go_on.put(None)
    aside.do(done.append, 3)
    assert done == [3]


@interrupted("client.fetching.cursor", lines=False, more_than=0)
def test_an_interrupted_seek_has_moved_all_of_the_position_or_nothing_of_it():
    cursor = PartitionCursor(HERE, ConsumerConfig())
    assert cursor.arrived(Request(cursor, 0, Ask.PULL, 0), Chunk.of(memoryview(b"x"), 0, 40))
    yield lambda: cursor.moved_to(100)
    found = cursor.position, cursor.fetch_offset, cursor.buffered_bytes, cursor.moves, cursor.consumed
    assert found in ((0, 40, 1, 0, None), (100, 100, 0, 1, (100, -1)))


@interrupted(PRODUCER, lines=False, more_than=0)
def test_an_interrupted_close_of_a_producer_ends_every_future(dead):
    producer = Producer(metadata=FakeCluster([dead]))
    futures = [producer.send_async("t", b"x", timeout=60) for _ in range(3)]
    yield lambda: producer.close(0.001)
    producer.close(0.001)
    assert all(isinstance(future.exception(DEADLINE), ClientError) for future in futures)


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
        _tellers.tell(lambda: None)  # the next of any future: then it is seen that one is stuck
        return not told.is_alive()

    eventually(is_told)


SAVING = "client.records.local_store coordination.runtime.interrupts"


@interrupted(f"{SAVING} client.producer.ordered client.producer.resending client.runtime.timers", threading)
def test_an_interrupted_save_keeps_the_order_and_the_count_and_locks_nobody_out(tmp_path_factory):
    config = ProducerConfig(ordered_wait_messages=3, ordered_wait_seconds=0.01, recover_interval_seconds=0.05)
    with FakeBroker({"t": 1}) as broker:
        cluster = FakeCluster([broker])
        cluster.unregister(broker)
        store = LocalMessageStore(tmp_path_factory.mktemp("ordered") / "m.db")
        with OrderedProducer(partitions={"t": {0: 1}}, store=store, config=config, metadata=cluster) as producer:
            producer.send("t", b"1", partition=HERE)
            yield lambda: producer.send("t", b"2", partition=HERE)
            other = threading.Thread(target=producer.send, args=("t", b"3"), daemon=True)
            other.start()
            other.join(DEADLINE)
            assert not other.is_alive()
            cluster.register(broker)
            eventually(lambda: producer.flush(1.0))
            assert producer.waiting(HERE) == 0
            assert not producer.send("t", b"4", partition=HERE).pending
        bodies = broker.bodies("t", 0)
        assert [body for body in bodies if body != b"2"] == [b"1", b"3", b"4"]
        assert bodies.count(b"2") <= 1  # its send never returned: it may have been saved, then or a moment later


@pytest.fixture
def late() -> Iterator[list[bool]]:
    """Of each interrupted save, whether it was still to come when its caller went on: some must be."""
    found: list[bool] = []
    yield found
    assert sum(found) > 5


@interrupted(SAVING, more_than=5)
def test_what_an_interrupted_save_is_about_to_append_is_counted(tmp_path, late):
    """Else the next message of an ordered producer would be sent before it."""
    with LocalMessageStore(tmp_path / "store.db") as store:
        queue = str(len(late))
        store._lock.acquire()
        threading.Timer(0.005, store._lock.release).start()
        yield lambda: store.append(queue, [StoredMessage("t", b"x")])
        late.append(store._lock.locked())
        counted = store.count(queue)
        assert counted == len(store.peek(queue, 9))


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


def test_deadlines_hold_although_signals_come_while_an_answer_is_waited_for(broker):
    pool = ConnectionPool(CONFIG)
    connection = pool.connection(broker.endpoint, 10)

    def wait() -> float:
        began = time.monotonic()
        with pytest.raises(RequestTimedOut):
            connection.call(long_poll, 0.05)
        return time.monotonic() - began

    with on_alarm(lambda *_: None):
        signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
        wait()  # the first time it is seen after a second or two that signals keep it from ending
        assert_within(0.25, wait)
        assert connection.call(ask, 10) is not None
    pool.close()


def test_a_wait_ends_at_its_time_although_signals_come():
    """As a profiler's do, whose handler raises nothing."""
    bell = Bell()
    with on_alarm(lambda *_: None):
        signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
        assert not any(bell.wait(1e-3) for _ in range(100))
    bell.ring()
    bell.ring()
    assert [bell.wait(0), bell.wait(0)] == [True, False]
