"""Retention while the disk fails at any step, and segment files with impossible dates."""

from __future__ import annotations

import errno
import os
import zipfile
from pathlib import Path

import pytest

from metaq.broker.store import retention
from metaq.broker.store.files import FileStatus
from metaq.broker.store.index import IndexDamaged
from metaq.broker.store.topic_config import parse_delete_policy
from tests.doubles.store import FaultyFiles, check_invariants
from tests.doubles.store_harness import NOW_MS, StoreHarness
from tests.raising import raising
from tests.unit.broker.store.test_store_retention import HOUR, aged

POLICIES = ["delete,10", "archive,10", "archive,10,true"]
BODIES = [b"00000", b"00001", b"00002", b"young"]


def consumed(harness: StoreHarness) -> list[bytes]:
    """What a consumer reads from the start on, by index units as well."""
    log = harness.log
    check_invariants(log)
    assert len(log.lookup.units(log.first_offset, 1 << 20))
    return harness.bodies()


def steps(tmp_path: Path, policy: str) -> int:
    """Changes of the disk that a run without a fault makes."""
    harness = StoreHarness(tmp_path / "sound")
    harness.delete_policy = parse_delete_policy(policy)
    aged(harness, [30, 20, 15])
    before = harness.files.changes
    harness.retain()
    harness.files.kill()
    return harness.files.changes - before


@pytest.mark.parametrize("policy", POLICIES)
def test_a_fault_at_every_step_leaves_a_log_that_can_be_read_and_the_next_run_finishes(tmp_path, policy):
    count = steps(tmp_path, policy)
    assert count >= 9
    for step in range(1, count + 1):
        harness = StoreHarness(tmp_path / str(step))
        harness.delete_policy = parse_delete_policy(policy)
        aged(harness, [30, 20, 15])
        harness.checkpoint()
        harness.files.fail_at = harness.files.changes + step
        harness.retain()
        harness.files.heal()
        found = consumed(harness)
        assert found == BODIES[len(BODIES) - len(found) :], step
        log = harness.restart()
        assert consumed(harness) == found, step
        assert log.segments.message_count == len(found)
        harness.retain()
        assert consumed(harness) == [b"young"]
        kept = [name for name in harness.names() if not name.endswith((".arc", ".zip"))]
        if found != [b"young"]:  # the run before the restart reported what it left, and another took segments away
            assert min(int(name[:20]) for name in kept) == 75, step
        harness.files.kill()


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_left_beside_a_segment_that_is_gone_is_reported_and_goes_in_the_next_run(
    harness, caplog, monkeypatch, policy
):
    harness.delete_policy = parse_delete_policy(policy)
    aged(harness, [30, 20])
    unlink = FaultyFiles.unlink

    def fail_for_indexes(files, path):
        if path.endswith(".index"):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        unlink(files, path)

    with monkeypatch.context() as broken:
        broken.setattr(FaultyFiles, "unlink", fail_for_indexes)
        harness.retain()
    assert consumed(harness) == [b"young"]
    assert harness.index_file(0).exists()
    assert harness.index_file(25).exists()
    assert str(harness.index_file(0)) in caplog.text
    assert harness.store.apply_retention() == []
    harness.threads.run_all()
    assert not harness.index_file(0).exists()
    assert not harness.index_file(25).exists()


