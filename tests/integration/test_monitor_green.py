"""`metaq monitor` is not green while a broker refuses messages, or a server of ZooKeeper is down."""

from __future__ import annotations

from pathlib import Path

from tests.broker_process import RunningBroker, server_ini
from tests.integration.cli_helpers import Operator

LOOK = ("monitor", "--min-memory", "0")


def test_a_broker_without_room_and_a_server_of_zookeeper_that_is_down_are_alarms(tmp_path: Path, chroot: str) -> None:
    ini = server_ini(tmp_path / "data", {"t": "numPartitions=1"}, zookeeper=f"zk.zkConnect={chroot}")
    with RunningBroker(tmp_path, ini):
        operator = Operator(chroot)
        green = operator.ran(*LOOK)
        assert green.code == 0, green.out
        assert f"ok    broker 0: {tmp_path}/data has " in green.out
        servers, _, below = chroot.partition("/")
        one_down = Operator(f"{servers},127.0.0.1:1/{below}").ran(*LOOK)
        assert one_down.code == 1
        assert "alarm zookeeper: nothing listens at 127.0.0.1:1: start ZooKeeper there" in one_down.out
        assert "answers, 1 of 2 servers" in one_down.out
    command = ("-m", "metaq", "broker", "--disk-reserve", "1000t", "-f")
    with RunningBroker(tmp_path, ini, module=command):
        full = operator.ran(*LOOK)
    assert full.code == 1
    assert f"alarm broker 0: refuses messages for want of room: {tmp_path}/data has " in full.out
