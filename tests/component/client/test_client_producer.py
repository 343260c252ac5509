"""The producer against brokers in memory: both protocols, retries, deadlines."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext

import pytest

from metaq import (
    LocalMessageStore,
    Message,
    Producer,
    ProducerConfig,
    StoredMessage,
    TopicPartition,
)
from metaq.client.producer import partition_for_key
from metaq.client.transport.connection import open_connection
from metaq.protocol import errors
from metaq.protocol.frames import Frame
from metaq.protocol.record import decode_attribute, encode_attributes, encode_body
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from metaq.testing import FakeBroker, FakeCluster
from tests.component.client.harness import FAST, assert_raises_within, everything, is_send, together
from tests.speaking import speaking
from tests.waiting import DEADLINE, assert_within, eventually

TOPICS = {"t": 2}
PATIENT = ProducerConfig(retry_min_seconds=30, retry_max_seconds=30)
THERE = TopicPartition("t", 0, 1)


@pytest.fixture
def producer(cluster, protocol):
    """Begins with the first partition."""
    with Producer(metadata=cluster, config=speaking(protocol, FAST), random=lambda: 0.0) as producer:
        yield producer


@pytest.fixture
def two_brokers():
    with FakeBroker({"t": 1}, 0) as first, FakeBroker({"t": 1}, 1) as second:
        yield first, second


@pytest.fixture
def of_two(two_brokers):
    with Producer(metadata=FakeCluster(two_brokers), config=FAST) as producer:
        yield producer


@pytest.fixture
def single(broker):
    """A broker with one partition."""
    broker.topics["t"] = 1
    return broker


@pytest.fixture
def nodes():
    """Two of broker 0, the first of which is registered."""
    with FakeBroker({"t": 1}) as first, FakeBroker({"t": 1}) as second:
        yield first, second


@pytest.fixture
def of_nodes(nodes):
    with Producer(metadata=FakeCluster(nodes[:1]), config=FAST) as producer:
        yield producer


def test_messages_go_round_robin_and_results_say_where_they_are(broker, producer):
    results = [producer.send("t", b"m%d" % number) for number in range(4)]
    assert [result.partition.partition for result in results] == [0, 1, 0, 1]
    assert [result.offset for result in results] == [0, 0, 22, 22]
    assert broker.bodies("t", 0) == [b"m0", b"m2"]
    assert [result.message_id for result in results] == [
        broker.log("t", n).ids[i] for n, i in ((0, 0), (1, 0), (0, 1), (1, 1))
    ]


@pytest.mark.parametrize("replicas", [None, 1, 3])
def test_results_say_on_how_many_nodes_a_message_is(broker, replicas):
    broker.replicas = replicas or 0
    with Producer(metadata=FakeCluster([broker]), config=FAST) as producer:
        found = [producer.send("t", b"1"), *producer.send_batch("t", [b"2"]), *producer.send_batch("t", [b"3"] * 100)]
        futures = [producer.send_async("t", b"4") for _ in range(100)]
        futures += [producer.send_async("t", b"4", key=str(number)) for number in range(100)]
        found += [future.result(DEADLINE) for future in futures]
        found += [producer.send_batch_async("t", [b"5"] * 100).result(DEADLINE)[7]]
        with producer.transaction() as transaction:
            found += [transaction.send("t", b"6"), *transaction.send_batch("t", [b"7"] * 3)]
    assert [each.replicas for each in found] == [replicas] * len(found)


def test_futures_end_with_the_same_results(broker, producer):
    futures = [producer.send_async("t", b"%d" % number) for number in range(200)]
    assert not wait(futures, timeout=DEADLINE).not_done
    for number, future in enumerate(futures):
        result = future.result()
        log = broker.log("t", result.partition.partition)
        assert log.ids[log.starts.index(result.offset)] == result.message_id
        assert bytes(log.data[result.offset + 20 :])[: len(b"%d" % number)] == b"%d" % number


def test_a_batch_stays_together_in_one_partition(broker, producer):
    payloads = [b"x" * number for number in range(50)]
    results = producer.send_batch("t", payloads)
    (partition,) = {result.partition for result in results}
    assert broker.bodies("t", partition.partition) == payloads
    log = broker.log("t", partition.partition)
    assert [result.offset for result in results] == log.starts
    assert [result.message_id for result in results] == log.ids


def test_a_batch_is_one_request_over_frames(broker, framed):
    framed.send_batch("t", [b"a"] * 100)
    assert broker.sends == 1


def test_an_empty_batch_sends_nothing(broker, producer):
    assert producer.send_batch("t", []) == producer.send_batch_async("t", []).result(DEADLINE) == []
    assert broker.sends == 0


def test_the_same_key_goes_to_the_same_partition(broker, producer):
    partitions = {producer.send("t", b"", key="order-7").partition for _ in range(5)}
    assert partitions == {partition_for_key("order-7", producer.partitions("t"))}


def test_a_partition_that_is_not_there_is_refused(producer):
    with pytest.raises(errors.NoPartition, match="0-9"):
        producer.send("t", b"", partition=TopicPartition("t", 0, 9))
    with pytest.raises(errors.NoPartition, match="belong"):
        producer.send("t", b"", partition=TopicPartition("other", 0, 0))


def test_tag_keys_properties_and_attribute_are_stored_with_the_message(broker, producer):
    producer.send("t", b"p", tag="buy", keys=["k1", "k2"], properties={"h": "v", "n": 1}, attribute="a")
    flag, raw = encode_attributes("a", "buy", ["k1", "k2"], {"h": "v", "n": 1})
    (body,) = everything(broker)
    assert body == len(raw).to_bytes(4, "big") + raw + b"p"
    assert decode_attribute(raw, flag).keys == ("k1", "k2")


def test_a_consumed_message_can_be_sent_on_as_it_is(broker, producer):
    message = Message(TopicPartition("other", 3, 3), 5, 77, 1, b"\x00\x00\x00\x01xpayload")
    producer.send_batch("t", [message, b"plain"], tag="y")
    assert everything(broker) == [message.body, b"\x00\x00\x00\x01yplain"]


def test_a_selector_of_the_users_chooses_among_what_there_is(cluster):
    class Last:
        def select(self, topic, partitions, message):
            assert (topic, message) == ("t", b"x")
            return partitions[-1] if chosen is None else chosen

    chosen = None
    with Producer(metadata=cluster, selector=Last()) as producer:
        assert producer.send("t", b"x").partition == THERE
        chosen = TopicPartition("t", 9, 9)
        with pytest.raises(errors.NoPartition, match="9"):
            producer.send("t", b"x")


def test_a_send_waits_for_a_topic_whose_only_broker_is_between_two_lives(broker, cluster, framed):
    framed.send("t", b"before")
    cluster.unregister(broker)
    with ThreadPoolExecutor(2) as pool:
        waiting = [
            pool.submit(framed.send, "t", b"after", timeout=DEADLINE),
            pool.submit(framed.send, "t", b"there", partition=THERE, timeout=DEADLINE),
        ]
        with pytest.raises(errors.NoPartition):
            framed.send("t", b"too late", timeout=0.05)
        assert not any(each.done() for each in waiting)
        cluster.register(broker)
        assert waiting[0].result(DEADLINE).offset >= 0
        assert waiting[1].result(DEADLINE).partition == THERE


def test_a_topic_without_partitions_is_named_with_the_remedy(producer):
    with pytest.raises(errors.NoPartition, match=r"topic 'other' has no partition.*\[topic=other\]"):
        producer.send("other", b"")


def test_a_message_above_the_limit_is_refused_before_it_is_sent(broker, producer):
    with pytest.raises(errors.LocalProtocolError, match="limit"):
        producer.send("t", bytes((8 << 20) + 1))
    for send in (producer.send_batch, producer.send_batch_async):
        with pytest.raises(errors.LocalProtocolError, match="send it in parts"):
            send("t", [bytes(6 << 20)] * 3)
    assert broker.sends == 0


def test_a_refusal_that_cannot_help_to_repeat_is_raised_at_once(broker, producer):
    broker.refuse = lambda request: None if type(request).__name__ == "Version" else 500
    with pytest.raises(errors.RequestRefused, match="refused by the test"):
        producer.send("t", b"")
    assert producer.send_async("t", b"").exception(DEADLINE) is not None


def test_a_closed_partition_is_avoided_by_messages_without_a_key(broker, producer):
    broker.log("t", 0).closed = True
    results = [producer.send("t", b"%d" % number) for number in range(10)]
    assert {result.partition.partition for result in results} == {1}
    assert sorted(broker.bodies("t", 1)) == [b"%d" % number for number in range(10)]


def test_a_message_with_a_key_waits_for_its_partition_until_its_deadline(broker, producer):
    number = partition_for_key("k", producer.partitions("t")).partition
    broker.log("t", number).closed = True
    with pytest.raises(errors.RequestTimedOut, match=r"not acknowledged in time.*closed"):
        producer.send("t", b"", key="k", timeout=2.0)
    assert broker.bodies("t", 1 - number) == []
    threading.Timer(0.05, lambda: setattr(broker.log("t", number), "closed", False)).start()
    assert producer.send("t", b"again", key="k", timeout=DEADLINE).partition.partition == number


def test_a_try_that_the_deadline_cuts_short_does_not_hide_the_last_refusal(broker, producer):
    def refuse_once_then_hang(request):
        if type(request).__name__ == "Version":
            return None
        broker.silent = True
        return ResponseCode.NO_PERMISSION if isinstance(request, Frame) else Status.FORBIDDEN

    broker.refuse = refuse_once_then_hang
    with pytest.raises(errors.RequestTimedOut, match=r"not acknowledged in time.*closed"):
        producer.send("t", b"", key="k", timeout=2.0)


def test_when_a_broker_dies_its_messages_go_to_another(two_brokers, of_two):
    first, second = two_brokers
    of_two.send("t", b"0")
    of_two.send("t", b"1")
    first.stop()
    for number in range(2, 30):
        of_two.send("t", b"%d" % number)
    assert {int(body) for body in everything(second)} >= set(range(2, 30))


def test_no_acknowledged_message_is_lost_when_a_broker_dies_under_load(two_brokers, of_two):
    first, second = two_brokers
    futures = []
    for number in range(2000):
        futures.append(of_two.send_async("t", b"%d" % number))
        if number == 1000:
            first.stop()
    assert [future.exception(DEADLINE) for future in futures] == [None] * 2000
    assert {int(body) for body in everything(first, second)} == set(range(2000))


def test_a_broker_that_comes_back_is_used_again(two_brokers):
    first, _ = two_brokers
    cluster = FakeCluster(two_brokers)
    with Producer(metadata=cluster, config=FAST) as producer:
        producer.send_batch("t", [b""])
        producer.send_batch("t", [b""])
        first.stop()
        for _ in range(3):
            producer.send("t", b"")
        with FakeBroker({"t": 1}, 0, port=first.endpoint.port) as again:
            deadline = time.monotonic() + DEADLINE
            while not again.sends:
                assert time.monotonic() < deadline
                producer.send("t", b"back")


def test_order_by_key_holds_across_a_retry(broker, framed):
    """The first request fails twice; what was queued behind it must not overtake."""
    refusals = [ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE]
    broker.refuse = lambda request: refusals.pop() if is_send(request) and refusals else None
    futures = [framed.send_async("t", b"%d" % number, key="k") for number in range(100)]
    partition = futures[-1].result(DEADLINE).partition.partition
    assert [int(body[-2:].strip(b"\x02")) for body in broker.bodies("t", partition)] == list(range(100))


def test_a_silent_broker_ends_in_a_timeout_that_says_what_happened(broker, framed):
    broker.silent = True
    error = (errors.RequestTimedOut, errors.BrokerUnavailable)
    assert_raises_within(2, error, lambda: framed.send("t", b"", timeout=0.2))


def test_a_hung_broker_does_not_answer_but_the_caller_returns_in_time(broker, framed):
    framed.send("t", b"")
    broker.silent = True
    said = "not acknowledged in time"
    assert_raises_within(2, errors.RequestTimedOut, lambda: framed.send("t", b"", timeout=0.2), said, at_least=0.19)


def test_a_topic_that_loses_all_brokers_comes_back_within_the_deadline(broker, cluster, framed):
    refusals = [ResponseCode.SYSTEM_BUSY]

    def refuse(request):
        if not (is_send(request) and refusals):
            return None
        cluster.unregister(broker)
        return refusals.pop()

    broker.refuse = refuse
    threading.Timer(0.1, lambda: cluster.register(broker)).start()
    assert framed.send("t", b"x", timeout=DEADLINE).offset == 0


def test_blocking_sends_from_many_threads_are_gathered_and_all_answered(broker, framed):
    def work(name):
        return [framed.send("t", b"%d-%d" % (name, number)) for number in range(50)]

    results = [result for some in together(work, range(16)) for result in some]
    assert len({(result.partition, result.offset) for result in results}) == 800
    assert sorted(everything(broker)) == sorted(b"%d-%d" % (n, m) for n in range(16) for m in range(50))


def test_blocking_and_asynchronous_sends_mix(broker, framed):
    for number in range(200):
        future = framed.send_async("t", b"a")
        if number % 3 == 0:
            framed.send("t", b"s", timeout=DEADLINE)
    future.result(DEADLINE)
    framed.flush(DEADLINE)
    assert len(everything(broker)) == 200 + 67


def test_lingering_messages_travel_together(broker):
    with Producer(metadata=FakeCluster([broker]), linger_ms=20) as producer:
        futures = [producer.send_async("t", b"x", key="k") for _ in range(10)]
        futures[-1].result(DEADLINE)
    assert broker.sends == 1


def test_flush_says_what_is_missing(broker, framed):
    framed.send("t", b"")
    broker.silent = True
    future = framed.send_async("t", b"x")
    with pytest.raises(errors.RequestTimedOut, match="21 bytes"):
        framed.flush(0.05)
    framed.close(0.05)
    assert isinstance(future.exception(DEADLINE), errors.ClientError)


def test_close_is_bounded_and_fails_what_is_left(broker, cluster):
    def attempt() -> float:
        broker.silent = False
        producer = Producer(metadata=cluster)
        producer.send("t", b"", key="k")
        broker.silent = True
        futures = [producer.send_async("t", b"x", key="k") for _ in range(5)]
        started = time.monotonic()
        producer.close(0.1)
        took = time.monotonic() - started
        assert all(isinstance(future.exception(DEADLINE), errors.ClientError) for future in futures)
        with pytest.raises(errors.ClientError):
            producer.send("t", b"")
        producer.close()
        return took

    assert_within(3, attempt)


def test_a_stopped_partition_error_reaches_the_future_with_its_type(broker, framed):
    broker.log("t", 1).closed = True
    future = framed.send_async("t", b"", partition=THERE, timeout=0.1)
    assert isinstance(future.exception(DEADLINE), errors.RequestTimedOut)
    assert errors.PartitionClosed.retriable


def test_a_partition_that_refused_is_left_alone_for_a_while(broker, cluster, protocol):
    refused = []
    broker.log("t", 0).closed = True

    def count(request):
        partition = request.ext.get("partition") if isinstance(request, Frame) else getattr(request, "partition", None)
        refused.extend([request] if str(partition) == "0" else [])

    broker.refuse = count
    with Producer(metadata=cluster, config=speaking(protocol, PATIENT)) as producer:
        assert {producer.send("t", b"").partition.partition for _ in range(10)} == {1}
    assert len(refused) == 1


def test_a_broker_without_enough_nodes_for_one_topic_goes_on_taking_the_others():
    refused = []

    def refuse(request):
        if not (is_send(request) and request.ext["topic"] == "strict"):
            return None
        refused.append(request)
        return ResponseCode.NOT_ENOUGH_REPLICAS

    with FakeBroker({"strict": 2, "loose": 1}, 0) as few, FakeBroker({"strict": 2, "loose": 1}, 1) as enough:
        few.refuse = refuse
        with Producer(metadata=FakeCluster([few, enough]), config=PATIENT, random=lambda: 0.0) as producer:
            assert {producer.send("strict", b"").partition.broker for _ in range(8)} == {1}
            assert len(refused) == 1  # all its partitions want as many nodes
            assert {producer.send("loose", b"").partition.broker for _ in range(4)} == {0, 1}


def test_a_topic_that_brokers_refuse_although_it_is_registered_is_given_up_after_some_tries(broker, framed):
    broker.refuse = lambda request: ResponseCode.TOPIC_NOT_EXIST if is_send(request) else None
    with pytest.raises(errors.TopicNotAccepted, match="t"):
        framed.send("t", b"", timeout=DEADLINE)
    assert 1 < broker.requests.count(f"frame {RequestCode.SEND}") < 10


def test_over_text_only_the_puts_of_a_batch_that_failed_are_repeated(broker):
    refusals = [503]
    broker.refuse = lambda request: refusals.pop() if getattr(request, "body", b"") == b"2" and refusals else None
    with Producer(metadata=FakeCluster([broker]), config=speaking("text", FAST)) as producer:
        results = producer.send_batch("t", [b"%d" % number for number in range(5)], partition=THERE)
    assert sorted(broker.bodies("t", 1)) == [b"%d" % number for number in range(5)]
    log = broker.log("t", 1)
    assert [log.ids[log.starts.index(result.offset)] for result in results] == [result.message_id for result in results]
    assert broker.bodies("t", 1)[log.starts.index(results[2].offset)] == b"2"


# --- messages that nobody took, default topic, stored messages -------------------------------------------------------


def test_a_caller_reads_the_connection_that_its_message_left_on_whatever_others_send_on_meanwhile(
    producer, broker, monkeypatch
):
    """The broker's next life may be at another address, and another thread be the first to send there."""
    monkeypatch.setattr("metaq.client.transport.core._LOOK_SECONDS", 1000.0)  # which looks at connections as well
    producer.send("t", b"1", partition=TopicPartition("t", 0, 0))
    transmit = producer._driver._sender.transmit
    other = open_connection(broker.endpoint, FAST.connection)

    def transmit_and_be_overtaken(flight, caller=None):
        transmit(flight, caller)
        flight.broker.use(other)

    monkeypatch.setattr(producer._driver._sender, "transmit", transmit_and_be_overtaken)
    assert producer.send("t", b"2", partition=TopicPartition("t", 0, 0), timeout=5).offset > 0
    other.close()


