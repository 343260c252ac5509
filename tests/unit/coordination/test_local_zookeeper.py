"""Starting a ZooKeeper of one's own."""

from pathlib import Path

import pytest

from metaq.coordination.servers.local_zookeeper import _start_bound


def test_what_keeps_it_from_starting_is_told(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"missing/zookeeper\.log"):
        _start_bound(["java"], tmp_path / "missing" / "zookeeper.log")
