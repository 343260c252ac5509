"""up, broker and zookeeper as processes: how they start, stop, die, and refuse bad input."""

import json
import os
import re
import signal
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from metaq.cli.authority import make_authority, make_broker, make_client
from metaq.coordination.runtime.certificates import CertificateFiles
from metaq.coordination.session.zk_session import ZkSession
from tests.waiting import DEADLINE, eventually

from .cli_helpers import (
    first_line,
    is_running,
    jars_of_apache,
    pids_of_children,
    run,
    serving_up,
    start,
    start_up,
    stop,
)

UP = ("up", "--port", "0", "--zookeeper-port", "0")


def nobody_listens(port, host="127.0.0.1"):
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) != 0


def assert_one_line(ran, *said):
    """Failed, with one line on stderr that names everything in `said`."""
    assert ran.code not in (0, None), ran
    assert ran.err.count("\n") == 1, ran.err
    assert all(part in ran.err for part in said), ran.err
    assert ran.out == ""


def test_up_prints_one_line_serves_and_stops_everything_on_sigterm(tmp_path):
    up = start_up(tmp_path / "data", ["trades:2"], "--brokers", "2")
    children = pids_of_children(up.process.pid)
    assert len(children) == 3  # ZooKeeper and two brokers
    assert up.run("produce", "--topic", "trades", stdin=b"kept\n").code == 0
    assert all(nobody_listens(port, "127.0.0.2") for port in up.broker_ports)  # only at the address that it says
    assert stop(up.process) == 0
    assert not any(map(is_running, children))
    assert all(map(nobody_listens, up.broker_ports))


def test_up_stops_on_ctrl_c_and_then_serves_what_its_data_directory_holds_whatever_it_is_told_to_serve(tmp_path):
    kept = ("--setting", "empty.deletePolicy=delete,24")
    first = start_up(tmp_path / "data", ["trades:3", "orders:1", "empty:2"], "--brokers", "2", *kept)
    for topic, lines in (("trades", 12), ("orders", 2)):  # to each of the partitions in turn
        sent = "".join(f"{topic} {number}\n" for number in range(lines)).encode()
        assert first.run("produce", "--topic", topic, "--batch", "1", stdin=sent).code == 0
    assert stop(first.process, signal.SIGINT) == 0
    again = start_up(tmp_path / "data", ["trades:2", "new:1"])
    try:
        assert len(again.broker_ports) == 2
        listed = json.loads(again.run("topics", "list", "--json").out)
        assert {row["topic"]: row["partitions"] for row in listed} == {"empty": 4, "new": 2, "orders": 2, "trades": 6}
        assert "[topic=empty]\nnumPartitions=2\ndeletePolicy=delete,24\n" in server_ini_of(tmp_path / "data")
        for topic, lines in (("trades", 12), ("orders", 2)):
            consumed = again.run("consume", "--topic", topic, "--group", "g", "--count", str(lines), "--timeout", "60")
            assert len(consumed.out.splitlines()) == lines
    finally:
        again.process.send_signal(signal.SIGTERM)
        _, said = again.process.communicate(timeout=DEADLINE)
    assert f"--topic=trades:2: 3 partitions are served, because {tmp_path / 'data'} has them" in said.decode()
    ran = run(*UP, "--data-dir", str(tmp_path / "data"), "--brokers", "1")
    assert_one_line(ran, "--brokers=1", "broker-1: orders, trades", "start 2 brokers")


def server_ini_of(data):
    return (data / "broker-1" / "server.ini").read_text()


def test_a_broker_serves_partitions_that_its_server_ini_has_no_number_for_and_says_so(zookeeper, tmp_path):
    ini = tmp_path / "server.ini"
    zk = ("--zk", zookeeper.connect_string)
    three = server_ini(tmp_path, zookeeper.connect_string, port=0) + "numPartitions=3\n[topic=other]\nnumPartitions=2\n"
    ini.write_text(three)
    process = start("broker", "-f", str(ini))
    try:
        first_line(process)
        for topic in ("only", "other"):
            assert run("produce", "--topic", topic, "--batch", "1", *zk, stdin=b"a\nb\nc\n").code == 0
    finally:
        assert stop(process) == 0
    ini.write_text(server_ini(tmp_path, zookeeper.connect_string, port=0))
    process = start("broker", "-f", str(ini))
    try:
        first_line(process)
        for topic in ("only", "other"):
            assert sorted(run("consume", "--topic", topic, *zk).out.split()) == ["a", "b", "c"]
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=DEADLINE)
    assert "[topic=only] numPartitions=1 would hide only-1, only-2" in said.decode()