@pytest.fixture
def store(tmp_path):
    with LocalMessageStore(tmp_path / "undelivered.db") as store:
        yield store


@pytest.fixture
def keeping(single, cluster, store):
    """A producer that keeps in `store` what it does not deliver."""
    with Producer(metadata=cluster, config=FAST, undelivered=store) as producer:
        yield producer


def test_an_undelivered_asynchronous_message_is_kept_and_sent_again(store, single, cluster, keeping):
    single.log("t", 0).closed = True
    result = keeping.send_async("t", b"1", tag="a", key="k", timeout=0.05).result(DEADLINE)
    assert (result.pending, result.message_id) == (True, 0)
    single.log("t", 0).closed = False
    assert keeping.send_async("t", b"2").result(DEADLINE).offset == 0
    cluster.unregister(single)
    assert keeping.send_async("t", b"3").result(DEADLINE).pending  # nobody publishes the topic
    cluster.register(single)
    eventually(lambda: not store.queues())
    assert [body[-1:] for body in single.bodies("t", 0)] in ([b"2", b"1", b"3"], [b"1", b"2", b"3"])


def test_what_was_not_delivered_when_the_producer_closes_is_sent_by_the_next_one(single, cluster, tmp_path):
    path = tmp_path / "undelivered.db"
    producer = Producer(metadata=cluster, config=FAST, undelivered=LocalMessageStore(path))
    single.log("t", 0).closed = True
    futures = [producer.send_async("t", b"%d" % number) for number in range(5)]
    producer.close(timeout=0.05)
    assert all(future.result(1).pending for future in futures)
    single.log("t", 0).closed = False
    store = LocalMessageStore(path)
    assert store.count("undelivered t") == 5
    with Producer(metadata=cluster, config=FAST, undelivered=store):
        eventually(lambda: not store.queues())
    assert sorted(single.bodies("t", 0)) == [b"%d" % number for number in range(5)]


