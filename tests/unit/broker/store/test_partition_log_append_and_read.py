"""Appending, reading, rolling and asking the index, with asynchronous flush."""

import os

import pytest

from metaq.broker.store import tuning
from metaq.broker.store.batch import encode_puts
from metaq.broker.store.index import UNIT
from metaq.protocol.errors import OffsetOutOfRange, StoreError
from metaq.protocol.record import checksum, tag_hash
from tests.doubles.store import check_invariants
from tests.doubles.store_harness import StoreHarness, flip

RECORD = 20 + 10  # bytes of a record with a body of ten


def ten(number: int) -> bytes:
    return b"%010d" % number


@pytest.fixture
def two(harness):
    """With the records 1 and 2."""
    harness.append(ten(1), ten(2))
    return harness


def test_new_partition_is_an_empty_log_with_the_file_that_1_x_makes(harness, log):
    assert harness.names() == ["00000000000000000000.meta"]
    assert (log.first_offset, log.visible_end, log.end_offset, log.segments.message_count) == (0, 0, 0, 0)
    assert (log.segments.read(0, 100), log.segments.largest_id_below(1 << 62)) == (b"", 0)
    check_invariants(log)


def test_append_is_readable_at_once_at_the_offset_it_returns(harness):
    assert [harness.append(b"first"), harness.append(b"second", b"third")] == [0, 25]
    assert harness.log.visible_end == harness.log.end_offset == 25 + 26 + 25
    assert harness.records() == {0: b"first", 25: b"second", 51: b"third"}
    assert harness.log.segments.message_count == 3


def test_read_gives_a_slice_that_may_cut_a_record_as_1_x_does(two):
    whole = two.data_file().read_bytes()
    for offset in range(2 * RECORD + 1):
        for length in (1, 7, RECORD, 1000):
            for segments in (two.log.segments, two.log.segments.snapshot()):
                assert segments.read(offset, length) == whole[offset : offset + length]


@pytest.mark.parametrize("offset", [-1, -(1 << 63), 61, (1 << 63) - 1])
def test_read_outside_the_log_raises_with_its_bounds(two, offset):
    for read in (two.log.segments.read, two.log.segments.snapshot().read, two.log.lookup.units):
        with pytest.raises(OffsetOutOfRange) as caught:
            read(offset, 10)
        assert (caught.value.first, caught.value.next) == (0, 60)
    with pytest.raises(ValueError, match="max_bytes 0"):
        two.log.segments.read(0, 0)


def test_read_returns_none_when_all_or_the_end_is_not_in_the_page_cache(two, monkeypatch):
    whole, read = two.data_file().read_bytes(), os.preadv
    two.files.page_cache_empty = True
    assert (two.log.segments.read(0, 60), two.log.segments.snapshot().read(0, 60)) == (None, whole)
    monkeypatch.setattr(two.files, "preadv_nowait", lambda fd, buffer, position: read(fd, [buffer[:9]], position))
    assert (two.log.segments.read(0, 60), two.log.segments.read(0, 9)) == (None, whole[:9])


def test_file_system_without_nowait_reads_is_read_inline_and_asked_once(harness, caplog):
    harness.append(ten(1))
    harness.files.nowait_supported = False
    assert harness.log.segments.read(0, 100) == harness.log.segments.read(0, 100) == harness.data_file().read_bytes()
    assert harness.files.calls["preadv_nowait"] == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_read_or_walk_of_a_vanished_file_names_it(two):
    two.log.segments[0].data.close()
    two.data_file().unlink()
    with pytest.raises(StoreError, match=r"00000000000000000000\.meta cannot be read"):
        two.log.segments.read(0, 100)
    with pytest.raises(StoreError, match="is gone"):
        two.log.segments.snapshot().record_start(RECORD)


def test_segment_rolls_after_the_append_that_reaches_its_size(harness):
    harness.append_each(*(ten(number) for number in range(3)), segment_bytes=100)
    assert len(harness.log.segments) == 1  # 90 bytes
    harness.append(ten(3), ten(4))  # may exceed the size by one batch
    assert [segment.first_offset for segment in harness.log.segments] == [0, 150]
    assert harness.append(ten(5)) == 150
    assert [harness.data_file(first).stat().st_size for first in (0, 150)] == [150, RECORD]
    assert harness.bodies() == [ten(number) for number in range(6)]


@pytest.fixture
def fives(harness):
    """Five records in segments of two."""
    harness.append_each(*(ten(number) for number in range(5)), segment_bytes=60)
    return harness.log


