"""Run the standalone ZooKeeper (`metaq.broker.standalone`) as a child process, for development and tests."""

from __future__ import annotations

import sys

from .servers.free_ports import ready_port
from .servers.local_zookeeper import ZooKeeperProcess

__all__ = ["StandaloneZooKeeper"]


class StandaloneZooKeeper(ZooKeeperProcess):
    """metaq's own (standalone) ZooKeeper server in a child process. The server needs no Java. Call start(), use
    connect_string, then call stop(). Two threads must not use an object of this class at the same time.

    data_dir: the directory for zookeeper.log and the server's data.
    """

    def launch(self) -> None:
        """Start the server process. Raises ConfigError if the port is in use, or if the data directory is not writable
        or belongs to Apache's ZooKeeper. Raises DirectoryInUse if another server has locked the data directory.
        """
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
