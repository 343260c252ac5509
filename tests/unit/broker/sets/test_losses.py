"""What a node's data directories have lost since its file was written."""

import shutil
from pathlib import Path

import pytest

from metaq.broker.sets.losses import contents, losses
from metaq.broker.transactions.directory import CHECKPOINT_PREFIX, DIRECTORY
from tests.doubles.store_harness import StoreHarness


def lost(harness: StoreHarness, end: int, *, same_boot: bool = False) -> list[str]:
    return losses(harness.store, harness.path, {"t-0": end, "empty-0": 0}, same_boot=same_boot)


def segments(harness: StoreHarness) -> list[Path]:
    return sorted(Path(harness.path, "t-0").glob("*.meta"))


@pytest.fixture
def harness(tmp_path: Path) -> StoreHarness:
    return StoreHarness(tmp_path / "data")


@pytest.fixture
def stopped(harness: StoreHarness) -> int:
    """Where the partition ended: some segments, nothing of them in the journal."""
    harness.max_segment_size = 64
    for number in range(10):
        harness.append(b"%d" % number)
    harness.settle()
    end = harness.log.end_offset
    harness.restart()
    harness.store.close()
    return end


def test_a_store_as_it_was_has_lost_nothing(harness: StoreHarness, stopped: int) -> None:
    harness.open()
    assert lost(harness, stopped, same_boot=True) == []


@pytest.mark.parametrize("same_boot", [True, False])
def test_a_directory_that_is_gone_is_missed(harness: StoreHarness, stopped: int, same_boot: bool) -> None:
    shutil.rmtree(Path(harness.path, "t-0"))
    harness.open()
    for _ in range(2):
        assert lost(harness, stopped, same_boot=same_boot) == ["t-0"]
        assert harness.log.end_offset == 0  # as the broker's own start creates it


def test_a_directory_without_its_files_is_missed(harness: StoreHarness, stopped: int) -> None:
    for path in segments(harness):
        path.unlink()
    harness.open()
    assert lost(harness, stopped) == ["t-0"]


@pytest.mark.parametrize(("same_boot", "missed"), [(True, ["t-0"]), (False, [])])
def test_an_end_that_is_gone_is_missed_unless_the_machine_has_restarted(harness, stopped, same_boot, missed) -> None:
    """Nobody had promised that it was on the disk."""
    harness.open()
    assert lost(harness, stopped + 1, same_boot=same_boot) == missed


def test_bytes_that_had_been_synced_are_missed(harness: StoreHarness, stopped: int) -> None:
    last = segments(harness)[-1]
    last.write_bytes(last.read_bytes()[:-1])
    harness.open()
    assert lost(harness, stopped) == ["t-0"]


def test_a_transaction_log_without_files_is_missed_if_it_had_some(harness: StoreHarness, tmp_path: Path) -> None:
    missing, log = tmp_path / "missing", tmp_path / "log"
    log.mkdir()
    for directory in (missing, log):
        known = contents(harness.store, str(directory))
        assert known[DIRECTORY] == 0
        assert losses(harness.store, str(directory), known, same_boot=True) == []
    (log / f"{CHECKPOINT_PREFIX}3").touch()
    known = contents(harness.store, str(log))
    assert losses(harness.store, str(log), known, same_boot=False) == []
    assert losses(harness.store, str(missing), known, same_boot=False) == [DIRECTORY]
