"""Measure delayed messages of metaq's broker alone: `python -m bench.delays`. Prints one JSON document. For the
comparison with RocketMQ use `python -m bench --scenario delayed-pipelined` and similar scenarios.

`rate` is the messages a second of single sends with a delay of an hour, at most WINDOW of them unanswered. `batch` is
the same for batches of BATCH messages. `memory` is the memory of a broker with many waiting messages, spread over a
year, before and after a restart. All of them use asynchronous flush.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from metaq import Producer
from metaq.client.questions.delayed import list_delayed
from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import Connection, Endpoint, open_connection
from metaq.protocol.frames import encode_frame
from metaq.protocol.record import HEADER, checksum
from metaq.protocol.refusals import is_success
from metaq.protocol.sends import SendBatchRequest
from metaq.protocol.statuses import RequestCode

from .processes import Server, free_port

TOPIC = "delayed"
WINDOW = 256
BATCH = 500
SIZE = 128
HOUR_SECONDS = 3600.0
YEAR_MS = 365 * 24 * 3600 * 1000
_WAIT_SECONDS = 60.0


@contextmanager
def our_broker(directory: Path) -> Iterator[tuple[str, Server]]:
    """Start metaq's broker; yield its address and the process."""
    port = free_port()
    ini = directory / "server.ini"
    system = {
        "brokerId": 0,
        "hostName": "127.0.0.1",
        "serverPort": port,
        "numPartitions": 1,
        "dataPath": directory / "data",
        "unflushThreshold": 1000,
        "unflushInterval": 10_000,
        "maxSegmentSize": 1 << 30,
        "maxTransferSize": 1 << 20,
    }
    lines = "".join(f"{key}={value}\n" for key, value in system.items())
    ini.write_text(f"[system]\n{lines}[zookeeper]\nzk.zkEnable=false\n[topic={TOPIC}]\nnumPartitions=1\n")
    command = [sys.executable, "-m", "metaq.broker", str(ini)]
    with Server(command, directory / "broker.log", "serving", directory) as server:
        yield f"127.0.0.1:{port}", server


def producer_of(address: str) -> Producer:
    return Producer.direct(address, broker_id=0, partitions={TOPIC: 1})


def our_rate(address: str, count: int) -> dict[str, Any]:
    """Measure single asynchronous sends."""
    payload = bytes(SIZE)
    failed: list[BaseException] = []
    free = threading.Semaphore(WINDOW)

    def report(error: Exception | None, _result: object) -> None:
        if error is not None:
            failed.append(error)
        free.release()

    with producer_of(address) as producer:
        for part in (count // 10, count):  # the first part is not measured
            begun = time.perf_counter()
            for _ in range(part):
                free.acquire()
                producer.produce(TOPIC, payload, delay=HOUR_SECONDS, on_delivery=report)
            producer.flush()
            seconds = time.perf_counter() - begun
    assert not failed, failed[0]
    return {"rate": count / seconds}


def our_batches(address: str, count: int) -> dict[str, Any]:
    """Measure sends of batches, with a few unanswered batches at a time."""
    payloads = [bytes(SIZE)] * BATCH
    with producer_of(address) as producer:
        begun = time.perf_counter()
        futures = []
        for _ in range(count // BATCH):
            futures.append(producer.send_batch_async(TOPIC, payloads, delay=HOUR_SECONDS))
            if len(futures) >= 8:
                futures.pop(0).result()
        for future in futures:
            future.result()
        return {"rate": count // BATCH * BATCH / (time.perf_counter() - begun)}


# --- memory -----------------------------------------------------------------------------------------------------------


def our_memory(directory: Path, count: int) -> dict[str, Any]:
    """Measure the resident memory of a broker, in MB of 10^6 bytes."""
    answer: dict[str, Any] = {"count": count}
    with our_broker(directory) as (address, server):
        answer["rest_mb"] = _resident_mb(server.pid)
        begun = time.perf_counter()
        _fill(address, count)
        answer["rate"] = count / (time.perf_counter() - begun)
        answer["waiting_mb"], answer["peak_mb"] = _resident_mb(server.pid), _resident_mb(server.pid, "VmHWM")
    begun = time.perf_counter()
    with our_broker(directory) as (address, server):
        answer["start_seconds"] = time.perf_counter() - begun
        answer["after_start_mb"], answer["start_peak_mb"] = _resident_mb(server.pid), _resident_mb(server.pid, "VmHWM")
        host, _, port = address.rpartition(":")
        connection = open_connection(Endpoint(host, int(port)), ConnectionConfig())
        answer["found"] = list_delayed(connection, "", 0).total
        connection.close()
    return answer


def _resident_mb(pid: int, field: str = "VmRSS") -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(field))
    return round(int(line.split()[1]) * 1024 / 1e6, 1)


def _fill(address: str, count: int) -> None:
    """Send messages, each due at a random time within the year. The frames are built here without a producer, because
    this costs least.
    """
    host, _, port = address.rpartition(":")
    connection = open_connection(Endpoint(host, int(port)), ConnectionConfig())
    rng, payload = random.Random(1), bytes(SIZE)
    first = int((time.time() + 2 * HOUR_SECONDS) * 1000)
    for _ in range(count // 1000):
        records = []
        for _ in range(1000):
            attribute = b"metaq.due\x01%d\x02" % (first + rng.randrange(YEAR_MS))
            body = len(attribute).to_bytes(4, "big") + attribute + payload
            records.append(HEADER.pack(len(body), checksum(body), 0, 7) + body)
        _send(connection, records)
    connection.close()


def _send(connection: Connection, records: list[bytes]) -> None:
    body = np.array(list(map(len, records)), ">u4").tobytes() + b"".join(records)
    ext = SendBatchRequest(TOPIC, 0, len(records)).to_ext()

    def build(opaque: int) -> tuple[bytes, bytes]:
        return encode_frame(RequestCode.SEND_BATCH, opaque, ext, len(body)), body

    reply: Any = connection.call(build, _WAIT_SECONDS)
    assert is_success(reply), reply.remark


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--count", type=click.IntRange(1000), default=50_000, show_default=True, help="Messages of a `rate`.")
@click.option("--pending", type=click.IntRange(0), default=5_000_000, show_default=True, help="Of `memory`; 0: not.")
def main(rounds: int, count: int, pending: int) -> None:
    """Measure delayed messages; print the medians of the rounds, and the rounds."""
    runs: dict[str, list[dict[str, Any]]] = {}

    def note(name: str, measure: Callable[[], dict[str, Any]]) -> None:
        answer = measure()
        print(f"{name}: {answer}", file=sys.stderr, flush=True)
        runs.setdefault(name, []).append(answer)

    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as place, ExitStack() as stack:
        homes = {name: Path(place) / name for name in ("rates", "memory")}
        for home in homes.values():
            home.mkdir()
        address, _ = stack.enter_context(our_broker(homes["rates"]))
        for _ in range(rounds):
            note("rate", lambda: our_rate(address, count))
            note("batch", lambda: our_batches(address, count))
        stack.close()
        if pending:
            note("memory", lambda: our_memory(homes["memory"], pending))
    medians = {
        name: {key: median(run[key] for run in found) for key in found[0] if not isinstance(found[0][key], bool)}
        for name, found in runs.items()
    }
    print(json.dumps({"medians": medians, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
