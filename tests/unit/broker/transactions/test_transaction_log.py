"""What the transactions leave on the disk, when it gets there, and what a start makes of it."""

import errno
import json
import logging
import os
import shutil
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.task import Clock

from metaq.broker.store.files import REAL_FILES
from metaq.broker.transactions.checkpoints import SavedState, read_state, write_state
from metaq.broker.transactions.directory import RedoPosition
from metaq.broker.transactions.placing import find_block
from metaq.broker.transactions.redo import Location
from metaq.broker.transactions.writer import RedoWriter
from metaq.protocol.errors import ConfigError, DiskFull, StoreError
from metaq.protocol.record import checksum
from tests.doubles.redo import read_redo
from tests.doubles.store import BadSector, FaultyFiles
from tests.unit.broker.harness import Harness, Threads, put
from tests.unit.broker.transactions.conversation import XID, Asker, bodies, tx, tx_put

XIDS = [f"XID:1:0{number}:0b:host" for number in range(9)]


def close(harness):
    harness.threads.run()
    harness.close()


def transactions_directory(tmp_path):
    return tmp_path / "data" / "transactions"


def redo(tmp_path, number=1):
    return read_redo(REAL_FILES, str(transactions_directory(tmp_path) / f"redo.{number}"))


def names(tmp_path):
    return sorted(each.name for each in transactions_directory(tmp_path).iterdir())


def state(tmp_path):
    """metaq.json; as long as a replay begins at the beginning there is none."""
    path = transactions_directory(tmp_path) / "metaq.json"
    beginning = {"replay_from": {"number": 1, "offset": 0}, "heuristics": {}}
    return json.loads(path.read_text()) if path.exists() else beginning


def later(harness, seconds=1.0):
    harness.reactor.advance(seconds)
    harness.broker.transactions.tick()
    harness.threads.run()


def committed(ask, key, body=b"x", topic="t"):
    ask.ok(tx(key, "BEGIN"), tx_put(key, topic, 0, body), tx(key, "COMMIT_ONE_PHASE"))


def prepared(ask, *keys, topic="t"):
    for key in keys:
        ask.ok(tx(key, "BEGIN"), tx_put(key, topic, 0, key.encode()), tx(key, "PREPARE"))


# --- records ----------------------------------------------------------------------------------------------------------


def test_a_log_of_ours_tells_what_javas_would(tmp_path):
    """The conversation behind tests/data/golden/store/redo.1 has records of the same kinds."""
    harness = Harness(tmp_path)
    ask = Asker(harness)
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"a", 3), b"put t 0 1 0 TX:s:1 4\r\nb")
    ask.ok(tx_put("TX:s:1", "t", 1, b"c"), tx("TX:s:1", "COMMIT_ONE_PHASE"))
    ask.ok(tx("TX:s:2", "BEGIN"), tx("TX:s:2", "COMMIT_ONE_PHASE"), tx("TX:s:3", "BEGIN"), tx("TX:s:3", "ROLLBACK"))
    prepared(ask, XID)
    ask.ok(tx(XID, "ROLLBACK"))
    close(harness)
    contents = redo(tmp_path)
    assert contents.problem is None
    commands = [entry.command for entry in contents.entries]
    assert [(put.checksum, put.opaque, put.body) for put in commands[:2]] == [(checksum(b"a"), 3, b"a"), (-1, 4, b"b")]
    kinds = [command.type.name for command in commands if hasattr(command, "type")]
    assert kinds == ["LOCAL_COMMIT", "XA_PREPARE", "XA_ROLLBACK"]
    commit = contents.entries[3]
    data = (tmp_path / "data" / "t-0" / f"{0:020d}.meta").read_bytes()
    assert [tuple(each[:3]) for each in commit.locations] == [("t-0", 0, 42), ("t-1", 0, 21)]
    assert commit.locations[0].checksum == checksum(data)


def test_an_attachment_is_put_right_when_something_came_in_between(tmp_path):
    harness = Harness(tmp_path)
    ask = Asker(harness)
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"a"))
    ask.peer.send(tx("TX:s:1", "COMMIT_ONE_PHASE"))
    Asker(harness).ok(put("t", 0, b"between"))
    close(harness)
    (location,) = redo(tmp_path).entries[-1].locations
    assert (location.offset, location.size) == (27, 21)


