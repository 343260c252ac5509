"""Puts that wait for a stalled disk are bounded for all connections together; nobody else notices, nothing is lost."""

from functools import partial

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from metaq.broker.network import session
from metaq.broker.reading.parkable import Loading
from metaq.broker.requests import put as put_module
from metaq.broker.requests import send as send_module
from metaq.broker.requests.pull import Pull
from metaq.broker.requests.put import PutGroup
from metaq.broker.runtime.pending_puts import PUT_OVERHEAD_BYTES, PendingPuts
from metaq.protocol.record import checksum
from metaq.protocol.statuses import ResponseCode
from metaq.protocol.text import encode_get
from tests.raising import raising
from tests.unit.broker.harness import Peer, batch, many, pull, put, record, send

LIMIT = 20_000
BODY = b"x" * 1000
PRODUCERS = 60
COPY = f"sync safe 0 {len(BODY)} 0 7 {checksum(BODY)} 1\r\n".encode() + BODY  # as a master sends it


@pytest.fixture
def small(harness):
    harness.broker.pending_puts.limit = LIMIT
    return harness


def held_back(small):
    """Who has sent as much as may wait, and another one."""
    filler, peer = small.connect(), small.connect()
    filler.send(put("safe", 0, b"x" * LIMIT))
    return filler, peer


def run_of(body, opaque):
    return b"".join(put("safe", number % 2, body, opaque + number) for number in range(40))


KINDS = {
    "put": lambda opaque: put("safe", opaque % 2, BODY, opaque),
    "run": lambda opaque: run_of(BODY[:100], opaque),
    "send": lambda opaque: send("safe", opaque % 2, BODY, opaque),
    "batch": lambda opaque: batch("safe", 0, [BODY], opaque),
    "many": lambda opaque: many([("safe", 1, [record(BODY)])], opaque),
}


@pytest.mark.parametrize("kind", KINDS)
def test_many_producers_before_a_stalled_disk(small, kind):
    make, pending = KINDS[kind], small.broker.pending_puts
    largest = len(make(0)) + 41 * PUT_OVERHEAD_BYTES
    producers = [small.connect() for _ in range(PRODUCERS)]
    sent = {}
    for turn in range(5):
        for number, producer in enumerate(producers):
            if producer.is_read:  # else the kernel's buffers are full at some time, and then the client waits
                sent[number, turn] = True
                producer.send(make(turn * 1000))
            assert pending.bytes <= LIMIT + largest
    assert pending.full
    waiting = [producer for producer in producers if not producer.is_read]
    assert pending.waiting == len(waiting) > PRODUCERS // 2
    # who brings no puts is served
    consumer = small.connect()
    assert consumer.ask(encode_get("safe", "g", 0, 0, 100, 1)).code == 404
    assert consumer.ask(b"stats 1\r\n").code == 200
    assert consumer.ask_frame(pull("safe", 0, 0)).code == ResponseCode.PULL_NOT_FOUND
    for _ in range(200):
        small.threads.run()
        small.turn()
        if not (pending.bytes or pending.waiting):
            break
        assert pending.bytes <= LIMIT + largest
    assert (pending.bytes, pending.waiting, pending.full) == (0, 0, False)
    assert all(producer.is_read for producer in producers)
    expected = len(sent) * (40 if kind == "run" else 1)
    received = Peer.answers if kind in ("put", "run") else Peer.frames
    answers = [answer for producer in producers for answer in received(producer)]
    assert {answer.code for answer in answers} <= {0, 200}
    assert len(answers) == expected
    assert sum(log.segments.message_count for log in small.store.logs()) == expected


def test_a_failing_disk_lets_everybody_go(lives):
    lives.broker.pending_puts.limit = 1000
    producers = [lives.harness.connect() for _ in range(5)]
    for producer in producers:
        producer.send(put("safe", 0, BODY))
    assert lives.broker.pending_puts.waiting == 4
    lives.files.fail("fdatasync")
    lives.work()
    assert [[answer.code for answer in producer.answers()] for producer in producers] == [[500]] * 5
    assert lives.broker.pending_puts.bytes == 0


broken = raising(RuntimeError("a bug"))


