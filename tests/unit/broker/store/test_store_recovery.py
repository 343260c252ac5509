"""Starting on what a crash, a power cut, a Java broker or a bad disk left behind (storage.md §4)."""

import errno
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.broker.store.scan import find_record
from metaq.protocol.errors import ConfigError, DirectoryInUse, MetaqError, PartitionNotFound, StoreError
from metaq.protocol.record import HEADER, Buffer, encode_record
from tests.doubles.store import FaultyFiles, check_invariants
from tests.doubles.store_harness import NOW_MS, StoreHarness, flip

THREE = [b"first", b"the second", b"third!"]
LAST = 25 + 30  # offset of the third record
SIZE = 25 + 30 + 26


@pytest.fixture
def three(harness):
    """With these messages."""
    harness.append(*THREE)
    return harness


def test_only_what_the_checkpoint_does_not_cover_is_checked(three):
    log = three.restart()
    assert (three.report().checked_bytes, log.segments.message_count) == (0, 3)
    assert three.bodies() == THREE
    three.append(b"more")
    log = three.kill()
    assert (three.report().checked_bytes, log.segments.message_count) == (24, 4)
    assert three.bodies() == [*THREE, b"more"]
    assert log.lookup.offset_at_time(NOW_MS) == 0
    assert three.store.max_message_id == log.segments.largest_id_below(1 << 62) == three.next_id - 1
    check_invariants(log)


@pytest.mark.parametrize("full_disk", [False, True])
def test_many_recovered_units_wait_in_the_file_and_not_in_memory(three, monkeypatch, full_disk):
    three.checkpoint()
    three.append(*THREE)
    with monkeypatch.context() as patch:
        patch.setattr("metaq.broker.store.tuning.UNITS_IN_MEMORY", 2)
        if full_disk:
            patch.setattr(FaultyFiles, "pwritev", _no_space)
        log = three.kill()
    assert log.segments[-1].index.unstored == (3 if full_disk else 0)
    assert log.segments.message_count == 6
    three.append(b"and on")
    check_invariants(three.kill())
    assert three.bodies() == [*THREE, *THREE, b"and on"]
    assert three.files.open_descriptors == 2 + 1, "the data path and its lock, and the data that was read"


