"""Access rights of znodes on Apache's ZooKeeper, with a real broker: what docs/security.md says, while clients work."""

import re
import shlex
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.handlers.threading import SequentialThreadingHandler

from metaq import Consumer, Producer, SharedConsumer
from metaq.coordination.records.paths import Paths
from metaq.coordination.records.set_payloads import SetState
from metaq.coordination.runtime.zookeeper_login import ZooKeeperLogin
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.sets.set_admin import write_state
from metaq.coordination.sets.set_view import read_set
from metaq.protocol.errors import CoordinationRefused
from tests.broker_process import server_ini
from tests.integration.background import Repeating
from tests.integration.cli_helpers import Operator, run
from tests.integration.client_cluster import leased, read
from tests.integration.forked_processes import ForkedBroker
from tests.integration.set_nodes import set_nodes

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
SECTION = PAGE.read_text("utf-8").partition("## ACLs in ZooKeeper")[2].partition("\n## ")[0]
STEPS = re.findall(r"^ *metaq (security zookeeper-acl .*)$", SECTION, re.MULTILINE)
LOGIN = ZooKeeperLogin("metaq", "a password that nothing else uses")
PATHS = Paths()


class FromAnotherAddress(SequentialThreadingHandler):  # type: ignore[misc]
    """Connects from 127.0.0.2, as a client on another machine does."""

    def create_connection(self, address: tuple[str, int], timeout: float, **_options: Any) -> socket.socket:
        return socket.create_connection(address, timeout, ("127.0.0.2", 0))


def kazoo(connect: str, handler: SequentialThreadingHandler | None = None) -> KazooClient:
    client = KazooClient(connect, handler=handler)
    client.start()
    return client


def with_login(directory: Path, *host: str) -> Path:
    """Return the security.ini of a broker in this directory, with the section that docs/security.md shows."""
    pki = directory / "pki"
    for words in (["init", pki], ["broker", pki, "mq1", *host]):
        assert run("security", *map(str, words)).code == 0
    password, profile = directory / "zookeeper.password", directory / "profile.ini"
    section = f"[zookeeper]\nuser = {LOGIN.user}\npasswordFile = {password}\n"
    for path, text in ((password, LOGIN.password + "\n"), (profile, section)):
        path.write_text(text)
        path.chmod(0o600)
    ini = pki / "mq1" / "security.ini"
    ini.write_text(ini.read_text() + section)
    return ini


