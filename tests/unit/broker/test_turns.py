"""Turns of all connections: an iteration of the reactor takes some, the others come in the next ones, in order."""

from typing import Any

import pytest
from twisted.internet.task import Clock

from metaq.broker import tuning
from metaq.broker.network.transport import FastConnection
from metaq.broker.runtime.turns import ConnectionTurns
from metaq.protocol import requests
from metaq.protocol.delays import CancelDelayedRequest
from metaq.protocol.frames import encode_frame, parse_frame
from metaq.protocol.record import iter_headers
from metaq.protocol.requests import FRAME_COST, RequestReader
from metaq.protocol.statuses import RequestCode
from tests.unit.broker.harness import noted, put, send

BEAT = encode_frame(RequestCode.HEARTBEAT, 1, {}, 0)


class WorkClock(Clock):
    """Time passes by work alone."""

    def work(self, seconds):
        self.rightNow += seconds


def iteration(reactor):
    """What is due now, without what comes of it."""
    calls = [call for call in reactor.calls if call.getTime() <= reactor.seconds()]
    for call in calls:
        reactor.calls.remove(call)
        call.called = 1
        call.func(*call.args, **call.kw)


@pytest.fixture
def reactor():
    return WorkClock()


@pytest.fixture
def turns(reactor):
    return ConnectionTurns(reactor)


@pytest.fixture
def done():
    return []


def turn(reactor, done, name, seconds=tuning.ITERATION_SECONDS):
    def work():
        reactor.work(seconds)
        done.append(name)

    return work


def test_an_iteration_takes_what_its_time_allows_and_the_next_ones_the_others_in_order(reactor, turns, done):
    for number in range(5):
        turns.wait(turn(reactor, done, number, tuning.ITERATION_SECONDS / 2), busy=0, address="a")
    for count in (2, 4, 5):
        iteration(reactor)
        assert done == list(range(count))
    assert not reactor.getDelayedCalls()


def test_busy_connections_come_behind_the_others_and_one_comes_in_each_iteration(reactor, turns, done):
    for number in range(2):
        turns.wait(turn(reactor, done, f"busy {number}"), busy=1, address="a")
    for number in range(3):
        turns.wait(turn(reactor, done, number), busy=0, address="a")
    for expected in ([0, "busy 0"], [1, "busy 1"], [2]):
        done.clear()
        iteration(reactor)
        assert done == expected


def test_each_address_has_a_turn_however_many_connections_another_one_has(reactor, turns, done):
    for number in range(5):
        turns.wait(turn(reactor, done, f"many {number}"), busy=0, address="many")
    turns.wait(turn(reactor, done, "one"), busy=0, address="one")
    for count in range(1, 7):
        iteration(reactor)
        assert len(done) == count
    assert done == ["many 0", "one", *(f"many {number}" for number in range(1, 5))]
    assert not reactor.getDelayedCalls()


def test_places_for_work_go_to_each_address_in_its_turn(reactor, turns, done, monkeypatch):
    monkeypatch.setattr(tuning, "MAX_LISTINGS", 1)
    places = turns.listing
    assert places.begin(lambda: None, "many")
    for number in range(3):
        assert not places.begin(turn(reactor, done, f"many {number}"), "many")
    assert not places.begin(turn(reactor, done, "one"), "one")
    for _ in range(4):
        places.end()
        iteration(reactor)
    assert done == ["many 0", "one", "many 1", "many 2"]


def test_who_waits_again_has_no_second_turn_in_the_same_iteration(reactor, turns, done):
    def again():
        done.append("again")
        if len(done) < 3:
            turns.wait(again, busy=1, address="a")

    turns.wait(again, busy=0, address="a")
    for count in (1, 2, 3):
        iteration(reactor)
        assert len(done) == count


def test_nobody_waits_while_there_is_little_to_do(reactor, turns):
    since = reactor.seconds()
    reactor.work(tuning.COUNTED_SECONDS / 2)
    turns.has_worked(since)
    reactor.work(1.0)
    assert not turns.defers(0)
    assert not turns.defers(1)
    assert not reactor.getDelayedCalls()


def test_who_comes_when_the_iteration_has_no_time_left_waits_and_a_busy_one_when_others_do(reactor, turns, done):
    turns.has_worked(reactor.seconds() - tuning.COUNTED_SECONDS)
    assert not turns.defers(0)
    assert not turns.defers(1)
    for number in range(tuning.FEW_BUSY):
        turns.wait(turn(reactor, done, number), busy=1, address="a")
    assert not turns.defers(0)
    assert turns.defers(1)
    reactor.work(tuning.ITERATION_SECONDS)
    assert turns.defers(0)


# --- connections ------------------------------------------------------------------------------------------------------


