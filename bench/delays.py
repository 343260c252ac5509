"""`python -m bench.delays`: delayed messages of ours beside RocketMQ 5.1.4, taking turns; one JSON document.

`rate`: single sends with an hour's delay, as many under way as WINDOW, messages a second. `late`: PER_SECOND blocking
sends due in 1 to 4 s, and how late a consumer gets each, by the clock of this machine. `batch`: ours alone, batches of
BATCH. `memory`: a broker with so many messages that wait, spread over a year, before and after a restart. All with
asynchronous flush.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from metaq import Producer, TopicPartition
from metaq.client.config import ConnectionConfig
from metaq.client.connection import Connection, Endpoint, open_connection
from metaq.client.questions.delayed import list_delayed
from metaq.client.questions.partitions import max_offset
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.pulls import PullReply, PullRequest
from metaq.protocol.record import HEADER, attribute_of, checksum, iter_headers
from metaq.protocol.refusals import is_success
from metaq.protocol.sends import SendBatchRequest
from metaq.protocol.statuses import RequestCode

from .peers import rocketmq_java, start_rocketmq
from .processes import Server, free_port

TOPIC, LATE_TOPIC = "delayed", "late"
WINDOW = 256
PER_SECOND = 500
BATCH = 500
SIZE = 128
HOUR_SECONDS = 3600.0
YEAR_MS = 365 * 24 * 3600 * 1000
SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 4.0
_WAIT_SECONDS = 60.0


@contextmanager
def our_broker(directory: Path) -> Iterator[tuple[str, Server]]:
    """Its address, and the process."""
    port = free_port()
    ini = directory / "server.ini"
    topics = "".join(f"[topic={name}]\nnumPartitions=1\n" for name in (TOPIC, LATE_TOPIC))
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
    ini.write_text(f"[system]\n{lines}[zookeeper]\nzk.zkEnable=false\n{topics}")
    command = [sys.executable, "-m", "metaq.broker", str(ini)]
    with Server(command, directory / "broker.log", "serving", directory) as server:
        yield f"127.0.0.1:{port}", server


def producer_of(address: str) -> Producer:
    return Producer.direct(address, broker_id=0, partitions={TOPIC: 1, LATE_TOPIC: 1})


def our_rate(address: str, count: int) -> dict[str, Any]:
    """Single asynchronous sends."""
    payload = bytes(SIZE)
    failed: list[BaseException] = []
    free = threading.Semaphore(WINDOW)

    def report(error: Exception | None, _result: object) -> None:
        if error is not None:
            failed.append(error)
        free.release()

    with producer_of(address) as producer:
        for part in (count // 10, count):  # the first is not measured
            begun = time.perf_counter()
            for _ in range(part):
                free.acquire()
                producer.produce(TOPIC, payload, delay=HOUR_SECONDS, on_delivery=report)
            producer.flush()
            seconds = time.perf_counter() - begun
    assert not failed, failed[0]
    return {"rate": count / seconds}


def our_batches(address: str, count: int) -> dict[str, Any]:
    """Batches, a few under way."""
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


def our_lateness(address: str, count: int) -> dict[str, Any]:
    """As DelayedPeer."""
    lateness: list[float] = []
    done = threading.Event()
    host, _, port = address.rpartition(":")
    reader = threading.Thread(target=_read, args=(Endpoint(host, int(port)), count, lateness, done), daemon=True)
    reader.start()
    rng = random.Random(1)
    with producer_of(address) as producer:
        begun = time.perf_counter()
        for number in range(count):
            if (wait := begun + number / PER_SECOND - time.perf_counter()) > 0:
                time.sleep(wait)
            due = datetime.now(UTC) + timedelta(seconds=rng.uniform(SHORTEST_SECONDS, LONGEST_SECONDS))
            body = int(due.timestamp() * 1e6).to_bytes(8, "big") + bytes(SIZE - 8)
            producer.send(LATE_TOPIC, body, deliver_at=due, partition=TopicPartition(LATE_TOPIC, 0, 0))
        complete = done.wait(_WAIT_SECONDS)
    found = np.sort(np.array(lateness)) * 1000
    return {
        "came": len(found),
        "complete": complete,
        "early": int((found < 0).sum()),
        "p50_ms": round(float(np.quantile(found, 0.5)), 2),
        "p99_ms": round(float(np.quantile(found, 0.99)), 2),
        "most_ms": round(float(found[-1]), 2),
    }


def _read(endpoint: Endpoint, count: int, lateness: list[float], done: threading.Event) -> None:
    """Pull what comes, by long polls."""
    connection = open_connection(endpoint, ConnectionConfig())
    offset = max_offset(connection, TopicPartition(LATE_TOPIC, 0, 0))
    while len(lateness) < count:
        request = PullRequest(LATE_TOPIC, 0, offset, 1 << 20, wait_ms=1000)
        ext = request.to_ext()
        reply = connection.call(lambda opaque, ext=ext: (encode_frame(RequestCode.PULL, opaque, ext),), 10.0)  # type: ignore[misc]
        now = time.time()
        assert isinstance(reply, Frame)
        data = bytes(reply.body)
        for header in iter_headers(data):
            body = data[header.start + 20 : header.end]
            attribute = attribute_of(body, header.flag) or b""
            payload = body[4 + len(attribute) :]
            lateness.append(now - int.from_bytes(payload[:8], "big") / 1e6)
        offset = PullReply.from_ext(reply.ext).next_offset
    connection.close()
    done.set()


# --- memory -----------------------------------------------------------------------------------------------------------


def our_memory(directory: Path, count: int) -> dict[str, Any]:
    """Resident memory of a broker, MB of 10^6 bytes."""
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
    """Each message has a time of its own, anywhere in the year: frames are made here, for that costs least."""
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


# --- RocketMQ ---------------------------------------------------------------------------------------------------------


def rocketmq(address: str, directory: Path, mode: str, topic: str, count: int, last: int) -> dict[str, Any]:
    """What DelayedPeer says."""
    arguments = (address, mode, topic, str(count), str(SIZE), str(last))
    command = rocketmq_java("metaq.bench.rocketmq.DelayedPeer", *arguments, home=directory)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--count", type=click.IntRange(1000), default=50_000, show_default=True, help="Messages of a `rate`.")
@click.option("--late", type=click.IntRange(10), default=5000, show_default=True, help="Messages of a `late`.")
@click.option("--pending", type=click.IntRange(0), default=5_000_000, show_default=True, help="Of `memory`; 0: not.")
@click.option("--ours-only", is_flag=True, help="Without RocketMQ.")
def main(rounds: int, count: int, late: int, pending: int, ours_only: bool) -> None:
    """Measure delayed messages; the medians of the rounds, and the rounds."""
    runs: dict[str, list[dict[str, Any]]] = {}

    def note(name: str, measure: Callable[[], dict[str, Any]]) -> None:
        answer = measure()
        print(f"{name}: {answer}", file=sys.stderr, flush=True)
        runs.setdefault(name, []).append(answer)

    with tempfile.TemporaryDirectory(prefix="metaq-bench-") as place, ExitStack() as stack:
        homes = {name: Path(place) / name for name in ("ours", "rocketmq", "memory")}
        for home in homes.values():
            home.mkdir()
        address, _ = stack.enter_context(our_broker(homes["ours"]))
        peer = ""
        if not ours_only:
            topics = dict.fromkeys((TOPIC, *(f"{LATE_TOPIC}-{number}" for number in range(rounds))), 1)
            peer, _ = start_rocketmq(homes["rocketmq"], topics, False, stack)
        for number in range(rounds):
            home = homes["rocketmq"]
            note("ours rate", lambda: our_rate(address, count))
            if peer:
                note("rocketmq rate", partial(rocketmq, peer, home, "rate", TOPIC, count, WINDOW))
            note("ours batch", lambda: our_batches(address, count))
            note("ours late", lambda: our_lateness(address, late))
            if peer:
                topic = f"{LATE_TOPIC}-{number}"
                note("rocketmq late", partial(rocketmq, peer, home, "late", topic, late, PER_SECOND))
        stack.close()
        if pending:
            note("ours memory", lambda: our_memory(homes["memory"], pending))
    medians = {
        name: {key: median(run[key] for run in found) for key in found[0] if not isinstance(found[0][key], bool)}
        for name, found in runs.items()
    }
    print(json.dumps({"medians": medians, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
