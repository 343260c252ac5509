"""Single sends that are gathered: produce() with call-backs, send_async() with futures; nothing lost, nothing twice."""

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq import LocalMessageStore, Message, Producer, ProducerConfig, SendResult, TopicPartition
from metaq.protocol.errors import ClientError, DeliveryFailed, NoPartition, RequestRefused, RequestTimedOut
from metaq.protocol.record import iter_headers
from metaq.protocol.statuses import ResponseCode
from metaq.testing import FakeCluster
from tests.child import refusal
from tests.component.client.harness import FAST, is_send, together
from tests.raising import raising
from tests.waiting import DEADLINE, eventually

TOPICS = {"t": 1, "many": 4}
HERE, OTHER, THERE = TopicPartition("t", 0, 0), TopicPartition("t", 0, 1), TopicPartition("many", 0, 2)


class Reports:
    """What an on_delivery was called with."""

    def __init__(self) -> None:
        self.results: list[SendResult] = []
        self.errors: list[Exception] = []

    def __call__(self, error: Exception | None, result: SendResult | None) -> None:
        assert (error is None) is (result is not None)
        if error is not None:
            self.errors.append(error)
        if result is not None:
            self.results.append(result)


def messages(broker, topic, partition):
    """What is stored, in order."""
    bodies = broker.bodies(topic, partition)
    flags = [header.flag for header in iter_headers(bytes(broker.log(topic, partition).data))]
    return [Message(HERE, 0, 0, flag, body) for flag, body in zip(flags, bodies, strict=True)]


def refuse_sends(broker):
    """With an error that cannot help to repeat."""
    broker.refuse = lambda request: ResponseCode.SYSTEM_ERROR if is_send(request) else None


def test_each_message_is_stored_in_order_and_reported_with_its_place(broker, producer):
    reports, count = Reports(), 3000
    for number in range(count):
        producer.produce("t", b"%d" % number, on_delivery=reports)
    producer.flush(DEADLINE)
    log = broker.log("t", 0)
    assert broker.bodies("t", 0) == [b"%d" % number for number in range(count)]
    assert [(result.message_id, result.offset) for result in reports.results] == list(
        zip(log.ids, log.starts, strict=True)
    )
    assert {result.partition for result in reports.results} == {HERE}
    assert reports.errors == []


def test_what_is_gathered_shares_requests(broker, framed):
    for number in range(5000):
        framed.produce("t", b"%d" % number)
    futures = [framed.send_async("t", b"%d" % number) for number in range(5000)]
    framed.flush(DEADLINE)
    assert broker.sends < 500
    log = broker.log("t", 0)
    assert [future.result(0).offset for future in futures] == log.starts[5000:]
    assert [future.result(0).message_id for future in futures] == log.ids[5000:]


def test_messages_without_a_key_stick_to_a_partition_until_its_batch_leaves(broker):
    with Producer(metadata=FakeCluster([broker]), config=ProducerConfig(linger_ms=20)) as producer:
        for turn in range(4):
            futures = [producer.send_async("many", b"%d" % turn) for _ in range(50)]
            producer.flush(DEADLINE)
            assert len({future.result(0).partition for future in futures}) == 1
    assert [len(broker.bodies("many", number)) for number in range(4)] == [50, 50, 50, 50]


def test_messages_to_a_named_partition_keep_their_order_among_all_kinds_of_sends(broker, framed):
    for number in range(0, 400, 4):
        framed.send_async("many", b"%d" % number, partition=THERE)
        framed.produce("many", b"%d" % (number + 1), partition=THERE)
        framed.send_batch_async("many", [b"%d" % (number + 2)], partition=THERE)
        framed.produce("many", b"%d" % (number + 3), key="k", partition=THERE)
    framed.flush(DEADLINE)
    assert [int(message.payload) for message in messages(broker, "many", 2)] == list(range(400))


def test_messages_with_and_without_attributes_are_gathered_together(broker, producer):
    tags = [None, "a", "a", None, "b"] * 100
    for tag in tags:
        producer.produce("t", b"x", tag=tag)
    producer.flush(DEADLINE)
    stored = messages(broker, "t", 0)
    assert [message.tag for message in stored] == tags
    assert {message.payload for message in stored} == {b"x"}


