"""The producer against brokers in memory: both protocols, retries, deadlines."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

import pytest

from metaq import (
    LocalMessageStore,
    Message,
    Producer,
    ProducerConfig,
    SendResult,
    StoredMessage,
    TopicPartition,
)
from metaq.client.connection import open_connection
from metaq.client.producer import partition_for_key
from metaq.protocol.errors import (
    BrokerUnavailable,
    ClientError,
    LocalProtocolError,
    LocalStoreFull,
    NoPartition,
    PartitionClosed,
    RequestRefused,
    RequestTimedOut,
    TopicNotAccepted,
    TransactionLost,
)
from metaq.protocol.frames import Frame
from metaq.protocol.record import decode_attribute, encode_attributes, encode_body
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from metaq.testing import FakeBroker, FakeCluster
from tests.waiting import DEADLINE, assert_within, eventually

TOPICS = {"t": 2}
FAST = ProducerConfig(retry_min_seconds=0.001, retry_max_seconds=0.01)


@pytest.fixture(params=["auto", "text"])
def producer(broker, request):
    with Producer(metadata=FakeCluster([broker]), protocol=request.param, config=FAST, random=lambda: 0.0) as producer:
        yield producer


@pytest.fixture
def two_brokers():
    with FakeBroker({"t": 1}, 0) as first, FakeBroker({"t": 1}, 1) as second:
        yield first, second


def stored(*brokers):
    return [body for broker in brokers for number in range(broker.topics["t"]) for body in broker.bodies("t", number)]


def is_send(request):
    return isinstance(request, Frame) and request.code in (RequestCode.SEND, RequestCode.SEND_BATCH)


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


def test_a_batch_is_one_request_over_frames(broker):
    with Producer(metadata=FakeCluster([broker])) as producer:
        producer.send_batch("t", [b"a"] * 100)
    assert broker.sends == 1


def test_an_empty_batch_sends_nothing(broker, producer):
    assert producer.send_batch("t", []) == []
    assert broker.sends == 0


def test_the_same_key_goes_to_the_same_partition(broker, producer):
    partitions = {producer.send("t", b"", key="order-7").partition for _ in range(5)}
    assert partitions == {partition_for_key("order-7", producer.partitions("t"))}


def test_a_partition_can_be_named(producer):
    there = TopicPartition("t", 0, 1)
    assert {producer.send("t", b"", partition=there).partition for _ in range(3)} == {there}


def test_a_partition_that_is_not_there_is_refused(producer):
    with pytest.raises(NoPartition, match="0-9"):
        producer.send("t", b"", partition=TopicPartition("t", 0, 9))
    with pytest.raises(NoPartition, match="belong"):
        producer.send("t", b"", partition=TopicPartition("other", 0, 0))


def test_tag_keys_properties_and_attribute_are_stored_with_the_message(broker, producer):
    producer.send("t", b"p", tag="buy", keys=["k1", "k2"], properties={"h": "v", "n": 1}, attribute="a")
    flag, raw = encode_attributes("a", "buy", ["k1", "k2"], {"h": "v", "n": 1})
    (body,) = stored(broker)
    assert body == len(raw).to_bytes(4, "big") + raw + b"p"
    assert decode_attribute(raw, flag).keys == ("k1", "k2")


def test_a_consumed_message_can_be_sent_on_as_it_is(broker, producer):
    message = Message(TopicPartition("other", 3, 3), 5, 77, 1, b"\x00\x00\x00\x01xpayload")
    producer.send_batch("t", [message, b"plain"], tag="y")
    assert stored(broker) == [message.body, b"\x00\x00\x00\x01yplain"]


def test_a_selector_of_the_users_chooses(broker):
    class Last:
        def select(self, topic, partitions, message):
            assert (topic, message) == ("t", b"x")
            return partitions[-1]

    with Producer(metadata=FakeCluster([broker]), selector=Last()) as producer:
        assert producer.send("t", b"x").partition == TopicPartition("t", 0, 1)


def test_a_selector_that_invents_a_partition_is_refused(broker):
    class Wrong:
        def select(self, topic, partitions, message):
            return TopicPartition("t", 9, 9)

    with Producer(metadata=FakeCluster([broker]), selector=Wrong()) as producer, pytest.raises(NoPartition, match="9"):
        producer.send("t", b"x")


def test_a_send_waits_for_a_topic_whose_only_broker_is_between_two_lives(broker):
    cluster = FakeCluster([broker])
    with Producer(metadata=cluster, config=FAST) as producer, ThreadPoolExecutor(2) as pool:
        producer.send("t", b"before")
        cluster.unregister(broker)
        there = TopicPartition("t", 0, 1)
        waiting = [
            pool.submit(producer.send, "t", b"after", timeout=DEADLINE),
            pool.submit(producer.send, "t", b"there", partition=there, timeout=DEADLINE),
        ]
        with pytest.raises(NoPartition):
            producer.send("t", b"too late", timeout=0.05)
        assert not any(each.done() for each in waiting)
        cluster.register(broker)
        assert waiting[0].result(DEADLINE).offset >= 0
        assert waiting[1].result(DEADLINE).partition == there


def test_a_topic_without_partitions_is_named_with_the_remedy(producer):
    with pytest.raises(NoPartition, match=r"topic 'other' has no partition.*\[topic=other\]"):
        producer.send("other", b"")


@pytest.mark.parametrize("payload", ["text", None, 5])
def test_a_payload_that_is_no_bytes_is_refused(producer, payload):
    with pytest.raises(TypeError, match="bytes"):
        producer.send("t", payload)


@pytest.mark.parametrize("send", ["send", "send_async", "produce", "send_batch", "send_batch_async"])
def test_an_option_that_there_is_not_is_refused_before_anything_is_sent(broker, producer, send):
    with pytest.raises(TypeError, match="tagg"):
        getattr(producer, send)("t", [b""] if "batch" in send else b"", tagg="a")
    assert broker.sends == 0


def test_a_message_above_the_limit_is_refused_before_it_is_sent(broker, producer):
    with pytest.raises(LocalProtocolError, match="limit"):
        producer.send("t", bytes((8 << 20) + 1))
    with pytest.raises(LocalProtocolError, match="in parts"):
        producer.send_batch("t", [bytes(6 << 20)] * 3)
    assert broker.sends == 0


def test_a_refusal_that_cannot_help_to_repeat_is_raised_at_once(broker, producer):
    broker.refuse = lambda request: None if type(request).__name__ == "Version" else 500
    with pytest.raises(RequestRefused, match="refused by the test"):
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
    with pytest.raises(RequestTimedOut, match=r"not acknowledged in time.*closed"):
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
    with pytest.raises(RequestTimedOut, match=r"not acknowledged in time.*closed"):
        producer.send("t", b"", key="k", timeout=2.0)


def test_when_a_broker_dies_its_messages_go_to_another(two_brokers):
    first, second = two_brokers
    with Producer(metadata=FakeCluster(two_brokers), config=FAST) as producer:
        producer.send("t", b"0")
        producer.send("t", b"1")
        first.stop()
        for number in range(2, 30):
            producer.send("t", b"%d" % number)
    assert {int(body) for body in stored(second)} >= set(range(2, 30))


def test_no_acknowledged_message_is_lost_when_a_broker_dies_under_load(two_brokers):
    first, second = two_brokers
    acknowledged: list[int] = []

    def note(number: int, future: Future[SendResult]) -> None:
        if future.exception() is None:
            acknowledged.append(number)

    with Producer(metadata=FakeCluster(two_brokers), config=FAST) as producer:
        for number in range(2000):
            future = producer.send_async("t", b"%d" % number)
            future.add_done_callback(partial(note, number))
            if number == 1000:
                first.stop()
        producer.flush(20)
    assert len(acknowledged) == 2000
    assert {int(body) for body in stored(first, second)} == set(range(2000))


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


def test_order_by_key_holds_across_a_retry(broker):
    """The first request fails twice; what was queued behind it must not overtake."""
    refusals = [ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE]
    broker.refuse = lambda request: refusals.pop() if is_send(request) and refusals else None
    with Producer(metadata=FakeCluster([broker]), config=FAST) as producer:
        futures = [producer.send_async("t", b"%d" % number, key="k") for number in range(100)]
        partition = futures[-1].result(DEADLINE).partition.partition
        assert [int(body[-2:].strip(b"\x02")) for body in broker.bodies("t", partition)] == list(range(100))


def test_a_silent_broker_ends_in_a_timeout_that_says_what_happened(broker):
    broker.silent = True
    with Producer(metadata=FakeCluster([broker]), config=FAST) as producer:

        def attempt() -> float:
            started = time.monotonic()
            with pytest.raises((RequestTimedOut, BrokerUnavailable)):
                producer.send("t", b"", timeout=0.2)
            return time.monotonic() - started

        assert_within(2, attempt)


def test_a_hung_broker_does_not_answer_but_the_caller_returns_in_time(broker, framed):
    framed.send("t", b"")
    broker.silent = True

    def attempt() -> float:
        started = time.monotonic()
        with pytest.raises(RequestTimedOut, match="not acknowledged in time"):
            framed.send("t", b"", timeout=0.2)
        took = time.monotonic() - started
        assert took > 0.19
        return took

    assert_within(2, attempt)


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
    results: list[SendResult] = []

    def work(name):
        results.extend(framed.send("t", b"%d-%d" % (name, number)) for number in range(50))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert len(results) == 800
    assert len({(result.partition, result.offset) for result in results}) == 800
    assert sorted(stored(broker)) == sorted(b"%d-%d" % (n, m) for n in range(16) for m in range(50))


def test_blocking_and_asynchronous_sends_mix(broker):
    with Producer(metadata=FakeCluster([broker])) as producer:
        for number in range(200):
            future = producer.send_async("t", b"a")
            if number % 3 == 0:
                producer.send("t", b"s", timeout=DEADLINE)
        future.result(DEADLINE)
        producer.flush(DEADLINE)
    assert len(stored(broker)) == 200 + 67


def test_a_full_buffer_holds_the_sender_back_until_its_deadline(broker):
    config = ProducerConfig(max_buffered_bytes=3000)
    with Producer(metadata=FakeCluster([broker]), config=config) as producer:
        producer.send("t", b"")
        broker.silent = True
        for _ in range(2):
            producer.send_async("t", bytes(1000), timeout=DEADLINE)
        with pytest.raises(RequestTimedOut, match="max_buffered_bytes"):
            producer.send_async("t", bytes(1000), timeout=0.05)
        broker.drop_connections()
        producer.close(0.01)


def test_lingering_messages_travel_together(broker):
    with Producer(metadata=FakeCluster([broker]), linger_ms=20) as producer:
        futures = [producer.send_async("t", b"x", key="k") for _ in range(10)]
        futures[-1].result(DEADLINE)
    assert broker.sends == 1


def test_flush_says_what_is_missing(broker, framed):
    framed.send("t", b"")
    broker.silent = True
    future = framed.send_async("t", b"x")
    with pytest.raises(RequestTimedOut, match="21 bytes"):
        framed.flush(0.05)
    framed.close(0.05)
    assert isinstance(future.exception(DEADLINE), ClientError)


def test_close_is_bounded_and_fails_what_is_left(broker):
    def attempt() -> float:
        broker.silent = False
        producer = Producer(metadata=FakeCluster([broker]))
        producer.send("t", b"", key="k")
        broker.silent = True
        futures = [producer.send_async("t", b"x", key="k") for _ in range(5)]
        started = time.monotonic()
        producer.close(0.1)
        took = time.monotonic() - started
        assert all(isinstance(future.exception(DEADLINE), ClientError) for future in futures)
        with pytest.raises(ClientError):
            producer.send("t", b"")
        producer.close()
        return took

    assert_within(3, attempt)


def test_a_stopped_partition_error_reaches_the_future_with_its_type(broker):
    broker.log("t", 0).closed = True
    with Producer(metadata=FakeCluster([broker]), config=FAST) as producer:
        future = producer.send_async("t", b"", partition=TopicPartition("t", 0, 0), timeout=0.1)
        assert isinstance(future.exception(DEADLINE), RequestTimedOut)
        assert PartitionClosed.retriable


def test_a_partition_that_refused_is_left_alone_for_a_while(broker, producer):
    patient = ProducerConfig(retry_min_seconds=30, retry_max_seconds=30)
    refused = []
    broker.log("t", 0).closed = True

    def count(request):
        partition = request.ext.get("partition") if isinstance(request, Frame) else getattr(request, "partition", None)
        refused.extend([request] if str(partition) == "0" else [])

    broker.refuse = count
    protocol = producer._pool._protocol
    with Producer(metadata=FakeCluster([broker]), config=patient, protocol=protocol) as producer:
        for _ in range(10):
            assert producer.send("t", b"").partition.partition == 1
    assert len(refused) == 1


def test_a_broker_without_enough_nodes_for_one_topic_goes_on_taking_the_others():
    patient = ProducerConfig(retry_min_seconds=30, retry_max_seconds=30)
    refused = []

    def refuse(request):
        if not (is_send(request) and request.ext["topic"] == "strict"):
            return None
        refused.append(request)
        return ResponseCode.NOT_ENOUGH_REPLICAS

    with FakeBroker({"strict": 2, "loose": 1}, 0) as few, FakeBroker({"strict": 2, "loose": 1}, 1) as enough:
        few.refuse = refuse
        with Producer(metadata=FakeCluster([few, enough]), config=patient, random=lambda: 0.0) as producer:
            assert {producer.send("strict", b"").partition.broker for _ in range(8)} == {1}
            assert len(refused) == 1  # all its partitions want as many nodes
            assert {producer.send("loose", b"").partition.broker for _ in range(4)} == {0, 1}


def test_a_topic_that_brokers_refuse_although_it_is_registered_is_given_up_after_some_tries(broker):
    broker.refuse = lambda request: ResponseCode.TOPIC_NOT_EXIST if is_send(request) else None
    with Producer(metadata=FakeCluster([broker]), config=FAST) as producer, pytest.raises(TopicNotAccepted, match="t"):
        producer.send("t", b"", timeout=DEADLINE)
    assert 1 < len([name for name in broker.requests if name == f"frame {RequestCode.SEND}"]) < 10


def test_over_text_only_the_puts_of_a_batch_that_failed_are_repeated(broker):
    refusals = [503]
    broker.refuse = lambda request: refusals.pop() if getattr(request, "body", b"") == b"2" and refusals else None
    there = TopicPartition("t", 0, 1)
    with Producer(metadata=FakeCluster([broker]), config=FAST, protocol="text") as producer:
        results = producer.send_batch("t", [b"%d" % number for number in range(5)], partition=there)
    assert sorted(broker.bodies("t", 1)) == [b"%d" % number for number in range(5)]
    log = broker.log("t", 1)
    assert [log.ids[log.starts.index(result.offset)] for result in results] == [result.message_id for result in results]
    assert broker.bodies("t", 1)[log.starts.index(results[2].offset)] == b"2"


# --- messages that nobody took, default topic, stored messages -------------------------------------------------------


def test_a_caller_reads_the_connection_that_its_message_left_on_whatever_others_send_on_meanwhile(
    producer, broker, monkeypatch
):
    """The broker's next life may be at another address, and another thread be the first to send there."""
    monkeypatch.setattr("metaq.client.pool._HOUSEKEEPING_SECONDS", 1000.0)  # which looks at connections as well
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


