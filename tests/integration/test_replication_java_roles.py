"""Replication with the real Java plugins: live where a compiled wrapper is named (java_wrapper.py), else skipped."""

from pathlib import Path

import pytest

from bench.javapeer import JavaClient
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.text import Result
from tests.broker_process import Connection
from tests.integration.java_peers import require_java
from tests.integration.java_wrapper import JavaRole, require_wrapper
from tests.integration.replication_helpers import broker, same_files, status
from tests.segment_files import segments
from tests.waiting import eventually

TOPICS = {"t": 2}


@pytest.fixture
def root(chroot: str) -> str:
    require_wrapper()
    require_java()
    return chroot


def put_answer(connection: Connection, number: int) -> Result:
    answer: Result = connection.ask(b"put t %d 5 0 -1 %d\r\nm%04d" % (number % 2, number, number))
    return answer


def test_a_java_slave_of_our_master_has_the_same_files(tmp_path: Path, root: str):
    with broker(tmp_path / "master", root, TOPICS) as master, master.connect() as connection:
        for number in range(20):
            assert put_answer(connection, number).code == 200
        with JavaRole(tmp_path / "java", root, TOPICS, "metaslave", "slaveId=2\n") as java:
            eventually(lambda: same_files(tmp_path / "master" / "data", java.data), 40, "the first copy")
            for number in range(20, 60):
                assert put_answer(connection, number).code == 200
            eventually(lambda: same_files(tmp_path / "master" / "data", java.data), 40, "the copy")
            with JavaClient(root, tmp_path / "client.log") as client:
                master.kill()
                client.join("t", "readers")
                found: list[bytes] = []

                def all_of_them() -> bool:
                    found.extend(each["data"] for each in client.received("readers"))
                    return len(found) >= 60

                eventually(all_of_them, 60, "reading from the Java slave")
                assert sorted(found) == [b"m%04d" % number for number in range(60)]


def test_a_java_synchronous_master_stores_on_our_synchronous_slave(tmp_path: Path, root: str):
    (tmp_path / "none").write_text("")
    with broker(tmp_path / "slave", root, TOPICS, f"-Fgregor={tmp_path / 'none'}") as slave:
        properties = f"slave=127.0.0.1:{slave.port}\nslaveContinuousFailureThreshold=3\ncheckSlaveIntervalInMills=50\n"
        with JavaRole(tmp_path / "java", root, TOPICS, "samsa", properties) as java:
            with ZkSession(root) as session:  # 1.x refuses puts of topics that it is just registering
                eventually(lambda: session.nodes.children("/meta/brokers/topics-sub/t"), 20, "the registration")
            connection = Connection(java.port)
            answers = [put_answer(connection, number) for number in range(40)]
            assert {answer.code for answer in answers} == {200}, answers
            assert same_files(java.data, tmp_path / "slave" / "data")


def test_our_synchronous_master_stores_on_a_java_synchronous_slave(tmp_path: Path, root: str):
    with JavaRole(tmp_path / "java", root, TOPICS, "gregor", "") as java:
        file = tmp_path / "samsa"
        file.write_text(f"slave=127.0.0.1:{java.port}\n")
        with broker(tmp_path / "master", root, TOPICS, f"-Fsamsa={file}") as master, master.connect() as connection:
            assert status(master)["connected"]
            answers = [put_answer(connection, number) for number in range(40)]
            assert {answer.code for answer in answers} == {200}, answers
            connection.send(b"".join(b"put t 0 3 0 -1 %d\r\nabc" % number for number in range(500)))
            assert {answer.code for answer in connection.answers(500) if isinstance(answer, Result)} == {200}
            assert same_files(tmp_path / "master" / "data", java.data)
            java.kill()
            eventually(lambda: not status(master)["connected"], 20, "the loss of the slave")
            before = segments(tmp_path / "master" / "data")
            refused = put_answer(connection, 1)
            assert (refused.code, refused.text) == (500, "Slave is disconnected ")
            assert segments(tmp_path / "master" / "data") == before
