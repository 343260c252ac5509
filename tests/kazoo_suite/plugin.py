"""A pytest plugin that gives kazoo's own tests, which its wheel has, one running server in the place of their cluster.

METAQ_KAZOO_SERVER says which: "standalone" or "apache".
"""

import gc
import os
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType

from metaq.coordination.embedded import EmbeddedZooKeeper
from metaq.coordination.servers.local_zookeeper import ZooKeeperProcess
from metaq.coordination.standalone_process import StandaloneZooKeeper


def _objects_of(type_name: str) -> int:
    """As objgraph.count."""
    return sum(type(each).__name__ == type_name for each in gc.get_objects())


for name in (
    "OpenSSL",
    "jks",
    "objgraph",
):  # the first two are for the certificates of clusters that kazoo starts itself
    sys.modules.setdefault(name, ModuleType(name))
vars(sys.modules["objgraph"]).setdefault("count", _objects_of)

from kazoo.handlers.threading import SequentialThreadingHandler  # noqa: E402
from kazoo.testing import harness  # noqa: E402

_KAZOOS_SECONDS = 5
"""How long kazoo's tests wait for a server that they have started again."""
_START_SECONDS = 120
"""How long they wait here: a JVM beside other tests may need more than 5 s."""


class _PatientEvent(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(_START_SECONDS if timeout == _KAZOOS_SECONDS else timeout)


class _Apache(EmbeddedZooKeeper):
    """kazoo asks it for words that are else switched off."""

    def _write_config(self) -> Path:
        config = super()._write_config()
        with config.open("a", encoding="utf-8") as lines:
            lines.write("4lw.commands.whitelist=*\n")
        return config


class _Server:
    """As kazoo's ManagedZooKeeper."""

    def __init__(self) -> None:
        chosen = os.environ["METAQ_KAZOO_SERVER"]
        kinds: dict[str, type[ZooKeeperProcess]] = {"standalone": StandaloneZooKeeper, "apache": _Apache}
        self._server = kinds[chosen](tempfile.mkdtemp(prefix="zk-kazoo-"))

    @property
    def address(self) -> str:
        return self._server.connect_string

    @property
    def running(self) -> bool:
        return self._server.running

    @property
    def client_port(self) -> int:
        return self._server.port

    def run(self) -> None:
        if not self.running:
            self._server.start()

    def stop(self) -> None:
        self._server.stop()


class _Cluster(list[_Server]):
    """As kazoo's ZookeeperCluster, of one server, whose data stay: each test has a chroot of its own."""

    def start(self) -> None:
        for server in self:
            server.run()

    def stop(self) -> None:
        for server in self:
            server.stop()

    def terminate(self) -> None:
        """It goes on for the next class."""

    def get_logs(self) -> list[str]:
        return []


_cluster = _Cluster([_Server()])


def pytest_sessionstart() -> None:
    SequentialThreadingHandler.event_object = lambda handler: _PatientEvent()
    harness.get_global_cluster = lambda: _cluster


def pytest_sessionfinish() -> None:
    _cluster.stop()
