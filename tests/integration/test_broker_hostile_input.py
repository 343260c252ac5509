"""Random and mutated bytes, and clients that do not read: the broker answers or closes, serves others, stays small."""

import json
import random
import select
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from metaq.protocol.frames import encode_frame
from metaq.protocol.pulls import PullRequest
from metaq.protocol.record import checksum
from metaq.protocol.sends import SendRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.text import encode_get, encode_put, parse_put_result
from tests.broker_process import RunningBroker, server_ini
from tests.waiting import DEADLINE

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden" / "wire" / "wire.json"
SAMPLES = [bytes.fromhex(entry["request_hex"]) for entry in json.loads(GOLDEN.read_text())]
FRAMES = [
    encode_frame(RequestCode.SEND, 1, SendRequest("t", 0, 0, -1).to_ext(), 5) + b"hello",
    encode_frame(RequestCode.PULL, 2, PullRequest("t", 0, 0, 1000, "g", ("a", "b"), 10).to_ext()),
    encode_frame(RequestCode.HEARTBEAT, 3, {}),
    encode_frame(RequestCode.STATS, 4, {"item": "topics"}),
    encode_frame(9999, 5, {}),
]
INPUTS = 10_000
OPEN_AT_ONCE = 50
MEGABYTE = 1 << 20


