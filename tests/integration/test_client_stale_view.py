"""A producer sees brokers come although ZooKeeper failed when it began to watch their topic."""

from pathlib import Path

import pytest

from metaq.client.zookeeper import ZooKeeperMetadata
from metaq.protocol.errors import CoordinationUnavailable
from tests.integration.client_cluster import running_brokers
from tests.waiting import eventually


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
