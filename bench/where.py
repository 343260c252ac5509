"""Measure what a filter by content costs the broker for each message, and how much traffic it saves: `python -m
bench.where`.

The first measurement runs in one process. It filters messages with five properties, as many together as a pull filters
at once, and includes checking the checksums of the rejected messages; for comparison it also decodes and filters each
message alone. The second measurement uses a broker with one partition. It pulls the whole partition with each filter,
and divides the processor time of the broker's process by the number of filtered messages.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click
import numpy as np

from metaq.broker import tuning
from metaq.broker.reading.selecting import wanted_of
from metaq.client.questions.partition_bounds import max_offset
from metaq.client.questions.stored_records import BegunPull
from metaq.client.records.results import TopicPartition
from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import Connection, Endpoint, open_connection
from metaq.protocol.frames import encode_frame
from metaq.protocol.record import ATTRIBUTE_FLAG, HEADER, HEADER_BYTES, PROPERTIES_FLAG, encode_body, encode_record
from metaq.protocol.sends import SendBatchRequest
from metaq.protocol.statuses import RequestCode
from metaq.protocol.where import Where

from .processes import Server, cpu_seconds, free_port

ROUNDS = 15
HERE = TopicPartition("bench", 0, 0)
FLAG = ATTRIBUTE_FLAG | PROPERTIES_FLAG

FILTERS = {
    "99 %, text and number": "region = 'EU' AND amount >= 96",
    "99 %, number": "amount = 7",
    "99 %, text": "customer = 'c-17'",
    "99 %, IN": "amount IN (3)",
    "99 %, BETWEEN": "amount BETWEEN 10 AND 10",
    "99 %, LIKE": "customer LIKE 'c-17%' AND amount < 10",
    "99 %, no such property": "colour = 'red'",
    "50 %, number": "amount >= 50",
    "50 %, text": "region IN ('EU', 'US')",
}


def records(size: int, count: int) -> Iterator[bytes]:
    """Yield records with five properties and payloads of about `size` bytes."""
    chance = random.Random(1)
    for number in range(count):
        properties = {
            "KEYS": f"order-{number}",
            "region": chance.choice(["EU", "US", "APAC", "LATAM"]),
            "amount": str(chance.randrange(100)),
            "customer": f"c-{chance.randrange(100)}",
            "express": "\x03b" + str(chance.randrange(2)),
        }
        attribute = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
        payload = chance.randbytes(8) * (size // 8) + bytes(chance.randrange(8))
        yield encode_record(encode_body(payload, FLAG, attribute), 0, FLAG)


def _seconds(work: Callable[[], object]) -> float:
    """Return the least processor time of ROUNDS calls of `work`, in seconds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        work()
        best = min(best, time.process_time_ns() - began)
    return best / 1e9


def in_one_process(size: int) -> None:
    stored = list(records(size, min(tuning.WHERE_SLICE_RECORDS, tuning.WHERE_STEP_BYTES // (size + 100))))
    data = b"".join(stored)
    sizes = np.array(list(map(len, stored)), np.int64)
    starts = np.cumsum(sizes) - sizes

    def each(where: Where) -> int:
        held = 0
        for start, stop in zip(starts.tolist(), (starts + sizes).tolist(), strict=True):
            held += where.holds_for(data[start + HEADER_BYTES : stop], HEADER.unpack_from(data, start)[3])
        return held

    print(f"\n{len(stored):,} messages of {size:,} B, µs each{'':5}{'rejects':>9}{'together':>10}{'one by one':>12}")
    for name, text in FILTERS.items():
        where = Where(text)
        found = wanted_of(where, data, starts, sizes)
        assert int(found.sum()) == each(where)
        together = _seconds(partial(wanted_of, where, data, starts, sizes)) / len(stored)
        alone = _seconds(partial(each, where)) / len(stored)
        print(f"  {name:36}{1 - found.mean():9.1%}{together * 1e6:10.2f}{alone * 1e6:12.2f}")


# --- a broker ---------------------------------------------------------------------------------------------------------

INI = """[system]
brokerId=0
hostName=127.0.0.1
numPartitions=1
serverPort={port}
dataPath={data}
unflushThreshold=10000
unflushInterval=1000
maxSegmentSize=1073741824
maxTransferSize=1048576
[zookeeper]
zk.zkEnable=false
[topic=bench]
"""


def with_a_broker(directory: Path, size: int, megabytes: int) -> None:
    port = free_port()
    config = directory / "server.ini"
    config.write_text(INI.format(port=port, data=directory / f"data-{size}"))
    command = [sys.executable, "-m", "metaq", "broker", "-f", str(config)]
    with Server(command, directory / "broker.log", "serving") as server:
        connection = open_connection(Endpoint("127.0.0.1", port), ConnectionConfig())
        count = (megabytes << 20) // (size + 100)
        _fill(connection, size, count)
        end = max_offset(connection, HERE)
        title = f"{count:,} messages of {size:,} B, {end / 1e6:,.0f} MB"
        print(f"\n{title:38}{'broker µs each':>16}{'µs each':>9}{'bytes moved':>13}")
        for name, text in {"no filter": "", **FILTERS}.items():
            best = None
            for _ in range(3):
                used, began = cpu_seconds(server.pid), time.perf_counter()
                moved = _pull_all(connection, end, Where(text) if text else None)
                found = cpu_seconds(server.pid) - used, time.perf_counter() - began, moved
                best = found if best is None else min(best, found)
            assert best is not None
            print(
                f"  {name:36}{best[0] / count * 1e6:16.2f}{best[1] / count * 1e6:9.2f}{best[2] / end:13.2%}", flush=True
            )
        connection.close()


def _fill(connection: Connection, size: int, count: int) -> None:
    some: list[bytes] = []
    for number, record in enumerate(records(size, count), 1):
        some.append(record)
        if len(some) == 500 or number == count:
            connection.call(partial(_batch, some))
            some = []


def _batch(some: list[bytes], opaque: int) -> tuple[bytes, bytes]:
    payload = np.array(list(map(len, some)), ">u4").tobytes() + b"".join(some)
    ext = SendBatchRequest(HERE.topic, HERE.partition, len(some)).to_ext()
    return encode_frame(RequestCode.SEND_BATCH, opaque, ext, len(payload)), payload


def _pull_all(connection: Connection, end: int, where: Where | None) -> int:
    """Pull the whole partition, and return the number of bytes of the received records."""
    position = moved = 0
    while position < end:
        pulled = BegunPull(connection, HERE, position, 2 << 20, where=where).result()
        assert pulled.next_offset is not None
        moved += sum(len(each) for _, each in pulled.runs)
        position = pulled.next_offset
    return moved


@click.command()
@click.option("--megabytes", default=200, show_default=True, help="What the broker's partition has.")
@click.option("--no-broker", is_flag=True, help="In one process only.")
def main(megabytes: int, no_broker: bool) -> None:
    """Run the measurements of this module's docstring, and print tables."""
    for size in (1024, 128):
        in_one_process(size)
    if not no_broker:
        with tempfile.TemporaryDirectory(prefix="metaq-where-") as directory:
            for size in (1024, 128):
                with_a_broker(Path(directory), size, megabytes)


if __name__ == "__main__":
    main()
