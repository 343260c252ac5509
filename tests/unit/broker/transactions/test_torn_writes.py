"""A power cut tears the last write of the transaction log: its commit record can be read, a message in front of it
cannot. Such a commit was never decided, so nothing of it is in a partition, and nothing of it comes."""

import pytest

from metaq.broker.inspection.data_directory import Options, inspect_directory
from metaq.broker.inspection.findings import Level
from metaq.broker.store.files import REAL_FILES
from metaq.broker.transactions.commands import OperationType, StoredPut
from tests.doubles.redo import read_redo
from tests.doubles.store import FaultyFiles
from tests.unit.broker.transactions.conversation import XID, bodies, tx, tx_put

LOCAL, BEFORE, BEHIND = "TX:s:1", "TX:s:2", "TX:s:3"
PARTITIONS = [("t", 0), ("t", 1), ("safe", 0)]
ROLLBACKS = {LOCAL: OperationType.LOCAL_ROLLBACK, XID: OperationType.XA_ROLLBACK}


def messages(key, generation=""):
    """Two for the first partition, one for each of the others."""
    return [
        (topic, partition, f"{key}{generation}-{number}".encode())
        for number, (topic, partition) in enumerate([*PARTITIONS, PARTITIONS[0]])
    ]


def whole(*keys):
    return sorted(body for key in keys for *_, body in messages(*key.split("/")))


def commit(ask, key, prepare=False):
    """The messages are those of what follows a /."""
    name, *_ = key.split("/")
    ask.ok(tx(name, "BEGIN"), *(tx_put(name, *message) for message in messages(*key.split("/"))))
    if prepare:
        ask.ok(tx(name, "PREPARE"), tx(name, "COMMIT_TWO_PHASE"))
    else:
        ask.ok(tx(name, "COMMIT_ONE_PHASE"))


class Torn:
    """What a cut leaves of a broker's log and partitions, and its next lives."""

    def __init__(self, lives):
        self.lives = lives
        self.data = lives.directory / "data"
        self.redo = self.data / "transactions" / "redo.1"

    def cut(self, *keys, prepared=None, kept=()):
        """Behind the commits of these keys: the records, and of the partitions those in `kept`."""
        ask = self.lives.start(FaultyFiles())
        for key in keys:
            commit(ask, key, key == prepared)
        self.kill(kept)

    def kill(self, kept=()):
        self.lives.kill()
        for topic, partition in PARTITIONS:
            if (topic, partition) not in kept:
                for path in (self.data / f"{topic}-{partition}").glob("*"):
                    path.unlink()
        for path in (self.data / "metaqjournal").glob("*"):
            path.unlink()

    def records(self, key):
        return [entry for entry in read_redo(REAL_FILES, str(self.redo)).entries if entry.command.tx_key == key]

    def tear(self, *entries):
        data = bytearray(self.redo.read_bytes())
        for entry in entries:
            data[entry.offset : entry.end] = bytes(entry.size)
        self.redo.write_bytes(data)

    def found(self, starts=1):
        """What consumers get, which each start from the log's beginning must say."""
        seen = []
        for _ in range(starts):
            self.lives.start()
            seen.append(sorted(body for where in PARTITIONS for body in bodies(self.lives.harness, *where)))
            self.lives.kill()
            (self.data / "transactions" / "metaq.json").unlink(missing_ok=True)
        assert seen == seen[:1] * starts
        return seen[0]


@pytest.fixture
def torn(lives):
    return Torn(lives)


@pytest.mark.parametrize(("key", "prepared"), [(LOCAL, None), (XID, None), (XID, XID)])
@pytest.mark.parametrize("number", range(4))
def test_nothing_of_a_commit_comes_if_one_of_its_messages_was_not_written(torn, key, number, prepared):
    torn.cut(BEFORE, key, BEHIND, prepared=prepared)
    torn.tear(torn.records(key)[number])
    assert torn.found(starts=2) == whole(BEFORE, BEHIND)


