"""Cutting the end of a partition off: what stays, what is kept of the rest, and what a crash at any point leaves."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from metaq.broker.store.cut_files import CUT_NAME, Change, CutUnfinished, _check_boundary
from metaq.broker.store.files import REAL_FILES
from metaq.broker.store.journal_format import JOURNAL_DIRECTORY, read_journal
from metaq.broker.store.partition_log import PartitionLog
from metaq.broker.store.segment import segment_files
from metaq.protocol.errors import LogReadOnly, StoreError
from tests.doubles.store import check_invariants
from tests.doubles.store_harness import NOW_MS, StoreHarness

SIZE = 21  # of a record with one byte
BODIES = [b"%d" % number for number in range(10)]


class Done:
    """Callback of `Store.cut`, and what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Mapping[PartitionLog, Sequence[str]], StoreError | None]] = []

    def __call__(self, kept: Mapping[PartitionLog, Sequence[str]], error: StoreError | None) -> None:
        self.calls.append((kept, error))

    def kept(self) -> list[str]:
        """Names of the files that keep what went, of all logs."""
        ((kept, error),) = self.calls
        assert error is None
        return sorted(Path(path).name for paths in kept.values() for path in paths)

    def error(self) -> StoreError:
        ((_, error),) = self.calls
        assert error is not None
        return error


def fill(harness: StoreHarness) -> None:
    """BODIES in segments of four records."""
    harness.max_segment_size = 4 * SIZE
    for number, body in enumerate(BODIES):
        harness.append(body, now_ms=NOW_MS + number)
        if harness.log.end_offset % (4 * SIZE) == 0:  # the next begins when this one's name is on the disk
            harness.threads.run_all()


def cut(harness: StoreHarness, end: int) -> Done:
    done = Done()
    harness.store.cut({harness.log: end}, done)
    harness.settle()
    return done


def kept_bytes(harness: StoreHarness) -> bytes:
    """What the damaged copies have, in order of offset, whatever their names."""
    copies = Path(harness.path, "t-0").glob("*.damaged-*")
    ordered = sorted(copies, key=lambda path: int(path.name.split("damaged-")[1].split(".")[0]))
    return b"".join(path.read_bytes() for path in ordered)


def copy_first_record(harness: StoreHarness, *others: PartitionLog) -> None:
    """Append the first record to other partitions, too."""
    segment = harness.log.segments[0]
    assert segment.index is not None
    for log in others:
        log.append((segment.data.read(SIZE, 0),), segment.index.units(0, 1).tobytes())


@pytest.fixture(params=[False, True], ids=["asynchronous", "group commit"])
def filled(harness, request):
    harness.group_commit = request.param
    fill(harness)
    return harness


@pytest.mark.parametrize("count", range(11))
def test_a_log_goes_on_as_if_what_was_cut_had_never_been(filled, count, answers):
    filled.threads.run_all()
    everything = b"".join(path.read_bytes() for path in sorted(Path(filled.path, "t-0").glob("*.meta")))
    log = filled.log
    cut(filled, count * SIZE)
    assert filled.log is log
    check_invariants(log)
    assert log.end_offset == log.visible_end == log.synced_end == count * SIZE
    assert filled.bodies() == BODIES[:count]
    assert kept_bytes(filled) == everything[count * SIZE :]
    assert log.read_only is None
    filled.append(b"x", now_ms=NOW_MS)
    answers.expect(log, log.end_offset, "x")
    filled.settle()
    assert answers.succeeded == ["x"]
    assert filled.bodies() == [*BODIES[:count], b"x"]
    filled.restart()
    assert filled.bodies() == [*BODIES[:count], b"x"]
    assert not filled.report().notable


def test_what_goes_is_named_and_copies_of_an_earlier_cut_stay(filled, caplog):
    done = cut(filled, 5 * SIZE)
    first, second = f"{4 * SIZE:020d}.meta.damaged-{5 * SIZE}", f"{8 * SIZE:020d}.meta.damaged-{8 * SIZE}"
    assert done.kept() == [first, second]
    assert f"bytes [{5 * SIZE}, {8 * SIZE}) are cut off" in caplog.text
    assert f"bytes [{8 * SIZE}, {10 * SIZE}) are taken out" in caplog.text
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    filled.append(b"x")
    assert cut(filled, 5 * SIZE).kept() == [f"{first}.2"]
    assert filled.bodies() == BODIES[:5]


def test_nothing_to_cut_is_done_at_once_and_an_end_outside_the_log_refused(filled):
    done = Done()
    filled.store.cut({filled.log: filled.log.end_offset}, done)
    assert done.kept() == []
    for end in (-1, 10 * SIZE + 1):
        with pytest.raises(StoreError, match="no cut at"):
            filled.store.cut({filled.log: end}, Done())


def test_a_record_is_not_cut_in_two(filled):
    done = cut(filled, 5 * SIZE + 1)
    assert "no record begins or ends there" in str(done.error())
    assert not isinstance(done.error(), CutUnfinished)
    assert filled.bodies() == BODIES
    filled.append(b"goes on")


