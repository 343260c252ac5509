"""The Java metaq 1.4.6.2 beside us works by itself: whatever fails between it and ours then, fails because of ours."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bench.javapeer import JavaBroker, JavaClient
from bench.processes import ProcessFailed
from metaq.coordination.embedded import EmbeddedZooKeeper
from metaq.coordination.servers.local_zookeeper import ZooKeeperProcess
from metaq.coordination.standalone_process import StandaloneZooKeeper
from tests.integration.java_peers import received, require_java

MESSAGES = [(f"message {number}".encode(), "red" if number % 2 else None) for number in range(50)]
READABLE_AT_ONCE = {"unflushThreshold": 1}


@pytest.fixture(scope="module", params=[EmbeddedZooKeeper, StandaloneZooKeeper])
def zk_connect(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    require_java()
    server: ZooKeeperProcess = request.param(tmp_path_factory.mktemp("zookeeper"), port=0)
    server.start()
    try:
        client = KazooClient(server.connect_string)
        client.start()
        client.create("/java")
        client.stop()
        client.close()
        yield f"{server.connect_string}/java"
    finally:
        server.stop()


def test_java_client_gets_back_from_java_broker_what_it_sent(tmp_path: Path, zk_connect: str) -> None:
    with (
        JavaBroker(tmp_path, zk_connect, {"smoke": 2}, READABLE_AT_ONCE),
        JavaClient(zk_connect, tmp_path / "client.log") as client,
    ):
        answers = [client.put("smoke", data, attribute) for data, attribute in MESSAGES]
        assert {answer["partition"] for answer in answers} == {"0-0", "0-1"}
        client.join("smoke", "readers")
        assert sorted(received(client, "readers", len(MESSAGES)), key=str) == sorted(MESSAGES, key=str)
        assert client.leave("readers") == []


def test_java_broker_carries_on_with_its_data_after_a_restart(tmp_path: Path, zk_connect: str) -> None:
    with (
        JavaBroker(tmp_path, zk_connect, {"kept": 1}, READABLE_AT_ONCE),
        JavaClient(zk_connect, tmp_path / "a.log") as client,
    ):
        first = client.put("kept", b"before")
    with (
        JavaBroker(tmp_path, zk_connect, {"kept": 1}, READABLE_AT_ONCE),
        JavaClient(zk_connect, tmp_path / "b.log") as client,
    ):
        assert client.put("kept", b"after")["offset"] > first["offset"]
        client.join("kept", "readers")
        assert received(client, "readers", 2) == [(b"before", None), (b"after", None)]


def test_broken_configuration_ends_the_java_broker_with_its_reason(tmp_path: Path, zk_connect: str) -> None:
    with pytest.raises(ProcessFailed, match="Blank value for maxSegmentSize"):
        JavaBroker(tmp_path, zk_connect, {"smoke": 1}, {"maxSegmentSize": ""})


def test_unknown_command_to_the_java_client_is_an_error_and_it_goes_on(tmp_path: Path, zk_connect: str) -> None:
    with JavaClient(zk_connect, tmp_path / "client.log") as client:
        with pytest.raises(ProcessFailed, match="unknown command 'nonsense'"):
            client.call("nonsense")
        with pytest.raises(ProcessFailed, match="not a member of nobody"):
            client.received("nobody")
