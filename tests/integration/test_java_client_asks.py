"""What an application of the Java client asks: statistics, partitions, a browsed topic, one fetch, idle connections."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.integration.java_sides import Application, Fields, Side, decoded
from tests.waiting import eventually

TOPICS = {"browsed": 3, "fetched": 1, "counted": 2, "empty": 1, "idle": 1}

COUNTS = (
    "pid broker_id port uptime curr_connections threads cmd_put cmd_get cmd_offset tx_begin tx_xa_begin tx_commit "
    "tx_rollback get_miss put_failed total_messages topics config_checksum"
)
COUNTER = re.compile(
    r"Count=\d+,Value=\d+,Value/Count=(\d+(\.\d+)?|invalid),Count/Duration=(\d+(\.\d+)?|invalid),Duration=\d+"
)


def stats(app: Application, *item: str) -> dict[str, str]:
    (values,) = app.call("stats", *item)["brokers"].values()
    return dict(values)


def test_statistics_have_the_names_and_forms_that_applications_parse(side: Side) -> None:
    sender = side.app.producer("counter", "counted")
    side.app.send_all(sender, "counted", b"12345", b"12345")
    system = stats(side.app)
    assert set(system) == {*COUNTS.split(), "version", "slave", "STATS", "END"}
    assert system["port"] == str(side.broker.port)
    assert system["slave"] == "false"
    assert system["pid"] == str(side.broker.pid)
    assert all(system[key].isdigit() for key in COUNTS.split())
    assert stats(side.app, "topics")["counted"] == (
        "partitions 2 message_count 2 message_bytes 50 accept_publish true accept_subscribe true"
    )
    assert stats(side.app, "topics")["empty"] == "*Empty*"
    topic = stats(side.app, "counted")
    assert (topic["resultCode"], topic["partitions"], topic["message_count"], topic["bytes"]) == ("0", "2", "2", "50")
    assert COUNTER.fullmatch(topic["topic_realtime_put"]), topic
    assert COUNTER.fullmatch(stats(side.app, "realtime")["realtime_put"])
    # two lines with one key: the client keeps one of them
    assert stats(side.app, "offsets")["counted"] in [f"part {n} min_offset 0 max_offset 25" for n in (0, 1)]
    assert stats(side.app, "help")["realtime"] == "Returns realtime statistics detail info."
    assert stats(side.app, "nobody")["resultCode"] == "1"
    assert "serverPort=" + str(side.broker.port) in " ".join(map("=".join, stats(side.app, "config").items()))
    assert stats(side.app, "reset")["reset"] == "ok"


def test_the_partitions_of_a_topic_are_those_configured(side: Side) -> None:
    assert side.app.call("partitions", "browsed")["partitions"] == ["0-0", "0-1", "0-2"]


def test_a_browser_goes_through_all_partitions_in_order_and_again(side: Side) -> None:
    sender = side.app.producer("browsed", "browsed", selector="length")
    data = [b"x" * (number % 3) + b"abc" * number for number in range(12)]
    side.app.send_all(sender, "browsed", *data)
    expected = [each for partition in range(3) for each in data if len(each) % 3 == partition]
    for size in (4096, 64):
        messages = decoded(side.app.call("browse", "browsed", size)["messages"])
        assert [message["data"] for message in messages] == expected[: len(messages)]
        assert len(messages) == len(expected) or size == 64  # a fetch too small for the next message ends the partition
    assert side.app.call("browse", "empty", 4096)["messages"] == []


def test_one_fetch_gives_whole_messages_from_an_offset_on(side: Side) -> None:
    sender = side.app.producer("fetched", "fetched")
    results = side.app.send_all(sender, "fetched", b"11111", b"22222", b"33333")
    assert [result["offset"] for result in results] == [0, 25, 50]

    def get(offset: int, size: int) -> Fields:
        return side.app.call("get", "fetched", "0-0", offset, size)

    two = get(25, 4096)
    assert ([message["data"] for message in decoded(two["messages"])], two["bytes"]) == ([b"22222", b"33333"], 50)
    cut = get(0, 40)
    assert ([message["data"] for message in decoded(cut["messages"])], cut["bytes"]) == ([b"11111"], 25)
    for offset in (75, 1000, 2**63 - 1, -1):
        assert get(offset, 4096) == {"messages": None, "bytes": 0}, offset


class Wiretap:
    """Passes the bytes of one connection on to a broker and keeps what each side said."""

    def __init__(self, port: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.requests = bytearray()
        self.answers = bytearray()
        self.accepted = 0
        self._target = port
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                self.accepted += 1
                far = socket.create_connection(("127.0.0.1", self._target))
                for source, target, log in ((near, far, self.requests), (far, near, self.answers)):
                    thread = threading.Thread(target=self._pass, args=(source, target, log), daemon=True)
                    thread.start()
                    self._threads.append(thread)

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket, log: bytearray) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                log += chunk
                target.sendall(chunk)
        target.close()

    def close(self) -> None:
        self.listener.close()


@pytest.fixture
def wiretap(side: Side) -> Iterator[Wiretap]:
    tap = Wiretap(side.broker.port)
    yield tap
    tap.close()


def test_an_idle_connection_is_kept_by_heartbeats(side: Side, wiretap: Wiretap) -> None:
    if side.is_java:
        pytest.skip("takes ten seconds; the recording has the heartbeats of a Java client on a Java broker")
    side.app.call("factory", "idle", "plain", f"server_url=meta://127.0.0.1:{wiretap.port}")
    sender = side.app.producer("idle", "idle", factory="idle")
    assert side.app.send(sender, "idle", b"before")["success"]
    eventually(lambda: b"version " in wiretap.requests, 25, "a heartbeat after ten seconds")
    heartbeat = re.search(rb"version (-?\d+)\r\n", wiretap.requests)
    assert heartbeat
    assert int(heartbeat[1]) < 0  # opaques start at the smallest number
    answer = rb"result 200 (\d+) %b\r\n" % re.escape(heartbeat[1])
    eventually(lambda: re.search(answer, wiretap.answers), 5, "its answer")
    assert side.app.send(sender, "idle", b"after")["success"]
    assert wiretap.accepted == 1


def test_messages_of_many_threads_share_the_connection_and_find_their_answers(side: Side, wiretap: Wiretap) -> None:
    side.app.call("factory", "busy", "plain", f"server_url=meta://127.0.0.1:{wiretap.port}")
    sender = side.app.producer("busy", "counted", factory="busy")
    results = side.app.call("send_callback", sender, "counted", 300)["results"]
    assert json.dumps(results).count('"success": true') == 300
    assert len({(result["partition"], result["offset"]) for result in results}) == 300
    assert wiretap.accepted == 1
