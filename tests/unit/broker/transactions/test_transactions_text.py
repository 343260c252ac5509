"""The verbs of `transaction` and puts with a key, as 1.x's clients use them, on a broker without a port."""

import pytest

from metaq.protocol.record import checksum, iter_headers
from tests.unit.broker.harness import put
from tests.unit.broker.transactions.conversation import XID, Asker, bodies, tx, tx_put

NOT_STARTED = "XAException:code=-4,msg=XA transaction '{}' has not been started."

CORRUPTED = "Checksum failure,message may be corrupted when transfering on networking."


@pytest.fixture
def ask(harness):
    return Asker(harness)


# --- local transactions -----------------------------------------------------------------------------------------------


def test_messages_are_seen_at_the_commit_as_one_block_in_the_order_of_the_puts(harness, ask):
    ask.ok(tx("TX:s:1", "BEGIN"))
    answer = ask(tx_put("TX:s:1", "t", 0, b"a", 7))
    assert answer.opaque == 7
    message_id, partition, offset = answer.text.split(" ")
    assert (int(message_id) > 0, partition, offset) == (True, "0", "-1")
    ask.ok(tx_put("TX:s:1", "t", 1, b"b"), tx_put("TX:s:1", "t", 0, b"c"), put("t", 0, b"between"))
    assert bodies(harness, "t", 0) == [b"between"]
    assert ask.ok(tx("TX:s:1", "COMMIT_ONE_PHASE")) == ""
    assert bodies(harness, "t", 0) == [b"between", b"a", b"c"]
    assert bodies(harness, "t", 1) == [b"b"]
    (header, *_) = iter_headers(harness.store.get("t", 1).segments.snapshot().read(0, 100))
    assert header.checksum == checksum(b"b")
    assert int(message_id) < header.id
    assert ask.refused(tx("TX:s:1", "COMMIT_ONE_PHASE")) == "Local transaction 'TX:s:1' has not been started."


def test_ids_are_those_that_the_puts_were_answered_with(harness, ask):
    ask.ok(tx("TX:s:1", "BEGIN"))
    ids = [int(ask.ok(tx_put("TX:s:1", "t", 0, body)).split(" ")[0]) for body in (b"a", b"b")]
    ask.ok(tx("TX:s:1", "COMMIT_TWO_PHASE"))
    data = harness.store.get("t", 0).segments.snapshot().read(0, 100)
    assert [header.id for header in iter_headers(data)] == ids


def test_nothing_of_a_rolled_back_transaction_is_seen(harness, ask):
    ask.ok(tx("TX:s:1", "BEGIN", 30), tx_put("TX:s:1", "t", 0, b"a"), tx("TX:s:1", "ROLLBACK"))
    assert bodies(harness, "t", 0) == []
    assert ask.refused(tx("TX:s:1", "ROLLBACK")).endswith("has not been started.")
    ask.ok(tx("TX:s:1", "BEGIN"), tx("TX:s:1", "COMMIT_ONE_PHASE"))  # the key is free again; an empty one is fine
    assert bodies(harness, "t", 0) == []


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (tx_put("TX:s:1", "t", -1, b"x"), "Invalid partition for transaction command:-1"),
        (tx_put("TX:s:1", "t", 7, b"x"), "wrong partition 7"),
        (tx_put("TX:s:1", "nope", 0, b"x"), "The server do not accept topic nope"),
        (tx_put("TX:s:9", "t", 0, b"x"), "Local transaction 'TX:s:9' has not been started."),
        (tx_put("null", "t", 0, b"x"), "Local transaction 'null' has not been started."),
        (tx_put(XID, "t", 0, b"x"), f"XA transaction '{XID}' has not been started."),
        (tx_put("TX:s:1", "t", 0, b"x", crc=5), CORRUPTED),
        (tx("TX:s:1", "PREPARE"), "XAException:code=-3,msg=Prepare not implemented on Local Transactions."),
        (tx("TX:s:1", "FORGET"), "XAException:code=-4,msg=TX:s:1 is not a valid xid"),
        (tx("TX:s:9", "PREPARE"), "Local transaction 'TX:s:9' has not been started."),
        (tx("null", "BEGIN"), "BEGIN needs the key of a transaction: null is for RECOVER only"),
        (tx("null", "COMMIT_ONE_PHASE"), "Local transaction 'null' has not been started."),
        (tx("null", "FORGET"), "XAException:code=-4,msg=null is not a valid xid"),
    ],
)
def test_what_cannot_be_is_refused_in_1xs_words_and_changes_nothing(harness, ask, request_, text):
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"a"))
    assert ask.refused(request_) == text
    ask.ok(tx("TX:s:1", "COMMIT_ONE_PHASE"))
    assert bodies(harness, "t", 0) == [b"a"]


