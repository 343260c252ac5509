"""`metaq monitor`: when it gives an alarm."""

import json
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.cli import probes
from metaq.cli.app import run
from metaq.cli.probes import Monitor, ProbeLevel, ProbeLimits
from metaq.client.admin.group_lag import GroupPartition
from metaq.client.questions.partition_bounds import Bounds
from metaq.client.questions.shared import SharedPartition
from metaq.client.questions.sources import Survey
from metaq.client.records.results import TopicPartition
from metaq.coordination.brokers.cluster_view import BrokerAddress, BrokerNodes
from metaq.protocol.errors import (
    BrokerUnavailable,
    CoordinationUnavailable,
    NotLeader,
    RemoteProtocolError,
    RequestRefused,
)

PLACE = TopicPartition("trades", 0, 3)
OK, WARNING, ALARM, UNKNOWN = ProbeLevel.OK, ProbeLevel.WARNING, ProbeLevel.ALARM, ProbeLevel.UNKNOWN


class Nowhere:
    def __init__(self, zk):
        raise CoordinationUnavailable(f"no ZooKeeper at {zk}")


@pytest.fixture
def monitor(monkeypatch):
    monkeypatch.setattr(probes, "open_cluster", Nowhere)
    return Monitor("zk:1", ProbeLimits(max_lag=100, min_memory=0))


def cause(monitor, offset, *, end=1000, first=0, members=1, owner="c"):
    """(level, first two words) of what is seen of one partition; offset: None if none is committed."""
    lag = end - (first if offset is None else offset)
    row = GroupPartition(PLACE, owner, offset, Bounds(first, end, None), lag)
    level, text = monitor._cause("g", row, members)
    return level, " ".join(text.split()[:2])


def test_lag_beyond_the_limit_is_an_alarm(monitor):
    assert cause(monitor, 900) == (OK, "behind by")
    assert cause(monitor, 899) == (ALARM, "more than")


def test_standing_still_is_known_from_the_second_look_on(monitor):
    assert cause(monitor, 990) == (OK, "behind by")
    assert cause(monitor, 990) == (ALARM, "stands still")
    assert cause(monitor, 991) == (OK, "behind by")
    assert cause(monitor, 1000) == cause(monitor, 1000) == (OK, "behind by")


@pytest.mark.parametrize(("owner", "fine", "stuck"), [("c", OK, "stands still"), (None, WARNING, "no owner")])
def test_what_has_come_since_the_last_look_stands_not_still(monitor, owner, fine, stuck):
    assert cause(monitor, 1000, owner=owner)[0] is fine
    assert cause(monitor, 1000, end=1010, owner=owner)[0] is fine  # it came a moment ago
    assert cause(monitor, 1000, end=1020, owner=owner) == (ALARM, stuck)
    assert cause(monitor, 1020, end=1020, owner=owner)[0] is fine
    assert cause(monitor, 1020, end=1030, owner=owner)[0] is fine


def test_messages_that_wait_for_nobody_are_an_alarm_however_few(monitor):
    assert cause(monitor, 999, members=0, owner=None) == (ALARM, "no live")
    assert cause(monitor, None, members=0, owner=None) == (ALARM, "no live")
    assert cause(monitor, 1000, members=0, owner=None) == (OK, "at the")


def test_a_partition_without_an_owner_is_a_warning_until_it_stands_still(monitor):
    assert cause(monitor, 990, owner=None) == (WARNING, "no owner")
    assert cause(monitor, 990, owner=None) == (ALARM, "no owner")


def test_a_partition_without_an_offset_is_not_ok_while_it_has_messages(monitor):
    assert cause(monitor, None, end=100) == (WARNING, "no offset")
    assert cause(monitor, None, end=101) == (ALARM, "more than")
    assert cause(monitor, None, end=0) == (OK, "behind by")


@pytest.mark.parametrize(("offset", "first"), [(1001, 0), (9, 10)])
def test_an_offset_that_cannot_be_read_is_an_alarm(monitor, offset, first):
    assert cause(monitor, offset, first=first) == (ALARM, "the offset")


def test_a_group_that_has_read_what_is_lost_is_an_alarm_with_the_place_to_go_back_to(monitor):
    """Wherever it stands: also where everything else looks as it should."""
    for committed, members in ((1000, 1), (500, 0), (1001, 0)):
        row = GroupPartition(PLACE, None, committed, Bounds(0, 1000, 9), 0, 0, 0, missed_from=400)
        level, text = monitor._cause("audit", row, members)
        assert level is ALARM
        assert "has read messages that are lost, and skips the messages that took their place" in text
        assert "`metaq groups seek audit --topic TOPIC --partition PARTITION --to OFFSET`" in text
        assert f"trades 0-3 (offset {committed}, back to 400)" in probes._listed([row])


