"""Index units that are written while a slow sync of their partition goes on: memory, and what the headers promise."""

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.broker.store import tuning
from metaq.broker.store.durability import INDEX
from metaq.broker.store.index import HEADER_BYTES, UNIT, UNIT_BYTES, unpack_header
from metaq.broker.store.partition_log import PartitionLog
from metaq.protocol.errors import LogReadOnly
from metaq.protocol.record import Buffer
from tests.doubles.store import FaultyFiles, check_invariants
from tests.doubles.store_harness import StoreHarness

LIMIT = 4
"""Units in memory above which they are written out, in these tests."""


class SlowDisk(FaultyFiles):
    """During each sync something else happens; every header is checked against what has been synced."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None
        self.headers = 0

    def once(self, function: Callable[[], None]) -> None:
        """Let it happen in the next sync alone."""

        def happen() -> None:
            self.meanwhile = lambda: None
            function()

        self.meanwhile = happen

    def fdatasync(self, fd: int) -> None:
        self.meanwhile()
        super().fdatasync(fd)

    def sync_filesystem_of(self, fd: int) -> None:
        self.meanwhile()
        super().sync_filesystem_of(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        path = self._paths[fd]
        if path.endswith(".index") and position == 0:
            self._check_header(path, b"".join(buffers))
        return super().pwritev(fd, buffers, position)

    def _check_header(self, path: str, data: bytes) -> None:
        promised = unpack_header(data)
        assert promised is not None
        self.headers += 1
        stop = HEADER_BYTES + promised.units * UNIT_BYTES
        units = self._synced.get(path, b"")[HEADER_BYTES:stop]
        assert len(units) == promised.units * UNIT_BYTES, "the header promises units that are not synced"
        assert Path(path).read_bytes()[HEADER_BYTES:stop] == units, "units have changed after their sync"
        stored = len(self._synced.get(path.removesuffix(".index") + ".meta", b""))
        assert promised.end - promised.first_offset <= stored, "the header promises data that are not synced"
        found = list(UNIT.iter_unpack(units))
        assert found[0][0] == promised.first_offset
        assert found[-1][0] + found[-1][3] == promised.end
        assert promised.max_id == max(unit[1] for unit in found)


def checked_bytes(harness: StoreHarness) -> int:
    """By the last start."""
    return sum(report.checked_bytes for report in harness.store.reports)


def unstored(log: PartitionLog) -> int:
    return sum(segment.index.unstored for segment in log.segments if segment.index is not None)


@pytest.fixture(autouse=True)
def few_units(monkeypatch):
    monkeypatch.setattr("metaq.broker.store.tuning.MAX_UNSTORED_UNITS", LIMIT)


@pytest.fixture
def disk(harness):
    disk = SlowDisk()
    harness.files = disk
    return disk


def begin_checkpoint(harness: StoreHarness, grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all partitions, alone or in a group; the worker's call waits to be run."""
    if grouped:
        monkeypatch.setattr(tuning, "GROUPED_FROM", 0)
    for _ in range(4):
        harness.store.tick()
        harness.now += 2.0
    assert len(harness.threads) == 1


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("max_segment_size", [1 << 20, 400])
def test_units_do_not_wait_in_memory_while_a_sync_is_slow(harness, disk, monkeypatch, grouped, max_segment_size):
    harness.max_segment_size = max_segment_size
    harness.append(b"before")
    begin_checkpoint(harness, grouped, monkeypatch)
    numbers, most = count(), 0

    @disk.once
    def append_many():
        nonlocal most
        for _ in range(40):
            harness.append_safe(b"while it is synced: %d" % next(numbers))
            most = max(most, unstored(harness.log))

    harness.threads.run_one()
    assert next(numbers) == 40
    assert most <= 2 * LIMIT + 1  # of the growing segment, and what the one before had left
    harness.checkpoint()
    assert not harness.log.durability.dirty
    assert disk.headers >= 2
    harness.kill()
    assert checked_bytes(harness) == 0
    assert harness.log.segments.message_count == 41


@pytest.mark.parametrize("group_commit", [False, True])
def test_a_copy_of_the_units_is_not_kept_while_they_are_synced(harness, disk, group_commit):
    harness.group_commit = group_commit
    harness.append(b"a", b"b")
    harness.log.checkpoint()
    held: list[int] = []

    def look():
        job = next((each for each in harness.log._jobs if each.kind != INDEX), None)
        if job is not None and job.settle_units():
            held.append(sum(len(part.units) for part in job._parts) + unstored(harness.log))

    disk.meanwhile = look
    harness.threads.run_all()
    assert held
    assert held[-1] == 0


