"""Transactions against brokers in memory, in both protocols: all or nothing, on one broker and one connection."""

import threading

import pytest

from metaq import Message, Producer, ProducerConfig, TopicPartition
from metaq.client.settings.config import ConnectionConfig
from metaq.protocol import errors
from metaq.protocol.frames import Frame
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from metaq.protocol.text import TransactionCommand
from metaq.protocol.transaction_requests import TransactionRequest
from metaq.protocol.transactions import TransactionType, XaCode
from metaq.testing import FakeBroker, FakeCluster
from tests.component.client.harness import everything, together
from tests.speaking import speaking
from tests.waiting import DEADLINE

TOPICS = {"t": 2, "u": 1}
CONFIG = ProducerConfig(
    retry_min_seconds=0.001,
    retry_max_seconds=0.01,
    connection=ConnectionConfig(request_timeout_seconds=2.0, reconnect_min_seconds=0.01, reconnect_max_seconds=0.05),
)


def verb_of(request):
    if isinstance(request, Frame) and request.code == RequestCode.TRANSACTION:
        return TransactionRequest.from_ext(request.ext).type
    return request.type.value if isinstance(request, TransactionCommand) else ""


def refused(request):
    return ResponseCode.TRANSACTION_REFUSED if isinstance(request, Frame) else Status.ERROR


def begun(producer, payload=b"1"):
    """A transaction with a message."""
    transaction = producer.transaction()
    transaction.send("t", payload)
    return transaction


@pytest.mark.parametrize("outside", [False, True], ids=["its own messages", "messages outside"])
def test_a_transaction_waits_for_a_topic_that_is_away_as_a_send_does(broker, cluster, producer, outside):
    """As a broker set's between two leaders: of a topic that was sent to, by whatever."""
    if outside:
        producer.send("t", b"1")
    else:
        begun(producer).commit()
    cluster.unregister(broker)
    back = threading.Timer(0.5, cluster.register, (broker,))
    back.start()
    with producer.transaction() as transaction:
        transaction.send("t", b"2", timeout=DEADLINE)
    back.join()
    assert sorted(everything(broker)) == [b"1", b"2"]
    cluster.unregister(broker)
    with producer.transaction() as transaction, pytest.raises(errors.NoPartition):
        transaction.send("t", b"3", timeout=0.3)
    with producer.transaction() as transaction, pytest.raises(errors.NoPartition, match="no partition"):
        transaction.send("never", b"3", timeout=DEADLINE)


def test_all_messages_become_visible_at_the_end_of_the_block(broker, producer):
    with producer.transaction() as transaction:
        one = transaction.send("t", b"1", tag="a", partition=TopicPartition("t", 0, 1))
        more = transaction.send_batch("t", [b"2", Message(one.partition, 0, 0, 0, b"3")], partition=one.partition)
        transaction.send("u", b"4")
        assert transaction.send_batch("t", []) == []
        assert everything(broker) == []
    assert [body[-1:] for body in broker.bodies("t", 1)] == [b"1", b"2", b"3"]
    assert broker.bodies("u", 0) == [b"4"]
    assert one.pending
    assert [result.offset for result in more] == [-1, -1]
    assert [one.message_id, *(result.message_id for result in more)] == broker.log("t", 1).ids
    assert broker.transactions.keys == []


def test_a_batch_above_a_frames_limit_goes_in_several(broker, producer, monkeypatch):
    monkeypatch.setattr("metaq.client.producer.transaction.MAX_TX_BATCH_RECORDS", 2)
    bodies = [b"%d" % number for number in range(5)]
    with producer.transaction() as transaction:
        results = transaction.send_batch("t", bodies, partition=TopicPartition("t", 0, 1))
    assert broker.bodies("t", 1) == bodies
    assert [result.message_id for result in results] == broker.log("t", 1).ids
    frames = [each for each in broker.requests if isinstance(each, Frame) and each.code == RequestCode.SEND_BATCH]
    assert [each.ext["count"] for each in frames] in (["2", "2", "1"], [])


