"""`metaq check` on directories with every kind of trouble: what it says, and that it changes nothing."""

import fcntl
import json
import os

import pytest

from metaq.broker.sets.history import EpochHistory, NodeFile
from metaq.broker.store.batch import encode_puts
from metaq.broker.store.directories import LOCK_NAME
from metaq.broker.store.files import REAL_FILES
from metaq.broker.store.index import replace_index
from metaq.broker.store.journal_format import JOURNAL_DIRECTORY
from metaq.broker.transactions.checkpoints import SavedState, write_state
from metaq.broker.transactions.commands import Operation, OperationType, StoredPut
from metaq.broker.transactions.directory import RedoPosition
from metaq.broker.transactions.redo import Location, encode_locations
from metaq.cli.app import run
from metaq.protocol.record import checksum, encode_attributes, encode_body, encode_record
from tests.doubles.redo import encode_operation_record, encode_put_record
from tests.doubles.store_harness import StoreHarness

SEGMENT = "00000000000000000000.meta"
JAVA_ID = -5_468_000_000_000_000_000


def record(body, message_id=JAVA_ID):
    return encode_record(body, message_id, 0)


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def snapshot(directory):
    """Bytes and times of everything, the directories' own times too."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else sorted(os.listdir(path)))
        for path in [directory, *directory.rglob("*")]
    }


class Check:
    """Runs it on `data`; the report, whose exit code must fit. Nothing may have changed."""

    def __init__(self, data, capsys):
        self.data = data
        self._capsys = capsys

    def __call__(self, *options):
        before = snapshot(self.data)
        code = run(["check", str(self.data), "--json", "--java-processors", "1", *options])
        assert snapshot(self.data) == before
        report = json.loads(self._capsys.readouterr().out)
        assert code == int(report["damaged"])
        return report


@pytest.fixture
def check(tmp_path, capsys):
    (tmp_path / "data").mkdir(0o700)
    return Check(tmp_path / "data", capsys)


def said(report, level):
    return [found["text"] for found in report["findings"] if found["level"] == level]


def the_partition(report):
    (found,) = report["partitions"]
    return found


def test_segments_of_java_are_counted_and_joined(check):
    first, second = record(b"one") + record(b"two"), record(b"")
    write(check.data / "t-0" / SEGMENT, first)
    write(check.data / "t-0" / f"{len(first):020d}.meta", second)
    write(check.data / "t-0" / f"{7:020d}.meta.arc", b"old")
    report = check()
    found = the_partition(report)
    assert (found["name"], found["segments"], found["records"], found["archives"]) == ("t-0", 2, 3, 1)
    assert (found["first_offset"], found["end_offset"]) == (0, len(first + second))
    assert found["checked_bytes"] == found["bytes"] == len(first + second)
    assert found["index"] == {"missing": 2}
    assert not said(report, "damage") + said(report, "warning")


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750, 0o702])
def test_a_directory_that_others_may_read_is_a_warning(check, mode):
    write(check.data / "t-0" / SEGMENT, record(b"one"))
    check.data.chmod(mode)
    expected = [] if mode == 0o700 else [f"users other than the owner of {check.data} may read or change it"]
    assert [text.partition(" (mode")[0] for text in said(check(), "warning")] == expected


@pytest.mark.parametrize(
    ("tail", "kind", "words"),
    [
        (record(b"never finished")[:-3], "unfinished", "torn tail of 31 bytes"),
        (bytes(50), "zeros", "take them for 2 empty messages"),
    ],
)
def test_a_tail_that_a_start_cuts_is_a_warning(check, tail, kind, words):
    good = record(b"good")
    write(check.data / "t-0" / SEGMENT, good + tail)
    report = check()
    assert the_partition(report)["bad"] == [{"start": len(good), "end": len(good + tail), "kind": kind}]
    (warning,) = said(report, "warning")
    assert words in warning
    assert check("--fast")["partitions"][0]["bad"] == the_partition(report)["bad"]


@pytest.mark.parametrize(
    ("segments", "words"),
    [
        pytest.param(
            {0: record(b"good") + record(b"flipped")[:-1] + b"D" + record(b"more")}, "[24, 51)", id="a flipped bit"
        ),
        # whatever a Java broker makes of them
        pytest.param(
            {0: record(b"a") + bytes(40) + record(b"b")}, "40 zero bytes [21, 61).* as 2 empty messages", id="zeros"
        ),
        pytest.param(
            {0: record(b"a") + bytes(50) + record(b"b")}, "50 zero bytes [21, 71).* as 2 empty messages", id="more"
        ),
        pytest.param({0: record(b"one"), 28: record(b"two")}, "gap of 5 bytes", id="a gap between segments"),
        pytest.param({0: record(b"one"), 18: record(b"two")}, "overlap of 5 bytes", id="segments that overlap"),
    ],
)
def test_damage_between_good_records_is_told_by_its_range(check, segments, words):
    for start, data in segments.items():
        write(check.data / "t-0" / f"{start:020d}.meta", data)
    report = check()
    assert the_partition(report)["records"] == 2
    (damage,) = said(report, "damage")
    assert all(each in damage for each in words.split(".*"))


def test_a_closed_segment_cut_short_is_damage_but_a_fast_check_does_not_look(check):
    first = record(b"one") + record(b"two")
    write(check.data / "t-0" / SEGMENT, first[:-1] + b"\xff")
    write(check.data / "t-0" / f"{len(first):020d}.meta", record(b"three"))
    assert len(said(check(), "damage")) == 1
    fast = check("--fast")
    assert the_partition(fast)["records"] is None
    assert the_partition(fast)["checked_bytes"] == len(record(b"three"))
    assert not fast["damaged"]


def stored(check, *batches, segment_size=1 << 20):
    """A partition of a broker that was stopped, so that a start believes all of it; the broker's harness."""
    harness = StoreHarness(check.data)
    harness.max_segment_size = segment_size
    for bodies in batches:
        harness.append(*bodies)
        harness.threads.run_all()
    harness.store.close()
    return harness