def test_an_undelivered_asynchronous_message_is_kept_and_sent_again(store):
    with FakeBroker({"t": 1}) as broker:
        cluster = FakeCluster([broker])
        with Producer(metadata=cluster, config=FAST, undelivered=store) as producer:
            broker.log("t", 0).closed = True
            future = producer.send_async("t", b"1", tag="a", key="k", timeout=0.05)
            result = future.result(DEADLINE)
            assert result.pending
            assert result.message_id == 0
            broker.log("t", 0).closed = False
            assert producer.send_async("t", b"2").result(DEADLINE).offset == 0
            cluster.unregister(broker)
            assert producer.send_async("t", b"3").result(DEADLINE).pending  # nobody publishes the topic
            cluster.register(broker)
            eventually(lambda: not store.queues())
        assert [body[-1:] for body in broker.bodies("t", 0)] in ([b"2", b"1", b"3"], [b"1", b"2", b"3"])


def test_what_was_not_delivered_when_the_producer_closes_is_sent_by_the_next_one(tmp_path):
    path = tmp_path / "undelivered.db"
    with FakeBroker({"t": 1}) as broker:
        cluster = FakeCluster([broker])
        producer = Producer(metadata=cluster, config=FAST, undelivered=LocalMessageStore(path))
        broker.log("t", 0).closed = True
        futures = [producer.send_async("t", b"%d" % number) for number in range(5)]
        producer.close(timeout=0.05)
        assert all(future.result(1).pending for future in futures)
        broker.log("t", 0).closed = False
        store = LocalMessageStore(path)
        assert store.count("undelivered t") == 5
        with Producer(metadata=cluster, config=FAST, undelivered=store):
            eventually(lambda: not store.queues())
        assert sorted(broker.bodies("t", 0)) == [b"%d" % number for number in range(5)]