def test_an_exception_in_the_block_rolls_back_and_goes_on(broker, producer):
    def fail():
        with producer.transaction() as transaction:
            transaction.send("t", b"1")
            raise KeyError("why")

    with pytest.raises(KeyError, match="why"):
        fail()
    assert (everything(broker), broker.transactions.keys) == ([], [])
    producer.send("t", b"outside")
    assert everything(broker) == [b"outside"]


def test_a_transaction_without_a_message_asks_nothing_of_a_broker(broker, producer):
    with producer.transaction():
        pass
    producer.transaction().rollback()
    assert broker.requests == []


def test_commit_and_rollback_may_be_called_inside_the_block(broker, producer):
    with producer.transaction() as transaction:
        transaction.send("t", b"1")
        transaction.commit()
        with pytest.raises(errors.ClientError, match="is committed"):
            transaction.send("t", b"late")
        with pytest.raises(errors.ClientError, match="is committed"):
            transaction.rollback()
    with producer.transaction() as transaction:
        transaction.send("t", b"2")
        transaction.rollback()
        with pytest.raises(errors.ClientError, match="is rolled back"):
            transaction.commit()
    assert everything(broker) == [b"1"]


def test_each_transaction_has_a_key_of_its_own_and_the_timeout_that_was_asked_for(broker, producer):
    seen = []

    def note(request):
        if isinstance(request, TransactionCommand):
            seen.append((request.key, request.type.value, request.timeout or 0))
        elif verb_of(request):
            fields = TransactionRequest.from_ext(request.ext)
            seen.append((fields.tx_key, fields.type, fields.timeout_seconds))

    broker.refuse = note
    for seconds in (None, 7, 0):
        with producer.transaction(timeout_seconds=seconds) as transaction:
            transaction.send("t", b"")
    assert [seconds for _, kind, seconds in seen if kind == "BEGIN"] == [60, 7, 0]
    assert len({key for key, _, _ in seen}) == 3
    assert all(str(key).startswith("TX:") and str(key).count(":") == 2 for key, _, _ in seen)


@pytest.fixture
def two_brokers():
    with FakeBroker({"t": 2}, 0) as first, FakeBroker({"t": 2, "only1": 1}, 1) as second:
        yield first, second


def test_the_first_message_chooses_the_broker_and_the_others_stay_there(two_brokers, protocol):
    with Producer(metadata=FakeCluster(two_brokers), config=speaking(protocol, CONFIG)) as producer:
        with producer.transaction() as transaction:
            first = transaction.send("t", b"0", partition=TopicPartition("t", 1, 0))
            others = [transaction.send("t", b"x", key=f"k{number}") for number in range(10)]
            others += [transaction.send("t", b"x") for _ in range(4)]
            with pytest.raises(errors.NoPartition, match="not on broker 1"):
                transaction.send("t", b"", partition=TopicPartition("t", 0, 0))
            transaction.send("only1", b"still usable")
        assert first.partition.broker == 1
        assert {result.partition for result in others} == {TopicPartition("t", 1, 0), TopicPartition("t", 1, 1)}
        transaction = producer.transaction()
        transaction.send("t", b"", partition=TopicPartition("t", 0, 0))
        with pytest.raises(errors.NoPartition, match="does not publish topic 'only1'"):
            transaction.send("only1", b"")
    assert len(everything(two_brokers[1])) == 16
    assert everything(two_brokers[0]) == []


def test_a_transaction_begins_on_another_broker_when_the_first_is_down(two_brokers, protocol):
    first, second = two_brokers
    first.stop()
    with Producer(metadata=FakeCluster(two_brokers), config=speaking(protocol, CONFIG)) as producer:
        for _ in range(4):
            with producer.transaction() as transaction:
                transaction.send("t", b"x")
        with pytest.raises(errors.BrokerUnavailable), producer.transaction() as transaction:
            transaction.send("t", b"x", partition=TopicPartition("t", 0, 0), timeout=1.0)
    assert len(everything(second)) == 4


def test_what_cannot_be_sent_leaves_the_transaction_as_it_was(broker, producer):
    with producer.transaction() as transaction:
        transaction.send("t", b"1")
        with pytest.raises(TypeError):
            transaction.send("t", "text")
        with pytest.raises(errors.LocalProtocolError):
            transaction.send("t", b"", keys=["a b"])
    assert everything(broker) == [b"1"]


