"""Transactions in frames: TRANSACTION, SEND and SEND_BATCH with `txKey`, and what operators decide."""

import json

import numpy as np
import pytest

from metaq.broker.account import MAX_PREPARED_BYTES, Account, Quotas
from metaq.broker.requests.answers import encode_json
from metaq.broker.transactions.open_transactions import listed_bytes
from metaq.broker.transactions.transactions import MAX_ACTIVE_BYTES
from metaq.protocol.frames import ONE_WAY, encode_frame
from metaq.protocol.limits import MAX_FRAME_BYTES
from metaq.protocol.record import checksum, encode_record
from metaq.protocol.sends import SendBatchRequest, SendReply, SendRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.transaction_requests import (
    CompleteTransactionRequest,
    PreparedTransactionsRequest,
    TransactionRequest,
)
from tests.unit.broker.harness import Harness
from tests.unit.broker.test_slices import step
from tests.unit.broker.transactions.conversation import XID, Asker, bodies, tx, tx_put


class Frames:
    """A connection that sends frames and waits for their answers."""

    def __init__(self, harness):
        self.harness = harness
        self.peer = harness.connect()

    def __call__(self, code, request, body=b"", flag=0):
        ext = request if isinstance(request, dict) else request.to_ext()
        self.peer.send(encode_frame(code, 1, ext, len(body), flag=flag) + body)
        self.harness.threads.run()
        frames = self.peer.frames()
        assert len(frames) == (0 if flag & ONE_WAY else 1)
        return frames[0] if frames else None

    def tx(self, key, verb, **more):
        """(code, body or remark, xaCode)."""
        frame = self(RequestCode.TRANSACTION, TransactionRequest(key, verb, **more))
        text = bytes(frame.body).decode() if frame.code == ResponseCode.SUCCESS else frame.remark
        return frame.code, text, frame.ext.get("xaCode")

    def send(self, key, topic, partition, body, crc=-1, flag=0):
        return self(RequestCode.SEND, SendRequest(topic, partition, 0, crc, key), body, flag)

    def complete(self, key, action):
        frame = self(RequestCode.COMPLETE_TRANSACTION, CompleteTransactionRequest(key, action))
        return frame.code, frame.remark

    def active(self):
        return json.loads(bytes(self(RequestCode.PREPARED_TRANSACTIONS, {"active": "1"}).body))

    def prepared(self):
        return json.loads(bytes(self(RequestCode.PREPARED_TRANSACTIONS, {}).body))


OK = (ResponseCode.SUCCESS, "", None)
REFUSED = ResponseCode.TRANSACTION_REFUSED


@pytest.fixture
def frames(harness):
    return Frames(harness)


def batch(key, topic, partition, messages):
    records = [encode_record(body, 0, 0) for body in messages]
    payload = np.array([len(record) for record in records], ">u4").tobytes() + b"".join(records)
    return SendBatchRequest(topic, partition, len(records), key), payload


def test_a_local_transaction_with_single_messages_and_batches(harness, frames):
    assert frames.tx("TX:s:1", "BEGIN", session_id="s") == OK
    single = SendReply.from_ext(frames.send("TX:s:1", "t", 0, b"a", checksum(b"a")).ext)
    assert (single.partition, single.offset) == (0, -1)
    several = frames(RequestCode.SEND_BATCH, *batch("TX:s:1", "t", 0, [b"b", b"", b"c"]))
    assert SendReply.from_ext(several.ext).message_id > single.message_id
    assert bodies(harness, "t", 0) == []
    assert frames.tx("TX:s:1", "END") == OK
    assert frames.tx("TX:s:1", "COMMIT_ONE_PHASE") == OK
    assert bodies(harness, "t", 0) == [b"a", b"b", b"", b"c"]


def test_refusals_have_1xs_text_and_jtas_code(frames):
    text = "Local transaction 'TX:s:1' has not been started."
    assert frames.tx("TX:s:1", "COMMIT_ONE_PHASE") == (REFUSED, text, None)
    frame = frames.send("TX:s:1", "t", 0, b"a")
    assert (frame.code, frame.remark) == (REFUSED, text)
    text = f"XA transaction '{XID}' has not been started."
    assert frames.tx(XID, "ROLLBACK") == (REFUSED, f"XAException:code=-4,msg={text}", "-4")
    frame = frames.send(XID, "t", 0, b"a")
    assert (frame.code, frame.remark, frame.ext) == (REFUSED, text, {"xaCode": "-4"})


