"""Asynchronous slaves of real masters, Java's and ours: the same files, new topics, and consumers that fail over."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.javapeer import JavaBroker, JavaClient
from metaq import Consumer, ConsumerConfig, Producer
from metaq.coordination.session.zk_session import ZkSession
from tests.broker_process import RunningBroker
from tests.integration.cli_helpers import Operator
from tests.integration.client_cluster import SESSION_SECONDS, read
from tests.integration.java_peers import put_when_connected, received_at_least_once, require_java
from tests.integration.replication_helpers import broker, same_files, slave, status, wait_for_copy
from tests.segment_files import segments
from tests.waiting import eventually

CONFIG = ConsumerConfig(session_timeout_seconds=SESSION_SECONDS, auto_commit_seconds=0.1)
GROUP = "meta-slave-group_1"


@pytest.fixture
def root(chroot: str) -> str:
    return chroot


@contextmanager
def java_master(tmp_path: Path, root: str, topics: dict[str, int]) -> Iterator[JavaBroker]:
    require_java()
    with JavaBroker(tmp_path / "java", root, topics, {"unflushThreshold": 1, "brokerId": 0}) as master:
        yield master


def test_a_slave_of_a_java_master_has_the_same_files_and_serves_java_consumers(tmp_path: Path, root: str):
    (tmp_path / "java").mkdir()
    with java_master(tmp_path, root, {"t": 3}) as master, JavaClient(root, tmp_path / "client.log") as client:
        sent = [b"message %d" % number for number in range(60)]
        for data in sent[:30]:
            client.put("t", data, "red")
        with slave(tmp_path, root, {"t": 3}) as copy:
            unanswered = sum(put_when_connected(client, "t", data) for data in sent[30:])
            eventually(lambda: same_files(master.data, tmp_path / "slave" / "data"), 20, "the copy")
            with copy.connect() as connection:
                assert b"slave true" in connection.ask(b"stats  1\r\n").text.encode()
            with ZkSession(root) as session:
                nodes = session.nodes
                assert "slave1" in nodes.children("/meta/brokers/ids/0")
                assert "0-s1" in nodes.children("/meta/brokers/topics-sub/t")
                (consumer,) = nodes.children(f"/meta/consumers/{GROUP}/ids")
                node = nodes.get(f"/meta/consumers/{GROUP}/ids/{consumer}")
                assert node is not None
                assert node.data == b"t"
                assert nodes.children(f"/meta/consumers/{GROUP}") == ["ids"]
            master.close()
            client.join("t", "after-a-clean-stop")
            received_at_least_once(client, "after-a-clean-stop", set(sent), unanswered)


def test_java_consumers_read_from_a_slave_when_the_java_master_was_killed(tmp_path: Path, root: str):
    (tmp_path / "java").mkdir()
    with (
        java_master(tmp_path, root, {"t": 1}) as master,
        JavaClient(root, tmp_path / "client.log") as client,
        slave(tmp_path, root, {"t": 1}),
        ZkSession(root) as session,
    ):
        eventually(lambda: "slave1" in session.nodes.children("/meta/brokers/ids/0"), what="the slave's registration")
        client.join("t", "readers")
        sent = [b"%d" % number for number in range(10)]
        unanswered = sum(put_when_connected(client, "t", data) for data in sent)
        received_at_least_once(client, "readers", set(sent), unanswered)
        eventually(lambda: same_files(master.data, tmp_path / "slave" / "data"), 20, "the copy")
        master.kill()
        client.join("t", "late")
        received_at_least_once(client, "late", set(sent), unanswered)


def test_a_slave_of_ours_follows_new_topics_and_refuses_messages(tmp_path: Path, root: str):
    with broker(tmp_path / "master", root, {"t": 2, "wild*": 1}) as master, slave(tmp_path, root, {"t": 2}) as copy:
        with master.connect() as connection:
            for topic, partition in (("t", 0), ("t", 1), ("wild1", 0)):
                assert connection.ask(b"put %b %d 1 0 -1 7\r\nx" % (topic.encode(), partition)).code == 200
        wait_for_copy(tmp_path)
        shown = {(each["topic"], each["partition"]): each for each in status(copy)["partitions"]}
        assert shown["wild1", 0]["lagBytes"] == 0
        with ZkSession(root) as session:
            path = "/meta/brokers/topics-sub/wild1"
            eventually(lambda: "0-s1" in session.nodes.children(path), 20, "the slave's registration")
        with copy.connect() as connection:
            refused = connection.ask(b"put t 0 1 0 -1 7\r\nx")
        assert refused.code == 500
        assert "slave of broker 0" in refused.text
        assert status(master)["role"] == "master"


def test_our_consumer_reads_the_rest_from_the_slave_and_returns_to_the_master(tmp_path: Path, root: str):
    start_master: Callable[[], RunningBroker] = lambda: broker(tmp_path / "master", root, {"t": 1})  # noqa: E731
    sent = [b"%d" % number for number in range(20)]
    with start_master() as master, slave(tmp_path, root, {"t": 1}) as copy:
        with Producer(root) as producer:
            for data in sent:
                producer.send("t", data)
        wait_for_copy(tmp_path)
        master.kill()
        with Consumer(root, group="g", topics=["t"], config=CONFIG) as consumer:
            assert [message.payload for message in read(consumer, 20)] == sent
            with start_master():
                with Producer(root) as producer:
                    producer.send("t", b"again")
                assert [message.payload for message in read(consumer, 1)] == [b"again"]
                wait_for_copy(tmp_path)
                eventually(lambda: status(copy)["lagBytes"] == 0 and status(copy)["connected"], 20, "telling that")


def test_a_slave_that_has_other_bytes_stops_and_says_so(tmp_path: Path, root: str):
    with broker(tmp_path / "master", root, {"t": 1}), Producer(root) as producer:
        producer.send("t", b"the master's")
        other = tmp_path / "other"
        with broker(tmp_path / "slave", f"{root}/{other.name}", {"t": 1}) as alone, alone.connect() as connection:
            assert connection.ask(b"put t 0 12 0 -1 7\r\nnot the same").code == 200
        before = segments(tmp_path / "slave" / "data")
        with slave(tmp_path, root, {"t": 1}) as copy:
            eventually(lambda: status(copy)["partitionsStopped"] == 1, 20, "the stop")
            assert "not those of the master" in status(copy)["partitions"][0]["error"]
            operator, of_the_slave = Operator(root), ("--broker", "0", "--slave", "1")
            ran = operator.ran("replication", "status", *of_the_slave)
            assert (ran.code, "stopped" in ran.out, "not those of the master" in ran.out) == (1, True, True)
            operator.json("replication", "restart", *of_the_slave)
            eventually(lambda: status(copy)["partitionsStopped"] == 1, 20, "the second stop")
        assert segments(tmp_path / "slave" / "data") == before


def test_a_slave_takes_over_the_topics_of_its_masters_file(tmp_path: Path, root: str):
    with broker(tmp_path / "master", root, {"t": 1, "more": 3}) as master:
        with slave(tmp_path, root, {"t": 1}, "autoSyncMasterConfig=true") as copy:
            eventually(lambda: b"[topic=more]" in copy.ini.read_bytes(), 20, "the master's topics")
            assert copy.ini.read_text().count("serverPort=0") == 1
            eventually(lambda: len(status(copy)["partitions"]) == 4, 20, "the master's partitions")
            with copy.connect() as connection:
                configured_without_data = b"stats more 1\r\n"
                eventually(lambda: "resultCode 2" in connection.ask(configured_without_data).text, 20, "the reload")
        assert master.stop() == 0
