"""What a reader of cold data asks of the page cache: the next piece early, what it passed back, the end never."""

import os

import pytest

from metaq.broker.store import tuning
from metaq.broker.store.segments import Snapshot
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
    harness.append_each(*(bytes([number]) * (RECORD - 20) for number in range(16)), segment_bytes=8 * RECORD)
    harness.threads.run_all()
    harness.files.page_cache_empty = True
    names = {os.POSIX_FADV_WILLNEED: "fetch", os.POSIX_FADV_DONTNEED: "drop"}
    found: list[tuple[str, int, int]] = []

    def advise(fd, position, size, kind):
        if kind in names:
            found.append((names[kind], position // PAGE, size // PAGE))

    monkeypatch.setattr(harness.files, "advise", advise)
    return found


class Pages:
    """Reads through one reader."""

    def __init__(self, harness: StoreHarness) -> None:
        self._harness = harness
        self._reader = SequentialReader(harness.files)

    def __call__(self, *pages: int) -> None:
        for page in pages:
            data = self.at(self._harness.log.segments.snapshot(), page)
            assert data[20] == page

    def at(self, snapshot: Snapshot, page: int) -> bytes:
        return self._reader.read(snapshot, page * PAGE, PAGE, 2 * PAGE)


@pytest.fixture
def read(harness):
    return Pages(harness)


def test_the_next_pieces_are_fetched_ahead_and_passed_ones_dropped(advice, read):
    read(0)
    assert advice == [("fetch", 0, 1), ("fetch", 1, 2)]
    advice.clear()
    read(1, 2)
    assert advice == [("fetch", 3, 1), ("fetch", 4, 1), ("drop", 0, 1)]
    advice.clear()
    read(*range(3, 8))
    assert all(start + size <= 8 for _, start, size in advice)  # of this file
    advice.clear()
    read(8)  # the first of the next segment: the rest of the last one goes
    assert [each for each in advice if each[0] == "drop"] == [("drop", page, 1) for page in range(4, 8)]


def test_nothing_is_dropped_while_memory_is_spare(harness, advice, read):
    harness.files.unused_memory = 0.5
    read(*range(16))
    assert {what for what, _, _ in advice} == {"fetch"}


def test_the_end_of_the_partition_is_never_dropped(advice, read):
    read(*range(9))
    advice.clear()
    read(*range(9, 16))
    dropped = [page for what, start, size in advice if what == "drop" for page in range(start, start + size)]
    assert dropped == list(range(16 - 8 - 3 - 1))


def test_pages_that_were_there_before_are_left_alone(harness, advice, read):
    harness.files.page_cache_empty = False
    read(*range(16))
    assert advice == []


def test_a_segment_that_retention_took_is_out_of_range(harness, advice, read):
    read(0)
    snapshot = harness.log.segments.snapshot()
    for segment in harness.log.segments.remove_first(1):
        os.unlink(segment.path)
    with pytest.raises(OffsetOutOfRange):
        read.at(snapshot, 1)
    read(8)


def test_a_disk_that_cannot_be_read_names_the_file(harness, advice, read, monkeypatch):
    monkeypatch.setattr(harness.files, "pread", raising(OSError(5, "Input/output error")))
    with pytest.raises(StoreError, match=r"0{20}\.meta cannot be read"):
        read(0)
