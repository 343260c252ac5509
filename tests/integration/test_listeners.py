"""A broker with three listeners: a text port for 1.x, a port for frames over TLS and a Unix socket; users enforced."""

from __future__ import annotations

import json
import os
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq import ConnectionConfig, Consumer, ConsumerConfig, Producer, ProducerConfig, TlsConfig, UserConfig
from metaq.coordination.servers.local_zookeeper import ZooKeeperProcess
from metaq.protocol.errors import MetaqError
from tests.broker_process import RunningBroker, server_ini
from tests.integration.background import Repeating
from tests.integration.cli_helpers import Operator, run
from tests.integration.coordination_helpers import make_chroot, session_at
from tests.integration.forked_processes import ForkedBroker
from tests.integration.set_nodes import set_nodes
from tests.waiting import DEADLINE, eventually

LISTENERS = """
[addresses]
legacy = 127.0.0.0/8, 10.9.8.7

[listener old]
port = 0
protocols = text
tls = none
login = address

[listener app]
port = 0
protocols = frames
login = password

[listener behind]
port = 0
tls = optional
login = address
networks = 10.0.0.0/8
proxy = 127.0.0.1

[listener far]
port = 0
tls = none
networks = 10.0.0.0/8

[listener local]
path = admin.sock

[listener others]
path = others.sock
admins = 54321
mode = 0666
"""
TOPICS = {"orders": "numPartitions=1"}


class Cluster:
    """The broker, and what reaches it."""

    def __init__(self, broker: RunningBroker, chroot: str, operator: Operator, pki: Path) -> None:
        self.broker, self.chroot, self.operator, self.pki = broker, chroot, operator, pki
        self.socket = f"unix:{pki}/mq1/admin.sock"

    def published(self) -> dict[str, dict[str, object]]:
        with session_at(self.chroot) as session:
            data = session.zk.get(session.paths.broker_listeners(0))[0]
        return {each["name"]: each for each in json.loads(data)["listeners"]}

    def port(self, name: str) -> int:
        port = self.published()[name]["port"]
        assert isinstance(port, int)
        return port

    def connection(self, listener: str | None, user: str = "web") -> ConnectionConfig:
        profile = self.pki / f"{user}.ini"
        return ConnectionConfig(
            tls=TlsConfig.from_profile(profile), user=UserConfig.from_profile(profile), listener=listener
        )

    def producer(self, listener: str | None) -> Producer:
        config = ProducerConfig(connection=self.connection(listener), delivery_timeout_seconds=1.5)
        return Producer(self.chroot, config=config)

    def stats(self) -> dict[str, int]:
        return dict(json.loads(self.local("stats", "listeners", "--json").out))

    def local(self, *words: str):
        return run(*words, "--server", self.socket)


def start(directory: Path, chroot: str, pki: Path) -> RunningBroker:
    directory.mkdir(exist_ok=True)
    zookeeper = f"zk.zkConnect={chroot}\nzk.zkSyncTimeMs=100\nzk.zkSessionTimeoutMs=6000"
    ini = server_ini(directory / "data", TOPICS, zookeeper=zookeeper, system="hostName=127.0.0.1")
    words = ("-m", "metaq", "broker", "--security", str(pki / "mq1" / "security.ini"), "-f")
    return ForkedBroker(directory, ini, module=words)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperProcess) -> Iterator[Cluster]:
    chroot = make_chroot(f"{zookeeper.connect_string}/listeners")
    tmp_path = tmp_path_factory.mktemp("listeners")
    pki = tmp_path / "pki"
    operator = Operator(chroot)
    for words in (["init", pki], ["broker", pki, "mq1"]):
        assert run("security", *map(str, words)).code == 0
    security = pki / "mq1" / "security.ini"
    security.write_text(security.read_text() + LISTENERS)
    grants = ("--can", "send:orders", "--can", "consume:orders@*")
    assert operator.ran("users", "add", "web", *grants, "--profile", str(pki / "web.ini")).code == 0
    assert operator.ran("users", "add", "legacy", *grants, "--expires", "1d", "--no-password").code == 0
    with start(tmp_path / "broker", chroot, pki) as broker:
        cluster = Cluster(broker, chroot, operator, pki)
        assert operator.ran("security", "enforce", "--force").code == 0
        eventually(lambda: '"enforce"' in cluster.local("stats", "access", "--raw").out)
        yield cluster
        with pytest.raises(AssertionError, match="another program listens there"):
            start(tmp_path / "second", f"{chroot}-second", pki)
        assert "Traceback" not in broker.errors.read_text()
        assert broker.stop() == 0
    with session_at(chroot) as session:
        assert session.zk.exists(session.paths.broker_listeners(0)) is None
    assert not (pki / "mq1" / "admin.sock").exists()


