"""Damage in index files: whatever it is, no message is lost or false, and the index is made again."""

import errno
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.broker.store.files import REAL_FILES
from metaq.broker.store.index import UNIT_DTYPE, IndexDamaged, UnitReader, read_checkpoint, replace_index, write_units
from metaq.broker.store.scan import time_id
from metaq.broker.store.search import find_id
from metaq.broker.store.searching import Budget, FoundMatches, LogView
from metaq.protocol.errors import MetaqError, StoreError
from metaq.protocol.record import Buffer, encode_record
from tests.doubles.store import FaultyFiles, check_invariants
from tests.doubles.store_harness import NOW_MS, StoreHarness, flip

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
        harness.append_safe(*bodies, now_ms=time_of(batch * BATCH))
    harness.checkpoint()
    assert [segment.first_offset for segment in harness.log.segments] == [0, RECORDS * SIZE]
    assert not harness.log.durability.dirty


def settle(harness: StoreHarness) -> None:
    """Let the background do all it can."""
    for _ in range(4):
        harness.now += 0.25
        harness.tick()


def read_all(harness: StoreHarness, step: int = 2000) -> None:
    """All messages, once each and in order, by `units`."""
    log, found, offset = harness.log, [], 0
    while offset < log.visible_end:
        units = log.lookup.units(offset, step)
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
    assert 0 <= log.segments.message_count <= 2 * RECORDS
    assert log.lookup.count_before(log.visible_end) == log.segments.message_count


NUMBERS = (0, 1, 60, 124, 125, 126, 251, 252, 253, 298, 299, 300, 301, 425, 426, 550, 598, 599)


def look_up_all(harness: StoreHarness, *, exact: bool) -> None:
    """Counts, times and ids; exact: all indexes are there. Else an answer may leave out what has no index."""
    log = harness.log
    for number in NUMBERS:
        count = log.lookup.count_before(offset_of(number))
        assert count == number if exact else 0 <= count <= number
        wanted = offset_of(number // BATCH * BATCH)
        at = log.lookup.offset_at_time(time_of(number))
        assert at == wanted if exact else at <= wanted
        found = find_id(harness.files, [harness.store.searching.view(log)], id_of(number), 10, Budget())
        harness.store.searching.take_in(found, [log])
        places = [match.offset for match in found.matches]
        assert places == [offset_of(number)] or (not exact and not places and found.unsearched)
        check_invariants_unless_damaged(harness)
    end = log.lookup.offset_after(0, 310, 1 << 20)
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
    assert (harness.store.unindexed_segments, harness.log.segments.message_count) == (0, 2 * RECORDS)
    harness.append(b"00600")
    assert harness.log.segments.message_count == 2 * RECORDS + 1


def damaged(data: bytes, position: int, size: int = 1) -> bytes:
    """One bit flipped, or `size` bytes zeroed."""
    if size == 1:
        return data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :]
    return data[:position] + bytes(len(data[position : position + size])) + data[position + size :]


class Template:
    """A directory that was filled once and stopped cleanly, copied for each damage."""

    def __init__(self, path: Path) -> None:
        self.path = path
        harness = StoreHarness(path / "data")
        fill(harness)
        harness.store.close()
        harness.files.kill()
        self.sizes = {first: harness.index_file(first).stat().st_size for first in (0, RECORDS * SIZE)}

    def copy(self, place: Path) -> StoreHarness:
        """Not opened yet."""
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.path / "data", place)
        harness = StoreHarness(place)
        harness.next_id = id_of(2 * RECORDS)
        return harness


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return Template(tmp_path_factory.mktemp("filled"))


@pytest.fixture
def copied(template, tmp_path):
    harness = template.copy(tmp_path / "data")
    yield harness
    harness.files.kill()


@pytest.fixture
def damaged_first(copied):
    """With damage in block 1 of the index of the closed segment."""
    flip(copied.index_file(), 5000)
    return copied


@pytest.fixture
def damaged_last(copied):
    """With damage in block 1 of the index of the growing segment."""
    flip(copied.index_file(RECORDS * SIZE), 5000)
    return copied


