"""A running broker process reads server.ini again: by SIGHUP and by a frame, with ZooKeeper watching."""

import json
import signal
import zipfile

import pytest
from kazoo.client import KazooClient

from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.protocol.frames import encode_frame
from metaq.protocol.record import checksum
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.text import Value, encode_get, encode_put
from tests.broker_process import RunningBroker, server_ini
from tests.integration.coordination_helpers import wait_for


def put(topic, partition, body=b"hello"):
    return encode_put(topic, partition, 0, checksum(body), 1, body)


@pytest.fixture
def zk(chroot):
    client = KazooClient(hosts=chroot)
    client.start()
    yield client
    client.stop()
    client.close()


def stats(zk, session):
    """ZooKeeper's own record of the topic's node and of the checksum's."""
    paths = session.paths
    found = [zk.exists(path) for path in (paths.topic_sub_broker("t", "0-m"), paths.master_config_checksum(0))]
    assert all(found)
    return found


def test_a_reload_reaches_zookeeper_checksum_first_and_running_partitions(tmp_path, chroot, session, zk):
    zookeeper = f"zk.zkConnect={chroot}\nzk.zkSyncTimeMs=0"
    topics = {"t": "numPartitions=2", "gone": ""}
    ini = server_ini(tmp_path / "data", topics, zookeeper=zookeeper)
    with RunningBroker(tmp_path, ini) as broker, broker.connect() as connection:
        view = ClusterView(session)
        before, _ = stats(zk, session)
        assert connection.ask(put("t", 1)).code == 200

        changed = {"t": "numPartitions=3\nunflushThreshold=1000", "new": "numPartitions=2\nacceptPublish=false"}
        broker.ini.write_text(server_ini(tmp_path / "data", changed, zookeeper=zookeeper))
        broker.process.send_signal(signal.SIGHUP)
        wait_for(lambda: view.topic_partitions("t") == [(0, 0), (0, 1), (0, 2)], "the new count")
        wait_for(lambda: view.topic_partitions("new", publish=False) == [(0, 0), (0, 1)], "the new topic")
        assert view.topic_partitions("new") == []
        assert view.topic_partitions("gone") == [(0, 0)]

        after, published = stats(zk, session)
        assert after.czxid > before.czxid  # made anew, not set: consumers watch the children only
        assert before.czxid < published.mzxid < after.czxid
        assert [connection.ask(put(topic, p)).code for topic, p in (("t", 2), ("new", 1), ("gone", 0))] == [200] * 3

        broker.ini.write_text("[system]\nnonsense=1\n[zookeeper]\n")
        answer = connection.ask_frame(encode_frame(RequestCode.RELOAD_CONFIG, 5, {}))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "nonsense" in answer.remark
        assert connection.ask(put("t", 2)).code == 200
        assert broker.stop() == 0


def test_filters_are_python_callables_for_javas_classes_and_can_be_named_while_it_runs(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "provided").mkdir()
    (tmp_path / "provided" / "acme_filters.py").write_text(
        "def large(group, message):\n    return len(message.payload) > 3\n", "utf-8"
    )
    ini = server_ini(tmp_path / "data", {"orders": "group.g=com.acme.Large"})
    with RunningBroker(tmp_path / "conf", ini) as broker, broker.connect() as connection:
        for body in (b"no", b"large", b"larger"):
            assert connection.ask(put("orders", 0, body)).code == 200
        assert connection.ask(encode_get("orders", "g", 0, 0, 1000, 1)).code == 500
        (tmp_path / "conf" / "filters.ini").write_text("[filters]\ncom.acme.Large = acme_filters:large\n", "utf-8")
        answer = connection.ask_frame(encode_frame(RequestCode.RELOAD_CONFIG, 5, {}))
        assert json.loads(bytes(answer.body))["changed"] is True
        value = connection.ask(encode_get("orders", "g", 0, 0, 1000, 1))
        assert isinstance(value, Value)
        assert len(value.data) == 25 + 26
        assert broker.stop() == 0


def test_retention_follows_a_new_schedule_and_a_new_policy(tmp_path):
    ini = server_ini(tmp_path / "data", {"t": "", "kept": ""}, max_segment_size=100)
    with RunningBroker(tmp_path, ini) as broker, broker.connect() as connection:
        for topic in ("t", "kept"):
            for _ in range(10):
                assert connection.ask(put(topic, 0)).code == 200
        often = "deleteWhen=* * * * * ?\ndeletePolicy=archive,1s,true"
        broker.ini.write_text(server_ini(tmp_path / "data", {"t": often, "kept": ""}, max_segment_size=100))
        broker.process.send_signal(signal.SIGHUP)
        directory = tmp_path / "data" / "t-0"
        wait_for(lambda: len(list(directory.glob("*.meta"))) == 1, "the archive of all segments but the last")
        [last] = directory.glob("*.meta")
        moved = connection.ask(encode_get("t", "g", 0, 0, 1000, 1))
        assert (moved.code, moved.text) == (301, str(int(last.stem)))
        archives = sorted(directory.glob("*.meta.zip"))
        # how large each became depends on the disk: the next begins when the names in front of it are safe
        assert sum(_only_file(path, path.stem) for path in archives) == int(last.stem) >= 200
        assert isinstance(connection.ask(encode_get("kept", "g", 0, 0, 1000, 1)), Value)
        assert broker.stop() == 0


def _only_file(path, name):
    with zipfile.ZipFile(path) as archive:
        [only] = archive.infolist()
    assert only.filename == name
    return only.file_size
