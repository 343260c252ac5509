"""Memory of one connection: nothing is read or served while its answers are not taken; bad bytes, quitting, closing."""

import pytest

from metaq.broker.network import session as session_module
from metaq.broker.runtime import account as account_module
from metaq.broker.runtime.account import SCAN_SECONDS, WAITING_BYTES, Shares
from metaq.protocol.frames import encode_frame
from metaq.protocol.statuses import RequestCode
from metaq.protocol.text import Value, encode_get
from tests.unit.broker.harness import pull, put


@pytest.fixture
def full(peer):
    """A peer whose broker holds 25 bytes, and whose transport becomes full with the next write."""
    peer.ask(put("t", 0))
    write = peer.transport.write

    def fill(data):
        write(data)
        peer.session.pauseProducing()

    peer.transport.write = fill
    return peer


def test_a_full_transport_stops_reading_and_goes_on_where_it_stopped(full, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.WRITE_BYTES", 1)
    full.send(b"".join(encode_get("t", "g", 0, 0, 100, number) for number in range(5)))
    assert len(full.transport.writes) == 1 + 1
    assert not full.is_read
    for number in range(1, 5):
        full.session.resumeProducing()
        assert len(full.transport.writes) == 2 + number
    assert not full.is_read
    full.session.resumeProducing()
    assert full.is_read
    assert [answer.opaque for answer in full.answers()] == [0, 1, 2, 3, 4]


def test_puts_behind_a_full_transport_keep_their_place(full, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.WRITE_BYTES", 1)
    full.send(encode_get("t", "g", 0, 0, 100, 1) + encode_get("t", "g", 0, 0, 100, 2) + put("t", 0, opaque=3))
    for _ in range(3):
        full.session.resumeProducing()
    answers = full.answers()
    assert [answer.opaque for answer in answers] == [1, 2, 3]
    assert all(len(answer.data) == 25 for answer in answers if isinstance(answer, Value))


def test_a_woken_pull_waits_until_the_transport_has_room(full, harness):
    full.send(pull("t", 0, 25, wait_ms=1000))
    full.session.pauseProducing()
    harness.connect().ask(put("t", 0))
    harness.turn()
    assert full.received() == b""
    full.session.resumeProducing()
    assert len(full.frames()) == 1


def test_a_large_read_is_written_in_between(peer, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.WRITE_BYTES", 100)
    peer.send(b"version 1\r\n" * 20)
    assert max(map(len, peer.transport.writes)) < 200
    assert len(peer.answers()) == 20


HELD = {
    "wait for the disk": (put("safe", 0, b"x" * 60), put("safe", 0, b"x" * 60), 2),
    "are held back by an earlier answer": (put("safe", 0), encode_get("t", "g", 0, 0, 1000, 1) * 5, 6),
}


@pytest.mark.parametrize(("first", "then", "answers"), HELD.values(), ids=HELD)
def test_bytes_are_bounded_that(peer, harness, monkeypatch, first, then, answers):
    monkeypatch.setattr(session_module, "MAX_PENDING_BYTES", 400)
    peer.ask(put("t", 0, b"x" * 60))
    peer.send(first)
    assert peer.is_read
    peer.send(then)
    assert not peer.is_read
    harness.threads.run()
    assert peer.is_read
    assert len(peer.answers()) == answers


@pytest.mark.parametrize("end", [b"foo\r\n", b"quit\r\n"], ids=["bad bytes", "quit"])
@pytest.mark.parametrize("topic", ["t", "safe"])
def test_the_connection_is_closed_behind_the_answers_that_are_due_by(peer, harness, topic, end):
    peer.send(put(topic, 0) + b"version 2\r\n" + end + b"version 3\r\n")
    assert peer.transport.disconnecting == (topic == "t")
    harness.threads.run()
    assert [answer.opaque for answer in peer.answers()] == [1, 2]
    assert peer.transport.disconnecting
    peer.send(b"version 4\r\n")
    assert peer.received() == b""


def test_bad_bytes_behind_a_full_transport_close_it_after_the_rest(full, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.WRITE_BYTES", 1)
    full.send(encode_get("t", "g", 0, 0, 100, 1) + encode_get("t", "g", 0, 0, 100, 2) + b"foo\r\n")
    assert not full.transport.disconnecting
    full.session.resumeProducing()
    full.session.resumeProducing()
    assert full.transport.disconnecting
    assert len(full.answers()) == 2


def test_a_malformed_frame_closes_and_a_malformed_field_is_answered(peer):
    assert peer.ask_frame(encode_frame(RequestCode.MIN_OFFSET, 3, {})).remark == "extFields.topic is missing"
    assert not peer.transport.disconnecting
    peer.send(b"\0\0\0\5\0\0\0\1x")
    assert peer.transport.disconnecting


def test_an_unknown_code_is_answered(peer):
    frame = peer.ask_frame(encode_frame(4711, 3, {}))
    assert (frame.code, frame.opaque, "4711" in frame.remark) == (3, 3, True)


def test_one_way_frames_are_never_answered(peer):
    for code in (RequestCode.HEARTBEAT, RequestCode.MIN_OFFSET, 4711):
        peer.send(encode_frame(code, 3, {}, flag=2))
    assert peer.received() == b""


def test_closing_drops_pulls_that_wait_but_not_answers_that_are_due(peer, harness):
    peer.send(pull("t", 0, 0, wait_ms=1000) + put("safe", 0))
    peer.session.close()
    harness.threads.run()
    assert peer.received().startswith(b"result 200")
    assert peer.transport.disconnecting


def test_nothing_is_written_to_a_lost_connection(peer, harness):
    peer.send(put("safe", 0) + pull("t", 0, 0, wait_ms=10))
    peer.lose()
    harness.threads.run()
    harness.reactor.advance(1)
    assert peer.received() == b""


def test_a_connection_with_many_requests_lets_others_have_their_turn(peer, harness, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.TURN_SECONDS", 0.0)
    peer.ask(put("t", 0))
    peer.send(b"".join(encode_get("t", "g", 0, 0, 100, number) for number in range(3)) + put("t", 1, opaque=3))
    assert [answer.opaque for answer in peer.answers()] == [0]
    assert not peer.is_read
    other = harness.connect()
    assert other.ask(put("t", 0)).code == 200
    harness.turn()
    assert [answer.opaque for answer in peer.answers()] == [1, 2, 3]
    assert peer.is_read
    peer.send(b"version 7\r\n")
    peer.lose()
    harness.turn()


def test_what_comes_while_a_connection_waits_for_its_turn_stays_in_order(peer, harness, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.TURN_SECONDS", 0.0)
    for line in (b"version 1\r\n", b"version 2\r\n", b"version 3\r\nquit\r\n"):
        peer.send(line)
    for _ in range(5):
        harness.turn()
    assert [answer.opaque for answer in peer.answers()] == [1, 2, 3]
    assert peer.transport.disconnecting


@pytest.fixture
def scarce(harness, monkeypatch):
    """So many bytes of unsent answers there may be: 100, 94 of them for an address that is alone. An answer carries 30
    bytes of data then, and has 500 bytes at most."""
    harness.broker.account.unsent._budget = Shares("bytes of unsent answers", "unsentBytes", 100, 50)
    monkeypatch.setattr(account_module, "SCARCE_ANSWER_BYTES", 30)
    monkeypatch.setattr(account_module, "REFUSED_ANSWER_BYTES", 500)
    return harness.broker.account.unsent


def test_consumers_that_do_not_read_make_answers_small_until_they_are_gone(full, harness, scarce, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.WRITE_BYTES", 1)
    healthy = harness.connect()
    for _ in range(4):
        healthy.ask(put("t", 0))

    def pulled():
        return len(healthy.ask_frame(pull("t", 0, 0)).body)

    assert pulled() == 5 * 25
    full.send(pull("t", 0, 0))
    assert scarce._budget.used > 125
    assert pulled() == 25
    assert len(healthy.ask(encode_get("t", "g", 0, 0, 1000, 1)).data) == 30
    full.session.resumeProducing()
    assert scarce._budget.used == 0
    assert pulled() == 5 * 25
    full.send(pull("t", 0, 0))
    full.lose()
    assert scarce._budget.used == 0


def test_a_record_larger_than_a_small_answer_is_given_whole(full, harness, scarce, monkeypatch):
    monkeypatch.setattr(account_module, "SCARCE_ANSWER_BYTES", 10)
    scarce.hold("127.0.0.1", 100)
    healthy = harness.connect()
    assert len(healthy.ask(encode_get("t", "g", 0, 0, 1000, 1), work=True).data) == 25
    assert len(healthy.ask_frame(pull("t", 0, 0)).body) == 25


def test_large_answers_are_refused_while_what_is_not_read_has_all_room(peer, harness, scarce):
    peer.ask(put("t", 0, bytes(600)))
    scarce.hold("127.0.0.1", 94)
    frame = peer.ask_frame(pull("t", 0, 0))
    assert (frame.code, "unsentBytes=100" in frame.remark) == (2, True)
    answer = peer.ask(encode_get("t", "g", 0, 0, 1000, 1), work=True)
    assert (answer.code, "unsentBytes=100" in answer.text) == (503, True)
    scarce.hold("127.0.0.1", -94)
    assert len(peer.ask_frame(pull("t", 0, 0)).body) > 600


def test_what_was_done_is_told_whatever_waits(peer, harness, scarce, monkeypatch):
    monkeypatch.setattr(account_module, "REFUSED_ANSWER_BYTES", 1)
    scarce.hold("127.0.0.1", 100)
    assert peer.ask(put("t", 0)).code == 200


def test_one_address_does_not_have_all_room_for_unsent_answers(peer, harness, scarce):
    peer.ask(put("t", 0, bytes(600)))
    scarce.hold("127.0.0.2", 40)
    scarce.hold("127.0.0.1", 50)
    assert peer.ask_frame(pull("t", 0, 0)).code == 2
    other = harness.connect("127.0.0.3")
    assert len(other.ask_frame(pull("t", 0, 0)).body) > 600


@pytest.mark.parametrize(("bytes_a_second", "cut"), [(0, True), (1000, True), (17 << 10, False)])
def test_who_takes_too_little_is_cut_while_others_want_the_room(full, harness, scarce, bytes_a_second, cut):
    full.send(pull("t", 0, 0))
    scarce.hold("127.0.0.1", 100)
    healthy = harness.connect()
    for _ in range(40 // SCAN_SECONDS):
        full.transport.sent_bytes += SCAN_SECONDS * bytes_a_second
        healthy.ask_frame(pull("t", 0, 0))
        scarce.look()
    assert full.transport.aborted == cut


def test_who_takes_nothing_stays_while_there_is_room(full, harness, scarce):
    full.send(pull("t", 0, 0))
    for _ in range(100):
        scarce.look()
    assert not full.transport.aborted


def test_pulls_that_wait_are_bounded_over_all_connections(peer, harness, monkeypatch):
    harness.broker.account.waiting._alone = 3 * WAITING_BYTES
    others = [harness.connect() for _ in range(3)]
    for other in others:
        other.send(pull("t", 0, 0, wait_ms=1000))
    assert len(harness.broker.parked) == 3
    frame = peer.ask_frame(pull("t", 0, 0, wait_ms=1000))
    assert frame.code == 2
    assert "too many bytes of requests that wait: this broker has 3072 of at most 67108864" in frame.remark
    others[0].lose()
    harness.turn()
    assert len(harness.broker.parked) == 2
    peer.send(pull("t", 0, 0, wait_ms=1000))
    peer.ask(put("t", 0))
    harness.turn()
    assert len(harness.broker.parked) == 0