def test_what_cannot_be_helped_is_not_kept(store):
    with FakeBroker({"t": 1}) as broker:
        producer = Producer(metadata=FakeCluster([broker]), config=FAST, undelivered=store)
        broker.refuse = lambda request: ResponseCode.SYSTEM_ERROR if is_send(request) else None
        with pytest.raises(RequestRefused):
            producer.send_async("t", b"").result(DEADLINE)
        broker.refuse = lambda request: None
        broker.log("t", 0).closed = True
        with pytest.raises(RequestTimedOut):
            producer.send("t", b"", timeout=0.05)  # the caller waits, so the caller is told
        assert store.queues() == []
        producer.close()


def test_a_full_store_fails_the_message_with_both_causes(tmp_path):
    store = LocalMessageStore(tmp_path / "undelivered.db", max_per_queue=1)
    with FakeBroker({"t": 1}) as broker, Producer(metadata=FakeCluster([broker]), undelivered=store) as producer:
        broker.log("t", 0).closed = True
        assert producer.send_async("t", b"1", timeout=0.05).result(DEADLINE).pending
        failed = producer.send_async("t", b"2", timeout=0.05)
        error = failed.exception(DEADLINE)
        assert isinstance(error, LocalStoreFull)
        assert isinstance(error.__cause__, RequestTimedOut)


