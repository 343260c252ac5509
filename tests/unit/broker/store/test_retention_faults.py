"""Retention while the disk fails at any step, and segment files with impossible dates."""

import errno
import os
import zipfile
from pathlib import Path
from unittest.mock import Mock

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


@pytest.mark.parametrize("policy", POLICIES)
def test_a_fault_at_every_step_leaves_a_log_that_can_be_read_and_the_next_run_finishes(tmp_path, policy):
    step, reached = 0, True
    while reached:
        step += 1
        harness = StoreHarness(tmp_path / str(step))
        aged(harness, [30, 20, 15], policy)
        harness.checkpoint()
        fault = harness.files.fail_at = harness.files.changes + step
        harness.retain()
        reached = harness.files.changes >= fault
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
    assert step > 9


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_left_beside_a_segment_that_is_gone_is_reported_and_goes_in_the_next_run(
    harness, caplog, monkeypatch, policy
):
    aged(harness, [30, 20], policy)
    unlink = FaultyFiles.unlink

    def fail_for_indexes(files, path):
        if path.endswith(".index"):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        unlink(files, path)

    with monkeypatch.context() as broken:
        broken.setattr(FaultyFiles, "unlink", fail_for_indexes)
        harness.retain()
    assert consumed(harness) == [b"young"]
    assert [harness.index_file(first).exists() for first in (0, 25)] == [True, True]
    assert str(harness.index_file(0)) in caplog.text
    assert harness.retain() == []
    assert [harness.index_file(first).exists() for first in (0, 25)] == [False, False]


@pytest.mark.parametrize(
    ("owner", "name", "error", "told"),
    [
        pytest.param(zipfile.ZipFile, "write", OSError(errno.ENOSPC, "No space left"), "No space left", id="no room"),
        pytest.param(retention, "_zip", ZeroDivisionError("a bug"), "a bug", id="an error that nobody thought of"),
    ],
)
def test_a_zip_that_cannot_be_made_leaves_nothing_and_the_segments_stay(
    harness, caplog, monkeypatch, owner, name, error, told
):
    aged(harness, [30, 20], "archive,10,true")
    with monkeypatch.context() as broken:
        broken.setattr(owner, name, raising(error))
        harness.retain()
    assert told in caplog.text
    assert not [name for name in harness.names() if "zip" in name]
    assert consumed(harness) == [b"00000", b"00001", b"young"]


def test_half_a_zip_of_an_earlier_life_goes_with_the_next_segment(harness):
    aged(harness, [30], "archive,10,true")
    halves = [harness.data_file(first).with_suffix(".meta.zip.part") for first in (0, 7)]
    for half in halves:
        half.write_bytes(b"half")
    harness.retain()
    assert [half.exists() for half in halves] == [False, False]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_segment_whose_file_is_gone_already_does_not_come_back(harness, caplog, policy):
    aged(harness, [30, 20], policy)
    assert len(harness.store.apply_retention()) == 2
    harness.data_file(0).unlink()
    harness.threads.run_all()
    assert "was gone already" in caplog.text
    assert consumed(harness) == [b"young"]
    assert not harness.index_file(0).exists()


def test_a_log_whose_files_are_being_removed_waits_with_its_next_segments(harness):
    aged(harness, [30, 5], "delete,10,size=1")
    assert len(harness.store.apply_retention()) == 1
    assert harness.store.apply_size_limits() == []  # else a failure could bring the older one back in front of a gap
    harness.threads.run_all()
    assert len(harness.store.apply_size_limits()) == 2


# --- dates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("date", [-5.0, 0.0, 4e9])
def test_a_segment_with_an_impossible_date_has_that_of_its_last_message(harness, date):
    aged(harness, [30, 20])
    os.utime(harness.data_file(0), (date, date))
    assert harness.store.apply_retention() == []  # its message is new: the harness stamps all with NOW_MS
    harness.wall = NOW_MS / 1000 + 11 * HOUR
    assert len(harness.store.apply_retention()) == 2


def test_a_segment_without_any_possible_date_stays_and_is_reported_once(harness, caplog):
    harness.delete_policy = parse_delete_policy("delete,10,size=1")
    harness.max_segment_size = 25
    harness.append_safe(b"00000", now_ms=9_000_000_000_000)
    os.utime(harness.data_file(0), (8e9, 8e9))
    assert harness.store.apply_retention() == harness.store.apply_retention() == []
    assert caplog.text.count("touch") == 1
    assert len(harness.store.apply_size_limits()) == 1


