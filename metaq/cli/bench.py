"""The command `metaq bench`: measure how fast an existing cluster accepts messages and delivers them, how its speed
depends on the number of partitions, and the latency from producer to consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import click

from metaq import Consumer, ConsumerConfig, PartitionReader, Producer, ProducerConfig
from metaq.client.questions.partition_bounds import partition_bounds
from metaq.client.records.results import TopicPartition
from metaq.protocol.errors import ClientError
from metaq.protocol.limits import MAX_BATCH_RECORDS, MAX_BODY_BYTES

from .bench_jobs import (
    STAMP_BYTES,
    ArrowReader,
    Backlog,
    Destination,
    Job,
    MessageReader,
    Reader,
    Stamps,
    send_batches,
    send_pipelined,
    send_single,
)
from .bench_measure import Limit, Run, RunFigures, measure
from .cluster_access import open_cluster, zk_timeout
from .options import GROUP, PARTITION, POSITIVE_SECONDS, TOPIC, PartitionName, json_option, with_options, zk_option
from .output import show
from .servers import stop_signal

__all__ = ["bench"]

DEFAULT_SECONDS = 10.0
EXIT_INTERRUPTED = 130
MAX_THREADS = 1024
MAX_KEYS = 1_000_000
MAX_FRAMES = 1000
TABLE_TIMES = ("p50", "p99", "p99.9", "max")
MAX_WINDOW = 1_000_000


def _run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that all commands of `metaq bench` have. The values of --count and --seconds are passed to the
    command as one argument `limit`.
    """

    def call(count: int | None, seconds: float | None, **others: Any) -> Any:
        if seconds is None and count is None:
            seconds = DEFAULT_SECONDS
        return command(limit=Limit(count, seconds), **others)

    return with_options(
        call,
        command,
        zk_option,
        click.option("--topic", "-t", type=TOPIC, required=True, help="An existing topic; its messages stay."),
        click.option("--seconds", type=POSITIVE_SECONDS, help="Stop after this long; default without --count: 10."),
        click.option("--count", "-c", type=click.IntRange(1), help="Stop after this many messages."),
        json_option,
    )


_size_option = click.option(
    "--size",
    type=click.IntRange(0, MAX_BODY_BYTES),
    default=1024,
    show_default=True,
    metavar="BYTES",
    help="Size of each payload.",
)
_batch_option = click.option(
    "--batch", type=click.IntRange(1, MAX_BATCH_RECORDS), default=500, show_default=True, help="Messages in one frame."
)
_frames_option = click.option(
    "--frames", type=click.IntRange(1, MAX_FRAMES), default=4, show_default=True, help="Maximum unanswered frames."
)
_window_option = click.option(
    "--window",
    type=click.IntRange(1, MAX_WINDOW),
    default=256,
    show_default=True,
    help="Maximum unanswered pipelined sends.",
)


@click.group()
def bench() -> None:
    """Measure an existing cluster. A benchmark leaves the messages that it sends in their topic; delete this topic
    afterwards.

    Ctrl-C ends a run early; the results up to this moment are printed.

    \b
    Example
      metaq bench produce --topic scratch --mode pipelined --seconds 5
      metaq bench consume --topic scratch
      metaq bench latency --topic scratch --rate 1000
    """


@bench.command()
@_run_options
@_size_option
@click.option(
    "--mode",
    type=click.Choice(["single", "pipelined", "batch"]),
    default="single",
    show_default=True,
    help="Wait for each send; keep --window sends under way; keep --frames frames of --batch messages under way.",
)
@click.option("--threads", type=click.IntRange(1, MAX_THREADS), default=1, show_default=True, help="Sending threads.")
@_window_option
@_batch_option
@_frames_option
@click.option(
    "--keys",
    type=click.IntRange(1, MAX_KEYS),
    help="Choose partitions by this many keys in turn; default: no keys, each partition in turn.",
)
@click.option("--linger-ms", type=click.IntRange(0), default=0, show_default=True, help="Pipelined: batching delay.")
def produce(
    zk: str,
    topic: str,
    limit: Limit,
    as_json: bool,
    size: int,
    mode: str,
    threads: int,
    window: int,
    batch: int,
    frames: int,
    keys: int | None,
    linger_ms: int,
) -> int:
    """Send messages to all partitions of --topic. Each measured time is the time from a send call to the
    acknowledgement of its message, or, with --mode batch, to the acknowledgement of its whole batch of messages.

    The broker's settings decide whether a message is on the disk before it is acknowledged: set them by metaq up
    --flush, or by unflushThreshold in server.ini.

    \b
    Example
      metaq bench produce --topic scratch --mode batch --size 128 --count 1000000
      metaq bench produce --topic scratch --threads 64 --keys 1000 --json
    """
    payload = bytes(size)
    with stop_signal() as stop, _producer(zk, topic, linger_ms) as producer:
        run = Run(limit, stop)
        places: list[Destination] = [{"key": f"key-{number}"} for number in range(keys or 0)]
        jobs: dict[str, Callable[[], Job]] = {
            "single": lambda: send_single(producer, topic, payload, run, places),
            "pipelined": lambda: send_pipelined(producer, topic, payload, window, run, places),
            "batch": lambda: send_batches(producer, topic, payload, batch, frames, run, places),
        }
        messages, seconds, times = measure(f"produce {mode}", run, [jobs[mode]() for _ in range(threads)])
        _print(topic, [RunFigures(mode, messages, messages * size, seconds, times.percentiles_ms())], as_json)
        return EXIT_INTERRUPTED if stop.is_set() else 0