def test_a_stored_message_is_sent_as_it_was(broker, producer):
    flag, text = encode_attributes("a", "tag")
    body = bytes(encode_body(b"payload", flag, text))
    there = TopicPartition("t", 0, 1)
    assert producer.send_stored(StoredMessage("t", body, flag, there)).partition == there
    assert broker.bodies("t", 1) == [body]
    keyed = producer.send_stored(StoredMessage("t", b"x", key="k"), timeout=5)
    assert keyed.partition == partition_for_key("k", producer.partitions("t"))
    broker.log("t", 1).closed = True
    with pytest.raises(PartitionClosed):
        producer.send_stored(StoredMessage("t", b"", 0, there), retry=False)
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
        for options in ({}, {"key": "k"}, {"partition": TopicPartition("t", 0, 1)}):
            with pytest.raises(NoPartition):
                producer.send("t", b"too late", timeout=0.01, **options)


def test_a_topic_that_nobody_publishes_borrows_the_partitions_of_the_default_topic(monkeypatch):
    with FakeBroker({"t": 2}) as broker:
        cluster = FakeCluster([broker])
        with Producer(metadata=cluster, default_topic="t", config=FAST, random=lambda: 0.0) as producer:
            broker.topics["new"] = 2  # it would take the topic, but is not known to publish it
            there = cluster.view
            monkeypatch.setattr(cluster, "topics", lambda: pytest.fail("somebody asked"))
            monkeypatch.setattr(cluster, "view", lambda topic: there(topic if topic == "t" else "nothing"))
            results = [producer.send("new", b"%d" % number) for number in range(4)]
            assert [result.partition for result in results] == [TopicPartition("new", 0, n) for n in (0, 1, 0, 1)]
            assert producer.send("new", b"", partition=TopicPartition("new", 0, 1)).offset == 42
        monkeypatch.setattr(cluster, "topics", lambda: ["t"])
        with Producer(metadata=cluster, config=FAST) as producer, pytest.raises(NoPartition):
            producer.send("new", b"")