def test_brokers_and_zookeeper_do_not_outlive_a_killed_up(tmp_path):
    up = start_up(tmp_path / "data", ["trades:1"], "--brokers", "2")
    children = pids_of_children(up.process.pid)
    assert len(children) == 3
    stop(up.process, signal.SIGKILL)
    eventually(lambda: not any(map(is_running, children)))
    again = start_up(tmp_path / "data", ["trades:1"], "--brokers", "2")  # also over what the dead session left
    assert stop(again.process) == 0


def test_up_ends_with_an_error_when_a_broker_dies(tmp_path):
    up = start_up(tmp_path / "data", ["trades:1"])
    broker = next(
        pid for pid in pids_of_children(up.process.pid) if b"metaq" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    os.kill(broker, signal.SIGKILL)
    _, said = up.process.communicate(timeout=DEADLINE)
    assert up.process.returncode == 1
    assert re.fullmatch(r"metaq: broker 0 was ended by SIGKILL \(log: .*broker\.log\)\n", said.decode())


def test_zookeeper_prints_one_line_serves_and_stops_on_sigterm(tmp_path):
    process = start("zookeeper", "--port", "0", "--data-dir", str(tmp_path / "zk"))
    address = re.fullmatch(r"zookeeper serves at (127\.0\.0\.1:\d+)", first_line(process))
    assert address is not None
    assert run("topics", "list", "--json", "--zk", address[1]).out == "[]\n"
    (java,) = pids_of_children(process.pid)
    assert stop(process) == 0
    assert not is_running(java)


def test_zookeeper_serves_the_same_data_with_and_without_tls(tmp_path):
    make_authority(tmp_path / "pki")
    zk, app = make_broker(tmp_path / "pki", "zk", ["127.0.0.1"]).parent, make_client(tmp_path / "pki", "app").parent
    options = {"--certificate": zk / "broker.pem", "--key": zk / "broker.key", "--ca": zk / "ca.pem"}
    words = [str(word) for option in options.items() for word in option]
    process = start("zookeeper", "--port", "0", "--secure-port", "0", "--data-dir", str(tmp_path / "zk"), *words)
    said = re.fullmatch(r"zookeeper serves at (127\.0\.0\.1:\d+), with TLS at (127\.0\.0\.1:\d+)", first_line(process))
    assert said is not None
    files = CertificateFiles(*(str(app / name) for name in ("ca.pem", "client.pem", "client.key")))
    with ZkSession(said[1]) as plain, ZkSession(said[2], tls=files) as secure:
        plain.zk.create("/a", b"x")
        assert secure.zk.get("/a")[0] == b"x"
    profile = tmp_path / "profile.ini"
    profile.write_text(f"[zookeeper]\nca = {zk / 'ca.pem'}\n")
    ran = run("topics", "list", "--zk", said[2], env={"METAQ_PROFILE": str(profile)})
    assert_one_line(ran, "check `certificate` and `key`")  # required by default
    assert stop(process) == 0


def server_ini(directory, connect_string, port, more=""):
    return (
        f"[system]\nbrokerId=5\nhostName=127.0.0.1\nserverPort={port}\nnumPartitions=1\ndataPath={directory}/data\n"
        "unflushThreshold=0\nunflushInterval=10000\nmaxSegmentSize=1073741824\nmaxTransferSize=1048576\n"
        f"{more}[zookeeper]\nzk.zkConnect={connect_string}\nzk.zkSyncTimeMs=100\n[topic=only]\n"
    )


# --- bad input: one line that names the thing and the remedy, and a non-zero exit -------------------------------------


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("up", "--zookeeper-port", "0"), "--port"),
        (("up", "--port", "0"), "--zookeeper-port"),
        (("zookeeper",), "--port"),
    ],
)
def test_a_port_in_use_is_one_clear_line(taken_port, tmp_path, command, option):
    ran = run(*command, option, str(taken_port), "--data-dir", str(tmp_path / "data"))
    assert_one_line(ran, f"{option}={taken_port}", "choose another port")


