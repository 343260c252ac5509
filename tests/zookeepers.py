"""The ZooKeeper server that tests run on whose subject is not ZooKeeper itself: Apache's, or the standalone one with
METAQ_TEST_ZOOKEEPER=standalone in the environment.
"""

import os
from pathlib import Path
from typing import Any

from metaq.coordination.embedded import EmbeddedZooKeeper
from metaq.coordination.servers.local_zookeeper import STANDALONE_DIRECTORY, ZooKeeperProcess
from metaq.coordination.standalone_process import StandaloneZooKeeper

__all__ = ["data_of", "zookeeper_process"]

KINDS: dict[str, type[ZooKeeperProcess]] = {"apache": EmbeddedZooKeeper, "standalone": StandaloneZooKeeper}
KIND = KINDS[os.environ.get("METAQ_TEST_ZOOKEEPER", "apache")]


def zookeeper_process(data_dir: Path, **options: Any) -> ZooKeeperProcess:
    """One that is not started. options: as ZooKeeperProcess has them."""
    return KIND(data_dir, **options)


def data_of(server: ZooKeeperProcess) -> Path:
    """Where it has its data: without this directory it is a new one."""
    return server.data_dir / (STANDALONE_DIRECTORY if isinstance(server, StandaloneZooKeeper) else "data")