def test_wrong_messages_are_refused_one_by_one(harness, frames):
    frames.tx("TX:s:1", "BEGIN")
    assert frames.send("TX:s:1", "t", 0, b"a", 5).code == ResponseCode.MESSAGE_ILLEGAL
    assert frames.send("TX:s:1", "t", -1, b"a").code == REFUSED
    assert frames.send("TX:s:1", "t", 7, b"a").code == ResponseCode.TOPIC_NOT_EXIST
    request, payload = batch("TX:s:1", "t", 0, [b"abc", b"def"])
    assert frames(RequestCode.SEND_BATCH, request, payload[:-1] + b"X").code == ResponseCode.MESSAGE_ILLEGAL
    assert frames(RequestCode.SEND_BATCH, request, payload + b"X").code == ResponseCode.MESSAGE_ILLEGAL
    assert frames.tx("TX:s:1", "COMMIT_ONE_PHASE") == OK
    assert list(harness.store.logs()) == [] or bodies(harness, "t", 0) == []


def test_a_one_way_message_is_taken_without_an_answer(harness, frames):
    frames.tx("TX:s:1", "BEGIN")
    assert frames.send("TX:s:1", "t", 0, b"a", flag=ONE_WAY) is None
    frames.tx("TX:s:1", "COMMIT_ONE_PHASE")
    assert bodies(harness, "t", 0) == [b"a"]


def test_text_and_frames_of_one_connection_share_its_transactions(harness, frames):
    assert frames.tx("TX:s:1", "BEGIN") == OK
    frames.peer.send(tx_put("TX:s:1", "t", 0, b"a"))
    (answer,) = frames.peer.answers()
    assert answer.code == 200
    assert frames.tx("TX:s:1", "COMMIT_ONE_PHASE") == OK
    assert bodies(harness, "t", 0) == [b"a"]


def test_two_phases_and_recover(harness, frames):
    assert frames.tx(XID, "BEGIN", timeout_seconds=5, qualifier="host") == OK
    frames.send(XID, "t", 0, b"a")
    assert frames.tx(XID, "PREPARE") == (ResponseCode.SUCCESS, "0", None)
    assert frames.tx(None, "RECOVER", qualifier="host")[1] == XID
    assert frames.tx(None, "RECOVER", qualifier="other")[1] == ""
    assert frames.tx(None, "RECOVER")[1] == XID
    assert frames.tx(XID, "COMMIT_TWO_PHASE") == OK
    assert bodies(harness, "t", 0) == [b"a"]


@pytest.mark.parametrize(
    "ext",
    [
        {},
        {"type": "BEGIN", "txKey": "TX:a b:1"},
        {"type": "BEGIN", "txKey": "TX:\ud800:1"},
        {"type": "COMMIT"},
        {"type": "BEGIN", "txKey": "X:1"},
        {"type": "BEGIN", "timeoutSeconds": "-1"},
    ],
)
def test_what_cannot_be_read_is_illegal(frames, ext):
    assert frames(RequestCode.TRANSACTION, ext).code == ResponseCode.MESSAGE_ILLEGAL


# --- operators --------------------------------------------------------------------------------------------------------


def prepare(frames, *keys):
    for key in keys:
        frames.tx(key, "BEGIN")
        frames.send(key, "t", 0, key.encode())
        assert frames.tx(key, "PREPARE")[1] == "0"


def test_prepared_transactions_are_listed_with_figures(harness, frames):
    prepare(frames, XID)
    frames.tx("XID:1:::q", "BEGIN")
    (listed,) = frames.prepared()
    expected = {"key": XID, "messages": 1, "bytes": 20 + len(XID), "topics": ["t"], "state": "prepared"}
    assert listed == expected | {"prepared_at_ms": harness.broker.now_ms()}


@pytest.mark.parametrize(
    ("action", "code", "word", "seen"),
    [("commit", 7, "committed", True), ("rollback", 6, "rolled back", False), ("complete", 8, "completed", False)],
)
def test_an_operators_decision_is_what_the_coordinator_is_told_until_it_forgets(tmp_path, action, code, word, seen):
    harness = Harness(tmp_path)
    frames = Frames(harness)
    prepare(frames, XID)
    assert frames.complete(XID, action) == (ResponseCode.SUCCESS, "")
    told = f"XAException:code={code},msg=XA transaction '{XID}' has been heuristically {word}."
    for _ in range(2):
        assert bodies(harness, "t", 0) == ([XID.encode()] if seen else [])
        for verb in ("COMMIT_TWO_PHASE", "ROLLBACK", "PREPARE", "BEGIN"):
            assert frames.tx(XID, verb) == (REFUSED, told, str(code))
        assert frames.send(XID, "t", 0, b"x").remark == told.partition("msg=")[2]
        assert frames.complete(XID, "commit") == (REFUSED, told)
        assert frames.tx(None, "RECOVER")[1] == XID
        assert [(each["key"], each["state"]) for each in frames.prepared()] == [(XID, f"heuristic_{action}")]
        harness.close()  # it is told after a restart, too
        harness = Harness(tmp_path)
        frames = Frames(harness)
    assert frames.tx(XID, "FORGET") == OK
    assert frames.tx(XID, "COMMIT_TWO_PHASE")[2] == "-4"
    assert frames.prepared() == []
    harness.threads.run()
    harness.close()


