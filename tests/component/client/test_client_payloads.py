"""What a payload may be: bytes, or a buffer of any layout, which is copied when the call accepts it."""

import array
from typing import Any

import pytest

from metaq import (
    LocalMessageStore,
    Message,
    OrderedProducer,
    Producer,
    ProducerConfig,
    StoredMessage,
    TopicPartition,
    Xid,
)
from tests.waiting import DEADLINE, eventually

CONFIG = ProducerConfig(retry_min_seconds=0.001, retry_max_seconds=0.01, delivery_timeout_seconds=5)
HERE = TopicPartition("t", 0, 0)

VIEWS: dict[str, Any] = {
    "doubles": memoryview(array.array("d", [1.0, 2.0, 3.0])),
    "two dimensions": memoryview(bytes(range(12))).cast("B", (3, 4)),
    "strided": memoryview(b"abcdefgh")[::2],
    "reversed": memoryview(b"abcdefgh")[::-1],
    "bytearray": bytearray(b"abc"),
}

CALLS = {
    "send": lambda producer, payload, **options: producer.send("t", payload, **options),
    "send_async": lambda producer, payload, **options: producer.send_async("t", payload, **options).result(DEADLINE),
    "produce": lambda producer, payload, **options: producer.produce("t", payload, **options),
    "send_batch": lambda producer, payload, **options: producer.send_batch("t", [payload, b"x"], **options),
    "send_batch of a Message": lambda producer, payload, **_: producer.send_batch(
        "t", [Message(HERE, 0, 0, 0, payload), b"x"]
    ),
    "send_batch_async": lambda producer, payload, **options: producer.send_batch_async(
        "t", [payload, b"x"], **options
    ).result(DEADLINE),
    "send_stored": lambda producer, payload, **_: producer.send_stored(StoredMessage("t", payload)),
    "transaction": lambda producer, payload, **options: in_transaction(producer, payload, options),
    "XA": lambda producer, payload, **options: in_xa(producer, payload, options),
}


def in_transaction(producer, payload, options):
    with producer.transaction() as transaction:
        transaction.send("t", payload, **options)
        transaction.send_batch("t", [payload, b"x"], **options)


def in_xa(producer, payload, options):
    xa = producer.xa(["t"])
    xid = Xid(1, b"g", b"b")
    with xa.start(xid) as branch:
        branch.send("t", payload, **options)
    xa.commit(xid, one_phase=True)


@pytest.mark.parametrize("options", [{}, {"tag": "a"}, {"key": "k"}], ids=["plain", "tag", "key"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_any_layout_is_stored_as_its_bytes(broker, producer, view, call, options):
    payload = VIEWS[view]
    CALLS[call](producer, payload, **options)
    producer.flush(DEADLINE)
    producer.send("t", b"later")
    stored = broker.bodies("t", 0)
    count = 2 if call == "transaction" else 1
    assert sum(body.endswith(bytes(payload)) for body in stored) == count
    assert stored[-1] == b"later"


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_among_gathered_messages_leaves_them_alone(broker, producer, view):
    outcomes = []
    for number in range(300):
        payload = VIEWS[view] if number == 150 else b"%d" % number
        producer.produce("t", payload, on_delivery=lambda error, result: outcomes.append(error))
    producer.flush(DEADLINE)
    assert outcomes == [None] * 300
    assert broker.bodies("t", 0) == [b"%d" % n if n != 150 else bytes(VIEWS[view]) for n in range(300)]


@pytest.mark.parametrize("call", ["send_async", "produce", "batch", "keyed"])
def test_a_buffer_may_be_used_again_when_the_call_has_returned(broker, producer, call):
    buffer = bytearray(3)
    view = memoryview(buffer)
    sends = {
        "send_async": lambda: producer.send_async("t", buffer),
        "produce": lambda: producer.produce("t", view),
        "batch": lambda: producer.send_batch_async("t", [buffer, view]),
        "keyed": lambda: producer.send_async("t", buffer, key="k"),
    }
    for number in range(200):
        buffer[:] = b"%03d" % number
        sends[call]()
    producer.flush(DEADLINE)
    stored = [body[-3:] for body in broker.bodies("t", 0)]
    assert stored == sorted(b"%03d" % n for n in range(200) for _ in range(2 if call == "batch" else 1))


def test_a_selector_is_shown_the_bytes(cluster):
    shown = []

    class First:
        def select(self, topic, partitions, message):
            shown.append(message)
            return partitions[0]

    with Producer(metadata=cluster, selector=First(), config=CONFIG) as producer:
        producer.send("t", bytearray(b"1"))
        producer.send_async("t", memoryview(b"2")).result(DEADLINE)
        producer.send_batch("t", [bytearray(b"3"), b"4"])
    assert shown == [b"1", b"2", [b"3", b"4"]]
    assert [type(each) for each in (*shown[:2], *shown[2])] == [bytes] * 4


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("is_there", [True, False])
def test_an_ordered_producer_sends_and_saves_the_bytes(tmp_path, broker, cluster, view, is_there):
    if not is_there:
        cluster.unregister(broker)
    store = LocalMessageStore(tmp_path / "m.db")
    with OrderedProducer(partitions={"t": {0: 1}}, store=store, metadata=cluster, config=CONFIG) as producer:
        assert producer.send("t", VIEWS[view]).pending is not is_there
        if not is_there:
            cluster.register(broker)
        eventually(lambda: broker.bodies("t", 0) == [bytes(VIEWS[view])])


@pytest.mark.parametrize("view", VIEWS)
def test_a_local_store_keeps_the_bytes(tmp_path, view):
    with LocalMessageStore(tmp_path / "m.db") as store:
        store.append("q", [StoredMessage("t", VIEWS[view])])
        ((_, message),) = store.peek("q", 2)
    assert message.body == bytes(VIEWS[view])


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("payload", ["text", 5, None, array.array("d")], ids=repr)
def test_what_is_no_payload_is_named_with_its_type(broker, producer, payload, call):
    with pytest.raises(TypeError, match=f"a payload is bytes, .* not {type(payload).__name__}"):
        CALLS[call](producer, payload)
    assert broker.bodies("t", 0) == []
    producer.send("t", b"later")