def test_a_zip_that_has_no_room_leaves_nothing_and_the_segment_stays(harness, caplog, monkeypatch):
    harness.delete_policy = parse_delete_policy("archive,10,true")
    aged(harness, [30])

    with monkeypatch.context() as full:
        full.setattr(zipfile.ZipFile, "write", raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        harness.retain()
    assert "No space left" in caplog.text
    assert not [name for name in harness.names() if "zip" in name]
    assert consumed(harness) == [b"00000", b"young"]


def test_half_a_zip_of_an_earlier_life_goes_with_the_next_segment(harness):
    harness.delete_policy = parse_delete_policy("archive,10,true")
    aged(harness, [30])
    half = harness.data_file(0).with_suffix(".meta.zip.part")
    half.write_bytes(b"half")
    other = harness.data_file(0).with_name(f"{7:020d}.meta.zip.part")
    other.write_bytes(b"half")
    harness.retain()
    assert not half.exists()
    assert not other.exists()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_segment_whose_file_is_gone_already_does_not_come_back(harness, caplog, policy):
    harness.delete_policy = parse_delete_policy(policy)
    aged(harness, [30, 20])
    removed = harness.store.apply_retention()
    assert len(removed) == 2
    harness.data_file(0).unlink()
    harness.threads.run_all()
    assert "was gone already" in caplog.text
    assert consumed(harness) == [b"young"]
    assert not harness.index_file(0).exists()


def test_an_error_that_nobody_thought_of_does_not_lose_the_segments(harness, caplog, monkeypatch):
    harness.delete_policy = parse_delete_policy("archive,10,true")
    aged(harness, [30, 20])
    with monkeypatch.context() as broken:
        broken.setattr(retention, "_zip", lambda *_: 1 // 0)
        harness.retain()
    assert "modulo by zero" in caplog.text
    assert consumed(harness) == [b"00000", b"00001", b"young"]


def test_a_log_whose_files_are_being_removed_waits_with_its_next_segments(harness):
    harness.delete_policy = parse_delete_policy("delete,10,size=1")
    aged(harness, [30, 5])
    assert len(harness.store.apply_retention()) == 1
    assert harness.store.apply_size_limits() == []  # else a failure could bring the older one back in front of a gap
    harness.threads.run_all()
    assert len(harness.store.apply_size_limits()) == 2


# --- dates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("date", [-5.0, 0.0, 4e9])
def test_a_segment_with_an_impossible_date_has_that_of_its_last_message(harness, date):
    harness.delete_policy = parse_delete_policy("delete,10")
    aged(harness, [30, 20])
    os.utime(harness.data_file(0), (date, date))
    assert harness.store.apply_retention() == []  # its message is new: the harness stamps all with NOW_MS
    harness.wall = NOW_MS / 1000 + 11 * HOUR
    assert len(harness.store.apply_retention()) == 2


def test_a_segment_without_any_possible_date_stays_and_is_reported_once(harness, caplog):
    harness.delete_policy = parse_delete_policy("delete,10,size=1")
    harness.max_segment_size = 25
    harness.append(b"00000", now_ms=9_000_000_000_000)
    harness.threads.run_all()
    os.utime(harness.data_file(0), (8e9, 8e9))
    assert harness.store.apply_retention() == []
    assert harness.store.apply_retention() == []
    assert caplog.text.count("touch") == 1
    assert len(harness.store.apply_size_limits()) == 1


def test_dates_are_those_of_the_file_where_they_can_be(harness, monkeypatch):
    harness.delete_policy = parse_delete_policy("delete,10")
    aged(harness, [30])
    asked: list[str] = []

    def status(files, path):
        asked.append(path)
        return FileStatus(25, NOW_MS - 30 * HOUR * 1000)

    monkeypatch.setattr(FaultyFiles, "status", status)
    assert len(harness.store.apply_retention()) == 1
    assert asked == [str(harness.data_file(0))]


# --- segments without an index ----------------------------------------------------------------------------------------


def unreadable(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """A bad sector in this file; others can be read."""
    name = os.path.realpath(path)

    def pread(files: FaultyFiles, fd: int, size: int, position: int) -> bytes:
        if files._paths.get(fd) == name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(fd, size, position)

    monkeypatch.setattr(FaultyFiles, "pread", pread)
    write = zipfile.ZipFile.write

    def zip_file(archive: zipfile.ZipFile, filename: str, arcname: str) -> None:
        if os.path.realpath(filename) == name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        write(archive, filename, arcname)

    monkeypatch.setattr(zipfile.ZipFile, "write", zip_file)


@pytest.mark.parametrize("limit", ["age", "size"])
@pytest.mark.parametrize("policy", ["delete", "archive", "compress"])
def test_a_segment_whose_index_can_never_be_made_again_goes_when_its_time_has_come(
    harness, monkeypatch, caplog, policy, limit
):
    action = {"delete": "delete", "archive": "archive", "compress": "archive"}[policy]
    words = [action, "10" if limit == "age" else "9999", *(["true"] if policy == "compress" else []), "size=30"]
    harness.delete_policy = parse_delete_policy(",".join(words if limit == "size" else words[:-1]))
    aged(harness, [30, 20])
    harness.store.close()
    harness.index_file(0).unlink()
    unreadable(monkeypatch, harness.data_file(0))
    harness.open()
    for _ in range(2):
        harness.now += 60
        harness.store.tick()
        harness.threads.run_all()
    assert harness.store.unindexed_segments == 1
    assert "cannot be rebuilt" in caplog.text
    apply = harness.store.apply_retention if limit == "age" else harness.store.apply_size_limits
    assert len(apply()) == 2
    harness.threads.run_all()
    assert consumed(harness) == [b"young"]
    assert not harness.data_file(0).exists()
    if policy != "delete":
        assert harness.data_file(0).with_suffix(".meta.arc").stat().st_size == 25
    if policy == "compress":
        assert harness.data_file(25).with_suffix(".meta.zip").exists()
        assert "cannot be compressed" in caplog.text
    harness.now += 60
    harness.store.tick()
    harness.threads.run_all()
    assert harness.store.unindexed_segments == 0
    assert caplog.text.count("cannot be rebuilt") == 2, "before it went"


def test_a_segment_that_goes_while_its_index_is_made_again_leaves_nothing(harness, caplog):
    harness.delete_policy = parse_delete_policy("delete,10")
    aged(harness, [30, 20])
    harness.store.close()
    harness.index_file(0).unlink()
    harness.open()  # which begins to make the index
    report = harness.threads.run_unreported()
    while not harness.index_file(0).exists():
        report()
        report = harness.threads.run_unreported()
    assert len(harness.store.apply_retention()) == 2
    harness.threads.run_all()
    harness.index_file(0).write_bytes(b"as if it had been renamed behind that")
    report()
    harness.retain()
    assert [name for name in harness.names() if int(name[:20]) < 50] == []
    assert consumed(harness) == [b"young"]
    assert "cannot be rebuilt" not in caplog.text
    check_invariants(harness.log)


def test_a_segment_that_cannot_be_removed_still_gets_its_index(harness):
    harness.delete_policy = parse_delete_policy("delete,10")
    aged(harness, [30, 20])
    harness.store.close()
    harness.index_file(0).unlink()
    harness.index_file(25).unlink()
    harness.open()
    harness.files.fail("unlink")
    assert len(harness.store.apply_retention()) == 2
    harness.threads.run_all()
    harness.files.heal()
    assert harness.bodies() == [b"00000", b"00001", b"young"]
    for _ in range(2):
        harness.now += 60
        harness.store.tick()
        harness.threads.run_all()
    assert harness.store.unindexed_segments == 0
    assert harness.log.segments.message_count == 3
    check_invariants(harness.log)


def test_a_segment_that_has_lost_its_index_waits_for_the_job_that_writes_to_the_file(harness):
    """Without the file the job would fail, and the partition take no more writes."""
    harness.delete_policy = parse_delete_policy("delete,10")
    harness.append(b"00000")
    log, segment = harness.log, harness.log.segments[0]
    log.flush()
    harness.threads.run_all()
    log.checkpoint()
    os.utime(harness.data_file(0), (NOW_MS / 1000 - 30 * HOUR,) * 2)
    assert segment.index is not None
    assert log.index_damaged(segment, segment.index, IndexDamaged(segment.index_path, 0, "a test"))
    assert segment.finished
    assert harness.store.apply_retention() == []
    harness.threads.run_all()
    assert log.read_only is None
    assert len(harness.store.apply_retention()) == 1
