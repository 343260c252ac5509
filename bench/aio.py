"""Measure the asyncio producer beside the producer with threads: `python -m bench.aio`. Writes aio.md.

Both send to the same broker process, by turns, with the same settings. The rate is that of the best round; the
processor time is that of the client's process, which another load of the machine disturbs less.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import click

from metaq import Producer, aio
from metaq.client.transport.connection import Endpoint
from metaq.client.transport.metadata import DirectMetadata

from .environment import environment
from .processes import Server, free_port

TOPIC = "t"
BODY = bytes(128)
BATCH = [BODY] * 500
ROUNDS = 5
OUT = Path(__file__).parent / "aio.md"


class Cost(NamedTuple):
    """What the messages of one round have cost."""

    messages_per_second: float
    processor_us: float
    """Processor time of the client for each message."""


def start(directory: Path, stack: ExitStack) -> DirectMetadata:
    """Start a broker, and return its address."""
    port, ini = free_port(), directory / "server.ini"
    ini.write_text(
        f"[system]\nbrokerId=0\nhostName=127.0.0.1\nserverPort={port}\nnumPartitions=1\ndataPath={directory / 'data'}\n"
        f"unflushThreshold=1000\nunflushInterval=10000\n"
        f"maxSegmentSize={1 << 30}\nmaxTransferSize={1 << 20}\n[zookeeper]\nzk.zkEnable=false\n[topic={TOPIC}]\n"
    )
    stack.enter_context(
        Server([sys.executable, "-m", "metaq.broker", str(ini)], directory / "log", "serving", directory)
    )
    return DirectMetadata(Endpoint("127.0.0.1", port), 0, {TOPIC: 1})


# --- with threads -----------------------------------------------------------------------------------------------------


def batches(producer: Producer, messages: int) -> None:
    futures = [producer.send_batch_async(TOPIC, BATCH) for _ in range(messages // len(BATCH))]
    for each in futures:
        each.result()


def singles(producer: Producer, messages: int) -> None:
    futures = [producer.send_async(TOPIC, BODY) for _ in range(messages)]
    for each in futures:
        each.result()


# --- on an event loop -------------------------------------------------------------------------------------------------


async def batches_on_loop(producer: aio.Producer, messages: int) -> None:
    outcomes = [await producer.produce_batch(TOPIC, BATCH) for _ in range(messages // len(BATCH))]
    for each in outcomes:
        await each


async def singles_on_loop(producer: aio.Producer, messages: int) -> None:
    outcomes = [await producer.produce(TOPIC, BODY) for _ in range(messages)]
    for each in outcomes:
        await each


async def gathered(producer: aio.Producer, messages: int) -> None:
    await asyncio.gather(*(producer.send(TOPIC, BODY) for _ in range(messages)))


CASES: Mapping[
    str, tuple[int, Callable[[Producer, int], None], Callable[[aio.Producer, int], Coroutine[Any, Any, None]]]
]
CASES = {
    "batches of 500": (200_000, batches, batches_on_loop),
    "single messages (`send_async`, `produce`)": (50_000, singles, singles_on_loop),
    "10,000 calls of `send` at once (`send_async`, `gather`)": (10_000, singles, gathered),
}


def with_threads(metadata: DirectMetadata, action: Callable[[Producer, int], None], messages: int) -> Cost:
    with Producer(metadata=metadata) as producer:
        producer.send(TOPIC, BODY)
        began, spent = time.perf_counter(), time.process_time()
        action(producer, messages)
        return Cost(messages / (time.perf_counter() - began), (time.process_time() - spent) / messages * 1e6)


async def on_loop(
    metadata: DirectMetadata, action: Callable[[aio.Producer, int], Coroutine[Any, Any, None]], messages: int
) -> Cost:
    async with aio.Producer(metadata=metadata) as producer:
        await producer.send(TOPIC, BODY)
        began, spent = time.perf_counter(), time.process_time()
        await action(producer, messages)
        return Cost(messages / (time.perf_counter() - began), (time.process_time() - spent) / messages * 1e6)


def best(costs: list[Cost]) -> Cost:
    return Cost(max(each.messages_per_second for each in costs), min(each.processor_us for each in costs))


@click.command()
@click.option("--rounds", default=ROUNDS, show_default=True)
def main(rounds: int) -> None:
    machine = environment()
    lines = [
        "# The asyncio producer beside the producer with threads",
        "",
        "Written by `python -m bench.aio`. One client process, one partition, messages of 128 bytes, asynchronous",
        "flush.",
        "*Processor time*: of the client for each message.",
        "",
        f"{machine['processor']}, Python {machine['python']}, load average {os.getloadavg()[0]:.0f} at the start.",
        "",
        "| case | threads, msg/s | asyncio, msg/s | ratio | threads, µs | asyncio, µs |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        metadata = start(Path(directory), stack)
        for name, (messages, action, action_on_loop) in CASES.items():
            threads, loop = [], []
            for _ in range(rounds):
                threads.append(with_threads(metadata, action, messages))
                loop.append(asyncio.run(on_loop(metadata, action_on_loop, messages)))
            one, other = best(threads), best(loop)
            lines.append(
                f"| {name} | {one.messages_per_second:,.0f} | {other.messages_per_second:,.0f} | "
                f"{other.messages_per_second / one.messages_per_second:.2f} | "
                f"{one.processor_us:.2f} | {other.processor_us:.2f} |"
            )
            print(lines[-1])
    OUT.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
