"""Measure shared groups without ZooKeeper: `python -m bench.shared`. The first measurement has many members on one
partition, with 1 ms of work for each message. The second measures how soon an urgent message is delivered while a
hundred thousand others wait. For the comparison with RocketMQ's POP consumer use `python -m bench --scenario shared`.

A member is a SharedConsumer with one thread, the default. Its work is a sleep. The time is measured from the start of
the first message's work until a member has finished the last message.
"""

from __future__ import annotations

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
from metaq.client.transport.connection import Endpoint
from metaq.client.transport.metadata import DirectMetadata

from .members import DIRECT, Members, numbered
from .processes import Server, cpu_seconds, free_port

__all__ = ["measure_metaq", "urgent_latency"]

TOPIC = "jobs"
BODY_BYTES = 100
WORK_MS = 1
MEMBERS = 64
PROCESSES = 4
MESSAGES = 200_000
WAITING = 100_000
URGENT = 200
_BATCH = 1000


def _metadata(port: int) -> DirectMetadata:
    return DirectMetadata(Endpoint("127.0.0.1", port), 0, {TOPIC: 1})


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
        for first in range(0, messages, _BATCH):
            producer.send_batch(TOPIC, [numbered(number, BODY_BYTES) for number in range(first, first + _BATCH)])


def measure_metaq(members: int = MEMBERS, messages: int = MESSAGES, processes: int = PROCESSES) -> dict[str, float]:
    """Return the messages per second that all members finish together, the broker's processor time for each message,
    and how many messages were handled twice.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="metaq-shared-")))
        port, broker = _start_metaq(directory, stack)
        _fill(port, messages)
        connect = f"{DIRECT}127.0.0.1:{port}"
        groups = [
            stack.enter_context(Members(connect, TOPIC, "g", members // processes, 1, WORK_MS))
            for _ in range(processes)
        ]
        before = cpu_seconds(broker.pid)
        for group in groups:
            group.begin()
        while sum(group.count() for group in groups) < messages:
            time.sleep(0.02)
        used = cpu_seconds(broker.pid) - before
        found = [group.end() for group in groups]
        seconds = max(each.last for each in found) - min(each.first for each in found if each.finished)
        twice = sum(each.finished for each in found) - messages
        return {"per_second": messages / seconds, "broker_us": used / messages * 1e6, "twice": twice}


def urgent_latency(waiting: int = WAITING, urgent: int = URGENT) -> dict[str, float]:
    """Return the milliseconds from the send of an urgent message to the call of its handler. The group has one member,
    which always has work; `waiting` messages were sent before the urgent one.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="metaq-shared-")))
        port, _ = _start_metaq(directory, stack)
        _fill(port, waiting)
        took: list[float] = []
        came = threading.Event()
        config = SharedConfig(prefetch=0, lease_seconds=300)
        consumer = stack.enter_context(
            SharedConsumer(group="g", topics=[TOPIC], metadata=_metadata(port), config=config)
        )
        producer = stack.enter_context(Producer(metadata=_metadata(port)))

        def handle(message: Any) -> None:
            if message.priority:
                took.append(time.monotonic() - float(message.payload))
                came.set()
            else:
                time.sleep(WORK_MS / 1000)

        thread = threading.Thread(target=consumer.run, args=(handle,), daemon=True)
        thread.start()
        time.sleep(2.0)  # the member has now looked at the waiting messages
        for _ in range(urgent):
            came.clear()
            producer.send(TOPIC, repr(time.monotonic()).encode(), priority=9)
            came.wait(10)
        consumer.stop()
        thread.join()
        took.sort()
        return {"median_ms": median(took) * 1e3, "p99_ms": took[int(len(took) * 0.99)] * 1e3, "max_ms": took[-1] * 1e3}


# --- the command ------------------------------------------------------------------------------------------------------


@click.command()
@click.option("--members", default=MEMBERS, show_default=True, help="Members on the one partition.")
@click.option("--messages", default=MESSAGES, show_default=True, help="Messages that they work on.")
@click.option("--processes", default=PROCESSES, show_default=True, help="Processes that metaq's members run in.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each.")
@click.option("--only", type=click.Choice(["metaq", "urgent"]), help="Measure one thing alone.")
def main(members: int, messages: int, processes: int, rounds: int, only: str | None) -> None:
    """Measure shared consumption."""
    for number in range(rounds):
        if only in (None, "metaq"):
            _show(f"metaq, run {number + 1}", measure_metaq(members, messages, processes))
        if only in (None, "urgent"):
            _show(f"urgent among {WAITING}, run {number + 1}", urgent_latency())


def _show(name: str, figures: dict[str, float]) -> None:
    click.echo(f"{name}: " + ", ".join(f"{key} {value:.2f}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