def test_what_cannot_be_helped_is_not_kept(store, single, keeping):
    single.refuse = lambda request: ResponseCode.SYSTEM_ERROR if is_send(request) else None
    with pytest.raises(errors.RequestRefused):
        keeping.send_async("t", b"").result(DEADLINE)
    single.refuse = lambda request: None
    single.log("t", 0).closed = True
    with pytest.raises(errors.RequestTimedOut):
        keeping.send("t", b"", timeout=0.05)  # the caller waits, so the caller is told
    assert store.queues() == []


def test_a_full_store_fails_the_message_with_both_causes(single, cluster, tmp_path):
    store = LocalMessageStore(tmp_path / "undelivered.db", max_per_queue=1)
    single.log("t", 0).closed = True
    with Producer(metadata=cluster, undelivered=store) as producer:
        assert producer.send_async("t", b"1", timeout=0.05).result(DEADLINE).pending
        error = producer.send_async("t", b"2", timeout=0.05).exception(DEADLINE)
        assert isinstance(error, errors.LocalStoreFull)
        assert isinstance(error.__cause__, errors.RequestTimedOut)


def test_a_stored_message_is_sent_as_it_was(broker, producer):
    flag, text = encode_attributes("a", "tag")
    body = bytes(encode_body(b"payload", flag, text))
    assert producer.send_stored(StoredMessage("t", body, flag, THERE)).partition == THERE
    assert broker.bodies("t", 1) == [body]
    keyed = producer.send_stored(StoredMessage("t", b"x", key="k"), timeout=5)
    assert keyed.partition == partition_for_key("k", producer.partitions("t"))
    broker.log("t", 1).closed = True
    with pytest.raises(errors.PartitionClosed):
        producer.send_stored(StoredMessage("t", b"", 0, THERE), retry=False)
    with pytest.raises(TypeError, match="None is no StoredMessage"):
        producer.send_stored(None)


