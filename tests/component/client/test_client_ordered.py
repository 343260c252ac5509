"""The ordered producer against brokers in memory: order within each partition, whatever happens to it."""

import threading
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from metaq import LocalMessageStore, OrderedProducer, ProducerConfig, StoredMessage, TopicPartition
from metaq.client.producer import partition_for_key
from metaq.client.questions.stored_records import decode_records
from metaq.client.settings.config import ConnectionConfig
from metaq.protocol import errors
from metaq.protocol.frames import Frame
from metaq.protocol.statuses import ResponseCode, Status
from metaq.protocol.text import Put
from metaq.serializers import Json
from metaq.testing import FakeBroker, FakeCluster
from tests.speaking import speaking
from tests.waiting import DEADLINE, eventually

FAST = ProducerConfig(
    retry_min_seconds=0.001,
    retry_max_seconds=0.01,
    ordered_wait_messages=3,
    ordered_wait_seconds=0.02,
    connection=ConnectionConfig(reconnect_min_seconds=0.001, reconnect_max_seconds=0.01),
)


def bodies(*numbers):
    return [b"%d" % number for number in range(*numbers)]


def send_all(producer, payloads, partition=None):
    return [producer.send("t", payload, partition=partition or A) for payload in payloads]


CONFIGURED = {"t": {0: 2, 1: 1}}
A, B, C = (TopicPartition("t", 0, 0), TopicPartition("t", 0, 1), TopicPartition("t", 1, 0))


@pytest.fixture
def brokers():
    with FakeBroker({"t": 2}, 0) as first, FakeBroker({"t": 1}, 1) as second:
        yield first, second


@pytest.fixture
def cluster(brokers):
    return FakeCluster(brokers)


@pytest.fixture
def make(cluster, tmp_path, protocol):
    made = []

    def make(**arguments):
        store = LocalMessageStore(tmp_path / "m.db", max_per_queue=arguments.pop("max_per_queue", 1000))
        settings = {"partitions": CONFIGURED, "config": FAST, "protocol": protocol, "metadata": cluster, **arguments}
        made.append(OrderedProducer(store=store, **settings))
        return made[-1]

    yield make
    for producer in made:
        producer.close()


def is_put(request):
    return isinstance(request, Put) or (isinstance(request, Frame) and request.code == 10)


def test_a_message_goes_to_a_configured_partition_whoever_is_there(make, cluster, brokers):
    producer = make()
    keyed = partition_for_key("k", (A, B, C))
    assert producer.send("t", b"1", key="k").partition == keyed
    cluster.unregister(brokers[1 - keyed.broker])
    result = producer.send("t", b"2", key="k", tag="x")
    assert (result.partition, result.pending) == (keyed, False)
    cluster.unregister(brokers[keyed.broker])
    saved = producer.send("t", b"3", key="k")
    assert saved == (0, keyed, -1, None, None)
    assert saved.pending
    assert producer.waiting(keyed) == 1


def test_a_typed_one_sends_and_saves_values_with_their_content_type_and_properties(make, cluster, brokers):
    producer = make()
    values = producer.typed(Json())
    assert not values.send("t", {"n": 1}, partition=C, properties={"n": 1}, tag="x").pending
    cluster.unregister(brokers[1])
    assert values.send("t", {"n": 2}, partition=C, properties={"n": 2}, keys=["k"]).pending
    cluster.register(brokers[1])
    assert producer.flush(DEADLINE)
    log = brokers[1].log("t", 0)
    found = decode_records(memoryview(bytes(log.data)), C, 0)
    assert [(each.decode(Json()), each.content_type, dict(each.properties)) for each in found] == [
        ({"n": 1}, "application/json", {"n": 1}),
        ({"n": 2}, "application/json", {"n": 2}),
    ]
    assert [(each.tag, each.keys) for each in found] == [("x", ()), (None, ("k",))]
    with pytest.raises(TypeError, match="not JSON serializable"):
        values.send("t", object())
    with pytest.raises(errors.ConfigError, match=r"serializer=.*: give it a serializer, such as Json"):
        producer.typed(Json)