def test_a_local_transaction_belongs_to_its_connection(harness, ask):
    other = Asker(harness)
    ask.ok(tx("TX:s:1", "BEGIN"), tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"a"))
    for request in (tx_put("TX:s:1", "t", 0, b"x"), tx("TX:s:1", "COMMIT_ONE_PHASE"), tx("TX:s:1", "ROLLBACK")):
        assert other.refused(request) == "Local transaction 'TX:s:1' has not been started."
    assert "another connection" in other.refused(tx("TX:s:1", "BEGIN"))
    ask.ok(tx("TX:s:1", "COMMIT_ONE_PHASE"))
    assert bodies(harness, "t", 0) == [b"a"]


def test_a_local_transaction_is_rolled_back_when_its_connection_closes(harness, ask):
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"a"), tx(XID, "BEGIN"), tx_put(XID, "t", 0, b"xa"))
    ask.peer.lose()
    harness.threads.run()
    other = Asker(harness)
    other.ok(tx("TX:s:1", "BEGIN"), tx("TX:s:1", "COMMIT_ONE_PHASE"), tx(XID, "COMMIT_ONE_PHASE"))
    assert bodies(harness, "t", 0) == [b"xa"]


def test_a_commit_that_is_under_way_when_its_connection_closes_is_finished(harness, ask):
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "safe", 0, b"a"))
    ask.peer.send(tx("TX:s:1", "COMMIT_ONE_PHASE"))
    ask.peer.lose()
    harness.threads.run()
    assert bodies(harness, "safe", 0) == [b"a"]


def test_a_closed_partition_takes_messages_of_a_transaction_as_in_1x(harness, ask):
    harness.broker.partitions.close("t", 0, 0)
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"a"), tx("TX:s:1", "COMMIT_ONE_PHASE"))
    harness.broker.partitions.open("t")
    assert bodies(harness, "t", 0) == [b"a"]


# --- XA ---------------------------------------------------------------------------------------------------------------


def test_two_phases(harness, ask):
    other = Asker(harness)
    ask.ok(tx(XID, "BEGIN", 20, "host"), tx(XID, "BEGIN", "host"), tx_put(XID, "t", 0, b"a"))
    other.ok(tx_put(XID.upper().replace("HOST", "host"), "t", 1, b"b"))  # any connection, any case
    early = ask.refused(tx(XID, "COMMIT_TWO_PHASE", "host"))
    assert early == "XAException:code=-6,msg=Cannot do 2 phase commit if the transaction has not been prepared."
    assert ask.ok(tx("null", "RECOVER")) == ""
    assert ask.ok(tx(XID, "PREPARE", "host")) == "0"
    assert ask.refused(tx(XID, "PREPARE", "host")) == "XAException:code=-6,msg=Cannot call prepare now."
    assert "takes no more messages" in ask.refused(tx_put(XID, "t", 0, b"late"))
    assert [other.ok(tx("null", "RECOVER", *each)) for each in (["host"], ["other"], [])] == [XID, "", XID]
    assert bodies(harness, "t", 0) == []
    assert other.ok(tx(XID, "COMMIT_TWO_PHASE", "host")) == ""
    assert (bodies(harness, "t", 0), bodies(harness, "t", 1)) == ([b"a"], [b"b"])
    assert ask.ok(tx("null", "RECOVER")) == ""
    for verb in ("COMMIT_TWO_PHASE", "ROLLBACK", "PREPARE"):
        assert ask.refused(tx(XID, verb, "host")) == NOT_STARTED.format(XID)
    assert ask.ok(tx(XID, "FORGET")) == ""


def test_several_prepared_transactions_are_listed_line_by_line(ask):
    keys = [f"XID:1:0{number}::host" for number in range(3)]
    for key in keys:
        ask.ok(tx(key, "BEGIN"), tx_put(key, "t", 0, b"a"), tx(key, "PREPARE"))
    assert ask.ok(tx("null", "RECOVER", "host")) == "\r\n".join(keys)


@pytest.mark.parametrize("verb", ["COMMIT_ONE_PHASE", "COMMIT_TWO_PHASE", "ROLLBACK"])
def test_a_prepared_transaction_ends_by_every_verb_that_may_end_it(harness, ask, verb):
    ask.ok(tx(XID, "BEGIN"), tx_put(XID, "t", 0, b"a"), tx(XID, "PREPARE"), tx(XID, verb))
    assert bodies(harness, "t", 0) == ([] if verb == "ROLLBACK" else [b"a"])


def test_preparing_an_empty_transaction_ends_it(ask):
    assert ask.ok(tx(XID, "BEGIN"), tx(XID, "PREPARE")) == "3"
    assert ask.refused(tx(XID, "COMMIT_TWO_PHASE")) == NOT_STARTED.format(XID)


def test_end_is_never_answered(harness, ask):
    ask.peer.send(tx(XID, "END") + tx("TX:s:1", "END") + tx("null", "END"))
    harness.threads.run()
    assert ask.peer.received() == b""


