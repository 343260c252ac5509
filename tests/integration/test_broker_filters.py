"""Filters in a real broker: our consumer gets what they accept, and one that hangs stops nobody else."""

import pytest

from metaq import Consumer, Producer
from metaq.protocol.record import checksum
from metaq.protocol.text import Value, encode_get, encode_put
from tests.broker_process import server_ini
from tests.integration.client_cluster import read
from tests.integration.forked_processes import ForkedBroker

FILTERS = """
import threading

def even(group, message):
    return int(message.payload) % 2 == 0

def hangs(group, message):
    threading.Event().wait()
"""


@pytest.fixture
def broker(tmp_path, chroot):
    (tmp_path / "my_filters.py").write_text(FILTERS, "utf-8")
    topic = "numPartitions=1\ngroup.even=my_filters:even\ngroup.stuck=my_filters:hangs"
    zookeeper = f"zk.zkConnect={chroot}\nzk.zkSyncTimeMs=0"
    ini = server_ini(tmp_path / "data", {"t": topic}, system=f"appClassPath={tmp_path}", zookeeper=zookeeper)
    with ForkedBroker(tmp_path, ini) as running:
        yield running


def test_a_group_gets_what_its_filter_accepts_and_commits_past_the_rest(broker, chroot):
    with Producer(chroot) as producer:
        producer.send_batch("t", [b"%d" % number for number in range(2000)])
        with Consumer(chroot, group="even", topics=["t"], start="earliest") as consumer:
            got = [int(message.payload) for message in read(consumer, 1000)]
            consumer.commit()
        assert got == list(range(0, 2000, 2))
        producer.send_batch("t", [b"2001", b"2002"])
        with Consumer(chroot, group="even", topics=["t"], start="earliest") as consumer:
            assert [message.payload for message in read(consumer, 1)] == [b"2002"]


def test_filters_that_never_return_cost_their_own_group_and_nobody_else(broker):
    with broker.connect() as connection:
        assert connection.ask(encode_put("t", 0, 0, checksum(b"1"), 1, b"1")).code == 200
    stuck = [broker.connect() for _ in range(8)]  # more than there are threads for filters
    for connection in stuck:
        connection.send(encode_get("t", "stuck", 0, 0, 1000, 1))
    with broker.connect() as connection:
        assert connection.ask(encode_put("t", 0, 0, checksum(b"2"), 1, b"2")).code == 200
        assert isinstance(connection.ask(encode_get("t", "another", 0, 0, 1000, 2)), Value)
    assert broker.stop() == 0
    for connection in stuck:
        connection.close()
