"""The brokers of a run: each keeps its directory and its port over all its lives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from metaq.coordination.ports import ready_port
from tests.broker_process import READY, server_ini
from tests.kills.children import Child

__all__ = ["BrokerPlace"]

_SEGMENT_BYTES = 64 << 10
"""Small, so that segments roll during a run."""


class BrokerPlace:
    """start() does not wait: a broker may start while ZooKeeper is away. Its messages are on disk when acknowledged."""

    def __init__(
        self,
        directory: Path,
        connect: str,
        broker_id: int,
        topics: Sequence[str],
        partitions: int,
        session_seconds: float,
    ) -> None:
        self.name = f"broker-{broker_id}"
        self.broker_id = broker_id
        self.directory = directory / self.name
        self.data = self.directory / "data"
        self.data.mkdir(parents=True)
        self.child: Child | None = None
        self._lives = 0
        port = ready_port("port", 0)
        timeout = f"zk.zkSessionTimeoutMs={int(session_seconds * 1000)}"
        ini = server_ini(
            self.data,
            dict.fromkeys(topics, f"numPartitions={partitions}"),
            broker_id=broker_id,
            zookeeper=f"zk.zkConnect={connect}\n{timeout}\nzk.zkSyncTimeMs=100",
            max_segment_size=_SEGMENT_BYTES,
        )
        self._ini = self.directory / "server.ini"
        self._ini.write_text(ini.replace("serverPort=0", f"serverPort={port}"))

    @property
    def serves(self) -> bool:
        """Whether it has said so."""
        return self.child is not None and self.child.running and READY.search(self.child.log.read_text()) is not None

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.running

    def start(self) -> None:
        if not self.running:
            self._lives += 1
            log = self.directory / f"life-{self._lives}.log"
            self.child = Child(["-m", "metaq.broker", str(self._ini)], log, self.directory)

    def terminate(self) -> None:
        """As an operator ends it; does not wait."""
        if self.child is not None:
            self.child.terminate()

    def kill(self) -> None:
        if self.child is not None:
            self.child.kill()