def test_data_directory_in_use_is_one_clear_line_and_the_owner_goes_on(tmp_path):
    with serving_up(tmp_path / "data", ["trades:1"]) as up:
        second = run(*UP, "--data-dir", str(tmp_path / "data"))
        assert_one_line(second, f"--data-dir={tmp_path / 'data'}", "choose another directory")
        assert up.run("produce", "--topic", "trades", stdin=b"still here\n").code == 0


def test_unknown_key_in_server_ini_is_one_clear_line_with_a_suggestion(zookeeper, tmp_path):
    ini = tmp_path / "server.ini"
    ini.write_text(server_ini(tmp_path, zookeeper.connect_string, port=0, more="numPartition=3\n"))
    ran = run("broker", "-f", str(ini))
    assert_one_line(ran, "numPartition", "numPartitions")


def fake_java(directory, says):
    java = directory / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return {"PATH": str(directory), "JAVA_HOME": ""}


def test_wrong_or_missing_java_for_apaches_server_is_one_clear_line(tmp_path):
    old = fake_java(tmp_path, 'java version "1.8.0_292"')
    empty = {"PATH": str(tmp_path / "nothing"), "JAVA_HOME": ""}
    server = ("--zookeeper", jars_of_apache(tmp_path / "jars", "3.9.6"))
    for command in (UP, ("zookeeper", "--port", "0")):
        ran = run(*command, *server, "--data-dir", str(tmp_path / "data"), env=old)
        assert_one_line(ran, "version 8", "Java 17", "apt-get install openjdk-17")
        ran = run(*command, *server, "--data-dir", str(tmp_path / "data"), env=empty)
        assert_one_line(ran, "Java 17", "apt-get install openjdk-17")


def test_up_goes_on_with_apaches_server_from_its_jars_and_never_beside_its_data(tmp_path):
    server = ("--zookeeper", jars_of_apache(tmp_path / "jars", "3.9.6"))
    first = start_up(tmp_path / "data", ["trades:1"], *server)
    assert first.run("produce", "--topic", "trades", stdin=b"kept\n").code == 0
    assert stop(first.process) == 0
    assert_one_line(run(*UP, "--data-dir", str(tmp_path / "data")), "holds the data of Apache's", "--zookeeper apache:")
    with serving_up(tmp_path / "data", ["trades:1"], *server) as again:
        assert again.run("consume", "--topic", "trades").out == "kept\n"


def test_up_of_the_standalone_server_refuses_apaches_and_servers_with_a_known_hole(tmp_path):
    assert stop(start_up(tmp_path / "data", ["trades:1"]).process) == 0
    new, old = jars_of_apache(tmp_path / "new", "3.9.6"), jars_of_apache(tmp_path / "old", "3.9.5")
    data = ("--data-dir", str(tmp_path / "data"))
    assert_one_line(run(*UP, *data, "--zookeeper", new), "holds the data of the standalone ZooKeeper", "leave out")
    assert_one_line(run(*UP, *data, "--zookeeper", old), "3.9.5", "CVE-2026-79993", "3.9.6 or later")
    assert_one_line(run(*UP, *data, "--zookeeper", f"apache:{tmp_path}"), "no zookeeper-VERSION.jar is there")
    assert "is no ZooKeeper server" in run(*UP, *data, "--zookeeper", "etcd").err


def test_unreachable_zookeeper_is_one_clear_line(tmp_path):
    with socket.socket() as closed:  # bound, but nobody listens
        closed.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{closed.getsockname()[1]}"
        commands = (
            ("produce", "--topic", "t"),
            ("consume", "--topic", "t"),
            ("consume", "--topic", "t", "--group", "g"),
            ("topics", "list"),
            ("groups", "list"),
            ("brokers", "list"),
        )
        with ThreadPoolExecutor(len(commands)) as pool:
            for ran in pool.map(lambda command: run(*command, "--zk", nowhere, stdin=b"x\n"), commands):
                assert_one_line(ran, nowhere)