def test_no_flipped_bit_of_an_index_is_taken_for_good(copied):
    path = copied.index_file()
    good = path.read_bytes()
    for position in range(len(good)):
        path.write_bytes(damaged(good, position))
        found = read_checkpoint(REAL_FILES, str(path), 0)
        if found is not None:
            assert position >= 64, "the header"
            with UnitReader(REAL_FILES, str(path), RECORDS, found.checkpoint.crc or 0) as reader:
                with pytest.raises(IndexDamaged) as caught:
                    reader.units(0, RECORDS)
                assert caught.value.block == position // 4096 < 2, "the last block is looked at by read_checkpoint"


@pytest.mark.parametrize("first_offset", [0, RECORDS * SIZE])
@pytest.mark.parametrize("running", [False, True], ids=["check_at_rest", "check_running"])
@pytest.mark.parametrize("size", [1, 512], ids=["a flipped bit", "a zeroed sector"])
def test_damage_in_an_index_costs_no_message(template, tmp_path, size, running, first_offset):
    """In all of the header's words and some of everything behind, or in every sector."""
    end = template.sizes[first_offset]
    some = [*range(0, 64, 9), *range(64, end, 463), 4095, 4096, 4064, end - 1]
    positions = some if size == 1 else range(0, end, size)
    assert len(positions) > (30 if size == 1 else 10)
    for position in positions:
        harness = template.copy(tmp_path / "data")
        if running:
            settle(harness)
        path = harness.index_file(first_offset)
        path.write_bytes(damaged(path.read_bytes(), position, size))  # the running store's own file, not a new one
        check_all(harness, look_up_first=bool(position & 1))
        harness.files.kill()


@pytest.mark.parametrize("first_offset", [0, RECORDS * SIZE])
@pytest.mark.parametrize("running", [False, True], ids=["check_at_rest", "check_running"])
@pytest.mark.parametrize("change", ["short", "cut in the middle", "empty", "unreadable"])
def test_an_index_that_ends_early_or_cannot_be_read_costs_no_message(
    template, copied, monkeypatch, running, first_offset, change
):
    size = template.sizes[first_offset]
    if running:
        settle(copied)
    path = copied.index_file(first_offset)
    os.truncate(path, {"short": size - 1, "cut in the middle": 5000, "empty": 0, "unreadable": size}[change])
    if change == "unreadable":
        break_sectors(monkeypatch, path)
    check_all(copied, look_up_first=True)