def test_messages_without_a_key_go_round_the_configured_list_or_where_a_selector_says(make, cluster, brokers):
    cluster.unregister(brokers[0])
    with make() as producer:
        used = [producer.send("t", b"").partition for _ in range(4)]
    begin = [A, B, C].index(used[0])
    assert used == [A, B, C, A, B, C][begin : begin + 4]

    class Last:
        def select(self, topic, partitions, message):
            assert message == b"x"
            return partitions[-1]

    assert make(selector=Last()).send("t", b"x").partition == C


def test_what_is_not_configured_is_refused(make):
    producer = make()
    with pytest.raises(errors.NoPartition, match="'u' has no configured partitions"):
        producer.send("u", b"")
    with pytest.raises(errors.NoPartition, match="among those configured"):
        producer.send("t", b"", partition=TopicPartition("t", 1, 1))


@pytest.mark.parametrize("wrong", [{}, {0: -1}, {-1: 1}])
def test_partitions_that_are_none_are_refused(make, wrong):
    with pytest.raises(errors.ConfigError, match="number of partitions"):
        make(partitions={"t": wrong})


def test_saved_messages_are_sent_in_order_when_the_broker_comes_back(make, cluster, brokers):
    producer = make()
    send_all(producer, bodies(1))
    cluster.unregister(brokers[0])
    assert all(result.pending for result in send_all(producer, bodies(1, 30)))
    assert not producer.send("t", b"other", partition=C).pending
    assert not producer.flush(0.0)
    assert brokers[0].bodies("t", 0) == [b"0"]
    cluster.register(brokers[0])
    eventually(lambda: not producer.waiting(A))
    send_all(producer, bodies(30, 31))
    assert producer.flush(10)
    assert brokers[0].bodies("t", 0) == bodies(31)


def test_a_new_producer_sends_first_what_the_last_one_left(make, cluster, brokers):
    cluster.unregister(brokers[0])
    with make() as producer:
        send_all(producer, bodies(5))
    cluster.register(brokers[0])
    producer = make()
    send_all(producer, bodies(5, 6))
    assert producer.flush(10)
    assert brokers[0].bodies("t", 0) == bodies(6)


def test_a_message_for_a_closed_partition_waits_for_it_alone(make, brokers):
    brokers[0].log("t", 0).closed = True
    producer = make()
    assert producer.send("t", b"1", partition=A).pending
    brokers[0].log("t", 0).closed = False
    producer.send("t", b"2", partition=A)  # never in front of 1
    brokers[0].log("t", 0).closed = True
    assert not producer.send("t", b"other", partition=B).pending
    brokers[0].log("t", 0).closed = False
    assert producer.flush(10)
    assert brokers[0].bodies("t", 0) == [b"1", b"2"]


def test_few_messages_in_front_are_waited_for_and_many_are_not(make, cluster, brokers):
    producer = make(config=ProducerConfig(ordered_wait_messages=3, ordered_wait_seconds=20.0))
    go_on = threading.Event()
    brokers[0].refuse = lambda request: go_on.wait(DEADLINE) and None if is_put(request) else None
    cluster.unregister(brokers[0])
    send_all(producer, bodies(3))
    cluster.register(brokers[0])
    threading.Timer(0.05, go_on.set).start()
    assert not producer.send("t", b"3", partition=A).pending
    go_on.clear()
    cluster.unregister(brokers[0])
    send_all(producer, bodies(4, 8))
    cluster.register(brokers[0])
    assert producer.send("t", b"8", partition=A).pending
    go_on.set()
    assert producer.flush(10)
    assert brokers[0].bodies("t", 0) == bodies(9)


def test_a_failure_is_raised_at_the_deadline_or_saved_if_asked_for(make, brokers):
    brokers[1].stop()
    with make() as producer:
        with pytest.raises((errors.BrokerUnavailable, errors.RequestTimedOut)):
            producer.send("t", b"1", partition=C, timeout=0.05)
        assert producer.waiting(C) == 0
    producer = make(save_failed=True)
    assert producer.send("t", b"1", partition=C, timeout=0.05).pending
    eventually(lambda: C in producer.failures)
    assert isinstance(producer.failures[C], (errors.BrokerUnavailable, errors.RequestTimedOut))


