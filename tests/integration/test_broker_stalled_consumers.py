"""A thousand consumers that ask and never read: the broker's memory stays bounded, and others are served."""

import resource
import time
from contextlib import ExitStack

import pytest

from metaq.protocol.frames import encode_frame
from metaq.protocol.pulls import PullRequest
from metaq.protocol.record import encode_record
from metaq.protocol.sends import SendBatchRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.text import encode_get
from tests.broker_process import Connection, RunningBroker, server_ini

CONSUMERS = 1000
MEGABYTE = 1 << 20
BATCH = 1000
BODY = bytes(1004)


def pull(offset: int, wait_ms: int = 0) -> bytes:
    return encode_frame(RequestCode.PULL, 1, PullRequest("t", 0, offset, MEGABYTE, wait_ms=wait_ms).to_ext())


def fill(connection: Connection) -> None:
    """4 MB of records of 1,024 bytes."""
    record = encode_record(BODY, 0, 0)
    payload = len(record).to_bytes(4, "big") * BATCH + record * BATCH
    frame = encode_frame(RequestCode.SEND_BATCH, 1, SendBatchRequest("t", 0, BATCH).to_ext(), len(payload))
    for _ in range(4):
        assert connection.ask_frame(frame + payload).code == ResponseCode.SUCCESS


@pytest.fixture
def descriptors():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[1], 4 * CONSUMERS), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def peak_of(broker: RunningBroker, other: Connection, seconds: float) -> int:
    """Largest resident memory while `other` is served all the time."""
    peak, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert len(other.ask_frame(pull(0)).body) >= 60 * 1024
        peak = max(peak, broker.rss_bytes())
    return peak


def much(number: int, _end: int) -> bytes:
    return (pull(0) if number % 2 else encode_get("t", "g", 0, 0, MEGABYTE, 1)) * 20


def what_is_to_come(_number: int, end: int) -> bytes:
    return pull(end, 60_000) * 100


@pytest.mark.parametrize("asked", [much, what_is_to_come])
def test_a_thousand_stalled_consumers_cost_bounded_memory(tmp_path, descriptors, asked):
    with (
        RunningBroker(tmp_path, server_ini(tmp_path / "data", {"t": ""}, unflush_threshold=1000)) as broker,
        broker.connect() as other,
        ExitStack() as stalled,
    ):
        fill(other)
        end = int(other.ask_frame(pull(0)).ext["maxOffset"])
        for number in range(CONSUMERS):
            consumer = stalled.enter_context(broker.connect(receive_buffer=4096))
            consumer.send(asked(number, end))
        assert peak_of(broker, other, 2.0) < 200 * MEGABYTE
        assert "Traceback" not in broker.errors.read_text()