def test_a_failed_write_of_units_beside_a_sync_closes_the_partition(harness, disk):
    harness.append(b"before")
    harness.log.checkpoint()

    @disk.once
    def fail_units():
        harness.append_each(*(b"%d" % number for number in range(LIMIT + 1)))
        disk.fail("pwritev")
        harness.threads.run_all()
        disk.heal()

    harness.threads.run_one()
    with pytest.raises(LogReadOnly):
        harness.append(b"refused")
    harness.threads.run_all()
    check_invariants(harness.log)
    harness.lose_power()
    assert harness.bodies() == [b"before", *(b"%d" % number for number in range(LIMIT + 1))]
    assert checked_bytes(harness) > 0  # no header covers them
    harness.append(b"goes on")


def test_a_stop_awaits_units_that_are_being_written_beside_a_sync(harness, disk):
    harness.append(b"before")
    harness.log.checkpoint()
    late: list[Callable[[], None]] = []

    @disk.once
    def leave_units():
        harness.append(*(b"%d" % number for number in range(LIMIT + 1)))
        late.append(harness.threads.run_unreported())

    late.append(harness.threads.run_unreported())
    harness.append(b"last")
    harness.store.close()
    for report in late:
        report()
    harness.open()
    assert checked_bytes(harness) == 0
    assert harness.log.segments.message_count == LIMIT + 3


# --- any interleaving -------------------------------------------------------------------------------------------------

STEPS = ("append", "append many", "checkpoint", "flush", "work", "tick")


class Interleaving:
    """Steps of the owning thread and of the workers in any order, some of them in the middle of a sync."""

    def __init__(self, path: Path, steps: Sequence[str], group_commit: bool, fail_at: int | None) -> None:
        self.harness = StoreHarness(path)
        self.harness.group_commit = group_commit
        self.harness.unflush_threshold = 3
        self.harness.max_segment_size = 400
        self.disk = self.harness.files = SlowDisk()
        self.acknowledged: list[bytes] = []
        self._steps = list(steps)
        self._numbers = count()
        assert not self.harness.log.read_only
        self.changes_before = self.disk.changes
        self.disk.fail_at = None if fail_at is None else self.changes_before + fail_at

    def run(self) -> int:
        """How often the disk was changed."""
        self.disk.meanwhile = self._few_steps
        while self._steps:
            self._step()
        self.disk.meanwhile = lambda: None
        self.harness.threads.run_all()
        check_invariants(self.harness.log)
        return self.disk.changes - self.changes_before

    def _few_steps(self) -> None:
        for _ in range(5):
            if self._steps:
                self._step()

    def _step(self) -> None:
        harness, step = self.harness, self._steps.pop(0)
        if step.startswith("append"):
            self._append([b"%d" % next(self._numbers) for _ in range(2 if step == "append" else LIMIT + 1)])
        elif step == "checkpoint":
            harness.log.checkpoint()
        elif step == "flush":
            harness.log.flush()
        elif step == "tick":
            harness.now += 3.0
            harness.store.tick()
        elif len(harness.threads):
            harness.threads.run_one()

    def _append(self, bodies: Sequence[bytes]) -> None:
        log = self.harness.log
        try:
            self.harness.append(*bodies)
        except LogReadOnly:
            return
        log.when_safe(log.end_offset, lambda error: self.acknowledged.extend(() if error else bodies))


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.sampled_from(STEPS), min_size=20, max_size=120),
    group_commit=st.booleans(),
    power_cut=st.booleans(),
    data=st.data(),
)
def test_any_interleaving_keeps_what_headers_and_answers_promise(
    tmp_path_factory, steps, group_commit, power_cut, data
):
    whole = Interleaving(tmp_path_factory.mktemp("whole"), steps, group_commit, None)
    changes = whole.run()
    whole.harness.store.close()
    whole.harness.open()
    assert whole.harness.bodies() == whole.acknowledged
    assert checked_bytes(whole.harness) == 0
    whole.harness.files.kill()

    fail_at = data.draw(st.integers(1, max(1, changes)))
    faulty = Interleaving(tmp_path_factory.mktemp("faulty"), steps, group_commit, fail_at)
    faulty.run()
    if power_cut:
        faulty.harness.lose_power()
    else:
        faulty.harness.kill()
    check_invariants(faulty.harness.log)
    found = faulty.harness.bodies()
    if group_commit or not power_cut:
        assert [body for body in found if body in set(faulty.acknowledged)] == faulty.acknowledged
    assert found == [b"%d" % number for number in range(len(found))]
    assert not any(report.missing_bytes or report.damage for report in faulty.harness.store.reports)
    faulty.harness.files.kill()
