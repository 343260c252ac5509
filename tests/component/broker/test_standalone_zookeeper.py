"""The standalone ZooKeeper in this process: real sockets, its reactor's thread, its files."""

import gc
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

from metaq.broker.standalone import driver
from metaq.broker.standalone.in_process import InProcessZooKeeper
from metaq.broker.standalone.reactor_thread import call
from metaq.broker.store.files import Files
from metaq.coordination.servers.local_zookeeper import four_letter_word
from metaq.coordination.session.diagnosis import examine
from metaq.protocol.errors import ConfigError, DirectoryInUse
from tests.raising import raising
from tests.waiting import eventually

CREATE, GET_DATA, PING = 1, 4, 11
PAGE = Path(__file__).parents[3] / "docs" / "standalone-zookeeper.md"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[InProcessZooKeeper]:
    with InProcessZooKeeper(tmp_path / "zk", tick_time_ms=100) as server:
        yield server


@pytest.fixture
def client(server: InProcessZooKeeper) -> Iterator[KazooClient]:
    yield from connected(server)


def connected(server: InProcessZooKeeper) -> Iterator[KazooClient]:
    client = KazooClient(server.connect_string)
    client.start()
    yield client
    client.stop()
    client.close()


def raw(server: InProcessZooKeeper, timeout_ms: int = 30_000) -> socket.socket:
    """A connection with a session, whose requests the test writes itself."""
    connection = socket.create_connection((server.host, server.port), timeout=30)
    body = struct.pack("!iqiqi", 0, 0, timeout_ms, 0, 16) + bytes(16)
    connection.sendall(struct.pack("!i", len(body)) + body)
    assert len(received(connection)) == 36
    return connection


def received(connection: socket.socket) -> bytes:
    """One frame."""
    (length,) = struct.unpack("!i", exactly(connection, 4))
    return exactly(connection, length)


def exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (part := connection.recv(count - len(data))):
            raise EOFError
        data += part
    return data


def get_data(path: bytes) -> bytes:
    body = struct.pack("!iii", 1, GET_DATA, len(path)) + path + b"\0"
    return struct.pack("!i", len(body)) + body


def test_a_client_writes_reads_and_is_told(client: KazooClient):
    told = threading.Event()
    client.create("/a", b"one")
    client.get("/a", watch=lambda _event: told.set())
    client.set("/a", b"two")
    assert client.get("/a")[0] == b"two"
    assert told.wait(30)


def restart(server: InProcessZooKeeper) -> None:
    server.stop()
    server.start()


def test_data_sessions_and_ephemeral_nodes_are_kept_over_a_restart(server: InProcessZooKeeper, client: KazooClient):
    client.create("/kept", b"data")
    client.create("/mine", ephemeral=True)
    session = client.client_id[0]
    restart(server)
    assert client.retry(client.get, "/kept")[0] == b"data"
    assert client.client_id[0] == session
    assert client.get("/mine")[1].ephemeralOwner == session


def test_without_a_directory_nothing_is_kept():
    server = InProcessZooKeeper()
    with server:
        for client in connected(server):
            client.create("/a")
    with server:
        for client in connected(server):
            assert client.exists("/a") is None


def test_several_servers_share_one_thread(tmp_path: Path):
    with (
        InProcessZooKeeper(tmp_path / "a") as first,
        InProcessZooKeeper(tmp_path / "b") as second,
        InProcessZooKeeper(),
    ):
        assert first.port != second.port
        assert [thread.name for thread in threading.enumerate()].count("metaq standalone zookeeper") == 1


def test_a_port_in_use_is_refused(server: InProcessZooKeeper, tmp_path: Path):
    with pytest.raises(ConfigError, match=rf"port={server.port}: .*choose another port"):
        InProcessZooKeeper(tmp_path / "other", server.port).start()
    with InProcessZooKeeper(tmp_path / "other") as other:  # its directory is free again
        assert other.running


def test_a_directory_in_use_or_of_apaches_server_is_refused(server: InProcessZooKeeper, tmp_path: Path):
    with pytest.raises(DirectoryInUse, match=f"data_dir={server.data_dir}"):
        InProcessZooKeeper(server.data_dir).start()
    apache = tmp_path / "apache" / "data" / "version-2"
    apache.mkdir(parents=True)
    (apache / "snapshot.0").touch()
    with pytest.raises(ConfigError, match=r"it holds the data of Apache's ZooKeeper \(data/version-2\)"):
        InProcessZooKeeper(tmp_path / "apache").start()


def test_metaqs_diagnosis_reads_its_statistics(server: InProcessZooKeeper, client: KazooClient):
    client.create("/a")
    (finding,) = examine(server.connect_string, 30)
    assert (finding.serves, finding.decides, finding.zxid) == (True, True, 2)
    assert "zk_server_state\tstandalone\n" in four_letter_word(server.host, server.port, b"mntr")


