"""The files of the standalone ZooKeeper: what a power cut, a kill, a fault and damage leave of them."""

import shutil
from pathlib import Path

import pytest

from metaq.broker.standalone.log_files import KEPT_SNAPSHOTS, LogFiles
from metaq.coordination.standalone.records import gone_entry, node_entry, session_entry
from metaq.coordination.standalone.tree import TreeNode, ZnodeTree
from metaq.protocol.errors import CorruptRecord, StoreError
from tests.doubles.store import FaultyFiles


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "standalone")


def opened(files: FaultyFiles, directory: str) -> LogFiles:
    log = LogFiles(files, directory)
    log.load()
    return log


def node(data: bytes = b"") -> TreeNode:
    return TreeNode(data, (), 0, 1, 1)


def write(log: LogFiles, path: str, data: bytes = b"") -> None:
    log.append(node_entry(path, node(data)), log.zxid + 1)


def paths(log: LogFiles) -> list[str]:
    return sorted(path for path in log.take_restored().tree().nodes if path[1:] and not path.startswith("/zookeeper"))


def snapshot(log: LogFiles, *entries: bytes) -> None:
    log.begin_snapshot()
    for entry in entries:
        log.add_to_snapshot(entry)
    log.finish_snapshot()


def names(directory: str) -> list[str]:
    return sorted(file.name for file in Path(directory).iterdir())


def test_what_was_appended_is_there_after_a_power_cut(files: FaultyFiles, directory: str):
    log = opened(files, directory)
    write(log, "/a")
    write(log, "/b")
    files.lose_power()
    again = opened(FaultyFiles(), directory)
    assert (again.zxid, paths(again)) == (2, ["/a", "/b"])


def test_a_new_directory_survives_a_power_cut_at_once(files: FaultyFiles, directory: str):
    opened(files, directory)
    files.lose_power()
    assert opened(FaultyFiles(), directory).zxid == 0


def test_the_name_of_a_new_directory_is_safe_at_once(directory: str):
    class Noting(FaultyFiles):
        def fsync_directory(self, path: str) -> None:
            synced.append(path)
            super().fsync_directory(path)

    synced: list[str] = []
    opened(Noting(), directory)
    assert synced == [str(Path(directory).parent), directory]


def test_what_a_start_reads_from_the_page_cache_is_written_again_if_it_stays_there(directory: str):
    """A sync may have failed: the pages are clean, and not on the disk."""
    log = opened(FaultyFiles(), directory)
    write(log, "/a")
    log.close()
    files = FaultyFiles()
    files.cached = True
    again = opened(files, directory)
    assert (files.calls["pwritev"], paths(again)) == (1, ["/a"])


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_end_is_cut_off_and_the_log_goes_on(files: FaultyFiles, directory: str, cut: int, caplog):
    log = opened(files, directory)
    write(log, "/a")
    write(log, "/b")
    log.close()
    file = Path(directory, "log.1")
    file.write_bytes(file.read_bytes()[:-cut])
    again = opened(files, directory)
    assert (again.zxid, paths(again)) == (1, ["/a"])
    assert "never acknowledged" in caplog.text
    write(again, "/c")
    again.close()
    assert paths(opened(files, directory)) == ["/a", "/c"]


def test_a_hole_in_the_last_block_is_a_torn_end(files: FaultyFiles, directory: str):
    log = opened(files, directory)
    write(log, "/a")
    write(log, "/b", bytes(range(256)) * 64)
    log.close()
    file = Path(directory, "log.1")
    data = bytearray(file.read_bytes())
    data[4096:8192] = bytes(4096)
    file.write_bytes(data)
    assert paths(opened(files, directory)) == ["/a"]


def test_damage_in_the_middle_is_refused_and_named(files: FaultyFiles, directory: str):
    log = opened(files, directory)
    write(log, "/a")
    write(log, "/b")
    log.close()
    file = Path(directory, "log.1")
    data = bytearray(file.read_bytes())
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        file.write_bytes(damaged)
        if position >= data.rindex(b"mqzb"):  # the last block may be torn
            again = opened(files, directory)
            assert (again.zxid, paths(again)) == (1, ["/a"])
            again.close()
        else:
            with pytest.raises(CorruptRecord, match=r"log\.1: record at byte"):
                opened(files, directory)


def test_a_log_that_was_just_begun_is_begun_again(files: FaultyFiles, directory: str):
    log = opened(files, directory)
    write(log, "/a")
    snapshot(log, node_entry("/a", node()))
    log.close()
    Path(directory, "log.2").write_bytes(b"metaq")
    again = opened(files, directory)
    assert (again.zxid, paths(again)) == (1, ["/a"])
    write(again, "/b")
    again.close()
    assert paths(opened(files, directory)) == ["/a", "/b"]


