"""Transactions in frames: TRANSACTION, SEND and SEND_BATCH with `txKey`, and what operators decide."""

import json

import numpy as np
import pytest

from metaq.broker.reading.answers import encode_json
from metaq.broker.runtime.account import MAX_PREPARED_BYTES, Account, Quotas
from metaq.broker.transactions.open_transactions import listed_bytes
from metaq.broker.transactions.transactions import MAX_ACTIVE_BYTES
from metaq.protocol.frames import ONE_WAY, encode_frame
from metaq.protocol.limits import MAX_FRAME_BYTES
from metaq.protocol.record import checksum, encode_record
from metaq.protocol.sends import SendBatchRequest, SendReply, SendRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.transaction_requests import (
    CompleteTransactionRequest,
    TransactionRequest,
)
from tests.unit.broker.test_slices import step
from tests.unit.broker.transactions.conversation import XID, bodies, tx, tx_put

OK = (ResponseCode.SUCCESS, "", None)
DONE = (ResponseCode.SUCCESS, "")
REFUSED = ResponseCode.TRANSACTION_REFUSED


class Frames:
    """A connection that sends frames and waits for their answers."""

    def __init__(self, harness, host="127.0.0.1"):
        self.harness = harness
        self.peer = harness.connect(host)

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

    def batch(self, key, messages, changed=lambda payload: payload):
        records = [encode_record(body, 0, 0) for body in messages]
        payload = np.array([len(record) for record in records], ">u4").tobytes() + b"".join(records)
        return self(RequestCode.SEND_BATCH, SendBatchRequest("t", 0, len(records), key), changed(payload))

    def begun(self, *keys):
        for key in keys:
            assert self.tx(key, "BEGIN") == OK

    def open(self, *keys):
        """Each with a message."""
        for key in keys:
            self.begun(key)
            assert self.send(key, "t", 0, b"abc").code == ResponseCode.SUCCESS

    def prepared(self, *keys):
        """Each with a message."""
        for key in keys:
            self.open(key)
            assert self.tx(key, "PREPARE") == (ResponseCode.SUCCESS, "0", None)

    def complete(self, key, action):
        frame = self(RequestCode.COMPLETE_TRANSACTION, CompleteTransactionRequest(key, action))
        return frame.code, frame.remark

    def listed(self, **ext):
        return json.loads(bytes(self(RequestCode.PREPARED_TRANSACTIONS, ext).body))

    def states(self, **ext):
        return [(each["key"], each["state"]) for each in self.listed(**ext)]


@pytest.fixture
def frames(harness):
    return Frames(harness)


def test_a_local_transaction_with_single_messages_and_batches(harness, frames):
    assert frames.tx("TX:s:1", "BEGIN", session_id="s") == OK
    single = SendReply.from_ext(frames.send("TX:s:1", "t", 0, b"a", checksum(b"a")).ext)
    assert (single.partition, single.offset) == (0, -1)
    assert SendReply.from_ext(frames.batch("TX:s:1", [b"b", b"", b"c"]).ext).message_id > single.message_id
    assert bodies(harness, "t", 0) == []
    assert frames.tx("TX:s:1", "END") == frames.tx("TX:s:1", "COMMIT_ONE_PHASE") == OK
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
    frames.begun("TX:s:1")
    assert frames.send("TX:s:1", "t", 0, b"a", 5).code == ResponseCode.MESSAGE_ILLEGAL
    assert frames.send("TX:s:1", "t", -1, b"a").code == REFUSED
    assert frames.send("TX:s:1", "t", 7, b"a").code == ResponseCode.TOPIC_NOT_EXIST
    for wrong in (lambda payload: payload[:-1] + b"X", lambda payload: payload + b"X"):
        assert frames.batch("TX:s:1", [b"abc", b"def"], wrong).code == ResponseCode.MESSAGE_ILLEGAL
    assert frames.tx("TX:s:1", "COMMIT_ONE_PHASE") == OK
    assert list(harness.store.logs()) == [] or bodies(harness, "t", 0) == []


