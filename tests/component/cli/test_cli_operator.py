"""Commands for operators: what they ask a broker, how they say what it refused, and what they print."""

import json

import pytest

from metaq.broker.replication.status import CopyState, PartitionStatus, ReplicationStatus
from metaq.cli.app import run
from metaq.cli.stats import named_figures, stats_rows
from metaq.protocol.frames import Frame
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.testing import FakeBroker


@pytest.fixture
def broker():
    with FakeBroker({"trades": 2}) as broker:
        yield broker


def at(broker):
    return ("--server", f"127.0.0.1:{broker.endpoint.port}")


def ran(capsys, *arguments):
    code = run(arguments)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


COMMANDS = {
    1020: ("reload",),
    1021: ("partitions", "close", "--topic", "trades", "--start", "0", "--end", "1"),
    1022: ("partitions", "open", "--topic", "trades"),
    1023: ("transactions", "list"),
    1024: ("transactions", "rollback", "TX:a:1", "--yes"),
    1025: ("replication", "status"),
    1026: ("replication", "restart"),
}


@pytest.mark.parametrize(("code", "command"), COMMANDS.items())
def test_a_java_broker_is_not_asked_and_the_way_round_is_named(broker, capsys, code, command):
    broker.speaks_frames = False
    exit_code, out, err = ran(capsys, *command, *at(broker))
    assert (exit_code, out) == (1, "")
    assert "Java broker" in err
    assert "JMX port" in err
    assert not any(f"frame {code}" == asked for asked in broker.requests)


@pytest.mark.parametrize(("code", "command"), COMMANDS.items())
def test_each_command_sends_its_request_and_says_from_where_it_must_be_run(broker, capsys, code, command):
    broker.refuse = lambda request: ResponseCode.NO_PERMISSION if isinstance(request, Frame) else None
    exit_code, _, err = ran(capsys, *command, *at(broker))
    assert exit_code == 1
    assert f"frame {code}" in broker.requests
    assert f"--server 127.0.0.1:{broker.endpoint.port}" in err
    assert "--admin-from any" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("code", [1020, 1026])
def test_a_dry_run_asks_the_broker_nothing(broker, capsys, code):
    exit_code, out, _ = ran(capsys, *COMMANDS[code], *at(broker), "--dry-run")
    assert exit_code == 0
    assert out.startswith("would ")
    assert not broker.requests


@pytest.mark.parametrize("code", [1021, 1022])
def test_a_dry_run_for_a_topic_asks_only_whether_there_is_one(broker, capsys, code):
    exit_code, _, err = ran(capsys, *COMMANDS[code], *at(broker), "--dry-run")
    assert exit_code == 1
    assert "has no topic 'trades'" in err
    assert broker.requests == ["Version", f"frame {int(RequestCode.STATS)}"]


@pytest.mark.parametrize(
    ("status", "exit_code"),
    [
        (ReplicationStatus("master"), 0),
        (ReplicationStatus("sync-slave"), 0),  # it does not follow its master's connection
        (ReplicationStatus("slave", "meta://m:1", True), 0),
        (ReplicationStatus("slave", "meta://m:1"), 1),
        (ReplicationStatus("slave", error="there is no master in ZooKeeper"), 1),
        (ReplicationStatus("sync-master", "meta://s:1", True), 0),
        (ReplicationStatus("sync-master", "meta://s:1"), 1),
        (ReplicationStatus("slave", "meta://m:1", True, partitions=[PartitionStatus("t", 0, CopyState.TROUBLED)]), 1),
    ],
)
def test_the_status_of_replication_fails_while_a_connection_is_missing(broker, capsys, monkeypatch, status, exit_code):
    monkeypatch.setattr("metaq.cli.replication.replication_status", lambda connection: status.to_json())
    assert ran(capsys, *COMMANDS[1025], *at(broker), "--json")[::2] == (exit_code, "")


def test_a_decision_is_not_taken_where_nobody_confirms_it(broker, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115 - pytest puts the old one back
    exit_code, _, err = ran(capsys, "transactions", "commit", "TX:a:1", *at(broker))
    assert exit_code == 1
    assert "--yes" in err
    assert not broker.requests


def test_a_refused_decision_is_told_in_the_brokers_words(broker, capsys):
    broker.refuse = lambda request: ResponseCode.TRANSACTION_REFUSED if isinstance(request, Frame) else None
    exit_code, _, err = ran(capsys, "transactions", "forget", "TX:a:1", "--yes", *at(broker))
    assert (exit_code, err) == (1, "metaq: refused by the test\n")


def test_stats_are_a_table_or_json_or_the_lines_themselves(broker, capsys):
    assert json.loads(ran(capsys, "stats", *at(broker), "--json")[1]) == {"item": "", "broker_id": 0}
    assert "broker_id" in ran(capsys, "stats", *at(broker))[1]
    assert ran(capsys, "stats", *at(broker), "--raw", "topics")[1] == "item topics\nbroker_id 0\n"


@pytest.mark.parametrize("item", ["delayed", "halves", "a-kind-that-only-the-broker-knows"])
def test_stats_of_a_kind_of_messages_are_shown(broker, capsys, item):
    assert ran(capsys, "stats", *at(broker), "--raw", item)[:2] == (0, f"item {item}\nbroker_id 0\n")


def test_an_address_without_a_broker_is_told_with_the_way_out(broker, capsys):
    broker.stop()
    exit_code, _, err = ran(capsys, "stats", *at(broker))
    assert exit_code == 1
    assert err.endswith(": start the broker that listens there, or name another one\n")


def test_lines_of_stats_become_values():
    assert named_figures(["trades", "bytes 12", "version 1.4 x"]) == {"trades": "", "bytes": 12, "version": "1.4 x"}
    assert stats_rows(["t part 3 min_offset 0 max_offset 12", "u *Empty*"]) == [
        {"topic": "t", "part": 3, "min_offset": 0, "max_offset": 12},
        {"topic": "u"},
    ]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["stats", "--server", "nowhere"], "--server"),
        (["stats", "--slave", "1"], "--slave"),
        (["stats", "--broker", "1", "--server", "a:1"], "--server"),
    ],
)
def test_a_wrong_target_is_refused_before_anything_is_asked(capsys, arguments, named):
    exit_code, _, err = ran(capsys, *arguments)
    assert exit_code == 2
    assert named in err