def told(port: int, data: bytes, *, ends: bool = True) -> bytes:
    """Send bytes, and return the answer. ends: whether the broker must close the connection by itself."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as peer:
        peer.sendall(data)
        if not ends:
            return peer.recv(4096)
        answer = b""
        while received := peer.recv(4096):
            answer += received
        return answer


PUT = b"put orders 0 5 0 1\r\nhello"


def test_each_protocol_is_served_where_it_belongs_and_refused_elsewhere_with_the_reason(cluster):
    assert told(cluster.port("old"), PUT, ends=False).startswith(b"result 200 ")
    refusal = told(cluster.port("app"), PUT, ends=False)  # without TLS
    assert (refusal[:10], b"listener app: connect with TLS" in refusal) == (b"result 403", True), refusal
    context = cluster.connection("app").tls.context()
    with (
        socket.create_connection(("127.0.0.1", cluster.port("app")), timeout=DEADLINE) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as peer,
    ):
        peer.sendall(b"version 7\r\n" + PUT + PUT)
        answer = b""
        while received := peer.recv(4096):
            answer += received
    assert answer.startswith(b"result 200 "), answer
    assert b"the listener app of this broker serves only the framed protocol" in answer
    with (
        socket.create_connection(("127.0.0.1", cluster.port("old")), timeout=DEADLINE) as plain,
        pytest.raises((ssl.SSLError, ConnectionResetError)),
    ):
        context.wrap_socket(plain, server_hostname="127.0.0.1")
    old = ConnectionConfig(tls=None, user=None, listener="old")
    frames = Producer(cluster.chroot, config=ProducerConfig(connection=old, delivery_timeout_seconds=3.0))
    with frames, pytest.raises(MetaqError, match="serves only the text protocol"):
        frames.send("orders", b"no")
    text = ConnectionConfig(tls=None, user=None, listener="old", protocol="text")
    with Producer(cluster.chroot, config=ProducerConfig(connection=text)) as producer:
        producer.send("orders", b"by text")


def test_our_clients_use_the_listener_that_they_name(cluster):
    listeners = cluster.published()
    assert set(listeners) == {"main", "old", "app", "behind", "far"}
    assert listeners["app"] == {
        "name": "app", "host": "127.0.0.1", "port": cluster.port("app"), "tls": "required", "protocols": ["frames"],
    }  # fmt: skip
    assert listeners["main"]["port"] == cluster.broker.port
    profile = cluster.pki / "listener.ini"
    profile.write_text((cluster.pki / "web.ini").read_text() + "\n[client]\nlistener = app\n")
    profile.chmod(0o600)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("METAQ_PROFILE", str(profile))
        with (
            Producer(cluster.chroot) as producer,
            Consumer(cluster.chroot, group="first", topics=["orders"], start="earliest") as consumer,
        ):
            producer.send("orders", b"by app")
            eventually(lambda: any(each.payload == b"by app" for each in consumer.poll(timeout=1.0)))
            assert cluster.stats()["app_connections"] == 2
    with (
        cluster.producer("none") as producer,
        pytest.raises(MetaqError, match="listener=none: broker 0-m has no such listener; it has main, old, app"),
    ):
        producer.send("orders", b"no")
    with cluster.producer("behind") as producer, pytest.raises(MetaqError):
        producer.send("orders", b"no")  # it is no proxy


def ended(peer: socket.socket) -> bool:
    """Whether the broker closes the connection without an answer."""
    try:
        return peer.recv(10) == b""
    except ConnectionResetError:
        return True


def header(host: str, command: int = 0x21) -> bytes:
    rest = socket.inet_aton(host) + socket.inet_aton("127.0.0.1") + struct.pack("!HH", 5, 6)
    return b"\r\n\r\n\0\r\nQUIT\n" + bytes((command, 0x11)) + struct.pack("!H", len(rest)) + rest


def test_a_proxy_tells_who_its_client_is(cluster):
    port = cluster.port("behind")
    assert told(port, header("10.9.8.7") + PUT, ends=False).startswith(b"result 200 ")
    refused = told(port, header("10.1.1.1") + PUT, ends=False)
    assert b"nobody has logged in" in refused, refused
    assert told(port, header("192.168.1.1") + PUT) == b""
    assert told(port, header("1.2.3.4", 0x20) + b"version\r\n", ends=False).startswith(b"result 200 ")
    for garbage in (PUT, b"PROXY TCP4 10.9.8.7 1.1.1.1 1 2\r\n", header("10.9.8.7", 0x22)):
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as peer:
            peer.sendall(garbage)
            assert ended(peer)
    assert told(cluster.port("old"), header("10.9.8.7") + PUT)[:10] != b"result 200"
    said = cluster.broker.errors.read_text()
    assert "not of a TCP connection" not in said
    assert "does not begin with a PROXY protocol header" in said


def test_others_than_the_networks_are_closed_at_once_and_counted(cluster):
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", cluster.port("far")), timeout=DEADLINE) as peer:
            assert peer.recv(10) == b""
    found = cluster.stats()
    assert (found["far_port"], found["far_connections"], found["far_refused"]) == (cluster.port("far"), 0, 3)
    assert "the connection of 127.0.0.1 to the listener far is closed" in cluster.broker.errors.read_text()


def test_a_local_user_administers_the_broker_without_a_login(cluster):
    path = cluster.socket.removeprefix("unix:")
    assert os.stat(path).st_mode & 0o777 == 0o600
    for words in (("stats",), ("reload",), ("transactions", "list"), ("security", "status")):
        done = cluster.local(*words)
        assert done.code == 0, done.err
    assert cluster.operator.ran("stats").code == 1  # not on the loopback port


def test_a_local_user_who_is_no_admin_gets_a_refusal_and_the_connection_ends(cluster):
    path = cluster.pki / "mq1" / "others.sock"
    assert path.stat().st_mode & 0o777 == 0o666
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(DEADLINE)
        peer.connect(str(path))
        peer.sendall(b"version 7\r\n")
        answer = b""
        while received := peer.recv(4096):
            answer += received
    assert answer.startswith(b"result 403 "), answer
    assert b"may not administer this broker: name this user under admins" in answer


def test_clients_move_to_a_listener_under_load_and_nothing_is_lost(cluster):
    """A consumer and a producer on the listener join those on the main port, which then leave."""
    sent: list[bytes] = []
    got: set[bytes] = set()

    def send_by(producer: Producer, name: str, number: int) -> None:
        producer.send("orders", payload := f"{name}-{number}".encode())
        sent.append(payload)

    def consumer(listener: str | None) -> Consumer:
        config = ConsumerConfig(connection=cluster.connection(listener))
        return Consumer(cluster.chroot, group="billing", topics=["orders"], start="earliest", config=config)

    def take(consumer: Consumer) -> bool:
        got.update(each.payload for each in consumer.poll(timeout=0.2))
        return bool(sent) and got >= set(sent)

    with (
        cluster.producer(None) as old,
        cluster.producer("app") as new,
        consumer(None) as before,
        Repeating(lambda number: send_by(old, "main", number)) as by_main,
        Repeating(lambda number: send_by(new, "app", number)) as by_app,
    ):
        by_main.wait_for(20)
        by_app.wait_for(20)
        by_main.end()
        take(before)
        before.close()
        with consumer("app") as after:
            by_app.wait_for(20)
            by_app.end()
            eventually(lambda: take(after))
    assert not by_main.errors + by_app.errors


def test_a_client_with_a_listener_follows_a_set_to_its_new_leader(tmp_path, chroot, operator):
    pki = tmp_path / "pki"
    for words in (["init", pki], ["broker", pki, "mq1"]):
        assert run("security", *map(str, words)).code == 0
    security = pki / "mq1" / "security.ini"
    security.write_text(security.read_text() + "[listener app]\nport = 0\n")
    tls = TlsConfig(ca=str(pki / "ca.pem"))
    config = ProducerConfig(connection=ConnectionConfig(tls=tls, user=None, listener="app"))
    with set_nodes(tmp_path, chroot, {"orders": "numPartitions=1"}) as nodes:
        nodes.start("a", "b", options=("--security", str(security)))
        nodes.wait_in_sync("a", "b")
        with Producer(chroot, config=config) as producer:
            producer.send("orders", b"before")
            with session_at(chroot) as session:
                path = session.paths.broker_listeners(0)
                former = session.zk.get(path)[0]
                nodes.kill_leader()
                producer.send("orders", b"after")
                assert session.zk.get(path)[0] != former
