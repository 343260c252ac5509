"""Damage in index files: whatever it is, no message is lost or false, and the index is made again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from metaq.broker.store.harness import NOW_MS, StoreHarness
from metaq.broker.store.scan import time_id
from metaq.broker.store.search import find_id
from metaq.broker.store.search_values import Budget
from metaq.broker.store.testing import FaultyFiles, ManualThreads, check_invariants

RECORDS = 300
"""Of each segment: its index has two whole blocks and one that is not finished."""
SIZE = 25  # bytes of a record
STEP_MS = 1000
"""Between the store times of two batches."""
BATCH = 50


def offset_of(number: int) -> int:
    return number * SIZE


def time_of(number: int) -> int:
    return NOW_MS + number // BATCH * STEP_MS


def id_of(number: int) -> int:
    return time_id(time_of(number)) + 1 + number % BATCH


def fill(harness: StoreHarness) -> None:
    """Two segments of RECORDS records each, the first one closed; a checkpoint covers both."""
    harness.max_segment_size = RECORDS * SIZE
    for batch in range(2 * RECORDS // BATCH):
        if batch == 2 * RECORDS // BATCH - 1:
            harness.max_segment_size *= 2  # the last segment goes on
            harness.store.reconfigure()
        bodies = [b"%05d" % number for number in range(batch * BATCH, (batch + 1) * BATCH)]
        harness.next_id = id_of(batch * BATCH)
        harness.append(*bodies, now_ms=time_of(batch * BATCH))
        harness.threads.run_all()
    harness.log.checkpoint()
    harness.threads.run_all()
    assert [segment.first_offset for segment in harness.log.segments] == [0, RECORDS * SIZE]
    assert not harness.log.dirty


def settle(harness: StoreHarness) -> None:
    """Let the background do all it can."""
    for _ in range(4):
        harness.now += 0.25
        harness.store.tick()
        harness.threads.run_all()


def read_all(harness: StoreHarness, step: int = 2000) -> None:
    """All messages, once each and in order, by `units`."""
    log, found, offset = harness.log, [], 0
    while offset < log.visible_end:
        units = log.units(offset, step)
        assert len(units), f"nothing can be read at {offset}"
        assert units[0]["offset"] == offset
        found += list(zip(*(units[name].tolist() for name in ("offset", "id", "size")), strict=True))
        offset = found[-1][0] + found[-1][2]
        check_invariants_unless_damaged(harness)
    assert found == [(offset_of(number), id_of(number), SIZE) for number in range(2 * RECORDS)]


def check_invariants_unless_damaged(harness: StoreHarness) -> None:
    log = harness.log
    assert log.first_offset <= log.visible_end <= log.end_offset == log.segments[-1].end
    assert log.segments[-1].index is not None
    for before, after in pairwise(log.segments):
        assert before.end == after.first_offset
    assert 0 <= log.message_count <= 2 * RECORDS
    assert log.count_before(log.visible_end) == log.message_count


NUMBERS = (0, 1, 60, 124, 125, 126, 251, 252, 253, 298, 299, 300, 301, 425, 426, 550, 598, 599)


def look_up_all(harness: StoreHarness, *, exact: bool) -> None:
    """Counts, times and ids; exact: all indexes are there. Else an answer may leave out what has no index."""
    log = harness.log
    for number in NUMBERS:
        count = log.count_before(offset_of(number))
        assert count == number if exact else 0 <= count <= number
        wanted = offset_of(number // BATCH * BATCH)
        at = log.offset_at_time(time_of(number))
        assert at == wanted if exact else at <= wanted
        found = find_id(harness.files, [harness.store.searching.view(log)], id_of(number), 10, Budget())
        harness.store.searching.take_in(found, [log])
        places = [match.offset for match in found.matches]
        assert places == [offset_of(number)] or (not exact and not places and found.unsearched)
        check_invariants_unless_damaged(harness)
    end = log.offset_after(0, 310, 1 << 20)
    assert end == offset_of(310) if exact else end >= offset_of(1)


def check_all(harness: StoreHarness, *, look_up_first: bool) -> None:
    """Read and look up while the damage is there, once it is mended, and after a restart."""
    if look_up_first:
        look_up_all(harness, exact=False)
    read_all(harness)
    look_up_all(harness, exact=False)
    settle(harness)
    read_all(harness)
    look_up_all(harness, exact=False)  # a search may be the one that finds the damage
    settle(harness)
    read_all(harness, step=1 << 20)
    look_up_all(harness, exact=True)
    check_invariants(harness.log)
    assert harness.store.unindexed_segments == 0
    assert harness.log.message_count == 2 * RECORDS
    harness.append(b"00600")
    assert harness.log.message_count == 2 * RECORDS + 1


def damaged(data: bytes, position: int, size: int = 1) -> bytes:
    """One bit flipped, or `size` bytes zeroed."""
    if size == 1:
        return data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :]
    return data[:position] + bytes(len(data[position : position + size])) + data[position + size :]


class Template:
    """A directory that was filled once, copied for each damage."""

    def __init__(self, path: Path, *, clean: bool) -> None:
        """clean: it was stopped cleanly; else killed after the checkpoint."""
        self.path = path
        harness = StoreHarness(path / "data")
        fill(harness)
        if clean:
            harness.store.close()
        harness.files.kill()
        self.sizes = {first: harness.index_file(first).stat().st_size for first in (0, RECORDS * SIZE)}

    def damage(self, place: Path, first_offset: int, position: int, size: int = 1) -> StoreHarness:
        """A copy with this damage, not opened yet."""
        harness = self.copy(place)
        file = harness.index_file(first_offset)
        file.write_bytes(damaged(file.read_bytes(), position, size))
        return harness

    def copy(self, place: Path) -> StoreHarness:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.path / "data", place)
        harness = StoreHarness(place)
        harness.next_id = id_of(2 * RECORDS)
        return harness


def check_at_rest(template: Template, place: Path, first_offset: int, position: int, size: int = 1) -> None:
    harness = template.damage(place, first_offset, position, size)
    try:
        harness.open()
        check_all(harness, look_up_first=bool(position & 1))
    finally:
        harness.files.kill()


def check_running(template: Template, place: Path, first_offset: int, position: int, size: int = 1) -> None:
    harness = template.copy(place)
    try:
        harness.open()
        settle(harness)
        with harness.index_file(first_offset).open("r+b") as file:  # the running store's own file, not a new one
            data = file.read()
            file.seek(0)
            file.write(damaged(data, position, size))
        check_all(harness, look_up_first=bool(position & 1))
    finally:
        harness.files.kill()


CHECKS = (check_at_rest, check_running)


def some_positions(size: int) -> Iterator[int]:
    """All of the header's words and some of everything behind."""
    yield from range(0, 64, 9)
    yield from range(64, size, 463)
    yield from (4095, 4096, 4064, size - 1)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return Template(tmp_path_factory.mktemp("filled"), clean=True)


@pytest.mark.parametrize("first_offset", [0, RECORDS * SIZE])
@pytest.mark.parametrize("check", CHECKS)
def test_a_flipped_bit_in_an_index_costs_no_message(template: Template, tmp_path, check, first_offset: int) -> None:  # type: ignore[no-untyped-def]
    positions = list(some_positions(template.sizes[first_offset]))
    assert len(positions) > 30
    for position in positions:
        check(template, tmp_path / "data", first_offset, position)


@pytest.mark.parametrize("first_offset", [0, RECORDS * SIZE])
@pytest.mark.parametrize("check", CHECKS)
def test_a_zeroed_sector_of_an_index_costs_no_message(template: Template, tmp_path, check, first_offset: int) -> None:  # type: ignore[no-untyped-def]
    positions = list(range(0, template.sizes[first_offset], 512))
    assert len(positions) > 10
    for position in positions:
        check(template, tmp_path / "data", first_offset, position, 512)
