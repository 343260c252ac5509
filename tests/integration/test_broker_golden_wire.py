"""The recorded conversations with the Java broker (tests/data/golden/wire), replayed against ours.

All entries are replayed in list order, as its README says; then each case is compared. Where 1.x has a defect,
docs/compatibility.md names what we answer instead.
"""

import json
import re
import time
from pathlib import Path

import pytest

from metaq.protocol.frames import encode_frame
from metaq.protocol.record import checksum
from metaq.protocol.remoting import ClosePartitionsRequest, OpenPartitionsRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.text import AnswerReader
from tests.broker_process import RunningBroker
from tests.waiting import DEADLINE

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden" / "wire"
ENTRIES = json.loads((GOLDEN / "wire.json").read_text())
QUIET_SECONDS = 0.3

BROKER = Path(__file__).with_name("broker_as_recorded.py")

NOT_AS_RECORDED = {
    "get unflushed message": b"later",  # readable as soon as it is written (docs/compatibility.md)
}
TIMED_OUT = "tx4 commit after timeout"  # 1.x says that it has not been started (docs/compatibility.md)
REFUSED = "tx put wrong checksum is accepted"  # not by us (docs/compatibility.md); then the right one is put instead


def request(entry):
    return bytes.fromhex(entry["request_hex"])


def is_compared(entry):
    return not entry["conn"].startswith("h2-")


class Replay:
    """Plays the entries over as many connections as they name and keeps what came back."""

    def __init__(self, broker):
        self.broker = broker
        self.connections = {}
        self.received = {}
        self.closed = {}

    def play(self, number, entry):
        self.admin(entry)
        if not is_compared(entry):
            return
        if request(entry).startswith(b"transaction"):
            time.sleep(entry.get("wait_before_s", 0))  # the recorded pause, in which a transaction's timeout comes
        connection = self.connections.get(entry["conn"])
        if connection is None:
            connection = self.connections[entry["conn"]] = self.broker.connect().socket
        connection.sendall(request(entry))
        self.received[number], self.closed[number] = self.read(connection, entry)
        if entry["name"] == REFUSED:
            connection.sendall(request(entry).replace(b" 5 TX:", b" %d TX:" % checksum(b"tx-d")))
            self.read(connection, entry)
        if self.closed[number]:
            connection.close()
            del self.connections[entry["conn"]]

    def admin(self, entry):
        """`closePartitions t3 0 0`, `openPartitions t3`: 1.x's operations are admin requests here."""
        if "admin_before" not in entry:
            return
        operation, topic, *numbers = entry["admin_before"].split()
        if operation == "closePartitions":
            code, ext = RequestCode.CLOSE_PARTITIONS, ClosePartitionsRequest(topic, *map(int, numbers)).to_ext()
        else:
            code, ext = RequestCode.OPEN_PARTITIONS, OpenPartitionsRequest(topic).to_ext()
        with self.broker.connect() as connection:
            assert connection.ask_frame(encode_frame(code, 1, ext)).code == ResponseCode.SUCCESS

    @staticmethod
    def read(connection, entry):
        """Answers until there are as many as recorded, or silence, or the end."""
        expected = len(AnswerReader().receive(bytes.fromhex(entry["response_hex"])))
        reader, data, count = AnswerReader(), b"", 0
        while True:
            waits_for_more = count < expected or entry["closes"]
            connection.settimeout(DEADLINE if waits_for_more else QUIET_SECONDS if not expected else 0.02)
            try:
                chunk = connection.recv(1 << 20)
            except TimeoutError:
                return data, False
            if not chunk:
                return data, True
            data += chunk
            count += len(reader.receive(chunk))


@pytest.fixture(scope="module")
def replay(tmp_path_factory):
    directory = tmp_path_factory.mktemp("golden")
    ini = (GOLDEN / "server.ini").read_text().replace("serverPort=28423", "serverPort=0")
    ini = ini.replace("dashboardHttpPort=28420\n", "")  # the port may be in use here
    ini = ini.replace("[zookeeper]\n", "[zookeeper]\nzk.zkEnable=false\n")
    with RunningBroker(directory, ini, module=(str(BROKER),)) as broker:
        replay = Replay(broker)
        for number, entry in enumerate(ENTRIES):
            replay.play(number, entry)
        yield replay


def masked(entry, raw, port):
    """Answers by opaque, with what its note calls volatile replaced."""
    raw = raw.replace(b"meta://127.0.0.1:%d'" % port, b"meta://127.0.0.1:28423'") if port else raw
    return sorted((mask(entry, answer) for answer in split(raw)), key=repr)


def split(raw):
    """Answers as (kind, code, opaque, body); the recorded length is not compared where the text is not."""
    found = []
    while raw:
        line, _, rest = raw.partition(b"\r\n")
        words = line.split(b" ")
        size = int(words[-2])
        found.append((words[0], words[1] if words[0] == b"result" else b"", words[-1], rest[:size]))
        raw = rest[size:]
    return found