def test_a_key_chooses_the_partition_and_its_message_is_reported(producer):
    reports = Reports()
    for number in range(40):
        producer.produce("many", b"%d" % number, key=f"k{number % 4}", on_delivery=reports)
    producer.flush(DEADLINE)
    assert len(reports.results) == 40
    where = producer.send_async("many", b"", key="k1").result(DEADLINE).partition
    assert where in {result.partition for result in reports.results}


def test_each_message_may_have_a_call_back_of_its_own(producer):
    seen: list[int] = []
    for number in range(500):
        producer.produce("t", b"x", on_delivery=lambda error, result, number=number: seen.append(number))
    producer.flush(DEADLINE)
    assert seen == list(range(500))


def test_a_call_back_that_fails_keeps_nothing_from_the_others(producer, caplog):
    reports = Reports()
    for _ in range(100):
        producer.produce("t", b"x", on_delivery=raising(StopIteration))  # it would end a loop that is not the user's
        producer.produce("t", b"x", on_delivery=reports)
    producer.flush(DEADLINE)
    assert len(reports.results) == 100
    assert caplog.text.count("on_delivery of a send failed") == 100


def test_a_call_back_may_send_but_not_wait(framed):
    reports, said = Reports(), list[str]()

    def again(error: Exception | None, result: SendResult | None) -> None:
        said.append(refusal(framed.flush))
        framed.produce("t", b"again", on_delivery=reports)

    framed.produce("t", b"first", on_delivery=again)
    eventually(lambda: reports.results)
    assert ["callback" in each for each in said] == [True]


def test_an_error_is_reported_for_each_message(broker, framed):
    reports = Reports()
    refuse_sends(broker)
    for _ in range(300):
        framed.produce("t", b"x", on_delivery=reports)
    framed.flush(DEADLINE)
    assert [type(error) for error in reports.errors] == [RequestRefused] * 300


def test_an_error_that_nobody_is_told_of_is_raised_by_the_flush_and_once_only(broker, framed):
    refuse_sends(broker)
    for key in (None, "k") * 5:
        framed.produce("t", b"x", key=key)
    with pytest.raises(DeliveryFailed, match="10 messages could not be delivered") as lost:
        framed.flush(DEADLINE)
    assert sum(lost.value.losses.values()) == 10
    framed.flush(DEADLINE)


def test_an_error_that_nobody_is_told_of_is_raised_by_the_end_of_the_block_unless_it_has_one(broker, caplog):
    refuse_sends(broker)
    with pytest.raises(DeliveryFailed), Producer(metadata=FakeCluster([broker])) as producer:
        producer.produce("t", b"x")

    def fail(producer: Producer) -> None:
        with producer:
            producer.produce("t", b"x")
            raise KeyError

    with pytest.raises(KeyError):
        fail(Producer(metadata=FakeCluster([broker])))
    assert "1 messages could not be delivered" in caplog.text


@pytest.mark.parametrize("bound", [{"max_buffered_messages": 20}, {"max_buffered_bytes": 20 * 21}])
def test_no_more_wait_than_is_allowed_and_a_call_waits_for_room_until_its_deadline(broker, cluster, bound):
    with Producer(metadata=cluster, config=ProducerConfig(**bound)) as producer:
        producer.send("t", b"x")
        broker.silent = True
        futures = [producer.send_async("t", b"x", timeout=DEADLINE) for _ in range(20)]
        for send in (producer.produce, producer.send_async):
            with pytest.raises(RequestTimedOut, match=r"wait for the brokers already, .*max_buffered_bytes"):
                send("t", b"x", timeout=0.05)
        broker.silent = False
        broker.drop_connections()
        producer.produce("t", b"last", timeout=DEADLINE)
        assert all(future.result(DEADLINE) for future in futures)
    assert broker.bodies("t", 0)[-1] == b"last"


def test_a_message_ends_at_its_own_deadline_whatever_it_was_gathered_with(broker, framed):
    framed.send("t", b"x")
    broker.silent = True
    framed.produce("t", b"under way", timeout=DEADLINE)
    late = framed.send_async("t", b"late", timeout=DEADLINE)
    early = framed.send_async("t", b"early", timeout=0.1)
    assert isinstance(early.exception(DEADLINE), RequestTimedOut)
    assert not late.done()
    broker.silent = False
    broker.drop_connections()
    assert late.result(DEADLINE).offset >= 0


