"""A broker on a file system that really is full: refused puts, reading that goes on, puts again when there is room."""

import errno
import os
import time
from pathlib import Path

import pytest

from metaq import Producer
from metaq.client.browsing.browser import PartitionReader
from metaq.client.records.results import TopicPartition
from metaq.protocol.errors import RequestTimedOut
from tests.broker_process import RunningBroker, server_ini
from tests.waiting import DEADLINE

DISK_MB = 48
WHERE = TopicPartition("t", 0, 0)


def fill(disk: Path, megabytes: int) -> Path:
    path = disk / "others"
    path.write_bytes(b"x" * (megabytes << 20))
    return path


def send_until_refused(producer: Producer, body: bytes, cause: str) -> str:
    """Put until one is refused for this cause to its deadline; the error's text."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        try:
            producer.send("t", body, timeout=1.0)
        except RequestTimedOut as error:
            if cause in str(error):
                return str(error)
    raise AssertionError("no put was refused")


@pytest.mark.parametrize(("flush", "reserve"), [(0, "20m"), (1000, "0")])
def test_a_full_disk_refuses_puts_until_it_has_room_again(tmp_path, disk, flush, reserve):
    ini = server_ini(disk / "data", {"t": ""}, unflush_threshold=flush)
    command = ("-m", "metaq", "broker", "--disk-reserve", reserve, "-f")
    with RunningBroker(tmp_path, ini, module=command) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Producer.direct(address, broker_id=0, partitions={"t": 1}) as producer:
            producer.send("t", b"first")
            others = fill(disk, DISK_MB - 18)
            cause = "20 MiB are the reserve" if reserve == "20m" else os.strerror(errno.ENOSPC)
            size = 1000 if reserve == "20m" else 900_000
            assert f"meta://{address} takes no puts" in send_until_refused(producer, b"x" * size, cause)
            with PartitionReader(address, WHERE) as reader:
                assert reader.poll(timeout=DEADLINE)[0].payload == b"first"
            others.unlink()
            producer.send("t", b"last", timeout=DEADLINE)  # tried again until the broker has seen the room
        with PartitionReader(address, WHERE) as reader:
            last, deadline = b"", time.monotonic() + DEADLINE
            while last != b"last":
                assert time.monotonic() < deadline
                for message in reader.poll(timeout=1.0):
                    last = message.payload
        assert broker.stop() == 0