def test_the_way_of_the_docs_closes_a_cluster_while_clients_work(
    chroot: str, operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    security = with_login(tmp_path)
    ini = server_ini(tmp_path / "data", {"t": "", "jobs": ""}, zookeeper=f"zk.zkConnect={chroot}")
    words = ("-m", "metaq", "broker", "--security", str(security), "-f")

    def command(text: str):
        with monkeypatch.context() as environment:
            environment.setenv("METAQ_PROFILE", str(tmp_path / "profile.ini"))
            return operator.ran(*(LOGIN.identity if word == "$CLUSTER" else word for word in shlex.split(text)))

    def refused(action: Callable[[], object]) -> None:
        with pytest.raises(NoAuthError):
            action()

    # clients come from 127.0.0.1; strangers from 127.0.0.2
    clients = "ip:127.0.0.1"
    assert len(STEPS) == 5
    steps = [step.replace("ip:127.0.0.0/8", clients) for step in STEPS]
    with ForkedBroker(tmp_path, ini, module=words) as broker, Producer(chroot) as producer:
        sends = Repeating(lambda number: producer.send("t", b"%d" % number))
        with Consumer(chroot, group="g", topics=["t"], start="earliest") as consumer:
            sends.start()
            got = read(consumer, 20)
            assert LOGIN.identity in command(steps[0]).out
            for step in steps[1:]:
                done = command(step)
                assert done.code == 0, (step, done.err)
            sends.wait_for(20)
            got += read(consumer, 20)
            consumer.commit()
            with Consumer(chroot, group="new", topics=["t"], start="earliest") as late:  # a group that did not exist
                assert read(late, 1)
        sends.end()
        assert (sends.errors, sends.done > 40) == ([], True)
        payloads = [int(each.payload) for each in got]
        assert payloads == list(range(len(payloads)))
        producer.send("jobs", b"job")
        with SharedConsumer(chroot, group="workers", topics=["jobs"]) as shared:
            assert [each.payload for each in leased(shared, 1)] == [b"job"]
        assert command("users add shop --can send:t --no-password").code == 0
        check = command("security zookeeper-acl check --json")
        assert check.code == 0, check.err

        stranger, legacy = kazoo(chroot, FromAnotherAddress()), kazoo(chroot)
        try:
            offset = PATHS.offset("g", "t", "0-0")
            assert stranger.get(offset)[0]
            for path in (offset, PATHS.broker(0), PATHS.master(0), PATHS.security(), PATHS.acl_policy()):
                refused(partial(stranger.set, path, b"mine"))
                refused(partial(stranger.delete, path))
            refused(lambda: stranger.get(PATHS.user("shop")))
            refused(lambda: stranger.create(PATHS.group_ids("mine"), makepath=True))
            refused(lambda: legacy.set(PATHS.master(0), b"mine"))
            refused(lambda: legacy.get(PATHS.user("shop")))
            legacy.ensure_path(PATHS.owners("java", "t"))  # as a 1.x client, open to everybody
            legacy.create(PATHS.consumer("java", "java_1"), b"t", ephemeral=True, makepath=True)
            found = command("security zookeeper-acl check")
            assert (found.code, f"such as {PATHS.group_ids('java').rpartition('/')[0]}:" in found.err) == (1, True)
            assert command("security zookeeper-acl apply").code == 0
            assert command("security zookeeper-acl check").code == 0
            legacy.set(PATHS.consumer("java", "java_1"), b"t,u")  # goes on by its address
            refused(lambda: stranger.set(PATHS.consumer("java", "java_1"), b""))
        finally:
            for client in (stranger, legacy):
                client.stop()
                client.close()

        broker.stop()
    assert "Traceback" not in broker.errors.read_text()
    with ForkedBroker(tmp_path, ini, module=words) as broker:  # it comes back under the policy
        assert command("security zookeeper-acl check").code == 0
        assert command("security zookeeper-acl open").code == 0
        with Producer(chroot) as producer:
            producer.send("t", b"open")


def test_a_broker_set_elects_leaders_and_takes_new_nodes_in_under_a_policy(
    chroot: str, operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    security = ("--security", str(with_login(tmp_path, "--host", "127.0.0.1")))
    monkeypatch.setenv("METAQ_PROFILE", str(tmp_path / "profile.ini"))
    with set_nodes(tmp_path, chroot, {"t": ""}, broker_id=5) as nodes:
        nodes.start("a", options=security)
        policy = ("--cluster", LOGIN.identity, "--clients", "ip:127.0.0.1")
        applied = operator.ran("security", "zookeeper-acl", "apply", *policy)
        assert applied.code == 0, applied.err
        nodes.start("b", options=security)  # which creates its znodes under the policy
        nodes.wait_in_sync("a", "b")
        with Producer(chroot) as producer:
            sends = Repeating(lambda number: producer.send("t", b"%d" % number))
            sends.start()
            nodes.kill_leader()
            sends.wait_for(10)
            nodes.start("a", options=security)
            nodes.wait_in_sync("a", "b", after=1)
            nodes.hand_over("--to", "a")
            sends.wait_for(10)
            sends.end()
            assert sends.errors == []
        assert operator.ran("security", "zookeeper-acl", "check").code == 0
        with ZkSession(chroot) as other, pytest.raises(CoordinationRefused, match="as nobody but its address"):
            write_state(other, 5, SetState(9, "b", {"b": "5e1c9a70"}, "b", ("b",)), read_set(other, 5))
