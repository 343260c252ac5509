"""A broker's first registration, while ZooKeeper goes and comes."""

from __future__ import annotations

import logging
from pathlib import Path
from queue import SimpleQueue

import pytest

from metaq.broker.configuration.server_ini import read_config
from metaq.broker.partitions.registration import Registration
from metaq.coordination.brokers.cluster_view import BrokerAddress, ClusterView
from metaq.coordination.brokers.registration import BrokerRegistration
from metaq.coordination.records.payloads import format_broker_url
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.sets.broker_set import BrokerSet, SetNode, SetState
from metaq.protocol.errors import CoordinationUnavailable
from tests.broker_process import server_ini
from tests.integration.coordination_helpers import session_at
from tests.waiting import DEADLINE


class Reactor:
    """Runs what worker threads hand over at once."""

    def callFromThread(self, function, *args):  # noqa: N802
        function(*args)


def test_a_broker_waits_for_a_zookeeper_that_goes_between_its_connection_and_its_registration(
    chroot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "server.ini").write_text(
        server_ini(tmp_path, {"orders": "numPartitions=2"}, zookeeper=f"zk.zkConnect={chroot}")
    )
    register, failures = BrokerRegistration.register, [CoordinationUnavailable("an election")] * 2

    def goes_twice(self, topics=()):
        if failures:
            raise failures.pop()
        register(self, topics)

    monkeypatch.setattr(BrokerRegistration, "register", goes_twice)
    config = read_config(str(tmp_path / "server.ini"))
    registration = Registration(config, Reactor())  # type: ignore[arg-type]
    outcome: SimpleQueue[object] = SimpleQueue()
    with caplog.at_level(logging.WARNING):
        registration.connect().addBoth(outcome.put)
        assert outcome.get(timeout=DEADLINE) is None
        registration.start(8123, config.topics).addBoth(outcome.put)
        assert outcome.get(timeout=DEADLINE) is None
    assert caplog.text.count("not registered in ZooKeeper yet, trying again: an election") == 2
    with session_at(chroot) as session:
        assert ClusterView(session).brokers()[0].master == BrokerAddress(0, None, config.host, 8123)
    assert registration.registered
    registration.session.close()
    assert not registration.registered


def test_an_elected_broker_registers_on_the_session_of_its_set_and_leaves_that_open(
    chroot: str, tmp_path: Path, session: ZkSession
) -> None:
    (tmp_path / "server.ini").write_text(
        server_ini(tmp_path, {"orders": "numPartitions=2"}, zookeeper=f"zk.zkConnect={chroot}")
    )
    config = read_config(str(tmp_path / "server.ini"))
    url = format_broker_url(config.host, 8123).decode()
    node = BrokerSet(session, 0, SetNode("a", url, "", "x"), lambda _view: None)
    node.start()
    registration = Registration(config, Reactor(), elected_on=session)  # type: ignore[arg-type]
    outcome: SimpleQueue[object] = SimpleQueue()
    registration.start(8123, config.topics).addBoth(outcome.put)
    assert "does not lead its set" in str(outcome.get(timeout=DEADLINE))
    assert node.take_over(SetState(1, "a", {"a": "x"}), node.read().version, None)
    registration.come_back(8123, config.topics).addBoth(outcome.put)
    assert outcome.get(timeout=DEADLINE) is None
    assert registration.registered
    assert ClusterView(session).topics() == ["orders"]
    registration.close().addBoth(outcome.put)
    assert outcome.get(timeout=DEADLINE) is None
    assert session.connected
    node.close()