def test_an_operator_may_forget_in_the_coordinators_place_but_not_what_is_open(frames):
    prepare(frames, XID)
    assert frames.complete(XID, "forget")[0] == REFUSED
    assert frames.complete(XID, "rollback")[0] == ResponseCode.SUCCESS
    assert frames.complete(XID, "forget")[0] == ResponseCode.SUCCESS
    assert frames.complete(XID, "forget")[0] == REFUSED


def test_only_what_is_prepared_can_be_decided(frames):
    assert frames.complete(XID, "commit")[0] == REFUSED
    frames.tx(XID, "BEGIN")
    assert "-6" in frames.complete(XID, "commit")[1]
    frame = frames(RequestCode.COMPLETE_TRANSACTION, {"txKey": XID, "action": "undo"})
    assert frame.code == ResponseCode.MESSAGE_ILLEGAL


def test_operators_requests_come_from_the_brokers_machine(harness):
    peer = harness.connect("192.0.2.7")
    for code in (RequestCode.PREPARED_TRANSACTIONS, RequestCode.COMPLETE_TRANSACTION):
        assert peer.ask_frame(encode_frame(code, 1, {})).code == ResponseCode.NO_PERMISSION


def test_a_decision_that_was_noted_but_not_done_is_done_at_the_next_start(tmp_path):
    harness = Harness(tmp_path)
    frames = Frames(harness)
    prepare(frames, XID)
    request = CompleteTransactionRequest(XID, "commit").to_ext()
    frames.peer.send(encode_frame(RequestCode.COMPLETE_TRANSACTION, 1, request))
    function, _ = harness.threads.waiting.pop(0)
    function()  # the note is on the disk; then the broker is killed
    harness.store.close()
    again = Harness(tmp_path)
    again.threads.run()
    assert bodies(again, "t", 0) == [XID.encode()]
    assert "has been heuristically committed" in Asker(again).refused(tx(XID, "COMMIT_TWO_PHASE"))
    again.close()


def test_a_batch_above_the_limit_is_refused_with_the_limit(frames, monkeypatch):
    monkeypatch.setattr("metaq.broker.requests.transaction.MAX_TX_BATCH_RECORDS", 2)
    assert frames.tx("TX:s:1", "BEGIN") == OK
    assert frames(RequestCode.SEND_BATCH, *batch("TX:s:1", "t", 0, [b"a", b"b"])).code == ResponseCode.SUCCESS
    refused = frames(RequestCode.SEND_BATCH, *batch("TX:s:1", "t", 0, [b"a", b"b", b"c"]))
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert "at most 2 messages" in refused.remark


@pytest.mark.parametrize("wrong", [b"\0\0\0\x02", b"\xff\xff\xff\xff"], ids=["longer", "negative"])
def test_a_batch_with_a_record_of_another_length_is_refused(frames, wrong):
    assert frames.tx("TX:s:1", "BEGIN") == OK
    request, payload = batch("TX:s:1", "t", 0, [b"a", b"b"])
    refused = frames(RequestCode.SEND_BATCH, request, payload[:8] + wrong + payload[12:])
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert "the record at byte 0 does not have its announced size" in refused.remark


def test_tiny_messages_count_with_the_memory_they_take(harness, frames):
    harness.broker.account.transaction_bytes._alone = 1000
    assert frames.tx("TX:s:1", "BEGIN") == OK
    assert frames(RequestCode.SEND_BATCH, *batch("TX:s:1", "t", 0, [b"a"] * 3)).code == ResponseCode.SUCCESS
    assert "commit sooner" in frames.send("TX:s:1", "t", 0, b"a").remark
    assert frames.tx("TX:s:1", "ROLLBACK") == OK
    assert frames.tx("TX:s:2", "BEGIN") == OK
    assert frames(RequestCode.SEND_BATCH, *batch("TX:s:2", "t", 0, [b"a"] * 3)).code == ResponseCode.SUCCESS


