"""What the transactions leave on the disk, when it gets there, and what a start makes of it."""

import errno
import json
import os
import re
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
from tests.doubles.store import BadSector, FaultyFiles, ManualThreads
from tests.unit.broker.harness import Harness, Threads, put
from tests.unit.broker.transactions.conversation import XID, Asker, bodies, tx, tx_put

XIDS = [f"XID:1:0{number}:0b:host" for number in range(9)]
BEGINNING = {"number": 1, "offset": 0}


@pytest.fixture
def log(lives):
    """The directory of the transactions."""
    return lives.directory / "data" / "transactions"


@pytest.fixture
def redo(log):
    """What redo.1 has."""
    return lambda: read_redo(REAL_FILES, str(log / "redo.1"))


def names(log, prefix=""):
    return sorted(each.name for each in log.glob(f"{prefix}*"))


def replay_from(log):
    """By metaq.json; as long as a replay begins at the beginning there is none."""
    path = log / "metaq.json"
    return json.loads(path.read_text())["replay_from"] if path.exists() else BEGINNING


def later(harness, seconds=1.0):
    harness.reactor.advance(seconds)
    harness.broker.transactions.tick()
    harness.threads.run()


def flushed(harness, topic="t"):
    harness.store.get(topic, 0).flush()
    harness.threads.run()


def committed(ask, key, body=b"x", topic="t"):
    ask.ok(tx(key, "BEGIN"), tx_put(key, topic, 0, body), tx(key, "COMMIT_ONE_PHASE"))


def prepared(ask, *keys):
    for key in keys:
        ask.ok(tx(key, "BEGIN"), tx_put(key, "t", 0, key.encode()), tx(key, "PREPARE"))


def recovered(lives):
    return sorted(lives.ask.ok(tx("null", "RECOVER")).split("\r\n"))


# --- records ----------------------------------------------------------------------------------------------------------


def test_a_log_of_ours_tells_what_javas_would(lives, redo):
    """The conversation behind tests/data/golden/store/redo.1 has records of the same kinds."""
    ask = lives.start()
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"a", 3), b"put t 0 1 0 TX:s:1 4\r\nb")
    ask.ok(tx_put("TX:s:1", "t", 1, b"c"), tx("TX:s:1", "COMMIT_ONE_PHASE"))
    ask.ok(tx("TX:s:2", "BEGIN"), tx("TX:s:2", "COMMIT_ONE_PHASE"), tx("TX:s:3", "BEGIN"), tx("TX:s:3", "ROLLBACK"))
    prepared(ask, XID)
    ask.ok(tx(XID, "ROLLBACK"))
    lives.stop()
    contents = redo()
    assert contents.problem is None
    commands = [entry.command for entry in contents.entries]
    assert [(put.checksum, put.opaque, put.body) for put in commands[:2]] == [(checksum(b"a"), 3, b"a"), (-1, 4, b"b")]
    kinds = [command.type.name for command in commands if hasattr(command, "type")]
    assert kinds == ["LOCAL_COMMIT", "XA_PREPARE", "XA_ROLLBACK"]
    locations = contents.entries[3].locations
    data = (lives.directory / "data" / "t-0" / f"{0:020d}.meta").read_bytes()
    assert [tuple(each[:3]) for each in locations] == [("t-0", 0, 42), ("t-1", 0, 21)]
    assert locations[0].checksum == checksum(data)


def test_an_attachment_is_put_right_when_something_came_in_between(lives, redo):
    ask = lives.start()
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"a"))
    ask.peer.send(tx("TX:s:1", "COMMIT_ONE_PHASE"))
    Asker(lives.harness).ok(put("t", 0, b"between"))
    (location,) = redo().entries[-1].locations
    assert (location.offset, location.size) == (27, 21)