@pytest.mark.parametrize("length", [b"\0\0\0\x02", b"\xff\xff\xff\xff"], ids=["longer", "negative"])
def test_a_batch_with_a_record_of_another_length_is_refused(frames, length):
    frames.begun("TX:s:1")
    refused = frames.batch("TX:s:1", [b"a", b"b"], lambda payload: payload[:8] + length + payload[12:])
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert "the record at byte 0 does not have its announced size" in refused.remark


def test_a_batch_above_the_limit_is_refused_with_the_limit(frames, monkeypatch):
    monkeypatch.setattr("metaq.broker.requests.transaction.MAX_TX_BATCH_RECORDS", 2)
    frames.begun("TX:s:1")
    assert frames.batch("TX:s:1", [b"a", b"b"]).code == ResponseCode.SUCCESS
    refused = frames.batch("TX:s:1", [b"a", b"b", b"c"])
    assert (refused.code, "at most 2 messages" in refused.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)


def test_text_frames_and_one_way_frames_of_one_connection_share_its_transactions(harness, frames):
    frames.begun("TX:s:1")
    frames.peer.send(tx_put("TX:s:1", "t", 0, b"a"))
    assert [answer.code for answer in frames.peer.answers()] == [200]
    assert frames.send("TX:s:1", "t", 0, b"b", flag=ONE_WAY) is None
    assert frames.tx("TX:s:1", "COMMIT_ONE_PHASE") == OK
    assert bodies(harness, "t", 0) == [b"a", b"b"]


def test_two_phases_and_recover(harness, frames):
    assert frames.tx(XID, "BEGIN", timeout_seconds=5, qualifier="host") == OK
    frames.send(XID, "t", 0, b"a")
    assert frames.tx(XID, "PREPARE") == (ResponseCode.SUCCESS, "0", None)
    found = [frames.tx(None, "RECOVER", **more)[1] for more in ({"qualifier": "host"}, {"qualifier": "other"}, {})]
    assert found == [XID, "", XID]
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


def test_prepared_transactions_are_listed_with_figures(harness, frames):
    frames.prepared(XID)
    frames.begun("XID:1:::q")
    expected = {"key": XID, "messages": 1, "bytes": 23, "topics": ["t"], "state": "prepared"}
    assert frames.listed() == [expected | {"prepared_at_ms": harness.broker.now_ms()}]


@pytest.mark.parametrize(
    ("action", "code", "word", "seen"),
    [("commit", 7, "committed", True), ("rollback", 6, "rolled back", False), ("complete", 8, "completed", False)],
)
def test_an_operators_decision_is_what_the_coordinator_is_told_until_it_forgets(lives, action, code, word, seen):
    lives.start()
    frames = Frames(lives.harness)
    frames.prepared(XID)
    assert frames.complete(XID, action) == DONE
    told = f"XAException:code={code},msg=XA transaction '{XID}' has been heuristically {word}."
    for _ in range(2):
        assert bodies(lives.harness, "t", 0) == ([b"abc"] if seen else [])
        for verb in ("COMMIT_TWO_PHASE", "ROLLBACK", "PREPARE", "BEGIN"):
            assert frames.tx(XID, verb) == (REFUSED, told, str(code))
        assert frames.send(XID, "t", 0, b"x").remark == told.partition("msg=")[2]
        assert frames.complete(XID, "commit") == (REFUSED, told)
        assert frames.tx(None, "RECOVER")[1] == XID
        assert frames.states() == [(XID, f"heuristic_{action}")]
        lives.again()  # it is told after a restart, too
        frames = Frames(lives.harness)
    assert frames.tx(XID, "FORGET") == OK
    assert frames.tx(XID, "COMMIT_TWO_PHASE")[2] == "-4"
    assert frames.listed() == []


def test_an_operator_may_forget_in_the_coordinators_place_but_not_what_is_open(frames):
    frames.prepared(XID)
    codes = [frames.complete(XID, action)[0] for action in ("forget", "rollback", "forget", "forget")]
    assert codes == [REFUSED, ResponseCode.SUCCESS, ResponseCode.SUCCESS, REFUSED]


def test_only_what_is_prepared_can_be_decided(frames):
    assert frames.complete(XID, "commit")[0] == REFUSED
    frames.begun(XID)
    assert "-6" in frames.complete(XID, "commit")[1]
    frame = frames(RequestCode.COMPLETE_TRANSACTION, {"txKey": XID, "action": "undo"})
    assert frame.code == ResponseCode.MESSAGE_ILLEGAL