THREE = [b"1one", b"2two", b"3tre"]
NUMBERED = [b"%05d" % number for number in range(300)]
"""Enough for several blocks of an index."""


def flip(path, position):
    """One bit of the byte there."""
    change(path, position, bytes([path.read_bytes()[position] ^ 1]))


def change(path, position, data):
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


@pytest.mark.parametrize(("segments", "size"), [(1, 1 << 20), (2, 72)])
@pytest.mark.parametrize(
    ("position", "data", "bad"),
    [
        (25, b"x", (24, 48)),  # a body
        (24, b"\x7f", (24, 48)),  # a length
        (24, bytes(24), (24, 48)),
        (70, b"xx", (48, 72)),  # the last record: no start cuts what a checkpoint covers
        (48, bytes(24), (48, 72)),
    ],
)
def test_damage_that_a_start_believes_in_is_damage_and_its_index_is_right(check, segments, size, position, data, bad):
    change(stored(check, *[THREE] * segments, segment_size=size).data_file(), position, data)
    report = check()
    (damage,) = said(report, "damage")
    assert f"[{bad[0]}, {bad[1]})" in damage
    assert "messages are lost" in damage
    assert "the start cuts" not in damage
    assert not said(report, "warning")
    assert set(the_partition(report)["index"]) == {"ok"}


