"""The files of the standalone ZooKeeper: what a power cut, a kill, a fault and damage leave of them."""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from metaq.broker.standalone.log_files import KEPT_SNAPSHOTS, LogFiles
from metaq.coordination.standalone.log_entries import gone_entry, node_entry, session_entry
from metaq.coordination.standalone.tree import TreeNode, ZnodeTree
from metaq.protocol.errors import CorruptRecord, StoreError
from tests.doubles.store import FaultyFiles


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "standalone"


@pytest.fixture
def log(files: FaultyFiles, directory: Path) -> LogFiles:
    """Of a new directory."""
    return opened(directory, files)


def opened(directory: Path, files: FaultyFiles | None = None) -> LogFiles:
    log = LogFiles(files or FaultyFiles(), str(directory))
    log.load()
    return log


def node(data: bytes = b"") -> TreeNode:
    return TreeNode(data, (), 0, 1, 1)


def write(log: LogFiles, *written: str, data: bytes = b"") -> None:
    for path in written:
        log.append(node_entry(path, node(data)), log.zxid + 1)


def found(directory: Path, *written: str) -> tuple[int, list[str]]:
    """The zxid and the paths at a start, behind which these are written."""
    log = opened(directory)
    nodes = log.take_restored().tree().nodes
    zxid = log.zxid
    write(log, *written)
    log.close()
    return zxid, sorted(path for path in nodes if path[1:] and not path.startswith("/zookeeper"))


def snapshot(log: LogFiles, *nodes: str) -> None:
    log.begin_snapshot()
    for path in nodes:
        log.add_to_snapshot(node_entry(path, node()))
    log.finish_snapshot()


def with_snapshots(log: LogFiles, count: int) -> None:
    """One behind each of so many nodes."""
    for number in range(count):
        write(log, f"/{number}")
        snapshot(log, *(f"/{each}" for each in range(number + 1)))


def test_what_was_appended_is_there_after_a_power_cut(files: FaultyFiles, directory: Path, log: LogFiles):
    write(log, "/a", "/b")
    files.lose_power()
    assert found(directory) == (2, ["/a", "/b"])


def test_a_new_directory_survives_a_power_cut_at_once(files: FaultyFiles, directory: Path, log: LogFiles):
    files.lose_power()
    assert found(directory) == (0, [])


def test_the_name_of_a_new_directory_is_safe_at_once(directory: Path):
    class Noting(FaultyFiles):
        def fsync_directory(self, path: str) -> None:
            synced.append(path)
            super().fsync_directory(path)

    synced: list[str] = []
    opened(directory, Noting())
    assert synced == [str(directory.parent), str(directory)]


def test_what_a_start_reads_from_the_page_cache_is_written_again_if_it_stays_there(directory: Path, log: LogFiles):
    """A sync may have failed: the pages are clean, and not on the disk."""
    write(log, "/a")
    log.close()
    files = FaultyFiles()
    files.cached = True
    opened(directory, files).close()
    assert (files.calls["pwritev"], found(directory)) == (1, (1, ["/a"]))


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_end_is_cut_off_and_the_log_goes_on(directory: Path, log: LogFiles, cut: int, caplog):
    write(log, "/a", "/b")
    log.close()
    file = directory / "log.1"
    file.write_bytes(file.read_bytes()[:-cut])
    assert found(directory, "/c") == (1, ["/a"])
    assert "never acknowledged" in caplog.text
    assert found(directory) == (2, ["/a", "/c"])


def test_a_hole_in_the_last_block_is_a_torn_end(directory: Path, log: LogFiles):
    write(log, "/a")
    write(log, "/b", data=bytes(range(256)) * 64)
    log.close()
    file = directory / "log.1"
    data = bytearray(file.read_bytes())
    data[4096:8192] = bytes(4096)
    file.write_bytes(data)
    assert found(directory) == (1, ["/a"])


def test_damage_in_the_middle_is_refused_and_named(directory: Path, log: LogFiles):
    write(log, "/a", "/b")
    log.close()
    file = directory / "log.1"
    data = file.read_bytes()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        file.write_bytes(damaged)
        if position >= data.rindex(b"mqzb"):  # the last block may be torn
            assert found(directory) == (1, ["/a"])
        else:
            with pytest.raises(CorruptRecord, match=r"log\.1: record at byte"):
                opened(directory)