def test_prepare_and_commit_back_to_back_are_answered_in_order(harness, ask):
    ask.ok(tx(XID, "BEGIN"), tx_put(XID, "safe", 0, b"a"))
    requests = [tx(XID, verb, opaque=number) for number, verb in enumerate(("END", "PREPARE", "COMMIT_TWO_PHASE"), 1)]
    ask.peer.send(b"".join([*requests, b"version 4\r\n"]))
    assert ask.peer.received() == b""
    harness.threads.run()
    answers = ask.peer.answers()
    assert [(answer.opaque, answer.code) for answer in answers] == [(2, 200), (3, 200), (4, 200)]
    assert bodies(harness, "safe", 0) == [b"a"]


# --- timeouts, limits, figures ----------------------------------------------------------------------------------------


def test_an_unprepared_transaction_is_rolled_back_when_its_time_is_over(harness, ask):
    ask.ok(tx("TX:s:1", "BEGIN", 1), tx_put("TX:s:1", "t", 0, b"a"), tx("TX:s:2", "BEGIN"), tx(XID, "BEGIN", 1))
    ask.ok(tx_put(XID, "t", 0, b"b"), tx(XID, "PREPARE"))
    harness.reactor.advance(1.1)
    told = "Local transaction 'TX:s:1' has timed out after 1 s, and is rolled back."
    assert ask.refused(tx("TX:s:1", "COMMIT_ONE_PHASE")) == told
    assert ask.refused(tx_put("TX:s:1", "t", 0, b"c")) == told
    ask.ok(tx("TX:s:1", "BEGIN", 1), tx("TX:s:1", "ROLLBACK"))  # the key is free again
    assert ask.refused(tx("TX:s:1", "ROLLBACK")).endswith("has not been started.")
    ask.ok(tx("TX:s:2", "COMMIT_ONE_PHASE"), tx(XID, "COMMIT_TWO_PHASE"))
    assert bodies(harness, "t", 0) == [b"b"]


@pytest.fixture
def small(lives):
    return lives.start(system="maxTxTimeoutInSeconds=5\nmaxTxTimeoutTimerCapacity=2")


def test_a_timeout_is_cut_to_the_setting(small):
    small.ok(tx(XID, "BEGIN", 1000))
    small.harness.reactor.advance(5)
    told = "XAException:code=-4,msg=XA transaction '{}' has timed out after 5 s, and is rolled back."
    assert small.refused(tx(XID, "COMMIT_ONE_PHASE")) == told.format(XID)


def test_no_more_timeouts_than_the_setting_says(small):
    small.ok(tx("TX:s:1", "BEGIN", 5), tx("TX:s:2", "BEGIN", 5))
    assert "maxTxTimeoutTimerCapacity" in small.refused(tx("TX:s:3", "BEGIN", 5))
    small.ok(tx("TX:s:4", "BEGIN"), tx("TX:s:1", "ROLLBACK"), tx("TX:s:3", "BEGIN", 5))
    small.harness.reactor.advance(5)
    small.ok(tx("TX:s:1", "BEGIN", 5))


def test_messages_of_open_transactions_are_bounded(ask, harness):
    harness.broker.account.transaction_bytes._alone = 400
    ask.ok(tx("TX:s:1", "BEGIN"), tx("TX:s:2", "BEGIN"), tx_put("TX:s:1", "t", 0, bytes(60)))
    assert "commit sooner" in ask.refused(tx_put("TX:s:2", "t", 0, bytes(60)))
    ask.ok(tx("TX:s:1", "COMMIT_ONE_PHASE"), tx_put("TX:s:2", "t", 0, bytes(60)))


def test_open_transactions_are_bounded(ask, harness):
    harness.broker.account.transactions._alone = 1
    ask.ok(tx("TX:s:1", "BEGIN"))
    assert "too many open transactions: this broker has 1 of" in ask.refused(tx(XID, "BEGIN"))
    ask.ok(tx("TX:s:1", "ROLLBACK"), tx(XID, "BEGIN"))


def test_stats_count_the_verbs_and_the_messages_taken(ask):
    ask.ok(tx("TX:s:1", "BEGIN"), tx("TX:s:1", "BEGIN"), tx(XID, "BEGIN"), tx_put("TX:s:1", "t", 0, b"a"))
    ask.ok(tx("TX:s:1", "COMMIT_ONE_PHASE"), tx(XID, "ROLLBACK"))
    ask.refused(tx("TX:s:1", "COMMIT_ONE_PHASE"))
    ask.refused(tx_put("TX:s:1", "t", 0, b"a"))
    lines = dict(line.split(" ") for line in ask.ok(b"stats  9\r\n").split("\r\n") if " " in line)
    counted = [lines[name] for name in ("tx_begin", "tx_xa_begin", "tx_commit", "tx_rollback", "cmd_put", "put_failed")]
    assert counted == ["3", "1", "2", "1", "1", "1"]