def test_which_topics_there_are_is_not_asked_for_messages_that_are_taken(broker, monkeypatch):
    cluster = FakeCluster([broker])
    monkeypatch.setattr(cluster, "topics", lambda: pytest.fail("somebody asked"))
    with Producer(metadata=cluster, config=FAST) as producer:
        producer.send("t", b"x")
        producer.send("t", b"x", key="k")
        producer.send_async("t", b"x").result(DEADLINE)
        cluster.unregister(broker)
        for options in ({}, {"key": "k"}, {"partition": THERE}):
            with pytest.raises(errors.NoPartition):
                producer.send("t", b"too late", timeout=0.01, **options)


def test_a_topic_that_nobody_publishes_borrows_the_partitions_of_the_default_topic(broker, cluster, monkeypatch):
    with Producer(metadata=cluster, default_topic="t", config=FAST, random=lambda: 0.0) as producer:
        broker.topics["new"] = 2  # it would take the topic, but is not known to publish it
        there = cluster.view
        monkeypatch.setattr(cluster, "topics", lambda: pytest.fail("somebody asked"))
        monkeypatch.setattr(cluster, "view", lambda topic: there(topic if topic == "t" else "nothing"))
        results = [producer.send("new", b"%d" % number) for number in range(4)]
        assert [result.partition for result in results] == [TopicPartition("new", 0, n) for n in (0, 1, 0, 1)]
        assert producer.send("new", b"", partition=TopicPartition("new", 0, 1)).offset == 42
    monkeypatch.setattr(cluster, "topics", lambda: ["t"])
    with Producer(metadata=cluster, config=FAST) as producer, pytest.raises(errors.NoPartition):
        producer.send("new", b"")