def test_operators_requests_come_from_the_brokers_machine(harness):
    elsewhere = Frames(harness, "192.0.2.7")
    for code in (RequestCode.PREPARED_TRANSACTIONS, RequestCode.COMPLETE_TRANSACTION):
        assert elsewhere(code, {}).code == ResponseCode.NO_PERMISSION


def test_a_decision_that_was_noted_but_not_done_is_done_at_the_next_start(lives):
    lives.start()
    frames = Frames(lives.harness)
    frames.prepared(XID)
    request = CompleteTransactionRequest(XID, "commit").to_ext()
    frames.peer.send(encode_frame(RequestCode.COMPLETE_TRANSACTION, 1, request))
    function, _ = lives.harness.threads.waiting.pop(0)
    function()  # the note is on the disk; then the broker is killed
    lives.kill()
    ask = lives.start()
    lives.harness.threads.run()
    assert bodies(lives.harness, "t", 0) == [b"abc"]
    assert "has been heuristically committed" in ask.refused(tx(XID, "COMMIT_TWO_PHASE"))


def test_tiny_messages_count_with_the_memory_they_take(harness, frames):
    harness.broker.account.transaction_bytes._alone = 1000
    for key in ("TX:s:1", "TX:s:2"):
        frames.begun(key)
        assert frames.batch(key, [b"a"] * 3).code == ResponseCode.SUCCESS
        assert "commit sooner" in frames.send(key, "t", 0, b"a").remark
        assert frames.tx(key, "ROLLBACK") == OK


def test_what_is_open_is_listed_and_ended_by_an_operator(harness, frames):
    frames.open(XID)
    frames.begun("TX:s:1")
    assert frames.listed() == []
    assert [(each["key"], each["state"], each["bytes"], each["topics"]) for each in frames.listed(active="1")] == [
        (XID, "active", 23, ["t"]),
        ("TX:s:1", "active", 0, []),
    ]
    code, reason = frames.complete(XID, "commit")
    assert (code, "only a prepared transaction can be decided" in reason) == (REFUSED, True)
    assert [frames.complete(key, "rollback") for key in (XID, "TX:s:1")] == [DONE] * 2
    assert frames.listed(active="1") == []
    told = f"XAException:code=-4,msg=XA transaction '{XID}' has not been started."
    assert frames.tx(XID, "PREPARE") == (REFUSED, told, "-4")
    assert harness.broker.account.transaction_bytes.used == harness.broker.account.transactions.used == 0


def test_an_xa_transaction_without_a_timeout_ends_when_nothing_comes_for_it(harness, frames):
    account = harness.broker.account
    frames.begun(XID, "TX:s:1")
    for _ in range(3):
        harness.reactor.advance(599)
        assert frames.send(XID, "t", 0, b"abc").code == ResponseCode.SUCCESS
    frames.peer.lose()
    harness.reactor.advance(599)
    assert account.transaction_bytes.used == 3 * (23 + 256)
    harness.reactor.advance(1)
    assert account.transaction_bytes.used == account.transactions.used == 0


# --- the list of what is prepared -------------------------------------------------------------------------------------


@pytest.fixture
def prepared(harness):
    """What the list takes of the account."""
    return harness.broker.account.prepared


def test_a_prepared_transaction_does_not_end(harness, frames):
    frames.prepared(XID)
    harness.reactor.advance(6000)
    assert frames.states() == [(XID, "prepared")]


def test_no_transaction_is_prepared_that_would_not_fit_into_the_list(frames, prepared):
    """A coordinator takes what the list does not name for ended: there is no part of it."""
    keys = [f"XID:1:0{number}:0b:{'q' * 900}" for number in range(3)]
    frames.prepared(keys[0])
    prepared._alone = 2 * prepared.used
    frames.prepared(keys[1])
    frames.open(keys[2])
    code, reason, _ = frames.tx(keys[2], "PREPARE")
    assert code == REFUSED
    assert "XAException:code=-3,msg=too many bytes in the list of prepared transactions" in reason
    assert "commit or roll back what is prepared first" in reason
    assert [key for key, _ in frames.states()] == keys[:2]
    steps = ((keys[0], "COMMIT_TWO_PHASE"), (keys[2], "PREPARE"), (keys[2], "ROLLBACK"), (keys[1], "ROLLBACK"))
    assert [frames.tx(*each)[0] for each in steps] == [ResponseCode.SUCCESS] * 4
    assert prepared.used == 0