def test_commits_that_arrive_together_share_a_sync(tmp_path):
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    peers = [harness.connect() for _ in range(10)]
    for number, peer in enumerate(peers):
        peer.send(tx(f"TX:s:{number}", "BEGIN") + tx_put(f"TX:s:{number}", "t", 0, b"%d" % number))
    before = files.calls["fdatasync"], files.calls["pwritev"]
    for number, peer in enumerate(peers):
        peer.send(tx(f"TX:s:{number}", "COMMIT_ONE_PHASE"))
    harness.threads.run()
    assert files.calls["fdatasync"] - before[0] <= 2  # the first one's, and that of all others
    assert files.calls["pwritev"] - before[1] <= 2 + 10  # the log's, and the appends
    assert bodies(harness, "t", 0) == [b"%d" % number for number in range(10)]
    assert all(answer.code == 200 for peer in peers for answer in peer.answers())
    close(harness)


def test_messages_of_a_transaction_are_written_together_not_one_by_one(tmp_path):
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    ask = Asker(harness)
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"first"))
    before = files.changes
    for _ in range(100):
        ask.ok(tx_put("TX:s:1", "t", 0, b"x" * 100))
    assert files.changes == before
    later(harness)
    assert files.changes > before  # they do not wait for ever
    close(harness)


@pytest.mark.parametrize(("setting", "syncs", "after_a_second"), [(0, 0, 0), (1, 1, 1), (2, 0, 1)])
def test_flush_tx_log_at_commit(tmp_path, setting, syncs, after_a_second):
    files = FaultyFiles()
    harness = Harness(tmp_path, system=f"flushTxLogAtCommit={setting}", files=files)
    ask = Asker(harness)
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"a"), tx("TX:s:1", "COMMIT_ONE_PHASE"))
    assert len(redo(tmp_path).entries) == 2  # written whatever the setting
    assert files.calls["fdatasync"] == syncs
    later(harness)
    assert files.calls["fdatasync"] == after_a_second
    close(harness)


def test_another_value_of_flush_tx_log_at_commit_stops_the_start(tmp_path):
    with pytest.raises(ConfigError, match="flushTxLogAtCommit"):
        Harness(tmp_path, system="flushTxLogAtCommit=3")


def test_the_log_may_lie_elsewhere_and_belongs_to_one_broker(tmp_path):
    elsewhere = tmp_path / "log"
    harness = Harness(tmp_path, system=f"dataLogPath={elsewhere}")
    committed(Asker(harness), "TX:s:1")
    assert (elsewhere / "transactions" / "redo.1").exists()
    with pytest.raises(StoreError, match="in use"):
        Harness(tmp_path / "other", system=f"dataLogPath={elsewhere}")
    close(harness)


# --- where a replay begins --------------------------------------------------------------------------------------------


def test_a_clean_stop_leaves_nothing_to_replay_and_no_checkpoint_for_java(tmp_path):
    harness = Harness(tmp_path)
    committed(Asker(harness), "TX:s:1")
    close(harness)
    assert names(tmp_path) == ["metaq.json", "redo.1"]
    assert state(tmp_path)["replay_from"] == {"number": 1, "offset": redo(tmp_path).size}


def test_a_replay_begins_before_everything_that_may_not_be_on_the_disk(tmp_path):
    """With asynchronous flush a committed message is kept by the log until its partition is synced."""
    files = FaultyFiles()
    harness = Harness(tmp_path, system="checkpointInterval=1000", files=files)
    committed(Asker(harness), "TX:s:1", b"a")
    later(harness, 2)
    assert state(tmp_path)["replay_from"]["offset"] == 0
    files.lose_power()
    harness = Harness(tmp_path, system="checkpointInterval=1000")
    assert bodies(harness, "t", 0) == [b"a"]
    harness.store.get("t", 0).flush()
    harness.threads.run()
    later(harness, 2)
    assert state(tmp_path)["replay_from"]["offset"] == redo(tmp_path).size
    close(harness)


