"""`metaq replication` against real brokers of ours: a slave that copies, stops for foreign bytes, loses its master."""

from pathlib import Path
from typing import Any

from metaq import Producer, TopicPartition
from tests.broker_process import RunningBroker
from tests.waiting import eventually

from .cli_helpers import Operator
from .replication_helpers import broker, slave, status

TOPICS = {"t": 2}
OF_THE_SLAVE = ("--broker", "0", "--slave", "1")


def shown(operator: Operator, *target: str) -> Any:
    return operator.json("replication", "status", *target)


def caught_up(copy: RunningBroker, end: int) -> None:
    """Wait until the slave has everything of both partitions, `end` bytes together."""

    def is_so() -> bool:
        found = status(copy)
        partitions = found["partitions"]
        return bool(found["connected"] and found["lagBytes"] == 0 and sum(each["offset"] for each in partitions) == end)

    eventually(is_so, 20, "the copy")


def test_status_and_restart_of_a_slave_that_copies_until_its_master_goes(tmp_path: Path, chroot: str) -> None:
    operator = Operator(chroot)
    with broker(tmp_path / "master", chroot, TOPICS) as master, slave(tmp_path, chroot, TOPICS) as copy:
        with Producer(chroot) as producer:
            producer.send_batch("t", [b"one", b"two"], partition=TopicPartition("t", 0, 0))
        caught_up(copy, 46)
        address = f"meta://127.0.0.1:{master.port}"
        found = shown(operator, *OF_THE_SLAVE)
        assert (found["role"], found["slaveId"], found["connected"], found["lagBytes"]) == ("slave", 1, True, 0)
        assert found["peer"] == address
        partitions = [
            (each["topic"], each["partition"], each["state"], each["lagBytes"]) for each in found["partitions"]
        ]
        assert partitions == [("t", 0, "current", 0), ("t", 1, "empty", 0)]
        assert shown(operator, "--server", f"127.0.0.1:{copy.port}")["role"] == "slave"
        assert shown(operator, "--broker", "0")["role"] == "master"
        unclear = operator.ran("replication", "status")  # two are registered
        assert unclear.code == 2
        assert "(--slave 1)" in unclear.err
        table = operator.ran("replication", "status", *OF_THE_SLAVE)
        assert (table.code, table.err) == (0, "")
        assert {"MASTER", "END"} <= set(table.out.split())
        assert address in table.out

        restart = ("replication", "restart", *OF_THE_SLAVE)
        connected_ms = found["sinceMs"]
        assert operator.ran(*restart, "--dry-run").out == (
            f"would ask meta://127.0.0.1:{copy.port} to connect to its master or slave anew\n"
        )
        assert status(copy)["sinceMs"] == connected_ms
        assert operator.json(*restart)["role"] == "slave"
        eventually(lambda: status(copy)["connected"] and status(copy)["sinceMs"] > connected_ms, 20, "the restart")
        with Producer(chroot) as producer:
            producer.send("t", b"three")
        caught_up(copy, 71)

        master.kill()
        eventually(lambda: not status(copy)["connected"], 20, "the loss")
        lost = operator.ran("replication", "status", *OF_THE_SLAVE, "--json")
        assert (lost.code, '"connected": false' in lost.out, lost.err) == (1, True, "")
