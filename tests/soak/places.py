"""A broker's place: one server.ini and data directory, in which the Java broker and metaq's run in turns."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from bench.javapeer import broker_command
from bench.processes import ProcessFailed, Server, free_port
from bench.server_ini import server_ini

__all__ = ["SESSION_SECONDS", "Kind", "Place"]

Kind = Literal["java", "ours"]

SESSION_SECONDS = 6.0
"""zk.zkSessionTimeoutMs of every process of a run (bench/server_ini.py, metaq.peer.Session)."""

START_SECONDS = 180.0
RETRY_SECONDS = 0.5


class Place:
    """Starter of the broker of one place; the file stays the same, whichever broker reads it.

    directory: gets conf/server.ini, data/ and the logs. system: more keys of [system]. refused: how many starts failed
    before one succeeded.
    """

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        topics: Mapping[str, int],
        broker_id: int = 0,
        system: Mapping[str, object] | None = None,
    ) -> None:
        self.directory = directory
        self.broker_id = broker_id
        self.port = free_port()
        self.data = directory / "data"
        self.ini = directory / "conf" / "server.ini"
        self.ini.parent.mkdir(parents=True)
        self.data.mkdir()
        settings = {
            "brokerId": broker_id,
            "dataPath": self.data,
            "dashboardHttpPort": free_port(),
            "unflushThreshold": 0,
            **(system or {}),
        }
        self.ini.write_text(server_ini(self.port, zookeeper, topics, settings))
        self.refused = 0
        self._starts = 0
        self._server: Server | None = None

    @property
    def running(self) -> bool:
        return self._server is not None

    def log_bytes(self) -> dict[str, bytes]:
        """Return the bytes of each partition's segments, one after the other, by directory."""
        return {
            partition.name: b"".join(segment.read_bytes() for segment in sorted(partition.glob("*.meta")))
            for partition in self.data.glob("*-*")
        }

    def start(self, kind: Kind, *options: str) -> None:
        """Start a broker, with retries for START_SECONDS; a frozen one continues instead.

        The Java broker refuses to start while ZooKeeper still has the `master` node of a killed one. options: more
        words of metaq's command line. Raises ProcessFailed with the last try's log.
        """
        if self._server is not None:
            os.kill(self._server.pid, signal.SIGCONT)
        command = broker_command(self.ini, self.directory) if kind == "java" else _ours(self.ini, options)
        ready = f"serving {self.port}" if kind == "java" else f"serving meta://127.0.0.1:{self.port} "
        deadline = time.monotonic() + START_SECONDS
        while self._server is None:
            self._starts += 1
            log = self.directory / f"{kind}-{self._starts}.log"
            try:
                self._server = Server(command, log, ready, self.directory)
            except ProcessFailed:
                if time.monotonic() > deadline:
                    raise
                self.refused += 1
                time.sleep(RETRY_SECONDS)

    def reload(self) -> None:
        """Make the broker read its file again."""
        if self._server is not None:
            os.kill(self._server.pid, signal.SIGHUP)

    def stop(self) -> None:
        """Send SIGTERM, as an operator does; return when the process has ended. A broker that had to be killed is an
        error."""
        if self._server is not None:
            self._server.close()
            code = self._server.process.returncode
            self._server = None
            assert code != -9, f"the broker in {self.directory} did not end by itself"

    def freeze(self) -> None:
        """Send SIGSTOP, as if the machine hung; start() lets the process continue."""
        if self._server is not None:
            os.kill(self._server.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._server is not None:
            self._server.kill()
            self._server = None


def _ours(ini: Path, options: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "metaq", "broker", "-f", str(ini), *options]