def test_read_never_crosses_a_segment(fives):
    assert (len(fives.segments.read(RECORD, 1000)), len(fives.segments.snapshot().read(60, 1000))) == (RECORD, 60)
    assert [len(fives.lookup.units(offset, 1000)) for offset in (0, 30, 60, 120)] == [2, 1, 2, 1]


def test_append_of_more_buffers_than_one_writev_takes(harness):
    bodies = [ten(number) for number in range(3000)]
    harness.append(*bodies)
    assert harness.bodies() == bodies


def test_short_writes_are_completed(harness, log, monkeypatch):
    monkeypatch.setattr(harness.files, "pwritev", lambda fd, buffers, at: os.pwrite(fd, b"".join(buffers)[:7], at))
    harness.append(ten(1), ten(2))
    assert log.read_only is None
    assert harness.bodies() == [ten(1), ten(2)]


@pytest.mark.parametrize(
    ("data", "units", "error"),
    [
        ([], b"", "append of"),
        ([b"x" * 20], b"", "append of"),
        ([], bytes(32), "append of"),
        ([b"x" * 20], UNIT.pack(0, 1, 0, 20, 0)[:-1], "append of"),
        (*encode_puts([(0, checksum(b"x"), b"x")], -1, [1], 0), "index units"),
        (*encode_puts([(0, checksum(b"x"), b"x")], 1, [1], 0), "index units"),
    ],
)
def test_units_that_do_not_describe_the_data_are_refused_unwritten(harness, data, units, error):
    with pytest.raises(ValueError, match=error):
        harness.log.append(data, units)
    assert (harness.data_file().stat().st_size, harness.log.read_only) == (0, None)


def test_segment_start_answers_like_the_offset_command_of_1_x(fives):
    starts = {-1: 0, 0: 0, 59: 0, 60: 60, 61: 60, 120: 120, 149: 120, 150: 150, 151: 150, (1 << 63) - 1: 150}
    assert {offset: fives.segments.start_of(offset) for offset in starts} == starts


def starts_of(harness: StoreHarness, lengths: range) -> list[int]:
    """Records with bodies of these lengths, a segment for each three; for each byte where its record begins."""
    harness.max_segment_size = 100
    starts: list[int] = []
    for length in lengths:
        start = harness.append(b"x" * length)
        starts += [start] * (20 + length)
    assert len(harness.log.segments) > 3
    return starts


@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_record_of_each_byte_is_found_by_the_index_and_by_walking(harness, checkpoint):
    starts = starts_of(harness, range(5, 30))
    log, end = harness.log, len(starts)
    if checkpoint:
        harness.checkpoint()
    for place in (log.lookup, log.segments.snapshot()):
        assert [place.record_start(offset) for offset in range(end)] == starts
    assert [log.lookup.record_start(offset) for offset in (-1, end, end + 1)] == [0, end, end]
    with pytest.raises(OffsetOutOfRange):
        log.segments.snapshot().record_start(end + 1)


def test_without_an_index_the_record_of_a_byte_is_walked_to(harness):
    starts = starts_of(harness, range(5, 30))
    with harness.stopped(clean=True) as data:
        *closed, last = sorted(data.parent.glob("*.meta"))
        for path in (*closed, last):
            path.with_suffix(".index").unlink(missing_ok=True)
        for path in closed:
            os.utime(path, (1_500_000_000, 1_500_000_000))  # written so long ago that a start need not read it
    log = harness.log
    assert not log.lookup.is_indexed(30)
    assert log.lookup.is_indexed(len(starts) - 1)  # the last segment's is made at the start
    assert log.lookup.record_start(30) == 0
    assert [log.segments.snapshot().record_start(offset) for offset in range(len(starts))] == starts
    harness.threads.run_all()
    assert log.lookup.is_indexed(30)
    assert [log.lookup.record_start(offset) for offset in range(len(starts))] == starts


