"""TLS between real brokers, clients and commands, with the certificates that `metaq security` makes."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from metaq import (
    ConnectionConfig,
    Consumer,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    SharedConfig,
    SharedConsumer,
    TlsConfig,
)
from metaq.cli import authority
from metaq.client.transport.connection import open_connection
from metaq.client.transport.wire import Endpoint
from metaq.protocol.errors import AccessRefused, CannotConnect
from metaq.protocol.frames import encode_frame
from metaq.protocol.replication_stream import Hello, encode_hello
from metaq.protocol.statuses import RequestCode
from tests.broker_process import RunningBroker, server_ini
from tests.integration.cli_helpers import run
from tests.integration.client_cluster import leased, read
from tests.integration.forked_processes import ForkedBroker
from tests.integration.replication_helpers import wait_for_copy
from tests.integration.set_nodes import SetNodes, set_nodes
from tests.waiting import DEADLINE, eventually


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    """Made by `metaq security`: an authority, the brokers "mq1" and "other", the client "app"."""
    directory = tmp_path / "pki"
    for words in (["init", directory], ["broker", directory, "mq1"], ["client", directory, "app"]):
        assert run("security", *map(str, words)).code == 0
    return directory


ONLY_TLS = {"plain": "nowhere", "clientCertificates": "required"}


def changed_ini(pki: Path, **settings: str) -> str:
    """A security.ini with these settings of [tls] instead of those that `metaq security broker` has written."""
    text = (pki / "mq1" / "security.ini").read_text()
    for name, value in settings.items():
        text, count = re.subn(rf"(?m)^{name} = .*$", f"{name} = {value}", text)
        assert count == 1
    path = pki / "mq1" / f"{'-'.join((*settings, *settings.values()))}.ini"
    path.write_text(text)
    return str(path)


def start(tmp_path: Path, chroot: str, pki: Path, **settings: str) -> RunningBroker:
    """A broker with these settings of [tls]."""
    path = changed_ini(pki, **settings)
    directory = tmp_path / "broker"
    directory.mkdir()
    topics = {"t": "numPartitions=2", "jobs": "numPartitions=1"}
    ini = server_ini(directory / "data", topics, zookeeper=f"zk.zkConnect={chroot}\nzk.zkSyncTimeMs=100")
    return ForkedBroker(directory, ini, module=("-m", "metaq", "broker", "--security", path, "-f"))


@pytest.fixture
def broker(tmp_path: Path, chroot: str, pki: Path) -> Iterator[RunningBroker]:
    with start(tmp_path, chroot, pki, **ONLY_TLS) as broker:
        yield broker


def app(pki: Path, **files: str) -> ConnectionConfig:
    return ConnectionConfig(tls=tls(pki, **files))


def tls(pki: Path, **files: str) -> TlsConfig:
    folder = pki / "app"
    given = {"ca": folder / "ca.pem", "certificate": folder / "client.pem", "key": folder / "client.key"} | files
    return TlsConfig(**{name: str(path) for name, path in given.items()})


def test_producers_consumers_and_commands_work_over_tls_alone(broker, pki, chroot, operator):
    connection = app(pki)
    large = os.urandom(4 << 20)
    with Producer(chroot, config=ProducerConfig(connection=connection)) as producer:
        producer.send_batch("t", [b"%d" % number for number in range(5000)])
        futures = [producer.send_async("t", b"a%d" % number + bytes(number)) for number in range(1000)]
        for future in futures:
            future.result(DEADLINE)
        producer.send("t", large)
        producer.send("jobs", b"job")
    with Consumer(chroot, group="g", topics=["t"], config=ConsumerConfig(connection=connection)) as consumer:
        messages = read(consumer, 6001)
        assert {message.payload for message in messages} >= {large, b"a999" + bytes(999), b"4999"}
    with SharedConsumer(chroot, group="s", topics=["jobs"], config=SharedConfig(connection=connection)) as shared:
        assert [message.payload for message in leased(shared, 1)] == [b"job"]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("METAQ_PROFILE", str(pki / "app" / "profile.ini"))
        ran = operator.ran("consume", "--topic", "jobs", "--from", "earliest", "--count", "1")
        assert (ran.code, ran.out) == (0, "job\n"), ran.err
    with Producer(chroot) as producer, pytest.raises(AccessRefused, match="no connection without TLS"):
        producer.send("t", b"plain")


def test_who_is_not_whom_the_other_expects_is_refused_with_the_reason(broker, pki, tmp_path, operator, monkeypatch):
    endpoint = Endpoint("127.0.0.1", broker.port)
    run("security", "init", str(tmp_path / "others"))
    run("security", "client", str(tmp_path / "others"), "mallory")
    others = tmp_path / "others" / "mallory"
    strange = app(pki, certificate=str(others / "client.pem"), key=str(others / "client.key"))
    for config, said in (
        (app(pki, ca=str(others / "ca.pem")), "its certificate is refused"),
        (app(pki, ca=""), "its certificate is refused"),
        (app(pki, certificate="", key=""), "certificate required"),
        (strange, "unknown ca|decrypt error"),
    ):
        with pytest.raises(CannotConnect, match=said):
            open_connection(endpoint, config).close()
    with pytest.raises(AccessRefused, match="serves no connection without TLS from this address"):
        open_connection(endpoint, ConnectionConfig(tls=None)).close()
    with pytest.raises(CannotConnect, match=r"certificate is refused.*does not name 127\.0\.0\.2"):
        open_connection(Endpoint("127.0.0.2", broker.port), app(pki)).close()
    open_connection(endpoint, app(pki)).close()
    monkeypatch.setenv("METAQ_PROFILE", str(others / "profile.ini"))
    told = operator.ran("topics", "describe", "t")
    assert (told.code, "check the profile that METAQ_PROFILE names" in told.err) == (1, True), told
    assert "Traceback" not in broker.errors.read_text()


def test_a_new_certificate_counts_without_a_restart(broker, pki, operator, monkeypatch):
    run("security", "broker", str(pki), "renewed")
    with closing(open_connection(Endpoint("127.0.0.1", broker.port), app(pki))) as before:
        first = serial(broker, pki)
        for name in ("broker.key", "broker.pem"):
            os.replace(pki / "renewed" / name, pki / "mq1" / name)
        eventually(lambda: serial(broker, pki) != first, what="the new certificate")
        assert before.failure is None
    (pki / "mq1" / "broker.pem").write_text("no certificate")
    eventually(lambda: "the former certificate stays in use" in broker.errors.read_text(), what="the error")
    assert serial(broker, pki) != first
    monkeypatch.setenv("METAQ_PROFILE", str(pki / "app" / "profile.ini"))
    shown = operator.ran("stats", "--broker", "0", "certificate").out
    assert str(serial(broker, pki)).lower() in shown.lower()
    looked = operator.ran("monitor", "--min-memory", "0")
    assert (looked.code, "cannot use the new files of its certificate" in looked.out) == (1, True), looked
    assert "broker.pem expires on 20" in looked.out


def serial(broker: RunningBroker, pki: Path) -> object:
    """The serial number of the certificate that a new connection is shown."""
    context = tls(pki).context()
    with (
        socket.create_connection(("127.0.0.1", broker.port)) as sock,
        context.wrap_socket(sock, server_hostname="127.0.0.1") as secure,
    ):
        found = secure.getpeercert()
        assert found is not None
        return found["serialNumber"]


def test_the_nodes_of_a_set_a_slave_and_moves_use_tls(
    tmp_path: Path, chroot: str, pki: Path, monkeypatch: pytest.MonkeyPatch
):
    """No port serves a connection without TLS, so what works here was encrypted."""
    monkeypatch.setenv("METAQ_PROFILE", str(pki / "app" / "profile.ini"))
    security = ("--security", changed_ini(pki, **ONLY_TLS))
    sent: list[bytes] = []
    with (
        set_nodes(tmp_path, chroot, {"t": "numPartitions=2"}) as nodes,
        single(tmp_path / "master", chroot, security) as master,
        Producer(chroot) as producer,
    ):
        nodes.start("a", "b", options=security)
        nodes.wait_in_sync("a", "b")
        for number in range(50):
            sent.append(b"%d" % number + bytes(number << 12))
            producer.send("t", sent[-1])
        assert_only_a_broker_follows(nodes, pki)
        nodes.kill_leader()
        for number in range(50, 100):
            sent.append(b"%d" % number)
            producer.send("t", sent[-1])
        nodes.start("a", options=security)
        nodes.wait_in_sync("a", "b")
        moved = nodes.operator.ran("partitions", "move", "--topic", "t", "--from", "0", "--to", "1")
        assert moved.code == 0, moved
        with Consumer(chroot, group="g", topics=["t"]) as consumer:
            assert sorted(message.payload for message in read(consumer, len(sent))) == sorted(sent)
        with single(tmp_path / "slave", chroot, (f"-Fmetaslave={slave_properties(tmp_path)}", *security)) as slave:
            wait_for_copy(tmp_path)
        for broker in (*nodes.nodes.values(), master, slave):
            assert "Traceback" not in broker.errors.read_text()


def assert_only_a_broker_follows(nodes: SetNodes, pki: Path) -> None:
    """Try to follow the leader in the name of the other node, with its instance from ZooKeeper."""
    state, member = nodes.view().state, nodes.view().nodes["b"]
    assert state is not None
    body = encode_hello(Hello(0, "b", member.instance, 0, []))
    request = encode_frame(RequestCode.FOLLOW, 1, {}, len(body)) + body
    for files, said in (
        ({}, "only a broker may send this request"),
        (named_elsewhere(pki), "the certificate does not name 127.0.0.1, the host of b"),
    ):
        with socket.create_connection(("127.0.0.1", nodes.nodes[state.leader].port)) as sock:
            secure = tls(pki, **files).context().wrap_socket(sock, server_hostname="127.0.0.1")
            secure.sendall(request)
            secure.settimeout(DEADLINE)
            answer = b""
            while said.encode() not in answer and (data := secure.recv(65_536)):
                answer += data
            assert said in answer.decode(errors="replace")
            secure.close()


def named_elsewhere(pki: Path) -> dict[str, str]:
    """A certificate of our CA that names only a host elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authority, "_LOOPBACK", ())
        authority.make_broker(pki, "far", ["mq9.example"])
    return {"certificate": str(pki / "far" / "broker.pem"), "key": str(pki / "far" / "broker.key")}