def hostile(rng):
    """One input: random bytes, or a good request with bytes changed, cut, doubled or joined to another."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randbytes(rng.randrange(1, 300))
    if kind == 1:
        return b"\0" + rng.randbytes(rng.randrange(1, 60))
    sample = bytearray(rng.choice(SAMPLES + FRAMES * 10))
    if kind == 2:
        for _ in range(rng.randrange(1, 6)):
            sample[rng.randrange(len(sample))] = rng.randrange(256)
    elif kind == 3:
        del sample[rng.randrange(len(sample)) :]
    elif kind == 4:
        at = rng.randrange(len(sample))
        sample[at:at] = rng.choice((b" ", b"-1", b"99999999999999999999", b"\r\n", b"\0", b"\xff", b"../../x", b"*"))
    else:
        sample += rng.choice(SAMPLES + FRAMES)[: rng.randrange(1, 50)]
    return bytes(sample)


def drain(connections):
    """Read what is there; return the connections that are still open."""
    ready, _, _ = select.select(connections, [], [], 0)
    for connection in ready:
        try:
            connection.setblocking(False)
            while connection.recv(1 << 16):
                pass
        except (BlockingIOError, ConnectionError):
            pass


def test_ten_thousand_hostile_inputs_leave_the_broker_serving_and_no_larger(tmp_path):
    rng = random.Random(20240607)
    body = b"still here"
    put = encode_put("t", 0, 0, checksum(body), 1, body)
    topics = {"t": "numPartitions=2", "t3": "numPartitions=3", "java": "numPartitions=2"}
    with RunningBroker(tmp_path, server_ini(tmp_path / "data", topics, unflush_threshold=1000)) as broker:
        with broker.connect() as other:
            baseline = 0
            puts = 0
            open_connections = []
            for number in range(INPUTS):
                connection = socket.create_connection(("127.0.0.1", broker.port), DEADLINE)
                open_connections.append(connection)
                with suppress(ConnectionError):  # it may close before it has read everything
                    connection.sendall(hostile(rng))
                if len(open_connections) >= OPEN_AT_ONCE:
                    drain(open_connections)
                    for each in open_connections:
                        each.close()
                    open_connections = []
                    answer = other.ask(put)
                    assert answer.code == 200, answer.text
                    puts += 1
                if number == INPUTS // 5:
                    baseline = broker.rss_bytes()
            assert puts == INPUTS // OPEN_AT_ONCE
            assert broker.rss_bytes() - baseline < 24 * MEGABYTE
            assert "internal error" not in broker.errors.read_text()
            assert "Traceback" not in broker.errors.read_text()
        partitions = {path.name for path in (tmp_path / "data").iterdir() if path.is_dir()}
        assert partitions <= {f"{topic}-{partition}" for topic in topics for partition in range(3)} | {"transactions"}
        assert {path.name for path in tmp_path.iterdir()} == {"data", "server.ini", "stderr.log"}
        assert broker.stop() == 0


@pytest.mark.parametrize("requests", ["get", "pull"])
def test_a_client_that_asks_for_much_and_reads_nothing_costs_bounded_memory(tmp_path, requests):
    body = bytes(MEGABYTE - 20)
    with RunningBroker(tmp_path, server_ini(tmp_path / "data", {"t": ""}, unflush_threshold=1000)) as broker:
        with broker.connect() as producer:
            for number in range(16):
                _, _, offset = parse_put_result(producer.ask(encode_put("t", 0, 0, -1, number, body)).text)
                assert offset == number * MEGABYTE
        before = broker.rss_bytes()
        if requests == "get":
            request = encode_get("t", "g", 0, 0, MEGABYTE, 1)
        else:
            request = encode_frame(RequestCode.PULL, 1, PullRequest("t", 0, 0, MEGABYTE).to_ext())
        with broker.connect(receive_buffer=4096) as greedy, broker.connect() as other:
            greedy.send(request * 500)  # 500 MiB of answers
            deadline = time.monotonic() + 1.0
            peak = 0
            while time.monotonic() < deadline:
                assert other.ask(b"version 1\r\n").code == 200
                peak = max(peak, broker.rss_bytes())
            assert peak - before < 32 * MEGABYTE
            # and it gets all of them once it reads
            received = 0
            greedy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MEGABYTE)
            while received < 500 * MEGABYTE:
                data = greedy.socket.recv(1 << 20)
                assert data
                received += len(data)
        assert broker.rss_bytes() - before < 48 * MEGABYTE
        assert broker.stop() == 0


def test_puts_that_never_end_are_bounded_and_do_not_stop_others(tmp_path):
    with RunningBroker(tmp_path, server_ini(tmp_path / "data", {"t": ""}, unflush_threshold=1000)) as broker:
        with broker.connect() as endless, broker.connect() as too_large, broker.connect() as other:
            endless.send(b"a" * (64 * 1024 + 2))
            assert endless.closed_within(DEADLINE)
            refused = too_large.ask(b"put t 0 %d 0 1\r\n" % (8 * MEGABYTE + 1))  # and its body is dropped as it comes
            assert (refused.code, str(8 * MEGABYTE) in refused.text) == (500, True), refused.text
            assert other.ask(b"version 1\r\n").code == 200
        with broker.connect() as connection:
            connection.send(b"\0\xff\xff\xff\0\0\0\x10")
            frame = encode_frame(9999, 7, {})
            with broker.connect() as other:
                assert other.ask_frame(frame).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert broker.stop() == 0


def test_requests_that_never_come_whole_cost_bounded_memory_and_are_cut(tmp_path):
    limits = "zk.zkEnable=false\n[limits]\nunfinishedBytes=16777216\nrequestSeconds=1"
    ini = server_ini(tmp_path / "data", {"t": ""}, unflush_threshold=1000, zookeeper=limits)
    body = b"still here"
    put = encode_put("t", 0, 0, checksum(body), 1, body)
    with RunningBroker(tmp_path, ini) as broker, ExitStack() as stack:
        before = broker.rss_bytes()
        begun = [stack.enter_context(broker.connect(timeout=0.2)) for _ in range(4)]
        for number, each in enumerate(begun):
            with suppress(TimeoutError):  # it is not read any more
                if number % 2:
                    each.send((15 * MEGABYTE).to_bytes(4, "big") + (2).to_bytes(4, "big") + bytes(14 * MEGABYTE))
                else:
                    each.send(encode_put("t", 0, 0, -1, 1, bytes(8 * MEGABYTE))[:-1])
        assert broker.rss_bytes() - before < 40 * MEGABYTE
        with broker.connect() as other:
            assert other.ask(put).code == 200
        deadline = time.monotonic() + DEADLINE
        while begun:
            assert time.monotonic() < deadline
            ready, _, _ = select.select([each.socket for each in begun], [], [], 1.0)
            begun = [each for each in begun if each.socket not in ready]
        assert "for 1 s a request came at less than 16384 bytes a second" in broker.errors.read_text()