def test_commits_that_arrive_together_share_a_sync(lives):
    calls = lives.start(FaultyFiles()).harness.store.files.calls
    peers = [lives.harness.connect() for _ in range(10)]
    for number, peer in enumerate(peers):
        peer.send(tx(f"TX:s:{number}", "BEGIN") + tx_put(f"TX:s:{number}", "t", 0, b"%d" % number))
    before = calls["fdatasync"], calls["pwritev"]
    for number, peer in enumerate(peers):
        peer.send(tx(f"TX:s:{number}", "COMMIT_ONE_PHASE"))
    lives.harness.threads.run()
    assert calls["fdatasync"] - before[0] <= 2  # the first one's, and that of all others
    assert calls["pwritev"] - before[1] <= 2 + 10  # the log's, and the appends
    assert bodies(lives.harness, "t", 0) == [b"%d" % number for number in range(10)]
    assert all(answer.code == 200 for peer in peers for answer in peer.answers())


def test_messages_of_a_transaction_are_written_together_not_one_by_one(lives):
    files = FaultyFiles()
    ask = lives.start(files)
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"first"))
    before = files.changes
    ask.ok(*(tx_put("TX:s:1", "t", 0, b"x" * 100) for _ in range(100)))
    assert files.changes == before
    later(lives.harness)
    assert files.changes > before  # they do not wait for ever


@pytest.mark.parametrize(("setting", "syncs", "after_a_second"), [(0, 0, 0), (1, 1, 1), (2, 0, 1)])
def test_flush_tx_log_at_commit(lives, redo, setting, syncs, after_a_second):
    files = FaultyFiles()
    committed(lives.start(files, system=f"flushTxLogAtCommit={setting}"), "TX:s:1")
    assert len(redo().entries) == 2  # written whatever the setting
    assert files.calls["fdatasync"] == syncs
    later(lives.harness)
    assert files.calls["fdatasync"] == after_a_second


def test_another_value_of_flush_tx_log_at_commit_stops_the_start(lives):
    with pytest.raises(ConfigError, match="flushTxLogAtCommit"):
        lives.start(system="flushTxLogAtCommit=3")


def test_the_log_may_lie_elsewhere_and_belongs_to_one_broker(lives, tmp_path):
    elsewhere = f"dataLogPath={tmp_path / 'log'}"
    committed(lives.start(system=elsewhere), "TX:s:1")
    assert (tmp_path / "log" / "transactions" / "redo.1").exists()
    with pytest.raises(StoreError, match="in use"):
        Harness(tmp_path / "other", system=elsewhere)


# --- where a replay begins --------------------------------------------------------------------------------------------


def test_a_clean_stop_leaves_nothing_to_replay_and_no_checkpoint_for_java(lives, log, redo):
    committed(lives.start(), "TX:s:1")
    lives.stop()
    assert names(log) == ["metaq.json", "redo.1"]
    assert replay_from(log) == {"number": 1, "offset": redo().size}


def test_a_replay_begins_before_everything_that_may_not_be_on_the_disk(lives, log, redo):
    """With asynchronous flush a committed message is kept by the log until its partition is synced."""
    committed(lives.start(FaultyFiles(), system="checkpointInterval=1000"), "TX:s:1", b"a")
    later(lives.harness, 2)
    assert replay_from(log) == BEGINNING
    lives.lose_power()
    lives.start(system="checkpointInterval=1000")
    assert bodies(lives.harness, "t", 0) == [b"a"]
    flushed(lives.harness)
    later(lives.harness, 2)
    assert replay_from(log)["offset"] == redo().size


def test_checkpoints_for_java_name_a_place_that_no_transaction_spans(lives, log, redo):
    ask = lives.start(system="checkpointInterval=10000\nmaxCheckpoints=2")
    for number in range(4):
        first, second = XIDS[2 * number : 2 * number + 2]
        start = redo().size if number else 0
        prepared(ask, first)
        ask.ok(tx(second, "BEGIN"), tx_put(second, "t", 0, b"oldest open one"))
        ask.ok(tx(first, "COMMIT_TWO_PHASE"))  # spans the beginning of the second
        later(lives.harness, 10.1)
        newest = json.loads((log / names(log, "checkpoint.")[-1]).read_text())
        assert newest == replay_from(log) == {"number": 1, "offset": start}
        ask.ok(tx(second, "ROLLBACK"))
        flushed(lives.harness)
        later(lives.harness)
        later(lives.harness)
    assert names(log, "check") == ["checkpoint.3", "checkpoint.4"]


