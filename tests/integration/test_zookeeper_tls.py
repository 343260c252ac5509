"""TLS to ZooKeeper: Apache's server with a secureClientPort, our brokers, clients and commands, and every mistake."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq import ConnectionConfig, Consumer, ConsumerConfig, Producer, SharedConsumer, TlsConfig
from metaq.coordination.embedded import EmbeddedZooKeeper
from metaq.coordination.runtime.certificates import CertificateFiles
from metaq.coordination.servers.free_ports import ready_port
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import ConfigError, CoordinationUnavailable
from tests.broker_process import RunningBroker, server_ini
from tests.integration.cli_helpers import Operator, run
from tests.integration.client_cluster import leased, read
from tests.integration.coordination_helpers import make_chroot
from tests.integration.forked_processes import ForkedBroker
from tests.integration.set_nodes import SetNodes
from tests.waiting import eventually

APP = ("ca.pem", "client.pem", "client.key")


class SecureZooKeeper(EmbeddedZooKeeper):
    """Serves clients that show a certificate of `pki` on a port of its own, with the certificate in `own`."""

    def __init__(self, data_dir: Path, pki: Path) -> None:
        super().__init__(data_dir)
        self.secure_port = 0
        self.own = data_dir.parent / "zookeeper.pem"
        self._ca = pki / "ca.pem"
        self.use(pki / "zk")

    def use(self, folder: Path) -> None:
        self.own.write_bytes((folder / "broker.key").read_bytes() + (folder / "broker.pem").read_bytes())

    @property
    def secure_string(self) -> str:
        return f"{self.host}:{self.secure_port}"

    def _write_config(self) -> Path:
        self.secure_port = ready_port("port", self.secure_port or 0, self.host)
        settings = {
            "secureClientPort": self.secure_port,
            "secureClientPortAddress": self.host,
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.type": "PEM",
            "ssl.keyStore.location": self.own,
            "ssl.trustStore.type": "PEM",
            "ssl.trustStore.location": self._ca,
        }
        config = super()._write_config()
        with config.open("a", encoding="utf-8") as file:
            file.writelines(f"{key}={value}\n" for key, value in settings.items())
        return config


def made(directory: Path, *kinds: str) -> Path:
    """An authority; kinds: "broker NAME" or "client NAME"."""
    for words in ("init", *kinds):
        kind, *names = words.split()
        assert run("security", kind, str(directory), *names).code == 0
    return directory


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("tls") / "pki", "broker zk", "broker mq1", "client app")


@pytest.fixture(scope="module")
def secure(pki: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureZooKeeper]:
    with SecureZooKeeper(tmp_path_factory.mktemp("secure") / "zookeeper", pki) as server:
        yield server


@pytest.fixture
def security(pki: Path) -> str:
    """A broker's security.ini."""
    path = pki / "mq1" / "zookeeper.ini"
    own = "ca = ca.pem\ncertificate = broker.pem\nkey = broker.key\n"
    path.write_text(f"[tls]\n{own}[zookeeper]\n{own}")
    return str(path)


