"""A consumer whose ZooKeeper is gone for so long that its partitions may be another's."""

from metaq import Consumer, ConsumerConfig, Producer, TopicPartition
from tests.integration.client_cluster import read, running_brokers
from tests.waiting import eventually
from tests.zookeepers import zookeeper_process

SESSION_SECONDS = 30.0


def test_nothing_is_handed_out_after_a_third_of_the_session_without_zookeeper_and_it_goes_on_afterwards(tmp_path):
    config = ConsumerConfig(session_timeout_seconds=SESSION_SECONDS)
    server = zookeeper_process(tmp_path / "zookeeper")
    server.start()
    try:
        connect = server.connect_string
        with (
            running_brokers(connect, tmp_path, {"t": 1}),
            Producer(connect) as producer,
            Consumer(connect, group="g", topics=["t"], config=config) as consumer,
        ):
            where = TopicPartition("t", 0, 0)
            producer.send("t", b"before", partition=where)
            assert [message.payload for message in read(consumer, 1)] == [b"before"]
            server.stop()
            eventually(lambda: consumer._session.suspended_seconds > 0, 5, "noticing")
            producer.send("t", b"soon after", partition=where)
            assert [message.payload for message in read(consumer, 1)] == [b"soon after"]
            eventually(
                lambda: consumer._session.suspended_seconds > SESSION_SECONDS / 3, SESSION_SECONDS, "a third of it"
            )
            producer.send("t", b"during", partition=where)
            assert consumer.poll(timeout=0.5) == []
            server.start()
            assert [message.payload for message in read(consumer, 1)] == [b"during"]
    finally:
        server.stop()
