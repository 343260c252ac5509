"""The standalone ZooKeeper (`metaq.coordination.standalone`) as a child process: for development and tests."""

from __future__ import annotations

import sys

from .servers.free_ports import ready_port
from .servers.local_zookeeper import ZooKeeperProcess

__all__ = ["StandaloneZooKeeper"]


class StandaloneZooKeeper(ZooKeeperProcess):
    """start() it, use connect_string, stop() it. One thread at a time. It needs no Java.

    data_dir: holds zookeeper.log and the server's data.
    """

    def launch(self) -> None:
        """Raises ConfigError (port in use, data directory not writable or of Apache's ZooKeeper), DirectoryInUse."""
        self._take_directory()
        try:
            self._refuse_apache()
            self.port = ready_port("port", self.port, self.host)
            settings = (self.data_dir.resolve(), self.host, self.port, self._tick_time_ms, self._max_session_timeout_ms)
            # -P: no modules from the user's directory
            program = [sys.executable, "-P", "-m", "metaq.broker.standalone"]
            self._run([*program, *map(str, settings)])
        except BaseException:
            self.stop()
            raise