def test_a_refusal_for_good_is_raised_and_never_saved(make, brokers):
    producer = make(save_failed=True)
    brokers[1].refuse = lambda request: (
        (ResponseCode.SYSTEM_ERROR if isinstance(request, Frame) else Status.ERROR) if is_put(request) else None
    )
    with pytest.raises(errors.RequestRefused):
        producer.send("t", b"1", partition=C)
    assert producer.waiting(C) == 0


def test_a_full_store_is_an_error(make, cluster, brokers):
    cluster.unregister(brokers[1])
    producer = make(max_per_queue=2)
    send_all(producer, [b"", b""], C)
    with pytest.raises(errors.LocalStoreFull):
        producer.send("t", b"", partition=C)


def test_queues_of_others_in_the_store_are_left_alone(make, tmp_path, brokers):
    with LocalMessageStore(tmp_path / "m.db") as store:
        store.append("mine", [StoredMessage("t", b"x", partition=A)])
        store.append("t@0-0", [StoredMessage("t", b"y", partition=A)])
    with make() as producer:
        assert producer.flush(10)
    with LocalMessageStore(tmp_path / "m.db") as store:
        assert store.queues() == ["mine"]
    assert brokers[0].bodies("t", 0) == [b"y"]


def test_what_stops_a_partition_is_told(make, brokers):
    brokers[0].log("t", 0).closed = True
    producer = make()
    producer.send("t", b"1", partition=A)
    eventually(lambda: A in producer.failures)
    assert isinstance(producer.failures[A], errors.PartitionClosed)
    brokers[0].log("t", 0).closed = False
    assert producer.flush(10)
    eventually(lambda: not producer.failures)


class Interleavings(RuleBasedStateMachine):
    """Brokers come and go, partitions close, connections break, the producer restarts, and messages keep coming."""

    protocol = "auto"

    def __init__(self):
        super().__init__()
        self.folder = TemporaryDirectory()
        self.running = ExitStack()
        self.brokers = [self.running.enter_context(each) for each in (FakeBroker({"t": 2}, 0), FakeBroker({"t": 1}, 1))]
        self.cluster = FakeCluster(self.brokers)
        self.registered = [True, True]
        self.sent: dict[TopicPartition, list[bytes]] = {each: [] for each in (A, B, C)}
        self.open_producer()

    def open_producer(self):
        store = LocalMessageStore(Path(self.folder.name) / "m.db")
        self.producer = OrderedProducer(
            partitions=CONFIGURED, store=store, config=speaking(self.protocol, FAST), metadata=self.cluster
        )

    @rule(partition=st.sampled_from((A, B, C)), count=st.integers(1, 6))
    def send(self, partition, count):
        for _ in range(count):
            body = b"%d" % len(self.sent[partition])
            self.producer.send("t", body, partition=partition, timeout=30)
            self.sent[partition].append(body)

    @rule(number=st.integers(0, 1))
    def come_or_go(self, number):
        if self.registered[number]:
            self.cluster.unregister(self.brokers[number])
        else:
            self.cluster.register(self.brokers[number])
        self.registered[number] = not self.registered[number]

    @rule(partition=st.sampled_from((A, B, C)))
    def close_or_open(self, partition):
        log = self.brokers[partition.broker].log("t", partition.partition)
        log.closed = not log.closed

    @rule(number=st.integers(0, 1))
    def break_connections(self, number):
        self.producer.flush(0.0)  # what is under way must not be cut: a lost answer may store a message twice
        eventually(lambda: self.producer._resender.rests)
        self.brokers[number].drop_connections()

    @rule()
    def restart(self):
        self.producer.close()
        self.open_producer()

    @rule()
    def flush(self):
        self.producer.flush(0.01)

    def teardown(self):
        for number in range(2):
            if not self.registered[number]:
                self.come_or_go(number)
        for each in (A, B, C):
            self.brokers[each.broker].log("t", each.partition).closed = False
        eventually(lambda: self.producer.flush(1))
        stored = {each: self.brokers[each.broker].bodies("t", each.partition) for each in (A, B, C)}
        self.producer.close()
        self.running.close()
        self.folder.cleanup()
        assert stored == self.sent


def test_order_holds_whatever_happens(protocol):
    machine = type("Interleavings", (Interleavings,), {"protocol": protocol})
    run_state_machine_as_test(machine, settings=settings(max_examples=12, stateful_step_count=25, deadline=None))