def test_checkpoints_for_java_name_a_place_that_no_transaction_spans(tmp_path):
    harness = Harness(tmp_path, system="checkpointInterval=10000\nmaxCheckpoints=2")
    ask = Asker(harness)
    seen = []
    for number in range(4):
        first, second = XIDS[2 * number : 2 * number + 2]
        start = redo(tmp_path).size if number else 0
        prepared(ask, first)
        ask.ok(tx(second, "BEGIN"), tx_put(second, "t", 0, b"oldest open one"))
        ask.ok(tx(first, "COMMIT_TWO_PHASE"))  # spans the beginning of the second
        later(harness, 10.1)
        seen.append({"number": 1, "offset": start})
        newest = sorted(transactions_directory(tmp_path).glob("checkpoint.*"))[-1]
        assert newest.name == f"checkpoint.{number + 1}"
        assert json.loads(newest.read_text()) == seen[-1] == state(tmp_path)["replay_from"]
        ask.ok(tx(second, "ROLLBACK"))
        harness.store.get("t", 0).flush()
        harness.threads.run()
        later(harness)
        later(harness)
    assert [name for name in names(tmp_path) if name.startswith("check")] == ["checkpoint.3", "checkpoint.4"]
    close(harness)


def test_javas_checkpoint_of_the_newest_transaction_is_not_believed_and_put_right(tmp_path):
    harness = Harness(tmp_path)
    ask = Asker(harness)
    prepared(ask, *XIDS[:2])
    close(harness)
    directory = transactions_directory(tmp_path)
    newest = redo(tmp_path).entries[2].offset
    for each in directory.glob("checkpoint.*"):
        each.unlink()
    (directory / "checkpoint.7").write_text(json.dumps({"offset": newest, "number": 1}))
    harness = Harness(tmp_path)
    assert Asker(harness).ok(tx("null", "RECOVER")).split("\r\n") == XIDS[:2]
    close(harness)
    assert json.loads((directory / "checkpoint.8").read_text()) == {"number": 1, "offset": 0}


def test_a_stale_checkpoint_is_followed_by_one_of_the_end_so_that_java_does_not_begin_in_the_middle(tmp_path):
    harness = Harness(tmp_path)
    committed(Asker(harness), "TX:s:1")
    (transactions_directory(tmp_path) / "checkpoint.1").write_text('{"number":1,"offset":0}')
    close(harness)
    again = Harness(tmp_path)
    close(again)
    newest = json.loads((transactions_directory(tmp_path) / "checkpoint.2").read_text())
    assert newest == {"number": 1, "offset": redo(tmp_path).size}


def test_a_place_where_no_record_begins_is_not_believed(tmp_path):
    harness = Harness(tmp_path)
    prepared(Asker(harness), XID)
    close(harness)
    for offset in (7, 1 << 40):
        saved = state(tmp_path)
        saved["replay_from"]["offset"] = offset
        (transactions_directory(tmp_path) / "metaq.json").write_text(json.dumps(saved))
        harness = Harness(tmp_path)
        assert Asker(harness).ok(tx("null", "RECOVER")) == XID
        close(harness)


def decided(tmp_path):
    """A broker with a prepared transaction and an operator's decision on another; the bytes of metaq.json."""
    harness = Harness(tmp_path)
    ask = Asker(harness)
    prepared(ask, XIDS[0], XIDS[1])
    harness.broker.transactions.complete(XIDS[1], "rollback")
    close(harness)
    return (transactions_directory(tmp_path) / "metaq.json").read_bytes()


def recovered(harness):
    return sorted(Asker(harness).ok(tx("null", "RECOVER")).split("\r\n"))


@pytest.mark.parametrize("text", [b"{}", b"", b"\xff\xfe", b"[" * 100_000, b"null", b'{"replay_from": 1e999}'])
def test_a_damaged_state_is_kept_and_the_log_replayed_from_its_beginning(tmp_path, caplog, text):
    decided(tmp_path)
    directory = transactions_directory(tmp_path)
    (directory / "metaq.json").write_bytes(text)
    with caplog.at_level(logging.ERROR):
        harness = Harness(tmp_path)
    assert "metaq.json is damaged" in caplog.text
    assert (directory / "damaged-metaq.json").read_bytes() == text
    assert recovered(harness) == XIDS[:1]
    close(harness)


def test_each_damaged_byte_of_the_state_is_found_and_costs_no_transaction(tmp_path, caplog):
    whole = decided(tmp_path)
    directory = transactions_directory(tmp_path)
    log = (directory / "redo.1").read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        (directory / "metaq.json").write_bytes(damaged)
        (directory / "redo.1").write_bytes(log)
        caplog.clear()
        harness = Harness(tmp_path)
        if damaged.translate(None, b" \n") != whole.translate(None, b" \n"):
            assert "metaq.json is damaged" in caplog.text, position
        assert XIDS[0] in recovered(harness), position
        harness.store.close()


