"""Directories of servers, and the server.ini that `metaq up` writes."""

import ast
import shlex
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from metaq.cli import app, local_cluster
from metaq.cli.earlier_starts import EarlierStarts, all_settings, all_topics
from metaq.cli.local_cluster import ClusterPlan, LocalCluster, server_ini
from metaq.cli.options import TopicSetting, TopicSpec
from metaq.cli.servers import locked_directory
from metaq.cli.up import check_secure, steps_of_users
from metaq.protocol.access import AccessGrant
from metaq.protocol.errors import ConfigError, DirectoryInUse


def test_directory_in_use_is_refused(tmp_path):
    with locked_directory("--data-dir", tmp_path / "data"):
        second = locked_directory("--data-dir", tmp_path / "data")
        with pytest.raises(DirectoryInUse, match=r"--data-dir=.*choose another directory"):
            second.__enter__()
    with locked_directory("--data-dir", tmp_path / "data"):
        pass  # free again


def test_directory_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    below_a_file = locked_directory("--data-dir", tmp_path / "file" / "data")
    with pytest.raises(ConfigError, match=r"--data-dir=.*cannot be written"):
        below_a_file.__enter__()


PLAN = ClusterPlan(Path("/data"), [7001, 7002], 2181, [TopicSpec("trades", 4), TopicSpec("news", 1)])


def test_server_ini_has_the_broker_its_topics_and_durable_flush():
    lines = server_ini(PLAN, PLAN.nodes()[1], "127.0.0.1:2181").splitlines()
    assert {"brokerId=1", "serverPort=7002", "dataPath=/data/broker-1/data", "unflushThreshold=0"} <= set(lines)
    assert lines[lines.index("[topic=trades]") + 1] == "numPartitions=4"
    assert "zk.zkConnect=127.0.0.1:2181" in lines


@pytest.mark.parametrize(
    ("made", "secure", "said"),
    [
        ("broker-0/server.ini", True, "it was made without --secure, .*leave --secure out"),
        ("security/ca.pem", False, "it was made with --secure, .*add --secure"),
        ("security/ca.pem", True, None),
        ("broker-0/server.ini", False, None),
        ("other/file", True, None),
    ],
)
def test_a_directory_is_for_users_or_for_everybody_from_its_first_start_on(tmp_path, made, secure, said):
    (tmp_path / made).parent.mkdir()
    (tmp_path / made).write_text("")
    expected = nullcontext() if said is None else pytest.raises(ConfigError, match=f"--data-dir={tmp_path}: {said}")
    with expected:
        check_secure(secure, EarlierStarts.read(tmp_path), tmp_path)


def test_what_up_prints_quotes_what_a_shell_a_grant_and_python_need():
    text = steps_of_users("127.0.0.1:2181", 'it\'s@"home"', Path("/a b/admin.ini"), zookeeper_tls=True)
    _, _, export, add, _, *program = text.splitlines()
    assert shlex.split(export)[-1] == "METAQ_PROFILE=/a b/admin.ini"
    words = shlex.split(add)
    send, consume = (AccessGrant.parse(words[at + 1]) for at, word in enumerate(words) if word == "--can")
    assert (send.topic, consume.topic, consume.group) == (*['it\'s@"home"'] * 2, "billing")
    constants = [node.value for node in ast.walk(ast.parse("\n".join(program))) if isinstance(node, ast.Constant)]
    assert constants.count('it\'s@"home"') == 2


def test_server_ini_of_the_fast_mode_flushes_in_the_background():
    assert "unflushThreshold=1000" in server_ini(replace(PLAN, durable=False), PLAN.nodes()[0], "127.0.0.1:2181")