def test_what_a_silent_broker_hides_is_unknown(monitor):
    row = GroupPartition(PLACE, "c", 5, None)
    assert monitor._cause("g", row, 1).level is UNKNOWN
    assert probes._waiting([row]) == "unknown messages, unknown bytes, unknown seconds"


def test_a_figure_that_a_broker_does_not_tell_is_not_zero():
    assert [each.level for each in probes._above("it", "connection", None, 5)] == [UNKNOWN]


@pytest.mark.parametrize(("value", "text"), [(1, "1 failed put today (limit 1)"), (2, "2 failed puts today (limit 1)")])
def test_one_is_told_in_the_singular(value, text):
    assert [each.text for each in probes._above("it", "failed put", value, 1, " today")] == [text]


def shared(group="thumbnails", left=0, leased=0, **members):
    return SharedPartition(group, PLACE, left, leased, 0, 0, None, False, 0, members)


@pytest.mark.parametrize(
    ("partitions", "level", "text"),
    [
        (
            [shared(left=1), shared(left=2)],
            ALARM,
            "shared group, no live member, and messages are waiting: 3 messages left, 0 of them leased",
        ),
        ([shared(left=1, leased=1, a=1), shared(a=0)], OK, "shared group, 1 member: 1 message left, 1 of them leased"),
        ([shared()], OK, "shared group, 0 members: 0 messages left, 0 of them leased"),
    ],
)
def test_messages_of_a_shared_group_that_wait_for_no_member_are_an_alarm(partitions, level, text):
    assert probes._shared("g", partitions) == (level, "group g", f"{text}: see `metaq shared describe g`")


def test_dead_letters_of_a_silent_broker_are_unknown_and_no_second_alarm(monitor):
    lies = TopicPartition("%DEAD%g", 1, 0)
    cluster = SimpleNamespace(readable=lambda topic: [lies] if topic == lies.topic else [])
    survey = SimpleNamespace(ask_each=lambda partitions, question: {}, refused={})
    found = list(monitor._dead_letters(cluster, survey, "g"))
    assert found == [(UNKNOWN, "group g", "dead letters are unknown in %DEAD%g 1-0")]
    assert list(monitor._dead_letters(cluster, survey, "other")) == []


def test_zookeeper_that_does_not_answer_is_an_alarm_and_the_exit_code(monitor, capsys):
    assert run(["monitor", "--zk", "zk:1", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert found[0] == {"level": "alarm", "what": "zookeeper", "text": "no ZooKeeper at zk:1"}


@pytest.mark.parametrize(("limit", "level"), [(90, ALARM), (91, OK)])
def test_a_full_disk_is_an_alarm(monkeypatch, tmp_path, limit, level):
    monkeypatch.setattr(probes, "open_cluster", Nowhere)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=1000, used=910))
    found = Monitor("zk:1", ProbeLimits(max_disk=limit), data_dirs=[str(tmp_path)]).look()
    assert (level, f"disk {tmp_path}", f"91 percent full (limit {limit})") in found


def test_a_disk_that_is_gone_is_an_alarm_and_hides_nothing_else(monitor, tmp_path):
    (tmp_path / "data").mkdir()
    watching = Monitor("zk:1", ProbeLimits(), data_dirs=[str(tmp_path / "data"), str(tmp_path)])
    (tmp_path / "data").rmdir()
    found = {each.what: each for each in watching.look()}
    assert found[f"disk {tmp_path / 'data'}"].level is ALARM
    assert {f"disk {tmp_path}", "memory", "zookeeper"} <= found.keys()


class TwoBrokers:
    """Broker 0 fails as it is told to; broker 1 is well. Neither is a set."""

    def __init__(self, error):
        self.error = error
        self.asked = []
        nodes = {each: BrokerNodes(BrokerAddress(each, None, f"h{each}", 1)) for each in (0, 1)}
        nothing = dict.fromkeys(("groups", "topics", "broker_ids"), list)
        self.view: Any = SimpleNamespace(brokers=lambda: nodes, **nothing)
        self.sets = dict

    def survey(self):
        return Survey(self.view, self.connect)

    def connect(self, endpoint):
        self.asked.append(endpoint.host)
        if endpoint.host == "h0":
            raise self.error
        return endpoint