def test_what_an_operator_has_decided_counts_in_the_list_until_it_is_forgotten(harness, frames, prepared):
    """Also for the next leadership, like what is prepared."""
    frames.prepared(XID)
    sizes = [prepared.used]
    for action in ("", "rollback"):
        if action:
            assert frames.complete(XID, action) == DONE
            sizes.append(prepared.used)
        harness.broker.transactions.abandon("another node leads")
        assert prepared.used == 0
        harness.broker.transactions.open()
        assert prepared.used == sizes[-1]
    assert 0 < sizes[1] < sizes[0]
    assert frames.complete(XID, "forget") == DONE
    assert prepared.used == 0


@pytest.mark.parametrize("qualifier", ["tm", "\N{SNOWMAN}" * 300, "\N{ROCKET}" * 300, '"\\' * 200])
def test_no_row_is_larger_than_what_is_counted_for_it(frames, prepared, qualifier):
    key = f"XID:2147483647:ff:ff:{qualifier}"
    frames.begun(key)
    for topic, partition in (("t", 0), ("safe", 1)):
        assert frames.send(key, topic, partition, bytes(5000)).code == ResponseCode.SUCCESS
    assert frames.tx(key, "PREPARE")[0] == ResponseCode.SUCCESS
    counted = prepared.used
    assert max(len(encode_json(frames.listed())), len(key.encode()) + 2) <= counted
    assert frames.complete(key, "rollback") == DONE
    assert len(encode_json(frames.listed())) <= prepared.used < counted


def test_a_full_list_fits_into_one_frame():
    assert MAX_PREPARED_BYTES + MAX_ACTIVE_BYTES + (64 << 10) < MAX_FRAME_BYTES


def test_open_transactions_that_are_not_prepared_have_a_bounded_part_of_the_list(frames, monkeypatch):
    frames.begun(*(f"TX:s:{number}" for number in range(3)))
    assert len(frames.listed(active="1")) == 3
    monkeypatch.setattr("metaq.broker.transactions.transactions.MAX_ACTIVE_BYTES", 2 * listed_bytes("TX:s:1"))
    assert len(frames.listed(active="1")) == 2


def test_the_list_is_made_in_slices_and_names_what_is_there_when_its_turn_comes(harness, frames, monkeypatch):
    monkeypatch.setattr("metaq.broker.transactions.open_transactions._COMPARED", 1)
    keys = [f"XID:1:0{number}:0b:tm" for number in range(5)]
    frames.prepared(*keys[:3])
    frames.open(*keys[3:])
    monkeypatch.setattr("metaq.broker.tuning.TURN_SECONDS", 0.0)
    frames.peer.send(encode_frame(RequestCode.PREPARED_TRANSACTIONS, 1, {"active": "1"}))
    assert Frames(harness).complete(keys[1], "rollback") == DONE
    turns = 0
    while not (answers := frames.peer.frames()):
        step(harness)
        turns += 1
    assert turns >= 5
    found = [(each["key"], each["state"]) for each in json.loads(bytes(answers[0].body))]
    states = ["prepared", "prepared", "active", "active", "heuristic_rollback"]
    assert found == list(zip([keys[0], *keys[2:], keys[1]], states, strict=True))


def test_one_address_does_not_take_all_memory_of_transactions(harness, frames):
    account = Account(Quotas(transaction_bytes=16_000), harness.reactor)
    harness.broker.account = harness.broker.transactions._open._account = account
    other = Frames(harness, "10.0.0.9")
    frames.begun("XID:1:00ff:01:tm")
    other.open("XID:1:01ff:01:tm")
    while (answer := frames.send("XID:1:00ff:01:tm", "t", 0, bytes(1000))).code == ResponseCode.SUCCESS:
        pass
    assert "too many bytes in open transactions: this broker has 7" in answer.remark
    assert "one address may have 8000 beside others" in answer.remark
    assert other.send("XID:1:01ff:01:tm", "t", 0, bytes(5000)).code == ResponseCode.SUCCESS
