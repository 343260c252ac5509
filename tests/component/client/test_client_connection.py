"""One connection shared by many threads: who reads, deadlines, the end. Against FakeBroker on loopback."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from metaq.client.runtime.waiting import Waiter
from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import Endpoint, open_connection
from metaq.protocol.errors import BrokerUnavailable, RequestTimedOut
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.pulls import PullRequest
from metaq.protocol.statuses import RequestCode
from metaq.protocol.text import Result, encode_stats
from metaq.testing import FakeBroker
from tests.component.client.harness import assert_raises_within, together
from tests.waiting import DEADLINE, eventually

CONFIG = ConnectionConfig()


@pytest.fixture
def connection(broker):
    with closing(open_connection(broker.endpoint, CONFIG)) as connection:
        yield connection


def ask(item="x"):
    return lambda opaque: (encode_frame(RequestCode.STATS, opaque, {"item": item}),)


def long_poll(wait_ms=30_000):
    request = PullRequest("t", 0, 0, 1000, wait_ms=wait_ms)
    return lambda opaque: (encode_frame(RequestCode.PULL, opaque, request.to_ext()),)


def reader_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("metaq-reader")]


class Answers:
    """Collects what on_done is called with."""

    def __init__(self):
        self.replies, self.errors = [], []

    def __call__(self, reply, error):
        (self.errors if reply is None else self.replies).append(error if reply is None else reply)


def begin_long_poll(connection):
    answers = Answers()
    connection.submit(long_poll(), answers, time.monotonic() + 30)
    return answers


def test_frames_are_agreed_on_with_a_broker_that_knows_them(broker, connection):
    assert connection.speaks_frames
    assert isinstance(connection.call(ask()), Frame)
    assert broker.requests[0] == "Version"


def test_a_broker_without_frames_never_gets_one():
    with (
        FakeBroker({"t": 1}, speaks_frames=False) as java,
        closing(open_connection(java.endpoint, CONFIG)) as connection,
    ):
        assert (connection.speaks_frames, connection.peer_version) == (False, "1.4.6.2")
        assert isinstance(connection.call(lambda opaque: (encode_stats("item", opaque),)), Result)
        assert java.requests == ["Version", "Stats"]


def test_text_can_be_asked_for(broker):
    with closing(open_connection(broker.endpoint, replace(CONFIG, protocol="text"))) as connection:
        assert not connection.speaks_frames


def test_a_blocking_caller_reads_for_itself_without_another_thread(connection):
    for _ in range(20):
        connection.call(ask())
    assert reader_threads() == []


def test_many_threads_each_get_their_own_answer(connection):
    def work(name):
        items = [f"{name}-{number}" for number in range(50)]
        return [item for item in items if f"item {item}\r\n".encode() not in bytes(connection.call(ask(item), 10).body)]

    assert together(work, range(16)) == [[]] * 16
    assert (connection.in_flight, reader_threads()) == (0, [])


def test_a_request_without_a_caller_is_read_by_a_background_thread(broker, connection):
    answers = begin_long_poll(connection)
    eventually(lambda: broker.pulls == 1)
    eventually(lambda: len(reader_threads()) == 1)
    broker.append("t", 0, b"hello")
    eventually(lambda: answers.replies)
    assert bytes(answers.replies[0].body).endswith(b"hello")


def test_blocking_calls_work_while_a_long_poll_is_parked(broker, connection):
    answers = begin_long_poll(connection)
    for number in range(20):
        assert f"item {number}\r\n".encode() in bytes(connection.call(ask(str(number))).body)
    assert (answers.replies, answers.errors) == ([], [])


def test_a_leader_that_gives_up_hands_the_reading_over(connection):
    """Its request is parked for longer than it waits; the other caller's answer must still be read."""
    with pytest.raises(RequestTimedOut):
        connection.call(long_poll(), 0.05)
    assert together(lambda item: connection.call(ask(item), 10), "x")


def test_who_is_handed_the_reading_while_another_thread_takes_its_answer_hands_it_on(connection):
    reading, following, answers = Waiter(), Waiter(), Answers()
    threads = [
        threading.Thread(target=connection.drive, args=(each, time.monotonic() + 10 * DEADLINE), daemon=True)
        for each in (reading, following)
    ]
    threads[0].start()
    eventually(lambda: connection._role.leader is reading)
    threads[1].start()
    eventually(lambda: following in connection._role._followers)
    following.answered = True
    reading.finish()
    threads[0].join(DEADLINE)
    connection.submit(ask(), answers, time.monotonic() + DEADLINE)
    eventually(lambda: answers.replies)
    following.finish()
    threads[1].join(DEADLINE)


