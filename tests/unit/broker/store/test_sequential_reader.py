"""What a reader of cold data asks of the page cache: the next piece early, what it passed back, the end never."""

from __future__ import annotations

import os

import pytest

from metaq.broker.store import tuning
from metaq.broker.store.sequential import SequentialReader
from metaq.protocol.errors import OffsetOutOfRange, StoreError
from tests.doubles.store_harness import StoreHarness
from tests.raising import raising

PAGE = 4096
RECORD = PAGE  # header included


@pytest.fixture
def harness(disk_path):
    store = StoreHarness(disk_path / "data")
    yield store
    store.files.kill()


@pytest.fixture
def advice(harness, monkeypatch):
    """16 records of a page each in segments of 8 and 8, nothing cached; what was advised: what, start, size."""
    monkeypatch.setattr(tuning, "HOT_TAIL_BYTES", 3 * PAGE)
    harness.max_segment_size = 8 * RECORD
    harness.append_each(*(bytes([number]) * (RECORD - 20) for number in range(16)))
    harness.threads.run_all()
    harness.files.page_cache_empty = True
    names = {os.POSIX_FADV_WILLNEED: "fetch", os.POSIX_FADV_DONTNEED: "drop"}
    found: list[tuple[str, int, int]] = []

    def advise(fd, position, size, kind):
        if kind in names:
            found.append((names[kind], position // PAGE, size // PAGE))

    monkeypatch.setattr(harness.files, "advise", advise)
    return found


def read(harness: StoreHarness, reader: SequentialReader, page: int, pages: int = 1) -> None:
    data = reader.read(harness.log.segments.snapshot(), page * PAGE, pages * PAGE, 2 * PAGE)
    assert [data[each * PAGE + 20] for each in range(pages)] == list(range(page, page + pages))


def test_the_next_pieces_are_fetched_ahead_and_passed_ones_dropped(harness, advice):
    reader = SequentialReader(harness.files)
    read(harness, reader, 0)
    assert advice == [("fetch", 0, 1), ("fetch", 1, 2)]
    advice.clear()
    read(harness, reader, 1)
    read(harness, reader, 2)
    assert advice == [("fetch", 3, 1), ("fetch", 4, 1), ("drop", 0, 1)]
    advice.clear()
    for page in range(3, 8):
        read(harness, reader, page)
    assert all(start + size <= 8 for _, start, size in advice)  # of this file
    advice.clear()
    read(harness, reader, 8)  # the first of the next segment: the rest of the last one goes
    assert [each for each in advice if each[0] == "drop"] == [("drop", page, 1) for page in range(4, 8)]


def test_nothing_is_dropped_while_memory_is_spare(harness, advice):
    harness.files.unused_memory = 0.5
    reader = SequentialReader(harness.files)
    for page in range(16):
        read(harness, reader, page)
    assert {what for what, _, _ in advice} == {"fetch"}


def test_the_end_of_the_partition_is_never_dropped(harness, advice):
    reader = SequentialReader(harness.files)
    for page in range(9):
        read(harness, reader, page)
    advice.clear()
    for page in range(9, 16):
        read(harness, reader, page)
    dropped = [page for what, start, size in advice if what == "drop" for page in range(start, start + size)]
    assert dropped == list(range(16 - 8 - 3 - 1))


def test_pages_that_were_there_before_are_left_alone(harness, advice):
    harness.files.page_cache_empty = False
    reader = SequentialReader(harness.files)
    for page in range(16):
        read(harness, reader, page)
    assert advice == []


def test_a_segment_that_retention_took_is_out_of_range(harness, advice):
    reader = SequentialReader(harness.files)
    read(harness, reader, 0)
    snapshot = harness.log.segments.snapshot()
    for segment in harness.log.segments.remove_first(1):
        os.unlink(segment.path)
    with pytest.raises(OffsetOutOfRange):
        reader.read(snapshot, PAGE, PAGE)
    read(harness, reader, 8)


def test_a_disk_that_cannot_be_read_names_the_file(harness, advice, monkeypatch):
    monkeypatch.setattr(harness.files, "pread", raising(OSError(5, "Input/output error")))
    with pytest.raises(StoreError, match=r"0{20}\.meta cannot be read"):
        SequentialReader(harness.files).read(harness.log.segments.snapshot(), 0, PAGE)
