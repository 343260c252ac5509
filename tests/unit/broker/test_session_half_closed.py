"""A client that sends nothing any more and reads on: it gets the answers that are due, and then the connection ends."""

import pytest
from twisted.internet.address import IPv4Address

from metaq.broker.assembly.server import IDLE_SECONDS
from metaq.protocol.statuses import ResponseCode
from metaq.protocol.text import encode_get
from tests.unit.broker.harness import Peer, pull, put


def ended(peer):
    return peer.transport.disconnecting


def opaques(peer):
    return [answer.opaque for answer in peer.answers()]


@pytest.mark.parametrize("cut_off", [b"", b"version 2"])
def test_with_nothing_due_it_ends_at_once_and_what_is_cut_off_is_not_answered(peer, cut_off):
    peer.send(put("t", 0, opaque=1) + cut_off)
    peer.half_close()
    assert opaques(peer) == [1]
    assert ended(peer)


def test_answers_that_wait_for_the_disk_come_in_their_order(peer, harness):
    peer.send(put("safe", 0, opaque=1) + b"version 2\r\n" + put("t", 0, opaque=3))
    peer.half_close()
    assert peer.received() == b""
    assert not ended(peer)
    harness.threads.run()
    assert opaques(peer) == [1, 2, 3]
    assert ended(peer)


def test_requests_that_wait_for_room_are_answered_and_nothing_more_is_read(peer, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.WRITE_BYTES", 1)
    write = peer.transport.write

    def fill(data):
        write(data)
        peer.session.pauseProducing()

    peer.ask(put("t", 0))
    peer.transport.write = fill
    peer.send(b"".join(encode_get("t", "g", 0, 0, 100, number) for number in range(3)))
    peer.transport.resumeProducing = None  # the descriptor would tell the end again and again
    peer.half_close()
    while not ended(peer):
        peer.session.resumeProducing()
    assert opaques(peer) == [0, 1, 2]


def test_requests_of_a_later_turn_are_answered(peer, harness, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.TURN_SECONDS", 0.0)
    peer.send(b"version 1\r\nversion 2\r\nversion 3\r\n")
    peer.half_close()
    assert not ended(peer)
    for _ in range(3):
        harness.turn()
    assert opaques(peer) == [1, 2, 3]
    assert ended(peer)


def test_parked_pulls_are_answered_as_if_their_time_were_over(peer, harness):
    peer.send(pull("t", 0, 0, wait_ms=60_000, opaque=1) + pull("t", 1, 0, wait_ms=60_000, opaque=2))
    peer.half_close()
    harness.turn()
    answers = {frame.opaque: frame.code for frame in peer.frames()}
    assert answers == {1: ResponseCode.PULL_NOT_FOUND, 2: ResponseCode.PULL_NOT_FOUND}
    assert ended(peer)
    assert len(harness.broker.parked) == 0


def test_a_pull_behind_a_full_transport_does_not_wait_for_data_either(peer, harness):
    peer.session.pauseProducing()
    peer.send(pull("t", 0, 0, wait_ms=60_000, opaque=1))
    peer.half_close()
    peer.session.resumeProducing()
    assert [frame.code for frame in peer.frames()] == [ResponseCode.PULL_NOT_FOUND]
    assert ended(peer)


def test_a_client_that_does_not_take_its_answers_is_cut_when_it_was_idle_for_too_long(factory, harness):
    peer = Peer(factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1)))
    peer.session.pauseProducing()
    peer.send(put("t", 0) + b"version 2\r\n")
    peer.half_close()
    assert not peer.transport.aborted
    harness.reactor.advance(IDLE_SECONDS + 30)
    assert peer.transport.aborted
    assert harness.broker.connections == 1
    peer.lose()
    assert harness.broker.connections == 0


def test_a_broken_client_that_goes_meanwhile_leaves_nothing_behind(peer, harness):
    peer.send(put("safe", 0, opaque=1))
    peer.half_close()
    peer.lose()
    harness.threads.run()
    assert peer.received() == b""
    assert harness.broker.pending_puts.bytes == 0
