"""What operators do with broker sets: `metaq up --replicas`, and the commands below `metaq brokers`."""

import json
import os
import shutil
import signal
from pathlib import Path

from tests.waiting import DEADLINE, eventually

from .cli_helpers import Up, pids_of_children, run, serving_up, start_up, stop


def sets(up: Up) -> dict[str, dict[str, object]]:
    """The rows of `metaq brokers sets` by set and node, as 0a."""
    ran = up.run("brokers", "sets", "--json")
    return {f"{row['set']}{row['node']}": row for row in json.loads(ran.out)}


def roles_of(up: Up, broker_id: int) -> list[object]:
    """The roles in a set."""
    return [row["role"] for row in sets(up).values() if row["set"] == broker_id]


def has_failed_over(up: Up) -> bool:
    return all(int(str(row["epoch"])) > 1 for row in sets(up).values() if row["set"] == 0)


def test_up_with_replicas_serves_in_sync_sets_with_spread_leaders_and_goes_on_after_a_kill(tmp_path):
    up = start_up(tmp_path / "data", ["trades:2"], "--brokers", "2", "--replicas", "2")
    try:
        assert {name: row["role"] for name, row in sets(up).items()} == {
            "0a": "leader",
            "0b": "in-sync",
            "1a": "in-sync",
            "1b": "leader",
        }
        assert len(set(up.broker_ports)) == 4
        sent = "".join(f"{number}\n" for number in range(40)).encode()
        assert up.run("produce", "--topic", "trades", "--batch", "1", stdin=sent).code == 0
        end(up, "broker-0/server.ini", signal.SIGKILL)
        roles = ["in-sync", "leader"]
        eventually(
            lambda: has_failed_over(up) and sorted(map(str, roles_of(up, 0))) == roles, 2 * DEADLINE, "a new leader"
        )
        consumed = up.run("consume", "--topic", "trades", "--group", "g", "--count", "40", "--timeout", "60")
        assert sorted(map(int, consumed.out.split())) == list(range(40))
    finally:
        up.process.send_signal(signal.SIGTERM)
        _, said = up.process.communicate(timeout=2 * DEADLINE)
    assert "broker 0 node a was ended by SIGKILL: it is started again" in said.decode()
    assert up.process.returncode == 0


def end(up: Up, ini: str, number: int) -> int:
    """Send a signal to the child that has this configuration; its process id."""
    for pid in pids_of_children(up.process.pid):
        if f"/{ini}\0" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, number)
            return pid
    raise AssertionError(f"no process has {ini}")


def test_up_continues_a_directory_without_replicas_and_refuses_fewer(tmp_path):
    data = tmp_path / "data"
    with serving_up(data, ["trades:1"]) as up:
        assert up.run("produce", "--topic", "trades", stdin=b"kept\n").code == 0
    with serving_up(data, ["trades:1"], "--replicas", "2") as up:
        assert {name: row["role"] for name, row in sets(up).items()} == {"0a": "leader", "0b": "in-sync"}
        segments = [sorted((data / each / "data" / "trades-0").glob("*.meta")) for each in ("broker-0", "broker-0-b")]
        assert segments[0][0].read_bytes() == segments[1][0].read_bytes() != b""
    ran = run("up", "--port", "0", "--zookeeper-port", "0", "--data-dir", str(data), "--replicas", "1")
    assert ran.code == 1
    assert "--replicas=1" in ran.err
    assert "start 2" in ran.err
    with serving_up(data, ["trades:1"]) as up:
        assert len(sets(up)) == 2
        assert up.run("consume", "--topic", "trades").out == "kept\n"


def test_up_has_the_node_lead_that_has_the_data_when_the_directory_of_the_other_one_is_gone(tmp_path):
    data = tmp_path / "data"
    up = start_up(data, ["trades:1"], "--replicas", "2")
    try:
        assert up.run("produce", "--topic", "trades", stdin=b"kept\n").code == 0
    finally:
        assert stop(up.process) == 0  # node a stops last, so it alone was in sync
    shutil.rmtree(data / "broker-0")
    with serving_up(data, ["trades:1"], "--replicas", "2") as up:
        assert {name: row["role"] for name, row in sets(up).items()} == {"0a": "in-sync", "0b": "leader"}
        assert up.run("consume", "--topic", "trades").out == "kept\n"
        assert up.process.stderr is not None
        said = os.read(up.process.stderr.fileno(), 1 << 16).decode()
    assert "broker 0: the data of node a, which was in sync last, are gone: node b leads with what it has" in said
