"""The Java broker with its replication plugins, which are not among the jars of the central repository.

They are in the module metamorphosis-server-wrapper of the tag metamorphosis-all-1.4.6.2: compile it against the jars,
and name the class path (its classes, and everything they need) in METAQ_JAVA_WRAPPER_CLASSPATH.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from bench.javapeer import JAVA_OPTIONS
from bench.processes import free_port
from bench.server_ini import server_ini

CLASS_PATH = "METAQ_JAVA_WRAPPER_CLASSPATH"
_START_SECONDS = 180.0


def require_wrapper() -> None:
    """Skip unless a compiled wrapper is named."""
    if not os.environ.get(CLASS_PATH):
        pytest.skip(f"{CLASS_PATH} names no compiled metamorphosis-server-wrapper (docs/replication.md)")


class JavaRole:
    """A Java broker started with one plugin option; it listens once the constructor returns.

    plugin: metaslave, samsa or gregor; properties: lines of its file.
    """

    def __init__(
        self,
        directory: Path,
        zk_connect: str,
        topics: Mapping[str, int],
        plugin: str,
        properties: str,
        system: Mapping[str, object] | None = None,
    ) -> None:
        self.port = free_port()
        self.data = directory / "data"
        self.log = directory / "broker.log"
        home = directory / "conf" / "java"
        home.mkdir(parents=True)
        settings = {"dataPath": self.data, "dashboardHttpPort": free_port(), "unflushThreshold": 0, **(system or {})}
        config, file = home / "server.ini", home / f"{plugin}.properties"
        config.write_text(server_ini(self.port, zk_connect, topics, settings))
        file.write_text(properties)
        command = ["java", *JAVA_OPTIONS, f"-Duser.home={directory}", "-cp", os.environ[CLASS_PATH]]
        command += ["com.taobao.metamorphosis.ServerStartup", "-f", str(config), f"-F{plugin}={file}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
        self._wait_for_port()

    def _wait_for_port(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        self.kill()
        raise AssertionError(f"the Java broker does not listen: {self.log.read_text('utf-8', 'replace')[-4000:]}")

    def kill(self) -> None:
        """As a crash; returns once it is reaped."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