def test_a_transaction_is_lost_with_its_connection(broker, producer):
    transaction = begun(producer)
    broker.drop_connections()
    with pytest.raises(errors.TransactionLost, match="closed the connection"):
        transaction.send("t", b"2")
    begun(producer, b"3").commit()
    assert everything(broker) == [b"3"]


def test_a_commit_on_a_connection_that_is_known_to_be_gone_is_a_loss_not_a_doubt(broker, producer):
    transaction = begun(producer)
    broker.drop_connections()
    producer.send("t", b"2")  # on a new connection
    with pytest.raises(errors.TransactionLost, match="closed the connection"):
        transaction.commit()
    with pytest.raises(errors.ClientError, match="is rolled back"):
        transaction.rollback()
    assert everything(broker) == [b"2"]


def test_when_the_answer_to_the_commit_is_lost_the_state_is_unknown(broker, producer):
    transaction = begun(producer)
    broker.silent = True
    with pytest.raises(errors.CommitUnknown, match="may be committed or not"):
        transaction.commit()
    with pytest.raises(errors.ClientError, match="state is unknown"):
        transaction.rollback()


@pytest.mark.parametrize(
    ("code", "becomes", "state"),
    [
        (XaCode.XA_HEURCOM, errors.CommitIncomplete, "is committed"),
        (XaCode.XAER_RMFAIL, errors.CommitUnknown, "state is unknown"),
        (XaCode.XA_RBOTHER, errors.TransactionRefused, "is rolled back"),
    ],
)
def test_what_a_broker_says_of_a_commit_that_failed(broker, producer, code, becomes, state, monkeypatch):
    verb = broker.transactions.verb

    def fail(kind, *arguments):
        if kind is TransactionType.COMMIT_ONE_PHASE:
            raise errors.XaRefused(code, "the disk is full")
        return verb(kind, *arguments)

    monkeypatch.setattr(broker.transactions, "verb", fail)
    with pytest.raises(becomes, match="the disk is full") as caught, producer.transaction() as transaction:
        transaction.send("t", b"1")
    assert isinstance(caught.value, errors.TransactionRefused) is (becomes is errors.TransactionRefused)
    with pytest.raises(errors.ClientError, match=state):
        transaction.rollback()


def test_after_a_failed_send_only_the_rollback_is_left(broker, producer):
    transaction = begun(producer)
    broker.refuse = lambda request: None if verb_of(request) else refused(request)
    with pytest.raises(errors.TransactionRefused, match="refused by the test"):
        transaction.send("t", b"2")
    with pytest.raises(errors.TransactionLost, match="can only be rolled back"):
        transaction.send("t", b"3")
    with pytest.raises(errors.TransactionLost, match="was rolled back"):
        transaction.commit()
    assert (broker.transactions.keys, everything(broker)) == ([], [])


def test_a_message_that_is_not_answered_in_time_loses_the_transaction(broker, producer):
    transaction = begun(producer)
    broker.silent = True
    with pytest.raises(errors.TransactionLost, match="in time"):
        transaction.send("t", b"2")


def test_a_transaction_that_the_broker_has_given_up_is_refused(broker, producer):
    for go_on in (lambda tx: tx.commit(), lambda tx: tx.send("t", b"2")):
        transaction = begun(producer)
        broker.transactions.forget(transaction.key)
        with pytest.raises(errors.TransactionRefused, match="has not been started"):
            go_on(transaction)
    assert everything(broker) == []


def test_threads_may_send_in_one_transaction(broker, producer):
    with producer.transaction() as transaction:
        together(lambda number: [transaction.send("t", b"%d" % number) for _ in range(10)], range(4))
    assert sorted(everything(broker)) == sorted(b"%d" % n for n in range(4) for _ in range(10))


def test_a_closed_producer_begins_nothing(broker, producer):
    producer.close()
    with pytest.raises(errors.ClientError, match="closed"):
        producer.transaction().send("t", b"")
    assert broker.requests == []
