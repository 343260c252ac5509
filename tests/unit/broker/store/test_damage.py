"""Damaged bytes in a partition: what lies at an offset, what is remembered of it, and what index units leave out."""

import os
from itertools import chain, pairwise
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.broker.store.damage import Damaged, DamagedRanges, Sound
from metaq.protocol.errors import OffsetOutOfRange, StoreError
from metaq.protocol.limits import MAX_RECORD_BODY_BYTES
from metaq.protocol.record import HEADER_BYTES
from tests.doubles.store import ManualThreads
from tests.raising import raising

BODIES = [b"%02d" % number * 15 for number in range(20)]
SIZE = 50


@pytest.fixture(params=["indexed", "unindexed"])
def log(harness, request):
    """Ten records in each of two closed segments, with an index or without one yet."""
    harness.append_each(*BODIES, segment_bytes=10 * SIZE)
    harness.threads.run_all()
    harness.store.close()
    harness.request = request.param
    return harness


def opened(harness, change=None):
    """The log of a store that was started again after `change(path of the first segment)`."""
    if harness.request == "unindexed":
        os.unlink(harness.index_file(0))
    if change is not None:
        change(harness.data_file(0))
    harness.threads = ManualThreads()
    harness.open()
    return harness.log


def overwrite(position, data):
    def change(path):
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(data)

    return change


def place(log, offset):
    return log.lookup.examination(offset)()


def test_every_byte_of_a_sound_log_leads_to_its_record(log):
    partition = opened(log)
    for offset in range(20 * SIZE):
        assert place(partition, offset) == Sound(offset - offset % SIZE, SIZE)


@pytest.mark.parametrize(
    ("position", "data", "first", "end"),
    [
        pytest.param(3 * SIZE + 40, b"x", 3, 4, id="a body"),
        pytest.param(3 * SIZE, b"\xff", 3, 4, id="a negative length"),
        pytest.param(3 * SIZE, b"\x7f", 3, 4, id="a length beyond everything"),
        pytest.param(3 * SIZE + 3, b"\x01", 3, 4, id="a shorter one"),
        pytest.param(3 * SIZE + 4, b"\x55", 3, 4, id="a checksum"),
        pytest.param(3 * SIZE, bytes(SIZE), 3, 4, id="zeros"),
        pytest.param(8 * SIZE + 5, b"?" * (2 * SIZE - 5), 8, 10, id="two in a row, up to the end of the segment"),
        pytest.param(0, b"?" * (10 * SIZE), 0, 10, id="a whole segment"),
    ],
)
def test_damage_is_told_from_its_first_byte_to_its_last(log, position, data, first, end):
    partition = opened(log, overwrite(position, data))
    for offset in range(first * SIZE, end * SIZE):
        start = first * SIZE if log.request == "unindexed" else offset - offset % SIZE  # an index says where it begins
        assert place(partition, offset) == Damaged(start, end * SIZE)
    assert first == 0 or place(partition, first * SIZE - 1) == Sound((first - 1) * SIZE, SIZE)
    assert place(partition, end * SIZE) == Sound(end * SIZE, SIZE)


@pytest.mark.parametrize("log", ["unindexed"], indirect=True)  # a good index was made before the damage
def test_the_units_of_an_index_made_over_damage_end_at_it(log):
    partition = opened(log, lambda path: [overwrite(at * SIZE + 40, b"x")(path) for at in (3, 4, 9)])
    log.threads.run_all()
    assert [segment.index is None for segment in partition.segments] == [False] * 3
    assert list(partition.segments.damage) == [Damaged(3 * SIZE, 5 * SIZE), Damaged(9 * SIZE, 10 * SIZE)]
    assert partition.lookup.units(0, 1 << 20)["offset"].tolist() == [0, SIZE, 2 * SIZE]
    assert partition.lookup.units(3 * SIZE, 1 << 20)["offset"].tolist() == [at * SIZE for at in range(5, 9)]
    assert len(partition.lookup.units(9 * SIZE, 1 << 20)) == 0
    assert place(partition, 4 * SIZE) == Damaged(3 * SIZE, 5 * SIZE)
    assert place(partition, 9 * SIZE + 7) == Damaged(9 * SIZE, 10 * SIZE)
    starts = [partition.lookup.record_start(offset) for offset in (0, 2 * SIZE + 1, 3 * SIZE, 5 * SIZE + 9, 9 * SIZE)]
    assert starts == [0, 2 * SIZE, 5 * SIZE, 5 * SIZE, 10 * SIZE]