def break_sectors(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Reads of this very file, not of one that is put in its place, fail behind its header."""
    broken = path.stat().st_ino

    def failing(read: Callable[..., Any]) -> Callable[..., Any]:
        def checked(files: FaultyFiles, fd: int, what: object, position: int) -> Any:
            if position and os.fstat(fd).st_ino == broken:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return read(files, fd, what, position)

        return checked

    for name in ("pread", "preadv_nowait"):
        monkeypatch.setattr(FaultyFiles, name, failing(getattr(FaultyFiles, name)))


def test_an_index_that_somebody_deleted_is_made_again(copied):
    copied.open()
    copied.index_file().unlink()
    check_all(copied, look_up_first=False)
    assert copied.index_file().exists()


def test_damage_is_told_once_and_by_its_place(damaged_first, errors):
    for _ in range(3):
        read_all(damaged_first)
    assert errors() == [
        f"{damaged_first.index_file()}: block 1, at byte 4096: its units do not fit its checksum; "
        "its segment is read without an index until one is made again"
    ]


def check_after_a_kill(harness: StoreHarness) -> None:
    """Of a copy with one message more: all are there, and nothing has to be checked."""
    check_invariants(harness.log)
    assert (harness.kill().segments.message_count, harness.report().checked_bytes) == (2 * RECORDS + 1, 0)
    check_invariants(harness.log)


def test_the_growing_segment_is_closed_when_its_index_is_damaged(copied):
    copied.append(b"00600")
    flip(copied.index_file(RECORDS * SIZE), 5000)
    units = copied.log.lookup.units(offset_of(400), 100)
    assert units["offset"].tolist() == [offset_of(number) for number in range(400, 404)]
    assert [segment.first_offset for segment in copied.log.segments] == [0, RECORDS * SIZE, offset_of(601)]
    assert copied.log.segments.message_count == RECORDS
    settle(copied)
    assert copied.log.segments.message_count == 2 * RECORDS + 1
    copied.store.close()
    check_after_a_kill(copied)


def test_a_log_that_takes_no_writes_names_its_damaged_index(damaged_last):
    log = damaged_last.log
    log.sync_failed("the disk is gone")
    with pytest.raises(StoreError, match=f"{damaged_last.index_file(RECORDS * SIZE)}: block 1"):
        log.lookup.units(offset_of(400), 100)
    assert len(log.lookup.units(0, 100)) == 4


def test_a_growing_segment_stays_if_no_other_can_be_made(damaged_last):
    log = damaged_last.log
    with damaged_last.files.failing("open"), pytest.raises(StoreError, match="block 1"):
        log.lookup.units(offset_of(400), 100)
    assert (log.read_only, len(log.lookup.units(offset_of(400), 100))) == (None, 4)


def test_a_rebuild_waits_for_jobs_that_write_to_the_damaged_file(copied):
    log = copied.log
    settle(copied)
    copied.append(b"00600")
    log.checkpoint()  # waits for its thread, with a unit for the growing segment
    assert len(copied.threads) == 1
    index = copied.index_file(RECORDS * SIZE)
    flip(index, 5000)
    assert len(log.lookup.units(offset_of(400), 100)) == 4
    copied.store.tick()
    before = index.stat().st_ino
    copied.threads.run_one()
    assert index.stat().st_ino == before
    assert copied.store.unindexed_segments == 1
    check_invariants(log)
    settle(copied)
    assert index.stat().st_ino != before
    assert log.segments.message_count == 2 * RECORDS + 1
    check_after_a_kill(copied)


def test_a_job_begun_without_an_index_does_not_write_to_the_new_one(copied):
    log = copied.log
    copied.append(b"00600")
    flip(copied.index_file(RECORDS * SIZE), 5000)
    assert len(log.lookup.units(offset_of(400), 100)) == 4  # the segment has data that no sync covers, and no index
    assert not log.segments[1].finished
    while len(copied.threads):
        copied.threads.run_one()
        check_invariants(log)
    assert log.segments[1].finished
    settle(copied)
    check_after_a_kill(copied)


def test_messages_that_are_not_safe_yet_are_not_counted_when_an_index_is_lost(grouped, log):
    other = grouped.store.get_or_create("t", 1)  # two partitions wait: the journal takes what they append
    grouped.append_safe(*[b"%05d" % number for number in range(RECORDS)])
    grouped.checkpoint()
    grouped.append(b"later")  # waits for the disk
    assert (log.segments.message_count, other.segments.message_count) == (RECORDS, 0)
    flip(grouped.index_file(), 5000)
    assert len(log.lookup.units(offset_of(200), 1000)) == 40
    assert log.segments.message_count == log.lookup.count_before(log.visible_end) == 0
    grouped.append(b"last")
    assert log.segments.message_count == 0
    grouped.threads.run_all()
    assert log.segments.message_count == 1
    settle(grouped)
    assert log.segments.message_count == RECORDS + 2
    check_invariants(log)
    assert grouped.restart().segments.message_count == RECORDS + 2


def test_a_rebuild_that_fails_is_tried_again_later(damaged_first, caplog):
    read_all(damaged_first)
    with damaged_first.files.failing("rename"):
        settle(damaged_first)
        assert caplog.text.count("cannot be rebuilt") == 1
        read_all(damaged_first)
    settle(damaged_first)
    assert damaged_first.store.unindexed_segments == 1
    damaged_first.now += 60
    settle(damaged_first)
    assert (damaged_first.store.unindexed_segments, damaged_first.log.segments.message_count) == (0, 2 * RECORDS)


def test_a_search_that_meets_damage_says_so_and_has_the_index_made_again(damaged_first):
    log, searching = damaged_first.log, damaged_first.store.searching

    def search(view: LogView) -> FoundMatches:
        return find_id(damaged_first.files, [view], id_of(200), 10, Budget())

    view = searching.view(log)
    found = search(view)
    assert (found.matches, found.unsearched) == ([], RECORDS * SIZE)
    searching.take_in(found, [log])
    assert log.segments[0].index is None
    settle(damaged_first)
    searching.take_in(search(view), [log])  # an old view; what it says is of an old index
    assert log.segments[0].index is not None
    assert [match.offset for match in search(searching.view(log)).matches] == [offset_of(200)]


def test_key_building_that_meets_damage_has_the_index_made_again(damaged_first):
    keys = damaged_first.index_file().with_suffix(".keys")
    keys.unlink(missing_ok=True)
    log = damaged_first.log
    damaged_first.store.tick()
    damaged_first.threads.run_one()
    assert log.segments[0].index is None
    settle(damaged_first)
    settle(damaged_first)
    assert log.segments[0].index is not None
    assert keys.exists()


@given(st.lists(st.integers(1, 400), min_size=1, max_size=8), st.data())
@settings(max_examples=60, deadline=None)
def test_units_written_in_any_pieces_are_read_in_any_pieces(sizes, data):
    units = np.zeros(sum(sizes), UNIT_DTYPE)
    units["offset"] = np.arange(len(units)) * SIZE
    units["size"] = SIZE
    with tempfile.TemporaryDirectory() as directory:
        path, stored, crc = os.path.join(directory, "index"), 0, 0
        for size in sizes:
            crc = write_units(REAL_FILES, path, stored, units[stored : stored + size].tobytes(), crc)
            stored += size
        whole = os.path.join(directory, "whole")
        assert write_units(REAL_FILES, whole, 0, units.tobytes()) == crc
        assert Path(path).read_bytes() == Path(whole).read_bytes()
        start = data.draw(st.integers(0, stored))
        stop = data.draw(st.integers(start, stored))
        with UnitReader(REAL_FILES, path, stored, crc) as reader:
            assert reader.units(start, stop).tobytes() == units[start:stop].tobytes()
            if start < stop:
                assert (reader.unit(start)[0], reader.starting_before(start * SIZE)) == (start * SIZE, start)
                assert reader.ending_by(stop * SIZE) == stop
        at = data.draw(st.integers(64, os.path.getsize(path) - 1))
        Path(path).write_bytes(damaged(Path(path).read_bytes(), at))
        with UnitReader(REAL_FILES, path, stored, crc) as reader, pytest.raises(IndexDamaged) as caught:
            reader.units(0, stored)
        assert caught.value.block == at // 4096


# --- version 1 --------------------------------------------------------------------------------------------------------


def write_version_1(path: Path) -> None:
    """Put what a version 1 file had in the place of an index."""
    known = read_checkpoint(REAL_FILES, str(path), int(path.stem))
    assert known is not None
    assert known.checkpoint.crc is not None
    with UnitReader(REAL_FILES, str(path), known.checkpoint.units, known.checkpoint.crc) as reader:
        units = reader.units(0, known.checkpoint.units).tobytes()
    head = Struct("<8sIIqqqq12x").pack(b"metaqidx", 1, 32, *known.checkpoint[:4])
    path.write_bytes(head + zlib.crc32(head).to_bytes(4, "little") + units)


def test_indexes_of_version_1_are_believed_as_checkpoints_and_made_again(template, copied):
    for first in template.sizes:
        write_version_1(copied.index_file(first))
    copied.open()
    assert (copied.report().checked_bytes, copied.store.unindexed_segments) == (0, 1)
    check_all(copied, look_up_first=True)
    assert len(copied.log.segments) == 2
    copied.restart()
    assert (copied.report().checked_bytes, copied.store.unindexed_segments) == (0, 0)
    check_invariants(copied.log)


def test_damage_below_a_checkpoint_of_version_1_cuts_nothing(copied, caplog):
    write_version_1(copied.index_file(RECORDS * SIZE))
    flip(copied.data_file(RECORDS * SIZE), 100 * SIZE + 22)
    assert (copied.log.segments.message_count, copied.log.visible_end) == (2 * RECORDS - 1, 2 * RECORDS * SIZE)
    assert f"is damaged in [{400 * SIZE}, {401 * SIZE})" in caplog.text


class Killed(BaseException):
    """The process ends here, as by kill -9."""


class FullDisk(FaultyFiles):
    """Lets what is there be overwritten."""

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        if position + sum(map(len, buffers)) <= os.fstat(fd).st_size:
            return os.pwritev(fd, buffers, position)
        return super().pwritev(fd, buffers, position)


BEHIND = [b"behind the checkpoint", b"and behind that"]


def die_at(harness: StoreHarness, step: int) -> None:
    """Let the step-th change of the disk from now on end the process."""
    harness.files.error = cast(OSError, Killed())
    harness.files.fail_at = harness.files.changes + step


def check_nothing_cut(harness: StoreHarness) -> None:
    """After a kill a start believes what the checkpoint covered, damage included, and has what follows it."""
    harness.kill()
    assert (harness.report().cut_at, harness.report().set_aside) == (None, ())
    behind = b"".join(encode_record(body, id_of(2 * RECORDS) + number, 0) for number, body in enumerate(BEHIND))
    assert harness.log.visible_end == 2 * RECORDS * SIZE + len(behind)
    assert harness.log.segments.snapshot().read(2 * RECORDS * SIZE - 5, 1 << 20)[5:] == behind
    harness.files.kill()


@pytest.mark.parametrize("fault", ["kill", "full disk"])
@pytest.mark.parametrize("damage", ["a record", "all records"])
@pytest.mark.parametrize("in_memory", [False, True])
def test_a_checkpoint_of_version_1_holds_whenever_its_index_is_made_again(
    template, tmp_path, monkeypatch, fault, damage, in_memory
):
    """In the start itself, or in the first job that writes units, if so few wait that they stay in memory."""
    if in_memory:
        monkeypatch.setattr("metaq.broker.store.tuning.UNITS_IN_MEMORY", 1 << 20)
    for step in range(1, 100):
        harness = template.copy(tmp_path / str(step))
        harness.append(*BEHIND)
        harness.files.kill()
        write_version_1(harness.index_file(RECORDS * SIZE))
        file = harness.data_file(RECORDS * SIZE)
        for number in range(RECORDS) if damage == "all records" else [100]:
            flip(file, number * SIZE + 22)
        harness = StoreHarness(tmp_path / str(step))
        if fault == "kill":
            die_at(harness, step)
        else:
            harness.files = FullDisk(step, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        with suppress(Killed, MetaqError):
            harness.open()
            harness.checkpoint()
        done = harness.files.changes < cast(int, harness.files.fail_at)
        harness.files.heal()
        check_nothing_cut(harness)
        if done:
            assert step > 8
            return
    pytest.fail("no end")


def test_an_index_without_units_that_vouches_for_damage_is_not_lost_by_the_next_append(harness):
    """Its segment grows again if the one behind it, still empty, was lost with the name of its file."""
    harness.append(*[b"%05d" % number for number in range(3)])
    harness.restart()
    data = harness.data_file()
    data.write_bytes(bytes([data.read_bytes()[0] | 0x80]) + b"\xff" * 74)
    replace_index(REAL_FILES, str(harness.index_file()), np.empty(0, UNIT_DTYPE), 0, 75)
    harness.restart()
    assert harness.log.end_offset == 75
    harness.put(harness.log, b"behind it")
    die_at(harness, 2)  # behind the opening of the index
    with pytest.raises(Killed):
        harness.checkpoint()
    harness.files.heal()
    log = harness.kill()
    assert (harness.report().cut_at, log.end_offset) == (None, 75 + 29)


def test_puts_go_on_behind_a_damaged_end_of_the_index_and_ids_are_still_known(harness):
    harness.append(*[b"%05d" % number for number in range(300)])
    harness.restart()
    flip(harness.index_file(), 2 * 4096 + 64)
    assert harness.store.max_message_id == harness.next_id - 1
    harness.put(harness.log, b"goes on")
    assert harness.bodies()[-1] == b"goes on"


def test_an_index_made_again_in_front_of_damage_is_believed_at_the_next_start(grouped):
    grouped.max_segment_size = 2000
    while len(grouped.log.segments) == 1:
        grouped.append_safe(b"x" * 100)
    grouped.now += 1000  # a checkpoint is due
    settle(grouped)
    closed = grouped.log.segments[0]
    end = grouped.log.end_offset
    grouped.append_safe(*[b"acknowledged"] * 5)
    flip(grouped.data_file(), closed.size - 3)
    flip(grouped.index_file(), 100)
    grouped.log.lookup.count_before(closed.end - 1)
    settle(grouped)
    assert closed.index is not None
    log = grouped.kill()
    assert (grouped.report().cut_at, grouped.report().set_aside) == (None, ())
    assert log.end_offset == end + 5 * 32
    assert log.segments[0].index is not None
