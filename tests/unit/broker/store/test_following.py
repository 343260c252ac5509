"""A store that tells what is appended to it, and one that appends what it is told: their files are the same bytes."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from metaq.broker.store.index import UNIT_DTYPE
from metaq.broker.store.partition_log import PartitionLog
from metaq.broker.store.store import Append
from metaq.protocol.errors import DiskFull, LogReadOnly, StoreError
from metaq.protocol.record import Buffer
from tests.doubles.store import check_invariants
from tests.doubles.store_harness import NOW_MS, StoreHarness
from tests.raising import raising

SIZE = 21  # of a record with one byte


class Told:
    """What `Store.on_append` tells."""

    def __init__(self, harness: StoreHarness) -> None:
        self.entries: list[tuple[bytes, int, int, int, bytes, bytes, int]] = []
        harness.store.on_append = self

    def __call__(
        self, log: PartitionLog, base: int, end: int, count: int, data: Sequence[Buffer], units: Buffer, segment: int
    ) -> None:
        self.entries.append((log.journal_name, base, end, count, b"".join(data), bytes(units), segment))

    def data(self, entry: int) -> tuple[Sequence[bytes], bytes]:
        """Arguments of an append of what was told."""
        return (self.entries[entry][4],), self.entries[entry][5]


@pytest.fixture
def told(harness):
    return Told(harness)


@pytest.fixture
def two(harness, told):
    """Two messages that were told."""
    harness.append_each(b"a", b"b")
    return told


@pytest.fixture
def follower(tmp_path):
    store = StoreHarness(tmp_path / "follower")
    store.max_segment_size = 1  # which must not matter
    yield store
    store.files.kill()


def follow(told: Told, follower: StoreHarness, first: int = 0) -> None:
    """Append what was told from entry `first` on."""
    log = follower.log
    for _, base, end, _, data, units, segment in told.entries[first:]:
        assert (log.append((data,), units, segment), log.end_offset) == (base, end)
        check_invariants(log)


def data_files(harness: StoreHarness) -> dict[str, bytes]:
    """The partition's data files that have anything in them."""
    directory = Path(harness.path, "t-0")
    found = {name: (directory / name).read_bytes() for name in os.listdir(directory) if name.endswith(".meta")}
    return {name: data for name, data in found.items() if data}


# --- the tap ----------------------------------------------------------------------------------------------------------


def test_every_append_is_told_in_order_as_it_was_stored_with_its_segment(harness, told):
    harness.max_segment_size = 2 * SIZE
    harness.append(b"a", now_ms=NOW_MS)
    harness.append(b"b", b"c", now_ms=NOW_MS - 5000)
    harness.append(b"d")
    assert [(*entry[:4], entry[6]) for entry in told.entries] == [
        (b"t-0", 0, SIZE, 1, 0),
        (b"t-0", SIZE, 3 * SIZE, 3, 0),
        (b"t-0", 3 * SIZE, 4 * SIZE, 4, 3 * SIZE),
    ]
    times = [np.frombuffer(entry[5], UNIT_DTYPE)["time_ms"].tolist() for entry in told.entries]
    assert times == [[NOW_MS], [NOW_MS] * 2, [NOW_MS]]
    assert b"".join(entry[4] for entry in told.entries) == b"".join(dict(sorted(data_files(harness).items())).values())


def test_appends_of_many_partitions_are_told_in_their_order(harness, told):
    harness.append(b"a")
    first = told.entries[0]
    logs = [harness.store.get_or_create("u", number) for number in (2, 1)]
    harness.store.append_many(Append(log, [first[4]], first[5]) for log in logs)
    assert [entry[0] for entry in told.entries] == [b"t-0", b"u-2", b"u-1"]


def test_what_was_not_appended_is_not_told(harness, told):
    harness.append(b"a")
    harness.files.fail("pwritev")
    with pytest.raises(LogReadOnly):
        harness.append(b"b")
    assert len(told.entries) == 1


def test_it_is_told_before_anybody_reads_it_or_is_answered(harness):
    order: list[str] = []
    harness.store.on_append = lambda *arguments: order.append("told")
    harness.log.on_visible = lambda log: order.append("visible")
    harness.append(b"a")
    assert order == ["told", "visible"]


def test_a_listener_that_fails_costs_no_append(harness, caplog):
    harness.store.on_append = raising(RuntimeError("bug of the listener"))
    harness.append(b"a")
    assert harness.bodies() == [b"a"]
    assert "bug of the listener" in caplog.text
    harness.store.on_append = None
    caplog.clear()
    harness.append(b"b")
    assert not caplog.records


