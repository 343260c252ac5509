"""A broker with 10,240 partitions: it registers, takes messages on all, is killed, starts again, and stays small."""

import os
import re
from itertools import islice

from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.protocol.record import HEADER_BYTES, checksum
from metaq.protocol.text import encode_put
from tests.broker_process import RunningBroker, server_ini
from tests.integration.coordination_helpers import session_at

PARTITIONS = 10_240
TOPICS = {"wide": "numPartitions=10239", "narrow": "numPartitions=1"}
MAX_DESCRIPTORS = 4_096
MAX_MEMORY = 150 << 20
WINDOW = 512
BODY = b"x" * 100
SIZE = HEADER_BYTES + len(BODY)


def put_to_all(broker):
    """One message to each partition, pipelined."""
    puts = (
        encode_put(topic, partition, 0, checksum(BODY), 1, BODY)
        for topic, lines in TOPICS.items()
        for partition in range(int(lines.split("=")[1]))
    )
    with broker.connect() as connection:
        while window := list(islice(puts, WINDOW)):
            connection.send(b"".join(window))
            assert all(answer.code == 200 for answer in connection.answers(len(window)))


def ask_stats(broker, item=""):
    with broker.connect() as connection:
        return connection.ask(b"stats %s 1\r\n" % item.encode()).text


def check_size(broker):
    assert len(os.listdir(f"/proc/{broker.process.pid}/fd")) <= MAX_DESCRIPTORS
    assert broker.rss_bytes() < MAX_MEMORY


def test_ten_thousand_partitions_with_durable_acknowledgements(tmp_path, chroot):
    zookeeper = f"zk.zkConnect={chroot}\nzk.zkSyncTimeMs=100\nzk.zkSessionTimeoutMs=30000"
    ini = server_ini(tmp_path / "data", TOPICS, unflush_threshold=0, zookeeper=zookeeper)
    with RunningBroker(tmp_path, ini) as broker:
        put_to_all(broker)
        check_size(broker)
        put_to_all(broker)
        broker.kill()
    with RunningBroker(tmp_path, ini) as broker:
        with session_at(chroot) as session:
            view = ClusterView(session)
            assert [[each.partitions for each in view.replicas(topic)] for topic in TOPICS] == [[10_239], [1]]
        assert f"total_messages {2 * PARTITIONS}\r\n" in ask_stats(broker)
        ends = re.findall(r"min_offset 0 max_offset (\d+)\r\n", ask_stats(broker, "offsets"))
        assert ends == [str(2 * SIZE)] * PARTITIONS
        check_size(broker)
        put_to_all(broker)
        assert broker.stop(60.0) == 0, "with ten thousand partitions to be synced"