def test_a_state_of_an_older_release_has_no_checksum(tmp_path, caplog):
    saved = json.loads(decided(tmp_path))
    assert saved.pop("checksum")
    path = transactions_directory(tmp_path) / "metaq.json"
    path.write_text(json.dumps(saved))
    harness = Harness(tmp_path)
    assert "damaged" not in caplog.text
    assert recovered(harness) == XIDS[:2]
    close(harness)


def test_a_state_that_names_a_file_far_behind_the_last_one_is_not_believed(tmp_path, caplog):
    decided(tmp_path)
    path = transactions_directory(tmp_path) / "metaq.json"
    path.write_text(json.dumps({"replay_from": {"number": 10**30, "offset": 0}, "heuristics": {}}))
    harness = Harness(tmp_path)
    assert recovered(harness) == XIDS[:1]
    assert "no file" in caplog.text
    close(harness)


@pytest.mark.parametrize(
    "text", ["{}", "[]", "7", '{"number":1e999,"offset":0}', '{"number":-1,"offset":0}', "[" * 10**5]
)
def test_a_damaged_checkpoint_for_java_is_reported_and_followed_by_a_right_one(tmp_path, caplog, text):
    harness = Harness(tmp_path)
    prepared(Asker(harness), XID)
    close(harness)
    directory = transactions_directory(tmp_path)
    newest = max(int(each.name.rpartition(".")[2]) for each in directory.glob("checkpoint.*"))
    (directory / f"checkpoint.{newest}").write_text(text)
    harness = Harness(tmp_path)
    assert "is not a checkpoint" in caplog.text
    assert Asker(harness).ok(tx("null", "RECOVER")) == XID
    close(harness)
    assert json.loads((directory / f"checkpoint.{newest + 1}").read_text()) == {"number": 1, "offset": 0}


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_files(monkeypatch):
    monkeypatch.setattr("metaq.broker.transactions.writer.MAX_REDO_BYTES", 1000)


def test_a_file_goes_when_nothing_open_is_in_it(tmp_path, small_files):
    harness = Harness(tmp_path)
    ask = Asker(harness)
    prepared(ask, XID)
    for number in range(20):
        committed(ask, f"TX:s:{number}", b"x" * 200, "safe")
    assert len([name for name in names(tmp_path) if name.startswith("redo")]) > 3
    harness.store.get("safe", 0).flush()
    harness.threads.run()
    later(harness)
    later(harness)
    kept = [name for name in names(tmp_path) if name.startswith("redo")]
    assert len(kept) == 2
    assert "redo.1" in kept  # the prepared one's
    ask.ok(tx(XID, "COMMIT_TWO_PHASE"))
    harness.store.get("t", 0).flush()
    harness.threads.run()
    later(harness)
    later(harness)
    assert [name for name in names(tmp_path) if name.startswith("redo")] == kept[1:]
    close(harness)
    harness = Harness(tmp_path)
    committed(Asker(harness), "TX:s:99", b"y", "safe")
    assert bodies(harness, "safe", 0) == [b"x" * 200] * 20 + [b"y"]
    close(harness)


def test_a_full_file_in_which_everything_is_settled_goes_with_the_next_transaction(tmp_path, small_files):
    harness = Harness(tmp_path)
    ask = Asker(harness)
    for number in range(2):
        committed(ask, f"TX:s:{number}", b"x" * 600)
    harness.store.get("t", 0).flush()
    harness.threads.run()
    later(harness)
    assert names(tmp_path) == ["redo.1"]
    committed(ask, "TX:s:9")
    harness.threads.run()
    assert names(tmp_path) == ["redo.2"]
    close(harness)


def test_all_records_of_a_transaction_are_in_one_file(tmp_path, small_files):
    harness = Harness(tmp_path)
    ask = Asker(harness)
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"first"))
    for number in range(2, 9):
        committed(ask, f"TX:s:{number}", b"x" * 300)
    ask.ok(tx_put("TX:s:1", "t", 0, b"last"), tx("TX:s:1", "COMMIT_ONE_PHASE"))
    mine = [entry.command for entry in redo(tmp_path).entries if entry.command.tx_key == "TX:s:1"]
    assert len(mine) == 3
    assert bodies(harness, "t", 0)[-2:] == [b"first", b"last"]
    close(harness)