def test_a_snapshot_spares_the_log_in_front_of_it(files: FaultyFiles, directory: str):
    log = opened(files, directory)
    write(log, "/a")
    write(log, "/b")
    log.begin_snapshot()
    log.add_to_snapshot(node_entry("/a", node()))
    log.append(gone_entry("/b"), 3)
    log.append(session_entry(7, 5000), 4)
    log.add_to_snapshot(node_entry("/b", node()))
    log.finish_snapshot()
    log.close()
    again = opened(files, directory)
    assert again.zxid == 4
    restored = again.take_restored()
    assert restored.sessions == {7: 5000}
    assert "/b" not in restored.tree().nodes


def test_three_snapshots_are_kept_and_the_logs_that_they_need(files: FaultyFiles, directory: str):
    log = opened(files, directory)
    for number in range(5):
        write(log, f"/{number}")
        snapshot(log, *(node_entry(f"/{each}", node()) for each in range(number + 1)))
    write(log, "/last")
    log.close()
    assert KEPT_SNAPSHOTS == 3
    assert names(directory) == ["log.4", "log.5", "log.6", "snapshot.3", "snapshot.4", "snapshot.5"]
    assert len(paths(opened(files, directory))) == 6


def test_a_damaged_snapshot_is_passed_over_for_the_one_before_it(files: FaultyFiles, directory: str, caplog):
    log = opened(files, directory)
    for number in range(3):
        write(log, f"/{number}")
        snapshot(log, *(node_entry(f"/{each}", node()) for each in range(number + 1)))
    log.close()
    newest = Path(directory, "snapshot.3")
    newest.write_bytes(newest.read_bytes()[:-1])
    again = opened(files, directory)
    assert (again.zxid, paths(again)) == (3, ["/0", "/1", "/2"])
    assert "snapshot.3" in caplog.text


def test_without_a_good_snapshot_or_the_log_behind_it_nothing_is_served(files: FaultyFiles, directory: str):
    log = opened(files, directory)
    write(log, "/a")
    snapshot(log, node_entry("/a", node()))
    log.close()
    kept = Path(directory, "log.2").read_bytes()
    Path(directory, "log.2").unlink()
    with pytest.raises(StoreError, match="the log behind zxid 0x1 is missing"):
        opened(files, directory)
    Path(directory, "log.2").write_bytes(kept)
    Path(directory, "snapshot.1").write_bytes(b"")
    with pytest.raises(StoreError, match="none of its 1 snapshots can be read"):
        opened(files, directory)


def test_a_gap_between_two_logs_is_refused(files: FaultyFiles, directory: str):
    log = opened(files, directory)
    for number in range(3):
        write(log, f"/{number}")
        log.begin_snapshot()  # a snapshot that is never finished, as when the server is killed
    log.close()
    Path(directory, "log.2").unlink()
    with pytest.raises(StoreError, match=r"log\.3 does not follow zxid 0x1"):
        opened(files, directory)


@pytest.mark.parametrize("fail_at", range(1, 40))
def test_power_may_go_at_any_change_of_the_disk(directory: str, fail_at: int):
    """What was appended is there; the disk fails once and the power goes then."""
    files = FaultyFiles(fail_at=fail_at)
    acknowledged = 0
    log = None
    try:
        log = opened(files, directory)
        for number in range(5):
            write(log, f"/{number}", b"x" * 700)
            acknowledged = number + 1
            if number in (1, 3):
                snapshot(log, *(node_entry(f"/{each}", node()) for each in range(number + 1)))
    except OSError:
        pass
    files.lose_power()
    again = opened(FaultyFiles(), directory)
    found = paths(again)
    assert found in ([f"/{number}" for number in range(acknowledged + more)] for more in (0, 1))
    write(again, "/more")
    again.close()
    assert "/more" in paths(opened(FaultyFiles(), directory))


def test_the_tree_of_no_entries_is_that_of_a_new_server(files: FaultyFiles, directory: str):
    assert set(opened(files, directory).take_restored().tree().nodes) == set(ZnodeTree().nodes)


def test_what_a_start_has_read_stays(files: FaultyFiles, directory: str):
    """A block that was written, and not synced when the process was killed, is in the page cache alone."""
    log = opened(files, directory)
    files.fail("fdatasync")
    with pytest.raises(OSError, match=r"Input/output error"):
        write(log, "/a")
    life = files.next_life()
    assert opened(life, directory).zxid == 1
    life.lose_power()
    assert opened(FaultyFiles(), directory).zxid == 1


def test_a_directory_that_was_deleted_takes_no_more_changes(files: FaultyFiles, directory: str):
    log = opened(files, directory)
    write(log, "/a")
    shutil.rmtree(directory)
    with pytest.raises(OSError, match=r"deleted or moved away while the broker ran.*log\.1"):
        write(log, "/b")