def test_javas_checkpoint_of_the_newest_transaction_is_not_believed_and_put_right(lives, log, redo):
    prepared(lives.start(), *XIDS[:2])
    lives.stop()
    newest = redo().entries[2].offset
    for name in names(log, "checkpoint."):
        (log / name).unlink()
    (log / "checkpoint.7").write_text(json.dumps({"offset": newest, "number": 1}))
    lives.start()
    assert recovered(lives) == XIDS[:2]
    lives.stop()
    assert json.loads((log / "checkpoint.8").read_text()) == BEGINNING


def test_a_stale_checkpoint_is_followed_by_one_of_the_end_so_that_java_does_not_begin_in_the_middle(lives, log, redo):
    committed(lives.start(), "TX:s:1")
    (log / "checkpoint.1").write_text(json.dumps(BEGINNING))
    lives.again()
    lives.stop()
    assert json.loads((log / "checkpoint.2").read_text()) == {"number": 1, "offset": redo().size}


@pytest.fixture
def decided(lives, log):
    """The path of metaq.json after a prepared transaction and an operator's decision on another."""
    prepared(lives.start(), XIDS[0], XIDS[1])
    lives.harness.broker.transactions.complete(XIDS[1], "rollback")
    lives.stop()
    return log / "metaq.json"


@pytest.mark.parametrize("text", [b"{}", b"", b"\xff\xfe", b"[" * 100_000, b"null", b'{"replay_from": 1e999}'])
def test_a_damaged_state_is_kept_and_the_log_replayed_from_its_beginning(lives, decided, caplog, text):
    decided.write_bytes(text)
    lives.start()
    assert "metaq.json is damaged" in caplog.text
    assert decided.with_name("damaged-metaq.json").read_bytes() == text
    assert recovered(lives) == XIDS[:1]


def test_each_damaged_byte_of_the_state_is_found_and_costs_no_transaction(lives, log, decided, caplog):
    whole, records = decided.read_bytes(), (log / "redo.1").read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        decided.write_bytes(damaged)
        (log / "redo.1").write_bytes(records)
        caplog.clear()
        lives.start()
        if damaged.translate(None, b" \n") != whole.translate(None, b" \n"):
            assert "metaq.json is damaged" in caplog.text, position
        assert XIDS[0] in recovered(lives), position
        lives.kill()


@pytest.mark.parametrize(
    ("number", "offset", "decisions", "said", "found"),
    [
        (1, 0, {XIDS[1]: "rollback"}, "", XIDS[:2]),
        (1, 7, {XIDS[1]: "rollback"}, "no record", XIDS[:2]),
        (1, 1 << 40, {XIDS[1]: "rollback"}, "no record", XIDS[:2]),
        (10**30, 0, {}, "no file", XIDS[:1]),
    ],
    ids=["the beginning", "within a record", "behind the end", "a file far behind the last one"],
)
def test_a_state_of_an_older_release_has_no_checksum_and_a_place_that_is_none_is_not_believed(
    lives, decided, caplog, number, offset, decisions, said, found
):
    decided.write_text(json.dumps({"replay_from": {"number": number, "offset": offset}, "heuristics": decisions}))
    lives.start()
    assert recovered(lives) == found
    assert (said in caplog.text, "damaged" in caplog.text) == (True, False)


@pytest.mark.parametrize(
    "text", ["{}", "[]", "7", '{"number":1e999,"offset":0}', '{"number":-1,"offset":0}', "[" * 10**5]
)
def test_a_damaged_checkpoint_for_java_is_reported_and_followed_by_a_right_one(lives, log, caplog, text):
    prepared(lives.start(), XID)
    lives.stop()
    newest = max(int(name.rpartition(".")[2]) for name in names(log, "checkpoint."))
    (log / f"checkpoint.{newest}").write_text(text)
    lives.start()
    assert "is not a checkpoint" in caplog.text
    assert recovered(lives) == [XID]
    lives.stop()
    assert json.loads((log / f"checkpoint.{newest + 1}").read_text()) == BEGINNING


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_files(monkeypatch):
    monkeypatch.setattr("metaq.broker.transactions.writer.MAX_REDO_BYTES", 1000)


