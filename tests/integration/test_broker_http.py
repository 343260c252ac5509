"""The operator's pages of a real broker, with a real consumer group behind them."""

from __future__ import annotations

import json
import re
import socket
import urllib.error
import urllib.request

import pytest

from metaq import Consumer, Producer
from metaq.protocol.record import checksum, encode_record
from metaq.protocol.text import parse_put_result
from tests.broker_process import RunningBroker, server_ini
from tests.integration.client_cluster import read
from tests.waiting import DEADLINE


def ask(port, path, method="GET", **headers):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", method=method, headers={"Accept": "application/json", **headers}
    )
    with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
        return answer.read().decode()


def refused(port, path, method, **headers):
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(port, path, method, **headers)
    with caught.value as error:
        return error.code, error.read().decode()


def dashboard_port(broker):
    return http_port(broker, r"dashboard at http://127\.0\.0\.1")


def http_port(broker, address):
    (port,) = re.findall(rf"{address}:(\d+)/", broker.errors.read_text())
    return int(port)


@pytest.fixture
def broker(tmp_path, chroot):
    ini = server_ini(
        tmp_path / "data", {"t": "numPartitions=1"}, system="dashboardHttpPort=0", zookeeper=f"zk.zkConnect={chroot}"
    )
    with RunningBroker(tmp_path, ini) as running:
        yield running


def test_an_operator_sees_a_group_and_lets_it_skip_what_is_pending(broker, chroot):
    port = dashboard_port(broker)
    with Producer(chroot) as producer:
        producer.send_batch("t", [b"x" * 80] * 5)
        with Consumer(chroot, group="g", topics=["t"], start="earliest") as consumer:
            read(consumer, 5)
            consumer.commit()
            (row,) = json.loads(ask(port, "/topics/t?group=g"))["Group g"]
            assert (row["committed"], row["messages behind"]) == (500, 0)
            assert row["owner"].startswith("g_")
            status, text = refused(port, "/topics/t/groups/g/partitions/0/skip", "POST")
            assert (status, "stop the consumers" in text) == (409, True)
        producer.send_batch("t", [b"y" * 80] * 3)
    (row,) = json.loads(ask(port, "/topics/t?group=g"))["Group g"]
    assert (row["bytes behind"], row["messages behind"], row["owner"]) == (300, 3, "")
    assert "continues at 800" in ask(port, "/topics/t/groups/g/partitions/0/skip", "POST")
    (row,) = json.loads(ask(port, "/topics/t?group=g"))["Group g"]
    assert (row["committed"], row["messages behind"]) == (800, 0)
    assert f"127.0.0.1:{broker.port}" in ask(port, "/cluster")
    assert 'metaq_topic_messages{topic="t"} 8.0' in ask(port, "/metrics")


def test_a_port_that_is_taken_costs_the_pages_and_not_the_broker(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ini = server_ini(tmp_path / "data", {"t": ""}, system=f"dashboardHttpPort={port}")
        with RunningBroker(tmp_path, ini) as broker:
            assert f"without its pages: dashboardHttpPort={port}: cannot listen" in broker.errors.read_text()


def test_messages_are_put_and_got_through_the_gateway_that_a_plugin_option_opens(tmp_path):
    properties = tmp_path / "jetty.properties"
    properties.write_text("serverPort=0\n")
    command = ("-m", "metaq", "broker", f"-FjettyBroker={properties}", "-f")
    with RunningBroker(tmp_path, server_ini(tmp_path / "data", {"t": ""}), module=command) as broker:
        url = f"http://127.0.0.1:{http_port(broker, r'gateway at http://[*]')}"
        put = f"{url}/put/0?topic=t&partition=0&flag=0&length=5&checksum={checksum(b'hello')}"
        with urllib.request.urlopen(put, data=b"hello", timeout=DEADLINE) as answer:
            message_id, partition, offset = parse_put_result(answer.read().decode())
        assert (partition, offset) == (0, 0)
        with urllib.request.urlopen(
            f"{url}/get/0?topic=t&partition=0&offset=0&group=g&maxsize=99", timeout=DEADLINE
        ) as answer:
            assert answer.read() == encode_record(b"hello", message_id, 0)