# --- replay -----------------------------------------------------------------------------------------------------------


def test_a_torn_tail_is_cut_kept_beside_and_reported(tmp_path, caplog):
    harness = Harness(tmp_path)
    ask = Asker(harness)
    prepared(ask, XID)
    end = redo(tmp_path).size
    committed(ask, "TX:s:1", b"a")
    close(harness)
    directory = transactions_directory(tmp_path)
    (directory / "metaq.json").unlink(missing_ok=True)
    whole = (directory / "redo.1").read_bytes()
    (directory / "redo.1").write_bytes(whole[: end + 30])
    with caplog.at_level(logging.ERROR):
        harness = Harness(tmp_path)
    assert (directory / f"damaged-redo.1-{end}").read_bytes() == whole[end : end + 30]
    assert f"30 bytes cut at byte {end}" in caplog.text
    ask = Asker(harness)
    assert ask.ok(tx("null", "RECOVER")) == XID
    committed(ask, "TX:s:2", b"b")
    close(harness)
    assert redo(tmp_path).problem is None
    harness = Harness(tmp_path)
    assert bodies(harness, "t", 0) == [b"a", b"b"]
    close(harness)


def test_what_retention_has_removed_is_not_appended_again(tmp_path):
    harness = Harness(tmp_path)
    ask = Asker(harness)
    harness.store.get_or_create("t", 0)._writer.max_segment_size = 100
    committed(ask, "TX:s:1", b"a" * 100)
    ask.ok(put("t", 0, b"b" * 100), put("t", 0, b"c"))
    log = harness.store.get("t", 0)
    log.checkpoint()
    harness.threads.run()
    for segment in log.segments.remove_first(1):
        REAL_FILES.unlink(segment.path)
        REAL_FILES.unlink(segment.index_path)
    harness.threads.run()
    harness.store.close()
    (transactions_directory(tmp_path) / "metaq.json").unlink(missing_ok=True)
    again = Harness(tmp_path)
    log = again.store.get("t", 0)
    assert log.first_offset == 120
    assert log.segments.message_count == 2
    close(again)


def test_committed_messages_of_a_topic_that_is_gone_from_the_configuration_are_kept(tmp_path):
    files = FaultyFiles()
    harness = Harness(tmp_path, topics="[topic=old]\nnumPartitions=1\n", files=files)
    committed(Asker(harness), "TX:s:1", b"a", "old")
    files.lose_power()
    again = Harness(tmp_path)
    assert bodies(again, "old", 0) == [b"a"]
    assert again.topics_seen == ["old"]
    close(again)


def test_ids_after_a_restart_are_above_those_in_the_log(tmp_path):
    harness = Harness(tmp_path)
    ask = Asker(harness)
    ask.ok(tx(XID, "BEGIN"))
    first = int(ask.ok(tx_put(XID, "t", 0, b"a")).split(" ")[0])
    ask.ok(tx(XID, "PREPARE"))
    close(harness)
    again = Harness(tmp_path)
    again.time -= 3600
    assert int(Asker(again).ok(put("t", 0)).split(" ")[0]) > first
    close(again)


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_log_that_was_deleted_under_the_broker_decides_nothing(tmp_path):
    harness = Harness(tmp_path)
    ask = Asker(harness)
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"a"))
    ask.ok(tx(XIDS[1], "BEGIN"), tx_put(XIDS[1], "t", 0, b"b"), tx(XIDS[1], "PREPARE"))
    shutil.rmtree(transactions_directory(tmp_path))
    for key, verb in (("TX:s:1", "COMMIT_ONE_PHASE"), (XIDS[1], "COMMIT_TWO_PHASE")):
        assert "deleted or moved away while the broker ran" in ask.refused(tx(key, verb))
    close(harness)


