"""Clients that do not read, and requests that never come whole: the broker serves others, and stays small."""

import select
import socket
import time
from contextlib import ExitStack, suppress

import pytest

from metaq.protocol.frames import encode_frame
from metaq.protocol.pulls import PullRequest
from metaq.protocol.record import checksum
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.text import encode_get, encode_put, parse_put_result
from tests.broker_process import RunningBroker, server_ini
from tests.waiting import DEADLINE

MEGABYTE = 1 << 20


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