def test_many_logs_are_cut_together(filled):
    filled.threads.run_all()
    logs = [filled.store.get_or_create("u", number) for number in range(5)]
    copy_first_record(filled, *logs)
    done = Done()
    filled.store.cut({filled.log: SIZE, **dict.fromkeys(logs, 0)}, done)
    filled.settle()
    assert len(done.kept()) == 8
    assert filled.store.ends() == {"t-0": (0, SIZE, 0), **{f"u-{number}": (0, 0, 0) for number in range(5)}}


def test_a_log_that_is_being_cut_refuses_appends(filled):
    filled.settle()
    done = Done()
    filled.store.cut({filled.log: SIZE}, done)
    while filled.log.read_only is None:
        filled.threads.run_all()
        filled.store.tick()
    with pytest.raises(LogReadOnly, match="cut off"):
        filled.append(b"too early")
    filled.settle()
    assert len(done.calls) == 1
    filled.append(b"x")
    filled.settle()
    assert filled.bodies() == [b"0", b"x"]


def test_a_store_that_closes_answers_and_cuts_nothing(filled):
    done = Done()
    filled.store.cut({filled.log: SIZE}, done)
    threads = filled.threads
    filled.store.close()
    threads.run_all()
    assert "closed" in str(done.error())
    filled.open()
    assert filled.bodies() == BODIES


@pytest.fixture
def journaled(grouped):
    """Filled, and with entries in the journal; the other partitions whose they are."""
    others = [grouped.store.get_or_create("u", number) for number in range(4)]
    fill(grouped)
    copy_first_record(grouped, *others)  # so many that they share the journal, whose file stays
    grouped.threads.run_all()
    assert read_journal(grouped.files, grouped.path).entries["t-0"]
    return others


def test_the_journal_cannot_bring_back_what_was_cut(grouped, journaled):
    cut(grouped, 2 * SIZE)
    assert list(Path(grouped.path, JOURNAL_DIRECTORY).iterdir()) == []
    grouped.append_safe(b"x")
    grouped.lose_power()
    assert grouped.bodies() == [*BODIES[:2], b"x"]


def test_a_failed_partition_whose_entries_keep_the_journal_keeps_all_from_being_cut(grouped, journaled):
    journaled[0].sync_failed("broken")
    done = cut(grouped, SIZE)
    assert "before a restart" in str(done.error())
    assert grouped.bodies() == BODIES


def test_readers_of_a_limited_log_stay_where_they_were(filled):
    filled.settle()
    cut(filled, 9 * SIZE)
    filled.log.limit_visibility()
    filled.append_each(b"a", b"b", b"c")
    filled.settle()
    assert filled.log.visible_end == 9 * SIZE
    cut(filled, 10 * SIZE)
    check_invariants(filled.log)
    assert (filled.log.visible_end, filled.log.end_offset) == (9 * SIZE, 10 * SIZE)
    assert filled.log.bound == (9 * SIZE, 9)
    filled.append(b"d")
    filled.settle()
    filled.log.raise_bound(11 * SIZE, 11)
    assert filled.bodies() == [*BODIES[:9], b"a", b"d"]


def test_store_times_and_searches_go_on_from_what_stays(filled):
    cut(filled, 6 * SIZE)
    filled.append(b"x", now_ms=NOW_MS + 7)
    index = filled.log.segments.active_index
    assert index.unit(len(index) - 1)[2] == NOW_MS + 7, "not raised to what was cut"
    assert filled.log.lookup.offset_at_time(NOW_MS + 6) == 6 * SIZE


def test_a_segment_whose_index_is_gone_is_cut_by_its_records(filled):
    filled.settle()
    filled.log.segments.drop_index(filled.log.segments[1])
    filled.index_file(4 * SIZE).unlink()
    cut(filled, 6 * SIZE)
    check_invariants(filled.log)
    assert filled.bodies() == BODIES[:6]
    filled.restart()
    assert filled.bodies() == BODIES[:6]


def test_what_was_cut_can_be_read_as_a_partition_of_its_own(filled, tmp_path):
    """As docs/replication.md says."""
    cut(filled, 6 * SIZE)
    (kept,) = Path(filled.path, "t-0").glob(f"*.damaged-{6 * SIZE}")
    other = StoreHarness(tmp_path / "other")
    directory = Path(other.path, "t-0")
    directory.mkdir(parents=True)
    kept.rename(directory / f"{6 * SIZE:020d}.meta")
    assert other.bodies() == BODIES[6:8]
    other.files.kill()


# --- beginning anew ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "start"), [(0, 1000), (4 * SIZE, 0)], ids=["behind its end", "in front of what it has"]
)
def test_a_partition_begins_anew(filled, first, start):
    filled.settle()
    filled.store.drop_before(filled.log, first)
    filled.settle()
    done = Done()
    filled.store.begin_anew({filled.log: start}, done)
    filled.settle()
    kept = [each * SIZE for each in (0, 4, 8) if each * SIZE >= first]
    assert done.kept() == [f"{each:020d}.meta.damaged-{each}" for each in kept]
    check_invariants(filled.log)
    assert (filled.log.first_offset, filled.log.visible_end, filled.log.end_offset) == (start, start, start)
    filled.append(b"x")
    filled.settle()
    filled.restart()
    assert filled.log.first_offset == start
    assert filled.bodies() == [b"x"]