def test_a_file_goes_when_nothing_open_is_in_it(lives, log, small_files):
    ask = lives.start()
    prepared(ask, XID)
    for number in range(20):
        committed(ask, f"TX:s:{number}", b"x" * 200, "safe")
    assert len(names(log, "redo")) > 3
    flushed(lives.harness, "safe")
    later(lives.harness)
    later(lives.harness)
    first, last = names(log, "redo")
    assert first == "redo.1"  # the prepared one's
    ask.ok(tx(XID, "COMMIT_TWO_PHASE"))
    flushed(lives.harness)
    later(lives.harness)
    later(lives.harness)
    assert names(log, "redo") == [last]
    committed(lives.again(), "TX:s:99", b"y", "safe")
    assert bodies(lives.harness, "safe", 0) == [b"x" * 200] * 20 + [b"y"]


def test_a_full_file_in_which_everything_is_settled_goes_with_the_next_transaction(lives, log, small_files):
    ask = lives.start()
    for number in range(2):
        committed(ask, f"TX:s:{number}", b"x" * 600)
    flushed(lives.harness)
    later(lives.harness)
    assert names(log) == ["redo.1"]
    committed(ask, "TX:s:9")
    lives.harness.threads.run()
    assert names(log) == ["redo.2"]


def test_all_records_of_a_transaction_are_in_one_file(lives, redo, small_files):
    ask = lives.start()
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"first"))
    for number in range(2, 9):
        committed(ask, f"TX:s:{number}", b"x" * 300)
    ask.ok(tx_put("TX:s:1", "t", 0, b"last"), tx("TX:s:1", "COMMIT_ONE_PHASE"))
    assert [entry.command.tx_key for entry in redo().entries].count("TX:s:1") == 3
    assert bodies(lives.harness, "t", 0)[-2:] == [b"first", b"last"]


# --- replay -----------------------------------------------------------------------------------------------------------


def test_a_torn_tail_is_cut_kept_beside_and_reported(lives, log, redo, caplog):
    ask = lives.start()
    prepared(ask, XID)
    end = redo().size
    committed(ask, "TX:s:1", b"a")
    lives.stop()
    (log / "metaq.json").unlink(missing_ok=True)
    whole = (log / "redo.1").read_bytes()
    (log / "redo.1").write_bytes(whole[: end + 30])
    lives.start()
    assert (log / f"damaged-redo.1-{end}").read_bytes() == whole[end : end + 30]
    assert f"30 bytes cut at byte {end}" in caplog.text
    assert recovered(lives) == [XID]
    committed(lives.ask, "TX:s:2", b"b")
    lives.stop()
    assert redo().problem is None
    lives.start()
    assert bodies(lives.harness, "t", 0) == [b"a", b"b"]


def test_what_retention_has_removed_is_not_appended_again(lives, log):
    ask = lives.start()
    partition = lives.harness.store.get_or_create("t", 0)
    partition._writer.max_segment_size = 100
    committed(ask, "TX:s:1", b"a" * 100)
    ask.ok(put("t", 0, b"b" * 100), put("t", 0, b"c"))
    partition.checkpoint()
    lives.harness.threads.run()
    for segment in partition.segments.remove_first(1):
        REAL_FILES.unlink(segment.path)
        REAL_FILES.unlink(segment.index_path)
    lives.harness.threads.run()
    lives.kill()
    (log / "metaq.json").unlink(missing_ok=True)
    partition = lives.start().harness.store.get("t", 0)
    assert (partition.first_offset, partition.segments.message_count) == (120, 2)


def test_committed_messages_of_a_topic_that_is_gone_from_the_configuration_are_kept(lives):
    committed(lives.start(FaultyFiles(), topics="[topic=old]\nnumPartitions=1\n"), "TX:s:1", b"a", "old")
    lives.lose_power()
    lives.start()
    assert bodies(lives.harness, "old", 0) == [b"a"]
    assert lives.harness.topics_seen == ["old"]


