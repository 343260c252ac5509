"""A power cut tears the last write of the transaction log: its commit record can be read, a message in front of it
cannot. Such a commit was never decided, so nothing of it is in a partition, and nothing of it comes."""

import pytest

from metaq.broker.inspection.directory import Options, inspect_directory
from metaq.broker.inspection.findings import Level
from metaq.broker.store.files import REAL_FILES
from metaq.broker.transactions.commands import OperationType, StoredPut
from tests.doubles.redo import read_redo
from tests.doubles.store import FaultyFiles
from tests.unit.broker.harness import Harness
from tests.unit.broker.transactions.conversation import XID, Asker, bodies, tx, tx_put

LOCAL, BEFORE, BEHIND = "TX:s:1", "TX:s:2", "TX:s:3"
PARTITIONS = [("t", 0), ("t", 1), ("safe", 0)]
ROLLBACKS = {LOCAL: OperationType.LOCAL_ROLLBACK, XID: OperationType.XA_ROLLBACK}


def messages(key, generation=""):
    """Two for the first partition, one for each of the others."""
    return [
        (topic, partition, f"{key}{generation}-{number}".encode())
        for number, (topic, partition) in enumerate([*PARTITIONS, PARTITIONS[0]])
    ]


def commit(harness, key, generation="", prepare=False):
    ask = Asker(harness)
    ask.ok(tx(key, "BEGIN"), *(tx_put(key, *message) for message in messages(key, generation)))
    if prepare:
        ask.ok(tx(key, "PREPARE"), tx(key, "COMMIT_TWO_PHASE"))
    else:
        ask.ok(tx(key, "COMMIT_ONE_PHASE"))


def redo(tmp_path):
    return tmp_path / "data" / "transactions" / "redo.1"


def records_of(tmp_path, key):
    return [entry for entry in read_redo(REAL_FILES, str(redo(tmp_path))).entries if entry.command.tx_key == key]


def cut(tmp_path, *commits, kept=()):
    """What a cut leaves after these commits: their records, and of the partitions only those in `kept`."""
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    for arguments in commits:
        commit(harness, *arguments)
    files.kill()
    lose_messages(tmp_path, kept)


def lose_messages(tmp_path, kept=()):
    for topic, partition in PARTITIONS:
        if (topic, partition) not in kept:
            for path in (tmp_path / "data" / f"{topic}-{partition}").glob("*"):
                path.unlink()
    for path in (tmp_path / "data" / "metaqjournal").glob("*"):
        path.unlink()


def tear(tmp_path, *entries):
    data = bytearray(redo(tmp_path).read_bytes())
    for entry in entries:
        data[entry.offset : entry.end] = bytes(entry.size)
    redo(tmp_path).write_bytes(data)


def started(tmp_path):
    return Harness(tmp_path, files=FaultyFiles())


def found(harness):
    return sorted(body for where in PARTITIONS for body in bodies(harness, *where))


def kill(harness):
    """With nothing settled: the next start reads the log from its beginning."""
    harness.store.close()


def whole(*keys):
    return sorted(body for key in keys for *_, body in messages(key))


@pytest.mark.parametrize("prepare", [False, True], ids=["one phase", "prepared"])
@pytest.mark.parametrize("key", [LOCAL, XID])
@pytest.mark.parametrize("number", range(4))
def test_nothing_of_a_commit_comes_if_one_of_its_messages_was_not_written(tmp_path, key, number, prepare):
    cut(tmp_path, (BEFORE,), (key, "", prepare and key == XID), (BEHIND,))
    tear(tmp_path, records_of(tmp_path, key)[number])
    for _ in range(2):
        harness = started(tmp_path)
        assert found(harness) == whole(BEFORE, BEHIND)
        kill(harness)
        (tmp_path / "data" / "transactions" / "metaq.json").unlink(missing_ok=True)


def test_nothing_of_a_commit_comes_if_none_of_its_messages_was_written(tmp_path):
    cut(tmp_path, (BEFORE,), (LOCAL,))
    tear(tmp_path, *records_of(tmp_path, LOCAL)[:-1])
    harness = started(tmp_path)
    assert found(harness) == whole(BEFORE)
    kill(harness)


