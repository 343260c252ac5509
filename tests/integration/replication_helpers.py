"""What the tests of replication share: brokers in a role, their files and their status."""

from pathlib import Path
from typing import Any

import simplejson

from metaq.protocol.frames import encode_frame
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.broker_process import RunningBroker, server_ini
from tests.integration.client_cluster import SESSION_SECONDS
from tests.integration.forked_processes import ForkedBroker
from tests.segment_files import segments
from tests.waiting import eventually


def broker(directory: Path, connect: str, topics: dict[str, int], *options: str, system: str = "") -> RunningBroker:
    """One of ours with its data in `directory`, at ZooKeeper's `connect`; options: of `metaq broker`."""
    directory.mkdir(exist_ok=True)
    ini = server_ini(
        directory / "data",
        {name: f"numPartitions={count}" for name, count in topics.items()},
        system=system,
        unflush_threshold=1,
        zookeeper=f"zk.zkConnect={connect}\nzk.zkSessionTimeoutMs={int(SESSION_SECONDS * 1000)}\nzk.zkSyncTimeMs=100",
    )
    return ForkedBroker(directory, ini, module=("-m", "metaq", "broker", *options, "-f"))


def slave(tmp_path: Path, connect: str, topics: dict[str, int], properties: str = "") -> RunningBroker:
    file = tmp_path / "slave.properties"
    file.write_text(f"slaveId=1\n{properties}\n")
    return broker(tmp_path / "slave", connect, topics, f"-Fmetaslave={file}")


def same_files(one: Path, other: Path) -> bool:
    return bool(segments(one)) and segments(one) == segments(other)


def wait_for_copy(directory: Path) -> None:
    """Until the slave below `directory` has the files of the master there."""
    eventually(lambda: same_files(directory / "master" / "data", directory / "slave" / "data"), what="the copy")


def status(broker: RunningBroker) -> Any:
    with broker.connect() as connection:
        frame = connection.ask_frame(encode_frame(RequestCode.REPLICATION_STATUS, 1, {}))
    assert frame.code == ResponseCode.SUCCESS, frame.remark
    return simplejson.loads(bytes(frame.body))
