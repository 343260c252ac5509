"""Files and directories that the store makes or replaces are there after a power cut."""

import stat

import pytest

from metaq.broker.store.directories import lock_data_path
from metaq.broker.store.files import replace_file
from metaq.broker.transactions.changes import REMOVED, LogChange, make_change
from metaq.protocol.errors import LogReadOnly
from tests.doubles.store import FaultyFiles


def test_a_replaced_file_has_what_replaced_it(tmp_path):
    files, path = FaultyFiles(), tmp_path / "state"
    for content in (b"old", b"new"):
        replace_file(files, str(path), content)
        files.lose_power()
        assert path.read_bytes() == content


def test_a_data_directory_and_those_above_it_stay(tmp_path):
    files, path = FaultyFiles(), tmp_path / "broker" / "data"
    files.close(lock_data_path(files, str(path)))
    files.lose_power()
    assert path.is_dir()


def test_only_the_owner_may_read_what_is_made_but_what_exists_is_not_changed(tmp_path):
    files, existing = FaultyFiles(), tmp_path / "existing"
    existing.mkdir(0o755)
    files.close(lock_data_path(files, str(existing / "data")))
    replace_file(files, str(existing / "data" / "t-0" / "state"), b"")
    paths = list((existing / "data").rglob("*"))
    assert len(paths) == 3
    assert [path for path in (existing / "data", *paths) if path.stat().st_mode & 0o077] == []
    assert stat.S_IMODE(existing.stat().st_mode) == 0o755
    files.close(lock_data_path(files, str(existing)))
    assert stat.S_IMODE(existing.stat().st_mode) == 0o755


def test_a_partition_that_takes_no_writes_begins_no_segment_and_takes_no_damaged_bytes(harness):
    harness.append(b"a")
    harness.files.fail("fdatasync")
    harness.flush()
    names, end = harness.names(), harness.log.end_offset
    with pytest.raises(LogReadOnly):
        harness.log.roll()
    with pytest.raises(LogReadOnly):
        harness.log.append_damaged((b"damaged",), 0)
    assert (harness.names(), harness.log.end_offset) == (names, end)


def test_a_file_of_the_transaction_log_that_was_removed_stays_so(tmp_path):
    files, path = FaultyFiles(), tmp_path / "redo.1"
    replace_file(files, str(path), b"committed")
    make_change(files, str(tmp_path), LogChange("redo.1", REMOVED))
    files.lose_power()
    assert not path.exists()
