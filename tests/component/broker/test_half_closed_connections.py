"""Clients that close their sending half, as `nc -N` does, over real sockets and with each transport."""

import socket
import threading
import time

import pytest
from twisted.internet.selectreactor import SelectReactor

from metaq.broker.assembly import server
from metaq.broker.assembly.server import SessionFactory, listen
from metaq.broker.network.transport import FastConnection, PlainConnection
from metaq.protocol.statuses import ResponseCode
from metaq.protocol.text import AnswerReader
from tests.frames import FrameReader
from tests.unit.broker.harness import Harness, pull, put

SECONDS = 20.0


@pytest.fixture(params=[FastConnection, PlainConnection])
def harness(request, tmp_path, monkeypatch):
    """A broker whose reactor runs in a thread of its own."""
    monkeypatch.setattr(server, "connection_class", lambda: request.param)
    monkeypatch.setattr(server, "_IDLE_SCAN_SECONDS", 0.1)
    reactor = SelectReactor()
    harness = Harness(tmp_path, reactor=reactor)
    object.__setattr__(harness.broker.config, "listen", "127.0.0.1")
    object.__setattr__(harness.broker.config, "port", 0)
    listen(harness.broker, SessionFactory(harness.broker, harness.gate, 9), reactor)
    thread = threading.Thread(target=reactor.run, kwargs={"installSignalHandlers": False})
    thread.start()
    yield harness
    reactor.callFromThread(reactor.stop)
    thread.join(SECONDS)
    assert not thread.is_alive()
    harness.close()


def asked(harness, *requests):
    """All that the broker answers to a client that sends `requests`, ends its sending half, and reads to the end."""
    with socket.create_connection(("127.0.0.1", harness.broker.port), SECONDS) as client:
        for request in requests:
            client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def test_the_stats_of_a_script_are_answered(harness):
    assert asked(harness, b"stats\r\n").endswith(b"END\r\n")


def test_all_that_was_sent_is_answered_in_order(harness):
    answers = AnswerReader().receive(asked(harness, *(put("t", 0, b"x" * 3000, number) for number in range(3000))))
    assert [answer.opaque for answer in answers] == list(range(3000))


def test_answers_larger_than_all_buffers_come_whole(harness):
    asked(harness, put("t", 0, b"x" * 900_000))
    answers = FrameReader().receive(asked(harness, b"".join(pull("t", 0, 0, opaque=number) for number in range(40))))
    assert [(answer.opaque, len(answer.body)) for answer in answers] == [(number, 900_020) for number in range(40)]


def test_a_parked_pull_is_answered_at_once(harness):
    (answer,) = FrameReader().receive(asked(harness, pull("t", 0, 0, wait_ms=60_000)))
    assert answer.code == ResponseCode.PULL_NOT_FOUND


def test_a_client_that_sent_nothing_is_closed(harness):
    assert asked(harness) == b""


def test_a_client_that_never_reads_is_cut_as_an_idle_one(harness, monkeypatch):
    asked(harness, put("t", 0, b"x" * 900_000))
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", harness.broker.port), SECONDS) as client:
        client.sendall(b"".join(pull("t", 0, 0, opaque=number) for number in range(40)))
        client.shutdown(socket.SHUT_WR)
        await_connections(harness, 1)
        await_connections(harness, 0)


def await_connections(harness, count):
    deadline = time.monotonic() + SECONDS
    while harness.broker.connections != count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