def test_dates_are_those_of_the_file_where_they_can_be(harness, monkeypatch):
    aged(harness, [30])
    status = Mock(return_value=FileStatus(25, NOW_MS - 30 * HOUR * 1000))
    monkeypatch.setattr(harness.files, "status", status)
    assert len(harness.store.apply_retention()) == 1
    status.assert_called_once_with(str(harness.data_file(0)))


# --- segments without an index ----------------------------------------------------------------------------------------


def without_index(harness: StoreHarness, *firsts: int) -> None:
    """Start anew without these index files."""
    with harness.stopped(clean=True):
        for first in firsts:
            harness.index_file(first).unlink()


def rebuild(harness: StoreHarness, times: int = 2) -> None:
    """Let indexes be made again, or tried to."""
    for _ in range(times):
        harness.now += 60
        harness.tick()


def unreadable(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """A bad sector in this file; others can be read."""
    name = os.path.realpath(path)
    pread, write = FaultyFiles.pread, zipfile.ZipFile.write

    def check(path: str | None) -> None:
        if path is not None and os.path.realpath(path) == name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def checked_pread(files: FaultyFiles, fd: int, size: int, position: int) -> bytes:
        check(files._paths.get(fd))
        return pread(files, fd, size, position)

    def checked_write(archive: zipfile.ZipFile, filename: str, arcname: str) -> None:
        check(filename)
        write(archive, filename, arcname)

    monkeypatch.setattr(FaultyFiles, "pread", checked_pread)
    monkeypatch.setattr(zipfile.ZipFile, "write", checked_write)


@pytest.mark.parametrize("limit", ["age", "size"])
@pytest.mark.parametrize(
    ("policy", "more"), [("delete", ""), ("archive", ""), ("archive", ",true")], ids=["delete", "archive", "compress"]
)
def test_a_segment_whose_index_can_never_be_made_again_goes_when_its_time_has_come(
    harness, monkeypatch, caplog, policy, more, limit
):
    by_age = limit == "age"
    aged(harness, [30, 20], f"{policy},10{more}" if by_age else f"{policy},9999{more},size=30")
    unreadable(monkeypatch, harness.data_file(0))
    without_index(harness, 0)
    rebuild(harness)
    assert harness.store.unindexed_segments == 1
    assert "cannot be rebuilt" in caplog.text
    assert len(harness.store.apply_retention() if by_age else harness.store.apply_size_limits()) == 2
    harness.threads.run_all()
    assert consumed(harness) == [b"young"]
    assert not harness.data_file(0).exists()
    if policy == "archive":
        assert harness.data_file(0).with_suffix(".meta.arc").stat().st_size == 25
        assert harness.data_file(25).with_suffix(".meta.zip" if more else ".meta.arc").exists()
    assert ("cannot be compressed" in caplog.text) == bool(more)
    rebuild(harness, 1)
    assert harness.store.unindexed_segments == 0
    assert caplog.text.count("cannot be rebuilt") == 2, "before it went"


def test_a_segment_that_goes_while_its_index_is_made_again_leaves_nothing(harness, caplog):
    aged(harness, [30, 20])
    without_index(harness, 0)  # the start begins to make it
    report = harness.threads.run_unreported()
    while not harness.index_file(0).exists():
        report()
        report = harness.threads.run_unreported()
    assert len(harness.retain()) == 2
    harness.index_file(0).write_bytes(b"as if it had been renamed behind that")
    report()
    harness.retain()
    assert [name for name in harness.names() if int(name[:20]) < 50] == []
    assert consumed(harness) == [b"young"]
    assert "cannot be rebuilt" not in caplog.text


def test_a_segment_that_cannot_be_removed_still_gets_its_index(harness):
    aged(harness, [30, 20])
    without_index(harness, 0, 25)
    with harness.files.failing("unlink"):
        assert len(harness.retain()) == 2
    assert harness.bodies() == [b"00000", b"00001", b"young"]
    rebuild(harness)
    assert (harness.store.unindexed_segments, harness.log.segments.message_count) == (0, 3)
    check_invariants(harness.log)


def test_a_segment_that_has_lost_its_index_waits_for_the_job_that_writes_to_the_file(harness):
    """Without the file the job would fail, and the partition take no more writes."""
    harness.delete_policy = parse_delete_policy("delete,10")
    harness.append(b"00000")
    log, segment = harness.log, harness.log.segments[0]
    harness.flush()
    log.checkpoint()
    os.utime(harness.data_file(0), (NOW_MS / 1000 - 30 * HOUR,) * 2)
    assert log.index_damaged(segment, segment.index, IndexDamaged(segment.index_path, 0, "a test"))
    assert segment.finished
    assert harness.retain() == []
    assert log.read_only is None
    assert len(harness.store.apply_retention()) == 1