def _no_space(files: FaultyFiles, fd: int, buffers: Sequence[Buffer], position: int) -> int:
    """A full disk lets what is there be overwritten."""
    if files._paths[fd].endswith(".index"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return os.pwritev(fd, buffers, position)


def test_units_written_ahead_of_the_checkpoint_are_not_counted_twice(harness, monkeypatch):
    monkeypatch.setattr("metaq.broker.store.tuning.MAX_UNSTORED_UNITS", 1)
    harness.append_safe(*THREE)
    assert harness.index_file().stat().st_size == 64 + 3 * 32
    log = harness.kill()
    assert log.segments.message_count == 3
    check_invariants(log)
    check_invariants(harness.restart())
    assert harness.bodies() == THREE


@pytest.mark.parametrize("kept", range(LAST, SIZE))
def test_a_torn_last_record_is_cut_at_every_byte_and_reported(three, kept):
    with three.stopped() as data:
        os.truncate(data, kept)
    assert three.bodies() == THREE[:2]
    assert three.data_file().stat().st_size == LAST == three.log.end_offset
    report = three.report()
    assert (report.cut_at, report.cut_bytes, report.damage) == (LAST if kept > LAST else None, kept - LAST, ())
    three.append(b"again")
    assert three.bodies() == [*THREE[:2], b"again"]


@given(
    bodies=st.lists(st.binary(max_size=200), min_size=1, max_size=12),
    cut=st.integers(min_value=0),
    checkpoint_after=st.integers(min_value=0, max_value=12),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_cut_behind_the_checkpoint_keeps_exactly_the_whole_records(tmp_path, bodies, cut, checkpoint_after):
    shutil.rmtree(tmp_path / "data", ignore_errors=True)
    harness = StoreHarness(tmp_path / "data")
    ends = [0]
    for number, body in enumerate(bodies):
        harness.append(body)
        ends.append(harness.log.end_offset)
        if number == checkpoint_after:
            harness.checkpoint()
    safe = harness.log.segments[0].checkpointed
    kept = safe + cut % (ends[-1] - safe + 1)
    harness.files.kill()
    os.truncate(harness.data_file(), kept)
    harness._start_anew()
    whole = sum(end <= kept for end in ends) - 1
    assert (harness.bodies(), harness.log.segments.message_count) == (bodies[:whole], whole)
    check_invariants(harness.log)
    harness.files.kill()


NEVER_ACKNOWLEDGED = encode_record(b"never acknowledged", (1 << 60) + 5, 1)


@pytest.mark.parametrize(
    "tail",
    [
        *(pytest.param(bytes(count), id=f"{count} zeros") for count in (1, 19, 20, 50, 5000)),
        # a power cut kept the sector that the header ends in, and lost the one that it begins in
        *(
            pytest.param(bytes(20 - kept) + NEVER_ACKNOWLEDGED[20 - kept :], id=f"the last {kept} bytes of a header")
            for kept in range(1, 12)
        ),
    ],
)
def test_a_tail_of_zeros_is_cut_and_the_end_of_a_header_alone_is_no_message(three, tail):
    with three.stopped() as data, data.open("ab") as file:
        file.write(tail)
    assert three.bodies() == THREE
    assert (three.log.segments.message_count, three.log.end_offset) == (3, SIZE)
    assert (three.report().cut_at, three.report().cut_bytes) == (SIZE, len(tail))
    assert ("zeros" in str(three.report())) == (not any(tail))


def test_empty_records_of_a_java_broker_are_kept(harness):
    with harness.stopped() as data:
        data.parent.mkdir(parents=True)
        data.write_bytes(encode_record(b"", -5468915031460544512, 0) * 2 + encode_record(b"", 1 << 60, 4))
    assert harness.log.segments.message_count == 3
    assert not harness.report().notable


@pytest.mark.parametrize("position", [0, 20, 24, 25 + 2, 25 + 20, 25 + 29])
def test_damage_before_good_records_is_copied_aside_and_its_range_reported(three, position, caplog):
    with three.stopped() as file:
        data = flip(file, position, 0x55)
    start, end = (0, 25) if position < 25 else (25, 55)
    quarantine = f"{three.data_file()}.damaged-{start}"
    assert three.report().damage == ((start, end, quarantine),)
    assert Path(quarantine).read_bytes() == data[start:]
    assert three.bodies() == THREE[: start // 25]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    three.append(b"goes on")
    assert three.restart().segments.message_count == start // 25 + 1


def test_wherever_the_power_goes_while_damage_is_cut_off_its_bytes_are_still_there(tmp_path):
    fault, is_open = 0, False
    while not is_open:
        fault += 1
        harness = StoreHarness(tmp_path / str(fault))
        harness.append(*THREE)
        harness.files.kill()
        data = flip(harness.data_file(), 27, 0x55)
        harness.files = FaultyFiles(fail_at=fault)
        with suppress(OSError, MetaqError):
            harness.open()
            is_open = True
        harness.files.lose_power()
        kept = [path.read_bytes() for path in harness.data_file().parent.iterdir()]
        assert any(data[25:] in each for each in kept), f"the change {fault} of the disk"
    assert fault > 5


@pytest.mark.parametrize("kept", [56, 60, 74, 75, 76, SIZE - 1])
def test_data_below_the_checkpoint_that_is_missing_is_reported(three, kept):
    with three.stopped(clean=True) as data:
        os.truncate(data, kept)
    report = three.report()
    assert (report.missing_bytes, report.cut_at, report.cut_bytes) == (SIZE - kept, 55, kept - 55)
    assert f"{SIZE - kept} bytes are missing that had been synced" in str(report)
    assert three.bodies() == THREE[:2]


@pytest.mark.parametrize(
    ("start", "damage"),
    [
        pytest.param(LAST, b"\x40", id="length beyond the file"),
        pytest.param(LAST + 3, b"\xff", id="another length"),
        pytest.param(LAST, bytes(26), id="last record"),
        pytest.param(25, bytes(56), id="last two"),
        pytest.param(0, bytes(SIZE), id="all"),
    ],
)
@pytest.mark.parametrize("behind", [[b"behind the checkpoint"], []])
def test_damage_at_the_end_of_what_a_checkpoint_covers_cuts_nothing(three, start, damage, behind):
    three.checkpoint()
    three.append_each(*behind)
    with three.stopped() as file:
        whole = file.read_bytes()
        data = whole[:start] + damage + whole[start + len(damage) :]
        file.write_bytes(data)
    assert three.data_file().read_bytes() == data
    assert (three.report().cut_at, three.report().damage) == (None, ())
    assert three.log.segments.message_count == len(THREE) + len(behind)
    three.append(b"goes on")
    assert three.log.segments.snapshot().read(SIZE, 1000).endswith(b"goes on")


@pytest.mark.parametrize("body", [b"first", b"another length"])
@pytest.mark.parametrize("kept", [0, 25, LAST, SIZE])
def test_what_another_broker_has_written_from_a_record_on_is_no_damage(three, kept, body):
    with three.stopped(clean=True) as data:
        theirs = [encode_record(body, -77 - number, 0) for number in range(5)]
        data.write_bytes(data.read_bytes()[:kept] + b"".join(theirs))
    log = three.log
    assert log.lookup.units(0, 1000)["id"].tolist()[-5:] == [-77, -78, -79, -80, -81]
    if kept == SIZE:
        assert three.bodies() == [*THREE, *[body] * 5]
        assert three.report().checked_bytes == len(b"".join(theirs))
        assert log.segments.message_count == 8
    check_invariants(log)


@pytest.mark.parametrize("damage", ["missing", "empty", "header", "short"])
def test_a_bad_index_is_rebuilt_with_our_store_times(three, damage):
    with three.stopped(clean=True):
        before = three.index_file().read_bytes()
        damaged = {"missing": b"", "empty": b"", "header": before[:20] + b"x" + before[21:], "short": before[:-1]}
        three.index_file().write_bytes(damaged[damage])
        if damage == "missing":
            three.index_file().unlink()
    assert three.log.segments.message_count == 3
    assert three.log.lookup.units(0, 1000)["time_ms"].tolist() == [NOW_MS] * 3
    three.store.close()
    assert three.index_file().read_bytes() == before


def test_java_records_get_the_time_of_the_file_marked_as_a_bound(harness):
    assert harness.log.segments.message_count == 0
    with harness.stopped() as data:
        data.write_bytes(encode_record(b"java", -5, 0))
        os.utime(data, (1_500_000_000, 1_500_000_000))
    log = harness.log
    assert log.lookup.units(0, 1000)["time_ms"].tolist() == [-1_500_000_000_000]
    assert [log.lookup.offset_at_time(1_500_000_000_000 + later) for later in (0, 1)] == [0, 24]
    assert log.segments.largest_id_below(1 << 62) == 0


def test_segments_roll_and_come_back(harness):
    harness.max_segment_size = 50
    bodies = [b"%d" % number for number in range(20)]
    harness.append_each(*bodies)
    log = harness.kill()
    assert harness.bodies() == bodies
    harness.threads.run_all()
    for each in (log, harness.restart()):
        assert each.segments.message_count == 20
        check_invariants(each)
    assert len(harness.threads) == 0


@pytest.mark.parametrize(("change", "word"), [(-1, "gap of 1 bytes"), (3, "overlap of 3 bytes")])
def test_a_gap_or_overlap_between_segments_stops_the_start_and_names_both_files(harness, change, word):
    harness.append_each(b"first", b"other", segment_bytes=25)
    with pytest.raises(StoreError, match=word) as caught, harness.stopped(clean=True) as data:
        os.truncate(data, 25 + change)
    assert str(data) in str(caught.value)
    assert str(harness.data_file(25)) in str(caught.value)
    os.truncate(data, 25)
    assert harness._start_anew().segments.message_count == 2  # the failed start has left no lock


def test_closed_segments_without_index_are_indexed_in_the_background(harness):
    harness.max_segment_size = 60
    bodies = [b"%05d" % number for number in range(10)]
    harness.append_each(*bodies)
    with harness.stopped(clean=True):
        for first in (0, 75):
            harness.index_file(first).unlink()
    log = harness.log
    assert harness.store.unindexed_segments == 2
    assert harness.bodies() == bodies  # served meanwhile
    assert log.segments.message_count == 4
    assert log.lookup.count_before(log.visible_end) - log.lookup.count_before(150) == 4
    assert log.lookup.units(75, 1000)["offset"].tolist() == [75, 100, 125]
    assert log.lookup.units(75, 3)["offset"].tolist() == [75]
    assert log.lookup.offset_at_time(NOW_MS) == 0
    check_invariants(log)
    harness.threads.run_all()
    assert harness.store.unindexed_segments == 0
    assert log.segments.message_count == 10
    check_invariants(log)
    assert (harness.restart().segments.message_count, len(harness.threads)) == (10, 0)


def test_damage_in_a_closed_segment_is_reported_and_never_cut(harness, caplog):
    harness.append_each(*(b"%05d" % number for number in range(4)), segment_bytes=75)
    with harness.stopped(clean=True) as file:
        data = flip(file, 47)
        harness.index_file().unlink()
    harness.threads.run_all()
    assert "is damaged in [25, 50)" in caplog.text
    assert (harness.data_file().read_bytes(), harness.log.segments.message_count) == (data, 3)
    assert harness.log.segments.read(25, 25) == data[25:50]


def test_an_index_that_cannot_be_rebuilt_is_reported_and_the_log_still_served(harness, caplog):
    harness.append_each(b"first", b"other", segment_bytes=25)
    with harness.stopped(clean=True):
        harness.index_file().unlink()
    harness.files.fail("open")
    harness.threads.run_all()
    assert "cannot be rebuilt" in caplog.text
    assert harness.bodies() == [b"first", b"other"]


def test_group_commit_shows_after_a_kill_only_what_it_has_synced(grouped):
    grouped.append(*THREE)
    log = grouped.kill()
    assert grouped.files.calls["fdatasync"] == 1
    assert log.visible_end == SIZE
    grouped.lose_power()
    assert grouped.bodies() == THREE


def test_a_record_is_found_behind_a_length_that_makes_no_sense(tmp_path):
    path = tmp_path / "data"
    good = encode_record(b"payload", 5, 0)
    path.write_bytes(HEADER.pack(-5, 1, 2, 3) + b"garbage" + good)
    files = FaultyFiles()
    fd = files.open(str(path), os.O_RDONLY)
    assert find_record(files, fd, 0, path.stat().st_size) == 27
    assert find_record(files, fd, 27, path.stat().st_size) is None
    files.close(fd)


def test_a_second_broker_on_the_same_directory_is_refused_with_the_remedy(harness):
    assert harness.store.data_paths == [harness.path]
    second = StoreHarness(Path(harness.path))
    with pytest.raises(DirectoryInUse, match="stop that broker or set another dataPath") as caught:
        second.open()
    assert harness.path in str(caught.value)
    harness.store.close()
    second.open()
    second.store.close()


def test_a_data_path_that_is_a_file_is_a_config_error(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(ConfigError, match=r"dataPath=.*writable directory"):
        StoreHarness(tmp_path / "data").open()


def test_the_scan_ignores_what_is_no_partition(harness, caplog):
    data = Path(harness.path)
    for name in ("transactions", "a-0", "with-dash-3", "b-x", "c-01", "-7", "bad topic-0"):
        (data / name).mkdir(parents=True)
    (data / "file-1").write_text("")
    harness.open()
    assert sorted((log.topic, log.partition) for log in harness.store.logs()) == [("a", 0), ("with-dash", 3)]
    skipped = [record.getMessage() for record in caplog.records]
    assert len(skipped) == 4
    assert all("is skipped" in line for line in skipped)
    with pytest.raises(PartitionNotFound, match="partition `3`"):
        harness.store.get("with", 3)


@pytest.mark.parametrize(
    ("name", "told"),
    [("copy.meta", "copy.meta is passed over"), (f"{0:020d}.meta.arc", "")],
    ids=["no offset", "other"],
)
def test_files_that_are_no_segments_of_ours_are_left_alone(three, caplog, name, told):
    with three.stopped(clean=True) as data:
        data.with_name(name).write_bytes(b"somebody's")
    assert three.bodies() == THREE
    assert data.with_name(name).read_bytes() == b"somebody's"
    assert told in caplog.text


def checkpointed_then(harness: StoreHarness, *bodies: bytes) -> None:
    """One safe record in a segment of its own, then records in unsafe segments of 30 bytes or more each."""
    harness.max_segment_size = 20
    harness.append(b"safe!")
    harness.checkpoint()
    harness.max_segment_size = 30
    harness.store.reconfigure()
    harness.append_each(*bodies)


@pytest.mark.parametrize("kept", [0, 7, 29])
def test_a_power_cut_around_a_roll_cuts_at_the_hole_and_sets_the_rest_aside(harness, kept):
    checkpointed_then(harness, b"first" * 2, b"other" * 2, b"third" * 2, b"active")
    harness.store.get_or_create("t", 1)
    with harness.stopped():
        third = harness.data_file(85).read_bytes()
        os.truncate(harness.data_file(55), kept)
    assert harness.bodies() == [b"safe!", b"first" * 2]
    assert harness.log.end_offset == 55
    report = next(each for each in harness.store.reports if each.directory.endswith("t-0"))
    aside = tuple(f"{harness.data_file(first)}.damaged-{first}" for first in (85, 115))
    assert (report.cut_at, report.cut_bytes, tuple(report.set_aside)) == (55, kept + 30 + 26, aside)
    assert Path(aside[0]).read_bytes() == third
    assert aside[0] in str(report)
    assert harness.store.find("t", 1) is not None, "the other partitions are served"
    harness.append(b"goes on")
    harness.restart()
    assert harness.bodies() == [b"safe!", b"first" * 2, b"goes on"]


@pytest.mark.parametrize(("zeros", "whole"), [((55, 85), 2), ((60, 70), 2), ((30, 55), 1)])
def test_a_hole_inside_a_closed_segment_that_no_checkpoint_covers_is_not_taken_for_good(harness, zeros, whole):
    checkpointed_then(harness, b"first" * 2, b"other" * 2, b"active")
    start, end = zeros
    first = 55 if start >= 55 else 25
    with harness.stopped():
        data = harness.data_file(first).read_bytes()
        harness.data_file(first).write_bytes(data[: start - first] + bytes(end - start) + data[end - first :])
    assert harness.bodies() == [b"safe!", b"first" * 2][:whole]
    assert harness.report().cut_at == first


def test_damage_below_the_newest_checkpoint_cuts_nothing(harness):
    checkpointed_then(harness, b"first" * 2, b"other" * 2, b"active")
    with harness.stopped(clean=True):
        flip(harness.data_file(25), -1)
        harness.index_file(25).unlink()
    assert harness.log.end_offset == 111
    assert not harness.report().set_aside


def test_an_earlier_recoverys_copy_is_never_overwritten(harness):
    checkpointed_then(harness, b"first" * 2, b"other" * 2)
    with harness.stopped():
        kept = Path(f"{harness.data_file(55)}.damaged-55")
        kept.write_bytes(b"of an earlier life")
        os.truncate(harness.data_file(25), 3)
    assert kept.read_bytes() == b"of an earlier life"
    assert list(harness.report().set_aside) == [f"{kept}.2"]


def test_a_put_after_a_kill_between_a_roll_and_its_sync_survives_a_power_cut(grouped, answers):
    grouped.max_segment_size = 25
    grouped.append(b"first")  # rolls; nothing is synced
    grouped.kill()
    grouped.threads.run_all()
    answers.append(grouped, b"other")
    grouped.threads.run_all()
    assert answers.succeeded == [b"other"]
    grouped.lose_power()
    assert grouped.bodies() == [b"first", b"other"]


def test_names_of_new_segments_are_synced_by_the_first_sync_after_a_recovery(harness):
    harness.append_each(b"first", b"other", segment_bytes=25)
    log = harness.kill()
    assert list(log.unsynced_directories) == [os.path.dirname(harness.data_file()), harness.path]
    harness.flush()
    assert not log.unsynced_directories
    harness.lose_power()
    assert harness.bodies() == [b"first", b"other"]


def test_old_segments_of_a_java_broker_are_indexed_in_the_background_and_recent_ones_checked(harness):
    harness.append_each(b"first", b"other", b"third", segment_bytes=25)
    with harness.stopped(clean=True):
        for first, age in ((0, 3600), (25, 30), (50, 20), (75, 10)):
            harness.index_file(first).unlink(missing_ok=True)
            os.utime(harness.data_file(first), (1_500_000_000 - age,) * 2)
    assert (harness.store.unindexed_segments, harness.report().checked_bytes) == (1, 50)
    assert harness.bodies() == [b"first", b"other", b"third"]


def test_what_is_only_in_the_page_cache_is_written_again(three, monkeypatch):
    with three.stopped():
        monkeypatch.setattr(FaultyFiles, "is_cached", lambda *_: True)
    assert (three.files.calls["sync_filesystem"], three.files.calls["pwritev"]) == (1, 1)
    assert three.bodies() == THREE
