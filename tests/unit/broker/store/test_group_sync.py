"""Checkpoints of many partitions in one sync of the file system: what they promise, and what a failing disk does."""

import pytest

from metaq.broker.store import tuning
from metaq.broker.store.durability import Durability
from metaq.broker.store.partition_log import PartitionLog
from metaq.protocol.errors import LogReadOnly
from tests.doubles.store import check_invariants
from tests.doubles.store_harness import StoreHarness

PARTITIONS = 5
GROUP_CHANGES = 3 * PARTITIONS + 1
"""Of the disk, by one group: each index is made and written, the file system synced, each header written."""
# opening the index to make it is one change, its units and its header are one each


@pytest.fixture(autouse=True)
def grouped(monkeypatch):
    monkeypatch.setattr(tuning, "GROUPED_FROM", 1)


def logs(harness: StoreHarness) -> list[PartitionLog]:
    return [harness.store.get_or_create("t", number) for number in range(PARTITIONS)]


def put_to_all(harness: StoreHarness) -> None:
    for log in logs(harness):
        harness.put(log, b"body")


def begin_checkpoints(harness: StoreHarness) -> None:
    """Ticks over more than a checkpoint's interval."""
    for _ in range(4):
        harness.store.tick()
        harness.now += 2.0


def let_checkpoints_come(harness: StoreHarness) -> None:
    begin_checkpoints(harness)
    harness.threads.run_all()


def checked_bytes(harness: StoreHarness) -> int:
    return sum(report.checked_bytes for report in harness.store.reports)


@pytest.mark.parametrize("closed", [False, True], ids=["checkpoints", "a stop"])
def test_many_partitions_are_safe_after_one_sync_of_the_file_system(harness, closed):
    put_to_all(harness)
    harness.files.calls.clear()
    if closed:
        harness.store.close()
    else:
        let_checkpoints_come(harness)
        assert not any(log.durability.dirty for log in logs(harness))
    assert (harness.files.calls["sync_filesystem"], harness.files.calls["fdatasync"]) == (1, 0)
    harness.kill()
    assert checked_bytes(harness) == 0
    harness.lose_power()
    assert [log.segments.message_count for log in logs(harness)] == [1] * PARTITIONS
    for log in logs(harness):
        check_invariants(log)


def test_a_put_while_the_group_runs_is_left_to_the_next_one(harness):
    put_to_all(harness)
    begin_checkpoints(harness)
    report = harness.threads.run_unreported()
    harness.put(logs(harness)[0], b"late")
    report()
    assert [log.durability.dirty for log in logs(harness)] == [True] + [False] * (PARTITIONS - 1)
    let_checkpoints_come(harness)
    assert not logs(harness)[0].durability.dirty
    harness.lose_power()
    assert [log.segments.message_count for log in logs(harness)] == [2] + [1] * (PARTITIONS - 1)


@pytest.mark.parametrize("fault", range(1, GROUP_CHANGES + 2))
@pytest.mark.parametrize("close", [False, True])
def test_no_checkpoint_promises_what_a_failing_disk_has_lost(harness, fault, close):
    put_to_all(harness)
    before = harness.files.changes
    harness.files.fail_at = before + fault
    if close:
        harness.store.close()
    else:
        let_checkpoints_come(harness)
    if fault > GROUP_CHANGES:
        assert harness.files.changes - before >= GROUP_CHANGES, "the faults reach every change"
    elif not close:
        assert any(log.read_only for log in logs(harness))
    harness.lose_power()
    assert not any(report.missing_bytes or report.damage for report in harness.store.reports)
    for log in logs(harness):
        check_invariants(log)
        harness.put(log, b"goes on")


def test_a_failed_sync_closes_all_partitions_that_have_something_unsynced(harness):
    put_to_all(harness)
    let_checkpoints_come(harness)
    first, second, *others = logs(harness)
    for log in (first, second):
        harness.put(log, b"more")
    harness.store.tick()
    harness.now += 2.0
    harness.put(others[0], b"not in the group, and its data may be what was lost")
    harness.store.tick()
    harness.files.fail("sync_filesystem")
    harness.now += 4.0
    harness.tick()
    assert [bool(log.read_only) for log in logs(harness)] == [True, True, True, False, False]
    with pytest.raises(LogReadOnly):
        harness.put(first, b"refused")
    harness.put(others[1], b"taken")


def test_a_tick_looks_at_few_and_forgets_none(harness, monkeypatch):
    monkeypatch.setattr(tuning, "LOOKED_AT_PER_TICK", 2)
    put_to_all(harness)
    seen: list[int] = []
    partition_of = {id(log.durability): log.partition for log in logs(harness)}
    due = Durability.due

    def recorded(durability, now):
        seen.append(partition_of[id(durability)])
        return due(durability, now)

    monkeypatch.setattr(Durability, "due", recorded)
    harness.store.tick()
    assert seen == [0, 1]
    for _ in range(20):
        harness.now += 1.0
        harness.tick()
    assert not any(log.durability.dirty for log in logs(harness))
    harness.put(logs(harness)[3], b"dirty again")
    let_checkpoints_come(harness)
    assert not logs(harness)[3].durability.dirty


def test_partitions_on_another_disk_are_synced_there(harness, tmp_path):
    put_to_all(harness)
    elsewhere = logs(harness)[2].directory
    device = harness.files.device
    harness.files.device = lambda file: 12345 if file == elsewhere else device(file)
    harness.files.calls.clear()
    let_checkpoints_come(harness)
    assert harness.files.calls["sync_filesystem"] == 2
