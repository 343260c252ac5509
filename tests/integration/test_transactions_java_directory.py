"""A directory with a transaction log goes from the Java broker (1.4.6.2) to ours and back; nothing in it is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.javapeer import JavaBroker
from metaq.broker.store.files import REAL_FILES
from tests.broker_process import Connection, RunningBroker, server_ini
from tests.doubles.redo import read_redo
from tests.integration.coordination_helpers import make_chroot
from tests.integration.forked_processes import ForkedBroker
from tests.integration.java_peers import require_java
from tests.integration.transaction_texts import bodies, ok, recover, tx, tx_put

PREPARED = [f"XID:4660:0{number}:0b:host" for number in range(4)]
COMMITTED = "XID:4660:ff:0b:host"
READABLE_AT_ONCE = {"unflushThreshold": 1}


@pytest.fixture(autouse=True)
def _java() -> None:
    require_java()


def java(directory: Path, chroot: str, data: Path) -> JavaBroker:
    directory.mkdir(exist_ok=True)
    return JavaBroker(directory, chroot, {"t": 2, "u": 1}, {**READABLE_AT_ONCE, "dataPath": data})


def prepare(connection: Connection, *keys: str) -> None:
    for key in keys:
        ok(connection, tx(key, "BEGIN"), tx_put(key, "t", 0, f"{key} a".encode()), tx_put(key, "u", 0, key.encode()))
        assert ok(connection, tx(key, "PREPARE")) == "0"


@pytest.mark.parametrize("end", [ForkedBroker.stop, ForkedBroker.kill], ids=["stopped", "killed"])
def test_what_java_prepared_is_committed_here_and_what_we_prepare_is_committed_there(
    chroot: str, tmp_path: Path, end: Callable[[RunningBroker], int]
) -> None:
    data = tmp_path / "data"
    with java(tmp_path / "java", chroot, data) as broker, Connection(broker.port) as connection:
        ok(connection, tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"local"), tx("TX:s:1", "COMMIT_ONE_PHASE"))
        prepare(connection, PREPARED[0], COMMITTED, PREPARED[1])
        ok(connection, tx(COMMITTED, "COMMIT_TWO_PHASE"))
        ok(connection, tx("TX:s:2", "BEGIN"), tx_put("TX:s:2", "t", 0, b"never committed"))
        broker.kill()
    before = [b"local", f"{COMMITTED} a".encode()]
    ini = server_ini(data, {"t": "numPartitions=2", "u": "numPartitions=1"}, unflush_threshold=1)
    with ForkedBroker(tmp_path, ini) as ours, ours.connect() as connection:
        assert bodies(connection, "t", 0) == before
        assert recover(connection) == PREPARED[:2]
        ok(connection, tx(PREPARED[0], "COMMIT_TWO_PHASE"))
        prepare(connection, PREPARED[2])
        ok(connection, tx("TX:s:3", "BEGIN"), tx_put("TX:s:3", "t", 0, b"ours"), tx("TX:s:3", "COMMIT_ONE_PHASE"))
        prepare(connection, PREPARED[3])
        end(ours)
    before += [f"{PREPARED[0]} a".encode(), b"ours"]
    contents = read_redo(REAL_FILES, str(data / "transactions" / "redo.1"))
    assert contents.problem is None
    with java(tmp_path / "java2", make_chroot(f"{chroot}-2"), data) as broker, Connection(broker.port) as connection:
        assert bodies(connection, "t", 0) == before
        assert sorted(recover(connection)) == PREPARED[1:]
        ok(connection, tx(PREPARED[2], "ROLLBACK"), tx(PREPARED[3], "COMMIT_TWO_PHASE"))
    with ForkedBroker(tmp_path, ini) as ours, ours.connect() as connection:
        assert recover(connection) == [PREPARED[1]]
        ok(connection, tx(PREPARED[1], "COMMIT_TWO_PHASE"))
        after = bodies(connection, "t", 0)
        assert sorted(after) == sorted([*before, f"{PREPARED[3]} a".encode(), f"{PREPARED[1]} a".encode()])
        assert ours.stop() == 0


@pytest.mark.parametrize("size", [10, 3_000])
def test_java_reads_past_what_stands_where_damage_was(chroot: str, tmp_path: Path, size: int) -> None:
    """A Java broker cuts its log at the first record that it cannot read; a start of ours leaves none."""
    data = tmp_path / "data"
    ini = server_ini(data, {"t": "numPartitions=2", "u": "numPartitions=1"}, unflush_threshold=1)
    with ForkedBroker(tmp_path, ini) as ours, ours.connect() as connection:
        prepare(connection, PREPARED[0])
        ok(connection, tx(COMMITTED, "BEGIN"), tx_put(COMMITTED, "t", 0, bytes(range(1, 11)) * (size // 10)))
        ok(connection, tx(COMMITTED, "PREPARE"))
        prepare(connection, PREPARED[1])
        ours.kill()
    path = data / "transactions" / "redo.1"
    damaged = path.read_bytes().replace(bytes(range(1, 11)), bytes(10), 1)
    path.write_bytes(damaged)
    with ForkedBroker(tmp_path, ini) as ours, ours.connect() as connection:
        assert sorted(recover(connection)) == sorted([*PREPARED[:2], COMMITTED])
        assert connection.ask(tx(COMMITTED, "COMMIT_TWO_PHASE")).text.startswith("XAException:code=6,")
        ok(connection, tx(COMMITTED, "FORGET"))
        assert ours.stop() == 0
    assert read_redo(REAL_FILES, str(path)).problem is None
    kept = len(path.read_bytes())
    with java(tmp_path / "java", chroot, data) as broker, Connection(broker.port) as connection:
        assert sorted(recover(connection)) == PREPARED[:2]
        ok(connection, tx(PREPARED[1], "COMMIT_TWO_PHASE"))
        broker.kill()
    assert len(path.read_bytes()) > kept
    with ForkedBroker(tmp_path, ini) as ours, ours.connect() as connection:
        assert recover(connection) == PREPARED[:1]
        assert bodies(connection, "t", 0) == [f"{PREPARED[1]} a".encode()]
        assert ours.stop() == 0
