"""Synchronous replication between two real brokers of ours: answers, a slave that fails, and promotion."""

import signal
import zlib
from pathlib import Path

from metaq import Consumer, ConsumerConfig, Producer
from metaq.coordination.offsets.offset_store import Offset, ZooKeeperOffsetStore
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.frames import encode_frame
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.text import Result
from tests.broker_process import RunningBroker
from tests.integration.client_cluster import SESSION_SECONDS, read
from tests.integration.replication_helpers import broker, same_files, status
from tests.segment_files import segments
from tests.waiting import eventually

TOPICS = {"t": 2}
PUT = b"put t 0 5 0 -1 %d\r\nhello"


def sync_slave(tmp_path: Path, connect: str) -> RunningBroker:
    (tmp_path / "gregor").write_text("")
    return broker(tmp_path / "slave", connect, TOPICS, f"-Fgregor={tmp_path / 'gregor'}")


def sync_master(tmp_path: Path, connect: str, port: int, more: str = "", directory: str = "master") -> RunningBroker:
    (tmp_path / "samsa").write_text(f"slave=127.0.0.1:{port}\n{more}\n")
    return broker(tmp_path / directory, connect, TOPICS, f"-Fsamsa={tmp_path / 'samsa'}")


def ask(master: RunningBroker, data: bytes) -> Result:
    with master.connect() as connection:
        answer: Result = connection.ask(data)
        return answer


def test_every_message_is_on_both_sides_when_it_is_answered(tmp_path: Path, chroot: str):
    with sync_slave(tmp_path, chroot) as slave, sync_master(tmp_path, chroot, slave.port) as master:
        with master.connect() as connection:
            connection.send(b"".join(PUT % number for number in range(300)))
            assert {each.code for each in connection.answers(300) if isinstance(each, Result)} == {200}
            assert same_files(tmp_path / "master" / "data", tmp_path / "slave" / "data")
        with Producer(chroot) as producer:
            for number in range(20):
                producer.send("t", b"framed %d" % number)
            producer.send_batch("t", [b"a", b"b", b"c"])
        assert same_files(tmp_path / "master" / "data", tmp_path / "slave" / "data")
        assert status(master)["messagesFailed"] == 0
        assert status(slave)["role"] == "sync-slave"
        with ZkSession(chroot) as session:
            assert session.nodes.children("/meta/brokers/topics-sub/t") == ["0-m"]


def test_nothing_is_stored_without_a_connection_to_the_slave(tmp_path: Path, chroot: str):
    with sync_slave(tmp_path, chroot) as slave, sync_master(tmp_path, chroot, slave.port) as master:
        assert ask(master, PUT % 1).code == 200
        slave.kill()
        eventually(lambda: not status(master)["connected"], 20, "the loss of the slave")
        before = segments(tmp_path / "master" / "data")
        refused = ask(master, PUT % 2)
        assert (refused.code, refused.text) == (500, "Slave is disconnected ")
        assert segments(tmp_path / "master" / "data") == before


def test_a_master_leaves_zookeeper_until_its_slave_stores_again(tmp_path: Path, chroot: str):
    more = "sendToSlaveTimeoutInMills=2000\nslaveContinuousFailureThreshold=3\ncheckSlaveIntervalInMills=50"
    with (
        sync_slave(tmp_path, chroot) as slave,
        sync_master(tmp_path, chroot, slave.port, more) as master,
        ZkSession(chroot) as session,
    ):

        def registered() -> bool:
            return "master" in session.nodes.children("/meta/brokers/ids/0")

        assert registered()
        slave.process.send_signal(signal.SIGSTOP)
        text = f"Put message to [slave 'meta://127.0.0.1:{slave.port}'] [partition 't-0'] failed"
        for number in range(3):
            failed = ask(master, PUT % number)
            assert (failed.code, failed.text) == (500, text)
        eventually(lambda: not registered(), 20, "leaving")
        with master.ini.open("a") as ini:
            ini.write("\n[topic=more]\nnumPartitions=1\n")
        with master.connect() as connection:
            assert connection.ask_frame(encode_frame(RequestCode.RELOAD_CONFIG, 1, {})).code == ResponseCode.SUCCESS
        slave.process.send_signal(signal.SIGCONT)
        eventually(registered, 20, "coming back")
        now = b"%d" % zlib.crc32(master.ini.read_bytes())  # of the file as it was loaded meanwhile
        path = "/meta/brokers/ids/0/master_config_checksum"
        eventually(lambda: (node := session.nodes.get(path)) and node.data == now, 20, "its checksum")
        eventually(lambda: session.nodes.get("/meta/brokers/topics-pub/more/0-m"), 20, "the new topic")
        eventually(lambda: session.nodes.children("/meta/brokers/topics-sub/t") == ["0-m"], 20, "its topics")
        assert ask(master, PUT % 9).code == 200


def test_a_promoted_slave_moves_the_groups_to_its_own_positions(tmp_path: Path, chroot: str):
    with sync_slave(tmp_path, chroot) as slave:
        # a message of an earlier life: from here on the slave's offsets are not the master's
        assert ask(slave, b"sync t 0 3 0 7 -1 1\r\nold").code == 200
        with sync_master(tmp_path, chroot, slave.port) as master:
            answers = [ask(master, PUT % number) for number in range(4)]
            ids_and_offsets = [tuple(map(int, answer.text.split())) for answer in answers]
            master.kill()
        slave.stop()
    second, third = ids_and_offsets[1], ids_and_offsets[2]
    with ZkSession(chroot) as session:
        store = ZooKeeperOffsetStore(session)
        store.commit("g", {("t", "0-0"): Offset(second[0], third[2])}, None)
        store.commit("java", {("t", "0-0"): Offset(-5, 25)}, None)
        store.commit("lost", {("t", "0-1"): Offset(3, 25)}, None)
    more = "recoverOffset=true"
    with sync_slave_elsewhere(tmp_path, chroot) as other, sync_master(tmp_path, chroot, other.port, more, "slave"):
        with ZkSession(chroot) as session:
            store = ZooKeeperOffsetStore(session)
            assert store.load("g", "t", "0-0") == Offset(second[0], third[2] + 23)
            assert store.load("java", "t", "0-0") == Offset(-5, 25)
            assert store.load("lost", "t", "0-1") == Offset(-1, 0)
        config = ConsumerConfig(session_timeout_seconds=SESSION_SECONDS)
        with Consumer(chroot, group="g", topics=["t"], config=config) as consumer:
            assert [each.id for each in read(consumer, 2)] == [third[0], ids_and_offsets[3][0]]


def sync_slave_elsewhere(tmp_path: Path, connect: str) -> RunningBroker:
    return broker(tmp_path / "other", connect, TOPICS, f"-Fgregor={tmp_path / 'gregor'}")