def test_a_call_ends_at_its_deadline_when_nothing_answers(broker, connection):
    broker.silent = True
    assert_raises_within(2, RequestTimedOut, lambda: connection.call(ask(), 0.1), at_least=0.09)


def test_a_request_without_a_caller_ends_soon_after_its_deadline(broker, connection):
    broker.silent = True
    answers = Answers()
    connection.submit(ask(), answers, time.monotonic() + 0.05)
    eventually(lambda: answers.errors)
    assert isinstance(answers.errors[0], RequestTimedOut)


def test_a_late_answer_is_dropped_and_the_connection_goes_on(broker, connection):
    with pytest.raises(RequestTimedOut):
        connection.call(long_poll(wait_ms=100), 0.01)
    broker.append("t", 0, b"late")
    assert isinstance(connection.call(ask()), Frame)
    assert not connection.closed


def test_every_request_under_way_ends_when_the_broker_dies(broker, connection):
    answers = begin_long_poll(connection)

    def block(number):
        if not number:
            eventually(lambda: broker.pulls == 4)
            broker.drop_connections()
        else:
            with pytest.raises(BrokerUnavailable, match=str(broker.endpoint)):
                connection.call(long_poll(), 30)

    together(block, range(4))
    eventually(lambda: answers.errors)
    with pytest.raises(BrokerUnavailable):
        connection.call(ask())


def test_close_ends_requests_and_the_background_thread(broker, connection):
    answers = begin_long_poll(connection)
    connection.close()
    assert isinstance(answers.errors[0], BrokerUnavailable)
    eventually(lambda: not reader_threads())


def test_more_requests_than_the_bound_fail_locally(broker):
    with closing(open_connection(broker.endpoint, ConnectionConfig(max_in_flight_requests=2))) as connection:
        answers = [begin_long_poll(connection) for _ in range(3)]
        assert [type(error) for each in answers for error in each.errors] == [BrokerUnavailable]


LARGE = bytes(6 << 20)


def send_large(opaque):
    header: dict[str, str | int] = {"topic": "t", "partition": 0, "flag": 0, "checksum": -1}
    return encode_frame(RequestCode.SEND, opaque, header, len(LARGE)), LARGE


def test_requests_larger_than_the_socket_buffers_arrive(broker, connection):
    assert connection.call(send_large, 20).offset == 0
    assert len(broker.bodies("t", 0)[0]) == len(LARGE)


def test_a_handler_that_fails_does_not_stop_the_reading(connection, caplog):
    connection.submit(ask(), lambda reply, error: 1 / 0, time.monotonic() + 5)
    assert isinstance(connection.call(ask()), Frame)
    eventually(lambda: "a handler of an answer failed" in caplog.text)


def test_silence_is_broken_by_a_heartbeat_and_an_unanswered_one_ends_the_connection(broker):
    now = [0.0]
    config = ConnectionConfig(heartbeat_idle_seconds=10, heartbeat_timeout_seconds=5)
    connection = open_connection(broker.endpoint, config, clock=lambda: now[0] or time.monotonic())
    connection._wire.last_traffic = 100.0
    now[0] = 109.0
    connection.beat()
    assert connection.in_flight == 0
    now[0] = 110.0
    connection.beat()
    eventually(lambda: f"frame {RequestCode.HEARTBEAT}" in broker.requests and connection.in_flight == 0)
    broker.silent = True
    now[0] = 121.0
    connection.beat()
    assert not connection.closed
    now[0] = 127.0
    eventually(lambda: connection.closed)
    assert "no sign of life" in str(connection.failure)


def test_an_idle_connection_that_the_broker_closed_is_noticed_without_traffic(broker, connection):
    broker.drop_connections()
    eventually(lambda: (connection.beat(), connection.closed)[1])


def test_nobody_listening_is_said_with_the_address(broker):
    broker.stop()
    with pytest.raises(BrokerUnavailable, match=f"no connection to {broker.endpoint}"):
        open_connection(broker.endpoint, CONFIG)