FAILURES = [NotLeader(0), RemoteProtocolError("nonsense"), RequestRefused(500, "no"), BrokerUnavailable("gone")]


@pytest.fixture
def well(monkeypatch):
    """A broker that is asked has nothing to say."""
    monkeypatch.setattr(Monitor, "_asked", lambda self, number, it: [probes.Seen(OK, f"broker {number}", "")])
    monkeypatch.setattr(probes, "_shared_status", lambda connection, partition: [])


@pytest.mark.usefixtures("well")
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_one_broker_in_trouble_is_one_alarm_and_hides_nothing_else(monitor, error):
    seen = {each.what: each for each in monitor._cluster(TwoBrokers(error))}
    assert (seen["broker 0"].level, seen["broker 1"].level) == (ALARM, OK)
    assert str(error) in seen["broker 0"].text


@pytest.mark.usefixtures("well")
def test_a_set_whose_leader_has_stopped_is_one_line_and_is_not_asked_any_more(monitor, monkeypatch):
    cluster = TwoBrokers(NotLeader(0))
    stopped = SimpleNamespace(broker_id=0, leader="", is_replaced=False)
    monkeypatch.setattr(probes, "look_at_sets", lambda views: [stopped])
    monkeypatch.setattr(probes, "_set", lambda look: probes.Seen(ALARM, "set 0", "nobody leads it"))
    assert [each.what for each in monitor._cluster(cluster)] == ["set 0", "broker 1", "shared groups"]
    assert "h0" not in cluster.asked


def test_a_broker_that_does_not_answer_hides_nothing_else():
    def steps():
        yield probes.Seen(OK, "it", "first")
        raise BrokerUnavailable("gone")

    assert [tuple(each) for each in probes._guarded("it", steps())] == [(OK, "it", "first"), (ALARM, "it", "gone")]


def test_again_and_again_until_it_is_told_to_stop(monitor, monkeypatch, capsys):
    waits = iter([False, False, True])
    monkeypatch.setattr("metaq.cli.monitor._stopped", lambda stop, seconds: next(waits))
    assert run(["monitor", "--zk", "zk:1", "--every", "0.5"]) == 1
    assert capsys.readouterr().out.count("no ZooKeeper at zk:1") == 3


NOW = 1_700_000_000.0
ANY_CONNECTION: Any = object()
DAY_MS = 24 * 3600 * 1000.0


@pytest.mark.parametrize(
    ("mode", "exists", "days", "level", "said"),
    [
        ("enforce", True, 31, OK, "expires on 2023-12-15"),
        ("enforce", True, 29, WARNING, "expires on 2023-12-13: metaq users expire legacy 90d"),
        ("enforce", True, 0, ALARM, "has expired"),
        ("observe", True, -1, WARNING, "has expired"),
        ("enforce", True, None, ALARM, "does not expire"),
        ("enforce", False, None, ALARM, "does not exist"),
    ],
)
def test_a_user_by_address_is_told_with_his_expiry(monkeypatch, mode, exists, days, level, said):
    monkeypatch.setattr("time.time", lambda: NOW)
    networks = ["10.0.0.0/8", "192.168.1.7/32"]
    expires = None if days is None else NOW * 1000 + days * DAY_MS
    user = {"name": "legacy", "networks": networks, "exists": exists, "expires_ms": expires}
    report = {"mode": mode, "users": 2, "refused": [], "forgotten": 0, "admins": [], "addresses": [user]}
    monkeypatch.setattr(probes, "read_stats", lambda connection, item: [json.dumps(report)])
    (seen,) = probes.users_by_address("broker 0", ANY_CONNECTION)
    assert (seen.level, seen.what) == (level, "broker 0")
    assert seen.text.startswith("the user legacy (by address: 10.0.0.0/8, 192.168.1.7/32) ")
    assert said in seen.text
    report["mode"] = "open"
    assert list(probes.users_by_address("broker 0", ANY_CONNECTION)) == []


def test_a_broker_of_an_earlier_version_has_no_users_by_address(monkeypatch):
    for lines in (
        ["access", "resultCode 1"],
        ['{"mode": "enforce", "users": 1, "refused": [], "forgotten": 0, "admins": []}'],
    ):
        monkeypatch.setattr(probes, "read_stats", lambda connection, item, lines=lines: lines)
        assert list(probes.users_by_address("broker 0", ANY_CONNECTION)) == []
