"""Run the standalone ZooKeeper (`metaq.broker.standalone`) as a child process, for development and tests."""

from __future__ import annotations

import os
import sys

from .servers.local_zookeeper import ZooKeeperProcess

__all__ = ["StandaloneZooKeeper"]


class StandaloneZooKeeper(ZooKeeperProcess):
    """metaq's own (standalone) ZooKeeper server in a child process. The server needs no Java. Call start(), use
    connect_string, then call stop(). Two threads must not use an object of this class at the same time.

    data_dir: the directory for zookeeper.log and the server's data.
    """

    def launch(self) -> None:
        """Start the server process. Raises ConfigError if a port is in use, if the certificate of the secure port
        cannot be used, or if the data directory is not writable or belongs to Apache's ZooKeeper. Raises DirectoryInUse
        if another server has locked the data directory.
        """
        self._take_directory()
        try:
            self._refuse_apache()
            self._ready_ports()
            plain = 0 if self.tls is not None and self.secure_port is None else self.port
            settings = (self.data_dir.resolve(), self.host, plain, self._tick_time_ms, self._max_session_timeout_ms)
            # -P: no modules from the user's directory
            program = [sys.executable, "-P", "-m", "metaq.broker.standalone"]
            self._run([*program, *map(str, settings), *self._tls_settings()])
        except BaseException:
            self.stop()
            raise

    def _tls_settings(self) -> list[str]:
        if self.tls is None:
            return []
        files, port = self.tls.files, self.port if self.secure_port is None else self.secure_port
        paths = (os.path.abspath(each) if each else "" for each in (files.certificate, files.key, files.ca))
        return [str(port), self.tls.client_certificates, *paths]
