"""Users and grants on real brokers: everybody may do what his grants say and nothing else, at once, and nobody is let
in or locked out by a restart or by ZooKeeper.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import NamedTuple

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
    UserConfig,
    aio,
)
from metaq.protocol.errors import AccessRefused, QuotaExceeded
from tests.broker_process import RunningBroker, server_ini
from tests.integration.background import Repeating
from tests.integration.cli_helpers import Operator, run
from tests.integration.client_cluster import leased, read
from tests.integration.coordination_helpers import session_at
from tests.integration.forked_processes import ForkedBroker
from tests.integration.set_nodes import set_nodes
from tests.integration.test_broker_http import http_port
from tests.integration.test_https import asked
from tests.waiting import DEADLINE, eventually

TOPICS = {"orders": "numPartitions=2", "secret": "numPartitions=1", "jobs": "numPartitions=1"}
PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text("utf-8")
WAY = re.findall(
    r"^ +metaq (.*)$",
    PAGE.partition("## From plain to TLS without a stop")[2].partition("\n## ")[0],
    re.MULTILINE,
)
USERS = {
    "root": ["--admin"],
    "web": ["--can", "send:orders", "--can", "send:jobs"],
    "billing": ["--can", "consume:orders@billing", "--can", "consume:jobs@workers"],
}


class Cluster(NamedTuple):
    """A broker that serves only users, with the profiles of root, web and billing."""

    broker: RunningBroker
    chroot: str
    operator: Operator
    pki: Path

    def connection(self, name: str) -> ConnectionConfig:
        profile = self.pki / f"{name}.ini"
        return ConnectionConfig(tls=TlsConfig.from_profile(profile), user=UserConfig.from_profile(profile))

    def producer(self, name: str) -> Producer:
        return Producer(self.chroot, config=ProducerConfig(connection=self.connection(name)))

    def consumer(self, name: str, group: str, topic: str) -> Consumer:
        config = ConsumerConfig(connection=self.connection(name))
        return Consumer(self.chroot, group=group, topics=[topic], config=config)

    def ran(self, name: str, *words: str):
        """Run a command as this user."""
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("METAQ_PROFILE", str(self.pki / f"{name}.ini"))
            return self.operator.ran(*words)


def start(directory: Path, chroot: str, pki: Path, security: str = "security.ini") -> RunningBroker:
    """A broker with both HTTP ports."""
    directory.mkdir(exist_ok=True)
    zookeeper = f"zk.zkConnect={chroot}\nzk.zkSyncTimeMs=100"
    ini = server_ini(directory / "data", TOPICS, zookeeper=zookeeper, system="dashboardHttpPort=0")
    properties = directory / "jetty.properties"
    properties.write_text("serverPort=0\n")
    words = (
        "-m",
        "metaq",
        "broker",
        f"-FjettyBroker={properties}",
        "--security",
        str(pki / "mq1" / security),
        "-f",
    )
    return ForkedBroker(directory, ini, module=words)


@pytest.fixture
def cluster(tmp_path: Path, chroot: str, operator: Operator) -> Iterator[Cluster]:
    pki = tmp_path / "pki"
    for words in (["init", pki], ["broker", pki, "mq1"]):
        assert run("security", *map(str, words)).code == 0
    for name, grants in USERS.items():
        assert operator.ran("users", "add", name, *grants, "--profile", str(pki / f"{name}.ini")).code == 0
    with start(tmp_path / "broker", chroot, pki) as broker:
        cluster = Cluster(broker, chroot, operator, pki)
        assert cluster.ran("root", "stats", "access").code == 0
        assert cluster.ran("root", "security", "observe").code == 0
        assert cluster.ran("root", "stats", "access").code == 0  # the login of an admin over TLS
        enforced = cluster.ran("root", "security", "enforce")
        assert enforced.code == 0, enforced.err
        eventually(lambda: '"enforce"' in cluster.ran("root", "stats", "access", "--raw").out)
        yield cluster


def test_clients_on_an_event_loop_log_in_over_tls_and_may_do_what_their_grants_say(cluster):
    async def main() -> None:
        producing = ProducerConfig(connection=cluster.connection("web"))
        consuming = ConsumerConfig(connection=cluster.connection("billing"))
        async with (
            aio.Producer(cluster.chroot, config=producing) as producer,
            aio.Consumer(cluster.chroot, group="billing", topics=["orders"], config=consuming) as consumer,
        ):
            large = bytes(3 << 20)  # many TLS records
            await asyncio.gather(*(producer.send("orders", b"%d" % each) for each in range(100)))
            await producer.send("orders", large)
            with pytest.raises(AccessRefused):
                await producer.send("secret", b"x")
            payloads: set[bytes] = set()
            async with asyncio.timeout(DEADLINE):
                while len(payloads) < 101:
                    payloads |= {bytes(each.payload) for each in await consumer.poll()}
            assert large in payloads

    asyncio.run(main())


def test_a_quota_reaches_the_caller_and_a_higher_one_helps_at_once(cluster):
    def quota(*words: str) -> None:
        told = cluster.ran("root", "users", "quota", *words)
        assert told.code == 0, told.err

    with cluster.producer("web") as first, cluster.producer("web") as second:
        first.send("orders", b"one")
        quota("--default", "connections=1")
        eventually(lambda: '"quota": 1' in cluster.ran("root", "stats", "access", "--raw").out)
        with pytest.raises(QuotaExceeded, match="metaq users quota web connections=NUMBER"):
            second.send("orders", b"two")
        first.send("orders", b"three")
        quota("web", "connections=2")

        def sent() -> bool:
            try:
                second.send("orders", b"four")
            except QuotaExceeded:
                return False
            return True

        eventually(sent)
        quota("web", "send-bytes=1")

        def limited() -> bool:
            first.send("orders", b"more than a byte")
            return '"send-bytes": 1}' in cluster.ran("root", "stats", "access", "--raw").out

        eventually(limited)
        late = first.send_async("orders", b"late")
        eventually(lambda: '"waiting_connections": 1' in cluster.ran("root", "stats", "access", "--raw").out)
        assert not late.done()
        quota("web", "send-bytes=none")
        assert late.result(DEADLINE).offset > 0


def test_each_may_do_what_his_grants_say_and_nothing_else(cluster):
    with cluster.producer("web") as web, cluster.consumer("billing", "billing", "orders") as billing:
        web.send("orders", b"hello")
        assert [each.payload for each in read(billing, 1)] == [b"hello"]
        with pytest.raises(AccessRefused, match="metaq acl grant web send:secret"):
            web.send("secret", b"no")
        web.send("jobs", b"job")
    config = SharedConfig(connection=cluster.connection("billing"))
    with SharedConsumer(cluster.chroot, group="workers", topics=["jobs"], config=config) as shared:
        assert [each.payload for each in leased(shared, 1)] == [b"job"]
    stranger = cluster.consumer("web", "billing", "orders")
    with stranger, pytest.raises(AccessRefused, match="metaq acl grant web consume:orders@billing"):
        stranger.poll(timeout=DEADLINE)
    told = cluster.ran("web", "consume", "--topic", "orders", "--from", "earliest", "--count", "1")
    assert (told.code, "metaq acl grant web consume:orders" in told.err) == (1, True), told
    for name in ("root", "billing"):
        told = cluster.ran(name, "consume", "--topic", "orders", "--from", "earliest", "--count", "1")
        assert (told.code, told.out) == (0, "hello\n"), told.err
    told = cluster.ran("root", "consume", "--topic", "orders", "--from", "earliest", "--count", "1")
    assert (told.code, told.out) == (0, "hello\n"), told.err
    told = cluster.operator.ran("stats")
    assert (told.code, "log in as a user with the grant see:*" in told.err) == (1, True), told
    assert "Traceback" not in cluster.broker.errors.read_text()


def test_a_wrong_password_is_told_at_once(cluster):
    wrong = ConnectionConfig(
        tls=TlsConfig.from_profile(cluster.pki / "web.ini"), user=UserConfig("web", "not the password")
    )
    producer = Producer(cluster.chroot, config=ProducerConfig(connection=wrong))
    with producer, pytest.raises(AccessRefused, match="the user or the password is wrong"):
        producer.send("orders", b"no")


def test_a_grant_and_its_end_take_effect_on_open_connections(cluster):
    with cluster.producer("web") as web:
        with pytest.raises(AccessRefused):
            web.send("secret", b"no")
        assert cluster.ran("root", "acl", "grant", "web", "send:secret").code == 0
        eventually(lambda: may_send(web, "secret"))
        assert cluster.ran("root", "acl", "revoke", "web", "send:secret").code == 0
        eventually(lambda: not may_send(web, "secret"))
        assert cluster.ran("root", "users", "delete", "web", "--yes").code == 0
        eventually(lambda: not may_send(web, "orders"))


def may_send(producer: Producer, topic: str) -> bool:
    try:
        producer.send(topic, b"x")
    except AccessRefused:
        return False
    return True


def test_a_waiting_consumer_is_told_when_its_grant_ends(cluster):
    with cluster.consumer("billing", "billing", "orders") as billing:
        assert billing.poll(timeout=0.5) == []
        assert cluster.ran("root", "acl", "revoke", "billing", "consume:orders@billing").code == 0
        with pytest.raises(AccessRefused, match="consume:orders@billing"):
            billing.poll(timeout=DEADLINE)
        assert cluster.ran("root", "acl", "grant", "billing", "consume:orders@billing").code == 0
        with cluster.producer("web") as web:
            web.send("orders", b"again")
        found: list[bytes] = []

        def comes() -> bool:
            try:
                found.extend(each.payload for each in billing.poll(timeout=0.5))
            except AccessRefused:
                return False
            return found == [b"again"]

        eventually(comes)


def test_a_tree_that_comes_back_empty_opens_nothing_not_even_after_a_restart(cluster, tmp_path):
    with session_at(cluster.chroot) as session:
        lost = session.zk.transaction()  # at once, as after a restore
        for name in USERS:
            lost.delete(session.paths.user(name))
        lost.delete(session.paths.users())
        lost.delete(session.paths.security())
        assert lost.commit() == [True] * (len(USERS) + 2)
    eventually(lambda: "has no users and grants any more" in cluster.broker.errors.read_text())
    assert cluster.operator.ran("stats").code == 1
    with cluster.producer("web") as web:
        web.send("orders", b"users are valid still")
    cluster.broker.stop()
    with start(tmp_path / "broker", cluster.chroot, cluster.pki):
        assert cluster.operator.ran("stats").code == 1
        with cluster.producer("web") as web:
            web.send("orders", b"also after a restart")


def test_pages_metrics_and_gateway_ask_for_the_same_grants(cluster):
    pages = http_port(cluster.broker, r"dashboard at https://127\.0\.0\.1")
    gateway = http_port(cluster.broker, r"gateway at https://\*")
    ca = TlsConfig.from_profile(cluster.pki / "root.ini").context()
    root, web, billing = (f"{name}:{cluster.connection(name).user.password}" for name in USERS)

    def status(port: int, path: str, login: str = "", body: bytes | None = None) -> int:
        return asked(port, ca, path, body, login)[0]

    put, get = "/put/0?topic=orders&partition=0&flag=0&length=1", "/get/0?topic=orders&partition=0&offset=0&maxsize=99"
    logins = ("", billing, web)
    assert [status(gateway, put, login, b"x") for login in logins] == [401, 403, 200]
    assert [status(gateway, f"{get}&group=billing", login) for login in logins] == [401, 200, 403]
    assert status(gateway, f"{get}&group=other", billing) == 403
    assert status(gateway, put, "web:guess", b"x") == 401
    for path in ("/", "/topics", "/metrics", "/topics/orders", "/config", "/stats/access"):
        assert (status(pages, path), status(pages, path, root)) == (401, 200), path
        assert status(pages, path, "root:guess") == 401
    assert [status(pages, path, web) for path in ("/topics/orders", "/topics/secret", "/metrics")] == [200, 403, 403]
    assert asked(pages, None, "/metrics")[0] == 403, "without TLS nobody can log in"
    certified = run("security", "client", str(cluster.pki), "web")
    assert certified.code == 0
    web_certificate = certified_as(cluster.pki / "web").context()
    assert asked(pages, web_certificate, "/topics/orders")[0] == 200, "a certificate logs in, too"
    assert asked(pages, web_certificate, "/topics/secret")[0] == 403


def certified_as(folder: Path) -> TlsConfig:
    return TlsConfig(ca=str(folder / "ca.pem"), certificate=str(folder / "client.pem"), key=str(folder / "client.key"))


def test_an_open_cluster_becomes_secure_without_a_stop(tmp_path, chroot, operator):
    """Producers and a consumer work all the time: at first without users, then with their profiles, then enforced."""
    pki = tmp_path / "pki"
    for words in (["init", pki], ["broker", pki, "mq1"]):
        assert run("security", *map(str, words)).code == 0
    with start(tmp_path / "broker", chroot, pki) as broker, ExitStack() as stack:
        cluster = Cluster(broker, chroot, operator, pki)
        sent: list[bytes] = []

        def load(producer: Producer) -> Repeating:
            def send(number: int) -> None:
                sent.append(payload := b"%d-%d" % (id(producer), number))
                producer.send("orders", payload)

            return stack.enter_context(Repeating(send))

        before = load(stack.enter_context(Producer(chroot)))
        before.wait_for(50)
        for name, grants in USERS.items():
            if name == "web":
                grants = []  # suggested below
            assert operator.ran("users", "add", name, *grants, "--profile", str(pki / f"{name}.ini")).code == 0
        assert cluster.ran("root", "security", "observe").code == 0
        eventually(lambda: "anonymous from 127.0.0.1 needs send:orders" in cluster.ran("root", "acl", "suggest").err)
        refused = cluster.ran("root", "security", "enforce")
        assert refused.code == 1
        assert "anonymous from 127.0.0.1 would lack send:orders" in refused.err
        web = load(stack.enter_context(cluster.producer("web")))
        web.wait_for(50)
        suggested = cluster.ran("root", "acl", "suggest").out
        assert "metaq acl grant web send:orders\n" in suggested
        assert cluster.ran("root", "acl", "grant", "web", "send:orders").code == 0
        before.end()
        assert cluster.ran("root", "security", "enforce", "--force").code == 0
        eventually(lambda: operator.ran("stats").code == 1)
        web.wait_for(50)
        web.end()
        assert (before.errors, web.errors) == ([], [])
        with cluster.consumer("billing", "billing", "orders") as billing:
            assert sorted(each.payload for each in read(billing, len(sent))) == sorted(sent)
        with Producer(chroot) as stranger, pytest.raises(AccessRefused, match="log in as a user"):
            stranger.send("orders", b"no")


def test_the_way_of_the_docs_secures_an_open_set_without_a_stop(tmp_path, chroot, operator):
    """In two rounds of restarts; nodes know each other by their certificates then, and survive the leader's end."""
    steps = iter(WAY)

    def command(words: str):
        at = {"mq1.example": "127.0.0.1", "mq2.example": "127.0.0.1"}
        places = [
            str(tmp_path / word) if word == "pki" or "/" in word or word.endswith(".ini") else word
            for word in shlex.split(words)
        ]
        with pytest.MonkeyPatch.context() as environment:
            if (tmp_path / "root.ini").exists():
                environment.setenv("METAQ_PROFILE", str(tmp_path / "root.ini"))
            return operator.ran(*(at.get(word, word) for word in places))

    def follow(count: int) -> None:
        for words in islice(steps, count):
            done = command(words)
            assert done.code == 0, (words, done.err)

    with set_nodes(tmp_path, chroot, {"orders": "numPartitions=2"}) as nodes, ExitStack() as stack:
        nodes.start("a", "b")
        nodes.wait_in_sync("a", "b")
        pki = {"a": tmp_path / "pki" / "mq1", "b": tmp_path / "pki" / "mq2"}

        def restart(*names: str) -> None:
            for name in names:
                nodes.nodes[name].stop()
                nodes.start(name, options=("--security", str(pki[name] / "security.ini")))
                nodes.wait_in_sync("a", "b")

        sent: list[bytes] = []

        def load(producer: Producer) -> Repeating:
            def send(number: int) -> None:
                sent.append(payload := b"%d-%d" % (id(producer), number))
                producer.send("orders", payload)

            return stack.enter_context(Repeating(send))

        plain = load(stack.enter_context(Producer(chroot)))
        plain.wait_for(20)
        follow(3)
        restart("a", "b")
        plain.wait_for(20)
        follow(4)
        cluster = Cluster(nodes.nodes["a"], chroot, operator, tmp_path)
        shop = load(stack.enter_context(cluster.producer("shop")))
        billing = stack.enter_context(cluster.consumer("billing", "billing", "orders"))
        got = read(billing, 20)
        plain.end()
        follow(1)
        for each in pki.values():
            text = (each / "security.ini").read_text()
            assert "plain = everywhere" in text
            assert "brokers = plain" in text
            text = text.replace("plain = everywhere", "plain = nowhere").replace(
                "brokers = plain", "brokers = required"
            )
            (each / "security.ini").write_text(text)
        leader = nodes.leader
        restart(*({"a", "b"} - {leader}), leader)
        shop.wait_for(20)
        follow(3)
        eventually(lambda: operator.ran("stats").code == 1)
        nodes.kill_leader()
        shop.wait_for(20)
        shop.end()
        assert (plain.errors, shop.errors, next(steps, None)) == ([], [], None)
        got += read(billing, len(sent) - len(got))
        assert sorted(each.payload for each in got) == sorted(sent)
        with Producer(chroot) as stranger, pytest.raises(AccessRefused):
            stranger.send("orders", b"no")


