"""A broker whose journal fails: synchronous puts are refused, `stats journal` and /metrics say so, the rest goes on."""

import pytest

from metaq.broker.http.metrics import exposition
from metaq.broker.http.sheets import encoded
from metaq.protocol.frames import encode_frame
from metaq.protocol.remoting import StatsRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.doubles.store import FaultyFiles
from tests.unit.broker.harness import Harness, put, send

PARTITIONS = 3
TOPIC = f"[topic=durable]\nnumPartitions={PARTITIONS}\nunflushThreshold=0"


@pytest.fixture
def files():
    return FaultyFiles()


@pytest.fixture
def harness(tmp_path, files):
    harness = Harness(tmp_path, files=files, topics=TOPIC)
    yield harness
    harness.threads.run()
    files.heal()
    harness.close()


def journal_stats(peer):
    frame = peer.ask_frame(encode_frame(RequestCode.STATS, 1, StatsRequest("journal").to_ext()))
    lines = bytes(frame.body).decode().split("\r\n")
    assert (lines[0], lines[-2:]) == ("STATS", ["END", ""])
    return dict(line.split(" ", 1) for line in lines[1:-2])


def metrics(harness):
    lines = encoded(exposition(harness.broker)).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def put_everywhere(peer, harness):
    """One turn with a put to each partition of a topic with synchronous flush; the answers' codes."""
    peer.send(b"".join(send("durable", number) for number in range(PARTITIONS)))
    harness.threads.run()
    return [answer.code for answer in peer.frames()]


def test_a_journal_that_works(harness):
    peer = harness.connect()
    assert put_everywhere(peer, harness) == [ResponseCode.SUCCESS] * PARTITIONS
    found = journal_stats(peer)
    size = int(found.pop("bytes"))
    assert size > 0
    nothing = dict.fromkeys(("waiting_appends", "waiting_bytes", "read_only_partitions"), "0")
    assert found == {"state": "ok", "partitions": str(PARTITIONS), "files": "1"} | nothing
    assert metrics(harness)["metaq_journal_failed"] == 0
    assert metrics(harness)["metaq_journal_bytes"] == size


def test_a_journal_that_has_failed_says_why_and_which_partitions_are_closed(harness, files):
    peer = harness.connect()
    assert put_everywhere(peer, harness) == [ResponseCode.SUCCESS] * PARTITIONS
    files.fail("fdatasync")
    assert put_everywhere(peer, harness) == [ResponseCode.SERVICE_NOT_AVAILABLE] * PARTITIONS
    files.heal()
    found = journal_stats(peer)
    assert (found["state"], found["read_only_partitions"]) == ("failed", str(PARTITIONS))
    assert "Input/output error" in found["cause"]
    assert "Input/output error" in found["read_only:durable-0"]
    assert metrics(harness)["metaq_journal_failed"] == 1
    assert put_everywhere(peer, harness) == [ResponseCode.SERVICE_NOT_AVAILABLE] * PARTITIONS
    assert peer.ask(put("t", 0)).code == 200  # its flush is asynchronous