@bench.command()
@_run_options
@click.option("--group", "-g", type=GROUP, help="Read as a member of this group, which then exists.")
@click.option("--arrow", is_flag=True, help="As Arrow record batches, as a member of --group; needs metaq[spark].")
def consume(zk: str, topic: str, limit: Limit, as_json: bool, group: str | None, arrow: bool) -> int:
    """Read the messages of --topic. The rate is measured from the arrival of the first message to the arrival of the
    last.

    If --group is not given, the command reads the partitions one by one from their beginning, and writes nothing to
    ZooKeeper. With --group it reads all partitions at the same time, from the group's offsets on, and commits new
    offsets.

    \b
    Example
      metaq bench consume --topic scratch --count 1000000
      metaq bench consume --topic scratch --group bench-1
      metaq bench consume --topic scratch --group bench-2 --arrow
    """
    if arrow and group is None:
        raise click.UsageError("--arrow needs --group GROUP: record batches are what a member of a group polls")
    if arrow and find_spec("pyarrow") is None:
        raise ClientError("--arrow needs pyarrow: pip install 'metaq[spark]'")
    title = "consume arrow" if arrow else "consume"
    with stop_signal() as stop:
        run = Run(limit, stop)
        backlog = Backlog(_one_by_one(zk, topic) if group is None else _as_member(zk, topic, group, arrow), run)
        all_messages, _, times = measure(title, run, [backlog.read])
        if not all_messages:
            raise ClientError(f"nothing to read in topic {topic!r}: fill it with metaq bench produce --topic {topic}")
        messages, seconds = backlog.measured(all_messages)
        _print(topic, [RunFigures(title, messages, backlog.payload_bytes, seconds, times.percentiles_ms())], as_json)
        return EXIT_INTERRUPTED if stop.is_set() else 0


@bench.command()
@_run_options
@click.option(
    "--size",
    type=click.IntRange(STAMP_BYTES, MAX_BODY_BYTES),
    default=1024,
    show_default=True,
    metavar="BYTES",
    help="Size of each payload.",
)
@click.option("--rate", type=click.IntRange(1, 1_000_000), default=1000, show_default=True, help="Messages per second.")
@click.option("--partition", "-p", "place", type=PARTITION, help="Partition to use; default: the first.")
def latency(zk: str, topic: str, limit: Limit, as_json: bool, size: int, rate: int, place: PartitionName | None) -> int:
    """Send --rate messages per second to one partition, and read the partition from its end on. Each latency is the
    time from the send of a message to the poll that returns it.

    \b
    Example
      metaq bench latency --topic scratch --rate 5000 --seconds 30 --json
    """
    with stop_signal() as stop, _producer(zk, topic) as producer:
        with open_cluster(zk) as cluster:
            (partition, *_) = cluster.choose_partitions(topic, [TopicPartition(topic, *place)] if place else [])
            endpoint = cluster.endpoint(partition.broker)
            end = cluster.ask(partition, partial(partition_bounds, partition=partition)).end
        with PartitionReader(f"{endpoint.host}:{endpoint.port}", partition, end) as reader:
            run = Run(limit, stop)
            stamps = Stamps(run, rate)
            send: Callable[..., None] = lambda _: stamps.send(producer, partition, size)  # noqa: E731
            messages, seconds, times = measure("latency", run, [send, partial(stamps.receive, reader)])
        _print(topic, [RunFigures("latency", messages, messages * size, seconds, times.percentiles_ms())], as_json)
        return EXIT_INTERRUPTED if stop.is_set() else 0