# --- broker sets ------------------------------------------------------------------------------------------------------


def test_a_producer_follows_the_leader_that_a_node_names(nodes, of_nodes):
    broker, leader = nodes
    assert of_nodes.send("t", b"1").offset == 0
    broker.leader = str(leader.endpoint)
    of_nodes.send("t", b"2")
    futures = [of_nodes.send_async("t", b"%d" % number) for number in range(3, 20)]
    for future in futures:
        future.result(DEADLINE)
    assert leader.bodies("t", 0) == [b"%d" % number for number in range(2, 20)]
    broker.leader, leader.leader = None, str(broker.endpoint)
    of_nodes.send("t", b"20")
    assert broker.bodies("t", 0) == [b"1", b"20"]


def test_a_producer_waits_while_a_set_has_no_leader(broker, framed):
    broker.leader = ""
    future = framed.send_async("t", b"1")
    time.sleep(0.1)
    assert not future.done()
    with pytest.raises(errors.RequestTimedOut, match="does not lead broker 0"):
        framed.send("t", b"2", timeout=0.2)
    broker.leader = None
    future.result(DEADLINE)
    framed.close()
    assert b"1" in everything(broker)


def begun(producer, payload=b"1"):
    """A transaction with a message."""
    transaction = producer.transaction()
    transaction.send("t", payload)
    return transaction


