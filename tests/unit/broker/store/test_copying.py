"""Reading a partition for a copy of it: pieces of whole records, damage as it is, and what was dropped in front."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from metaq.broker.store.copy_reader import CopiedPiece, CopyReader
from metaq.broker.store.index import UNIT_BYTES, UNIT_DTYPE, UnitArray
from metaq.broker.store.topic_config import DeletePolicy, Disposal
from metaq.protocol.errors import OffsetOutOfRange
from tests.doubles.store import check_invariants
from tests.doubles.store_harness import NOW_MS, StoreHarness, flip
from tests.segment_files import segments

SIZE = 21  # of a record with one byte
BODIES = [b"%d" % number for number in range(10)]


def fill(harness: StoreHarness) -> None:
    """BODIES in segments of four records."""
    harness.max_segment_size = 4 * SIZE
    for number, body in enumerate(BODIES):
        harness.append(body, now_ms=NOW_MS + number)
        if harness.log.end_offset % (4 * SIZE) == 0:  # the next begins when this one's name is on the disk
            harness.threads.run_all()


def pieces(harness: StoreHarness, start: int = 0, piece_bytes: int = 3 * SIZE) -> list[CopiedPiece]:
    reader = CopyReader(harness.log.segments, start, piece_bytes)
    found: list[CopiedPiece] = []
    while start < reader.end:
        found.append(reader.read(start))
        assert found[-1].base == start
        start = found[-1].end
    return found


def shape(found: list[CopiedPiece]) -> list[tuple[int, int, int]]:
    """Of each piece where it begins and ends, in records, and how many units it has."""
    return [(each.base // SIZE, each.end // SIZE, len(each.units) // UNIT_BYTES) for each in found]


def break_byte(harness: StoreHarness, record: int, position: int = 20) -> None:
    first = record // 4 * 4 * SIZE
    flip(harness.data_file(first), record * SIZE - first + position)


def data_files(harness: StoreHarness) -> dict[str, bytes]:
    return segments(Path(harness.path))


@pytest.fixture
def filled(harness):
    fill(harness)
    return harness


@pytest.fixture
def settled(filled):
    filled.settle()
    return filled


@pytest.mark.parametrize("stored", [False, True])
def test_pieces_are_whole_records_of_one_segment_with_their_units(filled, stored):
    if stored:
        filled.settle()
    found = pieces(filled)
    assert shape(found) == [(0, 3, 3), (3, 4, 1), (4, 7, 3), (7, 8, 1), (8, 10, 2)]
    assert shape(pieces(filled, 0, 5)) == [(number, number + 1, 1) for number in range(10)], "larger than a piece"
    assert [each.segment // SIZE for each in found] == [0, 0, 4, 4, 8]
    assert b"".join(each.data for each in found) == b"".join(data_files(filled).values())
    times = np.frombuffer(b"".join(each.units for each in found), UNIT_DTYPE)["time_ms"]
    assert times.tolist() == [NOW_MS + number for number in range(10)]


def test_a_copy_made_of_pieces_has_the_same_files(filled, tmp_path):
    other = StoreHarness(tmp_path / "copy")
    for base, segment, data, units in pieces(filled):
        assert other.log.append((data,), units, segment) == base
    check_invariants(other.log)
    assert data_files(filled).items() <= data_files(other).items()
    other.files.kill()


def test_what_readers_do_not_see_yet_is_copied_too(grouped):
    grouped.max_segment_size = 4 * SIZE
    grouped.log.limit_visibility()
    fill(grouped)
    assert shape(pieces(grouped, 4 * SIZE, 1 << 20)) == [(4, 8, 4), (8, 10, 2)]


@pytest.mark.parametrize("position", [0, 3, 5, 9, 20])
@pytest.mark.parametrize("indexed", [True, False])
def test_damage_is_given_as_it_is_and_what_lies_behind_it_follows(settled, indexed, position):
    break_byte(settled, 1, position)
    if not indexed:
        settled.log.segments.drop_index(settled.log.segments[0])
    found = pieces(settled, 0, 1 << 20)
    damaged = (1, 2, 0)
    if not indexed and position == 9:  # no checksum covers the id, which only the index has as well
        assert shape(found)[0] == (0, 4, 4)
    else:
        assert shape(found)[:3] == [(0, 1, 1), damaged, (2, 4, 2)]
    assert b"".join(each.data for each in found[:3])[: 4 * SIZE] == settled.data_file().read_bytes()


def test_damage_larger_than_a_piece_comes_in_pieces(settled):
    for record in (1, 2):
        break_byte(settled, record)
    found = pieces(settled, 0, 8)
    assert [(each.base, each.end) for each in found[:8]] == [*pairwise((0, 21, 29, 37, 42, 50, 58, 63, 84))]
    assert [bool(each.units) for each in found[:8]] == [True, *[False] * 6, True]


def test_an_index_that_is_damaged_is_done_without(settled):
    with open(settled.index_file(), "r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 20)
    found = pieces(settled, 0, 1 << 20)
    assert shape(found)[0] == (0, 4, 4)


def test_a_reader_that_is_slower_than_retention_is_told_where_it_can_go_on(settled):
    reader = CopyReader(settled.log.segments, 0, 1 << 20)
    settled.store.drop_before(settled.log, 4 * SIZE)
    settled.threads.run_all()
    with pytest.raises(OffsetOutOfRange) as caught:
        reader.read(0)
    assert caught.value.first == 4 * SIZE


@pytest.mark.parametrize("group_commit", [False, True])
@pytest.mark.parametrize("lost_power", [False, True])
@pytest.mark.parametrize("record", [0, 1, 3, 4, 9])
def test_a_copy_has_the_damage_too_and_what_lies_behind_it(
    harness, tmp_path, group_commit, lost_power, record, answers
):
    fill(harness)
    harness.settle()
    break_byte(harness, record)
    other = StoreHarness(tmp_path / "copy")
    other.group_commit = group_commit
    told: list[tuple[int, int]] = []
    other.store.on_append = lambda log, base, end, *rest: told.append((base, end))
    found = pieces(harness, 0, 1 << 20)
    for base, segment, data, units in found:
        log = other.log
        assert (log.append((data,), units, segment) if units else log.append_damaged((data,), segment)) == base
    assert told == [(each.base, each.end) for each in found]
    answers.expect(other.log, 10 * SIZE, "all")
    other.settle()
    assert answers.succeeded == ["all"]
    kept = [body for number, body in enumerate(BODIES) if number != record]
    for _ in range(2):
        assert other.log.visible_end == other.log.end_offset == 10 * SIZE
        assert other.log.segments.message_count == 9
        spans = [other.log.segments.snapshot().read(int(each["offset"]), int(each["size"])) for each in units_of(other)]
        assert [span[20:] for span in spans] == kept
        assert data_files(harness).items() <= data_files(other).items()
        other.crash(power=lost_power)
        other.settle()
    other.files.kill()


def units_of(harness: StoreHarness) -> list[UnitArray]:
    log = harness.log
    return [unit for piece in log.lookup.units_between(0, log.end_offset, 1 << 20) for unit in piece]


# --- dropping as told -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [None, Disposal.DELETE, Disposal.ARCHIVE])
def test_segments_go_in_front_of_an_offset_by_the_nodes_own_policy(harness, action):
    harness.delete_policy = None if action is None else DeletePolicy(action, 10**9)
    fill(harness)
    harness.settle()
    removed = harness.store.drop_before(harness.log, 8 * SIZE - 1)
    assert [(each.first_offset, each.action) for each in removed] == [(0, action or Disposal.DELETE)]
    harness.threads.run_all()
    check_invariants(harness.log)
    assert harness.bodies() == BODIES[4:]
    assert any(name.endswith(".arc") for name in harness.names()) == (action is Disposal.ARCHIVE)
    harness.store.drop_before(harness.log, 1 << 40)
    harness.threads.run_all()
    assert harness.bodies() == BODIES[8:], "the last segment stays"
    assert harness.store.drop_before(harness.log, 1 << 40) == []


def test_what_is_not_on_the_disk_or_not_visible_is_dropped_later(harness):
    harness.max_segment_size = 4 * SIZE
    harness.log.limit_visibility()
    fill(harness)
    log, store = harness.log, harness.store
    assert store.drop_before(log, 8 * SIZE) == []
    harness.settle()
    assert store.drop_before(log, 8 * SIZE) == []
    log.raise_bound(5 * SIZE, 5)
    assert len(store.drop_before(log, 8 * SIZE)) == 1
    assert store.drop_before(log, 8 * SIZE) == [], "while others are being removed"
    harness.threads.run_all()
    log.unlimited()
    assert len(store.drop_before(log, 8 * SIZE)) == 1


def test_retention_that_is_switched_off_takes_nothing(harness):
    harness.delete_policy = DeletePolicy(Disposal.DELETE, 60, max_bytes=1)
    fill(harness)
    harness.settle()
    harness.wall += 10**9
    harness.store.retention_enabled = False
    assert harness.store.apply_retention() == harness.store.apply_size_limits() == []
    harness.store.retention_enabled = True
    assert len(harness.store.apply_size_limits()) == 2
