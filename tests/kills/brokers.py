"""Brokers of a run: each keeps its directory and its port over all its lives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from metaq.coordination.servers.free_ports import ready_port
from tests.broker_process import READY

from .children import Child, wait_until

__all__ = ["BrokerPlace"]

_SERVE_SECONDS = 240.0


class BrokerPlace:
    """A broker's place. start() does not wait, because a broker may start while ZooKeeper is away. As a context manager
    it waits until the broker serves, and kills it at the end."""

    def __init__(
        self,
        directory: Path,
        ini: str,
        port: int = 0,
        program: Sequence[str] = ("-m", "metaq.broker"),
        prefix: Sequence[str] = (),
    ) -> None:
        """ini: as server_ini() makes it. port: 0 for any free one. prefix: as for Child."""
        self.name = directory.name
        self.directory = directory
        self.port = port or ready_port("port", 0)
        self.children: list[Child] = []
        directory.mkdir(parents=True, exist_ok=True)
        ini_path = directory / "server.ini"
        ini_path.write_text(ini.replace("serverPort=0", f"serverPort={self.port}"))
        self._words = [*program, str(ini_path)]
        self._prefix = prefix

    @property
    def child(self) -> Child:
        """The process of the present life, or of the last one."""
        return self.children[-1]

    @property
    def running(self) -> bool:
        return bool(self.children) and self.child.running

    @property
    def serves(self) -> bool:
        """Return whether the broker has reported that it serves."""
        return self.running and READY.search(self.child.log.read_text("utf-8", "replace")) is not None

    def start(self) -> None:
        if not self.running:
            log = self.directory / f"life-{len(self.children) + 1}.log"
            self.children.append(Child(self._words, log, self.directory, self._prefix))

    def start_and_wait(self) -> None:
        """Start the broker and wait until it serves. Raises AssertionError if it does not in time."""
        self.start()
        assert wait_until(lambda: self.serves or not self.running, _SERVE_SECONDS), self.child.log.read_text()
        assert self.running, self.child.log.read_text()

    def kill(self) -> None:
        if self.children:
            self.child.kill()

    def __enter__(self) -> Self:
        self.start_and_wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def end(self, seconds: float) -> None:
        """Send SIGTERM. Raises AssertionError if the broker does not end properly in time."""
        self.child.terminate()
        assert self.child.wait(seconds), f"the broker does not end, see {self.child.log}"
        assert self.child.process.returncode == 0, self.child.log.read_text()