@pytest.mark.parametrize("key", [LOCAL, XID])
def test_the_log_says_afterwards_that_it_was_rolled_back(tmp_path, key):
    """So no later start, and no Java broker, judges it by what the partitions have by then."""
    cut(tmp_path, (key,), (BEHIND,))
    tear(tmp_path, records_of(tmp_path, key)[1])
    size = redo(tmp_path).stat().st_size
    kill(started(tmp_path))
    *puts, end = records_of(tmp_path, key)
    assert [type(entry.command) for entry in puts] == [StoredPut] * 3
    assert end.command.type is ROLLBACKS[key]
    contents = read_redo(REAL_FILES, str(redo(tmp_path)))
    assert contents.problem is None
    assert contents.end == contents.size == size


@pytest.mark.parametrize("key", [LOCAL, XID])
def test_a_transaction_of_the_same_name_behind_it_is_whole(tmp_path, key):
    cut(tmp_path, (key, "first"), (key, "second"))
    tear(tmp_path, records_of(tmp_path, key)[0])
    for _ in range(2):
        harness = started(tmp_path)
        assert found(harness) == sorted(body for *_, body in messages(key, "second"))
        kill(harness)


def test_the_coordinator_of_a_prepared_one_is_told_that_it_is_rolled_back(tmp_path):
    cut(tmp_path, (XID, "", True))
    tear(tmp_path, records_of(tmp_path, XID)[2])
    harness = started(tmp_path)
    ask = Asker(harness)
    assert ask.ok(tx("null", "RECOVER")) == XID
    assert "heuristically rolled back" in ask.refused(tx(XID, "COMMIT_TWO_PHASE"))
    ask.ok(tx(XID, "FORGET"))
    harness.threads.run()
    kill(harness)
    again = started(tmp_path)
    assert Asker(again).ok(tx("null", "RECOVER")) == ""
    kill(again)


def test_a_later_transaction_of_the_same_name_still_waits_for_its_coordinator(tmp_path):
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    commit(harness, XID, "first", True)
    ask = Asker(harness)
    ask.ok(tx(XID, "BEGIN"), tx_put(XID, "t", 0, b"second"), tx(XID, "PREPARE"))
    files.kill()
    lose_messages(tmp_path)
    tear(tmp_path, records_of(tmp_path, XID)[0])
    again = started(tmp_path)
    Asker(again).ok(tx(XID, "COMMIT_TWO_PHASE"))
    assert found(again) == [b"second"]
    kill(again)


def test_nothing_is_said_of_one_that_was_not_prepared(tmp_path):
    cut(tmp_path, (XID,))
    tear(tmp_path, records_of(tmp_path, XID)[2])
    harness = started(tmp_path)
    assert Asker(harness).ok(tx("null", "RECOVER")) == ""
    kill(harness)


@pytest.mark.parametrize("there", PARTITIONS)
def test_a_message_in_a_partition_shows_that_it_was_decided_and_what_can_be_read_is_kept(tmp_path, there):
    """Then no cut has torn the log: it is damaged at rest, and costs what it has hit."""
    cut(tmp_path, (LOCAL,), kept=[there])
    damaged = records_of(tmp_path, LOCAL)[1]
    tear(tmp_path, damaged)
    harness = started(tmp_path)
    lost = set() if there == ("t", 1) else {damaged.command.body}
    assert found(harness) == sorted(set(whole(LOCAL)) - lost)
    kill(harness)


def test_part_of_a_damaged_block_in_its_partition_shows_that_it_was_decided(tmp_path):
    cut(tmp_path, (LOCAL,), kept=[("t", 0)])
    (path,) = (tmp_path / "data" / "t-0").glob("*.meta")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    tear(tmp_path, records_of(tmp_path, LOCAL)[3])
    harness = started(tmp_path)
    assert found(harness) == whole(LOCAL)[:3]
    kill(harness)


def test_check_says_that_nothing_of_it_is_there(tmp_path):
    cut(tmp_path, (BEFORE,), (LOCAL,))
    tear(tmp_path, records_of(tmp_path, LOCAL)[0])
    findings = inspect_directory(tmp_path / "data", Options(fast=True)).all_findings
    said = [each.text for each in findings if each.level is Level.DAMAGE and LOCAL in each.text]
    assert len(said) == 1
    assert "the start rolls it back" in said[0]
    kill(started(tmp_path))
    after = inspect_directory(tmp_path / "data", Options(fast=True))
    assert not after.damaged