def test_pipelined_requests_are_answered_in_order(server: InProcessZooKeeper, client: KazooClient):
    client.create("/a", b"x" * 1000)
    with raw(server) as connection:
        sender = threading.Thread(target=connection.sendall, args=(get_data(b"/a") * 5000,))
        sender.start()
        assert all(received(connection)[16:].startswith(b"\0\0\x03\xe8x") for _ in range(5000))
        sender.join()


def test_who_does_not_read_its_answers_is_not_read_from(server: InProcessZooKeeper, client: KazooClient):
    """Its requests stay with it, and the others are served."""
    client.create("/a", bytes(100_000))
    request = get_data(b"/a") * 1000
    with raw(server) as connection:
        connection.setblocking(False)
        stuck = 0
        while stuck < 100:
            try:
                connection.send(request)
                stuck = 0
            except BlockingIOError:
                stuck += 1
                assert client.exists("/a")
        before = status(server, "Received")
        assert client.exists("/a")
        assert status(server, "Received") - before <= 3  # its requests are not among them
        assert status(server, "Sent") < 500  # of some hundred thousand that it asked for


def status(server: InProcessZooKeeper, name: str) -> int:
    """A number among the statistics."""
    lines = dict(line.split(": ") for line in four_letter_word(server.host, server.port, b"srvr").splitlines())
    return int(lines[name])


def test_one_address_has_not_all_connections(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(driver, "MOST_CONNECTIONS", 16)
    with InProcessZooKeeper() as server, ExitStack() as opened:
        for _ in range(15):
            opened.enter_context(raw(server))
        assert not connects(server)
        opened.close()
        eventually(lambda: connects(server))


def connects(server: InProcessZooKeeper) -> bool:
    try:
        raw(server).close()
    except (EOFError, ConnectionError):
        return False
    return True


def test_a_session_expires(server: InProcessZooKeeper, client: KazooClient):
    with raw(server, timeout_ms=1000) as connection:
        body = struct.pack("!iii", 1, CREATE, 2) + b"/e" + struct.pack("!iii", 0, 1, 31)
        body += struct.pack("!i5si6si", 5, b"world", 6, b"anyone", 1)
        connection.sendall(struct.pack("!i", len(body)) + body)
        assert received(connection)[12:16] == bytes(4)
    gone = threading.Event()
    client.exists("/e", watch=lambda _event: gone.set())
    assert gone.wait(60)


def test_sessions_do_not_expire_while_the_server_itself_stands_still(server: InProcessZooKeeper):
    """Somebody else's code may keep Python's interpreter for longer than a session lasts."""
    with raw(server, timeout_ms=300) as connection:
        call(server._reactor, lambda: time.sleep(1.5))
        connection.sendall(struct.pack("!iii", 8, -2, PING))
        assert len(received(connection)) == 16


def test_a_log_that_cannot_be_written_ends_the_server_and_acknowledges_nothing(server, client, monkeypatch):
    client.create("/safe")

    with monkeypatch.context() as broken:
        broken.setattr(Files, "fdatasync", raising(OSError(28, "No space left on device")))
        with pytest.raises(ConnectionLoss):
            client.create("/lost")
        eventually(lambda: not server.running)
    restart(server)
    assert client.retry(client.exists, "/safe")


def test_a_server_that_stopped_by_itself_starts_again_at_its_port(server: InProcessZooKeeper):
    driver, failed = server._driver, threading.Event()
    assert driver is not None

    def fail() -> None:
        driver._failed(OSError(28, "No space left on device"))
        failed.set()
        time.sleep(0.2)  # it listens until the reactor goes on

    server._reactor.callFromThread(fail)
    failed.wait()
    assert not server.running
    restart(server)
    assert server.running


def test_snapshots_are_made_while_clients_write(server, client, monkeypatch):
    monkeypatch.setattr("metaq.broker.standalone.keeper.SNAPSHOT_LOG_BYTES", 20_000)
    for number in range(300):
        client.create(f"/{number}", bytes(300))
    files = server.data_dir / "standalone"
    eventually(lambda: len(list(files.glob("snapshot.*"))) == 3)
    server.stop()
    assert len(list(files.glob("log.*"))) <= 4
    server.start()
    assert len(client.retry(client.get_children, "/")) == 301


def test_ended_connections_leave_nothing_for_the_collector(server: InProcessZooKeeper):
    """A server process runs without it: a search through all nodes would take longer than a turn may."""
    gc.disable()
    try:
        before = peers()
        for _ in range(20):
            raw(server).close()
        eventually(lambda: peers() <= before)
    finally:
        gc.enable()


def peers() -> int:
    return sum(type(each).__name__ == "_Peer" for each in gc.get_objects())


EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_the_page_run(example: str, tmp_path: Path):
    subprocess.run([sys.executable, "-c", example], cwd=tmp_path, check=True, timeout=120)


def test_the_page_has_an_example_of_each_kind():
    assert len(EXAMPLES) == 2