@pytest.mark.parametrize(("says", "seconds"), [(b"", 0.1), (b"HTTP/1.1 400 Bad Request\r\n\r\n", 5)])
def test_a_peer_that_accepts_and_does_not_answer_as_a_broker_is_given_up(says, seconds):
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def serve():
            peer, _ = server.accept()
            with peer:
                peer.recv(100)
                peer.sendall(says)
                peer.recv(100)  # until it is given up

        served = pool.submit(serve)
        with pytest.raises(BrokerUnavailable, match="did not answer as a metaq broker"):
            open_connection(Endpoint("127.0.0.1", server.getsockname()[1]), CONFIG, timeout=seconds)
        served.result(DEADLINE)


def test_the_background_thread_gives_the_reading_back_once_nothing_needs_it(broker, connection):
    answers = Answers()
    connection.submit(ask(), answers, time.monotonic() + 5)
    eventually(lambda: answers.replies and connection._role.leader is None)
    readers: list[int] = []
    read = connection._role._read

    def noted_read(patience: float) -> None:
        readers.append(threading.get_ident())
        read(patience)

    connection._role._read = noted_read
    connection.call(ask())
    assert set(readers) == {threading.get_ident()}


def test_what_was_begun_is_answered_much_later_without_a_thread(connection, monkeypatch):
    first = connection.begin(ask("first"))
    later = time.monotonic() + 3600
    for each in (connection, connection._wire):
        monkeypatch.setattr(each, "_clock", lambda: later)
    assert isinstance(connection.call(ask("second")), Frame)  # and looks at deadlines on its way
    assert isinstance(connection.finish(first), Frame)
    assert reader_threads() == []


def test_what_was_begun_ends_at_the_deadline_of_finishing_it(connection):
    begun = connection.begin(long_poll())
    with pytest.raises(RequestTimedOut):
        connection.finish(begun, 0.05)
    eventually(lambda: connection.in_flight == 0)


def test_what_was_begun_ends_with_the_connection(connection):
    begun = connection.begin(long_poll())
    connection.close()
    with pytest.raises(BrokerUnavailable, match="closed by this client"):
        connection.finish(begun)


def fill(connection, broker):
    """Send until the broker, which does not read, takes no more: 60 MiB are more than all buffers of loopback."""
    broker.reading.clear()
    answers = Answers()
    for _ in range(10):
        connection.submit(send_large, answers, time.monotonic() + 60)
    return answers


class Pausing(FakeBroker):
    """Reads nothing while `reading` is not set, as a process that was stopped does not."""

    def __init__(self, *args):
        self.reading = threading.Event()
        self.reading.set()
        super().__init__(*args)

    def _serve(self, session, events):
        self.reading.wait(DEADLINE)
        super()._serve(session, events)


@pytest.fixture
def pausing():
    with Pausing({"t": 1}) as broker:
        yield broker


@pytest.fixture
def paused(pausing):
    """A connection to it."""
    with closing(open_connection(pausing.endpoint, CONFIG)) as connection:
        yield connection
        pausing.reading.set()


def test_a_deadline_holds_behind_a_request_that_the_broker_does_not_take(pausing, paused):
    fill(paused, pausing)
    assert_raises_within(3, RequestTimedOut, lambda: paused.call(ask(), 0.5))


def test_what_the_broker_took_late_is_answered_and_what_nobody_waits_for_any_more_is_not_sent(pausing, paused):
    answers = fill(paused, pausing)
    with pytest.raises(RequestTimedOut):
        paused.call(ask(), 0.01)
    pausing.reading.set()
    assert isinstance(paused.call(ask(), DEADLINE), Frame)
    eventually(lambda: len(answers.replies) == 10)
    assert pausing.requests.count(f"frame {RequestCode.STATS}") == 1
    assert not paused.closed


@pytest.mark.parametrize("answered", [False, True])
def test_answer_to_another_thread_is_no_sign_that_the_broker_has_closed_it(connection, monkeypatch, answered):
    """It sends between two looks, at what is under way and at the socket."""

    def send_first(_wire):
        answers = Answers()
        connection.submit(ask() if answered else long_poll(), answers, time.monotonic() + 10)
        if answered:
            eventually(lambda: answers.replies)
        return True

    monkeypatch.setattr(type(connection._wire), "is_readable", property(send_first))
    assert connection.notice_end(time.monotonic() + 1) is None
    assert not connection.closed
