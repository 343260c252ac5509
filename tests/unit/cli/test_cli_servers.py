"""Directories of servers, and the server.ini that `metaq up` writes."""

from dataclasses import replace
from pathlib import Path

import pytest

from metaq.cli.local_cluster import ClusterPlan, server_ini
from metaq.cli.options import TopicSetting, TopicSpec
from metaq.cli.servers import locked_directory
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


def test_server_ini_of_the_fast_mode_flushes_in_the_background():
    assert "unflushThreshold=1000" in server_ini(replace(PLAN, durable=False), PLAN.nodes()[0], "127.0.0.1:2181")


def test_settings_are_in_the_sections_of_their_topics():
    settings = [TopicSetting("trades", "acceptCompressed", "true"), TopicSetting("trades", "numPartitions", "9")]
    lines = server_ini(replace(PLAN, settings=settings), PLAN.nodes()[0], "127.0.0.1:2181").splitlines()
    begin = lines.index("[topic=trades]")
    assert lines[begin + 1 : begin + 4] == ["numPartitions=9", "acceptCompressed=true", "[topic=news]"]