def single(directory: Path, connect: str, options: Sequence[str]) -> RunningBroker:
    directory.mkdir()
    ini = server_ini(
        directory / "data", {"u": ""}, zookeeper=f"zk.zkConnect={connect}\nzk.zkSyncTimeMs=100", broker_id=1
    )
    return ForkedBroker(directory, ini, module=("-m", "metaq", "broker", *options, "-f"))


def slave_properties(tmp_path: Path) -> Path:
    path = tmp_path / "slave.properties"
    path.write_text("slaveId=1\n")
    return path


def test_without_tls_this_machine_is_served_and_plain_brokers_are_told_apart(tmp_path, chroot, pki):
    with start(tmp_path, chroot, pki) as broker:  # plain = loopback
        with broker.connect() as connection:
            assert connection.ask(b"version 1\r\n").code == 200
        open_connection(Endpoint("127.0.0.1", broker.port), app(pki)).close()
    directory = tmp_path / "open"
    directory.mkdir()
    words = ("-m", "metaq", "broker", "-f")
    with (
        ForkedBroker(directory, server_ini(directory / "data", {"t": ""}), module=words) as broker,
        pytest.raises(CannotConnect, match="start the broker with --security"),
    ):
        open_connection(Endpoint("127.0.0.1", broker.port), app(pki)).close()


def test_openssl_takes_the_certificates(pki):
    chain = ["openssl", "verify", "-x509_strict", "-CAfile", str(pki / "ca.pem"), str(pki / "mq1" / "broker.pem")]
    assert subprocess.run(chain, check=True, capture_output=True, text=True).stdout.endswith("OK\n")


def test_tls_1_1_is_refused(broker, pki):
    context = tls(pki).context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(("127.0.0.1", broker.port)) as sock, pytest.raises(ssl.SSLError):
        context.wrap_socket(sock, server_hostname="127.0.0.1")