@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_a_log_that_cannot_be_written_refuses_transactions_clearly_and_nothing_else(tmp_path, call):
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    ask = Asker(harness)
    prepared(ask, XID)
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"a"), tx(XIDS[1], "BEGIN"), tx_put(XIDS[1], "t", 0, b"b"))
    files.fail(call)
    unknown = ask.refused(tx("TX:s:1", "COMMIT_ONE_PHASE"))  # its record may be on the disk
    assert unknown.startswith("XAException:code=-7,msg=the transaction log ")
    assert "cannot be written: " in unknown
    files.heal()
    for request in (tx("TX:s:2", "BEGIN"), tx_put(XIDS[1], "t", 0, b"c")):
        assert ask.refused(request).startswith("the transaction log ")
    for key, verb in ((XID, "COMMIT_TWO_PHASE"), (XID, "ROLLBACK"), (XIDS[1], "PREPARE"), (XIDS[2], "BEGIN")):
        assert ask.refused(tx(key, verb)).startswith("XAException:code=-7,msg=the transaction log ")
    assert ask.ok(tx("null", "RECOVER")) == XID
    ask.ok(put("t", 0, b"plain"))
    assert bodies(harness, "t", 0) == [b"plain"]
    files.kill()
    again = Harness(tmp_path)
    assert Asker(again).ok(tx("null", "RECOVER")) == XID
    close(again)


def test_a_commit_waits_for_room_and_messages_are_refused_until_there_is(tmp_path):
    files = FaultyFiles(error=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    harness = Harness(tmp_path, files=files)
    ask = Asker(harness)
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"a"), tx("TX:s:1", "COMMIT_ONE_PHASE"))
    size = (transactions_directory(tmp_path) / "redo.1").stat().st_size
    other = Asker(harness)
    other.ok(tx("TX:o:1", "BEGIN"))
    ask.ok(tx("TX:s:2", "BEGIN"), tx_put("TX:s:2", "t", 0, b"b"))
    files.fail("pwritev")
    ask.peer.send(tx("TX:s:2", "COMMIT_ONE_PHASE"))
    for _ in range(3):
        later(harness)
        assert ask.peer.answers() == []
        assert (transactions_directory(tmp_path) / "redo.1").stat().st_size == size
    assert "its disk is full" in other.refused(tx_put("TX:o:1", "t", 0, b"c"))
    files.heal()
    later(harness)
    assert [answer.code for answer in ask.peer.answers()] == [200]
    other.ok(tx_put("TX:o:1", "t", 0, b"c"), tx("TX:o:1", "COMMIT_ONE_PHASE"))
    assert bodies(harness, "t", 0) == [b"a", b"b", b"c"]
    close(harness)
    assert redo(tmp_path).problem is None


class Copies:
    """Other nodes that have everything at once."""

    def __init__(self):
        self.failures = []

    def replicate(self, changes, *, disk, done):
        done(None)

    def refusal_now(self):
        return None

    def failed(self, failure):
        self.failures.append(failure)


