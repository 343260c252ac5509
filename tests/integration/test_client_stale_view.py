"""A producer sees the brokers of a topic although its first look came at a bad moment."""

from pathlib import Path

import pytest

from metaq import TopicPartition
from metaq.client.questions.steady import SteadyView
from metaq.client.questions.zookeeper_metadata import ZooKeeperMetadata
from metaq.coordination.brokers.registration import BrokerAddress, BrokerRegistration, TopicRegistration
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.sets.broker_set import BrokerSet, SetNode, SetState
from metaq.protocol.errors import CoordinationUnavailable
from tests.integration.client_cluster import running_brokers
from tests.waiting import DEADLINE, eventually


def test_a_watch_that_failed_is_tried_again(chroot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = ZooKeeperMetadata(chroot, "/meta", 10.0)
    metadata.start(15.0)
    try:
        watch, failures = (
            metadata._cluster.watch_topic,
            [CoordinationUnavailable("once"), CoordinationUnavailable("twice")],
        )

        def fail_first(*arguments: object) -> None:
            if failures:
                raise failures.pop()
            watch(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(metadata._cluster, "watch_topic", fail_first)
        changed: list[str] = []
        metadata.on_change(changed.append)
        assert metadata.view("t").partitions == ()
        changed.clear()
        with running_brokers(chroot, tmp_path, {"t": 2}):
            eventually(lambda: len(metadata.view("t").partitions) == 2, what="seeing the broker")
            assert changed
            assert set(changed) == {"t"}  # first the broker is there, then its topic
        assert failures == []
    finally:
        metadata.close()


def test_a_first_look_while_a_broker_set_has_no_leader_waits_for_the_next_one(chroot: str, session: ZkSession) -> None:
    """A program may start while the nodes of a set are restarted one after the other."""
    node = BrokerSet(session, 0, SetNode("a", "meta://127.0.0.1:8123", "", "a"), lambda view: None)
    node.start()
    assert node.create(SetState(1, "a", {"a": "x"}))
    leader = BrokerRegistration(session, BrokerAddress(0, None, "127.0.0.1", 8123), 7, elected=True)
    waits: list[float] = []

    def lead(seconds: float) -> None:
        if not waits:
            assert node.take_over(SetState(2, "a", {"a": "x"}), node.read().version, None)
            leader.register([TopicRegistration("t", 2)])
        waits.append(seconds)

    metadata = ZooKeeperMetadata(chroot, "/meta", 10.0)
    metadata.start(DEADLINE)
    try:
        metadata._steady = SteadyView(metadata._session, DEADLINE, sleep=lead)
        assert metadata.view("t").partitions == (TopicPartition("t", 0, 0), TopicPartition("t", 0, 1))
        assert waits
    finally:
        metadata.close()
        leader.unregister()
        node.close()
