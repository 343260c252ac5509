"""`metaq monitor`: when it gives an alarm."""

import json
import shutil
from types import SimpleNamespace

import pytest

from metaq.cli import probes
from metaq.cli.app import run
from metaq.cli.probes import Level, Limits, Monitor
from metaq.client.inquiry import Bounds
from metaq.client.values import TopicPartition
from metaq.protocol.errors import BrokerUnavailable, CoordinationUnavailable

PLACE = TopicPartition("trades", 0, 3)


class Nowhere:
    def __init__(self, zk):
        raise CoordinationUnavailable(f"no ZooKeeper at {zk}")


@pytest.fixture
def monitor(monkeypatch):
    monkeypatch.setattr(probes, "Cluster", Nowhere)
    return Monitor("zk:1", Limits(max_lag=100, min_memory=0))


def look(monitor, offset, end=1000, first=0, live=True):
    """(level, first words) of what is seen of one partition."""
    return [
        (each.level, " ".join(each.text.split()[:2]))
        for each in monitor._progress("it", ("g", PLACE), offset, Bounds(first, end, None), live)
    ]


def test_lag_beyond_the_limit_is_an_alarm(monitor):
    assert look(monitor, 900) == [(Level.OK, "100 bytes")]
    assert look(monitor, 899) == [(Level.ALARM, "101 bytes")]


def test_standing_still_is_known_from_the_second_look_on(monitor):
    assert look(monitor, 990) == [(Level.OK, "10 bytes")]
    assert look(monitor, 990) == [(Level.ALARM, "stands still"), (Level.OK, "10 bytes")]
    assert look(monitor, 991) == [(Level.OK, "9 bytes")]
    assert look(monitor, 991, live=False) == [(Level.OK, "9 bytes")]
    assert look(monitor, 1000) == look(monitor, 1000) == [(Level.OK, "0 bytes")]


@pytest.mark.parametrize(("offset", "first"), [(1001, 0), (9, 10)])
def test_an_offset_that_cannot_be_read_is_an_alarm(monitor, offset, first):
    assert look(monitor, offset, first=first) == [(Level.ALARM, f"offset {offset}")]


def test_zookeeper_that_does_not_answer_is_an_alarm_and_the_exit_code(monitor, capsys):
    assert run(["monitor", "--zk", "zk:1", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert found[0] == {"level": "alarm", "what": "zookeeper", "text": "no ZooKeeper at zk:1"}


def test_a_full_disk_is_an_alarm(monkeypatch, tmp_path):
    monkeypatch.setattr(probes, "Cluster", Nowhere)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=1000, used=910))
    found = Monitor("zk:1", Limits(max_disk=90), data_dirs=[str(tmp_path)]).look()
    assert (Level.ALARM, f"disk {tmp_path}", "91 percent full (limit 90)") in found
    found = Monitor("zk:1", Limits(max_disk=91), data_dirs=[str(tmp_path)]).look()
    assert (Level.OK, f"disk {tmp_path}", "91 percent full (limit 91)") in found


def test_a_broker_that_does_not_answer_hides_nothing_else():
    def steps():
        yield probes.Seen(Level.OK, "it", "first")
        raise BrokerUnavailable("gone")

    assert [tuple(each) for each in probes._guarded("it", steps())] == [
        (Level.OK, "it", "first"),
        (Level.ALARM, "it", "gone"),
    ]


def test_again_and_again_until_it_is_told_to_stop(monitor, monkeypatch, capsys):
    waits = iter([False, False, True])
    monkeypatch.setattr("metaq.cli.monitor._stopped", lambda stop, seconds: next(waits))
    assert run(["monitor", "--zk", "zk:1", "--every", "0.5"]) == 1
    assert capsys.readouterr().out.count("no ZooKeeper at zk:1") == 3