def leave_no_time(harness):
    """In this iteration of the harness's reactor."""
    harness.broker.turns.has_worked(harness.reactor.seconds() - tuning.COUNTED_SECONDS)
    harness.reactor.rightNow += tuning.ITERATION_SECONDS


@pytest.fixture
def spent(harness):
    leave_no_time(harness)


@pytest.mark.parametrize("ends_its_half", [False, True])
def test_what_comes_then_is_served_in_the_next_iteration_and_no_more_is_read(peer, spent, harness, ends_its_half):
    peer.send(put("t", 0, b"1", 1) + put("t", 0, b"2", 2))
    if ends_its_half:
        peer.half_close()
    assert (peer.received(), peer.is_read, peer.transport.disconnecting) == (b"", False, False)
    harness.turn()
    assert [answer.opaque for answer in peer.answers()] == [1, 2]
    assert peer.transport.disconnecting == ends_its_half
    assert peer.is_read or ends_its_half


def test_a_request_that_comes_in_two_pieces_is_whole_then(peer, spent, harness):
    request = put("t", 0, b"hello", 7)
    peer.send(request[:5])
    harness.turn()
    assert peer.received() == b""
    peer.send(request[5:])
    assert [answer.opaque for answer in peer.answers()] == [7]


def test_a_large_frame_that_is_complete_then_waits(peer, harness):
    data = frame_of(100_000)
    peer.send(data[:70_000])
    leave_no_time(harness)
    space = peer.session.space
    space[:] = data[70_000:]
    peer.session.received(len(space))
    assert peer.received() == b""
    harness.turn()
    assert len(peer.frames()) == 1


def frame_of(size):
    return encode_frame(RequestCode.HEARTBEAT, 1, {}, size) + bytes(size)


def test_large_frames_that_are_complete_at_once_are_looked_at_in_several_iterations(harness, monkeypatch):
    looked = [0]

    def slowly(*arguments):
        looked[-1] += 1
        harness.reactor.rightNow += 0.008
        return parse_frame(*arguments)

    monkeypatch.setattr("metaq.protocol.requests.parse_frame", slowly)
    peers = [harness.connect(f"127.0.0.{number}") for number in range(10)]
    data = frame_of(100_000)
    for peer in peers:
        peer.send(data[:-1])
    for peer in peers:
        peer.session.space[:] = data[-1:]
        peer.session.received(1)
    while harness.reactor.getDelayedCalls() and sum(looked) < 10:
        looked.append(0)
        iteration(harness.reactor)
    assert max(looked) <= 3
    assert [len(peer.frames()) for peer in peers] == [1] * 10


def test_a_small_request_does_not_wait_for_single_large_frames_of_many_addresses(harness, monkeypatch):
    def slowly(*arguments):
        harness.reactor.rightNow += 0.008
        return parse_frame(*arguments)

    monkeypatch.setattr("metaq.protocol.requests.parse_frame", slowly)
    peers = [harness.connect(f"127.0.0.{number}") for number in range(10)]
    data, small = frame_of(100_000), harness.connect("127.0.1.1")
    waited = 0
    for _ in range(2):  # the first round shows who takes long
        for peer in peers:
            peer.send(data[:-1])
        for peer in peers:
            peer.session.space[:] = data[-1:]
            peer.session.received(1)
        small.send(b"version 1\r\n")
        waited = 0
        while not (answered := small.received()):
            iteration(harness.reactor)
            waited += 1
        assert answered
        while harness.reactor.getDelayedCalls() and not all(peer.frames() for peer in peers):
            iteration(harness.reactor)
    assert waited <= 1


class SlowSocket:
    """Brings a piece of a frame that never ends each time, which takes a while."""

    setsockopt = setblocking = lambda *_: None

    def __init__(self, reactor, reads):
        self.count = 0
        self._reactor = reactor
        self._reads = reads

    def recv(self, _):
        return frame_of(10 << 20)[:100_000]

    def recv_into(self, space):
        self._reactor.rightNow += 0.004
        self.count += 1
        self._reads[-1] += 1
        return min(1000, len(space))

    def fileno(self):
        return 99


def slow_connection(harness, reads, host="127.0.0.1"):
    peer = harness.connect(host)
    slow: Any = SlowSocket(harness.reactor, reads)
    transport: Any = FastConnection(slow, peer.session, ("::", 1), None, 0, harness.reactor)
    peer.session.makeConnection(transport)
    return peer, transport


def test_connections_read_their_large_frames_in_turns(harness):
    """All sockets are readable all the time."""
    reads = [0]
    readable: dict[Any, None] = {}
    harness.reactor.addReader = readable.setdefault
    harness.reactor.removeReader = readable.pop
    connections = [slow_connection(harness, reads, f"127.0.0.{number}")[1] for number in range(10)]
    for each in connections:
        each.read_once()
    for _ in range(50):
        reads.append(0)
        iteration(harness.reactor)
        for each in list(readable):
            each.doRead()
    counts = [each.socket.count for each in connections]
    assert max(reads) <= 6  # as many turns as an iteration has time for, and as many that come in
    assert min(counts) * 3 >= max(counts) == 50  # those that are found readable first have no advantage but that