def test_damage_of_a_broker_that_runs_is_told_as_far_as_its_checkpoint_goes(check):
    change(stored(check, THREE).data_file(), 70, b"xx")
    with open(check.data / LOCK_NAME, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (damage,) = said(check(), "damage")
    assert "[48, 72)" in damage


def test_a_file_that_cannot_be_used_or_read_is_damage(check):
    write(check.data / "t-0" / "copy.meta", b"")
    write(check.data / "t-0" / SEGMENT, record(b"one"))
    (check.data / "u-0").mkdir()
    (check.data / "u-0" / SEGMENT).mkdir()  # opens, but no bytes come
    report = check()
    assert sorted(text.split(":")[0] for text in said(report, "damage")) == [
        "cannot be read",
        "the name is not a byte offset",
    ]
    assert len(report["partitions"]) == 2


def test_what_would_trouble_a_java_broker_is_named(check):
    for name in ("t-0", "t-1", "t-2", "t-x", "u-01"):
        write(check.data / name / SEGMENT, record(b"x" * 100))
    write(check.data / "transactions" / "redo.1", b"")
    report = check("--max-transfer-size", "50")
    assert [each["name"] for each in report["partitions"]] == ["t-0", "t-1", "t-2"]
    assert any("'x' behind the last '-'" in text for text in said(report, "warning"))
    assert any("takes it for 1" in text for text in said(report, "warning"))
    assert any("does not load 1 of the 3 partitions" in text for text in said(report, "note"))
    assert sum("1 records are larger than 50 bytes" in text for text in said(report, "note")) == 3


def test_the_state_of_an_index_is_told(check):
    harness = stored(check, *([b"x" * 40 + bytes([number])] for number in range(6)), segment_size=100)
    report = check()
    assert the_partition(report)["records"] == 6
    assert the_partition(report)["index"] == {"ok": report["partitions"][0]["segments"]}
    index = harness.index_file(0)
    flip(index, 64 + 8)  # the id in the first unit: the header and the last unit stay right
    broken = check()
    assert the_partition(broken)["index"]["wrong"] == 1
    assert any("made again at the next start" in text for text in said(broken, "warning"))
    assert not broken["damaged"]
    index.unlink()
    assert the_partition(check())["index"]["missing"] == 1


def test_a_damaged_block_of_an_index_is_named(check):
    flip(stored(check, NUMBERED).index_file(), 5000)
    report = check()
    assert the_partition(report)["index"] == {"damaged": 1}
    (text,) = said(report, "warning")
    assert text.startswith("block 1: its units do not fit its checksum: a broker makes the index again when it reads")
    assert not report["damaged"]
    log = StoreHarness(check.data).log  # what it says is so
    assert len(log.lookup.units(0, 1 << 20)) == 300
    assert log.segments[0].index is None


@pytest.mark.parametrize(
    ("field", "level", "effect"),
    [("id", "warning", "searches by id miss messages"), ("size", "damage", "consumers miss good messages")],
)
def test_an_index_of_other_records_that_a_start_believes_is_told(check, field, level, effect):
    harness = stored(check, NUMBERED)
    units = StoreHarness(check.data).log.lookup.units(0, 1 << 20).copy()
    units[field][7] += 1
    replace_index(REAL_FILES, str(harness.index_file(0)), units, 0, 300 * 25)
    report = check()
    assert the_partition(report)["index"] == {"misleading": 1}
    assert any(effect in text for text in said(report, level))


def test_an_index_in_front_of_its_first_checkpoint_is_not_wrong(check):
    """As it stands for up to half a minute when a broker has taken a Java broker's directory over."""
    change(stored(check, NUMBERED).index_file(), 0, bytes(64))
    report = check()
    assert the_partition(report)["index"] == {"ok": 1}
    assert not said(report, "warning")


def test_damage_in_a_segment_does_not_make_its_index_look_wrong(check):
    flip(stored(check, NUMBERED, NUMBERED, segment_size=300 * 25).data_file(), 100 * 25 + 22)
    report = check()
    assert report["damaged"]
    assert the_partition(report)["index"] == {"ok": 3}


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        pytest.param(0, "the start of ours sets the later segments aside", id="gap"),
        pytest.param(
            30,
            "30 zero bytes [30, 60): the start sets everything from there on aside and cuts the log; "
            "a Java broker gives them as 1 empty messages",
            id="hole",
        ),
    ],
)
def test_a_hole_behind_the_newest_checkpoint_is_what_the_start_cuts_at(check, kept, words):
    harness = StoreHarness(check.data)
    harness.max_segment_size = 30
    for number in range(3):
        harness.append(b"%010d" % number)
    harness.files.kill()
    harness.data_file(30).write_bytes(bytes(kept))
    (damage,) = said(check(), "damage")
    assert words in damage
    log = StoreHarness(check.data).log
    assert (log.end_offset, log.segments.message_count) == (30, 1)


def test_a_directory_that_is_no_dataPath_is_refused_with_the_one_that_is(tmp_path, capsys):  # noqa: N802
    StoreHarness(tmp_path / "up" / "broker-0" / "data").kill()
    for directory in (tmp_path / "up", tmp_path / "up" / "broker-0"):
        assert run(["check", str(directory)]) == 1
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert f"perhaps {tmp_path / 'up' / 'broker-0' / 'data'}" in said.err


