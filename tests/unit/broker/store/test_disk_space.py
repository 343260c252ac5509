"""Too little room: puts are refused below the reserve, a full disk breaks nothing, and both end when space returns."""

import errno
from contextlib import AbstractContextManager

import pytest

from metaq.broker.memory.topics import SEQUENCES_TOPIC
from metaq.broker.store.disk_space import DiskSpace, Room, default_reserve
from metaq.broker.store.store import Append
from metaq.protocol.errors import DiskFull, LogReadOnly
from tests.doubles.store import FaultyFiles, ManualThreads, check_invariants
from tests.doubles.store_harness import StoreHarness
from tests.raising import raising

GIB = 1 << 30


@pytest.mark.parametrize(("total", "reserve"), [(100 * GIB, GIB), (10 * GIB, GIB // 2), (1000, 50), (0, 0)])
def test_the_default_is_a_part_of_small_disks_and_bounded_on_large_ones(total, reserve):
    assert default_reserve(total) == reserve


class Disk:
    """One data directory whose room is set by hand."""

    def __init__(self, reserve: int | None) -> None:
        self.files = FaultyFiles()
        self.threads = ManualThreads()
        self.space = DiskSpace(self.files, lambda: ["/data", "/other"], self.threads, reserve)

    def look(self, free: int) -> bool:
        """Whether puts are taken when so much is free."""
        self.files.free = free
        self.space.look()
        self.threads.run_all()
        return not self.space.full


def test_puts_are_refused_below_the_reserve_until_there_is_clearly_more(caplog):
    disk = Disk(1000 << 20)
    assert disk.look(1000 << 20)
    assert not disk.look((1000 << 20) - 1)
    with pytest.raises(
        DiskFull, match=r"/data takes no puts, its disk is full: 999 MiB are free, 1000 MiB are the reserve \(--disk-r"
    ):
        disk.space.check("/data/t-0", journaled=False)
    assert disk.space.rooms()[0] == Room("/data", (1000 << 20) - 1, 1000 << 20, False)
    assert not disk.look(1010 << 20)
    assert disk.look(1050 << 20)
    assert [record.levelname for record in caplog.records if "/data" in record.getMessage()] == ["ERROR", "WARNING"]
    disk.space.check("/data/t-0", journaled=False)


def test_a_partition_elsewhere_depends_on_the_journals_disk_only_if_it_uses_it():
    disk = Disk(100)
    disk.space.full["/data"] = DiskFull("/data", "test")
    disk.space.check("/other/t-0", journaled=False)
    with pytest.raises(DiskFull):
        disk.space.check("/other/t-0", journaled=True)


def test_a_reserve_of_nothing_refuses_nothing():
    assert Disk(0).look(0)


def test_one_look_is_under_way_at_a_time_and_a_failed_one_changes_nothing():
    disk = Disk(100)
    assert not disk.look(10)
    disk.space.look()
    disk.space.look()
    assert len(disk.threads) == 1

    disk.files.space = raising(OSError(errno.EIO, "Input/output error"))  # type: ignore[method-assign]
    disk.threads.run_all()
    assert disk.space.full


@pytest.mark.parametrize("group_commit", [False, True])
def test_a_put_that_finds_the_disk_full_leaves_nothing_and_later_ones_go_on(harness, group_commit):
    harness.group_commit = group_commit
    harness.append(b"good")
    with no_room_for(harness, "pwritev"), pytest.raises(DiskFull, match="No space left on device"):
        harness.append(b"too much")
    assert harness.data_file().stat().st_size == 24
    check_invariants(harness.log)
    harness.append_safe(b"goes on")
    assert harness.bodies() == [b"good", b"goes on"]
    harness.crash(power=group_commit)
    assert harness.bodies() == [b"good", b"goes on"]


def no_room_for(harness: StoreHarness, *calls: str) -> AbstractContextManager[None]:
    return harness.files.failing(*calls, cause=errno.ENOSPC)


def test_what_follows_a_refused_append_in_its_partition_is_refused_with_it(harness, log):
    appends = [Append(log, *harness.encoded(end, b"a message")) for end in (0, 29)]
    with no_room_for(harness):
        harness.files.fail_at = harness.files.changes + 1  # the first of the two only
        found = harness.store.append_many(appends)
    assert [type(each.error) for each in found] == [DiskFull, DiskFull]
    assert harness.bodies() == []
    check_invariants(log)


def test_without_room_for_a_new_segment_the_last_one_grows(harness):
    harness.max_segment_size = 25
    log = harness.log
    with no_room_for(harness, "open"):
        harness.append_each(b"first", b"second")
    assert len(log.segments) == 1
    harness.append(b"third")
    assert len(log.segments) == 2
    harness.threads.run_all()
    assert harness.restart().first_offset == 0
    assert harness.bodies() == [b"first", b"second", b"third"]


def test_a_sync_that_finds_the_disk_full_still_stops(grouped):
    logs = [grouped.store.get_or_create("t", number) for number in range(4)]
    grouped.append(b"a")
    for log in logs[1:]:
        log.flush()
    with no_room_for(grouped, "fdatasync"):
        grouped.threads.run_all()
    assert grouped.log.read_only is not None
    with pytest.raises(LogReadOnly):
        grouped.append(b"b")


@pytest.mark.parametrize(("refused", "full"), [("pwritev", [b"second"]), ("open", [b"first", b"second"])])
def test_a_journal_without_room_has_the_partitions_synced_instead(grouped, refused, full):
    logs = [grouped.store.get_or_create("t", number) for number in range(4)]
    bodies = [b"first", b"second", b"third"]
    for body in bodies:
        for log in logs:
            grouped.put(log, body)
        with no_room_for(grouped, *([refused] if body in full else [])):
            grouped.threads.run_all()
        assert [(log.read_only, log.visible_end) for log in logs] == [(None, log.end_offset) for log in logs]
    grouped.lose_power()
    assert grouped.bodies() == bodies


@pytest.mark.parametrize("call", ["make_directory", "open"])
@pytest.mark.parametrize(
    "make",
    [lambda store: store.get_or_create("t", 1), lambda store: store.internal_log(SEQUENCES_TOPIC, True)],
    ids=["of a topic", "internal"],
)
def test_a_partition_without_room_is_made_when_there_is_some(harness, make, call):
    store = harness.store
    with no_room_for(harness, call), pytest.raises(DiskFull):
        make(store)
    assert make(store).end_offset == 0


def test_an_index_without_room_stays_in_memory_and_is_written_later(harness):
    harness.append(b"first")
    with no_room_for(harness, "pwritev"):
        harness.checkpoint()
    assert (harness.log.read_only, harness.log.synced_end) == (None, harness.log.end_offset)
    assert harness.log.durability.dirty
    harness.append(b"second")
    harness.checkpoint()
    assert not harness.log.durability.dirty
    harness.lose_power()
    assert harness.bodies() == [b"first", b"second"]