@pytest.fixture
def profile(pki: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile of all clients."""
    path = pki / "app" / "zookeeper.ini"
    own = "ca = ca.pem\ncertificate = client.pem\nkey = client.key\n"
    path.write_text(f"[tls]\n{own}[zookeeper]\n{own}")
    monkeypatch.setenv("METAQ_PROFILE", str(path))


def files(pki: Path, ca: str, certificate: str = "", key: str = "") -> CertificateFiles:
    folder = pki / "app"
    ca, certificate, key = (str(folder / each) if each else "" for each in (ca, certificate, key))
    return CertificateFiles(ca, certificate, key, "zookeeper")


def test_brokers_clients_and_commands_reach_zookeeper_over_tls_alone(secure, tmp_path, security, profile):
    connect = f"{secure.secure_string}/all"
    topics = {"t": "numPartitions=2", "jobs": "numPartitions=1"}
    ini = server_ini(tmp_path / "data", topics, zookeeper=f"zk.zkConnect={connect}")
    words = ("-m", "metaq", "broker", "--security", security, "-f")
    with ForkedBroker(tmp_path, ini, module=words):
        with Producer(connect) as producer:
            producer.send_batch("t", [b"%d" % number for number in range(500)])
            producer.send("jobs", b"job")
        with Consumer(connect, group="g", topics=["t"], start="earliest") as consumer:
            assert len(read(consumer, 500)) == 500
            consumer.commit()
        with SharedConsumer(connect, group="s", topics=["jobs"]) as shared:
            assert [message.payload for message in leased(shared, 1)] == [b"job"]
        operator = Operator(connect)
        for command in ("brokers list", "brokers sets", "topics list", "groups describe g", "partitions moves"):
            ran = operator.ran(*command.split())
            assert ran.code == 0, ran
        looked = operator.ran("monitor")
        assert "answers, 1 of 1 server" in looked.out
        assert "version 3.9.5-" in looked.out  # of PySpark's jars
        plain = ConsumerConfig(connection=ConnectionConfig(zookeeper_tls=None), start_timeout_seconds=2.0)
        with pytest.raises(CoordinationUnavailable, match="speaks TLS: add a section"):
            Consumer(connect, group="g", topics=["t"], config=plain)


class SecureNodes(SetNodes):
    """Nodes that know ZooKeeper's secure port alone; the test itself looks at the other port."""

    secure_connect = ""

    def _begin(self, name: str, directory: Path, ini: str, words: tuple[str, ...]) -> RunningBroker:
        return super()._begin(name, directory, ini.replace(self.connect, self.secure_connect), words)


def test_a_set_elects_its_leader_over_tls(secure, pki, tmp_path, security, profile):
    nodes = SecureNodes(tmp_path, make_chroot(f"{secure.connect_string}/set"), {"t": "numPartitions=1"})
    nodes.secure_connect = f"{secure.secure_string}/set"
    try:
        nodes.start("a", "b", options=("--security", security))
        nodes.wait_in_sync("a", "b")
        with Producer(nodes.secure_connect) as producer:
            producer.send("t", b"to the leader")
    finally:
        nodes.stop()


def test_each_mistake_has_one_sentence(secure, pki, tmp_path):
    strangers = made(tmp_path / "strangers", "client mallory") / "mallory"
    stolen = pki / "app"
    for name in APP:
        shutil.copy(strangers / name, stolen / f"strange-{name}")
        (stolen / f"strange-{name}").chmod(0o600)
    strange = [f"strange-{name}" for name in APP]
    for connect, given, said in (
        (secure.secure_string, files(pki, strange[0]), "its certificate is refused: .*: check `ca` and the name"),
        (secure.secure_string, files(pki, ""), "its certificate is refused: .*: check `ca` and the name"),
        (f"127.0.0.2:{secure.secure_port}", files(pki, *APP), "nothing listens|certificate is refused"),
        (secure.secure_string, files(pki, "ca.pem"), "check `certificate` and `key`"),
        (secure.secure_string, files(pki, "ca.pem", *strange[1:]), "check `certificate` and `key`"),
        (secure.connect_string, files(pki, *APP), "does not speak TLS: name the server's secureClientPort"),
    ):
        with pytest.raises(CoordinationUnavailable, match=said):
            ZkSession(connect, tls=given).start(20.0)
    with pytest.raises(ConfigError, match=r"zookeeper.ca=.*none.pem: it cannot be read"):
        ZkSession(secure.secure_string, tls=files(pki, "none.pem"))
    with pytest.raises(ConfigError, match="zookeeper_tls="):
        ConnectionConfig(zookeeper_tls="ca.pem")  # type: ignore[arg-type]


def test_a_session_goes_on_when_the_server_and_the_client_have_new_certificates(tmp_path):
    pki = made(tmp_path / "pki", "broker zk", "client app")
    with SecureZooKeeper(tmp_path / "zookeeper", pki) as server:
        tls = TlsConfig(*(str(pki / "app" / name) for name in APP)).files()
        with ZkSession(server.secure_string, tls=tls, session_timeout=60.0) as session:
            first = session.session_id
            server.stop()
            others = made(tmp_path / "others", "broker zk", "client app")
            for name in APP:
                shutil.copy(others / "app" / name, pki / "app" / name)
            shutil.copy(others / "ca.pem", pki / "ca.pem")
            server.use(others / "zk")
            server.start()
            eventually(lambda: session.connected and session.session_id == first, what="the same session")
