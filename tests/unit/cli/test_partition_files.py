"""`metaq partitions delete` and `move`: what they refuse, what they do, in which order."""

import json
from pathlib import Path

import pytest

from metaq.broker.store.batch import encode_puts
from metaq.broker.store.directories import lock_data_path
from metaq.broker.store.files import REAL_FILES
from metaq.broker.transactions.commands import Operation, OperationType
from metaq.broker.transactions.redo import Location, encode_locations
from metaq.cli.app import run
from metaq.protocol.record import checksum
from tests.doubles.redo import encode_operation_record
from tests.doubles.store_harness import StoreHarness


@pytest.fixture
def data(tmp_path):
    directory = tmp_path / "data"
    for partition in range(4):
        (directory / f"t-{partition}").mkdir(parents=True)
        for suffix in ("meta", "index"):
            (directory / f"t-{partition}" / f"{0:020d}.{suffix}").write_text(f"{suffix} of {partition}")
    return directory


def contents(data):
    return {path.name: sorted(file.read_text() for file in path.iterdir()) for path in data.iterdir() if path.is_dir()}


def partitions(data, command, start, end, *more):
    return run(["partitions", command, "--data-dir", str(data), "-t", "t", "--start", start, "--end", end, *more])


@pytest.mark.parametrize("offset", [1, 2, 10])
def test_moving_up_and_down_again_keeps_every_file_with_its_partition(data, offset):
    before = contents(data)
    assert partitions(data, "renumber", "0", "3", "--offset", str(offset), "--yes") == 0
    assert contents(data) == {f"t-{n + offset}": [f"index of {n}", f"meta of {n}"] for n in range(4)}
    assert partitions(data, "renumber", str(offset), str(3 + offset), "--offset", str(-offset), "--yes") == 0
    assert contents(data) == before


@pytest.mark.parametrize(
    ("start", "end", "offset", "said"),
    [
        ("0", "1", "2", "t-2 exists already"),
        ("3", "4", "10", "t-4 does not exist"),
        ("0", "1", "-1", "--offset=-1"),
        ("0", "1", "0", "--offset=0"),
        ("1", "0", "9", "--end=0"),
    ],
)
def test_a_move_that_cannot_be_done_whole_is_not_begun(data, capsys, start, end, offset, said):
    before = contents(data)
    assert partitions(data, "renumber", start, end, "--offset", offset, "--yes") == 1
    assert said in capsys.readouterr().err
    assert contents(data) == before


def test_delete_removes_what_was_confirmed_and_nothing_else(data, monkeypatch, capsys):
    answers = iter([True, False])
    monkeypatch.setattr("click.confirm", lambda *_, **__: next(answers))
    assert partitions(data, "delete", "1", "2") == 1
    assert sorted(contents(data)) == ["t-0", "t-2", "t-3"]
    assert "nothing more was changed" in capsys.readouterr().err
    assert partitions(data, "delete", "2", "3", "--yes", "--json") == 0
    assert sorted(contents(data)) == ["t-0"]
    assert json.loads(capsys.readouterr().out) == {"deleted": [str(data / "t-2"), str(data / "t-3")]}


@pytest.mark.parametrize("command", [("delete",), ("renumber", "--offset", "9")])
def test_what_was_done_is_on_the_disk_when_that_is_said(data, monkeypatch, command):
    synced: list[list[str]] = []
    monkeypatch.setattr(REAL_FILES, "fsync_directory", lambda path: synced.append(sorted(contents(Path(path)))))
    assert partitions(data, command[0], "0", "1", *command[1:], "--yes") == 0
    assert synced[-1] == sorted(contents(data))


@pytest.mark.parametrize("command", [("delete",), ("renumber", "--offset", "9")])
def test_a_dry_run_changes_nothing_and_takes_no_lock(data, capsys, command):
    before = contents(data)
    assert partitions(data, command[0], "0", "1", *command[1:], "--dry-run") == 0
    assert capsys.readouterr().out.count("would ") == 2
    assert contents(data) == before
    assert not (data / ".metaq.lock").exists()


@pytest.mark.parametrize("command", [("delete",), ("renumber", "--offset", "9")])
def test_the_directory_of_a_running_broker_is_refused(data, capsys, command):
    lock = lock_data_path(REAL_FILES, str(data))
    try:
        assert partitions(data, command[0], "0", "1", *command[1:], "--yes") == 1
        assert partitions(data, command[0], "0", "1", *command[1:], "--dry-run") == 1
    finally:
        REAL_FILES.close(lock)
    assert capsys.readouterr().err.count("in use by another broker") == 2
    assert len(contents(data)) == 4


def test_a_warning_names_partitions_that_a_start_would_write_again(data, capsys):
    (data / "transactions").mkdir()
    attachment = encode_locations([Location("t-1", 0, 10, 0), Location("u-0", 0, 10, 0)])
    commit = Operation("TX:a:1", OperationType.LOCAL_COMMIT, False)
    (data / "transactions" / "redo.1").write_bytes(b"".join(encode_operation_record(commit, attachment)))
    assert partitions(data, "renumber", "0", "3", "--offset", "10", "--dry-run") == 0
    warning = capsys.readouterr().err
    assert "commits to t-1:" in warning
    assert "u-0" not in warning


def test_partitions_in_the_journal_of_a_killed_broker_stay(data, capsys):
    harness = StoreHarness(data.parent / "killed")
    harness.group_commit = True
    for log in [harness.store.get_or_create("t", partition) for partition in range(4)]:
        log.append(*encode_puts([(0, checksum(b"body"), b"body")], log.end_offset, range(1, 2), 1))
    harness.threads.run_all()
    harness.files.kill()
    assert partitions(data.parent / "killed", "delete", "3", "3", "--yes") == 1
    assert "stop it by SIGTERM" in capsys.readouterr().err
    assert (data.parent / "killed" / "t-3").is_dir()
