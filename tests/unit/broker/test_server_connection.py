"""The port's connections: data goes out at once, what does not fit is kept in order; idle and surplus ones are cut."""

import errno
import socket
from typing import Any
from unittest import mock

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from metaq.broker import tuning
from metaq.broker.assembly.server import IDLE_SECONDS
from metaq.broker.network.transport import FastConnection
from metaq.broker.sets.connections import StreamProtocol
from metaq.protocol.replication_stream import encode_committed
from tests.unit.broker.harness import Peer, put


class Socket:
    """Takes as many bytes per call as `room` says, in order; then it is full, or broken."""

    def __init__(self, *room, broken=False):
        self.room = list(room)
        self.broken = broken
        self.sent = b""
        self.calls = 0
        self.options = {}

    def send(self, data):
        return self.sendmsg([data])

    def sendmsg(self, buffers):
        self.calls += 1
        if self.broken:
            raise BrokenPipeError(errno.EPIPE, "broken")
        if not self.room:
            raise BlockingIOError(errno.EAGAIN, "full")
        data = b"".join(buffers)[: self.room.pop(0)]
        self.sent += data
        return len(data)

    def setblocking(self, _):
        pass

    def setsockopt(self, level, option, value):
        self.options[level, option] = value

    def fileno(self):
        return 99


class Descriptors(Clock):
    """A reactor's sets of descriptors."""

    def __init__(self):
        super().__init__()
        self.writers: set[Any] = set()
        self.addWriter, self.removeWriter = self.writers.add, self.writers.discard
        self.addReader = self.removeReader = lambda _: None


def connection(*room, broken=False):
    fake: Any = Socket(*room, broken=broken)
    made = FastConnection(fake, object(), ("127.0.0.1", 1), None, 0, Descriptors())
    made.registerProducer(mock.Mock(), True)
    return made


def drain(made):
    """The reactor finds the socket writable until nothing is left."""
    while made.reactor.writers:
        made.socket.room.append(1 << 30)
        assert made.doWrite() is None


def test_a_write_goes_to_the_socket_at_once_and_nothing_is_left_for_the_reactor():
    made = connection(100)
    made.write(b"hello")
    assert made.socket.sent == b"hello"
    assert not made.reactor.writers


@pytest.mark.parametrize("room", [(), (0,), (1,), (3,), (6,), (9,), (11,)])
def test_what_does_not_fit_follows_in_order(room):
    made = connection(*room)
    made.writeSequence([b"abc", b"", b"defg", memoryview(b"hijkl")])
    assert made.reactor.writers
    made.write(b"mn")
    made.writeSequence([b"op", b"q"])
    calls = made.socket.calls
    assert calls == 1  # once something is buffered nothing may overtake it
    drain(made)
    assert made.socket.sent == b"abcdefghijklmnopq"
    made.socket.room.append(10)
    made.write(b"r")
    assert made.socket.sent.endswith(b"r")


def test_more_buffers_than_one_call_takes_are_joined():
    made = connection(1 << 20)
    made.writeSequence([b"%04d" % number for number in range(2000)])
    assert made.socket.sent == b"".join(b"%04d" % number for number in range(2000))


def test_a_producer_is_paused_above_the_bound_and_goes_on_when_all_is_sent():
    made = connection()
    made.write(bytes(FastConnection.bufferSize))
    assert made.producer.mock_calls == []
    made.write(b"x")
    assert made.producer.mock_calls == [mock.call.pauseProducing()]
    drain(made)
    assert made.producer.mock_calls == [mock.call.pauseProducing(), mock.call.resumeProducing()]


def test_a_connection_that_became_a_stream_reads_its_messages():
    messages: list[Any] = []
    made = connection()
    made.protocol = StreamProtocol("b", messages.extend)
    made.socket.recv = lambda size: encode_committed((1, 2))
    assert made.doRead() is None
    assert len(messages) == 1


def test_a_broken_connection_is_found_by_the_reactor_not_by_the_writer():
    made = connection(broken=True)
    made.write(b"x")
    assert isinstance(made.doWrite(), Exception)


# --- the factory ------------------------------------------------------------------------------------------------------


ADDRESS = IPv4Address("TCP", "127.0.0.1", 1)


def test_connections_above_the_bound_are_refused_and_counted(factory, harness, caplog):
    first = Peer(factory.buildProtocol(ADDRESS))
    assert factory.buildProtocol(ADDRESS)
    assert factory.buildProtocol(ADDRESS) is None
    assert harness.broker.connections == 2
    first.lose()
    assert harness.broker.connections == 1
    assert factory.buildProtocol(ADDRESS)
    harness.reactor.advance(30)
    assert "1 connections refused" in caplog.text


def test_a_connection_without_traffic_is_cut_after_five_minutes(factory, harness):
    idle, busy = Peer(factory.buildProtocol(ADDRESS)), Peer(factory.buildProtocol(ADDRESS))
    for _ in range(IDLE_SECONDS // 30 + 1):
        harness.reactor.advance(30)
        busy.ask(put("t", 0))
    assert idle.transport.aborted
    assert not busy.transport.aborted


@pytest.mark.parametrize("allowed", [True, False])
def test_few_connections_that_bring_much_at_once_have_room_for_many_small_requests(monkeypatch, harness, allowed):
    monkeypatch.setattr("metaq.broker.network.transport._may_receive", lambda: allowed)
    monkeypatch.setattr(tuning, "MAX_LARGE_BUFFERS", 1)
    monkeypatch.setattr(FastConnection, "large_buffers", set())

    def has_room(count: int) -> bool:
        fake: Any = Socket()
        fake.shutdown = fake.close = lambda *_: None
        connections.append(FastConnection(fake, mock.Mock(), ("127.0.0.1", 1), None, 0, Descriptors()))
        connections[-1]._fit_reads(count)
        return bool(fake.options.get((socket.SOL_SOCKET, socket.SO_RCVBUF)) == tuning.RECEIVE_BYTES)

    connections: list[Any] = []
    assert not has_room(tuning.RECEIVES_MUCH_BYTES - 1)
    assert has_room(tuning.RECEIVES_MUCH_BYTES) == allowed
    assert not has_room(tuning.RECEIVES_MUCH_BYTES)
    connections[1].connectionLost(Failure(ConnectionError()))
    assert has_room(tuning.RECEIVES_MUCH_BYTES) == allowed


def test_a_stream_counts_among_the_connections_of_its_address_until_it_is_closed(harness):
    peer = harness.connect()
    peer.session.address = "127.0.0.1"
    connections = harness.broker.account.connections
    before = connections.used
    stream = StreamProtocol("b", lambda messages: None)
    peer.transport.setTcpNoDelay = lambda enabled: None
    peer.session.become(stream)
    assert connections.used == before + 1
    stream.close()
    assert connections.used == before + 1
    stream.connectionLost()
    assert connections.used == before