def test_a_log_that_was_just_begun_is_begun_again(directory: Path, log: LogFiles):
    write(log, "/a")
    snapshot(log, "/a")
    log.close()
    (directory / "log.2").write_bytes(b"metaq")
    assert found(directory, "/b") == (1, ["/a"])
    assert found(directory) == (2, ["/a", "/b"])


def test_a_snapshot_spares_the_log_in_front_of_it(directory: Path, log: LogFiles):
    write(log, "/a", "/b")
    log.begin_snapshot()
    log.add_to_snapshot(node_entry("/a", node()))
    log.append(gone_entry("/b"), 3)
    log.append(session_entry(7, 5000), 4)
    log.add_to_snapshot(node_entry("/b", node()))
    log.finish_snapshot()
    log.close()
    assert opened(directory).take_restored().sessions == {7: 5000}
    assert found(directory) == (4, ["/a"])


def test_three_snapshots_are_kept_and_the_logs_that_they_need(directory: Path, log: LogFiles):
    with_snapshots(log, 5)
    write(log, "/last")
    log.close()
    assert KEPT_SNAPSHOTS == 3
    names = sorted(file.name for file in directory.iterdir())
    assert names == ["log.4", "log.5", "log.6", "snapshot.3", "snapshot.4", "snapshot.5"]
    assert len(found(directory)[1]) == 6


def test_a_damaged_snapshot_is_passed_over_for_the_one_before_it(directory: Path, log: LogFiles, caplog):
    with_snapshots(log, 3)
    log.close()
    newest = directory / "snapshot.3"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert found(directory) == (3, ["/0", "/1", "/2"])
    assert "snapshot.3" in caplog.text


def test_without_a_good_snapshot_or_the_log_behind_it_nothing_is_served(directory: Path, log: LogFiles):
    write(log, "/a")
    snapshot(log, "/a")
    log.close()
    kept = (directory / "log.2").read_bytes()
    (directory / "log.2").unlink()
    with pytest.raises(StoreError, match="the log behind zxid 0x1 is missing"):
        opened(directory)
    (directory / "log.2").write_bytes(kept)
    (directory / "snapshot.1").write_bytes(b"")
    with pytest.raises(StoreError, match="none of its 1 snapshots can be read"):
        opened(directory)


def test_a_gap_between_two_logs_is_refused(directory: Path, log: LogFiles):
    for number in range(3):
        write(log, f"/{number}")
        log.begin_snapshot()  # a snapshot that is never finished, as when the server is killed
    log.close()
    (directory / "log.2").unlink()
    with pytest.raises(StoreError, match=r"log\.3 does not follow zxid 0x1"):
        opened(directory)


@pytest.mark.parametrize("fail_at", range(1, 40))
def test_power_may_go_at_any_change_of_the_disk(directory: Path, fail_at: int):
    """What was appended is there; the disk fails once and the power goes then."""
    files = FaultyFiles(fail_at=fail_at)
    acknowledged = 0
    with suppress(OSError):
        log = opened(directory, files)
        for number in range(5):
            write(log, f"/{number}", data=b"x" * 700)
            acknowledged = number + 1
            if number in (1, 3):
                snapshot(log, *(f"/{each}" for each in range(number + 1)))
    files.lose_power()
    _, there = found(directory, "/more")
    assert there in ([f"/{number}" for number in range(acknowledged + more)] for more in (0, 1))
    assert "/more" in found(directory)[1]


def test_the_tree_of_no_entries_is_that_of_a_new_server(log: LogFiles):
    assert set(log.take_restored().tree().nodes) == set(ZnodeTree().nodes)


def test_what_a_start_has_read_stays(files: FaultyFiles, directory: Path, log: LogFiles):
    """A block that was written, and not synced when the process was killed, is in the page cache alone."""
    files.fail("fdatasync")
    with pytest.raises(OSError, match=r"Input/output error"):
        write(log, "/a")
    life = files.next_life()
    assert opened(directory, life).zxid == 1
    life.lose_power()
    assert found(directory) == (1, ["/a"])


def test_a_directory_that_was_deleted_takes_no_more_changes(directory: Path, log: LogFiles):
    write(log, "/a")
    shutil.rmtree(directory)
    with pytest.raises(OSError, match=r"deleted or moved away while the broker ran.*log\.1"):
        write(log, "/b")
