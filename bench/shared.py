"""`python -m bench.shared`: many members on one partition, 1 ms of work for each message, beside RocketMQ's POP
consumer; and how soon an urgent message is handed out in front of a hundred thousand others.

A member is a SharedConsumer with one thread, as it is by default; RocketMQ's is a push consumer in POP mode with one
thread. Work is a sleep. Time counts from the first message that a member has to the last that one has finished.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import click

from metaq import Producer, ProducerConfig, SharedConfig, SharedConsumer
from metaq.client.connection import Endpoint
from metaq.client.metadata import DirectMetadata

from .maven import build, java_class_path
from .peers import HEAP, PROJECT, peer_versions, start_rocketmq
from .processes import Server, cpu_seconds, free_port

__all__ = ["measure_metaq", "measure_rocketmq", "urgent_latency"]

TOPIC = "jobs"
BODY = b"x" * 100
WORK_SECONDS = 0.001
MEMBERS = 64
PROCESSES = 4
MESSAGES = 200_000
WAITING = 100_000
URGENT = 200
_BATCH = 1000


# --- a process with some members --------------------------------------------------------------------------------------


def _metadata(port: int) -> DirectMetadata:
    return DirectMetadata(Endpoint("127.0.0.1", port), 0, {TOPIC: 1})


def _work(port: int, members: int, messages: int) -> None:
    """Prints when the first message came and the last was done, by time.monotonic(), and how many there were."""
    counts = [0] * members
    first: list[float] = []

    def member(number: int) -> None:
        def handle(_: object) -> None:
            if not first:
                first.append(time.monotonic())
            time.sleep(WORK_SECONDS)
            counts[number] += 1

        consumers[number].run(handle)

    consumers = [SharedConsumer(group="g", topics=[TOPIC], metadata=_metadata(port)) for _ in range(members)]
    threads = [threading.Thread(target=member, args=(number,), daemon=True) for number in range(members)]
    print("ready", flush=True)
    sys.stdin.readline()
    for thread in threads:
        thread.start()
    while sys.stdin.readline().strip() == "count":
        print(json.dumps([sum(counts), first[0] if first else 0.0, time.monotonic()]), flush=True)
    for consumer in consumers:
        consumer.close()
    print(json.dumps(sum(counts)), flush=True)


class _Members:
    def __init__(self, port: int, members: int, messages: int) -> None:
        arguments = json.dumps([port, members, messages])
        command = [sys.executable, "-m", "bench.shared", "--members-of", arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.answer() == "ready"

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, line: str) -> Any:
        self.tell(line)
        return json.loads(self.answer())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


# --- metaq ------------------------------------------------------------------------------------------------------------


def _start_metaq(directory: Path, stack: ExitStack) -> tuple[int, Server]:
    port = free_port()
    ini = directory / "server.ini"
    ini.write_text(
        f"[system]\nbrokerId=0\nhostName=127.0.0.1\nserverPort={port}\nnumPartitions=1\ndataPath={directory / 'data'}\n"
        f"unflushThreshold=1000\nunflushInterval=10000\n"
        f"maxSegmentSize={1 << 30}\nmaxTransferSize={1 << 20}\n[zookeeper]\nzk.zkEnable=false\n[topic={TOPIC}]\n"
    )
    command = [sys.executable, "-m", "metaq.broker", str(ini)]
    return port, stack.enter_context(Server(command, directory / "broker.log", "serving", directory))


def _fill(port: int, messages: int) -> None:
    with Producer(metadata=_metadata(port), config=ProducerConfig()) as producer:
        for _ in range(messages // _BATCH):
            producer.send_batch(TOPIC, [BODY] * _BATCH)


def measure_metaq(members: int = MEMBERS, messages: int = MESSAGES, processes: int = PROCESSES) -> dict[str, float]:
    """Messages per second that the members finish together, and the broker's processor time for each."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="metaq-shared-")))
        port, broker = _start_metaq(directory, stack)
        _fill(port, messages)
        groups = []
        for _ in range(processes):
            groups.append(_Members(port, members // processes, messages))
            stack.callback(groups[-1].close)
        before = cpu_seconds(broker.pid)
        for group in groups:
            group.tell("go")
        while True:
            told = [group.ask("count") for group in groups]
            if sum(count for count, _, _ in told) >= messages:
                break
            time.sleep(0.02)
        used = cpu_seconds(broker.pid) - before
        begun = min(first for _, first, _ in told if first)
        seconds = max(at for _, _, at in told) - begun
        done = sum(group.ask("stop") for group in groups)
        return {"per_second": messages / seconds, "broker_us": used / messages * 1e6, "twice": done - messages}


def urgent_latency(waiting: int = WAITING, urgent: int = URGENT) -> dict[str, float]:
    """Milliseconds from the send of an urgent message to its handler, beside one member that always has work, with so
    many messages waiting before it."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="metaq-shared-")))
        port, _ = _start_metaq(directory, stack)
        _fill(port, waiting)
        took: list[float] = []
        came = threading.Event()
        config = SharedConfig(prefetch=0)
        consumer = stack.enter_context(
            SharedConsumer(group="g", topics=[TOPIC], metadata=_metadata(port), config=config, lease_seconds=300)
        )
        producer = stack.enter_context(Producer(metadata=_metadata(port)))

        def handle(message: Any) -> None:
            if message.priority:
                took.append(time.monotonic() - float(message.payload))
                came.set()
            else:
                time.sleep(WORK_SECONDS)

        thread = threading.Thread(target=consumer.run, args=(handle,), daemon=True)
        thread.start()
        time.sleep(2.0)  # it has looked at what waits
        for _ in range(urgent):
            came.clear()
            producer.send(TOPIC, repr(time.monotonic()).encode(), priority=9)
            came.wait(10)
        consumer.stop()
        thread.join()
        took.sort()
        return {"median_ms": median(took) * 1e3, "p99_ms": took[int(len(took) * 0.99)] * 1e3, "max_ms": took[-1] * 1e3}


# --- RocketMQ ---------------------------------------------------------------------------------------------------------


def measure_rocketmq(members: int = MEMBERS, messages: int = MESSAGES) -> dict[str, float]:
    """The same of RocketMQ's POP consumers, all in one JVM."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rocketmq-shared-")))
        address, broker = start_rocketmq(directory, {TOPIC: 1}, False, stack)
        build(PROJECT, "the benchmark's peers")
        command = [
            "java",
            *HEAP,
            f"-Duser.home={directory}",
            "-cp",
            java_class_path(PROJECT / "rocketmq"),
            "metaq.bench.rocketmq.PopMembers",
            address,
            TOPIC,
            str(members),
            str(round(WORK_SECONDS * 1000)),
            str(messages),
        ]
        before = cpu_seconds(broker.pid)
        found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        if found.returncode:
            raise RuntimeError(
                f"PopMembers ended with {found.returncode}: {found.stdout[-2000:]}{found.stderr[-2000:]}"
            )
        answer = json.loads(found.stdout.splitlines()[-1])
        used = cpu_seconds(broker.pid) - before
        return {
            "per_second": answer["messages"] / answer["seconds"],
            "broker_us": used / messages * 1e6,
            "twice": answer["twice"],
        }


# --- the command ------------------------------------------------------------------------------------------------------


@click.command()
@click.option("--members", default=MEMBERS, show_default=True, help="Members on the one partition.")
@click.option("--messages", default=MESSAGES, show_default=True, help="Messages that they work on.")
@click.option("--processes", default=PROCESSES, show_default=True, help="Processes that metaq's members run in.")
@click.option("--rounds", default=3, show_default=True, help="Alternating runs of both systems.")
@click.option("--only", type=click.Choice(["metaq", "rocketmq", "urgent"]), help="Measure one thing alone.")
@click.option("--members-of", hidden=True)
def main(members: int, messages: int, processes: int, rounds: int, only: str | None, members_of: str | None) -> None:
    """Measure shared consumption."""
    if members_of is not None:
        _work(*json.loads(members_of))
        return
    for number in range(rounds):
        if only in (None, "metaq"):
            _show(f"metaq, run {number + 1}", measure_metaq(members, messages, processes))
        if only in (None, "rocketmq"):
            version = peer_versions(("rocketmq",))["rocketmq"]
            _show(f"RocketMQ {version} POP, run {number + 1}", measure_rocketmq(members, messages))
        if only in (None, "urgent"):
            _show(f"urgent among {WAITING}, run {number + 1}", urgent_latency())


def _show(name: str, figures: dict[str, float]) -> None:
    click.echo(f"{name}: " + ", ".join(f"{key} {value:.2f}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