def test_what_is_open_is_listed_and_ended_by_an_operator(harness, frames):
    assert frames.tx(XID, "BEGIN") == OK
    assert frames.tx("TX:s:1", "BEGIN") == OK
    assert frames.send(XID, "t", 0, b"abc").code == ResponseCode.SUCCESS
    assert frames.prepared() == []
    assert [(each["key"], each["state"], each["bytes"], each["topics"]) for each in frames.active()] == [
        (XID, "active", 23, ["t"]),
        ("TX:s:1", "active", 0, []),
    ]
    code, reason = frames.complete(XID, "commit")
    assert (code, "only a prepared transaction can be decided" in reason) == (REFUSED, True)
    for key in (XID, "TX:s:1"):
        assert frames.complete(key, "rollback") == (ResponseCode.SUCCESS, "")
    assert frames.active() == []
    assert frames.tx(XID, "PREPARE") == (
        *(REFUSED, f"XAException:code=-4,msg=XA transaction '{XID}' has not been started."),
        "-4",
    )
    assert harness.broker.account.transaction_bytes.used == harness.broker.account.transactions.used == 0


def test_an_xa_transaction_without_a_timeout_ends_when_nothing_comes_for_it(harness, frames):
    assert frames.tx(XID, "BEGIN") == OK
    assert frames.tx("TX:s:1", "BEGIN") == OK
    for _ in range(3):
        harness.reactor.advance(599)
        assert frames.send(XID, "t", 0, b"abc").code == ResponseCode.SUCCESS
    frames.peer.lose()
    harness.reactor.advance(599)
    assert harness.broker.account.transaction_bytes.used == 3 * (23 + 256)
    harness.reactor.advance(1)
    assert harness.broker.account.transaction_bytes.used == harness.broker.account.transactions.used == 0


def test_a_prepared_transaction_does_not_end(harness, frames):
    assert frames.tx(XID, "BEGIN") == OK
    assert frames.send(XID, "t", 0, b"abc").code == ResponseCode.SUCCESS
    assert frames.tx(XID, "PREPARE")[0] == ResponseCode.SUCCESS
    harness.reactor.advance(6000)
    assert [each["key"] for each in frames.prepared()] == [XID]


def prepared_bytes(harness):
    return harness.broker.account.prepared.used


def test_no_transaction_is_prepared_that_would_not_fit_into_the_list(harness, frames):
    """A coordinator takes what the list does not name for ended: there is no part of it."""
    keys = [f"XID:1:0{number}:0b:{'q' * 900}" for number in range(3)]
    for key in keys:
        assert frames.tx(key, "BEGIN") == OK
        assert frames.send(key, "t", 0, b"abc").code == ResponseCode.SUCCESS
    assert frames.tx(keys[0], "PREPARE")[0] == ResponseCode.SUCCESS
    harness.broker.account.prepared._alone = 2 * prepared_bytes(harness)
    assert frames.tx(keys[1], "PREPARE")[0] == ResponseCode.SUCCESS
    code, reason, _ = frames.tx(keys[2], "PREPARE")
    assert code == REFUSED
    assert "XAException:code=-3,msg=too many bytes in the list of prepared transactions" in reason
    assert "commit or roll back what is prepared first" in reason
    assert [each["key"] for each in frames.prepared()] == keys[:2]
    assert frames.tx(keys[0], "COMMIT_TWO_PHASE")[0] == ResponseCode.SUCCESS
    assert frames.tx(keys[2], "PREPARE")[0] == ResponseCode.SUCCESS
    assert frames.tx(keys[2], "ROLLBACK")[0] == ResponseCode.SUCCESS
    assert frames.tx(keys[1], "ROLLBACK")[0] == ResponseCode.SUCCESS
    assert prepared_bytes(harness) == 0


def test_what_an_operator_has_decided_counts_in_the_list_until_it_is_forgotten(harness, frames, tmp_path):
    assert frames.tx(XID, "BEGIN") == OK
    assert frames.send(XID, "t", 0, b"abc").code == ResponseCode.SUCCESS
    assert frames.tx(XID, "PREPARE")[0] == ResponseCode.SUCCESS
    prepared = prepared_bytes(harness)
    assert frames.complete(XID, "rollback") == (ResponseCode.SUCCESS, "")
    assert 0 < prepared_bytes(harness) < prepared
    decided = prepared_bytes(harness)
    harness.broker.transactions.abandon("another node leads")
    assert prepared_bytes(harness) == 0
    harness.broker.transactions.open()
    assert prepared_bytes(harness) == decided
    assert frames.complete(XID, "forget") == (ResponseCode.SUCCESS, "")
    assert prepared_bytes(harness) == 0