@bench.command()
@_run_options
@_size_option
@_window_option
@_batch_option
@_frames_option
@click.option(
    "--mode",
    type=click.Choice(["pipelined", "batch"]),
    default="pipelined",
    show_default=True,
    help="Keep --window single sends under way, or --frames frames of --batch messages.",
)
def partitions(
    zk: str, topic: str, limit: Limit, as_json: bool, size: int, window: int, batch: int, frames: int, mode: str
) -> int:
    """Send messages in several runs: first to 1 partition of --topic, then to 10, 100, … and to all partitions. --count
    and --seconds limit each run.

    \b
    Example
      metaq bench partitions --topic scratch --size 128 --window 4096
      metaq bench partitions --topic scratch --mode batch --seconds 3
    """
    payload = bytes(size)
    outcomes = []
    with stop_signal() as stop, _producer(zk, topic) as producer:
        there = producer.partitions(topic)
        for number in steps(len(there)):
            run = Run(limit, stop)
            title = f"{number:,} partition{'s' * (number > 1)}"
            places: list[Destination] = [{"partition": partition} for partition in there[:number]]
            if mode == "batch":
                job = send_batches(producer, topic, payload, batch, frames, run, places)
            else:
                job = send_pipelined(producer, topic, payload, window, run, places)
            messages, seconds, times = measure(title, run, [job])
            outcomes.append(RunFigures(title, messages, messages * size, seconds, times.percentiles_ms()))
            if stop.is_set():
                break
        _print(topic, outcomes, as_json)
        return EXIT_INTERRUPTED if stop.is_set() else 0


def steps(partitions: int) -> list[int]:
    """Return the powers of ten that are less than `partitions` (1, 10, 100, …), and then `partitions` itself."""
    powers = [10**power for power in range(len(str(partitions)))]
    return [*(power for power in powers if power < partitions), partitions]


@contextmanager
def _producer(zk: str, topic: str, linger_ms: int = 0) -> Iterator[Producer]:
    """Yield a producer that is connected to the cluster. Raises NoPartition if no broker publishes the topic."""
    config = ProducerConfig(linger_ms=linger_ms, start_timeout_seconds=zk_timeout())
    _check_topic(zk, topic)
    with Producer(zk, config=config) as producer:
        yield producer


def _check_topic(zk: str, topic: str) -> None:
    with open_cluster(zk) as cluster:
        cluster.partitions(topic)


def _one_by_one(zk: str, topic: str) -> Generator[tuple[Reader, int | None], None, None]:
    with open_cluster(zk) as cluster:
        for partition in cluster.partitions(topic):
            bounds = cluster.ask(partition, partial(partition_bounds, partition=partition))
            if bounds.end > bounds.first:
                endpoint = cluster.endpoint(partition.broker)
                with PartitionReader(f"{endpoint.host}:{endpoint.port}", partition, bounds.first) as reader:
                    yield MessageReader(reader), bounds.end


def _as_member(zk: str, topic: str, group: str, arrow: bool) -> Generator[tuple[Reader, int | None], None, None]:
    _check_topic(zk, topic)
    config = ConsumerConfig(start_timeout_seconds=zk_timeout())
    with Consumer(zk, group=group, topics=[topic], config=config) as consumer:
        yield (ArrowReader(consumer) if arrow else MessageReader(consumer)), None


def _print(topic: str, outcomes: list[RunFigures], as_json: bool) -> None:
    # the table shows only TABLE_TIMES, so that it fits into 80 columns; --json shows all
    timed = [name for name in TABLE_TIMES if any(name in outcome.latency_ms for outcome in outcomes)]
    rows = [
        (
            outcome.scenario,
            outcome.messages,
            round(outcome.messages_per_second),
            *(round(outcome.latency_ms[name], 3) if outcome.latency_ms else None for name in timed),
        )
        for outcome in outcomes
    ]
    columns = ("SCENARIO", "MESSAGES", "MESSAGES/S", *(f"{name.upper()} MS" for name in timed))
    show(as_json, {"topic": topic, "runs": list(map(_fields, outcomes))}, columns, rows)


def _fields(outcome: RunFigures) -> dict[str, object]:
    return {
        "scenario": outcome.scenario,
        "messages": outcome.messages,
        "payload_bytes": outcome.message_bytes,
        "seconds": round(outcome.seconds, 4),
        "messages_per_second": round(outcome.messages_per_second, 1),
        "bytes_per_second": round(outcome.bytes_per_second),
        "latency_ms": {name: round(value, 4) for name, value in outcome.latency_ms.items()},
    }