# --- broker sets ------------------------------------------------------------------------------------------------------


def test_a_producer_follows_the_leader_that_a_node_names():
    with (
        FakeBroker({"t": 1}) as broker,
        FakeBroker({"t": 1}) as leader,
        Producer(metadata=FakeCluster([broker]), config=FAST) as producer,
    ):
        assert producer.send("t", b"1").offset == 0
        broker.leader = str(leader.endpoint)
        producer.send("t", b"2")
        futures = [producer.send_async("t", b"%d" % number) for number in range(3, 20)]
        for future in futures:
            future.result(DEADLINE)
        assert leader.bodies("t", 0) == [b"%d" % number for number in range(2, 20)]
        broker.leader, leader.leader = None, str(broker.endpoint)
        producer.send("t", b"20")
        assert broker.bodies("t", 0) == [b"1", b"20"]


def test_a_producer_waits_while_a_set_has_no_leader(broker):
    with Producer(metadata=FakeCluster([broker]), config=FAST) as producer:
        broker.leader = ""
        future = producer.send_async("t", b"1")
        time.sleep(0.1)
        assert not future.done()
        with pytest.raises(RequestTimedOut, match="does not lead broker 0"):
            producer.send("t", b"2", timeout=0.2)
        broker.leader = None
        future.result(DEADLINE)
    assert b"1" in [body for partition in range(2) for body in broker.bodies("t", partition)]