def test_prepared_transactions_of_an_earlier_life_count_in_the_list(harness, frames):
    assert frames.tx(XID, "BEGIN") == OK
    assert frames.send(XID, "t", 0, b"abc").code == ResponseCode.SUCCESS
    assert frames.tx(XID, "PREPARE")[0] == ResponseCode.SUCCESS
    before = prepared_bytes(harness)
    harness.broker.transactions.abandon("another node leads")
    harness.broker.transactions.open()
    assert prepared_bytes(harness) == before > 0
    assert frames.tx(XID, "ROLLBACK")[0] == ResponseCode.SUCCESS
    assert prepared_bytes(harness) == 0


@pytest.mark.parametrize("qualifier", ["tm", "\N{SNOWMAN}" * 300, "\N{ROCKET}" * 300, '"\\' * 200])
def test_no_row_is_larger_than_what_is_counted_for_it(harness, frames, qualifier):
    key = f"XID:2147483647:ff:ff:{qualifier}"
    assert frames.tx(key, "BEGIN") == OK
    for topic, partition in (("t", 0), ("safe", 1)):
        assert frames.send(key, topic, partition, bytes(5000)).code == ResponseCode.SUCCESS
    assert frames.tx(key, "PREPARE")[0] == ResponseCode.SUCCESS
    counted = prepared_bytes(harness)
    assert len(encode_json(frames.prepared())) <= counted
    assert len(key.encode()) + 2 <= counted
    assert frames.complete(key, "rollback") == (ResponseCode.SUCCESS, "")
    assert len(encode_json(frames.prepared())) <= prepared_bytes(harness) < counted


def test_a_full_list_fits_into_one_frame():
    assert MAX_PREPARED_BYTES + MAX_ACTIVE_BYTES + (64 << 10) < MAX_FRAME_BYTES


def test_open_transactions_that_are_not_prepared_have_a_bounded_part_of_the_list(harness, frames, monkeypatch):
    for number in range(3):
        assert frames.tx(f"TX:s:{number}", "BEGIN") == OK
    assert len(frames.active()) == 3
    monkeypatch.setattr("metaq.broker.transactions.transactions.MAX_ACTIVE_BYTES", 2 * listed_bytes("TX:s:1"))
    assert len(frames.active()) == 2


def test_the_list_is_made_in_slices_and_names_what_is_there_when_its_turn_comes(harness, frames, monkeypatch):
    monkeypatch.setattr("metaq.broker.transactions.open_transactions._COMPARED", 1)
    keys = [f"XID:1:0{number}:0b:tm" for number in range(5)]
    for key in keys:
        assert frames.tx(key, "BEGIN") == OK
        assert frames.send(key, "t", 0, bytes(10)).code == ResponseCode.SUCCESS
    for key in keys[:3]:
        assert frames.tx(key, "PREPARE")[0] == ResponseCode.SUCCESS
    monkeypatch.setattr("metaq.broker.tuning.TURN_SECONDS", 0.0)
    other = Frames(harness)
    ext = PreparedTransactionsRequest(active=True).to_ext()
    frames.peer.send(encode_frame(RequestCode.PREPARED_TRANSACTIONS, 1, ext))
    assert other.complete(keys[1], "rollback") == (ResponseCode.SUCCESS, "")
    turns = 0
    while not (answers := frames.peer.frames()):
        step(harness)
        turns += 1
    assert turns >= 5
    found = [(each["key"], each["state"]) for each in json.loads(bytes(answers[0].body))]
    expected = [(keys[number], state) for number, state in enumerate(["prepared", "", "prepared", "active", "active"])]
    assert found == [each for each in expected if each[1]] + [(keys[1], "heuristic_rollback")]


def test_one_address_does_not_take_all_memory_of_transactions(harness, frames):
    harness.broker.account = harness.broker.transactions._open._account = Account(
        Quotas(transaction_bytes=16_000), harness.reactor
    )
    other = Frames(harness)
    other.peer = harness.connect("10.0.0.9")
    for number, asker in enumerate((frames, other)):
        assert asker.tx(f"XID:1:0{number}ff:01:tm", "BEGIN") == OK
    assert other.send("XID:1:01ff:01:tm", "t", 0, b"a").code == ResponseCode.SUCCESS
    while (answer := frames.send("XID:1:00ff:01:tm", "t", 0, bytes(1000))).code == ResponseCode.SUCCESS:
        pass
    assert "too many bytes in open transactions: this broker has 7" in answer.remark
    assert "one address may have 8000 beside others" in answer.remark
    assert other.send("XID:1:01ff:01:tm", "t", 0, bytes(5000)).code == ResponseCode.SUCCESS