@pytest.mark.parametrize("log", ["unindexed"], indirect=True)
@pytest.mark.parametrize("rebuilt", [False, True])
def test_the_units_of_a_range_go_on_behind_damage(log, rebuilt):
    partition = opened(log, lambda path: [overwrite(at * SIZE, b"\xff")(path) for at in (0, 3, 4, 9)])
    if rebuilt:
        log.threads.run_all()
    good = [at * SIZE for at in range(20) if at not in (0, 3, 4, 9)]
    for start, end in [(0, 1000), (0, 500), (2 * SIZE, 6 * SIZE), (3 * SIZE, 4 * SIZE), (9 * SIZE, 10 * SIZE)]:
        for pieces in (1 << 20, 2 * SIZE, 1):
            units = chain.from_iterable(each["offset"] for each in partition.lookup.units_between(start, end, pieces))
            assert [*units] == [offset for offset in good if start <= offset < end]
    ranges = [Damaged(start * SIZE, end * SIZE) for start, end in ((0, 1), (3, 5), (9, 10))]
    assert list(partition.segments.damage) == ranges


def test_a_record_larger_than_our_largest_is_among_the_units_of_a_range(harness):
    """A Java broker may have stored it."""
    harness.append(b"a", bytes(MAX_RECORD_BODY_BYTES + 1), b"b")
    harness.append(b"later")
    harness.store.close()
    harness.request = "unindexed"
    partition = opened(harness)
    sizes = [size for each in partition.lookup.units_between(0, partition.end_offset, 1 << 20) for size in each["size"]]
    assert [size - HEADER_BYTES for size in sizes] == [1, MAX_RECORD_BODY_BYTES + 1, 1, 5]


def test_an_offset_leads_to_the_start_of_its_record(harness):
    harness.append(b"a", b"bb", b"ccc")
    log = harness.log
    starts = {-5: 0, 0: 0, 20: 0, 21: 21, 42: 21, 43: 43, 65: 43, 66: 66, 99: 66}
    assert {offset: log.lookup.record_start(offset) for offset in starts} == starts


def test_where_no_index_is_there_yet_the_segment_s_start_is_told(log):
    partition = opened(log)
    assert partition.lookup.record_start(3 * SIZE + 1) == (0 if log.request == "unindexed" else 3 * SIZE)


def test_a_walk_begins_where_a_reader_was(log, monkeypatch):
    partition = opened(log)
    partition.lookup.units(0, 5 * SIZE)
    look = partition.lookup.examination(7 * SIZE)
    monkeypatch.setattr(log.files, "pread", pread := Mock(wraps=log.files.pread))
    assert look() == Sound(7 * SIZE, SIZE)
    assert min(position for (_, _, position), _ in pread.call_args_list) >= 5 * SIZE


def test_a_file_that_is_gone_or_cannot_be_read_is_an_error(log, monkeypatch):
    partition = opened(log)
    look = partition.lookup.examination(0)

    with monkeypatch.context() as patch:
        patch.setattr(log.files, "pread", raising(OSError(5, "broken disk")))
        with pytest.raises(StoreError, match="cannot be read"):
            look()
    partition.segments.remove_first(1)
    os.unlink(log.data_file(0))
    with pytest.raises(OffsetOutOfRange):
        look()


def test_an_active_segment_is_examined_as_far_as_it_is_visible(harness):
    harness.append(*BODIES[:4])
    overwrite(3 * SIZE + 45, b"x")(harness.data_file())
    assert place(harness.log, 3 * SIZE + 1) == Damaged(3 * SIZE, 4 * SIZE)


# --- what is remembered -----------------------------------------------------------------------------------------------


def test_damage_is_said_once(harness, caplog):
    harness.append(*BODIES[:4])
    told: list[tuple[int, bool]] = []
    harness.log.segments.on_damage = lambda size, new_range: told.append((size, new_range))
    for _ in range(3):
        harness.log.segments.report_damage(Damaged(SIZE, 2 * SIZE))
    assert told == [(SIZE, True)]
    assert caplog.text.count(f"damaged in [{SIZE}, {2 * SIZE})") == 1
    harness.log.segments.report_damage(Damaged(SIZE, 3 * SIZE))  # it goes on
    assert told[1:] == [(SIZE, False)]


def test_what_retention_takes_is_forgotten(log):
    partition = opened(log)
    partition.segments.report_damage(Damaged(0, SIZE))
    partition.segments.report_damage(Damaged(12 * SIZE, 13 * SIZE))
    partition.segments.remove_first(1)
    assert list(partition.segments.damage) == [Damaged(12 * SIZE, 13 * SIZE)]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5))))
def test_a_byte_is_known_once_it_was_in_a_range(found):
    ranges = DamagedRanges()
    expected: set[int] = set()
    for start, size in found:
        of_range = set(range(start, start + size))
        assert ranges.add(Damaged(start, start + size)) == len(of_range - expected)
        expected |= of_range
    for byte in range(60):
        known = ranges.at(byte)
        assert (known is None) == (byte not in expected)
        assert known is None or known.start <= byte < known.end
    assert all(before.end <= after.start for before, after in pairwise(ranges))


def test_only_so_many_ranges_are_kept():
    ranges = DamagedRanges()
    for number in range(1100):
        ranges.add(Damaged(2 * number, 2 * number + 1))
    assert len(ranges) == 1024
    assert ranges.at(2 * 1099) is not None
