"""A ZooKeeper ensemble of three real servers on loopback, each of which can be killed and started again."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Self

from metaq.coordination.embedded import EmbeddedZooKeeper
from metaq.coordination.servers.free_ports import ready_ports
from metaq.coordination.servers.local_zookeeper import four_letter_word
from tests.kills.children import wait_until

__all__ = ["Ensemble"]

SERVERS = 3
TICK_MS = 500
_START_SECONDS = 180.0


class Ensemble:
    """The servers of an ensemble: start() it, use connect_string, close() it. One thread, except for `leader`."""

    def __init__(self, directory: Path) -> None:
        ports = ready_ports("port", 0, 3 * SERVERS)
        places = [ports[number::SERVERS] for number in range(SERVERS)]
        peers = "".join(f"server.{number}=127.0.0.1:{place[1]}:{place[2]}\n" for number, place in enumerate(places, 1))
        self.servers = [
            _Server(directory / f"zookeeper-{number}", place[0], number, peers)
            for number, place in enumerate(places, 1)
        ]
        self.connect_string = ",".join(server.connect_string for server in self.servers)

    def start(self) -> None:
        """Start all servers; return once there is a leader and all servers serve. Raises AssertionError."""
        for server in self.servers:
            server.launch()
        self.await_health()

    def await_health(self) -> None:
        """Wait until every server serves. Raises AssertionError."""
        healthy = wait_until(lambda: all(server.mode for server in self.servers), _START_SECONDS)
        assert healthy, f"the ensemble does not serve: {[server.mode for server in self.servers]}"

    def leader(self) -> int | None:
        """Return the index of the server that leads now; None if no server says that it does."""
        for index, server in enumerate(self.servers):
            if server.running and server.mode == "leader":
                return index
        return None

    def kill(self, index: int) -> None:
        self.servers[index].kill()

    def restart(self, index: int) -> None:
        """Start it again, without waiting until it serves."""
        if not self.servers[index].running:
            self.servers[index].launch()

    def copy(self, index: int, to: Path) -> None:
        """Copy the data of one server, which must not run."""
        shutil.copytree(self.servers[index].data_dir / "data", to)

    def replace(self, copy: Path | None) -> None:
        """Give all servers, none of which may run, the data of a copy, or none."""
        for server in self.servers:
            data = server.data_dir / "data"
            shutil.rmtree(data)
            if copy is not None:
                shutil.copytree(copy, data)

    def close(self) -> None:
        for server in self.servers:
            server.kill()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(EmbeddedZooKeeper):
    """One server of an ensemble. It does not serve alone, so it is only launched, and the ensemble waits for all."""

    def __init__(self, directory: Path, port: int, number: int, peers: str) -> None:
        super().__init__(directory, port, tick_time_ms=TICK_MS, heap_mb=128)
        self._number = number
        self._peers = peers

    @property
    def mode(self) -> str:
        """Return `leader`, `follower`, or an empty text while it does not serve."""
        try:
            said = four_letter_word(self.host, self.port, b"srvr")
        except OSError:
            return ""
        _, found, rest = said.partition("Mode: ")
        return rest.split()[0] if found else ""

    def kill(self) -> None:
        if self.running and self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
        self.stop()

    def _write_config(self) -> Path:
        config = super()._write_config()
        (self.data_dir / "data").mkdir(exist_ok=True)
        (self.data_dir / "data" / "myid").write_text(f"{self._number}\n")
        with config.open("a", encoding="utf-8") as lines:
            lines.write(f"initLimit=40\nsyncLimit=10\n{self._peers}")
        return config