def test_a_transaction_begins_where_the_leader_is_and_is_lost_with_it():
    with (
        FakeBroker({"t": 1}) as broker,
        FakeBroker({"t": 1}) as leader,
        Producer(metadata=FakeCluster([broker]), config=FAST) as producer,
    ):
        broker.leader = str(leader.endpoint)
        with producer.transaction() as transaction:
            transaction.send("t", b"1")
        assert leader.bodies("t", 0) == [b"1"]
        transaction = producer.transaction()
        transaction.send("t", b"2")
        leader.leader = ""
        with pytest.raises(TransactionLost, match="does not lead"):
            transaction.send("t", b"3")
        leader.leader = None
        transaction = producer.transaction()
        transaction.send("t", b"4")
        leader.leader = ""
        with pytest.raises(TransactionLost, match="is rolled back: this node does not lead"):
            transaction.commit()
        with pytest.raises(ClientError, match="is rolled back"):
            transaction.rollback()


@pytest.mark.parametrize(
    ("role", "becomes"), [("handing-over", None), ("follower", TransactionLost), ("taking-over", TransactionLost)]
)
def test_a_commit_that_a_node_refuses_is_repeated_only_where_the_transaction_is_still_open(broker, role, becomes):
    with Producer(metadata=FakeCluster([broker]), config=FAST) as producer:
        transaction = producer.transaction()
        transaction.send("t", b"1")
        broker.leader, broker.role = "", role
        asked = len(broker.requests)
        done = threading.Event()

        def lead_again():
            while "frame 1041" not in broker.requests[asked:]:
                time.sleep(0.001)
            if becomes is None:
                broker.leader, broker.role = None, ""
            done.set()

        thread = threading.Thread(target=lead_again)
        thread.start()
        if becomes is None:
            transaction.commit()
        else:
            with pytest.raises(becomes, match="is rolled back"):
                transaction.commit()
        thread.join(DEADLINE)
        assert done.is_set()
    bodies = [body for partition in range(2) for body in broker.bodies("t", partition)]
    assert bodies == ([b"1"] if becomes is None else [])


def test_a_node_that_dies_before_it_says_whether_it_leads_leaves_no_doubt(broker, framed):
    transaction = framed.transaction()
    transaction.send("t", b"1")
    broker.leader, broker.role = "", "handing-over"
    threading.Timer(0.1, broker.drop_connections).start()
    with pytest.raises(TransactionLost, match="is rolled back"):
        transaction.commit()


def test_a_transaction_whose_first_message_is_refused_begins_anew_at_the_leader():
    with (
        FakeBroker({"t": 1}) as broker,
        FakeBroker({"t": 1}) as leader,
        Producer(metadata=FakeCluster([broker]), config=FAST) as producer,
    ):

        def refuse(request):
            if is_send(request):
                broker.leader = str(leader.endpoint)
                return ResponseCode.NOT_LEADER
            return None

        broker.refuse = refuse
        with producer.transaction() as transaction:
            transaction.send("t", b"1")
            transaction.send("t", b"2")
        assert leader.bodies("t", 0) == [b"1", b"2"]


def test_a_rollback_at_a_node_that_leads_no_longer_is_done(broker, framed):
    transaction = framed.transaction()
    transaction.send("t", b"1")
    broker.leader = ""
    transaction.rollback()
    with pytest.raises(ClientError, match="is rolled back"):
        transaction.rollback()
