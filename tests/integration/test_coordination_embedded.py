"""ZooKeeper as a child process: Apache's own server, and the one in Python."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from metaq.coordination.embedded import EmbeddedZooKeeper
from metaq.coordination.servers.local_zookeeper import APACHE_DIRECTORY, STANDALONE_DIRECTORY, ZooKeeperProcess
from metaq.coordination.standalone_process import StandaloneZooKeeper
from metaq.protocol.errors import ConfigError, CoordinationUnavailable, DirectoryInUse
from tests.integration.cli_helpers import is_running
from tests.integration.coordination_helpers import wait_for

KINDS = {EmbeddedZooKeeper: "data", StandaloneZooKeeper: STANDALONE_DIRECTORY}
"""And the directory that each needs."""

both = pytest.mark.parametrize("kind", KINDS)


@both
def test_it_serves_keeps_its_data_and_its_port_over_a_restart_and_stops(kind: type[ZooKeeperProcess], tmp_path: Path):
    server = kind(tmp_path / "zk", tick_time_ms=100)
    server.start()
    first, port = server.pid, server.port
    client = KazooClient(server.connect_string)
    client.start()
    client.create("/kept", b"data")
    client.stop()
    server.stop()
    assert not server.running
    server.start()
    try:
        assert (server.port, server.running) == (port, True)
        assert server.pid != first
        client = KazooClient(server.connect_string)
        client.start()
        assert client.get("/kept")[0] == b"data"
        client.stop()
    finally:
        server.stop()
    server.stop()  # does nothing


@both
def test_a_port_in_use_is_refused_with_the_remedy(kind: type[ZooKeeperProcess], tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = kind(tmp_path, port=port)
        with pytest.raises(ConfigError, match=rf"port={port}: .*choose another port"):
            server.start()
    assert server.pid is None


def test_without_java_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigError, match=r"java=none in PATH: Java 17 .*openjdk-17-jre-headless") as raised:
        EmbeddedZooKeeper(tmp_path).start()
    assert "\n" not in str(raised.value)


@both
def test_a_data_directory_in_use_is_refused_and_free_again_after_a_stop(kind: type[ZooKeeperProcess], tmp_path: Path):
    with kind(tmp_path), pytest.raises(DirectoryInUse, match=f"data_dir={tmp_path}"):
        kind(tmp_path).start()
    with kind(tmp_path) as again:
        assert again.running


@both
def test_a_data_directory_that_cannot_be_made_is_refused(kind: type[ZooKeeperProcess], tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"data_dir={tmp_path / 'file' / 'zk'}: Not a directory"):
        kind(tmp_path / "file" / "zk").start()


@both
def test_a_server_that_ends_at_its_start_is_quoted(kind: type[ZooKeeperProcess], tmp_path: Path):
    (tmp_path / KINDS[kind]).touch()  # it needs a directory of this name
    server = kind(tmp_path)
    with pytest.raises(CoordinationUnavailable, match=rf"ZooKeeper ended at its start: .+ \(log: {server.log}\)"):
        server.start()
    assert not server.running


@pytest.mark.parametrize(
    ("kind", "found", "goes_on"),
    [
        (EmbeddedZooKeeper, STANDALONE_DIRECTORY, "that one: leave out --zookeeper"),
        (StandaloneZooKeeper, APACHE_DIRECTORY, "it: --zookeeper apache:DIR"),
    ],
)
def test_a_directory_with_the_data_of_the_other_kind_is_refused(
    kind: type[ZooKeeperProcess], found: str, goes_on: str, tmp_path: Path
):
    """It would start empty beside them."""
    (tmp_path / found).mkdir(parents=True)
    (tmp_path / found / "log.1").touch()
    with pytest.raises(
        ConfigError, match=rf"data_dir={tmp_path}: it holds the data of .* \({found}\): go on with {goes_on}, or "
    ):
        kind(tmp_path).start()


@both
def test_the_server_ends_when_its_parent_is_killed(kind: type[ZooKeeperProcess], tmp_path: Path):
    program = (
        "import sys, threading\n"
        f"from {kind.__module__} import {kind.__name__}\n"
        f"server = {kind.__name__}(sys.argv[1])\n"
        # the starting thread ends at once: the server must not end with it
        "thread = threading.Thread(target=server.start); thread.start(); thread.join()\n"
        "print(server.pid, server.running, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid, running = parent.stdout.readline().split()
    assert running == "True"
    assert is_running(int(pid))
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    wait_for(lambda: not is_running(int(pid)), "the end of the server")


@both
def test_only_the_owner_may_read_what_a_server_creates(kind: type[ZooKeeperProcess], tmp_path: Path):
    with kind(tmp_path / "new" / "zk", tick_time_ms=100) as server:
        client = KazooClient(server.connect_string)
        client.start()
        client.create("/kept", b"data")
        client.stop()
    assert (server.data_dir / KINDS[kind]).is_dir()
    paths = [tmp_path / "new", server.data_dir, server.log, *(server.data_dir / KINDS[kind]).rglob("*")]
    assert len(paths) >= 4
    assert [(path, oct(path.stat().st_mode)) for path in paths if path.stat().st_mode & 0o077] == []
