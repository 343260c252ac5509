"""The log that the Java broker wrote (golden/store/redo.1), taken over without the partitions it tells of."""

import shutil
from collections import defaultdict
from pathlib import Path

from metaq.broker.store.files import REAL_FILES
from metaq.broker.transactions.commands import Operation, OperationType, StoredPut
from tests.doubles.redo import read_redo
from tests.unit.broker.harness import Harness
from tests.unit.broker.transactions.conversation import bodies

GOLDEN = Path(__file__).resolve().parents[3] / "data" / "golden" / "store" / "redo.1"


def committed_by_java():
    """(topic, partition) -> bodies, in the order of the commits."""
    puts, found = defaultdict(list), defaultdict(list)
    for entry in read_redo(REAL_FILES, str(GOLDEN)).entries:
        command = entry.command
        if isinstance(command, StoredPut):
            puts[command.tx_key].append(command)
        elif command.type is not OperationType.XA_PREPARE:
            for put in puts.pop(command.tx_key):
                if command.type.is_commit:
                    found[put.topic, put.partition].append(put.body)
    assert len(puts) == 1  # never ended: its connection was closed
    return found


def test_every_commit_is_completed_once_and_what_was_not_prepared_is_rolled_back(tmp_path):
    directory = tmp_path / "data" / "transactions"
    directory.mkdir(parents=True)
    shutil.copy(GOLDEN, directory / "redo.1")
    before = read_redo(REAL_FILES, str(GOLDEN)).entries
    expected = committed_by_java()
    assert sum(map(len, expected.values())) >= 8
    for _ in range(2):  # the second start finds everything in its place
        harness = Harness(tmp_path)
        assert harness.broker.transactions.recover(None) == []
        assert {where: bodies(harness, *where) for where in expected} == expected
        assert "orphan" not in str(expected)
        harness.threads.run()
        (directory / "metaq.json").unlink(missing_ok=True)
        harness.store.close()  # without the transactions' own end: as if killed
        after = read_redo(REAL_FILES, str(directory / "redo.1"))
        assert after.problem is None
        assert [entry.command for entry in after.entries[: len(before)]] == [entry.command for entry in before]
        last = after.entries[-1].command
        assert isinstance(last, Operation)
        assert last.type is OperationType.LOCAL_ROLLBACK
        assert len(after.entries) == len(before) + 1
    placed = [location for entry in after.entries for location in entry.locations]
    assert sorted(placed) != sorted(location for entry in before for location in entry.locations)
    for location in placed:
        log = harness.store.get(*_partition(location.store))
        assert location.offset + location.size <= log.end_offset


def _partition(store):
    topic, _, number = store.rpartition("-")
    return topic, int(number)
