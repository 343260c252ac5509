"""Measure what security costs, beside Kafka: `python -m bench.secure`. Writes secure.md.

Four brokers run at the same time and are measured in turns: metaq's and Kafka's, each without security, and with TLS, a
user who logs in by SCRAM-SHA-512, and enforced grants. Both secured brokers have certificates of one authority.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from metaq.cli.authority import make_authority, make_broker
from metaq.client.settings.config import ConnectionConfig
from metaq.client.settings.tls_config import TlsConfig
from metaq.client.settings.user_config import UserConfig
from metaq.coordination.security.passwords import random_password
from metaq.coordination.security.security_admin import SecurityAdmin
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.standalone_process import StandaloneZooKeeper
from metaq.errors import MetaqError
from metaq.protocol.access import AccessGrant, AccessMode

from .environment import environment
from .javapeer import JAVA_OPTIONS
from .maven import build, java_class_path
from .peers import HEAP, PROJECT, kafka_properties
from .processes import Server, Worker, free_port
from .server_ini import server_ini

OUT = Path(__file__).parent / "secure.md"
ROUNDS = int(os.environ.get("METAQ_BENCH_ROUNDS", "5"))
TOPIC, USER, ADMIN = "orders", "app", "root"
_READY_SECONDS = 60.0

LOADS: Mapping[str, tuple[object, ...]] = {
    "batches of 500 × 1 KiB": ("send_batch", TOPIC, 500, 200_000, 1024),
    "single sends of 100 bytes, each waits": ("send_blocking", TOPIC, 1, 4_000, 100),
}
"""By name: a command of the load generators (bench/loops.py)."""
_CONSUMED = 200_000


def _zookeeper_with_users(directory: Path, password: str, stack: ExitStack) -> tuple[str, str]:
    """Start a ZooKeeper server. Return two connect strings: for the broker without users, and for the one with."""
    server = StandaloneZooKeeper(directory / "zookeeper")
    server.start()
    stack.callback(server.stop)
    plain, secured = f"{server.connect_string}/plain", f"{server.connect_string}/secured"
    for each in (plain, secured):
        with ZkSession(server.connect_string) as session:
            session.zk.ensure_path(each.removeprefix(server.connect_string))
    with ZkSession(secured) as session:
        admin = SecurityAdmin(session)
        admin.add_user(ADMIN, random_password(), [AccessGrant.parse("admin")], first_mode=AccessMode.ENFORCE)
        grants = [AccessGrant.parse(text) for text in (f"send:{TOPIC}", f"consume:{TOPIC}@*")]
        admin.add_user(USER, password, grants)
    return plain, secured


def _metaq(directory: Path, zookeeper: str, words: Sequence[str], stack: ExitStack) -> None:
    directory.mkdir()
    config = directory / "server.ini"
    config.write_text(server_ini(free_port(), zookeeper, {TOPIC: 1}, {"dataPath": directory / "data"}), "utf-8")
    command = [sys.executable, "-m", "metaq", "broker", *words, "-f", str(config)]
    stack.enter_context(Server(command, directory / "broker.log", " serving "))


def _await_login(zookeeper: str, profile: Path) -> None:
    """Wait until the broker has read the users."""
    from metaq import Producer, ProducerConfig

    connection = ConnectionConfig(tls=TlsConfig.from_profile(profile), user=UserConfig.from_profile(profile))
    end = time.monotonic() + _READY_SECONDS
    while True:
        try:
            with Producer(zookeeper, config=ProducerConfig(connection=connection)) as producer:
                producer.send(TOPIC, b"")
            return
        except MetaqError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def _kafka(directory: Path, pki: Path | None, password: str, stack: ExitStack) -> str:
    """Start a broker of Kafka, and create the topic. Return its address. pki: the certificates; None for no security.

    Clients reach the secured broker by SASL_SSL; its own controller has a port without TLS, as Kafka's quick start.
    """
    directory.mkdir()
    port, config = free_port(), directory / "server.properties"
    text = kafka_properties(port, free_port(), directory / "data")
    scram = []
    if pki is not None:
        folder = pki / "mq1"
        store = directory / "broker.pem"
        store.write_bytes((folder / "broker.key").read_bytes() + (folder / "broker.pem").read_bytes())
        text = text.replace("PLAINTEXT://", "SASL_SSL://").replace("PLAINTEXT:PLAINTEXT", "SASL_SSL:SASL_SSL")
        login = (
            f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{USER}" password="{password}";'
        )
        text += (
            "inter.broker.listener.name=SASL_SSL\nsasl.enabled.mechanisms=SCRAM-SHA-512\n"
            "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512\n"
            f"listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={login}\n"
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
            f"super.users=User:ANONYMOUS;User:{ADMIN}\nallow.everyone.if.no.acl.found=false\n"
            f"ssl.keystore.type=PEM\nssl.keystore.location={store}\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={pki / 'ca.pem'}\n"
        )
        for name in (USER, ADMIN):
            scram += ["--add-scram", f"SCRAM-SHA-512=[name={name},password={password}]"]
    config.write_text(text, "utf-8")
    build(PROJECT, "the benchmark's peers")
    java = ["java", *JAVA_OPTIONS, "-cp", java_class_path(PROJECT / "kafka")]
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "--cluster-id=AkU3OEVBNTcwNTJENDM2Qg", "-c", str(config), *scram],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    stack.enter_context(Server([*java, *HEAP, "kafka.Kafka", str(config)], directory / "broker.log", "Server started"))
    return f"127.0.0.1:{port}"


@contextmanager
def _systems(directory: Path) -> Iterator[Mapping[str, Worker]]:
    """Start all brokers. Yield a load generator for each."""
    with ExitStack() as stack:
        password = random_password()
        pki = directory / "pki"
        make_authority(pki)
        security = make_broker(pki, "mq1", ["127.0.0.1"])
        plain, secured = _zookeeper_with_users(directory, password, stack)
        _metaq(directory / "plain", plain, [], stack)
        _metaq(directory / "secured", secured, ["--security", str(security)], stack)
        profile = directory / "profile.ini"
        profile.touch(mode=0o600)
        profile.write_text(f"[tls]\nca = {pki / 'ca.pem'}\n[user]\nname = {USER}\npassword = {password}\n")
        _await_login(secured, profile)
        python = [sys.executable, "-m"]
        yield {
            "metaq": _worker([*python, "bench.worker", plain], directory / "metaq.log", stack),
            "metaq, secured": _worker(
                ["env", f"METAQ_PROFILE={profile}", *python, "bench.worker", secured], directory / "metaq-s.log", stack
            ),
            **_of_kafka(directory, pki, password, python, stack),
        }


def _of_kafka(
    directory: Path, pki: Path, password: str, python: Sequence[str], stack: ExitStack
) -> Mapping[str, Worker]:
    from confluent_kafka import admin as module

    kafka: Any = module  # its types do not name what it exports
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": USER,
        "sasl.password": password,
        "ssl.ca.location": str(pki / "ca.pem"),
    }
    plain = _kafka(directory / "kafka", None, password, stack)
    admin = kafka.AdminClient({"bootstrap.servers": plain})
    admin.create_topics([kafka.NewTopic(TOPIC, 1, 1)])[TOPIC].result()
    secured = _kafka(directory / "kafka-secured", pki, password, stack)
    admin = kafka.AdminClient({"bootstrap.servers": secured, **settings, "sasl.username": ADMIN})
    admin.create_topics([kafka.NewTopic(TOPIC, 1, 1)])[TOPIC].result()
    acls = [
        kafka.AclBinding(
            kind, "*", kafka.ResourcePatternType.LITERAL, f"User:{USER}", "*", operation, kafka.AclPermissionType.ALLOW
        )
        for kind, operation in (
            (kafka.ResourceType.TOPIC, kafka.AclOperation.WRITE),
            (kafka.ResourceType.TOPIC, kafka.AclOperation.READ),
            (kafka.ResourceType.GROUP, kafka.AclOperation.READ),
        )
    ]
    for made in admin.create_acls(acls).values():
        made.result()
    words = [f"{key}={value}" for key, value in settings.items()]
    worker = [*python, "bench.kafka_workers", "confluent-kafka"]
    return {
        "Kafka": _worker([*worker, plain], directory / "kafka-client.log", stack),
        "Kafka, secured": _worker([*worker, secured, *words], directory / "kafka-s-client.log", stack),
    }


def _worker(command: Sequence[str], log: Path, stack: ExitStack) -> Worker:
    return stack.enter_context(Worker(command, log))


def measure(systems: Mapping[str, Worker], rounds: int) -> Mapping[str, Mapping[str, Sequence[float]]]:
    """Return for each load and system its rates, in messages per second. The first round is not counted."""
    rates: dict[str, dict[str, list[float]]] = {name: {each: [] for each in systems} for name in (*LOADS, "consuming")}
    for number in range(rounds + 1):
        for load, words in LOADS.items():
            for name, worker in systems.items():
                rates[load][name].append(worker.call(*words)["rate"])
        for name, worker in systems.items():
            answer = worker.call("consume", TOPIC, f"group-{number}", _CONSUMED, 60)
            rates["consuming"][name].append(answer["rate"])
    return {load: {name: found[1:] for name, found in by_name.items()} for load, by_name in rates.items()}


def page(rates: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    machine = environment()
    pairs = (("metaq, secured", "metaq"), ("Kafka, secured", "Kafka"), ("metaq, secured", "Kafka, secured"))
    lines = [
        "# What security costs",
        "",
        f"Written by `python -m bench.secure`: messages per second, the median of {ROUNDS} rounds in turns and their",
        "range. Secured means TLS 1.3, a login by SCRAM-SHA-512 and enforced grants. Kafka's client is",
        "confluent-kafka, metaq's is its own. Both brokers have one partition and flush asynchronously.",
        "",
        f"{machine['processor']} ({len(os.sched_getaffinity(0))} used); Python {machine['python']}, Java "
        f"{machine['java']}, Kafka {machine['kafka']}, confluent-kafka {machine['confluent-kafka']}.",
        "",
        "| load | system | messages/s |",
        "|---|---|---|",
    ]
    for load, by_name in rates.items():
        lines += [
            f"| {load} | {name} | {median(found):,.0f} ({min(found):,.0f} … {max(found):,.0f}) |"
            for name, found in by_name.items()
        ]
    lines += ["", "| load | ratio | median of the rounds' ratios |", "|---|---|---|"]
    for load, by_name in rates.items():
        for one, other in pairs:
            ratios = [a / b for a, b in zip(by_name[one], by_name[other], strict=True)]
            lines.append(f"| {load} | {one} ÷ {other} | {median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f}) |")
    return "\n".join(lines) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="secure-") as directory, _systems(Path(directory)) as systems:
        text = page(measure(systems, ROUNDS))
    OUT.write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