def test_a_partition_does_not_begin_anew_where_it_has_data(filled):
    with pytest.raises(StoreError, match="begin anew"):
        filled.store.begin_anew({filled.log: 10 * SIZE}, Done())


# --- crashes ----------------------------------------------------------------------------------------------------------

MOST_CHANGES = 60


def state(harness: StoreHarness) -> tuple[int, list[bytes]]:
    check_invariants(harness.log)
    return harness.log.first_offset, harness.bodies()


@pytest.mark.parametrize("lost_power", [False, True], ids=["killed", "power cut"])
@pytest.mark.parametrize("group_commit", [False, True], ids=["asynchronous", "group commit"])
@pytest.mark.parametrize(("count", "begin"), [(0, None), (2, None), (4, None), (6, None), (0, 1000), (0, 0)])
def test_a_crash_at_any_point_leaves_the_log_as_before_or_as_after(tmp_path, lost_power, group_commit, begin, count):
    outcomes = set()
    for fault in range(1, MOST_CHANGES):
        harness = StoreHarness(tmp_path / str(fault))
        harness.group_commit = group_commit
        fill(harness)
        harness.settle()
        oldest, first = harness.log.segments[0], 0
        assert oldest.index is not None
        record, unit = oldest.data.read(SIZE, 0), oldest.index.units(0, 1).tobytes()
        if begin == 0:  # where only older segments were
            first = 4
            harness.store.drop_before(harness.log, first * SIZE)
            harness.settle()
        others = [harness.store.get_or_create("u", number) for number in range(3)]
        harness.append(b"y")  # what is not settled yet
        for other in others:  # and in the journal
            other.append((record,), unit)
        before = (first * SIZE, [*BODIES[first:], b"y"])
        after = (0, BODIES[:count]) if begin is None else (begin, [])
        harness.threads.run_all()
        if not group_commit:
            harness.log.flush()
        harness.threads.run_all()
        made = len(b"".join(before[1])) + 20 * len(before[1])
        harness.files.fail_at = harness.files.changes + fault
        done = Done()
        if begin is None:
            harness.store.cut({harness.log: count * SIZE}, done)
        else:
            harness.store.begin_anew({harness.log: begin}, done)
        harness.settle()
        reached = harness.files.changes >= harness.files.fail_at
        answered = [error for _, error in done.calls]
        unchanged = answered and answered[0] is not None and not isinstance(answered[0], CutUnfinished)
        harness.crash(power=lost_power)
        found = state(harness)
        assert found in (before, after)
        outcomes.add(found == after)
        assert found == after or answered != [None]
        assert found == before or not unchanged
        if found == after:
            assert len(kept_bytes(harness)) == made - (0 if begin is not None else count * SIZE)
        assert not Path(harness.path, "t-0", CUT_NAME).exists()
        harness.append(b"x")
        harness.settle()
        harness.crash(power=lost_power)
        assert state(harness) == (found[0], [*found[1], b"x"])
        harness.files.kill()
        if not reached:
            assert answered == [None]
            break
    else:
        raise AssertionError("more changes of the disk than were made to fail")
    assert outcomes == {False, True}


def test_a_cut_that_only_a_start_can_finish_keeps_the_log_from_being_written(filled):
    filled.settle()
    filled.files.fail("truncate")
    done = cut(filled, 5 * SIZE)
    assert isinstance(done.error(), CutUnfinished)
    assert filled.log.read_only is not None
    with pytest.raises(LogReadOnly):
        filled.append(b"x")
    assert "cannot be cut before a restart" in str(cut(filled, 4 * SIZE).error())
    filled.kill()
    assert filled.bodies() == BODIES[:5]


def test_a_cut_file_of_somebody_else_stops_the_start(filled):
    filled.store.close()
    Path(filled.path, "t-0", CUT_NAME).write_text("scissors")
    with pytest.raises(StoreError, match="does not say where the partition ends"):
        filled.open()


def test_a_cut_that_a_closing_store_has_not_begun_changes_nothing_and_tells_nobody(filled):
    done = Done()
    filled.store.cut({filled.log: 5 * SIZE}, done)
    cutting, names = filled.store._cutting, filled.names()
    cutting.close()
    assert "closed" in str(done.error())
    made = cutting._work({filled.log: Change(5 * SIZE)}, 0)
    assert (made.cuts, filled.names()) == ([], names)
    cutting._worked(made)
    assert len(done.calls) == 1


def test_a_log_cannot_be_cut_in_front_of_its_first_file(filled):
    directory = Path(filled.path, "t-0")
    filled.store.close()
    for path in directory.glob(f"{0:020d}.*"):
        path.unlink()
    first = segment_files(REAL_FILES, str(directory))[0]
    with pytest.raises(StoreError, match=r"there is no data before"):
        _check_boundary(REAL_FILES, first, first.first_offset - 1)
    _check_boundary(REAL_FILES, first, first.first_offset)