# --- appending as told ------------------------------------------------------------------------------------------------


def test_the_files_of_a_copy_are_the_same_whatever_its_segment_size(harness, told, follower):
    harness.max_segment_size = 3 * SIZE
    for number in range(20):
        harness.append(*[b"%d" % (number % 10)] * (1 + number % 3), now_ms=NOW_MS - 7 * number)
    follow(told, follower)
    assert len(data_files(harness)) > 5
    assert data_files(follower) == data_files(harness)
    units = [
        [np.concatenate([each.index.units(0, len(each.index)) for each in log.segments if each.index]).tobytes()]
        for log in (harness.log, follower.log)
    ]
    assert units[0] == units[1]


@pytest.mark.parametrize("segment", [SIZE, 3 * SIZE, -1])
def test_a_segment_that_cannot_be_is_refused_with_nothing_written(harness, two, segment):
    _, _, _, _, data, _, _ = two.entries[0]
    with pytest.raises(ValueError, match="no segment can begin at"):
        harness.log.append((data,), b"", segment)
    assert (harness.log.end_offset, len(harness.log.segments)) == (2 * SIZE, 1)


def test_append_many_takes_the_segment_too(harness, told, follower):
    harness.max_segment_size = SIZE
    harness.append_each(b"a", b"b", b"c")
    log = follower.log
    taken = follower.store.append_many(Append(log, [entry[4]], entry[5], entry[6]) for entry in told.entries)
    assert [each.error for each in taken] == [None] * 3
    assert data_files(follower) == data_files(harness)


@pytest.fixture
def began(two, follower):
    """The follower has the first of two messages, and has begun a segment behind it; the leader has not."""
    follower.log.append(*two.data(0))  # rolls by size
    follower.threads.run_all()
    return two


def test_a_copy_that_had_begun_a_segment_takes_up_the_one_before_again(harness, began, follower):
    """As when it led, rolled, and another node, which had not, took over."""
    log = follower.log
    assert [each.first_offset for each in log.segments] == [0, SIZE]
    log.append(*began.data(1), 0)
    check_invariants(log)
    assert [each.first_offset for each in log.segments] == [0]
    assert data_files(follower) == data_files(harness)
    follower.threads.run_all()
    follower.kill()
    check_invariants(follower.log)
    assert follower.bodies() == [b"a", b"b"]


def test_a_segment_that_was_taken_up_again_does_not_overlap_after_a_power_cut(began, follower):
    log = follower.log
    log.append(*began.data(1), 0)
    log.flush()
    follower.threads.run_all()
    follower.lose_power()
    assert follower.bodies() == [b"a", b"b"]
    assert [each.first_offset for each in follower.log.segments] == [0]
    assert follower.report().set_aside == ()


@pytest.mark.parametrize("fault", [1, 2])
def test_a_copy_that_cannot_take_up_its_segment_again_takes_no_more_writes(began, follower, fault):
    log = follower.log
    follower.files.fail_at = follower.files.changes + fault
    with pytest.raises(LogReadOnly, match="cannot go on in its segment at 0"):
        log.append(*began.data(1), 0)
    assert log.read_only is not None
    assert follower.bodies() == [b"a"]
    follower.kill()
    follow(began, follower, 1)
    assert follower.bodies() == [b"a", b"b"]


def test_without_room_for_a_new_segment_the_copy_can_be_tried_again(harness, told, follower):
    harness.append_each(b"a", b"b", segment_bytes=SIZE)
    follower.log.append(*told.data(0), 0)
    with follower.files.failing("open", cause=errno.ENOSPC), pytest.raises(DiskFull):
        follower.log.append(*told.data(1), SIZE)
    follow(told, follower, 1)
    assert follower.bodies() == [b"a", b"b"]


def test_a_segment_that_has_lost_its_index_goes_on_when_it_has_one_again(harness, two, follower):
    log = follower.log
    log.limit_visibility()
    log.append(*two.data(0))  # rolls by size
    log.segments.drop_index(log.segments[0])
    follower.store._rebuilding.add(log)
    with pytest.raises(StoreError, match="index is rebuilt"):
        log.append(*two.data(1), 0)
    assert log.read_only is None
    follower.threads.run_all()
    follower.tick()
    follow(two, follower, 1)
    log.unlimited()
    assert follower.bodies() == [b"a", b"b"]