def test_nothing_of_a_commit_comes_if_none_of_its_messages_was_written(torn):
    torn.cut(BEFORE, LOCAL)
    torn.tear(*torn.records(LOCAL)[:-1])
    assert torn.found() == whole(BEFORE)


@pytest.mark.parametrize("key", [LOCAL, XID])
def test_the_log_says_afterwards_that_it_was_rolled_back(torn, key):
    """So no later start, and no Java broker, judges it by what the partitions have by then."""
    torn.cut(key, BEHIND)
    torn.tear(torn.records(key)[1])
    size = torn.redo.stat().st_size
    torn.found()
    *puts, end = torn.records(key)
    assert [type(entry.command) for entry in puts] == [StoredPut] * 3
    assert end.command.type is ROLLBACKS[key]
    contents = read_redo(REAL_FILES, str(torn.redo))
    assert (contents.problem, contents.end, contents.size) == (None, size, size)


@pytest.mark.parametrize("key", [LOCAL, XID])
def test_a_transaction_of_the_same_name_behind_it_is_whole(torn, key):
    torn.cut(f"{key}/first", f"{key}/second")
    torn.tear(torn.records(key)[0])
    assert torn.found(starts=2) == whole(f"{key}/second")


def test_the_coordinator_of_a_prepared_one_is_told_that_it_is_rolled_back(torn, lives):
    torn.cut(XID, prepared=XID)
    torn.tear(torn.records(XID)[2])
    ask = lives.start(FaultyFiles())
    assert ask.ok(tx("null", "RECOVER")) == XID
    assert "heuristically rolled back" in ask.refused(tx(XID, "COMMIT_TWO_PHASE"))
    ask.ok(tx(XID, "FORGET"))
    lives.harness.threads.run()
    lives.kill()
    assert lives.start().ok(tx("null", "RECOVER")) == ""


def test_a_later_transaction_of_the_same_name_still_waits_for_its_coordinator(torn, lives):
    ask = lives.start(FaultyFiles())
    commit(ask, XID, True)
    ask.ok(tx(XID, "BEGIN"), tx_put(XID, "t", 0, b"second"), tx(XID, "PREPARE"))
    torn.kill()
    torn.tear(torn.records(XID)[0])
    lives.start().ok(tx(XID, "COMMIT_TWO_PHASE"))
    assert bodies(lives.harness, "t", 0) == [b"second"]


def test_nothing_is_said_of_one_that_was_not_prepared(torn, lives):
    torn.cut(XID)
    torn.tear(torn.records(XID)[2])
    assert lives.start().ok(tx("null", "RECOVER")) == ""


@pytest.mark.parametrize("there", PARTITIONS)
def test_a_message_in_a_partition_shows_that_it_was_decided_and_what_can_be_read_is_kept(torn, there):
    """Then no cut has torn the log: it is damaged at rest, and costs what it has hit."""
    torn.cut(LOCAL, kept=[there])
    damaged = torn.records(LOCAL)[1]
    torn.tear(damaged)
    lost = set() if there == ("t", 1) else {damaged.command.body}
    assert torn.found() == sorted(set(whole(LOCAL)) - lost)


def test_part_of_a_damaged_block_in_its_partition_shows_that_it_was_decided(torn):
    torn.cut(LOCAL, kept=[("t", 0)])
    (path,) = (torn.data / "t-0").glob("*.meta")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    torn.tear(torn.records(LOCAL)[3])
    assert torn.found() == whole(LOCAL)[:3]


def test_check_says_that_nothing_of_it_is_there(torn):
    torn.cut(BEFORE, LOCAL)
    torn.tear(torn.records(LOCAL)[0])
    findings = inspect_directory(torn.data, Options(fast=True)).all_findings
    (said,) = [each.text for each in findings if each.level is Level.DAMAGE and LOCAL in each.text]
    assert "the start rolls it back" in said
    torn.found()
    assert not inspect_directory(torn.data, Options(fast=True)).damaged
