"""One producer and hundreds of partitions of a real broker, which is killed and comes back: order, and nothing lost."""

from collections import defaultdict
from concurrent.futures import Future, wait
from typing import Any

from metaq import Consumer, ConsumerConfig, Producer, TopicPartition
from tests.integration.client_cluster import SESSION_SECONDS, running_brokers
from tests.waiting import DEADLINE, eventually

CONFIG = ConsumerConfig(session_timeout_seconds=SESSION_SECONDS)
PARTITIONS = 300
ROUNDS = 40


def test_order_holds_and_nothing_is_lost_when_the_broker_is_killed_and_comes_back(chroot, tmp_path):
    futures: list[Future[Any]] = []
    batches: list[Future[Any]] = []
    here = [TopicPartition("t", 0, number) for number in range(PARTITIONS)]
    with running_brokers(chroot, tmp_path, {"t": PARTITIONS}) as brokers, Producer(chroot) as producer:
        eventually(lambda: len(producer.partitions("t")) == PARTITIONS, 10)
        for number in range(ROUNDS):
            if number == ROUNDS // 2:
                brokers.running[0].kill()
                brokers.start(0)
            futures += [producer.send_async("t", b"%d" % number, partition=each, timeout=DEADLINE) for each in here]
        batches += [producer.send_batch_async("t", [b"a", b"b"], partition=each, timeout=DEADLINE) for each in here]
        assert not wait([*futures, *batches], timeout=2 * DEADLINE).not_done
        found = defaultdict(list)
        results = [future.result() for future in futures]
        for future in batches:
            results += future.result()
        places = {}
        with Consumer(chroot, group="g", topics=["t"], start="earliest", config=CONFIG) as consumer:
            wanted = {(result.partition, result.offset) for result in results}

            def all_read() -> bool:
                for message in consumer.poll(timeout=0.1):
                    found[message.partition].append(bytes(message.payload))
                    places[message.partition, message.offset] = message.id
                return places.keys() >= wanted

            eventually(all_read, 20, "reading everything")
    for result in results:
        assert places[result.partition, result.offset] == result.message_id
    expected = [*(b"%d" % number for number in range(ROUNDS)), b"a", b"b"]
    for partition in here:
        assert list(dict.fromkeys(found[partition])) == expected  # what was not acknowledged may be there twice
