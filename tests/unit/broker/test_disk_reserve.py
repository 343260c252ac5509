"""A broker whose disk has less room than its reserve: puts are refused in both protocols, everything else goes on."""

import pytest

from metaq.protocol.errors import DiskFull
from metaq.protocol.frames import encode_frame
from metaq.protocol.remoting import StatsRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.text import encode_get
from tests.doubles.store import FaultyFiles
from tests.unit.broker.harness import Harness, batch, pull, put


@pytest.fixture
def harness(tmp_path):
    harness = Harness(tmp_path, files=FaultyFiles())
    yield harness
    harness.threads.run()
    harness.close()


def look(harness, free):
    harness.store.files.free = free
    harness.store.space.look()
    harness.threads.run()


@pytest.fixture
def full(harness):
    """A peer of a broker that has one message and no more room."""
    peer = harness.connect()
    peer.ask(put("t", 0))
    look(harness, 10 << 20)
    return peer


def test_puts_are_refused_with_path_free_bytes_and_reserve(full, harness):
    answer = full.ask(put("t", 0))
    assert answer.code == 500
    for part in (str(harness.store.data_paths[0]), "10 MiB are free", "1024 MiB are the reserve"):
        assert part in answer.text
    frame = full.ask_frame(batch("t", 0, [b"a"]))
    assert (frame.code, DiskFull.retriable) == (ResponseCode.DISK_FULL, True)
    assert "10 MiB are free" in frame.remark


def test_a_partition_that_is_not_there_yet_is_not_made(full, harness):
    assert full.ask(put("t", 2)).code == 500
    assert harness.store.find("t", 2) is None


def test_consuming_goes_on_and_puts_do_when_space_returns(full, harness):
    answer = full.ask(encode_get("t", "g", 0, 0, 1000, 1))
    assert bytes(answer.data[20:]) == b"hello"
    assert full.ask_frame(pull("t", 0, 0)).code == ResponseCode.SUCCESS
    look(harness, 2 << 30)
    assert full.ask(put("t", 0)).code == 200


def test_stats_say_it(full, harness):
    frame = full.ask_frame(encode_frame(RequestCode.STATS, 1, StatsRequest("disk").to_ext()))
    assert (
        f"{harness.store.data_paths[0]} free_bytes {10 << 20} reserve_bytes {1 << 30} takes_puts false"
        in bytes(frame.body).decode()
    )
