"""The producer with many partitions and with batches under way: fewer requests, the same promises."""

import threading
from concurrent.futures import wait

from metaq import Producer, TopicPartition
from metaq.protocol.errors import PartitionClosed, RequestTimedOut
from metaq.protocol.frames import Frame
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.component.client.harness import address
from tests.waiting import DEADLINE

COUNT = 50
TOPICS = {"t": COUNT, "u": COUNT}
MANY = f"frame {int(RequestCode.SEND_MANY)}"


def send_rounds(producer, rounds):
    """So many messages to each partition of both topics, in turn."""
    return [
        producer.send_async(topic, b"%d" % number, partition=TopicPartition(topic, 0, partition))
        for number in range(rounds)
        for topic in ("t", "u")
        for partition in range(COUNT)
    ]


def check_stored(broker, rounds):
    for (topic, partition), log in broker.logs.items():
        assert broker.bodies(topic, partition) == [b"%d" % number for number in range(rounds)], (topic, partition)
        assert len(log.ids) == rounds


def test_messages_to_many_partitions_share_requests_and_get_their_results(broker, framed):
    broker.replicas = 2
    futures = send_rounds(framed, 20)
    for future in futures:
        result = future.result(DEADLINE)
        assert result.replicas == 2
        log = broker.log(result.partition.topic, result.partition.partition)
        assert log.ids[log.starts.index(result.offset)] == result.message_id
    check_stored(broker, 20)
    assert MANY in broker.requests
    assert broker.sends < len(futures) / 4


def test_a_broker_that_does_not_take_many_gets_a_request_a_partition(broker, framed):
    broker.takes_many = False
    assert not wait(send_rounds(framed, 10), timeout=DEADLINE).not_done
    check_stored(broker, 10)
    assert MANY not in broker.requests


def test_a_closed_partition_holds_up_only_its_own_messages(broker, framed):
    closed = broker.log("t", 7)
    closed.closed = True
    futures = send_rounds(framed, 5)
    others = [future for number, future in enumerate(futures) if number % (2 * COUNT) != 7]
    assert not wait(others, timeout=DEADLINE).not_done
    assert not any(future.done() for number, future in enumerate(futures) if number % (2 * COUNT) == 7)
    closed.closed = False
    assert not wait(futures, timeout=DEADLINE).not_done
    check_stored(broker, 5)


def test_a_part_that_stays_refused_gets_the_brokers_error(broker, framed):
    broker.log("t", 7).closed = True
    for timeout in (1.0, 10.0, DEADLINE / 2):  # on a machine that is busy the broker may answer late
        futures = {
            partition: framed.send_async(
                "t", b"x", partition=TopicPartition("t", 0, partition), timeout=timeout if partition == 7 else DEADLINE
            )
            for partition in range(COUNT)
        }
        error = futures[7].exception(DEADLINE)
        assert isinstance(error, RequestTimedOut)
        assert all(future.exception(DEADLINE) is None for partition, future in futures.items() if partition != 7)
        if "tries failed" in str(error):
            break
    assert str(PartitionClosed(0, 7)) in str(error)


def test_order_holds_while_connections_break(broker, framed):
    stop = threading.Event()

    def breaking():
        while not stop.wait(0.01):
            broker.drop_connections()

    thread = threading.Thread(target=breaking)
    thread.start()
    futures = send_rounds(framed, 30)
    stop.set()
    thread.join()
    assert not wait(futures, timeout=DEADLINE).not_done
    assert all(future.exception() is None for future in futures)
    for topic in ("t", "u"):
        for partition in range(COUNT):
            numbers = list(map(int, broker.bodies(topic, partition)))
            firsts = list(dict.fromkeys(numbers))  # a message whose answer was lost may be there twice
            assert firsts == list(range(30))


def test_a_frame_that_is_refused_as_a_whole_is_tried_again(broker, framed):
    left = [3]

    def refuse(request):
        if isinstance(request, Frame) and request.code == RequestCode.SEND_MANY and left[0]:
            left[0] -= 1
            return ResponseCode.SYSTEM_BUSY
        return None

    broker.refuse = refuse
    assert not wait(send_rounds(framed, 10), timeout=DEADLINE).not_done
    assert left == [0]
    check_stored(broker, 10)


def test_the_broker_chooses_partitions_for_a_producer_that_does_not_know_them(broker):
    with Producer.direct(address(broker)) as producer:
        futures = [producer.send_async(topic, b"x") for _ in range(100) for topic in ("t", "u")]
        results = [future.result(DEADLINE) for future in futures]
    for result in results:
        log = broker.log(result.partition.topic, result.partition.partition)
        assert log.ids[log.starts.index(result.offset)] == result.message_id


# --- batches under way ------------------------------------------------------------------------------------------------


def test_batches_of_one_thread_keep_their_order_and_get_their_results(broker, producer):
    here = TopicPartition("t", 0, 3)
    batches = [[b"%d.%d" % (number, each) for each in range(20)] for number in range(30)]
    futures = [producer.send_batch_async("t", batch, partition=here) for batch in batches]
    log = broker.log("t", 3)
    for number, future in enumerate(futures):
        results = future.result(DEADLINE)
        assert len(results) == 20
        assert [each.offset for each in results] == log.starts[number * 20 : number * 20 + 20]
        assert [each.message_id for each in results] == log.ids[number * 20 : number * 20 + 20]
    assert broker.bodies("t", 3) == [payload for batch in batches for payload in batch]


def test_batches_to_many_partitions_share_requests(broker, framed):
    futures = [framed.send_batch_async("t", [b"x", b"y"]) for _ in range(10 * COUNT)]
    assert not wait(futures, timeout=DEADLINE).not_done
    for partition in range(COUNT):
        assert broker.bodies("t", partition) == [b"x", b"y"] * 10
    assert MANY in broker.requests


def test_large_records_are_sent_from_where_they_are(broker, framed):
    large = [bytes([number]) * 300_000 for number in range(8)]
    future = framed.send_batch_async("t", large)
    partition = future.result(DEADLINE)[0].partition.partition
    assert broker.bodies("t", partition) == large