def test_settings_are_in_the_sections_of_their_topics():
    settings = [TopicSetting("trades", "acceptCompressed", "true"), TopicSetting("trades", "numPartitions", "9")]
    lines = server_ini(replace(PLAN, settings=settings), PLAN.nodes()[0], "127.0.0.1:2181").splitlines()
    begin = lines.index("[topic=trades]")
    assert lines[begin + 1 : begin + 4] == ["numPartitions=9", "acceptCompressed=true", "[topic=news]"]


@pytest.mark.parametrize(
    ("apache_jars", "order"),
    [(None, ["launch", "brokers", "serves"]), (Path("/jars"), ["launch", "serves", "brokers"])],
)
def test_brokers_ask_a_server_that_starts_for_a_session_unless_it_is_apaches(monkeypatch, apache_jars, order):
    """Apache's opens no session to anybody when one was asked for before it served."""
    done: list[str] = []
    server = Mock(launch=lambda: done.append("launch"), wait_until_serving=lambda: done.append("serves"))
    monkeypatch.setattr(local_cluster, "local_zookeeper", lambda *_: server)
    monkeypatch.setattr(local_cluster, "ZkSession", Mock())
    monkeypatch.setattr(LocalCluster, "_start_brokers", lambda _: done.append("brokers"))
    monkeypatch.setattr(LocalCluster, "_wait_for_brokers", Mock())
    LocalCluster(replace(PLAN, apache_jars=apache_jars)).start()
    assert done == order


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ca", __file__], "--ca: give both --certificate and --key"),
        (["--certificate", __file__], "--certificate: give both --certificate and --key"),
        (["--secure-port", "0"], "--secure-port: give both --certificate and --key"),
        (["--key", "/none"], "File '/none' does not exist"),
        (
            ["--certificate", __file__, "--key", __file__, "--zookeeper", "apache:jars"],
            "leave out --zookeeper, or set up Apache's secureClientPort yourself",
        ),
        (["--client-certificates", "want"], "'want' is not one of"),
    ],
)
def test_options_of_zookeepers_port_with_tls_that_do_not_fit_are_refused(capsys, options, said):
    assert app.run(["zookeeper", *options]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def write_ini(data_dir, plan, number):
    node = plan.nodes()[number]
    directory = data_dir / node.directory.relative_to(plan.data_dir)
    directory.mkdir(parents=True)
    (directory / "server.ini").write_text(server_ini(plan, node, "127.0.0.1:2181"))
    return directory / "server.ini"


def test_a_start_remembers_topics_without_messages_settings_and_brokers(tmp_path):
    kept = [TopicSetting("trades", "acceptCompressed", "true"), TopicSetting("news", "deletePolicy", "delete,24")]
    for number in (0, 1):
        write_ini(tmp_path, replace(PLAN, settings=kept), number)
    (tmp_path / "zookeeper").mkdir()
    assert EarlierStarts.read(tmp_path) == EarlierStarts({}, list(PLAN.topics), kept, 2, 0, False)
    assert EarlierStarts.read(tmp_path / "none") == EarlierStarts({}, [], [], 0, 0, False)


def test_a_server_ini_that_cannot_be_read_is_no_reason_to_forget_topics(tmp_path):
    path = write_ini(tmp_path, PLAN, 0)
    for damaged in ("[topic=trades]\n", "numPartitions=1\n", "[topic=trades]\nnumPartitions=x\n"):
        path.write_text(damaged)
        with pytest.raises(ConfigError, match=r"--data-dir=.*broker-0/server.ini.*topics of earlier starts"):
            EarlierStarts.read(tmp_path)


def test_lists_of_topics_and_settings_become_one():
    topics = all_topics([TopicSpec("a", 1), TopicSpec("b", 3)], [TopicSpec("a", 2)], [TopicSpec("b", 1)])
    assert topics == [TopicSpec("a", 2), TopicSpec("b", 3)]
    old, new = TopicSetting("a", "ack", "all"), TopicSetting("a", "ack", "leader")
    assert all_settings([old], [new, old._replace(topic="b")]) == [new, old._replace(topic="b")]