def test_walking_goes_on_behind_damage(harness, monkeypatch):
    monkeypatch.setattr(tuning, "WALK_RECORDS", 2)
    harness.append_each(*(ten(number) for number in range(8)))
    flip(harness.data_file(), 3 * RECORD + 25)
    expected = [offset // RECORD * RECORD for offset in range(8 * RECORD)]
    assert [harness.log.segments.snapshot().record_start(offset) for offset in range(8 * RECORD)] == expected


def test_counts_follow_the_log_across_segments_and_checkpoints(harness):
    harness.append_each(*(ten(number) for number in range(7)), segment_bytes=100)
    harness.checkpoint()
    harness.append_each(*(ten(number) for number in range(7, 11)))
    log = harness.log
    assert log.segments.message_count == 11
    counts = {-5: 0, **{offset: offset // RECORD for offset in range(0, 331, 15)}, 10_000: 11}
    assert {offset: log.lookup.count_before(offset) for offset in counts} == counts


def test_offset_at_time_is_the_first_record_stored_then_or_later(harness):
    harness.max_segment_size = 60
    for number, time_ms in enumerate((100, 100, 200, 300, 300)):
        harness.append(ten(number), now_ms=time_ms)
    answers = {0: 0, 100: 0, 101: 60, 200: 60, 201: 90, 300: 90, 301: 150}
    assert {time_ms: harness.log.lookup.offset_at_time(time_ms) for time_ms in answers} == answers


def test_units_describe_the_records_of_a_span_and_at_least_the_first_one(two):
    two.append(b"\0\0\0\3buypayload", flag=1)
    units = two.log.lookup.units(0, 1000)
    assert units["size"].tolist() == [30, 30, 34]
    assert units["tag"].tolist() == [0, 0, tag_hash("buy")]
    spans = {(0, 1000): [0, 30, 60], (1, 1000): [30, 60], (0, 89): [0, 30], (94, 1000): [], (30, 5): [30]}
    assert {span: two.log.lookup.units(*span)["offset"].tolist() for span in spans} == spans
    assert two.log.lookup.units(0, 1000, max_count=1)["offset"].tolist() == [0]


def test_units_are_the_same_before_and_after_they_reach_the_file(harness):
    harness.append(*map(ten, range(10)))
    before = harness.log.lookup.units(90, 150)
    harness.checkpoint()
    harness.append(ten(11))
    assert harness.log.segments[0].index.stored == 10
    assert harness.log.lookup.units(90, 150).tobytes() == before.tobytes()
    assert harness.log.lookup.units(0, 1000)["offset"].tolist() == list(range(0, 330, 30))


def test_index_units_in_memory_are_bounded(harness, monkeypatch):
    monkeypatch.setattr("metaq.broker.store.tuning.MAX_UNSTORED_UNITS", 10)
    for number in range(25):
        harness.append_safe(ten(number))
    index = harness.log.segments[0].index
    assert index.unstored <= 10
    assert harness.files.calls["fdatasync"] == 0  # written, not synced
    assert harness.log.lookup.count_before(10_000) == 25


def test_max_message_id_is_the_largest_positive_one(harness):
    harness.log.append(*encode_puts([(0, 0, b"")] * 3, 0, [7, -9, 5], 0))
    assert harness.log.segments.largest_id_below(1 << 62) == 7
    assert harness.restart().segments.largest_id_below(1 << 62) == 7


def test_descriptors_stay_within_the_limit(harness):
    harness.store._open_files.limit = 4
    logs = [harness.store.get_or_create("many", number) for number in range(20)]
    for _ in range(3):
        for log in logs:
            base = harness.put(log, b"x")
            assert log.segments.read(base, 21)[20:] == b"x"
    assert harness.files.open_descriptors <= 4 + 2  # and the data path with its lock
    harness.threads.run_all()
    assert {log.segments.message_count for log in logs} == {3}


def test_the_kernel_is_told_to_write_what_was_appended_piece_by_piece(harness, monkeypatch):
    monkeypatch.setattr(tuning, "WRITEBACK_BYTES", 40)
    harness.max_segment_size = 100
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(harness.files, "start_writeback", lambda fd, position, size: asked.append((position, size)))
    harness.append(b"a" * 20)
    assert len(harness.threads) == 1
    harness.append(b"b" * 20)  # one at a time
    harness.threads.run_all()
    harness.append(b"c" * 40)  # ends the segment
    harness.threads.run_all()
    harness.append_safe(b"d" * 20)
    assert asked == [(0, 40), (40, 100), (0, 40)]
    assert all(not segment.data.pins for segment in harness.log.segments)


def test_the_page_cache_keeps_the_end_of_a_copy_alone_and_everything_that_was_there_before_it(harness, monkeypatch):
    monkeypatch.setattr(tuning, "WRITEBACK_BYTES", 40)
    monkeypatch.setattr(tuning, "KEPT_COPY_BYTES", 80)
    dropped: list[tuple[int, int, int]] = []
    monkeypatch.setattr(harness.files, "advise", lambda fd, *range_and_advice: dropped.append(range_and_advice))
    log = harness.log
    for number in range(10):
        copied = 2 <= number < 9
        log.append(*harness.encoded(log.end_offset, b"a" * 20), journaled=not copied)
        harness.threads.run_all()
    ranges = [(position, size) for position, size, advice in dropped if advice == os.POSIX_FADV_DONTNEED]
    assert ranges == [(80, 40), (120, 40), (160, 40), (200, 40)]