def mask(entry, answer):
    kind, code, opaque, body = answer
    command = request(entry).split(b" ")[0].split(b"\r\n")[0]
    if kind == b"value":
        return kind, code, opaque, mask_ids(entry, body)
    if code == b"200" and command == b"put":
        _, partition, offset = body.split(b" ")
        chosen = "chosen partition" in entry["note"]
        return (
            kind,
            code,
            opaque,
            b"ID * *" if chosen else b"ID %b %b" % (partition, b"*" if "offset" in entry["note"] else offset),
        )
    if body == b"0.1" or b" frames/1" in body:
        return kind, code, opaque, b"VERSION"
    if body.startswith(b"STATS\r\n"):
        return kind, code, opaque, mask_stats(entry, body)
    return kind, code, opaque, body


RECORDS = {b"java 0": (25, 24, 23), b"java 1": (25, 39, 25, 23), b"t3 2": (24, 24, 24)}


def mask_ids(entry, data):
    """The message ids inside records blanked; records of t3 0 and lazy 0 have 25 bytes each."""
    words = request(entry).split(b" ")
    at = int(words[4])
    sizes = RECORDS.get(words[1] + b" " + words[3], (25,) * 3)
    masked = bytearray(data)
    start = 0
    for size in sizes:
        for position in range(start + 8 - at, start + 16 - at):
            if 0 <= position < len(masked):
                masked[position] = 0
        start += size
    return bytes(masked)


VOLATILE_STATS = re.compile(
    rb"^(pid|uptime|version|curr_connections|threads|cmd_\w+|tx_\w+|get_miss|put_failed|config_checksum|port) .*$", re.M
)
COUNTER = re.compile(rb"(Count|Value|Duration|Value/Count|Count/Duration)=[0-9.]+")


def mask_stats(entry, body):
    body = VOLATILE_STATS.sub(rb"\1 *", body.replace(b"\r\n", b"\n"))
    body = COUNTER.sub(rb"\1=N", body)
    return b"\n".join(sorted(body.split(b"\n")) if "order" in entry["note"] else body.split(b"\n"))


COMPARED = [number for number, entry in enumerate(ENTRIES) if is_compared(entry)]


def test_the_compared_cases_are_most_of_the_recording():
    assert len(COMPARED) > 100
    names = {ENTRIES[number]["name"] for number in COMPARED}
    assert {"put with checksum", "get with data", "offset at 0", "stats", "version", "quit"} <= names


@pytest.mark.parametrize("number", COMPARED, ids=lambda number: ENTRIES[number]["name"])
def test_answer_is_the_recorded_one(replay, number):
    entry = ENTRIES[number]
    received = replay.received[number]
    assert replay.closed[number] == entry["closes"]
    if entry["name"] == REFUSED:
        ((_, code, _, text),) = split(received)
        assert (code, text[:16]) == (b"500", b"Checksum failure")
        return
    if entry["name"] == TIMED_OUT:
        ((_, code, _, text),) = split(received)
        ((_, recorded, _, words),) = split(bytes.fromhex(entry["response_hex"]))
        assert code == recorded
        assert words.endswith(b" has not been started.")
        assert text.endswith(b", and is rolled back.")
        return
    if entry["name"] in NOT_AS_RECORDED:
        assert split(received)[0][0] == b"value"
        assert split(received)[0][3].endswith(NOT_AS_RECORDED[entry["name"]])
        return
    if entry["name"] == "stats config":
        assert split(received)[0][3] == replay.broker.ini.read_bytes()
        return
    expected = masked(entry, bytes.fromhex(entry["response_hex"]), 0)
    assert masked(entry, received, replay.broker.port) == expected


MOVED = [
    entry
    for entry in ENTRIES
    if entry["setup"].startswith("other broker: brokerId=1") and entry["name"].startswith("moved")
]


def test_moved_answers_of_a_log_whose_first_segments_are_gone(tmp_path):
    assert len(MOVED) == 4
    segment = tmp_path / "data" / "seg-0" / "00000000000000002560.meta"
    segment.parent.mkdir(parents=True)
    body = b"abc"
    segment.write_bytes(len(body).to_bytes(4, "big") + checksum(body).to_bytes(4, "big") + bytes(12) + body)
    ini = (GOLDEN / "server.ini").read_text()
    for old, new in (
        ("brokerId=0", "brokerId=1"),
        ("serverPort=28423", "serverPort=0"),
        ("dashboardHttpPort=28420\n", ""),
        ("updateConsumerOffsets=false", "updateConsumerOffsets=true"),
        ("maxSegmentSize=1073741824", "maxSegmentSize=1024"),
        ("[zookeeper]\n", "[zookeeper]\nzk.zkEnable=false\n"),
    ):
        assert old in ini
        ini = ini.replace(old, new)
    with RunningBroker(tmp_path, ini) as broker, broker.connect() as connection:
        for entry in MOVED:
            connection.send(request(entry))
            (answer,) = connection.answers(1)
            (expected,) = AnswerReader().receive(bytes.fromhex(entry["response_hex"]))
            assert answer == expected, entry["name"]
        offsets = connection.ask(b"stats offsets 5\r\n")
        assert offsets.text == "STATS\r\nseg part 0 min_offset 2560 max_offset 2583\r\nEND\r\n"