def test_a_transaction_begins_where_the_leader_is_and_is_lost_with_it(nodes, of_nodes):
    broker, leader = nodes
    broker.leader = str(leader.endpoint)
    with of_nodes.transaction() as transaction:
        transaction.send("t", b"1")
    assert leader.bodies("t", 0) == [b"1"]
    transaction = begun(of_nodes, b"2")
    leader.leader = ""
    with pytest.raises(errors.TransactionLost, match="does not lead"):
        transaction.send("t", b"3")
    leader.leader = None
    transaction = begun(of_nodes, b"4")
    leader.leader = ""
    with pytest.raises(errors.TransactionLost, match="is rolled back: this node does not lead"):
        transaction.commit()
    with pytest.raises(errors.ClientError, match="is rolled back"):
        transaction.rollback()


@pytest.mark.parametrize(("role", "repeated"), [("handing-over", True), ("follower", False), ("taking-over", False)])
def test_a_commit_that_a_node_refuses_is_repeated_only_where_the_transaction_is_still_open(
    broker, framed, role, repeated
):
    transaction = begun(framed)
    broker.leader, broker.role = "", role
    asked = len(broker.requests)

    def lead_again():
        eventually(lambda: "frame 1041" in broker.requests[asked:])
        if repeated:
            broker.leader, broker.role = None, ""

    with ThreadPoolExecutor(1) as pool:
        led = pool.submit(lead_again)
        with nullcontext() if repeated else pytest.raises(errors.TransactionLost, match="is rolled back"):
            transaction.commit()
        led.result(DEADLINE)
    assert everything(broker) == ([b"1"] if repeated else [])


def test_a_node_that_dies_before_it_says_whether_it_leads_leaves_no_doubt(broker, framed):
    transaction = begun(framed)
    broker.leader, broker.role = "", "handing-over"
    threading.Timer(0.1, broker.drop_connections).start()
    with pytest.raises(errors.TransactionLost, match="is rolled back"):
        transaction.commit()


def test_a_transaction_whose_first_message_is_refused_begins_anew_at_the_leader(nodes, of_nodes):
    broker, leader = nodes

    def refuse(request):
        if is_send(request):
            broker.leader = str(leader.endpoint)
            return ResponseCode.NOT_LEADER
        return None

    broker.refuse = refuse
    with of_nodes.transaction() as transaction:
        transaction.send("t", b"1")
        transaction.send("t", b"2")
    assert leader.bodies("t", 0) == [b"1", b"2"]


def test_a_rollback_at_a_node_that_leads_no_longer_is_done(broker, framed):
    transaction = begun(framed)
    broker.leader = ""
    transaction.rollback()
    with pytest.raises(errors.ClientError, match="is rolled back"):
        transaction.rollback()