def test_order_holds_while_connections_break(broker):
    stop, reports, count = threading.Event(), Reports(), 20_000

    def breaking() -> None:
        while not stop.wait(0.01):
            broker.drop_connections()

    thread = threading.Thread(target=breaking)
    thread.start()
    with Producer(metadata=FakeCluster([broker]), config=FAST) as producer:
        for number in range(count):
            producer.produce("t", b"%d" % number, on_delivery=reports)
        stop.set()
        thread.join()
        producer.flush(DEADLINE)
    assert (len(reports.results), reports.errors) == (count, [])
    firsts = list(dict.fromkeys(map(int, broker.bodies("t", 0))))  # one whose answer was lost may be there twice
    assert firsts == list(range(count))


def test_messages_of_a_partition_that_fails_go_to_another(broker, framed):
    broker.log("many", 1).closed = True
    futures = [framed.send_async("many", b"%d" % number) for number in range(500)]
    assert {future.result(DEADLINE).partition.partition for future in futures} <= {0, 2, 3}


def test_what_cannot_be_delivered_goes_to_the_store_message_by_message(broker, cluster, tmp_path):
    reports = Reports()
    store = LocalMessageStore(tmp_path / "undelivered.db")
    with Producer(metadata=cluster, config=FAST, undelivered=store) as producer:
        broker.log("t", 0).closed = True
        for number in range(50):
            producer.produce("t", b"%d" % number, timeout=0.1, on_delivery=reports)
        eventually(lambda: len(reports.results) == 50)
        assert all(result.pending for result in reports.results)
        broker.log("t", 0).closed = False
        cluster.unregister(broker)
        producer.produce("t", b"50", on_delivery=reports)  # nobody publishes the topic
        eventually(lambda: len(reports.results) == 51)
        cluster.register(broker)
        eventually(lambda: not store.queues())
    assert sorted(map(int, broker.bodies("t", 0))) == list(range(51))
    assert reports.errors == []


def test_what_a_call_can_tell_at_once_it_raises(framed):
    payload: Any = "text"
    with pytest.raises(TypeError):
        framed.produce("t", payload)
    framed.send_async("many", b"x", partition=THERE)
    for topic, options in (("nowhere", {}), ("t", {"partition": OTHER}), ("t", {"partition": THERE})):
        for send in (framed.produce, framed.send_async):
            with pytest.raises(NoPartition):
                send(topic, b"x", **options)
    framed.close()
    with pytest.raises(ClientError, match="closed"):
        framed.produce("t", b"x")


def test_many_threads_gather_in_the_same_batches(broker, producer):
    reports = Reports()

    def send(number: int) -> None:
        for each in range(500):
            producer.produce("t", b"%d.%d" % (number, each), on_delivery=reports)

    together(send, range(8))
    producer.flush(DEADLINE)
    assert len(reports.results) == len(set(broker.bodies("t", 0))) == 8 * 500


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 16]), st.booleans()), min_size=1, max_size=60))
def test_columns_say_of_each_message_what_was_given_for_it(messages):
    """Against a list of messages; an interrupted call leaves a flag and an on_delivery without a message."""
    from metaq.client.producer.outgoing import GatheredBatch

    seen: list[list[SendResult]] = [[], [], []]
    calls = [lambda error, result, mine=mine: mine.append(result) for mine in seen]
    first, flag, _ = messages[0]
    batch = GatheredBatch("t", "t", flag, b"0", 1.0, calls[first])
    for number, (call, flag, interrupted) in enumerate(messages[1:], 1):
        if interrupted:
            batch.put_flag(99)
            batch.put_report(calls[(call + 1) % 3])
        if batch.flags != flag:
            batch.put_flag(flag)
        if batch.runs[-1][1] is not calls[call]:
            batch.put_report(calls[call])
        batch.bodies.append(b"%d" % number)
    records = list(batch.records())
    assert [(flag, body) for flag, _, body in records] == [
        (flag, b"%d" % number) for number, (_, flag, _) in enumerate(messages)
    ]
    results = [SendResult(number, HERE, number) for number in range(len(messages))]
    batch.succeed(results)
    batch.succeed(results)
    assert seen == [
        [result for result, (call, _, _) in zip(results, messages, strict=True) if call == mine] for mine in range(3)
    ]