def test_one_that_is_lost_while_it_waits_to_read_is_not_read(harness, caplog):
    harness.reactor.addReader = harness.reactor.removeReader = lambda _: None
    peer, transport = slow_connection(harness, [0])
    socket = transport.socket
    transport.read_once()
    leave_no_time(harness)
    transport.doRead()
    peer.lose()
    del transport.socket  # as Twisted does
    iteration(harness.reactor)
    assert socket.count == 0
    assert caplog.text == ""


def test_a_large_frame_that_comes_while_another_request_is_worked_on_is_looked_at_behind_it(harness, monkeypatch):
    peer, data = harness.connect(), frame_of(100_000)
    peer.send(data[:-1])
    looked = noted(monkeypatch, requests, "parse_frame")
    peer.session._yield_turn()
    peer.session.space[:] = data[-1:]
    peer.session.received(1)
    assert looked == []
    assert not peer.is_read
    harness.turn()
    assert len(peer.frames()) == 1


def test_one_that_is_lost_is_not_served(peer, spent, harness):
    peer.send(put("t", 0, b"1", 1))
    peer.lose()
    harness.turn()
    assert list(harness.store.logs()) == []


def test_a_single_request_is_answered_before_those_who_have_more_to_do_than_a_turn(peer, harness, monkeypatch):
    monkeypatch.setattr(tuning, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(tuning, "ITERATION_SECONDS", 0.0)  # each iteration takes one turn of these
    busy = [harness.connect() for _ in range(3)]
    for each in busy:
        each.send(BEAT * 3)
    answered = [len(each.frames()) for each in busy]
    peer.send(BEAT)
    for _ in range(3):
        iteration(harness.reactor)
    answered = [before + len(each.frames()) for before, each in zip(answered, busy, strict=True)]
    assert len(peer.frames()) == 1
    assert sum(answered) < 9
    harness.turn()
    assert [before + len(each.frames()) for before, each in zip(answered, busy, strict=True)] == [3, 3, 3]


# --- the reader -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1, 10, 50])
def test_bytes_that_are_only_kept_are_looked_at_later_behind_what_is_incomplete(cut):
    data = put("t", 0, b"x" * 30, 1) + BEAT + put("t", 1, b"y", 2)
    straight = RequestReader().receive(data)
    reader = RequestReader()
    found = reader.receive(data[:cut]) if cut else []
    reader.keep(data[cut:])
    assert reader.more
    found += reader.receive(b"")
    assert found == straight
    assert not reader.more


def test_a_frame_with_json_counts_as_several_requests_of_those_that_one_call_returns():
    reader = RequestReader(2 * FRAME_COST)
    counts = [len(reader.receive(BEAT * 5))]
    while reader.more:
        counts.append(len(reader.receive(b"")))
    assert counts == [2, 2, 1]


def test_bytes_that_come_behind_kept_ones_are_joined_with_them():
    reader = RequestReader()
    reader.keep(BEAT[:7])
    assert len(reader.receive(BEAT[7:])) == 1


def test_kept_bytes_go_into_a_large_frame_and_a_body_that_is_dropped():
    for data in (
        encode_frame(RequestCode.HEARTBEAT, 1, {}, 100_000) + bytes(100_000) + BEAT,
        b"put t 0 %d 0 1\r\n" % (64 << 20) + bytes(64 << 20) + BEAT,
    ):
        straight = RequestReader().receive(data)
        reader = RequestReader()
        found = reader.receive(data[:70_000])
        reader.keep(data[70_000:])
        found += reader.receive(b"")
        assert list(map(type, found)) == list(map(type, straight))
        assert len(found) == 2


def test_a_request_that_is_answered_at_once_does_not_bring_forward_what_the_same_read_brought(harness, monkeypatch):
    """Its answer may come from a thread, and is there already: then whatever waits may go on, but for the same read."""
    monkeypatch.setattr(tuning, "READ_REQUESTS", FRAME_COST + 1)
    peer = harness.connect()
    ext = CancelDelayedRequest("t", 0, 1).to_ext()
    cancel = encode_frame(RequestCode.CANCEL_DELAYED, 1, ext, 0)
    bodies = [b"%d" % number for number in range(6)]
    peer.send(cancel + b"".join(send("t", 0, body, number) for number, body in enumerate(bodies)))
    harness.turn()
    assert len(peer.frames()) == 7
    data = harness.store.get("t", 0).segments.snapshot().read(0, 1 << 20)
    assert [data[each.end - each.length : each.end] for each in iter_headers(data)] == bodies