def journaled(check, batches=1, segment_size=1 << 20):
    """Four partitions of a killed broker, all but the first (which is synced alone) in the journal, too."""
    harness = StoreHarness(check.data)
    harness.group_commit, harness.max_segment_size = True, segment_size
    logs = [harness.store.get_or_create("t", partition) for partition in range(4)]
    for number in range(batches):
        for log in logs:
            log.append(*encode_puts([(0, checksum(b"body"), b"body")], log.end_offset, [1 + number], 1))
        harness.threads.run_all()
    harness.files.kill()


def test_what_only_the_journal_has_is_told(check):
    journaled(check)
    assert (check.data / JOURNAL_DIRECTORY).is_dir()
    assert any("did not stop cleanly" in text for text in said(check(), "note"))
    os.truncate(check.data / "t-1" / SEGMENT, 3)  # what a power cut does
    report = check()
    assert report["journal"]["returning"] == {"t-1": 24}
    assert "a Java broker would not see them" in said(report, "warning")[-1]


def test_a_first_segment_that_only_the_journal_has_is_told(check):
    journaled(check, batches=2, segment_size=20)
    for path in (check.data / "t-1").glob("*.index"):
        path.unlink()
    (check.data / "t-1" / SEGMENT).unlink()  # what a power cut may do before the directory is synced
    assert check()["journal"]["returning"] == {"t-1": 24}


def test_what_the_journal_has_and_the_next_start_will_not_put_back_is_told(check):
    journaled(check)
    # after a power cut a broker that knows no journal has gone on
    (check.data / "t-1" / SEGMENT).write_bytes(record(b""))
    (check.data / "t-2" / SEGMENT).write_bytes(record(b"java and more"))
    report = check()
    assert report["journal"]["returning"] == {}
    lost = "acknowledged and are lost: other records are in their place"
    assert [text for text in said(report, "damage") if lost in text] == [
        f"bytes [0, 24) of t-{partition} were {lost}, or in front of them" for partition in (1, 2)
    ]


# --- transactions -----------------------------------------------------------------------------------------------------


def put(key, body=b"in a transaction"):
    return b"".join(encode_put_record(StoredPut(key, JAVA_ID, "t", 0, 0, -1, 1, body)))


def operation(key, kind, attachment=b""):
    return b"".join(encode_operation_record(Operation(key, kind, False), attachment))


def test_the_transaction_log_is_read(check):
    written = record(b"in a transaction")
    there = Location("t-0", 0, len(written), checksum(written))
    xid = "XID:1:00ff:01:tm"
    write(check.data / "t-0" / SEGMENT, written)
    redo = [
        put("TX:a:1"),
        operation("TX:a:1", OperationType.LOCAL_COMMIT, encode_locations([there])),
        put("TX:a:2"),
        operation("TX:a:2", OperationType.LOCAL_COMMIT, encode_locations([there._replace(offset=99)])),
        put("TX:a:3"),
        operation("TX:a:3", OperationType.LOCAL_ROLLBACK),
        put(xid) + put(xid),
        operation(xid, OperationType.XA_PREPARE),
        put("TX:a:4"),
    ]
    write(check.data / "transactions" / "redo.1", b"".join(redo) + b"\0\0\0")
    behind_the_prepared = len(b"".join(redo[:7]))
    write(check.data / "transactions" / "checkpoint.1", b"")
    write(check.data / "transactions" / "checkpoint.2", b'{"offset":%d,"number":1}' % behind_the_prepared)
    before_the_prepared = len(b"".join(redo[:6]))
    state = SavedState(RedoPosition(1, before_the_prepared))
    write_state(REAL_FILES, str(check.data / "transactions"), state)
    found = check()["transactions"]
    assert (found["committed"], found["rolled_back"]) == (2, 1)
    assert (found["checkpoint"], found["replay_from"]) == ([1, behind_the_prepared], [1, before_the_prepared])
    assert found["files"][0]["tail_bytes"] == 3
    assert [(each["key"], each["prepared"], each["messages"]) for each in found["pending"]] == [
        (xid, True, 2),
        ("TX:a:4", False, 1),
    ]
    warnings = said(check(), "warning")
    assert any("forgets it" in text for text in warnings)
    assert any("rolled back at the start" in text for text in warnings)
    assert any("torn tail of 3 bytes" in text for text in warnings)
    assert not any("writes what is missing" in text for text in warnings)  # before the place where a replay begins
    (check.data / "transactions" / "metaq.json").unlink()
    missing = "1 commits to t-0 are not where the log names them: the start writes what is missing"
    assert missing in said(check(), "warning")
    assert not check()["damaged"]