@pytest.mark.parametrize(("call", "failure"), [("pwritev", DiskFull), ("open", DiskFull), ("fdatasync", StoreError)])
def test_a_leader_gives_up_for_want_of_room_only_where_a_write_lacked_it(tmp_path, call, failure):
    files = FaultyFiles(error=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    threads, copies = Threads(), Copies()
    told: list[str | None] = []
    writer = RedoWriter(files, str(tmp_path / "transactions"), threads, Clock(), sync=True, copies=copies)
    if call != "open":
        writer.append(writer.file_for("before"), [b"before"])
        writer.when_written(told.append)
        threads.run()
        assert told == [None]
    files.fail(call)
    writer.append(writer.file_for("one"), [b"record"])
    writer.when_written(told.append)
    threads.run()
    assert [type(each) for each in copies.failures] == [failure]
    assert "cannot be written" in str(told[-1])
    if call == "pwritev":
        assert (tmp_path / "transactions" / "redo.1").read_bytes() == b"before"


def test_a_partition_that_takes_no_writes(tmp_path):
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    ask = Asker(harness)
    for key in (XID, XIDS[1]):
        ask.ok(tx(key, "BEGIN"), tx_put(key, "t", 0, key.encode()), tx_put(key, "t", 1, key.encode()))
    ask.ok(tx(XID, "PREPARE"), put("t", 0, b"plain"))
    files.fail("pwritev")
    ask.refused(put("t", 0, b"refused"))
    files.heal()
    assert "is read-only" in ask.refused(tx_put(XIDS[1], "t", 0, b"x"))
    rolled_back = "XAException:code=104,msg=STORE COMMIT FAILED: Transaction rolled back."
    assert ask.refused(tx(XIDS[1], "COMMIT_ONE_PHASE")) == rolled_back
    assert ask.refused(tx(XIDS[1], "ROLLBACK")).startswith("XAException:code=-4,")
    assert ask.refused(tx(XID, "COMMIT_TWO_PHASE")).startswith("XAException:code=-7,")
    assert ask.ok(tx("null", "RECOVER")) == XID
    assert bodies(harness, "t", 1) == []
    files.kill()
    again = Harness(tmp_path)
    Asker(again).ok(tx(XID, "COMMIT_TWO_PHASE"))
    assert bodies(again, "t", 0) == [b"plain", XID.encode()]
    close(again)


@pytest.mark.parametrize("key", ["TX:s:1", XID])
def test_a_partition_that_fails_under_a_decided_commit_gets_the_rest_at_the_next_start(tmp_path, key):
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    ask = Asker(harness)
    ask.ok(put("t", 0, b"plain"), tx(key, "BEGIN"), tx_put(key, "t", 0, b"a"), tx_put(key, "t", 1, b"b"))
    ask.peer.send(tx(key, "COMMIT_ONE_PHASE"))
    function, done = harness.threads.waiting.pop(0)
    function()  # the decision is on the disk
    files.fail("pwritev")
    done(None)
    (answer,) = ask.peer.answers()
    assert answer.code == 500
    code = -7 if key == XID else 7  # a client cannot ask about a local one again: it must know now
    assert answer.text.startswith(f"XAException:code={code},msg='{key}' is committed, but ")
    files.heal()
    if key == XID:
        assert ask.refused(tx(key, "COMMIT_ONE_PHASE")).startswith("XAException:code=-7,")
    files.kill()
    again = Harness(tmp_path)
    assert (bodies(again, "t", 0), bodies(again, "t", 1)) == ([b"plain", b"a"], [b"b"])
    close(again)


def test_what_the_page_cache_has_of_the_log_is_written_again_and_synced_at_a_start(tmp_path, monkeypatch):
    files = FaultyFiles()
    harness = Harness(tmp_path, files=files)
    prepared(Asker(harness), XID)
    files.kill()
    synced = []
    sync = FaultyFiles.fdatasync

    def remember(files, fd):
        synced.append(files._paths[fd])
        sync(files, fd)

    monkeypatch.setattr(FaultyFiles, "fdatasync", remember)
    again = FaultyFiles()
    again.cached = True
    harness = Harness(tmp_path, files=again)
    assert str(transactions_directory(tmp_path) / "redo.1") in synced
    assert recovered(harness)
    close(harness)


# --- a disk that fails ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "name", "damaged"),
    [
        ("pread", "redo.1", False),
        ("pread", "checkpoint.1", False),
        ("pread", "metaq.json", False),
        ("fdatasync", "redo.1", True),
    ],
)
def test_a_start_that_the_disk_fails_names_the_file(tmp_path, call, name, damaged):
    harness = Harness(tmp_path)
    ask = Asker(harness)
    prepared(ask, *XIDS[:2])
    committed(ask, "TX:s:1")
    later(harness, 3600.0)
    if name == "metaq.json":
        harness.broker.transactions.complete(XIDS[0], "rollback")
    close(harness)
    bad = transactions_directory(tmp_path) / name
    if damaged:
        data = bytearray(bad.read_bytes())
        data[len(data) // 2] ^= 1
        bad.write_bytes(data)
    files = BadSector(call, str(bad))
    with pytest.raises(StoreError) as caught:
        Harness(tmp_path, files=files)
    assert f"'{bad}'" in str(caught.value)
    files.kill()
    harness = Harness(tmp_path)
    assert bodies(harness, "t", 0) == [b"x"], "nothing is lost once the disk is well"


def test_a_state_that_no_broker_writes_is_not_believed(tmp_path):
    write_state(REAL_FILES, str(tmp_path), SavedState(RedoPosition(1, -5)))
    state = read_state(REAL_FILES, str(tmp_path))
    assert state.replay_from is None
    assert "an invalid decision or position" in str(state.damage)


def test_what_becomes_of_a_damaged_transaction_is_on_the_disk_before_the_start_goes_on(harness, tmp_path):
    log = harness.broker.transactions._log
    log._decide(SavedState(RedoPosition(1, 0)), {XID: "rollback"})
    assert read_state(REAL_FILES, str(transactions_directory(tmp_path))).heuristics == {XID: "rollback"}


def test_a_block_that_is_larger_than_what_its_record_names_lies_nowhere():
    block: Any = SimpleNamespace(size=10)
    assert find_block(block, Location("t-0", 0, 9, 0), 0) is None