def test_ids_after_a_restart_are_above_those_in_the_log(lives):
    ask = lives.start()
    first = int(ask.ok(tx(XID, "BEGIN"), tx_put(XID, "t", 0, b"a")).split(" ")[0])
    ask.ok(tx(XID, "PREPARE"))
    ask = lives.again()
    lives.harness.time -= 3600
    assert int(ask.ok(put("t", 0)).split(" ")[0]) > first


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_log_that_was_deleted_under_the_broker_decides_nothing(lives, log):
    ask = lives.start()
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "t", 0, b"a"))
    prepared(ask, XID)
    shutil.rmtree(log)
    for key, verb in (("TX:s:1", "COMMIT_ONE_PHASE"), (XID, "COMMIT_TWO_PHASE")):
        assert "deleted or moved away while the broker ran" in ask.refused(tx(key, verb))


@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_a_log_that_cannot_be_written_refuses_transactions_clearly_and_nothing_else(lives, call):
    files = FaultyFiles()
    ask = lives.start(files)
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
    assert recovered(lives) == [XID]
    ask.ok(put("t", 0, b"plain"))
    assert bodies(lives.harness, "t", 0) == [b"plain"]
    lives.kill()
    lives.start()
    assert recovered(lives) == [XID]


def without_room():
    return FaultyFiles(error=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


def test_a_commit_waits_for_room_and_messages_are_refused_until_there_is(lives, log, redo):
    files = without_room()
    ask = lives.start(files)
    committed(ask, "TX:s:1", b"a")
    size = (log / "redo.1").stat().st_size
    other = Asker(lives.harness)
    other.ok(tx("TX:o:1", "BEGIN"))
    ask.ok(tx("TX:s:2", "BEGIN"), tx_put("TX:s:2", "t", 0, b"b"))
    files.fail("pwritev")
    ask.peer.send(tx("TX:s:2", "COMMIT_ONE_PHASE"))
    for _ in range(3):
        later(lives.harness)
        assert ask.peer.answers() == []
        assert (log / "redo.1").stat().st_size == size
    assert "its disk is full" in other.refused(tx_put("TX:o:1", "t", 0, b"c"))
    files.heal()
    later(lives.harness)
    assert [answer.code for answer in ask.peer.answers()] == [200]
    other.ok(tx_put("TX:o:1", "t", 0, b"c"), tx("TX:o:1", "COMMIT_ONE_PHASE"))
    assert bodies(lives.harness, "t", 0) == [b"a", b"b", b"c"]
    lives.stop()
    assert redo().problem is None


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
    files, threads, copies = without_room(), Threads(), Copies()
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


def test_who_waits_is_told_once_when_a_worker_reports_behind_the_end(tmp_path):
    threads, clock = ManualThreads(), Clock()
    writer = RedoWriter(REAL_FILES, str(tmp_path / "transactions"), threads, clock, sync=True)
    told: list[str | None] = []
    writer.append(writer.file_for(XID), [b"record"])
    writer.when_written(told.append)
    report = threads.run_unreported()
    writer.close()
    report()
    clock.advance(1)
    assert told == [None]


def test_a_partition_that_takes_no_writes(lives):
    files = FaultyFiles()
    ask = lives.start(files)
    for key in (XID, XIDS[1]):
        ask.ok(tx(key, "BEGIN"), *(tx_put(key, "t", partition, key.encode()) for partition in (0, 1)))
    ask.ok(tx(XID, "PREPARE"), put("t", 0, b"plain"))
    files.fail("pwritev")
    ask.refused(put("t", 0, b"refused"))
    files.heal()
    assert "is read-only" in ask.refused(tx_put(XIDS[1], "t", 0, b"x"))
    rolled_back = "XAException:code=104,msg=STORE COMMIT FAILED: Transaction rolled back."
    assert ask.refused(tx(XIDS[1], "COMMIT_ONE_PHASE")) == rolled_back
    assert ask.refused(tx(XIDS[1], "ROLLBACK")).startswith("XAException:code=-4,")
    assert ask.refused(tx(XID, "COMMIT_TWO_PHASE")).startswith("XAException:code=-7,")
    assert recovered(lives) == [XID]
    assert bodies(lives.harness, "t", 1) == []
    lives.kill()
    lives.start().ok(tx(XID, "COMMIT_TWO_PHASE"))
    assert bodies(lives.harness, "t", 0) == [b"plain", XID.encode()]


@pytest.mark.parametrize(("key", "code"), [("TX:s:1", 7), (XID, -7)])
def test_a_partition_that_fails_under_a_decided_commit_gets_the_rest_at_the_next_start(lives, key, code):
    """A client cannot ask about a local one again: it must know now."""
    files = FaultyFiles()
    ask = lives.start(files)
    ask.ok(put("t", 0, b"plain"), tx(key, "BEGIN"), tx_put(key, "t", 0, b"a"), tx_put(key, "t", 1, b"b"))
    ask.peer.send(tx(key, "COMMIT_ONE_PHASE"))
    function, done = lives.harness.threads.waiting.pop(0)
    function()  # the decision is on the disk
    files.fail("pwritev")
    done(None)
    (answer,) = ask.peer.answers()
    assert answer.code == 500
    assert answer.text.startswith(f"XAException:code={code},msg='{key}' is committed, but ")
    files.heal()
    if key == XID:
        assert ask.refused(tx(key, "COMMIT_ONE_PHASE")).startswith("XAException:code=-7,")
    lives.kill()
    lives.start()
    assert [bodies(lives.harness, "t", each) for each in (0, 1)] == [[b"plain", b"a"], [b"b"]]


def test_what_the_page_cache_has_of_the_log_is_written_again_and_synced_at_a_start(lives, log, monkeypatch):
    prepared(lives.start(FaultyFiles()), XID)
    lives.kill()
    synced = []
    sync = FaultyFiles.fdatasync

    def remember(files, fd):
        synced.append(files._paths[fd])
        sync(files, fd)

    monkeypatch.setattr(FaultyFiles, "fdatasync", remember)
    files = FaultyFiles()
    files.cached = True
    lives.start(files)
    assert str(log / "redo.1") in synced
    assert recovered(lives) == [XID]


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
def test_a_start_that_the_disk_fails_names_the_file(lives, log, call, name, damaged):
    ask = lives.start()
    prepared(ask, *XIDS[:2])
    committed(ask, "TX:s:1")
    later(lives.harness, 3600.0)
    if name == "metaq.json":
        lives.harness.broker.transactions.complete(XIDS[0], "rollback")
    lives.stop()
    bad = log / name
    if damaged:
        data = bytearray(bad.read_bytes())
        data[len(data) // 2] ^= 1
        bad.write_bytes(data)
    files = BadSector(call, str(bad))
    with pytest.raises(StoreError, match=re.escape(f"'{bad}'")):
        lives.start(files)
    files.kill()
    lives.start()
    assert bodies(lives.harness, "t", 0) == [b"x"], "nothing is lost once the disk is well"


def test_a_state_that_no_broker_writes_is_not_believed(tmp_path):
    write_state(REAL_FILES, str(tmp_path), SavedState(RedoPosition(1, -5)))
    state = read_state(REAL_FILES, str(tmp_path))
    assert state.replay_from is None
    assert "an invalid decision or position" in str(state.damage)


def test_what_becomes_of_a_damaged_transaction_is_on_the_disk_before_the_start_goes_on(lives, log):
    lives.start().harness.broker.transactions._log._decide(SavedState(RedoPosition(1, 0)), {XID: "rollback"})
    assert read_state(REAL_FILES, str(log)).heuristics == {XID: "rollback"}


def test_a_block_that_is_larger_than_what_its_record_names_lies_nowhere():
    block: Any = SimpleNamespace(size=10)
    assert find_block(block, Location("t-0", 0, 9, 0), 0) is None
