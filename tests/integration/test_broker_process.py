"""A broker as a process: its life in ZooKeeper, its clean stop, and one clear line for each way it cannot start."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.protocol.record import checksum
from metaq.protocol.text import encode_get, encode_put, parse_put_result
from tests.broker_process import RunningBroker, server_ini
from tests.waiting import DEADLINE, eventually
from tests.zookeepers import zookeeper_process


def put(topic, body=b"hello"):
    return encode_put(topic, 0, 0, checksum(body), 1, body)


def zookeeper_ini(tmp_path, chroot, topics, grace_seconds=1.5, **more):
    zookeeper = f"zk.zkConnect={chroot}\nzk.zkSyncTimeMs={int(1000 * grace_seconds)}\nzk.zkSessionTimeoutMs=10000"
    return server_ini(tmp_path / "data", topics, zookeeper=zookeeper, **more)


def test_a_broker_registers_its_topics_and_those_that_come_later(tmp_path, chroot, session):
    topics = {"t": "numPartitions=3", "wild*": "", "nopub": "acceptPublish=false"}
    view = ClusterView(session)
    with RunningBroker(tmp_path, zookeeper_ini(tmp_path, chroot, topics, broker_id=7)) as broker:
        master = view.brokers()[7].master
        assert master is not None
        assert (master.host, master.port) == ("127.0.0.1", broker.port)
        assert view.topic_partitions("t") == [(7, 0), (7, 1), (7, 2)]
        assert view.topic_partitions("nopub") == []
        assert view.topic_partitions("nopub", publish=False) == [(7, 0)]
        assert view.topic_partitions("wildcat") == []
        with broker.connect() as connection:
            assert connection.ask(put("wildcat")).code == 200
        eventually(lambda: view.topic_partitions("wildcat") == [(7, 0)])
        assert broker.stop() == 0
    assert view.brokers() == {}


def test_a_stopping_broker_leaves_zookeeper_first_and_serves_a_little_longer(tmp_path, chroot, session):
    view = ClusterView(session)
    ini = zookeeper_ini(tmp_path, chroot, {"t": ""}, grace_seconds=10 * DEADLINE)
    with RunningBroker(tmp_path, ini) as broker, broker.connect() as connection:
        broker.process.send_signal(signal.SIGTERM)
        eventually(lambda: not view.brokers())
        assert view.topic_partitions("t") == []
        assert connection.ask(put("t")).code == 200
        broker.process.send_signal(signal.SIGTERM)  # a second one ends the grace
        assert broker.process.wait(DEADLINE) == 0


def test_a_second_signal_ends_the_grace_also_while_the_broker_still_leaves_zookeeper(tmp_path):
    with zookeeper_process(tmp_path / "zk") as zookeeper:
        assert zookeeper.pid is not None
        ini = zookeeper_ini(tmp_path, zookeeper.connect_string, {"t": ""}, grace_seconds=10 * DEADLINE)
        with RunningBroker(tmp_path, ini) as broker:
            os.kill(zookeeper.pid, signal.SIGSTOP)  # it cannot leave before this ends
            try:
                for _ in range(2):
                    broker.process.send_signal(signal.SIGTERM)
                    eventually(lambda: not pending_signals(broker.process.pid))
            finally:
                os.kill(zookeeper.pid, signal.SIGCONT)
            assert broker.process.wait(DEADLINE) == 0


def pending_signals(pid):
    """Whether a signal was sent that has not been delivered."""
    status = Path(f"/proc/{pid}/status").read_text()
    return any(int(mask, 16) for mask in re.findall(r"^(?:SigPnd|ShdPnd):\t(\w+)$", status, re.MULTILINE))


def test_a_restarted_broker_goes_on_at_the_same_offsets_with_higher_ids(tmp_path):
    ini = server_ini(tmp_path / "data", {"t": ""})
    with RunningBroker(tmp_path, ini) as broker, broker.connect() as connection:
        first = parse_put_result(connection.ask(put("t")).text)
        assert broker.stop() == 0
    with RunningBroker(tmp_path, ini) as broker, broker.connect() as connection:
        second = parse_put_result(connection.ask(put("t")).text)
        assert (first[2], second[2]) == (0, 25)
        assert first[0] < second[0]
        assert len(connection.ask(encode_get("t", "g", 0, 0, 100, 1)).data) == 50
        assert broker.kill() == -signal.SIGKILL
    with RunningBroker(tmp_path, ini) as broker:
        assert broker.stop() == 0
    told = re.findall(r"opened .*|stopp.*", (tmp_path / "stderr.log").read_text())
    told = [re.sub(r"in \d+\.\d s", "in N s", line) for line in told]
    assert told == [
        "opened the data directories in N s (partitions: 0, bytes: 0): nothing had to be checked",
        "stopping",
        "stopped: all partitions are synced",
        "opened the data directories in N s (partitions: 1, bytes: 25): nothing had to be checked",
        "opened the data directories in N s (partitions: 1, bytes: 50): "
        "25 bytes that no checkpoint covers were checked",
        "stopping",
        "stopped: all partitions are synced",
    ]


def lines_of_a_failed_start(tmp_path, ini):
    """What a broker says on stderr that cannot start."""
    path = tmp_path / "bad.ini"
    path.write_text(ini)
    command = [sys.executable, "-m", "metaq.broker", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.splitlines()


def test_what_keeps_a_broker_from_its_start_is_one_line(tmp_path, taken_port):
    ini = server_ini(tmp_path / "data", {"t": ""})
    (line,) = lines_of_a_failed_start(tmp_path, ini.replace("serverPort=0", f"serverPort={taken_port}"))
    assert line.startswith(f"metaq broker: serverPort={taken_port}: cannot listen")
    (line,) = lines_of_a_failed_start(tmp_path, ini.replace("numPartitions", "numPartition"))
    assert "did you mean numPartitions?" in line
    (tmp_path / "file").write_text("a file")
    (line,) = lines_of_a_failed_start(tmp_path, server_ini(tmp_path / "file", {"t": ""}))
    assert line.startswith(f"metaq broker: dataPath={tmp_path / 'file'}: cannot be used")
    with RunningBroker(tmp_path, ini):
        (line,) = lines_of_a_failed_start(tmp_path, ini)
    assert "in use by another broker" in line


def test_an_absent_zookeeper_is_told_while_it_is_waited_for_and_ends_the_start_with_one_line(tmp_path):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets the port, the broker least of all
        port = silent.getsockname()[1]
        zookeeper = f"zk.zkConnect=127.0.0.1:{port}\nzk.zkConnectionTimeoutMs=1000"
        ini = server_ini(tmp_path, {"t": ""}, zookeeper=zookeeper)
        everybody, waiting, error = lines_of_a_failed_start(tmp_path, ini)
    assert " WARNING " in everybody
    assert "docs/security.md" in everybody
    assert f"waiting up to 1 s for ZooKeeper at 127.0.0.1:{port}: nothing listens" in waiting
    assert error.startswith(f"metaq broker: ZooKeeper at 127.0.0.1:{port} does not answer within 1 s: nothing listens")


def test_a_broker_id_in_use_names_the_other_broker(tmp_path, chroot):
    ini = zookeeper_ini(tmp_path, chroot, {"t": ""})
    with RunningBroker(tmp_path, ini) as broker:
        lines = lines_of_a_failed_start(tmp_path, ini.replace(str(tmp_path / "data"), str(tmp_path / "other")))
        assert f"127.0.0.1:{broker.port}" in lines[-1]
        assert "brokerId" in lines[-1]
        assert broker.stop() == 0


def test_a_broker_listens_on_one_address_alone_and_registers_it(tmp_path, chroot, session):
    ini = zookeeper_ini(tmp_path, chroot, {"t": ""}).replace("hostName=127.0.0.1\n", "")
    command = ("-m", "metaq", "broker", "--listen", "127.0.0.2", "-f")
    with RunningBroker(tmp_path, ini, module=command) as broker:
        master = ClusterView(session).brokers()[0].master
        assert master is not None
        assert (master.host, master.port) == ("127.0.0.2", broker.port)
        with socket.create_connection((master.host, master.port), DEADLINE):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", broker.port), DEADLINE)
        assert broker.stop() == 0


def test_an_address_of_another_machine_is_one_clear_line(tmp_path):
    command = ("-m", "metaq", "broker", "--listen", "192.0.2.1", "-f")  # for documents only
    with pytest.raises(AssertionError, match=r"--listen=192\.0\.2\.1: cannot listen there .*of this machine"):
        RunningBroker(tmp_path, server_ini(tmp_path / "data", {"t": ""}), module=command)