def test_the_audit_log_and_the_data_are_for_the_owner_alone_and_say_who_did_what(cluster, tmp_path):
    cluster.broker.stop()
    cluster.broker.errors.unlink()
    folder = cluster.pki / "mq1"
    audit = "[audit]\nfile = audit.log\n"
    (folder / "audited.ini").write_text((folder / "security.ini").read_text() + audit)
    (tmp_path / "broker" / "data").chmod(0o755)
    with start(tmp_path / "broker", cluster.chroot, cluster.pki, "audited.ini") as broker:
        with cluster.producer("web") as web:
            web.send("orders", b"hello")
            for _ in range(5):
                with pytest.raises(AccessRefused):
                    web.send("secret", b"no")
        assert cluster.ran("root", "stats", "config").code == 0
        assert cluster.ran("root", "acl", "grant", "web", "send:secret").code == 0
        told = "the user web has got the grant: send:secret"
        eventually(lambda: told in (folder / "audit.log").read_text())
        pages = http_port(broker, r"dashboard at https://127\.0\.0\.1")
        ca = TlsConfig.from_profile(cluster.pki / "root.ini").context()
        assert asked(pages, ca, "/config", None, f"root:{cluster.connection('root').user.password}")[0] == 200
        assert asked(pages, ca, "/config", None, "root:a wrong password")[0] == 401
        assert "users other than the owner" in broker.errors.read_text()
        assert broker.stop() == 0
    lines = (folder / "audit.log").read_text().splitlines()
    entries = [json.loads(line) for line in lines]

    def counted(**fields: str) -> int:
        return sum(each["count"] for each in entries if fields.items() <= each.items())

    assert counted(principal="user web", request="login", decision="permitted") >= 1
    assert counted(principal="user web", address="127.0.0.1", need="send:secret", decision="refused") == 5
    assert counted(principal="user web", need="send:orders") == 0
    assert counted(principal="user root", need="admin", request="STATS", decision="permitted") >= 1
    assert counted(principal="user root", need="admin", request="GET /config", decision="permitted") == 1
    assert counted(request="login", decision="refused") == 1
    assert counted(request="grants", decision="changed", why=told) == 1
    assert cluster.connection("root").user.password not in "".join(lines)
    new = [*(tmp_path / "broker" / "data").rglob("*"), folder / "audit.log"]
    names = {path.name.partition("-")[0] for path in new}
    assert names >= {"orders", "metaqaccess.json", "metaqjournal"}
    assert [(path, oct(path.stat().st_mode)) for path in new if path.stat().st_mode & 0o077] == []