BUGS = {
    "put": (PutGroup, "_encoded"),
    "run": (put_module, "_encoded_run"),
    "send": (PutGroup, "_encoded"),
    "many": (send_module, "_encoded_many"),
    "sync": (put_module.PutAnswers, "refused_copy"),
}


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("kind", BUGS)
def test_an_answer_that_cannot_be_made_gives_its_bytes_back(lives, monkeypatch, caplog, kind, lost):
    """The client is told, or its connection closed; the cause is in the log."""
    pending, peer = lives.broker.pending_puts, lives.peer
    lives.broker.writing.takes_copies = True
    with monkeypatch.context() as bug:
        bug.setattr(*BUGS[kind], broken)
        peer.send({"sync": COPY, "run": put("safe", 0) * 200}.get(kind) or KINDS[kind](1))
        assert pending.bytes > 0
        if kind == "sync":
            lives.files.fail("fdatasync")
        if lost:
            peer.lose()
        lives.harness.threads.run()
    assert pending.bytes == 0
    assert "RuntimeError: a bug" in caplog.text
    if not lost:
        assert peer.transport.aborted or b"internal error: RuntimeError" in peer.received()
    lives.files.heal()
    assert lives.harness.connect().ask(b"stats 1\r\n").code == 200


def closed_for_a_bug(peer, caplog):
    return peer.transport.aborted and "RuntimeError: a bug" in caplog.text


def test_a_bug_met_while_a_connection_goes_on_closes_it(harness, monkeypatch, caplog):
    """Else it would wait for ever: what was to be served is gone, and nobody reads any more."""
    monkeypatch.setattr(session, "MAX_PENDING_BYTES", 10)
    peer = harness.connect()
    peer.send(put("safe", 0, BODY) + b"version 2\r\n")
    assert not peer.is_read
    monkeypatch.setattr(harness.gate, "serve", broken)
    harness.threads.run()
    assert [answer.code for answer in peer.answers()] == [200]
    assert closed_for_a_bug(peer, caplog)
    assert harness.broker.pending_puts.bytes == 0


def test_a_bug_met_when_a_held_back_connection_is_let_go_closes_it(small, monkeypatch, caplog):
    _, peer = held_back(small)
    peer.send(put("safe", 1))
    monkeypatch.setattr(PutGroup, "commit", broken)
    small.threads.run()
    small.turn()
    assert closed_for_a_bug(peer, caplog)


def test_a_pull_whose_data_cannot_be_loaded_ends_with_its_connection(peer, monkeypatch, caplog):
    peer.ask(put("t", 0))
    loading: Deferred[None] = Deferred()
    monkeypatch.setattr(Pull, "step", lambda pull: Loading(loading))
    peer.send(pull("t", 0, 0))
    loading.errback(RuntimeError("a bug"))
    assert closed_for_a_bug(peer, caplog)


def test_a_connection_held_back_keeps_the_order_of_its_requests(small):
    _, peer = held_back(small)
    peer.send(b"version 1\r\n" + put("safe", 1, opaque=2) + b"version 3\r\n")
    peer.send(b"version 4\r\n")
    assert [answer.opaque for answer in peer.answers()] == [1]
    small.threads.run()
    small.turn()
    small.threads.run()
    assert [answer.opaque for answer in peer.answers()] == [2, 3, 4]


def test_a_connection_that_is_lost_while_held_back_is_forgotten(small):
    filler, peer = held_back(small)
    peer.send(put("safe", 1))
    peer.lose()
    filler.lose()
    assert small.broker.pending_puts.waiting == 0
    small.threads.run()
    small.turn()
    assert small.broker.pending_puts.bytes == 0
    assert small.store.find("safe", 1) is None


def test_the_rest_of_a_large_frame_is_not_read_while_too_much_waits(small):
    filler, peer = small.connect(), small.connect()
    frame = batch("safe", 1, [b"y" * 100_000])
    peer.send(frame[:70_000])
    filler.send(put("safe", 0, b"x" * LIMIT))
    peer.send(frame[70_000:90_000])
    assert not peer.is_read
    small.threads.run()
    small.turn()
    assert peer.is_read
    peer.send(frame[90_000:])
    small.threads.run()
    assert peer.frames()[0].code == ResponseCode.SUCCESS


def test_a_masters_copies_are_counted_too(small):
    small.broker.writing.takes_copies = True
    peer = small.connect()
    peer.send(COPY)
    assert small.broker.pending_puts.bytes == len(BODY) + PUT_OVERHEAD_BYTES
    small.threads.run()
    assert small.broker.pending_puts.bytes == 0


def test_whoever_finds_it_full_again_waits_again_in_the_same_order():
    clock = Clock()
    pending = PendingPuts(100, clock)
    pending.add(101)
    served = []

    def take(name):
        served.append(name)
        pending.add(60)

    for name in "abc":
        pending.wait(name, partial(take, name))
    pending.settle(25)
    assert not clock.getDelayedCalls()
    pending.settle(76)
    clock.advance(0)
    assert (served, pending.waiting) == (["a", "b"], 1)
    pending.settle(120)
    clock.advance(0)
    assert (served, pending.waiting) == (["a", "b", "c"], 0)