def test_a_transaction_log_elsewhere(check, tmp_path):
    write(check.data / "t-0" / SEGMENT, b"")
    write(tmp_path / "log" / "transactions" / "redo.3", put("TX:a:1"))
    assert check()["transactions"] is None
    assert check("--log-dir", str(tmp_path / "log"))["transactions"]["pending"][0]["first"] == [3, 0]


# --- a broker that runs -----------------------------------------------------------------------------------------------


def test_a_directory_in_use_is_told_and_its_unfinished_end_is_no_warning(check):
    write(check.data / "t-0" / SEGMENT, record(b"a") + record(b"being written")[:-1])
    lock = REAL_FILES.lock(str(check.data / LOCK_NAME))
    try:
        report = check()
        assert report["in_use"] is True
        assert not said(report, "warning")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # still ours
    finally:
        REAL_FILES.close(lock)
    assert check()["in_use"] is False


def test_the_table_ends_with_the_verdict(tmp_path, capsys):
    write(tmp_path / "t-0" / SEGMENT, record(b"good"))
    assert run(["check", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("24 B checked: nothing is damaged\n")
    assert run(["check", str(tmp_path / "nothing")]) == 2


def test_the_verdict_of_a_fast_check_says_how_much_it_is_about(check, capsys):
    stored(check, [b"1one", b"2two"])
    assert run(["check", "--fast", str(check.data)]) == 0
    assert capsys.readouterr().out.endswith("0 B of 48 B checked: nothing is damaged\n")


def test_key_files_are_compared_with_the_records_and_never_damage(check):
    harness = StoreHarness(check.data)
    harness.max_segment_size = 500
    for number in range(40):
        flag, attribute = encode_attributes(keys=[f"order-{number}"])
        harness.append(bytes(encode_body(b"x" * 50, flag, attribute)), flag=flag)
    for _ in range(20):
        harness.now += 5
        harness.store.tick()
        harness.threads.run_all()
    harness.store.close()
    files = sorted((check.data / "t-0").glob("*.keys"))
    assert len(files) >= 4

    def states(*options):
        report = check(*options)
        (partition,) = report["partitions"]
        return partition["keys"], report

    assert states()[0] == {"ok": len(files) + 1}
    files[0].unlink()
    os.truncate(files[1], files[1].stat().st_size - 4)
    entries = bytearray(files[2].read_bytes())
    entries[96] ^= 1
    files[2].write_bytes(entries)
    (check.data / "t-0" / "00000000000000000007.keys").write_bytes(b"")
    found, report = states()
    assert found == {"missing": 1, "behind": 1, "wrong": 1, "ok": len(files) - 2}
    assert any("it is made again" in text for text in said(report, "warning"))
    assert "a key file without a segment: it may be deleted" in said(report, "note")
    assert not report["damaged"]
    assert states("--fast")[0] == {"missing": 1, "behind": 1, "ok": len(files) - 1}


def test_what_a_node_of_a_broker_set_remembers_is_read_and_told(check):
    stored(check, [b"a"])
    NodeFile(REAL_FILES, str(check.data)).write(4, EpochHistory().begin(1, {}).begin(3, {"t-0": 10}), {"t-0": 10})

    def told():
        (found,) = [each for each in check()["findings"] if "metaqset" in each["place"]]
        return found["level"], found["text"]

    assert told() == ("note", "a node of a broker set: it has seen epoch 4, and has data up to epoch 3")
    path = check.data / "metaqset" / "history.json"
    path.write_bytes(path.read_bytes().replace(b"10", b"11"))
    level, text = told()
    assert level == "damage"
    assert "checksum" in text


def test_a_cut_that_a_crash_interrupted_is_named_and_no_damage(check):
    (stored(check, [b"one", b"two"]).data_file().parent / "cut").write_bytes(b"23 -1\n")
    report = check()
    named = "the partition's end is being cut off: the next start finishes that, and keeps the bytes that it cuts"
    assert named in said(report, "note")
    assert not report["damaged"]
